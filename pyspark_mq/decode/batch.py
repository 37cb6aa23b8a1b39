"""Consecutive deliveries as one batch: the contract of all decoders.

A session appends batches and single deliveries to its inbox, with as little work as possible.
:meth:`DeliveryBatch.gather` merges the items into batches, and :func:`.make_block` reads IDs, bodies and the query's
columns from the batches.

A batch is immutable, so all methods may be called on any thread, any number of times. The values of a delivery do not
depend on the other deliveries in the batch, and do not change in a slice. Nothing blocks. No message content raises an
error: an undecodable message is a regular delivery, with its ID if the ID is readable, nulls for unknown columns, and
the reason in :attr:`DeliveryBatch.unreadable`.

Guarantee: a redelivery has the ID of the first delivery, and no other message has that ID.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_mq.brokers.base import PASSING_HEADERS, PASSING_PREFIXES
from pyspark_mq.decode.columns import COLUMNS
from pyspark_mq.dedup import IdSource, content_digest

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "BATCH_MIN",
    "INT32_MAX",
    "INT64_MAX",
    "MESSAGE_ID",
    "ROW_BYTES",
    "UNREADABLE_PROPERTY",
    "Column",
    "DeliveryBatch",
    "DictionaryColumn",
    "Unreadable",
    "array_of",
    "first_of_each",
    "listed",
]  # fmt: skip

#: Key in `properties` for the reason why a message is unreadable.
UNREADABLE_PROPERTY = "unreadable"
#: Bytes that a delivery takes in addition to its content, for its entries in a block, in the in-flight table and in an
#: epoch. Measured: 290 when received, 330 when planned.
ROW_BYTES = 330
#: Fewer deliveries than this are read one by one, which takes no longer (break-even measured at 30 to 40, over each
#: protocol).
BATCH_MIN = 40
#: The largest numbers of integer columns.
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
#: The default source of IDs: the message's own ID.
MESSAGE_ID = IdSource("message-id")
_SHOWN_CHARACTERS = 200
#: Columns that a producer sets, apart from properties and body.
_CONTENT = tuple(name for name, column in COLUMNS.items() if column.content)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A delivery that could not be decoded. It can be acknowledged or rejected like any other delivery.

    Attributes:
        known: readable fields, by the protocol's names.
        data: the bytes that could not be read.
    """

    tag: int
    known: Mapping[str, str]
    data: bytes = field(repr=False)
    error: str

    def __str__(self) -> str:
        """Return tag, readable fields and the reason, for errors and logs."""
        known = ", ".join(f"{name} {_shortened(value)!r}" for name, value in self.known.items())
        return f"delivery {self.tag} of the session ({known or 'no readable fields'}): {_shortened(self.error)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


class DictionaryColumn(NamedTuple):
    """A column in which many rows share values.

    Attributes:
        values: the distinct values.
        rows: index of each row's value, an integer array.
    """

    values: list[Any]
    rows: Any


def listed(column: Any) -> list[Any]:
    """Return a column of :attr:`DeliveryBatch.columns` as a list, whatever its form."""
    if isinstance(column, DictionaryColumn):
        return [column.values[row] for row in column.rows.tolist()]
    if not isinstance(column, pa.Array):
        return list(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if not pa.types.is_map(column.type):
        return list(column.to_pylist())
    pairs = [*zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True)]
    return [pairs[begin:end] for begin, end in pairwise(column.offsets.to_pylist())]


def first_of_each(pairs: Iterable[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Leave out pairs whose name occurred before, because Spark's functions fail on a map with a key twice.

    Different names may have the same text: a byte 0xff is shown as the four characters that another name may have.
    """
    found: dict[str, str | None] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return list(found.items())


def array_of(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column of :attr:`DeliveryBatch.columns` as an array of this type."""
    if isinstance(values, DictionaryColumn):
        if values.values == [None]:
            return pa.nulls(len(values.rows), kind)
        return array_of(values.values, kind).take(pa.array(values.rows))
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


#: A function from a batch to a column, see :attr:`DeliveryBatch.columns`.
Column: TypeAlias = "Callable[[Any], Any]"


class DeliveryBatch(ABC):
    """Consecutive deliveries of one session. Slices are batches, too.

    Attributes:
        tags: handles of the deliveries, an integer array. Tags ascend in order of arrival, and are unique within the
            session.
        unreadable: undecodable deliveries, by row. All methods include these deliveries. Their bodies are the received
            bytes, unknown columns are null, and `properties` has the reason under `UNREADABLE_PROPERTY`.
    """

    tags: Any
    unreadable: Mapping[int, Unreadable] = {}
    #: Properties that are not part of a message's content.
    passing: ClassVar[frozenset[str]] = PASSING_HEADERS
    #: column name -> function that returns this column of a batch. The column is an Arrow array, a
    #: :class:`DictionaryColumn`, or a list of values. A value is a str, int, bool or None. A timestamp is in
    #: microseconds since 1970, and a value of `properties` is a list of (str, str or None) pairs. `messageId`, `body`
    #: and `destination` come from elsewhere. All other columns are null.
    columns: ClassVar[Mapping[str, Column]]

    @classmethod
    def gather(cls, items: Sequence[Any], bytes_max: int) -> Iterator[DeliveryBatch]:
        """Merge the items of an inbox into batches, and yield the batches in order. Blocks are made from these batches.

        Args:
            bytes_max: the most bytes to merge.
        """
        held: list[Any] = []
        size, kind = 0, None
        for item in items:
            its_size = cls.size_of(item)
            its_kind = cls.kind(item, its_size)
            if held and (size + its_size > bytes_max or its_kind != kind):
                yield cls.of(held)
                held, size = [], 0
            held.append(item)
            size, kind = size + its_size, its_kind
        if held:
            yield cls.of(held)

    @classmethod
    def kind(cls, item: Any, size: int) -> object:  # noqa: ARG003 - for subclasses that override it
        """Return a value that neighbours in an inbox must share to be merged."""
        return isinstance(item, DeliveryBatch)

    @classmethod
    def size_of(cls, item: Any) -> int:
        """Return the number of bytes in an item as received, including headers."""
        return int(item.sizes.sum()) if isinstance(item, DeliveryBatch) else cls.size(item)

    @classmethod
    @abstractmethod
    def of(cls, items: Sequence[Any]) -> DeliveryBatch:
        """Merge batches and single deliveries into one batch, in order."""

    @classmethod
    @abstractmethod
    def size(cls, raw: Any) -> int:
        """Return the number of bytes in a single delivery, including headers."""

    def __len__(self) -> int:
        return len(self.tags)

    def __getitem__(self, places: slice) -> Self:
        return self.taken(np.arange(len(self))[places])

    @property
    def size_bytes(self) -> int:
        """Number of bytes in all deliveries as received, including headers, plus `ROW_BYTES` for each delivery."""
        return int(self.sizes.sum()) + ROW_BYTES * len(self)

    @abstractmethod
    def taken(self, places: Any) -> Self:
        """Return the deliveries at these places, an integer array in ascending order."""

    @property
    @abstractmethod
    def sizes(self) -> Any:
        """Number of bytes in each delivery as received, including headers. Decoded deliveries may take more."""

    @property
    def redelivered(self) -> Any:
        """Whether the broker has flagged each delivery as redelivered, as an array."""
        flags = array_of(self.columns["redelivered"](self), pa.bool_())
        return flags.fill_null(False).to_numpy(zero_copy_only=False)

    @abstractmethod
    def body(self) -> pa.Array:
        """Return bodies as bytes."""

    @abstractmethod
    def ids(self, source: IdSource) -> Sequence[object]:
        """Return each message's ID from this source, or None if the message has no ID there."""

    def digests(self) -> list[bytes]:
        """Return a 16-byte digest of each message as the producer sent it: properties, headers and body.

        Every delivery of a message has the same digest. The digest excludes delivery counts, routes, times to live, and
        dead-letter headers.
        """
        others = zip(self.given(), *(listed(self.columns[name](self)) for name in _CONTENT), strict=True)
        properties = listed(self.columns["properties"](self))
        digests = []
        for fields, pairs, body in zip(others, properties, self.body().to_pylist(), strict=True):
            lasting = [
                pair for pair in pairs if pair[0] not in self.passing and not pair[0].startswith(PASSING_PREFIXES)
            ]
            named = repr((fields, sorted(map(repr, lasting))))
            digests.append(content_digest(named.encode("utf-8", "surrogatepass"), body))
        return digests

    def given(self) -> list[object]:
        """Return the part of each delivery's content that no column covers: the producer's ID."""
        return [*self.ids(MESSAGE_ID)]

    @abstractmethod
    def not_redelivered(self) -> list[bool]:
        """Whether each delivery has neither the mark of an earlier delivery nor the mark of a dead letter."""

    def hidden(self) -> list[str]:
        """Return the producers' values that hide the broker's IDs; usually there are none."""
        return []

    def nothing(self) -> DictionaryColumn:
        """Return a column of nulls."""
        return DictionaryColumn([None], np.zeros(len(self), np.int64))
