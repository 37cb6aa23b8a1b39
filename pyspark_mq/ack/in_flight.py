"""The in-flight table: the messages of one queue that this process holds, their handles, and their acknowledgements.

This module only keeps records: it sends nothing, receives the time as a number, and does not look into payloads. If a
method makes acknowledgements due, it returns them as :class:`Acknowledgements`.

:mod:`.table` has the table of states and events, which decides what an event does to a message. This module applies
it. Each state is a container: the buffer (RECEIVED), the planned epochs (PLANNED), the memory (COMMITTED). Nearly every
message is new, and is planned and committed together with thousands of others. So messages of one state to which an
event applies form a group: the transition is looked up once, its action is done, and the group moves to the container
of the target state. New messages that arrive together stay together as a *run* (:mod:`.buffer`). If a delivery has an
ID that is known already, all runs are spread into single messages, and the messages that arrived with this delivery are
sorted into groups by their states.

A docstring that says "rule 9" means the rule with this number in docs/design.md#the-rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from pyspark_mq.ack.buffer import RUN_MIN, SPREAD_MAX, Buffer, MessageRun, Parts, joined, keys_of, lowest_tags
from pyspark_mq.ack.content_matcher import ContentMatcher
from pyspark_mq.ack.counters import Counters
from pyspark_mq.ack.groups import Assigned, DeliveredGroup, Ended, Group, Whole, sorted_by_state
from pyspark_mq.ack.handles import Acknowledgements, OpenDeliveries, SessionAcks
from pyspark_mq.ack.planned import Epoch, Planned, Taken
from pyspark_mq.ack.settling import Settling
from pyspark_mq.ack.table import Action, Event, State, step
from pyspark_mq.dedup import Key, QueueMemory
from pyspark_mq.errors import InternalError

__all__ = ["Acknowledgements", "InFlightTable", "SessionAcks"]

P = TypeVar("P")  #: payload: the object that the caller gets back when the message is emitted


#: Actions that take a message out of its container even if its state stays the same.
_REPLACING = frozenset({Action.FORGET})


class InFlightTable(Generic[P]):
    """The messages of one queue, and the two phases of their commit. All methods are called by one thread.

    Args:
        grace_s: value of option `settleGrace`, see :mod:`.settling`; None if a confirmation settles acknowledgements.
        memory: the committed messages of the queue. With :class:`~pyspark_mq.dedup.NoMemory` (guarantees
            `at-least-once` and `none`) keys are serial numbers of deliveries, and no message is remembered.
        proves: whether the broker (RabbitMQ) proves that a message is new by delivering it without the flag
            `redelivered`.
        size_of: function that returns the total size of payloads, in bytes.
        run_min: minimum number of new messages that are kept together as a run (:mod:`.buffer`) if they arrive
            together. Fewer messages become a run only if many messages are buffered; otherwise single messages cost
            less.

    Attributes:
        received: messages that are not planned yet, oldest first. Other code must not add or remove messages.
        planned: epochs that are planned but not committed. Other code must not add or remove messages.
        matcher: identifies messages without an ID.
        settling: acknowledgements that are not settled. The caller reports here the requests that it sends to the
            broker.
        recalled: number of messages that the former process committed but may not have acknowledged before it ended; 0
            from the first commit on. The caller sets it when it restores the memory.
    """

    def __init__(
        self,
        *,
        grace_s: float | None,
        memory: QueueMemory,
        proves: bool = False,
        size_of: Callable[[Sequence[P]], int] = len,
        run_min: int = RUN_MIN,
    ) -> None:
        self._open = OpenDeliveries()
        self._memory = memory
        self.matcher = ContentMatcher(memory, proves=proves)
        self._size_of = size_of
        self._run_min = run_min
        self.received: Buffer[P] = Buffer(size_of)
        self.planned: Planned[P] = Planned(size_of)
        self.settling = Settling(grace_s)
        self.recalled = 0
        self._numbers = 0
        self._count: Counter[str] = Counter()
        #: Action -> the class of group that has the data for it, and the method that performs it.
        self._act: Mapping[Action, tuple[type[Group], Callable[[Any], None]]] = {
            Action.NOTHING: (Group, lambda _: None),
            Action.KEEP: (DeliveredGroup, self._hold),
            Action.BIND: (DeliveredGroup, self._bind),
            Action.UNBIND: (Ended, self._unbind),
            Action.LEAVE: (Group, self._leave),
            Action.FORGET: (Group, self._forget),
        }
        self._take_from: Mapping[State, Callable[[Group], Taken[P]]] = {
            State.UNSEEN: lambda group: Taken([None] * len(group.keys), missing=len(group.keys)),
            State.RECEIVED: self._take_received,
            State.PLANNED: self._take_planned,
        }

    # -- queries ---------------------------------------------------------------------------

    def states(self, keys: Collection[Key]) -> Callable[[Key], State]:
        """Return a function that returns the state of any of these keys. It is valid until the table changes."""
        self._spread()
        known = self._memory.among(keys)

        def state(key: Key) -> State:
            if key in self.received:
                return State.RECEIVED
            if key in self.planned:
                return State.PLANNED
            return State.COMMITTED if key in known else State.UNSEEN

        return state

    @property
    def counters(self) -> Counters:
        return Counters(**self._count)

    @property
    def unacked(self) -> int:
        """Number of deliveries of open sessions for which no acknowledgement is due yet."""
        return len(self._open) + sum(map(len, self._runs))

    @property
    def sessions(self) -> list[int]:
        """Numbers of the open sessions."""
        return self._open.sessions

    def unacked_in(self, session: int) -> int:
        """Return the number of deliveries of an open session for which no acknowledgement is due yet."""
        in_runs = (len(tags) for run in self._runs for number, tags in run.parts if number == session)
        return len(self._open[session]) + sum(in_runs)

    def not_here(self, keys: Collection[Key]) -> Iterator[Key]:
        """Yield those of these keys whose messages are not in the table and not remembered, in order.

        An echo (a redelivery of a committed message without an ID, see :mod:`.content_matcher`) has a new key, so its
        key is yielded, too.
        """
        state_of = self.states(keys)
        yield from (key for key in keys if state_of(key) is State.UNSEEN)

    def none_here(self, keys: set[Key]) -> bool:
        """Whether all of these keys are unknown.

        Runs (:mod:`.buffer`) are not searched. Callers have turned them into single messages before, or ask about
        keys that were made from contents, which are never in runs.
        """
        here = self.received.knows_none_of(keys) and self.planned.knows_none_of(keys)
        return here and not self._memory.among(keys)

    def left_among(self, keys: Collection[Key]) -> set[Key]:
        """Return those of these IDs whose messages were left.

        Their session or process ended before their acknowledgement was settled.
        """
        return self._memory.left_among(keys)

    def in_other_sessions(self, session: int, keys: Collection[Key]) -> set[Key]:
        """Return the keys for which another session has an open delivery, or an acknowledgement that is not settled.

        A key is left out if `session` itself has an open delivery or an unsettled acknowledgement for it.
        """
        others = self._open.held(except_session=session).intersection(keys)
        others |= self.settling.among(keys, lambda number: number != session)
        # Leave out messages that this session holds, because a broker does not redeliver a message within a session.
        return others.difference(self._open[session].messages()) - self.settling.among(
            others, lambda number: number == session
        )

    @property
    def expected(self) -> int:
        """Number of messages that are planned, or acknowledged but not settled, and so may be redelivered."""
        return len(self.planned) + len(self.settling)

    @property
    def settles_contents(self) -> bool:
        """Whether any messages without an ID are acknowledged but not settled."""
        return self._memory.has_contents(self.settling.epochs)

    # -- receiving -------------------------------------------------------------------------

    def open_session(self, session: int) -> None:
        """Record that a session has begun. Its number must not have been used before."""
        self._open.open(session)

    def deliver(
        self,
        session: int,
        tags: Sequence[int],
        keys: Sequence[Key],
        payloads: Sequence[P],
        committed_elsewhere: Collection[Key] = frozenset(),
    ) -> Acknowledgements | None:
        """Process deliveries of one session, in the order of arrival.

        Args:
            session: number of the session.
            tags: the deliveries' tags in ascending order, higher than all earlier tags of the session.
            keys: the deliveries' keys.
            payloads: the deliveries' payloads.
            committed_elsewhere: keys that this table does not know but another query has committed.

        Returns:
            acknowledgements of duplicates, which are due at once (rule 4); None if there are no duplicates.
        """
        if not len(tags) == len(keys) == len(payloads):
            raise InternalError(f"{len(keys)} messages arrived with {len(tags)} tags and {len(payloads)} payloads")
        if not keys:
            return None
        if not committed_elsewhere and self.deliver_new([(session, tags)], keys, payloads):
            return None
        self._count["received"] += len(keys)
        self._spread()
        keys = [*keys]  # from now on each key is one object, which all containers share
        state_of = self.states(set(keys))
        met = sorted_by_state(
            session, tags, keys, payloads, lambda key: State.COMMITTED if key in committed_elsewhere else state_of(key)
        )
        return self._meet(Event.DELIVER, met)

    def deliver_new(self, parts: Parts, keys: Sequence[Key], payloads: Sequence[P]) -> bool:
        """If all deliveries of one or more sessions are new messages, process them. Otherwise do nothing.

        Args:
            parts: the deliveries. The tags of each session are in the order that :meth:`deliver` requires.
            keys: the deliveries' keys.
            payloads: the deliveries' payloads.

        Returns:
            whether all messages are new, so that the deliveries were processed.
        """
        run = self._as_run(parts, keys, payloads)
        if run is None:
            self._spread()
            keys = [*keys]  # from now on each key is one object, which all containers share
            distinct = set(keys)
            if len(distinct) < len(keys) or not self.none_here(distinct):
                return False
        self._count["received"] += len(keys)
        self._meet(Event.DELIVER, {State.UNSEEN: DeliveredGroup(keys, parts, payloads, run)})
        return True

    def held(self, keys: Sequence[Key], payloads: Sequence[P]) -> list[int]:
        """Return the indexes of those of these payloads that the table has now.

        After :meth:`deliver` the others are duplicates, which it has dropped.

        Args:
            keys: the key of each payload.
            payloads: payloads that were passed to :meth:`deliver`.
        """
        return [place for place, key in enumerate(keys) if self._payload(key) == payloads[place]]

    def exchange(self, keys: Iterable[Key], payloads: Iterable[P]) -> None:
        """Replace the payloads of these single messages by other payloads of the same size."""
        for key, payload in zip(keys, payloads, strict=True):
            (self.received if key in self.received else self.planned).exchange(key, payload)

    def _payload(self, key: Key) -> P | None:
        epoch = self.planned.get(key)
        return self.received.get(key) if epoch is None else epoch.payloads[key]

    def pass_over(self, session: int, tag: int) -> None:
        """Record that a delivery is not processed, but stays unacknowledged until its session ends.

        From now on cumulative acknowledgements of this session must not reach this delivery or later ones.
        """
        handles = self._open[session]
        bound = handles.cumulative_below
        handles.cumulative_below = tag if bound is None else min(tag, bound)

    def lose(self, session: int) -> int:
        """Process the end of a session, after which its delivery tags are no longer valid (rule 6).

        Returns:
            the number of planned or committed messages that the broker may redeliver because of this end.
        """
        self._spread()
        open_deliveries = self.unacked_in(session)
        held = dict.fromkeys(self._open[session].messages())
        elsewhere = self._open.held(except_session=session)
        received = [key for key in held if key in self.received]
        only_here = [key for key in received if key not in elsewhere]
        planned = [key for key in held if key in self.planned]
        cut_off = self.settling.lose(session)
        self.matcher.give_back(only_here)
        self.matcher.wait(key for key in planned if key not in elsewhere)
        self.matcher.end(session)
        # A message that another session holds, too, is not returned: it only loses one of its deliveries.
        self._unbind(Ended([key for key in received if key in elsewhere], session))
        self._meet(
            Event.LOSE,
            {
                State.RECEIVED: Ended(only_here, session),
                State.PLANNED: Ended(planned, session),
                State.COMMITTED: Ended(cut_off, session),
            },
        )
        self._count["returned"] += len(only_here)
        left = self._open.close(session)
        if left:
            raise InternalError(f"session {session} has ended, but {left} of its handles are still recorded")
        return open_deliveries - len(only_here) + len(set(cut_off))

    # -- phase one -------------------------------------------------------------------------

    def plan(self, epoch: int, count: int) -> Sequence[Key]:
        """Assign the `count` oldest buffered messages to a new epoch. Return the keys of those that it emits, in order.

        The epoch does not emit echoes, which are redeliveries of emitted messages (:mod:`.content_matcher`).

        Args:
            epoch: number of the epoch, higher than all earlier numbers.
        """
        planned: Epoch[P] = Epoch(epoch)
        runs: Sequence[MessageRun[P]] = ()
        keys: Sequence[Key]
        if self.received.order:
            self._by_themselves(self.received.spread(count))
            keys = tuple(islice(self.received.order, count))
        else:
            runs = self.received.front(count)
            keys = joined([run.keys for run in runs]) if runs else ()
        self._meet(Event.PLAN, {State.RECEIVED: Assigned(keys, planned, runs)})
        self.planned.epochs[epoch] = planned
        planned.echoes = self.matcher.echoes(keys)
        self.matcher.sweep(self)
        self._count["planned"] += len(planned) - len(planned.echoes)
        if not planned.echoes:
            return keys
        echoes = set(planned.echoes)
        return [key for key in keys if key not in echoes]

    def begin(self, epoch: int) -> Acknowledgements | None:
        """Process the beginning of an epoch: Spark's log now names the epoch's file, which records its echoes.

        The echoes, which the epoch does not emit (:mod:`.content_matcher`), can now be acknowledged. They no longer
        belong to the epoch.

        Returns:
            the acknowledgements of the echoes; None if the epoch has no echoes.
        """
        begun = self.planned.epochs.get(epoch)
        if begun is None or not begun.echoes:
            return None
        echoes, begun.echoes = begun.echoes, ()
        self._memory.committed(epoch, echoes)
        self.matcher.drop(echoes)
        return self._meet(Event.BEGIN, {State.PLANNED: Group(echoes)}, epoch)

    def restore_planned(self, epoch: int, keys: Sequence[Key]) -> None:
        """Add an epoch that a former process planned and Spark did not commit. Its messages are not redelivered yet.

        Args:
            epoch: number of the epoch.
            keys: the keys of its messages, as they are in the epoch's file.
        """
        planned: Epoch[P] = Epoch(epoch)
        keys = self.matcher.restore(keys, self)
        self._meet(Event.RESTORE_PLANNED, {State.UNSEEN: Assigned(keys, planned)})
        self.planned.epochs[epoch] = planned
        self._count["replays"] += 1
        self.matcher.wait(self.planned.missing(epoch))

    def abandon(self, epoch: int) -> None:
        """Give up those messages of an epoch that were not redelivered. The epoch is emitted without them (rule 9)."""
        abandoned = self.planned.missing(epoch)
        self._meet(Event.ABANDON, {State.PLANNED: Group(abandoned)})
        self._count["lost"] += len(abandoned)

    # -- phase two -------------------------------------------------------------------------

    def commit(self, epoch: int) -> Acknowledgements | None:
        """Process the commit of one epoch. The caller must have committed all earlier epochs before.

        Returns:
            the acknowledgements that are due now; None if no message of the epoch has an open delivery.
        """
        self.recalled = 0
        ready = self.planned.epochs.pop(epoch, None)
        if ready is None:
            return None
        keys = joined([run.keys for run in ready.runs]) if ready.runs else ready.payloads
        # Tell the memory first, because the next step records in it which messages have no open delivery.
        self._memory.committed(epoch, keys, [run.digests for run in ready.runs])
        due = self._meet(Event.COMMIT, {State.PLANNED: Whole(keys, ready)}, epoch)
        if ready.runs:
            self._hold_runs()
        return due

    def confirm(self, number: int, session: int, now_s: float) -> None:
        """Process a session's answer to a request. It confirms the acknowledgements that were sent with the request.

        Args:
            number: number of the request. Acknowledgements that were sent with it have the same number.
            session: number of the session.
            now_s: time of the answer, in seconds.
        """
        self._count["settled"] += self.settling.confirm(number, session, now_s)

    # -- runs ------------------------------------------------------------------------------

    @property
    def _runs(self) -> list[MessageRun[P]]:
        return [*self.planned.runs, *self.received.runs]

    def _as_run(self, parts: Parts, keys: Sequence[Key], payloads: Sequence[P]) -> MessageRun[P] | None:
        """Make a run (:mod:`.buffer`) of deliveries. Return None if they are too few, or if some may not be new."""
        if len(keys) < self._run_min and len(self.received) < SPREAD_MAX * self._run_min:
            return None
        if self.received.order or self.planned.has_single:
            distinct = set(keys)
            if not (self.received.knows_none_of(distinct) and self.planned.knows_none_of(distinct)):
                return None
        digests = self._memory.hold(keys)
        return None if digests is None else MessageRun(parts, keys, payloads, self._size_of(payloads), digests)

    def _spread(self) -> None:
        """Turn all runs (:mod:`.buffer`) into single messages."""
        self._by_themselves(self.planned.spread() + self.received.spread(len(self.received)))

    def _by_themselves(self, spread: Sequence[MessageRun[P]]) -> None:
        """Add the deliveries of runs to the open deliveries, after the runs were turned into single messages."""
        for run in spread:
            self._hold_parts(run.parts, run.keys)
        if spread:
            self._hold_runs()

    def _hold_runs(self) -> None:
        """Tell the memory which IDs are in runs, so that it finds a delivery that repeats one of them."""
        self._memory.hold_only([run.digests for run in self._runs])

    # -- the engine: nothing else executes the table ----------------------

    def _meet(self, event: Event, groups: Mapping[State, Group], epoch: int | None = None) -> Acknowledgements | None:
        """Apply an event to groups of messages. All messages of a group are in the same state.

        Args:
            groups: state -> the messages in this state.
            epoch: the epoch to which acknowledged messages belong; None if the event does not belong to an epoch.

        Returns:
            the acknowledgements that are due now; None if there are none.
        """
        # Look up all transitions first, so that an illegal event changes nothing.
        rows = [(state, group, *step(state, event)) for state, group in groups.items() if group.keys]
        due: list[tuple[Group, Taken[P]]] = []
        for state, group, target, action in rows:
            moves = target is not state or action in _REPLACING
            taken = self._take_from[state](group) if moves else Taken()
            if action is Action.ACKNOWLEDGE:
                if target is not State.COMMITTED:
                    raise InternalError(f"an acknowledged message cannot become '{target.value}'")
                due.append((group, taken))
                continue
            needs, act = self._act[action]
            if not isinstance(group, needs):
                raise InternalError(
                    f"event '{event.value}' lacks the data for action '{action.value}' in state '{state.value}'"
                )
            act(group)
            if moves:
                if (action is Action.FORGET) is not (target is State.UNSEEN):
                    raise InternalError(f"a message is '{State.UNSEEN.value}' if it is forgotten, and only then")
                self._put_into(target, group, taken)
        return self._acknowledge(due, epoch) if due else None

    def _hold(self, group: DeliveredGroup[P]) -> None:
        if group.run is None:  # the deliveries of a run stay in the run
            self._hold_parts(group.parts, group.keys)

    def _hold_parts(self, parts: Parts, keys: Collection[Key]) -> None:
        every = keys if isinstance(keys, Sequence) else [*keys]
        for session, tags, its_keys in keys_of(parts, every):
            self._open[session].hold(tags, its_keys)

    def _bind(self, group: DeliveredGroup[P]) -> None:
        self._hold(group)
        others = self.planned.fill(group.keys, group.payloads)
        self._open.count_more(others)
        self._count["rebound"] += len(group.keys) - len(others)
        self._count["duplicates_dropped"] += len(others)

    def _unbind(self, group: Ended) -> None:
        self._open[group.session].take(frozenset(group.keys))
        self.planned.unbind(group.keys)

    def _forget(self, group: Group) -> None:
        if isinstance(group, Ended):
            self._open[group.session].take(frozenset(group.keys))

    def _leave(self, group: Group) -> None:
        self._memory.leave(group.keys)

    def _acknowledge(self, due: Sequence[tuple[Group, Taken[P]]], epoch: int | None) -> Acknowledgements | None:
        """Return the acknowledgements for every delivery of these messages, and record them as unsettled.

        Deliveries are acknowledged cumulatively up to the first delivery that must stay open (rule 3), and after that
        one by one.
        """
        group = due[0][0]
        keys: Collection[Key]
        if isinstance(group, DeliveredGroup):
            if len(due) > 1:
                raise InternalError("deliveries of several states cannot be acknowledged together")
            ((session, tags),) = group.parts  # duplicates arrive in one session at a time
            upto, singles = self._open[session].split(tags)
            keys, parts = group.keys, [(SessionAcks(session, upto, singles, len(tags)), group.keys)]
        else:
            keys, parts = self._take_handles(due)
        if not isinstance(group, Whole):  # acknowledged without being emitted
            self._count["duplicates_dropped"] += len(keys)
        if not parts:
            return None
        self._numbers += 1
        self.settling.put(self._numbers, parts, epoch)
        return Acknowledgements(self._numbers, tuple(acks for acks, _ in parts))

    def _take_handles(
        self, due: Sequence[tuple[Group, Taken[P]]]
    ) -> tuple[Collection[Key], list[tuple[SessionAcks, Collection[Key]]]]:
        """Remove every open delivery of these messages, and return the acknowledgements for them.

        Messages without an open delivery cannot be acknowledged now. They are recorded, because the broker will
        redeliver them.
        """
        group = due[0][0]
        if isinstance(group, Whole) and group.epoch.runs:
            return group.keys, self._open.take_runs(group.epoch.runs, lowest_tags(self._runs))
        keys: dict[Key, Any] = (
            group.epoch.payloads
            if isinstance(group, Whole)
            else dict.fromkeys(key for one, _ in due for key in one.keys)
        )
        if any(taken.unbound for _, taken in due):  # some messages lost a delivery, but may have been redelivered since
            held = self._open.held()
            unheld = [key for key in keys if key not in held]
            self._leave(Group(unheld))
            self.matcher.expect(unheld)
        return keys, self._open.take(keys, lowest_tags(self._runs))

    def _take_received(self, group: Group) -> Taken[P]:
        if not isinstance(group, Assigned) or not group.runs:
            return Taken(*self.received.take(group.keys))
        return Taken(size_bytes=sum(self.received.take_run().size_bytes for _ in group.runs))

    def _take_planned(self, group: Group) -> Taken[P]:
        if not isinstance(group, Whole):
            return self.planned.take(group.keys)
        self.planned.take_whole(group.epoch)
        return Taken(unbound=group.epoch.unbound or bool(group.epoch.missing))

    def _put_into(self, target: State, group: Group, taken: Taken[P]) -> None:
        if target is State.RECEIVED and isinstance(group, DeliveredGroup):
            self.received.put(group.keys, group.payloads, group.run)
        elif target is State.PLANNED and isinstance(group, Assigned):
            self.planned.put(group.epoch, [] if group.runs else group.keys, taken, group.runs)
        elif target is not State.UNSEEN:
            raise InternalError(f"messages of this group cannot become '{target.value}'")
