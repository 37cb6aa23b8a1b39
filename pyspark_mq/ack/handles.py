"""The open deliveries of one session: which messages may be acknowledged, and under which tags. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import compress
from operator import itemgetter, not_
from typing import Generic, TypeVar

__all__ = ["Handles"]

K = TypeVar("K", bound=Hashable)  #: identity of a message


class Handles(Generic[K]):
    """The open deliveries of one session, in the order of their tags.

    Two lists side by side and where they begin: epochs are cut from the front, and a dict that
    loses its front again and again is searched through from there each time.

    Attributes:
        fence: from this tag on nothing may be acknowledged together with what is before it, as some deliveries
            behind it are held by nobody and have to stay open; None if there is none.
    """

    __slots__ = ("_keys", "_start", "_tags", "fence")

    def __init__(self) -> None:
        self.fence: int | None = None
        self._tags: list[int] = []
        self._keys: list[K] = []
        self._start = 0

    def __len__(self) -> int:
        return len(self._tags) - self._start

    def messages(self) -> list[K]:
        """The message of each delivery."""
        return self._keys[self._start :]

    def hold(self, tags: Sequence[int], keys: Iterable[K]) -> None:
        """Add deliveries, ascending among themselves and above all but the last few."""
        at = bisect_left(self._tags, tags[0], self._start)
        if at == len(self._tags):
            self._tags.extend(tags)
            self._keys.extend(keys)
            return
        late = [*zip(self._tags[at:], self._keys[at:], strict=True), *zip(tags, keys, strict=True)]
        late.sort(key=itemgetter(0))
        self._tags[at:] = [tag for tag, _ in late]
        self._keys[at:] = [key for _, key in late]

    def take_front(self, wanted: Collection[K]) -> tuple[int, int]:
        """Take the deliveries of these messages up to the first of another one, or the fence.

        Returns:
            how many, and the last tag; 0 if there is none.
        """
        end = self._start + len(wanted)
        if self._keys[self._start : end] != list(wanted):  # nearly always they are the same
            end = self._start
        while end < len(self._keys) and self._keys[end] in wanted:
            end += 1
        if self.fence is not None:
            end = min(end, bisect_left(self._tags, self.fence, self._start))
        taken = end - self._start
        if not taken:
            return 0, 0
        last = self._tags[end - 1]
        self._start = end
        if end > len(self._tags) // 2:
            del self._tags[:end], self._keys[:end]
            self._start = 0
        return taken, last

    def take(self, wanted: Collection[K]) -> tuple[int, ...]:
        """Take the deliveries of these messages, wherever they stand."""
        tags, keys = self._tags[self._start :], self._keys[self._start :]
        stay = [key not in wanted for key in keys]
        if all(stay):
            return ()
        self._tags, self._keys, self._start = list(compress(tags, stay)), list(compress(keys, stay)), 0
        return tuple(compress(tags, map(not_, stay)))

    def split(self, tags: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Of tags that are not held: the last one below all that are, and the fence; and those above."""
        below = bisect_left(tags, self._tags[self._start]) if len(self) else len(tags)
        if self.fence is not None:
            below = min(below, bisect_left(tags, self.fence))
        return (tags[below - 1] if below else 0), tuple(tags[below:])
