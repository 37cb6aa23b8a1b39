"""Streams for tests: publishers, and queries of them without Spark."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from rstream import AMQPMessage, CompressionType, ConfirmationStatus, Producer, RawMessage

from pyspark_mq.spark_source.stream_options import parse_stream_options
from pyspark_mq.spark_source.stream_reader import arrow_schema, stream_schema
from pyspark_mq.streams.planner import Planner
from pyspark_mq.streams.ranges import Range
from pyspark_mq.streams.rows import range_batches
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError
from testbed.publishers.streams import make_super_stream, with_client
from tests.plugin import Nodes, missing

__all__ = [
    "StreamQuery", "delete", "make_super_stream", "node", "numbered", "publish", "stream", "stream_node", "with_client",
]  # fmt: skip


def publish(
    port: int,
    stream: str,
    bodies: Sequence[bytes],
    *,
    batch: int = 100,
    packed: str = "",
    raw: bool = False,
    arguments: dict[str, Any] | None = None,
    timeout_s: float = 30.0,
) -> None:
    """Create a stream if there is none, publish to it, and wait until all is confirmed.

    Args:
        batch: messages in a frame, or in a packed entry.
        packed: kind of compression, of messages that the producer puts together.
        raw: publish the bytes as they are, which may be no message of AMQP 1.0.
        arguments: of the stream.
        timeout_s: for each confirmation.
    """
    messages = [RawMessage(body) if raw else AMQPMessage(body=body) for body in bodies]

    async def run() -> None:
        confirmed = asyncio.Semaphore(0)

        def note(status: ConfirmationStatus) -> None:
            assert status.is_confirmed, status
            confirmed.release()

        async with Producer("127.0.0.1", port, username="guest", password="guest") as producer:
            if not await producer.stream_exists(stream):
                await producer.create_stream(stream, arguments=arguments)
            frames = [messages[begin : begin + batch] for begin in range(0, len(messages), batch)]
            for frame in frames:
                if packed:
                    kind = CompressionType[packed]
                    await producer.send_sub_entry(stream, frame, compression_type=kind, on_publish_confirm=note)
                else:
                    await producer.send_batch(stream, frame, on_publish_confirm=note)
            for _ in range(len(frames) if packed else len(messages)):
                await asyncio.wait_for(confirmed.acquire(), timeout_s)

    asyncio.run(run())


def delete(port: int, stream: str) -> None:
    """Delete a stream."""
    with_client(port, lambda client: client.delete_stream(stream))


def numbered(begin: int, end: int) -> list[bytes]:
    """Bodies that say which they are."""
    return [b"%08d" % number for number in range(begin, end)]


@contextmanager
def stream_node() -> Iterator[RabbitNode]:
    """A node of RabbitMQ 4.3 with streams, for tests that stop it or set it up in their own way."""
    try:
        node = RabbitNode(version="4.3", plugins=("rabbitmq_stream",))
    except NodeError as absent:
        missing(str(absent))
    with node:
        yield node


@pytest.fixture
def node(nodes: Nodes) -> RabbitNode:
    """The node of the run, for modules that have this fixture under the same name."""
    return nodes.with_streams()


@pytest.fixture
def stream() -> str:
    """A name that no other test has."""
    return f"test-{uuid.uuid4().hex[:12]}"


class StreamQuery:
    """A query of streams as Spark runs it, one epoch after the other, without Spark."""

    def __init__(self, url: str, stream: str, **options: object) -> None:
        given = {"broker": "rabbitmq", "url": url, "stream": stream, "startingOffsets": "earliest"}
        given |= {name: str(value) for name, value in options.items()}
        if {"startingTimestamp", "startingOffsetsByTimestamp"} & set(options):
            del given["startingOffsets"]
        options = parse_stream_options(given)
        self.settings, self._batch = options.streaming, options.batch
        self.planner = Planner(self.settings)
        self._schema = arrow_schema(stream_schema(include_metadata=True))
        self.offset: dict[str, Any] | None = None

    def plan(self) -> tuple[dict[str, Any], dict[str, Any], list[Range]]:
        """Start, end and tasks of the next epoch, which is not run."""
        start = self.planner.initial() if self.offset is None else self.offset
        start = json.loads(json.dumps(start))
        end = self.planner.latest(start)
        return start, end, self.planner.ranges(start, end)

    def look_again(self) -> None:
        """Forget what was seen less than a second ago."""
        self.planner._looked_s = float("-inf")

    def read(self, tasks: Sequence[Range]) -> list[dict[str, Any]]:
        """The rows of tasks."""
        batches = [
            batch for task in tasks for batch in range_batches(task, self._schema, unreadable=self.settings.unreadable)
        ]
        rows: list[dict[str, Any]] = pa.Table.from_batches(batches, self._schema).to_pylist()
        return rows

    def epoch(self) -> list[dict[str, Any]]:
        """The rows of the next epoch."""
        _, end, tasks = self.plan()
        rows = self.read(tasks)
        self.offset = json.loads(json.dumps(end))
        return rows

    def bodies(self) -> list[bytes]:
        """The bodies of the next epoch."""
        return [row["body"] for row in self.epoch()]

    def batch(self) -> list[bytes]:
        """The bodies of a batch."""
        return [row["body"] for row in self.read(Planner(self._batch).batch())]
