"""Places of a checkpoint: those of Spark, by the class of Hadoop that it makes of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pyspark_mq.spark_source.folders import resolve

NAMES = [
    "my job", "gr\u00f6\u00dfe", "[1]", "a%20b", "a%3Db", "a:b", "a?b", "a#b", "a=b", "a*b", "a@b", "x//y", "./r",
    "p/../q", "t/", "{1}", "a+b", 'a"b', "a|b", "%", "\U0001f600",
]  # fmt: skip


@pytest.mark.parametrize("root", ["", "file:", "file://", "s3a://bucket", "hdfs://node:8020"])
def test_a_name_is_what_spark_takes_it_for(spark: SparkSession, root: str) -> None:
    path = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    for name in NAMES:
        text = f"{root}/data/{name}"
        theirs = path(text).toString().removeprefix("file:").replace("s3a:", "s3:")
        assert resolve(text) == theirs
