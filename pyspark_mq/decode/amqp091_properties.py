"""Decodes the properties of AMQP 0-9-1 messages one by one.

The encoded properties of a message are called a *block*. A block has flags for fourteen fields, followed by the fields
whose flags are set, in order and without gaps (AMQP 0-9-1, section 4.2.6.1). Each block is checked once, on arrival, by
:func:`check` or by :meth:`.Amqp091Batch.sound`. The other functions rely on this check.

The decoded values are the same as those of pika, a Python client for RabbitMQ, with two exceptions. Pika rounds
floating-point numbers. Pika also fails on dates after the year 9999, which result if a producer writes milliseconds
instead of seconds. This module returns such dates as numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from functools import cache
from struct import Struct
from typing import Any, TypeAlias

from pyspark_mq.decode.batch import UNREADABLE_PROPERTY
from pyspark_mq.decode.escapes import ESCAPES_MAX, TOO_MANY_ESCAPES, escapes

__all__ = [
    "FIELDS", "FLAGS", "FLAGS_BYTES", "INTEGERS", "LONG_STRING", "MORE_FLAGS", "SIZES", "Properties", "Raw",
    "UnreadableDelivery", "check", "header", "headers", "is_table", "string", "unreadable",
]  # fmt: skip

#: A single delivery: (delivery tag, redelivered flag, encoded properties, body, encoded exchange and routing key). If
#: the properties cannot be read, :class:`UnreadableDelivery` is used instead.
Raw: TypeAlias = "tuple[int, bool, bytes, bytes, bytes]"

_TEXT, _TABLE = -1, -4
#: Fields of class basic in the order of their flags, with the size of each field in octets. A negative number is the
#: size of the field's length prefix.
FIELDS = {
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "headers": _TABLE,
    "delivery_mode": 1,
    "priority": 1,
    "correlation_id": _TEXT,
    "reply_to": _TEXT,
    "expiration": _TEXT,
    "message_id": _TEXT,
    "timestamp": 8,
    "type": _TEXT,
    "user_id": _TEXT,
    "app_id": _TEXT,
    "cluster_id": _TEXT,
}
#: The flag of each field. The first field has the highest bit.
FLAGS = {name: 0x8000 >> place for place, name in enumerate(FIELDS)}
FLAGS_BYTES = 2
#: The lowest bit is set if another word of flags follows.
MORE_FLAGS = 1
#: Maximum depth of nested tables and arrays. The tables that RabbitMQ adds have a depth of three. Reading or writing
#: one level takes two nested function calls, and Python allows about a thousand.
_DEPTH_MAX = 64
#: Maximum number of values in a header table. A decoded value may take 50 times the memory of its encoding.
_VALUES_MAX = 1_000_000
_TOO_SHORT = "fields are longer than the properties"


# -- fields ------------------------------------------------------------------------------------


@cache
def _announced(flags: bytes) -> list[tuple[str, int]]:
    return [(name, FIELDS[name]) for name, flag in FLAGS.items() if int.from_bytes(flags, "big") & flag]


class Properties(dict[str, bytes]):
    """The fields in the encoded properties of one message, by name. Each value is the encoded field.

    Attributes:
        whole: whether the encoded properties contain all fields that their flags announce. If the bytes end too early,
            this dictionary has only the fields before the end.
    """

    whole = True

    def __init__(self, block: bytes) -> None:
        at, limit = FLAGS_BYTES, len(block)
        for name, size in _announced(block[:FLAGS_BYTES]):
            end = at + abs(size)
            if size == _TEXT and at < limit:
                end += block[at]
            elif size < 0:
                end += int.from_bytes(block[at:end], "big")
            if end > limit:
                self.whole = False
                break
            self[name] = block[at:end]
            at = end

    def text(self, name: str) -> str | bytes | None:
        """Return a field that is a short string, or None if the field is missing.

        If the string is not UTF-8, return its bytes.
        """
        field = self.get(name)
        return None if field is None else string(field[1:])

    @property
    def table(self) -> bytes:
        """The encoded header table without its length prefix; empty if the message has no header table."""
        return self.get("headers", b"")[4:]


# -- deliveries --------------------------------------------------------------------------------


class UnreadableDelivery(tuple[Any, ...]):
    """A delivery whose properties cannot be decoded.

    The items are those of :data:`Raw`, followed by the properties as received, and the reason why the properties cannot
    be decoded. The third item is a valid block with the fields that could be read. Its only header is the reason.
    """

    __slots__ = ()


def check(raws: list[Raw]) -> list[tuple[int, str]]:
    """Check the properties of deliveries.

    Encoded properties may begin with several words of flags, but only the first word has defined bits. The other words
    are removed from the deliveries in list `raws`.

    Returns:
        the index of each delivery with invalid properties, with the reason.
    """
    wrong: list[tuple[int, str]] = []
    for place, raw in enumerate(raws):
        try:
            block = _plain_flags(raw[2])
            if block is not raw[2]:
                raws[place] = (*raw[:2], block, *raw[3:])
            properties = Properties(block)
            _check_table(properties.table)
        except IndexError:
            wrong.append((place, _TOO_SHORT))
        except ValueError as error:
            wrong.append((place, str(error)))
        else:
            if not properties.whole:
                wrong.append((place, _TOO_SHORT))
    return wrong


def _plain_flags(block: bytes) -> bytes:
    """Return encoded properties without the words of flags that follow the first word."""
    at = 1
    while block[at] & MORE_FLAGS:
        at += FLAGS_BYTES
    return block if at == 1 else bytes((block[0], block[1] & ~MORE_FLAGS)) + block[at + 1 :]


def is_table(table: bytes) -> bool:
    """Return whether a header table can be decoded."""
    try:
        _check_table(table)
    except (IndexError, ValueError):
        return False
    return True


def _check_table(table: bytes) -> None:
    """Check a header table.

    Raises:
        IndexError, ValueError: the table cannot be read, or takes too much memory.
    """
    _check_values(table, 0, len(table), _FIELD_TABLE)
    if len(table) > ESCAPES_MAX and sum(map(escapes, _strings(table, 0, len(table), _FIELD_TABLE))) > ESCAPES_MAX:
        raise ValueError(TOO_MANY_ESCAPES)


def _strings(block: bytes, at: int, end: int, within: int) -> Iterator[bytes]:
    """Yield the names and the strings of a table or an array, which must have been checked."""
    while at < end:
        if within == _FIELD_TABLE:
            name, at = at + 1, at + 1 + block[at]
            yield block[name:at]
        kind = block[at]
        if kind in SIZES:
            at += 1 + SIZES[kind]
            continue
        start = at + 5
        at = start + int.from_bytes(block[at + 1 : start], "big")
        if kind in (_FIELD_TABLE, _ARRAY):
            yield from _strings(block, start, at, kind)
        else:
            yield block[start:at]


def _check_values(block: bytes, at: int, end: int, within: int, depth: int = 0) -> int:
    """Check the values of a table or an array, and of the tables and arrays in it.

    Args:
        at: position of the first value in the block.
        end: position after the last value.
        within: type code of the table or array. In a table, each value follows its name.
        depth: number of tables and arrays that enclose this table or array.

    Returns:
        the number of values.

    Raises:
        ValueError: a value is invalid, or there are too many values or levels.
        IndexError: the block ends within a value.
    """
    count = 0
    while at < end:
        count += 1
        if within == _FIELD_TABLE:
            at += 1 + block[at]
        kind = block[at]
        if kind in SIZES:
            at += 1 + SIZES[kind]
            continue
        if kind not in _LONG:
            raise ValueError(f"a value has the unknown type {chr(kind)!r}")
        start = at + 5
        at = start + int.from_bytes(block[at + 1 : start], "big")
        if at > end:
            raise ValueError("a value is longer than its table")
        if kind in (_FIELD_TABLE, _ARRAY):
            if depth >= _DEPTH_MAX:
                raise ValueError(f"tables and arrays are nested more than {_DEPTH_MAX} deep")
            count += _check_values(block, start, at, kind, depth + 1)
    if at != end:
        raise ValueError(f"a value is longer than its {'table' if within == _FIELD_TABLE else 'array'}")
    if count > _VALUES_MAX:
        raise ValueError(f"the headers have more than {_VALUES_MAX:,} values")
    return count


def unreadable(raw: Raw, error: str) -> UnreadableDelivery:
    """Turn a delivery with invalid properties into an :class:`UnreadableDelivery`.

    The result has the fields that can be read, and the reason as its only header.

    Args:
        raw: the delivery as received.
        error: why the properties are invalid.
    """
    tag, redelivered, block, body, where = raw
    name, value = UNREADABLE_PROPERTY.encode(), error.encode()
    entry = bytes((len(name),)) + name + b"S" + len(value).to_bytes(4, "big") + value
    fields = {**Properties(block), "headers": len(entry).to_bytes(4, "big") + entry}
    flags = sum(FLAGS[field] for field in fields)
    readable = flags.to_bytes(FLAGS_BYTES, "big") + b"".join(fields[field] for field in FIELDS if field in fields)
    return UnreadableDelivery((tag, redelivered, readable, body, where, block, error))


# -- header tables -----------------------------------------------------------------------------

#: Codes of module `struct` for values of fixed size, by type. RabbitMQ's types differ from those in section 4.2.1 of
#: the AMQP specification.
_CODES = dict(
    zip("tbBsuUIilLfdDTV", ("?", "b", "B", "h", "H", "h", "i", "I", "q", "q", "f", "d", "Bi", "Q", ""), strict=True)
)
_STRUCTS = {ord(kind): Struct(f">{code}") for kind, code in _CODES.items()}
#: Sizes in octets of values of fixed size, by type.
SIZES = {kind: struct.size for kind, struct in _STRUCTS.items()}
#: The types of whole numbers. The value is True if the type is signed.
INTEGERS = {ord(kind): _CODES[kind].islower() for kind in "bBsuUIilL"}
_LONG = LONG_STRING, _BYTES, _ARRAY, _FIELD_TABLE = b"SxAF"


def headers(table: bytes) -> dict[str | bytes, Any]:
    """Decode an encoded header table. If several entries have the same name, the last of them is used."""
    entries: dict[str | bytes, Any] = {}
    at = 0
    while at < len(table):
        start = at + 1 + table[at]
        name = string(table[at + 1 : start])
        entries[name], at = _value(table, start)
    return entries


def header(table: bytes, name: bytes) -> Any:
    """Return the value of the entry with this name in a table, or None if there is no such entry."""
    return headers(table).get(name.decode()) if name in table else None


def _value(block: bytes, at: int) -> tuple[Any, int]:
    """Decode the value that begins at byte `at`. Return the value, and the position after it."""
    kind = block[at]
    if kind in SIZES:
        return _sized(kind, block, at + 1), at + 1 + SIZES[kind]
    start = at + 5
    end = start + int.from_bytes(block[at + 1 : start], "big")
    if kind == LONG_STRING:
        return string(block[start:end]), end
    if kind == _BYTES:
        return block[start:end], end
    if kind == _FIELD_TABLE:
        return headers(block[start:end]), end
    items = []
    while start < end:
        item, start = _value(block, start)
        items.append(item)
    return items, end


def string(value: bytes) -> str | bytes:
    """Decode UTF-8. Return the bytes unchanged if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _sized(kind: int, block: bytes, at: int) -> Any:
    found = _STRUCTS[kind].unpack_from(block, at)
    if kind == ord("V"):
        return None
    if kind == ord("D"):
        return Decimal(found[1]) * Decimal(10) ** -found[0]
    if kind == ord("T"):
        with suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(found[0], timezone.utc)
    return found[0]
