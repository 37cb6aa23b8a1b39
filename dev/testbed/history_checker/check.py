#!/usr/bin/env python3
"""Reads the history of a run, as JSON lines or as EDN, and says whether every message arrived once.

    python dev/testbed/history_checker/check.py history.jsonl
    python dev/testbed/history_checker/check.py history.edn

A history is a line for each operation, of the shape that Jepsen's have, and this is all that is known of them here:
`index` without gaps from 0, `type` (invoke, ok, info, fail), `f`, `value`, `process`, `time`. After Jepsen's
total-queue:

* An `enqueue` that is `ok` is of messages that were taken, so they have to be dequeued, once.
* One that was invoked and has no ok may have been taken: these messages may be dequeued, once, or not at all.
* A `dequeue` that is `ok` is a batch of rows that readers see. What it has must have been invoked before.
* Batches are numbered from 0 without gaps (`since` to `batch`). One that is there again has the same rows in the same
order.
* An `attempt` is a part of a batch that was written before a kill and is not seen by readers: the batch that is seen
has
  these rows in this order, one after the other. So a replay was of the same rows. One that names its `batch` is all of
  it.
* `left`, at the end, is how many messages the queue still has, and has to be 0. A history without it is not finished,
nor is one
  that goes on after it, nor one of a `run` of so many `messages` of which fewer were taken. What is not finished does
  not hold.

The last line may be torn: it is then not counted, and the history is not finished. Exit code: 0 if all of it holds,
else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHOWN = 5
_ATTEMPTED, _TAKEN, _SEEN = 1, 2, 4
#: No run is that long; a number above it is a history gone wrong.
_NUMBER_MAX = 1 << 32


class Malformed(Exception):  # noqa: N818 - it is a finding
    """Something is no operation."""


@dataclass
class Kind:
    """One way to be wrong.

    Attributes:
        count: how often it was found.
        examples: the first of them.
    """

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def found(self, example: object, count: int = 1) -> None:
        """Once more."""
        self.count += count
        if len(self.examples) < _SHOWN:
            self.examples.append(str(example))


@dataclass
class Findings:
    """The verdict.

    Attributes:
        counts: what there is in the history, for the eye.
        wrong: kind -> what was found of it; those that were not found are there too.
    """

    counts: dict[str, int]
    wrong: dict[str, Kind]

    @property
    def holds(self) -> bool:
        """Is nothing wrong?"""
        return not any(kind.count for kind in self.wrong.values())


#: Every way to be wrong, and what it means.
WRONG = {
    "lost": "taken, and never dequeued",
    "duplicated": "dequeued more than once",
    "unexpected": "dequeued, and not sent before",
    "left": "messages still in the queue",
    "replayed otherwise": "a batch, or what was left of an attempt at it, has other rows",
    "batches missing": "not numbered one after the other",
    "unfinished": "the history does not end with a look at the queue",
    "malformed": "lines that are no operations, or are missing",
}


# -- reading ----------------------------------------------------------------------------------


def read(file: Path) -> Iterator[dict[str, Any] | None]:
    """Operations; None for a last line that is torn.

    Raises:
        Malformed: a line is not what it should be.
    """
    parse = parse_edn if file.suffix == ".edn" else json.loads
    with file.open("rb") as lines:
        for number, line in enumerate(lines):
            if not line.endswith(b"\n"):
                yield None
                return
            try:
                operation = parse(line.decode("utf-8"))
            except ValueError as error:
                raise Malformed(f"line {number + 1}: {error}") from None
            if not isinstance(operation, dict) or operation.get("index") != number:
                raise Malformed(f"line {number + 1} is not the operation with index {number}")
            yield operation


def parse_edn(text: str) -> Any:
    """A value in EDN, as far as histories use it: maps, vectors, lists, keywords, strings, numbers, booleans, nil."""
    value, end = _edn(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise ValueError(f"more than one value: {text[end : end + 20]!r}")
    return value


def _skip(text: str, at: int) -> int:
    while at < len(text) and (text[at].isspace() or text[at] == ","):
        at += 1
    return at


def _edn(text: str, at: int) -> tuple[Any, int]:
    sign = text[at : at + 1]
    if sign == "{":
        items, at = _sequence(text, at + 1, "}")
        if len(items) % 2:
            raise ValueError("a map with a key that has no value")
        return dict(zip(items[::2], items[1::2], strict=True)), at
    if sign and sign in "[(":
        return _sequence(text, at + 1, "]" if sign == "[" else ")")
    if sign == '"':
        # Strings have the escapes of JSON.
        return json.JSONDecoder(strict=False).raw_decode(text, at)
    end = at
    while end < len(text) and not text[end].isspace() and text[end] not in ',{}[]()"':
        end += 1
    return _atom(text[at:end]), end


def _sequence(text: str, at: int, closing: str) -> tuple[list[Any], int]:
    items: list[Any] = []
    while (at := _skip(text, at)) < len(text):
        if text[at] == closing:
            return items, at + 1
        item, at = _edn(text, at)
        items.append(item)
    raise ValueError(f"no {closing} at the end")


def _atom(word: str) -> Any:
    if word.startswith(":") and len(word) > 1:
        return word[1:]
    named = {"nil": None, "true": True, "false": False}
    if word in named:
        return named[word]
    try:
        return int(word.removesuffix("N"))
    except ValueError:
        return float(word)


def rows(values: Any) -> Iterator[int | str]:
    """The single values of a list in which `[first, last]` stands for all numbers from one to the other."""
    if not isinstance(values, list):
        raise Malformed(f"not a list: {values!r}")
    for value in values:
        if (
            isinstance(value, list)
            and len(value) == 2
            and all(_is_number(end) for end in value)
            and value[0] < value[1]
        ):
            yield from range(value[0], value[1] + 1)
        elif _is_number(value) or isinstance(value, str):
            yield value
        else:
            raise Malformed(f"not a message: {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _NUMBER_MAX


# -- judging ----------------------------------------------------------------------------------


class HistoryChecker:
    """What is known after some operations: a byte for each number, the batches by a hash of their rows."""

    def __init__(self) -> None:
        self.wrong = {name: Kind() for name in WRONG}
        self.counts = dict.fromkeys(
            [
                "operations",
                "sent",
                "unsure",
                "unsure and dequeued",
                "dequeued",
                "batches",
                "attempts at batches",
                "faults",
            ],
            0,
        )
        self._state = bytearray()
        self._settled: dict[str, int] = {}
        self._batches: dict[int, int] = {}
        self._next_batch = 0
        self.attempts: list[tuple[int | None, list[int | str]]] = []
        self._left: int | None = None
        self._wanted = 0

    def take(self, operation: dict[str, Any]) -> None:
        """The next operation.

        Raises:
            Malformed: it is none.
        """
        self.counts["operations"] += 1
        kind, f, value = operation.get("type"), operation.get("f"), operation.get("value")
        if kind not in {"invoke", "ok", "info", "fail"}:
            raise Malformed(f"operation {operation['index']} has the type {kind!r}")
        if f in {"run", "enqueue", "dequeue", "fault"}:
            self._left = None  # what was seen of the queue before is of no account
        if f == "run" and isinstance(value, dict):
            self._wanted = int(value.get("messages", 0))
        elif f == "enqueue":
            self._enqueue(str(kind), value)
        elif f == "dequeue" and kind == "ok":
            self._dequeue(operation)
        elif f == "attempt":
            self.attempts.append((operation.get("batch"), list(rows(value))))
            self.counts["attempts at batches"] += 1
        elif f == "ack" and isinstance(value, dict):
            self._settled[str(value.get("run"))] = int(value.get("settled", 0))
        elif f == "fault":
            self.counts["faults"] += kind == "ok"
        elif f == "left" and kind == "ok":
            self._left = int(value)  # type: ignore[arg-type]

    def _enqueue(self, kind: str, value: Any) -> None:
        mark = _TAKEN | _ATTEMPTED if kind == "ok" else _ATTEMPTED
        for number in rows(value):
            if isinstance(number, str):
                raise Malformed(f"sent a message without a number: {number!r}")
            self._reach(number)
            if kind == "ok" and not self._state[number] & _ATTEMPTED:
                raise Malformed(f"message {number} was taken and never sent")
            self._state[number] |= mark

    def _reach(self, number: int) -> None:
        if number >= len(self._state):
            self._state.extend(bytes(max(1 << 16, number + 1 - len(self._state))))

    def _dequeue(self, operation: dict[str, Any]) -> None:
        batch, since = operation.get("batch"), operation.get("since", operation.get("batch"))
        if not _is_number(batch) or not _is_number(since):
            raise Malformed(f"operation {operation['index']} names no batch")
        assert isinstance(batch, int)
        assert isinstance(since, int)
        values = list(rows(operation.get("value")))
        known = self._batches.get(batch)
        if known is not None:
            if known != _hash(values):
                self.wrong["replayed otherwise"].found(f"batch {batch}")
            return
        self._batches[batch] = _hash(values)
        self.counts["batches"] += batch - since + 1
        if since != self._next_batch:
            self.wrong["batches missing"].found(f"{since} after {self._next_batch - 1}")
        self._next_batch = batch + 1
        self.counts["dequeued"] += len(values)
        for value in values:
            if isinstance(value, str):
                self.wrong["unexpected"].found(repr(value))
                continue
            self._reach(value)
            if not self._state[value] & _ATTEMPTED:
                self.wrong["unexpected"].found(f"{value} in batch {batch}")
            if self._state[value] & _SEEN:
                self.wrong["duplicated"].found(f"{value} in batch {batch}")
            self._state[value] |= _SEEN

    def end(self) -> None:
        """No more operations."""
        sent = [bytes([state]) for state in range(8) if state & _TAKEN]
        self.counts["sent"] = sum(map(self._state.count, sent))
        self.counts["unsure"] = self._state.count(_ATTEMPTED) + self._state.count(_ATTEMPTED | _SEEN)
        self.counts["unsure and dequeued"] = self._state.count(_ATTEMPTED | _SEEN)
        self.counts["settled, as the source counts"] = sum(self._settled.values())
        lost, at = self._state.count(_ATTEMPTED | _TAKEN), -1
        while (at := self._state.find(_ATTEMPTED | _TAKEN, at + 1)) >= 0 and len(self.wrong["lost"].examples) < _SHOWN:
            self.wrong["lost"].found(at, 0)
        self.wrong["lost"].count = lost
        if self._left is None:
            self.wrong["unfinished"].found("no look at the queue after the last message")
        elif self._left:
            self.wrong["left"].found(self._left, self._left)
        if not self.counts["sent"]:
            self.wrong["unfinished"].found("nothing was sent")
        elif self.counts["sent"] < self._wanted:
            self.wrong["unfinished"].found(f"{self.counts['sent']} of {self._wanted} messages were taken")


def _hash(values: Iterable[int | str]) -> int:
    return hash(tuple(values))


def check(file: Path) -> Findings:
    """Checker a history."""
    checker = HistoryChecker()
    try:
        for operation in read(file):
            if operation is None:
                checker.wrong["malformed"].found("the last line is torn")
                checker.wrong["unfinished"].found("the last line is torn")
            else:
                checker.take(operation)
        _check_attempts(file, checker)
    except (Malformed, TypeError, ValueError) as error:
        checker.wrong["malformed"].found(error)
    checker.end()
    return Findings(checker.counts, checker.wrong)


def _check_attempts(file: Path, checker: HistoryChecker) -> None:
    """Look for the rows of each attempt in a batch. A second reading: they are known at the end only."""
    by_first: dict[int | str, list[list[int | str]]] = {}
    by_batch: dict[int, list[list[int | str]]] = {}
    for named, attempt in checker.attempts:
        if named is not None:
            by_batch.setdefault(named, []).append(attempt)
        elif attempt:
            by_first.setdefault(attempt[0], []).append(attempt)
    for operation in read(file) if checker.attempts else ():
        if operation is None or operation.get("f") != "dequeue" or operation.get("type") != "ok":
            continue
        values = list(rows(operation.get("value")))
        _check_named(operation, values, by_batch, checker.wrong["replayed otherwise"])
        for at, value in enumerate(values):
            if value in by_first:
                by_first[value] = [each for each in by_first[value] if values[at : at + len(each)] != each]
    for batch in by_batch:
        checker.wrong["replayed otherwise"].found(f"batch {batch} was handed over and is not there")
    for attempts in by_first.values():
        for attempt in attempts:
            checker.wrong["replayed otherwise"].found(
                f"no batch has the {len(attempt)} rows {attempt[0]} to {attempt[-1]}"
            )


def _check_named(
    operation: dict[str, Any], values: list[int | str], by_batch: dict[int, list[list[int | str]]], wrong: Kind
) -> None:
    """Compare a batch with the attempts that name it; with a part of it, where several were read as one."""
    since, until = operation.get("since", operation["batch"]), operation["batch"]
    for batch in range(since, until + 1):
        for attempt in by_batch.pop(batch, ()):
            starts = [0] if since == until else range(len(values) - len(attempt) + 1)
            end = len(values) if since == until else len(attempt)
            if not any(values[at : at + end] == attempt for at in starts):
                wrong.found(f"batch {batch} was handed over with {len(attempt)} other rows, too")


# -- telling ----------------------------------------------------------------------------------


def main() -> int:
    """Checker the history that is named."""
    parser = argparse.ArgumentParser(description="Checker the history of a run.")
    parser.add_argument("history", type=Path, help="JSON lines, or EDN if its name ends with .edn")
    findings = check(parser.parse_args().history)
    for name, count in findings.counts.items():
        print(f"{name:32}{count:>14,}")
    for name, kind in findings.wrong.items():
        print(f"{name:32}{kind.count:>14,}" + (f"   {WRONG[name]}: {', '.join(kind.examples)}" if kind.count else ""))
    print("It holds." if findings.holds else "IT DOES NOT HOLD.")
    return 0 if findings.holds else 1


if __name__ == "__main__":
    sys.exit(main())
