"""Time, waiting and threads: everything that receiving needs from the machine it runs on.

Epochs, queues, supervisors and workers use a :class:`Runtime` for these, so tests can run a whole source through hours
of faults in a moment, on one thread and in a repeatable order. Only code that talks to the operating system uses the
machine's own clock and threads: sessions, which wait for sockets, and the watch on the parent process.
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
    """Run a function in the background, for as long as the process lives.

    Every thread of this package starts here, so that no thread dies silently, or only with a message on standard error.
    The thread's error reaches code that raises it in the query.

    Args:
        died: called on the thread with the error that ended the thread.
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
    """A background task.

    Attributes:
        died: the error that ended the task; None if the task is running or has finished.
    """

    died: BaseException | None = None

    @abstractmethod
    def join(self, timeout_s: float) -> None:
        """Wait for the task to end, at most `timeout_s`."""

    def check(self, where: str = "") -> None:
        """Check the task.

        Args:
            where: prefix of the error, such as the task's queue.

        Raises:
            MqError: the task has died.
        """
        if isinstance(self.died, MqError):
            raise self.died
        if self.died is not None:
            text = f"{where}a thread of the source has died: {type(self.died).__name__}: {self.died}"
            raise InternalError(text) from self.died


class Runtime(ABC):
    """A clock, waits, and background tasks.

    Attributes:
        timing: the source's waits.
    """

    timing: Timing = Timing()

    @abstractmethod
    def monotonic_s(self) -> float:
        """Return the seconds for which this process has run; the value never decreases.

        The clock stands still while the process is stopped or frozen, or the machine is paused. In that time the broker
        could not deliver anything, so the time must not count towards any wait (rule 18).
        """

    @abstractmethod
    def machine_s(self) -> float:
        """Return the seconds on the clock that all processes of the machine share; the value never decreases."""

    @abstractmethod
    def utc_us(self) -> int:
        """Return the microseconds since 1970."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until everything written on this machine, by any process, is on its disks."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Sleep while tasks continue."""

    @abstractmethod
    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait until the event is set or the time is over, while tasks continue."""

    @abstractmethod
    def jitter(self) -> float:
        """Return a random factor from 0.5 to 1.0, so that not all clients return to a restarted broker at once."""

    @abstractmethod
    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Task:
        """Run `life` in the background until it is exhausted.

        Args:
            life: an iterator that yields the seconds to wait before the next step, and handles its own errors.
            interrupt: ends a wait early when set.
        """


#: Interval at which the process's clock is checked, and the most time counted between two checks. If a busy machine
#: delays a check, the excess is not counted, which only makes waits longer.
_LOOK_S = 0.25
_LOOK_MAX_S = 1.0


class _Clock:
    """Counts the time for which this process runs, on a separate thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run_s = 0.0
        self._seen_s = time.monotonic()
        #: The error that ended the clock's thread.
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
