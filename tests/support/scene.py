"""A query on a queue in memory, and what was sent to it."""

from __future__ import annotations

from typing import Any

from pyspark_mq.ack.counters import Counters
from tests.support.memory_broker import MemoryBroker, MemoryQueue, MemoryStore
from tests.support.simulation import QUEUE, Query, World, make_settings

__all__ = ["Scene"]


class Scene:
    """A query on a queue in memory."""

    def __init__(
        self, *, store: MemoryStore | None = None, shows_start: bool = True, id_log: object = None, **settings: Any
    ) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.queue: MemoryQueue = self.broker.declare(QUEUE)
        self.sent: list[str] = []
        self.query = Query(
            self.world, self.broker, make_settings(**settings), store=store, shows_start=shows_start,
            id_log=None if id_log is None else str(id_log),
        )  # fmt: skip

    def publish(self, count: int, size: int = 10) -> list[str]:
        ids = [f"id-{len(self.sent) + number}" for number in range(count)]
        for key in ids:
            self.queue.publish(bytes(size), key)
        self.sent += ids
        return ids

    def assert_exactly_once(self) -> None:
        self.query.drain()
        assert sorted(self.query.emitted) == sorted(self.sent)

    @property
    def counters(self) -> Counters:
        return self.query.source.counters()
