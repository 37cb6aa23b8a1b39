"""Deliveries as columns: made in a receiver process, taken apart in the source process.

A :class:`Chunk` is what one session received in a row. Its columns are an Arrow record batch, in the form of Arrow IPC;
beside it are, pickled, what the books need of each delivery: tags, sizes, flags and IDs, which are of several types.
A raw delivery is then a handle, (chunk, row), and :class:`ChunkDecoder` answers for lists of those what the protocol's
decoder would for the deliveries themselves.

A batch is read where it is, without copying: in a mapped file without a name (`memfd_create`), or, if it is small,
in the bytes that came. It goes when its last row goes. So that a chunk of which hardly anything is kept does not stay
for that, :meth:`ChunkDecoder.compact` makes a smaller one.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import InternalError
from pyspark_mq.sources.connections.decoder import Decoder, Unreadable

__all__ = ["COLUMNS", "Chunk", "ChunkDecoder", "Raw", "arrow_array", "encode", "schema_of"]

_MESSAGE_ID = IdSource("message-id")
_TEXT, _MOMENT_US = pa.string(), pa.int64()

#: Columns of a decoder, as they are handed over.
COLUMNS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "properties": pa.map_(_TEXT, _TEXT),
        "correlationId": _TEXT,
        "replyTo": _TEXT,
        "contentType": _TEXT,
        "type": _TEXT,
        "priority": pa.int32(),
        "timestamp": _MOMENT_US,
        "expiration": _MOMENT_US,
        "redelivered": pa.bool_(),
        "deliveryCount": pa.int32(),
    }
)
_BODY = "body"
#: A bounded run asks for this one, whatever the schema has.
_ALWAYS = "timestamp"


# -- lists to Arrow ----------------------------------------------------------------------------


def arrow_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as :attr:`.Decoder.columns` has them, as an array of a type.

    Args:
        values: a list, or an array of :data:`COLUMNS`.
    """
    if isinstance(values, pa.Array):
        return values.cast(kind)
    if pa.types.is_map(kind):
        return _map_array(values, kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def _map_array(values: Sequence[list[tuple[str, str | None]] | None], kind: pa.DataType) -> pa.Array:
    # From offsets and flat lists: pyarrow walks nested Python pairs many times slower.
    ends = list(accumulate((len(pairs or ()) for pairs in values), initial=0))
    offsets = [None if pairs is None else at for pairs, at in zip(values, ends, strict=False)] + ends[-1:]
    flat = list(chain.from_iterable(pairs for pairs in values if pairs is not None))
    keys = pa.array([key for key, _ in flat], pa.string())
    items = pa.array([item for _, item in flat], pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items).cast(kind)


# -- a chunk -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Books:
    """What is asked of each delivery when it is entered, by row.

    Attributes:
        ids: under the query's IdSource; empty for hashes of bodies.
        hidden: row -> what hides the broker's ID there.
        unreadable: row -> the delivery that could not be decoded.
    """

    tags: array[int]
    sizes: array[int]
    redelivered: bytes
    ids: list[object]
    hidden: dict[int, list[str]]
    unreadable: dict[int, Unreadable]


class Chunk:
    """Deliveries that came in a row in one session.

    Attributes:
        books: by row, see :class:`_Books`.
        batch: body and columns, as an Arrow record batch.
    """

    __slots__ = ("batch", "books")

    def __init__(self, books: _Books, batch: pa.RecordBatch) -> None:
        self.books = books
        self.batch = batch

    def __len__(self) -> int:
        return len(self.books.tags)

    @property
    def raws(self) -> Iterator[Raw]:
        """A handle for each of its rows."""
        return zip(repeat(self), range(len(self)), strict=False)


#: A chunk and a row in it.
Raw: TypeAlias = "tuple[Chunk, int]"


def schema_of(names: Collection[str]) -> pa.Schema:
    wanted = {*names, _ALWAYS}
    return pa.schema([(_BODY, pa.binary()), *((name, kind) for name, kind in COLUMNS.items() if name in wanted)])


def encode(decoder: Decoder, raws: Sequence[Any], source: IdSource, names: Collection[str]) -> tuple[pa.Buffer, bytes]:
    """Deliveries as columns: the Arrow message of a record batch, and the pickled books.

    Args:
        decoder: of the protocol.
        raws: deliveries of one session, in order.
        source: where IDs are found.
        names: the columns that are wanted.
    """
    tags, bodies = decoder.tags(raws), decoder.bodies(raws)
    ids = [] if source.kind == "body-hash" else decoder.ids(raws, source)
    hidden: dict[int, list[str]] = {}
    if source == _MESSAGE_ID and None in ids and decoder.hidden(raws):
        hidden = {row: found for row, raw in enumerate(raws) if (found := decoder.hidden([raw]))}
    odd = {delivery.tag: delivery for delivery in decoder.unreadable(raws)}
    books = _Books(
        array("q", tags),
        array("q", map(len, bodies)),
        bytes(decoder.columns["redelivered"](raws)),
        ids,
        hidden,
        {row: odd[tag] for row, tag in enumerate(tags) if tag in odd} if odd else {},
    )
    schema = schema_of(names)
    ready = decoder.batch(raws, schema.names)
    arrays = [pa.array(bodies, pa.binary())]
    arrays += [arrow_array(decoder.columns[field.name](ready), field.type) for field in schema if field.name != _BODY]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch.serialize(), pickle.dumps(books, pickle.HIGHEST_PROTOCOL)


# -- its decoder -------------------------------------------------------------------------------


class _Rows(list[Raw]):
    """Deliveries of which columns are made as arrays."""

    def __init__(self, raws: Sequence[Raw]) -> None:
        super().__init__(raws)
        self.runs = list(_runs(raws))


def _runs(raws: Sequence[Raw]) -> Iterator[tuple[Chunk, Sequence[int]]]:
    """Neighbours of one chunk with their rows; a range where those are in order without a gap."""
    for chunk, group in groupby(raws, itemgetter(0)):
        rows = [row for _, row in group]
        whole = range(rows[0], rows[0] + len(rows))
        yield chunk, whole if rows == [*whole] else rows


def _picked(values: Any, rows: Sequence[int]) -> Any:
    return values[rows.start : rows.stop] if isinstance(rows, range) else [values[row] for row in rows]


def _arrays(raws: Sequence[Raw], name: str) -> list[pa.Array]:
    arrays = []
    for chunk, rows in raws.runs if isinstance(raws, _Rows) else _runs(raws):
        at = chunk.batch.schema.get_field_index(name)
        if at < 0:
            raise InternalError(f"column '{name}' was not asked of the receiver processes")
        column = chunk.batch.column(at)
        arrays.append(
            column.slice(rows.start, len(rows)) if isinstance(rows, range) else column.take(pa.array(rows, pa.int64()))
        )
    return arrays


def _column(name: str, kind: pa.DataType) -> Callable[[Sequence[Raw]], Any]:
    def make(raws: Sequence[Raw]) -> Any:
        arrays = _arrays(raws, name)
        if isinstance(raws, _Rows):
            return pa.concat_arrays(arrays) if arrays else pa.array([], kind)
        return [value for found in arrays for value in found.to_pylist()]

    return make


def _redelivered(raws: Sequence[Raw]) -> Any:
    if isinstance(raws, _Rows):
        return pa.array(_redelivered(list(raws)), pa.bool_())
    return [flag == 1 for chunk, rows in _runs(raws) for flag in _picked(chunk.books.redelivered, rows)]


class ChunkDecoder(Decoder):
    """Columns of :data:`Raw`, of whatever protocol they were."""

    shares_memory = True

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        return [tag for chunk, rows in _runs(raws) for tag in _picked(chunk.books.tags, rows)]

    def sizes(self, raws: Sequence[Raw]) -> list[int]:
        return [size for chunk, rows in _runs(raws) for size in _picked(chunk.books.sizes, rows)]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        return [body for found in _arrays(raws, _BODY) for body in found.to_pylist()]

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:  # noqa: ARG002 - the one it was encoded with
        return [found for chunk, rows in _runs(raws) for found in _picked(chunk.books.ids, rows)]

    def hidden(self, raws: Sequence[Raw]) -> list[str]:
        return [name for chunk, row in raws for name in chunk.books.hidden.get(row, ())]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        return [
            chunk.books.unreadable[row]
            for chunk, rows in _runs(raws)
            if chunk.books.unreadable
            for row in rows
            if row in chunk.books.unreadable
        ]

    def batch(self, raws: Sequence[Raw], names: Collection[str]) -> Sequence[Raw]:  # noqa: ARG002 - the same for all
        return _Rows(raws)

    def compact(self, raws: Sequence[Raw]) -> Sequence[Raw]:
        if not raws:
            return raws
        runs = list(_runs(raws))
        books = [(chunk.books, rows) for chunk, rows in runs]
        places = [(chunk.books, at, row) for at, (chunk, row) in enumerate(raws)]
        kept = _Books(
            array("q", self.tags(raws)),
            array("q", self.sizes(raws)),
            bytes(flag for book, rows in books for flag in _picked(book.redelivered, rows)),
            [found for book, rows in books for found in _picked(book.ids, rows)],
            {at: book.hidden[row] for book, at, row in places if row in book.hidden},
            {at: book.unreadable[row] for book, at, row in places if row in book.unreadable},
        )
        # By their numbers: a slice would go on referring to what it is a slice of.
        parts = [pa.Table.from_batches([chunk.batch]).take(pa.array(rows, pa.int64())) for chunk, rows in runs]
        (batch,) = pa.concat_tables(parts).combine_chunks().to_batches()
        return list(Chunk(kept, batch).raws)

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], Any]]] = MappingProxyType(
        {
            **{name: _column(name, kind) for name, kind in COLUMNS.items()},
            "redelivered": _redelivered,
            _BODY: _column(_BODY, pa.binary()),
        }
    )
