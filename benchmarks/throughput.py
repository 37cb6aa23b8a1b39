"""Throughput against a bare pika consumer: ``make bench``.

Everything is measured in one run on one machine, round by round, so that what disturbs one contender
disturbs all; the table shows medians and ratios. Each turn has a durable queue of its own, filled
before. The clock runs from the first message the broker hands out, so that neither the start of a
process nor that of a query is counted, to the last one: acknowledged by the bare consumer, in a
committed epoch for Spark.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from testbed.rabbitmq_node import RabbitNode

BARE = "bare pika"
GUARANTEES = ("exactly-once", "at-least-once", "none")
#: What the bare consumer does: the fastest of pika's ways with manual acknowledgement on the machines
#: this was written on, acknowledging cumulatively so often that it never waits for its window.
BARE_PREFETCH, BARE_ACK_EVERY = 10_000, 5_000


def connect(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


def fill(url: str, queue: str, messages: int, size: int) -> None:
    """A durable queue with persistent messages that have random UUIDs as IDs."""
    connection = connect(url)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    body = os.urandom(size)
    for _ in range(messages):
        properties = pika.BasicProperties(message_id=str(uuid.uuid4()), delivery_mode=2)
        channel.basic_publish("", queue, body, properties)
    connection.close()
    await_depth(url, queue, messages)


def await_depth(url: str, queue: str, messages: int) -> None:
    connection = connect(url)
    channel = connection.channel()
    while channel.queue_declare(queue, passive=True).method.message_count != messages:
        time.sleep(0.1)
    time.sleep(1.0)  # let the broker finish writing, which is no contender's work
    connection.close()


def await_first(url: str, queue: str, messages: int) -> float:
    """When the broker had handed out the first message."""
    connection = connect(url)
    channel = connection.channel()
    while channel.queue_declare(queue, passive=True).method.message_count == messages:
        time.sleep(0.01)
    began = time.perf_counter()
    connection.close()
    return began


def delete(url: str, queue: str) -> int:
    """Messages that were left."""
    connection = connect(url)
    left: int = connection.channel().queue_delete(queue).method.message_count
    connection.close()
    return left


def drain_bare(url: str, queue: str, messages: int) -> float:
    connection = connect(url)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=BARE_PREFETCH)
    began = time.perf_counter()
    for done, (method, _, _) in enumerate(channel.consume(queue), start=1):
        if done % BARE_ACK_EVERY == 0 or done == messages:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if done == messages:
            break
    channel.queue_declare(queue, passive=True)  # the acknowledgements have arrived
    took = time.perf_counter() - began
    connection.close()
    return took


def drain_spark(spark: Any, options: dict[str, str], messages: int) -> float:
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.format("mq").options(**options).load()
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            began = await_first(options["url"], options["queue"], messages)
            rows: dict[int, int] = {}
            while sum(rows.values()) < messages:
                time.sleep(0.05)
                if not query.isActive:
                    raise query.exception()
                # Of the JVM's own object: as a dict it would come with both offsets of the epoch,
                # megabytes of text fifty times a second, and that is what would be measured.
                last = query._jsq.lastProgress()
                if last is not None:
                    rows[last.batchId()] = last.numInputRows()
            took = time.perf_counter() - began
            time.sleep(1.0)  # the trigger that follows at once acknowledges the last epoch
        finally:
            query.stop()
    return took


def rounds(
    spark: Any,
    url: str,
    messages: int,
    size: int,
    count: int,
    extra: dict[str, str],
    tick: Callable[[str], None],
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in (BARE, *GUARANTEES)}
    for turn in range(count):
        order = list(rates)
        order = order[turn % len(order) :] + order[: turn % len(order)]
        for name in order:
            tick(name)
            queue = f"bench-{uuid.uuid4().hex[:8]}"
            fill(url, queue, messages, size)
            if name == BARE:
                took = drain_bare(url, queue, messages)
            else:
                options = {"broker": "rabbitmq", "url": url, "queue": queue, "guarantee": name, **extra}
                took = drain_spark(spark, options, messages)
            left = delete(url, queue)
            if left:
                raise SystemExit(f"{name}: {left} messages were left in the queue")
            rates[name].append(messages / took)
    return rates


def report(rates: dict[str, list[float]], args: argparse.Namespace, version: str) -> None:
    medians = {name: statistics.median(values) for name, values in rates.items()}
    title = (
        f"{args.messages:,} messages of {args.size} bytes a turn, median of {args.rounds}, RabbitMQ {version}, "
        f"classic queue, {os.cpu_count()} cores shared by broker, Spark and consumer"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("consumer", "messages/s", "lowest", "highest", "of bare pika", "of none"):
        table.add_column(heading, justify="left" if heading == "consumer" else "right")
    for name, values in rates.items():
        table.add_row(
            name if name == BARE else f"pyspark-mq, {name}, noop sink",
            f"{medians[name]:,.0f}",
            f"{min(values):,.0f}",
            f"{max(values):,.0f}",
            f"{medians[name] / medians[BARE]:.2f}",
            "" if name == BARE else f"{medians[name] / medians['none']:.2f}",
        )
    Console(width=130).print(table)


def spark_session() -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("pyspark-mq bench")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=200, help="bytes of a body")
    parser.add_argument("--url", help="a broker of yours instead of a private one")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    args = parser.parse_args()
    extra = dict(option.split("=", 1) for option in args.option)
    if args.url:
        run(args, args.url, "at --url", extra)
        return
    with RabbitNode() as node:
        run(args, node.url(), node.version, extra)


def run(args: argparse.Namespace, url: str, version: str, extra: dict[str, str]) -> None:
    spark = spark_session()
    with Progress(transient=True) as progress:
        task = progress.add_task("warming up", total=4 * args.rounds + 1)
        queue = f"bench-warm-up-{uuid.uuid4().hex[:8]}"
        fill(url, queue, args.messages // 2, args.size)
        drain_spark(spark, {"broker": "rabbitmq", "url": url, "queue": queue, **extra}, args.messages // 2)
        delete(url, queue)

        def tick(name: str) -> None:
            progress.update(task, description=name, advance=1)

        rates = rounds(spark, url, args.messages, args.size, args.rounds, extra, tick)
    spark.stop()
    report(rates, args, version)


if __name__ == "__main__":
    main()
