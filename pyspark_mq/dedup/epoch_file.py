"""The content of an epoch's file, which is written before the epoch's offset is returned. Pure; encoded elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark_mq.dedup.digests import from_bytes
from pyspark_mq.dedup.identity import Key

__all__ = ["ByQueue", "EpochFile", "Snapshot"]

#: Name of a queue -> keys, in order.
ByQueue: TypeAlias = "Mapping[str, Sequence[Key]]"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed, unsettled epoch, or contents that were left together.

    Attributes:
        number: number of the epoch; for contents, the connected seconds at which they were left.
        contents: digests of contents.
        digests: digests of IDs.
        queues: number of messages of each queue.
        so_far: number of messages left before these contents.
    """

    number: int
    contents: Any = field(default_factory=lambda: from_bytes(b""))
    digests: Any = field(default_factory=lambda: from_bytes(b""))
    queues: Mapping[str, int] = field(default_factory=dict)
    so_far: int = 0


@dataclass(frozen=True, slots=True)
class EpochFile:
    """The content of an epoch's file. A file refers to itself by an empty name.

    Attributes:
        epoch: its number.
        queues: names of the queues that were read.
        planned: keys of the epoch, in order.
        connected_s: seconds for which every connection of the query was up, over all its processes.
        left_so_far: number of messages left, over all processes.
        settled: epochs settled since the previous file.
        left: digests of IDs left since the previous file.
        left_contents: contents left since the previous file.
        settled_again: contents that were left, and have been redelivered and settled since the previous file.
        repeating: contents found to repeat since the previous file.
        base: the newest file with `unsettled` and `contents`; `after` lists the files after it.
        left_after: files with `left` after the newest of `left_parts`.
        window_parts, left_parts: files with a part of the window and of the left IDs, oldest first.
        window_part, left_part: such a part in this file, if any.
        unsettled: epochs not settled when this file was written, oldest first.
        contents: contents left by the time this file was written; `repeats`: contents known to repeat.
        gone: files no longer named, grouped by the last plan that named them, oldest first.
        state: state of Spark's log, in the first file of a process.
        secret: secret of all digests (:class:`.Digester`), in hexadecimal. Files that name each other share it.
        start: number of the epoch after which this epoch was planned; -1 if that is unknown.
    """

    epoch: int = 0
    queues: Sequence[str] = ()
    planned: ByQueue = field(default_factory=dict)
    connected_s: float = 0.0
    left_so_far: int = 0
    settled: Sequence[int] = ()
    left: Any = field(default_factory=lambda: from_bytes(b""))
    left_contents: Any = field(default_factory=lambda: from_bytes(b""))
    settled_again: Any = field(default_factory=lambda: from_bytes(b""))
    repeating: Any = field(default_factory=lambda: from_bytes(b""))
    base: str | None = None
    after: Sequence[str] = ()
    left_after: Sequence[str] = ()
    window_parts: Sequence[str] = ()
    left_parts: Sequence[str] = ()
    window_part: Any = field(default_factory=lambda: from_bytes(b""))
    left_part: Any = field(default_factory=lambda: from_bytes(b""))
    unsettled: Sequence[Snapshot] = ()
    contents: Sequence[Snapshot] = ()
    repeats: Any = field(default_factory=lambda: from_bytes(b""))
    gone: Sequence[Sequence[str]] = ()
    state: str = ""
    secret: str = ""
    start: int = -1

    @property
    def names(self) -> set[str]:
        """Names of the other files that are read when this one is loaded."""
        every = {self.base or "", *self.after, *self.left_after, *self.window_parts, *self.left_parts}
        return every - {""}
