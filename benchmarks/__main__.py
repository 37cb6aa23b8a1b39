"""The command: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
from rich.console import Console
from rich.progress import Progress

from benchmarks.contenders import BARE, HAZELCAST, KINDS, OURS, PERF_TEST, RATE, Contender, Shape, choose, order_of
from benchmarks.drains import (
    BareDrain,
    Drain,
    HazelcastDrain,
    HazelcastMember,
    OurDrain,
    PerfTestDrain,
    RateDrain,
    make_session,
    protocol_of_url,
)
from benchmarks.figures import Figures, Turn, summarise
from benchmarks.page import write_page
from benchmarks.report import Run, as_json, from_json, tables
from benchmarks.turns import Arena, measure
from testbed.process import NodeError

_BROKERS = ("rabbitmq", "activemq", "artemis")
_PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
_WARM_UP_SHARE = 0.4
#: Processes that are new in each turn have nothing to warm up.
_COLD = frozenset({BARE, PERF_TEST})


class Bench:
    """Everything that lives longer than a turn: Spark, Hazelcast's member; made when first needed."""

    def __init__(self, options: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._spark: Any = None
        self._hazelcast: HazelcastMember | None = None

    def close(self) -> None:
        if self._hazelcast is not None:
            self._hazelcast.close()
        if self._spark is not None:
            self._spark.stop()

    def measure_broker(
        self, arena: Arena, contenders: Sequence[Contender], shapes: Sequence[Shape], messages: int, rounds: int
    ) -> list[Figures]:
        """A warm-up and so many rounds, in another order each.

        Who fails is left out from then on, and has its problem for figures.
        """
        turns: dict[tuple[Contender, Shape], list[Turn]] = {pair: [] for pair in itertools.product(contenders, shapes)}
        problems: dict[Contender, str] = {}
        for number in range(rounds + 1):
            for contender, shape in order_of(number, list(turns)):
                if contender in problems or (number == 0 and contender.kind in _COLD):
                    continue
                share = 1.0 if number else _WARM_UP_SHARE
                self._say(f"{arena.title}: {'round ' + str(number) if number else 'warm-up'}: {contender.name}")
                try:
                    turn = self._turn(arena, contender, shape, contender.messages(round(messages * share)))
                except Exception as failed:  # noqa: BLE001 - whatever it failed with is its result
                    problems[contender] = f"{type(failed).__name__}: {failed}".strip()
                    continue
                if number:
                    turns[contender, shape].append(turn)
        return [
            summarise(contender, shape, measured)
            if measured and contender not in problems
            else Figures(contender, shape, problem=problems.get(contender, "not measured"))
            for (contender, shape), measured in turns.items()
        ]

    def _turn(self, arena: Arena, contender: Contender, shape: Shape, messages: int) -> Turn:
        # Before the queue is filled: what is missing is found out at once.
        self._prepare(contender)
        queue = arena.filled(contender, shape, messages if contender.kind != RATE else 1)
        try:
            return measure(arena, queue, self._drain(arena, contender, queue, messages), messages)
        finally:
            arena.node.delete(queue)

    def _prepare(self, contender: Contender) -> None:
        if contender.kind in {OURS, RATE} and self._spark is None:
            self._spark = make_session()
        if contender.kind == HAZELCAST and (self._hazelcast is None or not self._hazelcast.running):
            self._hazelcast = HazelcastMember()

    def _drain(self, arena: Arena, contender: Contender, queue: str, messages: int) -> Drain:
        if contender.kind == HAZELCAST:
            assert self._hazelcast is not None
            return HazelcastDrain(self._hazelcast, contender, arena.node, queue, messages)
        if contender.kind == RATE:
            return RateDrain(self._spark, messages)
        url = arena.node.url(protocol_of_url(contender))
        if contender.kind == OURS:
            return OurDrain(self._spark, contender, url, queue, messages, self._options)
        if contender.kind == PERF_TEST:
            return PerfTestDrain(url, queue)
        return BareDrain(contender, url, queue, messages)


def main() -> None:
    """Measure, or read what was measured, and show it."""
    args = _arguments()
    console = Console(width=170)
    runs = [from_json(file.read_text("utf-8")) for file in args.load]
    if not args.load:
        runs = [run(args, console)]
    if args.json:
        args.json.write_text(as_json(runs[0]), "utf-8")
    for each in runs:
        for table in tables(each):
            console.print(table)
    if args.page:
        write_page(args.page, runs)


def run(args: argparse.Namespace, console: Console) -> Run:
    """All brokers, one after the other."""
    figures: list[Figures] = []
    versions: dict[str, str] = {}
    shapes = [Shape(size, headers) for size in args.bodies for headers in args.headers]
    began = time.monotonic()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        bench = Bench(dict(option.split("=", 1) for option in args.option), lambda text: _show(progress, task, text))
        try:
            for broker, contenders in choose(args.brokers, args.contenders).items():
                versions[broker] = broker
                try:
                    arena = Arena(broker)
                    with arena.node:
                        versions[broker] = arena.title
                        figures += bench.measure_broker(arena, contenders, shapes, args.messages, args.rounds)
                except NodeError as failed:
                    pairs = itertools.product(contenders, shapes)
                    figures += [Figures(*pair, problem=str(failed)) for pair in pairs]
        finally:
            bench.close()
    return Run(
        figures,
        versions,
        f"Python {platform.python_version()}, pyspark {pyspark.__version__}, {os.cpu_count()} cores",
        args.messages,
        args.rounds,
        round(time.monotonic() - began),
    )


def _show(progress: Progress, task: Any, text: str) -> None:
    progress.update(task, description=text)
    if not progress.console.is_terminal:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--brokers", type=_words(_BROKERS), default=list(_BROKERS), help="comma-separated")
    parser.add_argument("--contenders", type=_words(KINDS), default=list(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--messages", type=int, default=200_000, help="of a turn; slow contenders get a share of it")
    parser.add_argument("--rounds", type=int, default=3, help="that count; there is a warm-up before")
    parser.add_argument("--bodies", type=_sizes, default=[200], help="bytes of a body, comma-separated")
    parser.add_argument("--headers", nargs="?", const=[True], default=[False], type=_with_headers, metavar="both",
                        help="messages with application headers; 'both': with and without")  # fmt: skip
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of our source")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--load", type=Path, nargs="+", default=[], help="show these JSON files instead of measuring")
    parser.add_argument("--page", type=Path, nargs="?", const=_PAGE, help=f"page to write to, by default {_PAGE.name}")
    args = parser.parse_args()
    if args.json and args.load:
        parser.error("--json writes what was measured; --load measures nothing")
    return args


def _words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for word in chosen:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return chosen

    return parse


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _with_headers(text: str) -> list[bool]:
    if text != "both":
        raise argparse.ArgumentTypeError(f"{text!r} is not 'both'")
    return [False, True]


if __name__ == "__main__":
    main()
