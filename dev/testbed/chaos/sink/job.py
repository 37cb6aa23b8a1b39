"""The query of the chaos test: ``python job.py MASTER CHECKPOINT JSON``, which ends only when it is killed.

Each number comes twice, so equal rows have to be counted. Half of all rows is in one partition, which is what Spark
repeats by speculation; a shuffle has handed them over in any order. JSON has `options` of the write, the number of
`rows` in a batch, the `filling` of a body, and whether to write by `foreachBatch` (`batch`).
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = 4


def main(master: str, checkpoint: str, given: str) -> None:
    """Run, and begin again whenever the query fails."""
    told = json.loads(given)
    spark = SparkSession.builder.master(master).getOrCreate()
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", _PARTITIONS)
    numbers = source.option("rowsPerBatch", told["rows"]).load().selectExpr("value", "explode(array(1, 2))")
    keyed = numbers.selectExpr("if(value % 2 = 0, 0, value % 50) key", f"concat(value, ' {told['filling']}') body")
    rows = keyed.repartition(_PARTITIONS, "key").select("body")

    def write(batch: DataFrame, number: int) -> None:
        named = batch.write.format("mq").mode("append").options(**told["options"], writeId=f"chaos/{number}")
        named.save()

    while True:
        writer = rows.writeStream.format("mq").options(**told["options"])
        if told["batch"]:
            writer = rows.writeStream.foreachBatch(write)
        try:
            writer.option("checkpointLocation", checkpoint).start().awaitTermination()
        except PySparkException as failed:
            print("FAILED", failed, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
