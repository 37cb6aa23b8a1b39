"""Writing beside the bare client: one task or two, without Spark, with the same window of confirmations.

Both write the same bodies to a durable queue, in turn, each task a process of its own. What a task does before it
writes, rows to messages with their IDs, is a figure of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import uuid
from collections.abc import Mapping
from typing import Any

from benchmarks.drains import DrainError
from benchmarks.parts import Part, Say, Table
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.brokers.factory import make_node
from testbed.brokers.node import Node

__all__ = ["Sink"]

_ENTRIES = {
    "rabbitmq 0-9-1": ("rabbitmq", "", AMQP_0_9_1),
    "rabbitmq-4.3 1.0": ("rabbitmq", "4.3", AMQP_1_0),
    "activemq 1.0": ("activemq", "", AMQP_1_0),
    "activemq stomp": ("activemq", "", STOMP),
    "artemis 1.0": ("artemis", "", AMQP_1_0),
    "artemis stomp": ("artemis", "", STOMP),
}
_WHO = ("bare", "ours", "conversion")
_TIMEOUT_S = 300.0


class Sink(Part):
    """The part `sink`."""

    name = "sink"
    help = "Writing to each broker over each protocol, beside the bare client."
    turn_keys = ("entry", "body_bytes", "tasks", "who")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--messages", type=int, default=20_000, help="of a turn with small bodies, %(default)s")
        parser.add_argument("--rounds", type=int, default=3, help="that count; there is a warm-up before")
        parser.add_argument("--bodies", default="200,4096", help="bytes of a body, comma-separated")
        parser.add_argument("--tasks", default="1,2", help="at a time, comma-separated")
        parser.add_argument("--entries", default=",".join(_ENTRIES), help="comma-separated, %(default)s")

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        for entry in args.entries.split(","):
            broker, version, protocol = _ENTRIES[entry]
            with make_node(broker, version) as node:
                for size in map(int, args.bodies.split(",")):
                    messages = args.messages if size < 1_000 else args.messages // 2
                    for tasks in map(int, args.tasks.split(",")):
                        say(f"{entry}, {size} bytes, {tasks} task(s)")
                        turns: dict[str, list[dict[str, float]]] = {who: [] for who in _WHO}
                        for _ in range(args.rounds + 1):
                            for who, some in turns.items():
                                some.append(_turn(node, broker, protocol, who, tasks, messages, size))
                        found += [
                            {"entry": entry, "body_bytes": size, "tasks": tasks, "who": who, "turns": some[1:]}
                            for who, some in turns.items()
                        ]
        return {"turns": found}

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        medians = {
            (one["entry"], one["body_bytes"], one["tasks"], one["who"]): {
                name: statistics.median(turn[name] for turn in one["turns"]) for name in ("rate", "cpu_us")
            }
            for one in results["turns"]
        }
        rows = []
        for entry, size, tasks in dict.fromkeys(key[:3] for key in medians):
            bare, own, conversion = (medians[entry, size, tasks, who] for who in _WHO)
            rates = (f"{bare['rate']:,.0f}", f"{own['rate']:,.0f}", f"{own['rate'] / bare['rate']:.2f}")
            cpu = (f"{bare['cpu_us']:.1f}", f"{own['cpu_us']:.1f}", f"{conversion['cpu_us']:.1f}")
            rows.append([entry, f"{size:,}", str(tasks), *rates, *cpu])
        headings = ("", "bytes", "tasks", "client/s", "sink/s", "of it", "µs client", "µs sink", "of that rows and IDs")
        note = (
            "Figures are medians. Client, sink and broker share the cores of this machine. Client and sink have the "
            "same window."
        )
        return [Table("Messages a second written, and CPU µs a message", headings, rows, (note,))]


def _turn(node: Node, broker: str, protocol: str, who: str, tasks: int, messages: int, size: int) -> dict[str, float]:
    """Have so many processes write that many, each its share, at the same time."""
    queue, share = f"bench-{uuid.uuid4().hex[:8]}", messages // tasks
    node.declare(queue)
    words = [sys.executable, "-m", "benchmarks.writer", who, protocol, broker, node.url(protocol), queue]
    writers = [
        subprocess.Popen([*words, str(share), str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(tasks)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        told = [writer.communicate(timeout=_TIMEOUT_S)[0] for writer in writers]
        if any(writer.returncode for writer in writers):
            raise DrainError(f"{who} over {protocol} to {broker} ended with an error")
        written = node.counts(queue).total
        if who != "conversion" and written != share * tasks:
            raise DrainError(f"{who} over {protocol} wrote {written} of {share * tasks} messages to {broker}")
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
        node.delete(queue)
    took = [json.loads(line) for line in told]
    seconds, cpu_s = max(one["s"] for one in took), sum(one["cpu_s"] for one in took)
    return {"rate": share * tasks / seconds, "cpu_us": cpu_s / (share * tasks) * 1e6}
