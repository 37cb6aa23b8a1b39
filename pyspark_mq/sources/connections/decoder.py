"""The contract of a decoder: from the bytes that a session has received to IDs and columns, for one protocol.

A session appends *raw deliveries* to its inbox, in a form of its own, with as little work as it can. Its decoder
knows the form. :func:`.make_block` asks it for tags, IDs, bodies and the columns of the query, once for some hundred
or thousand deliveries at a time, and keeps none of the raw deliveries.

What may be called when: everything, on any thread and any number of times. A decoder has no state, so a delivery says
the same alone, beside others, and behind others. Nothing blocks. Nothing raises for what a message holds: one that
cannot be decoded is a delivery like any other, with an ID if that can be read, with nulls for columns, and
:meth:`Decoder.unreadable` says why.

Guarantee: the same delivery, handed out again by the broker, has the same ID; and no delivery has another one's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa

from pyspark_mq.brokers.base import PASSING_HEADERS, PASSING_PREFIXES
from pyspark_mq.dedup import IdSource, content_digest

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "INT32_MAX", "INT64_MAX", "ROW_BYTES", "TOGETHER_MIN", "UNREADABLE_PROPERTY", "Column", "Decoder", "Picked",
    "RawBatch", "Unreadable", "column_of", "listed",
]  # fmt: skip

#: Name in `properties` under which the row of an unreadable message says why it is one.
UNREADABLE_PROPERTY = "unreadable"
#: Bytes that a delivery takes beside what is in it: its place in a block, in the ledger and in an epoch. Measured: 290
#: of one that is received, 330 of one that is planned.
ROW_BYTES = 330
#: Fewer deliveries are looked at one by one in the same time (measured: 30 to 40 over each protocol).
TOGETHER_MIN = 40
#: The largest numbers that columns have.
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
_SHOWN_CHARACTERS = 200
#: Columns of what a producer says of a message, beside properties.
_CONTENT = (
    "correlationId", "replyTo", "contentType", "type", "priority", "timestamp", "userId", "appId", "contentEncoding",
    "persistent", "groupId", "groupSequence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A delivery that could not be decoded. It is open like any other, to be acknowledged or rejected.

    Attributes:
        known: what can be read of it, by the names that the protocol has for them.
        data: the bytes that could not be read.
    """

    tag: int
    known: Mapping[str, str]
    data: bytes = field(repr=False)
    error: str

    def __str__(self) -> str:
        """Position, what is known, and the reason, for errors and logs."""
        known = ", ".join(f"{name} {_shortened(value)!r}" for name, value in self.known.items())
        return f"delivery {self.tag} of the session ({known or 'nothing is known of it'}): {_shortened(self.error)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


class Picked(NamedTuple):
    """A column of which many rows have the same value.

    Attributes:
        values: those that there are.
        rows: the number of its value for each row, an array of whole numbers.
    """

    values: list[Any]
    rows: Any


class RawBatch(Sequence[Any]):
    """Several raw deliveries in a row, in the form in which they are looked at together. Slices are batches, too.

    Attributes:
        tags: of each, an array.
        alone: the deliveries one by one, for what cannot be looked at together.
    """

    tags: Any

    @classmethod
    @abstractmethod
    def of(cls, batches: Sequence[Self]) -> Self:
        """Make one batch of several that follow each other."""

    def __len__(self) -> int:
        return len(self.tags)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> Any:
        return self.taken(place) if isinstance(place, slice) else self.alone[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.alone)

    @cached_property
    def alone(self) -> Sequence[Any]:
        return self.cut()

    @abstractmethod
    def taken(self, places: Any) -> Self:
        """Some of them: a slice, or an array of their places in ascending order."""

    @abstractmethod
    def cut(self) -> Sequence[Any]:
        """Return the deliveries one by one."""

    @property
    @abstractmethod
    def sizes(self) -> Any:
        """Bytes of each."""

    @abstractmethod
    def body_column(self) -> Any:
        """Return bodies as an array of Arrow."""

    def nothing(self) -> Picked:
        """Return a column of nulls."""
        return Picked([None], np.zeros(len(self), np.int64))


def listed(column: Any) -> list[Any]:
    """Return a column of :attr:`Decoder.columns` as a list, however it was made."""
    if isinstance(column, Picked):
        return [column.values[row] for row in column.rows.tolist()]
    if not isinstance(column, pa.Array):
        return list(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if not pa.types.is_map(column.type):
        return list(column.to_pylist())
    pairs = [*zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True)]
    return [pairs[begin:end] for begin, end in pairwise(column.offsets.to_pylist())]


#: A column, see :attr:`Decoder.columns`.
Column: TypeAlias = "Callable[[Sequence[Any]], Any]"


def column_of(alone: Column, together: Callable[[Any], Any]) -> Column:
    """Return a column of deliveries and of batches.

    Args:
        alone: makes it of deliveries one by one.
        together: makes it of a batch; None if there is one that has to be looked at alone.
    """

    def column(raws: Sequence[Any]) -> Any:
        if not isinstance(raws, RawBatch):
            return alone(raws)
        found = together(raws)
        return alone(raws.alone) if found is None else found

    return column


class Decoder(ABC):
    """Columns of raw deliveries, for one protocol. Stateless; works on lists, never on one message.

    A raw delivery is a tuple that begins with its tag, as the session appends it to its inbox, or a part of a
    :class:`RawBatch` there.
    """

    def gather(self, items: Sequence[Any], bytes_max: int) -> Iterator[Sequence[Any]]:
        """Yield what was in an inbox in the parts that blocks are made of, in order: lists, and batches of neighbours.

        Args:
            bytes_max: no more than that is put together.
        """
        held: list[Any] = []
        size, kind = 0, None
        for item in items:
            its_size = int(item.sizes.sum()) if isinstance(item, RawBatch) else self.size(item)
            its_kind = self.kind(item, its_size)
            if held and (size + its_size > bytes_max or its_kind != kind):
                yield self.joined(held)
                held, size = [], 0
            held.append(item)
            size, kind = size + its_size, its_kind
        if held:
            yield self.joined(held)

    def kind(self, item: Any, size: int) -> object:  # noqa: ARG002 - for those that override it
        """Return what neighbours in an inbox have to have in common for being put together."""
        return isinstance(item, RawBatch)

    def joined(self, items: Sequence[Any]) -> Sequence[Any]:
        """Put neighbours together."""
        return type(items[0]).of(items) if isinstance(items[0], RawBatch) else self.prepared(items)

    def tags(self, raws: Sequence[Any]) -> list[int]:
        """Handles, ascending in the order of arrival, unique within the session."""
        return list(raws.tags.tolist()) if isinstance(raws, RawBatch) else [raw[0] for raw in raws]

    def bodies(self, raws: Sequence[Any]) -> list[bytes]:
        """Bodies as bytes."""
        return list(raws.body_column().to_pylist()) if isinstance(raws, RawBatch) else list(map(self.body, raws))

    def weight(self, raws: Sequence[Any]) -> int:
        """Bytes of deliveries as they came, headers and all, and `ROW_BYTES` more for each."""
        size = int(raws.sizes.sum()) if isinstance(raws, RawBatch) else sum(map(self.size, raws))
        return size + ROW_BYTES * len(raws)

    @abstractmethod
    def body(self, raw: Any) -> bytes:
        """The body of one delivery."""

    @abstractmethod
    def size(self, raw: Any) -> int:
        """Bytes of one delivery as it came, headers and all."""

    @abstractmethod
    def ids(self, raws: Sequence[Any], source: IdSource) -> list[object]:
        """The value of each message under the source; None where it has nothing."""

    def digests(self, raws: Sequence[Any]) -> list[bytes]:
        """Digests of what the producer has put into each message, of 16 bytes: its properties, headers, and body.

        The same at each delivery of a message. Not of it: how often it was delivered, by which way it came, how long
        it may live, and what a broker notes of dead letters.
        """
        ready = self.prepared(raws)
        others = zip(self.given(ready), *(listed(self.columns[name](ready)) for name in _CONTENT), strict=True)
        properties = listed(self.columns["properties"](ready))
        digests = []
        for fields, pairs, body in zip(others, properties, self.bodies(raws), strict=True):
            lasting = [
                pair for pair in pairs if pair[0] not in self.passing and not pair[0].startswith(PASSING_PREFIXES)
            ]
            named = repr((fields, sorted(map(repr, lasting))))
            digests.append(content_digest(named.encode("utf-8", "surrogatepass"), body))
        return digests

    def given(self, raws: Sequence[Any]) -> list[object]:
        """Return what no column says of the content of each: the ID that its producer has given."""
        return self.ids(raws, IdSource("message-id"))

    @abstractmethod
    def unmarked(self, raws: Sequence[Any]) -> list[bool]:
        """Whether nothing marks each as delivered before, or as a dead letter."""

    def hidden(self, raws: Sequence[Any]) -> list[str]:  # noqa: ARG002 - for those that override it
        """Values that hide the ID that the broker has given; usually there are none."""
        return []

    def unreadable(self, raws: Sequence[Any]) -> list[Unreadable]:  # noqa: ARG002 - for those that override it
        """Return deliveries that could not be decoded, in the order of arrival; usually none.

        The other methods take them as well. Their bodies are the bytes as far as they came, their columns
        are null where nothing is known, and `properties` has the reason under `UNREADABLE_PROPERTY`.
        """
        return []

    def prepared(self, raws: Sequence[Any]) -> Sequence[Any]:
        """Return deliveries with what all columns look at. Usually that is nothing more."""
        return raws

    #: Properties that are no part of the content of a message.
    passing: ClassVar[frozenset[str]] = PASSING_HEADERS
    #: column name -> function from raw deliveries to a list of values: str, int, bool, a list of
    #: (str, str or None) pairs for `properties`, microseconds since 1970 for timestamps; None for
    #: nothing. `messageId` and `destination` are not among them, and `body` only where a column of bodies is made
    #: better than by :meth:`bodies`. For a batch it may be an Arrow array instead, or
    #: :class:`Picked`. What is not here is null.
    columns: ClassVar[Mapping[str, Column]]
