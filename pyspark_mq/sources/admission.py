"""Admission: how long messages are waited for, and how many the next epoch takes.

A trigger has a price whatever its size: planning, two logs and the start of tasks. So while a backlog flows in an epoch
is given time to grow; a trickle is not delayed. A bounded run
(`Trigger.AvailableNow`) has an end for each queue besides, and gives no empty answer before they are reached, as that
ends the query.

Of several queues each has its share of an epoch: what one does not need of its own goes to the others.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice

from pyspark_mq.sources.available_now import EndOfRun
from pyspark_mq.sources.connections.block import sizes_of
from pyspark_mq.sources.position import Limit
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.queues.redelivery import TRANSIT_S
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["IDLE_WAIT_S", "Admission", "fair_shares"]

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
#: While a backlog waits at the broker, an epoch is filled until so long after the last one: five times what a trigger
#: without rows takes on a machine with cores to spare. Where one takes longer, it is filled meanwhile. (A price learnt
#: from the triggers before gave the same epochs and rates, also beside busy processes and with a slow broker.)
_FILL_S = 1.25
#: The first one for so long: the processes that run it are not there yet.
_FIRST_FILL_S = 3.0
#: So many epochs share a window: one runs while the next is filled.
_EPOCHS_IN_WINDOW = 2
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
#: ... for so long, and for longer once so many left ever more behind.
_STEADY_S = 2 * TRANSIT_S
_ENDS_AT_LAST = 16
#: New connections are handed less once so many did.
_ENDS_IN_VAIN = 4
#: A confirmation is waited for at most this long when there is nothing else to do.
_CONFIRM_WAIT_S = 5.0
#: IDs looked at to know how much room one takes, and how many an epoch needs for that to be known from it.
_SIZING_IDS = 500
_SIZING_MIN = 100
#: So many epochs that the room for IDs has ended are said.
_CUT_SAID = 3
#: IDs that count up take next to nothing.
_ID_BYTES_MIN = 0.01
#: Bodies looked at together while an epoch of limited bytes is sized.
_SIZING_ROWS = 1_000


class Admission:
    """Waits for messages and sizes epochs. Called by the query's thread alone.

    Args:
        settings: the query's.
        queues: its queues.
        runtime: the clock.
    """

    def __init__(self, settings: Settings, queues: QueueGroup, runtime: Runtime) -> None:
        self._settings = settings
        self._queues = queues
        self._runtime = runtime
        self._waiting_since_s: float | None = None
        self._ends: dict[QueueReader, EndOfRun] | None = None
        self._unsteady: set[QueueReader] = set()
        self._id_bytes: float | None = None
        self._cut = 0
        self._once = False
        self._planned_s = -math.inf
        self._received_before = 0
        #: Which queue comes first, where not all can.
        self._turn = 0

    def planned(self, size: int, id_bytes: int) -> None:
        """An epoch is planned, and its trigger begins.

        Args:
            size: its messages.
            id_bytes: their IDs in the offset.
        """
        fits = self._fits()
        if fits is not None and size >= fits:
            self._cut_short(size)
        if size >= _SIZING_MIN:
            self._id_bytes = id_bytes / size
        self._turn += 1
        self._planned_s = self._runtime.monotonic_s()
        self._received_before = self._queues.received

    def _cut_short(self, size: int) -> None:
        """The room for IDs has ended an epoch. Said once, when it was no exception."""
        left = [queue for queue in self._queues if queue.ledger.received]
        for queue in left:
            queue.cut_short += 1
        self._cut += bool(left)
        if left and self._cut == (1 if self._once else _CUT_SAID):
            _LOG.warning(
                "%s: epochs end at %s messages, with %s more received, as their IDs take the %s bytes that an offset "
                "has for them (maxOffsetBytes). Set 'checkpointLocation' at the source, to the same as at the writer: "
                "IDs are then kept in files of it, and epochs are as large as maxMessagesPerTrigger lets them be",
                self._settings.destination, f"{size:,}", f"{self._queues.buffered:,}",
                f"{self._settings.max_offset_bytes:,}",
            )  # fmt: skip

    def gather(self, limit: Limit) -> dict[QueueReader, int]:
        """Wait for the messages of the next epoch.

        Returns:
            how many it takes of each queue; empty if there is nothing to plan now.
        """
        self._once = limit.messages is None
        if self._ends is not None:
            return self._gather_bounded(limit, self._ends)
        queues = self._steady()
        while not queues and self._once and len(self._queues):  # there is no other call in which to plan
            self._wait(IDLE_WAIT_S)
            queues = self._steady()
        if not queues:
            self._wait(IDLE_WAIT_S)
            return {}
        if not self._buffered(queues):
            for queue in queues:
                queue.connections.refresh_depth(_IDLE_DEPTH_S)
            self._wait(IDLE_WAIT_S)
        if not self._buffered(queues):
            self._await_confirmations()
        self._fill(limit)
        sizes = self._sizes(limit, {queue: len(queue.ledger.received) for queue in queues})
        return sizes if self._worth_it(sum(sizes.values()), limit) else {}

    def _wait(self, seconds: float) -> None:
        self._queues.wait(seconds)
        self._queues.pump()

    @staticmethod
    def _buffered(queues: Iterable[QueueReader]) -> int:
        return sum(len(queue.ledger.received) for queue in queues)

    def _steady(self) -> list[QueueReader]:
        """Rule 14: a connection that breaks faster than anything can be found out must not fill the offset.

        Each end of a session leaves IDs behind that may come again. When they are many, no epoch is planned in a
        session that has not shown that it holds.
        """
        queues = []
        most = _EXPOSED_WINDOWS * self._settings.consumers
        for queue in self._queues:
            exposed = queue.ledger.carried.exposed
            if exposed < most * queue.settings.prefetch:
                self._unsteady.discard(queue)
                queue.settle_down()
            elif queue.clock.steady_s < self._to_hold_s(queue):
                if queue not in self._unsteady:
                    _LOG.warning(
                        "%s: the connection ended %d times, and %d message IDs may still come again; epochs are "
                        "planned only while it holds for a second, and longer the more often it does not",
                        queue.destination, queue.counters().reconnects, exposed,
                    )  # fmt: skip
                self._unsteady.add(queue)
                if queue.ends_in_vain >= _ENDS_IN_VAIN:
                    queue.unsteady = True
                continue
            queues.append(queue)
        return queues

    @staticmethod
    def _to_hold_s(queue: QueueReader) -> float:
        # What was left behind takes every place, and gets less by epochs alone.
        if queue.blocked and not queue.clock.shows_new:
            return _STEADY_S
        # At last a connection has to hold for longer than any did: then none leaves more behind.
        return max(1.0, queue.ends_in_vain / _ENDS_AT_LAST) * _STEADY_S

    def await_sessions(self) -> None:
        """Until every receiver is connected; one that gives up ends this with its error."""
        while not self._queues.complete:
            self._wait(IDLE_WAIT_S)

    def await_first_messages(self) -> None:
        """Spark runs the first batch of a new query whatever the answer: better with messages in it.

        What only the broker can tell (login, queue) is known after this as well.
        """
        self.await_sessions()
        deadline = self._runtime.monotonic_s() + _FIRST_WAIT_S
        # Not if the queues are known to be empty.
        while (
            not self._queues.buffered
            and any(queue.ready_at_first != 0 for queue in self._queues)
            and self._runtime.monotonic_s() < deadline
        ):
            self._wait(IDLE_WAIT_S)

    def await_overdue(self) -> None:
        """A job that plans once and ends has no other moment to find out that nothing came again.

        What is overdue was given back long ago and comes first, so it takes no longer than a delivery.
        """
        deadline = self._runtime.monotonic_s() + _OVERDUE_MAX_S
        while (
            any(queue.overdue and not queue.clock.horizon_s for queue in self._queues)
            and self._runtime.monotonic_s() < deadline
        ):
            self._wait(IDLE_WAIT_S)

    def await_leftovers(self) -> None:
        """Until nothing that a former process left may come again, for not much longer than twice `settleGrace`.

        Once for what is to come again, and once more for what is acknowledged then: a broker that is killed may forget
        that. And `redeliveryDelay`, if there is one.
        """
        delay_s = max((queue.clock.delay_s for queue in self._queues), default=0.0)
        deadline = self._runtime.monotonic_s() + 2 * self._settings.settle_grace_s + delay_s + _OVERDUE_MAX_S
        while any(queue.ledger.carried.live for queue in self._queues) and self._runtime.monotonic_s() < deadline:
            self._wait(IDLE_WAIT_S)

    # -- a bounded run

    def bound(self) -> None:
        """From now on take only what the queues hold at this moment."""
        self.await_sessions()
        deadline = self._runtime.monotonic_s() + _LEADER_WAIT_S
        while (
            empty := [queue for queue in self._queues if queue.ready_at_first == 0]
        ) and self._runtime.monotonic_s() < deadline:
            # A quorum queue that has no leader at the moment says that it is empty.
            for queue in empty:
                queue.connections.refresh_depth()
            self._wait(IDLE_WAIT_S)
            for queue in empty:
                queue.ready_at_first = queue.connections.untaken + (queue.connections.newest_depth or 0)
        self._ends = {queue: EndOfRun(queue, self._runtime) for queue in self._queues}

    def _gather_bounded(self, limit: Limit, ends: Mapping[QueueReader, EndOfRun]) -> dict[QueueReader, int]:
        for end in ends.values():
            end.begin()
        while unread := [queue for queue, end in ends.items() if end.left > 0 and not queue.ended]:
            self._queues.pump()
            for queue in ends.keys() - unread:
                # It may be written to for ever; what it holds takes the room of others, and goes back when the run ends
                # in any case.
                if queue.ledger.received and not queue.has_open_epochs and ends[queue].settled():
                    queue.connections.stop()
                    ends[queue].finish()
            steady = self._steady()
            ready = [queue for queue in unread if queue in steady]
            if self._buffered(ready):
                self._fill(limit)
                some = {queue: int(min(len(queue.ledger.received), ends[queue].left)) for queue in ready}
                sizes = {queue: ends[queue].fitting(size) for queue, size in self._sizes(limit, some).items()}
                if any(sizes.values()):
                    return sizes
                continue
            for queue in ready:
                ends[queue].look()
            self._queues.wait(IDLE_WAIT_S)
        self._await_confirmations()
        return {}

    # -- waiting

    def _await_confirmations(self) -> None:
        """With nothing new to read, leave nothing unacknowledged behind."""
        deadline = self._runtime.monotonic_s() + _CONFIRM_WAIT_S
        while self._queues.unconfirmed() and self._runtime.monotonic_s() < deadline:
            self._wait(_STEP_S)

    def _fill(self, limit: Limit) -> None:
        """Let the epoch grow while a backlog keeps flowing in."""
        now_s = self._runtime.monotonic_s()
        if self._planned_s > -math.inf:
            until_s = self._planned_s + _FILL_S
            since_s = max(now_s - self._planned_s, _FILL_STEP_S)
            came = (self._queues.received - self._received_before) * _FILL_STEP_S / since_s
        else:
            until_s, came = now_s + _FIRST_FILL_S, _FILL_STEP_MESSAGES
        while self._could_grow(limit, came) and self._runtime.monotonic_s() < until_s:
            before = self._queues.received
            self._runtime.sleep(_FILL_STEP_S)
            self._queues.pump()
            came = self._queues.received - before

    def _could_grow(self, limit: Limit, came: float) -> bool:
        buffered = self._queues.buffered
        most = self._most(limit, sum(queue.settings.prefetch for queue in self._queues))
        if not buffered or buffered >= most or self._queues.buffered_bytes >= self._settings.max_bytes:
            return False
        # The rest of a window is for what comes while the epoch runs: with all of it in one epoch the broker would
        # stand still until that is acknowledged.
        epochs = 1 if self._settings.guarantee.acknowledges_first else _EPOCHS_IN_WINDOW
        growing = [
            queue for queue in self._queues if epochs * len(queue.ledger.received) < queue.window > queue.ledger.unacked
        ]
        for queue in growing:
            queue.connections.refresh_depth()
        if any(any(queue.connections.depths()) for queue in growing):
            return True
        untold = [queue for queue in growing if not queue.connections.depths()]
        if not untold:
            return False
        # A first epoch can wait for a broker that begins slowly; a trickle could not.
        enough = 1 if self._planned_s == -math.inf else _FILL_STEP_MESSAGES
        return came >= enough or any(queue.connections.behind for queue in untold)

    # -- how many

    def _sizes(self, limit: Limit, some: Mapping[QueueReader, int]) -> dict[QueueReader, int]:
        """How many messages of each queue the next epoch takes: at least one if there is any.

        Args:
            limit: over all of them.
            some: how many are there of each.
        """
        names = list(some)
        turn = self._turn % len(names) if names else 0
        queues = [queue for queue in names[turn:] + names[:turn] if some[queue]]
        wanted = [some[queue] for queue in queues]
        sizes = dict(zip(queues, fair_shares(self._most(limit, sum(wanted)), wanted), strict=True))
        max_bytes = self._settings.max_bytes
        if self._queues.buffered_bytes > max_bytes:
            rooms = fair_shares(max_bytes, [queue.ledger.received.weight for queue in queues])
            sizes = {queue: _fitting(queue, sizes[queue], room) for queue, room in zip(queues, rooms, strict=True)}
            if queues:  # the first in turn, so that a message which is larger than any share gets on
                sizes[queues[0]] = max(1, sizes[queues[0]])
        return {queue: sizes[queue] for queue in names if sizes.get(queue)}

    def _most(self, limit: Limit, without_limit: int) -> int:
        """How many messages an epoch may have, by their number and by the room for their IDs in the offset."""
        most = without_limit if limit.messages is None else limit.messages
        fits = self._fits()
        return most if fits is None else min(most, fits)

    def _fits(self) -> int | None:
        """For how many IDs the offset has room; None if that is no limit, or nothing is known of them."""
        room = self._settings.max_offset_bytes
        if room is None or not self._settings.guarantee.identifies:
            return None
        if self._id_bytes is None:
            fullest = max(self._queues, key=lambda queue: len(queue.ledger.received), default=None)
            if fullest is None or not fullest.ledger.received:
                return None
            self._id_bytes = fullest.id_bytes(_SIZING_IDS)
        return max(1, int(room / max(self._id_bytes, _ID_BYTES_MIN)))

    def _worth_it(self, size: int, limit: Limit) -> bool:
        """`minMessagesPerTrigger`, `maxTriggerDelay`: a small epoch waits, but not for ever, nor for what cannot come.

        And not in a run of one epoch (`Trigger.Once`), as with Spark's own source for Kafka (KafkaMicroBatchStream).
        """
        if not size:
            self._waiting_since_s = None
            return False
        now = self._runtime.monotonic_s()
        if self._waiting_since_s is None:
            self._waiting_since_s = now
        if (
            size >= self._settings.min_messages
            or size < self._queues.buffered  # as many bytes as an epoch may have
            or now - self._waiting_since_s >= self._settings.max_delay_s
            or self._queues.paused
            or limit.messages is None
            or any(queue.blocked for queue in self._queues)
        ):
            self._waiting_since_s = None
            return True
        for queue in self._queues:
            queue.connections.refresh_depth()
        self._queues.wait(IDLE_WAIT_S)
        return False


def _fitting(queue: QueueReader, most: int, max_bytes: int) -> int:
    """How many of the first `most` buffered messages have no more bytes than that."""
    taken = held = 0
    rows = iter(queue.ledger.received.oldest(most))
    while chunk := list(islice(rows, _SIZING_ROWS)):
        ends = list(accumulate(sizes_of(chunk), initial=held))[1:]
        fit = bisect_right(ends, max_bytes)
        taken += fit
        if fit < len(chunk):
            break
        held = ends[-1]
    return taken


def fair_shares(total: int, wants: Sequence[int]) -> list[int]:
    """Share `total` so that nobody gets more than it wants, and who gets less than it wants has no less than others.

    What is left over by less than one each goes to the first of those that want it. (Max-min fairness:
    Bertsekas and Gallager, Data Networks, section 6.5.2.)
    """
    shares = [0] * len(wants)
    left = max(0, total)
    hungry = [at for at, want in enumerate(wants) if want > 0]
    while hungry and left:
        each = left // len(hungry)
        if not each:
            for at in hungry[:left]:
                shares[at] += 1
            break
        for at in hungry:
            more = min(each, wants[at] - shares[at])
            shares[at] += more
            left -= more
        hungry = [at for at in hungry if shares[at] < wants[at]]
    return shares
