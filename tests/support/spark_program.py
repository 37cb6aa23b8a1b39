"""A query in a real Spark that dies where it is told to: a program of its own, for any Spark that this package runs on.

The sink is `foreachBatch` with a file for each batch, as exact as a sink can be: a batch that is there is not written
again. Every call of it is noted, with the rows it was given, in `calls.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession

_POLL_S = 0.002


class Sink:
    """Files in a folder.

    Args:
        folder: where `calls.jsonl` and the batches are.
        die: `before` or `after` the batch is written, or nowhere.
        hold: wait at this batch, after it is written, until there is a file `go`.
        at: the batch to die at.
    """

    def __init__(self, folder: Path, die: str, hold: int, at: int) -> None:
        self._folder = folder
        self._die = die
        self._hold = hold
        self._at = at

    def __call__(self, frame: Any, batch: int) -> None:
        rows = [[row.messageId, bytes(row.body).decode()] for row in frame.select("messageId", "body").collect()]
        with (self._folder / "calls.jsonl").open("a", encoding="utf-8") as calls:
            calls.write(json.dumps({"batch": batch, "rows": rows}) + "\n")
        if batch == self._at and self._die == "before":
            _die()
        file = self._folder / f"{batch}.json"
        if not file.exists():
            whole = file.with_suffix(".new")
            whole.write_text(json.dumps(rows), "utf-8")
            whole.replace(file)
        if batch == self._at and self._die == "after":
            _die()
        if batch == self._hold:
            while not (self._folder / "go").exists():
                time.sleep(_POLL_S)
            (self._folder / "go").unlink()


def _die() -> None:
    """The driver and its JVM, which are one process group."""
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Run until it dies, fails, or is told to stop by SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--die", default="")
    parser.add_argument("--at", type=int, default=-1)
    parser.add_argument("--hold", type=int, default=-1)
    parser.add_argument("--option", action="append", default=[])
    arguments = parser.parse_args()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = dict(option.split("=", 1) for option in arguments.option)
    sink = Sink(arguments.folder, arguments.die, arguments.hold, arguments.at)
    checkpoint = str(arguments.folder.resolve() / "checkpoint")
    if "stream" not in options:
        options = {"checkpointLocation": checkpoint, **options}
    frame = spark.readStream.format("mq").options(**options).load()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()
    while query.isActive and not stopping:
        time.sleep(0.1)
    failure = query.exception()
    query.stop()
    if failure is not None:
        print(failure, file=sys.stderr)
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
