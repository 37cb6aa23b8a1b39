"""Queries behind proxies that end idle connections: ``python -m testbed.chaos.balancer``.

A query for each protocol and limit, all in one Spark, and a message to each queue now and then. The exit code says
whether each message was read once, and no query ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from testbed.chaos.audit import print_rows
from testbed.chaos.proxy import FaultProxy
from testbed.chaos.queues import PrivateBroker
from testbed.ports import LOOPBACK
from testbed.process import poll

_ENTRIES = (("rabbitmq", "amqp-0-9-1"), ("artemis", "amqp-1.0"), ("activemq", "stomp"))
_RECONNECT_S = 20
#: A connection may end as a message is sent, and pauses grow to 5 s.
_ARRIVAL_TIMEOUT_S = 20.0


@dataclass
class _Reading:
    """A query behind a proxy of its own."""

    title: str
    broker: PrivateBroker
    queue: str
    proxy: FaultProxy
    query: Any = None
    sent: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)

    def start(self, spark: Any, folder: Path) -> None:
        port = urlsplit(self.broker.url).port
        url = self.broker.url.replace(f":{port}", f":{self.proxy.port}")
        options = {"broker": self.broker.name, "url": url, "queue": self.queue, **self.broker.options}
        checkpoint = str(folder / self.queue)
        reader = spark.readStream.format("mq").options(**options, reconnectTimeout=f"{_RECONNECT_S}s")
        self.query = (
            reader.option("checkpointLocation", checkpoint)
            .load()
            .writeStream.foreachBatch(
                lambda batch, _: self.read.extend(bytes(row.body).decode() for row in batch.collect())
            )
            .option("checkpointLocation", checkpoint)
            .start()
        )

    def send(self) -> None:
        key = f"{self.queue}-{len(self.sent)}"
        self.broker.node.publish(self.queue, [key.encode()], ids=[key], protocol=self.broker.protocol)
        self.sent.append(key)

    @property
    def holds(self) -> bool:
        return self.query.isActive and Counter(self.read) == Counter(self.sent)

    def arrived(self) -> bool:
        return len(self.read) >= len(self.sent) or not self.query.isActive


def main() -> int:
    """Run it; 0 if every query has read every message once."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - its JVM writes to what standard error is by then

    arguments, console = _arguments(), Console(width=110)
    began, late = time.monotonic(), 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-balancer-")))
        log = stack.enter_context((folder / "log").open("w+b"))
        os.dup2(log.fileno(), sys.stderr.fileno())
        os.environ["PYSPARK_PYTHON"] = sys.executable
        readings = _readings(arguments.limit or [6.0, 30.0], stack)
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        stack.callback(spark.stop)
        for one in readings:
            one.start(spark, folder)
        while time.monotonic() - began < 60 * arguments.minutes:
            for one in readings:
                one.send()
            late += not poll(lambda: all(one.arrived() for one in readings), _ARRIVAL_TIMEOUT_S, interval_s=0.1)
            time.sleep(arguments.pause)
        poll(lambda: all(one.arrived() for one in readings), _ARRIVAL_TIMEOUT_S)
        said = (folder / "log").read_text("utf-8", "replace")
        for one in readings:
            ends = f"{one.proxy.idle_ends:,} connections ended"
            console.print(f"{one.title}: {len(one.sent)} sent, {len(one.read)} read, {ends}", highlight=False)
            if not one.query.isActive:
                console.print(f"[red]the query ended: {one.query.exception()}", highlight=False)
        rows = {
            "messages sent": sum(len(one.sent) for one in readings),
            "connections ended": sum(one.proxy.idle_ends for one in readings),
            "messages that took longer than 20 s": late,
            "queries that hold": sum(one.holds for one in readings),
            "warnings that name 'heartbeat'": said.count("connections have ended while no message came"),
            "other warnings": said.count("session lost") + said.count("retrying in"),
        }
        holds = all(one.holds for one in readings)
        for one in readings:
            one.query.stop()
    print_rows(console, "Behind balancers", rows, time.monotonic() - began)
    return 0 if holds else 1


def _readings(limits: Sequence[float], stack: ExitStack) -> list[_Reading]:
    readings = []
    for name, protocol in _ENTRIES:
        queues = [f"{name}-{limit_s:g}s" for limit_s in limits]
        broker = stack.enter_context(PrivateBroker(name, ",".join(queues), protocol))
        for queue, limit_s in zip(queues, limits, strict=True):
            proxy = stack.enter_context(FaultProxy(LOOPBACK, urlsplit(broker.url).port or 0))
            proxy.limit_idle(limit_s)
            readings.append(_Reading(f"{name}, {protocol}, {limit_s:g} s", broker, queue, proxy))
    return readings


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testbed.chaos.balancer", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="%(default)s")
    parser.add_argument("--pause", type=float, default=120.0, help="seconds between messages, %(default)s")
    parser.add_argument("--limit", type=float, action="append", help="seconds, may be given again; 6 and 30")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
