"""The start of an epoch before Spark 4.2, in which `latestOffset` receives no start.

The start is the end of the epoch whose partitions Spark asked for last. After a restart Spark first asks for the
partitions between the newest logged offset and that offset itself (``AcceptsLatestSeenOffset``). If the offset's epoch
is not committed, Spark replays the epoch before it asks for another one. Later, Spark asks for another epoch only once
the commit log is written. So the offset shown last is committed, and if no offset was shown, the query is new
(``MicroBatchExecution.scala`` and ``PythonMicroBatchStream.scala`` of 4.0 and 4.1).

Two things break this, and are refused. With `spark.sql.streaming.triggerAvailableNowWrapper.enabled`, Spark asks for
the end of a run of `Trigger.AvailableNow` before it shows any offset. The epoch that Spark then shows is not the one
that was planned. And if the optimizer removes the source from the plan, as for `limit(0)`, Spark shows no offset, but
logs and commits the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark_mq.errors import CheckpointError, unread_epoch

__all__ = ["ShownOffset"]


class ShownOffset:
    """The last offset that Spark has shown."""

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._offset: dict[str, Any] | None = None
        #: Start and end of the last planned epoch; None once an epoch was shown.
        self._planned: tuple[dict[str, Any], dict[str, Any]] | None = None

    def latest(
        self, initial: Callable[[], dict[str, Any]], plan: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Plan the epoch that follows the shown offset.

        Args:
            initial: returns the offset of a new query.
            plan: plans the epoch after an offset, and returns its end.

        Raises:
            ConfigurationError: Spark did not ask for the messages of the last planned epoch.
        """
        if self._planned is not None and self._planned[0] != self._planned[1]:
            raise unread_epoch(self._destination, "an epoch")
        start = initial() if self._offset is None else self._offset
        self._planned = start, plan(start)
        return self._planned[1]

    def show(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Record the epoch that Spark is about to run, by its start and end.

        Raises:
            CheckpointError: Spark asked for another epoch before it showed this one.
        """
        if self._offset is None and self._planned is not None and self._planned != (start, end):
            raise CheckpointError(
                f"{self._destination}: this Spark asks for an epoch before it shows which epochs are committed. Set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled to false, its default: before Spark 4.2 a run "
                "of Trigger.AvailableNow is one epoch. Nothing was emitted, and only guarantee 'none' has acknowledged "
                "messages"
            )
        self._offset, self._planned = end, None
