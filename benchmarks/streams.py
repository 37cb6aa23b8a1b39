"""Streams read by one process: the rows of a task against `rstream`, which decodes the same messages for nobody."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rstream import (
    AMQPMessage,
    CompressionType,
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
    Producer,
    Properties,
    amqp_decoder,
)

from benchmarks.parts import Part, Say, Table
from pyspark_mq.spark_source.stream_options import parse_stream_options
from pyspark_mq.spark_source.stream_reader import arrow_schema, stream_schema
from pyspark_mq.streams.planner import Planner
from pyspark_mq.streams.rows import range_batches
from testbed.brokers.rabbitmq import RabbitNode

__all__ = ["Streams"]

#: Forms of messages, and what they are.
_FORMS = {
    "equal": "bodies of 200 bytes",
    "varying": "bodies of 150 to 250 bytes",
    "properties": "an ID and three properties besides",
    "packed": "as equal, packed by gzip in hundreds",
}
_FRAME_MESSAGES, _PACKED_MESSAGES = 400, 100
_DRAIN_TIMEOUT_S = 300.0


class Streams(Part):
    """The part `streams`."""

    name = "streams"
    help = __doc__ or ""
    turn_keys = ("form",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--messages", type=int, default=200_000, help="of each form")
        parser.add_argument("--rounds", type=int, default=3, help="of which the best counts; there is a warm-up before")
        parser.add_argument("--version", default="4.3", help="of RabbitMQ")

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        turns = []
        with RabbitNode(version=args.version, plugins=("rabbitmq_stream",)) as node:
            for form in _FORMS:
                asyncio.run(_publish(node.stream_port, form, args.messages))
                ours = [_read(node.stream_url(), form, args.messages) for _ in range(args.rounds + 1)][1:]
                others = [asyncio.run(_read_by_rstream(node.stream_port, form, args.messages))]
                turns.append({"form": form, "ours": max(ours), "rstream": max(others)})
                say(f"{form}: {turns[-1]}")
            return {"broker": f"RabbitMQ {node.version}", "messages": args.messages, "turns": turns}

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        rows = []
        for turn in results["turns"]:
            (rate, cpu_us), (other_rate, other_us) = turn["ours"], turn["rstream"]
            figures = (
                f"{rate:,.0f}",
                f"{cpu_us:.2f}",
                f"{other_rate:,.0f}",
                f"{other_us:.2f}",
                f"{rate / other_rate:.1f}",
            )
            rows.append((_FORMS[turn["form"]], *figures))
        headings = ["messages", "rows/s", "CPU µs a row", "rstream/s", "CPU µs", "ratio"]
        title = f"Streams, one process, {results['broker']}, {results['messages']:,} messages of each form"
        return [
            Table(
                title, headings, rows, ["Ours makes all columns but those of `includeMetadata`; CPU is the client's."]
            )
        ]


def _messages(form: str, count: int) -> Iterator[AMQPMessage]:
    rng = random.Random(1)
    body = rng.randbytes(200)
    for number in range(count):
        if form == "varying":
            yield AMQPMessage(body=rng.randbytes(rng.randrange(150, 251)))
        elif form == "properties":
            more = {"a": f"x{number}", "b": "y", "c": f"zz{number % 1000}"}
            yield AMQPMessage(
                body=body, properties=Properties(message_id=f"id-{number:09}"), application_properties=more
            )
        else:
            yield AMQPMessage(body=body)


async def _publish(port: int, form: str, count: int) -> None:
    confirmed = asyncio.Semaphore(0)
    messages = [*_messages(form, count)]
    async with Producer("127.0.0.1", port, username="guest", password="guest") as producer:
        await producer.create_stream(form)
        size = _PACKED_MESSAGES if form == "packed" else _FRAME_MESSAGES
        frames: Sequence[list[AMQPMessage]] = [messages[at : at + size] for at in range(0, count, size)]
        for frame in frames:
            if form == "packed":
                await producer.send_sub_entry(
                    form, frame, CompressionType.Gzip, on_publish_confirm=lambda _: confirmed.release()
                )
            else:
                await producer.send_batch(form, frame, on_publish_confirm=lambda _: confirmed.release())
        for _ in range(len(frames) if form == "packed" else count):
            await asyncio.wait_for(confirmed.acquire(), _DRAIN_TIMEOUT_S)


def _read(url: str, form: str, count: int) -> tuple[float, float]:
    """Rows a second, and CPU µs a row."""
    given = {"broker": "rabbitmq", "url": url, "stream": form, "startingOffsets": "earliest"}
    planner = Planner(parse_stream_options(given).streaming)
    start = planner.initial()
    planned = planner.ranges(start, planner.latest(start))
    schema = arrow_schema(stream_schema(include_metadata=False))
    began_s, cpu_s = time.monotonic(), time.process_time()
    batches = (one for task in planned for one in range_batches(task.range, form, schema, unreadable_fails=True))
    rows = sum(batch.num_rows for batch in batches)
    assert rows == count
    return rows / (time.monotonic() - began_s), (time.process_time() - cpu_s) / rows * 1e6


async def _read_by_rstream(port: int, form: str, count: int) -> tuple[float, float]:
    """The same of a callback that counts."""
    done, left = asyncio.Event(), count

    async def take(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    consumer = Consumer("127.0.0.1", port, username="guest", password="guest")
    await consumer.start()
    began_s, cpu_s = time.monotonic(), time.process_time()
    begin = ConsumerOffsetSpecification(OffsetType.FIRST, None)
    await consumer.subscribe(form, take, decoder=amqp_decoder, offset_specification=begin, initial_credit=50)
    await asyncio.wait_for(done.wait(), _DRAIN_TIMEOUT_S)
    found = count / (time.monotonic() - began_s), (time.process_time() - cpu_s) / count * 1e6
    await consumer.close()
    return found
