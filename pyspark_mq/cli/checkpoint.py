"""Reads a checkpoint that Spark and this source have written, without starting Spark or the source.

A checkpoint has a folder ``offsets`` with a file for each planned batch, and a folder ``commits`` with a file for each
committed batch (Spark: ``HDFSMetadataLog.scala``, ``OffsetSeqLog.scala``). A file in ``offsets`` has a line with the
version of its format, a line with metadata, and a line for each source of the query. The line of a source without an
offset is ``-``. If a file is missing, or cannot be read or written, functions raise a CheckpointError.
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
from pyspark_mq.spark_source.folders import ID_FOLDER, below, is_uri, open_folder, resolve, shown_place
from pyspark_mq.spark_source.id_log import IdLog
from pyspark_mq.spark_source.offset import OffsetCodec
from pyspark_mq.wire.url import redact_in

__all__ = [
    "METADATA", "Checkpoint", "PlannedEpoch", "batch_of", "batches_in", "content_of", "failing_as", "names_in",
    "place_of", "read_batch", "read_checkpoint", "rewrite",
]  # fmt: skip

#: File with the query's ID. Without this file Spark refuses a checkpoint that has offsets.
METADATA = "metadata"
_VERSION = "v1"
#: Beginning of each offset of this source. It is always the same, because the keys of an offset have a fixed order.
_OURS = '{"v":'
#: Number of lines that precede the offsets in a file: the format's version, and metadata.
_LINES_BEFORE = 2


@dataclass(frozen=True, slots=True)
class PlannedEpoch:
    """An epoch of one source, as Spark's offset log describes it.

    Attributes:
        source: index of the source among the query's sources.
        batch: number of the Spark batch to which the epoch belongs.
        planned_at_s: when Spark wrote the offset, in seconds since 1970; None if the file does not say.
        offset: the offset at which the epoch ends, as it is in the file.
        position: the decoded `offset`.
        files: the ID log, the folder with the files of message IDs. One of the files belongs to the epoch.
        size: length of the offset's text, in characters.
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
        """Name of a queue -> IDs of the messages that the epoch planned from it, in order.

        Abandoned messages, without which an epoch was replayed after `pyspark-mq release`, are left out.
        """
        return planned_in(self.files, self.position.file)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest part of a checkpoint, from the last committed batch on.

    Attributes:
        place: the checkpoint's folder, without credentials.
        committed: number of the newest committed batch; None if no batch was committed.
        epochs: index of a source of format `mq` -> its epochs from the last committed batch on, newest first.
    """

    place: str
    committed: int | None
    epochs: Mapping[int, list[PlannedEpoch]]

    def open(self, source: int) -> PlannedEpoch | None:
        """Return the epoch of a source that a restart would rerun, or None if all its epochs are committed.

        An uncommitted batch may have no epoch of this source: if a query has several sources, and one of them has no
        new messages, the batch repeats that source's last offset.
        """
        newest, before = self.epochs[source][0], self.committed_of(source)
        return None if before is not None and before.offset == newest.offset else newest

    def committed_of(self, source: int) -> PlannedEpoch | None:
        """Return the last committed epoch of a source; None if no epoch was committed."""
        if self.committed is None:
            return None
        return next((one for one in self.epochs[source] if one.batch <= self.committed), None)


def place_of(text: str, argument: str) -> str:
    """Return the absolute path, or the URI, of a folder that a user passed to the command. The path may be relative.

    Raises:
        OptionError: neither this machine nor `pyarrow.fs` can open the folder.
    """
    try:
        place = resolve(text)
        return place if is_uri(place) else os.path.abspath(place)
    except ValueError as wrong:
        raise OptionError(argument, str(wrong)) from None


def read_checkpoint(place: str, id_log: str | None = None) -> Checkpoint:
    """Read the part of a checkpoint from which Spark would resume: the last committed batch, and later batches.

    Args:
        place: the `checkpointLocation`, as returned by :func:`place_of`.
        id_log: folder of the ID log, if it is outside the checkpoint.
    """
    shown, batches = shown_place(place), batches_in(place, "offsets")
    if not batches:
        raise CheckpointError(
            f"{shown}: there is no checkpoint, or no batch was planned yet (its folder 'offsets' has no file). Use the "
            "query's 'checkpointLocation'"
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
        raise CheckpointError(f"{shown}: the query has no source of format 'mq'")
    return Checkpoint(shown, committed, epochs)


def rewrite(place: str, planned: PlannedEpoch, offset: Mapping[str, Any]) -> None:
    """Replace the offset of an epoch in Spark's offset log.

    On a local disk Hadoop keeps a checksum next to each file, and refuses a file that does not match its checksum. But
    Hadoop accepts a file that has no checksum (``ChecksumFileSystem.java``). So this function first removes the
    checksum.
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
    """Return the names of the files in the folder `log` of a checkpoint or a sink.

    If `log` is empty, return the names of the files in the folder `place` itself.
    """
    with failing_as(place, f"its folder '{log}' cannot be read"):
        return set(open_folder(place, log).names())


def content_of(place: str, log: str, name: str) -> bytes:
    """Return the content of a file in the folder `log` of a checkpoint or a sink."""
    with failing_as(place, f"{log}/{name} cannot be read"):
        return open_folder(place, log).read(name)


def batches_in(place: str, log: str) -> set[int]:
    """Return the numbers of the batches that have a file in the folder `log` of a checkpoint or a sink."""
    return {batch for name in names_in(place, log) if (batch := batch_of(name)) is not None}


def batch_of(name: str) -> int | None:
    """Return the batch number in the name of a log file; None if the name has no batch number.

    A name is the number alone, or, in the log of a file sink, also a name like ``19.compact``.
    """
    number, _, kind = name.partition(".")
    return int(number) if number.isascii() and number.isdecimal() and kind in {"", "compact"} else None


@contextmanager
def failing_as(place: str, what: str) -> Iterator[None]:
    """Turn any error in this context into a CheckpointError with the text `what`, without credentials."""
    try:
        yield
    except Exception as failed:
        reason = redact_in(str(failed), place)
        raise CheckpointError(f"{shown_place(place)}: {what} ({type(failed).__name__}: {reason})") from failed


def read_batch(place: str, batch: int, id_log: str | None = None) -> dict[int, PlannedEpoch | None]:
    """Read a batch from Spark's offset log.

    Returns:
        index of each source of the query -> its epoch; None if the source is not of format `mq`, or has no offset yet.
    """
    content = content_of(place, "offsets", str(batch))
    with failing_as(place, f"offsets/{batch} cannot be read"):
        version, *rest = content.decode("utf-8").split("\n")
    if version.strip() != _VERSION:
        text = f"offsets/{batch} has format version {version!r:.20}, but this command reads only {_VERSION}"
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
            raise _damaged(place, batch, f"the offset of source {source} is cut off after {len(line)} characters")
        if {"v", "broker", "source", "crc"} <= offset.keys():
            at_s = written_at_ms / 1000 if isinstance(written_at_ms, int) and written_at_ms else None
            log = IdLog(id_log or below(place, ID_FOLDER), str(offset["source"]))
            planned[source] = PlannedEpoch(source, batch, at_s, offset, _position(offset), log, len(line))
    return planned


def _damaged(place: str, batch: int, how: str) -> CheckpointError:
    advice = f"Restore the file, or {START_ANEW}"
    return CheckpointError(f"{shown_place(place)}: offsets/{batch} is damaged: {how}. {advice}")


def _loaded(line: str) -> dict[str, Any]:
    """Parse a line as a JSON object. Return an empty object if the line is anything else."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _position(offset: Mapping[str, Any]) -> Position:
    source = str(offset["source"])
    return OffsetCodec(broker=str(offset["broker"]), source=source, ids="", destination=source).decode(dict(offset))
