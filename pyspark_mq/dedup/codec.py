"""A compact text form for a list of IDs, made for offsets.

Spark keeps an offset as text in its log and in the last 100 progress reports, twice each, so
every byte of an ID is paid a few hundred times in driver memory. Two kinds of ID cover most of
what producers send, and each has a form that exploits its structure:

* UUIDs are 16 bytes written as 32 or 36 characters, sometimes behind ``ID:``;
* JMS providers write a long prefix for the connection and a counter
  (``ID:host-40021-1700000000000-1:1:1:1:4711``), so a list of them is a few prefixes and
  differences that are nearly always 1.

Anything else is written as it is, lengths first, so no character needs escaping. All of it is
laid out in columns, each in planes (first all lowest bytes, then all second bytes): equal
bytes then stand side by side, and zlib at its fastest removes them.

Measured sizes are in ``docs/operate.md``; the order of the list is kept.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from pyspark_mq.dedup.identity import CONTENT_BYTES, DIGEST_BYTES, Key

__all__ = ["CodecError", "decode_ids", "encode_ids"]

#: More than this is not compressed, so compressed text that grows beyond it is not ours.
_INFLATED_BYTES_MAX = 1 << 26

_UUID_BYTES = 16
_DIGITS = "0123456789"
#: The largest counter that fits into 8 bytes with room for any difference.
_COUNTER_DIGITS_MAX = 18

# Kinds of ID. The value is what stands in the kinds column.
_RAW, _COUNTED, _DIGEST, _CONTENT = 0, 1, 2, 3
#: Kinds of bytes, and how many a key has.
_WIDTHS = {_DIGEST: DIGEST_BYTES, _CONTENT: CONTENT_BYTES}
_HEX = "[0-9a-f]"
_DASHED = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
#: kind -> (prefix, dashed, upper case, pattern of one ID)
_UUIDS: dict[int, tuple[str, bool, bool, re.Pattern[str]]] = {
    10: ("", True, False, re.compile(_DASHED)),
    11: ("ID:", True, False, re.compile(f"ID:{_DASHED}")),
    12: ("", False, False, re.compile(f"{_HEX}{{32}}")),
    13: ("", True, True, re.compile(_DASHED.replace("a-f", "A-F"))),
}


_UUID_LENGTHS = frozenset({32, 36, 39})


class CodecError(ValueError):
    """The text was not written by :func:`encode_ids`."""


def encode_ids(keys: Sequence[Key]) -> str:
    """IDs to ASCII text without quotes or backslashes; :func:`decode_ids` is the inverse."""
    if not keys:
        return ""
    kinds = _kinds(keys)
    present = sorted(set(kinds))
    chunks = [len(keys).to_bytes(4, "big"), bytes([1, *present]) if len(present) == 1 else b"\0" + kinds]
    for kind in present:
        members = list(keys) if len(present) == 1 else [
            key for key, its in zip(keys, kinds, strict=True) if its == kind
        ]  # fmt: skip
        chunks.append(_encode_members(kind, members))
    return b64encode(_pack(b"".join(chunks))).decode("ascii")


def decode_ids(text: str) -> list[Key]:
    """The IDs in their order.

    Raises:
        CodecError: the text is damaged or of another origin.
    """
    if not text:
        return []
    try:
        reader = _Reader(_unpack(b64decode(text, validate=True)))
        count = reader.number()
        kinds = reader.kinds(count)
        members = {kind: iter(_decode_members(kind, kinds.count(kind), reader))
                   for kind in sorted(set(kinds))}  # fmt: skip
        keys = [next(members[kind]) for kind in kinds]
        reader.finish()
    except (ValueError, IndexError, KeyError, OverflowError, zlib.error, StopIteration) as broken:
        raise CodecError(f"not a list of message IDs: {broken}") from None
    return keys


# -- kinds -----------------------------------------------------------------------------------


def _kinds(keys: Sequence[Key]) -> bytes:
    """The kind of each ID, decided so that the whole list becomes short."""
    if all(map(isinstance, keys, repeat(str))):
        for kind, (_, _, _, pattern) in _UUIDS.items():
            if pattern.fullmatch(keys[0]) and all(map(pattern.fullmatch, keys)):  # type: ignore[arg-type]
                return bytes([kind]) * len(keys)
    kinds = bytearray(map(_kind, keys))
    counted = [index for index, kind in enumerate(kinds) if kind == _COUNTED]
    stems = [keys[index].rstrip(_DIGITS) for index in counted]  # type: ignore[arg-type]
    shared = Counter(stems)
    for index, stem in zip(counted, stems, strict=True):
        # A stem of its own saves nothing: random text that happens to end in a digit.
        if shared[stem] == 1:
            kinds[index] = _RAW
    return bytes(kinds)


def _kind(key: Key) -> int:
    if isinstance(key, bytes):
        return _CONTENT if len(key) == CONTENT_BYTES else _DIGEST
    if len(key) in _UUID_LENGTHS:
        for kind, (_, _, _, pattern) in _UUIDS.items():
            if pattern.fullmatch(key):
                return kind
    return _COUNTED if key[-1:] in _DIGITS and _split(key)[1] >= 0 else _RAW


def _split(key: str) -> tuple[str, int]:
    """Prefix and trailing number; the number is -1 if there is none that fits."""
    stem = key.rstrip(_DIGITS)
    digits = key[len(stem) :].lstrip("0")
    if len(digits) > _COUNTER_DIGITS_MAX or len(stem) == len(key):
        return key, -1
    if not digits:
        return key[:-1], 0
    return key[: -len(digits)], int(digits)


# -- columns ---------------------------------------------------------------------------------


def _encode_members(kind: int, members: list[Key]) -> bytes:
    if kind in _UUIDS:
        prefix, dashed, _, _ = _UUIDS[kind]
        text = "".join(members)  # type: ignore[arg-type]
        if prefix:
            text = text.replace(prefix, "")
        return _planes(bytes.fromhex(text.replace("-", "") if dashed else text), _UUID_BYTES)
    if kind in _WIDTHS:
        return _planes(b"".join(members), _WIDTHS[kind])  # type: ignore[arg-type]
    if kind == _COUNTED:
        return _encode_counted(members)  # type: ignore[arg-type]
    return _encode_texts(members)  # type: ignore[arg-type]


def _decode_members(kind: int, count: int, reader: _Reader) -> list[Key]:
    if kind in _UUIDS:
        return _decode_uuids(kind, count, reader)
    if kind in _WIDTHS:
        width = _WIDTHS[kind]
        data = reader.planes(count, width)
        return [data[at : at + width] for at in range(0, len(data), width)]
    if kind == _COUNTED:
        return _decode_counted(count, reader)
    if kind == _RAW:
        return list(_decode_texts(count, reader))
    raise KeyError(f"kind {kind}")


def _decode_uuids(kind: int, count: int, reader: _Reader) -> list[Key]:
    prefix, dashed, upper, _ = _UUIDS[kind]
    text = reader.planes(count, _UUID_BYTES).hex()
    if upper:
        text = text.upper()
    plain = [text[at : at + 32] for at in range(0, len(text), 32)]
    if not dashed:
        return [prefix + h for h in plain]
    return [f"{prefix}{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}" for h in plain]


def _encode_counted(members: list[str]) -> bytes:
    prefixes: dict[str, int] = {}
    last: list[int] = []
    indices: list[int] = []
    steps: list[int] = []
    for member in members:
        prefix, number = _split(member)
        index = prefixes.setdefault(prefix, len(prefixes))
        if index == len(last):
            last.append(0)
        indices.append(index)
        steps.append(number - last[index])
        last[index] = number
    table = _encode_texts(list(prefixes))
    return b"".join([len(prefixes).to_bytes(4, "big"), table, _planes_of("<u4", indices), _planes_of("<i8", steps)])


def _decode_counted(count: int, reader: _Reader) -> list[Key]:
    table_size = reader.number()
    prefixes = _decode_texts(table_size, reader)
    indices = reader.numbers("<u4", count)
    steps = reader.numbers("<i8", count)
    last = [0] * table_size
    keys: list[Key] = []
    for index, step in zip(indices, steps, strict=True):
        last[index] += step
        keys.append(f"{prefixes[index]}{last[index]}")
    return keys


def _encode_texts(texts: list[str]) -> bytes:
    # Text decoded from a broker has no lone surrogates, but a user's own property may.
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return _planes_of("<u4", list(map(len, encoded))) + b"".join(encoded)


def _decode_texts(count: int, reader: _Reader) -> list[str]:
    return [reader.take(length).decode("utf-8", "surrogatepass") for length in reader.numbers("<u4", count)]


def _planes(data: bytes, width: int) -> bytes:
    return _transposed(data, len(data) // width, width)


def _transposed(data: bytes, rows: int, columns: int) -> bytes:
    turned: bytes = np.frombuffer(data, np.uint8).reshape(rows, columns).T.tobytes()
    return turned


def _planes_of(kind: str, numbers: list[int]) -> bytes:
    values = np.array(numbers, kind)
    return _planes(values.tobytes(), values.itemsize)


# -- the container -----------------------------------------------------------------------------


def _pack(data: bytes) -> bytes:
    """Compress, unless it is too large or a sample says that it is random."""
    if len(data) > _INFLATED_BYTES_MAX:
        return b"\0" + data
    middle = len(data) // 2
    sample = data[:1024] + data[middle : middle + 1024] + data[-1024:]
    if len(data) > len(sample) and len(zlib.compress(sample, 1)) > 0.9 * len(sample):
        return b"\0" + data
    return b"\1" + zlib.compress(data, 1)


def _unpack(data: bytes) -> bytes:
    if data[0] == 0:
        return data[1:]
    if data[0] != 1:
        raise ValueError(f"container {data[0]}")
    inflater = zlib.decompressobj()
    whole = inflater.decompress(data[1:], _INFLATED_BYTES_MAX)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("compressed data is cut off or too long")
    return whole


class _Reader:
    """Reader that takes pieces from the front and fails if there are too few bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) != count:
            raise ValueError("cut off")
        self._at += count
        return piece

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def planes(self, count: int, width: int) -> bytes:
        return _transposed(self.take(count * width), width, count)

    def numbers(self, kind: str, count: int) -> list[int]:
        values: list[int] = np.frombuffer(self.planes(count, np.dtype(kind).itemsize), kind).tolist()
        return values

    def kinds(self, count: int) -> bytes:
        if self.take(1) != b"\1":
            return self.take(count)
        kind = self.take(1)
        # The shortest ID takes more than a byte: an absurd count must not become that much memory.
        if count > len(self._data) - self._at:
            raise ValueError("cut off")
        return kind * count

    def finish(self) -> None:
        if self._at != len(self._data):
            raise ValueError("has a tail")
