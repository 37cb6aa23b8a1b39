"""The queues of a broker that match a pattern: asked over HTTP, once at the start and then at an interval."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from pyspark_mq.errors import BrokerError, BrokerUnavailableError, OptionError
from pyspark_mq.sources.runtime import Runtime, Task

__all__ = ["QueueWatch", "matching"]

_LOG = logging.getLogger("pyspark_mq")

#: What lets a pattern be tried in more than one way. With one of them, no name takes long.
_CHOICES = "*+?{|"
#: What it may compute for all names, and what its process may take besides: as the machine is busy or stands still.
_MATCH_CPU_S = 5
_MATCH_TIMEOUT_S = 120
#: The kernel ends it, so that it is nothing but the pattern that counts, and one that is forgotten ends too.
_MATCH = """
import json, re, resource, sys
cpu_s, pattern, names = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
print(json.dumps([name for name in names if re.fullmatch(pattern, name)]))
"""


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The names that a regular expression matches as a whole.

    Python may try a pattern such as `(a+)+b` for longer than the universe is old, and nothing can interrupt it. So one
    that may be tried in several ways is tried in a process of its own, which has some seconds.

    Raises:
        OptionError: it took longer.
        BrokerUnavailableError: the process could not do it.
    """
    if sum(map(pattern.count, _CHOICES)) <= 1:
        return [name for name in names if re.fullmatch(pattern, name)]
    task, failed = json.dumps([_MATCH_CPU_S, pattern, names]), f"{pattern!r} cannot be matched with {len(names)} names"
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", _MATCH], input=task, capture_output=True, text=True, timeout=_MATCH_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise BrokerUnavailableError(f"{failed} of queues: {error}") from None
    if done.returncode == -signal.SIGXCPU:
        problem = f"{failed} of queues: it took longer than {_MATCH_CPU_S} s of a processor. Write it with fewer "
        raise OptionError("queuePattern", f"{problem}repetitions within each other, or one after the other")
    if done.returncode:
        raise BrokerUnavailableError(f"{failed} of queues: its process ended with {done.returncode}")
    found: list[str] = json.loads(done.stdout)
    return found


class QueueWatch:
    """The queues that match, as they were seen last.

    Args:
        pattern: regular expression for a whole name.
        ask: lists all names that there are.
        patience_s: how long the first answer is waited for.
    """

    def __init__(
        self, pattern: str, ask: Callable[[], Sequence[str]], interval_s: float, patience_s: float, runtime: Runtime
    ) -> None:
        self._pattern = pattern
        self._ask = ask
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._runtime = runtime
        self._stopping = threading.Event()
        self._task: Task | None = None
        self._seen: list[str] = []

    @property
    def begun(self) -> bool:
        return self._task is not None

    def look(self) -> list[str]:
        """Ask now.

        Raises:
            BrokerError: there is no answer, or none of use.
            OptionError: the pattern takes too long.
        """
        self._seen = matching(self._pattern, self._ask())
        return self._seen

    def begin(self) -> list[str]:
        """The first look, and from now on one at each interval.

        Raises:
            BrokerUnavailableError: nobody answers in time.
            RefusedError: the broker answers and does not list them.
        """
        give_up_s = self._runtime.monotonic_s() + self._patience_s
        while True:
            try:
                names = self.look()
                break
            except BrokerUnavailableError:
                if self._runtime.monotonic_s() + self._runtime.timing.pattern_retry_s > give_up_s:
                    raise
                self._runtime.sleep(self._runtime.timing.pattern_retry_s)
        self._task = self._runtime.spawn("pyspark-mq queues", self._life(), self._stopping)
        return names

    def seen(self) -> list[str]:
        """The names that matched when it was looked last.

        Raises:
            MqError: it is not looked any more.
        """
        if self._task is not None:
            self._task.check()
        return self._seen

    def stop(self) -> None:
        self._stopping.set()

    def _life(self) -> Iterator[float]:
        yield self._interval_s
        while not self._stopping.is_set():
            try:
                self.look()
            except BrokerError as error:
                _LOG.warning("%s; the queues known so far are read on", error)
            yield self._interval_s
