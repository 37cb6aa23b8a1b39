"""AMQP 1.0 messages as columns.

The session creates a :class:`Raw` for each arriving message. This module reads these raw deliveries, and needs no
client library. For sections and properties see AMQP 1.0, part 3. For their JMS mapping see OASIS's "AMQP JMS Mapping",
and Qpid JMS, which both ActiveMQ brokers follow.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from pyspark_mq.decode.amqp10_encoding import EncodingError, Pairs, bare_message_at
from pyspark_mq.decode.batch import INT32_MAX, INT64_MAX, UNREADABLE_PROPERTY, Column, Unreadable

__all__ = [
    "DEATHS", "DECODERS", "JMS_KIND", "JMS_REPLY_KIND", "ROUTING", "Named", "Raw", "Sections", "UnreadableMessage",
    "body_bytes", "id_of", "is_not_redelivered", "json_text", "lasting", "property_of", "text", "unreadable_of",
]  # fmt: skip

#: Message annotation with the kind of a JMS message ("AMQP JMS Mapping", 3.2.1). The property with this kind has the
#: same name as the annotation.
JMS_KIND = "x-opt-jms-msg-type"
#: Message annotation with the kind of `reply-to`, as a number (the same, 3.2.1).
JMS_REPLY_KIND = "x-opt-jms-reply-to"
#: Message annotations of RabbitMQ 4: where a message was published.
ROUTING = ("x-exchange", "x-routing-key")
#: Annotations of dead letters in RabbitMQ 4 and 3 ("Dead Letter Exchanges", "Effects on Messages").
DEATHS = ("x-opt-deaths", "x-death")

#: Properties that come from sections other than `application-properties`.
Named: TypeAlias = "tuple[tuple[str, str], ...]"


class Sections(NamedTuple):
    """The sections of a message, for deliveries.

    Attributes:
        priority, durable, deliveries: fields of the header. `deliveries` is the number of earlier deliveries.
        redelivered: whether the message may have been delivered before.
        id, correlation_id: IDs as the producer sent them: str, int, UUID, bytes, or None.
        reply_to: as the message has it; of a delivery, as rows name destinations.
        reply_kind: place of the kind of `reply_to` in :data:`.KINDS`, if the message states it.
        created_ms, expires_ms: milliseconds since 1970; 0 for none.
        application: application properties by name; a nested value is JSON.
        named: properties from other sections, which take precedence over application properties.
        exchange, routing_key: where the message was published.
        died: whether the message has been a dead letter.
        value: the body, which is the bytes of `data`, the list of `amqp-sequence`, or the value of `amqp-value`. None
            if there is no body.
        described: whether the body is an `amqp-value` with a descriptor. Such a body always becomes JSON.
        written: size of the properties that were written as text when the message was read.
    """

    priority: int = 4
    durable: bool | None = None
    deliveries: int = 0
    redelivered: bool = False
    id: Any = None
    user: bytes | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    expires_ms: int = 0
    created_ms: int = 0
    group: str | None = None
    group_sequence: int | None = None
    application: Mapping[str, object] = MappingProxyType({})
    named: Named = ()
    exchange: str | None = None
    routing_key: str | None = None
    died: bool = False
    value: Any = None
    described: bool = False
    reply_kind: int | None = None
    written: int = 0


class Raw(NamedTuple):
    """One delivery.

    Attributes:
        tag: the delivery's number within its session.
        body: the body's bytes, see :func:`body_bytes`.
        size: bytes that the delivery takes here, at least those of the whole message as received.
        of: the message's sections. A body that is a value is only in `body`, because the value's objects take up to 64
            times the bytes of their encoding.
    """

    tag: int
    body: bytes
    size: int
    of: Sections


class UnreadableMessage(Raw):
    """A delivery whose sections could not be decoded. The body of the delivery is the whole message as received."""

    __slots__ = ()


def body_bytes(value: object) -> bytes:
    """Return a message's body as bytes.

    Binary values stay unchanged, text becomes UTF-8, None becomes an empty body, and all other values become JSON.
    """
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json_text(value)).encode()


_quoted = json.JSONEncoder(ensure_ascii=False).encode
_NO_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})


def json_text(value: object) -> str:
    """Return a value of any AMQP type as JSON.

    Binary values become base64 text, and numbers that JSON lacks (`NaN`, `Infinity`, `-Infinity`) become text. A map
    becomes an object if no key is itself a list or a map and no two keys have the same text. Otherwise the map becomes
    a list of pairs, each of which is a list.
    """
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        if isinstance(value, Pairs):
            return _json_map(value)
        return "[" + ", ".join(map(json_text, value)) + "]"
    if value is None:
        return "null"
    written = _plain(value)
    return _quoted(written) if isinstance(value, bytes | UUID) or written in _NO_NUMBERS else written


def _json_map(pairs: Pairs) -> str:
    names = {}
    if not any(isinstance(key, list) for key, _ in pairs):
        names = {_plain(key): value for key, value in pairs}
    if len(names) == len(pairs):
        return "{" + ", ".join(f"{_quoted(name)}: {json_text(value)}" for name, value in names.items()) + "}"
    return "[" + ", ".join(f"[{json_text(key)}, {json_text(value)}]" for key, value in pairs) + "]"


def _plain(value: Any) -> str:
    """Return the text of a value that contains no other values. None becomes `null`, and bytes become base64."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    return "null" if value is None else _number(value)


def _number(value: Any) -> str:
    """Return the text of a boolean, a number, or a UUID."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not isfinite(value):
        return str(Decimal(value))
    return str(value)


def text(value: object) -> str | None:
    """Return a value as text for a string column. None stays None.

    Bytes are decoded as UTF-8, and invalid bytes become escapes. Lists and maps become JSON.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json_text(value) if isinstance(value, list) else _number(value)


def id_of(value: object) -> object:
    """Return the form in which IDs are compared: text or bytes.

    A number becomes decimal text, as over the other protocols.
    """
    return value if isinstance(value, bytes) else text(value)


def _timestamp_us(milliseconds: int) -> int | None:
    return milliseconds * 1000 if 0 < milliseconds <= INT64_MAX // 1000 else None


def property_of(raw: Raw, name: str) -> object:
    """Return a property from whichever section has the property."""
    return next((value for known, value in raw.of.named if known == name), raw.of.application.get(name))


def _pairs(raw: Raw) -> list[tuple[str, str | None]]:
    named = dict(raw.of.named)
    return [(name, text(value)) for name, value in raw.of.application.items() if name not in named] + [*raw.of.named]


def lasting(data: bytes) -> bytes:
    """Return an encoded message without the sections that differ between deliveries.

    If these sections cannot be read, return the whole message.
    """
    try:
        return data[bare_message_at(data) :]
    except (EncodingError, IndexError):
        return data


def unreadable_of(raw: Raw) -> Unreadable:
    """Describe a delivery that could not be decoded."""
    known = {"message-id": text(raw.of.id), "correlation-id": text(raw.of.correlation_id), "subject": raw.of.subject}
    error = raw.of.application[UNREADABLE_PROPERTY]
    return Unreadable(raw.tag, {name: value for name, value in known.items() if value}, raw.body, str(error))


def _delivery_count(before: int, redelivered: bool) -> int | None:
    # A redelivery without a count means that the broker does not count. The header is a uint, the column is signed.
    return before + 1 if (before or not redelivered) and before < INT32_MAX else None


def is_not_redelivered(raw: Raw) -> bool:
    """Whether a delivery was decoded, and is marked neither as redelivered nor as a dead letter."""
    return not raw.of.redelivered and not raw.of.died and type(raw) is not UnreadableMessage


#: Columns of deliveries read one by one, see :attr:`.DeliveryBatch.columns`.
DECODERS: Mapping[str, Column] = {
    "properties": lambda raws: list(map(_pairs, raws)),
    "correlationId": lambda raws: [text(raw.of.correlation_id) for raw in raws],
    "replyTo": lambda raws: [raw.of.reply_to for raw in raws],
    "contentType": lambda raws: [raw.of.content_type for raw in raws],
    "type": lambda raws: [raw.of.subject for raw in raws],
    "priority": lambda raws: [raw.of.priority for raw in raws],
    "timestamp": lambda raws: [_timestamp_us(raw.of.created_ms) for raw in raws],
    "expiration": lambda raws: [_timestamp_us(raw.of.expires_ms) for raw in raws],
    "redelivered": lambda raws: [raw.of.redelivered for raw in raws],
    "deliveryCount": lambda raws: [_delivery_count(raw.of.deliveries, raw.of.redelivered) for raw in raws],
    "routingKey": lambda raws: [raw.of.routing_key for raw in raws],
    "exchange": lambda raws: [raw.of.exchange for raw in raws],
    "userId": lambda raws: [text(raw.of.user) for raw in raws],
    # AMQP 1.0 has no field for the application's ID, but JMS has a property (JMS 2.0, 3.5.9).
    "appId": lambda raws: [text(property_of(raw, "JMSXAppID")) for raw in raws],
    "contentEncoding": lambda raws: [raw.of.content_encoding for raw in raws],
    "persistent": lambda raws: [raw.of.durable for raw in raws],
    "groupId": lambda raws: [raw.of.group for raw in raws],
    "groupSequence": lambda raws: [raw.of.group_sequence for raw in raws],
}
