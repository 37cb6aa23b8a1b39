"""Columns of deliveries over AMQP 0-9-1."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, ClassVar, TypeGuard

import numpy as np

from pyspark_mq.dedup import IdSource, content_digest
from pyspark_mq.sources.amqp091.batch import DeliveryBatch
from pyspark_mq.sources.amqp091.properties import (
    Field,
    FlaggedDeliveries,
    Raw,
    UnreadableRaw,
    header,
    headers,
    lasting,
)
from pyspark_mq.sources.connections.decoder import (
    INT32_MAX,
    INT64_MAX,
    ROW_BYTES,
    Column,
    Decoder,
    Picked,
    Unreadable,
    column_of,
)
from pyspark_mq.sources.connections.spans import numbers

__all__ = ["Amqp091Decoder", "as_text"]

_MICROSECONDS = 1_000_000
_SECONDS_MAX = INT64_MAX // _MICROSECONDS
#: To be copied once more would take a message of so many bytes longer than all else.
_LARGE_BYTES = 256 << 10
#: Python refuses to convert thousands of digits.
_DIGITS_MAX = 20
#: What JSON has no number for, as texts (RFC 8259, section 6).
_NO_NUMBERS = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def as_text(value: object) -> str | None:
    """A field value for a string column; bytes that are not text are shown with escapes."""
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


_message_id = Field("message_id")
_correlation_id = Field("correlation_id")
_type = Field("type")
_priority = Field("priority")
_timestamp = Field("timestamp")
_expiration = Field("expiration")
_headers = Field("headers")
_delivery_mode = Field("delivery_mode")
#: By the options of IDs.
_ID_FIELDS = {"message-id": _message_id, "correlation-id": _correlation_id}

#: AMQP 0-9-1, domain delivery-mode.
_PERSISTENT = 2

_DELIVERY_COUNT = b"x-delivery-count"
#: Set by RabbitMQ on dead letters ("Dead Letter Exchanges", "Effects on Messages").
_DEATHS = b"x-death"


def _texts(name: str) -> Column:
    """Return a column of a field of short strings."""
    field = Field(name)

    def texts(raws: Sequence[Raw]) -> list[Any]:
        values = field.texts(raws)
        return [as_text(value) for value in values] if bytes in set(map(type, values)) else values

    return column_of(texts, lambda batch: batch.texts(field.place))


def _numbers(field: Field, alone: Column, together: Callable[[Any, Any], Any]) -> Column:
    """Return a column that is made of a field of numbers.

    Args:
        alone: as of :func:`.column_of`.
        together: makes it of the numbers of a batch, and of which deliveries have one.
    """

    def of_batch(batch: DeliveryBatch) -> Any:
        found = batch.numbers(field.place)
        return batch.nothing() if found is None else together(*found)

    return column_of(alone, of_batch)


def _of_table(meaning: Callable[[bytes], Any]) -> Column:
    """Return a column of what header tables say."""

    def of_each(raws: Sequence[Raw]) -> list[Any]:
        # Of messages that follow one another many have the same headers.
        tables = _headers.tables(raws)
        known = {table: meaning(table) for table in set(tables)}
        return [known[table] for table in tables]

    def of_batch(batch: DeliveryBatch) -> Picked:
        tables, rows = batch.tables
        return Picked(list(map(meaning, tables)), rows)

    return column_of(of_each, of_batch)


def _pairs(table: bytes) -> list[tuple[str, str | None]]:
    return [(as_text(name) or "", as_text(value)) for name, value in headers(table).items()]


_pairs_of = _of_table(_pairs)


def _properties(raws: Sequence[Raw]) -> Any:
    found = raws.headers() if isinstance(raws, DeliveryBatch) else None
    return _pairs_of(raws) if found is None else found


def _timestamps_us(raws: Sequence[Raw]) -> list[int | None]:
    # Seconds by the specification (section 4.2.5.4); producers that put milliseconds there get
    # a date far in the future, as in every other client. What does not fit the column is null.
    seconds = _timestamp.numbers(raws)
    return [None if value is None or value > _SECONDS_MAX else value * _MICROSECONDS for value in seconds]


def _timestamps_of(seconds: Any, present: Any) -> Any:
    fits = present & (seconds <= _SECONDS_MAX)
    return numbers(np.where(fits, seconds, 0).astype(np.int64) * _MICROSECONDS, fits)


def _expirations_us(raws: Sequence[Raw]) -> list[int | None]:
    return list(map(_expiration_us, _expiration.texts(raws), _timestamps_us(raws)))


def _expiration_us(lifetime: object, published_us: int | None) -> int | None:
    # The property is a time to live in milliseconds as text, counted from publishing, so a
    # moment in time follows only if the producer also said when that was.
    if published_us is None or not isinstance(lifetime, str) or not lifetime.isdecimal():
        return None
    moment = published_us + int(lifetime) * 1000
    return moment if moment <= INT64_MAX else None


def _expirations_of(batch: DeliveryBatch) -> Picked | None:
    return None if batch.has(_expiration.place) and batch.has(_timestamp.place) else batch.nothing()


def _delivery_counts(raws: Sequence[Raw]) -> list[int | None]:
    # Quorum queues count the deliveries before this one (header x-delivery-count, absent at
    # first); classic queues only say that there was one.
    plain = [None if raw[1] else 1 for raw in raws]
    if not any(_DELIVERY_COUNT in raw[2] for raw in raws):
        return plain
    counts = [header(table, _DELIVERY_COUNT) for table in _headers.tables(raws)]
    return [_counted(count) or minimum for count, minimum in zip(counts, plain, strict=True)]


def _delivery_counts_of(batch: DeliveryBatch) -> Picked:
    if batch.lacks(_DELIVERY_COUNT):
        return Picked([1, None], batch.redelivered.astype(np.int64))
    tables, rows = batch.tables
    counts = [_counted(header(table, _DELIVERY_COUNT)) for table in tables]
    return Picked([count or minimum for count in counts for minimum in (1, None)], 2 * rows + batch.redelivered)


def _counted(count: object) -> int | None:
    # On a classic queue a producer may have put anything there.
    return count + 1 if _is_count(count) and count < INT32_MAX else None


def _persistent(raws: Sequence[Raw]) -> list[bool | None]:
    # Without the field a message is transient (RabbitMQ); of one that cannot be read it may be what is missing.
    modes = _delivery_mode.numbers(raws)
    return [
        None if mode is None and type(raw) is UnreadableRaw else mode == _PERSISTENT
        for mode, raw in zip(modes, raws, strict=True)
    ]


def _persistent_of(batch: DeliveryBatch) -> Any:
    found = batch.numbers(_delivery_mode.place)
    return [False] * len(batch) if found is None else numbers((found[0] == _PERSISTENT) & found[1])


def _of_place(part: int) -> Column:
    """Return a column of exchanges, or of routing keys."""

    def of_each(raws: Sequence[Raw]) -> list[str | None]:
        # Of messages that follow one another many were published at the same place.
        known = {where: _routing(where)[part] for where in {raw[4] for raw in raws}}
        return [known[raw[4]] for raw in raws]

    def of_batch(batch: DeliveryBatch) -> Picked:
        places, rows = batch.places()
        return Picked([_routing(where)[part] for where in places], rows)

    return column_of(of_each, of_batch)


def _of_header(name: bytes, meaning: Callable[[object], Any]) -> Column:
    of_table = _of_table(lambda table: meaning(header(table, name)))
    return column_of(of_table, lambda batch: batch.nothing() if batch.lacks(name) else of_table(batch))


def _sequence(value: object) -> int | None:
    # Clients that write JMS properties into headers write it as a number or as text.
    if isinstance(value, str) and value.isdecimal() and len(value) < _DIGITS_MAX:
        value = int(value)
    return value if _is_count(value) and value <= INT64_MAX else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _together_if_readable(items: Sequence[Raw | DeliveryBatch]) -> Sequence[Raw]:
    kinds = set(map(type, items))
    if DeliveryBatch in kinds and UnreadableRaw not in kinds:
        return DeliveryBatch.of(items)
    return [raw for item in items for raw in (item if isinstance(item, DeliveryBatch) else (item,))]


class Amqp091Decoder(Decoder):
    """Columns of :data:`~pyspark_mq.sources.amqp091.properties.Raw`."""

    def gather(self, items: Sequence[Any], bytes_max: int) -> Iterator[Sequence[Raw]]:
        """Put batches together with what is between them, as long as that is small, and can be read."""
        if DeliveryBatch not in set(map(type, items)):
            yield items
            return
        held: list[Raw | DeliveryBatch] = []
        left, are_large = bytes_max, False
        for item in items:
            size = len(item.data) if isinstance(item, DeliveryBatch) else sum(map(len, item[2:5]))
            is_large = size > _LARGE_BYTES and not isinstance(item, DeliveryBatch)
            if held and (size > left or is_large is not are_large):
                yield _together_if_readable(held)
                held, left = [], bytes_max
            held.append(item)
            left, are_large = left - size, is_large
        yield _together_if_readable(held)

    def batch(self, raws: Sequence[Raw], names: Collection[str]) -> Sequence[Raw]:  # noqa: ARG002 - the same for all
        """With what all columns look at."""
        return raws if isinstance(raws, DeliveryBatch) else FlaggedDeliveries(raws)

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        """Delivery tags: 1, 2, 3… on each channel (AMQP 0-9-1, domain delivery-tag)."""
        return list(raws.tags.tolist()) if isinstance(raws, DeliveryBatch) else [raw[0] for raw in raws]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        return [raw[3] for raw in raws]

    def sizes(self, raws: Sequence[Raw]) -> list[int]:
        """Bytes of properties, body, exchange and routing key."""
        if isinstance(raws, DeliveryBatch):
            return list(raws.sizes.tolist())
        return [ROW_BYTES + len(raw[2]) + len(raw[3]) + len(raw[4]) for raw in raws]

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        """RabbitMQ gives no message an ID: these are the producer's."""
        field = _ID_FIELDS.get(source.kind)
        if isinstance(raws, DeliveryBatch):
            found = None if field is None else raws.strings(field.place)
            return self.ids(raws.alone, source) if found is None else [*found]
        if field is not None:
            return field.texts(raws)
        name = source.name.encode()
        return [_header_id(header(table, name)) for table in _headers.tables(raws)]

    def digests(self, raws: Sequence[Raw]) -> list[bytes]:
        """Digests of properties, headers and bodies."""
        # Of messages that follow one another many have the same headers.
        known: dict[bytes, bytes] = {}
        return [content_digest(lasting(raw[2], known), raw[3]) for raw in raws]

    def unmarked(self, raws: Sequence[Raw]) -> list[bool]:
        """Whether neither the flag of basic.deliver is set, nor the header of dead letters is there."""
        return [not raw[1] and _DEATHS not in raw[2] for raw in raws]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        """Return deliveries with malformed properties; their bodies are whole."""
        if isinstance(raws, DeliveryBatch):
            return []
        return [_unreadable(raw) for raw in raws if type(raw) is UnreadableRaw]

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], list[Any]]]] = MappingProxyType(
        {
            "properties": _properties,
            "correlationId": _texts("correlation_id"),
            "replyTo": _texts("reply_to"),
            "contentType": _texts("content_type"),
            "type": _texts("type"),
            "priority": _numbers(_priority, _priority.numbers, numbers),
            "timestamp": _numbers(_timestamp, _timestamps_us, _timestamps_of),
            "expiration": column_of(_expirations_us, _expirations_of),
            "redelivered": column_of(lambda raws: [raw[1] for raw in raws], lambda batch: batch.redelivered.tolist()),
            "deliveryCount": column_of(_delivery_counts, _delivery_counts_of),
            "routingKey": _of_place(1),
            "exchange": _of_place(0),
            "userId": _texts("user_id"),
            "appId": _texts("app_id"),
            "contentEncoding": _texts("content_encoding"),
            "persistent": column_of(_persistent, _persistent_of),
            "groupId": _of_header(b"JMSXGroupID", as_text),
            "groupSequence": _of_header(b"JMSXGroupSeq", _sequence),
        }
    )


def _unreadable(raw: UnreadableRaw) -> Unreadable:
    tag, _, _, _, where, encoded, error = raw
    known = dict(zip(("exchange", "routing key"), _routing(where), strict=True))
    fields = {"message id": _message_id, "correlation id": _correlation_id, "type": _type}
    known |= {name: as_text(field.texts([raw])[0]) for name, field in fields.items()}
    return Unreadable(tag, {name: value for name, value in known.items() if value is not None}, encoded, error)


def _routing(where: bytes) -> tuple[str | None, str | None]:
    """Exchange and routing key, the last arguments of basic.deliver; None where these end before."""
    try:
        end = 1 + where[0]
        exchange, key = where[1:end], where[end + 1 : end + 1 + where[end]]
    except IndexError:
        return None, None
    return as_text(exchange), as_text(key)


def _header_id(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)  # as in checkpoints written with pika's whole numbers
    return value if isinstance(value, bytes) else as_text(value)
