"""The writers that Spark calls for a write to a queue. They publish the rows of each task, and log warnings."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain
from typing import Any

import pyarrow as pa
import pyspark.sql.datasource as spark_api
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_mq.errors import ConfigurationError, InternalError
from pyspark_mq.logs import COMMAND, escape_log_lines
from pyspark_mq.sink.columns import ColumnPlan, batches_of_rows
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.publisher import publisher_class, write_rows
from pyspark_mq.sink.settings import Remarks, SinkSettings
from pyspark_mq.sources.exposure import exposures
from pyspark_mq.spark_source.failures import without_traceback

__all__ = ["BatchWriter", "StreamWriter"]

_LOG = logging.getLogger("pyspark_mq")

#: Number of rows that form an Arrow batch if Spark passes rows one by one. Spark's own Arrow batches have as many.
_ROWS = 10_000
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
_APPEND = (
    "a queue cannot be overwritten, and its messages cannot be updated: use mode 'append'. To write the results of a "
    "query with outputMode 'update' or 'complete', call write.format('mq').mode('append') in foreachBatch"
)
_UNNAMED = (
    "a write within foreachBatch has no 'writeId'. If Spark reruns the batch, its messages get new IDs, so readers "
    "take them for new messages. Set 'writeId', for example to f'{query}/{batch}/name of the destination'"
)
#: Base classes of the writers. From Spark 4.1 on they get Arrow batches; earlier versions pass rows one by one.
_OfBatch: Any = getattr(spark_api, "DataSourceArrowWriter", DataSourceWriter)
_OfStream: Any = getattr(spark_api, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


@dataclass
class Written(WriterCommitMessage):
    """The result of a task that published rows, which Spark passes from the executor to the driver.

    Attributes:
        messages: number of messages that the broker has confirmed.
        within: whether the task ran within a streaming query, for example within `foreachBatch`.
        remarks: what the task noticed, for the warnings that the driver logs.
    """

    messages: int
    within: bool
    remarks: Remarks


class _Writer:
    """Base class of :class:`BatchWriter` and :class:`StreamWriter`."""

    def __init__(self, settings: SinkSettings, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(_APPEND)
        publisher_class(settings.endpoint.protocol)
        self._settings = settings
        self._fields = [(one.name, one.dataType.simpleString()) for one in schema.fields]
        self._plan = ColumnPlan(self._fields, settings)

    def _write(
        self, rows: Iterator[Any], writer: Sequence[str], task: TaskContext, *, within: bool, again: bool = False
    ) -> Written:
        thread = threading.current_thread()
        # Client libraries also log the failures that this package's errors already describe.
        setattr(thread, COMMAND, True)
        escape_log_lines()
        try:
            identity, remarks = Identity(writer, task.partitionId()), Remarks()
            count = write_rows(self._batches(rows), self._settings, self._plan, identity, again=again, remarks=remarks)
            return Written(count, within, remarks)
        finally:
            delattr(thread, COMMAND)

    def _batches(self, rows: Iterator[Any]) -> Iterable[pa.RecordBatch]:
        first = next(rows, None)
        if first is None:
            return ()
        everything = chain((first,), rows)
        if isinstance(first, pa.RecordBatch):
            return everything
        return batches_of_rows(everything, self._fields, _plain, _ROWS)

    def _warn(self, messages: Sequence[Written | None]) -> None:
        remarks = Remarks()
        for one in messages:
            if one is not None:
                remarks += one.remarks
        if remarks.reading:
            _LOG.warning("%s", remarks.reading)
        if remarks.properties:
            _LOG.warning(
                "properties that would steer the broker were left out of the messages: %s. To send them, and have the "
                "broker act on them, name them in option 'brokerProperties'",
                ", ".join(sorted(remarks.properties)),
            )
        if remarks.dropped:
            counts = ", ".join(f"{count} {why}" for why, count in remarks.dropped.items())
            _LOG.warning("onUnwritableRow=drop: rows were dropped: %s. The first: %s", counts, remarks.first)

    def _warn_of_exposures(self) -> None:
        for exposure in exposures(self._settings.endpoint):
            _LOG.warning("%s", exposure)

    def abort(self, *_: Any) -> None:
        """Do nothing: confirmed messages cannot be retracted from the queue."""


class BatchWriter(_Writer, _OfBatch):  # type: ignore[misc]
    """Writer for one batch write (`df.write`), which publishes the rows of a DataFrame."""

    def __init__(self, settings: SinkSettings, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(settings, schema, overwrite=overwrite)
        self._id = settings.write_id or secrets.token_hex(16)

    @without_traceback
    def write(self, iterator: Iterator[Any]) -> Written:
        """Publish the rows of a task."""
        task = _task()
        return self._write(iterator, ("write", self._id), task, within=task.getLocalProperty(_QUERY) is not None)

    def commit(self, messages: Sequence[Written | None]) -> None:
        """Log how many messages were written."""
        done = [one for one in messages if one is not None]
        if self._settings.write_id is None and any(one.within for one in done):
            _LOG.warning(_UNNAMED)
        self._warn(done)
        if not any(one.within for one in done):
            self._warn_of_exposures()
        _LOG.info(
            "%d message(s) were written to %s",
            sum(one.messages for one in done),
            self._settings.destination or "queues",
        )


class StreamWriter(_Writer, _OfStream):  # type: ignore[misc]
    """Writer for one streaming write (`df.writeStream`), which publishes the rows of each of the query's batches."""

    @without_traceback
    def write(self, iterator: Iterator[Any]) -> Written:
        """Publish the rows of a task."""
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in (_QUERY, _BATCH))
        if query is None or batch is None:
            raise InternalError(
                f"Spark does not say to which batch a task belongs: {_QUERY} is {query}, {_BATCH} is {batch}"
            )
        return self._write(iterator, ("query", query, batch), task, within=True, again=batch != "0")

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: N803 - Spark names it
        """Log what the tasks noticed. Nothing has to be committed: the broker has already confirmed each message."""
        self._warn(messages)
        if batchId == 0:
            self._warn_of_exposures()


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InternalError("a write runs outside a task")
    return task


def _plain(kind: str, value: Any) -> Any:
    """Convert a value of a row to the type that Arrow needs. Spark passes naive times in the process's time zone."""
    if kind == "timestamp" and isinstance(value, datetime):
        return value.astimezone(timezone.utc)
    return bytes(value) if kind == "binary" and value is not None else value
