"""Encodes messages as AMQP 0-9-1 frames. The functions do no I/O, but read the clock for a message's time to live.

This module encodes the bytes itself, because encoding with pika would take longer than all other work of a write.
"""

from __future__ import annotations

import struct
from typing import Any

from pyspark_mq.errors import RowError
from pyspark_mq.sink.settings import TEXT_TYPE, Destination, Message, ttl_ms

__all__ = ["content", "properties_of", "publish_frame"]

#: Maximum size of a short string, such as a name (AMQP 0-9-1, 4.2.5.3), and of all headers of a message together, which
#: must fit into one frame (4.2.3). By default a frame has 128 KiB.
_SHORT_BYTES, _HEADERS_BYTES = 255, 120 << 10
_MICROSECONDS = 1_000_000
#: RabbitMQ's longest time to live (`?MAX_EXPIRY_TIMER`).
_TTL_MAX_MS = (1 << 32) - 1
_INT32_MAX = (1 << 31) - 1
#: Frame types (4.2.3): method, content header and body; and the octet at the end of each frame.
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_BASIC, _PUBLISH, _MANDATORY, _NO_FLAGS = 60, 40, b"\x01", b"\x00"
#: Prefix of the pseudo-queues for direct replies (RabbitMQ's documentation, "Direct Reply-to").
_DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
_FRAME, _CONTENT = struct.Struct(">BHI"), struct.Struct(">BHIHHQ")
#: Properties in the order of their flags, from the highest bit down (4.2.6.1, and the class `basic`).
_PROPERTIES = (
    "contentType", "contentEncoding", "properties", "persistent", "priority", "correlationId", "replyTo", "expiration",
    "messageId", "timestamp", "type", "userId", "appId",
)  # fmt: skip


def publish_frame(destination: Destination, channel: int) -> bytes:
    """Return the method frame that publishes a message to a destination.

    Raises:
        RowError: a name is too long.
    """
    exchange, key = (destination.name, destination.key) if destination.kind == "exchange" else ("", destination.name)
    names = _short("exchange", exchange) + _short("routingKey" if exchange else "queue", key)
    # Do not set `mandatory` for a direct reply: RabbitMQ 3.10 would return the message even if it delivered the reply.
    flags = _NO_FLAGS if not exchange and key.startswith(_DIRECT_REPLY_TO) else _MANDATORY
    payload = struct.pack(">HHH", _BASIC, _PUBLISH, 0) + names + flags
    return _FRAME.pack(_METHOD, channel, len(payload)) + payload + _END


def content(message: Message, channel: int, frame_bytes: int) -> bytes:
    """Return the frames that follow a message's method frame: properties and body.

    Args:
        frame_bytes: maximum number of body bytes in a frame.

    Raises:
        RowError: a property is too long.
    """
    properties, body = properties_of(message), message.body
    size = len(body)
    parts = [_CONTENT.pack(_HEADER, channel, len(properties) + 12, _BASIC, 0, size), properties, _END]
    if size <= frame_bytes:
        if size:
            parts += (_FRAME.pack(_BODY, channel, size), body, _END)
    else:
        for start in range(0, size, frame_bytes):
            part = body[start : start + frame_bytes]
            parts += (_FRAME.pack(_BODY, channel, len(part)), part, _END)
    return b"".join(parts)


def properties_of(message: Message) -> bytes:
    """Encode a message's properties: flags that tell which properties are present, followed by the present values.

    :class:`.Amqp091Batch` reads properties in the same form.

    Raises:
        RowError: a property is too long.
    """
    content_type = TEXT_TYPE if message.content_type is None and message.is_text else message.content_type
    headed = message.properties or message.group_id is not None or message.group_sequence is not None
    values = (
        content_type, message.content_encoding, _table(message) if headed else None,
        b"\x02" if message.persistent else b"\x01", None if message.priority is None else bytes((message.priority,)),
        message.correlation_id, message.reply_to,
        None if message.expiration_us is None else _lifetime(message.expiration_us), message.id,
        None if message.timestamp_us is None else (message.timestamp_us // _MICROSECONDS).to_bytes(8, "big"),
        message.type, None, message.app_id,
    )  # fmt: skip
    flags, flag, parts = 0, 1 << 16, []
    for name, value in zip(_PROPERTIES, values, strict=True):
        flag >>= 1
        if value is not None:
            flags |= flag
            parts.append(_short(name, value) if isinstance(value, str) else value)
    return flags.to_bytes(2, "big") + b"".join(parts)


def _lifetime(expiration_us: int) -> str:
    lifetime = ttl_ms(expiration_us)
    if lifetime > _TTL_MAX_MS:
        raise RowError(
            f"a row has a time {lifetime} ms ahead in column 'expiration', but RabbitMQ allows at most {_TTL_MAX_MS} "
            "ms (49 days): set the column to null in that row"
        )
    return str(lifetime)


def _short(name: str, text: str) -> bytes:
    data = text.encode()
    size = len(data)
    if size > _SHORT_BYTES:
        raise RowError(
            f"a row has {size} bytes in column '{name}' ('{text[:40]}…'), but AMQP 0-9-1 allows at most "
            f"{_SHORT_BYTES} there: shorten the value, or put it into 'body'"
        )
    return b"%c%b" % (size, data)


def _table(message: Message) -> bytes:
    headers: dict[str, Any] = dict(message.properties)
    if message.group_id is not None:
        headers["JMSXGroupID"] = message.group_id
    if message.group_sequence is not None:
        headers["JMSXGroupSeq"] = message.group_sequence
    data = b"".join(_short("properties", name) + _value(value) for name, value in headers.items())
    if len(data) > _HEADERS_BYTES:
        raise RowError(
            f"a row has {len(data)} bytes in column 'properties', but an AMQP 0-9-1 frame holds at most "
            f"{_HEADERS_BYTES}: put large properties into 'body'"
        )
    return len(data).to_bytes(4, "big") + data


def _value(value: str | int | None) -> bytes:
    """Encode the value of a header as a field value of AMQP 0-9-1 (4.2.5.5), with the type codes that RabbitMQ uses."""
    if value is None:
        return b"V"
    if isinstance(value, int):
        return b"I" + value.to_bytes(4, "big") if value <= _INT32_MAX else b"l" + value.to_bytes(8, "big")
    data = value.encode()
    return b"S%b%b" % (len(data).to_bytes(4, "big"), data)
