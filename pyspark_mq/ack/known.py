"""The IDs of committed messages: 16 bytes each, and no object of Python. Pure.

They are in *segments*, which the journal opens and closes (:mod:`pyspark_mq.sources.journal.lists`). An ID may be in
several, and is known while one of them has it. A segment has the IDs of all queues, so what a queue costs is what is
remembered of it.

An ID is known by two hashes of 64 bits, which have nothing to do with each other: that a new one is taken for one of a
million has a probability below 10**-32. The first depends on the queue, too. A segment is a sorted array of them.
Before the segments are searched, a filter (Bloom, 1970; two places an ID, and a byte a place) rules out most of what is
not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Known", "Segments"]

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


class Segments:
    """All segments of a query, by number. What is not there is an empty one."""

    def __init__(self) -> None:
        self._segments: dict[int, _Packed] = {}
        #: Hashes that are not sorted into their segments yet: those of one epoch come queue by queue.
        self._added: dict[int, list[tuple[Any, Any]]] = {}
        self._filter: Any = np.zeros(1, bool)
        #: IDs that the filter was marked with.
        self._marked = 0

    def __len__(self) -> int:
        """IDs, one that is in two segments twice."""
        return sum(packed.live for packed in self._packed.values())

    def size(self, segment: int) -> int:
        packed = self._packed.get(segment)
        return 0 if packed is None else packed.live

    def find(
        self, firsts: Any, second: Callable[[int], int], segments: Iterable[int] | None
    ) -> Iterator[tuple[int, int, int]]:
        """Look for IDs by their hashes, in some segments or in all.

        Args:
            firsts: int64, one for each ID.
            second: the second hash of the ID at a place of `firsts`.

        Yields:
            place in `firsts`, segment, place there.
        """
        packed_by_number = self._packed
        maybe = (self._filter[self._places(firsts)] & self._filter[self._places(firsts >> _SHIFT)]).nonzero()[0]
        if not len(maybe):
            return
        firsts = firsts[maybe]
        for segment in packed_by_number if segments is None else segments:
            packed = packed_by_number.get(segment)
            if packed is None:
                continue
            there = packed.firsts
            begins = there.searchsorted(firsts).clip(max=len(there) - 1)
            for suspect in (there[begins] == firsts).nonzero()[0]:
                wanted, place = int(maybe[suspect]), int(begins[suspect])
                hashed = second(wanted)
                while place < len(there) and there[place] == firsts[suspect]:
                    if packed.seconds[place] == hashed:
                        yield wanted, segment, place
                        break
                    place += 1

    # -- changing

    def add(self, segment: int, firsts: Any, seconds: Any) -> None:
        """Add hashes of IDs that the segment does not have."""
        self._added.setdefault(segment, []).append((firsts, seconds))

    def remove(self, places: Iterable[tuple[int, int]]) -> Counter[int]:
        """Have IDs leave: each by its segment and its place there; how many have left each segment."""
        left: Counter[int] = Counter()
        for segment, place in set(places):
            self._segments[segment].seconds[place] = _GONE
            self._segments[segment].live -= 1
            left[segment] += 1
        for segment in left:
            if not self._segments[segment].live:
                del self._segments[segment]
        return left

    def take_contents(self, segment: int) -> tuple[Any, Any] | None:
        """Have all contents leave a segment; their hashes, or None if there are none in it."""
        packed = self._packed.get(segment)
        if packed is None:
            return None
        contents, gone = packed.seconds & 1 == 1, packed.seconds == _GONE
        if not contents.any():
            return None
        rest = ~contents & ~gone
        taken = packed.firsts[contents], packed.seconds[contents]
        self._segments[segment] = _Packed(packed.firsts[rest], packed.seconds[rest], int(rest.sum()))
        if not rest.any():
            self.forget(segment)
        return taken

    def forget(self, segment: int) -> None:
        self._packed.pop(segment, None)
        if self._marked > 2 * len(self):
            self._make_filter()

    def merge(self, segments: Iterable[int], into: int) -> None:
        """Make one of several, which have no ID in common. Its number may be one of theirs."""
        parts = [packed for segment in segments if (packed := self._packed.pop(segment, None)) is not None]
        if parts:
            here = [packed.seconds != _GONE for packed in parts]
            firsts = np.concatenate([packed.firsts[live] for packed, live in zip(parts, here, strict=True)])
            seconds = np.concatenate([packed.seconds[live] for packed, live in zip(parts, here, strict=True)])
            self._segments[into] = _Packed.of(firsts, seconds)

    # -- inside

    @property
    def _packed(self) -> dict[int, _Packed]:
        """All segments, sorted."""
        if self._added:
            added, self._added = self._added, {}
            for segment, parts in added.items():
                firsts, seconds = (np.concatenate(each) for each in zip(*parts, strict=True))
                packed = self._segments[segment] = _Packed.of(firsts, seconds)
                self._marked += len(firsts)
                if self._marked * _PLACES > len(self._filter):
                    self._make_filter()
                else:
                    self._mark(packed)
        return self._segments

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


class Known(Generic[K]):
    """The IDs of one queue, in the segments of its query.

    Args:
        second: the second hash of an ID, independent of `hash`. It is odd for contents, and for nothing else.
        segments: where they are, with those of other queues.
        queue: its name.
    """

    def __init__(self, second: Callable[[K], int], segments: Segments | None = None, queue: str = "") -> None:
        self._second = second
        self._queue = int.from_bytes(blake2b(queue.encode(), digest_size=8).digest(), "big", signed=True)
        self.segments = Segments() if segments is None else segments

    def knows_none_of(self, keys: Collection[K]) -> bool:
        return next(self._find(keys, None), None) is None

    def among(self, keys: Collection[K], segments: Iterable[int] | None = None) -> set[K]:
        """Return the keys that are known, by some segments or by any."""
        return {key for key, _, _ in self._find(keys, segments)}

    def put(self, segment: int, keys: Collection[K]) -> None:
        """Add distinct IDs to a new segment."""
        if keys:
            self.segments.add(segment, self._firsts(keys), _hashes(self._second, keys))

    def take(self, keys: Collection[K], segments: Iterable[int]) -> Counter[int]:
        """Have IDs leave some segments; how many have left each."""
        return self.segments.remove([(segment, place) for _, segment, place in self._find(keys, segments)])

    def _find(self, keys: Collection[K], segments: Iterable[int] | None) -> Iterator[tuple[K, int, int]]:
        """Each of these that is in one of the segments, the segment, and its place there."""
        if keys:
            every = [*keys]
            for wanted, segment, place in self.segments.find(
                self._firsts(every), lambda at: self._second(every[at]), segments
            ):
                yield every[wanted], segment, place

    def _firsts(self, keys: Collection[K]) -> Any:
        return _hashes(hash, keys) ^ self._queue


def _hashes(of: Callable[[K], int], keys: Collection[K]) -> Any:
    return np.fromiter(map(of, keys), np.int64, len(keys))
