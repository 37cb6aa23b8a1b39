"""Latency: from publishing a message to the commit of its epoch, beside Spark's `rate` source.

Both run into the same Parquet sink with the same trigger. A row has the moment it was made: in its body, by the
publisher; in Spark's `timestamp`. It is committed when Spark has written its micro-batch to the commit log: the file's
time of modification. Which rows a micro-batch had is in the sink's own log. All on one clock.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.bars import bars
from benchmarks.contenders import OURS, RATE, Contender, Shape, order_of
from benchmarks.cpu import has_source
from benchmarks.drains import DrainError, close_child, make_session, spawn
from benchmarks.parts import Part, Say, Table, whole_numbers
from benchmarks.turns import Arena
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.process import poll

__all__ = ["Latency", "committed_at", "latencies_ms", "percentile"]

_PROTOCOLS = (AMQP_0_9_1, STOMP, AMQP_1_0)
#: What is measured ends so long before the rows do: they are to be made until the last of it is committed.
_TAIL_S = 1.5
#: How often is looked for them.
_ROWS_POLL_S = 0.5
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0


class Latency(Part):
    """The part `latency`."""

    name = "latency"
    turn_keys = ("contender", "rate")
    help = "Publish to commit beside Spark's rate source, same sink and trigger."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rates", type=whole_numbers, default=[100, 1_000], help="messages a second")
        parser.add_argument("--protocols", default=",".join(_PROTOCOLS), help="of these: %(default)s")
        parser.add_argument("--seconds", type=float, default=12.0, help="that are measured in a turn")
        parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of a turn before")
        parser.add_argument("--rounds", type=int, default=2, help="that count; there is a short one before")

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        protocols = args.protocols.split(",")
        contenders = [Contender("rabbitmq", RATE, "-"), *(Contender("rabbitmq", OURS, one) for one in protocols)]
        pairs = [(contender, rate) for rate in args.rates for contender in contenders]
        found: dict[tuple[Contender, int], list[list[float]]] = {pair: [] for pair in pairs}
        arena = Arena("rabbitmq")
        with arena.node:
            spark = make_session()
            # Else the log of the sink is merged, and that of the commits deleted, behind the first hundred.
            spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "1000000")
            spark.conf.set("spark.sql.streaming.minBatchesToRetain", "1000000")
            try:
                for number in range(args.rounds + 1):
                    for contender, rate in order_of(number, pairs):
                        say(f"{'round ' + str(number) if number else 'warm-up'}: {name_of(contender)}, {rate:,}/s")
                        seconds = args.seconds if number else min(2.0, args.seconds)
                        turn = _turn(spark, arena, contender, rate, args.warm_up, seconds)
                        if number:
                            found[contender, rate].append(turn)
            finally:
                spark.stop()
        return {
            "broker": arena.title,
            "seconds": args.seconds,
            "turns": [
                {"contender": name_of(contender), "ours": contender.kind == OURS, "rate": rate,
                 "p50_ms": [percentile(turn, 50) for turn in turns], "p99_ms": [percentile(turn, 99) for turn in turns],
                 "messages": [len(turn) for turn in turns]}
                for (contender, rate), turns in found.items()
            ],
        }  # fmt: skip

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        turns = results["turns"]
        plain = {one["rate"]: one for one in turns if not one["ours"]}
        return [
            Table(
                "Publish to commit",
                ("", "a second", "messages", "p50, ms", "p99, ms", "p50 above rate, ms", "p50 of the rounds"),
                [_row(one, plain.get(one["rate"])) for one in turns],
                (
                    f"{results['broker']}, {results['seconds']:g} s a turn after a warm-up, triggers one after the "
                    "other, Parquet. Figures are medians of the rounds' percentiles. Spark's `rate` source creates its "
                    "rows once a second, with times spread over the previous second, which adds half a second.",
                ),
                {"publish to commit, p50 in ms": bars("publish to commit, p50 in ms", [
                    (f"{one['contender']}, {one['rate']:,}/s", statistics.median(one["p50_ms"]), one["ours"])
                    for one in turns
                ])},
            )
        ]  # fmt: skip


def name_of(contender: Contender) -> str:
    """For tables."""
    return contender.name if contender.kind == OURS else "Spark rate"


def _turn(spark: Any, arena: Arena, contender: Contender, rate: int, warm_up_s: float, seconds: float) -> list[float]:
    """Latencies in ms, of the rows made behind the warm-up."""
    queue = arena.filled(contender, Shape(0, headers=False), 0)
    # Tasks of a batch that was stopped may still write.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        if contender.kind == OURS:
            options = {"broker": "rabbitmq", "protocol": contender.protocol, "queue": queue,
                       "url": arena.node.url(contender.protocol), "idLog": str(place / "ids")}  # fmt: skip
            stream = spark.readStream.format("mq").options(**options).load()
            stream = stream.selectExpr("cast(cast(body as string) as bigint) as made_us")
        else:
            stream = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
            stream = stream.selectExpr("unix_micros(timestamp) as made_us")
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        query = writer.trigger(processingTime="0 seconds").start(str(place / "out"))
        try:
            _await_start(query, place / "checkpoint")
            if contender.kind == OURS:
                _publish(arena, queue, rate, warm_up_s + seconds + _TAIL_S)
            else:
                time.sleep(warm_up_s + seconds + _TAIL_S)
            until = (time.time() - _TAIL_S) * 1e6
            _await_rows(query, place, until)
        finally:
            query.stop()
            # What its process still does is no work of the next turn.
            jvm = int(spark.sparkContext._gateway.proc.pid)
            poll(lambda: not has_source(jvm), _STOP_TIMEOUT_S, interval_s=0.1)
        arena.node.delete(queue)
        made = rows_by_batch(place / "out")
        return latencies_ms(made, committed_at(place / "checkpoint"), until - seconds * 1e6, until)


def _await_start(query: Any, checkpoint: Path) -> None:
    # A first batch runs on an empty queue as well; what is published from here on finds a query at work.
    first = checkpoint / "commits" / "0"
    if not poll(lambda: first.exists() or not query.isActive, _START_TIMEOUT_S) or not query.isActive:
        raise DrainError(f"no epoch was committed in {_START_TIMEOUT_S:g} s: {query.exception()}")


def _await_rows(query: Any, place: Path, until_us: float) -> None:
    """Until a row that was made behind what is measured is committed: then what is measured is."""

    def there() -> bool:
        committed = committed_at(place / "checkpoint")
        made = rows_by_batch(place / "out")
        return any(row >= until_us for batch, rows in made.items() if batch in committed for row in rows)

    if not poll(there, _START_TIMEOUT_S, interval_s=_ROWS_POLL_S):
        raise DrainError(f"the last rows were not committed within {_START_TIMEOUT_S:g} s: {query.exception()}")


def _publish(arena: Arena, queue: str, rate: int, seconds: float) -> None:
    url = arena.node.url(AMQP_0_9_1)
    child = spawn([sys.executable, "-m", "benchmarks.pacer", url, queue, str(rate), str(seconds)])
    try:
        if child.wait(seconds + _START_TIMEOUT_S) != 0:
            raise DrainError(f"the publisher ended with {child.returncode}")
    finally:
        close_child(child)


# -- figures ----------------------------------------------------------------------------------


def rows_by_batch(out: Path) -> dict[int, list[int]]:
    """When the rows of each batch were made, by the log of a file sink that was never compacted."""
    import pyarrow.parquet

    rows: dict[int, list[int]] = {}
    for log in (out / "_spark_metadata").iterdir():
        if not log.name.isdecimal():
            continue
        files = [json.loads(line)["path"] for line in log.read_text("utf-8").splitlines()[1:]]
        tables = [pyarrow.parquet.read_table(unquote(urlsplit(file).path)) for file in files]
        rows[int(log.name)] = [value for table in tables for value in table["made_us"].to_pylist()]
    return rows


def committed_at(checkpoint: Path) -> dict[int, float]:
    """Batch -> when it was committed, in microseconds since 1970."""
    commits = [file for file in (checkpoint / "commits").iterdir() if file.name.isdecimal()]
    return {int(file.name): os.stat(file).st_mtime_ns / 1000 for file in commits}


def latencies_ms(
    made: Mapping[int, Sequence[int]], committed: Mapping[int, float], since_us: float, until_us: float
) -> list[float]:
    """Of the rows that were made in that time.

    Raises:
        DrainError: some of them were not committed, or there are none.
    """
    found: list[float] = []
    for batch, rows in made.items():
        wanted = [row for row in rows if since_us <= row < until_us]
        if wanted and batch not in committed:
            raise DrainError(f"batch {batch} was not committed")
        found += [(committed[batch] - row) / 1000 for row in wanted]
    if not found:
        raise DrainError("no row was committed in the time that is measured")
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _row(one: Mapping[str, Any], plain: Mapping[str, Any] | None) -> list[str]:
    p50 = statistics.median(one["p50_ms"])
    above = "" if plain is None or one is plain else f"{round(p50 - statistics.median(plain['p50_ms'])):+,}"
    return [
        str(one["contender"]),
        f"{one['rate']:,}",
        f"{sum(one['messages']):,}",
        f"{p50:,.0f}",
        f"{statistics.median(one['p99_ms']):,.0f}",
        above,
        ", ".join(f"{value:,.0f}" for value in one["p50_ms"]),
    ]
