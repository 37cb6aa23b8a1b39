"""Deliveries of AMQP 0-9-1 in one piece of memory, which are looked at together.

What begins at a position of each is looked at with one operation of NumPy over all, when a column asks for it. A
delivery is an object only for who asks for it alone.

What is taken is what :mod:`pyspark_mq.sources.amqp091.properties` takes, and less of it: properties that can be read.
All else is left to that. So this never decides that a message is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, overload

import numpy as np

from pyspark_mq.sources.amqp091.properties import (
    FIELDS,
    FLAGS_BYTES,
    INTEGERS,
    LONG_STRING,
    MORE_FLAGS,
    SIZES,
    TABLE,
    TEXT,
    FlaggedDeliveries,
    Raw,
    is_table,
)
from pyspark_mq.sources.connections.decoder import ROW_BYTES, RawBatch
from pyspark_mq.sources.connections.spans import Views, binary, decimals, distinct, is_ascii, maps, text

__all__ = ["DeliveryBatch"]

#: Place of the headers.
_HEADERS = list(FIELDS).index("headers")
#: Headers of a message that are looked at together, and for how many deliveries each it is worth it.
_HEADERS_MAX, _ROWS_PER_HEADER = 64, 8


class _Field(NamedTuple):
    begins: Any
    ends: Any
    #: None if all have it.
    present: Any | None


class _Header(NamedTuple):
    name: bytes
    kind: int
    begins: Any
    ends: Any


class DeliveryBatch(RawBatch):
    """Deliveries of one channel whose properties can be read, in order.

    Args:
        data: the memory.
        tags: delivery tags.
        redelivered: whether the broker has flagged each.
        spans: six rows: where properties begin and end in the memory, bodies, exchanges with routing keys.
    """

    def __init__(self, data: bytes, tags: Any, redelivered: Any, spans: Any) -> None:
        self.data, self.tags, self.redelivered = data, tags, redelivered
        self.spans = spans

    @classmethod
    def of(cls, items: Sequence[Raw | DeliveryBatch]) -> DeliveryBatch:
        """Make one batch of batches, and of deliveries that have come one by one and can be read, in order."""
        if len(items) == 1 and isinstance(items[0], DeliveryBatch):
            return items[0]
        pieces: list[bytes] = []
        columns: list[tuple[Any, Any, Any]] = []
        start = 0
        for is_batch, some in groupby(items, lambda item: isinstance(item, DeliveryBatch)):
            if is_batch:
                for batch in some:
                    assert isinstance(batch, DeliveryBatch)
                    columns.append((batch.tags, batch.redelivered, batch.spans + start))
                    pieces.append(batch.data)
                    start += len(batch.data)
            else:
                raws: list[Any] = list(some)
                new = [part for raw in raws for part in raw[2:5]]
                bounds = start + np.cumsum([0, *map(len, new)])
                spans = np.stack([bounds[:-1].reshape(-1, 3), bounds[1:].reshape(-1, 3)], axis=2)
                tags, redelivered = np.array([raw[0] for raw in raws]), np.array([raw[1] for raw in raws])
                columns.append((tags, redelivered, spans.reshape(-1, 6).T))
                pieces += new
                start = int(bounds[-1])
        found = [np.concatenate(column, axis=-1) for column in zip(*columns, strict=True)]
        return cls(b"".join([*pieces, bytes(8)]), *found)

    def __len__(self) -> int:
        return len(self.tags)

    @overload
    def __getitem__(self, place: int) -> Raw: ...
    @overload
    def __getitem__(self, place: slice) -> DeliveryBatch: ...
    def __getitem__(self, place: int | slice) -> Raw | DeliveryBatch:
        if isinstance(place, slice):
            return DeliveryBatch(self.data, self.tags[place], self.redelivered[place], self.spans[:, place])
        a, b, c, d, e, f = self.spans[:, place].tolist()
        tag, redelivered = int(self.tags[place]), bool(self.redelivered[place])
        return tag, redelivered, self.data[a:b], self.data[c:d], self.data[e:f]

    def __iter__(self) -> Iterator[Raw]:
        data = self.data
        columns = (self.tags.tolist(), self.redelivered.tolist(), *self.spans.tolist())
        for tag, redelivered, a, b, c, d, e, f in zip(*columns, strict=True):
            yield tag, redelivered, data[a:b], data[c:d], data[e:f]

    @cached_property
    def alone(self) -> FlaggedDeliveries:
        """The deliveries one by one, for what cannot be looked at together."""
        return FlaggedDeliveries(list(self))

    @property
    def sizes(self) -> Any:
        """Bytes of each, as :meth:`.Decoder.sizes` counts them."""
        spans = self.spans
        return ROW_BYTES + spans[1] - spans[0] + spans[3] - spans[2] + spans[5] - spans[4]

    # -- parts

    def body_column(self) -> Any:
        return binary(self.data, self.spans[2], self.spans[3])

    def places(self) -> tuple[list[bytes], Any]:
        """Return exchanges with routing keys, as :func:`.distinct` does."""
        return distinct(binary(self.data, self.spans[4], self.spans[5]))

    @cached_property
    def _views(self) -> Views:
        return Views(self.data)

    @cached_property
    def _walked(self) -> tuple[dict[int, _Field], Any]:
        """The fields that are there, by their places, and whether each delivery's are within its properties."""
        views, (at, ends) = self._views, self.spans[:2]
        flags = views.at(at, FLAGS_BYTES)
        together = int(np.bitwise_or.reduce(flags))
        found: dict[int, _Field] = {}
        at = at + FLAGS_BYTES
        for place, kind in enumerate(FIELDS.values()):
            bit = 0x8000 >> place
            if not together & bit:
                continue
            present = flags & bit != 0
            begin = at + {TEXT: 1, TABLE: 4}.get(kind, 0)
            end = begin + (views.at(at, 1) if kind == TEXT else views.at(at, 4) if kind == TABLE else kind)
            if present.all():
                found[place], at = _Field(begin, end, None), end
            else:
                found[place], at = _Field(begin, end, present), np.where(present, end, at)
        return found, (flags & MORE_FLAGS == 0) & (at <= ends)

    def sound(self) -> DeliveryBatch:
        """Return those before the first whose properties cannot be read."""
        fields, good = self._walked
        if not good.all():
            return self[: int(np.argmin(good))].sound()
        if _HEADERS in fields and self._headers is None:
            tables, rows = self.tables
            broken = [number for number, table in enumerate(tables) if not is_table(table)]
            if broken:
                return self[: int(np.argmax(np.isin(rows, broken)))]
        return self

    def has(self, place: int) -> bool:
        """Whether any delivery has a field."""
        return place in self._walked[0]

    @cached_property
    def tables(self) -> tuple[list[bytes], Any]:
        """Header tables without their lengths, empty where there is none, as :func:`.distinct` returns them."""
        field = self._walked[0].get(_HEADERS)
        if field is None:
            return [b""], np.zeros(len(self), np.int64)
        ends = field.ends if field.present is None else np.where(field.present, field.ends, field.begins)
        return distinct(binary(self.data, field.begins, ends))

    @cached_property
    def _headers(self) -> list[_Header] | None:
        """The headers, if all deliveries have the same ones of the same types in the same order."""
        field = self._walked[0].get(_HEADERS)
        if field is None or field.present is not None:
            return None
        views, at = self._views, field.begins
        found: list[_Header] = []
        while (left := at < field.ends).any():
            if not left.all() or len(found) >= min(_HEADERS_MAX, len(self) // _ROWS_PER_HEADER):
                return None
            first = int(at[0])
            size = self.data[first] + 2
            head = self.data[first : first + size]
            if len(head) < size:
                return None
            if not (views.at(at[:, None] + np.arange(size), 1) == np.frombuffer(head, np.uint8)).all():
                return None
            kind, begins = head[-1], at + size
            if kind == LONG_STRING:
                begins, at = begins + 4, begins + 4 + views.at(begins, 4)
            elif kind in SIZES:
                at = begins + SIZES[kind]
            else:
                return None
            found.append(_Header(head[1:-1], kind, begins, at))
        return found if (at == field.ends).all() else None

    def lacks(self, header: bytes) -> bool:
        """Whether it is known that no delivery has a header."""
        if _HEADERS not in self._walked[0]:
            return True
        return self._headers is not None and all(header != one.name for one in self._headers)

    def headers(self) -> Any:
        """Return headers as maps of texts, an array of Arrow; None if those have to be looked at one by one."""
        if not self._headers or len({header.name for header in self._headers}) < len(self._headers):
            return None
        columns = []
        try:
            for name, kind, begins, ends in self._headers:
                if kind == LONG_STRING:
                    columns.append((name.decode(), text(binary(self.data, begins, ends))))
                elif kind in INTEGERS:
                    found = self._views.at(begins, SIZES[kind])
                    signed = found.view(f"i{SIZES[kind]}") if INTEGERS[kind] else found
                    columns.append((name.decode(), decimals(signed)))
                else:
                    return None
        except ValueError:
            return None
        return maps(columns, len(self))

    def texts(self, place: int) -> Any:
        """Return a field of short strings as an array of Arrow; None if one is no text."""
        field = self._walked[0].get(place)
        if field is None:
            return self.nothing()
        try:
            return text(binary(self.data, *field))
        except ValueError:
            return None

    def strings(self, place: int) -> list[str | None] | None:
        """Return a field of short strings that are ASCII; None if one is not, or some have none."""
        field = self._walked[0].get(place)
        if field is None or field.present is not None or not is_ascii(binary(self.data, *field)):
            return None
        begins, ends = field.begins.tolist(), field.ends.tolist()
        first = begins[0] if begins else 0
        shown = self.data[first : ends[-1] if ends else 0].decode("latin-1")
        return [shown[begin - first : end - first] for begin, end in zip(begins, ends, strict=True)]

    def numbers(self, place: int) -> tuple[Any, Any] | None:
        """Return a field of numbers, and which deliveries have it; None if no delivery has."""
        field = self._walked[0].get(place)
        if field is None:
            return None
        size = list(FIELDS.values())[place]
        present = np.ones(len(self), bool) if field.present is None else field.present
        return self._views.at(field.begins, size), present
