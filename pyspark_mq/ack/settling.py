"""Acknowledgements that are on their way, until what they settle cannot come again. Pure.

An acknowledgement is *settled* in a session once the broker has confirmed it and then answered something that was asked
`settleGrace` later in the same session: a broker that is killed may forget what it has confirmed, and one that answers
later has lived on. That time passed says nothing, as a receiver that was paused reads what was written before the
broker died. What the end of a session cuts off is *left*: it may come again, however late.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark_mq.ack.handles import SessionAcks

__all__ = ["Settling"]

K = TypeVar("K", bound=Hashable)  #: identity of a message


@dataclass(slots=True)
class _Batch(Generic[K]):
    """Acknowledged messages of one session.

    Attributes:
        epoch: the one that all of it was committed with; None for what came again.
        answer_s: an answer to what is asked from then on settles it; infinity until the broker has confirmed it.
    """

    keys: Collection[K]
    deliveries: int
    epoch: int | None
    answer_s: float = math.inf


class Settling(Generic[K]):
    """All of them, by number and session.

    Args:
        grace_s: `settleGrace`; None where a confirmation settles.
    """

    def __init__(self, grace_s: float | None) -> None:
        self._grace_s = grace_s
        self._batches: dict[tuple[int, int], _Batch[K]] = {}
        #: Number and session -> when the broker was asked.
        self._asked: dict[tuple[int, int], float] = {}
        self._again: list[K] = []

    def __len__(self) -> int:
        """Messages that are not settled."""
        return sum(len(batch.keys) for batch in self._batches.values())

    # -- looking

    def unconfirmed(self, number: int | None = None) -> bool:
        """Whether the confirmation of these acknowledgements, or of any, can still come."""
        return any(
            batch.answer_s == math.inf
            for (asked, _), batch in self._batches.items()
            if number is None or asked == number
        )

    @property
    def epochs(self) -> set[int]:
        """Epochs of which something is not settled."""
        return {batch.epoch for batch in self._batches.values() if batch.epoch is not None}

    def among(self, keys: Collection[K]) -> set[K]:
        """Return the messages of these that are not settled."""
        wanted = set(keys)
        return {key for batch in self._batches.values() for key in wanted.intersection(batch.keys)}

    def asks(self, now_s: float) -> bool:
        """Whether the broker has to be asked something, for its answer alone."""
        asked_s: dict[int, float] = {}
        for (_, session), at_s in self._asked.items():
            asked_s[session] = max(at_s, asked_s.get(session, at_s))
        return any(
            batch.answer_s <= now_s and asked_s.get(session, -math.inf) < batch.answer_s
            for (_, session), batch in self._batches.items()
        )

    # -- what happens

    def put(self, number: int, parts: Iterable[tuple[SessionAcks, Collection[K]]], epoch: int | None) -> None:
        """Add acknowledgements that are due: in each session these, of these messages."""
        for acks, keys in parts:
            self._batches[number, acks.session] = _Batch(keys, acks.deliveries, epoch)

    def asked(self, number: int, sessions: Iterable[int], now_s: float) -> None:
        """Record that sessions were sent a request, which they answer after all earlier ones."""
        for session in sessions:
            self._asked[number, session] = now_s

    def confirm(self, number: int, session: int, now_s: float) -> int:
        """Take note of an answer of a session; return how many deliveries it has confirmed by that."""
        asked_s = self._asked.pop((number, session), None)
        batch = self._batches.get((number, session))
        confirmed = 0
        if batch is not None and batch.answer_s == math.inf:
            batch.answer_s, confirmed = now_s + (self._grace_s or 0.0), batch.deliveries
        if self._grace_s is None:
            self._batches.pop((number, session), None)
        elif asked_s is not None:
            for place, other in list(self._batches.items()):
                if place[1] == session and other.answer_s <= asked_s:
                    del self._batches[place]
                    self._again += other.keys if other.epoch is None else ()
        return confirmed

    def take_again(self) -> list[K]:
        """Return, once, the messages that came again and are settled."""
        again, self._again = self._again, []
        return again

    def lose(self, session: int) -> list[K]:
        """Take note of the end of a session; return what it leaves."""
        for place in [place for place in self._asked if place[1] == session]:
            del self._asked[place]
        ended = [place for place in self._batches if place[1] == session]
        return [key for place in ended for key in self._batches.pop(place).keys]
