"""What shows a query of streams and its broker: the doctor, the listener, counters and headers, on RabbitMQ 4.3."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from pyspark_mq import QueueListener, readings
from pyspark_mq.cli.main import main
from testbed.brokers.rabbitmq import RabbitNode
from testbed.ports import free_port
from testbed.process import poll
from tests.support import streams
from tests.support.streams import StreamQuery, make_super_stream, publish

node, stream = streams.node, streams.stream
pytestmark = pytest.mark.shares("streams")


class Doctor:
    """Findings of one run of the command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str, **options: object) -> None:
        given = [f"{name}={value}" for name, value in {"broker": "rabbitmq", **options}.items()]
        self.code = main(["doctor", "--json", "--wait", "2", *arguments, *given])
        written = capsys.readouterr().out
        assert "guest:" not in written
        self.findings = json.loads(written)["findings"]

    def one(self, about: str, check: str, level: str) -> str:
        """The text of the one finding of that level."""
        fitting = [one for one in self.findings if (one["about"], one["check"], one["level"]) == (about, check, level)]
        assert len(fitting) == 1, self.findings
        return str(fitting[0]["found"])


@pytest.mark.whole
def test_the_doctor_says_what_a_stream_holds(node: RabbitNode, stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    publish(node.stream_port, stream, [b"x"] * 200, batch=100)
    publish(node.stream_port, f"{stream}-raw", [b"x"] * 30, batch=30, raw=True)
    for number in range(3):
        publish(node.stream_port, f"{stream}-single", [b"%d" % number])
    (empty, _) = make_super_stream(node.stream_port, f"{stream}-super", 2)
    streams = f"{stream},{stream}-raw,{stream}-single,{stream}-super,{stream}-missing"
    found = Doctor(capsys, "-n", "200", url=node.stream_url(), stream=streams)
    url = f"rabbitmq-stream://127.0.0.1:{node.stream_port}"
    assert "4.3" in found.one(url, "broker", "ok")
    assert f"127.0.0.1:{node.stream_port}" in found.one(url, "advertised", "ok")
    assert "it has offsets 0 to 199" in found.one(f"stream '{stream}'", "read", "ok")
    assert re.fullmatch(r"\d+ messages were decoded", found.one(f"stream '{stream}'", "messages", "ok"))
    assert re.match(r"[1-9]\d+\.\d message\(s\) a chunk", found.one(f"stream '{stream}'", "chunks", "ok"))
    assert "30 of 30 messages are not AMQP 1.0" in found.one(f"stream '{stream}-raw'", "messages", "problem")
    assert "1.0 message(s) a chunk, among the last 3" in found.one(f"stream '{stream}-single'", "chunks", "warning")
    assert found.one(f"stream '{empty}'", "read", "ok") == "the stream is empty"
    assert "does not exist" in found.one(f"stream '{stream}-missing'", "read", "problem")
    assert found.code == 1


def test_the_doctor_names_what_is_wrong_with_a_node(
    node: RabbitNode, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = node.stream_url().replace("guest:guest", "guest:wr0ng")
    found = Doctor(capsys, url=wrong, stream=stream)
    assert "user or password is wrong" in found.one(
        f"rabbitmq-stream://127.0.0.1:{node.stream_port}", "login", "problem"
    )
    assert "wr0ng" not in str(found.findings)
    nobody = free_port()
    found = Doctor(capsys, url=f"rabbitmq-stream://127.0.0.1:{nobody}/", stream=stream)
    assert "cannot be reached" in found.one(f"rabbitmq-stream://127.0.0.1:{nobody}", "login", "problem")


@pytest.mark.whole
def test_the_doctor_says_that_an_advertised_host_is_not_reached(
    stream: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the Python of the PATH is a problem of this machine, which has no pyspark-mq.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with RabbitNode(
        version="4.3", plugins=("rabbitmq_stream",), config={"stream.advertised_host": "no.such.host"}
    ) as node:
        with pika.BlockingConnection(pika.URLParameters(node.url())) as connection:
            channel = connection.channel()
            channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
            channel.confirm_delivery()
            for _ in range(20):
                channel.basic_publish("", stream, b"x")
        found = Doctor(capsys, url=node.stream_url(), stream=stream)
        assert "no.such.host" in found.one(f"stream '{stream}'", "advertised", "warning")
        # And it is read all the same, by the hosts of `url`.
        assert StreamQuery(node.stream_url(), stream).bodies() == [b"x"] * 20
        assert found.code == 0, found.findings


@pytest.mark.parametrize("command", ["peek", "release"])
def test_commands_of_queues_say_that_a_stream_needs_none(
    stream: str, capsys: pytest.CaptureFixture[str], command: str, tmp_path: Path
) -> None:
    place = [str(tmp_path)] if command == "release" else []
    assert main([command, *place, "broker=rabbitmq", "url=rabbitmq-stream://localhost/", f"stream={stream}"]) == 2
    assert "names a stream, which this command does not support" in capsys.readouterr().err


def test_headers_that_a_broker_keeps_as_annotations_are_properties(node: RabbitNode, stream: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.url())) as connection:
        channel = connection.channel()
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        headers = {"x-tenant": "a", "x-count": 7, "kind": "order"}
        channel.basic_publish("", stream, b"body", pika.BasicProperties(headers=headers))
    (row,) = StreamQuery(node.stream_url(), stream).epoch()
    assert dict(row["properties"]) == {"x-tenant": "a", "x-count": "7", "kind": "order"}
    assert (row["exchange"], row["routingKey"]) == ("", stream)


@pytest.mark.whole
def test_a_listener_shows_backlog_by_partition(
    node: RabbitNode, stream: str, spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):  # an epoch ends with a chunk, and a chunk with what is confirmed
        publish(node.stream_port, stream, [b"x"] * 100)
    listener = QueueListener(0.0)
    spark.streams.addListener(listener)
    options = {"broker": "rabbitmq", "url": node.stream_url(), "stream": stream, "startingOffsets": "earliest"}
    try:
        with caplog.at_level(logging.INFO, "pyspark_mq.listener"):
            query = (
                spark.readStream.format("mq").options(**options, maxOffsetsPerTrigger=300).load()
                .writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
                .trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination(60)
            said = [
                f"stream '{stream}' in virtual host '/': 300 offsets planned, backlog 200, of which 200 in '{stream}'"
            ]
            said.append(f"stream '{stream}' in virtual host '/': 200 offsets planned, backlog 0")
            assert poll(lambda: all(one in caplog.text for one in said), 30), caplog.text
    finally:
        spark.streams.removeListener(listener)
    (reading,) = readings(query.lastProgress)
    assert (reading.counters.planned, reading.counters.lost, reading.partitions) == (500, 0, {stream: 0})
