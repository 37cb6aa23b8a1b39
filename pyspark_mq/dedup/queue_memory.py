"""The part of a query's memory that belongs to one queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from pyspark_mq.dedup.digests import Batches, Digester, from_bytes
from pyspark_mq.dedup.identity import Key, filed, parted
from pyspark_mq.dedup.memory import Memory

__all__ = ["NoMemory", "QueueMemory"]


class QueueMemory:
    """The view of one queue's in-flight table on the query's memory. The table uses keys, and the memory digests.

    Args:
        memory: the memory of the query.
        queue: name of the queue.
    """

    def __init__(self, memory: Memory, queue: str) -> None:
        self._memory = memory
        self._queue = queue
        self._known_by: Digester | None = None
        self._begin: Any = None
        self._held = Batches()

    def among(self, keys: Collection[Key]) -> set[Key]:
        """Return those of these IDs whose messages are known to be committed."""
        return self._found(keys, self._memory.ids.find)

    def left_among(self, keys: Collection[Key]) -> set[Key]:
        """Return the IDs among `keys` whose messages were left open.

        A message is left open if its session or process ended before its acknowledgement was settled.
        """
        return self._found(keys, lambda digests: self._memory.ids.find(digests, self._memory.left.sizes.keys()))

    def contents_among(self, keys: Collection[Key]) -> tuple[set[Key], set[Key], set[Key]]:
        """Return three sets: the keys whose content is known, was left open, or repeats.

        A content is known if a message with this content is committed, was left open if one of these messages was left
        open, and repeats if two messages have had it.
        """
        memory, every = self._memory, [*keys]
        if not every or not (len(memory) or memory.repeats):
            return set(), set(), set()
        digests = self._digests(every)
        known = {every[place] for place in memory.ids.find(digests)}
        left = {every[place] for place in memory.ids.find(digests, memory.contents)} if known else set()
        return known, left, {*self._repeating(every, digests)}

    def repeating(self, keys: Sequence[Key], but: Collection[bytes]) -> list[Key]:
        """Return those of these contents that two messages have had, except contents whose digest is in `but`."""
        return self._repeating(keys, self._digests(keys), but)

    def _repeating(self, keys: Sequence[Key], digests: Any, but: Collection[bytes] = ()) -> list[Key]:
        repeats = self._memory.repeats
        texts = map(bytes, digests) if repeats else ()
        return [key for key, text in zip(keys, texts, strict=False) if text in repeats and text not in but]

    def repeat(self, key: Key) -> None:
        """Record that two messages have had the same content."""
        self._memory.note_repeat(self._queue, key)

    def emit_again(self, key: Key) -> bool:
        """Record that a message is emitted, although it may be the redelivery of a message that was left open.

        Returns:
            whether a message with this content was left open and not redelivered since, so the new row may be a
            duplicate.
        """
        (text,) = map(bytes, self._digests([key]))
        repeats = self._memory.repeats
        if not repeats.get(text):
            return False
        repeats[text] -= 1
        return True

    def has_contents(self, epochs: Collection[int]) -> bool:
        """Whether one of these epochs, which are committed but not settled, has messages without an ID."""
        return self._memory.has_contents(epochs)

    def hold(self, keys: Collection[Key]) -> Any:
        """Note the IDs of a run (messages that are handled together), so that later deliveries of them are noticed.

        Nothing is noted if a key is known or noted already, was made from a content, or occurs twice.

        Returns:
            the digests of the IDs, or None if nothing was noted.
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
        """Forget all IDs that :meth:`hold` has noted, except those with these digests."""
        self._held = Batches()
        self._held.pile(np.concatenate([from_bytes(b""), *digests]))

    def committed(self, epoch: int, keys: Collection[Key], digests: Sequence[Any] = ()) -> None:
        """Record that messages of an epoch are committed.

        Args:
            epoch: number of the epoch.
            keys: the messages' keys.
            digests: the arrays that :meth:`hold` returned, if they have the digests of all keys; otherwise empty.
        """
        self._memory.commit(epoch, self._queue, keys, np.concatenate(digests) if digests else None)

    def leave(self, keys: Collection[Key]) -> None:
        """Record that a session ended before the acknowledgements of these committed messages were settled."""
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


class NoMemory(QueueMemory):
    """Remembers nothing, for the guarantees `at-least-once` and `none`. Keys are serial numbers of deliveries."""

    _empty = Memory(0, 0, b"")

    def __init__(self, queue: str) -> None:
        super().__init__(self._empty, queue)

    def hold(self, keys: Collection[Key]) -> Any:
        """Return an empty array if the keys are a range, whose serial numbers are certainly new; otherwise None."""
        return from_bytes(b"") if isinstance(keys, range) else None

    def hold_only(self, digests: Sequence[Any]) -> None:
        """Do nothing, because no ID is noted."""

    def committed(self, epoch: int, keys: Collection[Key], digests: Sequence[Any] = ()) -> None:
        """Do nothing, because no message is remembered."""

    def leave(self, keys: Collection[Key]) -> None:
        """Do nothing, because with these guarantees a redelivery is emitted again."""
