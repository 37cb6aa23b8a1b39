"""A part of the benchmark: what is measured by one command, kept as JSON, and shown as a section of the page.

Side by side with others is the part that needs no name; the rest are `python -m benchmarks NAME`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import pyspark
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.page import FOLDER, rewrite, said_of_others
from testbed.commit import package_commit

__all__ = ["Part", "Say", "Table", "machine", "run_part", "taken_by_others", "today", "whole_numbers"]

#: Told what is being done.
Say = Callable[[str], None]

_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a section, with what belongs to it.

    Attributes:
        headings: the first is of the column of names, to the left.
        notes: paragraphs below it.
        plots: title -> SVG; the file is named after the title.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    plots: Mapping[str, str] = field(default_factory=dict)


class Part(ABC):
    """What one command measures. What it gives is plain enough for JSON."""

    name: str
    help: str

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its own options; their defaults take less than ten minutes."""

    @abstractmethod
    def measure(self, args: argparse.Namespace, say: Say) -> dict[str, Any]:
        """Run it.

        Raises:
            NodeError: a broker could not be had.
            DrainError: something that was measured gave up.
        """

    #: By what entries of `turns` are told apart, where results have such a list.
    turn_keys: tuple[str, ...] = ()

    def merged(self, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        """Results of two runs; what both have is that of now."""
        if "turns" not in earlier or "turns" not in now:
            return {**earlier, **now}
        turns = {tuple(one[key] for key in self.turn_keys): one for one in [*earlier["turns"], *now["turns"]]}
        return {**earlier, **now, "turns": list(turns.values())}

    @abstractmethod
    def tables(self, results: Mapping[str, Any]) -> list[Table]:
        """What :meth:`measure` gave, also as read from JSON, for people. Pure."""


def run_part(part: Part, words: Sequence[str], page: Path) -> None:
    """The command of a part.

    Args:
        words: behind the part's name.
        page: to write to when `--page` names none.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {part.name}", description=part.help)
    part.add_arguments(parser)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--load", type=Path, help="show this JSON file instead of measuring")
    parser.add_argument(
        "--add-to", type=Path, help="JSON file of an earlier run: what is not measured now is from there"
    )
    parser.add_argument("--page", type=Path, nargs="?", const=page,
                        help=f"write the section of this part to that page, by default {page.name}, "
                             f"and the JSON to {FOLDER}/{part.name}.json beside it")  # fmt: skip
    args = parser.parse_args(words)
    kept = json.loads(args.load.read_text("utf-8")) if args.load else _measured(part, args)
    if args.add_to:
        earlier = json.loads(args.add_to.read_text("utf-8"))
        kept = {
            **kept,
            "seconds": kept["seconds"] + earlier["seconds"],
            "cores_taken_by_others": max(kept["cores_taken_by_others"], earlier["cores_taken_by_others"]),
            "results": part.merged(earlier["results"], kept["results"]),
        }
    text = json.dumps(kept, indent=1) + "\n"
    if args.json:
        args.json.write_text(text, "utf-8")
    tables = part.tables(kept["results"])
    console = Console(width=200)
    for table in tables:
        _print(console, table)
    if args.page:
        folder = args.page.parent / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / f"{part.name}.json").write_text(text, "utf-8")
        rewrite(args.page, part.name, "\n".join(_section(part.name, kept, tables, folder)))


def _measured(part: Part, args: argparse.Namespace) -> dict[str, Any]:
    before = taken_by_others()
    began = time.monotonic()
    results = part.measure(args, lambda text: print(f"{time.strftime('%H:%M:%S')} {text}", flush=True))
    seconds = round(time.monotonic() - began)
    return {
        "date": today(),
        "machine": machine(),
        "seconds": seconds,
        "cores_taken_by_others": round(max(before, taken_by_others()), 2),
        "results": results,
    }


def machine() -> str:
    """What is measured, and what it runs on, in words."""
    software = f"commit {package_commit()}, Python {platform.python_version()}, pyspark {pyspark.__version__}"
    return f"{software}, {os.cpu_count()} cores"


def today() -> str:
    """ISO 8601, of UTC."""
    return datetime.now(timezone.utc).date().isoformat()


def taken_by_others() -> float:
    """Cores that are busy while this process does nothing, over two seconds."""
    return float(psutil.cpu_percent(_LOOK_S)) / 100 * (os.cpu_count() or 1)


def whole_numbers(text: str) -> list[int]:
    """A list of an option: `10000,100000`, also `10k,1m`."""
    factors = {"k": 1_000, "m": 1_000_000}
    found = []
    for word in text.lower().split(","):
        digits, factor = (word[:-1], factors[word[-1]]) if word[-1:] in factors else (word, 1)
        if not digits.isdecimal():
            raise argparse.ArgumentTypeError(f"{word!r} is no whole number such as 10000, 10k, 1m")
        found.append(int(digits) * factor)
    return found


def _print(console: Console, table: Table) -> None:
    shown = RichTable(title=table.title, title_justify="left")
    for place, heading in enumerate(table.headings):
        shown.add_column(heading, justify="right" if place else "left")
    for row in table.rows:
        shown.add_row(*row)
    shown.caption = "\n".join(table.notes)
    console.print(shown)


def _section(name: str, kept: Mapping[str, Any], tables: Sequence[Table], folder: Path) -> Iterator[str]:
    told = said_of_others(kept["cores_taken_by_others"])
    yield f"{kept['machine']}, {kept['date']}, {kept['seconds']:,} s in all ([JSON]({FOLDER}/{name}.json)).{told}"
    yield ""
    for table in tables:
        yield from (f"### {table.title}", "")
        yield f"| {' | '.join(table.headings)} |"
        yield "|---|" + "---:|" * (len(table.headings) - 1)
        yield from (f"| {' | '.join(row)} |" for row in table.rows)
        yield ""
        for note in table.notes:
            yield from (note, "")
        for title, drawn in table.plots.items():
            file = f"{name}-{'-'.join(title.lower().replace(',', '').split())}.svg"
            (folder / file).write_text(drawn, "utf-8")
            yield f"![{title}]({FOLDER}/{file})"
        if table.plots:
            yield ""
