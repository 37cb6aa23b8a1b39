"""Watches what deliveries do not show of a queue: its depth, other consumers, silence."""

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

#: Looks after which a depth is old, where that is longer than :attr:`.Timing.old_depth_s`.
_LOOKS_MISSED = 2
_OTHERS, _UNCONFIRMED = "others", "unconfirmed"


class BacklogWatch:
    """Depths of queues by the broker's management, where no session reports them, as they were seen last.

    For the counter `backlog` alone: what is asked every few seconds is too old to plan by.

    Args:
        ask: messages waiting in a queue, None if it does not say.
        interval_s: how often to look. RabbitMQ renews what its API reports every five seconds
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
        """Look for these from now on, in the background. May be called again."""
        self._queues = queues
        if self._task is None and queues:
            self._task = self._runtime.spawn("pyspark-mq backlog", self._life(), self._stopping)

    def seen(self, queue: str) -> int | None:
        """The depth when it was looked last; None if that is not known, or was too long ago.

        Raises:
            MqError: it is not looked any more.
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
                # An old number would be taken for a new one.
                self._seen = {}
                if not self._silent:
                    _LOG.warning("%s; counter 'backlog' is not known meanwhile", error)
                self._silent = True
            yield self._interval_s


def other_consumers(count: int) -> str:
    """The warning about other consumers."""
    return (
        f"the broker reports {count} other consumer(s). What they are handed is missing here; a query that reads "
        "a queue twice, as a self-join does, sees each message on one side only. Give each reader a queue of "
        "its own, or read once and use the result twice"
    )


class QueueWatches:
    """Watches what deliveries do not show of one queue. What the log says of it is said once.

    * Others that read it: each sees a part of it. For as long as a dead connection of our own may be counted, it may be
      that.
    * Acknowledgements of which the broker confirms none.
    * Sessions that are handed nothing of what there is. A node of a cluster may have messages by its word, and hand
      none out: it is cut off from the majority. From RabbitMQ 4.3 on such a node goes on to serve clients. Where there
      are others to go to, a session that holds nothing is ended then, which costs nothing.

    Args:
        settings: the query's, with this queue as its endpoint.
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
        #: Since when each of these has been so; a session by its number.
        self._since_s: dict[str | int, float] = {}
        self._warned: set[str] = set()

    def confirmed(self) -> None:
        self._since_s.pop(_UNCONFIRMED, None)

    def forget(self, session: int) -> None:
        self._since_s.pop(session, None)

    def poll(self, now_s: float, *, up: bool) -> None:
        """Take note of how things are, after everything that came.

        Args:
            up: every receiver is connected, and deliveries are taken.
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
                why = f"{ready} messages wait by the broker's word, and none came for {self._timing.silence_s:.0f} s"
                self._connections.renew(session, why)
        if self._lasts(_UNCONFIRMED, now_s, self._timing.confirmation_s, so=self._settling.unconfirmed()):
            self._warn(
                _UNCONFIRMED,
                f"messages were acknowledged, and the broker has confirmed none for {self._timing.confirmation_s:.0f} "
                "s. Until it does their IDs are kept in the checkpoint, and they come again if the connection ends. "
                "Look for the reason in the broker's log; where the link is slow, lower 'prefetch', as a confirmation "
                "comes behind all messages that were handed out before it",
            )

    def _lasts(self, what: str | int, now_s: float, most_s: float, *, so: bool) -> bool:
        if not so:
            self._since_s.pop(what, None)
        return so and now_s - self._since_s.setdefault(what, now_s) > most_s

    def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _LOG.warning("%s: %s", self._settings.endpoint.destination, text)
