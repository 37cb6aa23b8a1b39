"""The buffer: messages that are received and not planned, oldest first, and their payloads. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import islice
from operator import eq
from typing import Generic, TypeVar

__all__ = ["Buffer"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: whatever the caller wants back when the message is emitted


class Buffer(Generic[K, P]):
    """The messages in the order in which they came.

    Attributes:
        weight: bytes of all payloads.
        order: the messages, oldest first.
    """

    def __init__(self, weigh: Callable[[Sequence[P]], int]) -> None:
        self._weigh = weigh
        self._payloads: dict[K, P] = {}
        self.order: deque[K] = deque()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._payloads)

    def __contains__(self, key: K) -> bool:
        return key in self._payloads

    def knows_none_of(self, keys: set[K]) -> bool:
        return self._payloads.keys().isdisjoint(keys)

    def get(self, key: K) -> P | None:
        return self._payloads.get(key)

    def oldest(self, limit: int) -> Iterable[P]:
        """The payloads of the oldest messages."""
        return map(self._payloads.__getitem__, islice(self.order, limit))

    def exchange(self, key: K, payload: P) -> None:
        """Another payload of the same weight in place of the one that is there."""
        self._payloads[key] = payload

    def put(self, keys: Collection[K], payloads: Sequence[P]) -> None:
        self._payloads.update(zip(keys, payloads, strict=True))
        self.weight += self._weigh(payloads)
        self.order.extend(keys)

    def take(self, keys: Collection[K]) -> tuple[list[P], int]:
        """Take messages out; return their payloads, and the bytes of these."""
        first = all(map(eq, keys, self.order))
        if first and len(keys) == len(self._payloads):
            held, weight = list(self._payloads.values()), self.weight
            self._payloads, self.weight = {}, 0
            self.order.clear()
            return held, weight
        held = list(map(self._payloads.pop, keys))
        weight = self._weigh(held)
        self.weight -= weight
        if first:
            for _ in keys:
                self.order.popleft()
        else:
            self.order = deque(self._payloads)
        return held, weight
