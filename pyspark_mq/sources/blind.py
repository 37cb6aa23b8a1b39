"""Spark before 4.2 plans blindly: `latestOffset` has no `start`.

So it plans after a restart without showing what is committed, which it shows later: what was planned twice is taken out
then. And it shows that an epoch is committed only after the next one is planned. (``MicroBatchExecution.scala`` and
``PythonMicroBatchStream.scala`` of 4.0 and 4.1.) Everything that follows from this is here, and in the file beside that
of such an epoch (:meth:`.Memory.plan_beside`).
"""

from __future__ import annotations

from pyspark_mq.sources.calls import Shown
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.windows import EPOCHS_IN_WINDOW, Moment
from pyspark_mq.sources.runtime import Runtime

__all__ = ["BlindPlanning"]

#: Spark has not shown what is committed.
_UNSHOWN = frozenset({Shown.FRESH, Shown.BOUNDED})


class BlindPlanning:
    """Plans without knowing what is committed. Called by the query's thread.

    Args:
        queues: of the query.
        runtime: the clock.
    """

    def __init__(self, queues: QueueGroup, runtime: Runtime) -> None:
        self._queues = queues
        self._runtime = runtime

    def begin(self) -> None:
        """Spark asks for an epoch, and nothing that it could show first comes before that."""
        for queue in self._queues:
            queue.take()

    def share_window(self, limit: int | None) -> int:
        """Leave room in the windows for the next epoch beside the one that waits to be acknowledged."""
        for queue in self._queues:
            queue.windows.enter(Moment.BLIND)
        windows = [queue.windows.total or queue.windows.next_total for queue in self._queues]
        maximum = max(1, sum(windows) // EPOCHS_IN_WINDOW)
        return maximum if limit is None else min(maximum, limit)

    def needs_empty_epoch(self, shown: Shown, *, running: bool) -> bool:
        """Whether an epoch is due although it has no messages.

        The first answer of a process has to be one: Spark compares it with the committed offset, which the process does
        not know, and makes a batch of any other.

        Or there is no room but that of an epoch which is acknowledged only behind the next one: a producer has sent its
        messages many times and every window of a queue is taken, or the epoch is as large as may be held.

        Args:
            shown: by Spark.
            running: there is an epoch that Spark has begun and not committed.
        """
        return shown in _UNSHOWN or (
            running and (any(queue.windows.blocked for queue in self._queues) or self._queues.full)
        )

    def number(self, highest: int, shown: Shown) -> tuple[int, bool]:
        """Return the number of the next epoch, and whether it is planned before anything is known.

        Spark compares offsets, so it has to be another one than the committed one. That the clock is usually above all
        earlier numbers is of no importance (rule 16).

        Args:
            highest: of the epochs known here.
            shown: by Spark.
        """
        blind = shown in _UNSHOWN
        return max(highest + 1, self._runtime.utc_us() if blind else 0), blind
