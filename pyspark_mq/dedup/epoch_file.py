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
    """A committed, unsettled epoch, or contents that were left open together.

    Attributes:
        number: number of the epoch; for contents, the value of `connected_s` when the contents were left open.
        contents: digests of contents.
        digests: digests of IDs.
        queues: number of messages of each queue.
        so_far: number of messages that were left open before these contents.
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
        epoch: number of the epoch.
        queues: names of the queues that were read.
        planned: keys of the messages that the epoch emits, in order.
        echoes: contents that the epoch acknowledges and does not emit, because an earlier one has emitted them.
        connected_s: seconds for which every connection of the query was up, over all its processes.
        left_so_far: number of messages left open so far, over all processes.
        settled: epochs settled since the previous file.
        left: digests of the IDs left open since the previous file.
        left_contents: contents left open since the previous file.
        repeating: contents found to repeat since the previous file.
        base: name of the newest file that has `unsettled` and `contents`; `after` lists the files that follow the base.
        left_after: files that follow the newest of `left_parts` and have IDs in `left`.
        window_parts, left_parts: files that have a part of the window, and files that have a part of the IDs left open.
            Both lists begin with the oldest file.
        window_part, left_part: the part of the window and the part of the IDs left open that this file has, if any.
        unsettled: epochs not settled when this file was written, oldest first.
        contents: contents that counted as left open when this file was written.
        repeats: contents known to repeat when this file was written.
        gone: files no longer named, grouped by the last plan that named them, oldest first.
        state: state of Spark's log, in the first file of a process.
        secret: secret of all digests (:class:`.Digester`), in hexadecimal. Files that name each other have one secret.
        start: number of the epoch after which this epoch was planned; -1 if that number is unknown.
    """

    epoch: int = 0
    queues: Sequence[str] = ()
    planned: ByQueue = field(default_factory=dict)
    echoes: ByQueue = field(default_factory=dict)
    connected_s: float = 0.0
    left_so_far: int = 0
    settled: Sequence[int] = ()
    left: Any = field(default_factory=lambda: from_bytes(b""))
    left_contents: Any = field(default_factory=lambda: from_bytes(b""))
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
        """Names of the other files that are read when this file is loaded."""
        every = {self.base or "", *self.after, *self.left_after, *self.window_parts, *self.left_parts}
        return every - {""}
