"""Batch sizing: decides how long to wait for messages, and how many messages the next epoch takes.

The *window* is the number of unacknowledged messages that the broker may have delivered (the prefetch). An epoch takes
the messages that arrived while the previous epoch ran, as with Spark's Kafka source. But each trigger has a fixed cost.
So while a backlog arrives at full speed, the source waits until the epoch has up to half of the window. If messages
arrive slowly, they are not delayed.

* After a short silence the epoch is planned as it is. Brokers pause while they process the acknowledgement of an epoch,
  and waiting longer for half of the window cost 20 % of throughput on quorum queues.
* The first epoch of a process always waits. If processes kept dying after a small first epoch, the broker would return
  the many other messages of the window each time, and count each return as a delivery.
* In a bounded run (`Trigger.AvailableNow`) each queue has an end. Until all queues have reached their ends, the source
  waits for messages. If it reported that there are none, Spark would end the query.

A window is divided into epochs of equal size. Alternating large and small epochs cost 10 % of throughput, because the
broker is still processing the acknowledgement of the large epoch while the small epoch runs. Several queues share an
epoch. If a queue does not need its share, the other queues get it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import numpy as np

from pyspark_mq.sources.connections.block import BlockRows
from pyspark_mq.sources.queues.available_now import EndOfRun, warn_of_unconfirmed
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["BatchSizing", "fair_shares"]

#: An epoch takes half of the window. Meanwhile the broker delivers messages for the other half.
_EPOCHS_IN_WINDOW = 2
#: Number of rows whose sizes are added up at a time, to find out how many rows fit into a number of bytes.
_SIZING_ROWS = 1_000


class BatchSizing:
    """Waits for messages, and decides the size of each epoch. Only the query's thread calls the methods."""

    def __init__(self, settings: Settings, queues: QueueGroup, runtime: Runtime) -> None:
        self._settings = settings
        self._queues = queues
        self._runtime, self._timing = runtime, runtime.timing
        self._waiting_since_s: float | None = None
        self._ends: dict[QueueReader, EndOfRun] | None = None
        self._awaited = False
        self._planned_s = -math.inf
        #: Number of planned epochs. The order of the queues is rotated by it, so that another queue comes first each
        #: time if an epoch cannot take messages of all queues.
        self._turn = 0

    def planned(self) -> None:
        """Record that an epoch was planned, and that Spark runs it now."""
        self._turn += 1
        self._planned_s = self._runtime.monotonic_s()

    def gather(self, limit: int | None, *, once: bool) -> dict[QueueReader, int]:
        """Wait for the messages of the next epoch.

        Args:
            limit: maximum number of messages in the epoch; None for no limit.
            once: whether this may be the only epoch of a run (`Trigger.Once`; before Spark 4.2 also
                `Trigger.AvailableNow`).

        Returns:
            queue -> number of messages that the epoch takes from it; empty if there is nothing to plan now.
        """
        if limit is not None and not once:
            limit = self._equal(limit)
        if self._ends is not None:
            return self._gather_bounded(limit, self._ends)
        for queue in self._queues:
            queue.connections.refresh_depth(self._timing.depth_s)
        if not self._queues.buffered:
            self._wait(self._timing.idle_s)
        if not self._queues.buffered:
            self._await_confirmations()
        self._await_more(limit, once=once)
        sizes = self._sizes(limit, {queue: len(queue.in_flight.received) for queue in self._queues})
        return sizes if self._plan_now(sum(sizes.values()), once=once) else {}

    def _wait(self, seconds: float) -> None:
        self._queues.wait(seconds)
        self._queues.drain_events()

    def _wait_while(self, holds: Callable[[], bool], maximum_s: float, step_s: float | None = None) -> None:
        deadline = self._runtime.monotonic_s() + maximum_s
        while holds() and self._runtime.monotonic_s() < deadline:
            self._wait(self._timing.idle_s if step_s is None else step_s)

    def await_sessions(self) -> None:
        """Wait until every connection is open. If a connection cannot be opened in time, its error is raised."""
        self._wait_while(lambda: not self._queues.complete, math.inf)

    def await_first_messages(self, *, alone: bool) -> None:
        """Wait a moment for the first messages. Only the first call waits.

        Without the wait, the first batch of a new query would often be empty, and Spark runs it even then. The wait
        also shows whether the broker accepts the login and the queue.

        Args:
            alone: whether this may be the only epoch of a run. An empty epoch ends the run, so wait as long as a
                bounded run does. Otherwise no run would ever read a message that takes longer to arrive.
        """
        if self._awaited:
            return
        self._awaited = True
        self.await_sessions()
        if alone:
            ends = self._ends_of_queues()
            while not self._queues.buffered and (unread := _unread(ends)):
                for queue in unread:
                    ends[queue].poll()
                self._wait(self._timing.idle_s)
            return
        # Do not wait if the queues are known to be empty.
        self._wait_while(
            lambda: not self._queues.buffered and any(queue.connected.ready_at_first != 0 for queue in self._queues),
            self._timing.first_s,
        )

    # -- a bounded run

    @property
    def is_bounded(self) -> bool:
        return self._ends is not None

    def bound(self) -> None:
        """Make this a bounded run: from now on, take only the messages that the queues hold at this moment."""
        self.await_sessions()
        deadline = self._runtime.monotonic_s() + self._timing.leader_s
        while (
            empty := [queue for queue in self._queues if queue.connected.ready_at_first == 0]
        ) and self._runtime.monotonic_s() < deadline:
            # Check again the queues that are reported to be empty: a quorum queue without a leader looks empty, too.
            for queue in empty:
                queue.connections.refresh_depth()
            self._wait(self._timing.idle_s)
            for queue in empty:
                queue.recount_ready()
        self._ends = self._ends_of_queues()

    def _ends_of_queues(self) -> dict[QueueReader, EndOfRun]:
        return {queue: EndOfRun(queue, self._runtime) for queue in self._queues}

    def _gather_bounded(self, limit: int | None, ends: Mapping[QueueReader, EndOfRun]) -> dict[QueueReader, int]:
        for end in ends.values():
            end.begin()
        while unread := _unread(ends):
            self._queues.drain_events()
            for queue in ends.keys() - unread:
                # Disconnect from a queue that has reached its end, because producers may continue to send to it. The
                # messages after the end would only take memory that other queues need. They return to the queue.
                in_flight = queue.in_flight
                if in_flight.received and not in_flight.planned.epochs and not ends[queue].awaits_confirmation():
                    queue.connections.stop()
                    ends[queue].finish()
            if any(queue.in_flight.received for queue in unread):
                self._await_more(limit, left=sum(ends[queue].left for queue in unread))
                held = {queue: len(queue.in_flight.received) for queue in unread}
                buffered = {queue: int(min(held[queue], max(0, ends[queue].left))) for queue in unread}
                sizes = {queue: ends[queue].fitting(size) for queue, size in self._sizes(limit, buffered).items()}
                if any(sizes.values()):
                    return sizes
                continue
            for queue in unread:
                ends[queue].poll()
            self._queues.wait(self._timing.idle_s)
        self._await_confirmations()
        self.await_contents()
        return {}

    def await_contents(self) -> None:
        """Wait until acknowledged messages without an ID are settled.

        Otherwise the next run would take a new message with equal contents for a redelivery of one of them.
        """

        def unsettled() -> bool:
            return any(queue.in_flight.settles_contents for queue in self._queues)

        # The time for the confirmation, for `settleGrace`, and for the answer to the request after that.
        self._wait_while(unsettled, self._settings.settle_grace_s + 2 * self._timing.confirm_s)
        if unsettled():
            warn_of_unconfirmed(self._settings.destination)

    # -- waiting

    def _await_more(self, limit: int | None, *, left: float | None = None, once: bool = False) -> None:
        """Wait while more messages arrive, until the epoch is as large as it should be.

        Args:
            limit: maximum number of messages in the epoch; None for no limit.
            left: number of messages that a bounded run still has to take; infinity if unknown. None if the run is not
                bounded.
            once: whether this is the only epoch of a run.
        """
        timing, queues = self._timing, self._queues
        now_s = came_s = self._runtime.monotonic_s()
        windows = sum(queue.windows.total for queue in queues)
        # The broker delivers messages for the rest of the window while the epoch runs.
        enough = windows // (1 if once or self._settings.guarantee.acknowledges_first else _EPOCHS_IN_WINDOW)
        flows = False
        if once:
            until_s, patient = now_s + timing.once_s, True
        elif self._planned_s == -math.inf:
            # If it is unknown how many messages a bounded run still has to take, they may all have arrived already.
            until_s, patient = now_s + timing.first_fill_s, left != math.inf
        else:
            until_s = self._planned_s + timing.fill_s
            # While a queue is paused because of its bytes, each poll lets it buffer bytes that other queues do not use.
            patient = queues.paused
            flows = self._flows(queues.buffered, now_s - self._planned_s)
        most = min(bound for bound in (enough, limit, left) if bound is not None)
        while (
            0 < (before := queues.buffered) < most
            and queues.buffered_bytes < self._settings.max_bytes
            and now_s < until_s
            and (flows or (patient and (now_s < came_s + timing.empty_s or any(map(self._has_more, queues)))))
        ):
            self._runtime.sleep(timing.fill_step_s)
            queues.drain_events()
            now_s = self._runtime.monotonic_s()
            came = queues.buffered - before
            came_s = now_s if came else came_s
            flows = not patient and self._flows(came, timing.fill_step_s)

    def _flows(self, came: int, seconds: float) -> bool:
        """Whether a backlog arrives at full speed, so that the epoch should wait for more messages.

        Args:
            came: number of messages that have arrived.
            seconds: time in which they have arrived.
        """
        if came * self._timing.fill_step_s < self._timing.fill_step_messages * seconds:
            return False
        for queue in self._queues:
            queue.connections.refresh_depth()
        depths = [depth for queue in self._queues for depth in queue.connections.depths()]
        return not depths or any(depths)

    @staticmethod
    def _has_more(queue: QueueReader) -> bool:
        """Whether the broker reports more messages in the queue, and the window lets it deliver them."""
        queue.connections.refresh_depth()
        return not queue.windows.blocked and any(queue.connections.depths())

    def _await_confirmations(self) -> None:
        """Wait a while for confirmations of acknowledgements. Called if there are no messages to read."""
        self._wait_while(self._queues.unconfirmed, self._timing.confirm_s, self._timing.confirm_step_s)

    # -- how many

    def _equal(self, limit: int) -> int:
        """Return the size of an epoch if the prefetch window is divided into as few equal epochs as `limit` allows.

        The size is raised to `minMessagesPerTrigger` if `limit` allows. With guarantee `none` it is `limit`.
        """
        if self._settings.guarantee.acknowledges_first:
            return limit
        window = sum(queue.settings.window for queue in self._queues)
        equal = -(-window // max(1, -(-window // limit)))
        return min(limit, max(equal, self._settings.min_messages))

    def _sizes(self, limit: int | None, buffered: Mapping[QueueReader, int]) -> dict[QueueReader, int]:
        """Decide how many messages the next epoch takes from each queue: at least one message if any is buffered.

        Args:
            limit: maximum number of messages in the epoch; None for no limit.
            buffered: queue -> number of its buffered messages.

        Returns:
            queue -> number of its messages in the epoch, without queues from which it takes none.
        """
        names = list(buffered)
        turn = self._turn % len(names) if names else 0
        queues = [queue for queue in names[turn:] + names[:turn] if buffered[queue]]
        wanted = [buffered[queue] for queue in queues]
        sizes = dict(zip(queues, fair_shares(sum(wanted) if limit is None else limit, wanted), strict=True))
        max_bytes = self._settings.max_bytes
        if self._queues.buffered_bytes > max_bytes:
            rooms = fair_shares(max_bytes, [queue.in_flight.received.size_bytes for queue in queues])
            sizes = {queue: _fitting(queue, sizes[queue], room) for queue, room in zip(queues, rooms, strict=True)}
            if queues:  # take at least one message, even if it is larger than the queue's share of the bytes
                sizes[queues[0]] = max(1, sizes[queues[0]])
        return {queue: sizes[queue] for queue in names if sizes.get(queue)}

    def _plan_now(self, size: int, *, once: bool) -> bool:
        """Whether to plan this epoch now. Otherwise wait a moment for more messages.

        Options `minMessagesPerTrigger` and `maxTriggerDelay` decide. They do not delay the only epoch of a run, as in
        Spark's Kafka source (KafkaMicroBatchStream).
        """
        if not size:
            self._waiting_since_s = None
            return False
        now = self._runtime.monotonic_s()
        if self._waiting_since_s is None:
            self._waiting_since_s = now
        if (
            size >= self._settings.min_messages
            or size < self._queues.buffered  # waiting would not enlarge the epoch, which `maxBytesPerTrigger` limits
            or now - self._waiting_since_s >= self._settings.max_delay_s
            or self._queues.paused
            or once
            or any(queue.windows.blocked for queue in self._queues)
        ):
            self._waiting_since_s = None
            return True
        for queue in self._queues:
            queue.connections.refresh_depth()
        self._queues.wait(self._timing.idle_s)
        return False


def _unread(ends: Mapping[QueueReader, EndOfRun]) -> list[QueueReader]:
    """Return the queues that still exist, and that the run has not read to their ends."""
    return [queue for queue, end in ends.items() if end.left > 0 and not queue.ended]


def _fitting(queue: QueueReader, maximum: int, max_bytes: int) -> int:
    """Return how many messages fit into `max_bytes`, out of the `maximum` oldest buffered messages of a queue."""
    taken = held = 0
    rows = iter(queue.in_flight.received.oldest(maximum))
    while chunk := list(islice(rows, _SIZING_ROWS)):
        ends = held + np.cumsum(BlockRows.of(chunk).sizes)
        fit = int(ends.searchsorted(max_bytes, "right"))
        taken += fit
        if fit < len(chunk):
            break
        held = int(ends[-1])
    return taken


def fair_shares(total: int, wants: Sequence[int]) -> list[int]:
    """Divide `total` fairly among parties, and return their shares. `wants` has the amount that each party wants.

    No party gets more than it wants. Parties that get less than they want get equal shares, and no other share is
    larger. A remainder is an exception: the first parties that want more get one more each. (Max-min fairness:
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
