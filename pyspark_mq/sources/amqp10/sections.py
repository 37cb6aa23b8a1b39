"""Deliveries from the bytes of a message: the sections of AMQP 1.0, part 3.2. No socket, no clock.

What the scan does not take is decoded here, by the client library. Its binary values are views of a buffer that
belongs to the message it decodes into, and changes with the next one: nothing here keeps one.
"""

from __future__ import annotations

import contextlib
from typing import Any

from proton import Array, Data, Described, Message

from pyspark_mq.sources.amqp10.decoder import Raw, UnreadableRaw, body_bytes
from pyspark_mq.sources.amqp10.scan import Scanner
from pyspark_mq.sources.base import UNREADABLE_PROPERTY

__all__ = ["SectionReader"]

#: Descriptors of the sections a body can have several of (AMQP 1.0, 3.2.6 and 3.2.7), by number and by name.
_DATA_NAMES = (0x75, "amqp:data:binary")
_SEQUENCE_NAMES = (0x76, "amqp:amqp-sequence:list")
_PROPERTIES_NAMES = (0x73, "amqp:properties:list")
#: Places in the properties section (3.2.4).
_MESSAGE_ID, _SUBJECT, _CORRELATION_ID = 0, 3, 5
#: The ways to begin a `data` section, the one that nearly everybody uses first.
_DATA_MARKS = (b"\x00\x53\x75", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75", b"amqp:data:binary")


class SectionReader:
    """Makes raw deliveries of encoded messages.

    Args:
        counts_acquirers: does the broker mark a redelivery by the header `first-acquirer`?
    """

    def __init__(self, *, counts_acquirers: bool) -> None:
        self._counts_acquirers = counts_acquirers
        self._scanner = Scanner(counts_acquirers=counts_acquirers)
        self._message = Message()  # the library's own, used again for each

    def read(self, tag: int, data: bytes) -> Raw:
        """The delivery of that number; an :class:`UnreadableRaw` if the message cannot be decoded."""
        return self._scanner.scan(tag, data) or self.decode(tag, data)

    def decode(self, tag: int, data: bytes) -> Raw:
        """The same by the library alone."""
        try:
            return self._read(tag, data)
        except Exception as broken:  # noqa: BLE001 - whatever it is, it is of this message
            return _unreadable(tag, data, broken)

    def _read(self, tag: int, data: bytes) -> Raw:
        message = self._message
        message.decode(data)
        body = self._body(data)
        properties, group = _owned(message.properties), message.group_id
        if group is not None:
            properties = {**(properties or {}), "JMSXGroupID": group}
        created, expires, deliveries = message.creation_time, message.expiry_time, message.delivery_count
        created_ms = round(created * 1000)
        return Raw(
            tag,
            body,
            _owned(message.id),
            _owned(message.correlation_id),
            message.reply_to,
            _content_type(message),
            message.subject,
            message.priority,
            created_ms,
            round(expires * 1000) or (created_ms + round(message.ttl * 1000) if created and message.ttl else 0),
            deliveries,
            deliveries > 0 or (self._counts_acquirers and not message.first_acquirer),
            properties,
        )

    def _body(self, data: bytes) -> bytes:
        """The body of the message just decoded. The library keeps the last section; there may be several."""
        message = self._message
        value = message.body
        if not message.inferred or value is None:
            return body_bytes(value)
        body = body_bytes(value)
        if isinstance(value, memoryview | bytes):
            size = len(body)
            head = bytes((0xA0, size)) if size < 256 else b"\xb0" + size.to_bytes(4, "big")
            last = _DATA_MARKS[0] + head + body
            before = data[: len(data) - len(last)]
            if data.endswith(last) and not any(mark in before for mark in _DATA_MARKS):
                return body
        return _joined(data)


def _owned(value: Any) -> Any:
    """A value of the library's that stays as it is when its message is used again."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {_owned(name): _owned(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_owned(item) for item in value]
    if isinstance(value, Array):
        return Array(value.descriptor, value.type, *map(_owned, value.elements))
    return Described(value.descriptor, _owned(value.value)) if isinstance(value, Described) else value


def _joined(data: bytes) -> bytes:
    """The body of an encoded message with any number of `data` or `amqp-sequence` sections."""
    parts: list[bytes] = []
    sequence: list[object] = []
    sections = Data()
    while data:
        size = sections.decode(data)
        sections.rewind()
        sections.next()
        section = sections.get_py_described()
        value: Any = section.value
        if section.descriptor in _DATA_NAMES:
            parts.append(bytes(value))
        elif section.descriptor in _SEQUENCE_NAMES:
            sequence += value
        sections.clear()
        data = data[size:]
    return b"".join(parts) if parts else body_bytes(sequence)


def _unreadable(tag: int, data: bytes, broken: Exception) -> UnreadableRaw:
    """What stands for a message that cannot be decoded, with what its properties section says, if that can be read."""
    fields: list[Any] = []
    with contextlib.suppress(Exception):
        sections, rest = Data(), data
        while rest and not fields:
            rest = rest[sections.decode(rest) :]
            sections.rewind()
            sections.next()
            if sections.type() == Data.DESCRIBED:
                section = sections.get_py_described()
                fields = _owned(list(section.value)) if section.descriptor in _PROPERTIES_NAMES else []  # type: ignore[arg-type]
            sections.clear()
    fields += [None] * (_SUBJECT + 3 - len(fields))
    reason = {UNREADABLE_PROPERTY: f"{type(broken).__name__}: {broken}"}
    subject = str(fields[_SUBJECT]) if fields[_SUBJECT] is not None else None
    known = (fields[_MESSAGE_ID], fields[_CORRELATION_ID], None, None, subject)
    return UnreadableRaw(tag, data, *known, 4, 0, 0, 0, False, reason)


def _content_type(message: Message) -> str | None:
    # The library makes the text "None" of a missing one.
    value = message.content_type
    return None if value is None or value == "None" else str(value)
