"""A queue into a table of PostgreSQL, exactly once: the rows of a batch and its ID are written in one transaction.

    pip install 'psycopg[binary]'
    python examples/to_postgres.py --broker rabbitmq --url amqp://guest:guest@localhost:5672/ --queue orders \
        --database postgresql://spark@localhost/shop --checkpoint /data/checkpoints/orders

It runs until it is stopped or killed, and goes on where it was when it is started again. The password of the database
comes from ~/.pgpass or PGPASSWORD. The table `batches` has the last batch of each query that was written.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.pop("PYSPARK_DRIVER_PYTHON", None)

import psycopg
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

_TABLES = """
CREATE TABLE IF NOT EXISTS messages (message_id text, sent timestamptz, body bytea);
CREATE TABLE IF NOT EXISTS batches (query text PRIMARY KEY, last bigint NOT NULL)
"""
#: One row changes the first time a batch is written, none when it is there. The row stays locked until the transaction
#: ends, so a driver that was taken for dead and its successor cannot both write a batch.
_CLAIM = """
INSERT INTO batches AS b VALUES (%s, %s)
ON CONFLICT (query) DO UPDATE SET last = excluded.last WHERE b.last < excluded.last
"""
#: How many characters of a failure are printed; behind them Spark prints plans and offsets.
_SHOWN = 4_000


def main() -> int:
    """Run the query; 0 when it was asked to stop, 1 when it failed."""
    arguments = _arguments()
    with psycopg.connect(arguments.database) as connection:
        connection.execute(_TABLES)
    spark = SparkSession.builder.appName("queue to PostgreSQL")
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
        messages.select("messageId", "timestamp", "body")
        .writeStream.foreachBatch(lambda batch, batch_id: write(batch, batch_id, arguments.database))
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


def write(batch: DataFrame, batch_id: int, database: str) -> None:
    """Write a batch, unless it is there.

    A crash before the transaction ends leaves nothing of the batch, and the replay writes the same messages. A crash
    behind it, before Spark's commit, leaves all of it, and the replay finds its ID.

    Raises:
        psycopg.Error: the database is away or refuses a row. The query fails, with nothing of the batch written.
    """
    # Of the checkpoint: batches of a new one begin with 0 again, and must not be taken for those of the old.
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    rows = batch.collect()
    with psycopg.connect(database) as connection:  # one transaction: rolled back with an exception
        if connection.execute(_CLAIM, [query, batch_id]).rowcount == 0:
            return
        with connection.cursor().copy("COPY messages (message_id, sent, body) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", required=True, help="rabbitmq, activemq or artemis")
    parser.add_argument("--url", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--database", required=True, help="URL of PostgreSQL, without a password")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the source")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
