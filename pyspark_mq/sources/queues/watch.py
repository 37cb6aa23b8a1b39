"""Watches for problems of a queue that its deliveries do not show, such as other consumers or missing confirmations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

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

#: The last known depth of a queue is outdated after this number of intervals without an answer, or after
#: :attr:`.Timing.old_depth_s` if that is longer.
_LOOKS_MISSED = 2
_OTHERS, _UNCONFIRMED = "others", "unconfirmed"


class BacklogWatch:
    """Asks the management interface how many messages wait in queues whose sessions do not report this.

    The result is used only for the counter `backlog`, because it may be several seconds old.

    Args:
        ask: returns how many messages wait in a queue (its *depth*); None if the broker does not report it.
        interval_s: seconds between two rounds of requests. RabbitMQ itself refreshes the numbers every five seconds
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
        """From now on, query these queues in the background. Another call replaces the list of queues."""
        self._queues = queues
        if self._task is None and queues:
            self._task = self._runtime.spawn("pyspark-mq backlog", self._life(), self._stopping)

    def seen(self, queue: str) -> int | None:
        """Return the last known depth of a queue; None if it is unknown or outdated.

        Raises:
            MqError: the background task has failed.
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
                # Forget the depths, because they would soon be outdated.
                self._seen = {}
                if not self._silent:
                    _LOG.warning("%s; counter 'backlog' is unknown meanwhile", error)
                self._silent = True
            yield self._interval_s


def other_consumers(count: int) -> str:
    """Return the warning that a queue has other consumers.

    Args:
        count: number of the other consumers.
    """
    return (
        f"the broker reports {count} other consumer(s). This query does not get the messages that are delivered to "
        "them. A query that reads a queue twice, as a self-join does, sees each message on one side only. Give each "
        "reader a queue of its own, or read the queue once and use the result twice"
    )


class QueueWatches:
    """Watches one queue for problems that its deliveries do not show, and logs each kind of problem once.

    * The queue has other consumers, which get a part of the messages. The warning waits for a while, because such a
      consumer may be a former connection of this query whose end the broker has not noticed yet.
    * The broker does not confirm acknowledgements.
    * A session receives no messages although the broker reports some. A cluster node that is cut off from the majority
      may report messages without delivering them; from RabbitMQ 4.3 on, such a node continues to serve clients. If the
      broker has other nodes, the session is ended and another one is opened. This is harmless, because the session
      holds no messages.

    Args:
        settings: the query's settings, with this queue as the endpoint.
    """

    def __init__(
        self,
        settings: Settings,
        settling: Settling,
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
        #: Problem -> time when it began.
        self._since_s: dict[str, float] = {}
        self._warned: set[str] = set()

    def confirmed(self) -> None:
        self._since_s.pop(_UNCONFIRMED, None)

    def poll(self, now_s: float, *, up: bool) -> None:
        """Check for problems. Called when all events of the queue were processed.

        Args:
            up: whether every connection is open and deliveries are processed.
        """
        if up:
            others = self._connections.other_consumers
            if self._lasts(_OTHERS, now_s, self._half_open_s, so=others > 0):
                self._warn(_OTHERS, other_consumers(others))
        for session, live in self._connections.live.items() if self._clustered else ():
            depth = self._connections.depth_in(session)
            ready = 0 if depth is None or self._windows.unacked_in(session) else depth.ready
            if not ready:
                live.silent_since_s = None
            elif live.silent_since_s is None:
                live.silent_since_s = now_s
            elif now_s - live.silent_since_s > self._timing.silence_s:
                live.silent_since_s = None
                why = f"the broker reports {ready} messages, but delivered none for {self._timing.silence_s:.0f} s"
                self._connections.replace_session(session, why)
        if self._lasts(_UNCONFIRMED, now_s, self._timing.confirmation_s, so=self._settling.unconfirmed()):
            self._warn(
                _UNCONFIRMED,
                f"messages were acknowledged, but the broker has confirmed none for {self._timing.confirmation_s:.0f} "
                "s. Until the broker confirms them, their IDs stay in the checkpoint, and the messages may be "
                "redelivered if the connection ends. Look for the reason in the broker's log. If the network is slow, "
                "lower 'prefetch', because a confirmation arrives only after all messages that were delivered before "
                "it",
            )

    def _lasts(self, what: str, now_s: float, most_s: float, *, so: bool) -> bool:
        if not so:
            self._since_s.pop(what, None)
        return so and now_s - self._since_s.setdefault(what, now_s) > most_s

    def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _LOG.warning("%s: %s", self._settings.endpoint.destination, text)
