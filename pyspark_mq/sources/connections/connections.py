"""Manages the connections of one queue, from the thread of Spark's calls.

Each connection has a supervisor (:mod:`.supervisor`), which opens one session after the other on its own thread, and
reports events. :class:`Connections` reads these events, keeps track of the open sessions, sends them requests, and
limits the bytes that they buffer. Code that uses this class refers to a session by its number.
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

__all__ = ["DEPTH_AGE_MAX_S", "Connections", "LiveSession"]

#: The broker is asked how many messages wait only if the last such request, and the last report, are older than this.
DEPTH_AGE_MAX_S = 0.25
#: If the worker's progress mark (:class:`.Mark`) is older than this, the worker is late: it sets the mark ten times a
#: second.
_LATE_S = 0.25


@dataclass(slots=True)
class _Supervisor:
    """A supervisor, and what it has reported.

    Attributes:
        limits: the limits that were last sent to the supervisor.
        depth: the broker's last report of the queue's depth through this supervisor; None if there is none.
        depth_s: time when that report arrived.
        asked_s: time of the last request for a report.
    """

    supervisor: ConnectionSupervisor
    limits: Limits
    depth: QueueDepth | None = None
    depth_s: float = -math.inf
    asked_s: float = -math.inf


@dataclass(slots=True)
class LiveSession:
    """An open session, as the query's thread knows it. The in-flight table has its deliveries.

    Attributes:
        key: number of its supervisor.
        opened_s: time when it was opened.
        window: maximum number of unacknowledged messages that it may hold.
        bytes_taken: number of bytes of its deliveries that were processed.
        paused: whether it does not read from its socket now, because too many bytes are buffered.
        deliveries: number of its deliveries that were processed.
        skipped: number of its deliveries that a replay has skipped, and that stay unacknowledged.
        silent_since_s: time from which on it has received nothing although the broker reports waiting messages; None if
            the broker reports none, or delivers them.
    """

    key: int
    opened_s: float
    window: int
    bytes_taken: int = 0
    paused: bool = False
    deliveries: int = 0
    skipped: int = 0
    silent_since_s: float | None = None


class Connections:
    """The connections of one queue: as many as option `consumers` says, with one session each.

    Args:
        settings: the query's settings, with this queue as the endpoint.
        worker: runs the connections.
        runtime: clock and threads.
        events: where the supervisors put the events of this queue.

    Attributes:
        live: number of each open session -> the session. A session that has ended stays here until the event that
            reports its end was processed.
        first_window: the window with which the next session begins.
        broke_off: whether the worker or a supervisor was stopped for a moment between the last two calls of
            :meth:`news`, so that messages may not have been received in time.
        progress_s: time up to which the last call of :meth:`news` has reported everything that arrived.
        partial_s: time when more bytes of an incomplete message had arrived; -infinity if none have.
    """

    def __init__(self, settings: Settings, worker: Worker, runtime: Runtime, events: EventQueue) -> None:
        self.first_window = settings.prefetch
        self.broke_off = False
        self.progress_s = self.partial_s = -math.inf
        self._settings = settings
        self._worker = worker
        self._runtime = runtime
        self._events = events
        self._bytes_allowed = 0.0
        #: Number of a supervisor -> the supervisor. Empty before :meth:`start`.
        self._supervisors: dict[int, _Supervisor] = {}
        self.live: dict[int, LiveSession] = {}
        self._waiting: list[Delivered] = []
        self._failure: Exception | None = None
        self._breaks = 0

    def start(self) -> None:
        """Start the supervisors. Further calls have no effect.

        Raises:
            MqError: a client library is missing.
        """
        limits = Limits(self.first_window, self._bytes_allowed)
        while len(self._supervisors) < self._settings.consumers:
            supervisor = self._worker.connect(self._settings, limits, self._events)
            self._supervisors[supervisor.key] = _Supervisor(supervisor, limits)

    def ask_to_stop(self) -> None:
        """Begin to close the connections, without waiting until they are closed."""
        for kept in self._supervisors.values():
            kept.supervisor.stop()

    def stop(self) -> None:
        self.ask_to_stop()
        self._worker.join(kept.supervisor for kept in self._supervisors.values())

    # -- events

    def news(self, *, taking: bool) -> Iterator[Opened | Lost | Confirmed | Delivered]:
        """Yield the events that have arrived since the last call, in order.

        If the caller raises an error when it gets an :class:`.Opened` event, the session does not count as open, and
        its deliveries are never yielded.

        Args:
            taking: whether to yield deliveries now. Otherwise they are kept until a later call.

        Raises:
            MqError: a connection could not be opened in time. Raised after the last event.
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
                if event.session not in self.live:
                    continue
                if taking:
                    yield self._taken(event)
                else:
                    self._waiting.append(event)
            elif isinstance(event, Lost):
                self._waiting = [one for one in self._waiting if one.session != event.session]
                yield event
                self.live.pop(event.session, None)
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
        elif isinstance(event, SessionStatus) and event.session in self.live:
            self.live[event.session].paused = event.paused
            if event.partial_bytes:
                self.partial_s = self._runtime.monotonic_s()

    def _taken(self, event: Delivered) -> Delivered:
        self.live[event.session].bytes_taken += event.rows.size_bytes
        return event

    @property
    def untaken(self) -> int:
        """Number of deliveries that :meth:`news` has kept, because its caller did not take deliveries yet."""
        return sum(len(event.rows) for event in self._waiting)

    def _open(self, event: Opened) -> None:
        self.live[event.session] = LiveSession(event.key, self._runtime.monotonic_s(), event.window)
        depth = event.greeting.depth
        if depth is not None:
            self._note_depth(event.key, depth)
        else:  # this session cannot report the depth, so forget the report of the session before
            self._supervisors[event.key].depth = None

    def _note_depth(self, key: int, depth: QueueDepth) -> None:
        supervisor = self._supervisors[key]
        supervisor.depth, supervisor.depth_s = depth, self._runtime.machine_s()

    def _look_at_progress(self) -> None:
        # Read the mark before the events. Then everything that arrived before the mark is among the events.
        breaks, until_s = self._worker.mark
        opened_s = [session.opened_s for session in self.live.values()]
        self.progress_s = min((max(one, until_s) for one in opened_s), default=self._runtime.monotonic_s())
        self.broke_off, self._breaks = breaks != self._breaks, breaks

    @property
    def complete(self) -> bool:
        """Whether every connection is open."""
        return len(self.live) == self._settings.consumers

    @property
    def late(self) -> bool:
        """Whether the worker is late: its progress mark is too old."""
        return bool(self.live) and self._runtime.monotonic_s() - self._worker.mark.until_s > _LATE_S

    @property
    def paused(self) -> bool:
        return any(session.paused for session in self.live.values())

    # -- requests

    def _ask(self, session: int, method: str, *arguments: Any) -> None:
        """Let a session's supervisor call a method of :class:`.Session`. If the session has ended, do nothing."""
        live = self.live.get(session)
        if live is not None:
            self._supervisors[live.key].supervisor.ask(session, methodcaller(method, *arguments))

    def acknowledge(self, due: Acknowledgements) -> None:
        """Send acknowledgements, each in the session that received its deliveries (rule 10)."""
        for part in due.parts:
            self._ask(part.session, "acknowledge", due.number, part.upto, part.singles)

    def send_flush_markers(self, number: int) -> None:
        """Send a flush marker in each session: a request that acknowledges nothing, and that the broker answers.

        Args:
            number: identifies the answers.
        """
        for session in self.live:
            self._ask(session, "acknowledge", number, 0, ())

    def replace_session(self, session: int, why: str) -> None:
        """End a session, so that the broker requeues its messages. Its supervisor then opens another session."""
        self._ask(session, "end", why)

    def reject(self, session: int, tags: Sequence[int]) -> None:
        self._ask(session, "reject", tuple(tags))

    # -- limits

    @property
    def windows(self) -> dict[int, int]:
        """Number of each open session -> maximum number of unacknowledged messages that it may hold."""
        return {number: session.window for number, session in self.live.items()}

    def set_window(self, session: int, window: int, *, strictly: bool = False) -> None:
        """Widen the window of a session.

        Args:
            strictly: whether the broker must never exceed the new window. This may need another consumer, and then the
                messages of both consumers arrive in a mixed order.
        """
        self.live[session].window = window
        self._ask(session, "extend" if strictly else "consume", window)

    def widen(self, window: int, *, strictly: bool = False) -> None:
        """Widen the window of each session to at least this number of messages."""
        for number, session in self.live.items():
            if session.window < window:
                self.set_window(number, window, strictly=strictly)

    def bound_bytes(self, maximum: float, *, resume: bool) -> None:
        """Set how many bytes the sessions may buffer before they pause, and tell them how many bytes were processed.

        Args:
            maximum: number of bytes for each session.
            resume: whether paused sessions are to resume.
        """
        self._bytes_allowed = maximum
        sessions = {session.key: (number, session) for number, session in self.live.items()}
        for key, kept in self._supervisors.items():
            number, session = sessions.get(key, (0, None))
            taken = 0 if session is None else session.bytes_taken
            limits = Limits(self.first_window, self._bytes_allowed, number, taken)
            if limits != kept.limits:
                kept.limits = limits
                kept.supervisor.limit(limits)
            if session is not None and session.paused and resume and not self._waiting:
                self._ask(number, "resume")  # after the limits were sent, which say how many bytes were processed

    # -- the depth at the broker

    def refresh_depth(self, age_max_s: float = DEPTH_AGE_MAX_S) -> None:
        """Ask the broker how many messages wait, unless the last request or report is at most `age_max_s` old."""
        now_s = self._runtime.machine_s()
        for number, session in self.live.items():
            supervisor = self._supervisors[session.key]
            if now_s - max(supervisor.depth_s, supervisor.asked_s) > age_max_s:
                supervisor.asked_s = now_s
                self._ask(number, "ask_depth")

    def depths(self) -> list[int]:
        """Return the number of waiting messages in the broker's last report to each connection; empty if no reports."""
        return [depth.ready for depth in self._reported()]

    def _reported(self) -> list[QueueDepth]:
        return [supervisor.depth for supervisor in self._supervisors.values() if supervisor.depth is not None]

    def depth_in(self, session: int) -> QueueDepth | None:
        """Return the last report of the queue's depth to the connection of this open session; None if no report."""
        return self._supervisors[self.live[session].key].depth

    @property
    def newest_depth(self) -> int | None:
        """Number of waiting messages in the broker's newest report; None if there is no report."""
        reported = [
            (supervisor.depth_s, supervisor.depth.ready)
            for supervisor in self._supervisors.values()
            if supervisor.depth
        ]
        return max(reported)[1] if reported else None

    @property
    def other_consumers(self) -> int:
        """Number of consumers of the queue that are not of this query, as last reported; 0 if there is no report."""
        reported = self._reported()
        counted = max((depth.other_consumers + depth.own_consumers for depth in reported), default=0)
        return max(0, counted - sum(depth.own_consumers for depth in reported))
