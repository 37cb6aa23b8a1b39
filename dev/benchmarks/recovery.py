"""Recovery: how long a job takes after a `kill -9` until its first epoch is committed, beside a start of Spark.

A job is killed, with all its processes, as soon as its first epoch is in the offset log: for ours, that is with so many
messages handed out, planned and unacknowledged, which the new process has to get again one by one. Then it is started
once more, and the clock runs from the start of the process, before there is a JVM, to the commit log of that epoch.

Beside it Spark's own `rate-micro-batch` with as many rows, killed at the same moment, and a source in Python that has
no broker (:mod:`benchmarks.job`): what Spark takes to start its Python processes is no doing of ours.
"""

from __future__ import annotations

import argparse
import contextlib
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

import psutil

from benchmarks.bars import bars
from benchmarks.contenders import OURS, Contender, Shape, order_of
from benchmarks.cpu import job_seconds
from benchmarks.drains import DrainError, close_child, spawn
from benchmarks.parts import Part, Say, Table, whole_numbers
from benchmarks.turns import Arena
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.process import poll

__all__ = ["Recovery", "medians", "options_for"]

RATE, COUNTING, MQ = "rate-micro-batch", "counting", "mq"
_TITLES = {RATE: "Spark rate-micro-batch", COUNTING: "Python source, no broker", MQ: "pyspark-mq"}
_GROUPS = ("driver", "jvm", "source", "workers")
_BODY_BYTES = 200
#: What a channel of AMQP 0-9-1 may hold.
_PREFETCH_MAX = 65_535
_STEP_TIMEOUT_S = 120.0
_POLL_S = 0.002
_GONE_TIMEOUT_S = 10.0


class Recovery(Part):
    """The part `recovery`."""

    name = "recovery"
    turn_keys = ("source", "rows")
    help = "Restart after kill -9 to the first committed epoch, beside a plain start of Spark."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--planned", type=whole_numbers, default=[10_000, 100_000], help="messages of the epoch")
        parser.add_argument("--protocol", choices=(AMQP_0_9_1, STOMP, AMQP_1_0), default=AMQP_0_9_1)
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument(
            "--no-counting", action="store_true", help="leave the source in Python without a broker out"
        )

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        sources = (RATE, MQ) if args.no_counting else (RATE, COUNTING, MQ)
        pairs = [(source, rows) for rows in args.planned for source in sources]
        found: dict[tuple[str, int], list[dict[str, float]]] = {pair: [] for pair in pairs}
        arena = Arena("rabbitmq")
        with arena.node:
            for number in range(args.rounds):
                for source, rows in order_of(number, pairs):
                    say(f"round {number + 1}: {_TITLES[source]}, {rows:,}")
                    found[source, rows].append(_turn(arena, source, rows, args.protocol))
        return {
            "broker": arena.title,
            "protocol": args.protocol,
            "turns": [{"source": source, "rows": rows, "turns": turns} for (source, rows), turns in found.items()],
        }

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        measured = [(one["source"], one["rows"], medians(one["turns"])) for one in results["turns"]]
        plain = {rows: times for source, rows, times in measured if source == RATE}
        return [
            Table(
                "From the start of the process to the first commit after a kill",
                ("", "rows of the epoch", "session, s", "query, s", "committed, s", "lowest-highest",
                 "of a plain start", *(f"CPU s, {group}" for group in _GROUPS), "CPU s, in all", "of a plain start"),
                [
                    (
                        _TITLES[one["source"]], f"{rows:,}", f"{times['session']:.2f}", f"{times['query']:.2f}",
                        f"{times['committed']:.2f}",
                        "-".join(f"{of(turn['committed'] for turn in one['turns']):.2f}" for of in (min, max)),
                        f"{times['committed'] / plain[rows]['committed']:.2f}",
                        *(f"{times['cpu_' + group]:.1f}" for group in _GROUPS), f"{_cpu(times):.1f}",
                        f"{_cpu(times) / _cpu(plain[rows]):.2f}",
                    )
                    for one, (_, rows, times) in zip(results["turns"], measured, strict=True)
                ],
                (
                    f"{results['broker']}, {results['protocol']}, {_BODY_BYTES}-byte bodies; medians of "
                    f"{len(results['turns'][0]['turns'])} rounds. `session`: the JVM and Spark's session are up; "
                    "`query`: the query has been started. The sink is `noop`. CPU time is that of the whole job until "
                    "the first commit, which hardly depends on other programs: `driver` is the program, `source` the "
                    "process that reads, and `workers` all other Python processes, including those that Spark starts "
                    "to look sources up and to plan, and Spark's launcher.",
                ),
                {"seconds to the first commit": bars("seconds to the first commit after a kill", [
                    (f"{_TITLES[source]}, {rows:,}", times["committed"], source == MQ)
                    for source, rows, times in measured
                ])},
            )
        ]  # fmt: skip


def options_for(rows: int, protocol: str) -> dict[str, str]:
    """Of the source, so that its first epoch has exactly so many rows."""
    consumers = math.ceil(rows / _PREFETCH_MAX)
    return {
        "broker": "rabbitmq", "protocol": protocol, "maxMessagesPerTrigger": str(rows),
        "minMessagesPerTrigger": str(rows), "maxTriggerDelay": "60s", "consumers": str(consumers),
        "prefetch": str(math.ceil(rows / consumers)), "maxBytesPerTrigger": "1g",
    }  # fmt: skip


def _cpu(times: Mapping[str, float]) -> float:
    return sum(times[f"cpu_{group}"] for group in _GROUPS)


def _turn(arena: Arena, source: str, rows: int, protocol: str) -> dict[str, float]:
    """Seconds from the start of a process to each of its steps."""
    options: dict[str, str] = {}
    queue = ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        checkpoint = Path(folder, "checkpoint")
        if source == MQ:
            contender = Contender("rabbitmq", OURS, protocol)
            queue = arena.filled(contender, Shape(_BODY_BYTES, headers=False), rows)
            options = {**options_for(rows, protocol), "url": arena.node.url(protocol), "queue": queue,
                       "idLog": str(checkpoint / "ids")}  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.job", source, str(rows), str(checkpoint), json.dumps(options)]
        open_epoch, committed = checkpoint / "offsets" / "0", checkpoint / "commits" / "0"
        _run_until(command, open_epoch)
        if committed.exists():
            raise DrainError("the epoch was committed before the job could be killed")
        took = _run_until(command, committed)
        if queue:
            arena.node.delete(queue)
        return took


def _run_until(command: Sequence[str], file: Path) -> dict[str, float]:
    """Start a job, and kill it with all its processes when there is that file; when it got how far, in seconds."""
    began_s = time.time()
    child = spawn(command)
    try:
        if not poll(lambda: file.exists() or child.poll() is not None, _STEP_TIMEOUT_S, interval_s=_POLL_S):
            raise DrainError(f"there was no {file.name} in {file.parent.name} within {_STEP_TIMEOUT_S:g} s")
        if not file.exists():
            raise DrainError(f"the job ended with {child.returncode}")
        ended_s = os.stat(file).st_mtime
        cpu = {f"cpu_{group}": seconds for group, seconds in job_seconds(child.pid).items()}
    finally:
        _kill(child.pid)
    assert child.stdout is not None
    said = {name: at for line in child.stdout for name, at in json.loads(line).items()}
    close_child(child)
    return {**{name: at - began_s for name, at in said.items()}, "committed": ended_s - began_s, **cpu}


def _kill(pid: int) -> None:
    """SIGKILL to a process and all it has started, at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes[1:], timeout=_GONE_TIMEOUT_S)


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each step."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
