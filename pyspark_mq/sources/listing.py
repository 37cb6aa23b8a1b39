"""The queues of a broker that match a pattern: asked over HTTP, once at the start and then at an interval."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence

from pyspark_mq.errors import BrokerError, BrokerUnavailableError
from pyspark_mq.sources.runtime import Runtime, Task

__all__ = ["QueueWatch"]

_LOG = logging.getLogger("pyspark_mq")

#: Pause between attempts to ask for the first time.
_RETRY_S = 1.0


class QueueWatch:
    """The queues that match, as they were seen last.

    Args:
        pattern: regular expression for a whole name.
        ask: all names that there are.
        interval_s: between two looks.
        patience_s: how long the first answer is waited for.
        runtime: the clock, and what the looks run on.
    """

    def __init__(
        self, pattern: str, ask: Callable[[], Sequence[str]], interval_s: float, patience_s: float, runtime: Runtime
    ) -> None:
        self._pattern = re.compile(pattern)
        self._ask = ask
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._runtime = runtime
        self._stopping = threading.Event()
        self._task: Task | None = None
        self._seen: list[str] = []

    @property
    def begun(self) -> bool:
        """Has there been a first look?"""
        return self._task is not None

    def look(self) -> list[str]:
        """Ask now.

        Raises:
            BrokerError: there is no answer, or none of use.
        """
        self._seen = [name for name in self._ask() if self._pattern.fullmatch(name)]
        return self._seen

    def begin(self) -> list[str]:
        """The first look, and from now on one at each interval.

        Raises:
            BrokerUnavailableError: nobody answers in time.
            RefusedError: the broker answers and does not tell.
        """
        give_up_s = self._runtime.monotonic_s() + self._patience_s
        while True:
            try:
                names = self.look()
                break
            except BrokerUnavailableError:
                if self._runtime.monotonic_s() + _RETRY_S > give_up_s:
                    raise
                self._runtime.sleep(_RETRY_S)
        self._task = self._runtime.spawn("pyspark-mq queues", self._life(), self._stopping)
        return names

    def seen(self) -> list[str]:
        """What matched when it was looked last.

        Raises:
            MqError: it is not looked any more.
        """
        if self._task is not None:
            self._task.check()
        return self._seen

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def _life(self) -> Iterator[float]:
        yield self._interval_s
        while not self._stopping.is_set():
            try:
                self.look()
            except BrokerError as error:
                _LOG.warning("%s; the queues known so far are read on", error)
            yield self._interval_s
