"""The program of :class:`.PeriodicJob`: a run of a query for each line of standard input, into files.

A line says where the sink is to fail, and in which batch of the run. The sink is `foreachBatch`, idempotent by the
number of the batch: it writes parquet files and then, at once, a line of a log that has the form of Spark's own file
sink. So what reads the one reads the other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from examples.job import report_epoch, source_of, summary
from testbed.chaos.audit import MARK_CHARS
from testbed.chaos.periodic import Failure

_SAID = "the sink was told to fail"


def main() -> int:
    """Run until standard input ends."""
    arguments = _arguments()
    spark = (
        SparkSession.builder.appName("periodic").master(arguments.master).config("spark.ui.enabled", "false")
    ).getOrCreate()  # fmt: skip
    spark.sparkContext.setLogLevel("ERROR")
    messages = source_of(spark, arguments).load()
    output = Path(arguments.output)
    for line in sys.stdin:
        wanted = json.loads(line)
        sink = Sink(output, wanted["fails"] and Failure(wanted["fails"]), wanted["batch"])
        query = (
            messages.writeStream.foreachBatch(sink.write)
            .option("checkpointLocation", arguments.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        told = ""
        try:
            query.awaitTermination()
        except StreamingQueryException as failed:
            told = str(failed)
        for progress in query.recentProgress:
            report_epoch(arguments.report, progress)
        failed_as_told = _SAID in told
        ended = {
            "failed": wanted["fails"] if failed_as_told else None,
            "unexpected": "" if failed_as_told else summary(told),
        }
        with (output.parent / "runs.jsonl").open("a", encoding="utf-8") as runs:
            runs.write(json.dumps(ended) + "\n")
    return 0


class Sink:
    """Files of each batch, and a log that says which.

    Args:
        folder: of both.
        failure: where it fails, if it does.
        batch: in which batch of the run, from 0.
    """

    def __init__(self, folder: Path, failure: Failure | None, batch: int) -> None:
        self._folder = folder
        self._log = folder / "_spark_metadata"
        self._failure = failure
        self._left = batch

    def write(self, rows: DataFrame, number: int) -> None:
        """A batch. One that is there counts no second time; but what it was handed is written down for the checker.

        Raises:
            RuntimeError: it was told to fail.
        """
        failure = self._failure if self._left == 0 else None
        self._left -= 1
        heads = rows.select(F.substring("body", 1, MARK_CHARS).cast("string")).collect()
        with (self._folder.parent / "calls.jsonl").open("a", encoding="utf-8") as calls:
            calls.write(json.dumps({"batch": number, "marks": [head[0] for head in heads]}) + "\n")
        if failure is Failure.BEFORE:
            raise RuntimeError(_SAID)
        entry, before = self._log / str(number), self._files()
        if not entry.exists():
            written = rows.mapInArrow(_half, rows.schema) if failure is Failure.HALFWAY else rows
            written.write.mode("append").parquet(str(self._folder))
            lines = ["v1", *(json.dumps({"path": path.as_uri()}) for path in sorted(self._files() - before))]
            self._log.mkdir(exist_ok=True)
            draft = self._log / f".{number}"
            draft.write_text("\n".join(lines), "utf-8")
            draft.replace(entry)
        if failure is not None:
            raise RuntimeError(_SAID)

    def _files(self) -> set[Path]:
        return set(self._folder.glob("part-*.parquet"))


def _half(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Some rows of a task, and then an error."""
    for block in blocks:
        yield block.slice(0, block.num_rows // 2)
        if block.num_rows:
            raise RuntimeError(_SAID)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("broker", "url", "queue", "output", "checkpoint", "master", "report"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--option", action="append", default=[])
    parser.set_defaults(id_log=None, stream=None)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
