"""Messages from their bytes: the sections of AMQP 1.0, part 3.2, whatever they hold. No socket, no clock.

What is read of a message depends on its bytes alone, and is all of it: what has no place in a delivery is an
:class:`~pyspark_mq.sources.amqp10.encoding.EncodingError`, and the message unreadable.
"""

from __future__ import annotations

import contextlib
from itertools import chain
from typing import Any, NamedTuple

from pyspark_mq.sources.amqp10.decoder import (
    Header,
    Named,
    Properties,
    Raw,
    Routing,
    UnreadableRaw,
    body_bytes,
    json_text,
    make_raw,
    text,
)
from pyspark_mq.sources.amqp10.encoding import EncodingError, Pairs, Values, plain_at
from pyspark_mq.sources.amqp10.scan import Scanner, annotated, header_at, properties_at
from pyspark_mq.sources.connections.decoder import UNREADABLE_PROPERTY

__all__ = ["SectionReader", "Sections", "read_sections"]

_HEADER, _DELIVERY_ANNOTATIONS, _MESSAGE_ANNOTATIONS, _PROPERTIES, _APPLICATION = range(0x70, 0x75)
_DATA, _SEQUENCE, _VALUE, _FOOTER = range(0x75, 0x79)
#: Names that a section may begin with in place of its number (3.2.1 to 3.2.9).
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
_MAP, _LIST, _BINARY = (0xC1, 0xD1), (0x45, 0xC0, 0xD0), (0xA0, 0xB0)
#: The types of the sections that have one, and may not be described further.
_TYPES = {
    _DELIVERY_ANNOTATIONS: _MAP, _MESSAGE_ANNOTATIONS: _MAP, _APPLICATION: _MAP, _FOOTER: _MAP,
    _DATA: _BINARY, _SEQUENCE: _LIST,
}  # fmt: skip


class Sections(NamedTuple):
    """The sections of a message.

    Attributes:
        header, message_id, properties, named, routing: as :func:`~pyspark_mq.sources.amqp10.decoder.make_raw` takes
            them.
        application: names and values.
        value: the body: bytes of `data`, the list of `amqp-sequence`, or what an `amqp-value` has; None without one.
        described: is it an `amqp-value` with a descriptor, so that its body is JSON in any case?
    """

    header: Header
    message_id: object
    properties: Properties
    application: dict[str, object] | None
    named: Named
    routing: Routing
    value: Any
    described: bool

    @property
    def subject(self) -> str | None:
        """A property of its own (3.2.4)."""
        return self.properties[3]


class SectionReader:
    """Maker of raw deliveries from encoded messages.

    Args:
        counts_acquirers: does the broker mark a redelivery by the header `first-acquirer`?
        names_annotations: are all message annotations properties?
    """

    def __init__(self, *, counts_acquirers: bool, names_annotations: bool = False) -> None:
        self._counts_acquirers, self._names_annotations = counts_acquirers, names_annotations
        self.scanner = Scanner(counts_acquirers=counts_acquirers, names_annotations=names_annotations)

    def read(self, tag: int, data: bytes) -> Raw:
        """The delivery of that number; an :class:`UnreadableRaw` if the message cannot be read whole."""
        return self.scanner.scan(tag, data) or self.decode(tag, data)

    def decode(self, tag: int, data: bytes) -> Raw:
        """Decode a message without the scan."""
        try:
            header, message_id, properties, application, named, routing, value, described = read_sections(
                data, counts_acquirers=self._counts_acquirers, names_annotations=self._names_annotations
            )
            body = json_text(value).encode() if described else body_bytes(value)
            return make_raw(tag, body, message_id, header, properties, application, named, routing, len(data))
        except Exception as broken:  # noqa: BLE001 - whatever it is, it is of this message
            return _unreadable(tag, data, broken)


def read_sections(data: bytes, *, counts_acquirers: bool = False, names_annotations: bool = False) -> Sections:
    """Read all sections of an encoded message.

    Sections are taken in any order, each once; a body may have several of `data` or of `amqp-sequence`.

    Raises:
        EncodingError, IndexError, UnicodeDecodeError: it is not a message, or says what a delivery has no place for.
    """
    values, at, described = Values(data), 0, False
    found: dict[int, list[Any]] = {}
    while at < len(data):
        number, begin = _section_at(data, at)
        if number in found and number not in {_DATA, _SEQUENCE}:
            raise EncodingError(f"a second section {_NAME_OF[number]} at byte {at}")
        described = described or (number == _VALUE and data[begin : begin + 1] == b"\0")
        content, at = _content_at(number, data, begin, values, counts_acquirers=counts_acquirers)
        found.setdefault(number, []).append(content)
    absent = header_at(_EMPTY_LIST, 0, counts_acquirers=counts_acquirers)[0]
    (header,) = found.get(_HEADER, [absent])
    ((message_id, properties),) = found.get(_PROPERTIES, [properties_at(_EMPTY_LIST, 0)[:2]])
    application = _application(found[_APPLICATION][0]) if _APPLICATION in found else None
    (annotations,) = found.get(_MESSAGE_ANNOTATIONS, [Pairs()])
    by_name = {key: value for key, value in reversed(annotations) if isinstance(key, str)}
    named, routing = annotated(by_name, names_all=names_annotations)
    return Sections(header, message_id, properties, application, named, routing, _body(found), described)


def _content_at(number: int, data: bytes, at: int, values: Values, *, counts_acquirers: bool) -> tuple[Any, int]:
    """The content of a section, and where it ends; of `properties` a pair of the message ID and the others."""
    if number == _HEADER:
        return header_at(data, at, counts_acquirers=counts_acquirers)
    if number == _PROPERTIES:
        message_id, properties, end = properties_at(data, at)
        return (message_id, properties), end
    if number in _TYPES and data[at] not in _TYPES[number]:
        raise EncodingError(f"a section {_NAME_OF[number]} of a value of the code 0x{data[at]:02x}")
    return values.at(at, len(data))


def _body(found: dict[int, list[Any]]) -> Any:
    kinds = [number for number in (_DATA, _SEQUENCE, _VALUE) if number in found]
    if len(kinds) > 1:
        raise EncodingError("a body of " + " and ".join(_NAME_OF[number] for number in kinds))
    if _DATA in found:
        return b"".join(found[_DATA])
    if _SEQUENCE in found:
        return [*chain.from_iterable(found[_SEQUENCE])]
    return found[_VALUE][0] if _VALUE in found else None


def _section_at(data: bytes, at: int) -> tuple[int, int]:
    """The number of the section that begins there, and where its value does."""
    code = data[at + 1]
    if data[at] == 0 and code in {_SMALL_ULONG, _ULONG, _SYMBOL8, _SYMBOL32}:
        descriptor, after = plain_at(data, at + 1)
        number = _NAMES.get(descriptor, 0) if isinstance(descriptor, str) else descriptor
        if number in _NAME_OF:
            return number, after
    raise EncodingError(f"no section begins at byte {at}: {data[at : at + 12].hex(' ')}")


def _application(pairs: Pairs) -> dict[str, object]:
    """Properties by name. A value that has others in it is JSON."""
    found: dict[str, object] = {}
    for key, value in pairs:
        name = None if isinstance(key, list) else text(key)
        if name is None or name in found:
            raise EncodingError(f"application-properties with {'two' if name in found else 'a key'} {name or key!r}")
        found[name] = text(value) if isinstance(value, list) else value
    return found


def _unreadable(tag: int, data: bytes, broken: Exception) -> UnreadableRaw:
    """A stand-in for a message that cannot be read, with its properties section, if that can be read."""
    message_id, subject, correlation_id = None, None, None
    with contextlib.suppress(Exception):
        values, at, number = Values(data), 0, 0
        while number != _PROPERTIES:
            number, at = _section_at(data, at)
            content, at = _content_at(number, data, at, values, counts_acquirers=False)
        message_id, (correlation_id, _, _, subject, *_) = content
    reason = "the message is cut off" if isinstance(broken, IndexError) else str(broken)
    error = {UNREADABLE_PROPERTY: f"{type(broken).__name__}: {reason}"}
    return UnreadableRaw(
        tag, data, message_id, correlation_id, None, None, subject, 4, 0, 0, 0, False, error, size=len(data)
    )
