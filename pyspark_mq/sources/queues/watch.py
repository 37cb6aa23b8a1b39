"""Watches what deliveries do not show about a queue: its depth, other consumers, silence."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark_mq.ack.settling import Settling
from pyspark_mq.errors import BrokerError
from pyspark_mq.sources.connections.connections import Connections
from pyspark_mq.sources.queues.connected import half_open_s
from pyspark_mq.sources.queues.windows import Windows
from pyspark_mq.sources.runtime import Runtime, Task
from pyspark_mq.sources.settings import Settings
from pyspark_mq.sources.timing import Timing

__all__ = ["BacklogWatch", "QueueWatches", "other_consumers"]

_LOG = logging.getLogger("pyspark_mq")

#: A depth is too old after this many intervals of polls, or after :attr:`.Timing.old_depth_s` if that is longer.
_LOOKS_MISSED = 2
_OTHERS, _UNCONFIRMED = "others", "unconfirmed"


class BacklogWatch:
    """Polls the broker's management for the depths of queues whose depth no session reports.

    The depths are only for the counter `backlog`. A depth polled every few seconds is too old for planning.

    Args:
        ask: asks how many messages wait in a queue; returns None without an answer.
        interval_s: seconds between polls. RabbitMQ refreshes its API every five seconds
            (`collect_statistics_interval`).
    """

    def __init__(self, ask: Callable[[str], int | None], interval_s: float, runtime: Runtime) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._old_s = max(runtime.timing.old_depth_s, _LOOKS_MISSED * interval_s)
        self._queues: Sequence[str] = ()
        self._runtime = runtime
        self._stopping = threading.Event()
        self._task: Task | None = None
        self._seen: dict[str, int | None] = {}
        self._seen_s = 0.0
        self._silent = False

    def begin(self, queues: Sequence[str]) -> None:
        """Poll these queues from now on, in the background. May be called again."""
        self._queues = queues
        if self._task is None and queues:
            self._task = self._runtime.spawn("pyspark-mq backlog", self._life(), self._stopping)

    def seen(self, queue: str) -> int | None:
        """Return the depth at the last poll; None if unknown or too old.

        Raises:
            MqError: polling has ended.
        """
        if self._task is not None:
            self._task.check()
        fresh = self._runtime.monotonic_s() - self._seen_s <= self._old_s
        return self._seen.get(queue) if fresh else None

    def stop(self) -> None:
        self._stopping.set()

    def _life(self) -> Iterator[float]:
        while not self._stopping.is_set():
            try:
                self._seen = {queue: self._ask(queue) for queue in self._queues}
                self._seen_s, self._silent = self._runtime.monotonic_s(), False
            except BrokerError as error:
                # An old depth would be taken for a new one.
                self._seen = {}
                if not self._silent:
                    _LOG.warning("%s; counter 'backlog' is unknown meanwhile", error)
                self._silent = True
            yield self._interval_s


def other_consumers(count: int) -> str:
    """Return the warning about other consumers."""
    return (
        f"the broker reports {count} other consumer(s). Messages delivered to them are missing here. A query that "
        "reads a queue twice, as a self-join does, sees each message on one side only. Give each reader a queue of its "
        "own, or read the queue once and use the result twice"
    )


class QueueWatches:
    """Watches what deliveries do not show about one queue, and logs each problem once.

    * Other consumers, which get a part of the messages. For a while, such a consumer may be a dead connection of ours.
    * Acknowledgements that the broker does not confirm.
    * Sessions that receive nothing although messages are ready. A cluster node that is cut off from the majority may
      report messages and deliver none; from RabbitMQ 4.3 on, such a node continues to serve clients. If there are other
      nodes, a session without messages is ended, which costs nothing.

    Args:
        settings: the query's settings, with this queue as the endpoint.
    """

    def __init__(
        self,
        settings: Settings,
        settling: Settling[Any],
        connections: Connections,
        windows: Windows,
        timing: Timing,
    ) -> None:
        self._settings = settings
        self._half_open_s, self._clustered = half_open_s(settings), settings.endpoint.clustered
        self._timing = timing
        self._settling = settling
        self._connections = connections
        self._windows = windows
        #: Problem -> time since which it has lasted. The problem of a silent session is the session's number.
        self._since_s: dict[str | int, float] = {}
        self._warned: set[str] = set()

    def confirmed(self) -> None:
        self._since_s.pop(_UNCONFIRMED, None)

    def forget(self, session: int) -> None:
        self._since_s.pop(session, None)

    def poll(self, now_s: float, *, up: bool) -> None:
        """Check for problems, after all events were processed.

        Args:
            up: whether every connection is up and deliveries are taken.
        """
        if up:
            others = self._connections.other_consumers
            if self._lasts(_OTHERS, now_s, self._half_open_s, so=others > 0):
                self._warn(_OTHERS, other_consumers(others))
        for session in self._connections.windows if self._clustered else ():
            depth = self._connections.depth_in(session)
            ready = 0 if depth is None or self._windows.unacked_in(session) else depth.ready
            if self._lasts(session, now_s, self._timing.silence_s, so=ready > 0):
                self.forget(session)
                why = f"the broker reports {ready} messages, but delivered none for {self._timing.silence_s:.0f} s"
                self._connections.replace_session(session, why)
        if self._lasts(_UNCONFIRMED, now_s, self._timing.confirmation_s, so=self._settling.unconfirmed()):
            self._warn(
                _UNCONFIRMED,
                f"messages were acknowledged, but the broker has confirmed none for {self._timing.confirmation_s:.0f} "
                "s. Until it does, the messages' IDs stay in the checkpoint, and the messages are redelivered if the "
                "connection ends. Look for the reason in the broker's log. If the network is slow, lower 'prefetch', "
                "because a confirmation arrives only after all messages delivered before it",
            )

    def _lasts(self, what: str | int, now_s: float, most_s: float, *, so: bool) -> bool:
        if not so:
            self._since_s.pop(what, None)
        return so and now_s - self._since_s.setdefault(what, now_s) > most_s

    def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _LOG.warning("%s: %s", self._settings.endpoint.destination, text)
