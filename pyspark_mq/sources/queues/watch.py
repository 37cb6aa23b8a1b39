"""How many messages wait in a queue, by the broker's management, where the session is not told.

For the counter `backlog` alone: what is asked every few seconds is too old to plan by.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from pyspark_mq.errors import BrokerError
from pyspark_mq.sources.runtime import Runtime, Task

__all__ = ["BacklogWatch", "company"]

_LOG = logging.getLogger("pyspark_mq")

#: RabbitMQ renews what its API tells every five seconds (`collect_statistics_interval`).
_INTERVAL_S = 5.0
#: A number that could not be renewed for so long says nothing of now. A question may take half of it.
_OLD_S = 60.0


class BacklogWatch:
    """Depths of queues, as they were seen last.

    Args:
        ask: messages waiting in a queue, None if that is not told.
        queues: names of those to ask for.
        runtime: what the looks run on.
    """

    def __init__(self, ask: Callable[[str], int | None], queues: Callable[[], list[str]], runtime: Runtime) -> None:
        self._ask = ask
        self._queues = queues
        self._runtime = runtime
        self._stopping = threading.Event()
        self._task: Task | None = None
        self._seen: dict[str, int | None] = {}
        self._seen_s = 0.0
        self._silent = False

    def begin(self) -> None:
        """Look from now on, beside the caller. May be called again."""
        if self._task is None:
            self._task = self._runtime.spawn("pyspark-mq backlog", self._life(), self._stopping)

    def seen(self, queue: str) -> int | None:
        """What waited there when it was looked last; None if that is not known, or was too long ago.

        Raises:
            MqError: it is not looked any more.
        """
        if self._task is not None:
            self._task.check()
        fresh = self._runtime.monotonic_s() - self._seen_s <= _OLD_S
        return self._seen.get(queue) if fresh else None

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def _life(self) -> Iterator[float]:
        while not self._stopping.is_set():
            try:
                self._seen = {queue: self._ask(queue) for queue in self._queues()}
                self._seen_s, self._silent = self._runtime.monotonic_s(), False
            except BrokerError as error:
                # An old number would be taken for a new one.
                self._seen = {}
                if not self._silent:
                    _LOG.warning("%s; counter 'backlog' is not known meanwhile", error)
                self._silent = True
            yield _INTERVAL_S


def company(others: int) -> str:
    """What it means that the broker reports so many other consumers."""
    return (
        f"the broker reports {others} other consumer(s). What they are handed is missing here; a query that reads "
        "a queue twice, as a self-join does, sees each message on one side only. Give each reader a queue of "
        "its own, or read once and use the result twice"
    )
