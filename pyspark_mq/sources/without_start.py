"""Spark before 4.2 plans without a start offset: `latestOffset` has no `start`.

After a restart Spark plans before it shows the committed offset; when it shows the offset, messages planned twice are
removed. Spark also shows the commit of an epoch only after the next epoch is planned. (``MicroBatchExecution.scala``
and ``PythonMicroBatchStream.scala`` of 4.0 and 4.1.) Everything that follows from this is here, and in the complete
file that is written next to the file of such an epoch (:meth:`.Journal.plan_beside`).
"""

from __future__ import annotations

from pyspark_mq.sources.calls import Committed
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.windows import EPOCHS_IN_WINDOW, Trigger

__all__ = ["OFFSET_UNKNOWN", "limit_by_windows", "needs_empty_epoch"]

#: States in which the committed offset is unknown.
OFFSET_UNKNOWN = frozenset({Committed.UNKNOWN, Committed.BOUNDED})


def limit_by_windows(queues: QueueGroup, limit: int | None) -> int:
    """Leave room in the windows for the next epoch besides the one that waits for its acknowledgement."""
    for queue in queues:
        queue.apply_trigger(Trigger.WITHOUT_START)
    windows = [queue.view.window or queue.view.next_window for queue in queues]
    maximum = max(1, sum(windows) // EPOCHS_IN_WINDOW)
    return maximum if limit is None else min(maximum, limit)


def needs_empty_epoch(queues: QueueGroup, shown: Committed, *, running: bool) -> bool:
    """Whether an empty epoch is due.

    The first answer of a process has to be an epoch: Spark compares the answer with the committed offset, which the
    process does not know, and runs a batch if they differ.

    An empty epoch is also due if a running epoch takes all the room, as it is acknowledged only after the next plan:
    duplicates fill every window of a queue, or the epoch is as large as may be held.

    Args:
        running: whether Spark has begun an epoch and not committed it.
    """
    return shown in OFFSET_UNKNOWN or (running and (any(queue.view.blocked for queue in queues) or queues.full))
