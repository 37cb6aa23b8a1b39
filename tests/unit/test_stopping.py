"""What goes on while a query is stopped."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_mq.sources.connections.block import block_schema
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.epochs import EpochSource
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.spark_source.offset import OffsetCodec
from testbed.process import poll
from tests.support.memory_broker import MemoryBroker, MemorySession
from tests.support.simulation import make_settings
from tests.support.sockets import LIMIT_S

SCHEMA = block_schema(pa.schema([("messageId", pa.string())]))


@pytest.mark.parametrize(("queues", "consumers"), [(6, 1), (1, 6)])
def test_all_connections_of_a_query_are_closed_at_the_same_time(queues: int, consumers: int, tmp_path: Path) -> None:
    broker = MemoryBroker()
    names = tuple(f"queue-{number}" for number in range(queues))
    for name in names:
        broker.declare(name)
    together = threading.Barrier(6)
    broken: list[Exception] = []

    class Slow(MemorySession):
        def close(self) -> None:
            try:
                together.wait(LIMIT_S)
            except threading.BrokenBarrierError as error:
                broken.append(error)
            super().close()

    consumer = type("SlowSession", (Slow,), {"broker": broker})
    worker = Worker(lambda _: consumer, SCHEMA, Threads())
    settings = make_settings(queues=names if queues > 1 else None, consumers=consumers)
    if queues == 1:
        broker.declare("orders")
    log = OffsetCodec.of(settings, str(tmp_path)).log
    source = EpochSource(settings, worker, runtime=Threads(), files=log)
    source.latest(source.initial(), 10)
    assert poll(
        lambda: all(queue.connections.complete for queue in source._queues if queue.drain_events() is None), LIMIT_S
    )
    source.stop()
    worker.stop()
    assert not broken
