"""Encoded values of AMQP 1.0 (part 1, section 1.6), read strictly and only from their own bytes.

Bytes that are not a value by the specification raise an :class:`EncodingError`: nothing is guessed, left out or cut.
A value never has more elements than its bytes can hold. Array elements that take no bytes are an exception, and their
number has a limit of its own. The number of values in a message has a limit, too, because an empty list takes one byte
here and 64 bytes as an object. So has the number of characters in lists and maps that become escapes in JSON
(:mod:`.escapes`).

A value is None, a bool, int, float, :class:`~decimal.Decimal`, str (string, symbol, char), bytes, UUID, a list (list,
array) or :class:`Pairs` (map). A timestamp is a number of milliseconds since 1970. Descriptors are read and dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from operator import methodcaller
from struct import Struct
from typing import Any
from uuid import UUID

from pyspark_mq.decode.escapes import ESCAPES_MAX, TOO_MANY_ESCAPES, escapes

__all__ = ["EncodingError", "Pairs", "Values", "bare_message_at", "list_at", "plain_at"]

_DESCRIBED = 0x00
_NULL = 0x40
_BINARY8, _STRING8, _SYMBOL8 = 0xA0, 0xA1, 0xA3
_BINARY32, _STRING32, _SYMBOL32 = 0xB0, 0xB1, 0xB3
_LIST0, _LIST8, _LIST32 = 0x45, 0xC0, 0xD0
_MAP8, _MAP32 = 0xC1, 0xD1
_ARRAY8, _ARRAY32 = 0xE0, 0xF0
#: Deepest nesting of values. Recursion must end before the stack is full, both here and when values are written.
_DEPTH_MAX = 100
#: Most values in the lists, maps and arrays of a message.
_VALUES_MAX = 1_000_000
#: Most array elements in a message that take no bytes (`null`, `true`, `0`, `[]`). A count of four bytes could claim
#: 2^32 of them.
_BARE_ELEMENTS_MAX = 1024


class EncodingError(ValueError):
    """The bytes are not an encoded value, or are a value that is not allowed here."""


class Pairs(list[tuple[Any, Any]]):
    """A map: keys with their values, in order. Keys may be of any type, so `1`, `true` and `"1"` are three keys."""


def _number(shape: str) -> Callable[[bytes], Any]:
    unpack = Struct(shape).unpack
    return lambda data: unpack(data)[0]


def _boolean(data: bytes) -> bool:
    if data[0] > 1:
        raise EncodingError(f"a boolean is 0x{data[0]:02x}, neither 0x00 nor 0x01")
    return data[0] == 1


def _decimal(exponent_bits: int, digits: int) -> Callable[[bytes], Decimal]:
    """Return a reader of decimals in binary integer encoding (1.6.15 to 1.6.17; IEEE 754-2008, 3.5.2).

    Args:
        exponent_bits: width of the exponent.
        digits: digits of the largest coefficient. A larger coefficient is not canonical, and stands for 0.
    """
    bias = 3 * (1 << (exponent_bits - 3)) + digits - 2

    def read(data: bytes) -> Decimal:
        bits, whole = 8 * len(data), int.from_bytes(data, "big")
        sign = "-" if whole >> (bits - 1) else ""
        combination = whole >> (bits - 6) & 0b11111
        if combination >= 0b11110:
            return Decimal("NaN" if combination & 1 else f"{sign}Infinity")
        # Two set bits mean that the coefficient begins with an implicit 100.
        long = combination >= 0b11000
        width = bits - 1 - exponent_bits - 2 * long
        exponent = whole >> width & (1 << exponent_bits) - 1
        coefficient = whole & (1 << width) - 1 | (0b100 << width if long else 0)
        if coefficient >= 10**digits:
            coefficient = 0
        return Decimal(f"{sign}{coefficient}E{exponent - bias}")

    return read


#: Code -> width in bytes and reader (1.6.1 to 1.6.18).
_FIXED: dict[int, tuple[int, Callable[[bytes], Any]]] = {
    _NULL: (0, lambda _: None),
    0x41: (0, lambda _: True),
    0x42: (0, lambda _: False),
    0x43: (0, lambda _: 0),
    0x44: (0, lambda _: 0),
    0x50: (1, _number(">B")),
    0x51: (1, _number(">b")),
    0x52: (1, _number(">B")),
    0x53: (1, _number(">B")),
    0x54: (1, _number(">b")),
    0x55: (1, _number(">b")),
    0x56: (1, _boolean),
    0x60: (2, _number(">H")),
    0x61: (2, _number(">h")),
    0x70: (4, _number(">I")),
    0x71: (4, _number(">i")),
    0x72: (4, _number(">f")),
    0x73: (4, methodcaller("decode", "utf-32-be")),
    0x74: (4, _decimal(8, 7)),
    0x80: (8, _number(">Q")),
    0x81: (8, _number(">q")),
    0x82: (8, _number(">d")),
    0x83: (8, _number(">q")),
    0x84: (8, _decimal(10, 16)),
    0x94: (16, _decimal(14, 34)),
    0x98: (16, lambda data: UUID(bytes=data)),
}
_VARIABLE: dict[int, Callable[[bytes], Any]] = {
    **dict.fromkeys((_STRING8, _STRING32), methodcaller("decode", "utf-8")),
    **dict.fromkeys((_SYMBOL8, _SYMBOL32), methodcaller("decode", "ascii")),
    **dict.fromkeys((_BINARY8, _BINARY32), bytes),
}


def plain_at(data: bytes, at: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, and the position after the value.

    The value must not contain other values, and must not have a descriptor.

    Raises:
        EncodingError: there is another kind of value, or the value is cut off.
        IndexError: the bytes end before the value.
        UnicodeDecodeError: the value's text is invalid.
    """
    code = data[at]
    if code not in _FIXED and code not in _VARIABLE:
        raise EncodingError(f"the value at byte {at} has the unexpected code 0x{code:02x}")
    return _plain(code, data, at + 1, len(data))


def _plain(code: int, data: bytes, at: int, end: int) -> tuple[Any, int]:
    """Return the value with this code, and the position after the value. The bytes after the code begin at `at`."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        width, read = fixed
        stop = at + width
    else:
        read = _VARIABLE[code]
        at, length = _length(data, at, 1 if code < _BINARY32 else 4, end)
        stop = at + length
    return read(data[at : _bounded(at, stop, end)]), stop


def _length(data: bytes, at: int, width: int, end: int) -> tuple[int, int]:
    """Read a length or a count of `width` bytes. Return the position after these bytes, and the number."""
    after = _bounded(at, at + width, end)
    return after, int.from_bytes(data[at:after], "big")


def _bounded(at: int, stop: int, end: int) -> int:
    if stop > end:
        raise EncodingError(f"the value at byte {at} is cut off at {end}")
    return stop


class Values:
    """Reader of values of any type, for one message.

    Args:
        data: the message.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left, self._bare_left = _VALUES_MAX, _BARE_ELEMENTS_MAX
        #: Only a large message can have too many escapes.
        self._is_large, self._escapes_left = len(data) > ESCAPES_MAX, ESCAPES_MAX

    def at(self, at: int, end: int, depth: int = 0) -> tuple[Any, int]:
        """Return the value that begins at `at`, and the position after the value.

        Args:
            end: end of the enclosing value.
            depth: number of enclosing values.

        Raises:
            EncodingError: there is no value, or the value does not end within these bounds.
            UnicodeDecodeError: the value's text is invalid.
        """
        if at >= end:
            raise EncodingError(f"a value is missing at byte {at}")
        code = self._data[at]
        if code == _DESCRIBED:
            _, at = self.at(at + 1, end, _deeper(depth, at))
            return self.at(at, end, _deeper(depth, at))
        return self._of(code, at + 1, end, depth)

    def _of(self, code: int, at: int, end: int, depth: int) -> tuple[Any, int]:
        """Return the value with this code, and the position after the value. The bytes after the code begin at `at`."""
        data = self._data
        if code in _FIXED or code in _VARIABLE:
            value, stop = _plain(code, data, at, end)
            if self._is_large and depth and code in _VARIABLE:
                self._escapes_left -= escapes(data[at + (1 if code < _BINARY32 else 4) : stop])
                if self._escapes_left < 0:
                    raise EncodingError(TOO_MANY_ESCAPES)
            return value, stop
        if code == _LIST0:
            return [], at
        if code not in {_LIST8, _LIST32, _MAP8, _MAP32, _ARRAY8, _ARRAY32}:
            raise EncodingError(
                f"the value before byte {at} has the code 0x{code:02x}, which is not the code of any type"
            )
        width = 1 if code in {_LIST8, _MAP8, _ARRAY8} else 4
        begin, size = _length(data, at, width, end)
        stop = _bounded(at, begin + size, end)
        begin, count = _length(data, begin, width, stop)
        self._left -= count
        if self._left < 0:
            raise EncodingError(f"the message has more than {_VALUES_MAX:,} values")
        read_items = self._elements if code in {_ARRAY8, _ARRAY32} else self._items
        items, last = read_items(begin, count, stop, _deeper(depth, at))
        if last != stop:
            raise EncodingError(
                f"the {count} values that begin at byte {begin} end at byte {last}, not at {stop} as their size says"
            )
        return (_paired(items, at) if code in {_MAP8, _MAP32} else items), stop

    def _items(self, at: int, count: int, end: int, depth: int) -> tuple[list[Any], int]:
        items = []
        for _ in range(count):
            item, at = self.at(at, end, depth)
            items.append(item)
        return items, at

    def _elements(self, at: int, count: int, end: int, depth: int) -> tuple[list[Any], int]:
        """Read an array's elements. All elements have the same constructor, which may include descriptors (1.6.24)."""
        if not count and at == end:
            return [], at
        while at < end and self._data[at] == _DESCRIBED:
            depth = _deeper(depth, at)
            _, at = self.at(at + 1, end, depth)
        _bounded(at, at + 1, end)
        code, at = self._data[at], at + 1
        if code == _LIST0 or (code in _FIXED and not _FIXED[code][0]):
            self._bare_left -= count
            if self._bare_left < 0:
                raise EncodingError(f"an array at byte {at} has {count} elements without bytes, which are too many")
        items = []
        for _ in range(count):
            item, at = self._of(code, at, end, depth)
            items.append(item)
        return items, at


def _deeper(depth: int, at: int) -> int:
    if depth >= _DEPTH_MAX:
        raise EncodingError(f"values are nested more than {_DEPTH_MAX} deep at byte {at}")
    return depth + 1


def _paired(items: list[Any], at: int) -> Pairs:
    if len(items) % 2:
        raise EncodingError(f"a key has no value in the map at byte {at}")
    return Pairs(zip(items[::2], items[1::2], strict=True))


def list_at(data: bytes, at: int) -> tuple[int, int, int]:
    """Return where the items of the list at `at` begin, how many items there are, and where the list ends.

    Raises:
        EncodingError: the value is not a list, or is longer than the bytes.
        IndexError: the bytes end before the value.
    """
    if data[at] == _LIST0:
        return at + 1, 0, at + 1
    return _compound(data, at, _LIST8, _LIST32)


def _compound(data: bytes, at: int, short: int, long: int) -> tuple[int, int, int]:
    code = data[at]
    if code == short:
        begin, count, end = at + 3, data[at + 2], at + 2 + data[at + 1]
    elif code == long:
        begin, count = at + 9, int.from_bytes(data[at + 5 : at + 9], "big")
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    else:
        raise EncodingError(f"the value at byte {at} has the unexpected code 0x{code:02x}")
    if not begin <= end <= len(data):
        raise EncodingError(f"the value at byte {at} is cut off")
    return begin, count, end


#: The first bytes of the header, whose value is a list. Then the first bytes of the two sections of annotations that
#: follow the header, whose values are maps (3.2.1 to 3.2.3).
_HEADER, _ANNOTATIONS = b"\x00\x53\x70", (b"\x00\x53\x71", b"\x00\x53\x72")


def bare_message_at(data: bytes) -> int:
    """Return where the bare message begins (3.2), after the sections that differ between deliveries.

    Raises:
        EncodingError, IndexError: the header or the annotations cannot be read.
    """
    at = list_at(data, len(_HEADER))[2] if data.startswith(_HEADER) else 0
    for mark in _ANNOTATIONS:
        if data.startswith(mark, at):
            at = _compound(data, at + len(mark), _MAP8, _MAP32)[2]
    return at
