"""What real nodes of RabbitMQ 4.3 lose, put back and hold: rows come once, and `lost` is what is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rstream.compression import GzipCompressionCodec

from pyspark_mq.errors import BrokerUnavailableError, DataLossError, MessageError
from pyspark_mq.streams.topology import forget_connections
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.faults.test_streams import published
from tests.integration.test_streams import SMALL_SEGMENTS, fill
from tests.support import streams
from tests.support.effort import with_all
from tests.support.streams import StreamQuery, delete, numbered, publish, stream_node

node, stream = streams.node, streams.stream
pytestmark = pytest.mark.shares("streams")

LIMITS = {"connectTimeout": "2s", "reconnectTimeout": "5s"}


def both(node: RabbitNode, stream: str, **options: object) -> tuple[StreamQuery, StreamQuery]:
    """Queries with both values of `failOnDataLoss`."""
    strict, lenient = (
        StreamQuery(node.stream_url(), stream, failOnDataLoss=fails, **LIMITS, **options) for fails in ("true", "false")
    )
    return strict, lenient


@pytest.fixture
def own_node() -> Iterator[RabbitNode]:
    with stream_node() as node:
        yield node


@pytest.mark.whole
def test_files_that_are_put_back_cost_what_they_lack_and_double_nothing(
    own_node: RabbitNode, stream: str, tmp_path: Path
) -> None:
    node = own_node
    publish(node.stream_port, stream, numbered(0, 4_500))
    node.stop()
    shutil.copytree(node.data / "mnesia", tmp_path / "mnesia")
    node.start()
    assert poll(lambda: published(node, stream), 60, interval_s=1.0)
    publish(node.stream_port, stream, numbered(4_500, 5_000))
    strict, lenient = both(node, stream)
    before = lenient.bodies()
    assert strict.bodies() == before
    assert before == [*numbered(0, 4_500), b"behind", *numbered(4_500, 5_000)]
    node.kill()
    node.end_helpers()
    shutil.rmtree(node.data / "mnesia")
    shutil.copytree(tmp_path / "mnesia", node.data / "mnesia")
    node.start()
    assert poll(lambda: published(node, stream), 60, interval_s=1.0)
    publish(node.stream_port, stream, numbered(9_000, 9_700))
    forget_connections()
    strict.look_again()
    lenient.look_again()
    with pytest.raises(DataLossError, match="chunks from offset 4500 on differ now: its end was rewritten"):
        strict.epoch()
    assert lenient.bodies() == [b"behind", *numbered(9_000, 9_700)]
    assert lenient.planner.report()["lost"] == 0


@pytest.mark.whole
@pytest.mark.parametrize("count", [with_all(50), 260])
def test_a_stream_made_again_while_an_epoch_is_open_comes_once(node: RabbitNode, stream: str, count: int) -> None:
    publish(node.stream_port, stream, numbered(0, 100))
    _, query = both(node, stream)
    query.epoch()
    publish(node.stream_port, stream, numbered(100, 160))
    start, end, tasks = query.plan()
    delete(node.stream_port, stream)
    publish(node.stream_port, stream, numbered(1_000, 1_000 + count))
    with pytest.raises((DataLossError, BrokerUnavailableError)):
        query.read(tasks)
    _, again = both(node, stream)
    assert again.read(again.planner.ranges(start, end)) == []
    again.offset = json.loads(json.dumps(end))
    assert again.bodies() == numbered(1_000, 1_000 + count)
    assert again.planner.report()["lost"] == 60


@pytest.mark.parametrize("unreadable", [with_all("fail"), "row", with_all("reject")])
def test_one_packed_entry_that_is_cut_costs_no_other_message(
    node: RabbitNode, stream: str, unreadable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = GzipCompressionCodec.compress

    def cut(codec: GzipCompressionCodec, messages: list[object]) -> None:
        pack(codec, messages)
        if len(messages) == 5:
            codec.buffer, codec.compressed_data_size = codec.buffer[:20], 20

    monkeypatch.setattr(GzipCompressionCodec, "compress", cut)
    bodies = [*numbered(0, 100), *[b"lost"] * 5, *numbered(100, 110)]
    publish(node.stream_port, stream, bodies[:100], packed="Gzip", batch=10)
    publish(node.stream_port, stream, bodies[100:105], packed="Gzip", batch=5)
    publish(node.stream_port, stream, bodies[105:], packed="Gzip", batch=10)
    query = StreamQuery(node.stream_url(), stream, onUnreadableMessage=unreadable)
    if unreadable == "fail":
        with pytest.raises(MessageError, match="offsets 100 to 104"):
            query.epoch()
        return
    rows = query.epoch()
    good = [row for row in rows if "unreadable" not in dict(row["properties"])]
    assert [row["body"] for row in good] == numbered(0, 110)
    assert [row["streamOffset"] for row in rows if row not in good] == ([100] if unreadable == "row" else [])


def test_lost_is_what_is_missing_however_often_retention_moves(node: RabbitNode, stream: str) -> None:
    publish(node.stream_port, stream, numbered(0, 100), arguments=SMALL_SEGMENTS)
    _, query = both(node, stream, minOffsetsPerTrigger=100_000, maxTriggerDelay="20s")
    query.planner._planned_s -= 60  # the first epoch is not waited for
    assert query.bodies() == numbered(0, 100)
    for _ in range(3):
        fill(node, stream)
        query.look_again()
        assert query.planner.latest(query.offset) == query.offset
    query.planner._planned_s -= 60
    rows = query.epoch()
    assert query.planner.report()["lost"] == rows[0]["streamOffset"] - 100
