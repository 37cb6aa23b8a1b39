"""The file of an epoch: what is written down before its offset is returned. Pure; its bytes are made elsewhere."""

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
    """An epoch that was committed and not settled, or contents that were left together.

    Attributes:
        number: of the epoch; for contents the connected seconds when they were left.
        contents: digests of contents.
        digests: of IDs.
        queues: how many messages it has of each.
        so_far: messages that were left when these contents were.
    """

    number: int
    contents: Any = field(default_factory=lambda: from_bytes(b""))
    digests: Any = field(default_factory=lambda: from_bytes(b""))
    queues: Mapping[str, int] = field(default_factory=dict)
    so_far: int = 0


@dataclass(frozen=True, slots=True)
class EpochFile:
    """What the file of an epoch has. A file is named by an empty text where it names itself.

    Attributes:
        epoch: its number.
        queues: names that were read.
        planned: keys of the epoch, in order.
        without_start: Spark (before 4.2) had not shown what is committed: the rest is in the file written next to it.
        connected_s: seconds for which every connection of the query was up, over all its processes.
        left_so_far: messages that were left, over all processes.
        settled: epochs that were settled since the file before.
        left: digests that were left since then.
        left_contents: contents that were left since then.
        settled_again: contents that were left, came, and were settled since then.
        repeating: contents that are known to repeat since then.
        base: the newest file with `unsettled` and `contents`; `after` has those that follow it.
        left_after: files with `left` that follow the newest of `left_parts`.
        window_parts, left_parts: files with a part of what is settled, and left, the oldest first.
        window_part, left_part: such a part, if it is in this file.
        unsettled: what was not settled then, the oldest first.
        contents: what was left of contents by then; `repeats`: those that are known to repeat.
        gone: files that are named no more, by the plan that was the last to name them, the oldest first.
        state: of Spark's log, in the first file of a process.
        without: records of what the epoch is run without that were there when this was written: it is without these.
        secret: of all digests (:class:`.Digester`), in hexadecimal digits. The same in all files that name each other.
    """

    epoch: int = 0
    queues: Sequence[str] = ()
    planned: ByQueue = field(default_factory=dict)
    without_start: bool = False
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
    without: int = 0
    secret: str = ""

    @property
    def names(self) -> set[str]:
        """Names of the other files that a load of this one reads."""
        every = {self.base or "", *self.after, *self.left_after, *self.window_parts, *self.left_parts}
        return every - {""}
