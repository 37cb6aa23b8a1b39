"""A Spark job to be killed: `python -m benchmarks.job SOURCE ROWS CHECKPOINT OPTIONS`.

SOURCE is `mq`, with OPTIONS as JSON; `rate-micro-batch`, Spark's own, with so many rows a batch; or `counting`, a
source in Python that does nothing but hand its rows over, as ours does. The sink takes everything and keeps nothing. It
says as lines of JSON when it has got how far, in seconds since 1970, and runs until it is killed or its standard
input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from benchmarks.drains import make_session

__all__ = ["CountingSource"]


class _Rows(InputPartition):
    def __init__(self, stream: bytes) -> None:
        super().__init__(None)
        self.stream = stream


class CountingReader(DataSourceStreamReader):
    """So many rows an epoch, each of 200 bytes, as Arrow streams in the partitions."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._body = os.urandom(100).hex().encode()

    def initialOffset(self) -> dict[str, int]:
        return {"epoch": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        del limit
        return {"epoch": (start or self.initialOffset())["epoch"] + 1}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        del start, end
        parts = os.cpu_count() or 1
        batch = pa.record_batch({"body": pa.array([self._body] * (self._rows // parts), pa.binary())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return [_Rows(sink.getvalue().to_pybytes()) for _ in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        with pa.ipc.open_stream(partition.stream) as stream:
            yield from stream


class CountingSource(DataSource):
    """What a streaming source in Python costs at the start of Spark, without a broker."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> str:
        return "body binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        del schema
        return CountingReader(int(self.options["rows"]))


def main(source: str, rows: int, checkpoint: str, options: dict[str, str]) -> None:
    """Run until it is killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    spark = make_session()
    say("session")
    if source == "counting":
        spark.dataSource.register(CountingSource)
        options = {"rows": str(rows)}
    elif source == "rate-micro-batch":
        options = {"rowsPerBatch": str(rows), "numPartitions": str(os.cpu_count() or 1)}
    writer = spark.readStream.format(source).options(**options).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
    say("query")
    query.awaitTermination()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)  # the JVM sees that and ends as well


def say(what: str) -> None:
    print(json.dumps({what: time.time()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
