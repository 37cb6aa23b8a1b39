"""The filling of an epoch: how long messages are waited for, and how many the next epoch takes.

A trigger has a price whatever its size (see `trigger_cost`), so while a backlog flows in an epoch is given time to
grow until that is a fifth of the time from epoch to epoch; a trickle is not delayed. A bounded run
(`Trigger.AvailableNow`) has a goal besides, and gives no empty answer before it is reached, as that ends the query.
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
from pyspark_mq.sources.trigger_cost import TriggerCost

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
#: While a backlog waits at the broker, an epoch is filled until the price of its trigger is this part of the time
#: since the last one ...
_PRICE_PARTS = 5
#: ... for at most this long ...
_FILL_MAX_S = 15.0
#: ... and so long at first, when the price is not known.
_FIRST_FILL_S = 3.0
#: A trigger that begins so shortly after a whole second, as the one before it did, was waited for.
_ON_TIME_US = 200_000
#: It is looked at so often: each look takes the interpreter away from the receiving thread.
_FILL_STEP_S = 0.05
#: Where the broker does not report a backlog, there is one while so many come with each look, or while more has come
#: than was read.
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
#: A bounded run gives up what the broker reports and does not hand out: a paused queue, another active consumer.
_WITHHELD_S = 60.0
#: IDs looked at to know how much room one takes, and how many an epoch needs for that to be known from it.
_SIZING_IDS = 500
_SIZING_LEAST = 100
#: IDs that count up take next to nothing.
_ID_BYTES_LEAST = 0.01
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
        self._cost = TriggerCost()
        self._running: tuple[int, float] | None = None
        self._on_time = False
        self._id_bytes: float | None = None
        self._planned_s = -math.inf
        self._received_before = 0

    def asked(self) -> None:
        """Spark asks for the next epoch: the trigger of the one before, if there was one, is over."""
        # Spark begins triggers that have an interval (`processingTime`) at multiples of it since 1970
        # (TriggerExecutor.scala, nextBatchTime). Then it has waited, and that is no price.
        on_time, self._on_time = self._on_time, self._runtime.utc_us() % 1_000_000 < _ON_TIME_US
        if self._running is None:
            return
        rows, since_s = self._running
        self._running = None
        if not (on_time and self._on_time):
            self._cost.observe(rows, self._runtime.monotonic_s() - since_s)

    def planned(self, size: int, id_bytes: int) -> None:
        """An epoch is planned, and its trigger begins.

        Args:
            size: its messages.
            id_bytes: their IDs in the offset.
        """
        if size >= _SIZING_LEAST:
            self._id_bytes = id_bytes / size
        self._planned_s = self._runtime.monotonic_s()
        self._received_before = self._ledger.counters.received
        self._running = (size, self._planned_s)

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
        began_s = self._runtime.monotonic_s()
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
            if now - max(self._intake.last_sign_s, began_s) > _WITHHELD_S:
                _LOG.warning(
                    "%s: the broker reports messages and has handed out none for %.0f s; the run ends without them",
                    self._settings.endpoint.destination, _WITHHELD_S,
                )  # fmt: skip
                break
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
        return self._sessions.complete and not self._sessions.late and not any(self._sessions.depths())

    # -- waiting

    def _await_confirmations(self) -> None:
        """With nothing new to read, leave nothing unacknowledged behind."""
        deadline = self._runtime.monotonic_s() + _CONFIRM_WAIT_S
        while self._ledger.unconfirmed() and self._runtime.monotonic_s() < deadline:
            self._sessions.wait(_STEP_S)
            self._intake.pump()

    def _fill(self, limit: Limit) -> None:
        """Let the epoch grow while a backlog keeps flowing in."""
        now_s = self._runtime.monotonic_s()
        if self._planned_s > -math.inf:
            until_s = min(self._planned_s + _PRICE_PARTS * self._cost.fixed_s, now_s + _FILL_MAX_S)
            since_s = max(now_s - self._planned_s, _FILL_STEP_S)
            came = (self._ledger.counters.received - self._received_before) * _FILL_STEP_S / since_s
        else:
            until_s, came = now_s + _FIRST_FILL_S, _FILL_STEP_MESSAGES
        while self._could_grow(limit, came) and self._runtime.monotonic_s() < until_s:
            before = self._ledger.counters.received
            self._runtime.sleep(_FILL_STEP_S)
            self._intake.pump()
            came = self._ledger.counters.received - before

    def _could_grow(self, limit: Limit, came: float) -> bool:
        buffered = self._ledger.buffered
        most = self._most(limit, self._settings.prefetch)
        if not buffered or buffered >= most or self._ledger.buffered_bytes >= self._settings.max_bytes:
            return False
        if self._ledger.unacked >= sum(self._sessions.windows.values()):
            return False
        self._sessions.refresh_depth()
        depths = self._sessions.depths()
        if depths:
            return any(depths)
        if came >= _FILL_STEP_MESSAGES or self._sessions.behind:
            return True
        # A trickle could not wait for unused credit to show; a first epoch can.
        return self._planned_s == -math.inf and self._sessions.starved is False

    # -- how many

    def _size(self, limit: Limit) -> int:
        """How many buffered messages the next epoch takes: at least one if there is any."""
        ledger, most_bytes = self._ledger, self._settings.max_bytes
        most = min(ledger.buffered, self._most(limit, ledger.buffered))
        if ledger.buffered_bytes <= most_bytes:
            return most
        taken = held = 0
        payloads = iter(ledger.buffered_payloads(most))
        while chunk := list(islice(payloads, _SIZING_CHUNK)):
            ends = list(accumulate(self._decoder.sizes(chunk), initial=held))[1:]
            fit = bisect_right(ends, most_bytes)
            taken += fit
            if fit < len(chunk):
                break
            held = ends[-1]
        return max(1, taken)

    def _most(self, limit: Limit, without_limit: int) -> int:
        """How many messages an epoch may have, by their number and by the room for their IDs in the offset."""
        most = without_limit if limit.messages is None else limit.messages
        room = self._settings.max_offset_bytes
        if room is None or not self._settings.guarantee.identifies or not self._ledger.buffered:
            return most
        if self._id_bytes is None:
            some = islice(self._ledger.buffered_payloads(_SIZING_IDS), _SIZING_IDS)
            self._id_bytes = self._intake.id_bytes(list(some))
        return max(1, min(most, int(room / max(self._id_bytes, _ID_BYTES_LEAST))))

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
