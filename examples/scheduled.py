"""A job for a scheduler: what a queue holds into parquet files, then it ends.

    MQ_URL=amqp://guest:guest@localhost:5672/ python examples/scheduled.py /data/checkpoints/orders /data/orders

The exit code is 0 when everything is written and acknowledged. Whatever else happens, the next run goes on from there.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.pop("PYSPARK_DRIVER_PYTHON", None)

from pyspark.sql import SparkSession


def main(checkpoint: str, out: str) -> int:
    """Read what is in the queue, and end; an exception when the query failed."""
    spark = SparkSession.builder.appName("orders").getOrCreate()
    messages = (
        spark.readStream.format("mq")
        .option("broker", "rabbitmq")
        .option("url", os.environ.get("MQ_URL", "amqp://guest:guest@localhost:5672/"))
        .option("queue", os.environ.get("MQ_QUEUE", "orders"))
        .option("checkpointLocation", checkpoint)
        .load()
    )
    query = (
        messages.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
