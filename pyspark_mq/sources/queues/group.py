"""All queues of a query together: what they hold, what they share, and one signal for all.

Limits hold over all of them. What is left of the bytes a query may hold is shared by all lanes alike at any moment, so
a queue that is full leaves room for one that is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from pyspark_mq.errors import BrokerError, DestinationError, RefusedError
from pyspark_mq.sources.connections.consumer import Consumer
from pyspark_mq.sources.connections.events import ReceiverPool
from pyspark_mq.sources.counters import Counters
from pyspark_mq.sources.queues.intake import Judge
from pyspark_mq.sources.queues.reader import Lane, MakeStore
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["QueueGroup"]

#: Bytes of bodies held, in terms of `maxBytesPerTrigger`: one epoch runs while the next one is filled.
_BYTES_HELD_EPOCHS = 2


class QueueGroup:
    """The lanes of a query, in the order of its queues. Called by the query's thread alone.

    Args:
        settings: the query's.
        make_consumer: the consumer class of the protocol.
        make_store: of one queue.
        runtime: time and threads.
        pool: processes that hold the connections; None if this one does.
        judge: finds in what a connection tells of a queue what is worth a line of the log.
    """

    def __init__(
        self,
        settings: Settings,
        make_consumer: type[Consumer],
        make_store: MakeStore,
        runtime: Runtime,
        pool: ReceiverPool | None = None,
        judge: Judge = lambda _facts, _settings: (),
    ) -> None:
        self._settings = settings
        self._make_consumer = make_consumer
        self._make_store = make_store
        self._runtime = runtime
        self._pool = pool
        self._judge = judge
        self._arrived = threading.Event()
        self._lanes: dict[str, Lane] = {}
        #: Of queues that are no longer there, while an epoch of theirs is open.
        self._ended: dict[str, Lane] = {}
        #: What was counted in those that are forgotten.
        self._forgotten = Counters()
        #: May the query do without a queue of which a receiver says that there is none, or none for us?
        self.may_end: Callable[[Lane, BrokerError], bool] = lambda lane, error: False  # noqa: ARG005

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, name: str) -> Lane | None:
        """The lane of a queue or topic, also of one that has ended and has an open epoch."""
        return self._lanes.get(name) or self._ended.get(name)

    def with_ended(self) -> list[Lane]:
        """All lanes that may have an open epoch."""
        return [*self._lanes.values(), *self._ended.values()]

    def add(self, settings: Settings) -> Lane:
        """A lane for the endpoint of these settings. It opens nothing yet."""
        lane = Lane(
            settings,
            self._make_consumer,
            self._make_store(settings),
            self._runtime,
            self._arrived,
            self._pool,
            self._judge,
        )
        self._lanes[lane.name] = lane
        self._share_bytes()
        return lane

    def forget_ended(self) -> None:
        """Drop what has ended and has no open epoch."""
        for lane in list(self._ended.values()):
            if not lane.has_open_epochs:
                del self._ended[lane.name]
                self._forgotten += lane.counters().counted()

    def drop(self, lane: Lane) -> None:
        """Do without a queue of which nothing was taken in."""
        lane.stop()
        del self._lanes[lane.name]

    @property
    def ended_counters(self) -> Counters:
        """What was counted in the queues that are no longer there."""
        return sum((lane.counters().counted() for lane in self._ended.values()), self._forgotten)

    def stop(self) -> None:
        """Close all connections."""
        for lane in self.with_ended():
            lane.stop()

    # -- what happens

    def start(self) -> None:
        """Have all receivers connect that have not been told to yet."""
        for lane in self:
            lane.start()

    def wait(self, seconds: float) -> None:
        """Until something arrives, or for so long."""
        self._runtime.wait(self._arrived, seconds)
        self._arrived.clear()

    def pump(self) -> None:
        """Take in everything that arrived since the last time.

        Raises:
            MqError: a receiver has given up, a message has no ID, or it is another broker.
        """
        for lane in list(self):
            try:
                lane.intake.pump()
            except (DestinationError, RefusedError) as error:
                if not self.may_end(lane, error):
                    raise
                lane.stop()
                lane.ended = True
                self._ended[lane.name] = self._lanes.pop(lane.name)
        self._share_bytes()

    def _share_bytes(self) -> None:
        most = _BYTES_HELD_EPOCHS * self._settings.max_bytes
        held = {lane: lane.intake.held_bytes for lane in self}
        everything = sum(held.values())
        share = max(0.0, most - everything) / len(held) if held else 0.0
        for lane, bytes_ in held.items():
            lane.intake.most_bytes = bytes_ + share
            lane.intake.resumes = everything < most / 2
            lane.intake.bound_bytes()

    # -- what they hold

    @property
    def complete(self) -> bool:
        """Is every receiver connected?"""
        return all(lane.sessions.complete for lane in self)

    @property
    def buffered(self) -> int:
        """Messages received and not planned."""
        return sum(lane.ledger.buffered for lane in self)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of their bodies."""
        return sum(lane.ledger.buffered_bytes for lane in self)

    @property
    def planned_bytes(self) -> int:
        """Bytes of the bodies of epochs that are not committed."""
        return sum(lane.ledger.planned_bytes for lane in self)

    @property
    def full(self) -> bool:
        """Do epochs that are not settled hold so many bytes that no session goes on?"""
        return self.paused and not self.buffered and not any(lane.intake.resumes for lane in self)

    @property
    def received(self) -> int:
        """Deliveries taken in so far."""
        return sum(lane.ledger.counters.received for lane in self)

    def unconfirmed(self) -> bool:
        """Is an acknowledgement under way whose confirmation can still come?"""
        return any(lane.ledger.unconfirmed() for lane in self)

    @property
    def paused(self) -> bool:
        """Does a session wait because it has too many bytes?"""
        return any(lane.sessions.paused for lane in self)
