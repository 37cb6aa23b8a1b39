"""Decodes the values of AMQP 1.0 (part 1, section 1.6).

If bytes are not a value according to the specification, an :class:`EncodingError` is raised. The decoder never guesses,
and never omits or shortens anything. It limits the memory that a message can take. A list or map that states more
elements than its bytes can hold is an error. The number of array elements that take no bytes is limited. The number of
values in a message is limited, because an empty list is encoded in one byte but takes 64 bytes as an object. The number
of characters in lists and maps that JSON writes as escapes is limited, too (:mod:`.escapes`).

A decoded value is None, a bool, int, float, :class:`~decimal.Decimal`, str (for a string, symbol or char), bytes, UUID,
a list (for a list or array) or :class:`Pairs` (for a map). A timestamp is decoded as a number of milliseconds since
1970. A value may be preceded by a descriptor, which is read and discarded.
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
#: Maximum depth of nested values. The recursion that decodes and later writes them must end before the stack is full.
_DEPTH_MAX = 100
#: Maximum number of bytes of a list, map or array. A text in a list may take four times as many bytes as a Python
#: object, and is copied twice when the list is written as JSON.
_COMPOUND_BYTES_MAX = 32 << 20
#: Maximum number of values in the lists, maps and arrays of a message.
_VALUES_MAX = 1_000_000
#: Maximum number of array elements in a message that take no bytes (`null`, `true`, `0`, `[]`). Without this limit, a
#: short message could state 2^32 of them.
_BARE_ELEMENTS_MAX = 1024


class EncodingError(ValueError):
    """The bytes are not an encoded value, or the value is not allowed at this position of a message."""


class Pairs(list[tuple[Any, Any]]):
    """A map, as a list of pairs of key and value, in order.

    Keys may have any type. A Python dictionary would treat the keys `1` and `true` as the same key.
    """


def _number(shape: str) -> Callable[[bytes], Any]:
    unpack = Struct(shape).unpack
    return lambda data: unpack(data)[0]


def _boolean(data: bytes) -> bool:
    if data[0] > 1:
        raise EncodingError(f"a boolean is 0x{data[0]:02x}, neither 0x00 nor 0x01")
    return data[0] == 1


def _decimal(exponent_bits: int, digits: int) -> Callable[[bytes], Decimal]:
    """Return a function that decodes decimals in binary integer encoding (1.6.15 to 1.6.17; IEEE 754-2008, 3.5.2).

    Args:
        exponent_bits: width of the exponent in bits.
        digits: number of digits of the largest coefficient. A larger coefficient is not canonical, and stands for 0.
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


#: By the code of a type of fixed width: the width in bytes, and the function that decodes a value (1.6.1 to 1.6.18).
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
    """Decode a value that contains no other values and has no descriptor.

    Args:
        data: the bytes.
        at: position at which the value begins.

    Returns:
        the value, and the position after it.

    Raises:
        EncodingError: the value is of another kind, or is cut off.
        IndexError: the bytes end before the value.
        UnicodeDecodeError: the value's text is invalid.
    """
    code = data[at]
    if code not in _FIXED and code not in _VARIABLE:
        raise EncodingError(f"the value at byte {at} has the unexpected code 0x{code:02x}")
    return _plain(code, data, at + 1, len(data))


def _plain(code: int, data: bytes, at: int, end: int) -> tuple[Any, int]:
    """Decode the value with this code, whose other bytes begin at `at`. Return the value, and the position after it."""
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
    """Decode a length or a count that takes `width` bytes. Return the position after these bytes, and the number."""
    after = _bounded(at, at + width, end)
    return after, int.from_bytes(data[at:after], "big")


def _bounded(at: int, stop: int, end: int) -> int:
    if stop > end:
        raise EncodingError(f"the value at byte {at} is cut off at {end}")
    return stop


class Values:
    """Decodes the values of one message, of any type.

    Args:
        data: the encoded message.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left, self._bare_left = _VALUES_MAX, _BARE_ELEMENTS_MAX
        #: Only a large message can have too many escapes.
        self._is_large, self._escapes_left = len(data) > ESCAPES_MAX, ESCAPES_MAX

    def at(self, at: int, end: int, depth: int = 0) -> tuple[Any, int]:
        """Decode a value.

        Args:
            at: position at which the value begins.
            end: position at which the enclosing value ends.
            depth: number of enclosing values.

        Returns:
            the value, and the position after it.

        Raises:
            EncodingError: there is no value, or the value extends beyond `end`.
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
        """Decode the value with this code, whose other bytes begin at `at`.

        Return the value, and the position after it.
        """
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
        if size > _COMPOUND_BYTES_MAX:
            raise EncodingError(f"a list, map or array has {size:,} bytes, and the limit is {_COMPOUND_BYTES_MAX:,}")
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
        """Decode the elements of an array. All elements share one type, and perhaps descriptors (1.6.24).

        Returns:
            the elements, and the position after the last one.
        """
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
                raise EncodingError(f"an array at byte {at} has {count} elements that take no bytes, which is too many")
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
    """Find the items of the encoded list that begins at `at`.

    Returns:
        the position of the first item, the number of items, and the position after the list.

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


#: The first bytes of section `header`, whose value is a list, and of the two sections of annotations that follow the
#: header, whose values are maps (3.2.1 to 3.2.3).
_HEADER, _ANNOTATIONS = b"\x00\x53\x70", (b"\x00\x53\x71", b"\x00\x53\x72")


def bare_message_at(data: bytes) -> int:
    """Return the position at which the *bare message* begins (3.2).

    The bare message follows the header and the annotations, which may differ between deliveries of the same message.

    Raises:
        EncodingError, IndexError: the header or the annotations cannot be read.
    """
    at = list_at(data, len(_HEADER))[2] if data.startswith(_HEADER) else 0
    for mark in _ANNOTATIONS:
        if data.startswith(mark, at):
            at = _compound(data, at + len(mark), _MAP8, _MAP32)[2]
    return at
