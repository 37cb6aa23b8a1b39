"""The command: `python -m benchmarks`, with the name of a part or without for everybody side by side."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.cluster import Cluster
from benchmarks.contenders import (
    BARE,
    CEILING,
    CEILINGS,
    FLINK,
    GUARANTEES,
    HAZELCAST,
    KINDS,
    OURS,
    PERF_TEST,
    PROTOCOLS,
    RATE,
    Contender,
    Shape,
    choose,
    family,
    order_of,
)
from benchmarks.drains import (
    BareDrain,
    Drain,
    Member,
    MemberDrain,
    OurDrain,
    PerfTestDrain,
    RateDrain,
    make_session,
    protocol_of_url,
)
from benchmarks.figures import Figures, Turn, summarise
from benchmarks.growth import Growth
from benchmarks.latency import Latency
from benchmarks.page import FOLDER, write_page
from benchmarks.parts import Part, machine, run_part, taken_by_others, today, whole_numbers
from benchmarks.recovery import Recovery
from benchmarks.report import Run, as_json, from_json, tables
from benchmarks.sink import Sink
from benchmarks.steps import Steps
from benchmarks.streams import Streams
from benchmarks.trickle import Trickle
from benchmarks.turns import Arena, measure
from testbed.process import NodeError

_BROKERS = ("rabbitmq", "activemq", "artemis")
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reports" / "benchmarks.md"
_WARM_UP_SHARE = 0.4
#: Where what was measured is kept when it is interrupted, if nothing else was said.
_INTERRUPTED = Path("bench-interrupted.json")
_PARTS: dict[str, Part] = {
    part.name: part for part in (Growth(), Latency(), Recovery(), Steps(), Cluster(), Streams(), Sink(), Trickle())
}
#: Parts that are a choice of what is measured side by side: its options; those given behind the name come later.
_CHOICES: dict[str, list[str]] = {
    "guarantees": ["--brokers=rabbitmq", "--contenders=ours", "--protocols=amqp-0-9-1", "--rounds=5"],
    "messages": ["--brokers=rabbitmq", "--contenders=ours,bare", "--protocols=amqp-0-9-1", "--guarantees=exactly-once",
                 "--bodies=200,4096", "--headers=both", "--messages=150000"],
    "contents": ["--brokers=rabbitmq", "--contenders=ours,bare", "--protocols=amqp-0-9-1",
                 "--guarantees=exactly-once", "--without-ids=both"],
    "busy": ["--brokers=rabbitmq", "--contenders=ours,bare", "--protocols=amqp-0-9-1", "--guarantees=exactly-once",
             "--busy=0,1", "--rounds=5"],
}  # fmt: skip
#: Takes a core for as long as its parent lives.
_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10_000))"
#: Processes that are new in each turn have nothing to warm up.
_COLD = frozenset({BARE, CEILING, PERF_TEST})


class Pace:
    """How far the turns are, and how long the others will take.

    Args:
        total: turns that there will be, if nobody fails.
    """

    def __init__(self, total: int) -> None:
        self._total, self._begun, self._began_s = total, 0, time.monotonic()

    def next(self) -> str:
        """Return, in words, where the turn stands that begins now."""
        done, self._begun = self._begun, self._begun + 1
        if not done:
            return f"turn 1 of {self._total}"
        left_s = (time.monotonic() - self._began_s) / done * (self._total - done)
        return f"turn {self._begun} of {self._total}, about {left_s / 60:.0f} min left"


class Bench:
    """Everything that lives longer than a turn: Spark, the JVMs of Hazelcast and Flink; made when first needed.

    Args:
        options: of our source.
        say: told what is being done.
        pace: of all turns.

    Attributes:
        interrupted: Ctrl-C has ended it.
    """

    def __init__(self, options: Mapping[str, str], say: Callable[[str], None], pace: Pace) -> None:
        self.interrupted = False
        self._options = options
        self._say = say
        self._pace = pace
        self._spark: Any = None
        self._members: dict[str, Member] = {}

    def close(self) -> None:
        for member in self._members.values():
            member.close()
        if self._spark is not None:
            self._spark.stop()

    def measure_broker(
        self, arena: Arena, contenders: Sequence[Contender], shapes: Sequence[Shape], messages: int, rounds: int
    ) -> list[Figures]:
        """A warm-up and so many rounds, in another order each; when it is interrupted, what was measured by then.

        Who fails is left out from then on, and has its problem for figures.
        """
        turns: dict[tuple[Contender, Shape], list[Turn]] = {pair: [] for pair in itertools.product(contenders, shapes)}
        problems: dict[Contender, str] = {}
        try:
            for number, contender, shape in _turns(contenders, shapes, rounds):
                if contender in problems:
                    continue
                which = f"round {number}" if number else "warm-up"
                self._say(f"{arena.title}: {which}: {contender.name}, {shape.title} ({self._pace.next()})")
                share = 1.0 if number else _WARM_UP_SHARE
                try:
                    turn = self._turn(arena, contender, shape, contender.messages(round(messages * share)))
                except Exception as failed:  # noqa: BLE001 - whatever it failed with is its result
                    problems[contender] = f"{type(failed).__name__}: {failed}".strip()
                    continue
                if number:
                    turns[contender, shape].append(turn)
        except KeyboardInterrupt:
            self.interrupted = True
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
            with _busy(shape.busy):
                return measure(arena, queue, self._drain(arena, contender, queue, messages), messages)
        finally:
            arena.node.delete(queue)

    def _prepare(self, contender: Contender) -> None:
        if contender.kind in {OURS, RATE} and self._spark is None:
            self._spark = make_session()
        make = {HAZELCAST: Member.hazelcast, FLINK: Member.flink}.get(contender.kind)
        known = self._members.get(contender.kind)
        if make is not None and (known is None or not known.running):
            self._members[contender.kind] = make()

    def _drain(self, arena: Arena, contender: Contender, queue: str, messages: int) -> Drain:
        if contender.kind == HAZELCAST:
            return MemberDrain.of_hazelcast(self._members[HAZELCAST], contender, arena.node, queue, messages)
        if contender.kind == FLINK:
            return MemberDrain.of_flink(self._members[FLINK], arena.node, queue, messages)
        if contender.kind == RATE:
            return RateDrain(self._spark, messages)
        url = arena.node.url(protocol_of_url(contender))
        if contender.kind == OURS:
            return OurDrain(self._spark, contender, url, queue, messages, self._options)
        if contender.kind == PERF_TEST:
            return PerfTestDrain(url, queue)
        return BareDrain(contender, url, queue, messages)


def _turns(
    contenders: Sequence[Contender], shapes: Sequence[Shape], rounds: int
) -> Iterator[tuple[int, Contender, Shape]]:
    """Yield the turns of one broker; round 0 is the warm-up."""
    for number in range(rounds + 1):
        for contender, shape in order_of(number, list(itertools.product(contenders, shapes))):
            if number or contender.kind not in _COLD:
                yield number, contender, shape


def main() -> None:
    """Measure, or read what was measured, and show it."""
    name, words = (
        (sys.argv[1], sys.argv[2:]) if sys.argv[1:] and not sys.argv[1].startswith("-") else ("", sys.argv[1:])
    )
    if name in _PARTS:
        run_part(_PARTS[name], words, _PAGE)
    else:
        side_by_side(name, words)


def side_by_side(name: str, words: Sequence[str]) -> None:
    """Everybody, or a part that is a choice of them.

    Args:
        name: of the part; empty for everybody.
        words: its options.
    """
    args = _arguments(name, words)
    console = Console(width=170)
    runs = [from_json(file.read_text("utf-8")) for file in args.load]
    if not args.load:
        measured, interrupted = run(args, console)
        runs = [measured]
        if interrupted:
            args.json, args.page = args.json or _INTERRUPTED, None
            console.print(
                f"Interrupted: what was measured is in {args.json}; no page is written. --load shows it again."
            )
    if args.json:
        args.json.write_text(as_json(runs[0]), "utf-8")
    if args.page and name:
        (args.page.parent / FOLDER / f"{name}.json").write_text(as_json(runs[0]), "utf-8")
    for each in runs:
        for table in tables(each):
            console.print(table)
    if args.page:
        write_page(args.page, runs, name)


def run(args: argparse.Namespace, console: Console) -> tuple[Run, bool]:
    """All brokers, one after the other; and was it interrupted?"""
    figures: list[Figures] = []
    versions: dict[str, str] = {}
    shapes = [
        Shape(size, headers, busy, ids)
        for size in args.bodies
        for headers in args.headers
        for ids in args.without_ids
        for busy in args.busy
    ]
    chosen = choose(args.brokers, args.contenders, args.protocols, args.guarantees, args.ceilings)
    pace = Pace(sum(len(list(_turns(contenders, shapes, args.rounds))) for contenders in chosen.values()))
    before = taken_by_others()
    began = time.monotonic()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        options = dict(option.split("=", 1) for option in args.option)
        bench = Bench(options, lambda text: _show(progress, task, text), pace)
        try:
            for broker, contenders in chosen.items():
                if bench.interrupted:
                    break
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
    took_s, others = round(time.monotonic() - began), round(max(before, taken_by_others()), 2)
    return Run(figures, versions, machine(), args.messages, args.rounds, took_s, today(), others), bench.interrupted


@contextlib.contextmanager
def _busy(processes: int) -> Iterator[None]:
    """So many processes beside that take a core each."""
    children = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def _show(progress: Progress, task: Any, text: str) -> None:
    progress.update(task, description=text)
    if not progress.console.is_terminal:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _arguments(name: str, words: Sequence[str]) -> argparse.Namespace:
    epilog = f"Parts, each with --help: {', '.join([*_CHOICES, *_PARTS])}."
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}".strip(), description=__doc__, epilog=epilog)
    parser.add_argument("--brokers", type=_brokers, default=list(_BROKERS),
                        help="comma-separated, with a version and 'quorum' if wanted: rabbitmq-4.3-quorum")  # fmt: skip
    parser.add_argument("--contenders", type=_words(KINDS), default=list(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--protocols", type=_words(PROTOCOLS), default=list(PROTOCOLS), help="not of Hazelcast")
    parser.add_argument("--guarantees", type=_words(GUARANTEES), default=list(GUARANTEES), help="of our source")
    parser.add_argument(
        "--ceilings", type=whole_numbers, default=CEILINGS, help="unacknowledged messages of the ceilings"
    )
    parser.add_argument("--messages", type=int, default=200_000, help="of a turn; slow contenders get a share of it")
    parser.add_argument("--rounds", type=int, default=3, help="that count; there is a warm-up before")
    parser.add_argument("--bodies", type=whole_numbers, default=[200], help="bytes of a body, comma-separated")
    parser.add_argument("--headers", nargs="?", const=[True], default=[False], type=_with_headers, metavar="both",
                        help="messages with application headers; 'both': with and without")  # fmt: skip
    parser.add_argument("--without-ids", nargs="?", const=[False], default=[True], type=_without_ids, metavar="both",
                        help="messages of RabbitMQ without IDs; 'both': with and without")  # fmt: skip
    parser.add_argument(
        "--busy", type=whole_numbers, default=[0], help="other processes that take a core, 0,1 for both"
    )
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of our source")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--load", type=Path, nargs="+", default=[], help="show these JSON files instead of measuring")
    parser.add_argument("--page", type=Path, nargs="?", const=_PAGE, help=f"page to write to, by default {_PAGE.name}")
    if name and name not in _CHOICES:
        parser.error(f"{name!r} is no part; there are {', '.join([*_CHOICES, *_PARTS])}")
    args = parser.parse_args([*_CHOICES.get(name, ()), *words])
    if args.json and args.load:
        parser.error("--json writes what was measured; --load measures nothing")
    return args


def _brokers(text: str) -> list[str]:
    _words(_BROKERS)(",".join(map(family, text.split(","))))
    return text.split(",")


def _words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for word in chosen:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return chosen

    return parse


def _with_headers(text: str) -> list[bool]:
    if text != "both":
        raise argparse.ArgumentTypeError(f"{text!r} is not 'both'")
    return [False, True]


def _without_ids(text: str) -> list[bool]:
    return _with_headers(text)[::-1]


if __name__ == "__main__":
    main()
