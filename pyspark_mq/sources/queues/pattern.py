"""Looks up the broker's queues that match a pattern, at regular intervals over HTTP."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence

from pyspark_mq.errors import BrokerError, BrokerUnavailableError
from pyspark_mq.sources.runtime import Runtime, Task

__all__ = ["QueueWatch", "matching"]

_LOG = logging.getLogger("pyspark_mq")


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that match a regular expression from their first to their last character."""
    return [name for name in names if re.fullmatch(pattern, name)]


class QueueWatch:
    """Looks up the queues that match a pattern, and remembers the last result.

    Args:
        pattern: regular expression that a queue's whole name must match.
        ask: returns the names of all queues of the broker.
        interval_s: seconds between two look-ups.
        patience_s: longest wait for the first answer.
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

    def poll(self) -> list[str]:
        """Look the queues up now, and return the names of those that match.

        Raises:
            BrokerError: the broker did not give a usable answer.
        """
        self._seen = matching(self._pattern, self._ask())
        return self._seen

    def begin(self) -> list[str]:
        """Look the queues up now, and from now on at each interval. Return the names of those that match now.

        Raises:
            BrokerUnavailableError: the broker did not answer in time.
            RefusedError: the broker refused to list its queues.
        """
        give_up_s = self._runtime.monotonic_s() + self._patience_s
        while True:
            try:
                names = self.poll()
                break
            except BrokerUnavailableError:
                if self._runtime.monotonic_s() + self._runtime.timing.pattern_retry_s > give_up_s:
                    raise
                self._runtime.sleep(self._runtime.timing.pattern_retry_s)
        self._task = self._runtime.spawn("pyspark-mq queues", self._life(), self._stopping)
        return names

    def seen(self) -> list[str]:
        """Return the names of the queues that matched at the last look-up.

        Raises:
            MqError: the background task has failed.
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
                self.poll()
            except BrokerError as error:
                _LOG.warning("%s; still reading the queues known so far", error)
            yield self._interval_s
