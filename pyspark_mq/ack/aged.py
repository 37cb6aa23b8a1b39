"""IDs that are remembered and no longer carried: 20 to 24 bytes each, and no object of Python. Pure.

An ID is known by two hashes of 64 bits, which have nothing to do with each other: that a new one is taken for one of a
million has a probability below 10**-32. They are in *generations*, each a sorted array, so that the oldest go together.
Before the generations are searched, a filter (Bloom, 1970; two bits an ID, and a byte a bit) rules out most of what is
not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Aged"]

K = TypeVar("K", bound=Hashable)  #: identity of a message

#: Places of the filter for each ID, at least; it doubles. With 4 to 8, 5 to 15 % of what is not there is searched for.
_PLACES = 4
#: The second place of an ID is by other bits of its hash.
_SHIFT = 31
#: In place of the second hash of an ID that was taken.
_TAKEN = -(2**63)


@dataclass(slots=True)
class _Generation:
    """IDs that came to be remembered one after the other: both hashes, by the first; and how many were not taken."""

    firsts: Any
    seconds: Any
    live: int

    @classmethod
    def of(cls, firsts: Any, seconds: Any) -> _Generation:
        order = firsts.argsort()
        return cls(firsts[order], seconds[order], len(firsts))


class Aged(Generic[K]):
    """All generations, the oldest first.

    Args:
        second: the second hash of an ID, independent of `hash`.
    """

    def __init__(self, second: Callable[[K], int]) -> None:
        self._second = second
        self._generations: deque[_Generation] = deque()
        self._largest = 0
        self._filter: Any = np.zeros(1, bool)

    def __len__(self) -> int:
        """IDs that are here."""
        return sum(generation.live for generation in self._generations)

    @property
    def size(self) -> int:
        """IDs that take room, with those that were taken: at most twice as many, and a generation."""
        return sum(len(generation.firsts) for generation in self._generations)

    @property
    def oldest(self) -> int:
        """How many :meth:`drop` forgets."""
        return self._generations[0].live if self._generations else 0

    def add(self, keys: Collection[K]) -> None:
        """A new generation of IDs that are not here."""
        self._largest = max(self._largest, len(keys))
        self._generations.append(_Generation.of(_hashes(hash, keys), _hashes(self._second, keys)))
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
        return next(self._find(keys), None) is None

    def among(self, keys: Collection[K]) -> set[K]:
        """Those of these that are here."""
        return {key for key, _, _ in self._find(keys)}

    def __contains__(self, key: K) -> bool:
        return not self.knows_none_of((key,))

    def take(self, keys: Collection[K]) -> None:
        """These are elsewhere from now on, those that were here."""
        for _, generation, place in self._find(keys):
            generation.seconds[place] = _TAKEN
            generation.live -= 1
        if self.size > 2 * len(self) + self._largest:
            self._leave_out_taken()

    def _find(self, keys: Collection[K]) -> Iterator[tuple[K, _Generation, int]]:
        """Each of these that is here, its generation, and its place in that."""
        if not self._generations:
            return
        firsts = _hashes(hash, keys)
        maybe = (self._filter[self._places(firsts)] & self._filter[self._places(firsts >> _SHIFT)]).nonzero()[0]
        if not len(maybe):
            return
        every, firsts = [*keys], firsts[maybe]
        for generation in self._generations:
            there = generation.firsts
            begins = there.searchsorted(firsts).clip(max=len(there) - 1)
            for suspect in (there[begins] == firsts).nonzero()[0]:
                key, place = every[maybe[suspect]], int(begins[suspect])
                second = self._second(key)
                while place < len(there) and there[place] == firsts[suspect]:
                    if generation.seconds[place] == second:
                        yield key, generation, place
                        break
                    place += 1

    def _leave_out_taken(self) -> None:
        """Make room, and put small neighbours together."""
        kept: deque[_Generation] = deque()
        for generation in self._generations:
            here = generation.seconds != _TAKEN
            made = _Generation.of(generation.firsts[here], generation.seconds[here])
            if kept and kept[-1].live + made.live <= self._largest:
                before = kept.pop()
                parts = (before.firsts, made.firsts), (before.seconds, made.seconds)
                made = _Generation.of(*map(np.concatenate, parts))
            if made.live:
                kept.append(made)
        self._generations = kept
        self._make_filter()

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
