"""IDs that are remembered and no longer carried: 20 to 24 bytes each, and no object of Python. Pure.

An ID is known by two hashes of 64 bits, which have nothing to do with each other: that a new one is taken for one of a
million has a probability below 10**-32. They are in *generations*, each a sorted array, so that the oldest go together.
Before the generations are searched, a filter (Bloom, 1970; two bits an ID, and a byte a bit) rules out most of what is
not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Aged"]

K = TypeVar("K", bound=Hashable)  #: identity of a message

#: Places of the filter for each ID, at least; it doubles. With 4 to 8, 5 to 15 % of what is not there is searched for.
_PLACES = 4
#: The second place of an ID is by other bits of its hash.
_SHIFT = 31


@dataclass(slots=True)
class _Generation:
    """IDs that came to be remembered one after the other: both hashes, by the first; and how many were not taken."""

    firsts: Any
    seconds: Any
    live: int


class Aged(Generic[K]):
    """All generations, the oldest first.

    Args:
        second: the second hash of an ID, independent of `hash`.
    """

    def __init__(self, second: Callable[[K], int]) -> None:
        self._second = second
        self._generations: deque[_Generation] = deque()
        self._filter: Any = np.zeros(1, bool)

    def __len__(self) -> int:
        """IDs that were not taken."""
        return sum(generation.live for generation in self._generations)

    @property
    def size(self) -> int:
        """IDs that take room, with those that were taken."""
        return sum(len(generation.firsts) for generation in self._generations)

    @property
    def oldest(self) -> int:
        """How many :meth:`drop` forgets."""
        return self._generations[0].live if self._generations else 0

    def add(self, keys: Collection[K]) -> None:
        """A new generation."""
        firsts, seconds = _hashes(hash, keys), _hashes(self._second, keys)
        order = firsts.argsort()
        self._generations.append(_Generation(firsts[order], seconds[order], len(keys)))
        if self.size * _PLACES > len(self._filter):
            self._make_filter()
        else:
            self._mark(self._generations[-1])

    def drop(self) -> None:
        """Forget the oldest generation."""
        self._generations.popleft()
        self._make_filter()

    def knows_none_of(self, keys: Collection[K]) -> bool:
        """Is none of these here?"""
        if not self._generations:
            return True
        firsts = _hashes(hash, keys)
        maybe = self._filter[self._places(firsts)] & self._filter[self._places(firsts >> _SHIFT)]
        if not maybe.any():
            return True
        suspects = firsts[maybe]
        if not any((one.firsts[_near(one.firsts, suspects)] == suspects).any() for one in self._generations):
            return True
        return not any(self._find(key) for key in keys)

    def __contains__(self, key: K) -> bool:
        return not self.knows_none_of((key,))

    def take(self, key: K) -> bool:
        """An ID is elsewhere from now on, if it was here. It is found until its generation is dropped, all the same."""
        generation = self._find(key) if self._generations else None
        if generation is None:
            return False
        generation.live -= 1
        return True

    def _find(self, key: K) -> _Generation | None:
        """The newest generation that has an ID: older ones may have it from before it was taken."""
        first = hash(key)
        for generation in reversed(self._generations):
            begin, end = (int(generation.firsts.searchsorted(first, side)) for side in ("left", "right"))
            if begin < end and self._second(key) in generation.seconds[begin:end]:
                return generation
        return None

    def _make_filter(self) -> None:
        self._filter = np.zeros(1 << max(0, self.size * _PLACES - 1).bit_length(), bool)
        for generation in self._generations:
            self._mark(generation)

    def _mark(self, generation: _Generation) -> None:
        self._filter[self._places(generation.firsts)] = True
        self._filter[self._places(generation.firsts >> _SHIFT)] = True

    def _places(self, hashes: Any) -> Any:
        return hashes & (len(self._filter) - 1)


def _hashes(of: Callable[[K], int], keys: Collection[K]) -> Any:
    return np.fromiter(map(of, keys), np.int64, len(keys))


def _near(firsts: Any, suspects: Any) -> Any:
    """Where in an array each of these is, if it is there."""
    return firsts.searchsorted(suspects).clip(max=len(firsts) - 1)
