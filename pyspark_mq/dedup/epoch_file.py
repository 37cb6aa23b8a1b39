"""The content of an epoch's file in the ID log. The file is written before the epoch's offset is returned to Spark.

:mod:`pyspark_mq.spark_source.id_file` encodes the content as bytes. :mod:`.memory` says what is remembered and why.
"""

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
    """The messages of an epoch that is committed but not settled; or messages that were left open.

    A message is *left open* if its session or process ended before its acknowledgement was settled.

    Attributes:
        number: number of the epoch; for messages left open, the value of :attr:`EpochFile.connected_s` when they were
            left open.
        contents: digests of the contents of messages without an ID.
        digests: digests of the IDs of the other messages.
        queues: name of a queue -> number of its messages in the epoch.
        so_far: number of messages that had been left open before these messages.
    """

    number: int
    contents: Any = field(default_factory=lambda: from_bytes(b""))
    digests: Any = field(default_factory=lambda: from_bytes(b""))
    queues: Mapping[str, int] = field(default_factory=dict)
    so_far: int = 0


@dataclass(frozen=True, slots=True)
class EpochFile:
    """The content of an epoch's file: the epoch's messages, and what the memory must know after a restart.

    The memory is spread over several files (:mod:`.memory`), which refer to each other by name. A file refers to itself
    by an empty name. A message is *left open* if its session or process ended before its acknowledgement was settled. A
    content *repeats* if two messages have had it.

    Attributes:
        epoch: number of the epoch.
        queues: names of the queues that the query read.
        planned: name of a queue -> keys of the messages that the epoch emits, in order.
        echoes: name of a queue -> contents of messages that the epoch acknowledges but does not emit, because they are
            redeliveries of messages that an earlier epoch has emitted.
        connected_s: seconds for which every connection of the query was up, over all its processes.
        left_so_far: number of messages that were left open so far, over all processes.
        settled: numbers of the epochs that were settled since the previous file was written.
        left: digests of the IDs that were left open since the previous file was written.
        left_contents: digests of the contents that were left open since the previous file was written.
        repeating: digests of the contents that were found to repeat since the previous file was written.
        base: name of the *base*, the newest file that has `unsettled` and `contents`; None if there is no base yet.
        after: names of the files that were written after the base, oldest first.
        left_after: names of the files with IDs in `left` that were written after the newest of `left_parts`.
        window_parts: names of the files that have a part of the *window* (IDs of settled epochs), oldest first.
        left_parts: names of the files that have a part of the IDs left open, oldest first.
        window_part: digests of the part of the window that is in this file; empty if the file has no such part.
        left_part: digests of the part of the IDs left open that is in this file; empty if the file has no such part.
        unsettled: if this file is a base, the epochs that were not settled when it was written, oldest first.
        contents: if this file is a base, the contents that counted as left open when it was written.
        repeats: if this file is a base, the contents that were known to repeat when it was written.
        gone: names of files that no longer belong to the memory, grouped by the epoch that dropped them, oldest first.
        state: if this file is the first of a process, the state of Spark's log when it was written; otherwise empty.
        secret: secret of all digests (:class:`.Digester`), in hexadecimal. Files that refer to each other have the same
            secret.
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
        """The names of the other files that have to be read to load the memory from this file."""
        every = {self.base or "", *self.after, *self.left_after, *self.window_parts, *self.left_parts}
        return every - {""}
