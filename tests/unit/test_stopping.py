"""What goes on while a query is stopped."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_mq.sources.connections.block import block_schema
from pyspark_mq.sources.connections.events import EventQueue
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.connections.processes.wire import Hello
from pyspark_mq.sources.connections.processes.worker import ChildProcess, in_processes
from pyspark_mq.sources.connections.requests import Begin, Limits
from pyspark_mq.sources.connections.session import SessionOptions
from pyspark_mq.sources.connections.thread_worker import in_threads
from pyspark_mq.sources.epochs import EpochSource
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.spark_source.offset import OffsetCodec
from pyspark_mq.spark_source.options import parse_options
from testbed.process import poll
from tests.support.memory import MemoryBroker, MemorySession
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
    workers = in_threads(lambda _: consumer, SCHEMA, Threads())
    settings = make_settings(queues=names if queues > 1 else None, consumers=consumers)
    if queues == 1:
        broker.declare("orders")
    log = OffsetCodec.of(settings, str(tmp_path)).log
    source = EpochSource(settings, workers, runtime=Threads(), files=log)
    source.latest(source.initial(), 10)
    assert poll(lambda: all(queue.connections.complete for queue in source._queues if queue.pump() is None), LIMIT_S)
    source.stop()
    workers.stop()
    assert not broken


def test_a_receiver_process_that_is_started_while_the_query_is_stopped_ends() -> None:
    starting, go = threading.Event(), threading.Event()
    children: list[Any] = []

    def start(hello: Hello) -> ChildProcess:
        starting.set()
        assert go.wait(LIMIT_S)
        children.append(ChildProcess(hello))
        return children[0]

    options = {"broker": "rabbitmq", "url": "amqp://127.0.0.1:1", "queue": "q"}
    settings = parse_options(options).settings
    pool = in_processes(1, SCHEMA, Threads(), start)
    key = pool.add(EventQueue())
    pool.send(
        Begin(key, settings.endpoint, MessageIds.of(settings), SessionOptions(keeps_unreadable=True), Limits(10, 1e9))
    )
    assert starting.wait(LIMIT_S)
    stopper = threading.Thread(target=pool.stop)
    stopper.start()
    try:
        assert poll(pool._workers[0]._stopping.is_set, LIMIT_S)
        go.set()
        assert poll(lambda: bool(children) and children[0]._process.poll() is not None, LIMIT_S)
    finally:
        for child in children:
            child._process.kill()
        stopper.join()
