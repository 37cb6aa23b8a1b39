"""Faults of streams in a real Spark: a task that is killed in the middle, a driver, a slow replica read twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from rstream import AMQPMessage, Producer

from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.audit import committed_files
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.chaos.streams.audit import rows_of, streams_of, verdict
from testbed.chaos.streams.messages import BODY_BYTES, ENTRY_BYTES, encoded
from testbed.chaos.streams.parts import StreamJob
from testbed.process import poll
from testbed.publishers.streams import leader_client, make_super_stream
from testbed.signals import kill, runs
from testbed.spark.standalone import SparkCluster
from tests.support import streams
from tests.support.stream_driver import StreamDriver
from tests.support.streams import publish, stream_node

stream = streams.stream

ROWS = 30_000
#: All of a stream takes some seconds.
SLOW_BYTES_PER_S = ROWS * ENTRY_BYTES // 3
_TIMEOUT_S = 60.0
LARGE = 10_000
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    with stream_node() as node:
        yield node


@pytest.fixture(scope="module")
def proxy(node: RabbitNode) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", node.stream_port) as proxy:
        node.stop()
        node.advertise_stream(proxy.port)
        node.start()
        yield proxy


def through(proxy: FaultProxy) -> str:
    return f"rabbitmq-stream://guest:guest@127.0.0.1:{proxy.port}/"


class Query:
    """A query of the shared session; the bodies of each epoch."""

    def __init__(self, spark: Any, url: str, stream: str, folder: Path, **options: object) -> None:
        self.epochs: list[list[bytes]] = []
        self.last_offset = -1
        reader = spark.readStream.format("mq").option("broker", "rabbitmq").option("url", url)
        reader = reader.option("stream", stream).option("startingOffsets", "earliest")
        for name, value in options.items():
            reader = reader.option(name, value)
        writer = reader.load().select("body", "streamOffset").writeStream.foreachBatch(self._take)
        self._query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()

    def _take(self, frame: Any, _: int) -> None:
        rows = frame.collect()
        self.epochs.append([bytes(row.body) for row in rows])
        self.last_offset = max([self.last_offset, *(row.streamOffset for row in rows)])

    @property
    def bodies(self) -> list[bytes]:
        return [body for epoch in self.epochs for body in epoch]

    def wait(self, count: int) -> None:
        """Until so many rows are there, or too many."""
        assert poll(lambda: len(self.bodies) >= count or not self._query.isActive, _TIMEOUT_S), len(self.bodies)
        assert self._query.isActive, self._query.exception()

    def stop(self) -> None:
        self._query.processAllAvailable()
        self._query.stop()


def tasks() -> list[psutil.Process]:
    """The Python workers of this session, without what forks them."""
    found = [one for one in psutil.Process().children(recursive=True) if runs(one, "pyspark.daemon")]
    forked = {child.pid for one in found for child in one.children()}
    return [one for one in found if one.pid in forked]


@pytest.mark.whole
def test_a_task_that_is_killed_between_two_blocks_of_rows_is_read_again_from_its_first(
    node: RabbitNode, proxy: FaultProxy, stream: str, spark: Any, tmp_path: Path
) -> None:
    sent = [encoded(number)[-BODY_BYTES:] for number in range(ROWS)]
    publish(node.stream_port, stream, [encoded(number) for number in range(ROWS)], raw=True, batch=500)
    size, before = ROWS * ENTRY_BYTES, proxy.bytes_seen(Direction.TO_CLIENT)
    proxy.throttle(SLOW_BYTES_PER_S, Direction.TO_CLIENT)
    query = Query(spark, through(proxy), stream, tmp_path)
    try:
        # Blocks of 20,000 rows: the second is not whole.
        assert poll(lambda: proxy.bytes_seen(Direction.TO_CLIENT) - before > size * 3 // 4, _TIMEOUT_S)
        assert query.epochs == []
        assert sum(map(kill, tasks())) > 0
        proxy.throttle(None)
        query.wait(ROWS)
        # Between two epochs no task runs, and its worker waits for the next with a connection.
        assert sum(map(kill, tasks())) > 0
        publish(node.stream_port, stream, [encoded(number) for number in range(ROWS, ROWS + 100)], raw=True)
        query.wait(ROWS + 100)
        query.stop()
    finally:
        proxy.throttle(None)
    assert query.epochs[0] == sent
    assert query.bodies == [*sent, *(encoded(number)[-BODY_BYTES:] for number in range(ROWS, ROWS + 100))]
    assert proxy.bytes_seen(Direction.TO_CLIENT) - before > size * 3 // 2


@pytest.mark.whole
def test_an_offset_that_is_stored_behind_each_message_is_no_row(
    node: RabbitNode, stream: str, spark: Any, tmp_path: Path
) -> None:
    count = 200

    async def publish_and_store() -> None:
        place = "127.0.0.1", node.stream_port
        sender = Producer(*place, username="guest", password="guest")
        async with sender as producer, leader_client([place], stream) as client:
            for number in range(count):
                await producer.send_wait(stream, AMQPMessage(body=b"%08d" % number))
                await client.store_offset(stream, "somebody", number)

    publish(node.stream_port, stream, [b"first"])
    query = Query(spark, node.stream_url(), stream, tmp_path)
    query.wait(1)
    asyncio.run(publish_and_store())
    query.wait(count + 1)
    query.stop()
    assert query.bodies == [b"first", *(b"%08d" % number for number in range(count))]
    assert len(query.epochs) > 1
    # Those that a chunk has take an offset each; how many there are is a matter of time.
    assert query.last_offset > count


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_between_its_two_logs_replays_the_same_rows(
    node: RabbitNode, stream: str, tmp_path: Path
) -> None:
    StreamDriver(Path(sys.executable), node, stream, tmp_path).run()


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_task_that_is_run_twice_at_once_gives_its_rows_once(
    node: RabbitNode, proxy: FaultProxy, stream: str, tmp_path: Path
) -> None:
    first, *others = make_super_stream(node.stream_port, stream, 6)

    def send(number: int) -> None:
        """All of an epoch: most is in one partition."""
        for name in others:
            publish(node.stream_port, name, [encoded(one) for one in range(10 * number, 10 * (number + 1))], raw=True)
        rest = [encoded(one) for one in range(LARGE * number, LARGE * (number + 1))]
        publish(node.stream_port, first, rest, raw=True)

    epoch, logs = LARGE + 10 * len(others), tmp_path / "events"
    logs.mkdir()
    send(0)
    with SparkCluster(hosts=("127.0.0.1", "localhost")) as cluster:
        options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": str(epoch), "maxTriggerDelay": "1h"}
        settings = {**cluster.settings, **SPECULATION, "spark.eventLog.dir": logs.as_uri()}
        job = StreamJob("rabbitmq", through(proxy), stream, tmp_path, options, cluster.url, settings, cluster=cluster)
        job.keep_alive()
        try:
            assert poll(lambda: rows(job) == epoch, 240, interval_s=0.5), job.log.read_text()[-3000:]
            # From here on workers are warm, and who reads the large partition takes ten times as long as the others.
            proxy.throttle(LARGE * ENTRY_BYTES // 8, Direction.TO_CLIENT)
            send(1)
            assert poll(lambda: rows(job) >= 2 * epoch, 240, interval_s=0.5), job.log.read_text()[-3000:]
        finally:
            proxy.throttle(None)
            job.stop()
        assert job.starts == 1
    assert speculated(logs) > 0
    output, places = rows_of(committed_files(job.output)), [("127.0.0.1", proxy.port)]
    assert {*output} == {first, *others}
    for share, names in ((2 * LARGE, [first]), (20, others)):
        found = verdict(share, streams_of(places, names, share), {name: output[name] for name in names})
        assert found.holds, found


def rows(job: StreamJob) -> int:
    return sum(len(one.offsets) for one in rows_of(committed_files(job.output)).values())


def speculated(logs: Path) -> int:
    """Attempts that Spark has started beside others."""
    found = 0
    for file in logs.iterdir():
        for line in file.read_text("utf-8", "replace").splitlines():
            if '"SparkListenerTaskStart"' in line:
                found += bool(json.loads(line)["Task Info"]["Speculative"])
    return found
