"""Up to which moment the broker has had its chance. Pure: no clock, no I/O.

An ID is remembered after the end of a session for as long as its message may come again. Time alone
does not say when that is over: a broker that would hand a message out again cannot while the window is full or the
consumer pauses, nor while there is no connection. What it does keep to (measured on every broker):
what a session has left behind comes before what nobody was handed yet.

So the clock here goes only while every connection is up, and the *horizon* follows it: the moment
before which whatever was ready to come again has come. It moves on

* when every session has answered a question that it was asked `TRANSIT_S` later, and has had room since: what was
  ready then was handed out before the answer, and has arrived before it, however much was in between; or
* when every session has taken in two windows since: one may have been on its way, and what was ready was ahead of
  the other.

It stands still while things come again, one after the other: a broker may do that slowly, and answer at once. How long
a gap may be goes by those before it, from the opening of a session on.
What is asked is the broker's confirmation of acknowledgements, or of none where there are none. A session that is
silent answers nothing, so nothing is concluded from its silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TRANSIT_S", "Flow", "RedeliveryClock"]

#: How long a broker may take to hand out what is ready. On one machine it is milliseconds; paging and a busy
#: broker make it more.
TRANSIT_S = 0.5
#: Behind what has come again more is waited for so many times the longest gap so far, for so long at most.
_GAPS = 4
_GAP_MAX_S = 5.0
#: Windows of messages to be taken in: what may be on its way, and as much again.
_TURNOVER_WINDOWS = 2
#: Questions whose answers are waited for; those to sessions that are silent are given up first.
_ASKED_MAX = 100


@dataclass(frozen=True, slots=True)
class Flow:
    """One session as it stands.

    Attributes:
        taken: messages taken in so far.
        window: how many unacknowledged messages it may be handed.
        room: may the broker hand out more?
    """

    taken: int
    window: int
    room: bool


class RedeliveryClock:
    """The clock of connected time, and the horizon behind it. Both in seconds, and neither goes back."""

    def __init__(self) -> None:
        self._connected_s = 0.0
        self._horizon_s = 0.0
        self._interrupted_s = 0.0
        self._seen_s: float | None = None
        self._room_since_s: float | None = None
        self._mark_s = 0.0
        self._mark: dict[int, int] | None = None
        self._came_again_s: float | None = None
        self._gap_s = 0.0
        #: Number of a question -> when it was asked, oldest first; session -> when the newest was that it has answered.
        self._asked: dict[int, float] = {}
        self._answered: dict[int, float] = {}

    @property
    def connected_s(self) -> float:
        """For how long all sessions were up so far."""
        return self._connected_s

    @property
    def steady_s(self) -> float:
        """For how long they were, since a session last opened or ended."""
        return self._connected_s - self._interrupted_s

    @property
    def horizon_s(self) -> float:
        """What was ready at this moment of connected time has come."""
        return self._horizon_s

    def interrupt(self) -> None:
        """A session has opened or ended: what was on its way in the others says nothing for it."""
        self._interrupted_s = self._connected_s
        self._seen_s = self._room_since_s = self._mark = self._came_again_s = None
        self._gap_s = 0.0
        self._asked.clear()
        self._answered.clear()

    def block(self) -> None:
        """A session had no room; whatever it has by the next look does not go back further."""
        self._room_since_s = None

    def came_again(self) -> None:
        """Something was handed out again that the end of a session had left open."""
        before_s = self._interrupted_s if self._came_again_s is None else self._came_again_s
        self._gap_s = max(self._gap_s, self._connected_s - before_s)
        self._came_again_s = self._connected_s

    def asked(self, number: int) -> None:
        """Sessions are asked for an answer that comes behind all they were handed before."""
        self._asked[number] = self._connected_s
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]

    def answered(self, number: int, session: int) -> None:
        """A session has answered, and what came before the answer is about to be taken in."""
        asked_s = self._asked.get(number)
        if asked_s is not None:
            self._answered[session] = max(asked_s, self._answered.get(session, 0.0))

    def observe(self, now_s: float, flows: Mapping[int, Flow]) -> None:
        """All sessions are up, and everything they received is taken in.

        Args:
            now_s: on any clock that never goes back.
            flows: session -> how it stands.
        """
        if self._seen_s is not None:
            self._connected_s += now_s - self._seen_s
        self._seen_s = now_s
        if not all(flow.room for flow in flows.values()):
            self._room_since_s = None
        elif self._room_since_s is None:
            self._room_since_s = self._connected_s
        if self._mark is None:
            self._mark_s, self._mark = self._connected_s, {name: flow.taken for name, flow in flows.items()}
        gap_s = max(TRANSIT_S, min(_GAPS * self._gap_s, _GAP_MAX_S))
        if self._came_again_s is None or self._connected_s > self._came_again_s + gap_s:
            self._look_at_answers(flows)
            self._look_at_turnover(flows, self._mark)

    def _look_at_answers(self, flows: Mapping[int, Flow]) -> None:
        if self._room_since_s is None or not all(name in self._answered for name in flows):
            return
        settled_s = min((self._answered[name] for name in flows), default=self._connected_s) - TRANSIT_S
        if settled_s >= self._room_since_s:
            self._horizon_s = max(self._horizon_s, settled_s)

    def _look_at_turnover(self, flows: Mapping[int, Flow], mark: Mapping[int, int]) -> None:
        if all(flow.taken - mark[name] >= _TURNOVER_WINDOWS * flow.window for name, flow in flows.items()):
            self._horizon_s = max(self._horizon_s, self._mark_s)
            self._mark_s, self._mark = self._connected_s, {name: flow.taken for name, flow in flows.items()}
