"""Keys of many messages as Arrow arrays: no object of Python for each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import pyarrow as pa

__all__ = ["TextKeys", "as_text_keys"]


class TextKeys(Sequence[str]):
    """IDs that are texts, none of them empty.

    Args:
        chunks: arrays of strings without nulls; slices share their memory.
    """

    __slots__ = ("_length", "chunks")

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self.chunks = chunks
        self._length = sum(map(len, chunks))

    @classmethod
    def joined(cls, parts: Iterable[TextKeys]) -> Self:
        """Return the keys of several as one."""
        return cls([chunk for part in parts for chunk in part.chunks])

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        for chunk in self.chunks:
            yield from chunk.to_pylist()

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> TextKeys: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, int):
            return self._from(range(self._length)[place], 1)[0].as_py()
        begin, end, _ = place.indices(self._length)
        return TextKeys(list(self._slices(begin, end)))

    def _from(self, begin: int, count: int) -> pa.Array:
        return next(self._slices(begin, begin + count))

    def _slices(self, begin: int, end: int) -> Iterator[pa.Array]:
        for chunk in self.chunks:
            if begin < len(chunk) and end > 0:
                yield chunk.slice(max(0, begin), min(end, len(chunk)) - max(0, begin))
            begin, end = begin - len(chunk), end - len(chunk)


def as_text_keys(keys: Iterable[Any]) -> TextKeys | None:
    """Return keys as arrays, or None if one of them is no text that has a form in UTF-8."""
    if isinstance(keys, TextKeys):
        return keys
    every = [*keys]
    if not set(map(type, every)) <= {str}:
        return None
    try:
        return TextKeys([pa.array(every, pa.string())])
    except UnicodeEncodeError:  # half a surrogate pair, as JSON may have one
        return None
