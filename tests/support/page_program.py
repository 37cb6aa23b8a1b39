"""Code of a page as a program of its own, for any Spark: with the names that the page takes as given, until it ends.

What it starts has to be called `query`. It is stopped by SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession


def main() -> int:
    """Run it; 0 when the query has ended or was asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("code", type=Path)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--name", action="append", default=[], help="NAME=TEXT, which the code takes as given")
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of the source of `messages`")
    arguments = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    names: dict[str, Any] = {"spark": spark, "checkpoint": arguments.checkpoint}
    names |= dict(name.split("=", 1) for name in arguments.name)
    if arguments.option:
        options = dict(option.split("=", 1) for option in arguments.option)
        given = {"checkpointLocation": arguments.checkpoint, **options}
        names["messages"] = spark.readStream.format("mq").options(**given).load()
    exec(compile(arguments.code.read_text("utf-8"), arguments.code.name, "exec"), names)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    while not stopping and not names["query"].awaitTermination(1):
        pass
    names["query"].stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
