"""The scan of an encoded message: where its sections are (AMQP 1.0, 3.2), and what of them has to be known at once.

Reading every value of a message makes objects of which most are never looked at. The scan takes messages as nearly all
are: at most one of each section in the order of the specification, a list of plain values as `properties`, one binary
`data` section or a text or binary `amqp-value` as the body. Of such a message it gives what
:class:`~pyspark_mq.sources.amqp10.sections.SectionReader` would, to which everything else is left: the scan never
decides that a message is broken.

- `header` and the annotations are the same in most messages of a queue: each form of them is read once.
- `properties` are read at once: the ID is asked for in any case, and whether each field is in order has to be known.
- `application-properties` are checked, and kept as bytes until a column or an ID asks for them.
- The body is a slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_mq.sources.amqp10.decoder import (
    DEATHS,
    JMS_KIND,
    NO_OTHERS,
    NOWHERE,
    ROUTING,
    Header,
    Named,
    Properties,
    Raw,
    Routing,
    make_raw,
    text,
)
from pyspark_mq.sources.amqp10.encoding import EncodingError, body_of, check_map, list_at, map_at, plain_at, read_map

__all__ = ["Scanner", "annotated", "header_at", "properties_at"]

#: A section begins with a descriptor, as a small ulong (1.6.10) in all but unusual encoders.
_HEADER, _DELIVERY_ANNOTATIONS, _MESSAGE_ANNOTATIONS = b"\x00\x53\x70", b"\x00\x53\x71", b"\x00\x53\x72"
_PROPERTIES, _APPLICATION = b"\x00\x53\x73", b"\x00\x53\x74"
_DATA, _VALUE = b"\x00\x53\x75", b"\x00\x53\x77"
_MARK_BYTES = 3
_STRING8, _SYMBOL8 = 0xA1, 0xA3
#: Forms of a section that are remembered, and how long one may be.
_FORMS_MAX = 500
_FORM_BYTES_MAX = 500
_DEFAULT_PRIORITY = 4
_NULL = frozenset({0x40})
_BOOLEAN = _NULL | {0x41, 0x42, 0x56}
_UINT = _NULL | {0x70, 0x52, 0x43}
#: Producers that confuse string and symbol are understood all the same.
_TEXT = _NULL | {0xA1, 0xB1, 0xA3, 0xB3}
_TIMESTAMP = _NULL | {0x83}
_BINARY = _NULL | {0xA0, 0xB0}
#: string, binary, uuid and ulong (3.2.11 to 3.2.14); other integers have the same text.
_ID = _TEXT | _BINARY | {0x98, 0x80, 0x53, 0x44, 0x50, 0x51, 0x52, 0x43, 0x54, 0x55, 0x60, 0x61, 0x70, 0x71, 0x81}
#: The fields of `header` (3.2.1): durable, priority, ttl, first-acquirer, delivery-count.
_HEADER_FIELDS = (_BOOLEAN, _NULL | {0x50}, _UINT, _BOOLEAN, _UINT)
#: The fields of `properties` (3.2.4): message-id, user-id, to, subject, reply-to, correlation-id, content-type,
#: content-encoding, absolute-expiry-time, creation-time, group-id, group-sequence, reply-to-group-id.
_PROPERTIES_FIELDS = (
    _ID, _BINARY, _TEXT, _TEXT, _TEXT, _ID, _TEXT, _TEXT, _TIMESTAMP, _TIMESTAMP, _TEXT, _UINT, _TEXT,
)  # fmt: skip
_NO_PROPERTIES: Properties = (None, None, None, None, 0, 0, NO_OTHERS)
_ANNOTATIONS = (JMS_KIND.encode(), *(name.encode() for name in (*ROUTING, *DEATHS)))


class Scanner:
    """Scans messages; one for each session, as it remembers the forms of sections.

    Args:
        counts_acquirers: does the broker mark a redelivery by the header `first-acquirer`?
        names_annotations: see :func:`annotated`.
    """

    def __init__(self, *, counts_acquirers: bool, names_annotations: bool = False) -> None:
        self._counts_acquirers, self._names_annotations = counts_acquirers, names_annotations
        self._no_header = header_at(b"\x45", 0, counts_acquirers=counts_acquirers)[0]
        self._headers: dict[bytes, Header] = {}
        self._annotations: dict[bytes, tuple[Named, Routing]] = {}

    def scan(self, tag: int, data: bytes) -> Raw | None:
        """The delivery of that number; None if the message is to be read in full."""
        try:
            return self._scan(tag, data)
        except (EncodingError, IndexError, UnicodeDecodeError):
            return None

    def _scan(self, tag: int, data: bytes) -> Raw:
        at, header = 0, self._no_header
        mark = data[:_MARK_BYTES]
        if mark == _HEADER:
            at = list_at(data, _MARK_BYTES)[2]
            header = self._header(data[_MARK_BYTES:at])
            mark = data[at : at + _MARK_BYTES]
        if mark == _DELIVERY_ANNOTATIONS:
            at = self._annotations_at(data, at + _MARK_BYTES)[2]
            mark = data[at : at + _MARK_BYTES]
        named: Named = ()
        routing = NOWHERE
        if mark == _MESSAGE_ANNOTATIONS:
            named, routing, at = self._annotations_at(data, at + _MARK_BYTES)
            mark = data[at : at + _MARK_BYTES]
        message_id, properties = None, _NO_PROPERTIES
        if mark == _PROPERTIES:
            message_id, properties, at = properties_at(data, at + _MARK_BYTES)
            mark = data[at : at + _MARK_BYTES]
        application: Any = None
        if mark == _APPLICATION:
            begin = at + _MARK_BYTES
            at = check_map(data, begin)
            application = data[begin:at]
            mark = data[at : at + _MARK_BYTES]
        if mark == _DATA:
            body = body_of(data, at + _MARK_BYTES, typed=False)
        elif mark == _VALUE:
            body = body_of(data, at + _MARK_BYTES, typed=True)
        else:
            raise EncodingError
        return make_raw(tag, body, message_id, header, properties, application, named, routing, len(data))

    # -- sections that are the same in most messages

    def _header(self, section: bytes) -> Header:
        known = self._headers.get(section)
        if known is None:
            known = header_at(section, 0, counts_acquirers=self._counts_acquirers)[0]
            _remember(self._headers, section, known)
        return known

    def _annotations_at(self, data: bytes, at: int) -> tuple[Named, Routing, int]:
        """Read annotations if all of them are plain; return them, and where they end."""
        end = map_at(data, at)[2]
        section = data[at:end]
        known = self._annotations.get(section)
        if known is None:
            check_map(section, 0, _SYMBOL8)
            is_read = self._names_annotations or any(name in section for name in _ANNOTATIONS)
            known = annotated(read_map(section) if is_read else {}, names_all=self._names_annotations)
            _remember(self._annotations, section, known)
        return *known, end


def _remember(known: dict[bytes, Any], section: bytes, what: object) -> None:
    if len(section) > _FORM_BYTES_MAX:
        return
    if len(known) >= _FORMS_MAX:
        known.clear()
    known[section] = what


def annotated(annotations: Mapping[str, object], *, names_all: bool = False) -> tuple[Named, Routing]:
    """Read message annotations: as properties, and as where the message was published.

    Args:
        names_all: are all of them properties? In a queue a broker changes some with each delivery, in a log it cannot.
    """
    exchange, key = (text(annotations.get(name)) for name in ROUTING)
    died = any(name in annotations for name in DEATHS)
    names = sorted(name for name in annotations if name not in ROUTING) if names_all else [JMS_KIND]
    texts = {name: text(annotations.get(name)) for name in names}
    return tuple((name, value) for name, value in texts.items() if value is not None), (exchange, key, died)


def header_at(data: bytes, at: int, *, counts_acquirers: bool) -> tuple[Header, int]:
    """The header whose list begins there, and where it ends. An empty list says what no header says (3.2.1).

    Args:
        counts_acquirers: is it a redelivery without `first-acquirer`?

    Raises:
        EncodingError, IndexError: not the list of that section.
    """
    (durable, priority, ttl_ms, first_acquirer, deliveries), end = _fields(data, at, _HEADER_FIELDS)
    redelivered = bool(deliveries) or (counts_acquirers and not first_acquirer)
    priority = _DEFAULT_PRIORITY if priority is None else priority
    return (priority, ttl_ms or 0, deliveries or 0, redelivered, bool(durable)), end


def properties_at(data: bytes, at: int) -> tuple[object, Properties, int]:
    """Message ID, other properties, and where the section ends whose list begins there.

    Raises:
        EncodingError, IndexError, UnicodeDecodeError: not the list of that section.
    """
    begin, count, end = list_at(data, at)
    # Most have an ID and nothing else, or nearly so.
    if count == 1 and data[begin] == _STRING8:
        if begin + 2 + data[begin + 1] != end:
            raise EncodingError(f"the message ID at byte {begin} does not end with its list")
        return str(data[begin + 2 : end], "utf-8"), _NO_PROPERTIES, end
    found, end = _fields(data, at, _PROPERTIES_FIELDS)
    message_id, user, _, subject, reply_to, correlation_id, content_type, encoding, expiry, creation, *group, _ = found
    others = (user, encoding, *group)
    return message_id, (correlation_id, reply_to, content_type, subject, expiry or 0, creation or 0, others), end


def _fields(data: bytes, at: int, kinds: tuple[frozenset[int], ...]) -> tuple[list[Any], int]:
    """The fields of a list as a section has it, each of one of its kind; None for those left out. And its end."""
    item, count, end = list_at(data, at)
    if count > len(kinds):
        raise EncodingError(f"the list at byte {at} has {count} fields, and its section {len(kinds)}")
    found: list[Any] = []
    for kind in kinds[:count]:
        code = data[item]
        if code == 0x40:
            found.append(None)
            item += 1
        elif code in kind:
            value, item = plain_at(data, item)
            found.append(value)
        else:
            raise EncodingError(f"field {len(found)} of the list at byte {at} has the code 0x{code:02x}")
    if item != end:
        raise EncodingError(f"the {count} fields of the list at byte {at} end at {item}, not at {end}")
    return found + [None] * (len(kinds) - count), end
