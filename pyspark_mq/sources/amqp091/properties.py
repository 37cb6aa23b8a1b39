"""Properties of messages in AMQP 0-9-1, looked into where a column or an ID asks for one. Pure.

An encoded block of properties has flags for fourteen fields, and then those fields that are there, in order, without
gaps (AMQP 0-9-1, 4.2.6.1). So where a field begins follows from the flags and the lengths before it. Each block is
checked once, when it arrives (:func:`check`, or :meth:`.DeliveryBatch.sound`); everything else here relies on that.

Values are those that pika has for them, with two exceptions: it makes whole numbers of floating point ones, and fails
on dates beyond the year 9999, which is what milliseconds are where seconds belong; those are the number here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from struct import Struct
from typing import Any, TypeAlias

from pyspark_mq.brokers.base import PASSING_HEADERS, PASSING_PREFIXES
from pyspark_mq.sources.connections.decoder import UNREADABLE_PROPERTY

__all__ = [
    "FIELDS",
    "FLAGS_BYTES",
    "INTEGERS",
    "LONG_STRING",
    "MORE_FLAGS",
    "SIZES",
    "TABLE",
    "TEXT",
    "Field",
    "FlaggedDeliveries",
    "Raw",
    "UnreadableRaw",
    "check",
    "header",
    "headers",
    "is_table",
    "lasting",
    "unreadable",
]

#: (delivery tag, redelivered, encoded properties, body, encoded exchange and routing key). For one that cannot be read
#: :class:`UnreadableRaw` stands.
Raw: TypeAlias = "tuple[int, bool, bytes, bytes, bytes]"

TEXT, TABLE = 0, -1
#: Fields of class basic in the order of their flags, the highest bit first, and the octets of those that have a size.
FIELDS = {
    "content_type": TEXT,
    "content_encoding": TEXT,
    "headers": TABLE,
    "delivery_mode": 1,
    "priority": 1,
    "correlation_id": TEXT,
    "reply_to": TEXT,
    "expiration": TEXT,
    "message_id": TEXT,
    "timestamp": 8,
    "type": TEXT,
    "user_id": TEXT,
    "app_id": TEXT,
    "cluster_id": TEXT,
}
_NAMES = tuple(FIELDS)
#: Flag and kind of each.
_FLAGGED = [(0x8000 >> place, kind) for place, kind in enumerate(FIELDS.values())]
FLAGS_BYTES = 2
#: The lowest bit says that there is another word of flags.
MORE_FLAGS = 1
#: Tables and arrays within each other; RabbitMQ's own are three deep. To read and to write one level takes two calls,
#: and the interpreter ends at a thousand, of which whoever asks for the column has taken some.
_DEPTH_MAX = 64


def _steps(flags: int) -> list[int]:
    """The fields that these flags announce."""
    return [kind for flag, kind in _FLAGGED if flags & flag]


class _Way:
    """From the beginning of a block to a place in it: an offset, then lengths to be read."""

    __slots__ = ("start", "steps")

    def __init__(self, steps: list[int]) -> None:
        self.start = FLAGS_BYTES
        while steps and steps[0] > 0:
            self.start += steps.pop(0)
        self.steps = tuple(steps)


def _end(block: bytes, at: int, steps: Sequence[int]) -> int:
    for step in steps:
        if step == TEXT:
            at += 1 + block[at]
        elif step == TABLE:
            at += 4 + int.from_bytes(block[at : at + 4], "big")
        else:
            at += step
    return at


# -- what arrives ------------------------------------------------------------------------------


class UnreadableRaw(tuple[Any, ...]):
    """A delivery whose properties cannot be read.

    (tag, redelivered, what can be read of the properties, body, exchange and routing key, the properties, why not).
    What can be read is a block of properties like any other, with the reason among its headers.
    """

    __slots__ = ()


_ways: dict[bytes, _Way] = {}
_TOO_SHORT = "fields are longer than the properties"


def check(raws: list[Raw]) -> list[tuple[int, str]]:
    """Return the places of unreadable deliveries, each with the reason.

    Those with further words of flags, to whose bits nobody has given a meaning, are replaced by ones without.
    """
    wrong: list[tuple[int, str]] = []
    tables: set[bytes] = set()
    for place, raw in enumerate(raws):
        block = raw[2]
        way = _ways.get(block[:2])
        try:
            if way is None:
                if block[1] & MORE_FLAGS:
                    block = _plain_flags(block)
                    raws[place] = (*raw[:2], block, *raw[3:])
                way = _ways[block[:2]] = _Way(_steps(int.from_bytes(block[:2], "big")))
            at = way.start
            for step in way.steps:
                if step == TEXT:
                    at += 1 + block[at]
                elif step == TABLE:
                    at = _after_table(block, at, tables)
                else:
                    at += step
        except IndexError:
            wrong.append((place, _TOO_SHORT))
        except ValueError as error:
            wrong.append((place, str(error)))
        else:
            if at > len(block):
                wrong.append((place, _TOO_SHORT))
    return wrong


def _after_table(block: bytes, at: int, checked: set[bytes]) -> int:
    """Check the table that begins at `at`; return where it ends."""
    start = at + 4
    end = start + int.from_bytes(block[at:start], "big")
    if end > len(block):
        raise ValueError(_TOO_SHORT)
    # Of messages that follow one another many have the same headers.
    table = block[start:end]
    if table not in checked:
        _check_table(table, 0, len(table), 0)
        checked.add(table)
    return end


def is_table(table: bytes) -> bool:
    """Whether a header table can be read."""
    try:
        _check_table(table, 0, len(table), 0)
    except (IndexError, ValueError):
        return False
    return True


def _plain_flags(block: bytes) -> bytes:
    """Return a block of properties without the further words of flags."""
    at = 1
    while block[at] & MORE_FLAGS:
        at += FLAGS_BYTES
    return bytes((block[0], block[1] & ~MORE_FLAGS)) + block[at + 1 :]


#: Octets of values that have a size, by their type. Types: RabbitMQ's, which differ from section 4.2.1.
SIZES = dict(zip(b"tbBsuUIilLfdDTV", (1, 1, 1, 2, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0), strict=True))
_LONG = LONG_STRING, _BYTES, _ARRAY, _FIELD_TABLE = b"SxAF"


def _check_table(block: bytes, at: int, end: int, depth: int) -> None:
    while at < end:
        at = _check_value(block, at + 1 + block[at], end, depth)
    if at != end:
        raise ValueError("a value is longer than its table")


def _check_value(block: bytes, at: int, end: int, depth: int) -> int:
    """Check a field's value; return where it ends."""
    kind = block[at]
    size = SIZES.get(kind)
    if size is not None:
        return at + 1 + size
    if kind not in _LONG:
        raise ValueError(f"a value is of type {chr(kind)!r}, which there is not")
    start = at + 5
    at = start + int.from_bytes(block[at + 1 : start], "big")
    if at > end:
        raise ValueError("a value is longer than its table")
    if kind in (_FIELD_TABLE, _ARRAY) and depth >= _DEPTH_MAX:
        raise ValueError(f"tables and arrays are nested more than {_DEPTH_MAX} deep")
    if kind == _FIELD_TABLE:
        _check_table(block, start, at, depth + 1)
    elif kind == _ARRAY:
        while start < at:
            start = _check_value(block, start, at, depth + 1)
        if start != at:
            raise ValueError("a value is longer than its array")
    return at


def unreadable(raw: Raw, error: str) -> UnreadableRaw:
    """A stand-in for a delivery whose properties cannot be read."""
    tag, redelivered, block, body, where = raw
    return UnreadableRaw((tag, redelivered, _readable(block, error), body, where, block, error))


def _readable(block: bytes, error: str) -> bytes:
    """The fields that can be read, with the reason in place of the headers."""
    flags = int.from_bytes(block[:2], "big")
    kept, fields, at = 0, [], FLAGS_BYTES
    for flag, kind in _FLAGGED:
        if kind == TABLE:
            kept |= flag
            fields.append(_reason(error))
        if not flags & flag:
            continue
        end = _end(block, at, [kind]) if at < len(block) else len(block) + 1
        if end > len(block):
            flags = 0
        elif kind != TABLE:
            kept |= flag
            fields.append(block[at:end])
        at = end
    return kept.to_bytes(2, "big") + b"".join(fields)


def _reason(error: str) -> bytes:
    name, value = UNREADABLE_PROPERTY.encode(), error.encode()
    entry = bytes((len(name),)) + name + b"S" + len(value).to_bytes(4, "big") + value
    return len(entry).to_bytes(4, "big") + entry


# -- fields ------------------------------------------------------------------------------------


def _flags_of(raws: Sequence[Raw]) -> int:
    """Return the flags of the fields that any delivery has."""
    together = 0
    for flags in {raw[2][:2] for raw in raws}:
        together |= int.from_bytes(flags, "big")
    return together


class FlaggedDeliveries(list[Raw]):
    """Deliveries of which many columns are made: their flags are looked at once."""

    def __init__(self, raws: Sequence[Raw]) -> None:
        super().__init__(raws)
        self.flags = _flags_of(raws)


class Field:
    """One field of the blocks of many deliveries.

    Args:
        name: as pika has it.

    Attributes:
        place: its number in the order of the flags.
    """

    def __init__(self, name: str) -> None:
        self.place = _NAMES.index(name)
        self._flag, self._kind = _FLAGGED[self.place]
        self._ways: dict[bytes, _Way | None] = {}

    def texts(self, raws: Sequence[Raw]) -> list[Any]:
        """Short strings: str, bytes where they are no UTF-8, None where there is none."""
        if self._nowhere(raws):
            return [None] * len(raws)
        return [
            _string(raw[2][at + 1 : at + 1 + raw[2][at]]) if at else None
            for raw, at in zip(raws, self._starts(raws), strict=True)
        ]

    def numbers(self, raws: Sequence[Raw]) -> list[int | None]:
        """Numbers of the field's size; None where there is none."""
        if self._nowhere(raws):
            return [None] * len(raws)
        size = self._kind
        return [
            int.from_bytes(raw[2][at : at + size], "big") if at else None
            for raw, at in zip(raws, self._starts(raws), strict=True)
        ]

    def tables(self, raws: Sequence[Raw]) -> list[bytes]:
        """Encoded tables without their lengths; empty where there is none."""
        if self._nowhere(raws):
            return [b""] * len(raws)
        return [
            raw[2][at + 4 : at + 4 + int.from_bytes(raw[2][at : at + 4], "big")] if at else b""
            for raw, at in zip(raws, self._starts(raws), strict=True)
        ]

    def _nowhere(self, raws: Sequence[Raw]) -> bool:
        """Return whether no delivery has the field. Most producers set the same fields in all messages."""
        flags = raws.flags if isinstance(raws, FlaggedDeliveries) else _flags_of(raws)
        return not flags & self._flag

    def _starts(self, raws: Sequence[Raw]) -> Iterator[int]:
        """Yield where the field begins in each block; 0 where it is missing."""
        ways = self._ways
        for raw in raws:
            block = raw[2]
            try:
                way = ways[block[:2]]
            except KeyError:
                flags = int.from_bytes(block[:2], "big")
                before = flags & ~(0xFFFF >> self.place)
                way = ways[block[:2]] = _Way(_steps(before)) if flags & self._flag else None
            yield 0 if way is None else _end(block, way.start, way.steps)


# -- what stays the same --------------------------------------------------------------------------

_EXPIRATION_FLAG = 0x8000 >> _NAMES.index("expiration")
_CHANGING = 0x8000 >> _NAMES.index("headers") | _EXPIRATION_FLAG


def lasting(block: bytes, known: dict[bytes, bytes]) -> bytes:
    """Encode the properties again, without those that differ between deliveries of a message; headers by their names.

    Args:
        block: that :func:`check` has passed.
        known: results for header tables, to be used again for other blocks.
    """
    flags = int.from_bytes(block[:2], "big")
    if not flags & _CHANGING:
        return block
    fields, at = [], FLAGS_BYTES
    for flag, kind in _FLAGGED:
        if not flags & flag:
            continue
        end = _end(block, at, [kind])
        field = block[at:end]
        if kind == TABLE:
            table = known.get(field)
            if table is None:
                table = known[field] = _lasting_table(field)
            field = table
        if not field or flag == _EXPIRATION_FLAG:
            flags &= ~flag
        else:
            fields.append(field)
        at = end
    return flags.to_bytes(2, "big") + b"".join(fields)


def _lasting_table(field: bytes) -> bytes:
    """The entries that last, in the order of their names; nothing if there are none."""
    entries, at = [], 4
    while at < len(field):
        start = at + 1 + field[at]
        name = field[at + 1 : start]
        end = _value(field, start)[1]
        if name not in PASSING_HEADERS and not name.startswith(PASSING_PREFIXES):
            entries.append(field[at:end])
        at = end
    entries.sort()
    return len(b"".join(entries)).to_bytes(4, "big") + b"".join(entries) if entries else b""


# -- header tables -----------------------------------------------------------------------------

_CODES = dict(zip("bBsuUIilLfdD", ("b", "B", "h", "H", "h", "i", "I", "q", "q", "f", "d", "Bi"), strict=True))
#: Types of whole numbers: whether they have a sign.
INTEGERS = {ord(kind): code.islower() for kind, code in _CODES.items() if kind not in "fdD"}
_unpack = {ord(kind): Struct(f">{code}").unpack_from for kind, code in _CODES.items()}


def headers(table: bytes) -> dict[str | bytes, Any]:
    """The entries of a table; of several with one name the last."""
    return _table(table, 0, len(table))


def header(table: bytes, name: bytes) -> Any:
    """One entry of a table, None if there is none."""
    return headers(table).get(name.decode()) if name in table else None


def _table(block: bytes, at: int, end: int) -> dict[str | bytes, Any]:
    entries: dict[str | bytes, Any] = {}
    while at < end:
        start = at + 1 + block[at]
        name = _string(block[at + 1 : start])
        if block[start] == LONG_STRING:
            at = start + 5 + int.from_bytes(block[start + 1 : start + 5], "big")
            entries[name] = _string(block[start + 5 : at])
        else:
            entries[name], at = _value(block, start)
    return entries


def _string(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _value(block: bytes, at: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends."""
    kind = block[at]
    at += 1
    size = SIZES.get(kind)
    if size is not None:
        return _sized(kind, block, at), at + size
    start = at + 4
    end = start + int.from_bytes(block[at:start], "big")
    if kind == LONG_STRING:
        return _string(block[start:end]), end
    if kind == _BYTES:
        return block[start:end], end
    if kind == _FIELD_TABLE:
        return _table(block, start, end), end
    items = []
    while start < end:
        item, start = _value(block, start)
        items.append(item)
    return items, end


def _sized(kind: int, block: bytes, at: int) -> Any:
    if kind == ord("V"):
        return None
    if kind == ord("t"):
        return block[at] != 0
    if kind == ord("T"):
        seconds = int.from_bytes(block[at : at + 8], "big")
        try:
            return datetime.fromtimestamp(seconds, timezone.utc)
        except (ValueError, OverflowError, OSError):
            return seconds
    found = _unpack[kind](block, at)
    return Decimal(found[1]) * Decimal(10) ** -found[0] if kind == ord("D") else found[0]
