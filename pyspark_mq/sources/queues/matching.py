"""The queues of a query with option `queuePattern`, which may appear and disappear while the query runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pyspark_mq.errors import BrokerError
from pyspark_mq.sources.journal import LeftOpen
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.pattern import QueueWatch
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.settings import CONNECTIONS_MAX

__all__ = ["MatchingQueues"]

_LOG = logging.getLogger("pyspark_mq")


class MatchingQueues(QueueGroup):
    """The queues that match the pattern and that this user may read. Only the query's thread calls the methods.

    Args:
        list_queues: returns the names of all queues of the broker.
        group: the arguments of :class:`.QueueGroup`.
    """

    def __init__(self, list_queues: Callable[[], Sequence[str]], *group: Any) -> None:
        super().__init__(*group)
        settings = self._settings
        assert settings.pattern is not None, "without a pattern nothing is looked for"
        self._watch = QueueWatch(
            settings.pattern,
            list_queues,
            settings.pattern_interval_s,
            settings.endpoint.connect_timeout_s,
            self._runtime,
        )
        self._most = CONNECTIONS_MAX // settings.consumers
        self._over_limit = False
        #: Matching queues that this user may not read.
        self._refused: set[str] = set()

    def find(self, *known: Position) -> None:
        self.forget_ended()  # so that a queue that was deleted and created again gets a new reader
        destination, most = self._settings.destination, self._most
        if self._watch.begun:
            names = self._watch.seen()
        else:
            names = self._watch.begin()
            if not names:
                _LOG.warning("%s: no queue matches yet; looking again every %g s", destination,
                             self._settings.pattern_interval_s)  # fmt: skip
        if not self._shown and len(names) > most:
            begun = {name for position in known for name in self._memory.queues(position)}
            names = sorted(names, key=lambda name: name not in begun)
            for late in [queue for queue in self if queue.name not in names[:most] and not queue.taking]:
                late.stop()
                del self._queues[late.name]
        self._refused.intersection_update(names)
        new = [name for name in names if self.get(name) is None and name not in self._refused]
        room = max(0, most - len(self))
        for name in new[:room]:
            queue = self._add(self._settings.of_queue(name, len(names)))
            if self._shown:
                _LOG.info("%s: now reading '%s'", destination, name)
                queue.adopt(LeftOpen({}, {}, {}), self.broker_id)
        over_limit = len(new) > room
        if over_limit and not self._over_limit:
            _LOG.error(
                "%s: %d queues match, but only %d are read, because a query opens at most %d connections. Narrow the "
                "pattern, or use several queries; messages in the other queues wait",
                destination, len(names), most, CONNECTIONS_MAX,
            )  # fmt: skip
        self._over_limit = over_limit

    def _may_end(self, queue: QueueReader, error: BrokerError) -> bool:
        """Whether the query continues without a queue.

        True if the queue was deleted. Also True if the user may not read the queue: it was never opened, although
        another queue was, and the query has no open messages of it.
        """
        try:
            listed = queue.name in self._watch.poll()
        except BrokerError:
            return False
        destination = self._settings.destination
        if not listed:
            _LOG.warning("%s: '%s' no longer exists; its planned messages are emitted", destination, queue.name)
            return True
        if queue.connected.ever or queue.in_flight.expected or not any(one.connected.ever for one in self):
            return False
        self._refused.add(queue.name)
        _LOG.error("%s: %s. This queue is skipped, and the others are read. The skipped queue is retried when "
                   "the query restarts, or when the queue reappears", destination, error.text)  # fmt: skip
        return True

    def stop(self) -> None:
        self._watch.stop()
        super().stop()
