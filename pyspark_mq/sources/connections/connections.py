"""The connections of one queue, as Spark's thread sees them.

Each supervisor keeps one session alive, on its own thread, and emits events. :class:`Connections` reads these events,
tracks the live sessions with their status and windows, sends them requests, and bounds their bytes. Code that uses this
class refers to a session only by its number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from pyspark_mq.ack import Acknowledgements
from pyspark_mq.sources.connections.events import (
    Confirmed,
    Delivered,
    DepthReported,
    Event,
    EventQueue,
    Failed,
    Lost,
    Opened,
    SessionStatus,
)
from pyspark_mq.sources.connections.session import QueueDepth
from pyspark_mq.sources.connections.supervisor import ConnectionSupervisor, Limits
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["DEPTH_AGE_MAX_S", "Connections"]

#: The broker is not asked for the depth if the last request or report is more recent than this.
DEPTH_AGE_MAX_S = 0.25
#: Age from which a progress mark is late. A worker sets its mark ten times a second.
_LATE_S = 0.25


@dataclass(slots=True)
class _Supervisor:
    """A supervisor and its last reports.

    Attributes:
        limits: current limits of the supervisor.
        depth: the broker's last depth report to this supervisor.
        depth_s: time when that report arrived.
        asked_s: time of the last request for a report.
    """

    supervisor: ConnectionSupervisor
    limits: Limits
    depth: QueueDepth | None = None
    depth_s: float = -math.inf
    asked_s: float = -math.inf


@dataclass(slots=True)
class _OpenSession:
    """A live session. See the attributes of :class:`.Session`."""

    key: int
    opened_s: float
    window: int
    bytes_taken: int = 0
    paused: bool = False


class Connections:
    """The sessions of a queue: one for each of its `consumers` when all are connected.

    Args:
        settings: the query's settings, with this queue as the endpoint.
        events: events of this queue.

    Attributes:
        first_window: window of the next session, in messages.
        broke_off: whether receiving stood still between the last two calls of :meth:`news`.
        progress_s: everything received until this time was among the events of the last call of :meth:`news`.
    """

    def __init__(self, settings: Settings, worker: Worker, runtime: Runtime, events: EventQueue) -> None:
        self.first_window = settings.prefetch
        self.broke_off = False
        self.progress_s = -math.inf
        self._settings = settings
        self._worker = worker
        self._runtime = runtime
        self._events = events
        self._bytes_allowed = 0.0
        #: Supervisors by number; empty before the start.
        self._supervisors: dict[int, _Supervisor] = {}
        self._live: dict[int, _OpenSession] = {}
        self._waiting: list[Delivered] = []
        self._failure: Exception | None = None
        self._breaks = 0

    def start(self) -> None:
        """Start the supervisors, once.

        Raises:
            MqError: a client library is missing.
        """
        limits = Limits(self.first_window, self._bytes_allowed)
        while len(self._supervisors) < self._settings.consumers:
            supervisor = self._worker.connect(self._settings, limits, self._events)
            self._supervisors[supervisor.key] = _Supervisor(supervisor, limits)

    def ask_to_stop(self) -> None:
        """Close the connections without waiting."""
        for kept in self._supervisors.values():
            kept.supervisor.stop()

    def stop(self) -> None:
        self.ask_to_stop()
        self._worker.join(kept.supervisor for kept in self._supervisors.values())

    # -- events

    def news(self, *, taking: bool) -> Iterator[Opened | Lost | Confirmed | Delivered]:
        """Yield the supervisors' events since the last call, in order.

        If the caller raises an error when it gets the opening of a session, the session never counts as live, and no
        delivery is taken from it.

        Args:
            taking: whether deliveries may be taken; otherwise they wait here.

        Raises:
            MqError: a supervisor has given up; raised after the last event.
        """
        self._look_at_progress()
        if taking and self._waiting:
            waiting, self._waiting = self._waiting, []
            yield from map(self._taken, waiting)
        for event in self._events.take():
            if isinstance(event, Opened):
                yield event
                self._open(event)
            elif isinstance(event, Delivered):
                if event.session not in self._live:
                    continue
                if taking:
                    yield self._taken(event)
                else:
                    self._waiting.append(event)
            elif isinstance(event, Lost):
                self._waiting = [one for one in self._waiting if one.session != event.session]
                yield event
                self._live.pop(event.session, None)
            elif isinstance(event, Confirmed):
                yield event
            else:
                self._note(event)
        if self._failure is not None:
            raise self._failure

    def _note(self, event: Event) -> None:
        if isinstance(event, Failed):
            self._failure = event.error
        elif isinstance(event, DepthReported):
            self._note_depth(event.key, event.depth)
        elif isinstance(event, SessionStatus) and event.session in self._live:
            self._live[event.session].paused = event.paused

    def _taken(self, event: Delivered) -> Delivered:
        self._live[event.session].bytes_taken += event.rows.size_bytes
        return event

    @property
    def untaken(self) -> int:
        """Number of deliveries that wait here until deliveries may be taken."""
        return sum(len(event.rows) for event in self._waiting)

    def _open(self, event: Opened) -> None:
        self._live[event.session] = _OpenSession(event.key, self._runtime.monotonic_s(), event.window)
        depth = event.greeting.depth
        if depth is not None:
            self._note_depth(event.key, depth)
        else:  # keep the report to an earlier session, because it may never be repeated
            self._supervisors[event.key].depth = None

    def _note_depth(self, key: int, depth: QueueDepth) -> None:
        supervisor = self._supervisors[key]
        supervisor.depth, supervisor.depth_s = depth, self._runtime.machine_s()

    def _look_at_progress(self) -> None:
        # Read the mark before the events: everything that it covers is then among the events.
        breaks, until_s = self._worker.mark
        opened_s = [session.opened_s for session in self._live.values()]
        self.progress_s = min((max(one, until_s) for one in opened_s), default=self._runtime.monotonic_s())
        self.broke_off, self._breaks = breaks != self._breaks, breaks

    @property
    def complete(self) -> bool:
        """Whether every supervisor is connected."""
        return len(self._live) == self._settings.consumers

    @property
    def late(self) -> bool:
        """Whether the worker's progress mark is late."""
        return bool(self._live) and self._runtime.monotonic_s() - self._worker.mark.until_s > _LATE_S

    @property
    def paused(self) -> bool:
        return any(session.paused for session in self._live.values())

    # -- requests

    def _ask(self, session: int, method: str, *arguments: Any) -> None:
        """Request a call of a :class:`.Session` method. The request is dropped if the session has ended."""
        live = self._live.get(session)
        if live is not None:
            self._supervisors[live.key].supervisor.ask(session, methodcaller(method, *arguments))

    def acknowledge(self, due: Acknowledgements) -> None:
        """Send acknowledgements, each in its own session (rule 10)."""
        for part in due.parts:
            self._ask(part.session, "acknowledge", due.number, part.upto, part.singles)

    def send_flush_markers(self, number: int) -> None:
        """Send a flush marker in each session: a request without acknowledgements, confirmed under this number."""
        for session in self._live:
            self._ask(session, "acknowledge", number, 0, ())

    def replace_session(self, session: int, why: str) -> None:
        """End a session, so that the broker requeues its messages; its supervisor then opens another session."""
        self._ask(session, "end", why)

    def reject(self, session: int, tags: Sequence[int]) -> None:
        self._ask(session, "reject", tuple(tags))

    # -- limits

    @property
    def windows(self) -> dict[int, int]:
        """The most unacknowledged messages that each session may hold."""
        return {number: session.window for number, session in self._live.items()}

    def set_window(self, session: int, window: int, *, strictly: bool = False) -> None:
        """Widen the window of a session.

        Args:
            strictly: whether the window must never be exceeded. This may take another consumer, whose messages
                interleave with those of the other consumers.
        """
        self._live[session].window = window
        self._ask(session, "extend" if strictly else "consume", window)

    def widen(self, window: int, *, strictly: bool = False) -> None:
        """Widen every session's window to at least this many messages."""
        for number, session in self._live.items():
            if session.window < window:
                self.set_window(number, window, strictly=strictly)

    def bound_bytes(self, maximum: float, *, resume: bool) -> None:
        """Set how many bytes each session may buffer before it pauses; report the bytes taken to the sessions.

        Args:
            maximum: limit in bytes for all sessions together.
            resume: whether paused sessions resume.
        """
        self._bytes_allowed = maximum / self._settings.consumers
        sessions = {session.key: (number, session) for number, session in self._live.items()}
        for key, kept in self._supervisors.items():
            number, session = sessions.get(key, (0, None))
            taken = 0 if session is None else session.bytes_taken
            limits = Limits(self.first_window, self._bytes_allowed, number, taken)
            if limits != kept.limits:
                kept.limits = limits
                kept.supervisor.limit(limits)
            if session is not None and session.paused and resume and not self._waiting:
                self._ask(number, "resume")  # after the limits, which report the bytes taken

    # -- the depth at the broker

    def refresh_depth(self, age_max_s: float = DEPTH_AGE_MAX_S) -> None:
        """Ask the broker for the depth, unless the last request or report is recent."""
        now_s = self._runtime.machine_s()
        for number, session in self._live.items():
            supervisor = self._supervisors[session.key]
            if now_s - max(supervisor.depth_s, supervisor.asked_s) > age_max_s:
                supervisor.asked_s = now_s
                self._ask(number, "ask_depth")

    def depths(self) -> list[int]:
        """Return how many messages wait at the broker, as last reported to each supervisor; empty without reports."""
        return [depth.ready for depth in self._reported()]

    def _reported(self) -> list[QueueDepth]:
        return [supervisor.depth for supervisor in self._supervisors.values() if supervisor.depth is not None]

    def depth_in(self, session: int) -> QueueDepth | None:
        """Return the queue's depth as last reported to this live session's supervisor."""
        return self._supervisors[self._live[session].key].depth

    @property
    def newest_depth(self) -> int | None:
        """Number of messages that wait at the broker, as last reported; None without a report."""
        reported = [
            (supervisor.depth_s, supervisor.depth.ready)
            for supervisor in self._supervisors.values()
            if supervisor.depth
        ]
        return max(reported)[1] if reported else None

    @property
    def other_consumers(self) -> int:
        """Number of other consumers of the queue, as last reported by the broker; 0 without a report."""
        reported = self._reported()
        counted = max((depth.other_consumers + depth.own_consumers for depth in reported), default=0)
        return max(0, counted - sum(depth.own_consumers for depth in reported))
