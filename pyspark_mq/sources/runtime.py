"""Clock, waiting and threads: what the source needs from the machine on which it runs.

Epochs, queues, supervisors and workers use a :class:`Runtime` for all three. Tests replace it, and can then run a whole
source through hours of faults in a moment, on one thread and in a repeatable order. Only code that talks to the
operating system uses the machine's own clock and threads: sessions, which wait for sockets, and the watch on the parent
process.
"""

from __future__ import annotations

import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from weakref import ref

from pyspark_mq.errors import InternalError, MqError
from pyspark_mq.sources.timing import Timing

__all__ = ["Runtime", "Task", "Threads", "begin_thread"]


def begin_thread(name: str, work: Callable[[], None], died: Callable[[BaseException], None]) -> threading.Thread:
    """Run a function on a new thread, which does not keep the process from ending.

    Every thread of this package is started here, so that no thread fails unnoticed: `died` receives the error that
    ended the thread, and the query can raise it.

    Args:
        name: name of the thread.
        work: the function.
        died: called on the thread with the error that has ended it.
    """

    def live() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - any error, even a panic of Arrow or an exit
            died(error)

    thread = threading.Thread(target=live, name=name, daemon=True)
    thread.start()
    return thread


class Task(ABC):
    """A task that runs in the background.

    Attributes:
        died: the error that has ended the task; None if the task is running, or has ended without an error.
    """

    died: BaseException | None = None

    @abstractmethod
    def join(self, timeout_s: float) -> None:
        """Wait until the task has ended, but at most `timeout_s` seconds."""

    def check(self, where: str = "") -> None:
        """Raise an error if the task has ended with an error.

        Args:
            where: beginning of the error's text, for example the queue to which the task belongs.

        Raises:
            MqError: the task has ended with an error.
        """
        if isinstance(self.died, MqError):
            raise self.died
        if self.died is not None:
            text = f"{where}a thread of the source has died: {type(self.died).__name__}: {self.died}"
            raise InternalError(text) from self.died


class Runtime(ABC):
    """Provides clocks, waiting, and background tasks.

    Attributes:
        timing: how long the source waits in each case.
    """

    timing: Timing = Timing()

    @abstractmethod
    def monotonic_s(self) -> float:
        """Return the seconds for which this process has run. The value never decreases.

        The clock stands still while the process is stopped or frozen, or the machine is paused. During this time the
        process could not receive anything, so this time must not count towards any wait (rule 18).
        """

    @abstractmethod
    def machine_s(self) -> float:
        """Return the seconds on a clock that all processes of the machine share. The value never decreases."""

    @abstractmethod
    def utc_us(self) -> int:
        """Return the microseconds since 1970."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until everything that processes of this machine have written is on the machine's disks."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds. Background tasks continue."""

    @abstractmethod
    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait until the event is set, but at most for this number of seconds. Background tasks continue."""

    @abstractmethod
    def jitter(self) -> float:
        """Return a random factor from 0.5 to 1.0 for a pause, so that not all clients reconnect to a broker at once."""

    @abstractmethod
    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Task:
        """Run `life` in the background until it is exhausted.

        Args:
            name: name of the task.
            life: an iterator whose steps do the work. Each step yields the seconds to wait before the next step.
            interrupt: an event that ends a wait early if it is set.
        """


#: Interval at which the process's clock is read, and maximum time that is counted between two readings. A longer time
#: means that the process was stopped, so the rest is not counted. If the machine was only busy, the clock now falls
#: behind, and waits become longer, which is harmless.
_LOOK_S = 0.25
_LOOK_MAX_S = 1.0


class _Clock:
    """Measures the time for which this process runs, by reading the machine's clock often, on a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run_s = 0.0
        self._seen_s = time.monotonic()
        #: The error that has ended the clock's thread; None if the thread is running.
        self.died: BaseException | None = None
        me = ref(self)

        def look() -> None:
            while (clock := me()) is not None:
                clock.now_s()
                del clock
                time.sleep(_LOOK_S)

        def died(why: BaseException) -> None:
            if (clock := me()) is not None:
                clock.died = why

        # The thread ends when the clock is deleted, so it must not hold a reference to the clock.
        begin_thread("pyspark-mq clock", look, died)

    def now_s(self) -> float:
        if self.died is not None:
            raise InternalError("the clock thread has died") from self.died
        with self._lock:
            now_s = time.monotonic()
            self._run_s += min(now_s - self._seen_s, _LOOK_MAX_S)
            self._seen_s = now_s
            return self._run_s


class Threads(Runtime):
    """The runtime outside tests, with the machine's clock and threads."""

    _clock: _Clock | None = None

    def monotonic_s(self) -> float:
        if self._clock is None:
            self._clock = _Clock()
        return self._clock.now_s()

    def machine_s(self) -> float:
        return time.monotonic()

    def utc_us(self) -> int:
        return time.time_ns() // 1_000

    def sync(self) -> None:
        os.sync()  # Linux waits for the write: sync(2)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> None:
        event.wait(seconds)

    def jitter(self) -> float:
        return random.uniform(0.5, 1.0)  # not for secrecy

    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Task:
        def live() -> None:
            for rest_s in life:
                if rest_s:
                    interrupt.wait(rest_s)

        task = _Thread()
        task.thread = begin_thread(name, live, task.end)
        return task


class _Thread(Task):
    thread: threading.Thread

    def end(self, error: BaseException) -> None:
        self.died = error

    def join(self, timeout_s: float) -> None:
        self.thread.join(timeout_s)
