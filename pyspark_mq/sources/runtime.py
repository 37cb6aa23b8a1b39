"""Time, waiting and threads: all that receiving asks of the machine it runs on.

Everything under ``sources/`` but the protocols takes them from a :class:`Runtime`, so that a whole
source can be run through hours of bad weather in a moment, on one thread and in an order that can be
repeated. A protocol has sockets and deadlines of its own and uses the machine's clock.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from weakref import ref

__all__ = ["Runtime", "Task", "Threads"]


class Task(ABC):
    """Something that goes on beside the caller."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Has it begun and not ended?"""

    @abstractmethod
    def join(self, timeout_s: float) -> None:
        """Wait for its end, for so long at most."""


class Runtime(ABC):
    """A clock, a way to wait, and tasks that go on meanwhile."""

    @abstractmethod
    def monotonic_s(self) -> float:
        """Seconds for which this process has run since some moment; never goes back.

        It stands still while the process does (stopped, frozen, its machine paused): such time is no time in which
        a broker had its chance, so it ends no wait (rule 18).
        """

    @abstractmethod
    def machine_s(self) -> float:
        """Seconds on the clock that all processes of the machine share; never goes back."""

    @abstractmethod
    def utc_us(self) -> int:
        """Microseconds since 1970."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Do nothing for so long; tasks go on."""

    @abstractmethod
    def wait(self, event: threading.Event, seconds: float) -> None:
        """Until the event is set, or for so long; tasks go on."""

    @abstractmethod
    def jitter(self) -> float:
        """From 0.5 to 1.0, another each time: clients of a broker that was restarted must not return at once."""

    @abstractmethod
    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Task:
        """Run `life` beside the caller until it is exhausted.

        Args:
            life: yields how many seconds to rest before it is resumed. It handles its own errors.
            interrupt: ends a rest early.
        """


#: How often the clock of a process is looked at, and how much passes at most from one look to the next. A look that
#: is late as the machine is busy costs the rest, which only makes waits longer.
_LOOK_S = 0.25
_LOOK_MAX_S = 1.0


class _Clock:
    """Counts the time for which this process runs, looked at by a thread that does nothing else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run_s = 0.0
        self._seen_s = time.monotonic()
        me = ref(self)

        def look() -> None:
            while (clock := me()) is not None:
                clock.now_s()
                del clock
                time.sleep(_LOOK_S)

        threading.Thread(target=look, name="pyspark-mq clock", daemon=True).start()

    def now_s(self) -> float:
        with self._lock:
            now_s = time.monotonic()
            self._run_s += min(now_s - self._seen_s, _LOOK_MAX_S)
            self._seen_s = now_s
            return self._run_s


class Threads(Runtime):
    """The machine's clock and threads."""

    _clock: _Clock | None = None

    def monotonic_s(self) -> float:
        if self._clock is None:
            self._clock = _Clock()
        return self._clock.now_s()

    def machine_s(self) -> float:
        return time.monotonic()

    def utc_us(self) -> int:
        return time.time_ns() // 1_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> None:
        event.wait(seconds)

    def jitter(self) -> float:
        return random.uniform(0.5, 1.0)  # not secrecy

    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Task:
        def live() -> None:
            for rest_s in life:
                if rest_s:
                    interrupt.wait(rest_s)

        thread = _Thread(threading.Thread(target=live, name=name, daemon=True))
        thread.start()
        return thread


class _Thread(Task):
    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
