"""The events of a connection. They go from its supervisor through the worker to the query's thread.

Events keep their order (rules 6 and 10): a delivery comes before a confirmation or a depth report that arrived later,
and no event of a session comes after its end.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TypeAlias

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.block import Metadata, RowRange
from pyspark_mq.sources.connections.session import Greeting, QueueDepth

__all__ = [
    "Confirmed",
    "Delivered",
    "DepthReported",
    "Event",
    "EventQueue",
    "Failed",
    "Lost",
    "Opened",
    "SessionStatus",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Opened:
    """A session was opened, and is about to consume.

    Attributes:
        key: number of the supervisor. All events below have this field, too.
        session: number of the session, which is unique in the query.
        greeting: what the broker has reported about itself and the queue.
        window: maximum number of unacknowledged messages that the session may hold.
    """

    key: int
    session: int
    greeting: Greeting
    window: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A session has received one or more messages, which are rows of a block in order of arrival.

    The block may have rows of other sessions, too.
    """

    key: int
    session: int
    metadata: Metadata
    rows: RowRange


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has answered the request with this number, and so has processed its acknowledgements."""

    key: int
    session: int
    number: int


@dataclass(frozen=True, slots=True)
class DepthReported:
    """The broker has reported the depth of the queue: how many messages wait."""

    key: int
    depth: QueueDepth


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A session has paused or resumed reading from its socket, or has read more bytes of an incomplete message."""

    key: int
    session: int
    paused: bool
    partial_bytes: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A session has ended. Its deliveries that are not processed yet are no longer valid."""

    key: int
    session: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A supervisor has stopped with this error, and does not open another session."""

    key: int
    error: MqError


Event: TypeAlias = "Opened | Delivered | Confirmed | DepthReported | SessionStatus | Lost | Failed"


class EventQueue:
    """A queue of events, from which one thread takes them.

    Args:
        arrived: set when an event is added. Several queues may share it.
    """

    def __init__(self, arrived: threading.Event | None = None) -> None:
        self.arrived = arrived or threading.Event()
        self._lock = threading.Lock()
        self._events: list[Event] = []

    def put(self, event: Event) -> None:
        """Add an event. Any thread may call this.

        If the event is the end of a session, drop the session's deliveries, because they are no longer valid (rule 6)
        and will be redelivered. Otherwise they would accumulate while Spark is busy and sessions end again and again.
        """
        with self._lock:
            if isinstance(event, Lost):
                void = (event.key, event.session)
                self._events = [
                    one for one in self._events if not (isinstance(one, Delivered) and (one.key, one.session) == void)
                ]
            self._events.append(event)
        self.arrived.set()

    def take(self) -> list[Event]:
        """Remove all events, and return them in order. Only one thread may call this."""
        with self._lock:
            events, self._events = self._events, []
        return events
