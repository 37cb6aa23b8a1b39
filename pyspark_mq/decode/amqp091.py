"""Batches of AMQP 0-9-1 deliveries, whose bytes are in one buffer.

When a column is requested, NumPy reads the column's field in all deliveries at once. This works only for valid
properties, so the session first checks the properties of each delivery, with :meth:`Amqp091Batch.sound` or
:func:`.check`. The session replaces a delivery with invalid properties by a delivery that has only the readable part of
the properties (:func:`.unreadable`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa

from pyspark_mq.decode.amqp091_properties import (
    FIELDS,
    FLAGS,
    FLAGS_BYTES,
    INTEGERS,
    LONG_STRING,
    MORE_FLAGS,
    SIZES,
    Properties,
    Raw,
    UnreadableDelivery,
    header,
    headers,
    is_table,
    string,
)
from pyspark_mq.decode.batch import (
    INT32_MAX,
    INT64_MAX,
    Column,
    DeliveryBatch,
    DictionaryColumn,
    Unreadable,
    first_of_each,
    listed,
)
from pyspark_mq.decode.spans import Views, binary, decimals, distinct, joined, maps, numbers, text
from pyspark_mq.dedup import IdSource, TextKeys

__all__ = ["Amqp091Batch", "as_text", "unreadable_of"]

#: Maximum number of headers that are decoded for a whole batch at once, and the minimum number of deliveries per header
#: for which this saves time.
_HEADERS_MAX, _ROWS_PER_HEADER = 64, 8
_MICROSECONDS = 1_000_000
_SECONDS_MAX = INT64_MAX // _MICROSECONDS
#: From this size on, copying a message once more takes longer than everything else that is done with the message.
_LARGE_BYTES = 256 << 10
#: Text with this many digits or more is not converted to a number. For thousands of digits Python would raise an error.
_DIGITS_MAX = 20
#: Numbers that JSON cannot express (RFC 8259, section 6), with the text that replaces them.
_NO_NUMBERS = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
#: The field with the ID, by the kind of ID source.
_ID_FIELDS = {"message-id": "message_id", "correlation-id": "correlation_id"}
#: Value of the field `delivery-mode` for persistent messages.
_PERSISTENT = 2
_DELIVERY_COUNT = b"x-delivery-count"
#: Set by RabbitMQ on dead letters ("Dead Letter Exchanges", "Effects on Messages").
_DEATHS = b"x-death"


class _Field(NamedTuple):
    begins: Any
    ends: Any
    #: Whether each delivery has the field; None if all have it.
    present: Any | None


class _Header(NamedTuple):
    name: bytes
    kind: int
    begins: Any
    ends: Any


class Amqp091Batch(DeliveryBatch):
    """Deliveries of one channel with valid properties, in order of arrival.

    Args:
        data: the buffer with the bytes of the deliveries; batches of one connection may share a buffer.
        tags: array with the delivery tags.
        flagged: array of bool, whether the broker has flagged each delivery as redelivered.
        spans: array with a column for each delivery and six rows: start and end of the properties, of the body, and of
            the exchange with the routing key, as positions in the buffer.
        bodies: the bodies, if they are not in the buffer; None if they are.
    """

    def __init__(
        self, data: bytes | memoryview, tags: Any, flagged: Any, spans: Any, bodies: Sequence[bytes] | None = None
    ) -> None:
        self.data, self.tags, self.flagged = data, tags, flagged
        self.spans, self._bodies = spans, bodies

    @classmethod
    def kind(cls, item: Raw | Amqp091Batch, size: int) -> object:
        """Return whether an item is a single delivery that is too large to be copied into a batch with others."""
        return not isinstance(item, Amqp091Batch) and size > _LARGE_BYTES

    @classmethod
    def size(cls, raw: Raw) -> int:
        """Return the number of bytes in properties, body, exchange and routing key."""
        return len(raw[2]) + len(raw[3]) + len(raw[4])

    @classmethod
    def of(cls, items: Sequence[Raw | Amqp091Batch]) -> Amqp091Batch:
        if len(items) == 1 and isinstance(items[0], Amqp091Batch):
            return items[0]
        alone = [item for item in items if not isinstance(item, Amqp091Batch)]
        if len(alone) == len(items):
            return cls._read(alone, apart=True)
        batches: list[Amqp091Batch] = []
        for is_batch, some in groupby(items, lambda item: isinstance(item, Amqp091Batch)):
            found: list[Any] = list(some)
            batches += found if is_batch else [cls._read(found, apart=False)]
        data: bytes | memoryview = batches[0].data
        spans = [batch.spans for batch in batches]
        if any(batch.data is not data for batch in batches):
            bounds = [(int(one.min()), int(one.max())) for one in spans]
            starts = accumulate((high - low for low, high in bounds), initial=0)
            spans = [one + start - low for one, start, (low, _) in zip(spans, starts, bounds, strict=False)]
            parts = [memoryview(batch.data)[low:high] for batch, (low, high) in zip(batches, bounds, strict=True)]
            data = b"".join([*parts, bytes(8)])
        made = cls(
            data,
            np.concatenate([batch.tags for batch in batches]),
            np.concatenate([batch.flagged for batch in batches]),
            np.concatenate(spans, axis=1),
        )
        places = accumulate(map(len, batches), initial=0)
        made.unreadable = {
            first + place: one
            for first, batch in zip(places, batches, strict=False)
            for place, one in batch.unreadable.items()
        }
        return made

    @classmethod
    def _read(cls, raws: Sequence[Raw], *, apart: bool) -> Amqp091Batch:
        """Create a batch from single deliveries.

        Args:
            apart: whether the bodies are kept separately instead of in the batch's buffer, which saves copying them.
        """
        bodies = [raw[3] for raw in raws] if apart else None
        parts = [part for raw in raws for part in (raw[2], b"" if apart else raw[3], raw[4])]
        bounds = np.cumsum([0, *map(len, parts)])
        spans = np.stack([bounds[:-1].reshape(-1, 3), bounds[1:].reshape(-1, 3)], axis=2).reshape(-1, 6).T
        tags = np.array([raw[0] for raw in raws], np.uint64).astype(np.int64)  # no tag is so large that it overflows
        flagged = np.array([raw[1] for raw in raws], bool)
        made = cls(b"".join([*parts, bytes(8)]), tags, flagged, spans, bodies)
        made.unreadable = {
            place: unreadable_of(raw) for place, raw in enumerate(raws) if isinstance(raw, UnreadableDelivery)
        }
        return made

    def taken(self, places: Any) -> Amqp091Batch:
        bodies = None if self._bodies is None else [self._bodies[place] for place in places.tolist()]
        made = Amqp091Batch(self.data, self.tags[places], self.flagged[places], self.spans[:, places], bodies)
        if self.unreadable:
            rows = {place: row for row, place in enumerate(places.tolist())}
            made.unreadable = {rows[place]: one for place, one in self.unreadable.items() if place in rows}
        return made

    @property
    def sizes(self) -> Any:
        """Array with the number of bytes in properties, body, exchange and routing key of each delivery."""
        sizes = (self.spans[1::2] - self.spans[::2]).sum(axis=0)
        return sizes if self._bodies is None else sizes + np.fromiter(map(len, self._bodies), np.int64, len(self))

    @property
    def redelivered(self) -> Any:
        return self.flagged

    def block(self, place: int) -> bytes:
        """Return the encoded properties of the delivery with index `place`."""
        begin, end = self.spans[:2, place]
        return bytes(self.data[begin:end])

    def body(self) -> pa.Array:
        return binary(self.data, self.spans[2], self.spans[3]) if self._bodies is None else joined(self._bodies)

    def ids(self, source: IdSource) -> Sequence[object]:
        """Return each message's ID, as the producer has set it. RabbitMQ itself sets no IDs."""
        name = _ID_FIELDS.get(source.kind)
        if name is None:
            return listed(self.of_header(source.name.encode(), _header_id))
        field = self._walked[0].get(name)
        if field is None:
            return [None] * len(self)
        found = binary(self.data, *field)
        try:
            texts = text(found)
            return TextKeys([texts]) if not texts.null_count else list(texts.to_pylist())
        except ValueError:
            return [None if value is None else string(value) for value in found.to_pylist()]

    def given(self) -> list[object]:
        """Return each delivery's ID and encoded timestamp (in seconds), for the digest of its content.

        The encoded timestamp is part of the digest, because column `timestamp` is null if the timestamp is too large
        for the column.
        """
        return [*zip(super().given(), listed(numbers(*self.numbers("timestamp"))), strict=True)]

    def not_redelivered(self) -> list[bool]:
        """Return a list that has True for each delivery without the redelivered flag and without header `x-death`."""
        spans = zip(self.redelivered, *self.spans[:2].tolist(), strict=True)
        return [not flagged and _DEATHS not in bytes(self.data[begin:end]) for flagged, begin, end in spans]

    def places(self) -> tuple[list[bytes], Any]:
        """Return the encoded exchange and routing key of each delivery.

        Returns:
            the distinct values, and an array with the index of each delivery's value, as :func:`.distinct` does.
        """
        return distinct(binary(self.data, self.spans[4], self.spans[5]))

    @cached_property
    def _views(self) -> Views:
        return Views(self.data)

    @cached_property
    def _walked(self) -> tuple[dict[str, _Field], Any]:
        """The positions of the fields in all deliveries.

        Returns:
            a pair: the fields that occur in at least one delivery, by name; and an array of bool, whether each
            delivery's properties are regular. Regular properties have one word of flags, and are long enough for the
            fields that the flags announce.
        """
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

    def sound(self) -> Amqp091Batch:
        """Return the deliveries before the first one that needs to be decoded alone, or all if there is none."""
        fields, good = self._walked
        if not good.all():
            return self[: int(np.argmin(good))].sound()
        if "headers" in fields and self._headers is None:
            tables, rows = self.tables
            broken = [number for number, table in enumerate(tables) if not is_table(table)]
            if broken:
                return self[: int(np.argmax(np.isin(rows, broken)))]
        return self

    @cached_property
    def tables(self) -> tuple[list[bytes], Any]:
        """The encoded header tables of all deliveries, without their length prefixes. A missing table is empty.

        Returns:
            the distinct tables, and an array with the index of each delivery's table, as :func:`.distinct` does.
        """
        field = self._walked[0].get("headers")
        if field is None:
            return [b""], np.zeros(len(self), np.int64)
        ends = field.ends if field.present is None else np.where(field.present, field.ends, field.begins)
        return distinct(binary(self.data, field.begins, ends))

    @cached_property
    def _headers(self) -> list[_Header] | None:
        """The headers, if all deliveries have the same header names and types in the same order; otherwise None."""
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

    def of_header(self, name: bytes, meaning: Callable[[object], Any]) -> DictionaryColumn:
        """Return a header as a column, with each value converted by function `meaning`.

        If a delivery lacks the header, the column is null there.
        """
        known = self.tables[0] if self._headers is None else [one.name for one in self._headers]
        if not any(name in one for one in known):
            return self.nothing()
        tables, rows = self.tables
        return DictionaryColumn([meaning(header(table, name)) for table in tables], rows)

    def properties(self) -> Any:
        """Return column `properties`: each delivery's headers as a map of text to text."""
        found = self._common_headers()
        if found is not None:
            return found
        tables, rows = self.tables
        return DictionaryColumn(list(map(_pairs, tables)), rows)

    def _common_headers(self) -> Any:
        """Return column `properties` as an Arrow array, or None if the headers must be decoded one by one."""
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
        """Return a field that is a short string as a column of text. The column is null where the field is missing."""
        field = self._walked[0].get(name)
        if field is None:
            return self.nothing()
        found = binary(self.data, *field)
        try:
            return text(found)
        except ValueError:
            return pa.array([as_text(value) for value in found.to_pylist()], pa.string())

    def numbers(self, name: str) -> tuple[Any, Any]:
        """Return a field that is a number.

        Returns:
            an array with each delivery's number, and an array of bool, whether each delivery has the field.
        """
        field = self._walked[0].get(name)
        if field is None:
            return np.zeros(len(self), np.int32), np.zeros(len(self), bool)
        present = np.ones(len(self), bool) if field.present is None else field.present
        return self._views.at(field.begins, FIELDS[name]), present

    def timestamps_us(self) -> pa.Array:
        """Return column `timestamp`: when each message was published, in microseconds since 1970.

        The field is in seconds (AMQP 0-9-1, section 4.2.5.4). If a producer sets milliseconds, the result is a date far
        in the future, as in every other client. If the time does not fit into the column, the column is null.
        """
        seconds, present = self.numbers("timestamp")
        fits = present & (seconds <= _SECONDS_MAX)
        return numbers(np.where(fits, seconds, 0).astype(np.int64) * _MICROSECONDS, fits)

    def expirations_us(self) -> Any:
        """Return column `expiration`: when each message expires, in microseconds since 1970."""
        if "expiration" not in self._walked[0]:
            return self.nothing()
        return list(map(_expiration_us, self.texts("expiration").to_pylist(), self.timestamps_us().to_pylist()))

    def delivery_counts(self) -> DictionaryColumn:
        """Return column `deliveryCount`: how often each message was delivered, or null for an uncounted redelivery."""
        counts, rows = self.of_header(_DELIVERY_COUNT, lambda count: count)
        meanings = [_delivery_count(count, flag) for count in counts for flag in (False, True)]
        return DictionaryColumn(meanings, 2 * rows + self.flagged)

    def persistent(self) -> pa.Array:
        """Return column `persistent`: whether the message should survive a broker restart.

        A message without field `delivery-mode` is not persistent (RabbitMQ). If such a message is unreadable, the
        column is null, because the field may be in the unreadable part.
        """
        modes, present = self.numbers("delivery_mode")
        known = np.ones(len(self), bool)
        known[list(self.unreadable)] = False
        return numbers((modes == _PERSISTENT) & present, known | present)

    def routing(self, part: int) -> DictionaryColumn:
        """Return column `exchange` (`part` is 0) or `routingKey` (`part` is 1)."""
        places, rows = self.places()
        return DictionaryColumn([_routing(where)[part] for where in places], rows)

    columns: ClassVar[Mapping[str, Column]] = MappingProxyType(
        {
            "properties": lambda batch: batch.properties(),
            "correlationId": lambda batch: batch.texts("correlation_id"),
            "replyTo": lambda batch: batch.texts("reply_to"),
            "contentType": lambda batch: batch.texts("content_type"),
            "type": lambda batch: batch.texts("type"),
            "priority": lambda batch: numbers(*batch.numbers("priority")),
            "timestamp": lambda batch: batch.timestamps_us(),
            "expiration": lambda batch: batch.expirations_us(),
            "redelivered": lambda batch: pa.array(batch.flagged),
            "deliveryCount": lambda batch: batch.delivery_counts(),
            "routingKey": lambda batch: batch.routing(1),
            "exchange": lambda batch: batch.routing(0),
            "userId": lambda batch: batch.texts("user_id"),
            "appId": lambda batch: batch.texts("app_id"),
            "contentEncoding": lambda batch: batch.texts("content_encoding"),
            "persistent": lambda batch: batch.persistent(),
            "groupId": lambda batch: batch.of_header(b"JMSXGroupID", as_text),
            "groupSequence": lambda batch: batch.of_header(b"JMSXGroupSeq", _sequence),
        }
    )


# -- values ------------------------------------------------------------------------------------


def as_text(value: object) -> str | None:
    """Return a field's value as text for a string column. Bytes that are not UTF-8 become escapes such as ``\\xff``."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).isoformat()
    if isinstance(value, dict | list):
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    return f"{value:d}" if isinstance(value, int) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {as_text(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBERS[str(value)]
    if value is None or isinstance(value, bool):
        return value
    return int(value) if isinstance(value, int) else as_text(value)


def _pairs(table: bytes) -> list[tuple[str, str | None]]:
    return first_of_each((as_text(name) or "", as_text(value)) for name, value in headers(table).items())


def _expiration_us(lifetime: object, published_us: int | None) -> int | None:
    # The property is a time to live in milliseconds, as text, counted from publishing. So the time of expiry is known
    # only if the producer has also set the time of publishing.
    if published_us is None or not isinstance(lifetime, str) or not _is_number(lifetime):
        return None
    moment = published_us + int(lifetime) * 1000
    return moment if moment <= INT64_MAX else None


def _delivery_count(count: object, redelivered: bool) -> int | None:
    # Quorum queues count earlier deliveries in header x-delivery-count, which the first delivery does not have. Classic
    # queues only set the redelivered flag. A producer may have set the header to any value.
    if _is_count(count) and count < INT32_MAX:
        return count + 1
    return None if redelivered else 1


def _sequence(value: object) -> int | None:
    # Clients that put JMS properties into headers write this value as a number or as text.
    if isinstance(value, str) and _is_number(value) and len(value) < _DIGITS_MAX:
        value = int(value)
    return value if _is_count(value) and value <= INT64_MAX else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()  # brokers do not read other digits of Unicode as a number


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def unreadable_of(raw: UnreadableDelivery) -> Unreadable:
    """Describe a delivery with malformed properties. The delivery's body is complete."""
    tag, _, _, _, where, encoded, error = raw
    known = dict(zip(("exchange", "routing key"), _routing(where), strict=True))
    readable = Properties(raw[2])
    known |= {name.replace("_", " "): as_text(readable.text(name)) for name in ("message_id", "correlation_id", "type")}
    return Unreadable(tag, {name: value for name, value in known.items() if value is not None}, encoded, error)


def _routing(where: bytes) -> tuple[str | None, str | None]:
    """Decode exchange and routing key, the last two arguments of method `basic.deliver`.

    If the bytes end within the routing key, its available part is returned. If they end earlier, both are None.
    """
    try:
        end = 1 + where[0]
        exchange, key = where[1:end], where[end + 1 : end + 1 + where[end]]
    except IndexError:
        return None, None
    return as_text(exchange), as_text(key)


def _header_id(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)  # checkpoints of earlier versions, which used pika, have such IDs as whole numbers
    return value if isinstance(value, bytes) else as_text(value)
