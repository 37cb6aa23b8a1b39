"""The reader of queues. It translates the calls that Spark makes for a trigger into calls of an :class:`EpochSource`.

In each trigger Spark calls ``latestOffset(start)``, writes its offset log, calls ``commit(start)`` and
``partitions(start, end)``, runs the tasks, and writes its commit log (``MicroBatchExecution.scala``). If the process
died within a trigger, Spark's first call after the restart is ``partitions(start, end)``, which replays the epoch.
Spark writes the commit log before it calls ``latestOffset(start)`` again, so `start` proves that the epoch that ends
there is committed. Before Spark 4.2 ``latestOffset`` receives no `start`; see :mod:`.shown_offset`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_mq.errors import MessageError
from pyspark_mq.sources.connections.block import Run
from pyspark_mq.sources.position import Position
from pyspark_mq.spark_source.failures import without_traceback
from pyspark_mq.spark_source.offset import OffsetCodec
from pyspark_mq.spark_source.options import Options
from pyspark_mq.spark_source.read_limits import ReadMaxRows, SupportsTriggerAvailableNow, is_unlimited
from pyspark_mq.spark_source.schema import BatchBuilder
from pyspark_mq.spark_source.shown_offset import ShownOffset
from pyspark_mq.spark_source.task_transport import Rows, TaskTransport

if TYPE_CHECKING:
    from pyspark_mq.sources.connections.worker import Worker
    from pyspark_mq.sources.epochs import EpochSource

__all__ = ["MqStreamReader"]

#: An epoch is not split into tasks with fewer rows than this, unless the user set `numPartitions`.
_ROWS_PER_TASK_MIN = 2_000
#: Number of decoded offsets to keep: start and end of the running epoch, and the end of the next epoch.
_OFFSETS_KNOWN = 3
#: Maximum size of a partition. Larger ones would cost memory, because Spark copies a task's data about a dozen times.
_PARTITION_BYTES_MAX = 32 << 20


class MqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of the queues of one query.

    Spark creates readers in several processes, but uses only one of them for the query. So a reader opens no connection
    before Spark first asks it for an offset. Spark also pickles the reader into every task, because tasks call
    :meth:`read`. :meth:`read` uses only the task's partition, so a pickled reader contains nothing.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._builder = BatchBuilder(schema)
        self._codec = OffsetCodec.of(options.settings, options.id_log)
        self._epochs: EpochSource | None = None
        self._worker: Worker | None = None
        #: Offsets with their positions, newest last. They are kept because Spark asks for each offset several times.
        self._known: deque[tuple[dict[str, Any], Position]] = deque(maxlen=_OFFSETS_KNOWN)
        self._shown = ShownOffset(options.settings.destination)
        #: Whether Spark has asked for the first epoch of this process.
        self._asked = False
        self._partitions: tuple[int, list[InputPartition]] | None = None
        self._task_transport: TaskTransport | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def _source(self) -> EpochSource:
        if self._epochs is None:
            self._epochs = self._begin()
        return self._epochs

    def _begin(self) -> EpochSource:
        # Spark creates readers in four processes. Only the process that runs the source needs this import.
        from pyspark_mq.spark_source.source import begin_source  # noqa: PLC0415

        source, self._worker = begin_source(self._options, self._codec, self._builder.block_schema)
        return source

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        return self._codec.encode(self._source().initial())

    def getDefaultReadLimit(self) -> Any:
        """Return `maxMessagesPerTrigger` as Spark's limit. The source itself applies `maxBytesPerTrigger` too."""
        return ReadMaxRows(self._options.settings.max_messages)

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Let this run of `Trigger.AvailableNow` end after the messages that the queues hold now."""
        self._source().bound()

    @without_traceback
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Acknowledge the epoch that ends at `start`, and plan the next epoch."""
        if start is None:
            # Before Spark 4.2 a run of Trigger.AvailableNow has a single epoch, and the source is not told that it is
            # in such a run. So the first epoch may be the only one.
            alone, self._asked = not self._asked, True
            return self._shown.latest(self.initialOffset, lambda start: self._latest(start, limit, alone=alone))
        return self._latest(start, limit)

    def _latest(self, start: dict[str, Any], limit: Any, *, alone: bool = False) -> dict[str, Any]:
        position = self._position(start)
        maximum = None if is_unlimited(limit) else getattr(limit, "max_rows", self._options.settings.max_messages)
        latest = self._source().latest(position, maximum, alone=alone)
        if latest == position:
            return start  # the same object, because Spark compares offsets as text
        for offset, known in self._known:
            if known == latest:
                return offset
        self._known.append((self._codec.encode(latest), latest))
        return self._known[-1][0]

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the queues and counters, which Spark shows as the source's `latestOffset` in the query's progress."""
        return None if self._epochs is None else self._epochs.report()

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return an epoch's rows as partitions, one for each task. A repeated call returns the same partitions."""
        before, after = self._position(start), self._position(end)
        self._shown.show(start, end)
        if before == after:
            # Do not take this call as proof that `start` is committed: Spark also makes it before it replays an
            # epoch, and if only other sources of the query have new data.
            return []
        runs = self._source().payload(before, after)
        if self._partitions is None or self._partitions[0] != after.epoch:
            self._task_transport = (self._task_transport or TaskTransport()).begin_epoch()
            self._partitions = (after.epoch, self._split(runs, self._task_transport))
        return self._partitions[1]

    def _split(self, runs: Sequence[Run], task_transport: TaskTransport) -> list[InputPartition]:
        if not runs:
            return []
        sizes = np.concatenate([run.rows.sizes for run in runs])
        parts = self._options.num_partitions
        if parts is None:
            parts = min(os.cpu_count() or 1, -(-len(sizes) // _ROWS_PER_TASK_MIN))
        maximum = min(_PARTITION_BYTES_MAX, self._options.settings.max_partition_bytes)
        parts = min(len(sizes), max(parts, -(-int(sizes.sum()) // maximum)))
        cuts = _cuts(sizes, parts, maximum)
        return [one for cut in cuts for one in self._partitions_of([*_between(runs, *cut)], task_transport)]

    def _partitions_of(self, runs: Sequence[Run], task_transport: TaskTransport) -> list[InputPartition]:
        """Create a partition with these rows, or several partitions if the rows exceed `maxPartitionBytes`.

        The blocks that held the rows release them and refer to the partition's memory instead, so the process never
        keeps two copies. Each queue adds about a kilobyte to a partition, because it has its own record batch.

        Raises:
            MessageError: the row of a single message exceeds `maxPartitionBytes`.
        """
        bound = self._options.settings.max_partition_bytes
        batches = [batch for run in runs for batch in self._builder.build(run.rows, run.name)]
        partition, stream = task_transport.partition(self._builder, batches)
        if not isinstance(partition, Rows) or stream.size <= bound:
            with pa.ipc.open_stream(stream) as written:
                for run in runs:
                    run.rows.move_to(written)
            return [partition]
        size, count = stream.size, sum(len(run.rows) for run in runs)
        del batches, partition, stream  # free the memory before creating the halves
        if count > 1:
            halves = (0, count // 2), (count // 2, count)
            return [one for half in halves for one in self._partitions_of([*_between(runs, *half)], task_transport)]
        shows_id = "messageId" in self._builder.block_schema.names
        which = f" with the ID {runs[0].rows.values('messageId')[0]!r}" if shows_id else ""
        raise MessageError(
            f"'{runs[0].name}' holds a message{which} whose row takes {size:,} bytes, but a task may carry {bound:,} "
            "(option 'maxPartitionBytes'). The message was not acknowledged. Raise the session's "
            "spark.rpc.message.maxSize (128 MiB by default) above the row's size, and 'maxPartitionBytes' to just "
            "below spark.rpc.message.maxSize; or remove the message from the queue"
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition's rows on an executor. Everything that this method needs is in the partition."""
        with partition.opened() as stream:  # type: ignore[attr-defined]
            yield from stream

    @without_traceback
    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the messages of all epochs up to `end`.

        Spark may call this method late or not at all. Then the next call of `latestOffset` acknowledges the messages,
        because it proves the commit as well.
        """
        self._source().commit(self._position(end))

    def stop(self) -> None:
        """End the source's connections, so that the broker can redeliver unacknowledged messages at once.

        Spark rarely calls this method: it usually ends the process instead.
        """
        if self._epochs is not None:
            self._epochs.stop()
        if self._worker is not None:
            self._worker.stop()

    def _position(self, offset: dict[str, Any]) -> Position:
        position = next((position for known, position in self._known if known == offset), None)
        if position is None:
            position = self._codec.decode(offset)
            # Keep it: Spark passes the same offset in every trigger of an idle query.
            self._known.append((offset, position))
        if self._codec.log is not None:
            self._codec.log.show(position.file)  # Spark has written an offset to its log before it passes it on
        return position


def _cuts(sizes: Any, parts: int, maximum: int) -> list[tuple[int, int]]:
    """Cut rows into at least `parts` ranges (first row, end) with about the same number of rows.

    A range has at most `maximum` bytes, unless it consists of one larger message. `sizes` has the bytes of each row.
    """
    rows_max = -(-len(sizes) // parts)
    sums = np.append(0, np.cumsum(sizes))
    cuts: list[tuple[int, int]] = []
    low = 0
    while low < len(sizes):
        fitting = int(sums.searchsorted(sums[low] + maximum, "right")) - 1
        cuts.append((low, min(low + rows_max, max(low + 1, fitting), len(sizes))))
        low = cuts[-1][1]
    return cuts


def _between(runs: Sequence[Run], low: int, high: int) -> Iterator[Run]:
    """Yield the rows from `low` up to `high`, counted over the rows of all queues (`runs`) one after another."""
    for run in runs:
        rows = run.rows.between(low, high)
        if rows:
            yield Run(run.name, rows)
        low, high = low - len(run.rows), high - len(run.rows)
