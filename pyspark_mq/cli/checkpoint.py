"""A checkpoint as Spark and this source have written it, read without either.

A checkpoint has a folder ``offsets`` with a file for each batch that was planned, and a folder ``commits`` with one for
each that was committed (Spark: ``HDFSMetadataLog.scala``, ``OffsetSeqLog.scala``). A file of offsets has a line with
its version, one with metadata, and one for each source of the query, ``-`` where it has none. What is not there or
cannot be read or written is a CheckpointError.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark_mq.dedup import Key
from pyspark_mq.errors import START_ANEW, CheckpointError, OptionError
from pyspark_mq.sources.journal import planned_in
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.url import redact_in
from pyspark_mq.spark_source.folders import ID_FOLDER, below, is_uri, open_folder, resolve, shown_place
from pyspark_mq.spark_source.id_log import IdLog
from pyspark_mq.spark_source.offset import OffsetCodec

__all__ = [
    "METADATA", "Checkpoint", "PlannedEpoch", "batch_of", "batches_in", "content_of", "failing_as", "names_in",
    "place_of", "read_batch", "read_checkpoint", "rewrite",
]  # fmt: skip

#: File with the ID of the query. Without it Spark refuses a checkpoint that has offsets.
METADATA = "metadata"
_VERSION = "v1"
#: How an offset of this source begins, in the order in which it is written.
_OURS = '{"v":'
#: Version and metadata.
_LINES_BEFORE = 2


@dataclass(frozen=True, slots=True)
class PlannedEpoch:
    """One epoch of one source, as its offset has it.

    Attributes:
        source: its place in the query.
        batch: Spark's number of the batch.
        planned_at_s: when Spark wrote it, seconds since 1970; None if it does not say.
        offset: as it stands there.
        position: what it says.
        files: of the journal.
        size: of its text, in characters.
    """

    source: int
    batch: int
    planned_at_s: float | None
    offset: Mapping[str, Any]
    position: Position
    files: IdLog
    size: int

    @property
    def planned(self) -> Mapping[str, Sequence[Key]]:
        """Name of a queue -> the IDs of the epoch, in order, without what it is run without."""
        return planned_in(self.files, self.position.file)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        place: the folder, without credentials.
        committed: the newest batch that was committed; None if there is none.
        epochs: of each source of this kind, by its place in the query: the newest batches, the last one first, up to
            the last committed.
    """

    place: str
    committed: int | None
    epochs: Mapping[int, list[PlannedEpoch]]

    def open(self, source: int) -> PlannedEpoch | None:
        """The epoch of a source that a restart would run again; None if all was committed.

        A batch of a query with several sources repeats the offset of one that had nothing new.
        """
        newest, before = self.epochs[source][0], self.committed_of(source)
        return None if before is not None and before.offset == newest.offset else newest

    def committed_of(self, source: int) -> PlannedEpoch | None:
        """The offset that a restart would go on from."""
        if self.committed is None:
            return None
        return next((one for one in self.epochs[source] if one.batch <= self.committed), None)


def place_of(text: str, argument: str) -> str:
    """A place that a user has given to a command; an OptionError if it cannot be opened.

    A path may be relative, and what is written down may not.
    """
    try:
        place = resolve(text)
        return place if is_uri(place) else os.path.abspath(place)
    except ValueError as wrong:
        raise OptionError(argument, str(wrong)) from None


def read_checkpoint(place: str, id_log: str | None = None) -> Checkpoint:
    """Read what Spark would go on from.

    Args:
        place: the `checkpointLocation`, as :func:`place_of` gives it.
        id_log: where the ID log is, if it is in no folder of the checkpoint.
    """
    shown, batches = shown_place(place), batches_in(place, "offsets")
    if not batches:
        raise CheckpointError(
            f"{shown}: there is no checkpoint, or nothing was planned yet (no file in its folder 'offsets'). Give the "
            "'checkpointLocation' of the query"
        )
    committed = max(batches_in(place, "commits"), default=None)
    epochs: dict[int, list[PlannedEpoch]] = {}
    for batch in sorted(batches, reverse=True):
        for source, planned in read_batch(place, batch, id_log).items():
            if planned is not None:
                epochs.setdefault(source, []).append(planned)
        if committed is not None and batch <= committed:
            break
    if not epochs:
        raise CheckpointError(f"{shown}: no source of the query is of format 'mq'")
    return Checkpoint(shown, committed, epochs)


def rewrite(place: str, planned: PlannedEpoch, offset: Mapping[str, Any]) -> None:
    """Put another offset in the place of that of an epoch.

    Hadoop keeps a checksum next to each file on a local disk, and refuses the file when it does not fit; without one it
    reads the file (``ChecksumFileSystem.java``). So the checksum goes first.
    """
    batch = str(planned.batch)
    with failing_as(place, f"offsets/{batch} cannot be written"):
        folder = open_folder(place, "offsets")
        lines = folder.read(batch).decode("utf-8").split("\n")
        lines[planned.source + _LINES_BEFORE] = json.dumps(offset)
        checksum = f".{batch}.crc"
        if checksum in folder.names():
            folder.remove(checksum)
        folder.replace(batch, "\n".join(lines).encode())


def names_in(place: str, log: str) -> set[str]:
    """Names of the files of one of Spark's logs."""
    with failing_as(place, f"its folder '{log}' cannot be read"):
        return set(open_folder(place, log).names())


def content_of(place: str, log: str, name: str) -> bytes:
    """The content of one of them."""
    with failing_as(place, f"{log}/{name} cannot be read"):
        return open_folder(place, log).read(name)


def batches_in(place: str, log: str) -> set[int]:
    """The batches that have a file in this log."""
    return {batch for name in names_in(place, log) if (batch := batch_of(name)) is not None}


def batch_of(name: str) -> int | None:
    """Batch number in a log file's name, or None. A file sink puts some batches together, as ``19.compact``."""
    number, _, kind = name.partition(".")
    return int(number) if number.isascii() and number.isdecimal() and kind in {"", "compact"} else None


@contextmanager
def failing_as(place: str, what: str) -> Iterator[None]:
    """Make whatever a store has against what is done here an error about the checkpoint, without credentials."""
    try:
        yield
    except Exception as failed:
        reason = redact_in(str(failed), place)
        raise CheckpointError(f"{shown_place(place)}: {what} ({type(failed).__name__}: {reason})") from failed


def read_batch(place: str, batch: int, id_log: str | None = None) -> dict[int, PlannedEpoch | None]:
    """A batch's epoch for each source of the query, by its place; None for a source of another kind."""
    content = content_of(place, "offsets", str(batch))
    with failing_as(place, f"offsets/{batch} cannot be read"):
        version, *rest = content.decode("utf-8").split("\n")
    if version.strip() != _VERSION:
        text = f"offsets/{batch} is of version {version!r:.20}, and {_VERSION} is what can be read here"
        raise CheckpointError(f"{shown_place(place)}: {text}")
    if len(rest) < _LINES_BEFORE:
        raise _damaged(place, batch, "it ends before the first offset")
    metadata, *lines = rest
    written_at_ms = _loaded(metadata).get("batchTimestampMs")
    planned: dict[int, PlannedEpoch | None] = {}
    for source, line in enumerate(lines):
        if not line:
            continue
        offset, planned[source] = _loaded(line), None
        if not offset and line.startswith(_OURS):
            raise _damaged(place, batch, f"the offset of source {source} ends after {len(line)} characters")
        if {"v", "broker", "source", "crc"} <= offset.keys():
            at_s = written_at_ms / 1000 if isinstance(written_at_ms, int) and written_at_ms else None
            log = IdLog(id_log or below(place, ID_FOLDER), str(offset["source"]))
            planned[source] = PlannedEpoch(source, batch, at_s, offset, _position(offset), log, len(line))
    return planned


def _damaged(place: str, batch: int, how: str) -> CheckpointError:
    advice = f"Restore the file, or {START_ANEW}"
    return CheckpointError(f"{shown_place(place)}: offsets/{batch} is damaged: {how}. {advice}")


def _loaded(line: str) -> dict[str, Any]:
    """The object of a line; empty if it is none."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _position(offset: Mapping[str, Any]) -> Position:
    source = str(offset["source"])
    return OffsetCodec(broker=str(offset["broker"]), source=source, ids="", destination=source).decode(dict(offset))
