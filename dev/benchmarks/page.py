"""The figures of a page, between its markers, and the plots beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bars import bars, stacked
from benchmarks.contenders import OURS, RATE
from benchmarks.figures import GROUPS, Figures, kept_ratios, ratios
from benchmarks.report import HEADINGS, Run, groups_of, row

__all__ = ["FOLDER", "markers", "replaced", "rewrite", "said_of_others", "write_page"]

#: Of plots and JSON files, beside the page.
FOLDER = "performance"
#: Cores that others take from which on the page says so.
_TAKEN_MAX = 0.2


def write_page(page: Path, runs: Sequence[Run], part: str = "") -> None:
    """Write figures of one or several runs into a page that has the markers, plots into a folder beside it.

    Args:
        part: whose section it is; empty for that of everybody side by side.

    Raises:
        ValueError: the page has no markers.
    """
    folder = page.parent / FOLDER
    folder.mkdir(exist_ok=True)
    lines: list[str] = []
    for number, run in enumerate(runs):
        lines += _of_run(run, folder, (f"-{part}" if part else "") + (f"-{number + 1}" if number else ""))
    rewrite(page, part, "\n".join(lines))


def rewrite(page: Path, part: str, written: str) -> None:
    """Put something else into the section of a part, and leave the rest as it is.

    Raises:
        ValueError: the page has no markers for it.
    """
    page.write_text(replaced(page.read_text("utf-8"), written, part), "utf-8")


def said_of_others(cores: float | None) -> str:
    """What the page says when other programs used the machine; empty if they hardly did, or nobody looked."""
    if cores is None or cores < _TAKEN_MAX:
        return ""
    return f" Other programs used {cores:g} of the cores, so compare only the ratios of this run."


def markers(part: str = "") -> tuple[str, str]:
    """The lines around the section of a part."""
    command = f"make bench {part}".strip()
    return f"<!-- begin: written by {command} -->", f"<!-- end: written by {command} -->"


def replaced(text: str, written: str, part: str = "") -> str:
    """The text with something else between the markers of a part.

    Raises:
        ValueError: it does not have them.
    """
    begin, end = markers(part)
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"the page needs the lines {begin} and {end}")
    return f"{before}{begin}\n\n{written}\n{end}{after}"


def _of_run(run: Run, folder: Path, suffix: str) -> Iterator[str]:
    yield from (
        f"{run.machine} shared by broker, Spark and clients; medians of {run.rounds} rounds after a warm-up, "
        f"{run.messages:,} messages asked for, {run.seconds:,} s in all{f', {run.date}' if run.date else ''}."
        f"{said_of_others(run.cores_taken_by_others)}",
        "",
    )
    for shape, broker, figures in groups_of(run):
        yield f"### {run.brokers[broker]}, {shape.title}"
        yield ""
        yield from _table(figures)
        measured = [one for one in figures if not one.problem and one.contender.kind != RATE]
        if measured:
            name = f"{broker}-{shape.slug}{suffix}"
            yield from _plots(f"{run.brokers[broker]}, {shape.title}", name, measured, folder)
    for shape in dict.fromkeys(one.shape for one in run.figures):
        compared = ratios([one for one in run.figures if one.shape == shape])
        if compared:
            yield from (f"### Ratios, {shape.title}", "", "| | ratio |", "|---|---:|")
            yield from (f"| {name} | {ratio:.2f} |" for name, ratio in compared)
            yield ""
    kept = kept_ratios(run.figures)
    if kept:
        yield from ("### Kept beside busy processes", "", "| | ratio |", "|---|---:|")
        yield from (f"| {name} | {ratio:.2f} |" for name, ratio in kept)
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
        yield f"![{'messages a second' if 'rate' in file else 'CPU µs a message'}]({FOLDER}/{file})"
    yield ""
