"""The open deliveries: which messages can be acknowledged, in which sessions, and under which tags.

An *open* delivery is one for which no acknowledgement is due yet. Its *handle* is its session and its delivery tag, by
which the broker knows the delivery.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import itemgetter, not_
from typing import Any

from pyspark_mq.ack.buffer import MessageRun, joined, keys_of
from pyspark_mq.dedup import Key

__all__ = ["Acknowledgements", "Handles", "OpenDeliveries", "SessionAcks"]


@dataclass(frozen=True, slots=True)
class SessionAcks:
    """Acknowledgements that are due in one session.

    Attributes:
        session: number of the session. In any other session the same tags mean other messages (rule 10).
        upto: tag for one cumulative acknowledgement, which acknowledges every delivery of the session up to this tag; 0
            if no cumulative acknowledgement is due.
        singles: tags above `upto`, in ascending order, each of which needs an acknowledgement of its own.
        deliveries: total number of deliveries to acknowledge, those up to `upto` and those in `singles`.
    """

    session: int
    upto: int
    singles: tuple[int, ...]
    deliveries: int


@dataclass(frozen=True, slots=True)
class Acknowledgements:
    """Acknowledgements that are due in one or more sessions.

    Attributes:
        number: identifies these acknowledgements when the broker confirms them.
        parts: the acknowledgements of each session.
    """

    number: int
    parts: tuple[SessionAcks, ...]


class Handles:
    """The open deliveries of one session, in the order of their tags. No acknowledgement is due for them yet.

    Tags and keys are two parallel lists with a start index. A dict would be slower: each epoch removes deliveries from
    the front, and to find the first remaining entry of a dict, Python steps over all entries that were removed.

    Attributes:
        cumulative_below: lowest tag of the deliveries that were skipped and must stay unacknowledged. A cumulative
            acknowledgement may cover only tags below it. None if no delivery was skipped.
    """

    __slots__ = ("_keys", "_start", "_tags", "cumulative_below")

    def __init__(self) -> None:
        self.cumulative_below: int | None = None
        self._tags: array[int] = array("q")
        self._keys: list[Key] = []
        self._start = 0

    def __len__(self) -> int:
        return len(self._tags) - self._start

    def messages(self) -> list[Key]:
        return self._keys[self._start :]

    @property
    def bound(self) -> float:
        """The lowest tag that a cumulative acknowledgement must not include; infinity if there is no such tag."""
        held = self._tags[self._start] if len(self) else math.inf
        return held if self.cumulative_below is None else min(held, self.cumulative_below)

    def hold(self, tags: Sequence[int], keys: Iterable[Key]) -> None:
        """Add deliveries, given in ascending order of tags.

        A few deliveries with higher tags may have been added before. The new deliveries are sorted in before them.
        """
        at = bisect_left(self._tags, tags[0], self._start)
        if at == len(self._tags):
            self._tags.extend(tags)
            self._keys.extend(keys)
            return
        late = [*zip(self._tags[at:], self._keys[at:], strict=True), *zip(tags, keys, strict=True)]
        late.sort(key=itemgetter(0))
        self._tags[at:] = array("q", [tag for tag, _ in late])
        self._keys[at:] = [key for _, key in late]

    def take_front(self, wanted: Collection[Key], below: float) -> tuple[Sequence[Key], int]:
        """Remove the deliveries with the lowest tags, as far as one cumulative acknowledgement can cover them.

        Stop before a message that is not in `wanted`, and before a tag of at least `below` or `cumulative_below`.

        Args:
            wanted: the messages whose deliveries are to be removed.
            below: stop at a delivery with this tag or a higher one.

        Returns:
            the messages of the removed deliveries, and the highest of their tags (0 if no delivery was removed).
        """
        end = self._start + len(wanted)
        if self._keys[self._start : end] != list(wanted):  # nearly always equal
            end = self._start
        while end < len(self._keys) and self._keys[end] in wanted:
            end += 1
        if self.cumulative_below is not None:
            below = min(below, self.cumulative_below)
        end = min(end, bisect_left(self._tags, below, self._start))
        taken = self._keys[self._start : end]
        if not taken:
            return (), 0
        last = self._tags[end - 1]
        self._start = end
        if end > len(self._tags) // 2:
            del self._tags[:end], self._keys[:end]
            self._start = 0
        return taken, last

    def take(self, wanted: Collection[Key]) -> tuple[list[Key], tuple[int, ...]]:
        """Remove all deliveries of these messages. Return the messages that had a delivery here, and their tags."""
        tags, keys = self._tags[self._start :], self._keys[self._start :]
        stay = [key not in wanted for key in keys]
        if all(stay):
            return [], ()
        self._tags, self._keys, self._start = array("q", compress(tags, stay)), list(compress(keys, stay)), 0
        goes = list(map(not_, stay))
        return list(compress(keys, goes)), tuple(compress(tags, goes))

    def split(self, tags: Sequence[int], below: float = math.inf) -> tuple[int, tuple[int, ...]]:
        """Split tags into those that one cumulative acknowledgement can cover, and those that need one each.

        A cumulative acknowledgement must stay below the first open delivery, `cumulative_below` and `below`.

        Args:
            tags: tags of deliveries that are not in this object, in ascending order.
            below: a further tag that a cumulative acknowledgement must not reach.

        Returns:
            the highest tag for the cumulative acknowledgement (0 if there is none), and the tags after it.
        """
        at = bisect_left(tags, min(below, self.bound))
        return (tags[at - 1] if at else 0), tuple(tags[at:])


class OpenDeliveries:
    """The open deliveries of all sessions that have not ended. No acknowledgement is due for them yet."""

    def __init__(self) -> None:
        self._sessions: dict[int, Handles] = {}
        #: Message -> upper bound on the number of its open deliveries beyond the first one. With the bound, a commit
        #: knows when it has found all of them, and stops searching.
        self._more: Counter[Key] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._sessions.values()))

    def __getitem__(self, session: int) -> Handles:
        return self._sessions[session]

    @property
    def sessions(self) -> list[int]:
        return list(self._sessions)

    def open(self, session: int) -> None:
        self._sessions[session] = Handles()

    def count_more(self, keys: Iterable[Key]) -> None:
        self._more.update(keys)

    def held(self, except_session: int | None = None) -> set[Key]:
        """Return the messages with an open delivery in a session other than `except_session` (None: in any session)."""
        return {key for number, held in self._sessions.items() if number != except_session for key in held.messages()}

    def close(self, session: int) -> int:
        """Forget a session that has ended. Return the number of open deliveries that it still had."""
        left = len(self._sessions.pop(session))
        counts = Counter(key for held in self._sessions.values() for key in held.messages())
        self._more = Counter({key: count - 1 for key, count in counts.items() if count > 1})
        return left

    def take(self, keys: dict[Key, object], below: Mapping[int, int]) -> list[tuple[SessionAcks, Collection[Key]]]:
        """Remove every open delivery of these messages, and return the acknowledgements that are due for them.

        Each session acknowledges cumulatively up to its first delivery that must stay open (rule 3), and the rest one
        by one.

        Args:
            keys: the messages; the values do not matter.
            below: session -> the lowest tag of its open deliveries whose handles are not in this object but in a
                :class:`MessageRun`. A cumulative acknowledgement must not reach this tag.

        Returns:
            the acknowledgements that are due in each session, with the messages that they acknowledge.
        """
        more = self._more.keys() & keys.keys() if self._more else ()
        expected = len(keys) + sum(map(self._more.pop, more))
        fronts = {
            session: handles.take_front(keys, below.get(session, math.inf))
            for session, handles in self._sessions.items()
        }
        found = sum(len(front) for front, _ in fronts.values())
        parts: list[tuple[SessionAcks, Collection[Key]]] = []
        for session, (front, upto) in fronts.items():
            others, singles = self._sessions[session].take(keys) if found < expected else ([], ())
            if front or singles:
                parts.append((SessionAcks(session, upto, singles, len(front) + len(singles)), [*front, *others]))
        return parts

    def take_runs(
        self, runs: Iterable[MessageRun[Any]], below: Mapping[int, int]
    ) -> list[tuple[SessionAcks, Collection[Key]]]:
        """Return the acknowledgements that are due for all messages of these runs, as :meth:`take` does for messages.

        The deliveries of a run are not in this object, but in the run. Each message of a run has one delivery.

        Args:
            runs: the runs, whose messages are handled together (:mod:`.buffer`).
            below: session -> the lowest tag that the session has in other runs. A cumulative acknowledgement must not
                reach this tag.
        """
        by_session: dict[int, list[tuple[Sequence[int], Sequence[Key]]]] = {}
        for run in runs:
            keys = run.keys if len(run.parts) == 1 else [*run.keys]
            for session, some, its_keys in keys_of(run.parts, keys):
                by_session.setdefault(session, []).append((some, its_keys))
        parts: list[tuple[SessionAcks, Collection[Key]]] = []
        for session, its in by_session.items():
            its.sort(key=lambda part: part[0][0])
            tags = array("q", chain.from_iterable(some for some, _ in its))
            upto, singles = self._sessions[session].split(tags, below.get(session, math.inf))
            parts.append((SessionAcks(session, upto, singles, len(tags)), joined([some for _, some in its])))
        return parts
