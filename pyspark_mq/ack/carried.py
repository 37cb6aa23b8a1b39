"""Carried IDs: those of committed messages that may come again, and for how long each is carried. Pure.

The IDs that are acknowledged together are one :class:`Batch`. A batch is *carried*, that is
repeated in every new offset, for as long as its messages may come again (rule 5):

* *under way*, while an acknowledgement was sent and is not confirmed: without a deadline;
* when all its sessions have confirmed: for `grace_s` more, by the monotonic clock;
* *exposed*, when a session ended first. What that session had not confirmed is handed out again
  once the broker notices its end: the batch waits for as long as :meth:`Carried.start_clock` says.
  What it had confirmed, less than the grace ago, comes again only if it was the broker that
  died: the batch waits for `grace_s`, and for as long as the broker holds back what comes again.

What is exposed waits in *connected* time, which passes only while every connection is up. The
deadline is set once and no later end of a session moves it: what comes again becomes a part of a
newer batch, and what has not come in that time was taken. So the carried IDs are bounded however
often connections break: by what was settled within the last two graces of connected time, and
what was unconfirmed at each end of a session within the last wait.

An ID belongs to one batch at a time, the newest that acknowledged it. A batch that is no longer
carried stays in the window of remembered IDs until newer ones push it out; that window serves the
running process only. Nothing that the last offset names leaves it before the next one is planned:
a message with such an ID would count as committed in the replay of the epoch it was planned in.
Of a large window most IDs are in :class:`.Aged`, whose batches are forgotten; they leave it by the
thousand, so a few more than the window may be remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark_mq.ack.table import Action, Event, State, step
from pyspark_mq.errors import InternalError

if TYPE_CHECKING:
    from pyspark_mq.ack.aged import Aged

__all__ = ["Batch", "Carried", "Exposure"]

K = TypeVar("K", bound=Hashable)  #: identity of a message

#: A window from so many IDs on is packed, by so large a part of it at a time. It costs half a microsecond a message.
_PACKED_WINDOW = 262_144
_GENERATIONS = 16
#: IDs are objects until so many are together.
_GENERATION_MAX = 262_144


class Exposure(Enum):
    """The part of a batch that a session had when it ended."""

    UNCONFIRMED = "unconfirmed"
    CONFIRMED = "confirmed"


@dataclass(slots=True, eq=False)
class Batch(Generic[K]):
    """IDs acknowledged together."""

    number: int
    keys: tuple[K, ...]
    #: their encoded form, once it was asked for
    memo: str | None = None
    state: State = State.COMMITTED
    #: how many of the keys are not in a newer batch, nor evicted
    live: int = 0
    #: sessions that acknowledged it, and those of them that have not confirmed yet
    sessions: frozenset[int] = frozenset()
    open_sessions: set[int] = field(default_factory=set)
    #: deliveries acknowledged in each session, to be counted as settled when it confirms
    deliveries: Mapping[int, int] = field(default_factory=dict)
    exposure: Exposure | None = None
    #: how long it waits once it is exposed; None: as long as `start_clock` says
    wait_s: float | None = None
    #: what the offset that it was found in says of its end, and the next one is to
    until_s: int | None = None
    #: when it stops being carried: by the monotonic clock if confirmed, by connected time if exposed
    grace_ends_s: float | None = None
    wait_ends_s: float | None = None
    #: the last plan whose offset names some of its keys
    logged: int = -1
    #: so many of the keys from the first were looked at for eviction
    evicted: int = 0

    def encoded(self, encode: Callable[[tuple[K, ...]], str]) -> str:
        """Its IDs as text; encoded once."""
        if self.memo is None:
            self.memo = encode(self.keys)
        return self.memo

    def wait_left_s(self, connected_s: float) -> float | None:
        """Connected seconds it is still to be carried if this process ends now; None if that is not known."""
        return self.wait_s if self.wait_ends_s is None else max(0.0, self.wait_ends_s - connected_s)

    def over(self, now_s: float, connected_s: float) -> bool:
        """Can none of it come again?"""
        return (self.grace_ends_s is not None and self.grace_ends_s <= now_s) or (
            self.wait_ends_s is not None and self.wait_ends_s <= connected_s
        )

    def meet(self, event: Event, session: int | None = None) -> None:
        """An event of the table that it meets as a whole.

        Args:
            session: the one that has ended, if one has.
        """
        target, action = step(self.state, event)
        if action is Action.UNBIND and session is not None:
            if session in self.open_sessions:
                self.open_sessions.discard(session)
                self.exposure = Exposure.UNCONFIRMED
            elif self.exposure is None:
                self.exposure = Exposure.CONFIRMED
            self.grace_ends_s = None
        elif action is not Action.NOTHING:
            raise InternalError(f"'{action.value}' cannot be done to a batch as a whole")
        self.state = target


class Carried(Generic[K]):
    """All batches, carried or only remembered.

    Args:
        grace_s: seconds a confirmed ID is still carried (`settleGrace`).
        window: settled IDs remembered beyond the carried ones (`dedupWindow`).
        remember: False where nothing is kept of what was committed.
        second_hash: of an ID, independent of `hash`; None where IDs cannot be had in little room.

    Attributes:
        delay_s: seconds the broker holds back what comes again, once it could.
    """

    def __init__(
        self, grace_s: float, window: int, *, remember: bool, second_hash: Callable[[K], int] | None = None
    ) -> None:
        self.delay_s = 0.0
        self.window = window
        self._grace_s = grace_s
        self._remember = remember
        self._batch_of: dict[K, Batch[K]] = {}
        self._carried: dict[int, Batch[K]] = {}
        #: Batches that are remembered and not carried, in the order in which they were settled.
        self._aged: OrderedDict[int, Batch[K]] = OrderedDict()
        #: Those of them that the last offset still names.
        self._named: list[Batch[K]] = []
        #: What such batches became, in a large window.
        self._packed: Aged[K] | None = None
        if second_hash is not None and window >= _PACKED_WINDOW:
            # Nobody else needs NumPy, which comes with pandas and that with Spark for sources in Python.
            with suppress(ImportError):
                from pyspark_mq.ack.aged import Aged  # noqa: PLC0415

                self._packed = Aged(second_hash)
        self._generation = max(1, min(window // _GENERATIONS, _GENERATION_MAX))
        #: The newest batch of those that are packed.
        self._packed_number = 0
        self._next_number = 1
        self._plans = 0

    # -- looking

    def __len__(self) -> int:
        """IDs that are known here."""
        return len(self._batch_of) + (0 if self._packed is None else len(self._packed))

    def states(self, keys: Collection[K]) -> Callable[[K], State]:
        """Where each of the messages with these IDs stands, as far as it is known here, until something changes."""
        packed = frozenset() if self._packed is None else self._packed.among(keys)

        def state(key: K) -> State:
            batch = self._batch_of.get(key)
            if batch is not None:
                return batch.state
            return State.SETTLED if key in packed else State.UNSEEN

        return state

    def knows_none_of(self, keys: set[K]) -> bool:
        """Is none of these known here?"""
        return self._batch_of.keys().isdisjoint(keys) and (self._packed is None or self._packed.knows_none_of(keys))

    @property
    def live(self) -> int:
        """IDs that are carried."""
        return sum(batch.live for batch in self._carried.values())

    @property
    def exposed(self) -> int:
        """IDs carried because a session ended before it was known whether they can come again."""
        return sum(batch.live for batch in self._carried.values() if batch.exposure is not None)

    def under_way(self, number: int | None = None) -> bool:
        """Can the confirmation of this settlement, or of any, still come?"""
        if number is None:
            return any(batch.open_sessions for batch in self._carried.values())
        batch = self._carried.get(number)
        return batch is not None and bool(batch.open_sessions)

    def batches(self) -> list[Batch[K]]:
        """Those that the next offset has to repeat, oldest first."""
        for batch in self._carried.values():
            if batch.live < len(batch.keys):
                self._leave_out_dead_keys(batch)
        return [batch for batch in self._carried.values() if batch.keys]

    # -- what goes in and out

    @property
    def plans(self) -> int:
        """How many offsets were planned."""
        return self._plans

    def plan(self) -> None:
        """An offset is planned that names all that is carried."""
        self._plans += 1
        self._named.clear()
        for batch in self._carried.values():
            batch.logged = self._plans

    def put(
        self,
        keys: Iterable[K],
        state: State,
        deliveries: Mapping[int, int],
        *,
        exposed: bool,
        memo: str | None,
        wait_s: float | None,
        logged: int,
        until_s: int | None = None,
    ) -> int:
        """A new batch; its number.

        Args:
            deliveries: session -> how many of it are acknowledged.
            exposed: some may come again although nothing was acknowledged here, or not all of it.
            wait_s: how long it waits if nothing of it is acknowledged.
            logged: the last plan whose offset names some of its keys.
            until_s: what the offset that it was found in says of its end.
        """
        number, held = self._next_number, tuple(keys)
        self._next_number += 1
        self._carried[number] = batch = Batch(
            number,
            held,
            memo,
            state,
            live=len(held),
            sessions=frozenset(deliveries),
            open_sessions=set(deliveries),
            deliveries=deliveries,
            exposure=Exposure.UNCONFIRMED if exposed else None,
            wait_s=None if deliveries else wait_s,
            until_s=None if deliveries else until_s,
            logged=logged,
        )
        if self._remember:
            self._batch_of.update(dict.fromkeys(held, batch))
        return number

    def take(self, keys: Iterable[K]) -> int:
        """These leave their batches; the last plan whose offset names some of them."""
        logged = -1
        older: dict[int, Batch[K]] = {}
        elsewhere: list[K] = []
        for key in keys:
            batch = self._batch_of.pop(key, None)
            if batch is not None:
                batch.live -= 1
                older[batch.number] = batch
            else:
                elsewhere.append(key)
        if self._packed is not None and elsewhere:
            self._packed.take(elsewhere)
        for batch in older.values():
            logged = max(logged, batch.logged)
            self._drop_if_dead(batch)
            if 0 < 2 * batch.live < len(batch.keys):
                self._leave_out_dead_keys(batch)
        return logged

    def wait_longer(self, keys: Iterable[K], wait_s: float | None) -> None:
        """IDs that another offset names too: in the newer one they may have been acknowledged again since."""
        for batch in {self._batch_of[key].number: self._batch_of[key] for key in keys}.values():
            if not batch.sessions and batch.wait_s is not None and (wait_s is None or wait_s > batch.wait_s):
                batch.wait_s, batch.wait_ends_s = wait_s, None

    # -- what happens

    def confirm(self, number: int, session: int, now_s: float) -> int:
        """The broker took the acknowledgements of a batch in one session; how many deliveries those were."""
        batch = self._carried.get(number)
        if batch is None or session not in batch.open_sessions:
            return 0  # the session was lost in between: what it said counts for nothing
        batch.open_sessions.discard(session)
        if not batch.open_sessions:
            if batch.exposure is not Exposure.UNCONFIRMED:
                batch.meet(Event.CONFIRM)
                batch.wait_s = self._grace_s + self.delay_s
            if batch.exposure is None:
                batch.grace_ends_s = now_s + self._grace_s
            self._drop_if_dead(batch)
        return batch.deliveries.get(session, 0)

    def lose(self, session: int) -> None:
        """A session is gone."""
        for batch in [batch for batch in self._carried.values() if session in batch.sessions]:
            batch.meet(Event.LOSE, session)
            self._drop_if_dead(batch)

    def start_clock(self, connected_s: float, wait_s: float) -> None:
        """Every connection is up: from now on what is exposed may come again, for so long.

        Args:
            connected_s: seconds for which every connection was up and its deliveries were taken in.
            wait_s: of them, how many the broker may take to hand out again what a session that
                ended had not confirmed.
        """
        for batch in self._carried.values():
            if batch.exposure is not None and not batch.open_sessions and batch.wait_ends_s is None:
                batch.wait_ends_s = connected_s + (wait_s if batch.wait_s is None else batch.wait_s)

    def expire(self, now_s: float, connected_s: float) -> None:
        """Stop carrying what is past its deadline, and keep the window within its bound."""
        over = [batch for batch in self._carried.values() if batch.over(now_s, connected_s)]
        late = bool(over and self._aged) and over[0].number < next(reversed(self._aged))
        for batch in over:
            batch.meet(Event.EXPIRE)
            batch.memo = None
            del self._carried[batch.number]
            if self._remember:
                self._aged[batch.number] = batch
                if batch.logged == self._plans:
                    self._named.append(batch)
        if late:
            # Carried for longer than others that were settled after it, and no newer for that.
            self._aged = OrderedDict(sorted(self._aged.items()))
        self._trim_window()
        if over:
            self._pack()

    def _pack(self) -> None:
        """Put aged batches into little room, once they have enough together."""
        if self._packed is None or len(self._batch_of) - self.live < self._generation:
            return
        # What the last offset names stays a batch, and so does what is behind it: the oldest leave first.
        batches = list(takewhile(lambda batch: batch.logged != self._plans, self._aged.values()))
        if sum(batch.live for batch in batches) < self._generation:
            return
        keys = [key for batch in batches for key in batch.keys if self._batch_of.get(key) is batch]
        for key in keys:
            del self._batch_of[key]
        for batch in batches:
            del self._aged[batch.number]
            self._packed_number = max(self._packed_number, batch.number)
        for begin in range(0, len(keys), self._generation):
            self._packed.add(keys[begin : begin + self._generation])

    def _trim_window(self) -> None:
        excess = len(self) - self.window - self.live - sum(batch.live for batch in self._named)
        if excess <= 0:
            return
        if step(State.SETTLED, Event.EVICT) != (State.UNSEEN, Action.FORGET):
            raise InternalError("what is evicted is forgotten")
        excess -= self._evict(excess, self._packed_number)
        packed = self._packed
        while packed is not None and packed.size and packed.oldest <= excess:
            excess -= packed.oldest
            packed.drop()
        if excess and (packed is None or not packed.size):
            self._evict(excess, self._next_number)

    def _evict(self, excess: int, before: int) -> int:
        """Forget so many IDs of the oldest batches with lower numbers, or as many as there are; how many it were."""
        victims: list[K] = []
        for batch in self._aged.values():
            if batch.number >= before or len(victims) == excess:
                break
            if batch.logged == self._plans:
                continue  # the last offset names it
            # Of its keys some may be in a newer batch by now.
            while batch.evicted < len(batch.keys) and len(victims) < excess:
                key = batch.keys[batch.evicted]
                batch.evicted += 1
                if self._batch_of.get(key) is batch:
                    victims.append(key)
        self.take(victims)
        return len(victims)

    def _drop_if_dead(self, batch: Batch[K]) -> None:
        """A batch of which nothing is left has nothing to wait for but its confirmations."""
        if not batch.live and not batch.open_sessions:
            self._carried.pop(batch.number, None)
            self._aged.pop(batch.number, None)

    def _leave_out_dead_keys(self, batch: Batch[K]) -> None:
        batch.keys = tuple(key for key in batch.keys if self._batch_of.get(key) is batch)
        batch.memo = None
        batch.evicted = 0
