"""Events of a connection, from its supervisor through the worker to the query's thread.

Events keep their order (rules 6 and 10): deliveries come before a later confirmation or depth report, and no event of a
session comes after its end.
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
    """A session is open and about to consume.

    Attributes:
        key: number of the supervisor, as in the events below.
        session: number of the session, unique in the query.
        window: window of the session, in unacknowledged messages.
    """

    key: int
    session: int
    greeting: Greeting
    window: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """One or more deliveries of a session, in order. Deliveries of other sessions may be in the same block."""

    key: int
    session: int
    metadata: Metadata
    rows: RowRange


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has processed the acknowledgements of a request."""

    key: int
    session: int
    number: int


@dataclass(frozen=True, slots=True)
class DepthReported:
    """The broker reported the depth of the queue."""

    key: int
    depth: QueueDepth


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """The status of a session has changed. See the attributes of :class:`.Session`."""

    key: int
    session: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """A session has ended; its deliveries that were not taken yet are void."""

    key: int
    session: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The supervisor has given up with this error."""

    key: int
    error: MqError


Event: TypeAlias = "Opened | Delivered | Confirmed | DepthReported | SessionStatus | Lost | Failed"


class EventQueue:
    """A queue of events for one thread, with a signal.

    Args:
        arrived: the signal, which several queues may share.
    """

    def __init__(self, arrived: threading.Event | None = None) -> None:
        self.arrived = arrived or threading.Event()
        self._lock = threading.Lock()
        self._events: list[Event] = []

    def put(self, event: Event) -> None:
        """Add an event. For any thread.

        Deliveries of a session that has ended are void (rule 6) and will be redelivered, so they are dropped. Otherwise
        they would pile up while Spark is busy and sessions keep ending.
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
        """Take the events so far, in order. For the receiving thread."""
        with self._lock:
            events, self._events = self._events, []
        return events
