"""Walks over the sections of many messages at once (AMQP 1.0, 1.6 and 3.2), to find the positions of all values.

NumPy goes through all messages at the same time, one field after another. A message with unexpected content is skipped
here. It is decoded alone later, and only then judged to be malformed or not. A size that a message states may be wrong,
so every position is limited to the end of the buffer before bytes are read there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pyspark_mq.decode.amqp10_encoding import EncodingError, bare_message_at
from pyspark_mq.decode.amqp10_message import Raw, UnreadableMessage
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.spans import Views

__all__ = ["Walk", "Walked", "WalkedField", "WalkedPairs", "prefix_of"]

_PROPERTIES, _APPLICATION, _DATA, _VALUE = 0x73, 0x74, 0x75, 0x77
_MARK_BYTES = 3
#: Messages whose beginning (header and annotations) is longer than this are not walked, because comparing such long
#: beginnings takes longer than walking saves.
_PREFIX_BYTES_MAX = 512
_PAIRS_MAX = 64
_NULL, _STRING8, _STRING32, _SYMBOL8, _SYMBOL32, _BINARY8, _BINARY32 = 0x40, 0xA1, 0xB1, 0xA3, 0xB3, 0xA0, 0xB0
_TIMESTAMP = 0x83
_USER, _EXPIRY, _CREATED, _GROUP, _SEQUENCE = 1, 8, 9, 10, 11
#: An encoded section `properties` with a creation time of 1 ms, and an empty body. If these bytes are decoded after a
#: message's header, the expiry time of the result minus 1 ms is the time to live from the header.
_PROBE = b"\x00\x53\x73\xc0\x13\x0a" + b"\x40" * 9 + b"\x83" + (1).to_bytes(8, "big") + b"\x00\x53\x75\xa0\x00"


class WalkedField(NamedTuple):
    """A field of section `properties`, which is text or a number, in all messages. Each attribute is an array.

    Attributes:
        begins: the position at which each text begins.
        lengths: the length of each text; 0 for numbers.
        valid: whether each message has the field.
        symbols: whether each text is a symbol, which must be ASCII.
        numbers: the numbers.
    """

    begins: Any
    lengths: Any
    valid: Any
    symbols: Any
    numbers: Any


class WalkedPairs(NamedTuple):
    """The application properties of all messages, concatenated. Each attribute is an array.

    Attributes:
        counts: the number of properties in each message.
        key_begins, key_lengths: the position and the length of each property's name.
        begins, lengths: the position and the length of each value that is text.
        texts, whole, truths: whether each value is text, a whole number, or a boolean; other values are null.
        numbers: the values that are whole numbers or booleans.
    """

    counts: Any
    key_begins: Any
    key_lengths: Any
    begins: Any
    lengths: Any
    texts: Any
    whole: Any
    truths: Any
    numbers: Any


class Walked(NamedTuple):
    """The positions of values that a :class:`Walk` has found.

    All attributes except `rows` are only about the walked messages, that is, those that were not skipped.

    Attributes:
        rows: array that tells whether each message was walked.
        fields: the fields of section `properties`, by number.
        pairs: the application properties.
        body_begins, body_lengths: the position and the length of each body.
        texts: array that tells whether each body is text, which still has to be checked for valid UTF-8.
    """

    rows: Any
    fields: dict[int, WalkedField]
    pairs: WalkedPairs
    body_begins: Any
    body_lengths: Any
    texts: Any


def prefix_of(message: bytes, reader: SectionReader) -> tuple[int, Raw, int] | None:
    """Decode the beginning of a message, which is everything before section `properties` or the body.

    Returns:
        the size of the beginning, a decoded delivery whose message has the same beginning, and the time to live in
        milliseconds. None if the beginning cannot be decoded or is too long.
    """
    try:
        at = bare_message_at(message)
    except (EncodingError, IndexError):
        return None
    if at > _PREFIX_BYTES_MAX:
        return None
    like = reader.read(0, message[:at] + _PROBE)
    return None if isinstance(like, UnreadableMessage) else (at, like, max(0, like.of.expires_ms - 1))


class Walk:
    """A pass over encoded messages in one buffer, which finds the positions of their values.

    Messages that do not begin with `prefix` are skipped.

    Args:
        data: the buffer with the messages, and 16 more bytes as padding.
        begins, ends: the positions at which each message begins and ends.
        prefix: the bytes with which a message must begin so that it is not skipped.
    """

    def __init__(self, data: bytes, begins: Any, ends: Any, prefix: bytes) -> None:
        self._views, self._ends = Views(data), ends
        self._ok = ends - begins >= len(prefix) + _MARK_BYTES
        self._at = begins + len(prefix)
        # Compare eight bytes at a time; the last bytes may be compared twice.
        size = 8 if len(prefix) >= 8 else 1
        for offset in {*range(0, len(prefix) - size + 1, size), max(0, len(prefix) - size)} if prefix else ():
            self._ok &= self._uint(begins + offset, size) == int.from_bytes(
                prefix[offset : offset + size], "big", signed=size == 8
            )

    def _byte(self, at: Any) -> Any:
        return self._views.at(at, 1)

    def _uint(self, at: Any, size: int) -> Any:
        """Read a big-endian integer of `size` bytes at each position: signed for eight bytes, otherwise unsigned."""
        return self._views.at(at, size).astype(np.int64)

    def _has(self, mark: int) -> Any:
        at = self._at
        inside = at + _MARK_BYTES <= self._ends
        return self._ok & inside & (self._byte(at) == 0) & (self._byte(at + 1) == 0x53) & (self._byte(at + 2) == mark)

    def walked(self) -> Walked:
        """Walk over the messages, and return the values that were found. This method can be called only once."""
        fields = self._properties()
        pairs, owners = self._application()
        begins, lengths, texts = self._body()
        rows = self._ok
        kept = {
            number: WalkedField(*(part[rows] for part in field))
            for number, field in fields.items()
            if field.valid[rows].any()
        }
        held = rows[owners]
        counts = pairs.counts[rows]
        order = np.argsort(owners[held], kind="stable")
        flat = [part[held][order] for part in pairs[1:]]
        return Walked(rows, kept, WalkedPairs(counts, *flat), begins[rows], lengths[rows], texts[rows])

    # -- sections

    def _compound(self, has: Any, empty: int, short: int, long: int) -> tuple[Any, Any, Any]:
        """Find the items of a section's value, which is a list or map, in all messages that have the section.

        Args:
            has: array that tells whether each message has the section.
            empty, short, long: type codes of an empty list, and of a list or map with sizes of one or four bytes.

        Returns:
            three arrays: the position of the first item, the number of items, and the position after the list or map.
        """
        at = self._at + _MARK_BYTES
        code = self._byte(at)
        is_short, is_long, is_empty = has & (code == short), has & (code == long), has & (code == empty)
        item = np.where(is_short, at + 3, np.where(is_long, at + 9, at + 1))
        count = np.where(is_short, self._byte(at + 2).astype(np.int64), 0)
        end = np.where(is_short, at + 2 + self._byte(at + 1), at + 1)
        if is_long.any():
            count = np.where(is_long, self._uint(at + 5, 4), count)
            end = np.where(is_long, at + 5 + self._uint(at + 1, 4), end)
        self._ok &= ~has | ((is_short | is_long | is_empty) & (item <= end) & (end <= self._ends))
        return item, count, end

    def _spans(self, item: Any, short: Any, long: Any) -> tuple[Any, Any]:
        """Find the content of values of variable width.

        Args:
            item: the position of each value.
            short, long: whether the length of each value takes one byte, or four bytes.

        Returns:
            the position and the length of each content. The length is 0 for other values.
        """
        begins = np.where(long, item + 5, item + 2)
        lengths = np.where(short, self._byte(item + 1).astype(np.int64), 0)
        if long.any():
            lengths = np.where(long, self._uint(item + 1, 4), lengths)
        return begins, lengths

    def _properties(self) -> dict[int, WalkedField]:
        has = self._has(_PROPERTIES)
        found: dict[int, WalkedField] = {}
        if not has.any():
            return found
        item, count, end = self._compound(has, 0x45, 0xC0, 0xD0)
        self._ok &= ~has | (count <= 13)
        for number in range(13):
            active = self._ok & has & (count > number)
            if not active.any():
                break
            field, after = self._field(number, item, active)
            item = np.where(active, after, item)
            self._ok &= ~active | (item <= end)
            if field.valid.any():
                found[number] = field
        self._ok &= ~has | (item == end)
        if _GROUP in found:
            self._ok &= ~found[_GROUP].valid
        self._at = np.where(has, end, self._at)
        return found

    def _field(self, number: int, item: Any, active: Any) -> tuple[WalkedField, Any]:
        code = self._byte(item)
        null = code == _NULL
        zeros = np.zeros(len(item), np.int64)
        if number in {_EXPIRY, _CREATED}:
            valid = active & (code == _TIMESTAMP)
            values = np.where(valid, self._uint(item + 1, 8), 0)
            self._ok &= ~active | null | valid
            return WalkedField(item, zeros, valid, valid, values), np.where(valid, item + 9, item + 1)
        if number == _SEQUENCE:
            is_long, is_short, is_zero = (active & (code == one) for one in (0x70, 0x52, 0x43))
            values = np.where(is_long, self._uint(item + 1, 4), np.where(is_short, self._byte(item + 1), 0))
            valid = is_long | is_short | is_zero
            self._ok &= ~active | null | valid
            return WalkedField(item, zeros, valid, valid, values), item + 1 + 4 * is_long + is_short
        if number == _USER:
            short, long = active & (code == _BINARY8), active & (code == _BINARY32)
            symbols = np.zeros(len(item), bool)
        else:
            symbols = active & ((code == _SYMBOL8) | (code == _SYMBOL32))
            short = active & ((code == _STRING8) | (code == _SYMBOL8))
            long = active & ((code == _STRING32) | (code == _SYMBOL32))
        valid = short | long
        self._ok &= ~active | null | valid
        begins, lengths = self._spans(item, short, long)
        return WalkedField(begins, lengths, valid, symbols, zeros), np.where(valid, begins + lengths, item + 1)

    def _application(self) -> tuple[WalkedPairs, Any]:
        """Walk over the application properties.

        Returns:
            the properties of all messages, and the row number of each property. The first property of every message is
            followed by the second property of every message, and so on.
        """
        has = self._has(_APPLICATION)
        total = len(self._at)
        counts = np.zeros(total, np.int64)
        parts: list[tuple[Any, ...]] = []
        if has.any():
            item, count, end = self._compound(has, -1, 0xC1, 0xD1)
            self._ok &= ~has | ((count <= 2 * _PAIRS_MAX) & (count % 2 == 0))
            counts = np.where(self._ok & has, count // 2, 0)
            for number in range(int(counts.max(initial=0))):
                rows = np.flatnonzero(self._ok & (counts > number))
                if not len(rows):
                    break
                part, after, good = self._pair(item[rows], self._ends[rows])
                item[rows] = after
                self._ok[rows] &= good & (after <= end[rows])
                parts.append((rows, *part))
            self._ok &= ~has | (item == end)
            self._at = np.where(has, end, self._at)
        if not parts:
            none, false = np.zeros(0, np.int64), np.zeros(0, bool)
            return WalkedPairs(counts, none, none, none, none, false, false, false, none), none
        owners, *flat = (np.concatenate(column) for column in zip(*parts, strict=True))
        return WalkedPairs(counts, *flat), owners

    def _pair(self, item: Any, ends: Any) -> tuple[tuple[Any, ...], Any, Any]:
        key_lengths = self._byte(item + 1).astype(np.int64)
        key_begins, value = item + 2, item + 2 + key_lengths
        code = self._byte(value)
        short, long = code == _STRING8, code == _STRING32
        begins, lengths = self._spans(value, short, long)
        after = np.where(short | long, begins + lengths, value + 1)
        numbers = np.zeros(len(item), np.int64)
        whole = np.zeros(len(item), bool)
        for kind, size in ((0x54, 1), (0x55, 1), (0x61, 2), (0x71, 4), (0x81, 8)):
            of = code == kind
            if of.any():
                read = self._uint(value + 1, size) << (64 - 8 * size) >> (64 - 8 * size)
                numbers, after, whole = np.where(of, read, numbers), np.where(of, value + 1 + size, after), whole | of
        truths = (code == 0x41) | (code == 0x42)
        numbers = np.where(code == 0x41, 1, numbers)
        good = (self._byte(item) == _STRING8) & (short | long | whole | truths | (code == _NULL)) & (value < ends)
        return (key_begins, key_lengths, begins, lengths, short | long, whole, truths, numbers), after, good

    def _body(self) -> tuple[Any, Any, Any]:
        data, value = self._has(_DATA), self._has(_VALUE)
        at = self._at + _MARK_BYTES
        code = self._byte(at)
        texts = value & ((code == _STRING8) | (code == _STRING32))
        short = ((data | value) & (code == _BINARY8)) | (value & (code == _STRING8))
        long = ((data | value) & (code == _BINARY32)) | (value & (code == _STRING32))
        null = value & (code == _NULL)
        begins, lengths = self._spans(at, short, long)
        begins = np.where(null, at + 1, begins)
        self._ok &= (short | long | null) & (begins + lengths == self._ends)
        return begins, lengths, texts
