"""Batches of consecutive deliveries: the interface that the decoders of all protocols implement.

A session only appends received batches and single deliveries to its inbox (:attr:`.ReceiveBuffer.inbox`). Later,
on another thread, :meth:`DeliveryBatch.gather` merges the items of the inbox into larger batches. From these batches
:func:`.make_block` takes IDs, bodies and the query's columns.

A batch is immutable, so its methods may be called on any thread, any number of times. The methods do not block. The
values of a delivery do not depend on the other deliveries in the batch, so a slice of the batch has the same values.

A message that cannot be decoded does not raise an error. It is a delivery like others: its ID is set if the ID can be
read, its unknown columns are null, and the reason is in :attr:`DeliveryBatch.unreadable`.

Guarantee: a redelivery has the same ID as the first delivery of the message. Different messages have different IDs if
the producer or the broker has set IDs that differ as text.
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

#: Key in column `properties` whose value says why a message is unreadable.
UNREADABLE_PROPERTY = "unreadable"
#: Bytes of memory that a delivery takes in addition to its content, for its entries in a block, in the in-flight table
#: and in an epoch. Measured: 290 bytes after it was received, 330 after it was planned.
ROW_BYTES = 330
#: Fewer messages than this are decoded one by one, which is not slower than decoding them together. Both took the same
#: time for 30 to 40 messages, measured with each protocol.
BATCH_MIN = 40
#: The largest numbers that fit into integer columns of 32 and 64 bits.
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
#: The default source of IDs: the message's own ID.
MESSAGE_ID = IdSource("message-id")
_SHOWN_CHARACTERS = 200
#: Columns whose values the producer sets, except the properties and the body.
_CONTENT = tuple(name for name, column in COLUMNS.items() if column.content)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A delivery that could not be decoded. It can be acknowledged or rejected like any other delivery.

    Attributes:
        tag: the delivery's number in its session.
        known: the fields that could be read, by their names in the protocol.
        data: the bytes that could not be decoded.
        error: why they could not be decoded.
    """

    tag: int
    known: Mapping[str, str]
    data: bytes = field(repr=False)
    error: str

    def __str__(self) -> str:
        """Return a description for errors and logs, with the tag, the readable fields and the reason."""
        known = ", ".join(f"{name} {_shortened(value)!r}" for name, value in self.known.items())
        return f"delivery {self.tag} of the session ({known or 'no readable fields'}): {_shortened(self.error)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


class DictionaryColumn(NamedTuple):
    """A column in which many rows have the same value, stored as its distinct values.

    Attributes:
        values: the distinct values.
        rows: index of each row's value, an integer array.
    """

    values: list[Any]
    rows: Any


def listed(column: Any) -> list[Any]:
    """Convert a column from any of the forms of :attr:`DeliveryBatch.columns` to a list of values."""
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
    """Remove pairs whose name has occurred before, because Spark's functions fail on a map that has a key twice.

    A name is repeated if two different names of a message become the same text. For example, byte 0xff is shown as the
    four characters ``\\xff``, and another name may consist of just these characters.
    """
    found: dict[str, str | None] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return list(found.items())


def array_of(values: Any, kind: pa.DataType) -> pa.Array:
    """Convert a column from any of the forms of :attr:`DeliveryBatch.columns` to an Arrow array of type `kind`."""
    if isinstance(values, DictionaryColumn):
        if values.values == [None]:
            return pa.nulls(len(values.rows), kind)
        return array_of(values.values, kind).take(pa.array(values.rows))
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


#: A function that returns a column of the batch that it is given, see :attr:`DeliveryBatch.columns`.
Column: TypeAlias = "Callable[[Any], Any]"


class DeliveryBatch(ABC):
    """Consecutive deliveries of one session. A slice of a batch is a batch, too.

    Attributes:
        tags: integer array with the numbers by which the session identifies the deliveries. Tags ascend in order of
            arrival, and are unique within the session.
        unreadable: by row, descriptions of the deliveries that could not be decoded. All methods include these
            deliveries. Their bodies are the received bytes, their unknown columns are null, and their `properties` have
            the reason under `UNREADABLE_PROPERTY`.
    """

    tags: Any
    unreadable: Mapping[int, Unreadable] = {}
    #: Names of properties that are not part of a message's content, because they may differ between deliveries.
    passing: ClassVar[frozenset[str]] = PASSING_HEADERS
    #: By column name, the function that returns this column of a batch. The column is an Arrow array, a
    #: :class:`DictionaryColumn`, or a list of values. A value is a str, int, bool or None. A timestamp is in
    #: microseconds since 1970, and a value of `properties` is a list of (str, str or None) pairs. Columns `messageId`,
    #: `body` and `destination` are not listed: they come from :meth:`ids`, :meth:`body` and the queue. Any other column
    #: that is not listed is null.
    columns: ClassVar[Mapping[str, Column]]

    @classmethod
    def gather(cls, items: Sequence[Any], bytes_max: int) -> Iterator[DeliveryBatch]:
        """Merge the items of an inbox into batches, and yield the batches in order.

        Args:
            items: batches and single deliveries, in order of arrival.
            bytes_max: maximum number of bytes to merge into one batch.
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
        """Return the kind of an item. Adjacent items of an inbox are merged only if their kinds are equal.

        Args:
            item: a batch or a single delivery.
            size: the item's number of bytes.
        """
        return isinstance(item, DeliveryBatch)

    @classmethod
    def size_of(cls, item: Any) -> int:
        """Return the number of bytes of an item (a batch or a single delivery) as received, including headers."""
        return int(item.sizes.sum()) if isinstance(item, DeliveryBatch) else cls.size(item)

    @classmethod
    @abstractmethod
    def of(cls, items: Sequence[Any]) -> DeliveryBatch:
        """Merge batches and single deliveries into one batch, in order."""

    @classmethod
    @abstractmethod
    def size(cls, raw: Any) -> int:
        """Return the number of bytes of a single delivery, including headers."""

    def __len__(self) -> int:
        return len(self.tags)

    def __getitem__(self, places: slice) -> Self:
        return self.taken(np.arange(len(self))[places])

    @property
    def size_bytes(self) -> int:
        """Bytes of memory of all deliveries: their size as received, including headers, plus `ROW_BYTES` for each."""
        return int(self.sizes.sum()) + ROW_BYTES * len(self)

    @abstractmethod
    def taken(self, places: Any) -> Self:
        """Return a batch of the deliveries with the indices `places`, an integer array in ascending order."""

    @property
    @abstractmethod
    def sizes(self) -> Any:
        """Array with the number of bytes of each delivery as received, including headers.

        A decoded delivery may take more memory.
        """

    @property
    def redelivered(self) -> Any:
        """Boolean array: whether the broker has flagged each delivery as redelivered."""
        flags = array_of(self.columns["redelivered"](self), pa.bool_())
        return flags.fill_null(False).to_numpy(zero_copy_only=False)

    @abstractmethod
    def body(self) -> pa.Array:
        """Return column `body`, an array of bytes."""

    @abstractmethod
    def ids(self, source: IdSource) -> Sequence[object]:
        """Return each message's ID.

        Args:
            source: the field or property that has the ID. If a message lacks this field or property, its ID is None.
        """

    def digests(self) -> list[bytes]:
        """Return a digest of 16 bytes of each message's content: its properties, headers and body.

        All deliveries of a message have the same digest, because the digest does not include delivery counts, routes,
        times to live or dead-letter headers.
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
        """Return the ID that the producer has set in each message, for :meth:`digests`.

        This ID is part of a message's content, but not in one of the content columns.
        """
        return [*self.ids(MESSAGE_ID)]

    @abstractmethod
    def not_redelivered(self) -> list[bool]:
        """Return a list that has True for each delivery without a mark of a redelivery or of a dead letter."""

    def hidden(self) -> list[str]:
        """Return the values of properties that hide a message's ID, because they are named like the broker's ID header.

        Usually the list is empty.
        """
        return []

    def nothing(self) -> DictionaryColumn:
        """Return a column of nulls."""
        return DictionaryColumn([None], np.zeros(len(self), np.int64))
