"""Columns of deliveries over AMQP 0-9-1."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, ClassVar

from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.amqp091.properties import UnreadableProperties
from pyspark_mq.sources.base import Decoder, Unreadable

__all__ = ["Amqp091Decoder", "Raw", "as_text"]

Raw = tuple[Any, Any, bytes]  #: (pika.spec.Basic.Deliver, pika.BasicProperties, body)

_MICROSECONDS = 1_000_000
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
#: In place of a value that is nested more deeply than the interpreter can go.
_TOO_DEEP = "(nested too deeply)"


def as_text(value: object) -> str | None:  # noqa: PLR0911 - one for each kind
    """A field value for a string column; bytes that are not text are shown with escapes."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return _utc(value).isoformat()
    if isinstance(value, dict | list):
        try:
            return json.dumps(_plain(value), ensure_ascii=False)
        except RecursionError:
            return _TOO_DEEP
    return f"{value:d}" if isinstance(value, int) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {as_text(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | float):
        return value
    return int(value) if isinstance(value, int) else as_text(value)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment


def _properties(raws: Sequence[Raw]) -> list[list[tuple[str, str | None]] | None]:
    return [
        [(as_text(name) or "", as_text(value)) for name, value in raw[1].headers.items()] if raw[1].headers else []
        for raw in raws
    ]


def _timestamp_us(properties: Any) -> int | None:
    # Seconds by the specification (section 4.2.5.4); producers that put milliseconds there get
    # a date far in the future, as in every other client. What does not fit the column is null.
    seconds = properties.timestamp
    if seconds is None or not 0 <= int(seconds) <= _INT64_MAX // _MICROSECONDS:
        return None
    return int(seconds) * _MICROSECONDS


def _expiration_us(properties: Any) -> int | None:
    # The property is a time to live in milliseconds as text, counted from publishing, so a
    # moment in time follows only if the producer also said when that was.
    published = _timestamp_us(properties)
    if published is None or not isinstance(properties.expiration, str):
        return None
    if not properties.expiration.isdecimal():
        return None
    moment = published + int(properties.expiration) * 1000
    return moment if moment <= _INT64_MAX else None


def _delivery_count(raw: Raw) -> int | None:
    method, properties, _ = raw
    # Quorum queues count the deliveries before this one (header x-delivery-count, absent at
    # first); classic queues only say that there was one.
    count = properties.headers.get("x-delivery-count") if properties.headers else None
    # On a classic queue a producer may have put anything there.
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _INT32_MAX:
        return int(count) + 1
    return None if method.redelivered else 1


class Amqp091Decoder(Decoder):
    """Columns of pika's (method, properties, body)."""

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        """Delivery tags: 1, 2, 3… on each channel (AMQP 0-9-1, domain delivery-tag)."""
        return [raw[0].delivery_tag for raw in raws]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        """Bodies as pika assembled them."""
        return [raw[2] for raw in raws]

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        """RabbitMQ gives no message an ID: these are the producer's."""
        if source.kind == "message-id":
            return [raw[1].message_id for raw in raws]
        if source.kind == "correlation-id":
            return [raw[1].correlation_id for raw in raws]
        name = source.name
        return [_header_id(raw[1].headers.get(name)) if raw[1].headers else None for raw in raws]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        """Those whose properties pika could not decode; their bodies are whole."""
        return [_unreadable(raw) for raw in raws if type(raw[1]) is UnreadableProperties]

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], list[Any]]]] = MappingProxyType(
        {
            "properties": _properties,
            "correlationId": lambda raws: [as_text(raw[1].correlation_id) for raw in raws],
            "replyTo": lambda raws: [as_text(raw[1].reply_to) for raw in raws],
            "contentType": lambda raws: [as_text(raw[1].content_type) for raw in raws],
            "type": lambda raws: [as_text(raw[1].type) for raw in raws],
            "priority": lambda raws: [raw[1].priority for raw in raws],
            "timestamp": lambda raws: [_timestamp_us(raw[1]) for raw in raws],
            "expiration": lambda raws: [_expiration_us(raw[1]) for raw in raws],
            "redelivered": lambda raws: [raw[0].redelivered for raw in raws],
            "deliveryCount": lambda raws: [_delivery_count(raw) for raw in raws],
        }
    )


def _unreadable(raw: Raw) -> Unreadable:
    method, properties, _ = raw
    known = {"exchange": method.exchange, "routing key": method.routing_key}
    known |= {name.replace("_", " "): getattr(properties, name) for name in ("message_id", "correlation_id", "type")}
    texts = {name: as_text(value) for name, value in known.items()}
    return Unreadable(
        method.delivery_tag,
        {name: value for name, value in texts.items() if value is not None},
        properties.encoded,
        properties.error,
    )


def _header_id(value: object) -> object:
    return value if isinstance(value, bytes) else as_text(value)
