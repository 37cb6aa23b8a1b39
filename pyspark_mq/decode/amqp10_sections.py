"""Decodes single AMQP 1.0 messages, which consist of sections (part 3.2), with any content.

No byte of a message is ignored. If a part of the message cannot be represented in a row, an
:class:`~pyspark_mq.decode.amqp10_encoding.EncodingError` is raised, and the message counts as unreadable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

from pyspark_mq.brokers.destinations import KINDS, Form, as_row
from pyspark_mq.decode.amqp10_encoding import EncodingError, Pairs, Values, list_at, plain_at
from pyspark_mq.decode.amqp10_message import (
    DEATHS,
    JMS_KIND,
    JMS_REPLY_KIND,
    ROUTING,
    Named,
    Raw,
    Sections,
    UnreadableMessage,
    body_bytes,
    json_text,
    text,
)
from pyspark_mq.decode.batch import UNREADABLE_PROPERTY
from pyspark_mq.decode.escapes import TOO_MANY_ESCAPES, escapes_too_much

__all__ = ["SectionReader", "Sections", "read_sections"]

_HEADER, _DELIVERY_ANNOTATIONS, _MESSAGE_ANNOTATIONS, _PROPERTIES, _APPLICATION = range(0x70, 0x75)
_DATA, _SEQUENCE, _VALUE, _FOOTER = range(0x75, 0x79)
#: Names of sections. A section begins with its number or, instead, with its name (3.2.1 to 3.2.9).
_NAMES = {
    "amqp:header:list": _HEADER,
    "amqp:delivery-annotations:map": _DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": _MESSAGE_ANNOTATIONS,
    "amqp:properties:list": _PROPERTIES,
    "amqp:application-properties:map": _APPLICATION,
    "amqp:data:binary": _DATA,
    "amqp:amqp-sequence:list": _SEQUENCE,
    "amqp:amqp-value:*": _VALUE,
    "amqp:footer:map": _FOOTER,
}
_NAME_OF = {number: name for name, number in _NAMES.items()}
_ULONG, _SMALL_ULONG, _SYMBOL8, _SYMBOL32 = 0x80, 0x53, 0xA3, 0xB3
_EMPTY_LIST = b"\x45"
_MAP, _LIST, _OCTETS = (0xC1, 0xD1), (0x45, 0xC0, 0xD0), (0xA0, 0xB0)
#: Accepted type codes of the value of each section whose type is fixed. The value must not have a further descriptor.
_TYPES = {
    _DELIVERY_ANNOTATIONS: _MAP, _MESSAGE_ANNOTATIONS: _MAP, _APPLICATION: _MAP, _FOOTER: _MAP,
    _DATA: _OCTETS, _SEQUENCE: _LIST,
}  # fmt: skip
_DEFAULT_PRIORITY = 4
_SHOWN_CHARACTERS = 100
#: Name under which column `properties` shows the message group, which is the name in JMS (JMS 2.0, 3.5.9).
_GROUP = "JMSXGroupID"
_NULL = frozenset({0x40})
_BOOLEAN = _NULL | {0x41, 0x42, 0x56}
_UINT = _NULL | {0x70, 0x52, 0x43}
#: A string and a symbol may stand for each other, because some producers confuse them.
_TEXT = _NULL | {0xA1, 0xB1, 0xA3, 0xB3}
_TIMESTAMP = _NULL | {0x83}
_BINARY = _NULL | {0xA0, 0xB0}
#: string, binary, uuid and ulong (3.2.11 to 3.2.14). Other integers are accepted, because they have the same text.
_ID = _TEXT | _BINARY | {0x98, 0x80, 0x53, 0x44, 0x50, 0x51, 0x52, 0x43, 0x54, 0x55, 0x60, 0x61, 0x70, 0x71, 0x81}
#: The fields of `header` (3.2.1): durable, priority, ttl, first-acquirer, delivery-count.
_HEADER_FIELDS = (_BOOLEAN, _NULL | {0x50}, _UINT, _BOOLEAN, _UINT)
#: The fields of `properties` (3.2.4): message-id, user-id, to, subject, reply-to, correlation-id, content-type,
#: content-encoding, absolute-expiry-time, creation-time, group-id, group-sequence, reply-to-group-id.
_PROPERTIES_FIELDS = (
    _ID, _BINARY, _TEXT, _TEXT, _TEXT, _ID, _TEXT, _TEXT, _TIMESTAMP, _TIMESTAMP, _TEXT, _UINT, _TEXT,
)  # fmt: skip
#: Bytes of memory that a decoded application property takes. The properties of a message that has at most
#: `_FEW_ENTRIES` of them are not counted, because :data:`.ROW_BYTES` covers them.
_ENTRY_BYTES, _FEW_ENTRIES = 200, 32
#: If a message is larger than this, only the bytes of its body are kept, and not the decoded body.
_LARGE_BYTES = 64 << 10
#: The sections whose value is a list of fields, with the accepted types of their fields.
_LISTS = {_HEADER: _HEADER_FIELDS, _PROPERTIES: _PROPERTIES_FIELDS}


class SectionReader:
    """Decodes the messages of a session one by one.

    Args:
        counts_acquirers: whether the broker marks a redelivery by header field `first-acquirer`.
        names_annotations: whether column `properties` includes all message annotations.
        forms: how the broker writes destinations, for column `replyTo`.
    """

    def __init__(self, *, counts_acquirers: bool, names_annotations: bool = False, forms: Sequence[Form] = ()) -> None:
        self._counts_acquirers, self._names_annotations, self.forms = counts_acquirers, names_annotations, forms

    def read(self, tag: int, data: bytes) -> Raw:
        """Decode a message, and return it as a delivery with this tag.

        If any part of the message cannot be decoded, the delivery is an :class:`UnreadableMessage`.
        """
        try:
            said = read_sections(
                data, counts_acquirers=self._counts_acquirers, names_annotations=self._names_annotations
            )
            if said.reply_to is not None:
                said = said._replace(reply_to=as_row(said.reply_to, self.forms, said.reply_kind))
            body = json_text(said.value).encode() if said.described else body_bytes(said.value)
            size = len(data)
            if isinstance(said.value, list) or size > _LARGE_BYTES:
                said = said._replace(value=None)
                size = max(size, len(body))
            size += said.written
            if len(said.application) > _FEW_ENTRIES:
                size += _ENTRY_BYTES * len(said.application)
            return Raw(tag, body, size, said)
        except Exception as broken:  # noqa: BLE001 - any error is due to this message, so only this message fails
            return _unreadable(tag, data, broken)


def read_sections(data: bytes, *, counts_acquirers: bool = False, names_annotations: bool = False) -> Sections:
    """Decode all sections of an encoded message.

    Sections may be in any order. Each section may occur once, except that a body may consist of several `data` or
    several `amqp-sequence` sections.

    Args:
        data: the encoded message.
        counts_acquirers, names_annotations: see :class:`SectionReader`.

    Raises:
        EncodingError, IndexError, UnicodeDecodeError: the bytes are not a message, or a part of the message cannot be
            represented in a row.
    """
    values, at, described = Values(data), 0, False
    found: dict[int, list[Any]] = {}
    while at < len(data):
        number, begin = _section_at(data, at)
        if number in found and number not in {_DATA, _SEQUENCE}:
            raise EncodingError(f"a second section {_NAME_OF[number]} at byte {at}")
        described = described or (number == _VALUE and data[begin : begin + 1] == b"\0")
        content, at = _content_at(number, data, begin, values)
        found.setdefault(number, []).append(content)
    (header,) = found.get(_HEADER) or [_fields(_EMPTY_LIST, 0, _HEADER_FIELDS)[0]]
    (properties,) = found.get(_PROPERTIES) or [_fields(_EMPTY_LIST, 0, _PROPERTIES_FIELDS)[0]]
    (application,) = found.get(_APPLICATION, [Pairs()])
    (annotations,) = found.get(_MESSAGE_ANNOTATIONS, [Pairs()])
    durable, priority, ttl_ms, first_acquirer, deliveries = header
    message_id, user, _, subject, reply_to, correlation_id, content_type, *others = properties
    encoding, expires, created, group, sequence, _ = others
    named, exchange, key, died, kind = _annotated(annotations, names_all=names_annotations)
    if ttl_ms and created and not expires:
        expires = created + ttl_ms
    properties_by_name, written = _application(application)
    if group is not None and all(name != _GROUP for name, _ in named):
        named = (*named, (_GROUP, group))
    return Sections(
        _DEFAULT_PRIORITY if priority is None else priority,
        bool(durable),
        deliveries or 0,
        bool(deliveries) or (counts_acquirers and not first_acquirer),
        message_id,
        user,
        subject,
        reply_to,
        correlation_id,
        content_type,
        encoding,
        expires or 0,
        created or 0,
        group,
        sequence,
        properties_by_name,
        named,
        exchange,
        key,
        died,
        _body(found),
        described,
        kind,
        written + sum(len(value) for _, value in named),
    )


def _content_at(number: int, data: bytes, at: int, values: Values) -> tuple[Any, int]:
    """Decode the value of a section.

    Args:
        number: number of the section.
        data: the encoded message.
        at: position at which the section's value begins.
        values: decoder of values of any type.

    Returns:
        the value, and the position after it. The value of `header` and of `properties` is a list of fields.
    """
    if number in _LISTS:
        return _fields(data, at, _LISTS[number])
    if number in _TYPES and data[at] not in _TYPES[number]:
        raise EncodingError(
            f"a section {_NAME_OF[number]} has a value with the code 0x{data[at]:02x}, which is not allowed there"
        )
    return values.at(at, len(data))


def _body(found: dict[int, list[Any]]) -> Any:
    kinds = [number for number in (_DATA, _SEQUENCE, _VALUE) if number in found]
    if len(kinds) > 1:
        raise EncodingError("a body of mixed sections: " + " and ".join(_NAME_OF[number] for number in kinds))
    if _DATA in found:
        return b"".join(found[_DATA])
    if _SEQUENCE in found:
        return [*chain.from_iterable(found[_SEQUENCE])]
    return found[_VALUE][0] if _VALUE in found else None


def _section_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of the section that begins at byte `at`, and the position at which its value begins."""
    code = data[at + 1]
    if data[at] == 0 and code in {_SMALL_ULONG, _ULONG, _SYMBOL8, _SYMBOL32}:
        descriptor, after = plain_at(data, at + 1)
        number = _NAMES.get(descriptor, 0) if isinstance(descriptor, str) else descriptor
        if number in _NAME_OF:
            return number, after
    raise EncodingError(f"no section begins at byte {at}: {data[at : at + 12].hex(' ')}")


def _annotated(pairs: Pairs, *, names_all: bool) -> tuple[Named, str | None, str | None, bool, int | None]:
    """Read message annotations.

    Args:
        pairs: the annotations.
        names_all: whether column `properties` includes all annotations. This is done for streams only: for messages in
            queues the broker changes some annotations at each delivery.

    Returns:
        the annotations for column `properties`; the exchange and the routing key to which the message was published;
        whether the message was dead-lettered; and the kind of `reply-to`, see :class:`.Sections`.
    """
    annotations = {key: value for key, value in reversed(pairs) if isinstance(key, str)}
    exchange, key = (text(annotations.get(name)) for name in ROUTING)
    died = any(name in annotations for name in DEATHS)
    names = sorted(name for name in annotations if name not in ROUTING) if names_all else [JMS_KIND]
    texts = {name: text(annotations.get(name)) for name in names}
    kind = annotations.get(JMS_REPLY_KIND)
    kind = kind if type(kind) is int and 0 <= kind < len(KINDS) else None
    return tuple((name, value) for name, value in texts.items() if value is not None), exchange, key, died, kind


def _fields(data: bytes, at: int, kinds: tuple[frozenset[int], ...]) -> tuple[list[Any], int]:
    """Decode a list of fields, and check the type of each field.

    Args:
        data: the encoded message.
        at: position at which the list begins.
        kinds: the accepted type codes of each field.

    Returns:
        the fields, and the position after the list. A field that the message omits is None.
    """
    item, count, end = list_at(data, at)
    if count > len(kinds):
        raise EncodingError(f"the list at byte {at} has {count} fields, but its section allows {len(kinds)}")
    found: list[Any] = []
    for kind in kinds[:count]:
        code = data[item]
        if code == 0x40:
            found.append(None)
            item += 1
        elif code in kind:
            value, item = plain_at(data, item)
            if isinstance(value, bytes) and escapes_too_much(value):
                raise EncodingError(TOO_MANY_ESCAPES)
            found.append(value)
        else:
            raise EncodingError(
                f"field {len(found)} of the list at byte {at} has the code 0x{code:02x}, which is not allowed there"
            )
    if item != end:
        raise EncodingError(
            f"the {count} fields of the list at byte {at} end at byte {item}, not at byte {end} as its size says"
        )
    return found + [None] * (len(kinds) - count), end


def _application(pairs: Pairs) -> tuple[dict[str, object], int]:
    """Return application properties by name. A value that is a list or map becomes JSON text.

    Returns:
        the properties, and the number of characters of JSON text in them.
    """
    found: dict[str, object] = {}
    written = 0
    for key, value in pairs:
        name = None if isinstance(key, list) else text(key)
        if name is None or name in found:
            # A key may be large: only the beginning of a name is shown.
            what = (
                "a key that is null, a list, an array or a map"
                if name is None
                else f"key {name[:_SHOWN_CHARACTERS]!r} twice"
            )
            raise EncodingError(f"application-properties with {what}")
        if isinstance(value, list):
            value = json_text(value)  # noqa: PLW2901
            written += len(value)
        found[name] = value
    return found, written


def _unreadable(tag: int, data: bytes, broken: Exception) -> UnreadableMessage:
    """Return the delivery of a message that cannot be decoded.

    If section `properties` can be decoded, the delivery has the message's IDs and subject from this section.

    Args:
        tag: the delivery's number.
        data: the encoded message.
        broken: why the message cannot be decoded.
    """
    fields: list[Any] = [None] * len(_PROPERTIES_FIELDS)
    with contextlib.suppress(Exception):
        values, at, number = Values(data), 0, 0
        while number != _PROPERTIES:
            number, at = _section_at(data, at)
            content, at = _content_at(number, data, at, values)
        fields = content
    reason = "the message is cut off" if isinstance(broken, IndexError) else str(broken)
    error = {UNREADABLE_PROPERTY: f"{type(broken).__name__}: {reason}"}
    known = Sections(id=fields[0], subject=fields[3], correlation_id=fields[5], application=error)
    return UnreadableMessage(tag, data, len(data), known)
