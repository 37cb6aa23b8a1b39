"""Finds the start of the next epoch in Spark 4.0 and 4.1, which call `latestOffset` without a start.

Spark *shows* the source an offset when it calls `partitions(start, end)`. The next epoch starts at the end that was
shown last, and this end is committed, for two reasons (``MicroBatchExecution.scala`` and
``PythonMicroBatchStream.scala`` of 4.0 and 4.1). After a restart, Spark first asks for the partitions from the newest
logged offset to the same offset (``AcceptsLatestSeenOffset``), and replays that offset's epoch if it is not committed.
After that, Spark calls `latestOffset` only when it has written the commit log. If Spark has shown no offset, the query
is new.

In two cases the end shown last is not the start of the next epoch, and the query fails. First, with
`spark.sql.streaming.triggerAvailableNowWrapper.enabled`, Spark asks for the end of a run of `Trigger.AvailableNow`
before it shows any offset. The epoch that Spark shows afterwards is not the planned epoch. Second, if the optimizer
removes the source from the query's plan, for example because of `limit(0)`, Spark shows no offset, but still logs and
commits the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark_mq.errors import CheckpointError, unread_epoch

__all__ = ["ShownOffset"]


class ShownOffset:
    """Remembers the last offset that Spark has shown, that is, passed to `partitions`."""

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._offset: dict[str, Any] | None = None
        #: Start and end of the last planned epoch; None once Spark has shown an epoch since.
        self._planned: tuple[dict[str, Any], dict[str, Any]] | None = None

    def latest(
        self, initial: Callable[[], dict[str, Any]], plan: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Plan the epoch that starts at the last shown offset, and return the epoch's end.

        Args:
            initial: returns the offset at which a new query starts.
            plan: plans the epoch that starts at an offset, and returns the epoch's end.

        Raises:
            ConfigurationError: Spark did not ask for the messages of the last planned epoch.
        """
        if self._planned is not None and self._planned[0] != self._planned[1]:
            raise unread_epoch(self._destination, "an epoch")
        start = initial() if self._offset is None else self._offset
        self._planned = start, plan(start)
        return self._planned[1]

    def show(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Record that Spark has asked for the partitions of an epoch, which it is about to run.

        Raises:
            CheckpointError: Spark asks for the first time, and for another epoch than the one that was planned last.
        """
        if self._offset is None and self._planned is not None and self._planned != (start, end):
            raise CheckpointError(
                f"{self._destination}: Spark asked for a new epoch before it showed which epochs are committed. Set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled to false, its default. Before Spark 4.2 a run "
                "of Trigger.AvailableNow is one epoch. No message was emitted, and no message was acknowledged unless "
                "'guarantee' is 'none'"
            )
        self._offset, self._planned = end, None
