"""Spark's classes as an archive that its JVM maps, where it else reads, checks and links them at each start.

A JVM refuses an archive of other jars, or of another Java, without a word, and starts as before (JEP 350, "Dynamic CDS
Archives"). So it may be there or not.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path

from testbed.distributions import run_to_end
from testbed.process import NodeError

__all__ = ["make_archive", "use_archive"]

_ROOT = Path(__file__).parents[3]
#: In the environment of the interpreter, as it is of the jars there.
_ARCHIVE = Path(sys.prefix, "spark-classes.jsa")
#: Read by `spark-submit` for the JVM of a driver, and by nothing else.
_VARIABLE = "SPARK_SUBMIT_OPTS"
#: Not a word of what is not in the archive, or of why one is not used.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_TIMEOUT_S = 300.0


def use_archive(environment: MutableMapping[str, str]) -> None:
    """Have drivers that are started with this environment use the archive, if there is one."""
    if _ARCHIVE.exists():
        environment[_VARIABLE] = f"-XX:SharedArchiveFile={_ARCHIVE} {_QUIET}"


def make_archive() -> None:
    """Make the archive, of what a query needs whose tasks run in Python.

    Raises:
        NodeError: Spark did not run to the end, or there is no archive then.
    """
    begun = _ARCHIVE.with_suffix(".new")
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        _VARIABLE: f"-XX:ArchiveClassesAtExit={begun} {_QUIET}",
    }
    with tempfile.TemporaryDirectory(prefix="spark-classes-") as folder:
        command = [sys.executable, "-m", "testbed.spark.class_archive", folder]
        code, said = run_to_end(command, _TIMEOUT_S, environment)
    if code or not begun.exists():
        raise NodeError(f"no archive of the classes of Spark (exit code {code}): {said[-2000:]}")
    begun.replace(_ARCHIVE)


def _run(folder: str) -> None:
    """Run two queries with tasks in Python, for the classes that they need."""
    from pyspark.sql import DataFrame, SparkSession  # noqa: PLC0415 - not for who only uses the archive

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = (
        spark.readStream.format("rate").load().mapInArrow(lambda batches: batches, "timestamp timestamp, value bigint")
    )
    files = rows.writeStream.option("checkpointLocation", f"{folder}/state").start(f"{folder}/files", "parquet")

    def look(batch: DataFrame, _: int) -> None:
        batch.count()

    batches = rows.writeStream.foreachBatch(look).start()
    for query in (files, batches):
        while not query.recentProgress and query.isActive:
            time.sleep(0.05)
        query.stop()
    spark.read.parquet(f"{folder}/files").groupBy("value").count().collect()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _run(sys.argv[1])
    else:
        make_archive()
