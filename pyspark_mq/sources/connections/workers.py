"""Workers that keep a query's connections: threads of this process, or other processes.

A queue adds as many keepers as it has connections, asks them for things, and gets events. Which worker holds a keeper,
and where, makes no difference to it.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import TypeAlias

from pyspark_mq.sources.connections.events import Event, EventQueue, Progress, Stopped
from pyspark_mq.sources.connections.requests import Stop, ToWorker
from pyspark_mq.sources.runtime import Runtime, Task

__all__ = ["Emit", "Worker", "Workers"]

#: For how long the end of connections is waited for.
_END_TIMEOUT_S = 2.0

#: Called with the events of a worker's keepers, by one thread of each worker.
Emit: TypeAlias = "Callable[[Event | Progress], None]"


class Worker(ABC):
    """A thread or a process that keeps sessions.

    Nothing is in flight unseen: what a session has taken in was emitted, or lies behind the worker's progress mark.

    Args:
        emit: called with the events of its keepers, on one thread.
        runtime: time and threads.
        now_s: the clock of progress marks.
    """

    _task: Task | None = None
    #: Number of times it has stood still, and its progress mark.
    _progress = (0, -math.inf)

    def __init__(self, emit: Emit, runtime: Runtime, now_s: Callable[[], float]) -> None:
        self._emit, self._runtime, self.now_s = emit, runtime, now_s

    @abstractmethod
    def send(self, message: ToWorker) -> None:
        """Ask for something. Never blocks. Raises an MqError if it has died."""

    @property
    def progress(self) -> tuple[int, float]:
        """Number of times it has stood still, and its progress mark. Raises an MqError if it has died."""
        if self._task is not None:
            self._task.check()
        return self._progress

    @abstractmethod
    def stop(self) -> None:
        """Have all connections closed."""

    def join(self, timeout_s: float) -> None:
        """Wait for its end, for so long at most."""
        if self._task is not None:
            self._task.join(timeout_s)


@dataclass(slots=True)
class _Route:
    """The way to a keeper, and of its events.

    Attributes:
        asked_s: when it was asked to stop.
        stopped: set once it has.
    """

    worker: Worker
    events: EventQueue
    asked_s: float = math.inf
    stopped: threading.Event = field(default_factory=threading.Event)


class Workers:
    """Workers of a query, to which keepers are dealt in turn. Called by the query's thread.

    Args:
        make: makes workers that emit there; they have one clock.
    """

    def __init__(self, make: Callable[[Emit], Sequence[Worker]], runtime: Runtime) -> None:
        self._runtime = runtime
        self._workers = make(self._emit)
        self._turns = cycle(self._workers)
        self._keys = count(1)
        self._routes: dict[int, _Route] = {}

    def add(self, events: EventQueue) -> int:
        """Return the key of a new keeper, whose events go there. It does nothing yet."""
        key = next(self._keys)
        self._routes[key] = _Route(next(self._turns), events)
        return key

    def send(self, message: ToWorker) -> None:
        """Ask the worker of a keeper for something, see :meth:`Worker.send`."""
        route = self._routes.get(message.key)
        if route is None:
            return  # it has stopped
        if isinstance(message, Stop):
            if route.asked_s < math.inf:
                return
            route.asked_s = self._runtime.monotonic_s()
        route.worker.send(message)

    def join(self, keys: Iterable[int]) -> None:
        """Wait until keepers that were asked to stop have, for a moment from then on."""
        for route in [self._routes[key] for key in keys if key in self._routes]:
            # A process that stands still says later that its session has ended, or is killed for its silence.
            left_s = route.asked_s + _END_TIMEOUT_S - self._runtime.monotonic_s()
            self._runtime.wait(route.stopped, max(0.0, left_s))

    def progress(self, key: int) -> tuple[int, float]:
        """Return how often a keeper's worker has stood still, and its progress mark."""
        route = self._routes.get(key)
        return (0, self.now_s()) if route is None else route.worker.progress

    def now_s(self) -> float:
        return self._workers[0].now_s()

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join(_END_TIMEOUT_S)

    def _emit(self, event: Event | Progress) -> None:
        if isinstance(event, Progress):
            return  # the worker has noted it
        if isinstance(event, Stopped):
            route = self._routes.pop(event.key, None)
            if route is not None:
                route.stopped.set()
        elif event.key in self._routes:
            self._routes[event.key].events.put(event)
