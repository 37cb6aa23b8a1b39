"""Record batches of a range: chunks are put together until it is worth it, and read at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_mq.errors import MessageError
from pyspark_mq.sources.amqp10.columns import COLUMN_TYPES, PADDING, TIMESTAMP, Messages, message_columns
from pyspark_mq.sources.amqp10.sections import SectionReader
from pyspark_mq.streams.chunk import ChunkError
from pyspark_mq.streams.ranges import Part, Range, read_range

__all__ = ["range_batches"]

#: A batch is as many bytes or records, or a packed entry.
_BATCH_BYTES, _BATCH_RECORDS = 4 << 20, 20_000
_reader = SectionReader(counts_acquirers=False, names_annotations=True)


def range_batches(wanted: Range, schema: pa.Schema, *, unreadable_fails: bool) -> Iterator[pa.RecordBatch]:
    """Read a range as record batches.

    Args:
        schema: the columns.
        unreadable_fails: is a message that cannot be decoded an error, or a row with its bytes?

    Raises:
        MessageError: a message cannot be decoded, or a chunk cannot be unpacked. See also :func:`read_range`.
    """
    pieces = (piece for part in read_range(wanted) for piece in _pieces(wanted.stream, part))
    for some in _together(pieces):
        yield _batch(wanted, schema, some, unreadable_fails=unreadable_fails)


class _Piece(NamedTuple):
    """Records of a chunk behind each other, in one piece of memory; `first` is the offset of the first."""

    first: int
    timestamp_ms: int
    data: bytes
    begins: Any
    ends: Any


def _pieces(stream: str, part: Part) -> Iterator[_Piece]:
    chunk, at = part.chunk, 0
    try:
        for data, begins in chunk.pieces():
            low, high = (min(max(0, edge - at), len(begins) - 1) for edge in (part.low, part.high))
            if low < high:
                where = np.array(begins[low : high + 1], np.int64)
                yield _Piece(chunk.first + at + low, chunk.timestamp_ms, data, where[:-1], where[1:] - 4)
            at += len(begins) - 1
    except ChunkError as wrong:
        raise MessageError(
            f"stream '{stream}': the chunk at offset {chunk.first} has the bytes that were written, and they "
            f"cannot be read: {wrong}. Start behind it, at offset {chunk.end}, with 'startingOffsets' and a new "
            "checkpointLocation"
        ) from None


def _together(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    held: list[_Piece] = []
    size = records = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece.data)
        records += len(piece.begins)
        if size >= _BATCH_BYTES or records >= _BATCH_RECORDS:
            yield held
            held, size, records = [], 0, 0
    if held:
        yield held


def _batch(wanted: Range, schema: pa.Schema, pieces: Sequence[_Piece], *, unreadable_fails: bool) -> pa.RecordBatch:
    messages = _messages(pieces)
    counts = [len(piece.begins) for piece in pieces]
    firsts = np.array([piece.first for piece in pieces], np.int64)
    begins = np.concatenate(([0], np.cumsum(counts)))[:-1]
    offsets = np.repeat(firsts - begins, counts) + np.arange(sum(counts))
    names = [field.name for field in schema if field.name in COLUMN_TYPES]
    columns, bad = message_columns(messages, names, _reader)
    if bad and unreadable_fails:
        first = f"the first at offset {offsets[bad[0].tag]}: {bad[0].error}"
        raise MessageError(
            f"stream '{wanted.stream}' has {len(bad)} message(s) that cannot be decoded among offsets {offsets[0]} to "
            f"{offsets[-1]}, {first}. Set 'onUnreadableMessage' to 'row' to have their bytes as rows"
        )
    if "chunkTimestamp" in schema.names:
        times = np.repeat(np.array([piece.timestamp_ms * 1000 for piece in pieces], np.int64), counts)
        columns["chunkTimestamp"] = pa.array(times).cast(TIMESTAMP)
    if "streamOffset" in schema.names:
        columns["streamOffset"] = pa.array(offsets)
    for column, text in (("destination", wanted.name), ("partition", wanted.stream)):
        if column in schema.names:
            columns[column] = pa.repeat(pa.scalar(text), len(offsets))
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _messages(pieces: Sequence[_Piece]) -> Messages:
    """Their records behind each other."""
    shifts = accumulate((len(piece.data) for piece in pieces[:-1]), initial=0)
    spans = [(piece.begins + shift, piece.ends + shift) for piece, shift in zip(pieces, shifts, strict=True)]
    begins, ends = (np.concatenate(edges) for edges in zip(*spans, strict=True))
    return Messages(b"".join([*(piece.data for piece in pieces), PADDING]), begins, ends)
