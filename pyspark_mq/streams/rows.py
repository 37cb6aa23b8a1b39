"""Makes Arrow record batches from the chunks of a range. Several chunks are decoded together, which is faster."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_mq.decode.amqp10 import message_columns
from pyspark_mq.decode.amqp10_columns import COLUMN_TYPES, PADDING, Messages
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.columns import TIMESTAMP
from pyspark_mq.errors import MessageError
from pyspark_mq.streams.chunk import ENTRY_BYTES_MAX, ChunkError
from pyspark_mq.streams.ranges import Part, Range, read_range

__all__ = ["range_batches"]

#: A batch ends as soon as it has this number of bytes or records, so its last record may make it larger.
_BATCH_BYTES, _BATCH_RECORDS = 4 << 20, 20_000
_log = logging.getLogger("pyspark_mq")
_reader = SectionReader(counts_acquirers=False, names_annotations=True)


def range_batches(
    wanted: Range, schema: pa.Schema, *, unreadable: str, max_entry_bytes: int = ENTRY_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Read a range of a stream as Arrow record batches.

    Args:
        wanted: the range.
        schema: the columns of the record batches.
        unreadable: what to do with an unreadable message or packed entry: `fail`, `row` or `reject`, as for option
            `onUnreadableMessage`.
        max_entry_bytes: maximum size of an unpacked entry. A larger entry counts as unreadable.

    Raises:
        MessageError: a message is unreadable, and `unreadable` is `fail`. See also :func:`read_range`.
    """
    pieces = (piece for part in read_range(wanted) for piece in _pieces(part, max_entry_bytes))
    for some in _together(pieces):
        yield _batch(wanted, schema, some, unreadable)


class _Piece(NamedTuple):
    """Consecutive records of a chunk, whose bytes are in one buffer. An unreadable packed entry is one record.

    Attributes:
        first: offset of the first record in the stream.
        timestamp_ms: time of the chunk.
        data: the buffer.
        begins: array with the position in the buffer at which each record begins.
        ends: array with the position in the buffer at which each record ends.
        broken: why a packed entry is unreadable; empty for readable records.
    """

    first: int
    timestamp_ms: int
    data: bytes
    begins: Any
    ends: Any
    broken: str = ""


def _pieces(part: Part, max_entry_bytes: int) -> Iterator[_Piece]:
    first, time_ms = part.chunk.first, part.chunk.timestamp_ms
    low, high = first + part.low, first + part.high
    for entry in part.entries:
        end = first + entry.records
        if low < end and first < high:
            try:
                data, begins = entry.unpacked(max_entry_bytes)
                edges = np.array(begins[max(low - first, 0) : high - first + 1], np.int64)
                yield from _slices(max(low, first), time_ms, data, edges)
            except ChunkError as wrong:
                # Several tasks may read parts of the entry. Only the task that reads its first offset reports it.
                if low <= first:
                    text = f"the packed entry with offsets {first} to {end - 1}: {wrong}"
                    yield _Piece(first, time_ms, entry.data, np.array([0]), np.array([len(entry.data)]), text)
        first = end


def _slices(first: int, time_ms: int, data: bytes, edges: Any) -> Iterator[_Piece]:
    """Yield records in pieces of at most the size of a batch, because decoding copies a piece several times.

    Args:
        first: offset of the first record in the stream.
        time_ms: time of the chunk.
        data: the records, each after its size in four bytes.
        edges: array with the position of each record in `data`, and the position that another record would have.
    """
    if len(data) <= _BATCH_BYTES:
        yield _Piece(first, time_ms, data, edges[:-1], edges[1:] - 4)
        return
    at, last = 0, len(edges) - 1
    while at < last:
        end = max(at + 1, int(np.searchsorted(edges, edges[at] + _BATCH_BYTES, "right")) - 1)
        some = edges[at : end + 1] - edges[at]
        yield _Piece(first + at, time_ms, data[edges[at] : edges[end]], some[:-1], some[1:] - 4)
        at = end


def _together(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Group pieces into batches, and yield the pieces of each batch. An unreadable entry is a batch of its own."""
    held: list[_Piece] = []
    size = records = 0
    for piece in pieces:
        if piece.broken and held:
            yield held
            held, size, records = [], 0, 0
        held.append(piece)
        size += len(piece.data)
        records += len(piece.begins)
        if size >= _BATCH_BYTES or records >= _BATCH_RECORDS or piece.broken:
            yield held
            held, size, records = [], 0, 0
    if held:
        yield held


def _batch(wanted: Range, schema: pa.Schema, pieces: Sequence[_Piece], unreadable: str) -> pa.RecordBatch:
    messages = _messages(pieces)
    counts = [len(piece.begins) for piece in pieces]
    firsts = np.array([piece.first for piece in pieces], np.int64)
    begins = np.concatenate(([0], np.cumsum(counts)))[:-1]
    offsets = np.repeat(firsts - begins, counts) + np.arange(sum(counts))
    names = [field.name for field in schema if field.name in COLUMN_TYPES]
    columns, bad = message_columns(messages, names, _reader)
    broken = pieces[0].broken
    if broken and "properties" in columns:
        columns["properties"] = pa.array([[("unreadable", broken)]], COLUMN_TYPES["properties"])
    if bad and unreadable != "row":
        text = (
            f"stream '{wanted.stream}': {len(bad)} message(s) among offsets {offsets[0]} to {offsets[-1]} cannot be "
            f"decoded, the first at offset {offsets[bad[0].tag]}: {broken or bad[0].error}"
        )
        if unreadable == "fail":
            advice = "'row' to get the messages' bytes as rows, or to 'reject' to omit these messages"
            raise MessageError(f"{text}. Set 'onUnreadableMessage' to {advice}")
        _log.error("%s. The query omits these messages, because 'onUnreadableMessage' is 'reject'", text)
    if "chunkTimestamp" in schema.names:
        times = np.repeat(np.array([piece.timestamp_ms * 1000 for piece in pieces], np.int64), counts)
        columns["chunkTimestamp"] = pa.array(times).cast(TIMESTAMP)
    if "streamOffset" in schema.names:
        columns["streamOffset"] = pa.array(offsets)
    for column, text in (("destination", wanted.name), ("partition", wanted.stream)):
        if column in schema.names:
            columns[column] = pa.repeat(pa.scalar(text), len(offsets))
    arrays = [columns[field.name].cast(field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if bad and unreadable == "reject":
        return batch.take(pa.array(np.delete(np.arange(len(offsets)), [one.tag for one in bad])))
    return batch


def _messages(pieces: Sequence[_Piece]) -> Messages:
    """Concatenate the records of several pieces into the form that the decoder reads."""
    shifts = accumulate((len(piece.data) for piece in pieces[:-1]), initial=0)
    spans = [(piece.begins + shift, piece.ends + shift) for piece, shift in zip(pieces, shifts, strict=True)]
    begins, ends = (np.concatenate(edges) for edges in zip(*spans, strict=True))
    return Messages(b"".join([*(piece.data for piece in pieces), PADDING]), begins, ends)
