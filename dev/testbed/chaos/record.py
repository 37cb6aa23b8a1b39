"""What a soak knows of its run: messages by their numbers, in a byte for each.

A message's mark is the name of the run and its number; its ID is made of the mark and looks random. So the same number
is the same message after any restart, and it is enough to count how often each number was read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from testbed.chaos.audit import MARK_CHARS, Output, Verdict, committed_files
from testbed.chaos.chaos import Publisher, Send
from testbed.chaos.history import History, packed, unpacked

__all__ = ["Numbering", "Record", "RecordedPublisher"]

_DIGITS = 11
_LOOK_S = 2.0
_SHOWN = 5
_MOST = 255
#: The messages of the fault that is under way and of the one after it may be sent.
_AHEAD = 2


class Numbering:
    """Marks and IDs of numbered messages.

    Args:
        run: a name of as many characters as fit before the number.
    """

    def __init__(self, run: str) -> None:
        self._prefix = f"{run}-"
        if len(self._prefix) + _DIGITS != MARK_CHARS:
            raise ValueError(f"{run!r} has {len(run)} characters")

    def marks(self, first: int, count: int) -> list[str]:
        """What bodies begin with."""
        return [f"{self._prefix}{number:0{_DIGITS}d}" for number in range(first, first + count)]

    def ids(self, marks: Sequence[str]) -> list[str]:
        """Message IDs like those of producers that take random ones."""
        return [str(uuid.UUID(bytes=hashlib.blake2b(mark.encode(), digest_size=16).digest())) for mark in marks]

    def number(self, mark: str) -> int | str:
        """Of a mark; the mark itself if it is of another run."""
        tail = mark[len(self._prefix) :]
        return int(tail) if mark.startswith(self._prefix) and tail.isdigit() else mark

    def numbers(self, file: Path) -> list[int | str]:
        """Of the rows of a parquet file, in order."""
        heads = pc.binary_slice(pq.read_table(file, columns=["body"]).column(0), 0, MARK_CHARS)
        return [self.number(head.decode("utf-8", "replace")) for head in heads.to_pylist()]


class Record:
    """Looks at the output of the job now and then, and writes down what it sees.

    What was written down before is where it begins.

    Attributes:
        sent: messages confirmed, which are those with a number below.
        turns: faults tried. `faults`: how many of each were done.
        attempts: files that killed tasks left, and calls of a sink.
    """

    def __init__(self, history: History, numbering: Numbering, folder: Path) -> None:
        self.numbering = numbering
        self._history = history
        self._folder = folder / "output"
        self._report = folder / "counters.jsonl"
        self._calls = folder / "calls.jsonl"
        self.sent = 0
        self.turns = 0
        self.faults: dict[str, int] = {}
        self.attempts = 0
        #: For each number, how often it was read.
        self._read = bytearray()
        self._distinct = self._rows = 0
        self._foreign: list[str] = []
        self._told = 0
        self._attempted: set[str] = set()
        batch, files = -1, 0
        for operation in history.read():
            kind, value = operation["type"], operation["value"]
            if operation["f"] == "enqueue" and kind == "ok":
                self.sent = value[-1][1] + 1 if isinstance(value[-1], list) else value[-1] + 1
            elif operation["f"] == "dequeue":
                batch, files = operation["batch"], files + operation["files"]
                self._count(list(unpacked(value)))
            elif operation["f"] == "attempt":
                self._attempted.add(operation["file"])
                self.attempts += 1
            elif operation["f"] == "ack":
                self._told = operation["upto"]
            elif operation["f"] == "fault" and kind == "invoke":
                self.turns += 1
            elif operation["f"] == "fault" and kind == "ok":
                self.fault_done(value)
        self._output = Output(self._folder, last=batch, file_count=files)
        self._looked_s = 0.0

    @property
    def fault_count(self) -> int:
        """Faults done so far, of all kinds."""
        return sum(self.faults.values())

    def fault_done(self, name: str) -> None:
        """One more."""
        self.faults[name] = self.faults.get(name, 0) + 1

    # -- sending

    def enqueue(self, kind: str, marks: Sequence[str]) -> None:
        """Something about these messages."""
        self._history.add(kind, "enqueue", packed(map(self.numbering.number, marks)), "publisher")

    # -- reading

    def poll(self, *, at_once: bool = False) -> None:
        """Take in what is new, if it is time for that."""
        if not at_once and time.monotonic() - self._looked_s < _LOOK_S:
            return
        for batch in self._output.new():
            rows = [number for file in batch.files for number in self.numbering.numbers(file)]
            numbered = {"batch": batch.number, "since": batch.since, "files": len(batch.files)}
            self._history.add("ok", "dequeue", packed(rows), "sink", **numbered)
            self._count(rows)
        self._look_at_report()
        self._looked_s = time.monotonic()

    def _count(self, rows: Sequence[int | str]) -> None:
        for number in rows:
            if isinstance(number, str):
                self._foreign.append(number)
                continue
            if number >= len(self._read):
                self._read.extend(bytes(number + 1_000_000 - len(self._read)))
            self._distinct += not self._read[number]
            self._read[number] = min(_MOST, self._read[number] + 1)
        self._rows += len(rows)

    def _look_at_report(self) -> None:
        if not self._report.exists():
            return
        with self._report.open("rb") as report:
            report.seek(self._told)
            for line in report:
                if not line.endswith(b"\n"):
                    break
                self._told += len(line)
                with contextlib.suppress(ValueError):
                    told = json.loads(line)
                    if "settled" in told:
                        settled = {"run": told["run"], "batch": told["batch"], "settled": told["settled"]}
                        self._history.add("info", "ack", settled, "source", upto=self._told)

    def all_read(self, sent: int) -> bool:
        """Is every message there, of so many?"""
        self.poll(at_once=True)
        return len(self._read) >= sent and self._read.find(0, 0, sent) < 0

    def look_at_leftovers(self) -> None:
        """Write down what was tried: rows that killed tasks left, and all that a sink of periodic jobs was handed."""
        lines = self._calls.read_bytes().splitlines() if self._calls.exists() else []
        for number, line in enumerate(lines):
            if (name := f"call {number}") not in self._attempted:
                call = json.loads(line)
                self._attempt(name, [self.numbering.number(mark) for mark in call["marks"]], batch=call["batch"])
        committed = {file.name for file in committed_files(self._folder)}
        for file in sorted(self._folder.glob("part-*.parquet")):
            if file.name in committed or file.name in self._attempted:
                continue
            try:
                rows = self.numbering.numbers(file)
            except (pa.ArrowInvalid, OSError):
                continue  # killed before it was whole
            self._attempt(file.name, rows)

    def _attempt(self, name: str, rows: Sequence[int | str], **more: int) -> None:
        self._attempted.add(name)
        self.attempts += 1
        self._history.add("info", "attempt", packed(rows), "sink", file=name, **more)

    # -- the verdict

    def verdict(self, left: int) -> Verdict:
        """As :func:`testbed.chaos.audit.verdict`, by numbers."""
        read = self._read[: self.sent].ljust(self.sent, b"\0")
        missing = read.count(0)
        beyond = len(self._read) - self._read.count(0, 0, len(self._read)) - (self.sent - missing)
        extra = self._rows - self._distinct - len(self._foreign)
        twice = [number for number in range(min(len(self._read), 2**31)) if self._read[number] > 1] if extra else []
        unread: list[int] = []
        at = -1
        while len(unread) < _SHOWN and (at := read.find(0, at + 1)) >= 0:
            unread.append(at)
        return Verdict(
            sent=self.sent,
            output=self._rows,
            lost=max(0, missing - left),
            duplicated=extra,
            unexpected=beyond + len(self._foreign),
            left=left,
            examples={
                "missing": list(map(str, unread)),
                "duplicated": list(map(str, twice[:_SHOWN])),
                "unexpected": self._foreign[:_SHOWN],
            },
        )


class RecordedPublisher(Publisher):
    """Publishes numbered messages, goes on after those that were sent before, and writes down what it does.

    Messages are spread over the faults: each fault meets a queue that is being filled.
    """

    def __init__(self, record: Record, send: Send, messages: int, rate: int, faults: int) -> None:
        def allowed() -> int:
            return messages * (record.fault_count + _AHEAD) // max(1, faults)

        share = max(1, messages // max(1, faults))
        super().__init__(send, messages, rate, begin=record.sent, allowed=allowed, chunk=share)
        self._record = record

    def named(self, first: int, count: int) -> tuple[list[str], list[str]]:
        marks = self._record.numbering.marks(first, count)
        return marks, self._record.numbering.ids(marks)

    def attempt(self, marks: list[str]) -> None:
        self._record.enqueue("invoke", marks)

    def unsure(self, marks: list[str]) -> None:
        self._record.enqueue("info", marks)

    def confirmed(self, marks: list[str]) -> None:
        self._record.enqueue("ok", marks)
        self._record.sent += len(marks)
