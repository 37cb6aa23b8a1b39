"""The readers of streams. They translate Spark's calls into calls of a :class:`Planner`, and read offsets in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_mq.decode.columns import COLUMNS
from pyspark_mq.errors import SchemaError
from pyspark_mq.sources.exposure import exposures
from pyspark_mq.spark_source.failures import without_traceback
from pyspark_mq.spark_source.read_limits import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow, is_unlimited
from pyspark_mq.spark_source.schema import stream_schema
from pyspark_mq.spark_source.shown_offset import ShownOffset
from pyspark_mq.streams.planner import Planner
from pyspark_mq.streams.ranges import Range
from pyspark_mq.streams.rows import range_batches
from pyspark_mq.streams.settings import StreamSettings

__all__ = ["StreamBatchReader", "StreamReader", "arrow_schema", "stream_schema"]

_LOG = logging.getLogger("pyspark_mq")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema for a query's columns.

    Raises:
        SchemaError: the schema is empty, names a column that streams do not have, or gives a column another type.
    """
    known = {field.name: field.dataType for field in stream_schema(include_metadata=True)}
    fields = []
    for field in schema.fields:
        if field.name not in known or field.dataType != known[field.name]:
            has = f"has it as {known[field.name].simpleString()}" if field.name in known else "does not have it"
            raise SchemaError(
                f"the schema names column '{field.name}' as {field.dataType.simpleString()}, but a source of streams "
                f"{has}; its columns are {', '.join(known)}"
            )
        fields.append(pa.field(field.name, COLUMNS[field.name].kind, nullable=field.nullable))
    if not fields:
        raise SchemaError(f"the schema is empty; choose from {', '.join(known)}")
    return pa.schema(fields)


class _RangePartition(InputPartition):
    """The range of offsets that one task reads. It contains a password, which the repr does not show."""

    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted

    def __repr__(self) -> str:
        return f"_RangePartition({self.wanted})"


class _Tasks:
    """Base class of :class:`StreamBatchReader` and :class:`StreamReader`, with the method that runs in tasks.

    A reader that is pickled into a task has only the query's columns, and the options that say how to decode messages.
    """

    def __init__(self, settings: StreamSettings, schema: StructType) -> None:
        self._schema = arrow_schema(schema)
        self._content: dict[str, Any] = {"unreadable": settings.unreadable, "max_entry_bytes": settings.max_entry_bytes}
        self._max_offsets = settings.max_offsets
        self._planner = Planner(settings)

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_content": self._content}

    @without_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the partition's range of offsets from a broker node that has a copy of the stream."""
        assert isinstance(partition, _RangePartition)
        yield from range_batches(partition.wanted, self._schema, **self._content)


class StreamBatchReader(_Tasks, DataSourceReader):
    """Reader of a batch query, which reads a range of offsets from each stream."""

    @without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Return one task's partition for each stream or partition of a super stream; more tasks if options say so."""
        return [_RangePartition(wanted) for wanted in self._planner.batch()]


class StreamReader(_Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query, which reads its streams epoch by epoch.

    Spark's offset has the position in each stream, so, unlike for queues, no other files are needed.
    """

    def __init__(self, settings: StreamSettings, schema: StructType) -> None:
        super().__init__(settings, schema)
        self._shown = ShownOffset(settings.of)
        self._initial: dict[str, Any] | None = None
        self._exposures = list(map(str, exposures(settings.endpoint)))

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts. Repeated calls return the same offset, although a stream's end moves."""
        self._initial = self._initial or self._planner.initial()
        return self._initial

    def getDefaultReadLimit(self) -> Any:
        """Return `maxOffsetsPerTrigger` as Spark's limit; if the option is not set, no limit."""
        return ReadAllAvailable() if self._max_offsets is None else ReadMaxRows(self._max_offsets)

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Let this run of `Trigger.AvailableNow` end after the messages that the streams hold now."""
        self._planner.bound()

    @without_traceback
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Plan the next epoch and return its end."""
        while self._exposures:
            _LOG.warning("%s", self._exposures.pop(0))
        if start is None:
            return self._shown.latest(self.initialOffset, self._planner.latest)
        return self._planner.latest(start, limited=not is_unlimited(limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the counters, which Spark shows as the source's `latestOffset` in the query's progress."""
        return self._planner.report()

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of offsets that belong to an epoch, one for each task."""
        self._shown.show(start, end)
        return [_RangePartition(wanted) for wanted in self._planner.ranges(start, end)]

    @without_traceback
    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: reading a stream does not remove messages, so there is nothing to acknowledge."""

    def stop(self) -> None:
        """Do nothing: the reader's connections are closed when its process ends."""
