"""The figures of a page, between its markers, and the plots beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bars import bars, stacked
from benchmarks.contenders import OURS, RATE
from benchmarks.figures import GROUPS, Figures, ratios
from benchmarks.report import HEADINGS, Run, groups_of, row

__all__ = ["BEGIN", "END", "replaced", "write_page"]

BEGIN, END = "<!-- begin: written by make bench -->", "<!-- end: written by make bench -->"
_FOLDER = "performance"


def write_page(page: Path, runs: Sequence[Run]) -> None:
    """Write figures of one or several runs into a page that has the markers, plots into a folder beside it.

    Raises:
        ValueError: the page has no markers.
    """
    folder = page.parent / _FOLDER
    folder.mkdir(exist_ok=True)
    lines: list[str] = []
    for number, run in enumerate(runs):
        lines += _of_run(run, folder, f"-{number + 1}" if number else "")
    page.write_text(replaced(page.read_text("utf-8"), "\n".join(lines)), "utf-8")


def replaced(text: str, written: str) -> str:
    """The text with something else between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{written}\n{END}{after}"


def _of_run(run: Run, folder: Path, suffix: str) -> Iterator[str]:
    yield from (
        f"{run.machine} shared by broker, Spark and clients; medians of {run.rounds} rounds after a warm-up, "
        f"{run.messages:,} messages asked for, {run.seconds:,} s in all.",
        "",
    )
    for shape, broker, figures in groups_of(run):
        yield f"### {run.brokers[broker]}, {shape.title}"
        yield ""
        yield from _table(figures)
        measured = [one for one in figures if not one.problem and one.contender.kind != RATE]
        if measured:
            name = f"{broker}-{shape.body_bytes}{'-headers' if shape.headers else ''}{suffix}"
            yield from _plots(f"{run.brokers[broker]}, {shape.title}", name, measured, folder)
    for shape in dict.fromkeys(one.shape for one in run.figures):
        compared = ratios([one for one in run.figures if one.shape == shape])
        if compared:
            yield from (f"### Ratios, {shape.title}", "", "| | ratio |", "|---|---:|")
            yield from (f"| {name} | {ratio:.2f} |" for name, ratio in compared)
            yield ""


def _table(figures: Sequence[Figures]) -> Iterator[str]:
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---|" + "---:|" * (len(HEADINGS) - 1)
    for one in figures:
        texts = row(one, figures)
        if one.problem:
            texts = [texts[0], *["-"] * (len(HEADINGS) - 1)]
        yield f"| {' | '.join(texts)} |"
    yield ""
    for one in figures:
        if one.problem:
            yield f"{one.contender.name} could not be measured: {row(one, figures)[1]}"
            yield ""


def _plots(what: str, name: str, figures: Sequence[Figures], folder: Path) -> Iterator[str]:
    rates = [(one.contender.name, one.best_known_rate, one.contender.kind == OURS) for one in figures]
    cpu = [(one.contender.name, [(one.cpu_us or {}).get(group, 0.0) for group in GROUPS]) for one in figures]
    drawn = {
        f"{name}-rate.svg": bars(f"{what}: messages a second, steady", rates),
        f"{name}-cpu.svg": stacked(f"{what}: CPU µs a message", GROUPS, cpu),
    }
    for file, content in drawn.items():
        (folder / file).write_text(content, "utf-8")
        yield f"![{'messages a second' if 'rate' in file else 'CPU µs a message'}]({_FOLDER}/{file})"
    yield ""
