"""Deliveries as rows of an Arrow record batch: their only form, from receiving to a partition.

A :class:`Block` holds consecutive deliveries of one session, or a few of several sessions of one queue. A block has the
query's columns with their types, so a partition of an epoch consists of slices of blocks. The in-flight table refers to
a row as (block, number).
:class:`Metadata` accompanies a new block: facts about each delivery that are needed only until the in-flight table has
the delivery.

A block lives as long as anything refers to one of its rows. :meth:`BlockRows.joined` copies rows into a new block when
a few rows keep a large block alive, and when a trickle leaves many small blocks.
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

#: Column of every block, because the end of a bounded run may depend on its values.
_ALWAYS = pa.field("timestamp", pa.int64())
#: Column whose value depends on the queue and not on the delivery.
_OF_THE_QUEUE = "destination"
#: Batches with fewer rows are merged before they are sent to a task.
_BATCH_ROWS_MIN = 500
_ID = "messageId"
#: Types of columns of variable size.
_TEXTS, _MAP = (pa.string().id, pa.binary().id), pa.map_(pa.string(), pa.string()).id
#: Two offsets for each entry of a map, and two validity bits.
_ENTRY_BYTES = 9


#: Preallocated row numbers, shared by all blocks.
_NUMBERS = tuple(range(5_000))


@dataclass(frozen=True, slots=True)
class Metadata:
    """Facts about each delivery, by row. They are needed only until the in-flight table has the delivery.

    Attributes:
        tags: handles, ascending.
        keys: the ID of each message, or the digest of its content; None for a message with neither of them.
            :class:`.TextKeys` if every message has a text ID. Empty if messages are not distinguished.
        not_redelivered: for each delivery, True if nothing marks the message as delivered before. Empty if `keys` has
            no digests.
        redelivered: an array that tells for each delivery whether the broker flagged the delivery as redelivered.
        hidden: for messages without an ID, the value that hides the broker's ID.
        unreadable: row -> the delivery that could not be decoded.
    """

    tags: array[int]
    keys: Sequence[Key | None]
    not_redelivered: list[bool]
    redelivered: Any
    hidden: list[str]
    unreadable: dict[int, Unreadable]

    @property
    def is_plain(self) -> bool:
        """Whether every message can be read, and has a text ID if messages are distinguished."""
        return not self.unreadable and (isinstance(self.keys, TextKeys) or not self.keys)

    def part(self, places: slice) -> Metadata:
        """Return the metadata of some of the deliveries, which must be plain."""
        return Metadata(self.tags[places], self.keys[places], [], self.redelivered[places], [], {})


class Block:
    """Consecutive deliveries of one session.

    Attributes:
        batch: the deliveries' columns, see :func:`block_schema`. In a planned epoch, the columns are in memory shared
            with the epoch's tasks.
        sizes: bytes of each row, including headers and bookkeeping. All limits in bytes refer to these sizes.
    """

    __slots__ = ("__weakref__", "batch", "sizes")

    def __init__(self, batch: pa.RecordBatch, sizes: array[int]) -> None:
        self.batch = batch
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> RowRange:
        """All rows."""
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
        """Bytes of these rows."""
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
    """Consecutive rows of an epoch from one queue.

    Attributes:
        name: name of the queue or topic.
        rows: deliveries of this queue or topic, in planned order.
    """

    name: str
    rows: BlockRows


def block_schema(query: pa.Schema) -> pa.Schema:
    """Return the columns of blocks for a query with these columns."""
    fields = [field for field in query if field.name != _OF_THE_QUEUE]
    return pa.schema(fields if _ALWAYS.name in query.names else [*fields, _ALWAYS])


def make_block(batch: DeliveryBatch, ids: MessageIds, schema: pa.Schema) -> tuple[Metadata, Block]:
    """Create a block of consecutive deliveries of one session.

    Args:
        batch: the deliveries.
        ids: determines the deliveries' IDs.
        schema: the block's schema.
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
    """Return the bytes of each row, including the row's key. The batch must not be a slice."""
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
    """Return the offsets of a column of texts, bytes or maps."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)


# -- rows of any blocks --------------------------------------------------------------------------


class BlockRows:
    """Rows from any number of blocks, in order. Consecutive rows of a block form a stretch, which is read at once.

    Args:
        stretches: pairs of a block and row numbers. Row numbers that ascend without a gap are a range.
    """

    __slots__ = ("_ends", "stretches")

    def __init__(self, stretches: Sequence[tuple[Block, Sequence[int]]]) -> None:
        self.stretches = stretches
        self._ends = list(accumulate(len(numbers) for _, numbers in stretches))

    @classmethod
    def of(cls, *parts: Iterable[Row]) -> BlockRows:
        """Concatenate the rows of these iterables."""
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
        """Return the rows from place `low` to before place `high`."""
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
        """Bytes of each row, an array."""
        parts = [np.empty(0, np.int64)]
        for block, numbers in self.stretches:
            sizes = np.frombuffer(block.sizes, np.int64)
            parts.append(sizes[numbers.start : numbers.stop] if isinstance(numbers, range) else sizes[numbers])
        return np.concatenate(parts)

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return int(self.sizes.sum())

    def values(self, name: str) -> list[Any]:
        """Return a column as a list, with timestamps in microseconds since 1970."""
        found: list[Any] = []
        for batch in self._parts():
            column = batch.column(name)
            found += (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches. Large batches are slices; consecutive small batches are merged."""
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
        """Make each block whose rows are all here refer to a copy of these rows, so that the original memory is freed.

        Args:
            written: the batches of :meth:`batches`, in other memory. Columns that these batches lack are copied.
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
        if len(self.stretches) == 1:  # by row numbers, because a slice would keep its parent's memory
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
