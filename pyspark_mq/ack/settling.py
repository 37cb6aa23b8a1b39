"""Acknowledgements under way, until their messages cannot be redelivered. Pure.

An acknowledgement is *settled* in a session once the broker has confirmed it and has then answered a request sent
`settleGrace` later in the same session: a killed broker may forget acknowledgements that it has confirmed, but a broker
that answers later has survived. Elapsed time alone proves nothing, because a paused receiver may read bytes that were
written before the broker died. Acknowledgements cut off by the end of a session are *left*: their messages may be
redelivered, however late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark_mq.ack.handles import SessionAcks

__all__ = ["Settling"]

K = TypeVar("K", bound=Hashable)  #: identity of a message


@dataclass(slots=True)
class _Batch(Generic[K]):
    """Acknowledged messages of one session.

    Attributes:
        epoch: the epoch that committed the messages; None for redeliveries.
        answer_s: an answer to a request sent at this time or later settles the messages; infinity until the broker
            confirms.
    """

    keys: Collection[K]
    deliveries: int
    epoch: int | None
    answer_s: float = math.inf


class Settling(Generic[K]):
    """All unsettled acknowledgements, by number and session.

    Args:
        grace_s: `settleGrace`; None if a confirmation alone settles an acknowledgement.
    """

    def __init__(self, grace_s: float | None) -> None:
        self._grace_s = grace_s
        self._batches: dict[tuple[int, int], _Batch[K]] = {}
        #: Number and session of a request -> time at which the request was sent.
        self._asked: dict[tuple[int, int], float] = {}

    def __len__(self) -> int:
        """Number of acknowledged messages that are not settled."""
        return sum(len(batch.keys) for batch in self._batches.values())

    # -- queries

    def unconfirmed(self, number: int | None = None) -> bool:
        """Whether acknowledgements with this number are unconfirmed. None means acknowledgements with any number."""
        return any(
            batch.answer_s == math.inf
            for (asked, _), batch in self._batches.items()
            if number is None or asked == number
        )

    @property
    def epochs(self) -> set[int]:
        """Epochs with unsettled acknowledgements."""
        return {batch.epoch for batch in self._batches.values() if batch.epoch is not None}

    def among(self, keys: Collection[K], sessions: Callable[[int], bool]) -> set[K]:
        """Return the messages that have an unsettled acknowledgement in one of these sessions."""
        wanted = set(keys)
        return {
            key
            for (_, session), batch in self._batches.items()
            if sessions(session)
            for key in wanted.intersection(batch.keys)
        }

    def asks(self, now_s: float) -> bool:
        """Whether to send the broker a request just to get an answer."""
        asked_s: dict[int, float] = {}
        for (_, session), at_s in self._asked.items():
            asked_s[session] = max(at_s, asked_s.get(session, at_s))
        return any(
            batch.answer_s <= now_s and asked_s.get(session, -math.inf) < batch.answer_s
            for (_, session), batch in self._batches.items()
        )

    # -- events

    def put(self, number: int, parts: Iterable[tuple[SessionAcks, Collection[K]]], epoch: int | None) -> None:
        """Add acknowledgements that are due, each with the messages that it acknowledges."""
        for acks, keys in parts:
            self._batches[number, acks.session] = _Batch(keys, acks.deliveries, epoch)

    def asked(self, number: int, sessions: Iterable[int], now_s: float) -> None:
        """Record that a request was sent in these sessions. A session answers requests in the order of sending."""
        for session in sessions:
            self._asked[number, session] = now_s

    def confirm(self, number: int, session: int, now_s: float) -> int:
        """Process a session's answer to a request; return the number of deliveries that the answer confirms."""
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
        return confirmed

    def lose(self, session: int) -> list[K]:
        """Process the end of a session; return the messages whose acknowledgements were cut off by this end."""
        for place in [place for place in self._asked if place[1] == session]:
            del self._asked[place]
        ended = [place for place in self._batches if place[1] == session]
        return [key for place in ended for key in self._batches.pop(place).keys]
