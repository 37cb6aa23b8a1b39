"""One queue of a query: its connections, its in-flight table, and its part in each epoch.

Each queue of a query has a :class:`QueueReader`: faults of one queue say nothing about another, and the same ID in two
queues means two messages, such as copies from a fanout exchange. :class:`~pyspark_mq.sources.epochs.EpochSource` moves
all readers from epoch to epoch together.

One thread calls all methods, and only :meth:`QueueReader.stop` blocks, for a moment. :meth:`QueueReader.drain_events`
alone processes background events, in order: opened and ended sessions, deliveries, confirmations. The in-flight table
decides which acknowledgements are due, and the reader sends them. :meth:`~QueueReader.plan` cuts an epoch,
:meth:`~QueueReader.hold` keeps it while Spark may ask for it, and :meth:`~QueueReader.acknowledge` acknowledges it.
After a restart the reader first learns the commits of the former process (:meth:`~QueueReader.adopt`) and its open
epoch (:meth:`~QueueReader.begin_replay`).

The journal, which has the IDs that :meth:`~QueueReader.plan` returns, and the store of seen IDs survive a crash.
Guarantee: a message is acknowledged only after the commit of its epoch, or as a duplicate of a committed ID.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pyspark_mq.ack import Acknowledgements, InFlightTable
from pyspark_mq.ack.content_matcher import ContentMatcher
from pyspark_mq.ack.counters import Counters
from pyspark_mq.dedup import Key, QueueMemory, SeenStore, is_content
from pyspark_mq.sources.connections.block import BlockRows, Row
from pyspark_mq.sources.connections.connections import DEPTH_AGE_MAX_S, Connections
from pyspark_mq.sources.connections.events import Confirmed, Delivered, EventQueue, Opened
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.journal import LeftOpen
from pyspark_mq.sources.queues.connected import CheckFacts, Connected
from pyspark_mq.sources.queues.deliveries import Deliveries
from pyspark_mq.sources.queues.watch import QueueWatches
from pyspark_mq.sources.queues.windows import Trigger, Windows
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["MakeStore", "QueueReader", "QueueView"]

#: The store of one queue, by the queue's settings.
MakeStore: TypeAlias = Callable[[Settings], SeenStore]


class QueueView:
    """A live, read-only view of a queue, for decisions made elsewhere."""

    def __init__(self, queue: QueueReader) -> None:
        self._queue = queue

    @property
    def received(self) -> int:
        """Messages received but not planned."""
        return len(self._queue.in_flight.received)

    @property
    def size_bytes(self) -> int:
        """Bytes of the messages received but not planned."""
        return self._queue.in_flight.received.size_bytes

    @property
    def planned_size_bytes(self) -> int:
        """Bytes of epochs that are not committed."""
        return self._queue.in_flight.planned.size_bytes

    @property
    def unacked(self) -> int:
        """Deliveries of open sessions for which no acknowledgement is due."""
        return self._queue.in_flight.unacked

    @property
    def expected(self) -> int:
        """Messages that may be redelivered to a new session."""
        return self._queue.in_flight.expected

    @property
    def unconfirmed(self) -> bool:
        """Whether an acknowledgement may still be confirmed."""
        return self._queue.in_flight.settling.unconfirmed()

    @property
    def settles_contents(self) -> bool:
        """Whether acknowledgements of messages without an ID are under way."""
        return self._queue.in_flight.settles_contents

    @property
    def has_open_epochs(self) -> bool:
        """Whether an epoch is planned or emitted but not committed."""
        return self._queue.has_open_epochs

    @property
    def window(self) -> int:
        """Unacknowledged messages that all open sessions together may hold."""
        return self._queue.windows.total

    @property
    def blocked(self) -> bool:
        """Whether the windows let no more messages arrive."""
        return self._queue.windows.blocked

    @property
    def paused(self) -> bool:
        """Whether a session is paused because too many of its bytes are buffered."""
        return self._queue.connections.paused

    @property
    def complete(self) -> bool:
        """Whether every connection is up."""
        return self._queue.connections.complete

    @property
    def late(self) -> bool:
        """Whether received messages are reported late."""
        return bool(self._queue.connections.late)

    @property
    def reported_s(self) -> float:
        """Time up to which everything received was reported, on the monotonic clock."""
        return self._queue.connections.progress_s

    @property
    def is_up(self) -> bool:
        """Whether deliveries are taken, and receiving did not stand still before the last look at events."""
        return self._queue.taking and not self._queue.connections.broke_off

    @property
    def depths(self) -> list[int]:
        """Messages waiting at the broker, as last reported to each connection; an empty list without reports."""
        return list(self._queue.connections.depths())

    @property
    def other_consumers(self) -> int:
        """Consumers of the queue outside this query, as far as the broker reports."""
        return self._queue.connections.other_consumers

    @property
    def ready_at_first(self) -> int | None:
        """Messages at the broker when every connection was up; None without a report."""
        return self._queue.connected.ready_at_first

    @property
    def broker_id(self) -> str:
        """The name of the broker; empty while unknown."""
        return self._queue.connected.broker_id

    @property
    def was_connected(self) -> bool:
        return self._queue.connected.ever

    @property
    def connected_s(self) -> float:
        """Seconds for which every connection was up."""
        return self._queue.connected.seconds

    @property
    def delay_s(self) -> float:
        """Seconds by which the broker delays redeliveries."""
        return self._queue.connected.delay_s


class QueueReader:
    """Connections and in-flight table of one queue, and its part in each epoch.

    Args:
        settings: the query's settings, with this queue as the endpoint.
        store: shares committed IDs of this queue beyond the checkpoint.
        events: events of this queue.
        memory: knows committed messages; None for a guarantee without IDs.

    Attributes:
        view: the queue as other code sees it. `in_flight`, `connections` and `connected` are for the reader's own code.
        ended: whether the queue is gone.
        taking: whether deliveries are taken. They wait until the committed offset is known, because before that, new
            and old messages look alike.
        last_activity_s: time of the last delivery or confirmation; flush markers without acknowledgements do not count.
        coming_again: number of planned and committed messages left open when sessions ended. They may be redelivered,
            unless the broker processed the acknowledgement.
    """

    def __init__(
        self,
        settings: Settings,
        worker: Worker,
        store: SeenStore,
        runtime: Runtime,
        events: EventQueue,
        check: CheckFacts,
        memory: QueueMemory | None,
    ) -> None:
        self.settings = settings
        matcher = None if memory is None else ContentMatcher(memory, proves=settings.endpoint.broker.proves_new)
        self.in_flight: InFlightTable[Any, Row] = InFlightTable(
            grace_s=settings.settle_grace_s,
            memory=memory,
            matcher=matcher,
            size_of=lambda rows: BlockRows.of(rows).size_bytes,
        )
        self.connections = Connections(settings, worker, runtime, events)
        self.connected = Connected(settings, check)
        self._matcher = matcher
        self._last_flush_marker = 0
        self._store = store
        self._runtime = runtime
        self._reconnects = 0
        self._deliveries = Deliveries(
            settings, self.in_flight, self.connections, store, self._send, matcher, runtime.timing.take_back_s
        )
        self.windows = Windows(settings, self.in_flight, self.connections, self._deliveries)
        self._watches = QueueWatches(settings, self.in_flight.settling, self.connections, self.windows, runtime.timing)
        #: Rows of epochs that Spark has asked for but not committed, because Spark may ask again.
        self._emitted: dict[int, BlockRows] = {}
        self._retained_bytes = 0
        self._bytes_max = float(settings.max_bytes)
        #: Whether only planned messages are wanted. Other messages are skipped if they take too many bytes.
        self._replaying = False
        self.ended = self.taking = False
        self.view = QueueView(self)
        self.last_activity_s = -math.inf
        self.coming_again = 0

    @property
    def name(self) -> str:
        return self.settings.endpoint.name

    @property
    def destination(self) -> str:
        """The queue or topic, as named in errors."""
        return self.settings.endpoint.destination

    # -- its life

    def open(self) -> None:
        """Open the connections, once."""
        self.connections.start()

    def ask_to_stop(self) -> None:
        """Start closing the connections; :meth:`stop` waits until they are closed."""
        self.connections.ask_to_stop()

    def apply_trigger(self, trigger: Trigger) -> None:
        """Apply a trigger of the table in :mod:`.windows`."""
        self.windows.enter(trigger)

    def expect_broker(self, broker_id: str) -> None:
        """Refuse any broker other than the broker with this name."""
        self.connected.expect_broker(broker_id)

    def disconnect(self) -> None:
        """Close the connections; unacknowledged messages return to the broker."""
        self.connections.stop()

    def stop(self, *, ended: bool = False) -> None:
        """Close the connections and the store. With `ended`, the queue is gone, and the reader never reopens."""
        self.disconnect()
        self._store.close()
        self.ended |= ended
        for session in self.in_flight.sessions if ended else ():
            self._lose(session)  # events of a queue that is gone are not read

    # -- what happens

    def drain_events(self) -> None:
        """Process all events since the last call.

        Raises:
            MqError: a supervisor has given up, a message has no ID, or the broker is not the expected broker.
        """
        came: list[Delivered] = []
        for event in self.connections.news(taking=self.taking):
            now_s = self._runtime.monotonic_s()
            if isinstance(event, Delivered):
                self.last_activity_s = now_s
                if self._replaying:
                    self._deliveries.enter(event, over_limit=self.held_bytes >= self._bytes_max)
                else:
                    came.append(event)
                continue
            self._deliveries.enter_all(came)
            came = []
            if isinstance(event, Confirmed):
                if event.number > 0:  # not just a flush marker
                    self.last_activity_s = now_s
                    self._watches.confirmed()
                self.in_flight.confirm(event.number, event.session, now_s)
            elif isinstance(event, Opened):
                self._open(event)
            else:
                self._lose(event.session)
        self._deliveries.enter_all(came)
        now_s = self._runtime.monotonic_s()
        up = self.connections.complete and self.taking
        self.connected.poll(self.connections.progress_s, up=up and not self.connections.broke_off)
        if self.in_flight.settling.asks(now_s):  # the grace has ended and no request is open: an answer would settle
            self._last_flush_marker -= 1
            self.in_flight.settling.asked(self._last_flush_marker, self.connections.windows, now_s)
            self.connections.send_flush_markers(self._last_flush_marker)
        self.windows.poll()
        if not self._replaying and not self.windows.replay_is_open:
            self._deliveries.take_back(now_s)
        self._watches.poll(now_s, up=up)

    def _open(self, event: Opened) -> None:
        self.connected.opened(event.greeting)
        self._deliveries.begin(event.session)
        self.in_flight.open_session(event.session)

    def _lose(self, session: int) -> None:
        self._reconnects += 1
        self._deliveries.end(session)
        self._watches.forget(session)
        self.coming_again += self.in_flight.lose(session)

    # -- bytes and depth

    @property
    def held_bytes(self) -> int:
        """Bytes of messages held in this process. Dropped messages do not count."""
        return self.in_flight.received.size_bytes + self.in_flight.planned.size_bytes + self._retained_bytes

    def share_bytes(self, most: float, *, resumes: bool) -> None:
        """Bound the bytes that current and future sessions may buffer.

        Args:
            most: bytes that may be held here, including bytes that were received but not processed.
            resumes: whether a session paused for bytes may resume.
        """
        self._bytes_max = most
        # Any number of other messages may precede a replay's own, so no session pauses, and the excess is skipped.
        left = most if self._replaying else max(0.0, most - self.held_bytes)
        self.connections.bound_bytes(left, resume=resumes or self._replaying)

    def refresh_depth(self, age_max_s: float = DEPTH_AGE_MAX_S) -> None:
        """Ask the broker for the depth, unless its last report is at most `age_max_s` old."""
        self.connections.refresh_depth(age_max_s)

    def recount_ready(self) -> None:
        """Use the current depth as the depth of the first report."""
        self.connected.ready_at_first = self.connections.untaken + (self.connections.newest_depth or 0)

    # -- phase one

    def oldest(self, most: int) -> Iterator[Row]:
        return iter(self.in_flight.received.oldest(most))

    def plan(self, epoch: int, size: int) -> Sequence[Any]:
        """Cut the oldest `size` buffered messages, maybe none, into an epoch; return their IDs in order."""
        return self.in_flight.plan(epoch, size)

    # -- run

    @property
    def has_open_epochs(self) -> bool:
        """Whether an epoch is planned or emitted here but not committed."""
        return bool(self._emitted) or len(self.in_flight.planned.epochs) > 0

    def is_open(self, epoch: int) -> bool:
        """Whether an epoch is planned here but not committed."""
        return epoch in self.in_flight.planned.epochs

    def hold(self, epoch: int) -> None:
        """Keep the rows that an epoch emits until the epoch is committed, because Spark may ask for them again."""
        if self.is_open(epoch):
            self._send(self.in_flight.begin(epoch))
            self._emitted[epoch] = BlockRows.of(*self.in_flight.planned.parts(epoch))

    def emitted(self, epoch: int) -> BlockRows:
        """Return the rows kept for an epoch, in planned order."""
        return self._emitted.get(epoch, BlockRows([]))

    # -- phase two

    def remember(self, epoch: int) -> None:
        """Record an epoch's IDs in the shared store."""
        self._store.remember(key for key in self.in_flight.planned.keys(epoch) if not is_content(key))

    def acknowledge(self, epoch: int) -> Callable[[], bool]:
        """Acknowledge an epoch; return a function that tells whether the acknowledgement may still be confirmed.

        With guarantee `none`, this is called before Spark runs the epoch.
        """
        number = self._send(self.in_flight.commit(epoch))
        self._count_retained()
        return lambda: number is not None and self.in_flight.settling.unconfirmed(number)

    def drop(self, epoch: int) -> None:
        """Drop the rows kept for an epoch, because Spark does not ask for them again."""
        self._emitted.pop(epoch, None)
        self._count_retained()

    def _count_retained(self) -> None:
        gone = [rows for emitted, rows in self._emitted.items() if not self.is_open(emitted)]
        self._retained_bytes = sum(rows.size_bytes for rows in gone)

    def _send(self, due: Acknowledgements | None) -> int | None:
        """Send acknowledgements; return the request's number, if any."""
        if due is None:
            return None
        now_s = self._runtime.monotonic_s()
        self.in_flight.settling.asked(due.number, [part.session for part in due.parts], now_s)
        self.connections.acknowledge(due)
        return due.number

    # -- restart

    def adopt(self, recent: LeftOpen, broker_id: str) -> None:
        """Learn the commits of a former process (rule 5), and its broker.

        Args:
            recent: messages that the end of that process left open. The memory already has them.
            broker_id: the checkpoint's broker.
        """
        self.connected.expect_broker(broker_id)
        self.taking = True
        self._store.remember(key for key in recent.keys.get(self.name, ()) if not is_content(key))
        self.in_flight.recalled = recent.counts.get(self.name, 0)
        if self._matcher is not None:
            self._matcher.expect(recent.coming.get(self.name, ()))
        self.windows.enter(Trigger.UNPROVEN)

    def begin_replay(self, epoch: int, planned: Sequence[Key]) -> None:
        """Expect the messages of an epoch that a former process planned but Spark did not commit.

        With a guarantee without IDs, the epoch's messages are unknown: the reader expects none, and later epochs emit
        them.

        Args:
            planned: IDs of the messages, in order.
        """
        self.in_flight.restore_planned(epoch, planned)
        if self.settings.guarantee.identifies:
            self._replaying = True
            self.windows.begin_replay(epoch)

    def planned(self, epoch: int) -> Sequence[Key]:
        """Return the IDs of an epoch, in order; none if the epoch is committed or has no messages of this queue."""
        return self.in_flight.planned.keys(epoch)

    def missing(self, epoch: int) -> list[Key]:
        """Return the IDs of the missing messages of an open epoch, in order."""
        return self.in_flight.planned.missing(epoch)

    def count_missing(self, epoch: int) -> int:
        """Count the missing messages of an open epoch."""
        return self.in_flight.planned.epochs[epoch].missing

    def ask_for_more(self, missing: int) -> bool:
        """Widen full windows, because the missing messages are not in them; return whether any window was full."""
        return self.windows.double_taken(missing)

    def abandon(self, epoch: int) -> None:
        """Run an epoch without its missing messages (rule 9)."""
        self.in_flight.abandon(epoch)

    def end_replay(self) -> None:
        """Resume accepting messages that were not planned."""
        self._replaying = False

    # -- counters

    def counters(self) -> Counters:
        """Return the counters for the query's progress (rule 8)."""
        in_flight = self.in_flight
        return replace(
            in_flight.counters,
            **self._deliveries.counted,
            ambiguous=0 if self._matcher is None else self._matcher.ambiguous,
            reconnects=self._reconnects,
            unacked=in_flight.unacked,
            buffered=len(in_flight.received),
            carried=in_flight.expected,
            backlog=self.connections.newest_depth,
        )
