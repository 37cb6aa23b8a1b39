"""A client of Spark Connect: a program of its own, with or without this package.

`python connect_client.py plain|listener CODE FOLDER OPTIONS ROWS`, where CODE makes `spark` and `df` of `options`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(what: str, code: str, folder: str, options: dict[str, str], rows: int) -> None:
    """Run the query until the output has so many rows; print what was seen as JSON."""
    if what == "plain":
        sys.modules["pyspark_mq"] = None  # type: ignore[assignment]
    names: dict[str, Any] = {"options": options}
    exec(compile(code, "the page", "exec"), names)
    spark = names["spark"]
    try:
        found, latest = read(what, names["df"], spark, folder, rows)
    finally:
        spark.stop()  # a client with a listener ends no earlier
    print(json.dumps({"ids": found, "latest": latest}))


def read(what: str, frame: Any, spark: Any, folder: str, rows: int) -> tuple[list[str], str]:
    """The IDs in the output, and the last offset."""
    if what == "listener":
        from pyspark_mq import QueueListener

        spark.streams.addListener(QueueListener(0.5))
    selected = frame.selectExpr("messageId", "string(body) AS body")
    writer = selected.writeStream.format("parquet").option("path", f"{folder}/out")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    found: list[str] = []
    deadline = time.monotonic() + 120
    while len(found) < rows and time.monotonic() < deadline:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.5)
        try:
            found = [row.messageId for row in spark.read.parquet(f"{folder}/out").collect()]
        except Exception as none_yet:
            if "UNABLE_TO_INFER_SCHEMA" not in str(none_yet) and "PATH_NOT_FOUND" not in str(none_yet):
                raise
    time.sleep(2)  # the last epoch is settled by the trigger behind it
    latest = query.lastProgress["sources"][0]["latestOffset"]
    query.stop()
    time.sleep(1)
    return found, latest


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), int(sys.argv[5]))
