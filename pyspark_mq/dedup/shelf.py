"""The batches of digests in one section of the memory: their order, and the rules for forgetting and joining them.

The section is either the *window* (IDs of settled epochs) or the *left* IDs (IDs whose messages may be redelivered),
see :mod:`.memory`. A *part* is a batch that is stored in a file.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Shelf"]

#: A new part replaces earlier parts as long as it then has at most `1 / _SHARE` of the section's maximum, and at most
#: `_PART_MAX` digests. The size of a part is limited because it is written with the file of a single epoch.
_SHARE, _PART_MAX = 8, 262_144


class Shelf:
    """The batches of one section of the memory (:mod:`.memory`), in order of arrival, and the files that contain them.

    Attributes:
        maximum: a batch is forgotten if the newer batches have more digests than this.
        sizes: number of a batch -> number of its digests, oldest first.
        parts: name of a part's file and number of its batch, oldest first.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.sizes: dict[int, int] = {}
        self.parts: list[tuple[str, int]] = []
        self._total = 0

    def __len__(self) -> int:
        """Return the number of digests in all batches."""
        return self._total

    def add(self, number: int, size: int) -> None:
        if size:
            self.sizes[number] = size
            self._total += size

    def remove(self, number: int) -> int:
        """Remove a batch, and return the number of its digests."""
        size = self.sizes.pop(number)
        self._total -= size
        return size

    def take_over(self) -> dict[int, int]:
        """Remove the oldest batches. Stop before the remaining batches would have `maximum` digests or fewer.

        Returns:
            number of each removed batch -> number of its digests.
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
        """Return the numbers of the batches to join into a new part, oldest first.

        They are all batches that are not a part yet, and the newest parts that are not much larger than the new part.
        These parts are removed from `parts`.
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
        """Record that these batches, which are the newest, were joined into one batch with the number `into`."""
        self.sizes[into] = sum(self.sizes.pop(number) for number in numbers)
