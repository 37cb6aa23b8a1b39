"""Keys of many messages as Arrow arrays: no object of Python for each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TextKeys", "as_text_keys"]


class TextKeys(Sequence[str]):
    """IDs that are texts.

    Args:
        chunks: arrays of strings without nulls; slices share their memory.
    """

    __slots__ = ("_length", "chunks")

    def __init__(self, chunks: Sequence[pa.Array]) -> None:
        self.chunks = chunks
        self._length = sum(map(len, chunks))

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same keys."""
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    @property
    def bounds(self) -> tuple[int, int]:
        """The bytes of the shortest and of the longest."""
        sizes = [pc.min_max(pc.binary_length(chunk)) for chunk in self.chunks if len(chunk)]
        return min((one["min"].as_py() for one in sizes), default=0), max(
            (one["max"].as_py() for one in sizes), default=0
        )

    @property
    def array(self) -> pa.Array:
        """All of them."""
        return self.chunks[0] if len(self.chunks) == 1 else pa.concat_arrays([pa.array([], pa.string()), *self.chunks])

    @staticmethod
    def joined(parts: Iterable[TextKeys]) -> TextKeys:
        """Return the keys of several as one."""
        return TextKeys([chunk for part in parts for chunk in part.chunks])

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
            begin = range(self._length)[place]
            return next(self._slices(begin, begin + 1))[0].as_py()
        begin, end, _ = place.indices(self._length)
        return TextKeys(list(self._slices(begin, end)))

    def _slices(self, begin: int, end: int) -> Iterator[pa.Array]:
        for chunk in self.chunks:
            low, high = max(0, begin), min(end, len(chunk))
            if low < high:
                yield chunk.slice(low, high - low)
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
