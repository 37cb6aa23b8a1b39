"""All queues of a query together: the limits that they share, and the signal that a connection has an event.

The limit on bytes applies to all queues together. Bytes that are free at the moment are divided equally among the
queues. So a queue with many messages cannot take the memory that the others need.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from pyspark_mq.ack import InFlightTable
from pyspark_mq.ack.counters import Counters
from pyspark_mq.errors import BrokerError, DestinationError, RefusedError
from pyspark_mq.sources.connections import flow
from pyspark_mq.sources.connections.events import EventQueue
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.journal import Journal, LeftOpen, NoJournal
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.queues.connected import CheckFacts
from pyspark_mq.sources.queues.reader import MakeStore, QueueReader
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["QueueGroup"]


class QueueGroup:
    """The queues of a query, in the order of the options. Only the query's thread calls the methods."""

    def __init__(
        self,
        settings: Settings,
        worker: Worker,
        make_store: MakeStore,
        runtime: Runtime,
        memory: Journal | NoJournal,
        check: CheckFacts,
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._make_store = make_store
        self._runtime = runtime
        self._memory = memory
        self._check = check
        #: Whether the readers know which messages the former process has committed (:meth:`adopt`).
        self._shown = False
        self._arrived = threading.Event()
        self._queues: dict[str, QueueReader] = {}
        #: Name of a queue that no longer exists -> its reader, as long as it has an epoch that is not committed.
        self._ended: dict[str, QueueReader] = {}
        #: Sum of the counters of readers that were dropped.
        self._forgotten = Counters()
        for one in settings.by_queue():
            self._add(one)

    def __iter__(self) -> Iterator[QueueReader]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, name: str) -> QueueReader | None:
        """Return the reader of a queue or topic; None if there is none.

        A queue that no longer exists has a reader as long as it has an epoch that is not committed.
        """
        return self._queues.get(name) or self._ended.get(name)

    def with_ended(self) -> list[QueueReader]:
        """Return all readers, including those of queues that no longer exist but have an uncommitted epoch."""
        return [*self._queues.values(), *self._ended.values()]

    def _add(self, settings: Settings) -> QueueReader:
        """Create a reader for the queue of these settings. It does not open a connection yet."""
        name = settings.endpoint.name
        queue = QueueReader(
            settings,
            self._worker,
            self._make_store(settings),
            self._runtime,
            EventQueue(self._arrived),
            self._check,
            self._memory.known(name),
        )
        self._queues[name] = queue
        self._share_bytes()
        return queue

    def find(self, *known: Position) -> None:
        """Look up which queues match option `queuePattern`, and create readers for new ones.

        In this class the method does nothing, because the query names its queues.

        Args:
            known: positions of the checkpoint. If too many queues match the pattern, those that the query read at these
                positions come first.
        """

    def _may_end(self, queue: QueueReader, error: BrokerError) -> bool:  # noqa: ARG002
        """Whether the query continues without a queue that no longer exists, or that this user may not read."""
        return False

    def adopt(self, recent: LeftOpen, broker_id: str) -> None:
        """Tell all readers which messages the former process has committed, see :meth:`.QueueReader.adopt`."""
        self._shown = True
        for queue in self:
            queue.adopt(recent, broker_id)

    def forget_ended(self) -> None:
        """Drop the readers of queues that no longer exist, as soon as all their epochs are committed."""
        for queue in list(self._ended.values()):
            if not queue.in_flight.planned.epochs:
                del self._ended[queue.name]
                self._forgotten += queue.counters().totals()

    @property
    def ended_counters(self) -> Counters:
        """Sum of the counters of queues that no longer exist."""
        return sum((queue.counters().totals() for queue in self._ended.values()), self._forgotten)

    def stop(self) -> None:
        for queue in self.with_ended():
            queue.connections.ask_to_stop()
        for queue in self.with_ended():
            queue.stop()

    # -- what happens

    def start(self) -> None:
        """Start the connections of all queues. Connections that were started before are not affected."""
        for queue in self:
            queue.connections.start()

    def wait(self, seconds: float) -> None:
        """Wait until a connection has an event, but at most for this number of seconds."""
        self._runtime.wait(self._arrived, seconds)
        self._arrived.clear()

    def drain_events(self) -> None:
        """Process all events that have arrived since the last call.

        Raises:
            MqError: a connection could not be opened in time, a message has no ID, or the broker is not the one of the
                checkpoint.
        """
        for queue in list(self):
            try:
                queue.drain_events()
            except (DestinationError, RefusedError) as error:
                if not self._may_end(queue, error):
                    raise
                queue.stop(ended=True)
                self._ended[queue.name] = self._queues.pop(queue.name)
        self._share_bytes()
        connected = self.complete and all(queue.is_up for queue in self)
        until_s = min((queue.connections.progress_s for queue in self), default=self._runtime.monotonic_s())
        self._memory.poll(until_s, connected=connected)

    def _share_bytes(self) -> None:
        held = {queue: queue.held_bytes for queue in self}
        resumes = flow.resumes(held, self._settings.max_bytes)
        for queue, most in flow.share(held, self._settings.max_bytes).items():
            queue.bound_bytes(most, resumes=resumes)

    # -- what they hold

    @property
    def in_flight_tables(self) -> dict[str, InFlightTable[Any]]:
        """Name of each queue that may have an uncommitted epoch -> its in-flight table."""
        return {queue.name: queue.in_flight for queue in self.with_ended()}

    @property
    def broker_id(self) -> str:
        """The name by which the broker identifies itself; empty if unknown."""
        return next((queue.connected.broker_id for queue in self if queue.connected.broker_id), "")

    @property
    def complete(self) -> bool:
        return all(queue.connections.complete for queue in self)

    @property
    def buffered(self) -> int:
        """Number of messages that were received but not planned yet."""
        return sum(len(queue.in_flight.received) for queue in self)

    @property
    def buffered_bytes(self) -> int:
        """Size in bytes of the messages that were received but not planned yet."""
        return sum(queue.in_flight.received.size_bytes for queue in self)

    @property
    def planned_bytes(self) -> int:
        """Size in bytes of the messages of epochs that are planned but not committed."""
        return sum(queue.in_flight.planned.size_bytes for queue in self)

    def unconfirmed(self) -> bool:
        """Whether acknowledgements were sent that the broker has not confirmed yet."""
        return any(queue.in_flight.settling.unconfirmed() for queue in self)

    @property
    def paused(self) -> bool:
        """Whether a session does not read from its socket now, because too many bytes are buffered."""
        return any(queue.connections.paused for queue in self)
