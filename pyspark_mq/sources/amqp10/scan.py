"""The scan of an encoded message: where its sections are (AMQP 1.0, 3.2), and what of them has to be known at once.

A client library decodes every value of a message to objects, of which most are never looked at. The scan takes
messages as nearly all are: at most one of each section in the order of the specification, a list of plain values
as `properties`, one binary `data` section or a text or binary `amqp-value` as the body. Of such a message it
gives what the library would. Everything else is not scanned, and left to the library: the scan never decides that
a message is broken.

- `header` and the annotations are the same in most messages of a queue: each form of them is read once.
- `properties` are read at once: the ID is asked for in any case, and whether each field is in order has to be known.
- `application-properties` are checked, and kept as bytes until a column or an ID asks for them.
- The body is a slice.
"""

from __future__ import annotations

from typing import Any

from pyspark_mq.sources.amqp10.decoder import Raw
from pyspark_mq.sources.amqp10.encoding import UnusualError, body_of, check_map, list_at, map_at, read_map, value_at

__all__ = ["Scanner"]

#: A section begins with a descriptor, as a small ulong (1.6.10) in all but odd encoders.
_HEADER, _DELIVERY_ANNOTATIONS, _MESSAGE_ANNOTATIONS = b"\x00\x53\x70", b"\x00\x53\x71", b"\x00\x53\x72"
_PROPERTIES, _APPLICATION = b"\x00\x53\x73", b"\x00\x53\x74"
_DATA, _VALUE = b"\x00\x53\x75", b"\x00\x53\x77"
_MARK_BYTES = 3
_STRING8, _SYMBOL8 = 0xA1, 0xA3
#: Forms of a section that are remembered, and how long one may be.
_FORMS_MAX = 500
_FORM_BYTES_MAX = 500
_DEFAULT_PRIORITY = 4
#: Later timestamps (in the year 10889), and negative ones, go through the library's floating point.
_SCANNED_MS_MAX = 2**48

_NULL = frozenset({0x40})
_BOOLEAN = _NULL | {0x41, 0x42, 0x56}
_UINT = _NULL | {0x70, 0x52, 0x43}
_TEXT = _NULL | {0xA1, 0xB1}
_SYMBOL = _NULL | {0xA3, 0xB3}
_TIMESTAMP = _NULL | {0x83}
_BINARY = _NULL | {0xA0, 0xB0}
_ID = _TEXT | _BINARY | {0x80, 0x53, 0x44, 0x98}
#: The fields of `header` (3.2.1): durable, priority, ttl, first-acquirer, delivery-count.
_HEADER_FIELDS = (_BOOLEAN, _NULL | {0x50}, _UINT, _BOOLEAN, _UINT)
#: The fields of `properties` (3.2.4): message-id, user-id, to, subject, reply-to, correlation-id, content-type,
#: content-encoding, absolute-expiry-time, creation-time, group-id, group-sequence, reply-to-group-id.
_PROPERTIES_FIELDS = (
    _ID, _BINARY, _TEXT, _TEXT, _TEXT, _ID, _SYMBOL, _SYMBOL, _TIMESTAMP, _TIMESTAMP, _TEXT, _UINT, _TEXT,
)  # fmt: skip
_SUBJECT, _REPLY_TO, _CORRELATION_ID, _CONTENT_TYPE = 3, 4, 5, 6
_EXPIRY, _CREATION, _GROUP = 8, 9, 10
#: The library has these as strings of C, which end at the first NUL.
_C_STRINGS = (2, _SUBJECT, _REPLY_TO, _CONTENT_TYPE, 7, _GROUP, 12)

#: Priority, time to live in milliseconds, deliveries before, redelivered.
_Header = tuple[int, int, int, bool]
#: Correlation ID, reply-to, content type, subject, expiry and creation in milliseconds, group.
_Fields = tuple[Any, str | None, str | None, str | None, int, int, str | None]
_NO_FIELDS: _Fields = (None, None, None, None, 0, 0, None)
_make = tuple.__new__


class Scanner:
    """Scans messages; one for each session, as it remembers the forms of sections.

    Args:
        counts_acquirers: does the broker mark a redelivery by the header `first-acquirer`?
    """

    def __init__(self, *, counts_acquirers: bool) -> None:
        self._counts_acquirers = counts_acquirers
        # 3.2.1: a message without a header has the defaults of all fields; `first-acquirer` is false then.
        self._no_header: _Header = (_DEFAULT_PRIORITY, 0, 0, counts_acquirers)
        self._headers: dict[bytes, _Header] = {}
        self._annotations: dict[bytes, bool] = {}

    def scan(self, tag: int, data: bytes) -> Raw | None:
        """The delivery of that number; None if the message is to be decoded by the library."""
        try:
            return self._scan(tag, data)
        except (UnusualError, IndexError, UnicodeDecodeError):
            return None

    def _scan(self, tag: int, data: bytes) -> Raw:
        at, header = 0, self._no_header
        mark = data[:_MARK_BYTES]
        if mark == _HEADER:
            at = list_at(data, _MARK_BYTES)[2]
            header = self._header(data[_MARK_BYTES:at])
            mark = data[at : at + _MARK_BYTES]
        if mark == _DELIVERY_ANNOTATIONS:
            at = self._pass_annotations(data, at + _MARK_BYTES)
            mark = data[at : at + _MARK_BYTES]
        if mark == _MESSAGE_ANNOTATIONS:
            at = self._pass_annotations(data, at + _MARK_BYTES)
            mark = data[at : at + _MARK_BYTES]
        message_id, fields = None, _NO_FIELDS
        if mark == _PROPERTIES:
            message_id, fields, at = _properties(data, at + _MARK_BYTES)
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
            raise UnusualError
        correlation_id, reply_to, content_type, subject, expires_ms, created_ms, group = fields
        priority, ttl_ms, deliveries, redelivered = header
        if ttl_ms and created_ms and not expires_ms:
            expires_ms = created_ms + ttl_ms
        if group is not None:
            application = {**(read_map(application) if application else {}), "JMSXGroupID": group}
        made: Raw = _make(
            Raw,
            (
                tag, body, message_id, correlation_id, reply_to, content_type, subject, priority, created_ms,
                expires_ms, deliveries, redelivered, application,
            ),
        )  # fmt: skip
        return made

    # -- sections that are the same in most messages

    def _header(self, section: bytes) -> _Header:
        known = self._headers.get(section)
        if known is None:
            _, priority, ttl_ms, first_acquirer, deliveries = _fields(section, 0, _HEADER_FIELDS)[0]
            redelivered = bool(deliveries) or (self._counts_acquirers and not first_acquirer)
            known = (_DEFAULT_PRIORITY if priority is None else priority, ttl_ms or 0, deliveries or 0, redelivered)
            _remember(self._headers, section, known)
        return known

    def _pass_annotations(self, data: bytes, at: int) -> int:
        """Where they end, if a client library would not stumble over them."""
        end = map_at(data, at)[2]
        section = data[at:end]
        if section not in self._annotations:
            check_map(section, 0, _SYMBOL8)
            _remember(self._annotations, section, True)
        return end


def _remember(known: dict[bytes, Any], section: bytes, what: object) -> None:
    if len(section) > _FORM_BYTES_MAX:
        return
    if len(known) >= _FORMS_MAX:
        known.clear()
    known[section] = what


def _properties(data: bytes, at: int) -> tuple[object, _Fields, int]:
    """Message ID, other fields, and where the section ends."""
    begin, count, end = list_at(data, at)
    # Most have an ID and nothing else, or nearly so.
    if count == 1 and data[begin] == _STRING8:
        if begin + 2 + data[begin + 1] != end:
            raise UnusualError
        return str(data[begin + 2 : end], "utf-8"), _NO_FIELDS, end
    found, end = _fields(data, at, _PROPERTIES_FIELDS)
    if any(found[number] and "\0" in found[number] for number in _C_STRINGS):
        raise UnusualError
    for moment in (found[_EXPIRY], found[_CREATION]):
        if moment is not None and not 0 <= moment < _SCANNED_MS_MAX:
            raise UnusualError
    content_type = found[_CONTENT_TYPE]
    fields = (
        found[_CORRELATION_ID],
        found[_REPLY_TO],
        None if content_type == "None" else content_type,  # as the library has it
        found[_SUBJECT],
        found[_EXPIRY] or 0,
        found[_CREATION] or 0,
        found[_GROUP],
    )
    return found[0], fields, end


def _fields(data: bytes, at: int, kinds: tuple[frozenset[int], ...]) -> tuple[list[Any], int]:
    """The fields of a list as a section has it, each of one of its kind; None for those left out. And its end."""
    item, count, end = list_at(data, at)
    if count > len(kinds):
        raise UnusualError
    found: list[Any] = []
    for number in range(count):
        code = data[item]
        if code == 0x40:
            found.append(None)
            item += 1
        elif code in kinds[number]:
            value, item = value_at(data, item)
            found.append(value)
        else:
            raise UnusualError
    if item != end:
        raise UnusualError
    return found + [None] * (len(kinds) - count), end
