"""The memory of a query as seen by one queue: takes and returns keys of that queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from pyspark_mq.dedup.digests import Batches, Digester, from_bytes
from pyspark_mq.dedup.identity import Key, filed
from pyspark_mq.dedup.memory import Memory, parted

__all__ = ["QueueMemory"]


class QueueMemory:
    """The memory as seen by the in-flight table of one queue."""

    def __init__(self, memory: Memory, queue: str) -> None:
        self._memory = memory
        self._queue = queue
        self._known_by: Digester | None = None
        self._begin: Any = None
        self._held = Batches()

    def among(self, keys: Collection[Key]) -> set[Key]:
        """Return the IDs that are known."""
        return self._found(keys, self._memory.ids.find)

    def left_among(self, keys: Collection[Key]) -> set[Key]:
        """Return the IDs that were left open when a session or process ended."""
        return self._found(keys, lambda digests: self._memory.ids.find(digests, self._memory.left.sizes.keys()))

    def contents_among(self, keys: Collection[Key]) -> tuple[set[Key], set[Key], set[Key]]:
        """Return three sets: the contents that are known, that were left open, and that repeat, respectively."""
        memory, every = self._memory, [*keys]
        if not every or not (len(memory) or memory.repeats):
            return set(), set(), set()
        digests = self._digests(every)
        known = {every[place] for place in memory.ids.find(digests)}
        left = {every[place] for place in memory.ids.find(digests, memory.contents)} if known else set()
        return known, left, {*self._repeating(every, digests)}

    def repeating(self, keys: Sequence[Key], but: Collection[bytes]) -> list[Key]:
        """Select the contents that are known to repeat, except contents whose digest is in `but`."""
        return self._repeating(keys, self._digests(keys), but)

    def _repeating(self, keys: Sequence[Key], digests: Any, but: Collection[bytes] = ()) -> list[Key]:
        repeats = self._memory.repeats
        texts = map(bytes, digests) if repeats else ()
        return [key for key, text in zip(keys, texts, strict=False) if text in repeats and text not in but]

    def repeat(self, key: Key) -> None:
        """Record that a content repeats."""
        self._memory.note_repeat(self._queue, key)

    def emit_again(self, key: Key) -> bool:
        """Record that a message is emitted although it may have been left open before.

        Returns:
            whether a message with this content was left open.
        """
        (text,) = map(bytes, self._digests([key]))
        repeats = self._memory.repeats
        if not repeats.get(text):
            return False
        repeats[text] -= 1
        return True

    def has_contents(self, epochs: Collection[int]) -> bool:
        """Whether messages without an ID are in one of these epochs, which are committed and not settled."""
        return self._memory.has_contents(epochs)

    def hold(self, keys: Collection[Key]) -> Any:
        """Hold the IDs of received messages.

        Returns:
            the digests of the IDs. None, and nothing is held, if a key is known or held already, is not an ID, or
            occurs twice.
        """
        if parted(keys)[1]:
            return None
        digests = self._digests(keys)
        halves = np.sort(digests[:, 0])
        known = (True for one in (self._memory.ids, self._held) for _ in one.find(digests))
        if (halves[1:] == halves[:-1]).any() or any(known):
            return None
        self._held.pile(digests)
        return digests

    def hold_only(self, digests: Sequence[Any]) -> None:
        """Hold only the IDs with these digests from now on."""
        self._held = Batches()
        self._held.pile(np.concatenate([from_bytes(b""), *digests]))

    def committed(self, epoch: int, keys: Collection[Key], digests: Sequence[Any] = ()) -> None:
        """Record that messages of an epoch are committed.

        Args:
            digests: the keys' digests, if all were held; they stay held until :meth:`hold_only`.
        """
        self._memory.commit(epoch, self._queue, keys, np.concatenate(digests) if digests else None)

    def leave(self, keys: Collection[Key]) -> None:
        """Record that the end of a session left committed messages open."""
        self._memory.leave({self._queue: keys})

    def _digests(self, keys: Collection[Key]) -> Any:
        digester = self._memory.digester
        if self._known_by is not digester:
            self._known_by, self._begin = digester, digester.begin(self._queue)
        return digester.digests(self._begin, filed(keys))

    def _found(self, keys: Collection[Key], find: Callable[[Any], Iterable[int]]) -> set[Key]:
        if not keys or not len(self._memory):
            return set()
        every, _ = parted(keys)
        return {every[place] for place in find(self._digests(every))}
