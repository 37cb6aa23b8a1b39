"""Decides when a bounded run (`Trigger.AvailableNow`) has read all messages of a queue that belong to it."""

from __future__ import annotations

import logging
import math
from itertools import takewhile

from pyspark_mq.sources.connections.block import BlockRows
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.runtime import Runtime

__all__ = ["EndOfRun", "warn_of_unconfirmed"]

_LOG = logging.getLogger("pyspark_mq")


def warn_of_unconfirmed(destination: str) -> None:
    """Log that a run ends although acknowledgements of messages without an ID are not settled."""
    _LOG.warning(
        "%s: the run does not wait longer for the broker to confirm acknowledgements. The next run may take messages "
        "without an ID for redeliveries if their contents are equal to those of unconfirmed messages",
        destination,
    )


class EndOfRun:
    """The end of a bounded run in one queue. The run takes the messages that were in the queue when the run began.

    If the broker reports how many messages wait (the *depth*), the run takes this number of messages. Messages that
    other consumers return meanwhile are taken in addition.

    If the broker does not report the depth, the run ends before the first message whose timestamp is between the start
    of the run and now, or after three seconds in which no part of a message arrives. For other messages it is unknown
    whether they were in the queue when the run began, because producers may write any timestamp or none. Such messages
    are taken as long as they arrive as fast as a backlog, but for at most ten minutes, or six hours if their timestamps
    are older than the run.

    Args:
        queue: a queue whose connections are all open.
    """

    def __init__(self, queue: QueueReader, runtime: Runtime) -> None:
        self._queue = queue
        self._runtime, self._timing = runtime, runtime.timing
        self._since_us = runtime.utc_us()
        self._coming_again_before = queue.coming_again
        ready = queue.connected.ready_at_first
        self._wanted = math.inf if ready is None else ready
        # Another consumer, perhaps on a dead machine, may hold messages, which belong to the run if they are returned.
        # Count at most one window of them. Otherwise a consumer that requeues messages again and again would extend the
        # run forever.
        others = queue.connections.other_consumers > 0
        self._held_by_others = queue.settings.window if others else 0
        self._finished = self._said = False
        self._taken = 0
        self._run_began_s = self._mark_s = runtime.monotonic_s()
        self._mark_received = 0
        self.begin()

    def begin(self) -> None:
        """Record that the wait for the messages of an epoch begins, or begins again."""
        self._began_s = self._runtime.monotonic_s()
        self._empty_since_s: float | None = None
        self._unconfirmed_since_s: float | None = None  # do not count the time in which Spark ran an epoch
        queue = self._queue
        if queue.in_flight.unacked + self._taken >= queue.windows.total or queue.connections.paused:
            self._mark()  # the window was full, so the broker could not deliver: measure the rate anew

    @property
    def left(self) -> float:
        """Number of messages that the run still has to read; infinity if unknown, 0 or less at the end."""
        if self._finished:
            return 0
        # Redeliveries after the end of a session are counted on both sides, in `_extra` and in `_done`.
        return self._wanted + self._extra - self._done

    @property
    def _extra(self) -> int:
        """Number of deliveries that were not counted in the depth when the run began.

        These are redeliveries, after the end of a session of this run or of another consumer.
        """
        queue = self._queue
        counted = queue.counters()
        from_others = min(self._held_by_others, max(0, counted.redelivered - queue.coming_again - counted.returned))
        return queue.coming_again - self._coming_again_before + from_others

    @property
    def _done(self) -> int:
        return self._queue.counters().done

    def awaits_confirmation(self) -> bool:
        """Whether to wait longer for the confirmation of acknowledgements, or the settlement of messages without an ID.

        The wait is limited, because the confirmation may come after messages that do not fit into the prefetch window.
        After the limit, the run continues without the confirmation.
        """
        now_s = self._runtime.monotonic_s()
        in_flight = self._queue.in_flight
        settles = in_flight.settles_contents
        if not settles and not in_flight.settling.unconfirmed():
            self._unconfirmed_since_s = None
            return False
        if self._unconfirmed_since_s is None:
            self._unconfirmed_since_s = now_s
        most_s = self._timing.bounded_confirm_s
        if settles:
            # The time for the confirmation, for `settleGrace`, and for the answer to the request after that.
            most_s = self._queue.settings.settle_grace_s + 2 * self._timing.confirm_s
        waits = now_s - self._unconfirmed_since_s < most_s
        if settles and not waits:
            warn_of_unconfirmed(self._queue.destination)
        return waits

    def finish(self) -> None:
        """Record that the run does not read this queue any more, even if messages are redelivered."""
        self._finished = True

    def reached(self) -> None:
        """Record that the run has read all messages of this queue that belong to it."""
        self._wanted = self._done - self._extra

    def fitting(self, size: int) -> int:
        """Return the number of messages that belong to the run, out of the `size` oldest buffered messages."""
        left = self.left
        if left < math.inf:
            return min(size, max(0, int(left)))
        rows = BlockRows.of(self._queue.in_flight.received.oldest(size))
        now_us, age_s, trickles = self._runtime.utc_us(), self._age_s, self._trickles(rows.size_bytes / size)
        stamps = rows.values("timestamp")

        def belongs(stamp: int | None) -> bool:
            if trickles:
                return False
            if stamp is None or stamp > now_us:
                return age_s < self._timing.unknown_age_s
            return stamp <= self._since_us and age_s < self._timing.claimed_age_s

        self._taken = sum(1 for _ in takewhile(belongs, stamps))
        if self._taken < size:
            if not self._since_us < (stamps[self._taken] or 0) <= now_us:
                self._warn_of_age(age_s)
            self.reached()
            self._wanted += self._taken
        return self._taken

    @property
    def _age_s(self) -> float:
        """Seconds since the run began."""
        return self._runtime.monotonic_s() - self._run_began_s

    def _mark(self) -> None:
        self._mark_s, self._mark_received = self._runtime.monotonic_s(), self._queue.counters().received

    def _trickles(self, mean_bytes: float) -> bool:
        """Whether messages arrive more slowly than a backlog would, although the prefetch window had room for more.

        Args:
            mean_bytes: average size of the messages.
        """
        watched_s = self._runtime.monotonic_s() - self._mark_s
        if watched_s < self._timing.trickle_s:
            return False
        per_s = (self._queue.counters().received - self._mark_received) / watched_s
        if per_s < self._timing.backlog_per_s and per_s * mean_bytes < self._timing.backlog_bytes_per_s:
            return True
        self._mark()
        return False

    def _warn_of_age(self, age_s: float) -> None:
        if not self._said:
            self._said = True
            _LOG.warning(
                "%s: the run ends after %.0f s, and the next run continues with the next message. It is unknown "
                "whether this message is older than the run: the broker does not report how many messages wait, and "
                "the message's timestamp, which its producer chose, does not show it",
                self._queue.destination, age_s,
            )  # fmt: skip

    def _warn_of_selector(self) -> None:
        """Log that messages that match the selector may wait in a part of the queue that the broker does not search."""
        endpoint, remedy = self._queue.settings.endpoint, self._queue.settings.endpoint.broker.remedies.get("page-size")
        if endpoint.selector is not None and remedy is not None and not self._queue.counters().received:
            _LOG.warning(
                "%s: the run ends without a message that matches selector %r. The broker applies a selector only to "
                "the first messages of a queue, as many as its `maxPageSize` (200 by default). If messages that match "
                "wait behind others: %s",
                self._queue.destination, endpoint.selector, remedy,
            )  # fmt: skip

    def poll(self) -> None:
        """Check whether the run has read the queue to its end. The caller repeats this while no messages are buffered.

        The broker may report messages but not deliver them, because other consumers hold them. After a while the run
        ends without them.
        """
        queue, now_s = self._queue, self._runtime.monotonic_s()
        queue.connections.refresh_depth()
        connections = queue.connections
        if not connections.complete or connections.late or connections.paused or connections.partial_s >= self._began_s:
            self.begin()  # do not count this time, because no message can arrive, or because one is arriving
            return
        depths = queue.connections.depths()
        if any(depths):
            self._empty_since_s = None
        elif self._empty_since_s is None:
            self._empty_since_s = now_s
        elif now_s - self._empty_since_s >= (self._timing.empty_s if depths else self._timing.quiet_s):
            self._warn_of_selector()
            self.reached()
            return
        if now_s - max(queue.last_activity_s, self._began_s) > self._timing.withheld_s:
            _LOG.warning(
                "%s: the broker reports waiting messages but has delivered none for %.0f s; the run ends without them. "
                "The broker reports %d other consumer(s): an exclusive consumer or a single active consumer gets all "
                "messages. Otherwise the queue may be paused, or its messages may be meant for another consumer",
                queue.destination, self._timing.withheld_s, queue.connections.other_consumers,
            )  # fmt: skip
            self.reached()
