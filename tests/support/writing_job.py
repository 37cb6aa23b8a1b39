"""A job that reads one queue and writes another, until it is killed: ``python writing_job.py CHECKPOINT JSON``.

JSON has the options of source and sink. It is run by tests that kill it.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col


def main(checkpoint: str, given: str) -> None:
    """Run until the end of the process."""
    options = json.loads(given)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.speculation", "true").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    source = spark.readStream.format("mq").options(**options["source"], checkpointLocation=checkpoint)
    # A shuffle, so that rows of a partition come in any order.
    rows = source.load().select(col("body"), col("body").cast("string").alias("type")).repartition(2, "type")
    query = rows.writeStream.format("mq").options(**options["sink"]).option("checkpointLocation", checkpoint).start()
    print("STARTED", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
