"""The verdict over a run: what was sent, what is in the output, what is left.

After Jepsen's total-queue checker: multisets, and a name for every way they can differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

__all__ = [
    "MARK_CHARS",
    "Batch",
    "Output",
    "Verdict",
    "committed_files",
    "marks",
    "output_marks",
    "print_rows",
    "print_table",
    "verdict",
]

#: A message is known by the first characters of its body: a random UUID, or the name of a run and a number.
MARK_CHARS = 36
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the output of a run differs from what was sent.

    Attributes:
        sent: messages whose publishing the broker confirmed.
        output: rows in the output.
        lost: sent, and neither in the output nor in the queue.
        duplicated: rows in the output beyond the first of their message.
        unexpected: in the output and never sent.
        left: still in the queue, although the query had read all it could.
        examples: some IDs of each kind, for the eye.
    """

    sent: int
    output: int
    lost: int
    duplicated: int
    unexpected: int
    left: int
    examples: dict[str, list[str]]

    @property
    def holds(self) -> bool:
        """Is every message in the output, once, and the queue empty?"""
        return self.lost == self.duplicated == self.unexpected == self.left == 0 and self.sent > 0

    def rows(self) -> dict[str, int]:
        """The counts under the names that reports use."""
        return {
            "messages sent": self.sent,
            "in the output": self.output,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "unexpected": self.unexpected,
            "left in the queue": self.left,
        }


def verdict(sent: Iterable[str], output: Iterable[str], left: int) -> Verdict:
    """Compare IDs.

    Args:
        sent: IDs of the confirmed messages, each once.
        output: the IDs of all rows.
        left: messages in the queue after the query has ended.
    """
    expected = set(sent)
    counts = Counter(output)
    missing = expected - counts.keys()
    twice = {key: count - 1 for key, count in counts.items() if count > 1}
    foreign = counts.keys() - expected
    return Verdict(
        sent=len(expected),
        output=counts.total(),
        lost=max(0, len(missing) - left),
        duplicated=sum(twice.values()),
        unexpected=len(foreign),
        left=left,
        examples={
            "missing": sorted(missing)[:_SHOWN],
            "duplicated": sorted(twice)[:_SHOWN],
            "unexpected": sorted(foreign)[:_SHOWN],
        },
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """What a micro-batch wrote.

    Attributes:
        since, number: the batch; or the first and the last of several, where Spark has deleted what told them apart.
        files: in the order of their rows.
    """

    since: int
    number: int
    files: list[Path]


class Output:
    """The files of a streaming file sink that count, read as they come.

    Spark's file sink is exactly-once by its log: a task that was killed leaves files behind that
    no log entry names, and readers must not see them (``FileStreamSinkLog.scala``).

    Args:
        folder: of the sink.
        last: the last batch that was read.
        file_count: how many files all batches up to that one had.
    """

    def __init__(self, folder: Path, *, last: int = -1, file_count: int = 0) -> None:
        self._log = folder / "_spark_metadata"
        self.last = last
        self.file_count = file_count

    def new(self) -> Iterator[Batch]:
        """Batches that were committed since it was asked last, in order; each counts as read when it is handed out."""
        found = self._entries()
        while True:
            number = self.last + 1
            compact = False
            if number not in found:
                # Every tenth holds all before it as well, in their order; Spark deletes the others after a while.
                number = min(
                    (later for later, entry in found.items() if later >= number and _compact(entry)), default=-1
                )
                compact = number >= 0
            elif _compact(found[number]):
                compact = True
            if number < 0:
                return
            lines = found[number].read_text("utf-8").splitlines()[1:]
            files = [_path(line) for line in (lines[self.file_count :] if compact else lines)]
            since, self.last = self.last + 1, number
            self.file_count += len(files)
            # Not in the order in which the tasks ended. Of several batches it is unknown which files are whose.
            yield Batch(since, number, sorted(files, key=_part) if since == number else files)

    def _entries(self) -> dict[int, Path]:
        """Number -> file; the plain one where there are both."""
        found: dict[int, Path] = {}
        for entry in self._log.iterdir() if self._log.exists() else ():
            number = entry.name.partition(".")[0]
            if number.isdigit() and (int(number) not in found or not _compact(entry)):
                found[int(number)] = entry
        return found


def _compact(entry: Path) -> bool:
    return entry.suffix == ".compact"


def _path(line: str) -> Path:
    return Path(unquote(urlsplit(json.loads(line)["path"]).path))


def _part(file: Path) -> str:
    return file.name


def committed_files(folder: Path) -> list[Path]:
    """All files of a streaming file sink that count."""
    return [file for batch in Output(folder).new() for file in batch.files]


def marks(file: Path) -> list[str]:
    """The marks at the begin of the bodies in a parquet file."""
    bodies = pq.read_table(file, columns=["body"]).column(0)
    return pc.cast(pc.binary_slice(bodies, 0, MARK_CHARS), pa.string()).to_pylist()  # type: ignore[no-any-return]


def output_marks(folder: Path) -> list[str]:
    """The marks of everything a streaming query wrote to a folder as parquet."""
    return [mark for file in committed_files(folder) for mark in marks(file)]


def print_rows(console: Console, title: str, rows: dict[str, int], seconds: float) -> None:
    """A report: names, numbers, and the time it took."""
    print_table(
        console, title, {**{name: (f"{value:,}",) for name, value in rows.items()}, "time": (f"{seconds:,.0f} s",)}
    )


def print_table(console: Console, title: str, rows: Mapping[str, Sequence[object]]) -> None:
    """Names, and what there is of each; nothing where there are none."""
    if not rows:
        return
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column()
    for _ in next(iter(rows.values())):
        table.add_column(justify="right")
    for name, values in rows.items():
        table.add_row(name, *(value if isinstance(value, str) else f"{value:,}" for value in values))
    console.print(table)
