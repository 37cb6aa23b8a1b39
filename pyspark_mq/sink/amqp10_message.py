"""Encodes messages as AMQP 1.0 bytes (part 3 of the specification).

The functions do no I/O, but read the clock for a message's time to live. This module encodes the bytes itself, because
encoding with proton would take longer than all other work of a write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark_mq.brokers.base import Amqp10Dialect
from pyspark_mq.brokers.destinations import KINDS, as_written, of_row
from pyspark_mq.decode.amqp10_message import JMS_REPLY_KIND
from pyspark_mq.errors import RowError
from pyspark_mq.sink.settings import COPY_ID, MQ_ID, TEXT_TYPE, Message, ttl_ms

__all__ = ["encoded"]

_NULL, _TRUE, _FALSE = b"\x40", b"\x41", b"\x42"
_UINT_MAX = (1 << 32) - 1
#: Descriptors of sections (3.2).
_HEADER, _ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _VALUE = (
    b"\x00\x53" + bytes((code,)) for code in b"\x70\x72\x73\x74\x75\x77"
)


def encoded(message: Message, broker: str, dialect: Amqp10Dialect | None = None) -> bytes:
    """Encode a message for a broker.

    On RabbitMQ the ID is in the field `message-id`. On Artemis the ID is in the field `message-id` and in the property
    `mq_id`. On ActiveMQ Classic the ID is only in the property `mq_id`, because this broker cannot settle a message
    over STOMP if the field has an ID that the broker did not create.

    On Artemis the property `_AMQ_DUPL_ID` makes the broker drop a copy of a message that it has accepted. A message
    that Artemis refused because of a missing queue, a missing permission or a full address does not count as accepted
    (2.40, 2.56).

    Args:
        broker: value of option `broker`.
        dialect: how the broker writes destinations; None to write destinations as rows name them.

    Raises:
        RowError: AMQP 1.0 cannot carry a value.
    """
    annotations = b""
    if message.reply_to is not None and dialect is not None:
        if dialect.states_kinds:
            annotations = _reply_kind(message.reply_to)
        forms, reply_to = dialect.forms, message.reply_to
        message = message._replace(reply_to=as_written(reply_to, forms) if forms else of_row(reply_to)[1])
    body = _body(message, broker)
    if broker == "rabbitmq" and message.is_text and message.content_type is None:
        message = message._replace(content_type=TEXT_TYPE)
    parts = (_header(message), annotations, _properties(message, broker), _application(message, broker), body)
    return b"".join(parts)


def _reply_kind(reply_to: str) -> bytes:
    """Return an annotation with the kind of a destination, which JMS clients read (AMQP JMS Mapping 1.0, 3.2.1)."""
    kind = b"\x51" + bytes((KINDS.index(of_row(reply_to)[0]),))
    return _ANNOTATIONS + _compound(b"\xd1", [_symbol("replyTo", JMS_REPLY_KIND), kind])


def _header(message: Message) -> bytes:
    lifetime = None if message.expiration_us is None else ttl_ms(message.expiration_us)
    return _list(
        _HEADER,
        [
            _TRUE if message.persistent else _FALSE,
            _NULL if message.priority is None else b"\x50" + bytes((message.priority,)),
            # If the time to live does not fit, the message has only the absolute expiry time.
            _NULL if lifetime is None or lifetime > _UINT_MAX else _uint(lifetime),
        ],
    )


def _properties(message: Message, broker: str) -> bytes:
    sequence = message.group_sequence
    if sequence is not None and sequence > _UINT_MAX:
        raise RowError(f"a row has {sequence} in column 'groupSequence', but AMQP 1.0 allows at most {_UINT_MAX}")
    return _list(
        _PROPERTIES,
        [
            _NULL if broker == "activemq" else _string(message.id),
            _NULL,  # user-id
            _NULL,  # to
            _or_null(message.type, _string),
            _or_null(message.reply_to, _string),
            _or_null(message.correlation_id, _string),
            _symbol("contentType", message.content_type),
            _symbol("contentEncoding", message.content_encoding),
            _NULL if message.expiration_us is None else _time(message.expiration_us),
            _NULL if message.timestamp_us is None else _time(message.timestamp_us),
            _or_null(message.group_id, _string),
            _NULL if sequence is None else _uint(sequence),
        ],
    )


def _application(message: Message, broker: str) -> bytes:
    entries = dict(message.properties)
    if message.app_id is not None:
        entries["JMSXAppID"] = message.app_id
    if broker != "rabbitmq":
        entries[MQ_ID] = message.id
    if broker == "artemis":
        entries.setdefault(COPY_ID, message.copy_id or message.id)
    if not entries:
        return b""
    parts = [part for name, value in entries.items() for part in (_string(name), _or_null(value, _string))]
    return _APPLICATION + _compound(b"\xd1", parts)


def _body(message: Message, broker: str) -> bytes:
    if message.is_text:
        try:
            message.body.decode()
        except UnicodeDecodeError:
            raise RowError("a row has a string that is not UTF-8 in column 'body': cast the column to binary") from None
    # RabbitMQ delivers an `amqp-value` over AMQP 0-9-1 as its encoded bytes. JMS clients take `data` with a content
    # type of text for a text message. So a text for RabbitMQ is written as `data`.
    if broker == "rabbitmq" or not message.is_text:
        return _DATA + _sized(b"\xa0", b"\xb0", message.body)
    return _VALUE + _sized(b"\xa1", b"\xb1", message.body)


# -- types (1.6) ------------------------------------------------------------------------------


def _or_null(text: str | None, kind: Callable[[str], bytes]) -> bytes:
    return _NULL if text is None else kind(text)


def _string(text: str) -> bytes:
    return _sized(b"\xa1", b"\xb1", text.encode())


def _symbol(column: str, text: str | None) -> bytes:
    if text is None:
        return _NULL
    if not text.isascii():
        raise RowError(f"a row has '{text[:40]}' in column '{column}', but AMQP 1.0 allows only ASCII: correct it")
    return _sized(b"\xa3", b"\xb3", text.encode())


def _sized(short: bytes, long: bytes, data: bytes) -> bytes:
    size = len(data)
    return b"%b%c%b" % (short, size, data) if size < 256 else b"%b%b%b" % (long, size.to_bytes(4, "big"), data)


def _uint(value: int) -> bytes:
    return b"\x70" + value.to_bytes(4, "big")


def _time(microseconds: int) -> bytes:
    return b"\x83" + (microseconds // 1000).to_bytes(8, "big", signed=True)


def _list(descriptor: bytes, fields: list[bytes]) -> bytes:
    while fields and fields[-1] == _NULL:
        fields.pop()
    return descriptor + _compound(b"\xd0", fields)


def _compound(code: bytes, parts: Sequence[bytes]) -> bytes:
    data = b"".join(parts)
    return b"%b%b%b%b" % (code, (len(data) + 4).to_bytes(4, "big"), len(parts).to_bytes(4, "big"), data)
