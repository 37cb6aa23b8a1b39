"""Batches in order of arrival, with the rules by which batches are forgotten and joined into parts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Shelf"]

#: A part absorbs earlier parts as long as it has at most an eighth of the maximum, and at most `_PART_MAX` digests. The
#: size is limited because a single plan writes the part.
_SHARE, _PART_MAX = 8, 262_144


class Shelf:
    """Batches in order of arrival, and their files.

    Attributes:
        maximum: a batch is forgotten once there are more newer digests than this.
        sizes: number of a batch -> number of its digests, oldest first.
        parts: each part's file and number of batch, oldest first.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.sizes: dict[int, int] = {}
        self.parts: list[tuple[str, int]] = []
        self._total = 0

    def __len__(self) -> int:
        """Number of digests."""
        return self._total

    def add(self, number: int, size: int) -> None:
        if size:
            self.sizes[number] = size
            self._total += size

    def remove(self, number: int) -> int:
        """Remove a batch; return its size."""
        size = self.sizes.pop(number)
        self._total -= size
        return size

    def take_over(self) -> dict[int, int]:
        """Remove the oldest batch as long as more than `maximum` digests remain without this batch.

        Return the sizes of the removed batches, by number.
        """
        over: dict[int, int] = {}
        while self.sizes:
            oldest = next(iter(self.sizes))
            if self._total - self.sizes[oldest] <= self.maximum:
                break
            over[oldest] = self.remove(oldest)
        self.parts = [(file, number) for file, number in self.parts if number in self.sizes]
        return over

    def to_join(self) -> list[int]:
        """Return the batches to join into a new part: all batches after the last part, and small parts before them.

        Remove these small parts from `parts`.
        """
        there = {number for _, number in self.parts}
        joined = [number for number in self.sizes if number not in there]
        size = sum(self.sizes[number] for number in joined)
        if not size:
            return []
        most = min(_PART_MAX, self.maximum // _SHARE)
        while self.parts and self.sizes[self.parts[-1][1]] <= min(2 * size, most - size):
            number = self.parts.pop()[1]
            joined.insert(0, number)
            size += self.sizes[number]
        return joined

    def join(self, numbers: Iterable[int], into: int) -> None:
        """Record that the newest batches were joined into one."""
        self.sizes[into] = sum(self.sizes.pop(number) for number in numbers)
