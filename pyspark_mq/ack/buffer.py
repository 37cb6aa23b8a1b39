"""The buffer: messages that are received and not planned, oldest first, and their payloads. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import chain, islice
from operator import eq
from typing import Generic, TypeVar

from pyspark_mq.ack.runs import MessageRun

__all__ = ["Buffer"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: whatever the caller wants back when the message is emitted


class Buffer(Generic[K, P]):
    """The messages in the order in which they came: first some by themselves, then runs.

    Attributes:
        weight: bytes of all payloads.
        order: the messages that are by themselves, oldest first.
        runs: those that came after them.
    """

    def __init__(self, weigh: Callable[[Sequence[P]], int]) -> None:
        self._weigh = weigh
        self._payloads: dict[K, P] = {}
        self._in_runs = 0
        self.order: deque[K] = deque()
        self.runs: deque[MessageRun[K, P]] = deque()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._payloads) + self._in_runs

    def __contains__(self, key: K) -> bool:
        return key in self._payloads

    def knows_none_of(self, keys: set[K]) -> bool:
        return self._payloads.keys().isdisjoint(keys)

    def get(self, key: K) -> P | None:
        return self._payloads.get(key)

    def oldest(self, limit: int) -> Iterable[P]:
        """The payloads of the oldest messages."""
        first = map(self._payloads.__getitem__, self.order)
        return islice(chain(first, chain.from_iterable(run.payloads for run in self.runs)), limit)

    def take_run(self) -> MessageRun[K, P]:
        """Take the oldest run."""
        run = self.runs.popleft()
        self._in_runs -= len(run)
        self.weight -= run.weight
        return run

    def front(self, count: int) -> list[MessageRun[K, P]]:
        """Return the runs of the oldest messages. One that has more is two runs from now on."""
        runs: list[MessageRun[K, P]] = []
        for run in self.runs:
            if count <= 0:
                break
            runs.append(run)
            count -= len(run)
        if count < 0:
            place = len(runs) - 1
            runs[-1], rest = runs[-1].split(len(runs[-1]) + count, self._weigh)
            self.runs[place] = runs[-1]
            self.runs.insert(place + 1, rest)
        return runs

    def spread(self, count: int) -> list[MessageRun[K, P]]:
        """Have the oldest messages be by themselves; the runs that they were, with keys in a list."""
        spread: list[MessageRun[K, P]] = []
        while self.runs and len(self.order) < count:
            run = self.take_run()
            run.keys = [*run.keys]
            self.put(run.keys, run.payloads)
            spread.append(run)
        return spread

    def exchange(self, key: K, payload: P) -> None:
        """Another payload of the same weight in place of the one that is there."""
        self._payloads[key] = payload

    def put(self, keys: Collection[K], payloads: Sequence[P], run: MessageRun[K, P] | None = None) -> None:
        """Add new messages: as a run if it is given, or by themselves."""
        if run is not None:
            self.runs.append(run)
            self._in_runs += len(run)
            self.weight += run.weight
            return
        self._payloads.update(zip(keys, payloads, strict=True))
        self.weight += self._weigh(payloads)
        self.order.extend(keys)

    def take(self, keys: Collection[K]) -> tuple[list[P], int]:
        """Take messages out; return their payloads, and the bytes of these."""
        first = all(map(eq, keys, self.order))
        if first and len(keys) == len(self._payloads):
            held = list(self._payloads.values())
            weight = self._weigh(held) if self.runs else self.weight
            self._payloads = {}
            self.weight -= weight
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
