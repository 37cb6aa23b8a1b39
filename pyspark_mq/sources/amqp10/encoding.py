"""Encoded values of AMQP 1.0 (part 1, section 1.6): the plain ones, which nearly all properties are.

Whatever is not among them, or is not well-formed, is an :class:`UnusualError`: a client library has to say what it
is. So nothing here guesses, and nothing is allocated that the bytes do not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any
from uuid import UUID

__all__ = ["UnusualError", "body_of", "check_map", "list_at", "map_at", "read_map", "value_at"]

_NULL = 0x40
_BINARY8, _STRING8, _SYMBOL8 = 0xA0, 0xA1, 0xA3
_BINARY32, _STRING32, _SYMBOL32 = 0xB0, 0xB1, 0xB3
_LIST0, _LIST8, _LIST32 = 0x45, 0xC0, 0xD0
_MAP8, _MAP32 = 0xC1, 0xD1


class UnusualError(ValueError):
    """Encoded bytes that are left to the client library: another type, another shape, or broken."""


def _number(shape: str) -> Callable[[bytes], Any]:
    unpack = Struct(shape).unpack
    return lambda data: unpack(data)[0]


def _boolean(data: bytes) -> bool:
    if data[0] > 1:
        raise UnusualError
    return data[0] == 1


#: Code -> width in bytes and how they are read (1.6.1 to 1.6.18). No `char`, no decimals.
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
    0x80: (8, _number(">Q")),
    0x81: (8, _number(">q")),
    0x82: (8, _number(">d")),
    0x83: (8, _number(">q")),
    0x98: (16, lambda data: UUID(bytes=data)),
}
#: Code -> width in bytes, where any bytes will do; -1 for all other codes.
_WIDTHS = tuple(-1 if code not in _FIXED or code == 0x56 else _FIXED[code][0] for code in range(256))


def value_at(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends: text as str, binary as bytes, numbers, UUID, bool, or None.

    Raises:
        UnusualError: not one of these, or cut off.
        IndexError: the bytes end before it.
        UnicodeDecodeError: text that is none.
    """
    code = data[at]
    if code in _FIXED:
        width, read = _FIXED[code]
        begin, end = at + 1, at + 1 + width
    elif code in {_STRING8, _BINARY8, _SYMBOL8}:
        begin, end, read = at + 2, at + 2 + data[at + 1], _VARIABLE[code]
    elif code in {_STRING32, _BINARY32, _SYMBOL32}:
        begin, end, read = at + 5, at + 5 + int.from_bytes(data[at + 1 : at + 5], "big"), _VARIABLE[code]
    else:
        raise UnusualError
    if end > len(data):
        raise UnusualError
    return read(data[begin:end]), end


def _string(data: bytes) -> str:
    return str(data, "utf-8")


def _symbol(data: bytes) -> str:
    return str(data, "ascii")


_VARIABLE: dict[int, Callable[[bytes], Any]] = {
    _STRING8: _string,
    _STRING32: _string,
    _SYMBOL8: _symbol,
    _SYMBOL32: _symbol,
    _BINARY8: bytes,
    _BINARY32: bytes,
}


def list_at(data: bytes, at: int) -> tuple[int, int, int]:
    """Of the list that begins at `at`: where its items begin, how many there are, and where it ends.

    Raises:
        UnusualError: something else, or longer than the bytes.
        IndexError: the bytes end before it.
    """
    if data[at] == _LIST0:
        return at + 1, 0, at + 1
    return _compound(data, at, _LIST8, _LIST32)


def map_at(data: bytes, at: int) -> tuple[int, int, int]:
    """The same of a map; its keys and its values count as items."""
    return _compound(data, at, _MAP8, _MAP32)


def _compound(data: bytes, at: int, short: int, long: int) -> tuple[int, int, int]:
    code = data[at]
    if code == short:
        begin, count, end = at + 3, data[at + 2], at + 2 + data[at + 1]
    elif code == long:
        begin, count = at + 9, int.from_bytes(data[at + 5 : at + 9], "big")
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    else:
        raise UnusualError
    if not begin <= end <= len(data):
        raise UnusualError
    return begin, count, end


def check_map(data: bytes, at: int, key_code: int = _STRING8) -> int:
    """Where the map that begins at `at` ends; :func:`read_map` reads what was checked without an error.

    Args:
        key_code: the one type of all keys, up to 255 bytes long.

    Raises:
        UnusualError, IndexError, UnicodeDecodeError: not a map of plain values, or broken.
    """
    item, count, end = map_at(data, at)
    if count % 2:
        raise UnusualError
    encoding = "utf-8" if key_code == _STRING8 else "ascii"
    for _ in range(count // 2):
        if item >= end or data[item] != key_code:
            raise UnusualError
        value = item + 2 + data[item + 1]
        str(data[item + 2 : value], encoding)
        code = data[value]
        if code == _STRING8:
            item = value + 2 + data[value + 1]
            str(data[value + 2 : item], "utf-8")
        elif _WIDTHS[code] >= 0:
            item = value + 1 + _WIDTHS[code]
        else:
            item = value_at(data, value)[1]
    if item != end:
        raise UnusualError
    return end


def read_map(section: bytes) -> dict[str, Any]:
    """A map that was checked, from its code on. Of entries with one key the last counts."""
    item, count, _ = map_at(section, 0)
    found = {}
    for _ in range(count // 2):
        value = item + 2 + section[item + 1]
        key = str(section[item + 2 : value], "utf-8")
        if section[value] == _STRING8:
            item = value + 2 + section[value + 1]
            found[key] = str(section[value + 2 : item], "utf-8")
        else:
            found[key], item = value_at(section, value)
    return found


def body_of(data: bytes, at: int, *, typed: bool) -> bytes:
    """The bytes of a body that begins at `at` and reaches to the end of the message.

    Args:
        typed: it is an `amqp-value` (3.2.8), which may be text or null too; otherwise `data` (3.2.6).

    Raises:
        UnusualError, IndexError, UnicodeDecodeError: it is something else, or something follows.
    """
    code = data[at]
    if code in {_BINARY8, _STRING8}:
        begin, length = at + 2, data[at + 1]
    elif code in {_BINARY32, _STRING32}:
        begin, length = at + 5, int.from_bytes(data[at + 1 : at + 5], "big")
    elif typed and code == _NULL:
        begin, length = at + 1, 0
    else:
        raise UnusualError
    if begin + length != len(data):
        raise UnusualError
    body = data[begin:]
    if code in {_STRING8, _STRING32}:
        if not typed:
            raise UnusualError
        if not body.isascii():
            str(body, "utf-8")
    return body
