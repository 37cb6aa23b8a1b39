"""Streams that RabbitMQ's own client has written, in each form it has, have the rows that this client itself reads."""

from __future__ import annotations

import base64
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from testbed.brokers.rabbitmq import RabbitNode
from tests.support import streams
from tests.support.maven import class_path
from tests.support.streams import StreamQuery

PROJECT = Path(__file__).resolve().parent.parent / "stream_client"
#: Of each: in frames, in frames with filter values, and in packed entries of five kinds.
COUNT, KINDS = 200, ("plain", "filtered", "NONE", "GZIP", "SNAPPY", "LZ4", "ZSTD")
SAME = ("messageId", "correlationId", "replyTo", "contentType", "contentEncoding", "type", "groupId", "userId")

node = streams.node
pytestmark = pytest.mark.shares("streams")


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def text(value: list[str] | None) -> str | None:
    """A value as the source has it, of its class and its text in Java."""
    if value is None:
        return None
    kind, plain = value
    return base64.b64decode(plain).decode("utf-8", "backslashreplace") if kind == "bytes" else plain


def time(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds) if milliseconds else None


def expected(message: dict[str, Any]) -> dict[str, Any]:
    """The row of a message as the client has read it."""
    properties = {name: text(value) for name, value in message["properties"].items()}
    if "char" in properties:
        properties["char"] = chr(int(properties["char"] or 0))
    annotations = {name: text(value) for name, value in message["annotations"].items()}
    routing_key = annotations.pop("x-routing-key", None)
    group_id = text(message["groupId"])
    row: dict[str, Any] = {name: text(message[name]) for name in SAME}
    return row | {
        "body": base64.b64decode(message["body"]),
        "properties": properties | annotations | ({} if group_id is None else {"JMSXGroupID": group_id}),
        "groupSequence": None if message["groupSequence"] < 0 else message["groupSequence"],
        "timestamp": time(message["created"]),
        "expiration": time(message["expires"]),
        "routingKey": routing_key,
        "streamOffset": message["offset"],
        "chunkTimestamp": time(message["timestamp"]),
    }


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_what_the_java_client_writes_is_read_as_it_reads_it(node: RabbitNode) -> None:
    java = ("java", "-XX:TieredStopAtLevel=1", "-cp", class_path(PROJECT), "StreamOracle")
    read = [json.loads(line) for line in output(*java, str(node.stream_port), "events", str(COUNT)).splitlines()]
    rows = StreamQuery(node.stream_url(), "events").epoch()
    assert [row["type"] for row in rows] == [kind for kind in KINDS for _ in range(COUNT)]
    assert len(rows) == len(read)
    for row, message in zip(rows, read, strict=True):
        wanted = expected(message)
        found = {name: dict(row[name]) if name == "properties" else row[name] for name in wanted}
        assert found == wanted
