"""The IDs of committed messages of one queue: 16 bytes each, and no object of Python. Pure.

They are in *segments*, which the journal opens and closes (:mod:`pyspark_mq.sources.journal.lists`). An ID may be in
several, and is known while one of them has it.

An ID is known by two hashes of 64 bits, which have nothing to do with each other: that a new one is taken for one of a
million has a probability below 10**-32. A segment is a sorted array of them. Before the segments are searched, a filter
(Bloom, 1970; two places an ID, and a byte a place) rules out most of what is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Known"]

K = TypeVar("K", bound=Hashable)  #: identity of a message

#: Places of the filter for each ID, at least; it doubles. With 4 to 8, 5 to 15 % of what is not there is searched for.
_PLACES = 4
#: The second place of an ID is by other bits of its hash.
_SHIFT = 31
#: In place of the second hash of an ID that has left its segment.
_GONE = -(2**63)


@dataclass(slots=True)
class _Packed:
    """IDs of a segment: both hashes, by the first; and how many have not left it."""

    firsts: Any
    seconds: Any
    live: int

    @classmethod
    def of(cls, firsts: Any, seconds: Any) -> _Packed:
        order = firsts.argsort()
        return cls(firsts[order], seconds[order], len(firsts))


class Known(Generic[K]):
    """All segments of a queue, by number. What is not there is an empty one.

    Args:
        second: the second hash of an ID, independent of `hash`. It is odd for contents, and for nothing else.
    """

    def __init__(self, second: Callable[[K], int]) -> None:
        self._second = second
        self._segments: dict[int, _Packed] = {}
        self._filter: Any = np.zeros(1, bool)
        #: IDs that the filter was marked with.
        self._marked = 0

    def __len__(self) -> int:
        """IDs, one that is in two segments twice."""
        return sum(packed.live for packed in self._segments.values())

    def size(self, segment: int) -> int:
        packed = self._segments.get(segment)
        return 0 if packed is None else packed.live

    # -- looking

    def knows_none_of(self, keys: Collection[K]) -> bool:
        return next(self._find(keys, self._segments), None) is None

    def among(self, keys: Collection[K], segments: Iterable[int] | None = None) -> set[K]:
        """Return the keys that are known, by some segments or by any."""
        return {key for key, _, _ in self._find(keys, self._segments if segments is None else segments)}

    # -- changing

    def put(self, segment: int, keys: Collection[K]) -> None:
        """Make a new segment."""
        if keys:
            self.add(segment, _Packed.of(_hashes(hash, keys), _hashes(self._second, keys)))

    def add(self, segment: int, packed: _Packed) -> None:
        """Make a new segment of what another one of these had."""
        self._segments[segment] = packed
        self._marked += len(packed.firsts)
        if self._marked * _PLACES > len(self._filter):
            self._make_filter()
        else:
            self._mark(packed)

    def take(self, keys: Collection[K], segments: Collection[int]) -> Counter[int]:
        """Have IDs leave some segments; how many have left each."""
        left: Counter[int] = Counter()
        for _, segment, place in list(self._find(keys, segments)):
            packed = self._segments[segment]
            packed.seconds[place] = _GONE
            packed.live -= 1
            left[segment] += 1
        for segment in left:
            if not self._segments[segment].live:
                del self._segments[segment]
        return left

    def take_contents(self, segment: int) -> _Packed | None:
        """Have all contents leave a segment; None if there are none in it."""
        packed = self._segments.get(segment)
        if packed is None:
            return None
        contents, gone = packed.seconds & 1 == 1, packed.seconds == _GONE
        if not contents.any():
            return None
        parts = [(packed.firsts[which], packed.seconds[which]) for which in (contents, ~contents & ~gone)]
        taken, rest = (_Packed(firsts, seconds, len(firsts)) for firsts, seconds in parts)
        if rest.live:
            self._segments[segment] = rest
        else:
            self.forget(segment)
        return taken

    def forget(self, segment: int) -> None:
        self._segments.pop(segment, None)
        if self._marked > 2 * len(self):
            self._make_filter()

    def merge(self, segments: Iterable[int], into: int) -> None:
        """Make one of several. Its number may be one of theirs."""
        parts = [packed for segment in segments if (packed := self._segments.pop(segment, None)) is not None]
        if parts:
            here = [packed.seconds != _GONE for packed in parts]
            firsts = np.concatenate([packed.firsts[live] for packed, live in zip(parts, here, strict=True)])
            seconds = np.concatenate([packed.seconds[live] for packed, live in zip(parts, here, strict=True)])
            self._segments[into] = _Packed.of(firsts, seconds)

    # -- inside

    def _find(self, keys: Collection[K], segments: Iterable[int]) -> Iterator[tuple[K, int, int]]:
        """Each of these that is in one of the segments, the segment, and its place there."""
        if not self._segments or not keys:
            return
        firsts = _hashes(hash, keys)
        maybe = (self._filter[self._places(firsts)] & self._filter[self._places(firsts >> _SHIFT)]).nonzero()[0]
        if not len(maybe):
            return
        every, firsts = [*keys], firsts[maybe]
        for segment in segments:
            packed = self._segments.get(segment)
            if packed is None:
                continue
            there = packed.firsts
            begins = there.searchsorted(firsts).clip(max=len(there) - 1)
            for suspect in (there[begins] == firsts).nonzero()[0]:
                key, place = every[maybe[suspect]], int(begins[suspect])
                second = self._second(key)
                while place < len(there) and there[place] == firsts[suspect]:
                    if packed.seconds[place] == second:
                        yield key, segment, place
                        break
                    place += 1

    def _make_filter(self) -> None:
        self._marked = sum(len(packed.firsts) for packed in self._segments.values())
        self._filter = np.zeros(1 << max(0, self._marked * _PLACES - 1).bit_length(), bool)
        for packed in self._segments.values():
            self._mark(packed)

    def _mark(self, packed: _Packed) -> None:
        self._filter[self._places(packed.firsts)] = True
        self._filter[self._places(packed.firsts >> _SHIFT)] = True

    def _places(self, hashes: Any) -> Any:
        return hashes & (len(self._filter) - 1)


def _hashes(of: Callable[[K], int], keys: Collection[K]) -> Any:
    return np.fromiter(map(of, keys), np.int64, len(keys))
