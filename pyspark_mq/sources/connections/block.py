"""Blocks: deliveries as rows of Arrow record batches, from the moment they are decoded until a task reads them.

A :class:`Block` has consecutive deliveries of one session, or a few deliveries of several sessions of one queue. It has
the query's columns with their types, so the partitions of an epoch are made of slices of blocks. The in-flight table
refers to a row by its block and its number in the block. A new block comes with :class:`Metadata`: facts about each
delivery that are needed until the delivery is in the in-flight table.

A block stays in memory as long as anything refers to one of its rows. If only a few rows of a large block are left, or
if slow producers leave many small blocks, :meth:`BlockRows.joined` copies rows into a new block.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa

from pyspark_mq.decode.batch import ROW_BYTES, DeliveryBatch, Unreadable, array_of
from pyspark_mq.dedup import Key, TextKeys
from pyspark_mq.sources.connections.message_id import MessageIds

__all__ = [
    "Block",
    "BlockRows",
    "Metadata",
    "Row",
    "RowRange",
    "Run",
    "block_schema",
    "make_block",
]

#: The column that every block has, even if the query does not: the end of a bounded run may depend on its values.
_ALWAYS = pa.field("timestamp", pa.int64())
#: Name of the column that blocks do not have, because its value is the same for all rows of a queue.
_OF_THE_QUEUE = "destination"
#: Batches with fewer rows are merged before they are sent to a task.
_BATCH_ROWS_MIN = 500
_ID = "messageId"
#: Types of columns of variable size.
_TEXTS, _MAP = (pa.string().id, pa.binary().id), pa.map_(pa.string(), pa.string()).id
#: Number of bytes that each entry of a map takes in addition to its key and value: two offsets, and validity bits.
_ENTRY_BYTES = 9


#: Preallocated row numbers, shared by all blocks.
_NUMBERS = tuple(range(5_000))


@dataclass(frozen=True, slots=True)
class Metadata:
    """Facts about each delivery of a block, which are needed until the delivery is in the in-flight table.

    Attributes:
        tags: the delivery tags, in ascending order.
        keys: the key of each message: its ID, or the digest of its content, or None if it has neither. If every message
            has an ID that is text, this is a :class:`.TextKeys`. Empty for the guarantees `at-least-once` and `none`.
        not_redelivered: for each delivery, whether it is neither flagged as redelivered nor a dead letter. Empty if
            `keys` has no digests of contents.
        redelivered: boolean array: for each delivery, whether the broker flagged it as redelivered.
        hidden: values of properties `message-id` that hide the IDs given by the broker, so that these messages count as
            messages without an ID (ActiveMQ Classic over STOMP).
        unreadable: index of a row -> the delivery that could not be decoded.
    """

    tags: array[int]
    keys: Sequence[Key | None]
    not_redelivered: list[bool]
    redelivered: Any
    hidden: list[str]
    unreadable: dict[int, Unreadable]

    @property
    def is_plain(self) -> bool:
        """Whether every message could be decoded and has an ID that is text, if IDs are needed."""
        return not self.unreadable and (isinstance(self.keys, TextKeys) or not self.keys)

    def part(self, places: slice) -> Metadata:
        """Return the metadata of these rows. This may be called only if :attr:`is_plain` is true."""
        return Metadata(self.tags[places], self.keys[places], [], self.redelivered[places], [], {})


class Block:
    """Consecutive deliveries of one session, or a few deliveries of several sessions, as rows.

    Attributes:
        batch: the columns, see :func:`block_schema`. :meth:`BlockRows.move_to` replaces them by copies in the memory of
            an epoch's partitions.
        sizes: number of bytes for which each row counts in all limits, including its headers and a fixed overhead.
    """

    __slots__ = ("__weakref__", "batch", "sizes")

    def __init__(self, batch: pa.RecordBatch, sizes: array[int]) -> None:
        self.batch = batch
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> RowRange:
        """All rows of this block."""
        return RowRange(self, range(len(self)))


#: A block and the number of a row in it.
Row: TypeAlias = "tuple[Block, int]"


class RowRange(Sequence[Row]):
    """Consecutive rows of a block."""

    __slots__ = ("block", "numbers")

    def __init__(self, block: Block, numbers: range) -> None:
        self.block = block
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def size_bytes(self) -> int:
        """Size of these rows in bytes."""
        return sum(self.block.sizes[self.numbers.start : self.numbers.stop])

    def __iter__(self) -> Iterator[Row]:
        low, high = self.numbers.start, self.numbers.stop
        return zip(repeat(self.block), _NUMBERS[low:high] if high <= len(_NUMBERS) else self.numbers, strict=False)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> RowRange: ...
    def __getitem__(self, place: int | slice) -> Row | RowRange:
        if isinstance(place, slice):
            return RowRange(self.block, self.numbers[place])
        return self.block, self.numbers[place]


class Run(NamedTuple):
    """The rows of an epoch that come from one queue or topic.

    Attributes:
        name: name of the queue or topic.
        rows: the rows, in planned order.
    """

    name: str
    rows: BlockRows


def block_schema(query: pa.Schema) -> pa.Schema:
    """Return the schema of the blocks for a query with the columns in `query`."""
    fields = [field for field in query if field.name != _OF_THE_QUEUE]
    return pa.schema(fields if _ALWAYS.name in query.names else [*fields, _ALWAYS])


def make_block(batch: DeliveryBatch, ids: MessageIds, schema: pa.Schema) -> tuple[Metadata, Block]:
    """Create a block of consecutive deliveries of one session.

    Args:
        batch: the deliveries.
        ids: finds the IDs of the deliveries.
        schema: schema of the block.
    """
    values = ids.values(batch) if ids.exact or _ID in schema.names else []
    keys, digests = ids.keys(batch, values) if ids.exact else ([], False)
    no_id = not isinstance(keys, TextKeys) and None in keys
    metadata = Metadata(
        array("q", batch.tags.tolist()),
        keys,
        batch.not_redelivered() if digests else [],
        batch.redelivered,
        ids.hidden(batch) if no_id else [],
        dict(batch.unreadable),
    )
    columns: dict[str, Callable[[Any], Any]] = {
        _ID: lambda _: ids.texts(values),
        "body": lambda batch: batch.body(),
        **batch.columns,
    }
    arrays = [
        array_of(columns[field.name](batch), field.type) if field.name in columns else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    made = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return metadata, Block(made, _sizes(made, keys))


def _sizes(batch: pa.RecordBatch, keys: Sequence[Key | None]) -> array[int]:
    """Return the size of each row in bytes, including its key in the in-flight table. The batch must not be a slice."""
    sums = ROW_BYTES * np.arange(batch.num_rows + 1)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count == batch.num_rows:
            continue
        kind = column.type.id
        if kind in _TEXTS:
            ends = _ends(column)
            sums += ends
            if name == _ID:
                sums += ends  # the key is another copy
                keys = ()
        elif kind == _MAP and len(column.keys):
            ends = _ends(column)
            sums += _ENTRY_BYTES * ends + _ends(column.keys)[ends] + _ends(column.items)[ends]
    if keys:
        sums[1:] += np.cumsum([0 if key is None else len(key) for key in keys])
    return array("q", np.diff(sums).tobytes())


def _ends(column: pa.Array) -> Any:
    """Return the Arrow offsets of a column of texts, bytes or maps."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)


# -- rows of any blocks --------------------------------------------------------------------------


class BlockRows:
    """Rows from any number of blocks, in order.

    Args:
        stretches: pairs of a block and numbers of its rows. Rows that follow one another are given by a range, so that
            they can be read as a slice.
    """

    __slots__ = ("_ends", "stretches")

    def __init__(self, stretches: Sequence[tuple[Block, Sequence[int]]]) -> None:
        self.stretches = stretches
        self._ends = list(accumulate(len(numbers) for _, numbers in stretches))

    @classmethod
    def of(cls, *parts: Iterable[Row]) -> BlockRows:
        """Create an object with the rows of several iterables, one after the other."""
        stretches: list[tuple[Block, Sequence[int]]] = []
        for rows in parts:
            if isinstance(rows, RowRange):
                stretches.append((rows.block, rows.numbers))
                continue
            for block, group in groupby(rows, itemgetter(0)):
                numbers = [number for _, number in group]
                whole = range(numbers[0], numbers[0] + len(numbers))
                stretches.append((block, whole if numbers[-1] == whole[-1] and numbers == [*whole] else numbers))
        return cls(stretches)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def between(self, low: int, high: int) -> BlockRows:
        """Return the rows from index `low` up to, but not including, index `high`."""
        low, high = max(0, low), min(high, len(self))
        if low >= high:
            return BlockRows([])
        first, last = bisect_right(self._ends, low), bisect_left(self._ends, high)
        found: list[tuple[Block, Sequence[int]]] = []
        for (block, numbers), end in zip(self.stretches[first : last + 1], self._ends[first : last + 1], strict=True):
            begin = end - len(numbers)
            found.append((block, numbers[max(0, low - begin) : high - begin]))
        return BlockRows(found)

    @property
    def sizes(self) -> Any:
        """Array with the size of each row in bytes."""
        parts = [np.empty(0, np.int64)]
        for block, numbers in self.stretches:
            sizes = np.frombuffer(block.sizes, np.int64)
            parts.append(sizes[numbers.start : numbers.stop] if isinstance(numbers, range) else sizes[numbers])
        return np.concatenate(parts)

    @property
    def size_bytes(self) -> int:
        """Size of all rows in bytes."""
        return int(self.sizes.sum())

    def values(self, name: str) -> list[Any]:
        """Return the values of a column as a list. Times are microseconds since 1970."""
        found: list[Any] = []
        for batch in self._parts():
            column = batch.column(name)
            found += (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches with the rows, in order.

        Large batches are slices of blocks; small batches are merged.
        """
        small: list[pa.RecordBatch] = []
        count = 0
        for batch in self._parts():
            if count + len(batch) < _BATCH_ROWS_MIN:
                small.append(batch)
                count += len(batch)
                continue
            yield _concatenated([*small, batch])
            small, count = [], 0
        if small:
            yield _concatenated(small)

    def move_to(self, written: Iterator[pa.RecordBatch]) -> None:
        """Let blocks refer to a copy of their rows, so that the memory with the original rows is freed.

        A block is changed only if this object has all of its rows.

        Args:
            written: copies, in other memory, of the batches that :meth:`batches` has yielded. If a column is missing in
                a copy, it is copied from the block.
        """
        at, batch = 0, None
        for block, numbers in self.stretches:
            if batch is None or at == len(batch):
                at, batch = 0, next(written)
            if isinstance(numbers, range) and len(numbers) == len(block):
                copy, own = batch.slice(at, len(block)), block.batch
                columns = [
                    copy.column(name) if name in copy.schema.names else own.column(name).take(pa.array(numbers))
                    for name in own.schema.names
                ]
                block.batch = pa.RecordBatch.from_arrays(columns, schema=own.schema)
            at += len(numbers)

    def joined(self) -> Block:
        """Copy these rows into a new block, which shares no memory with the rows' blocks."""
        if len(self.stretches) == 1:  # copy by number, because a slice would keep the whole block in memory
            ((block, numbers),) = self.stretches
            parts = [block.batch.take(pa.array(numbers, pa.int64()))]
        else:
            parts = [*self._parts()]
        return Block(_concatenated(parts), array("q", self.sizes.tobytes()))

    def _parts(self) -> Iterator[pa.RecordBatch]:
        for block, numbers in self.stretches:
            if isinstance(numbers, range):
                yield block.batch.slice(numbers.start, len(numbers))
            else:
                yield block.batch.take(pa.array(numbers, pa.int64()))


def _concatenated(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    (batch,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return batch
