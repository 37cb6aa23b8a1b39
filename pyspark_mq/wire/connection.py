"""The base class of connections. A connection belongs to one session or one publisher, and never reconnects.

One thread opens, turns and closes a connection. Other threads may wake it.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pyspark_mq.errors import shown
from pyspark_mq.wire.endpoint import Endpoint

__all__ = ["ENDS_MAX", "Connection", "ConnectionLostError", "StopRequestedError"]

#: A query, or a write, fails if the broker has ended this number of connections in a row for a stated reason, and has
#: confirmed nothing in them. It is about half the delivery limit of quorum queues in RabbitMQ 4 (20), and one less than
#: the limit of Artemis (10), because earlier deliveries count towards these limits, too.
ENDS_MAX = 9


class ConnectionLostError(Exception):
    """The connection has ended.

    Attributes:
        stated: whether the broker has stated a reason, which may also end the next connection. Otherwise the network
            may have failed.
    """

    def __init__(self, reason: str, *, stated: bool = False) -> None:
        self.stated = stated
        super().__init__(shown(reason))


class StopRequestedError(Exception):
    """The query is being stopped while a session waits for the broker."""


class Connection(ABC):
    """A connection to a broker. A new instance is not connected.

    Args:
        endpoint: how to connect to the broker.
        now_s: returns the current time in seconds.
        stopping: if this is set, and the connection is woken, :meth:`until` raises a :class:`StopRequestedError`.

    Attributes:
        end: the first reason why the connection has ended, in the terms of its protocol; None if it has not ended.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        now_s: Callable[[], float] = time.monotonic,
        stopping: threading.Event | None = None,
    ) -> None:
        self.endpoint, self.now_s = endpoint, now_s
        self.end: Any = None
        self._stopping = stopping or threading.Event()

    @abstractmethod
    def turn(self, timeout_s: float) -> None:
        """Send pending bytes, wait at most `timeout_s` seconds for bytes, and process these bytes.

        If the connection ends, set `end`.
        """

    def until(self, done: Callable[[], bool], deadline: float, *, closing: bool = False) -> None:
        """Call :meth:`turn` until `done()` is true.

        Args:
            deadline: time limit, on the connection's clock.
            closing: whether to continue even if the query is being stopped.

        Raises:
            ConnectionLostError: the connection has ended.
            TimeoutError: the time limit has passed.
            StopRequestedError: the query is being stopped.
        """
        while True:
            if self.end is not None:
                raise self.end if isinstance(self.end, ConnectionLostError) else ConnectionLostError(str(self.end))
            if done():
                return
            left_s = deadline - self.now_s()
            if left_s <= 0:
                raise TimeoutError
            if self._stopping.is_set() and not closing:
                raise StopRequestedError
            self.turn(left_s)

    @abstractmethod
    def wake(self) -> None:
        """Make :meth:`turn` return soon. This is the only method that other threads may call."""
