"""Record batches of a range: chunks are put together until it is worth it, and read at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from pyspark_mq.errors import MessageError
from pyspark_mq.sources.amqp10.arrays import COLUMN_TYPES, TIMESTAMP
from pyspark_mq.sources.amqp10.columns import PADDING, Messages, message_columns
from pyspark_mq.sources.amqp10.sections import SectionReader
from pyspark_mq.streams.chunk import ChunkError
from pyspark_mq.streams.ranges import Part, Range, read_range

__all__ = ["range_batches"]

#: A batch is as many bytes or records, or a chunk.
_BATCH_BYTES, _BATCH_RECORDS = 4 << 20, 20_000
_reader = SectionReader(counts_acquirers=False, names_annotations=True)


def range_batches(wanted: Range, name: str, schema: pa.Schema, *, unreadable_fails: bool) -> Iterator[pa.RecordBatch]:
    """Read a range as record batches.

    Args:
        name: of the stream or super stream, for column `destination`.
        schema: the columns.
        unreadable_fails: is a message that cannot be decoded an error, or a row with its bytes?

    Raises:
        MessageError: a message cannot be decoded, or a chunk cannot be unpacked.
        DataLossError, BrokerUnavailableError: see :func:`read_range`.
    """
    for parts in _together(read_range(wanted)):
        yield _batch(wanted, name, schema, parts, unreadable_fails=unreadable_fails)


def _together(parts: Iterable[Part]) -> Iterator[list[Part]]:
    held: list[Part] = []
    size = records = 0
    for part in parts:
        held.append(part)
        size += len(part.chunk.data)
        records += part.chunk.records
        if size >= _BATCH_BYTES or records >= _BATCH_RECORDS:
            yield held
            held, size, records = [], 0, 0
    if held:
        yield held


def _batch(
    wanted: Range, name: str, schema: pa.Schema, parts: Sequence[Part], *, unreadable_fails: bool
) -> pa.RecordBatch:
    messages = _messages(wanted.stream, parts)
    counts = [part.high - part.low for part in parts]
    firsts = np.array([part.chunk.first + part.low for part in parts], np.int64)
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
        times = np.repeat(np.array([part.chunk.timestamp_ms * 1000 for part in parts], np.int64), counts)
        columns["chunkTimestamp"] = pa.array(times).cast(TIMESTAMP)
    if "streamOffset" in schema.names:
        columns["streamOffset"] = pa.array(offsets)
    for column, text in (("destination", name), ("partition", wanted.stream)):
        if column in schema.names:
            columns[column] = pa.repeat(pa.scalar(text), len(offsets))
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _messages(stream: str, parts: Sequence[Part]) -> Messages:
    """Their records behind each other."""
    data, begins, ends, at = [], [], [], 0
    for chunk, low, high in parts:
        try:
            plain, starts = chunk.plain()
        except ChunkError as wrong:
            raise MessageError(
                f"stream '{stream}': the chunk at offset {chunk.first} has the bytes that were written, and they "
                f"cannot be read: {wrong}. Start behind it, at offset {chunk.end}, with 'startingOffsets' and a new "
                "checkpointLocation"
            ) from None
        where = np.array(starts, np.int64)
        begins.append(where[low:high] + at)
        ends.append(where[low + 1 : high + 1] + (at - 4))
        data.append(plain)
        at += len(plain)
    return Messages(b"".join([*data, PADDING]), np.concatenate(begins), np.concatenate(ends))
