"""Columns of deliveries over STOMP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from pyspark_mq.brokers.base import StompDialect
from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.base import UNREADABLE_PROPERTY, Decoder, Unreadable
from pyspark_mq.sources.stomp.frames import UnreadableHeaders

__all__ = ["Raw", "StompDecoder", "as_text", "whole_number"]

#: (tag, headers, body, how the broker speaks)
Raw = tuple[int, Mapping[str, str], bytes, StompDialect]

_MESSAGE_ID = IdSource("message-id")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

#: Headers of MESSAGE and SEND in the specification, and those with a column of their own.
_NAMED = frozenset(
    {
        "ack", "content-length", "content-type", "correlation-id", "destination", "message-id", "priority",
        "receipt", "redelivered", "reply-to", "subscription", "timestamp", "transaction", "type",
    }
)  # fmt: skip


def as_text(value: str | None) -> str | None:
    """A header for a string column; bytes that are not text are shown with escapes."""
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _texts(name: str) -> Callable[[Sequence[Raw]], list[Any]]:
    return lambda raws: [as_text(raw[1].get(name)) for raw in raws]


def whole_number(text: str | None, most: int) -> int | None:
    """The number in a header, from 0 to `most`, or None."""
    # Python refuses to convert thousands of digits.
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 19:
        return None
    value = int(text)
    return value if value <= most else None


def _properties(raws: Sequence[Raw]) -> list[list[tuple[str, str | None]] | None]:
    found: list[list[tuple[str, str | None]] | None] = []
    for _, headers, _, dialect in raws:
        hidden, prefixes = dialect.internal_headers, dialect.internal_prefixes
        own = [(UNREADABLE_PROPERTY, headers.error)] if isinstance(headers, UnreadableHeaders) else []
        found.append(
            own
            + [
                (str(as_text(name)), as_text(value))
                for name, value in headers.items()
                if name not in _NAMED and name not in hidden and not (prefixes and name.startswith(prefixes))
            ]
        )
    return found


def _timestamp_us(raw: Raw) -> int | None:
    unit = raw[3].timestamp_us
    moment = whole_number(raw[1].get("timestamp"), _INT64_MAX // unit)
    return None if moment is None else moment * unit


def _expiration_us(raw: Raw) -> int | None:
    _, headers, _, dialect = raw
    if dialect.expires_header:
        moment = whole_number(headers.get(dialect.expires_header), _INT64_MAX // 1000)
        return moment * 1000 if moment else None
    # A time to live in milliseconds, counted from publishing, as in AMQP 0-9-1.
    published, lives = _timestamp_us(raw), whole_number(headers.get("expiration"), _INT64_MAX // 1000)
    if published is None or lives is None:
        return None
    moment = published + lives * 1000
    return moment if moment <= _INT64_MAX else None


def _delivery_count(raw: Raw) -> int | None:
    _, headers, _, dialect = raw
    if not dialect.count_header:
        return None
    counted = whole_number(headers.get(dialect.count_header), _INT32_MAX - 1)
    if counted is not None:
        return counted + 1
    return None if headers.get("redelivered") == "true" else 1


class StompDecoder(Decoder):
    """Columns of (tag, headers, body, dialect)."""

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        """Numbers of the consumer's own: 1, 2, 3… in each session."""
        return [raw[0] for raw in raws]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        """Bodies as they came; texts in UTF-8.

        Of JMS messages, STOMP carries texts and bytes. ActiveMQ Classic sends the others with an empty
        body; Artemis sends a MapMessage in its own encoding, and a StreamMessage not at all.
        """
        return [raw[2] for raw in raws]

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        """The broker's ID where it gives one, or the producer's; None where a property hides the broker's."""
        name = source.name
        if source.kind == "message-id":
            name = raws[0][3].id_header if raws else ""
        elif source.kind == "correlation-id":
            name = source.kind
        ids = [_id(raw[1].get(name)) for raw in raws]
        own_id = raws[0][3].own_id if raws and source.kind == "message-id" else None
        if own_id is not None:
            return [value if isinstance(value, str) and own_id.search(value) else None for value in ids]
        separator = raws[0][3].id_separator if raws and source.kind == "message-id" else ""
        if not separator:
            return ids
        return [value.rpartition(separator)[2] if isinstance(value, str) else value for value in ids]

    def hidden(self, raws: Sequence[Raw]) -> list[str]:
        if not raws or raws[0][3].own_id is None:
            return []
        name, keys = raws[0][3].id_header, self.ids(raws, _MESSAGE_ID)
        return [str(as_text(raw[1].get(name))) for raw, key in zip(raws, keys, strict=True) if key is None]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        return [_unreadable(raw, raw[1]) for raw in raws if isinstance(raw[1], UnreadableHeaders)]

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], list[Any]]]] = MappingProxyType(
        {
            "properties": _properties,
            "correlationId": _texts("correlation-id"),
            "replyTo": _texts("reply-to"),
            "contentType": _texts("content-type"),
            "type": _texts("type"),
            "priority": lambda raws: [whole_number(raw[1].get("priority"), _INT32_MAX) for raw in raws],
            "timestamp": lambda raws: [_timestamp_us(raw) for raw in raws],
            "expiration": lambda raws: [_expiration_us(raw) for raw in raws],
            "redelivered": lambda raws: [raw[1].get("redelivered") == "true" for raw in raws],
            "deliveryCount": lambda raws: [_delivery_count(raw) for raw in raws],
        }
    )


def _unreadable(raw: Raw, headers: UnreadableHeaders) -> Unreadable:
    wanted = dict.fromkeys((raw[3].id_header, "message-id", "correlation-id", "type"))
    known = {name: str(as_text(headers[name])) for name in wanted if name in headers}
    return Unreadable(raw[0], known, raw[2], headers.error)


def _id(value: str | None) -> object:
    if value is None or value.isascii():
        return value
    data = value.encode("utf-8", "surrogateescape")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data  # not text: told apart by its bytes
