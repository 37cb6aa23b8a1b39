"""The ledger: which messages this process knows, under which handles, and what may be acknowledged.

Pure bookkeeping over the table of :mod:`pyspark_mq.ack.table`. Time is a number passed in,
payloads are opaque, and nothing is sent from here: a method that makes acknowledgements due
returns a :class:`Settlement` that says which.

The table decides, this module does what it says. Nearly every message is new, is planned with
thousands of others and settled with them, so a state is a container: the buffer (RECEIVED), the
planned epochs (PLANNED), the batches (COMMITTED, SETTLED; a batch moves as a whole). Messages of
one state that meet one event are a group. The transition is looked up once for each group, its
action is done, and the group goes into the container of the target state. Only deliveries that
repeat a known ID are sorted into groups one by one.

Rules are cited by their number in docs/how-it-works.md#the-rules.

How long an ID is carried
-------------------------
The IDs that are acknowledged together are one :class:`Batch`. A batch is *carried*, that is
repeated in every new offset, for as long as its messages may come again (rule 5):

* *under way*, while an acknowledgement was sent and is not confirmed: without a deadline;
* when all its sessions have confirmed: for `grace_s` more, by the monotonic clock;
* *exposed*, when a session ended first. What that session had not confirmed is handed out again
  once the broker notices its end: the batch waits for as long as :meth:`Ledger.start_clock` says.
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
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import eq, itemgetter
from typing import Generic, TypeVar

from pyspark_mq.ack.carried import Batch, Exposure
from pyspark_mq.ack.counters import Counters
from pyspark_mq.ack.handles import Handles
from pyspark_mq.ack.table import Action, Event, State, step
from pyspark_mq.errors import InternalError

__all__ = ["Batch", "Ledger", "Part", "Settlement"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: whatever the caller wants back when the message is emitted


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


@dataclass(slots=True)
class _Epoch(Generic[K, P]):
    number: int
    payloads: dict[K, P | None] = field(default_factory=dict)
    missing: int = 0
    memo: str | None = None
    weight: int = 0  #: bytes of the payloads that are there
    unbound: bool = False  #: some of its handles are gone with their session


@dataclass(slots=True)
class _Group(Generic[K, P]):
    """Messages that meet an event together, and what the event brings along for the actions.

    Attributes:
        keys: what is met, in order.
        session: where they were delivered, or whose end it is.
        tags: the handles under which they were delivered.
        payloads: what was delivered.
        epoch: the one they are planned in now.
        epochs: the planned ones they are, as a whole.
        batch: the one they are, as a whole.
        memo: of the batch they become.
        wait_s: how long that one waits if it is exposed.
        held: the payloads that move with the messages, None for one that has not come; None if none move.
        weight: their bytes, None if unknown.
        unbound: not all of the messages have a handle, maybe.
        logged: the last plan whose offset names some of them.
        forgotten: nothing is left that could move.
        parts: acknowledgements that became due.
    """

    keys: Collection[K]
    session: int | None = None
    tags: Sequence[int] | None = None
    payloads: Sequence[P] | None = None
    epoch: _Epoch[K, P] | None = None
    epochs: Sequence[_Epoch[K, P]] = ()
    batch: Batch[K] | None = None
    memo: str | None = None
    wait_s: float | None = None
    held: Sequence[P | None] | None = None
    weight: int | None = None
    unbound: bool = False
    logged: int = -1
    forgotten: bool = False
    parts: tuple[Part, ...] | None = None

    def joined(self, other: _Group[K, P]) -> _Group[K, P]:
        """Both as one; deliveries in the order of their tags."""
        unbound, logged = self.unbound or other.unbound, max(self.logged, other.logged)
        if self.tags is None or other.tags is None:
            both = {**dict.fromkeys(self.keys), **dict.fromkeys(other.keys)}
            return _Group(both, unbound=unbound, logged=logged)
        pairs = sorted(
            [*zip(self.tags, self.keys, strict=True), *zip(other.tags, other.keys, strict=True)], key=itemgetter(0)
        )
        keys, tags = [key for _, key in pairs], [tag for tag, _ in pairs]
        return _Group(keys, self.session, tags, unbound=unbound, logged=logged)


class Ledger(Generic[K, P]):
    """Deliveries and their two phases, for one query.

    Not thread-safe: one thread calls it.

    Args:
        grace_s: seconds a confirmed ID is still carried (`settleGrace`).
        window: settled IDs remembered beyond the carried ones (`dedupWindow`).
        remember: False for the lower guarantees. The keys are then mere serial numbers of
            deliveries, and nothing is kept once an epoch is committed.
        weigh: the bytes of payloads.

    Attributes:
        delay_s: seconds the broker holds back what comes again, once it could.
    """

    def __init__(
        self, *, grace_s: float, window: int, remember: bool = True, weigh: Callable[[Sequence[P]], int] = len
    ) -> None:
        self.delay_s = 0.0
        self._grace_s = grace_s
        self._window = window
        self._remember = remember
        self._weigh = weigh
        self._handles: dict[int, Handles[K]] = {}
        #: Further handles of messages that have more than one. Never too few, so a commit that
        #: found as many handles as it has to expect need not look for more.
        self._more_handles: Counter[K] = Counter()
        self._received: dict[K, P] = {}
        self._order: deque[K] = deque()  #: the keys of `_received`, oldest first
        self._planned: dict[K, _Epoch[K, P]] = {}
        self._epochs: dict[int, _Epoch[K, P]] = {}
        self._done: dict[K, Batch[K]] = {}
        self._carried: dict[int, Batch[K]] = {}
        #: Batches that are remembered and not carried, in the order in which that came to be.
        self._aged: OrderedDict[int, Batch[K]] = OrderedDict()
        self._next_number = 1
        self._plans = 0
        self._buffered_bytes = 0
        self._count: Counter[str] = Counter()
        self._act: Mapping[Action, Callable[[_Group[K, P]], None]] = {
            Action.NOTHING: lambda _: None,
            Action.KEEP: self._keep,
            Action.BIND: self._bind,
            Action.ACKNOWLEDGE: self._acknowledge,
            Action.REPLAN: self._replan,
            Action.UNBIND: self._unbind,
            Action.FORGET: self._forget,
        }
        self._take_from: Mapping[State, Callable[[_Group[K, P]], None]] = {
            State.UNSEEN: lambda _: None,
            State.RECEIVED: self._take_received,
            State.PLANNED: self._take_planned,
            State.COMMITTED: self._take_done,
            State.SETTLED: self._take_done,
        }

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
    def buffered_bytes(self) -> int:
        """Bytes of the payloads received and not planned."""
        return self._buffered_bytes

    @property
    def planned_bytes(self) -> int:
        """Bytes of the payloads that planned epochs hold until they are committed."""
        return sum(epoch.weight for epoch in self._epochs.values())

    @property
    def counters(self) -> Counters:
        """What happened until now."""
        return Counters(**self._count)

    @property
    def unacked(self) -> int:
        """Deliveries of the open sessions for which no acknowledgement was asked yet."""
        return sum(map(len, self._handles.values()))

    def unacked_in(self, session: int) -> int:
        """The same for one open session."""
        return len(self._handles[session])

    def unseen(self, keys: Iterable[K]) -> Iterator[K]:
        """Those of `keys` that are not known here, looked at one by one as they are asked for."""
        return (key for key in keys if self.state(key) is State.UNSEEN)

    def epochs(self, upto: int) -> list[int]:
        """Planned epochs not committed yet, up to and including a number."""
        return [number for number in self._epochs if number <= upto]

    @property
    def expected(self) -> int:
        """Messages that a new session may be handed again: planned, or committed and carried."""
        return len(self._planned) + sum(batch.live for batch in self._carried.values())

    @property
    def planned(self) -> int:
        """Messages of epochs that are not committed."""
        return len(self._planned)

    @property
    def exposed(self) -> int:
        """IDs carried because a session ended before it was known whether they can come again."""
        return sum(batch.live for batch in self._carried.values() if batch.exposure is not None)

    @property
    def buffered_keys(self) -> Iterable[K]:
        """The IDs that were received and not planned, oldest first."""
        return self._order

    def buffered_payloads(self, limit: int) -> Iterable[P]:
        """The payloads that the next :meth:`plan` would take, oldest first."""
        return map(self._received.__getitem__, islice(self._order, limit))

    def unconfirmed(self) -> bool:
        """Is an acknowledgement under way whose confirmation can still come?"""
        return any(batch.open_sessions for batch in self._carried.values())

    def under_way(self, number: int | None) -> bool:
        """Can the confirmation of this settlement still come?"""
        batch = None if number is None else self._carried.get(number)
        return batch is not None and bool(batch.open_sessions)

    def carried(self) -> list[Batch[K]]:
        """The batches the next offset has to repeat, oldest first."""
        for batch in self._carried.values():
            if batch.live < len(batch.keys):
                self._leave_out_dead_keys(batch)
        return [batch for batch in self._carried.values() if batch.keys]

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

    @property
    def open_epochs(self) -> int:
        """How many epochs are planned and not committed."""
        return len(self._epochs)

    def has_epoch(self, epoch: int) -> bool:
        """Is this epoch planned and not committed?"""
        return epoch in self._epochs

    # -- receiving -------------------------------------------------------------------------

    def open_session(self, session: int) -> None:
        """A connection is up; its deliveries will come under this number, never used before."""
        self._handles[session] = Handles()

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
        if not len(tags) == len(keys) == len(payloads):
            raise InternalError(f"{len(keys)} messages came with {len(tags)} tags and {len(payloads)} payloads")
        if not keys:
            return None
        self._count["received"] += len(keys)
        distinct = set(keys)
        if len(distinct) == len(keys) and self._all_unseen(distinct):
            return self._meet(Event.DELIVER, {State.UNSEEN: _Group(keys, session, tags, payloads)})
        groups: dict[State, list[tuple[int, K, P]]] = {}
        unseen: set[K] = set()
        for delivery in zip(tags, keys, payloads, strict=True):
            key = delivery[1]
            # What repeats a new message of the same call meets the state that the first one leaves.
            state = State.RECEIVED if key in unseen else self.state(key)
            if state is State.UNSEEN:
                unseen.add(key)
            groups.setdefault(state, []).append(delivery)
        return self._meet(
            Event.DELIVER,
            {
                state: _Group(
                    [key for _, key, _ in groups[state]],
                    session,
                    [tag for tag, _, _ in groups[state]],
                    [payload for _, _, payload in groups[state]],
                )
                for state in State
                if state in groups
            },
        )

    def held(self, keys: Sequence[K], payloads: Sequence[P]) -> list[int]:
        """Which of these payloads are held here, by their places: those that the last :meth:`deliver` did not drop."""
        return [place for place, key in enumerate(keys) if self._payload(key) is payloads[place]]

    def exchange(self, keys: Iterable[K], payloads: Iterable[P]) -> None:
        """Hold other payloads of the same weight in place of those that are held for these messages."""
        for key, payload in zip(keys, payloads, strict=True):
            if key in self._received:
                self._received[key] = payload
            else:
                self._planned[key].payloads[key] = payload

    def _payload(self, key: K) -> P | None:
        epoch = self._planned.get(key)
        return self._received.get(key) if epoch is None else epoch.payloads[key]

    def pass_over(self, session: int, tag: int) -> None:
        """A delivery is not taken in and has to stay open: nothing from it on is acknowledged cumulatively.

        Until the session ends; only then it comes again.
        """
        handles = self._handles[session]
        handles.fence = tag if handles.fence is None else min(tag, handles.fence)

    def _all_unseen(self, keys: set[K]) -> bool:
        return (
            self._received.keys().isdisjoint(keys)
            and self._planned.keys().isdisjoint(keys)
            and self._done.keys().isdisjoint(keys)
        )

    def lose(self, session: int) -> None:
        """The session is gone, and every handle it gave with it (rule 6)."""
        handles = self._handles[session]
        held = dict.fromkeys(handles.messages())
        elsewhere = {key for number, other in self._handles.items() if number != session for key in other.messages()}
        received = [key for key in held if key in self._received]
        only_here = [key for key in received if key not in elsewhere]
        # Another session holds these too: they lose one of their handles, and nothing happens to them.
        self._unbind(_Group([key for key in received if key in elsewhere], session))
        self._meet(
            Event.LOSE,
            {
                State.RECEIVED: _Group(only_here, session),
                State.PLANNED: _Group([key for key in held if key in self._planned], session),
            },
        )
        self._count["returned"] += len(only_here)
        if handles:
            raise InternalError(f"session {session} is gone, and {len(handles)} of its handles are still held")
        del self._handles[session]
        counts = Counter(key for other in self._handles.values() for key in other.messages())
        self._more_handles = Counter({key: count - 1 for key, count in counts.items() if count > 1})
        for batch in [batch for batch in self._carried.values() if session in batch.sessions]:
            self._meet_whole(Event.LOSE, batch, session)
            self._drop_if_dead(batch)

    # -- phase one -------------------------------------------------------------------------

    def plan(self, epoch: int, count: int, memo: Callable[[tuple[K, ...]], str] | None = None) -> int:
        """Cut the oldest `count` buffered messages into an epoch.

        Args:
            epoch: number above all earlier ones.
            memo: called with the IDs in order; its result stays with the epoch's batch.

        Returns:
            how many messages the epoch has.
        """
        keys = tuple(islice(self._order, count))
        planned: _Epoch[K, P] = _Epoch(epoch)
        self._meet(Event.PLAN, {State.RECEIVED: _Group(keys, epoch=planned)})
        if memo is not None:
            planned.memo = memo(keys)
        self._epochs[epoch] = planned
        self._plans += 1
        for batch in self._carried.values():
            batch.logged = self._plans
        self._count["planned"] += len(planned.payloads)
        return len(planned.payloads)

    def epoch_memo(self, epoch: int) -> str | None:
        """What `memo` returned when the epoch was planned."""
        return self._epochs[epoch].memo

    def restore_planned(self, epoch: int, keys: Sequence[K], memo: str | None = None) -> None:
        """Expect an epoch that a former process planned and Spark did not commit.

        IDs that are committed already are left out: they are not emitted again. What was buffered, or planned
        here for a later epoch, becomes a part of this one.
        """
        planned: _Epoch[K, P] = _Epoch(epoch, memo=memo)
        groups = self._by_state(keys)
        self._meet(Event.RESTORE_PLANNED, {state: _Group(groups[state], epoch=planned) for state in groups})
        if len(groups) > 1:
            planned.payloads = {key: planned.payloads[key] for key in keys if key in planned.payloads}
        self._epochs[epoch] = planned
        self._count["replays"] += 1

    def restore_committed(
        self, keys: Iterable[K], memo: str | None = None, wait_s: float | None = None
    ) -> Settlement | None:
        """Learn that these IDs are committed. Those not met yet are exposed from the beginning.

        Args:
            keys: the IDs.
            memo: their encoded form, if they are from an offset.
            wait_s: connected seconds to carry them; None: as long as `start_clock` says.

        Returns:
            Acknowledgements due for those that were received or planned before this was known.
        """
        groups = self._by_state(keys)
        for batch in {self._done[key].number: self._done[key] for key in groups.get(State.COMMITTED, ())}.values():
            # Two offsets of a restart name it. In the newer one it may have been acknowledged again since.
            if not batch.sessions and batch.wait_s is not None and (wait_s is None or wait_s > batch.wait_s):
                batch.wait_s, batch.wait_ends_s = wait_s, None
        whole = memo if len(groups) == 1 else None
        logged = -1 if memo is None else self._plans
        return self._meet(
            Event.RESTORE_COMMITTED,
            {state: _Group(groups[state], memo=whole, wait_s=wait_s, logged=logged) for state in groups},
        )

    def _by_state(self, keys: Iterable[K]) -> dict[State, dict[K, None]]:
        groups: dict[State, dict[K, None]] = {}
        for key in keys:
            groups.setdefault(self.state(key), {})[key] = None
        return groups

    def abandon(self, epoch: int) -> list[K]:
        """Give up what an epoch still misses (rule 9); returns those IDs in planned order."""
        given_up = self.missing(epoch)
        self._meet(Event.ABANDON, {State.PLANNED: _Group(given_up)})
        self._count["lost"] += len(given_up)
        return given_up

    # -- phase two -------------------------------------------------------------------------

    def commit(self, epoch: int) -> Settlement | None:
        """Spark has committed all epochs up to and including this one.

        Returns:
            The acknowledgements that are due now, or None if no session holds one.
        """
        ready = [self._epochs.pop(number) for number in self.epochs(epoch)]
        if not ready:
            return None
        if len(ready) == 1:
            whole: _Group[K, P] = _Group(ready[0].payloads, epochs=ready, memo=ready[0].memo, logged=self._plans)
        else:
            keys = {key: None for planned in ready for key in planned.payloads}
            whole = _Group(keys, epochs=ready, logged=self._plans)
        return self._meet(Event.COMMIT, {State.PLANNED: whole})

    def confirm(self, number: int, session: int, now_s: float) -> None:
        """The broker took the acknowledgements of one settlement in one session."""
        batch = self._carried.get(number)
        if batch is None or session not in batch.open_sessions:
            return  # the session was lost in between: what it said counts for nothing
        batch.open_sessions.discard(session)
        self._count["settled"] += batch.deliveries.get(session, 0)
        if batch.open_sessions:
            return
        if batch.exposure is not Exposure.UNCONFIRMED:
            self._meet_whole(Event.CONFIRM, batch)
            batch.wait_s = self._grace_s + self.delay_s
        if batch.exposure is None:
            batch.grace_ends_s = now_s + self._grace_s
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
        for batch in [batch for batch in self._carried.values() if batch.over(now_s, connected_s)]:
            self._meet_whole(Event.EXPIRE, batch)
            batch.memo = None
            del self._carried[batch.number]
            if self._remember:
                self._aged[batch.number] = batch
        self._trim_window()

    def _trim_window(self) -> None:
        excess = len(self._done) - self._window - sum(batch.live for batch in self._carried.values())
        victims: list[K] = []
        for batch in self._aged.values() if excess > 0 else ():
            if batch.logged == self._plans:
                continue  # the last offset names it
            begin, batch.evicted = batch.evicted, batch.evicted + excess - len(victims)
            victims += [key for key in batch.keys[begin : batch.evicted] if self._done.get(key) is batch]
            if len(victims) == excess:
                break
        self._meet(Event.EVICT, {State.SETTLED: _Group(victims)})

    def _drop_if_dead(self, batch: Batch[K]) -> None:
        """A batch of which nothing is left has nothing to wait for but its confirmations."""
        if not batch.live and not batch.open_sessions:
            self._carried.pop(batch.number, None)
            self._aged.pop(batch.number, None)

    def _leave_out_dead_keys(self, batch: Batch[K]) -> None:
        batch.keys = tuple(key for key in batch.keys if self._done.get(key) is batch)
        batch.memo = None
        batch.evicted = 0

    # -- the engine: what the table says is done here, and nowhere else ----------------------

    def _meet(self, event: Event, groups: Mapping[State, _Group[K, P]]) -> Settlement | None:
        """Groups of messages, each in one state, meet an event."""
        # All are looked up before anything is done: what the table does not have changes nothing.
        rows = [(state, group, *step(state, event)) for state, group in groups.items() if group.keys]
        due: dict[State, _Group[K, P]] = {}
        for state, group, target, action in rows:
            moves = target is not state or action in (Action.ACKNOWLEDGE, Action.FORGET, Action.REPLAN)
            if moves:
                self._take_from[state](group)
            if action is Action.ACKNOWLEDGE:
                # Together, so that one settlement has them all.
                due[target] = group.joined(due[target]) if target in due else group
                continue
            self._act[action](group)
            if moves:
                self._put_into(target, group)
        settlement = None
        for target, group in due.items():
            self._act[Action.ACKNOWLEDGE](group)
            settlement = self._put_into(target, group)
        return settlement

    def _meet_whole(self, event: Event, batch: Batch[K], session: int | None = None) -> None:
        """A batch meets an event as a whole: it is the container, so its state is what changes."""
        target, action = step(batch.state, event)
        group: _Group[K, P] = _Group(batch.keys, session, batch=batch)
        self._act[action](group)
        if group.parts is not None or group.forgotten:
            raise InternalError(f"'{action.value}' cannot be done to a batch as a whole")
        batch.state = target

    def _keep(self, group: _Group[K, P]) -> None:
        if group.session is None or group.tags is None:
            raise InternalError("nothing was delivered that could be kept")
        self._handles[group.session].hold(group.tags, group.keys)
        group.held = group.payloads

    def _bind(self, group: _Group[K, P]) -> None:
        if group.session is None or group.tags is None or group.payloads is None:
            raise InternalError("nothing was delivered that could be bound")
        self._handles[group.session].hold(group.tags, group.keys)
        filled: dict[int, list[P]] = {}
        for key, payload in zip(group.keys, group.payloads, strict=True):
            epoch = self._planned.get(key)
            if epoch is not None and epoch.payloads[key] is None:
                epoch.payloads[key] = payload
                epoch.missing -= 1
                filled.setdefault(epoch.number, []).append(payload)
            else:
                self._more_handles[key] += 1
        for number, payloads in filled.items():
            self._epochs[number].weight += self._weigh(payloads)
        bound = sum(map(len, filled.values()))
        self._count["rebound"] += bound
        self._count["duplicates_dropped"] += len(group.keys) - bound

    def _replan(self, group: _Group[K, P]) -> None:
        if group.epoch is None or group.held is None or group.weight is not None:
            raise InternalError("only what is planned can be moved to another epoch")

    def _unbind(self, group: _Group[K, P]) -> None:
        if group.session is None:
            raise InternalError("no session is gone whose handles could be dropped")
        if group.batch is None:
            self._handles[group.session].take(frozenset(group.keys))
            for key in self._planned.keys() & group.keys:
                self._planned[key].unbound = True
            return
        batch = group.batch
        if group.session in batch.open_sessions:
            batch.open_sessions.discard(group.session)
            batch.exposure = Exposure.UNCONFIRMED
        elif batch.exposure is None:
            batch.exposure = Exposure.CONFIRMED
        batch.grace_ends_s = None

    def _forget(self, group: _Group[K, P]) -> None:
        if group.session is not None:
            self._handles[group.session].take(frozenset(group.keys))
        group.forgotten = True

    def _acknowledge(self, group: _Group[K, P]) -> None:
        """Make every handle of these messages due, each session at its lowest cost (rule 3)."""
        if not group.epochs:  # acknowledged without being emitted
            self._count["duplicates_dropped"] += len(group.keys)
        if group.session is None or group.tags is None:
            keys = group.keys if isinstance(group.keys, dict) else dict.fromkeys(group.keys)
            if group.unbound:  # maybe: they may have come again since
                group.unbound = not keys.keys() <= {key for held in self._handles.values() for key in held.messages()}
            group.parts = self._due(keys)
        else:
            upto, singles = self._handles[group.session].split(group.tags)
            group.parts = (Part(group.session, upto, singles, len(group.tags)),)

    def _due(self, keys: dict[K, object]) -> tuple[Part, ...]:
        more = self._more_handles.keys() & keys.keys() if self._more_handles else ()
        expected = len(keys) + sum(map(self._more_handles.pop, more))
        fronts = {session: handles.take_front(keys) for session, handles in self._handles.items()}
        found = sum(count for count, _ in fronts.values())
        parts = []
        for session, (count, upto) in fronts.items():
            singles = self._handles[session].take(keys) if found < expected else ()
            if count or singles:
                parts.append(Part(session, upto, singles, count + len(singles)))
        return tuple(parts)

    def _take_received(self, group: _Group[K, P]) -> None:
        if len(group.keys) == len(self._received):
            group.held = list(self._received.values())
            group.weight, self._buffered_bytes = self._buffered_bytes, 0
            self._received = {}
            self._order.clear()
            return
        held = list(map(self._received.pop, group.keys))
        group.held, group.weight = held, self._weigh(held)
        self._buffered_bytes -= group.weight
        if all(map(eq, group.keys, self._order)):
            for _ in group.keys:
                self._order.popleft()
        else:
            self._order = deque(self._received)

    def _take_planned(self, group: _Group[K, P]) -> None:
        if not group.epochs:
            held: list[P | None] = []
            for key in group.keys:
                epoch = self._planned.pop(key)
                payload = epoch.payloads.pop(key)
                held.append(payload)
                if payload is None:
                    epoch.missing -= 1
                else:
                    epoch.weight -= self._weigh([payload])
                epoch.memo = None  # it names IDs that are no longer part of the epoch
                group.unbound |= epoch.unbound or payload is None
            group.held = held
            return
        group.unbound = any(epoch.unbound or epoch.missing for epoch in group.epochs)
        if len(group.keys) == len(self._planned):
            self._planned = {}
            return
        for key in group.keys:
            del self._planned[key]

    def _take_done(self, group: _Group[K, P]) -> None:
        older: dict[int, Batch[K]] = {}
        for key in group.keys:
            batch = self._done.pop(key, None)
            if batch is not None:
                batch.live -= 1
                older[batch.number] = batch
        for batch in older.values():
            group.logged = max(group.logged, batch.logged)
            self._drop_if_dead(batch)
            if 0 < 2 * batch.live < len(batch.keys):
                self._leave_out_dead_keys(batch)

    def _put_into(self, target: State, group: _Group[K, P]) -> Settlement | None:
        if group.forgotten is not (target is State.UNSEEN):
            raise InternalError(f"what is forgotten, and nothing else, is '{State.UNSEEN.value}'")
        if group.parts is not None and target is not State.COMMITTED:
            raise InternalError(f"a message cannot be acknowledged and be '{target.value}'")
        if target is State.RECEIVED:
            if group.held is None:
                raise InternalError("a message without a payload cannot be received")
            held = [payload for payload in group.held if payload is not None]
            self._received.update(zip(group.keys, held, strict=True))
            self._buffered_bytes += self._weigh(held)
            self._order.extend(group.keys)
        elif target is State.PLANNED:
            if group.epoch is None:
                raise InternalError("a message cannot be planned without an epoch")
            self._put_into_epoch(group.epoch, group)
        elif target is not State.UNSEEN:
            return self._put_into_batch(target, group)
        return None

    def _put_into_epoch(self, epoch: _Epoch[K, P], group: _Group[K, P]) -> None:
        if group.held is None:
            epoch.payloads.update(dict.fromkeys(group.keys))
            epoch.missing += len(group.keys)
        else:
            epoch.payloads.update(zip(group.keys, group.held, strict=True))
            if group.weight is None:
                there = [payload for payload in group.held if payload is not None]
                epoch.missing += len(group.held) - len(there)
                group.weight = self._weigh(there)
            epoch.weight += group.weight
            epoch.unbound |= group.unbound
        self._planned.update(dict.fromkeys(group.keys, epoch))

    def _put_into_batch(self, state: State, group: _Group[K, P]) -> Settlement | None:
        parts = group.parts or ()
        deliveries = {part.session: part.deliveries for part in parts}
        keys = tuple(dict.fromkeys(group.keys)) if group.tags else tuple(group.keys)
        batch: Batch[K] = Batch(
            self._next_number,
            keys,
            group.memo,
            state,
            live=len(keys),
            sessions=frozenset(deliveries),
            open_sessions=set(deliveries),
            deliveries=deliveries,
            exposure=None if parts and not group.unbound else Exposure.UNCONFIRMED,
            wait_s=None if parts else group.wait_s,
            logged=group.logged,
        )
        self._next_number += 1
        self._carried[batch.number] = batch
        if self._remember:
            self._done.update(dict.fromkeys(keys, batch))
        return Settlement(batch.number, parts) if parts else None
