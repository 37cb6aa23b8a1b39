"""Spans of one piece of memory as Arrow arrays, without an object for each span.

Start and end offsets turn the memory into an Arrow array, in which spans alternate with the gaps between them. The
elements with odd numbers are gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_mq.errors import InternalError

__all__ = ["Views", "binary", "decimals", "distinct", "is_ascii", "joined", "maps", "numbers", "text"]

_INT32_MAX = 2**31 - 1


class Views:
    """Reader of big-endian integers at any places of a piece of memory."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._all = {size: np.ndarray((len(data) - size + 1,), f">u{size}", data, 0, (1,)) for size in (1, 2, 4, 8)}

    def at(self, places: Any, size: int) -> Any:
        """Read an integer of `size` bytes at each of these places.

        If an integer extends beyond the end of the memory, its value is arbitrary.
        """
        found = self._all[size]
        return found[np.minimum(places, len(found) - 1)].astype(f"u{size}", copy=False)


def binary(data: bytes | memoryview, begins: Any, ends: Any, valid: Any | None = None) -> pa.Array:
    """Return the bytes of each span.

    Args:
        data: the memory, less than 2 GiB.
        begins, ends: bounds of each span, integer arrays. The spans are in ascending order.
        valid: whether each span is valid; other spans become null. None if all spans are valid.
    """
    if valid is None or valid.all():
        return _pieces(data, begins, ends).take(pa.array(np.arange(0, 2 * len(begins), 2)))
    rows = np.flatnonzero(valid)
    if not len(rows):
        return pa.nulls(len(begins), pa.binary())
    places = np.zeros(len(begins), np.int64)
    places[rows] = np.arange(0, 2 * len(rows), 2)
    return _pieces(data, begins[rows], ends[rows]).take(pa.array(places, mask=~valid))


def _pieces(data: bytes | memoryview, begins: Any, ends: Any) -> pa.Array:
    """Return an array in which spans alternate with the gaps between them."""
    _check_size(len(data))
    bounds = np.empty(2 * len(begins), np.int32)
    bounds[0::2], bounds[1::2] = begins, ends
    return pa.Array.from_buffers(pa.binary(), max(0, len(bounds) - 1), [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def joined(values: Sequence[bytes]) -> pa.Array:
    """Return values as an array without spare memory. Arrow's builder would double its memory each time it is full."""
    ends = np.cumsum([0, *map(len, values)])
    _check_size(int(ends[-1]))
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _check_size(size: int) -> None:
    if size > _INT32_MAX:
        raise InternalError(f"{size} bytes are more than the offsets of an array can address")


def text(found: pa.Array) -> pa.Array:
    """Return an array of bytes as an array of text.

    Raises:
        ValueError: a value is not UTF-8.
    """
    return found.view(pa.string()) if is_ascii(found) else found.cast(pa.string())


def is_ascii(found: pa.Array) -> bool:
    """Whether the bytes of all values are ASCII. Nulls have no bytes, and do not count."""
    content = found.buffers()[2]
    return content is None or content.size == 0 or int(np.frombuffer(content, np.uint8).max()) < 0x80


def numbers(values: Any, valid: Any | None = None) -> pa.Array:
    """Return numbers as an Arrow array. A number that is not valid becomes null."""
    return pa.array(values, mask=None if valid is None else ~valid)


def distinct(found: pa.Array) -> tuple[list[Any], Any]:
    """Return the distinct values in order of appearance, and the index of each row's value."""
    encoded = found.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def decimals(values: Any, valid: Any | None = None) -> pa.Array:
    """Return integers as decimal text. An integer that is not valid becomes null."""
    return numbers(values, valid).cast(pa.string())


def maps(columns: Sequence[tuple[str, pa.Array]], count: int) -> pa.Array:
    """Return maps that all have the same keys in the same order.

    Args:
        columns: each key with its column of text.
        count: number of maps.
    """
    width = len(columns)
    if not width:
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), nothing, nothing)
    keys = pa.array([key for key, _ in columns]).take(pa.array(np.tile(np.arange(width), count)))
    turned = pa.array(np.arange(width * count).reshape(width, count).T.ravel())
    items = pa.concat_arrays([texts for _, texts in columns]).take(turned)
    return pa.MapArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * width), keys, items)
