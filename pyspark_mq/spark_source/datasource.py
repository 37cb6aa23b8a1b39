"""The data source class that Spark registers under the format name ``mq``."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_mq.errors import ConfigurationError, OptionError
from pyspark_mq.spark_source.extras import check_installed
from pyspark_mq.spark_source.failures import without_traceback
from pyspark_mq.spark_source.options import Options, parse_options
from pyspark_mq.spark_source.reader import MqStreamReader
from pyspark_mq.spark_source.schema import ALL_COLUMNS, SCHEMA
from pyspark_mq.spark_source.sink_options import parse_sink_options
from pyspark_mq.spark_source.sink_writer import BatchWriter, StreamWriter
from pyspark_mq.spark_source.stream_options import is_stream, parse_stream_options
from pyspark_mq.spark_source.stream_reader import StreamBatchReader, StreamReader, stream_schema

__all__ = ["MqDataSource"]

_NO_TABLE = (
    "a table of format 'mq' cannot be created like this: when a query starts, Spark does not pass a table's OPTIONS or "
    "TBLPROPERTIES to a Python source. Use spark.readStream.format('mq') with options; or create the "
    "table with its columns but without options, and pass the options to spark.readStream.options(...).table(...)"
)
_NO_OPTIONS = (
    "is required, but no options were set. Options of a SQL table do not reach a Python source: pass them to "
    "spark.readStream.options(...).table(...)"
)


class MqDataSource(DataSource):
    """The messages of a queue as an unbounded table, or rows to write to a queue.

    Options and columns are in ``docs/options.md``. If the sink is idempotent by batch (file sinks, Delta,
    ``foreachBatch`` keyed by the batch ID), the default guarantee is that every message reaches the query's output
    exactly once, no matter which process is killed, or when.

    Raises
    ------
    OptionError
        at ``load()``, if an option is unknown or has a value that cannot be used
    ConfigurationError
        if Spark creates the source for ``CREATE TABLE``; at ``load()`` on Windows
    MissingExtraError
        at ``load()``, if the client library of the protocol or of Redis is not installed
    """

    @without_traceback
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # For CREATE TABLE Spark passes all properties of the table as options. Users cannot set these two properties,
        # so they show that the source is created for a table (DataSourceV2Utils, TableCatalog).
        if "provider" in options and "owner" in options:
            raise ConfigurationError(_NO_TABLE)
        self._reader_made = False

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the source for the driver's own processes, which need the options. After a reader is created,
        # Spark pickles the source again into every task. Tasks do not need the options, and must not get a password.
        return {**self.__dict__, "options": {}} if self._reader_made else self.__dict__

    @classmethod
    def name(cls) -> str:
        return "mq"

    @without_traceback
    def schema(self) -> StructType:
        """Return the columns of a query that sets no schema: the default columns; with `includeMetadata`, all columns.

        A schema that the user sets may name any column.
        """
        if is_stream(self.options):
            return stream_schema(include_metadata=parse_stream_options(self.options).include_metadata)
        return ALL_COLUMNS if self._checked().include_metadata else SCHEMA

    def _checked(self) -> Options:
        """Parse and check the options for reading a queue.

        The constructor cannot check them, because Spark does not tell it whether the source will read or write.
        """
        if not self.options:
            raise OptionError("broker", _NO_OPTIONS)
        parsed = parse_options(self.options)
        parsed.check_place()
        check_installed(parsed)
        return parsed

    @without_traceback
    def streamReader(self, schema: StructType) -> MqStreamReader | StreamReader:
        self._reader_made = True
        if is_stream(self.options):
            return StreamReader(parse_stream_options(self.options).streaming, schema)
        return MqStreamReader(self._checked(), schema)

    @without_traceback
    def reader(self, schema: StructType) -> StreamBatchReader:
        """Return the reader of a batch query (`spark.read`), which reads a range of offsets from streams.

        Raises:
            ConfigurationError: the options name a queue. Spark does not tell a batch source that the query has
                succeeded, so there is no moment at which messages could be acknowledged safely.
        """
        if is_stream(self.options):
            self._reader_made = True
            return StreamBatchReader(parse_stream_options(self.options).batch, schema)
        self._checked()
        raise ConfigurationError(
            "spark.read supports RabbitMQ streams ('rabbitmq-stream://'), not queues. To read a queue, use "
            "spark.readStream; to stop after the messages that the queue holds now, add .trigger(availableNow=True)"
        )

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer for a batch write (`df.write`), which publishes a DataFrame's rows to a queue."""
        self._reader_made = True
        return BatchWriter(parse_sink_options(self.options, streaming=False), schema, overwrite=overwrite)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer for a streaming write (`df.writeStream`), which publishes each batch's rows to a queue."""
        self._reader_made = True
        return StreamWriter(parse_sink_options(self.options, streaming=True), schema, overwrite=overwrite)
