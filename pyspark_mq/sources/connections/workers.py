"""Keepers of a query's connections: one factory, in this process or in others.

A queue adds as many receivers as it has connections, asks them for things, and gets events. What is behind that,
a thread of this process or N processes, makes no difference to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

import pyarrow as pa

from pyspark_mq.sources.connections.events import Event, EventQueue, Progress, Stopped
from pyspark_mq.sources.connections.requests import Begin, Stop, ToWorker
from pyspark_mq.sources.connections.session import Session
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.runtime import Runtime, Task

__all__ = ["FindSession", "LocalWorkers", "Workers"]

#: The consumer class of a protocol, by its name.
FindSession: TypeAlias = Callable[[str], type[Session]]


class Workers(ABC):
    """Receivers of a query, wherever they are. Called by the query's thread.

    Nothing is in flight unseen: what a receiver has taken in is emitted, or lies behind its progress mark.
    """

    def __init__(self) -> None:
        self._keys = count(1)
        self._routes: dict[int, EventQueue] = {}

    def add(self, events: EventQueue) -> int:
        """The key of a new receiver, whose events go there. It does nothing yet."""
        key = next(self._keys)
        self._routes[key] = events
        return key

    @abstractmethod
    def send(self, message: ToWorker) -> None:
        """Ask whoever keeps a receiver for something. Never blocks, but for the end of a connection."""

    @abstractmethod
    def progress(self, key: int) -> tuple[int, float]:
        """Return how often its host has stood still, and its progress mark."""

    @abstractmethod
    def now_s(self) -> float:
        """The time on its clock."""

    @abstractmethod
    def stop(self) -> None:
        """Close all connections."""

    def _emit(self, event: Event) -> None:
        """Called by any thread."""
        route = self._routes.get(event.key)
        if route is not None:
            route.put(event)


class LocalWorkers(Workers):
    """Receivers of this process, and one thread that takes from them.

    Args:
        find_session: the consumer class of a protocol.
        schema: of the blocks to make.
        runtime: time and threads.
    """

    def __init__(self, find_session: FindSession, schema: pa.Schema, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._progress = (0, runtime.monotonic_s())
        self._task: Task | None = None
        self._host = Worker(find_session, schema, self._handle, runtime, runtime.monotonic_s, count(1))

    def send(self, message: ToWorker) -> None:
        if self._task is None:
            self._task = self._runtime.spawn("pyspark-mq host", self._host.life(), self._host.arrived)
        self._task.check()
        if isinstance(message, Begin):
            self._progress = (self._progress[0], max(self._progress[1], self.now_s()))
        self._host.handle(message)

    def progress(self, key: int) -> tuple[int, float]:  # noqa: ARG002 - one host has all
        if self._task is not None:
            self._task.check()
        return self._progress

    def now_s(self) -> float:
        return self._runtime.monotonic_s()

    def stop(self) -> None:
        for key in list(self._routes):
            self._host.handle(Stop(key))
        self._host.end()

    def _handle(self, event: Event | Progress) -> None:
        if isinstance(event, Progress):
            self._progress = (self._progress[0] + event.broke_off, event.until_s)
        elif isinstance(event, Stopped):
            self._routes.pop(event.key, None)
        else:
            self._emit(event)
