"""Spark before 4.2 plans blindly: `latestOffset` has no `start`.

So it plans after a restart without showing what is committed, which it shows later: what was planned twice is taken out
then. And it shows that an epoch is committed only after the next one is planned. (``MicroBatchExecution.scala`` and
``PythonMicroBatchStream.scala`` of 4.0 and 4.1.) Everything that follows from this is here, and in the file next to
that of such an epoch (:meth:`.Journal.plan_beside`).
"""

from __future__ import annotations

from pyspark_mq.sources.calls import Committed
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.windows import EPOCHS_IN_WINDOW, Trigger

__all__ = ["OFFSET_UNKNOWN", "limit_by_windows", "needs_empty_epoch"]

#: Spark has not shown what is committed.
OFFSET_UNKNOWN = frozenset({Committed.UNKNOWN, Committed.BOUNDED})


def limit_by_windows(queues: QueueGroup, limit: int | None) -> int:
    """Leave room in the windows for the next epoch besides the one that waits to be acknowledged."""
    for queue in queues:
        queue.want(Trigger.WITHOUT_START)
    windows = [queue.view.window or queue.view.next_window for queue in queues]
    maximum = max(1, sum(windows) // EPOCHS_IN_WINDOW)
    return maximum if limit is None else min(maximum, limit)


def needs_empty_epoch(queues: QueueGroup, shown: Committed, *, running: bool) -> bool:
    """Whether an epoch is due although it has no messages.

    The first answer of a process has to be one: Spark compares it with the committed offset, which the process does
    not know, and makes a batch of any other.

    Or an epoch takes all the room, and it is acknowledged only after the next one is planned: a producer has sent its
    messages many times and every window of a queue is taken, or the epoch is as large as may be held.

    Args:
        running: there is an epoch that Spark has begun and not committed.
    """
    return shown in OFFSET_UNKNOWN or (running and (any(queue.view.blocked for queue in queues) or queues.full))
