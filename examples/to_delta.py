"""A queue into a Delta table, exactly once: the table's own log has the query and the number of each batch.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \\
        examples/to_delta.py --broker rabbitmq --url amqp://guest:guest@localhost:5672/ --queue orders \\
        --table /data/orders --checkpoint /data/checkpoints/orders

The package is named after the Spark it is for, here 4.2. It runs until it is stopped or killed, and goes on where it
was when it is started again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.pop("PYSPARK_DRIVER_PYTHON", None)

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

#: How many characters of a failure are printed; behind them Spark prints plans and offsets.
_SHOWN = 4_000


def main() -> int:
    """Run the query; 0 when it was asked to stop, 1 when it failed."""
    arguments = _arguments()
    spark = (
        SparkSession.builder.appName("queue to Delta")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    messages = (
        spark.readStream.format("mq")
        .option("broker", arguments.broker)
        .option("url", arguments.url)
        .option("queue", arguments.queue)
        .option("checkpointLocation", arguments.checkpoint)
        .options(**dict(option.split("=", 1) for option in arguments.option))
        .load()
    )
    # Nothing more is needed: the sink skips a batch that the log of the table has.
    query = (
        messages.select("messageId", "timestamp", "body")
        .writeStream.format("delta")
        .option("checkpointLocation", arguments.checkpoint)
        .start(arguments.table)
    )

    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    try:
        while not stopping and not query.awaitTermination(1):
            pass
    except StreamingQueryException as failure:
        print(str(failure).partition("=== Streaming Query ===")[0].strip()[:_SHOWN], file=sys.stderr, flush=True)
        return 1
    query.stop()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", required=True, help="rabbitmq, activemq or artemis")
    parser.add_argument("--url", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--table", required=True, help="folder of the Delta table; it is made if it is not there")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
