"""The filling of an epoch: how long messages are waited for, and how many the next epoch takes.

A trigger costs Spark 0.2-0.3 s whatever its size, so while a backlog flows in an epoch is given time to
grow; a trickle is not delayed. A bounded run (`Trigger.AvailableNow`) has a goal besides, and gives no
empty answer before it is reached, as that ends the query.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from typing import Any

from pyspark_mq.ack import Ledger
from pyspark_mq.sources.base import Decoder
from pyspark_mq.sources.horizon import TRANSIT_S
from pyspark_mq.sources.intake import Intake
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.sessions import Sessions
from pyspark_mq.sources.settings import Settings

__all__ = ["IDLE_WAIT_S", "Filling", "Limit"]

_LOG = logging.getLogger("pyspark_mq")

#: How long an idle call waits for the first message. Spark asks again at once, some ninety
#: times a second otherwise, and each time passes the whole offset back and forth.
IDLE_WAIT_S = 0.1
#: How often an idle query asks how many messages wait.
_IDLE_DEPTH_S = 5.0
#: How long a bounded run that finds an empty queue makes sure of it.
_LEADER_WAIT_S = 1.0
#: How long the first messages of a queue that is not empty are waited for.
_FIRST_WAIT_S = 2.0
#: While a backlog waits at the broker an epoch is filled for at most this long ...
_FILL_MAX_S = 3.0
#: ... and only while messages keep coming.
_FILL_GAP_S = 0.2
#: ... looked at so often: each look takes the interpreter away from the receiving thread.
_FILL_STEP_S = 0.05
#: ... where the broker does not report a backlog: while so many come with each look.
_FILL_STEP_MESSAGES = 100
_STEP_S = 0.005
#: Twice what the horizon needs on a queue that is not busy; on a busy one there are more epochs to come.
_OVERDUE_MAX_S = 2 * TRANSIT_S
#: From how many IDs on, in windows, that the ends of sessions left open epochs need a connection that holds ...
_EXPOSED_WINDOWS = 4
#: ... for so long.
_STEADY_S = 2 * TRANSIT_S
#: A confirmation is waited for at most this long when there is nothing else to do.
_CONFIRM_WAIT_S = 5.0
#: An emptied queue has to stay so for this long before a bounded run ends.
_EMPTY_S = 0.3
#: ... and where the broker does not report how many messages it has: nothing may come for this long.
_QUIET_S = 3.0
#: Bodies looked at together while an epoch of limited bytes is sized.
_SIZING_CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class Limit:
    """How much the next epoch may hold.

    Attributes:
        messages: at most so many; None for all that can be had now.
    """

    messages: int | None


class Filling:
    """Waits for messages and sizes epochs. Called by the query's thread alone.

    Args:
        settings: the query's.
        decoder: of the protocol.
        ledger: the books.
        intake: takes in what arrived.
        sessions: the connections.
        runtime: the clock.
    """

    def __init__(
        self,
        settings: Settings,
        decoder: Decoder,
        ledger: Ledger[Any, Any],
        intake: Intake,
        sessions: Sessions,
        runtime: Runtime,
    ) -> None:
        self._settings = settings
        self._decoder = decoder
        self._ledger = ledger
        self._intake = intake
        self._sessions = sessions
        self._runtime = runtime
        self._waiting_since_s: float | None = None
        self._goal: float | None = None
        self._coming_again_before = 0
        self._bounded_at_us = 0
        self._unsteady = False

    def gather(self, limit: Limit) -> int:
        """Wait for the messages of the next epoch: how many it takes, 0 if there is nothing to plan now."""
        if not self._await_steadiness():
            return 0
        if self._goal is not None:
            return self._gather_bounded(limit)
        if not self._ledger.buffered:
            self._sessions.refresh_depth(_IDLE_DEPTH_S)
            self._sessions.wait(IDLE_WAIT_S)
            self._intake.pump()
        if not self._ledger.buffered:
            self._await_confirmations()
        self._fill(limit)
        size = self._size(limit)
        return size if self._worth_it(size) else 0

    def _await_steadiness(self) -> bool:
        """Rule 14: a connection that breaks faster than anything can be found out must not fill the offset.

        Each end of a session leaves IDs behind that may come again. When they are many, no epoch is planned in a
        session that has not shown that it holds.
        """
        most = _EXPOSED_WINDOWS * self._settings.prefetch * self._settings.consumers
        while self._ledger.exposed >= most and self._intake.steady_s < _STEADY_S:
            if not self._unsteady:
                _LOG.warning(
                    "%s: the connection ended %d times, and %d message IDs may still come again; epochs are planned "
                    "only while it holds for a second",
                    self._settings.endpoint.destination, self._intake.reconnects, self._ledger.exposed,
                )  # fmt: skip
            self._unsteady = True
            self._sessions.wait(IDLE_WAIT_S)
            self._intake.pump()
            if self._goal is None:
                return False
        self._unsteady = self._ledger.exposed >= most
        return True

    def await_sessions(self) -> None:
        """Until every receiver is connected; one that gives up ends this with its error."""
        while not self._sessions.complete:
            self._sessions.wait(IDLE_WAIT_S)
            self._intake.pump()

    def await_first_messages(self) -> None:
        """Spark runs the first batch of a new query whatever the answer: better with messages in it.

        What only the broker can tell (login, queue) is known after this as well.
        """
        self.await_sessions()
        deadline = self._runtime.monotonic_s() + _FIRST_WAIT_S
        # Not if the queue is known to be empty.
        while not self._ledger.buffered and self._intake.ready_at_first != 0 and self._runtime.monotonic_s() < deadline:
            self._sessions.wait(IDLE_WAIT_S)
            self._intake.pump()

    def await_overdue(self) -> None:
        """A job that plans once and ends has no other moment to find out that nothing came again.

        What is overdue was given back long ago and comes first, so it takes no longer than a delivery.
        """
        deadline = self._runtime.monotonic_s() + _OVERDUE_MAX_S
        while self._intake.overdue and not self._intake.horizon_s and self._runtime.monotonic_s() < deadline:
            self._sessions.wait(IDLE_WAIT_S)
            self._intake.pump()

    def await_leftovers(self) -> None:
        """Until what a former process left unacknowledged is settled, for not much longer than `settleGrace`.

        And than `redeliveryDelay`, if there is one.
        """
        deadline = self._runtime.monotonic_s() + self._settings.settle_grace_s + self._intake.delay_s + _OVERDUE_MAX_S
        while (self._ledger.exposed or self._ledger.unconfirmed()) and self._runtime.monotonic_s() < deadline:
            self._sessions.wait(IDLE_WAIT_S)
            self._intake.pump()

    # -- a bounded run

    def bound(self) -> None:
        """From now on take only what the queue holds at this moment.

        Where the broker does not report how much that is, the end is the first message with a
        timestamp after this moment, or three seconds without any.
        """
        self.await_sessions()
        deadline = self._runtime.monotonic_s() + _LEADER_WAIT_S
        while self._intake.ready_at_first == 0 and self._runtime.monotonic_s() < deadline:
            # A quorum queue that has no leader at the moment says that it is empty.
            self._sessions.refresh_depth()
            self._sessions.wait(IDLE_WAIT_S)
            self._intake.pump()
            self._intake.ready_at_first = self._sessions.untaken + self._sessions.newest_depth
        self._bounded_at_us = self._runtime.utc_us()
        ready = self._intake.ready_at_first
        self._goal = math.inf if ready is None else ready
        self._coming_again_before = self._intake.coming_again

    def _gather_bounded(self, limit: Limit) -> int:
        empty_since: float | None = None
        while self._left() > 0:
            self._intake.pump()
            if self._ledger.buffered:
                self._fill(limit)
                size = self._until_bound(self._size(limit))
                if size:
                    return size
                break
            now = self._runtime.monotonic_s()
            if not self._queue_is_empty():
                empty_since = None
            elif empty_since is None:
                empty_since = now
            elif now - empty_since >= (_EMPTY_S if self._sessions.depths() else _QUIET_S):
                break  # somebody else took the rest
            self._sessions.wait(IDLE_WAIT_S)
        self._await_confirmations()
        return 0

    def _until_bound(self, size: int) -> int:
        """How many of the first `size` buffered messages belong to a bounded run."""
        left = self._left()
        if left < math.inf:
            return min(size, int(left))
        since, now = self._bounded_at_us, self._runtime.utc_us()
        stamps = self._decoder.columns["timestamp"](list(self._ledger.buffered_payloads(size)))
        # One from the future says nothing but that somebody's clock is wrong.
        old = sum(1 for _ in takewhile(lambda stamp: stamp is None or not since < stamp <= now, stamps))
        if old < size:
            self._goal = self._done() + old
        return old

    def _left(self) -> float:
        # What was planned before a session ended comes once more and is dropped then: no part of the goal.
        again = self._intake.coming_again - self._coming_again_before
        return (self._goal or 0) + again - self._done()

    def _done(self) -> int:
        counted = self._ledger.counters
        return counted.planned + counted.rebound + counted.duplicates_dropped + self._intake.rejected

    def _queue_is_empty(self) -> bool:
        self._sessions.refresh_depth()
        return self._sessions.complete and not any(self._sessions.depths())

    # -- waiting

    def _await_confirmations(self) -> None:
        """With nothing new to read, leave nothing unacknowledged behind."""
        deadline = self._runtime.monotonic_s() + _CONFIRM_WAIT_S
        while self._ledger.unconfirmed() and self._runtime.monotonic_s() < deadline:
            self._sessions.wait(_STEP_S)
            self._intake.pump()

    def _fill(self, limit: Limit) -> None:
        """Let the epoch grow while a backlog keeps flowing in."""
        began = self._runtime.monotonic_s()
        came = _FILL_STEP_MESSAGES
        while self._could_grow(limit, began, came) and self._runtime.monotonic_s() - began < _FILL_MAX_S:
            before = self._ledger.counters.received
            self._runtime.sleep(_FILL_STEP_S)
            self._intake.pump()
            came = self._ledger.counters.received - before

    def _could_grow(self, limit: Limit, began_s: float, came: int) -> bool:
        buffered = self._ledger.buffered
        most = self._settings.prefetch if limit.messages is None else limit.messages
        if not buffered or buffered >= most or self._ledger.buffered_bytes >= self._settings.max_bytes:
            return False
        # The window may have been full until a moment ago, and it takes a broker a while to get
        # through fifty thousand acknowledgements before it hands out more.
        quiet_s = self._runtime.monotonic_s() - max(began_s, self._intake.last_sign_s)
        if quiet_s > _FILL_GAP_S and not self._ledger.unconfirmed():
            return False
        if self._ledger.unacked >= sum(self._sessions.windows.values()):
            return False
        self._sessions.refresh_depth()
        depths = self._sessions.depths()
        return any(depths) if depths else came >= _FILL_STEP_MESSAGES

    # -- how many

    def _size(self, limit: Limit) -> int:
        """How many buffered messages the next epoch takes: at least one if there is any."""
        ledger, most_bytes = self._ledger, self._settings.max_bytes
        most = ledger.buffered if limit.messages is None else min(ledger.buffered, limit.messages)
        if ledger.buffered_bytes <= most_bytes:
            return most
        taken = held = 0
        payloads = iter(ledger.buffered_payloads(most))
        while chunk := list(islice(payloads, _SIZING_CHUNK)):
            ends = list(accumulate(map(len, self._decoder.bodies(chunk)), initial=held))[1:]
            fit = bisect_right(ends, most_bytes)
            taken += fit
            if fit < len(chunk):
                break
            held = ends[-1]
        return max(1, taken)

    def _worth_it(self, size: int) -> bool:
        """`minMessagesPerTrigger`, `maxTriggerDelay`: a small epoch waits, but not forever."""
        if not size:
            self._waiting_since_s = None
            return False
        now = self._runtime.monotonic_s()
        if self._waiting_since_s is None:
            self._waiting_since_s = now
        if (
            size >= self._settings.min_messages
            or size < self._ledger.buffered  # as many bytes as an epoch may have
            or now - self._waiting_since_s >= self._settings.max_delay_s
            or self._sessions.paused
        ):
            self._waiting_since_s = None
            return True
        self._sessions.wait(IDLE_WAIT_S)
        return False
