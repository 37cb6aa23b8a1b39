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
from typing import NamedTuple

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


class _Uuid(NamedTuple):
    """A form of UUIDs: `form` has an `x` for each digit."""

    form: str
    digits: str = "0123456789abcdef"

    @property
    def places(self) -> list[int]:
        """The places of the digits."""
        return [place for place, sign in enumerate(self.form) if sign == "x"]


_UUIDS = {
    10: _Uuid("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"),
    11: _Uuid("ID:xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"),
    12: _Uuid("x" * 32),
    13: _Uuid("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "0123456789ABCDEF"),
}
_UUID_PATTERNS = {kind: re.compile(form.replace("x", f"[{digits}]")) for kind, (form, digits) in _UUIDS.items()}
_UUID_LENGTHS = frozenset(len(uuid.form) for uuid in _UUIDS.values())


class CodecError(ValueError):
    """The text was not written by :func:`encode_ids`."""


def encode_ids(keys: Sequence[Key]) -> str:
    """IDs to ASCII text without quotes or backslashes; :func:`decode_ids` is the inverse."""
    if not keys:
        return ""
    chunks = [len(keys).to_bytes(4, "big")]
    first = _kind(keys[0])
    if first in _UUIDS and (uuids := _uuids(first, keys)) is not None:  # nearly always all have one form
        chunks += [bytes([1, first]), uuids]
    else:
        kinds = _kinds(keys)
        present = sorted(set(kinds))
        chunks.append(bytes([1, *present]) if len(present) == 1 else b"\0" + kinds)
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
        for kind, pattern in _UUID_PATTERNS.items():
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
        uuids = _uuids(kind, members)
        assert uuids is not None, "they have the form of this kind"
        return uuids
    if kind in _WIDTHS:
        return _planes(b"".join(members), _WIDTHS[kind])  # type: ignore[arg-type]
    if kind == _COUNTED:
        return _encode_counted(members)  # type: ignore[arg-type]
    return _encode_texts(members)  # type: ignore[arg-type]


def _uuids(kind: int, keys: Sequence[Key]) -> bytes | None:
    """Return UUIDs in planes; None if one has another form."""
    form, digits = _UUIDS[kind]
    if set(map(type, keys)) != {str} or set(map(len, keys)) != {len(form)}:
        return None
    text = "".join(keys)  # type: ignore[arg-type]
    if not text.isascii():
        return None
    signs = np.frombuffer(text.encode(), np.uint8).reshape(-1, len(form)).T
    if any((signs[place] != ord(sign)).any() for place, sign in enumerate(form) if sign != "x"):
        return None
    values = np.full(256, 255, np.uint8)
    values[np.frombuffer(digits.encode(), np.uint8)] = np.arange(16)
    nibbles = values[signs[_UUIDS[kind].places]]
    return None if (nibbles > 15).any() else (nibbles[::2] << 4 | nibbles[1::2]).tobytes()


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
    form, digits = _UUIDS[kind]
    data = np.frombuffer(reader.take(count * _UUID_BYTES), np.uint8).reshape(_UUID_BYTES, count)
    signs = np.empty((count, len(form)), np.uint8)
    signs[:] = np.frombuffer(form.encode(), np.uint8)
    values = np.frombuffer(digits.encode(), np.uint8)
    places = _UUIDS[kind].places
    signs[:, places[::2]], signs[:, places[1::2]] = values[data >> 4].T, values[data & 15].T
    text, size = signs.tobytes().decode("ascii"), len(form)
    return [text[at : at + size] for at in range(0, len(text), size)]


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
