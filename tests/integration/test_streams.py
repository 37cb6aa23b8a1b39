"""Streams of RabbitMQ 4.3 and 4.0, read on a real node: what is there comes once, and what is gone is an error."""

from __future__ import annotations

import importlib.util
import pickle
import time
import uuid
from pathlib import Path
from typing import Any

import pika
import pytest

from pyspark_mq.errors import (
    CheckpointError,
    DataLossError,
    DestinationError,
    MessageError,
    OptionError,
    RefusedError,
)
from pyspark_mq.spark_source.stream_reader import _RangePartition
from pyspark_mq.streams import ranges
from pyspark_mq.streams.access import make_access
from pyspark_mq.streams.topology import persistently
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.plugin import Nodes
from tests.support.certificates import Certificates
from tests.support.effort import with_all
from tests.support.engine import Engine, ReaderError
from tests.support.pages import block
from tests.support.streams import StreamQuery, delete, make_super_stream, numbered, publish, with_client

#: Small enough for retention to take something soon.
SMALL_SEGMENTS = {"max-length-bytes": 200_000, "stream-max-segment-size-bytes": 50_000}
#: Enough for all of a read to be there when it begins.
LARGE = {"max-length-bytes": 3_000_000}

pytestmark = pytest.mark.shares("streams")


@pytest.fixture(scope="module", params=["4.3", with_all("4.0")])
def node(request: pytest.FixtureRequest, nodes: Nodes) -> RabbitNode:
    return nodes.with_streams(request.param)


@pytest.fixture
def stream(node: RabbitNode) -> str:
    if not node.running:
        node.start()
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.mark.whole
def test_all_messages_come_once_and_in_order(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 1_000))
    query = StreamQuery(node.stream_url(), stream)
    rows = query.epoch()
    assert [row["body"] for row in rows] == numbered(0, 1_000)
    assert [row["streamOffset"] for row in rows] == [*range(1_000)]
    assert {row["partition"] for row in rows} == {row["destination"] for row in rows} == {stream}
    assert query.epoch() == []
    publish(node.stream_port, stream, numbered(1_000, 1_500))
    assert query.bodies() == numbered(1_000, 1_500)


def test_an_idle_query_returns_the_offset_to_the_letter(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 10))
    query = StreamQuery(node.stream_url(), stream)
    query.epoch()
    assert query.planner.latest(query.offset) is query.offset


def test_a_query_begins_where_it_is_told(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 1_000))
    begun = StreamQuery(node.stream_url(), stream, startingOffsets=f'{{"{stream}": 990}}')
    assert begun.bodies() == numbered(990, 1_000)
    latest = StreamQuery(node.stream_url(), stream, startingOffsets="latest")
    assert latest.bodies() == []
    publish(node.stream_port, stream, numbered(1_000, 1_010))
    assert latest.bodies() == numbered(1_000, 1_010)


def test_a_query_begins_at_a_time(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    poll(lambda: False, 0.05)
    publish(node.stream_port, stream, numbered(100, 200))
    whole = StreamQuery(node.stream_url(), stream).epoch()
    since = whole[100]["chunkTimestamp"]
    begun = StreamQuery(node.stream_url(), stream, startingTimestamp=int(since.timestamp() * 1000))
    assert begun.bodies() == numbered(100, 200)
    never = StreamQuery(node.stream_url(), stream, startingTimestamp=1 << 42)
    assert never.bodies() == []


def test_an_offset_behind_the_end_is_refused(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 10))
    with pytest.raises(OptionError, match="11 is past the end"):
        StreamQuery(node.stream_url(), stream, startingOffsets=f'{{"{stream}": 11}}').epoch()


def test_epochs_are_limited_and_end_with_a_chunk(node: RabbitNode, stream: str) -> None:
    for begin in range(0, 1_000, 100):
        publish(node.stream_port, stream, numbered(begin, begin + 100))
    query = StreamQuery(node.stream_url(), stream, maxOffsetsPerTrigger=150)
    epochs = [query.bodies() for _ in range(10)]
    assert [body for epoch in epochs for body in epoch] == numbered(0, 1_000)
    assert all(len(epoch) < 300 for epoch in epochs)
    assert sum(1 for epoch in epochs if epoch) >= 4


def test_tasks_share_a_partition(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 1_000))
    query = StreamQuery(node.stream_url(), stream, maxRecordsPerPartition=90)
    _, _, tasks = query.plan()
    assert len(tasks) == 12
    assert [row["body"] for row in query.read(tasks)] == numbered(0, 1_000)


def test_a_replay_has_the_same_rows(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 500))
    start, end, tasks = StreamQuery(node.stream_url(), stream).plan()
    publish(node.stream_port, stream, numbered(500, 600))
    again = StreamQuery(node.stream_url(), stream)
    assert again.read(again.planner.ranges(start, end)) == again.read(tasks)
    assert len(again.read(tasks)) == 500


def test_notes_of_the_broker_take_offsets_and_are_no_rows(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    query = StreamQuery(node.stream_url(), stream)
    bodies = query.bodies()
    for number in range(3):
        with_client(node.stream_port, lambda client: client.store_offset(stream, "somebody", number))  # noqa: B023
        publish(node.stream_port, stream, numbered(100 * (number + 1), 100 * (number + 2)))
        rows = query.epoch()
        bodies += [row["body"] for row in rows]
    assert bodies == numbered(0, 400)
    assert rows[-1]["streamOffset"] > 399


@pytest.mark.parametrize("packed", ["No", "Gzip"])
def test_packed_entries_are_messages(node: RabbitNode, stream: str, packed: str) -> None:
    publish(node.stream_port, stream, numbered(0, 50))
    publish(node.stream_port, stream, numbered(50, 1_000), packed=packed, batch=70)
    assert StreamQuery(node.stream_url(), stream).bodies() == numbered(0, 1_000)
    middle = StreamQuery(node.stream_url(), stream, startingOffsets=f'{{"{stream}": 333}}', maxRecordsPerPartition=50)
    assert middle.bodies() == numbered(333, 1_000)


def test_a_super_stream_is_read_by_partition(node: RabbitNode, stream: str) -> None:
    partitions = make_super_stream(node.stream_port, stream, 3)
    for number, partition in enumerate(partitions):
        publish(node.stream_port, partition, numbered(100 * number, 100 * number + 100))
    rows = StreamQuery(node.stream_url(), stream).epoch()
    assert sorted(row["body"] for row in rows) == numbered(0, 300)
    assert {(row["partition"], row["destination"]) for row in rows} == {(name, stream) for name in partitions}


def test_several_streams_are_one_query(node: RabbitNode, stream: str) -> None:
    for name in (stream, f"{stream}-b"):
        publish(node.stream_port, name, numbered(0, 100))
    query = StreamQuery(node.stream_url(), f"{stream}, {stream}-b")
    assert sorted(query.bodies()) == sorted(numbered(0, 100) * 2)
    publish(node.stream_port, f"{stream}-b", numbered(100, 110))
    assert query.bodies() == numbered(100, 110)


def test_over_tls(node: RabbitNode, stream: str, certificates: Certificates) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    ca = {"tls.caFile": certificates.ca.cert_file}
    assert StreamQuery(node.stream_url(tls=True), stream, **ca).bodies() == numbered(0, 100)
    with pytest.raises(RefusedError, match="certificate"):
        StreamQuery(node.stream_url(tls=True), stream).epoch()


def test_a_node_that_is_down_is_passed_over(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    urls = f"rabbitmq-stream://guest:guest@127.0.0.1:1/,{node.stream_url()}"
    assert StreamQuery(urls, stream).bodies() == numbered(0, 100)


def test_a_wrong_password_is_refused_and_not_shown(node: RabbitNode, stream: str) -> None:
    with pytest.raises(RefusedError, match="user or password is wrong") as refused:
        StreamQuery(node.stream_url(password="s3cret-word"), stream).epoch()
    assert "s3cret-word" not in str(refused.value)


def test_a_stream_that_does_not_exist_is_named(node: RabbitNode, stream: str) -> None:
    with pytest.raises(DestinationError, match=stream):
        StreamQuery(node.stream_url(), stream).epoch()


def test_no_secret_is_in_offsets_and_texts(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 10))
    query = StreamQuery(node.stream_url(), stream)
    start, end, tasks = query.plan()
    partition = _RangePartition(tasks[0])
    assert b"guest" in pickle.dumps(partition)  # it travels, and is not shown
    shown = f"{start} {end} {partition!r} {partition} {tasks!r} {query.planner.report()}"
    assert "guest" not in shown.replace("username='guest'", "")
    assert "password" not in shown


# -- what is gone


def test_retention_before_a_plan_is_an_error_with_the_offsets(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 100), arguments=SMALL_SEGMENTS)
    query, lenient = (StreamQuery(node.stream_url(), stream, failOnDataLoss=fails) for fails in ("true", "false"))
    assert query.bodies() == lenient.bodies() == numbered(0, 100)
    fill(node, stream)
    with pytest.raises(DataLossError, match=rf"{stream}': offsets 100 to \d+ are gone: retention") as lost:
        query.epoch()
    assert "failOnDataLoss" in str(lost.value)
    rows = lenient.epoch()
    assert lenient.planner.report()["lost"] == rows[0]["streamOffset"] - 100
    assert [row["streamOffset"] for row in rows] == [*range(rows[0]["streamOffset"], rows[-1]["streamOffset"] + 1)]


def test_retention_between_plan_and_read_is_an_error_with_the_offsets(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 1_000), arguments=SMALL_SEGMENTS)
    query, lenient = (StreamQuery(node.stream_url(), stream, failOnDataLoss=fails) for fails in ("true", "false"))
    _, _, tasks = query.plan()
    _, _, lenient_tasks = lenient.plan()
    fill(node, stream)
    with pytest.raises(DataLossError, match="offsets 0 to 999 are gone: retention removed them"):
        query.read(tasks)
    assert lenient.read(lenient_tasks) == []


def test_retention_while_a_reader_is_paused_is_an_error_with_the_offsets(
    node: RabbitNode, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_CHUNKS_MAX", 1)
    publish(node.stream_port, stream, [bytes(1_000)] * 1_500, batch=10, arguments={**SMALL_SEGMENTS, **LARGE})
    query = StreamQuery(node.stream_url(), stream)
    (planned,) = query.plan()[2]
    parts = ranges.read_range(planned)
    read = next(parts)
    assert read.chunk.first == 0
    publish(node.stream_port, stream, [bytes(2_000)] * 3_000, batch=10)
    assert poll(lambda: first_offset(node, stream) > 1_500, 30)
    offsets = [*range(read.chunk.end)]

    def go_on() -> None:
        for part in parts:
            offsets.extend(range(part.chunk.first, part.chunk.end))

    with pytest.raises(DataLossError, match=r"offsets \d+ to 1499 are gone: retention removed them") as lost:
        go_on()
    assert offsets == [*range(len(offsets))]
    assert f"offsets {len(offsets)} to" in str(lost.value)


def test_a_reader_that_is_paused_for_longer_than_the_heartbeat_goes_on(
    node: RabbitNode, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_CHUNKS_MAX", 1)
    publish(node.stream_port, stream, [bytes(500)] * 5_000, batch=10)
    query = StreamQuery(node.stream_url(), stream, heartbeat="1s")
    (planned,) = query.plan()[2]
    offsets: list[int] = []
    for number, part in enumerate(ranges.read_range(planned)):
        offsets += range(part.chunk.first + part.low, part.chunk.first + part.high)
        if number == 1:
            time.sleep(5.0)
    assert offsets == [*range(5_000)]


def test_a_partition_that_a_super_stream_gets_later_is_read_from_its_first_message(
    node: RabbitNode, stream: str
) -> None:
    partitions = make_super_stream(node.stream_port, stream, 2)
    for partition in partitions:
        publish(node.stream_port, partition, numbered(0, 10))
    query = StreamQuery(node.stream_url(), stream)
    assert len(query.epoch()) == 20
    publish(node.stream_port, f"{stream}-2", numbered(100, 110))
    with node._channel() as channel:
        order = {"x-stream-partition-order": 2}
        channel.queue_bind(f"{stream}-2", stream, routing_key="2", arguments=order)
    query.look_again()
    assert query.bodies() == numbered(100, 110)


def fill(node: RabbitNode, stream: str) -> None:
    """Publish until retention has taken segments."""
    publish(node.stream_port, stream, [bytes(2_000)] * 2_000, batch=10)
    assert poll(lambda: first_offset(node, stream) > 1_000, 30)


def first_offset(node: RabbitNode, stream: str) -> int:
    """The lowest that is there; -1 while nothing is known."""
    access = make_access(StreamQuery(node.stream_url(), stream).settings.endpoint)
    return persistently(access, (), lambda connection: connection.stats(stream)["first_chunk_id"])


@pytest.mark.parametrize("count", [with_all(50), 100, 500])
def test_a_stream_that_was_made_again_is_an_error(node: RabbitNode, stream: str, count: int) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    query, lenient = (StreamQuery(node.stream_url(), stream, failOnDataLoss=fails) for fails in ("true", "false"))
    assert query.bodies() == lenient.bodies() == numbered(0, 100)
    delete(node.stream_port, stream)
    publish(node.stream_port, stream, numbered(1_000, 1_000 + count))
    query.look_again()
    lenient.look_again()
    with pytest.raises(DataLossError, match="deleted and recreated"):
        query.epoch()
    assert lenient.bodies() == numbered(1_000, 1_000 + count)


def test_a_stream_that_was_made_again_between_plan_and_read_is_an_error(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    query = StreamQuery(node.stream_url(), stream, maxRecordsPerPartition=40)
    _, _, tasks = query.plan()
    delete(node.stream_port, stream)
    publish(node.stream_port, stream, numbered(1_000, 1_100))
    for task in tasks:
        with pytest.raises(DataLossError, match="is not the planned chunk"):
            query.read([task])


def test_a_stream_that_was_deleted_is_an_error(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    query = StreamQuery(node.stream_url(), stream, connectTimeout="2s")
    _, _, tasks = query.plan()
    query.epoch()
    delete(node.stream_port, stream)
    with pytest.raises(DataLossError, match="deleted"):
        query.read(tasks)
    query.look_again()
    with pytest.raises(DataLossError, match="it was deleted after it had been read up to offset 100"):
        query.epoch()


def test_bytes_that_are_no_message_fail_the_query_or_are_rows(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 10))
    publish(node.stream_port, stream, [b"no message"], raw=True)
    with pytest.raises(MessageError, match="the first at offset 10"):
        StreamQuery(node.stream_url(), stream).epoch()
    rows = StreamQuery(node.stream_url(), stream, onUnreadableMessage="row").epoch()
    assert [row["body"] for row in rows] == [*numbered(0, 10), b"no message"]
    assert "unreadable" in dict(rows[-1]["properties"])


def test_a_checkpoint_of_another_stream_is_refused(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 10))
    publish(node.stream_port, f"{stream}-b", numbered(0, 10))
    query = StreamQuery(node.stream_url(), stream)
    query.epoch()
    other = StreamQuery(node.stream_url(), f"{stream}-b")
    other.offset = query.offset
    with pytest.raises(CheckpointError, match=stream):
        other.epoch()


@pytest.mark.whole
def test_a_node_that_is_killed_and_started_again_goes_on(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 1_000))
    query = StreamQuery(node.stream_url(), stream)
    assert query.bodies() == numbered(0, 1_000)
    node.kill()
    node.start()
    assert poll(lambda: first_offset(node, stream) == 0, 30)
    publish(node.stream_port, stream, numbered(1_000, 1_100))
    assert query.bodies() == numbered(1_000, 1_100)


def test_spark_reads_a_stream_in_tasks_and_goes_on_from_its_checkpoint(
    node: RabbitNode, stream: str, spark: Any, tmp_path: Path
) -> None:
    publish(node.stream_port, stream, numbered(0, 1_000))
    epochs: list[list[int]] = []

    def run(**options: object) -> None:
        reader = spark.readStream.format("mq").option("broker", "rabbitmq").option("url", node.stream_url())
        reader = reader.option("stream", stream).option("startingOffsets", "earliest")
        for name, value in options.items():
            reader = reader.option(name, value)
        query = (
            reader.load()
            .writeStream.foreachBatch(lambda frame, _: epochs.append([int(row.body) for row in frame.collect()]))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(minPartitions=3, maxOffsetsPerTrigger=300)
    # Before Spark 4.2 a run has one epoch.
    assert len(epochs) > 1 or importlib.util.find_spec("pyspark.sql.streaming.datasource") is None
    publish(node.stream_port, stream, numbered(1_000, 1_100))
    run()
    assert [number for epoch in epochs for number in epoch] == [*range(1_100)]
    logged = b"".join(file.read_bytes() for file in (tmp_path / "checkpoint" / "offsets").iterdir())
    assert b'"last": [' in logged
    assert b"guest" not in logged


def test_spark_reads_a_range_as_a_batch(node: RabbitNode, stream: str, spark: Any) -> None:
    publish(node.stream_port, stream, numbered(0, 1_000))
    reader = spark.read.format("mq").option("broker", "rabbitmq").option("url", node.stream_url())
    frame = reader.option("stream", stream).load()
    assert frame.count() == 1_000
    ranged = reader.option("startingOffsets", f'{{"{stream}": 100}}').option("endingOffsets", f'{{"{stream}": 250}}')
    assert [bytes(row.body) for row in ranged.option("minPartitions", 2).load().collect()] == numbered(100, 250)
    shown = ranged.load()._jdf.queryExecution().toString()
    assert "guest" not in shown


@pytest.mark.whole
def test_the_code_of_its_page_reads_a_stream(node: RabbitNode, stream: str, spark: Any, tmp_path: Path) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    text = block("docs/streams.md", "df = (")
    for page, here in (
        ("rabbitmq-stream://guest:guest@localhost:5552/", node.stream_url()),
        ('"events"', f'"{stream}"'),
    ):
        assert page in text
        text = text.replace(page, here)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(text, "streams.md", "exec"), names)
    query = names["df"].writeStream.format("memory").queryName("streams_page").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert sorted(bytes(row.body) for row in spark.table("streams_page").collect()) == numbered(0, 100)


# -- by the options of a queue


@pytest.mark.parametrize("protocol", ["amqp-0-9-1", "amqp-1.0", "stomp"])
def test_a_stream_that_is_read_as_a_queue_is_refused_before_anything_is_skipped(
    node: RabbitNode, stream: str, protocol: str
) -> None:
    publish(node.stream_port, stream, numbered(0, 10))
    with Engine(broker="rabbitmq", protocol=protocol, queue=stream, url=node.url(protocol)) as engine:
        engine.trigger()
        publish(node.stream_port, stream, numbered(10, 20))
        with pytest.raises(ReaderError, match="rabbitmq-stream://"):
            poll(engine.trigger, 10.0)
        assert engine.output == []


def test_a_queue_with_messages_that_were_copied_from_a_stream_is_read(node: RabbitNode, stream: str) -> None:
    node.declare(stream)
    with pika.BlockingConnection(pika.URLParameters(node.url("amqp-0-9-1"))) as connection:
        properties = pika.BasicProperties(headers={"x-stream-offset": 7}, message_id="7")
        connection.channel().basic_publish("", stream, b"copied", properties)
    with Engine(broker="rabbitmq", protocol="amqp-0-9-1", queue=stream, url=node.url("amqp-0-9-1")) as engine:
        assert engine.batch() == 1
        assert engine.trigger() == 0
        assert engine.output == ["copied"]
