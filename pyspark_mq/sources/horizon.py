"""Up to which moment the broker has had its chance. Pure: no clock, no I/O.

An ID is remembered after the end of a session for as long as its message may come again. Time alone
does not say when that is over: a broker that would hand a message out again cannot while the window is full or the
consumer pauses, nor while there is no connection. What it does keep to (measured on every broker):
what a session has left behind comes before what nobody was handed yet.

So the clock here goes only while every connection is up, and the *horizon* follows it: the moment
before which whatever was ready to come again has come. It moves on

* when every session has had room for `TRANSIT_S` without a break: what was ready has had the time and
  the room to arrive; or
* when every session has taken in a whole window since: what was ready was ahead of that.

Under load it is the second, on a quiet queue the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["TRANSIT_S", "Flow", "Horizon"]

#: How long a delivery may be on its way. On one machine it is milliseconds; heartbeats, paging and a busy
#: broker make it more.
TRANSIT_S = 0.5


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


class Horizon:
    """The clock of connected time, and the horizon behind it. Both in seconds, and neither goes back."""

    def __init__(self) -> None:
        self._connected_s = 0.0
        self._horizon_s = 0.0
        self._interrupted_s = 0.0
        self._seen_s: float | None = None
        self._room_since_s: float | None = None
        self._mark_s = 0.0
        self._mark: dict[int, int] | None = None

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
        self._seen_s = self._room_since_s = self._mark = None

    def block(self) -> None:
        """A session had no room; whatever it has by the next look does not go back further."""
        self._room_since_s = None

    def observe(self, now_s: float, flows: Mapping[int, Flow]) -> None:
        """All sessions are up, and everything they received is taken in.

        Args:
            now_s: on any clock that never goes back.
            flows: session -> how it stands.
        """
        if self._seen_s is not None:
            self._connected_s += now_s - self._seen_s
        self._seen_s = now_s
        self._watch_room(flows)
        self._watch_turnover(flows)

    def _watch_room(self, flows: Mapping[int, Flow]) -> None:
        if not all(flow.room for flow in flows.values()):
            self._room_since_s = None
            return
        if self._room_since_s is None:
            self._room_since_s = self._connected_s
        settled_s = self._connected_s - TRANSIT_S
        if settled_s >= self._room_since_s:
            self._horizon_s = max(self._horizon_s, settled_s)

    def _watch_turnover(self, flows: Mapping[int, Flow]) -> None:
        if self._mark is None:
            self._mark_s, self._mark = self._connected_s, {name: flow.taken for name, flow in flows.items()}
            return
        if all(flow.taken - self._mark[name] >= flow.window for name, flow in flows.items()):
            self._horizon_s = max(self._horizon_s, self._mark_s)
            self._mark = None
            self._watch_turnover(flows)
