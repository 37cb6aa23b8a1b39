"""The ledger: which messages this process knows, under which handles, and what may be acknowledged.

Pure bookkeeping over the table of :mod:`pyspark_mq.ack.table`. Time is a number passed in,
payloads are opaque, and nothing is sent from here: a method that makes acknowledgements due
returns a :class:`Settlement` that says which.

Speed shapes the storage. Nearly every message is new, is planned with thousands of others and
settled with them, so a state is a container and a transition of an epoch moves whole containers;
only a batch of deliveries that repeats a known ID is walked through one by one. The table is
asked in both cases, once for a container or once for a message.

How long an ID is carried
-------------------------
The IDs of a committed epoch are one :class:`Batch`. A batch is *carried*, that is repeated in
every new offset, until its acknowledgement is confirmed and `grace_s` has passed with the session
alive (rule 5). When a session ends, what it had not confirmed, or confirmed less than the grace
ago, may come again. From then on the batch waits for a deadline that the caller sets with
:meth:`Ledger.start_clock` once every connection is up again; no clock runs while the broker is
away. So the carried IDs are bounded by what was handed out when sessions ended (the prefetch)
and what was settled within the last grace of connected time.

A batch that is no longer carried stays in the window of remembered IDs until newer ones push it
out; that window serves the running process only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from pyspark_mq.ack.table import Action, Event, State, step

__all__ = ["Batch", "Counters", "Ledger", "Part", "Settlement"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: whatever the caller wants back when the message is emitted


@dataclass(slots=True)
class Counters:
    """What happened since this process started; every silent decision has a number (rule 8)."""

    received: int = 0  #: deliveries taken in, first or again
    duplicates_dropped: int = 0  #: deliveries not emitted because their ID was known
    rebound: int = 0  #: planned messages that got a new handle, or their payload, by ID
    planned: int = 0  #: messages cut into epochs by this process
    settled: int = 0  #: deliveries whose acknowledgement was confirmed
    replays: int = 0  #: epochs of a former process that were emitted again
    lost: int = 0  #: planned messages given up (`failOnDataLoss=false`)
    forgotten: int = 0  #: buffered deliveries returned to the broker by the end of a session


@dataclass(frozen=True, slots=True)
class Part:
    """Acknowledgements due in one session.

    Attributes:
        session: the session whose tags these are; in any other they mean other messages (rule 10).
        upto: every open delivery with a tag not above this may be acknowledged at once;
            0 if there is none.
        singles: tags above `upto`, ascending, to be acknowledged one by one.
    """

    session: int
    upto: int
    singles: tuple[int, ...]
    deliveries: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """Acknowledgements that are due, and the number under which to confirm them."""

    number: int
    parts: tuple[Part, ...]


@dataclass(slots=True, eq=False)
class Batch(Generic[K]):
    """IDs committed together. `memo` is the caller's, to keep the encoded form beside them."""

    number: int
    keys: tuple[K, ...]
    memo: str | None = None
    state: State = State.COMMITTED
    open_sessions: set[int] = field(default_factory=set)
    #: deliveries acknowledged in each session, to be counted as settled when it confirms
    deliveries: dict[int, int] = field(default_factory=dict)
    #: when it stops being carried; None: not before a confirmation or `start_clock`
    deadline_s: float | None = None
    #: sessions that acknowledged it, until it is out of its grace
    sessions: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Epoch(Generic[K, P]):
    number: int
    payloads: dict[K, P | None]
    missing: int = 0
    memo: str | None = None


class Ledger(Generic[K, P]):
    """Deliveries and their two phases, for one query.

    Not thread-safe: one thread calls it.

    Args:
        grace_s: seconds a confirmed ID is still carried (`settleGrace`).
        window: settled IDs remembered beyond the carried ones (`dedupWindow`).
        remember: False for the lower guarantees. The keys are then mere serial numbers of
            deliveries, and nothing is kept once an epoch is committed.
    """

    def __init__(self, *, grace_s: float, window: int, remember: bool = True) -> None:
        self._grace_s = grace_s
        self._window = window
        self._remember = remember
        self._sessions: dict[int, dict[int, K]] = {}
        self._received: dict[K, P] = {}
        self._planned: dict[K, _Epoch[K, P]] = {}
        self._epochs: dict[int, _Epoch[K, P]] = {}
        self._done: dict[K, Batch[K]] = {}
        self._carried: dict[int, Batch[K]] = {}
        self._next_number = 1
        self.counters = Counters()

    # -- looking ---------------------------------------------------------------------------

    def state(self, key: K) -> State:
        """Where the message with this ID stands."""
        if key in self._received:
            return State.RECEIVED
        if key in self._planned:
            return State.PLANNED
        batch = self._done.get(key)
        return State.UNSEEN if batch is None else batch.state

    @property
    def buffered(self) -> int:
        """Messages received and not planned."""
        return len(self._received)

    @property
    def unacked(self) -> int:
        """Deliveries of the open sessions for which no acknowledgement was asked yet."""
        return sum(map(len, self._sessions.values()))

    def unacked_in(self, session: int) -> int:
        """The same for one open session."""
        return len(self._sessions[session])

    def unseen(self, keys: Iterable[K]) -> list[K]:
        """Those of `keys` that are not known here."""
        return [key for key in keys if self.state(key) is State.UNSEEN]

    def epochs(self, upto: int) -> list[int]:
        """Planned epochs not committed yet, up to and including a number."""
        return [number for number in self._epochs if number <= upto]

    @property
    def expected(self) -> int:
        """Messages that a new session may be handed again: planned, or committed and carried."""
        return len(self._planned) + sum(len(batch.keys) for batch in self._carried.values())

    @property
    def remembered(self) -> int:
        """Committed and settled IDs held in memory."""
        return len(self._done)

    def buffered_payloads(self, limit: int) -> Iterable[P]:
        """The payloads that the next :meth:`plan` would take, oldest first."""
        return islice(self._received.values(), limit)

    def unconfirmed(self) -> bool:
        """Is an acknowledgement under way whose confirmation can still come?"""
        return any(batch.open_sessions for batch in self._carried.values())

    def carried(self) -> list[Batch[K]]:
        """The batches the next offset has to repeat, oldest first."""
        return list(self._carried.values())

    def missing(self, epoch: int) -> list[K]:
        """IDs of a planned epoch that have no payload yet, in planned order."""
        return [key for key, payload in self._epochs[epoch].payloads.items() if payload is None]

    def missing_count(self, epoch: int) -> int:
        """How many IDs of a planned epoch have no payload yet."""
        return self._epochs[epoch].missing

    def payloads(self, epoch: int) -> list[P]:
        """What a planned epoch emits, in planned order."""
        return [payload for payload in self._epochs[epoch].payloads.values() if payload is not None]

    def keys(self, epoch: int) -> tuple[K, ...]:
        """The IDs of a planned epoch, in order; empty if it is committed or unknown."""
        planned = self._epochs.get(epoch)
        return () if planned is None else tuple(planned.payloads)

    def has_epoch(self, epoch: int) -> bool:
        """Is this epoch planned and not committed?"""
        return epoch in self._epochs

    # -- receiving -------------------------------------------------------------------------

    def open_session(self, session: int) -> None:
        """A connection is up; its deliveries will come under this number, never used before."""
        self._sessions[session] = {}

    def deliver(self, session: int, tags: Sequence[int], keys: Sequence[K], payloads: Sequence[P]) -> Settlement | None:
        """Take in deliveries of one session, in the order of arrival.

        Args:
            session: an open session.
            tags: ascending, above all earlier tags of the session.
            keys: the identity of each message.
            payloads: what to keep for each.

        Returns:
            Acknowledgements of duplicates that are due at once (rule 4), or None.
        """
        self._sessions[session].update(zip(tags, keys, strict=True))
        self.counters.received += len(keys)
        distinct = set(keys)
        if len(distinct) == len(keys) and self._all_unseen(distinct):
            step(State.UNSEEN, Event.DELIVER)
            self._received.update(zip(keys, payloads, strict=True))
            return None
        again: dict[K, None] = {}
        for key, payload in zip(keys, payloads, strict=True):
            _, action = step(self.state(key), Event.DELIVER)
            if action is Action.KEEP:
                self._received[key] = payload
            elif action is Action.BIND:
                self._bind(key, payload)
            else:
                self.counters.duplicates_dropped += 1
                again[key] = None
        return self._acknowledge(again) if again else None

    def _all_unseen(self, keys: set[K]) -> bool:
        return (
            self._received.keys().isdisjoint(keys)
            and self._planned.keys().isdisjoint(keys)
            and self._done.keys().isdisjoint(keys)
        )

    def _bind(self, key: K, payload: P) -> None:
        epoch = self._planned.get(key)
        if epoch is not None and epoch.payloads[key] is None:
            epoch.payloads[key] = payload
            epoch.missing -= 1
            self.counters.rebound += 1
            return
        self.counters.duplicates_dropped += 1

    def lose(self, session: int) -> None:
        """The session is gone, and every handle it gave with it (rule 6)."""
        handles = self._sessions.pop(session)
        elsewhere = {key for tags in self._sessions.values() for key in tags.values()}
        for key in dict.fromkeys(handles.values()):
            if key in self._received and key not in elsewhere:
                step(State.RECEIVED, Event.LOSE)
                del self._received[key]
                self.counters.forgotten += 1
        for batch in self._carried.values():
            # Part of it may come again, also of what was confirmed a moment ago if it is the
            # broker that died: it waits, whole, until `start_clock` gives it a new deadline.
            step(batch.state, Event.LOSE)
            batch.open_sessions.discard(session)
            batch.deadline_s = None

    # -- phase one -------------------------------------------------------------------------

    def plan(self, epoch: int, count: int, memo: Callable[[tuple[K, ...]], str] | None = None) -> int:
        """Cut the oldest `count` buffered messages into an epoch.

        Args:
            epoch: number above all earlier ones.
            memo: called with the IDs in order; its result stays with the epoch's batch.

        Returns:
            how many messages the epoch has.
        """
        step(State.RECEIVED, Event.PLAN)
        if count >= len(self._received):
            chosen, self._received = self._received, {}
        else:
            chosen = dict(islice(self._received.items(), count))
            self._received = dict(islice(self._received.items(), count, None))
        planned: _Epoch[K, P] = _Epoch(epoch, dict(chosen))
        if memo is not None:
            planned.memo = memo(tuple(chosen))
        self._epochs[epoch] = planned
        self._planned.update(dict.fromkeys(chosen, planned))
        self.counters.planned += len(chosen)
        return len(chosen)

    def epoch_memo(self, epoch: int) -> str | None:
        """What `memo` returned when the epoch was planned."""
        return self._epochs[epoch].memo

    def restore_planned(self, epoch: int, keys: Sequence[K], memo: str | None = None) -> None:
        """Expect an epoch that a former process planned and Spark did not commit.

        IDs that are committed already are left out: they are not emitted again.
        """
        expected: dict[K, P | None] = {}
        for key in keys:
            state = self.state(key)
            if state not in (State.COMMITTED, State.SETTLED):
                step(state, Event.RESTORE_PLANNED)
                expected[key] = None
        planned: _Epoch[K, P] = _Epoch(epoch, expected, missing=len(expected), memo=memo)
        self._epochs[epoch] = planned
        self._planned.update(dict.fromkeys(expected, planned))
        self.counters.replays += 1

    def restore_committed(self, keys: Iterable[K], memo: str | None = None) -> Settlement | None:
        """Learn from an offset that these IDs are committed; carried until :meth:`start_clock`.

        Returns:
            Acknowledgements due for those that were received or planned before this was known.
        """
        fresh: dict[K, None] = {}
        due: dict[K, None] = {}
        for key in keys:
            state = self.state(key)
            _, action = step(state, Event.RESTORE_COMMITTED)
            if action is Action.ACKNOWLEDGE:
                due[key] = None
                self.counters.duplicates_dropped += 1
                self._take_out(key)
            if state not in (State.COMMITTED, State.SETTLED):
                fresh[key] = None
        if not fresh:
            return None
        self._new_batch(tuple(fresh), memo)
        return self._acknowledge(due) if due else None

    def _take_out(self, key: K) -> None:
        self._received.pop(key, None)
        epoch = self._planned.pop(key, None)
        if epoch is not None and epoch.payloads.pop(key) is None:
            epoch.missing -= 1

    def abandon(self, epoch: int) -> list[K]:
        """Give up what an epoch still misses (rule 9); returns those IDs in planned order."""
        given_up = self.missing(epoch)
        planned = self._epochs[epoch]
        for key in given_up:
            step(State.PLANNED, Event.ABANDON)
            del planned.payloads[key], self._planned[key]
        planned.missing = 0
        # The memo names IDs that are no part of the epoch any more.
        planned.memo = None
        self.counters.lost += len(given_up)
        return given_up

    # -- phase two -------------------------------------------------------------------------

    def commit(self, epoch: int) -> Settlement | None:
        """Spark has committed all epochs up to and including this one.

        Returns:
            The acknowledgements that are due now, or None if no session holds one.
        """
        ready = self.epochs(epoch)
        if not ready:
            return None
        step(State.PLANNED, Event.COMMIT)
        keys: dict[K, None] = {}
        memos: list[str | None] = []
        for number in ready:
            planned = self._epochs.pop(number)
            memos.append(planned.memo)
            keys.update(dict.fromkeys(planned.payloads))
        if len(keys) == len(self._planned):
            self._planned.clear()
        else:
            for key in keys:
                del self._planned[key]
        return self._acknowledge(keys, memos[0] if len(memos) == 1 else None)

    def _acknowledge(self, keys: dict[K, None], memo: str | None = None) -> Settlement | None:
        """Make every handle of these messages due, each session at its lowest cost (rule 3)."""
        batch = self._new_batch(tuple(keys), memo)
        parts = tuple(part for session in self._sessions if (part := self._due(session, keys)) is not None)
        batch.sessions = frozenset(part.session for part in parts)
        batch.open_sessions = set(batch.sessions)
        batch.deliveries = {part.session: part.deliveries for part in parts}
        return Settlement(batch.number, parts) if parts else None

    def _due(self, session: int, keys: dict[K, None]) -> Part | None:
        handles = self._sessions[session]
        prefix = upto = 0
        for tag, key in handles.items():
            if key not in keys:
                break
            upto = tag
            prefix += 1
        rest = islice(handles.items(), prefix, None)
        singles = tuple(tag for tag, key in rest if key in keys)
        if not upto and not singles:
            return None
        left = dict(islice(handles.items(), prefix, None))
        for tag in singles:
            del left[tag]
        self._sessions[session] = left
        return Part(session, upto, singles, prefix + len(singles))

    def _new_batch(self, keys: tuple[K, ...], memo: str | None) -> Batch[K]:
        batch: Batch[K] = Batch(self._next_number, keys, memo)
        self._next_number += 1
        self._carried[batch.number] = batch
        if self._remember:
            # Taken out first, so that the order of the window is the order of the last sighting.
            for key in keys if not self._done.keys().isdisjoint(keys) else ():
                self._done.pop(key, None)
            self._done.update(dict.fromkeys(keys, batch))
        return batch

    def confirm(self, number: int, session: int, now_s: float) -> None:
        """The broker took the acknowledgements of one settlement in one session."""
        batch = self._carried.get(number)
        if batch is None or session not in batch.open_sessions:
            return  # the session was lost in between: what it said counts for nothing
        batch.open_sessions.discard(session)
        self.counters.settled += batch.deliveries.get(session, 0)
        if not batch.open_sessions and batch.sessions <= self._sessions.keys():
            batch.state, _ = step(batch.state, Event.CONFIRM)
            batch.deadline_s = now_s + self._grace_s

    def start_clock(self, deadline_s: float) -> None:
        """Every connection is up: what did not come again by then was taken by the broker.

        Batches with an acknowledgement under way, or a deadline of their own, are left alone.
        """
        for batch in self._carried.values():
            if batch.deadline_s is None and not batch.open_sessions:
                batch.deadline_s = deadline_s

    def expire(self, now_s: float) -> None:
        """Stop carrying what is past its deadline, and keep the window within its bound."""
        over = [
            number
            for number, batch in self._carried.items()
            if batch.deadline_s is not None and batch.deadline_s <= now_s
        ]
        for number in over:
            batch = self._carried.pop(number)
            if batch.state is State.COMMITTED:
                batch.state, _ = step(batch.state, Event.EXPIRE)
            batch.memo = None
        self._trim_window()

    def _trim_window(self) -> None:
        protected = sum(len(batch.keys) for batch in self._carried.values())
        excess = len(self._done) - self._window - protected
        if excess <= 0:
            return
        evicted = [key for key, batch in islice(self._done.items(), excess) if batch.number not in self._carried]
        for key in evicted:
            step(State.SETTLED, Event.EXPIRE)
            del self._done[key]
