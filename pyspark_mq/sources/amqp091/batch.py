"""Deliveries of AMQP 0-9-1 in one piece of memory, which are looked at together.

What begins at a position of each is looked at with one operation of NumPy over all, when a column asks for it. A
delivery is an object only for who asks for it alone.

What is taken is what :mod:`pyspark_mq.sources.amqp091.properties` takes, and less of it: properties that can be read.
All else is left to that. So this never decides that a message is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np

from pyspark_mq.sources.amqp091.properties import (
    FIELDS,
    FLAGS,
    FLAGS_BYTES,
    INTEGERS,
    LONG_STRING,
    MORE_FLAGS,
    SIZES,
    Deliveries,
    Raw,
    header,
    is_table,
)
from pyspark_mq.sources.connections.decoder import Picked, RawBatch
from pyspark_mq.sources.connections.spans import Views, binary, decimals, distinct, maps, text

__all__ = ["DeliveryBatch"]

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
        data: the memory. Batches of one connection may share it.
        tags: delivery tags.
        redelivered: whether the broker has flagged each.
        spans: six rows: where properties begin and end in the memory, bodies, exchanges with routing keys.
    """

    def __init__(self, data: bytes | memoryview, tags: Any, redelivered: Any, spans: Any) -> None:
        self.data, self.tags, self.redelivered = data, tags, redelivered
        self.spans = spans

    @classmethod
    def of(cls, items: Sequence[Raw | DeliveryBatch]) -> DeliveryBatch:
        """Make one batch of batches, and of deliveries that have come one by one and can be read, in order."""
        if len(items) == 1 and isinstance(items[0], DeliveryBatch):
            return items[0]
        batches: list[DeliveryBatch] = []
        for is_batch, some in groupby(items, lambda item: isinstance(item, DeliveryBatch)):
            found: list[Any] = list(some)
            batches += found if is_batch else [cls._joined(found)]
        data: bytes | memoryview = batches[0].data
        spans = [batch.spans for batch in batches]
        if any(batch.data is not data for batch in batches):
            bounds = [(int(one.min()), int(one.max())) for one in spans]
            starts = accumulate((high - low for low, high in bounds), initial=0)
            spans = [one + start - low for one, start, (low, _) in zip(spans, starts, bounds, strict=False)]
            parts = [memoryview(batch.data)[low:high] for batch, (low, high) in zip(batches, bounds, strict=True)]
            data = b"".join([*parts, bytes(8)])
        return cls(
            data,
            np.concatenate([batch.tags for batch in batches]),
            np.concatenate([batch.redelivered for batch in batches]),
            np.concatenate(spans, axis=1),
        )

    @classmethod
    def _joined(cls, raws: Sequence[Raw]) -> DeliveryBatch:
        parts = [part for raw in raws for part in raw[2:5]]
        bounds = np.cumsum([0, *map(len, parts)])
        spans = np.stack([bounds[:-1].reshape(-1, 3), bounds[1:].reshape(-1, 3)], axis=2).reshape(-1, 6).T
        return cls(b"".join(parts), np.array([raw[0] for raw in raws]), np.array([raw[1] for raw in raws]), spans)

    def taken(self, places: Any) -> DeliveryBatch:
        return DeliveryBatch(self.data, self.tags[places], self.redelivered[places], self.spans[:, places])

    def cut(self) -> Deliveries:
        data = self.data
        columns = (self.tags.tolist(), self.redelivered.tolist(), *self.spans.tolist())
        return Deliveries(
            (tag, redelivered, bytes(data[a:b]), bytes(data[c:d]), bytes(data[e:f]))
            for tag, redelivered, a, b, c, d, e, f in zip(*columns, strict=True)
        )

    @property
    def sizes(self) -> Any:
        """Bytes of properties, body, exchange and routing key of each."""
        return (self.spans[1::2] - self.spans[::2]).sum(axis=0)

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
    def _walked(self) -> tuple[dict[str, _Field], Any]:
        """The fields that are there, by their names, and whether each delivery's are within its properties."""
        views, (at, ends) = self._views, self.spans[:2]
        flags = views.at(at, FLAGS_BYTES)
        together = int(np.bitwise_or.reduce(flags))
        found: dict[str, _Field] = {}
        at = at + FLAGS_BYTES
        for name, flag in FLAGS.items():
            if not together & flag:
                continue
            present, size = flags & flag != 0, FIELDS[name]
            begin = at + max(0, -size)
            end = begin + (size if size > 0 else views.at(at, -size))
            if present.all():
                found[name], at = _Field(begin, end, None), end
            else:
                found[name], at = _Field(begin, end, present), np.where(present, end, at)
        return found, (flags & MORE_FLAGS == 0) & (at <= ends)

    def sound(self) -> DeliveryBatch:
        """Return those before the first whose properties cannot be read."""
        fields, good = self._walked
        if not good.all():
            return self[: int(np.argmin(good))].sound()
        if "headers" in fields and self._headers is None:
            tables, rows = self.tables
            broken = [number for number, table in enumerate(tables) if not is_table(table)]
            if broken:
                return self[: int(np.argmax(np.isin(rows, broken)))]
        return self

    def has(self, name: str) -> bool:
        """Whether any delivery has a field."""
        return name in self._walked[0]

    @cached_property
    def tables(self) -> tuple[list[bytes], Any]:
        """Header tables without their lengths, empty where there is none, as :func:`.distinct` returns them."""
        field = self._walked[0].get("headers")
        if field is None:
            return [b""], np.zeros(len(self), np.int64)
        ends = field.ends if field.present is None else np.where(field.present, field.ends, field.begins)
        return distinct(binary(self.data, field.begins, ends))

    @cached_property
    def _headers(self) -> list[_Header] | None:
        """The headers, if all deliveries have the same ones of the same types in the same order."""
        field = self._walked[0].get("headers")
        if field is None or field.present is not None:
            return None
        views, at = self._views, field.begins
        found: list[_Header] = []
        while (left := at < field.ends).any():
            if not left.all() or len(found) >= min(_HEADERS_MAX, len(self) // _ROWS_PER_HEADER):
                return None
            first = int(at[0])
            size = self.data[first] + 2
            head = bytes(self.data[first : first + size])
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

    def header(self, name: bytes) -> Picked:
        """Return one of the headers; None where there is none."""
        known = self.tables[0] if self._headers is None else [one.name for one in self._headers]
        if not any(name in one for one in known):
            return self.nothing()
        tables, rows = self.tables
        return Picked([header(table, name) for table in tables], rows)

    def headers(self) -> Any:
        """Return headers as maps of texts, an array of Arrow; None if those have to be looked at one by one."""
        if not self._headers or len({one.name for one in self._headers}) < len(self._headers):
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

    def texts(self, name: str) -> Any:
        """Return a field of short strings as an array of Arrow; None if one is no text."""
        field = self._walked[0].get(name)
        if field is None:
            return self.nothing()
        try:
            return text(binary(self.data, *field))
        except ValueError:
            return None

    def strings(self, name: str) -> list[str | None] | None:
        """Return a field of short strings; None if one is no text."""
        if not self.has(name):
            return [None] * len(self)
        found = self.texts(name)
        return None if found is None else list(found.to_numpy(zero_copy_only=False))

    def numbers(self, name: str) -> tuple[Any, Any]:
        """Return a field of numbers, and which deliveries have it."""
        field = self._walked[0].get(name)
        if field is None:
            return np.zeros(len(self), np.int32), np.zeros(len(self), bool)
        present = np.ones(len(self), bool) if field.present is None else field.present
        return self._views.at(field.begins, FIELDS[name]), present
