"""A job as users write it: a queue into parquet files, exactly once.

    python examples/job.py --broker rabbitmq --url amqp://guest:guest@localhost:5672/ --queue orders \
        --output /data/orders --checkpoint /data/checkpoints/orders

It runs until it is stopped or killed, and goes on where it was when it is started again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import FrameType

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.pop("PYSPARK_DRIVER_PYTHON", None)

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from pyspark_mq import QueueListener

#: How many characters of a failure are printed.
_SHOWN = 4_000


def main() -> int:
    """Run the query; 0 when it was asked to stop, 1 when it failed."""
    arguments = _arguments()
    builder = SparkSession.builder.appName("queue to parquet").config("spark.ui.enabled", "false")
    # What a program says of the master wins over `spark-submit --master`, so it says it only if it is asked to.
    spark = (builder.master(arguments.master) if arguments.master else builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if arguments.prometheus is not None:
        spark.streams.addListener(QueueListener(prometheus=arguments.prometheus))

    messages = source_of(spark, arguments).load()
    sink = (
        messages.writeStream.format("parquet")
        .option("path", arguments.output)
        .option("checkpointLocation", arguments.checkpoint)
    )

    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: _note(stopping, number, None))
    for _ in range(1 + arguments.restarts):
        query = sink.start()
        _follow(query, stopping, arguments.report)
        failure = query.exception()
        query.stop()
        if failure is None:
            return 0
        print(summary(str(failure)), file=sys.stderr, flush=True)
    return 1


def source_of(spark: SparkSession, arguments: argparse.Namespace) -> DataStreamReader:
    """The queue or the stream that the arguments name."""
    # Of queues, message IDs are in files of the checkpoint, or of another folder.
    place = {"idLog": arguments.id_log} if arguments.id_log else {"checkpointLocation": arguments.checkpoint}
    read = {"stream": arguments.stream} if arguments.stream else {"queue": arguments.queue, **place}
    return (
        spark.readStream.format("mq")
        .option("broker", arguments.broker)
        .option("url", arguments.url)
        .options(**read)
        .options(**dict(option.split("=", 1) for option in arguments.option))
    )


def summary(failure: str) -> str:
    """Of what Spark says of a query that failed, what there is to read, in a few thousand characters.

    Behind it Spark prints the plan and the offsets. The traceback is in Spark's log.
    """
    told = failure.partition("=== Streaming Query ===")[0].strip()
    of_the_source = re.search(r"\[mq:[\w-]+\] .+", told)
    if of_the_source is not None:
        told = of_the_source[0]
    return told if len(told) <= _SHOWN else f"{told[:_SHOWN]} ... ({len(told) - _SHOWN:,} characters more)"


def _follow(query: StreamingQuery, stopping: list[int], report: str | None) -> None:
    """Report every epoch until the query ends or the job is asked to stop."""
    shown = -1
    while query.isActive and not stopping:
        time.sleep(0.2)
        last = query.lastProgress
        if last is not None and last["batchId"] > shown:
            shown = last["batchId"]
            report_epoch(report, last)


def _note(stopping: list[int], number: int, _: FrameType | None) -> None:
    stopping.append(number)


def report_epoch(file: str | None, progress: dict[str, object]) -> None:
    """What the source counted, a line an epoch."""
    if file is None:
        return
    source = progress["sources"][0]  # type: ignore[index]
    line = {
        "run": progress["runId"],
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        **_counters(source["latestOffset"]),
    }
    with Path(file).open("a", encoding="utf-8") as report:
        report.write(json.dumps(line) + "\n")


def _counters(told: str | None) -> dict[str, object]:
    """Of the source, where Spark shows them: from 4.2 on, and not for a replayed epoch."""
    try:
        counters = json.loads(told or "null")
    except ValueError:
        return {}
    return counters if isinstance(counters, dict) and "settled" in counters else {}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True, help="rabbitmq, activemq or artemis")
    parser.add_argument("--url", required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--queue")
    what.add_argument("--stream", help="with a URL of RabbitMQ streams")
    parser.add_argument("--output", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--master", help="of Spark; by default what spark-submit says, or all cores of this machine")
    parser.add_argument("--id-log", metavar="FOLDER", help="for files of message IDs, by default in the checkpoint")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    parser.add_argument("--restarts", type=int, default=0, help="of the query, when it has failed")
    parser.add_argument("--prometheus", metavar="HOST:PORT", help="serve metrics there (extra 'otel')")
    parser.add_argument("--report", help="file for the source's counters, a JSON line an epoch")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
