"""Growth: do rate and memory stay what they are when there is more of something?

More messages in the queue, a larger window of remembered IDs, more epochs in one process, larger bodies, more bytes
allowed. The source runs in a process of its own without Spark (:mod:`benchmarks.lone`), as only that has anything that
could grow; for the backlog a bare client is beside it, as brokers are slower with more messages, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import bars
from benchmarks.contenders import BARE, OURS, Contender, Shape
from benchmarks.cpu import Usage, tree_usage
from benchmarks.drains import BareDrain, Drain, DrainError, check_child, close_child, spawn
from benchmarks.figures import Turn
from benchmarks.parts import Part, Say, Table, whole_numbers
from benchmarks.turns import Arena, measure
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.process import NodeError, poll

__all__ = ["CASES", "Growth", "LoneDrain", "flat", "per_thousand", "rate_of_last"]

CASES = ("backlog", "window", "epochs", "held", "bytes")
_PROTOCOLS = (AMQP_0_9_1, STOMP, AMQP_1_0)
_BODY_BYTES = 200
#: Of a size as many turns as this is in all, at most `--rounds`.
_MESSAGES_OF_A_SIZE = 1_000_000
#: Of a larger backlog so many are read, by ours and then by the bare client.
_READ_MAX = 2_000_000
#: How many messages behind the moment at which the window of IDs is full are measured.
_BEHIND_WINDOW = 100_000
#: So many bytes more than twice the limit are in the queue when that is looked at.
_BOUND_EPOCHS = 6
_BOUND_BODY_BYTES = 10_240
_MIB = 1 << 20
_CONTENDER = Contender("rabbitmq", OURS, AMQP_0_9_1)
_BARE = Contender("rabbitmq", BARE, AMQP_0_9_1)


class LoneDrain(Drain):
    """A process of :mod:`benchmarks.lone` that empties a queue.

    Attributes:
        said: what it said of each epoch, and of the end.
    """

    def __init__(self, url: str, queue: str, messages: int, options: Mapping[str, str], what: str = "drain") -> None:
        self._given = {"broker": "rabbitmq", "url": url, "queue": queue, **options}
        self._messages = messages
        self._what = what
        self.said: list[dict[str, Any]] = []

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        options = {**self._given, "idLog": str(Path(self._folder.name, "ids"))}
        self._child = spawn(
            [sys.executable, "-m", "benchmarks.lone", self._what, str(self._messages), json.dumps(options)]
        )

    def check(self) -> None:
        check_child(self._child, "the source")

    def wait(self) -> None:
        assert self._child.stdout is not None
        while (line := self._child.stdout.readline().strip()) != "done":
            if not line:
                raise DrainError(f"the source ended with {self._child.wait()}")
            self.said.append(json.loads(line))

    def usage(self) -> Usage:
        return tree_usage("source", self._child.pid)

    def end(self) -> tuple[int | None, float | None]:
        close_child(self._child)
        self._folder.cleanup()
        return len(self.said) - 1, None

    @property
    def peak(self) -> int:
        """Most bytes of memory it ever had."""
        return max(int(one["peak"]) for one in self.said if "peak" in one)


class Growth(Part):
    """The part `growth`."""

    name = "growth"
    help = "Rate and memory of the source with more in the queue, in the window, behind it, in a message."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cases", default=",".join(CASES), help="of these, comma-separated: %(default)s")
        parser.add_argument("--rounds", type=int, default=3, help="of the smaller backlogs; a million has one")
        parser.add_argument("--backlogs", type=whole_numbers, default=[10_000, 100_000, 1_000_000],
                            help="messages, such as 10k,100k,1m,10m; a million take a minute to publish")  # fmt: skip
        parser.add_argument("--windows", type=whole_numbers, default=[10_000, 100_000, 1_000_000])
        parser.add_argument("--epochs", type=int, default=10_000)
        parser.add_argument("--epoch-messages", type=int, default=10)
        parser.add_argument("--held", type=int, default=50_000, help="messages held in the process")
        parser.add_argument("--held-bodies", type=whole_numbers, default=[0, 200, 1_000])
        parser.add_argument("--limits", type=whole_numbers, default=[8, 16, 32, 64], help="MiB of maxBytesPerTrigger")

    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        cases = args.cases.split(",")
        unknown = [case for case in cases if case not in CASES]
        if unknown:
            raise SystemExit(f"--cases: {unknown[0]!r} is none of {', '.join(CASES)}")
        arena = Arena("rabbitmq")
        results: dict[str, Any] = {}
        with arena.node:
            results["broker"] = arena.title
            if "backlog" in cases:
                results["backlog"] = _backlogs(arena, args.backlogs, args.rounds, say)
            if "window" in cases:
                results["window"] = [_window(arena, window, say) for window in args.windows]
            if "epochs" in cases:
                results["epochs"] = _epochs(arena, args.epochs, args.epoch_messages, say)
            if "held" in cases:
                held = [
                    (protocol, size)
                    for protocol in _PROTOCOLS for size in args.held_bodies
                ]  # fmt: skip
                results["held"] = [_held(arena, *one, args.held, say) for one in held]
            if "bytes" in cases:
                results["bytes"] = [_bound(arena, limit, say) for limit in args.limits]
        return results

    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        shown: dict[str, Callable[[Any, str], Table]] = {
            "backlog": _backlog_table,
            "window": _window_table,
            "epochs": _epochs_table,
            "held": _held_table,
            "bytes": _bytes_table,
        }
        return [shown[case](results[case], results["broker"]) for case in CASES if case in results]


# -- measuring --------------------------------------------------------------------------------


def _backlogs(arena: Arena, sizes: Sequence[int], rounds: int, say: Say) -> list[dict[str, Any]]:
    measured: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for number in range(rounds):
        for size in sizes:
            if number and (number + 1) * size > _MESSAGES_OF_A_SIZE:
                continue
            say(f"backlog of {size:,}, round {number + 1}")
            shape = Shape(_BODY_BYTES, headers=False)
            # The smallest backlog is to fill the window of messages, and that of IDs: else it would take less memory
            # only because they are not full. For the same reason nothing is carried for longer than it has to be:
            # that is five seconds by default, which a small backlog does not last.
            options = {"maxMessagesPerTrigger": str(max(1, min(sizes) // 2)), "dedupWindow": str(min(sizes)),
                       "settleGrace": "0s"}  # fmt: skip
            read = min(size, _READ_MAX)
            queue = arena.filled(_CONTENDER, shape, size)
            drain = LoneDrain(arena.node.url(), queue, read, options, "drain" if read == size else "read")
            ours = measure(arena, queue, drain, read, None if read == size else size)
            if read == size:
                arena.node.delete(queue)
                queue = arena.filled(_BARE, shape, size)
            left = _at_rest(arena, queue)
            bare = measure(
                arena, queue, BareDrain(_BARE, arena.node.url(), queue, read), read, None if read == left else left
            )
            arena.node.delete(queue)
            turn = {"rate": ours.rate, "source_us": _source_us(ours), "peak": drain.peak, "bare_rate": bare.rate,
                    "bare_us": _source_us(bare), "read": read}  # fmt: skip
            measured[size].append(turn)
    return [{"messages": size, "turns": turns} for size, turns in measured.items()]


def _window(arena: Arena, window: int, say: Say) -> dict[str, Any]:
    messages = window + _BEHIND_WINDOW
    say(f"window of {window:,}, {messages:,} messages")
    queue = arena.filled(_CONTENDER, Shape(_BODY_BYTES, headers=False), messages)
    drain = LoneDrain(arena.node.url(), queue, messages, {"dedupWindow": str(window)})
    turn = measure(arena, queue, drain, messages)
    arena.node.delete(queue)
    return {
        "window": window,
        "messages": messages,
        "rate": rate_of_last(drain.said, _BEHIND_WINDOW),
        "source_us": _source_us(turn),
        "rss": drain.said[-1]["rss"],
        "peak": drain.peak,
    }


def _epochs(arena: Arena, epochs: int, size: int, say: Say) -> dict[str, Any]:
    messages = epochs * size
    say(f"{epochs:,} epochs of {size}")
    queue = arena.filled(_CONTENDER, Shape(_BODY_BYTES, headers=False), messages)
    # The window of IDs is full soon, so that what grows behind that is not it.
    options = {"maxMessagesPerTrigger": str(size), "minMessagesPerTrigger": str(size), "prefetch": str(100 * size),
               "dedupWindow": str(100 * size)}  # fmt: skip
    drain = LoneDrain(arena.node.url(), queue, messages, options)
    measure(arena, queue, drain, messages)
    arena.node.delete(queue)
    return {"size": size, "thousands": per_thousand([one for one in drain.said if "took_s" in one], epochs)}


def _held(arena: Arena, protocol: str, body_bytes: int, messages: int, say: Say) -> dict[str, Any]:
    say(f"{messages:,} held messages of {body_bytes} bytes over {protocol}")
    queue = arena.filled(Contender("rabbitmq", OURS, protocol), Shape(body_bytes, headers=False), 0)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "broker": "rabbitmq", "protocol": protocol, "url": arena.node.url(protocol), "queue": queue,
            "idLog": str(Path(folder, "ids")), "prefetch": str(messages + 1),
            "maxMessagesPerTrigger": str(messages + 1), "minMessagesPerTrigger": str(messages + 1),
            "maxBytesPerTrigger": "1g",
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.lone", "hold", str(messages), json.dumps(options)]
        child = spawn(command)
        try:
            said = _lines(child)
            connected = next(said)
            arena.fill(queue, Shape(body_bytes, headers=False), messages, AMQP_0_9_1)
            holding = next(said)
            arena.fill(queue, Shape(body_bytes, headers=False), 1, AMQP_0_9_1)
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
            planned = next(said)
        finally:
            close_child(child)
    arena.node.delete(queue)
    return {
        "protocol": protocol,
        "body_bytes": body_bytes,
        "messages": messages,
        "held": (holding["rss"] - connected["rss"]) / messages,
        "planned": (planned["rss"] - connected["rss"]) / messages,
    }


def _bound(arena: Arena, limit: int, say: Say) -> dict[str, Any]:
    messages = _BOUND_EPOCHS * limit * _MIB // _BOUND_BODY_BYTES
    say(f"maxBytesPerTrigger of {limit} MiB, {messages:,} messages of {_BOUND_BODY_BYTES:,} bytes")
    queue = arena.filled(_CONTENDER, Shape(_BOUND_BODY_BYTES, headers=False), messages)
    drain = LoneDrain(arena.node.url(), queue, messages, {"maxBytesPerTrigger": f"{limit}m"})
    turn = measure(arena, queue, drain, messages)
    arena.node.delete(queue)
    return {
        "limit": limit,
        "messages": messages,
        "rate": turn.rate,
        "source_us": _source_us(turn),
        "peak": drain.peak,
    }


def _at_rest(arena: Arena, queue: str) -> int:
    """Messages that wait, once what a reader held has come back."""
    if not poll(lambda: arena.node.counts(queue).unacked == 0, 60):
        raise NodeError(f"{queue} has {arena.node.counts(queue)}")
    return arena.node.counts(queue).ready


def _source_us(turn: Turn) -> float:
    """CPU microseconds a message of the process that reads: what the machine does besides changes it least."""
    return turn.cpu_s["source"] / turn.messages * 1e6


def _lines(child: Any) -> Iterator[dict[str, Any]]:
    while (line := child.stdout.readline().strip()) != "done":
        if not line:
            raise DrainError(f"the source ended with {child.wait()}")
        yield json.loads(line)


# -- figures ----------------------------------------------------------------------------------


def rate_of_last(said: Sequence[Mapping[str, Any]], messages: int) -> float:
    """Messages a second of the last epochs that have at least so many, or of all but the first."""
    epochs = [one for one in said if "took_s" in one]
    last = epochs[-1]
    since = next((one for one in reversed(epochs) if last["rows"] - one["rows"] >= messages), epochs[0])
    seconds = last["at_s"] - since["at_s"]
    return float((last["rows"] - since["rows"]) / seconds) if seconds > 0 else 0.0


def per_thousand(epochs: Sequence[Mapping[str, Any]], number: int) -> list[dict[str, Any]]:
    """Tenths of the epochs: which, median milliseconds of the calls of an epoch, memory and offset at the end."""
    step = max(1, number // 10)
    return [
        {
            "first": at + 1,
            "last": at + len(part),
            "ms": statistics.median(one["took_s"] for one in part) * 1000,
            "rss": part[-1]["rss"],
            "offset_bytes": part[-1]["offset_bytes"],
        }
        for at in range(0, len(epochs), step)
        if (part := epochs[at : at + step])
    ]


def flat(values: Sequence[float]) -> float:
    """How far the largest is above the smallest, as a part of it."""
    return max(values) / min(values) - 1 if values and min(values) > 0 else 0.0


# -- tables -----------------------------------------------------------------------------------


def _backlog_table(measured: Sequence[Mapping[str, Any]], broker: str) -> Table:
    names = ("rate", "bare_rate", "source_us", "bare_us", "peak")
    medians = [
        (
            one["messages"], len(one["turns"]),
            *(statistics.median(turn[name] for turn in one["turns"]) for name in names),
        )
        for one in measured
    ]  # fmt: skip
    return Table(
        "Backlog",
        ("messages in the queue", "turns", "messages/s", "bare pika", "of bare", "µs source", "µs bare pika",
         "most memory, MiB"),
        [
            (f"{size:,}", str(turns), f"{rate:,.0f}", f"{bare:,.0f}", f"{rate / bare:.2f}", f"{source_us:.1f}",
             f"{bare_us:.1f}", f"{peak / _MIB:.0f}")
            for size, turns, rate, bare, source_us, bare_us, peak in medians
        ],
        (
            f"{broker}, AMQP 0-9-1, {_BODY_BYTES}-byte bodies, medians of the turns. Epochs and the window of IDs have "
            "half the size of the smallest backlog, and `settleGrace` is 0, so that every turn fills all bounded "
            f"structures. Each contender reads at most {_READ_MAX:,} messages. Difference between least and most: rate "
            f"{flat([one[2] for one in medians]):.0%}, of bare "
            f"{flat([one[2] / one[3] for one in medians]):.0%}, CPU of the source "
            f"{flat([one[4] for one in medians]):.0%}, memory {flat([one[6] for one in medians]):.0%}.",
        ),
        {"messages a second by backlog": bars("messages a second by backlog", [
            bar for size, _, rate, bare, *_ in medians
            for bar in ((f"{size:,}", rate, True), (f"{size:,}, bare pika", bare, False))
        ])},
    )  # fmt: skip


def _window_table(measured: Sequence[Mapping[str, Any]], broker: str) -> Table:
    return Table(
        "Window of remembered IDs",
        ("`dedupWindow`", "messages read", "messages/s", "µs source", "memory at the end, MiB", "most memory, MiB"),
        [
            (f"{one['window']:,}", f"{one['messages']:,}", f"{one['rate']:,.0f}", f"{one['source_us']:.1f}",
             f"{one['rss'] / _MIB:.0f}", f"{one['peak'] / _MIB:.0f}")
            for one in measured
        ],
        (
            f"{broker}, AMQP 0-9-1, epochs of 50,000 messages. The rate is that of about the last {_BEHIND_WINDOW:,} "
            "messages, with the window full; CPU time is of all. Difference between least and most: "
            f"rate {flat([one['rate'] for one in measured]):.0%}, CPU of the source "
            f"{flat([one['source_us'] for one in measured]):.0%}, memory at the end "
            f"{flat([one['rss'] for one in measured]):.0%}, most memory {flat([one['peak'] for one in measured]):.0%}.",
        ),
    )  # fmt: skip


def _epochs_table(measured: Mapping[str, Any], broker: str) -> Table:
    thousands = measured["thousands"]
    steady = thousands[1:] or thousands
    return Table(
        "Many epochs in one process",
        ("epochs", "ms an epoch, median", "memory, MiB", "offset, bytes"),
        [
            (f"{one['first']:,}-{one['last']:,}", f"{one['ms']:.2f}", f"{one['rss'] / _MIB:.1f}",
             f"{one['offset_bytes']:,}")
            for one in thousands
        ],
        (
            f"{broker}, AMQP 0-9-1, epochs of {measured['size']} messages, a window of IDs of a hundred epochs. Epochs "
            "follow each other without Spark's triggers, so hundreds of them are unsettled at a time. Difference "
            "between least and most, without the first row: time "
            f"{flat([one['ms'] for one in steady]):.0%}, memory {flat([one['rss'] for one in steady]):.0%}.",
        ),
    )  # fmt: skip


def _held_table(measured: Sequence[Mapping[str, Any]], broker: str) -> Table:
    return Table(
        "A held message",
        ("", "bytes of a body", "bytes of the process, held", "planned, its payload made"),
        [
            (one["protocol"], f"{one['body_bytes']:,}", f"{one['held']:,.0f}", f"{one['planned']:,.0f}")
            for one in measured
        ],
        (
            f"{broker}; growth of the process's memory after connecting, by {measured[0]['messages']:,} messages with "
            "a UUID as ID. Planned messages are only in the memory for the tasks. The memory of received messages is "
            "then free for new messages, but not always returned to the system.",
        ),
    )


def _bytes_table(measured: Sequence[Mapping[str, Any]], broker: str) -> Table:
    return Table(
        "`maxBytesPerTrigger`",
        ("MiB", "messages", "messages/s", "µs source", "most memory, MiB", "a MiB of the limit"),
        [
            (f"{one['limit']}", f"{one['messages']:,}", f"{one['rate']:,.0f}", f"{one['source_us']:.1f}",
             f"{one['peak'] / _MIB:.0f}",
             f"{(one['peak'] - measured[0]['peak']) / _MIB / (one['limit'] - measured[0]['limit']):.1f}"
             if one is not measured[0] else "")
            for one in measured
        ],
        (
            f"{broker}, AMQP 0-9-1, bodies of {_BOUND_BODY_BYTES:,} bytes, {_BOUND_EPOCHS} epochs of them. Last "
            "column: MiB of memory for each MiB that the limit is above that of the first row.",
        ),
    )  # fmt: skip
