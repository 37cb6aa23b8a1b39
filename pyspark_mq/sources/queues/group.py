"""All queues of a query together: what they hold, what they share, and one signal for all.

Limits hold over all of them. What is left of the bytes a query may hold is shared by all alike at any moment, so
a queue that is full leaves room for one that is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from pyspark_mq.ack.counters import Counters
from pyspark_mq.errors import BrokerError, DestinationError, RefusedError
from pyspark_mq.sources.connections.events import EventQueue
from pyspark_mq.sources.connections.receivers import Receivers
from pyspark_mq.sources.journal.memory import Memory
from pyspark_mq.sources.queues.reader import Judge, MakeStore, QueueReader
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["QueueGroup"]

#: Bytes held, in terms of `maxBytesPerTrigger`: one epoch runs while the next one is filled.
_BYTES_HELD_EPOCHS = 2


class QueueGroup:
    """The queues of a query, in their order. Called by the query's thread alone.

    Args:
        settings: the query's.
        receivers: who keeps the connections.
        make_store: of one queue.
        runtime: time and threads.
        judge: finds in what a connection tells of a queue what is worth a line of the log.
        memory: what was committed of each; None for a guarantee without IDs.
    """

    def __init__(
        self,
        settings: Settings,
        receivers: Receivers,
        make_store: MakeStore,
        runtime: Runtime,
        judge: Judge = lambda _facts, _settings: (),
        memory: Memory | None = None,
    ) -> None:
        self._settings = settings
        self._receivers = receivers
        self._make_store = make_store
        self._runtime = runtime
        self._judge = judge
        self._memory = memory
        self._resumes = True
        self._arrived = threading.Event()
        self._queues: dict[str, QueueReader] = {}
        #: Of queues that are no longer there, while an epoch of theirs is open.
        self._ended: dict[str, QueueReader] = {}
        #: What was counted in those that are forgotten.
        self._forgotten = Counters()
        #: May the query do without a queue of which a receiver says that there is none, or none for us?
        self.may_end: Callable[[QueueReader, BrokerError], bool] = lambda queue, error: False  # noqa: ARG005

    def __iter__(self) -> Iterator[QueueReader]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, name: str) -> QueueReader | None:
        """The reader of a queue or topic, also of one that has ended and has an open epoch."""
        return self._queues.get(name) or self._ended.get(name)

    def with_ended(self) -> list[QueueReader]:
        """All that may have an open epoch."""
        return [*self._queues.values(), *self._ended.values()]

    def add(self, settings: Settings) -> QueueReader:
        """A reader for the endpoint of these settings. It opens nothing yet."""
        events = EventQueue(self._arrived)
        known = None if self._memory is None else self._memory.known(settings.endpoint.name)
        copies = None if self._memory is None else self._memory.copies(settings.endpoint.name)
        store = self._make_store(settings)
        queue = QueueReader(settings, self._receivers, store, self._runtime, events, self._judge, known, copies)
        if self._memory is not None:
            queue.ledger.left = self._memory.left
        self._queues[queue.name] = queue
        self._share_bytes()
        return queue

    def forget_ended(self) -> None:
        """Drop what has ended and has no open epoch."""
        for queue in list(self._ended.values()):
            if not queue.has_open_epochs:
                del self._ended[queue.name]
                self._forgotten += queue.counters().counted()

    def drop(self, queue: QueueReader) -> None:
        """Do without a queue of which nothing was taken in."""
        queue.stop()
        del self._queues[queue.name]

    @property
    def ended_counters(self) -> Counters:
        """Counts of the queues that are no longer there."""
        return sum((queue.counters().counted() for queue in self._ended.values()), self._forgotten)

    def stop(self) -> None:
        """Close all connections, all at once."""
        for queue in self.with_ended():
            queue.connections.ask_to_stop()
        for queue in self.with_ended():
            queue.stop()

    # -- what happens

    def start(self) -> None:
        """Have all receivers connect that have not been told to yet."""
        for queue in self:
            queue.start()

    def wait(self, seconds: float) -> None:
        """Until something arrives, or for so long."""
        self._runtime.wait(self._arrived, seconds)
        self._arrived.clear()

    def pump(self) -> None:
        """Take in everything that arrived since the last time.

        Raises:
            MqError: a receiver has given up, a message has no ID, or it is another broker.
        """
        for queue in list(self):
            try:
                queue.pump()
            except (DestinationError, RefusedError) as error:
                if not self.may_end(queue, error):
                    raise
                queue.stop()
                queue.ended = True
                self._ended[queue.name] = self._queues.pop(queue.name)
        self._share_bytes()
        if self._memory is not None:
            connected = self.complete and all(queue.taking for queue in self)
            self._memory.look(self._runtime.monotonic_s(), connected=connected)

    def _share_bytes(self) -> None:
        most = _BYTES_HELD_EPOCHS * self._settings.max_bytes
        held = {queue: queue.held_bytes for queue in self}
        everything = sum(held.values())
        self._resumes = everything < most / 2
        share = max(0.0, most - everything) / len(held) if held else 0.0
        for queue, bytes_ in held.items():
            queue.share_bytes(bytes_ + share, resumes=self._resumes)

    # -- what they hold

    @property
    def complete(self) -> bool:
        """Is every receiver connected?"""
        return all(queue.connections.complete for queue in self)

    @property
    def buffered(self) -> int:
        """Messages received and not planned."""
        return sum(len(queue.ledger.received) for queue in self)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that they take."""
        return sum(queue.ledger.received.weight for queue in self)

    @property
    def planned_bytes(self) -> int:
        """Bytes of epochs that are not committed."""
        return sum(queue.ledger.planned.weight for queue in self)

    @property
    def full(self) -> bool:
        """Do epochs that are not settled hold so many bytes that no session goes on?"""
        return self.paused and not self.buffered and not self._resumes

    @property
    def received(self) -> int:
        """Deliveries taken in so far."""
        return sum(queue.ledger.counters.received for queue in self)

    def unconfirmed(self) -> bool:
        """Is an acknowledgement under way whose confirmation can still come?"""
        return any(queue.ledger.settling.under_way() for queue in self)

    @property
    def paused(self) -> bool:
        """Does a session wait because it has too many bytes?"""
        return any(queue.connections.paused for queue in self)
