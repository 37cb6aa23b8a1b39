"""Reads one queue of a query: manages its connections and its in-flight table, and its part in each epoch.

Each queue of a query has its own :class:`QueueReader`, because a fault of one queue does not concern the others, and
because the same ID in two queues means two messages, for example copies from a fanout exchange.
:class:`~pyspark_mq.sources.epochs.EpochSource` plans and acknowledges epochs over all readers together.

One thread calls all methods, and only :meth:`QueueReader.stop` waits, for a moment. Connections work in the background.
Only :meth:`QueueReader.drain_events` processes their events, in order: opened and ended sessions, deliveries,
confirmations. The in-flight table assigns messages to an epoch. It also decides which acknowledgements are due, and the
reader sends them. :meth:`~QueueReader.begin` returns the rows of an epoch, and :meth:`~QueueReader.acknowledge`
acknowledges its messages. After a restart, the reader is first told what the former process has committed
(:meth:`~QueueReader.adopt`), and which of its epochs is not committed (:meth:`~QueueReader.begin_replay`).

The journal has the IDs of an epoch's messages. The journal and the store of committed IDs survive a
crash. Guarantee: a message is acknowledged only after the commit of its epoch, or as a duplicate of a committed
message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyspark_mq.ack import Acknowledgements, InFlightTable
from pyspark_mq.ack.counters import Counters
from pyspark_mq.dedup import Key, QueueMemory, SeenStore, is_content
from pyspark_mq.sources.connections import flow
from pyspark_mq.sources.connections.block import BlockRows, Row
from pyspark_mq.sources.connections.connections import Connections
from pyspark_mq.sources.connections.events import Confirmed, Delivered, EventQueue, Opened
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.journal import LeftOpen
from pyspark_mq.sources.queues.connected import CheckFacts, Connected
from pyspark_mq.sources.queues.deliveries import Deliveries
from pyspark_mq.sources.queues.watch import QueueWatches
from pyspark_mq.sources.queues.windows import Trigger, Windows
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["MakeStore", "QueueReader"]

#: Takes the settings of a queue, and returns the store for its committed IDs (option `dedupStore`).
MakeStore: TypeAlias = Callable[[Settings], SeenStore]


class QueueReader:
    """Reads one queue, and takes part in each epoch.

    Args:
        settings: the query's settings, with this queue as the endpoint.
        worker: runs the queue's connections.
        store: committed IDs of this queue in addition to the checkpoint (option `dedupStore`).
        runtime: clock and threads.
        events: where the connections put their events.
        check: returns warnings about the settings of the queue.
        memory: the committed messages of this queue.

    Attributes:
        in_flight: the queue's messages. Other code on the query's thread may query this and the next three objects at
            any time. It also plans and abandons messages, changes windows, and opens and closes connections. Only this
            object processes events of the connections.
        connections: the queue's connections.
        connected: the facts that are known about the queue's broker, and the time for which it was connected.
        windows: the queue's prefetch windows.
        ended: whether the queue no longer exists.
        taking: whether deliveries are processed. They have to wait until the committed offset is known, because before
            that, the reader cannot tell new messages from committed ones.
        last_activity_s: time of the last delivery, or of the last confirmation of acknowledgements. The answer to a
            request without acknowledgements does not count.
        coming_again: number of planned and committed messages that sessions held when they ended, so that they may be
            redelivered.
    """

    def __init__(
        self,
        settings: Settings,
        worker: Worker,
        store: SeenStore,
        runtime: Runtime,
        events: EventQueue,
        check: CheckFacts,
        memory: QueueMemory,
    ) -> None:
        self.settings = settings
        self.in_flight: InFlightTable[Row] = InFlightTable(
            grace_s=settings.settle_grace_s if settings.guarantee.identifies else None,
            memory=memory,
            proves=settings.endpoint.broker.proves_new,
            size_of=lambda rows: BlockRows.of(rows).size_bytes,
        )
        self.connections = Connections(settings, worker, runtime, events)
        self.connected = Connected(settings, check)
        self._last_flush_marker = 0
        self._store = store
        self._runtime = runtime
        self._reconnects = 0
        self._deliveries = Deliveries(
            settings, self.in_flight, self.connections, store, self._send, runtime.timing.take_back_s
        )
        self.windows = Windows(settings, self.in_flight, self.connections)
        self._watches = QueueWatches(settings, self.in_flight.settling, self.connections, self.windows, runtime.timing)
        self._bytes_max = float(settings.max_bytes)
        #: Whether a replay waits for planned messages. Other messages are skipped if they take too many bytes.
        self._replaying = False
        self.ended = self.taking = False
        self.last_activity_s = -math.inf
        self.coming_again = self._retained_bytes = 0

    @property
    def name(self) -> str:
        return self.settings.endpoint.name

    @property
    def destination(self) -> str:
        """The queue or topic, in the words of error messages."""
        return self.settings.endpoint.destination

    # -- its life

    def stop(self, *, ended: bool = False) -> None:
        """Close the connections and the store.

        Args:
            ended: whether the queue no longer exists, so that it is never read again.
        """
        self.connections.stop()
        self._store.close()
        self.ended |= ended
        for session in self.in_flight.sessions if ended else ():
            self._lose(session)  # the events that report the ends of these sessions are not processed any more

    # -- what happens

    def drain_events(self) -> None:
        """Process all events that have arrived since the last call.

        Raises:
            MqError: a connection could not be opened in time, a message has no ID, or the broker is not the one of the
                checkpoint.
        """
        came: list[Delivered] = []
        for event in self.connections.news(taking=self.taking):
            now_s = self._runtime.monotonic_s()
            if isinstance(event, Delivered):
                self.last_activity_s = now_s
                if self._replaying:
                    self._deliveries.enter(event, over_limit=flow.skips(self._bytes_max, self.held_bytes))
                else:
                    came.append(event)
                continue
            self._deliveries.enter_all(came)
            came = []
            if isinstance(event, Confirmed):
                if event.number > 0:  # this confirms acknowledgements, and is not only the answer to a flush marker
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
        if self.in_flight.settling.asks(now_s):  # a request is needed, whose answer settles acknowledgements
            self._last_flush_marker -= 1
            self.in_flight.settling.asked(self._last_flush_marker, self.connections.windows, now_s)
            self.connections.send_flush_markers(self._last_flush_marker)
        self.windows.poll()
        if not self._replaying and not self.windows.replay_is_open:
            self._deliveries.take_back(now_s)
        self._watches.poll(now_s, up=up)

    def _open(self, event: Opened) -> None:
        self.connected.opened(event.greeting)
        self.in_flight.open_session(event.session)

    def _lose(self, session: int) -> None:
        self._reconnects += 1
        self.coming_again += self.in_flight.lose(session)

    @property
    def is_up(self) -> bool:
        """Whether deliveries are processed, and receiving was not interrupted before the last events."""
        return self.taking and not self.connections.broke_off

    # -- bytes and depth

    @property
    def held_bytes(self) -> int:
        """Size in bytes of the messages of this queue that this process holds."""
        return self.in_flight.received.size_bytes + self.in_flight.planned.size_bytes + self._retained_bytes

    def bound_bytes(self, most: float, *, resumes: bool) -> None:
        """Set the number of bytes that this queue may hold.

        Args:
            most: maximum number of bytes, including those of deliveries that are not processed yet.
            resumes: whether a session may resume that was paused because too many bytes were buffered.
        """
        self._bytes_max = most
        each = flow.allowed(most, self.held_bytes, self.settings.consumers, replaying=self._replaying)
        self.connections.bound_bytes(each, resume=resumes or self._replaying)

    def recount_ready(self) -> None:
        """Replace the number of waiting messages in the broker's first report by the current number."""
        self.connected.ready_at_first = self.connections.untaken + (self.connections.newest_depth or 0)

    # -- an epoch

    def begin(self, epoch: int) -> BlockRows:
        """Return the rows that an epoch emits, in planned order.

        Also acknowledge the epoch's echoes: redeliveries that the epoch does not emit.
        """
        if epoch not in self.in_flight.planned.epochs:
            return BlockRows([])
        self._send(self.in_flight.begin(epoch))
        return BlockRows.of(*self.in_flight.planned.parts(epoch))

    def remember(self, epoch: int) -> None:
        """Add the IDs of an epoch to the store of committed IDs (option `dedupStore`)."""
        self._store.remember(key for key in self.in_flight.planned.keys(epoch) if not is_content(key))

    def acknowledge(self, epoch: int, *, retained_bytes: int = 0) -> Callable[[], bool]:
        """Acknowledge an epoch.

        With guarantee `none`, this is called before Spark runs the epoch, and again when Spark has committed it.

        Args:
            retained_bytes: size of the epoch's rows, if they are kept because Spark may still ask for them.

        Returns:
            a function that returns whether the broker has not confirmed these acknowledgements yet.
        """
        self._retained_bytes = retained_bytes
        number = self._send(self.in_flight.commit(epoch))
        return lambda: number is not None and self.in_flight.settling.unconfirmed(number)

    def _send(self, due: Acknowledgements | None) -> int | None:
        """Send acknowledgements. Return the number under which the broker will confirm them; None if none are due."""
        if due is None:
            return None
        now_s = self._runtime.monotonic_s()
        self.in_flight.settling.asked(due.number, [part.session for part in due.parts], now_s)
        self.connections.acknowledge(due)
        return due.number

    # -- restart

    def adopt(self, recent: LeftOpen, broker_id: str) -> None:
        """Learn which messages the former process has committed (rule 5), and from which broker.

        From now on deliveries are processed.

        Args:
            recent: the messages that the former process committed but may not have acknowledged before it ended. The
                memory already has them.
            broker_id: the name of the broker with which the checkpoint was written.
        """
        self.connected.expect_broker(broker_id)
        self.taking = True
        self._store.remember(key for key in recent.keys.get(self.name, ()) if not is_content(key))
        self.in_flight.recalled = recent.counts.get(self.name, 0)
        self.in_flight.matcher.expect(recent.coming.get(self.name, ()))
        self.windows.enter(Trigger.UNPROVEN)

    def begin_replay(self, epoch: int, planned: Sequence[Key]) -> None:
        """Wait for the redelivery of the messages of an epoch that a former process planned and Spark did not commit.

        With the guarantees `at-least-once` and `none` the epoch's messages are unknown. The epoch is then empty, and
        later epochs emit its messages.

        Args:
            epoch: number of the epoch.
            planned: keys of the messages, in order.
        """
        if epoch not in self.in_flight.planned.epochs:  # otherwise an earlier replay of it has failed
            self.in_flight.restore_planned(epoch, planned)
        if self.settings.guarantee.identifies:
            self._replaying = True
            self.windows.begin_replay(epoch)

    def end_replay(self) -> None:
        """Record that no replay waits for messages any more, so that all messages are accepted again."""
        self._replaying = False

    # -- counters

    def counters(self) -> Counters:
        """Return the counters for the query's progress (rule 8)."""
        in_flight = self.in_flight
        return in_flight.counters + Counters(
            **self._deliveries.counted,
            ambiguous=in_flight.matcher.ambiguous,
            reconnects=self._reconnects,
            unacked=in_flight.unacked,
            buffered=len(in_flight.received),
            carried=in_flight.expected,
            backlog=self.connections.newest_depth,
        )
