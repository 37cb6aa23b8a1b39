"""The verdict over a run: what was sent, what is in the output, what is left.

After Jepsen's total-queue checker: multisets, and a name for every way they can differ.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

__all__ = ["MARK_CHARS", "Verdict", "committed_files", "output_marks", "print_rows", "verdict"]

#: A message is known by the first characters of its body: a random UUID.
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


def committed_files(folder: Path) -> list[Path]:
    """The files of a streaming file sink that count.

    Spark's file sink is exactly-once by its log: a task that was killed leaves files behind that
    no log entry names, and readers must not see them (``FileStreamSinkLog.scala``).
    """
    log = folder / "_spark_metadata"
    entries = [entry for entry in log.iterdir() if entry.name.partition(".")[0].isdigit()] if log.exists() else []
    compacted = [int(entry.stem) for entry in entries if entry.suffix == ".compact"]
    since = max(compacted, default=-1)
    files: list[Path] = []
    for entry in entries:
        if int(entry.stem) > since or entry.name == f"{since}.compact":
            for line in entry.read_text("utf-8").splitlines()[1:]:
                files.append(Path(unquote(urlsplit(json.loads(line)["path"]).path)))
    return files


def output_marks(folder: Path) -> list[str]:
    """The marks at the begin of the bodies of everything a streaming query wrote to a folder as parquet."""
    marks: list[str] = []
    for file in committed_files(folder):
        bodies = pq.read_table(file, columns=["body"]).column(0)
        marks += pc.cast(pc.binary_slice(bodies, 0, MARK_CHARS), pa.string()).to_pylist()
    return marks


def print_rows(console: Console, title: str, rows: dict[str, int], seconds: float) -> None:
    """A report: names, numbers, and the time it took."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, f"{value:,}")
    table.add_row("time", f"{seconds:,.0f} s")
    console.print(table)
