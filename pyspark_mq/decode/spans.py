"""Makes Arrow arrays from spans of a buffer, without a Python object for each span.

A *span* is the bytes between two positions in the buffer, for example the value of a field in one message. An Arrow
array of bytes consists of a buffer and of the positions at which its elements begin. If these positions are the starts
and ends of all spans, the elements are by turns a span and the gap before the next span. So every second element is
taken.
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
    """Reads big-endian integers at any positions of a buffer."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._all = {size: np.ndarray((len(data) - size + 1,), f">u{size}", data, 0, (1,)) for size in (1, 2, 4, 8)}

    def at(self, places: Any, size: int) -> Any:
        """Return the unsigned integer of `size` bytes that begins at each position in array `places`.

        If an integer would extend beyond the end of the buffer, its value is arbitrary.
        """
        found = self._all[size]
        return found[np.minimum(places, len(found) - 1)].astype(f"u{size}", copy=False)


def binary(data: bytes | memoryview, begins: Any, ends: Any, valid: Any | None = None) -> pa.Array:
    """Return an array with the bytes of each span.

    Args:
        data: the buffer, which must be smaller than 2 GiB.
        begins, ends: integer arrays with the start and the end of each span. The spans are in ascending order.
        valid: array that tells whether each span is valid; other spans become null. None if all spans are valid.
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
    """Return an array of bytes in which spans alternate with the gaps between them, beginning with the first span."""
    _check_size(len(data))
    bounds = np.empty(2 * len(begins), np.int32)
    bounds[0::2], bounds[1::2] = begins, ends
    return pa.Array.from_buffers(pa.binary(), max(0, len(bounds) - 1), [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def joined(values: Sequence[bytes]) -> pa.Array:
    """Return byte strings as an array that takes no more memory than needed.

    Arrow's own conversion would double its buffer each time it is full.
    """
    ends = np.cumsum([0, *map(len, values)])
    _check_size(int(ends[-1]))
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _check_size(size: int) -> None:
    if size > _INT32_MAX:
        raise InternalError(f"an array of {size} bytes is too large: its positions are 32-bit integers")


def text(found: pa.Array) -> pa.Array:
    """Convert an array of bytes to an array of text.

    Raises:
        ValueError: a value is not UTF-8.
    """
    return found.view(pa.string()) if is_ascii(found) else found.cast(pa.string())


def is_ascii(found: pa.Array) -> bool:
    """Return whether all values of an array of bytes are ASCII text. Nulls do not count."""
    content = found.buffers()[2]
    return content is None or content.size == 0 or int(np.frombuffer(content, np.uint8).max()) < 0x80


def numbers(values: Any, valid: Any | None = None) -> pa.Array:
    """Convert numbers to an Arrow array. Where `valid` is false, the array is null."""
    return pa.array(values, mask=None if valid is None else ~valid)


def distinct(found: pa.Array) -> tuple[list[Any], Any]:
    """Return the distinct values of an array in order of appearance, and the index of each row's value."""
    encoded = found.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def decimals(values: Any, valid: Any | None = None) -> pa.Array:
    """Convert integers to an array of decimal text. Where `valid` is false, the array is null."""
    return numbers(values, valid).cast(pa.string())


def maps(columns: Sequence[tuple[str, pa.Array]], count: int) -> pa.Array:
    """Return an array of maps that all have the same keys in the same order.

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
