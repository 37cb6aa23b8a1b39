"""The queues of a broker that match a pattern, polled over HTTP."""

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
    """Select the names that a regular expression matches in full."""
    return [name for name in names if re.fullmatch(pattern, name)]


class QueueWatch:
    """The matching queues, as of the last poll.

    Args:
        pattern: regular expression for a full name.
        ask: lists all queue names.
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
        """Poll now.

        Raises:
            BrokerError: the broker gave no usable answer.
        """
        self._seen = matching(self._pattern, self._ask())
        return self._seen

    def begin(self) -> list[str]:
        """Poll now, and then once in each interval.

        Raises:
            BrokerUnavailableError: the broker gave no answer in time.
            RefusedError: the broker answers but does not list queues.
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
        """Return the names that matched at the last poll.

        Raises:
            MqError: polling has ended.
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
