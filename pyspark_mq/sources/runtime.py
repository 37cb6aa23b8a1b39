"""Time, waiting and threads: all that receiving asks of the machine it runs on.

Epochs, queues, supervisors and workers take them from a :class:`Runtime`, so that a whole source can be run
through hours of faults in a moment, on one thread and in an order that can be repeated. Only what talks to the
operating system uses the machine's own: sessions, which have its clock and wait for sockets, and the watch on
the parent process.
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
    """Run something in the background, for as long as the process lives.

    Every thread of this package begins here, so that none dies in silence or on standard error: what ends one is passed
    to somebody who makes it an error of the query.

    Args:
        died: called on the thread with what has ended the work.
    """

    def live() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, a panic of Arrow or an exit too
            died(error)

    thread = threading.Thread(target=live, name=name, daemon=True)
    thread.start()
    return thread


class Task(ABC):
    """Something that goes on in the background.

    Attributes:
        died: the error that has ended it; None if it lives or has come to its end.
    """

    died: BaseException | None = None

    @abstractmethod
    def join(self, timeout_s: float) -> None:
        """Wait for its end, for this time at most."""

    def check(self, where: str = "") -> None:
        """Raise if the task has died. For whoever relies on it.

        Args:
            where: begins the error, such as the queue that it works for.

        Raises:
            MqError: it has died.
        """
        if isinstance(self.died, MqError):
            raise self.died
        if self.died is not None:
            text = f"{where}a thread of the source has died: {type(self.died).__name__}: {self.died}"
            raise InternalError(text) from self.died


class Runtime(ABC):
    """A clock, a way to wait, and tasks that go on meanwhile.

    Attributes:
        timing: how long the source waits for what.
    """

    timing: Timing = Timing()

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
    def sync(self) -> None:
        """Wait until everything that any process of this machine has written is on its disks."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Sleep; tasks go on."""

    @abstractmethod
    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait until the event is set, or the time is over; tasks go on."""

    @abstractmethod
    def jitter(self) -> float:
        """From 0.5 to 1.0, another each time: clients of a broker that was restarted must not return at once."""

    @abstractmethod
    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Task:
        """Run `life` in the background until it is exhausted.

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
        #: What has ended its thread.
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

        # It ends with its clock, so it may not hold it.
        begin_thread("pyspark-mq clock", look, died)

    def now_s(self) -> float:
        if self.died is not None:
            raise InternalError("the thread that looks at the clock has died") from self.died
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
        os.sync()  # Linux waits until it is written: sync(2)

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

        task = _Thread()
        task.thread = begin_thread(name, live, task.end)
        return task


class _Thread(Task):
    thread: threading.Thread

    def end(self, error: BaseException) -> None:
        self.died = error

    def join(self, timeout_s: float) -> None:
        self.thread.join(timeout_s)
