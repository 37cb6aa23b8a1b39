"""All queues of a query together: their messages, their shared limits, and one signal for all.

Limits apply to all queues together. Queues share the remaining bytes equally at any moment, so a full queue leaves room
for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from pyspark_mq.ack import InFlightTable
from pyspark_mq.ack.counters import Counters
from pyspark_mq.dedup import Key
from pyspark_mq.errors import BrokerError, DestinationError, RefusedError
from pyspark_mq.sources.connections.events import EventQueue
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.journal import Journal, LeftOpen, NoJournal
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.queues.connected import CheckFacts
from pyspark_mq.sources.queues.reader import MakeStore, QueueReader
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["QueueGroup"]

#: Most bytes held, as a multiple of `maxBytesPerTrigger`: one epoch runs while the next epoch is filled.
_BYTES_HELD_EPOCHS = 2
#: A session paused for bytes resumes once less than this multiple of `maxBytesPerTrigger` is held. By then the next
#: epoch has arrived, and the epoch after the next can arrive while the next epoch runs.
_BYTES_RESUMED_EPOCHS = 1.5


class QueueGroup:
    """The queues of a query, in their order. Called by the query's thread alone."""

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
        #: Whether the commits of a former process are known.
        self._shown = False
        self._resumes = True
        self._arrived = threading.Event()
        self._queues: dict[str, QueueReader] = {}
        #: Readers of queues that are gone, as long as they have an open epoch.
        self._ended: dict[str, QueueReader] = {}
        #: Sum of the counters of dropped readers.
        self._forgotten = Counters()
        for one in settings.by_queue():
            self._add(one)

    def __iter__(self) -> Iterator[QueueReader]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, name: str) -> QueueReader | None:
        """Return the reader of a queue or topic, even if it has ended but still has an open epoch."""
        return self._queues.get(name) or self._ended.get(name)

    def with_ended(self) -> list[QueueReader]:
        """Return all readers that may have an open epoch."""
        return [*self._queues.values(), *self._ended.values()]

    def _add(self, settings: Settings) -> QueueReader:
        """Create a reader for the endpoint of these settings, without opening anything."""
        name, memory = settings.endpoint.name, self._memory
        queue = QueueReader(
            settings,
            self._worker,
            self._make_store(settings),
            self._runtime,
            EventQueue(self._arrived),
            self._check,
            memory.known(name) if isinstance(memory, Journal) else None,
        )
        self._queues[name] = queue
        self._share_bytes()
        return queue

    def find(self, *known: Position) -> None:
        """Create readers for the queues to be read now.

        Args:
            known: positions of the checkpoint. If there are too many queues, the queues in these positions come first.
        """

    def _may_end(self, queue: QueueReader, error: BrokerError) -> bool:  # noqa: ARG002
        """Whether the query can continue without a queue that is gone or that this user may not read."""
        return False

    def adopt(self, recent: LeftOpen, broker_id: str) -> None:
        """Have all readers learn the commits of a former process (:meth:`.QueueReader.adopt`)."""
        self._shown = True
        for queue in self:
            queue.adopt(recent, broker_id)

    def forget_ended(self) -> None:
        """Drop readers that have ended and have no open epoch."""
        for queue in list(self._ended.values()):
            if not queue.has_open_epochs:
                del self._ended[queue.name]
                self._forgotten += queue.counters().totals()

    @property
    def ended_counters(self) -> Counters:
        """Counters of queues that are gone."""
        return sum((queue.counters().totals() for queue in self._ended.values()), self._forgotten)

    def stop(self) -> None:
        for queue in self.with_ended():
            queue.ask_to_stop()
        for queue in self.with_ended():
            queue.stop()

    # -- what happens

    def start(self) -> None:
        """Connect all queues that are not connecting yet."""
        for queue in self:
            queue.open()

    def wait(self, seconds: float) -> None:
        """Wait until something arrives, at most for this time."""
        self._runtime.wait(self._arrived, seconds)
        self._arrived.clear()

    def drain_events(self) -> None:
        """Process all events since the last call.

        Raises:
            MqError: a supervisor has given up, a message has no ID, or the broker is not the expected broker.
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
        connected = self.complete and all(queue.view.is_up for queue in self)
        until_s = min((queue.view.reported_s for queue in self), default=self._runtime.monotonic_s())
        self._memory.poll(until_s, connected=connected)

    def _share_bytes(self) -> None:
        most = _BYTES_HELD_EPOCHS * self._settings.max_bytes
        held = {queue: queue.held_bytes for queue in self}
        everything = sum(held.values())
        self._resumes = everything < _BYTES_RESUMED_EPOCHS * self._settings.max_bytes
        share = max(0.0, most - everything) / len(held) if held else 0.0
        for queue, bytes_ in held.items():
            queue.share_bytes(bytes_ + share, resumes=self._resumes)

    # -- what they hold

    def is_open(self, epoch: int) -> bool:
        """Whether an epoch is planned but not committed."""
        return any(queue.is_open(epoch) for queue in self.with_ended())

    @property
    def in_flight_tables(self) -> dict[str, InFlightTable[Key, Any]]:
        """In-flight tables of all readers that may have an open epoch, for the memory."""
        return {queue.name: queue.in_flight for queue in self.with_ended()}

    @property
    def broker_id(self) -> str:
        """The name of the broker; empty while unknown."""
        return next((queue.view.broker_id for queue in self if queue.view.broker_id), "")

    @property
    def complete(self) -> bool:
        return all(queue.view.complete for queue in self)

    @property
    def buffered(self) -> int:
        """Messages received but not planned."""
        return sum(queue.view.received for queue in self)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the buffered messages."""
        return sum(queue.view.size_bytes for queue in self)

    @property
    def planned_bytes(self) -> int:
        """Bytes of epochs that are not committed."""
        return sum(queue.view.planned_size_bytes for queue in self)

    def unconfirmed(self) -> bool:
        """Whether an acknowledgement may still be confirmed."""
        return any(queue.view.unconfirmed for queue in self)

    @property
    def paused(self) -> bool:
        """Whether a session is paused for bytes."""
        return any(queue.view.paused for queue in self)
