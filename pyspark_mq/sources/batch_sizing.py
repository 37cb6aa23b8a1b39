"""Admission: how long messages are waited for, and how many the next epoch takes.

An epoch takes what came while the one before ran, as with Spark's own source for Kafka. A trigger has a price whatever
its size, so while a backlog flows in at full speed an epoch is given time to grow, up to half of the window; a trickle
is not delayed. Once nothing comes for a moment it is planned as it is: brokers stand still while they take the
acknowledgement of an epoch, and waiting for half of a window then cost a fifth of the rate on quorum queues. Nothing
has come before the first epoch of a process, so that waits: a process that dies after it, again and again, gives back
a whole window, which ages all that it did not take. A bounded run (`Trigger.AvailableNow`) has an end for each queue
besides, and gives no empty answer before they are reached, as that ends the query.

A window is cut into equal epochs: by turns a large and a small one cost a tenth of the rate, as the broker takes the
acknowledgement of the large one while the small one runs. Of several queues each has its share of an epoch: what one
does not need of its own goes to the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import numpy as np

from pyspark_mq.sources.connections.block import BlockRows
from pyspark_mq.sources.queues.available_now import EndOfRun
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.queues.windows import EPOCHS_IN_WINDOW
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["BatchSizing", "fair_shares"]

_LOG = logging.getLogger("pyspark_mq")

#: Bodies looked at together while an epoch of limited bytes is sized.
_SIZING_ROWS = 1_000


class BatchSizing:
    """Waits for messages and sizes epochs. Called by the query's thread alone."""

    def __init__(self, settings: Settings, queues: QueueGroup, runtime: Runtime) -> None:
        self._settings = settings
        self._queues = queues
        self._runtime, self._timing = runtime, runtime.timing
        self._waiting_since_s: float | None = None
        self._ends: dict[QueueReader, EndOfRun] | None = None
        self._awaited = False
        self._planned_s = -math.inf
        #: Which queue comes first, where not all can.
        self._turn = 0

    def planned(self) -> None:
        """Take note that an epoch is planned, and its trigger begins."""
        self._turn += 1
        self._planned_s = self._runtime.monotonic_s()

    def gather(self, limit: int | None, *, all_: bool) -> dict[QueueReader, int]:
        """Wait for the messages of the next epoch.

        Args:
            limit: how many it may take; None for all that there are.
            all_: it is the one epoch of a run (`Trigger.Once`).

        Returns:
            how many it takes of each queue; empty if there is nothing to plan now.
        """
        if limit is not None:
            limit = self._equal(limit)
        if self._ends is not None:
            return self._gather_bounded(limit, self._ends)
        for queue in self._queues:
            queue.refresh_depth(self._timing.depth_s)
        if not self._queues.buffered:
            self._wait(self._timing.idle_s)
        if not self._queues.buffered:
            self._await_confirmations()
        self._await_more(limit, all_=all_)
        sizes = self._sizes(limit, {queue: queue.view.received for queue in self._queues})
        return sizes if self._worth_it(sum(sizes.values()), limit) else {}

    def _wait(self, seconds: float) -> None:
        self._queues.wait(seconds)
        self._queues.drain_events()

    def _wait_while(self, holds: Callable[[], bool], maximum_s: float, step_s: float | None = None) -> None:
        deadline = self._runtime.monotonic_s() + maximum_s
        while holds() and self._runtime.monotonic_s() < deadline:
            self._wait(self._timing.idle_s if step_s is None else step_s)

    def await_sessions(self) -> None:
        """Wait until every supervisor is connected; one that gives up ends this with its error."""
        self._wait_while(lambda: not self._queues.complete, math.inf)

    def await_first_messages(self) -> None:
        """Spark runs the first batch of a new query whatever the answer: better with messages in it.

        What only the broker knows (login, queue) is known after this as well. Once is enough.
        """
        if self._awaited:
            return
        self._awaited = True
        self.await_sessions()
        # Not if the queues are known to be empty.
        self._wait_while(
            lambda: not self._queues.buffered and any(queue.view.ready_at_first != 0 for queue in self._queues),
            self._timing.first_s,
        )

    # -- a bounded run

    def bound(self) -> None:
        """From now on take only what the queues hold at this moment."""
        self.await_sessions()
        deadline = self._runtime.monotonic_s() + self._timing.leader_s
        while (
            empty := [queue for queue in self._queues if queue.view.ready_at_first == 0]
        ) and self._runtime.monotonic_s() < deadline:
            # A quorum queue that has no leader at the moment says that it is empty.
            for queue in empty:
                queue.refresh_depth()
            self._wait(self._timing.idle_s)
            for queue in empty:
                queue.recount_ready()
        self._ends = {queue: EndOfRun(queue, self._runtime) for queue in self._queues}

    def _gather_bounded(self, limit: int | None, ends: Mapping[QueueReader, EndOfRun]) -> dict[QueueReader, int]:
        for end in ends.values():
            end.begin()
        while unread := [queue for queue, end in ends.items() if end.left > 0 and not queue.ended]:
            self._queues.drain_events()
            views = {queue: queue.view for queue in ends}
            for queue in ends.keys() - unread:
                # It may be written to for ever; what it holds takes the room of others, and goes back when the run ends
                # in any case.
                if views[queue].received and not views[queue].has_open_epochs and not ends[queue].awaits_confirmation():
                    queue.disconnect()
                    ends[queue].finish()
            if any(views[queue].received for queue in unread):
                self._await_more(limit, left=sum(ends[queue].left for queue in unread))
                some = {queue: int(min(queue.view.received, max(0, ends[queue].left))) for queue in unread}
                sizes = {queue: ends[queue].fitting(size) for queue, size in self._sizes(limit, some).items()}
                if any(sizes.values()):
                    return sizes
                continue
            for queue in unread:
                ends[queue].poll()
            self._queues.wait(self._timing.idle_s)
        self._await_confirmations()
        return {}

    # -- waiting

    def _await_more(self, limit: int | None, *, left: float | None = None, all_: bool = False) -> None:
        """Wait while more comes, where what is here is less than an epoch should have.

        Args:
            limit: how many it may take; None for all that there are.
            left: how many are still to be had, of a run with an end; infinity where that is not known.
            all_: it is the one epoch of a run.
        """
        timing, queues = self._timing, self._queues
        now_s = came_s = self._runtime.monotonic_s()
        windows = sum(queue.view.window for queue in queues)
        # The rest of a window is for what comes while the epoch runs.
        enough = windows // (1 if all_ or self._settings.guarantee.acknowledges_first else EPOCHS_IN_WINDOW)
        flows = False
        if all_:
            until_s, patient = now_s + timing.once_s, True
        elif self._planned_s == -math.inf:
            # Without a known end all that is here may be the rest of the run.
            until_s, patient = now_s + timing.first_fill_s, left != math.inf
        else:
            until_s = self._planned_s + timing.fill_s
            # For bytes: a share that nobody else needs is lifted when it is looked at.
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
        """Whether this rate is a backlog that flows in at full speed. A trickle is not waited for."""
        if came * self._timing.fill_step_s < self._timing.fill_step_messages * seconds:
            return False
        for queue in self._queues:
            queue.refresh_depth()
        depths = [depth for queue in self._queues for depth in queue.view.depths]
        return not depths or any(depths)

    @staticmethod
    def _has_more(queue: QueueReader) -> bool:
        """Whether the broker says that more waits, and may hand it out."""
        queue.refresh_depth()
        return not queue.view.blocked and any(queue.view.depths)

    def _await_confirmations(self) -> None:
        """With nothing new to read, leave nothing unacknowledged behind."""
        self._wait_while(self._queues.unconfirmed, self._timing.confirm_s, self._timing.confirm_step_s)

    # -- how many

    def _equal(self, limit: int) -> int:
        """The size of the fewest equal epochs that a whole window has, if none may have more than `limit`."""
        if self._settings.guarantee.acknowledges_first:
            return limit
        window = sum(queue.settings.window for queue in self._queues)
        equal = -(-window // max(1, -(-window // limit)))
        return min(limit, max(equal, self._settings.min_messages))

    def _sizes(self, limit: int | None, some: Mapping[QueueReader, int]) -> dict[QueueReader, int]:
        """Share the next epoch: messages of each queue, at least one if there is any.

        Args:
            limit: messages over all of them; None for all that there are.
            some: how many are there of each.
        """
        names = list(some)
        turn = self._turn % len(names) if names else 0
        queues = [queue for queue in names[turn:] + names[:turn] if some[queue]]
        wanted = [some[queue] for queue in queues]
        sizes = dict(zip(queues, fair_shares(sum(wanted) if limit is None else limit, wanted), strict=True))
        max_bytes = self._settings.max_bytes
        if self._queues.buffered_bytes > max_bytes:
            rooms = fair_shares(max_bytes, [queue.view.size_bytes for queue in queues])
            sizes = {queue: _fitting(queue, sizes[queue], room) for queue, room in zip(queues, rooms, strict=True)}
            if queues:  # the first in turn, so that a message which is larger than any share gets on
                sizes[queues[0]] = max(1, sizes[queues[0]])
        return {queue: sizes[queue] for queue in names if sizes.get(queue)}

    def _worth_it(self, size: int, limit: int | None) -> bool:
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
            or limit is None
            or any(queue.view.blocked for queue in self._queues)
        ):
            self._waiting_since_s = None
            return True
        for queue in self._queues:
            queue.refresh_depth()
        self._queues.wait(self._timing.idle_s)
        return False


def _fitting(queue: QueueReader, maximum: int, max_bytes: int) -> int:
    """Count those of the first `maximum` buffered messages that have no more bytes than that."""
    taken = held = 0
    rows = queue.oldest(maximum)
    while chunk := list(islice(rows, _SIZING_ROWS)):
        ends = held + np.cumsum(BlockRows.of(chunk).sizes)
        fit = int(ends.searchsorted(max_bytes, "right"))
        taken += fit
        if fit < len(chunk):
            break
        held = int(ends[-1])
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
