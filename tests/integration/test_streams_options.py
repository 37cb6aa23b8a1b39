"""Options of streams that wait, that name times, and that read files, on a real node; and a broker that is too old."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pyspark_mq.errors import ConfigurationError, RefusedError
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError, poll
from tests.plugin import missing
from tests.support import streams
from tests.support.streams import StreamQuery, make_super_stream, numbered, publish

node, stream = streams.node, streams.stream
pytestmark = pytest.mark.shares("streams")

DELAY_S = 3.0


@pytest.mark.whole
def test_an_epoch_waits_for_the_minimum_and_for_no_longer_than_the_delay(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 99))
    query = StreamQuery(node.stream_url(), stream, minOffsetsPerTrigger=100, maxTriggerDelay=f"{DELAY_S:g}s")
    assert query.bodies() == []
    publish(node.stream_port, stream, numbered(99, 100))
    assert poll(lambda: query.planner.latest(query.offset) != query.offset, DELAY_S / 2)
    began = time.monotonic()
    assert query.bodies() == numbered(0, 100)
    publish(node.stream_port, stream, numbered(100, 110))
    found: list[bytes] = []

    def came() -> bool:
        found.extend(query.bodies())
        return bool(found)

    assert poll(came, 3 * DELAY_S, interval_s=0.05)
    assert found == numbered(100, 110)
    assert time.monotonic() - began >= DELAY_S


def written(node: RabbitNode, stream: str) -> int:
    """Publish a hundred messages before and behind a pause; the time of the first chunk behind it, in milliseconds."""
    publish(node.stream_port, stream, numbered(0, 100))
    time.sleep(0.05)
    publish(node.stream_port, stream, numbered(100, 200))
    row = StreamQuery(node.stream_url(), stream).epoch()[100]
    return int(row["chunkTimestamp"].timestamp() * 1000)


def test_partitions_begin_at_times_of_their_own(node: RabbitNode, stream: str) -> None:
    first, second, third = make_super_stream(node.stream_port, stream, 3)
    times = {first: written(node, first), second: 0}
    publish(node.stream_port, second, numbered(0, 100))
    publish(node.stream_port, third, numbered(0, 10))
    rows = StreamQuery(node.stream_url(), stream, startingOffsetsByTimestamp=json.dumps(times)).epoch()
    found = {name: [row["body"] for row in rows if row["partition"] == name] for name in (first, second, third)}
    # One that is not named begins at the earliest.
    assert found == {first: numbered(100, 200), second: numbered(0, 100), third: numbered(0, 10)}


def test_a_batch_ends_before_a_time(node: RabbitNode, stream: str) -> None:
    since = written(node, stream)
    query = StreamQuery(node.stream_url(), stream, endingTimestamp=since)
    assert query.batch() == numbered(0, 100)
    later = StreamQuery(node.stream_url(), stream, endingTimestamp=since + 3_600_000)
    assert later.batch() == numbered(0, 200)
    before = StreamQuery(node.stream_url(), stream, endingTimestamp=1)
    assert before.batch() == []


def test_a_password_is_read_from_its_file_again_and_travels_to_tasks(
    node: RabbitNode, stream: str, tmp_path: Path
) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    file = tmp_path / "password"
    file.write_text("wrong\n", "utf-8")
    url = f"rabbitmq-stream://127.0.0.1:{node.stream_port}/"
    query = StreamQuery(url, stream, username="guest", passwordFile=str(file))
    with pytest.raises(RefusedError, match="user or password"):
        query.plan()
    file.write_text("guest\n", "utf-8")
    _, end, tasks = query.plan()
    file.unlink()  # a worker has no such file
    assert [row["body"] for row in query.read(tasks)] == numbered(0, 100)
    assert "guest" not in json.dumps(end)


@pytest.mark.whole
def test_a_broker_that_does_not_tell_what_is_committed_is_refused(stream: str) -> None:
    try:
        old = RabbitNode(plugins=("rabbitmq_stream",))
    except NodeError as absent:
        missing(str(absent))
    if not old.version.startswith("3."):
        old.close()
        pytest.skip(f"the installed RabbitMQ is {old.version}")
    with old, pytest.raises(ConfigurationError, match=rf"'{old.version}'.*RabbitMQ 3.11 or later"):
        StreamQuery(old.stream_url(), stream).epoch()
