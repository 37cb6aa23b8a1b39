"""Several queues of JSON into a table each, exactly once; what does not parse goes into a table of dead letters.

    pip install 'psycopg[binary]'
    python examples/to_tables.py --broker rabbitmq --url amqp://guest:guest@localhost:5672/ \
        --database postgresql://spark@localhost/shop --checkpoint /data/checkpoints/shop

One query reads the queues `orders` and `refunds`. A batch goes into all tables in one transaction, as in
to_postgres.py.
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.pop("PYSPARK_DRIVER_PYTHON", None)

import psycopg
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, from_json, try_validate_utf8, when

#: Queue, and table -> the schema of its bodies. The first field has to be there.
SCHEMAS = {
    "orders": "id BIGINT, customer STRING, amount DECIMAL(10, 2)",
    "refunds": "id BIGINT, order_id BIGINT, reason STRING",
}
_TABLES = """
CREATE TABLE IF NOT EXISTS orders (message_id text, id bigint, customer text, amount numeric(10, 2));
CREATE TABLE IF NOT EXISTS refunds (message_id text, id bigint, order_id bigint, reason text);
CREATE TABLE IF NOT EXISTS dead_letters (message_id text, queue text, body bytea, why text);
CREATE TABLE IF NOT EXISTS batches (query text PRIMARY KEY, last bigint NOT NULL)
"""
_CLAIM = """
INSERT INTO batches AS b VALUES (%s, %s)
ON CONFLICT (query) DO UPDATE SET last = excluded.last WHERE b.last < excluded.last
"""


def main() -> int:
    """Run the query until it is killed, which loses nothing; 1 when it failed."""
    arguments = _arguments()
    with psycopg.connect(arguments.database) as connection:
        connection.execute(_TABLES)
    spark = SparkSession.builder.appName("queues to tables")
    spark = spark.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    messages = (
        spark.readStream.format("mq")
        .options(broker=arguments.broker, url=arguments.url, queue=",".join(SCHEMAS))
        .option("checkpointLocation", arguments.checkpoint)
        .load()
    )
    query = (
        parsed(messages)
        .writeStream.foreachBatch(lambda batch, batch_id: write(batch, batch_id, arguments.database))
        .option("checkpointLocation", arguments.checkpoint)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as failure:
        print(str(failure).partition("=== Streaming Query ===")[0].strip()[:4_000], file=sys.stderr, flush=True)
    return 1


def parsed(messages: DataFrame) -> DataFrame:
    """A column for each queue, with the body as its schema has it; null in rows of the others."""
    text = try_validate_utf8(col("body").cast("string"))
    told = {"columnNameOfCorruptRecord": "_corrupt"}
    columns = (
        when(col("destination") == queue, from_json(text, f"{schema}, _corrupt STRING", told)).alias(queue)
        for queue, schema in SCHEMAS.items()
    )
    return messages.select("messageId", "destination", "body", *columns)


def write(batch: DataFrame, batch_id: int, database: str) -> None:
    """Write a batch into all tables, unless it is there."""
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    tables: dict[str, list[tuple[object, ...]]] = {name: [] for name in (*SCHEMAS, "dead_letters")}
    for row in batch.collect():
        value = row[row.destination]
        why = wrong(value)
        if why:
            tables["dead_letters"].append((row.messageId, row.destination, row.body, why))
        else:
            tables[row.destination].append((row.messageId, *value[:-1]))
    with psycopg.connect(database) as connection:  # one transaction: rolled back with an exception
        if connection.execute(_CLAIM, [query, batch_id]).rowcount == 0:
            return
        for table, rows in tables.items():
            with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                for values in rows:
                    copy.write_row(values)


def wrong(value: Row | None) -> str | None:
    """Why this is no row for the table; None if it is one."""
    if value is None or value["_corrupt"] is not None:
        return "no JSON of the schema, in UTF-8"
    if value[0] is None:
        return f"without {value.__fields__[0]!r}"
    if any(isinstance(field, str) and "\0" in field for field in value):
        return "a text with a NUL, which PostgreSQL refuses"
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("broker", "url", "database", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
