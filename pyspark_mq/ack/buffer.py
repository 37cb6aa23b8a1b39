"""The buffer: messages that were received but not planned yet, oldest first, with their payloads.

Nearly every message is delivered once, and is planned and committed together with its neighbours. So messages that
arrived together are kept as one object, a *run*, without handling the key, tag or payload of each message. If an event
concerns only one message of a run, or if a new delivery may be a redelivery of one of its messages, the in-flight table
*spreads* the run: its messages become single messages, which are handled one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import eq
from typing import Any, Generic, TypeAlias, TypeVar

from pyspark_mq.dedup import Key

__all__ = ["RUN_MIN", "SPREAD_MAX", "Buffer", "MessageRun", "Parts", "joined", "keys_of", "lowest_tags", "places_of"]

#: Minimum number of messages in a run, unless many messages are buffered.
RUN_MIN = 64
#: If fewer messages than `RUN_MIN` arrive together, they become single messages, and all runs are spread. Spreading
#: takes long if many messages are buffered: from `SPREAD_MAX * RUN_MIN` on, the few messages become a run instead.
SPREAD_MAX = 16

P = TypeVar("P")  #: payload: the object that the caller gets back when the message is emitted

#: Deliveries in order of arrival. Each part has consecutive deliveries of one session: the number of the session, and
#: the deliveries' tags in ascending order.
Parts: TypeAlias = Sequence[tuple[int, Sequence[int]]]


@dataclass(eq=False)
class MessageRun(Generic[P]):
    """A run: consecutive messages that are handled as one object. Each of them has exactly one delivery.

    Attributes:
        parts: the deliveries, in the order of the messages.
        keys: the identities of the messages.
        payloads: the payloads of the messages.
        size_bytes: size of all payloads.
        digests: array with the digests of the keys (:class:`pyspark_mq.dedup.digests.Digester`).
    """

    parts: Parts
    keys: Sequence[Key]
    payloads: Sequence[P]
    size_bytes: int
    digests: Any

    def __len__(self) -> int:
        return len(self.keys)

    def split(self, count: int, size_of: Callable[[Sequence[P]], int]) -> tuple[MessageRun[P], MessageRun[P]]:
        """Split this run into two: one with the first `count` messages, and one with the others."""
        size_bytes = size_of(self.payloads[:count])
        first: list[tuple[int, Sequence[int]]] = []
        rest: list[tuple[int, Sequence[int]]] = []
        for session, tags, begin, _ in places_of(self.parts):
            at = max(0, count - begin)
            first += [(session, tags[:at])] if at else []
            rest += [(session, tags[at:])] if at < len(tags) else []
        left_bytes = self.size_bytes - size_bytes
        return self._part(first, slice(count), size_bytes), self._part(rest, slice(count, None), left_bytes)

    def _part(self, parts: Parts, places: slice, size_bytes: int) -> MessageRun[P]:
        return MessageRun(parts, self.keys[places], self.payloads[places], size_bytes, self.digests[places])


def places_of(parts: Parts) -> Iterator[tuple[int, Sequence[int], int, int]]:
    """Yield session, tags, start and end of each part (consecutive deliveries of one session).

    Start and end (exclusive) are the indexes of the part's deliveries among all deliveries.
    """
    end = 0
    for session, tags in parts:
        begin, end = end, end + len(tags)
        yield session, tags, begin, end


def keys_of(parts: Parts, keys: Sequence[Key]) -> Iterator[tuple[int, Sequence[int], Sequence[Key]]]:
    """Yield the session, the tags and the keys of each part (consecutive deliveries of one session).

    Args:
        parts: the parts.
        keys: the keys of all deliveries, in order.
    """
    for session, tags, begin, end in places_of(parts):
        yield session, tags, keys if len(parts) == 1 else keys[begin:end]


def joined(parts: Sequence[Sequence[Key]]) -> Sequence[Key]:
    """Join sequences of keys into one sequence.

    If all sequences are of one class, and this class has a method `joined`, the method joins them.
    """
    kinds = {*map(type, parts)}
    how = getattr(type(parts[0]), "joined", None) if len(kinds) == 1 else None
    joined_: Sequence[Key] = list(chain.from_iterable(parts)) if how is None else how(parts)
    return joined_


def lowest_tags(runs: Iterable[MessageRun[Any]]) -> dict[int, int]:
    """Return a dict: number of a session -> the lowest tag that the session has in these runs."""
    lowest: dict[int, int] = {}
    for run in runs:
        for session, tags in run.parts:
            lowest[session] = min(tags[0], lowest.get(session, tags[0]))
    return lowest


class Buffer(Generic[P]):
    """The messages that were received but not planned yet, in order of arrival: first single messages, then runs.

    Args:
        size_of: function that returns the total size of payloads, in bytes.

    Attributes:
        size_bytes: size of all payloads.
        order: the keys of the single messages, oldest first.
        runs: the runs, whose messages arrived after the single messages.
    """

    def __init__(self, size_of: Callable[[Sequence[P]], int]) -> None:
        self._size_of = size_of
        self._payloads: dict[Key, P] = {}
        self._in_runs = 0
        self.order: deque[Key] = deque()
        self.runs: deque[MessageRun[P]] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._payloads) + self._in_runs

    def __contains__(self, key: Key) -> bool:
        return key in self._payloads

    def knows_none_of(self, keys: set[Key]) -> bool:
        return self._payloads.keys().isdisjoint(keys)

    def get(self, key: Key) -> P | None:
        return self._payloads.get(key)

    def oldest(self, limit: int) -> Iterable[P]:
        """Return the payloads of the `limit` oldest messages, or of all messages if there are fewer."""
        first = map(self._payloads.__getitem__, self.order)
        return islice(chain(first, chain.from_iterable(run.payloads for run in self.runs)), limit)

    def take_run(self) -> MessageRun[P]:
        """Remove the oldest run, and return it."""
        run = self.runs.popleft()
        self._in_runs -= len(run)
        self.size_bytes -= run.size_bytes
        return run

    def join(self, small: Collection[MessageRun[P]], make: Callable[[Sequence[MessageRun[P]]], Any]) -> None:
        """Join runs that are in `small` and follow one another into one run.

        Args:
            small: the runs that may be joined.
            make: takes several runs, and returns the run that replaces them.
        """
        joined_: deque[MessageRun[P]] = deque()
        for is_small, group in groupby(self.runs, lambda run: run in small):
            runs = [*group]
            if is_small and len(runs) > 1:
                runs = [make(runs)]
            joined_.extend(runs)
        self.runs = joined_

    def front(self, count: int) -> list[MessageRun[P]]:
        """Return runs that consist of exactly the `count` oldest messages. If necessary, split a run.

        The buffer must not have single messages. The runs stay in the buffer.
        """
        runs: list[MessageRun[P]] = []
        for run in self.runs:
            if count <= 0:
                break
            runs.append(run)
            count -= len(run)
        if count < 0:
            place = len(runs) - 1
            runs[-1], rest = runs[-1].split(len(runs[-1]) + count, self._size_of)
            self.runs[place] = runs[-1]
            self.runs.insert(place + 1, rest)
        return runs

    def spread(self, count: int) -> list[MessageRun[P]]:
        """Turn the oldest runs into single messages, until there are at least `count` single messages.

        Returns:
            the runs whose messages are single now. Each of these runs has its keys in a list.
        """
        spread: list[MessageRun[P]] = []
        while self.runs and len(self.order) < count:
            run = self.take_run()
            run.keys = [*run.keys]
            self.put(run.keys, run.payloads)
            spread.append(run)
        return spread

    def exchange(self, key: Key, payload: P) -> None:
        """Replace the payload of a single message by another payload of the same size."""
        self._payloads[key] = payload

    def put(self, keys: Collection[Key], payloads: Sequence[P], run: MessageRun[P] | None = None) -> None:
        """Add new messages as single messages; or as `run`, if a run that consists of these messages is given."""
        if run is not None:
            self.runs.append(run)
            self._in_runs += len(run)
            self.size_bytes += run.size_bytes
            return
        self._payloads.update(zip(keys, payloads, strict=True))
        self.size_bytes += self._size_of(payloads)
        self.order.extend(keys)

    def take(self, keys: Collection[Key]) -> tuple[list[P], int]:
        """Remove single messages. Return their payloads, and the total size of the payloads in bytes."""
        first = all(map(eq, keys, self.order))
        if first and len(keys) == len(self._payloads):
            held = list(self._payloads.values())
            size_bytes = self._size_of(held) if self.runs else self.size_bytes
            self._payloads = {}
            self.size_bytes -= size_bytes
            self.order.clear()
            return held, size_bytes
        held = list(map(self._payloads.pop, keys))
        size_bytes = self._size_of(held)
        self.size_bytes -= size_bytes
        if first:
            for _ in keys:
                self.order.popleft()
        else:
            self.order = deque(self._payloads)
        return held, size_bytes
