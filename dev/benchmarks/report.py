"""A run as tables for the terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from benchmarks.contenders import BARE, RATE, Contender, Shape
from benchmarks.figures import GROUPS, Figures, find, kept_ratios, ratios

__all__ = ["HEADINGS", "Run", "as_json", "from_json", "groups_of", "row", "tables"]

HEADINGS = ("", "messages", "messages/s", "lowest-highest", "steady", "MB/s", "epochs", "of bare",
            *(f"µs {group}" for group in GROUPS), "µs in all")  # fmt: skip
_PROBLEM_CHARS = 120


@dataclass(frozen=True, slots=True)
class Run:
    """What one command has measured.

    Attributes:
        figures: of each contender and shape.
        brokers: name and version of each.
        machine: what it ran on.
        messages, rounds: what was asked for.
        seconds: how long it took.
        date: ISO 8601; empty in files of before there was one.
        cores_taken_by_others: before or after; None where nobody looked.
    """

    figures: Sequence[Figures]
    brokers: dict[str, str]
    machine: str
    messages: int
    rounds: int
    seconds: int
    date: str = ""
    cores_taken_by_others: float | None = None


def as_json(run: Run) -> str:
    """All of it; :func:`from_json` reads it."""
    return json.dumps(asdict(run), indent=1) + "\n"


def from_json(text: str) -> Run:
    """What :func:`as_json` has written."""
    data = json.loads(text)
    data["figures"] = [
        Figures(**{**one, "contender": Contender(**one["contender"]), "shape": Shape(**one["shape"])})
        for one in data["figures"]
    ]
    return Run(**data)


def groups_of(run: Run) -> Iterator[tuple[Shape, str, list[Figures]]]:
    """Shape, broker, and the figures of both, in the order they were measured in."""
    for shape in dict.fromkeys(one.shape for one in run.figures):
        for broker in run.brokers:
            yield shape, broker, [one for one in run.figures if (one.shape, one.contender.broker) == (shape, broker)]


def row(one: Figures, figures: Sequence[Figures]) -> list[str]:
    """Texts for :data:`HEADINGS`; a problem is one text behind the name."""
    if one.problem:
        return [one.contender.name, one.problem.splitlines()[0][:_PROBLEM_CHARS]]
    cpu = one.cpu_us or {}
    return [
        one.contender.name,
        f"{one.messages:,}",
        f"{one.rate:,.0f}",
        f"{one.lowest:,.0f}-{one.highest:,.0f}",
        "" if one.steady is None else f"{one.steady:,.0f}",
        f"{one.megabytes:,.1f}",
        "" if one.epochs is None else f"{one.epochs:g}",
        _of_bare(one, figures),
        *("" if group not in cpu else f"{cpu[group]:.1f}" for group in GROUPS),
        f"{sum(cpu.values()):.1f}",
    ]


def _of_bare(one: Figures, figures: Sequence[Figures]) -> str:
    bare = find(figures, one.contender.broker, BARE, one.contender.protocol)
    if not bare or one.contender.kind == RATE:
        return ""
    return f"{one.best_known_rate / bare[0].rate:.2f}"


def tables(run: Run) -> Iterator[Table]:
    """A table for each shape and broker, and one of the ratios for each shape."""
    for shape, broker, figures in groups_of(run):
        title = f"{run.brokers[broker]}, {shape.title}, medians of {run.rounds}; {run.machine} shared by all"
        table = Table(title=title, title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        for one in figures:
            texts = row(one, figures)
            table.add_row(*texts) if not one.problem else table.add_row(texts[0], "-", "-")
        if any(one.problem for one in figures):
            said = [f"{one.contender.name}: {row(one, figures)[1]}" for one in figures if one.problem]
            table.caption = "could not be measured: " + "; ".join(said)
        yield table
    for shape in dict.fromkeys(one.shape for one in run.figures):
        table = Table("", "ratio", title=shape.title, title_justify="left")
        for name, ratio in ratios([one for one in run.figures if one.shape == shape]):
            table.add_row(name, f"{ratio:.2f}")
        if table.row_count:
            yield table
    kept = Table("", "ratio", title="Kept beside busy processes", title_justify="left")
    for name, ratio in kept_ratios(run.figures):
        kept.add_row(name, f"{ratio:.2f}")
    if kept.row_count:
        yield kept
