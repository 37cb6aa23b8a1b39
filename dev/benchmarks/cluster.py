"""On a cluster: rows reach executors inside their tasks, where one machine has them in memory that both see.

A standalone cluster of Spark with two workers, beside `local[2]`, all on this machine, so both have the same two cores.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.contenders import OURS, Contender, Shape
from benchmarks.cpu import Usage, tree_usage
from benchmarks.drains import OurDrain, make_session
from benchmarks.figures import Turn
from benchmarks.parts import Part, Say, Table
from benchmarks.turns import Arena, measure
from pyspark_mq.brokers.base import AMQP_0_9_1
from testbed.spark.standalone import SparkCluster

__all__ = ["Cluster"]

_BROKER = "rabbitmq-4.3-quorum"
_LOCAL, _STANDALONE = "local[2]", "standalone, two workers"
#: Of a worker: its executor, and what is inside its tasks.
_MEMORY_MB = 2_048
#: Whose CPU time is told apart, with their headings.
_GROUPS = {
    "source": "source", "jvm": "driver's JVM", "workers": "its workers", "executors": "executors", "broker": "broker",
}  # fmt: skip


class _Drain(OurDrain):
    """A query of a driver with a cluster, if there is one."""

    cluster: SparkCluster | None = None

    def usage(self) -> Usage:
        executors: dict[int, float] = {}
        for pid in self.cluster.pids if self.cluster is not None else ():
            executors |= tree_usage("executors", pid)["executors"]
        return {**super().usage(), "executors": executors}


class Cluster(Part):
    """The part `cluster`."""

    name = "cluster"
    help = "A standalone cluster of Spark with two workers, beside local[2]."
    turn_keys = ("where", "body_bytes")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--messages", type=int, default=400_000, help="of a turn with small bodies, %(default)s")
        parser.add_argument("--rounds", type=int, default=3, help="that count; there is a warm-up before")
        parser.add_argument("--bodies", default="200,4096", help="bytes of a body, comma-separated")

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        arena = Arena(_BROKER)
        found: list[dict[str, Any]] = []
        with arena.node:
            for where in (_LOCAL, _STANDALONE):
                with _session(where) as (spark, cluster):
                    for size in map(int, args.bodies.split(",")):
                        messages = args.messages if size < 1_000 else args.messages // 4
                        turns = []
                        for number in range(args.rounds + 1):
                            say(f"{where}, {size} bytes, {f'round {number}' if number else 'warm-up'}")
                            turns.append(_turn(arena, spark, cluster, size, messages))
                        found.append({"where": where, "body_bytes": size, "turns": [asdict(one) for one in turns[1:]]})
        return {"broker": arena.title, "turns": found}

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        rows = []
        for one in results["turns"]:
            turns = [Turn(**turn) for turn in one["turns"]]
            rates = sorted(turn.rate for turn in turns)
            cpu = [
                statistics.median(turn.cpu_s.get(group, 0.0) / turn.messages * 1e6 for turn in turns)
                for group in _GROUPS
            ]
            range_text = f"{rates[0]:,.0f}-{rates[-1]:,.0f}"
            figures = [f"{statistics.median(rates):,.0f}", range_text, *(f"{value:.1f}" for value in cpu)]
            rows.append([one["where"], f"{one['body_bytes']:,}", *figures])
        title = f"Messages a second, and CPU µs a message, on a cluster; {results['broker']}"
        headings = ("", "bytes", "messages/s", "lowest-highest", *(f"µs {name}" for name in _GROUPS.values()))
        return [Table(title, headings, rows, ("Both share the two cores of this machine with the broker.",))]


@contextmanager
def _session(where: str) -> Iterator[tuple[Any, SparkCluster | None]]:
    """Spark there, and its cluster."""
    if where == _LOCAL:
        spark = make_session(where)
        try:
            yield spark, None
        finally:
            spark.stop()
        return
    cluster = SparkCluster(memory_mb=_MEMORY_MB)
    try:
        cluster.start()
        spark = make_session(cluster.url, cluster.settings)
        try:
            yield spark, cluster
        finally:
            spark.stop()
    finally:
        cluster.close()


def _turn(arena: Arena, spark: Any, cluster: SparkCluster | None, size: int, messages: int) -> Turn:
    contender = Contender(_BROKER, OURS, AMQP_0_9_1)
    queue = arena.filled(contender, Shape(size, headers=False), messages)
    drain = _Drain(spark, contender, arena.node.url(), queue, messages, {})
    drain.cluster = cluster
    try:
        return measure(arena, queue, drain, messages)
    finally:
        arena.node.delete(queue)
