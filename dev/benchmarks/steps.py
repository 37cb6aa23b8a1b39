"""Where the time of a trigger goes: Spark's steps by its own progress, for this source and for two without a broker.

A source in Python that does nothing (:class:`benchmarks.job.CountingSource`) pays for the processes that Spark talks
to; what ours takes beyond it is ours. Spark's own source of numbers pays for neither.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.contenders import OURS, Contender, Shape
from benchmarks.drains import DrainError, make_session
from benchmarks.job import CountingSource
from benchmarks.parts import Part, Say, Table
from benchmarks.turns import Arena
from pyspark_mq.brokers.base import AMQP_0_9_1
from testbed.process import poll

__all__ = ["Steps"]

#: As many random UUIDs as an offset has room for.
_ROWS = 3_800
_BODY_BYTES = 200
#: Triggers of a query that pay for its start.
_FIRST = 8
_TIMEOUT_S = 300.0
#: In the order in which Spark takes them (MicroBatchExecution.scala); then all of them.
_STEPS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")
_OURS = "pyspark-mq"
_COUNTING, _RATE = "Python source, no broker", "Spark rate-micro-batch"


class Steps(Part):
    """The part `trigger`."""

    name = "trigger"
    help = "The steps of a trigger of few rows: what is Spark's, and what is this source's."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rows", type=int, default=_ROWS, help="of a trigger, by default %(default)s")
        parser.add_argument("--triggers", type=int, default=40, help="that count")

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        arena = Arena("rabbitmq")
        found: dict[str, dict[str, float]] = {}
        with arena.node:
            spark = make_session()
            spark.dataSource.register(CountingSource)
            try:
                for name in (_RATE, _COUNTING, _OURS):
                    say(name)
                    found[name] = _turn(spark, arena, name, args.rows, args.triggers)
            finally:
                spark.stop()
        return {"broker": arena.title, "rows": args.rows, "triggers": args.triggers, "steps": found}

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        steps = results["steps"]
        rows = [[step, *(f"{found[step]:,.0f}" for found in steps.values())] for step in _STEPS]
        rows += [
            [
                f"of latestOffset, ours: {name}",
                *(f"{found[key]:,.0f}" if key in found else "" for found in steps.values()),
            ]
            for name, key in (("waiting for messages", "receiveMs"), ("plan and IDs", "planMs"))
        ]
        return [
            Table(
                f"Steps of a trigger of {results['rows']:,} rows, ms",
                ("", *steps),
                rows,
                (
                    f"{results['broker']}, AMQP 0-9-1, {_BODY_BYTES}-byte bodies, a backlog, triggers one after the "
                    f"other into `noop`; medians of {results['triggers']} triggers after the first {_FIRST}.",
                ),
            )
        ]


def _turn(spark: Any, arena: Arena, name: str, rows: int, triggers: int) -> dict[str, float]:
    """Milliseconds of each step, medians."""
    messages = (triggers + _FIRST + 4) * rows
    queue = arena.filled(Contender("rabbitmq", OURS, AMQP_0_9_1), Shape(_BODY_BYTES, headers=False), messages)
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.format("mq" if name == _OURS else "counting").option("rows", rows)
        if name == _RATE:
            stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
            stream = stream.option("numPartitions", os.cpu_count() or 1)
        elif name != _COUNTING:
            options = {
                "broker": "rabbitmq",
                "url": arena.node.url(),
                "queue": queue,
                "maxMessagesPerTrigger": str(rows),
                "checkpointLocation": checkpoint,
            }
            stream = spark.readStream.format("mq").options(**options)
        query = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            if not poll(lambda: _ran(query) >= triggers + _FIRST, _TIMEOUT_S, interval_s=0.1):
                raise DrainError(f"{name}: no {triggers} triggers in {_TIMEOUT_S:g} s; {query.exception()}")
            reports = [one for one in query.recentProgress if one["numInputRows"]][_FIRST : _FIRST + triggers]
        finally:
            query.stop()
            arena.node.delete(queue)
    found = {step: _median([one["durationMs"].get(step, 0) for one in reports]) for step in _STEPS}
    planned = [epoch for one in reports if (epoch := _planned(one))]
    if planned:
        found |= {key: _median([one[key] for one in planned]) for key in ("receiveMs", "planMs")}
    return found


def _ran(query: Any) -> int:
    last = query._jsq.lastProgress()
    return int(last.batchId()) if last is not None and query.isActive else 0


def _planned(progress: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What our source says of the epoch that was planned last, in its offset."""
    told = progress["sources"][0].get("latestOffset") or "{}"
    found = json.loads(told) if isinstance(told, str) else told
    return found.get("lastPlanned") if isinstance(found, dict) else None


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values))
