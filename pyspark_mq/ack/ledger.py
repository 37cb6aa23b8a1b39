"""The ledger: which messages this process knows, under which handles, and what may be acknowledged.

Pure bookkeeping over the table of :mod:`pyspark_mq.ack.table`. Time is a number passed in,
payloads are opaque, and nothing is sent from here: a method that makes acknowledgements due
returns a :class:`Settlement` that says which.

The table decides, this module does what it says. Nearly every message is new, is planned with
thousands of others and settled with them, so a state is a container: the buffer (RECEIVED), the
planned epochs (PLANNED), the batches (COMMITTED, SETTLED; a batch moves as a whole). Messages of one state that meet
one event are a group. The transition is looked up once for each group, its action is done, and the group goes into
the container of the target state. Only deliveries that repeat a known ID are sorted into groups one by one.

Rules are cited by their number in docs/how-it-works.md#the-rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Generic, TypeVar

from pyspark_mq.ack.buffer import Buffer
from pyspark_mq.ack.carried import Batch, Carried
from pyspark_mq.ack.counters import Counters
from pyspark_mq.ack.handles import OpenDeliveries, SessionAcks, Settlement
from pyspark_mq.ack.planned import Epoch, Planned
from pyspark_mq.ack.table import Action, Event, State, step
from pyspark_mq.errors import InternalError

__all__ = ["Batch", "Ledger", "SessionAcks", "Settlement"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: whatever the caller wants back when the message is emitted


@dataclass(slots=True)
class _Group(Generic[K, P]):
    """Messages of one state that meet an event together, and what the event brings along.

    Attributes:
        keys: what is met, in order.
        session: where they were delivered, or whose end it is.
        tags, payloads: the handles under which they were delivered, and what was.
        into: the epoch they are planned in now.
        whole: the planned epochs they are, as a whole.
        memo: the encoded form of the keys.
        wait_s: how long they are carried if they are exposed.
        until_s: what the offset that they were found in says of their end.
    """

    keys: Collection[K]
    session: int | None = None
    tags: Sequence[int] | None = None
    payloads: Sequence[P] | None = None
    into: Epoch[K, P] | None = None
    whole: Sequence[Epoch[K, P]] = ()
    memo: str | None = None
    wait_s: float | None = None
    until_s: int | None = None


@dataclass(slots=True)
class _Moved(Generic[P]):
    """The content that leaves the container of a state with the messages of a group.

    Attributes:
        held: their payloads, None for one that has not come; None if none move.
        weight: bytes of them, None if unknown.
        unbound: not all of the messages have a handle, maybe.
        logged: the last plan whose offset names some of them.
    """

    held: Sequence[P | None] | None = None
    weight: int | None = None
    unbound: bool = False
    logged: int = -1


#: Actions after which a message is in another container, though its state may be the same.
_REPLACING = frozenset({Action.ACKNOWLEDGE, Action.FORGET, Action.REPLAN})


class Ledger(Generic[K, P]):
    """Deliveries and their two phases, for one queue.

    Not thread-safe: one thread calls it.

    Args:
        grace_s: seconds a confirmed ID is still carried (`settleGrace`).
        window: settled IDs remembered beyond the carried ones (`dedupWindow`).
        remember: False for the lower guarantees. The keys are then mere serial numbers of
            deliveries, and nothing is kept once an epoch is committed.
        weigh: the bytes of payloads.
        second_hash: of a key, independent of `hash`; without one a large window takes more memory.

    Attributes:
        received: what is not planned yet, oldest first. To be looked at, as the next two are.
        planned: epochs that are planned and not committed.
        carried: what is committed and may come again, or is remembered. The caller tells it the time.
    """

    def __init__(
        self,
        *,
        grace_s: float,
        window: int,
        remember: bool = True,
        weigh: Callable[[Sequence[P]], int] = len,
        second_hash: Callable[[K], int] | None = None,
    ) -> None:
        self._open: OpenDeliveries[K] = OpenDeliveries()
        self.received: Buffer[K, P] = Buffer(weigh)
        self.planned: Planned[K, P] = Planned(weigh)
        self.carried: Carried[K] = Carried(grace_s, window, remember=remember, second_hash=second_hash)
        self._count: Counter[str] = Counter()
        self._act: Mapping[Action, Callable[[_Group[K, P], _Moved[P]], None]] = {
            Action.NOTHING: lambda *_: None,
            Action.KEEP: self._keep,
            Action.BIND: self._bind,
            Action.REPLAN: self._replan,
            Action.UNBIND: self._unbind,
            Action.FORGET: self._forget,
        }
        self._take_from: Mapping[State, Callable[[_Group[K, P]], _Moved[P]]] = {
            State.UNSEEN: lambda _: _Moved(),
            State.RECEIVED: self._take_received,
            State.PLANNED: self._take_planned,
            State.COMMITTED: self._take_done,
            State.SETTLED: self._take_done,
        }

    # -- looking ---------------------------------------------------------------------------

    def state(self, key: K) -> State:
        """Where the message with this ID stands."""
        return self._states((key,))(key)

    def _states(self, keys: Collection[K]) -> Callable[[K], State]:
        """The same for several, until something changes."""
        carried = self.carried.states(keys)
        return lambda key: (
            State.RECEIVED if key in self.received else State.PLANNED if key in self.planned else carried(key)
        )

    @property
    def counters(self) -> Counters:
        """Counts until now."""
        return Counters(**self._count)

    @property
    def unacked(self) -> int:
        """Deliveries of the open sessions for which no acknowledgement was asked yet."""
        return len(self._open)

    def unacked_in(self, session: int) -> int:
        """The same for one open session."""
        return len(self._open[session])

    def unseen(self, keys: Collection[K]) -> Iterator[K]:
        """Those of `keys` that are not known here, looked at when they are asked for."""
        state_of = self._states(keys)
        yield from (key for key in keys if state_of(key) is State.UNSEEN)

    @property
    def expected(self) -> int:
        """Messages that a new session may be handed again: planned, or committed and carried."""
        return len(self.planned) + self.carried.live

    # -- receiving -------------------------------------------------------------------------

    def open_session(self, session: int) -> None:
        """A connection is up; its deliveries will come under this number, never used before."""
        self._open.open(session)

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
        state_of = self._states(distinct)
        for delivery in zip(tags, keys, payloads, strict=True):
            key = delivery[1]
            # What repeats a new message of the same call meets the state that the first one leaves.
            state = State.RECEIVED if key in unseen else state_of(key)
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
        return [place for place, key in enumerate(keys) if self._payload(key) == payloads[place]]

    def exchange(self, keys: Iterable[K], payloads: Iterable[P]) -> None:
        """Hold other payloads of the same weight in place of those that are held for these messages."""
        for key, payload in zip(keys, payloads, strict=True):
            if key in self.received:
                self.received.exchange(key, payload)
            else:
                self.planned.exchange(key, payload)

    def _payload(self, key: K) -> P | None:
        epoch = self.planned.get(key)
        return self.received.get(key) if epoch is None else epoch.payloads[key]

    def pass_over(self, session: int, tag: int) -> None:
        """A delivery is not taken in and has to stay open: nothing from it on is acknowledged cumulatively.

        Until the session ends; only then it comes again.
        """
        handles = self._open[session]
        handles.barrier = tag if handles.barrier is None else min(tag, handles.barrier)

    def _all_unseen(self, keys: set[K]) -> bool:
        return all(kept.knows_none_of(keys) for kept in (self.received, self.planned, self.carried))

    def lose(self, session: int) -> None:
        """The session is gone, and every handle it gave with it (rule 6)."""
        held = dict.fromkeys(self._open[session].messages())
        elsewhere = self._open.held(besides=session)
        received = [key for key in held if key in self.received]
        only_here = [key for key in received if key not in elsewhere]
        # Another session holds these too: they lose one of their handles, and nothing happens to them.
        self._unbind(_Group([key for key in received if key in elsewhere], session), _Moved())
        self._meet(
            Event.LOSE,
            {
                State.RECEIVED: _Group(only_here, session),
                State.PLANNED: _Group([key for key in held if key in self.planned], session),
            },
        )
        self._count["returned"] += len(only_here)
        left = self._open.close(session)
        if left:
            raise InternalError(f"session {session} is gone, and {left} of its handles are still held")
        self.carried.lose(session)

    # -- phase one -------------------------------------------------------------------------

    def plan(self, epoch: int, count: int, memo: Callable[[tuple[K, ...]], str] | None = None) -> None:
        """Cut the oldest `count` buffered messages into an epoch.

        Args:
            epoch: number above all earlier ones.
            memo: called with the IDs in order; its result stays with the epoch's batch.
        """
        keys = tuple(islice(self.received.order, count))
        planned: Epoch[K, P] = Epoch(epoch)
        self._meet(Event.PLAN, {State.RECEIVED: _Group(keys, into=planned)})
        if memo is not None:
            planned.memo = memo(keys)
        self.planned.epochs[epoch] = planned
        self.carried.plan()
        self._count["planned"] += len(planned.payloads)

    def restore_planned(self, epoch: int, keys: Sequence[K], memo: str | None = None) -> None:
        """Expect an epoch that a former process planned and Spark did not commit.

        IDs that are committed already are left out: they are not emitted again. What was buffered, or planned
        here for a later epoch, becomes a part of this one.
        """
        planned: Epoch[K, P] = Epoch(epoch, memo=memo)
        groups = self._by_state(keys)
        self._meet(Event.RESTORE_PLANNED, {state: _Group(groups[state], into=planned) for state in groups})
        if len(planned.payloads) < len(keys):
            planned.memo = None
        if len(groups) > 1:
            planned.payloads = {key: planned.payloads[key] for key in keys if key in planned.payloads}
        self.planned.epochs[epoch] = planned
        self._count["replays"] += 1

    def restore_committed(
        self, keys: Collection[K], memo: str | None = None, wait_s: float | None = None, until_s: int | None = None
    ) -> Settlement | None:
        """Learn that these IDs are committed. Those not met yet are exposed from the beginning.

        Args:
            keys: the IDs.
            memo: their encoded form, if they are from an offset.
            wait_s: connected seconds to carry them; None: as long as `start_clock` says.
            until_s: what the offset says of their end.

        Returns:
            Acknowledgements due for those that were received or planned before this was known.
        """
        groups = self._by_state(keys)
        self.carried.wait_longer(groups.get(State.COMMITTED, ()), wait_s)
        whole = memo if len(groups) == 1 else None
        return self._meet(
            Event.RESTORE_COMMITTED,
            {state: _Group(groups[state], memo=whole, wait_s=wait_s, until_s=until_s) for state in groups},
            -1 if memo is None else self.carried.plans,
        )

    def _by_state(self, keys: Collection[K]) -> dict[State, dict[K, None]]:
        groups: dict[State, dict[K, None]] = {}
        state_of = self._states(keys)
        for key in keys:
            groups.setdefault(state_of(key), {})[key] = None
        return groups

    def abandon(self, epoch: int) -> None:
        """Give up what an epoch still misses (rule 9)."""
        given_up = self.planned.missing(epoch)
        self._meet(Event.ABANDON, {State.PLANNED: _Group(given_up)})
        self._count["lost"] += len(given_up)

    # -- phase two -------------------------------------------------------------------------

    def commit(self, epoch: int) -> Settlement | None:
        """Spark has committed all epochs up to and including this one.

        Returns:
            The acknowledgements that are due now, or None if no session holds one.
        """
        ready = [self.planned.epochs.pop(number) for number in self.planned.numbers(epoch)]
        if not ready:
            return None
        if len(ready) == 1:
            whole: _Group[K, P] = _Group(ready[0].payloads, whole=ready, memo=ready[0].memo)
        else:
            whole = _Group({key: None for planned in ready for key in planned.payloads}, whole=ready)
        return self._meet(Event.COMMIT, {State.PLANNED: whole}, self.carried.plans)

    def confirm(self, number: int, session: int, now_s: float) -> None:
        """The broker took the acknowledgements of one settlement in one session."""
        self._count["settled"] += self.carried.confirm(number, session, now_s)

    # -- the engine: what the table says is done here, and nowhere else ----------------------

    def _meet(self, event: Event, groups: Mapping[State, _Group[K, P]], logged: int = -1) -> Settlement | None:
        """Groups of messages, each in one state, meet an event.

        Args:
            logged: the last plan whose offset names all of them.
        """
        # All are looked up before anything is done: what the table does not have changes nothing.
        rows = [(state, group, *step(state, event)) for state, group in groups.items() if group.keys]
        due: dict[State, tuple[_Group[K, P], _Moved[P]]] = {}
        for state, group, target, action in rows:
            moves = target is not state or action in _REPLACING
            moved = self._take_from[state](group) if moves else _Moved()
            moved.logged = max(moved.logged, logged)
            if action is Action.ACKNOWLEDGE:
                # Together, so that one settlement has them all.
                due[target] = _joined(group, moved, *due[target]) if target in due else (group, moved)
                continue
            self._act[action](group, moved)
            if moves:
                if (action is Action.FORGET) is not (target is State.UNSEEN):
                    raise InternalError(f"what is forgotten, and nothing else, is '{State.UNSEEN.value}'")
                self._put_into(target, group, moved)
        settlement = None
        for target, (group, moved) in due.items():
            if target is not State.COMMITTED:
                raise InternalError(f"a message cannot be acknowledged and be '{target.value}'")
            settlement = self._put_into_batch(target, group, moved, self._acknowledge(group, moved))
        return settlement

    def _keep(self, group: _Group[K, P], moved: _Moved[P]) -> None:
        if group.session is None or group.tags is None:
            raise InternalError("nothing was delivered that could be kept")
        self._open[group.session].hold(group.tags, group.keys)
        moved.held = group.payloads

    def _bind(self, group: _Group[K, P], _: _Moved[P]) -> None:
        if group.session is None or group.tags is None or group.payloads is None:
            raise InternalError("nothing was delivered that could be bound")
        self._open[group.session].hold(group.tags, group.keys)
        others = self.planned.fill(group.keys, group.payloads)
        self._open.count_more(others)
        self._count["rebound"] += len(group.keys) - len(others)
        self._count["duplicates_dropped"] += len(others)

    def _replan(self, group: _Group[K, P], moved: _Moved[P]) -> None:
        if group.into is None or moved.held is None or moved.weight is not None:
            raise InternalError("only what is planned can be moved to another epoch")

    def _unbind(self, group: _Group[K, P], _: _Moved[P]) -> None:
        if group.session is None:
            raise InternalError("no session is gone whose handles could be dropped")
        self._open[group.session].take(frozenset(group.keys))
        self.planned.unbind(group.keys)

    def _forget(self, group: _Group[K, P], _: _Moved[P]) -> None:
        if group.session is not None:
            self._open[group.session].take(frozenset(group.keys))

    def _acknowledge(self, group: _Group[K, P], moved: _Moved[P]) -> tuple[SessionAcks, ...]:
        """Make every handle of these messages due, each session at its lowest cost (rule 3)."""
        if not group.whole:  # acknowledged without being emitted
            self._count["duplicates_dropped"] += len(group.keys)
        if group.session is not None and group.tags is not None:
            upto, singles = self._open[group.session].split(group.tags)
            return (SessionAcks(group.session, upto, singles, len(group.tags)),)
        keys = group.keys if isinstance(group.keys, dict) else dict.fromkeys(group.keys)
        if moved.unbound:  # maybe: they may have come again since
            moved.unbound = not keys.keys() <= self._open.held()
        return self._open.take(keys)

    def _take_received(self, group: _Group[K, P]) -> _Moved[P]:
        held, weight = self.received.take(group.keys)
        return _Moved(held, weight)

    def _take_planned(self, group: _Group[K, P]) -> _Moved[P]:
        if group.whole:
            self.planned.take_whole(group.whole)
            return _Moved(unbound=any(epoch.unbound or epoch.missing for epoch in group.whole))
        held, unbound = self.planned.take(group.keys)
        return _Moved(held, unbound=unbound)

    def _take_done(self, group: _Group[K, P]) -> _Moved[P]:
        return _Moved(logged=self.carried.take(group.keys))

    def _put_into(self, target: State, group: _Group[K, P], moved: _Moved[P]) -> None:
        if target is State.RECEIVED:
            if moved.held is None:
                raise InternalError("a message without a payload cannot be received")
            self.received.put(group.keys, [payload for payload in moved.held if payload is not None])
        elif target is State.PLANNED:
            if group.into is None:
                raise InternalError("a message cannot be planned without an epoch")
            self.planned.put(group.into, group.keys, moved.held, moved.weight)
            group.into.unbound |= moved.unbound
        elif target is not State.UNSEEN:
            self._put_into_batch(target, group, moved, ())

    def _put_into_batch(
        self, state: State, group: _Group[K, P], moved: _Moved[P], parts: tuple[SessionAcks, ...]
    ) -> Settlement | None:
        number = self.carried.put(
            dict.fromkeys(group.keys) if group.tags else group.keys,
            state,
            {part.session: part.deliveries for part in parts},
            exposed=moved.unbound or not parts,
            memo=group.memo,
            wait_s=group.wait_s,
            logged=moved.logged,
            until_s=group.until_s,
        )
        return Settlement(number, parts) if parts else None


def _joined(
    group: _Group[K, P], moved: _Moved[P], other: _Group[K, P], others: _Moved[P]
) -> tuple[_Group[K, P], _Moved[P]]:
    """Both as one; deliveries in the order of their tags."""
    both: _Moved[P] = _Moved(unbound=moved.unbound or others.unbound, logged=max(moved.logged, others.logged))
    if group.tags is None or other.tags is None:
        return _Group({**dict.fromkeys(group.keys), **dict.fromkeys(other.keys)}), both
    pairs = sorted(
        [*zip(group.tags, group.keys, strict=True), *zip(other.tags, other.keys, strict=True)], key=itemgetter(0)
    )
    return _Group([key for _, key in pairs], group.session, [tag for tag, _ in pairs]), both
