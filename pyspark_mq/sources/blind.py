"""Spark before 4.2 plans blindly: `latestOffset` has no `start`.

So it plans after a restart without showing what is committed, which it shows later: what was planned twice is taken out
then. And it settles an epoch only after the next one is planned. (``MicroBatchExecution.scala`` and
``PythonMicroBatchStream.scala`` of 4.0 and 4.1.) Everything that follows from this is here, and in the file beside that
of such an epoch (:meth:`.Memory.plan_beside`).
"""

from __future__ import annotations

from pyspark_mq.sources.position import Limit
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.runtime import Runtime

__all__ = ["BlindPlanning"]

#: An epoch that waits to be settled, and the next one.
_EPOCHS_IN_WINDOW = 2


class BlindPlanning:
    """Plans without knowing what is committed. Called by the query's thread.

    Args:
        queues: of the query.
        runtime: the clock.
    """

    def __init__(self, queues: QueueGroup, runtime: Runtime) -> None:
        self._queues = queues
        self._runtime = runtime
        self._epoch = 0

    def begin(self) -> None:
        """Spark asks for an epoch, and nothing that it could show first comes before that."""
        for queue in self._queues:
            queue.taking = True

    def share_window(self, limit: Limit) -> Limit:
        """Leave room in the windows for the next epoch beside the one that waits to be settled."""
        for queue in self._queues:
            queue.connections.widen(_EPOCHS_IN_WINDOW)
        windows = [queue.window or queue.first_window for queue in self._queues]
        most = max(1, sum(windows) // _EPOCHS_IN_WINDOW)
        return Limit(most if limit.messages is None else min(most, limit.messages))

    def needs_empty_epoch(self, *, shown: bool, running: bool) -> bool:
        """Is an epoch due although it has no messages?

        The first answer of a process has to be one: Spark compares it with the committed offset, which the process does
        not know, and makes a batch of any other.

        Or there is no room but that of an epoch which only the next one settles: a producer has sent its messages many
        times and every window of a queue is taken, or the epoch is as large as may be held.

        Args:
            shown: has Spark shown what is committed?
            running: is there an epoch that Spark has begun and not committed?
        """
        return not shown or (running and (any(queue.blocked for queue in self._queues) or self._queues.full))

    def number(self, highest: int) -> int:
        """The number of an epoch that is planned before anything is known.

        Spark compares offsets, so it has to be another one than the committed one. That the clock is usually above all
        earlier numbers is of no importance (rule 16).

        Args:
            highest: of the epochs known here.
        """
        self._epoch = max(highest + 1, self._runtime.utc_us())
        return self._epoch

    def planned(self, epoch: int) -> bool:
        """Was this epoch planned before anything was known?"""
        return epoch == self._epoch
