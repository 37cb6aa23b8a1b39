"""From turns to figures: medians, ratios, steady state. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from benchmarks.contenders import BARE, CEILING, FLINK, HAZELCAST, OURS, PERF_TEST, Contender, Shape
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP

__all__ = [
    "GROUPS",
    "Epoch",
    "Figures",
    "Turn",
    "epoch_of",
    "find",
    "kept_ratios",
    "ratios",
    "steady_rate",
    "summarise",
]

#: Whose CPU time is told apart: the Python process that reads, the JVM of Spark, Hazelcast or PerfTest, Spark's
#: Python workers, the broker.
GROUPS = ("source", "jvm", "workers", "broker")
#: The first epochs of a query pay for its start: connections, the first jobs, code that is not compiled yet.
_FIRST_EPOCHS = 2


@dataclass(frozen=True, slots=True)
class Epoch:
    """One micro-batch: rows, and when it was committed (seconds since 1970)."""

    rows: int
    end_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender emptying one queue.

    Attributes:
        seconds: from the first message handed out to all settled.
        cpu_s: CPU seconds in that time by group; a group that the contender does not have is missing.
        epochs: micro-batches with rows; None for who has none.
        steady: messages a second behind the first epochs; None where there was too little.
    """

    messages: int
    seconds: float
    cpu_s: Mapping[str, float]
    epochs: int | None = None
    steady: float | None = None

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of a contender's turns, with the lowest and highest rate.

    Attributes:
        cpu_us: CPU microseconds a message by group.
        problem: why there are none; the rest is then empty.
    """

    contender: Contender
    shape: Shape
    messages: int = 0
    rate: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0
    steady: float | None = None
    epochs: float | None = None
    cpu_us: Mapping[str, float] | None = None
    problem: str = ""

    @property
    def best_known_rate(self) -> float:
        """In the steady state where there is one: what the goals are about."""
        return self.steady or self.rate

    @property
    def megabytes(self) -> float:
        """Of bodies a second, by the same rate."""
        return self.best_known_rate * self.shape.body_bytes / 1e6


def epoch_of(progress: Mapping[str, Any]) -> Epoch:
    """Of one progress report of Spark, as a dict."""
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
    return Epoch(int(progress["numInputRows"]), began + progress["durationMs"]["triggerExecution"] / 1000)


def steady_rate(epochs: Sequence[Epoch]) -> float | None:
    """Messages a second from the end of the second epoch to that of the last.

    None if what is behind the second is less than half of all: the last epoch is what was left over, and a rate of
    leftovers says nothing.
    """
    behind = sum(epoch.rows for epoch in epochs[_FIRST_EPOCHS:])
    if 2 * behind < sum(epoch.rows for epoch in epochs) or not behind:
        return None
    seconds = epochs[-1].end_s - epochs[_FIRST_EPOCHS - 1].end_s
    return behind / seconds if seconds > 0 else None


def summarise(contender: Contender, shape: Shape, turns: Sequence[Turn]) -> Figures:
    """Medians of the turns that were counted, of which there is at least one."""
    rates = [turn.rate for turn in turns]
    steady = [turn.steady for turn in turns if turn.steady is not None]
    epochs = [turn.epochs for turn in turns if turn.epochs is not None]
    groups = [group for group in GROUPS if all(group in turn.cpu_s for turn in turns)]
    return Figures(
        contender,
        shape,
        turns[0].messages,
        statistics.median(rates),
        min(rates),
        max(rates),
        statistics.median(steady) if steady else None,
        statistics.median(epochs) if epochs else None,
        {group: statistics.median(turn.cpu_s[group] / turn.messages * 1e6 for turn in turns) for group in groups},
    )


def find(
    figures: Sequence[Figures],
    broker: str,
    kind: str,
    protocol: str | None = None,
    guarantee: str = "exactly-once",
) -> list[Figures]:
    """Those of a broker and kind that were measured, the fastest first."""
    found = [
        one
        for one in figures
        if one.contender.broker == broker and one.contender.kind == kind and not one.problem
        and protocol in {None, one.contender.protocol} and one.contender.guarantee == guarantee
    ]  # fmt: skip
    return sorted(found, key=lambda one: -one.best_known_rate)


def ratios(figures: Sequence[Figures]) -> list[tuple[str, float]]:
    """What is compared, and the ratio; of one shape of messages. What was not measured is left out."""
    brokers = list(dict.fromkeys(one.contender.broker for one in figures))
    found: list[tuple[str, float]] = []
    for broker in brokers:
        for protocol in (AMQP_0_9_1, STOMP, AMQP_1_0):
            ours, bare = find(figures, broker, OURS, protocol), find(figures, broker, BARE, protocol)
            if ours and bare:
                found.append((f"{broker} {protocol}: ours / bare client", ours[0].best_known_rate / bare[0].rate))
                found += _source_cpu(f"{broker} {protocol}: CPU of our source / bare client", ours[0], bare[0])
        found += _to_the_limit(figures, broker)
        found += _best_of_all(figures, broker)
        found += _of_two(figures, broker, f"{broker}: ours over AMQP 1.0 / ours over STOMP", (AMQP_1_0, STOMP))
    return found


def _to_the_limit(figures: Sequence[Figures], broker: str) -> list[tuple[str, float]]:
    """Ours over AMQP 0-9-1 by what the broker hands out to whoever takes it, and by what less would be."""
    name = f"{broker} {AMQP_0_9_1}"
    plain = find(figures, broker, OURS, AMQP_0_9_1)
    if not plain:
        return []
    rate = plain[0].best_known_rate
    found = [
        (f"{name}: ours / {other.contender.name}", rate / other.best_known_rate)
        for kind in (CEILING, PERF_TEST, FLINK)
        for other in sorted(find(figures, broker, kind), key=lambda one: one.contender.unacknowledged)
    ]
    return found + [
        (f"{name}: exactly-once / {guarantee}", rate / other.best_known_rate)
        for guarantee in ("at-least-once", "none")
        for other in find(figures, broker, OURS, AMQP_0_9_1, guarantee)
    ]


def kept_ratios(figures: Sequence[Figures]) -> list[tuple[str, float]]:
    """Of shapes with and without busy processes beside them: what ours is of the bare client with, by that without."""
    found: list[tuple[str, float]] = []
    shapes = list(dict.fromkeys(one.shape for one in figures))
    for busy in (shape for shape in shapes if shape.busy):
        quiet = dict(ratios([one for one in figures if one.shape == replace(busy, busy=0)]))
        with_them = ratios([one for one in figures if one.shape == busy])
        found += [
            (f"{name}, {busy.title} / without", ratio / quiet[name])
            for name, ratio in with_them
            if name in quiet and name.endswith("ours / bare client")
        ]
    return found


def _source_cpu(name: str, ours: Figures, bare: Figures) -> list[tuple[str, float]]:
    mine, other = (ours.cpu_us or {}).get("source"), (bare.cpu_us or {}).get("source")
    return [(name, mine / other)] if mine is not None and other else []


def _best_of_all(figures: Sequence[Figures], broker: str) -> list[tuple[str, float]]:
    ours, hazelcast = find(figures, broker, OURS), find(figures, broker, HAZELCAST)
    if not ours or not hazelcast:
        return []
    name = f"{broker}: ours, best protocol ({ours[0].contender.protocol}) / Hazelcast, its best"
    return [(name, ours[0].best_known_rate / hazelcast[0].best_known_rate)]


def _of_two(figures: Sequence[Figures], broker: str, name: str, protocols: tuple[str, str]) -> list[tuple[str, float]]:
    one, other = (find(figures, broker, OURS, protocol) for protocol in protocols)
    return [(name, one[0].best_known_rate / other[0].best_known_rate)] if one and other else []
