"""Makes columns from AMQP 1.0 messages that are decoded one by one.

:class:`Raw` holds a delivery with its decoded message; :class:`.SectionReader` creates it. For the sections and
properties of a message see AMQP 1.0, part 3. For the mapping of JMS to AMQP see OASIS's "AMQP JMS Mapping" and Qpid
JMS, which both ActiveMQ brokers follow.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
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

#: Message annotation with the kind of a JMS message ("AMQP JMS Mapping", 3.2.1). It is shown in column `properties`
#: under the same name.
JMS_KIND = "x-opt-jms-msg-type"
#: Message annotation with the kind of destination (queue or topic) in `reply-to`, as a number (same section).
JMS_REPLY_KIND = "x-opt-jms-reply-to"
#: Message annotations of RabbitMQ 4 with the exchange and the routing key to which a message was published.
ROUTING = ("x-exchange", "x-routing-key")
#: Annotations of dead letters in RabbitMQ 4 and 3 ("Dead Letter Exchanges", "Effects on Messages").
DEATHS = ("x-opt-deaths", "x-death")

#: Names and values for column `properties` that come from sections other than `application-properties`.
Named: TypeAlias = "tuple[tuple[str, str], ...]"


class Sections(NamedTuple):
    """The decoded sections of a message.

    Attributes:
        priority, durable, deliveries: fields of the header. `deliveries` is the number of earlier deliveries.
        redelivered: whether the message may have been delivered before.
        id, correlation_id: IDs as the producer sent them: str, int, UUID, bytes, or None.
        user, subject, content_type, content_encoding, group, group_sequence: fields of section `properties`.
        reply_to: the reply address. In a :class:`Raw`, it is in the form in which rows name destinations.
        reply_kind: the kind of destination of `reply_to`, as an index into :data:`.KINDS`; None if the message does
            not state it.
        created_ms, expires_ms: milliseconds since 1970; 0 for none.
        application: application properties by name; a list or map is JSON text.
        named: properties from other sections. They take precedence over application properties with the same name.
        exchange, routing_key: exchange and routing key to which the message was published, as RabbitMQ reports them.
        died: whether the message has been dead-lettered.
        value: the body: the bytes of `data`, the list of `amqp-sequence`, or the value of `amqp-value`. None if there
            is no body.
        described: whether the body is an `amqp-value` with a descriptor. Such a body always becomes JSON.
        written: number of characters in the properties that decoding has converted to new text. They take memory in
            addition to the message's bytes.
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
    """One delivery with its decoded message.

    Attributes:
        tag: the delivery's number within its session.
        body: the body as bytes, in the form of :func:`body_bytes`.
        size: number of bytes of memory that the delivery takes, at least the size of the whole message as received.
        of: the message's sections. Their `value` is None for a large body, or a body that is a list or map, because
            such values take up to 64 times the memory of their encoding; the body is then only in `body`.
    """

    tag: int
    body: bytes
    size: int
    of: Sections


class UnreadableMessage(Raw):
    """A delivery whose message could not be decoded. Its body is the whole message as received."""

    __slots__ = ()


def body_bytes(value: object) -> bytes:
    """Encode a decoded body as bytes for column `body`.

    Bytes are unchanged, text is encoded as UTF-8, None becomes an empty body, and all other values become JSON.
    """
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json_text(value)).encode()


_quoted = json.JSONEncoder(ensure_ascii=False).encode
_NO_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})


def json_text(value: object) -> str:
    """Return a decoded value of any AMQP type as JSON.

    Bytes become base64 text, and numbers that JSON cannot express (`NaN`, `Infinity`, `-Infinity`) become text. A map
    becomes a JSON object if no key is a list or a map and no two keys have the same text. Otherwise the map becomes a
    list of lists, each with a key and its value.
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
    """Return a value other than a list or map as text. None becomes `null`, and bytes become base64."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    return "null" if value is None else _number(value)


def _number(value: Any) -> str:
    """Return a boolean, a number or a UUID as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not isfinite(value):
        return str(Decimal(value))
    return str(value)


def text(value: object) -> str | None:
    """Return a decoded value as text for a string column, or None for None.

    Bytes are decoded as UTF-8, and bytes that are not UTF-8 become escapes. Lists and maps become JSON.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json_text(value) if isinstance(value, list) else _number(value)


def id_of(value: object) -> object:
    """Return an ID in the form in which IDs are compared, which is text or bytes.

    A number becomes decimal text, as it does with the other protocols.
    """
    return value if isinstance(value, bytes) else text(value)


def _timestamp_us(milliseconds: int) -> int | None:
    return milliseconds * 1000 if 0 < milliseconds <= INT64_MAX // 1000 else None


def property_of(raw: Raw, name: str) -> object:
    """Return the property with this name, from annotations or from the application properties; None if missing."""
    return next((value for known, value in raw.of.named if known == name), raw.of.application.get(name))


def _pairs(raw: Raw) -> list[tuple[str, str | None]]:
    named = dict(raw.of.named)
    return [(name, text(value)) for name, value in raw.of.application.items() if name not in named] + [*raw.of.named]


def lasting(data: bytes) -> bytes:
    """Return an encoded message without its header and annotations, which differ between deliveries of a message.

    If the header or the annotations cannot be read, return the whole message.
    """
    try:
        return data[bare_message_at(data) :]
    except (EncodingError, IndexError):
        return data


def unreadable_of(raw: Raw) -> Unreadable:
    """Return a description of a delivery that could not be decoded, for errors and logs."""
    known = {"message-id": text(raw.of.id), "correlation-id": text(raw.of.correlation_id), "subject": raw.of.subject}
    error = raw.of.application[UNREADABLE_PROPERTY]
    return Unreadable(raw.tag, {name: value for name, value in known.items() if value}, raw.body, str(error))


def _delivery_count(before: int, redelivered: bool) -> int | None:
    # If a redelivery has no count, the broker does not count deliveries. The message's count may exceed the column's
    # range, because the header is an unsigned integer and the column is signed.
    return before + 1 if (before or not redelivered) and before < INT32_MAX else None


def is_not_redelivered(raw: Raw) -> bool:
    """Return whether a delivery was decoded and has no mark of a redelivery or of a dead letter."""
    return not raw.of.redelivered and not raw.of.died and type(raw) is not UnreadableMessage


#: Columns that are made of a property, because AMQP 1.0 has no field for them: column -> name of the property. Messages
#: with such a property are not decoded together (:mod:`.amqp10_columns`). The ID of the application is a property of
#: JMS (JMS 2.0, 3.5.9).
OF_PROPERTIES: Mapping[str, str] = MappingProxyType({"appId": "JMSXAppID"})


def _of_property(name: str, raws: Sequence[Raw]) -> list[str | None]:
    return [text(property_of(raw, name)) for raw in raws]


#: Columns of deliveries whose messages are decoded one by one, in the form of :attr:`.DeliveryBatch.columns`.
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
    "contentEncoding": lambda raws: [raw.of.content_encoding for raw in raws],
    "persistent": lambda raws: [raw.of.durable for raw in raws],
    "groupId": lambda raws: [raw.of.group for raw in raws],
    "groupSequence": lambda raws: [raw.of.group_sequence for raw in raws],
    **{column: partial(_of_property, name) for column, name in OF_PROPERTIES.items()},
}
