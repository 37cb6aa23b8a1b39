"""Streams: one process against `rstream`, the Java client and our reader of queues; and through Spark, by tasks."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

from benchmarks import filler
from benchmarks.contenders import OURS, Contender, Shape
from benchmarks.cpu import difference, spark_usage, tree_usage
from benchmarks.drains import DrainError, OurDrain, QueryDrain, make_session, spawn
from benchmarks.figures import steady_rate
from benchmarks.parts import Part, Say, Table
from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.spark_source.stream_options import parse_stream_options
from pyspark_mq.spark_source.stream_reader import arrow_schema, stream_schema
from pyspark_mq.streams.planner import Planner
from pyspark_mq.streams.rows import range_batches
from testbed.brokers.rabbitmq import RabbitNode
from testbed.distributions import Distribution, fetch, find_java
from testbed.process import poll

__all__ = ["Streams"]

STREAM_CLIENT = Distribution(
    "stream-client-1.11.0",
    ("com.rabbitmq:stream-client:1.11.0",),
    "a6c29df133aada86e815252b6d0af5ae07a64cb0bfe70f634748f88b3870150a",
    transitive=True,
)
#: Forms of messages, what they are, and which part of the messages of a run is of each.
_FORMS = {
    "equal": ("bodies of 200 bytes", 4.0),
    "varying": ("bodies of 150 to 250 bytes", 1.0),
    "properties": ("an ID and three properties besides", 1.0),
    "packed": ("as the first, packed by gzip in hundreds", 1.0),
    "single": ("as the first, each in a chunk of its own", 0.05),
}
_TASKS = (1, 2, 4)
#: Of a query; what comes before the third epoch is its start.
_EPOCHS, _FIRST_EPOCHS = 6, 2
_FRAME_MESSAGES, _PACKED_MESSAGES = 400, 100
_TIMEOUT_S = 300.0
_QUEUE_SHARE = 0.1
_SHAPE = Shape(200, headers=False)
_JAVA = Path(__file__).parent / "java" / "StreamReader.java"


class _Figures(NamedTuple):
    """Messages a second, and CPU µs a message, of the client or of the driver with its workers."""

    rate: float
    cpu_us: float

    def cells(self) -> tuple[str, str]:
        return f"{self.rate:,.0f}", f"{self.cpu_us:.2f}"


class Streams(Part):
    """The part `streams`."""

    name = "streams"
    help = __doc__ or ""
    turn_keys = ("where", "who", "form")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--messages", type=int, default=1_000_000, help="of most forms")
        parser.add_argument("--rounds", type=int, default=3, help="of which the best counts; there is a warm-up before")
        parser.add_argument("--version", default="4.3", help="of RabbitMQ")
        parser.add_argument("--without-spark", action="store_true", help="one process only")

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        turns: list[dict[str, Any]] = []

        def note(where: str, who: str, form: str, figures: _Figures) -> None:
            turns.append({"where": where, "who": who, "form": form, **figures._asdict()})
            say(f"{where}, {who}, {form}: {figures.rate:,.0f} a second, {figures.cpu_us:.2f} µs")

        with RabbitNode(version=args.version, plugins=("rabbitmq_stream",)) as node:
            counts = {form: round(args.messages * share) for form, (_, share) in _FORMS.items()}
            for form, count in counts.items():
                asyncio.run(_publish(node.stream_port, form, count))
                rounds = range(args.rounds + 1)
                note("alone", "ours", form, _best([_read(node.stream_url(), form, count) for _ in rounds]))
                note("alone", "java", form, _best(_read_by_java(node.stream_port, form, count, len(rounds))))
                few = min(count, args.messages // 5)
                note("alone", "rstream", form, asyncio.run(_read_by_rstream(node.stream_port, form, few)))
            few = round(args.messages * _QUEUE_SHARE)
            note("alone", "queue", "equal", _read_queue(node, few))
            if not args.without_spark:
                spark = make_session()
                for form in _FORMS:
                    for tasks in _TASKS if form == "equal" else (2,):
                        note(
                            "spark",
                            f"{tasks} task{'s' if tasks > 1 else ''}",
                            form,
                            _drain(spark, node, form, counts[form], tasks),
                        )
                note("spark", "queue", "equal", _drain_queue(spark, node, few))
                spark.stop()
            return {"broker": f"RabbitMQ {node.version}", "messages": args.messages, "turns": turns}

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        found = {
            tuple(turn[key] for key in self.turn_keys): _Figures(turn["rate"], turn["cpu_us"])
            for turn in results["turns"]
        }
        of = f"{results['broker']}, {results['messages']:,} messages"
        return [*_alone(found, of), *_through_spark(found, of)]


def _alone(found: Mapping[tuple[str, ...], _Figures], of: str) -> Iterator[Table]:
    rows = []
    for form, (text, _) in _FORMS.items():
        ours, java, other = (found.get(("alone", who, form)) for who in ("ours", "java", "rstream"))
        if ours is not None and java is not None and other is not None:
            ratios = f"{ours.rate / other.rate:.1f}", f"{ours.cpu_us / java.cpu_us:.2f}"
            rows.append((text, *ours.cells(), *java.cells(), *other.cells(), *ratios))
    headings = [
        "messages", "ours, rows/s", "CPU µs", "Java client/s", "CPU µs", "rstream/s", "CPU µs",
        "rate of rstream's", "CPU of Java's",
    ]  # fmt: skip
    notes = [
        "This source builds all columns except those of `includeMetadata`. The other clients pass each message to a "
        "callback; the Java client's callback reads the body. CPU is the CPU time of the client's process with all its "
        "threads. Figures are those of the best round."
    ]
    queue, ours = found.get(("alone", "queue", "equal")), found.get(("alone", "ours", "equal"))
    if queue is not None and ours is not None:
        notes.append(
            f"From a classic queue of the same node, this source alone reads {queue.rate:,.0f} messages a second, with "
            f"{queue.cpu_us:.1f} µs each; it reads a stream {ours.rate / queue.rate:.0f} times as fast."
        )
    if rows:
        yield Table(f"Streams, one process, {of}", headings, rows, notes)


def _through_spark(found: Mapping[tuple[str, ...], _Figures], of: str) -> Iterator[Table]:
    queue = found.get(("spark", "queue", "equal"))
    rows = []
    for (where, who, form), figures in found.items():
        if where == "spark":
            what = "bodies of 200 bytes in a classic queue" if who == "queue" else f"{_FORMS[form][0]}, {who}"
            ratio = "" if queue is None else f"{figures.rate / queue.rate:.1f}"
            rows.append((what, *figures.cells(), ratio))
    headings = ["messages", "rows/s", "CPU µs a row", "rate of the queue's"]
    notes = [
        "The sink is `noop`, in local mode on the broker's machine. Rows a second and CPU time are measured after the "
        "second epoch of six. CPU is the CPU time of Spark and all its Python processes, without the broker."
    ]
    if rows:
        yield Table(f"Streams through Spark, {of}", headings, rows, notes)


def _best(figures: Sequence[_Figures]) -> _Figures:
    """Of rounds, of which the first is to warm up."""
    return max(figures[1:])


# -- messages


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
    async with Producer("127.0.0.1", port, username="guest", password="guest") as producer:
        await producer.create_stream(form)
        size = {"packed": _PACKED_MESSAGES, "single": 1}.get(form, _FRAME_MESSAGES)
        under_way, messages = 0, [*_messages(form, count)]
        for begin in range(0, count, size):
            frame = messages[begin : begin + size]
            if form == "packed":
                await producer.send_sub_entry(
                    form, frame, CompressionType.Gzip, on_publish_confirm=lambda _: confirmed.release()
                )
            else:
                await producer.send_batch(form, frame, on_publish_confirm=lambda _: confirmed.release())
            under_way += 1 if form == "packed" else len(frame)
            while under_way > (0 if form == "single" else 20_000):
                await asyncio.wait_for(confirmed.acquire(), _TIMEOUT_S)
                under_way -= 1
        for _ in range(under_way):
            await asyncio.wait_for(confirmed.acquire(), _TIMEOUT_S)


def _options(url: str, form: str) -> dict[str, str]:
    return {"broker": "rabbitmq", "url": url, "stream": form, "startingOffsets": "earliest"}


# -- one process


def _read(url: str, form: str, count: int) -> _Figures:
    planner = Planner(parse_stream_options(_options(url, form)).streaming)
    start = planner.initial()
    planned = planner.ranges(start, planner.latest(start))
    schema = arrow_schema(stream_schema(include_metadata=False))
    began_s, cpu_s = time.monotonic(), time.process_time()
    batches = (one for task in planned for one in range_batches(task, schema, unreadable="fail"))
    rows = sum(batch.num_rows for batch in batches)
    assert rows == count
    return _Figures(rows / (time.monotonic() - began_s), (time.process_time() - cpu_s) / rows * 1e6)


async def _read_by_rstream(port: int, form: str, count: int) -> _Figures:
    """Read by a callback that counts."""
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
    await asyncio.wait_for(done.wait(), _TIMEOUT_S)
    found = _Figures(count / (time.monotonic() - began_s), (time.process_time() - cpu_s) / count * 1e6)
    await consumer.close()
    return found


def _read_by_java(port: int, form: str, count: int, rounds: int) -> list[_Figures]:
    command = [
        find_java(),
        "-cp",
        str(fetch(STREAM_CLIENT) / "*"),
        str(_JAVA),
        str(port),
        form,
        str(count),
        str(rounds),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise DrainError(f"the Java client ended with {done.returncode}: {done.stderr[-500:]}")
    times = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    return [_Figures(count / seconds, cpu_s / count * 1e6) for seconds, cpu_s in times]


def _queue_options(count: int) -> dict[str, str]:
    """As many epochs as of a stream, as rates are taken behind the first."""
    return {"maxMessagesPerTrigger": str(count // _EPOCHS)}


def _fill_queue(node: RabbitNode, count: int) -> str:
    queue = f"queue-{count}-{time.monotonic_ns()}"
    node.declare(queue)
    command = filler.command(node.url(AMQP_0_9_1), queue, _SHAPE, count, correlated=False)
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)
    return queue


def _read_queue(node: RabbitNode, count: int) -> _Figures:
    with tempfile.TemporaryDirectory() as checkpoint:
        options = {
            "broker": "rabbitmq", "url": node.url(AMQP_0_9_1), "queue": _fill_queue(node, count),
            "checkpointLocation": checkpoint, **_queue_options(count),
        }  # fmt: skip
        child = spawn([sys.executable, "-m", "benchmarks.lone", "drain", str(count), json.dumps(options)])
        assert child.stdout is not None
        first: tuple[float, float, int] | None = None
        for line in child.stdout:
            if line.strip() == "done":
                break
            at = time.monotonic(), sum(tree_usage("source", child.pid)["source"].values()), json.loads(line)["rows"]
            first = first or at
        last = time.monotonic(), sum(tree_usage("source", child.pid)["source"].values())
        child.kill()
        child.wait()
    assert first is not None
    rows = count - first[2]
    return _Figures(rows / (last[0] - first[0]), (last[1] - first[1]) / rows * 1e6)


# -- through Spark


class _StreamDrain(QueryDrain):
    """A query of a stream."""

    def __init__(self, spark: Any, url: str, form: str, count: int, tasks: int) -> None:
        super().__init__(spark, count)
        self._options = {
            **_options(url, form), "minPartitions": str(tasks), "maxOffsetsPerTrigger": str(max(1, count // _EPOCHS))
        }  # fmt: skip

    def _stream(self, checkpoint: str) -> Any:
        del checkpoint
        return self._spark.readStream.format("mq").options(**self._options).load()


def _measured(drain: QueryDrain, spark: Any, count: int) -> _Figures:
    drain.start()
    poll(lambda: len(drain.epochs()) >= _FIRST_EPOCHS, _TIMEOUT_S, interval_s=0.01)
    before = spark_usage(int(spark.sparkContext._gateway.proc.pid))
    rows = count - sum(epoch.rows for epoch in drain.epochs())
    if not poll(lambda: sum(epoch.rows for epoch in drain.epochs()) >= count, _TIMEOUT_S, interval_s=0.01):
        drain.check()
        raise DrainError(f"not all of {count:,} rows came in {_TIMEOUT_S:g} s")
    cpu_s = sum(difference(drain.usage(), before).values())
    rate = steady_rate(drain.epochs())
    drain.end()
    if rate is None or rows <= 0:
        raise DrainError(f"there are too few epochs of {count:,} rows to compare: ask for more --messages")
    return _Figures(rate, cpu_s / rows * 1e6)


def _drain(spark: Any, node: RabbitNode, form: str, count: int, tasks: int) -> _Figures:
    return _measured(_StreamDrain(spark, node.stream_url(), form, count, tasks), spark, count)


def _drain_queue(spark: Any, node: RabbitNode, count: int) -> _Figures:
    contender = Contender("rabbitmq", OURS, AMQP_0_9_1)
    queue = _fill_queue(node, count)
    return _measured(
        OurDrain(spark, contender, node.url(AMQP_0_9_1), queue, count, _queue_options(count)), spark, count
    )
