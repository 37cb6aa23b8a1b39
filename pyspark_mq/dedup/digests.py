"""Digests: the IDs of committed messages, 16 bytes each, and no object of Python. Pure.

A digest (BLAKE2b) is over the queue, the kind of the key, and the key itself, so the same ID in two queues is two, and
no text is another one. It is the same in every process: what is only remembered is in files as digests.

They are in *batches*, by number: what an epoch has of them, or what ends of sessions have left at a time. A batch is a
sorted array. Before the batches are searched, a filter (Bloom, 1970; two places an ID, and a byte a place) rules out
most of what is in none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from pyspark_mq.dedup.identity import Key

__all__ = ["DIGEST_BYTES", "Batches", "digests_of", "from_bytes", "prefix_of"]

#: Bytes of a digest. 128 bits: by chance two of 10**12 messages are one with a probability below 10**-14.
DIGEST_BYTES = 16
_HALF = np.dtype("<u8")
#: Places of the filter for each digest, at least; it doubles. With 4 to 8, 5 to 15 % of the others are looked for.
_PLACES = 4
#: The second place of a digest is by other bits of it.
_SHIFT = np.uint64(31)


def prefix_of(queue: str) -> bytes:
    """Return what the digests of a queue begin with."""
    return blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def digests_of(prefix: bytes, keys: Collection[Key]) -> Any:
    """Return the digests of keys, in order: an array with two halves a row."""
    text, other = (blake2b(prefix + kind, digest_size=DIGEST_BYTES) for kind in (b"t", b"b"))
    found: list[bytes] = []
    for key in keys:
        # A copy takes two thirds of the time of a new one.
        if isinstance(key, str):
            digest = text.copy()
            digest.update(key.encode("utf-8", "surrogatepass"))
        else:
            digest = other.copy()
            digest.update(key)
        found.append(digest.digest())
    return from_bytes(b"".join(found))


def from_bytes(data: bytes) -> Any:
    """Return digests that stand one behind the other as an array."""
    return np.frombuffer(data, _HALF).reshape(-1, 2)


class Batches:
    """All batches of a kind, by number. What is not there is an empty one."""

    def __init__(self) -> None:
        #: Each sorted by the first half.
        self._sorted: dict[int, Any] = {}
        #: What is not sorted into its batch yet: the digests of an epoch come queue by queue.
        self._added: dict[int, list[Any]] = {}
        self._filter: Any = np.zeros(1, bool)
        #: Digests that the filter was marked with.
        self._marked = 0

    def __len__(self) -> int:
        """Digests, one that is in two batches twice."""
        return sum(map(len, self._batches.values()))

    def size(self, number: int) -> int:
        return len(self._batches.get(number, ()))

    def put(self, number: int, digests: Any) -> None:
        """Add a batch of distinct digests, or add them to one that is there."""
        if len(digests):
            self._added.setdefault(number, []).append(digests)

    def get(self, numbers: Iterable[int]) -> Any:
        """Return the digests of several batches."""
        batches = self._batches
        return np.concatenate([from_bytes(b""), *(batches[number] for number in numbers if number in batches)])

    def join(self, numbers: Sequence[int], into: int) -> Any:
        """Make one batch of several, which may not be one of them; what is in it."""
        digests = self.get(numbers)
        for number in numbers:
            self._sorted.pop(number, None)
        if len(digests):
            self._put(into, digests)
        return digests

    def forget(self, number: int) -> Any:
        """Take a batch out, and return what was in it."""
        digests = self._batches.pop(number, from_bytes(b""))
        if self._marked > 2 * len(self):
            self._make_filter()
        return digests

    def find(self, digests: Any, numbers: Collection[int] | None = None) -> Iterator[int]:
        """Yield the places of those that are in some batches, or in any; a place once for each batch."""
        batches = self._batches
        if not batches or not len(digests):
            return
        firsts = np.ascontiguousarray(digests[:, 0])
        maybe = (self._filter[self._places(firsts)] & self._filter[self._places(firsts >> _SHIFT)]).nonzero()[0]
        if not len(maybe):
            return
        firsts = firsts[maybe]
        for number in batches if numbers is None else batches.keys() & numbers:
            there = batches[number]
            column = there[:, 0]
            begins = column.searchsorted(firsts).clip(max=len(there) - 1)
            for suspect in (column[begins] == firsts).nonzero()[0]:
                wanted, place = int(maybe[suspect]), int(begins[suspect])
                while place < len(there) and column[place] == firsts[suspect]:
                    if there[place, 1] == digests[wanted, 1]:
                        yield wanted
                        break
                    place += 1

    # -- inside

    @property
    def _batches(self) -> dict[int, Any]:
        """All batches, sorted."""
        if self._added:
            added, self._added = self._added, {}
            for number, parts in added.items():
                fresh = np.concatenate(parts)
                self._put(number, np.concatenate([self._sorted[number], fresh]) if number in self._sorted else fresh)
                self._marked += len(fresh)
                if self._marked * _PLACES > len(self._filter):
                    self._make_filter()
                else:
                    self._mark(fresh)
        return self._sorted

    def _put(self, number: int, digests: Any) -> None:
        # Halves side by side: a search goes through neighbours.
        self._sorted[number] = np.asfortranarray(digests[digests[:, 0].argsort()])

    def _make_filter(self) -> None:
        self._marked = sum(map(len, self._sorted.values()))
        self._filter = np.zeros(1 << max(0, self._marked * _PLACES - 1).bit_length(), bool)
        for digests in self._sorted.values():
            self._mark(digests)

    def _mark(self, digests: Any) -> None:
        self._filter[self._places(digests[:, 0])] = True
        self._filter[self._places(digests[:, 0] >> _SHIFT)] = True

    def _places(self, halves: Any) -> Any:
        return halves & np.uint64(len(self._filter) - 1)
