"""Columns of deliveries over AMQP 0-9-1."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, ClassVar, TypeGuard

import numpy as np

from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.amqp091.batch import DeliveryBatch
from pyspark_mq.sources.amqp091.properties import (
    Deliveries,
    Properties,
    Raw,
    UnreadableRaw,
    header,
    headers,
)
from pyspark_mq.sources.connections.decoder import (
    INT32_MAX,
    INT64_MAX,
    Column,
    Decoder,
    Picked,
    Unreadable,
    column_of,
    listed,
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


#: Fields by the options of IDs.
_ID_FIELDS = {"message-id": "message_id", "correlation-id": "correlation_id"}

#: AMQP 0-9-1, domain delivery-mode.
_PERSISTENT = 2

_DELIVERY_COUNT = b"x-delivery-count"
#: Set by RabbitMQ on dead letters ("Dead Letter Exchanges", "Effects on Messages").
_DEATHS = b"x-death"


def _column(meaning: Callable[[Raw, Properties], Any], together: Callable[[DeliveryBatch], Any]) -> Column:
    """Return a column of what properties say.

    Args:
        meaning: of a delivery one by one.
        together: as of :func:`.column_of`.
    """
    return column_of(lambda raws: list(map(meaning, raws, Deliveries.of(raws).properties)), together)


def _texts(name: str) -> Column:
    """Return a column of a field of short strings."""
    return _column(lambda _, found: as_text(found.text(name)), lambda batch: batch.texts(name))


def _of_header(name: bytes, meaning: Callable[[object], Any]) -> Column:
    """Return a column of one of the headers."""

    def together(batch: DeliveryBatch) -> Picked:
        values, rows = batch.header(name)
        return Picked(list(map(meaning, values)), rows)

    return _column(lambda _, found: meaning(header(found.table, name)), together)


def _pairs(table: bytes) -> list[tuple[str, str | None]]:
    return [(as_text(name) or "", as_text(value)) for name, value in headers(table).items()]


def _pairs_of(batch: DeliveryBatch) -> Any:
    found = batch.headers()
    if found is not None:
        return found
    tables, rows = batch.tables
    return Picked(list(map(_pairs, tables)), rows)


def _timestamp_us(_: Raw, found: Properties) -> int | None:
    # Seconds by the specification (section 4.2.5.4); producers that put milliseconds there get
    # a date far in the future, as in every other client. What does not fit the column is null.
    seconds = found.number("timestamp")
    return None if seconds is None or seconds > _SECONDS_MAX else seconds * _MICROSECONDS


def _timestamps_of(batch: DeliveryBatch) -> Any:
    seconds, present = batch.numbers("timestamp")
    fits = present & (seconds <= _SECONDS_MAX)
    return numbers(np.where(fits, seconds, 0).astype(np.int64) * _MICROSECONDS, fits)


_times = _column(lambda _, found: found.number("timestamp"), lambda batch: numbers(*batch.numbers("timestamp")))


def _expiration_us(lifetime: object, published_us: int | None) -> int | None:
    # The property is a time to live in milliseconds as text, counted from publishing, so a
    # moment in time follows only if the producer also said when that was.
    if published_us is None or not isinstance(lifetime, str) or not lifetime.isdecimal():
        return None
    moment = published_us + int(lifetime) * 1000
    return moment if moment <= INT64_MAX else None


def _expirations_of(batch: DeliveryBatch) -> Any:
    if not batch.has("expiration"):
        return batch.nothing()
    lifetimes = batch.strings("expiration")
    return None if lifetimes is None else list(map(_expiration_us, lifetimes, _timestamps_of(batch).to_pylist()))


def _delivery_count(count: object, redelivered: bool) -> int | None:
    # Quorum queues count the deliveries before this one (header x-delivery-count, absent at
    # first); classic queues only say that there was one, and a producer may have put anything there.
    if _is_count(count) and count < INT32_MAX:
        return count + 1
    return None if redelivered else 1


def _delivery_counts_of(batch: DeliveryBatch) -> Picked:
    counts, rows = batch.header(_DELIVERY_COUNT)
    meanings = [_delivery_count(count, flag) for count in counts for flag in (False, True)]
    return Picked(meanings, 2 * rows + batch.redelivered)


def _persistent(raw: Raw, found: Properties) -> bool | None:
    # Without the field a message is transient (RabbitMQ); of one that cannot be read it may be what is missing.
    mode = found.number("delivery_mode")
    return None if mode is None and type(raw) is UnreadableRaw else mode == _PERSISTENT


def _persistent_of(batch: DeliveryBatch) -> Any:
    modes, present = batch.numbers("delivery_mode")
    return numbers((modes == _PERSISTENT) & present)


def _of_place(part: int) -> Column:
    """Return a column of exchanges, or of routing keys."""

    def together(batch: DeliveryBatch) -> Picked:
        places, rows = batch.places()
        return Picked([_routing(where)[part] for where in places], rows)

    return column_of(lambda raws: [_routing(raw[4])[part] for raw in raws], together)


def _sequence(value: object) -> int | None:
    # Clients that write JMS properties into headers write it as a number or as text.
    if isinstance(value, str) and value.isdecimal() and len(value) < _DIGITS_MAX:
        value = int(value)
    return value if _is_count(value) and value <= INT64_MAX else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Amqp091Decoder(Decoder):
    """Columns of :data:`~pyspark_mq.sources.amqp091.properties.Raw`."""

    def kind(self, item: Raw | DeliveryBatch, size: int) -> bool:
        """Whether it is too large to be copied once more for being in a batch."""
        return not isinstance(item, DeliveryBatch) and size > _LARGE_BYTES

    def joined(self, items: Sequence[Raw | DeliveryBatch]) -> Sequence[Raw]:
        """Put batches together with what is between them, if that can be read."""
        kinds = set(map(type, items))
        if DeliveryBatch in kinds and UnreadableRaw not in kinds:
            return DeliveryBatch.of(items)
        return [raw for item in items for raw in (item if isinstance(item, DeliveryBatch) else (item,))]

    def prepared(self, raws: Sequence[Raw]) -> Sequence[Raw]:
        return raws if isinstance(raws, DeliveryBatch) else Deliveries.of(raws)

    def body(self, raw: Raw) -> bytes:
        return raw[3]

    def size(self, raw: Raw) -> int:
        """Bytes of properties, body, exchange and routing key."""
        return len(raw[2]) + len(raw[3]) + len(raw[4])

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        """RabbitMQ gives no message an ID: these are the producer's."""
        field, name = _ID_FIELDS.get(source.kind), source.name.encode()
        if field is not None:
            return list(_column(lambda _, found: found.text(field), lambda batch: batch.strings(field))(raws))
        return listed(_of_header(name, _header_id)(raws))

    def given(self, raws: Sequence[Raw]) -> list[object]:
        """The ID, and the time, which the column does not have if it is no number of seconds."""
        return [*zip(super().given(raws), listed(_times(raws)), strict=True)]

    def unmarked(self, raws: Sequence[Raw]) -> list[bool]:
        """Whether neither the flag of basic.deliver is set, nor the header of dead letters is there."""
        if isinstance(raws, DeliveryBatch):
            spans = zip(raws.redelivered.tolist(), *raws.spans[:2].tolist(), strict=True)
            return [not flagged and _DEATHS not in bytes(raws.data[begin:end]) for flagged, begin, end in spans]
        return [not raw[1] and _DEATHS not in raw[2] for raw in raws]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        """Return deliveries with malformed properties; their bodies are whole."""
        if isinstance(raws, DeliveryBatch):
            return []
        return [_unreadable(raw) for raw in raws if type(raw) is UnreadableRaw]

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], list[Any]]]] = MappingProxyType(
        {
            "properties": _column(lambda _, found: _pairs(found.table), _pairs_of),
            "correlationId": _texts("correlation_id"),
            "replyTo": _texts("reply_to"),
            "contentType": _texts("content_type"),
            "type": _texts("type"),
            "priority": _column(
                lambda _, found: found.number("priority"), lambda batch: numbers(*batch.numbers("priority"))
            ),
            "timestamp": _column(_timestamp_us, _timestamps_of),
            "expiration": _column(
                lambda raw, found: _expiration_us(found.text("expiration"), _timestamp_us(raw, found)), _expirations_of
            ),
            "redelivered": column_of(lambda raws: [raw[1] for raw in raws], lambda batch: batch.redelivered.tolist()),
            "deliveryCount": _column(
                lambda raw, found: _delivery_count(header(found.table, _DELIVERY_COUNT), raw[1]), _delivery_counts_of
            ),
            "routingKey": _of_place(1),
            "exchange": _of_place(0),
            "userId": _texts("user_id"),
            "appId": _texts("app_id"),
            "contentEncoding": _texts("content_encoding"),
            "persistent": _column(_persistent, _persistent_of),
            "groupId": _of_header(b"JMSXGroupID", as_text),
            "groupSequence": _of_header(b"JMSXGroupSeq", _sequence),
        }
    )


def _unreadable(raw: UnreadableRaw) -> Unreadable:
    tag, _, _, _, where, encoded, error = raw
    known = dict(zip(("exchange", "routing key"), _routing(where), strict=True))
    readable = Properties(raw[2])
    known |= {name.replace("_", " "): as_text(readable.text(name)) for name in ("message_id", "correlation_id", "type")}
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
