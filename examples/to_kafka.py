"""A queue into a topic of Kafka, at least once, with the message's ID as the key so that readers see what came twice.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        examples/to_kafka.py --broker rabbitmq --url amqp://guest:guest@localhost:5672/ --queue orders \\
        --servers localhost:9092 --topic orders --checkpoint /data/checkpoints/orders

The version of the package is that of Spark. It runs until it is stopped or killed, and goes on where it was when it is
started again: with the batch that was open, which Spark's Kafka sink writes once more.
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
    spark = SparkSession.builder.appName("queue to Kafka")
    spark = spark.config("spark.ui.enabled", "false").getOrCreate()
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
    query = (
        messages.selectExpr("messageId AS key", "body AS value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", arguments.servers)
        .option("topic", arguments.topic)
        .option("checkpointLocation", arguments.checkpoint)
        .start()
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
    parser.add_argument("--servers", required=True, help="of Kafka, host:port, with commas between them")
    parser.add_argument("--topic", required=True, help="has to be there, or Kafka makes it with its defaults")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
