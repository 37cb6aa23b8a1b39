"""The history of a run: what was done to it and what was seen of it, line by line, as JSON and as EDN.

The operations have the shape of Jepsen's: `type` (invoke, ok, info, fail), `f`, `value`, `process`, `time` in
nanoseconds since 1970, and an `index` without gaps. A line is with the kernel when :meth:`History.add` returns, so
a `kill -9` loses nothing that was said. It is also the journal a run is resumed from.

| f | type | value |
|---|---|---|
| `run` | info | what runs: seed, broker, versions; at each start and resumption |
| `enqueue` | invoke, ok, info | numbers of the messages; written before they are sent, ok when the broker has confirmed them all, info when nobody knows |
| `dequeue` | ok | the rows of a committed batch of the sink, in their order; `batch` is its number, `since` the first of several read as one |
| `attempt` | info | the rows of a file that a killed task left behind and no batch names; with `batch`, all that a sink was handed as that |
| `ack` | info | what the source says it has `settled` so far in its process `run`, as its report tells after a batch |
| `usage` | info | what the job uses at this moment: memory, threads, descriptors, the size of its newest offset |
| `fault` | invoke, ok, fail | its name; begin and end, fail if there was nothing to do it to |
| `left` | ok | messages in the queue at the end |

Values of enqueue, dequeue and attempt are lists of numbers and of pairs, first and last of a row of numbers; rows
that are none of this run's messages are strings.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["History", "Operation", "Values", "packed", "unpacked"]

Operation: TypeAlias = dict[str, Any]
Values: TypeAlias = list[Any]
_KEYWORDS = frozenset({"type", "f", "process"})


class History:
    """Writes `history.jsonl` and `history.edn` in a folder; goes on where a killed writer was.

    Thread-safe.
    """

    def __init__(self, folder: Path) -> None:
        self.json = folder / "history.jsonl"
        self.edn = folder / "history.edn"
        self._lock = threading.Lock()
        self._index = _mend(self.json, self.edn)
        self._json_file = self.json.open("ab")
        self._edn_file = self.edn.open("ab")

    def add(self, kind: str, f: str, value: Any, process: str, **more: Any) -> None:
        """Write an operation."""
        with self._lock:
            operation = {"index": self._index, "type": kind, "f": f, "process": process, "time": time.time_ns()}
            operation |= {"value": value, **more}
            self._json_file.write(_json_line(operation))
            self._json_file.flush()
            # Second: what it lacks after a kill is made again from the first.
            self._edn_file.write(_edn_line(operation))
            self._edn_file.flush()
            self._index += 1

    def read(self) -> Iterator[Operation]:
        """What was written so far."""
        return _read(self.json)

    def seconds(self) -> float:
        """For how long it was written, without the time between a run and its resumption."""
        total_ns = begun_ns = last_ns = 0
        for operation in self.read():
            if operation["f"] == "run":
                total_ns, begun_ns = total_ns + last_ns - begun_ns, operation["time"]
            last_ns = operation["time"]
        return (total_ns + last_ns - begun_ns) / 1e9

    def digest(self) -> str:
        """SHA-256 of the lines of JSON."""
        digest = hashlib.sha256()
        with self.json.open("rb") as lines:
            for line in lines:
                digest.update(line)
        return digest.hexdigest()

    def close(self) -> None:
        """Nothing is added any more."""
        self._json_file.close()
        self._edn_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def packed(values: Iterable[int | str]) -> Values:
    """Numbers that follow each other become pairs of the first and the last; the order is kept."""
    out: Values = []
    first = last = -1
    for value in values:
        if isinstance(value, int) and first >= 0 and value == last + 1:
            last = value
            continue
        if first >= 0:
            out.append([first, last] if last > first else first)
            first = -1
        if isinstance(value, int):
            first = last = value
        else:
            out.append(value)
    if first >= 0:
        out.append([first, last] if last > first else first)
    return out


def unpacked(values: Sequence[Any]) -> Iterator[int | str]:
    """The reverse of :func:`packed`."""
    for value in values:
        if isinstance(value, list):
            yield from range(value[0], value[1] + 1)
        else:
            yield value


def _json_line(operation: Operation) -> bytes:
    return json.dumps(operation, separators=(",", ":")).encode("ascii") + b"\n"


def _edn_line(operation: Operation) -> bytes:
    return _edn(operation).encode("ascii") + b"\n"


def _edn(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ((name, f":{item}" if name in _KEYWORDS else _edn(item)) for name, item in value.items())
        # What is no keyword is a key all the same.
        keys = (
            (f":{name}" if name.replace("-", "_").isidentifier() else json.dumps(name), text) for name, text in pairs
        )
        return "{" + ", ".join(f"{key} {text}" for key, text in keys) + "}"
    if isinstance(value, list):
        return "[" + " ".join(map(_edn, value)) + "]"
    # Strings, numbers and booleans are written alike.
    return "nil" if value is None else json.dumps(value)


def _read(file: Path) -> Iterator[Operation]:
    if file.exists():
        with file.open("rb") as lines:
            for line in lines:
                yield json.loads(line)


def _mend(json_file: Path, edn_file: Path) -> int:
    """Cut off a last line that a kill has torn, give the EDN what it lacks; how many lines there are."""
    count = _cut_torn_line(json_file)
    written = _cut_torn_line(edn_file)
    if written > count:
        raise ValueError(f"{edn_file} has more than {json_file}: they are not of one run")
    with edn_file.open("ab") as edn:
        for number, operation in enumerate(_read(json_file)):
            if number >= written:
                edn.write(_edn_line(operation))
    return count


def _cut_torn_line(file: Path) -> int:
    count = whole = 0
    with contextlib.suppress(FileNotFoundError), file.open("r+b") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                count += 1
                whole += len(line)
        lines.truncate(whole)
    return count
