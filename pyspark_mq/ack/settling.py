"""Keeps track of acknowledgements from the moment they are due until their messages cannot be redelivered any more.

An acknowledgement is *settled* if the broker has confirmed it, and has then answered a request that was sent in the
same session at least `settleGrace` after the confirmation. A broker that is killed may forget acknowledgements that it
has confirmed shortly before. The answer to a later request proves that the broker was not killed in between. Waiting
without a request would prove nothing: if this process was paused meanwhile, the bytes that it reads afterwards may be
from before the broker was killed.

If a session ends before an acknowledgement is settled, its message may be redelivered at any later time. Such a message
is called *left open*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from pyspark_mq.ack.handles import SessionAcks
from pyspark_mq.dedup import Key

__all__ = ["Settling"]


@dataclass(slots=True)
class _Batch:
    """Messages that were acknowledged together in one session.

    Attributes:
        keys: the messages.
        deliveries: number of their deliveries that were acknowledged.
        epoch: the committed epoch to which the messages belong; None if duplicates are acknowledged.
        answer_s: earliest time at which a request can be sent whose answer settles the messages; infinity until the
            broker has confirmed the acknowledgements.
    """

    keys: Collection[Key]
    deliveries: int
    epoch: int | None
    answer_s: float = math.inf


class Settling:
    """All acknowledgements that are not settled, identified by their number and session.

    Args:
        grace_s: value of option `settleGrace`; None if a confirmation is enough to settle an acknowledgement.
    """

    def __init__(self, grace_s: float | None) -> None:
        self._grace_s = grace_s
        self._batches: dict[tuple[int, int], _Batch] = {}
        #: Number and session of a request -> time at which the request was sent.
        self._asked: dict[tuple[int, int], float] = {}

    def __len__(self) -> int:
        """Return the number of messages that are acknowledged but not settled."""
        return sum(len(batch.keys) for batch in self._batches.values())

    # -- queries

    def unconfirmed(self, number: int | None = None) -> bool:
        """Whether the broker still has to confirm acknowledgements with this number (None: with any number)."""
        return any(
            batch.answer_s == math.inf
            for (asked, _), batch in self._batches.items()
            if number is None or asked == number
        )

    @property
    def epochs(self) -> set[int]:
        """The numbers of the epochs with unsettled acknowledgements."""
        return {batch.epoch for batch in self._batches.values() if batch.epoch is not None}

    def among(self, keys: Collection[Key], sessions: Callable[[int], bool]) -> set[Key]:
        """Return the messages of `keys` that are acknowledged but not settled in a session that `sessions` accepts."""
        wanted = set(keys)
        return {
            key
            for (_, session), batch in self._batches.items()
            if sessions(session)
            for key in wanted.intersection(batch.keys)
        }

    def asks(self, now_s: float) -> bool:
        """Whether it is time to send the broker a request whose answer settles acknowledgements.

        False if a request that was sent already is late enough to settle them.
        """
        asked_s: dict[int, float] = {}
        for (_, session), at_s in self._asked.items():
            asked_s[session] = max(at_s, asked_s.get(session, at_s))
        return any(
            batch.answer_s <= now_s and asked_s.get(session, -math.inf) < batch.answer_s
            for (_, session), batch in self._batches.items()
        )

    # -- events

    def put(self, number: int, parts: Iterable[tuple[SessionAcks, Collection[Key]]], epoch: int | None) -> None:
        """Add acknowledgements that are due in several sessions, each with the messages that it acknowledges."""
        for acks, keys in parts:
            self._batches[number, acks.session] = _Batch(keys, acks.deliveries, epoch)

    def asked(self, number: int, sessions: Iterable[int], now_s: float) -> None:
        """Record that a request with this number was sent in these sessions. A session answers requests in order."""
        for session in sessions:
            self._asked[number, session] = now_s

    def confirm(self, number: int, session: int, now_s: float) -> int:
        """Process a session's answer to the request with this number.

        Returns:
            the number of deliveries whose acknowledgement the answer confirms.
        """
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

    def lose(self, session: int) -> list[Key]:
        """Process the end of a session. Return the messages whose acknowledgements were not settled in it."""
        for place in [place for place in self._asked if place[1] == session]:
            del self._asked[place]
        ended = [place for place in self._batches if place[1] == session]
        return [key for place in ended for key in self._batches.pop(place).keys]
