"""Code of the page on writing that has no test beside a sink of its own, run as it is there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.integration.test_spark import full_api
from tests.support.checks import total
from tests.support.pages import ROOT, block

PAGE = "docs/sinks.md"
SCHEDULED = ROOT / "examples" / "scheduled.py"


@pytest.mark.whole
def test_a_scheduled_job_takes_what_is_there_and_ends(rabbit: RabbitNode, tmp_path: Path) -> None:
    queue = f"write-{uuid.uuid4().hex[:8]}"
    rabbit.declare(queue)
    sent = [f"order {number}".encode() for number in range(10)]
    ids = rabbit.publish(queue, sent)
    source = SCHEDULED.read_text("utf-8")
    assert textwrap.indent(block("docs/operate.md", "query = ("), "    ") in source
    environment = {**os.environ, "MQ_URL": rabbit.url(), "MQ_QUEUE": queue}
    command = [sys.executable, str(SCHEDULED), str(tmp_path / "checkpoint"), str(tmp_path / "rows")]
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr[-4000:]
    assert total(rabbit, queue) == 0
    rows = pq.read_table(tmp_path / "rows").to_pylist()
    assert sorted((row["messageId"], row["body"]) for row in rows) == sorted(zip(ids, sent, strict=True))
    rabbit.delete(queue)


@full_api  # before Spark 4.2 such a run ends with the batch that is skipped, and does not fail
@pytest.mark.whole
def test_a_new_checkpoint_needs_a_new_folder(spark: Any, rabbit: RabbitNode, tmp_path: Path) -> None:
    """Spark's file sink skips the numbers of batches that its log has, and says that they are committed."""
    queue = f"write-{uuid.uuid4().hex[:8]}"
    rabbit.declare(queue)

    def run(checkpoint: str, folder: str) -> list[bytes]:
        options = {"broker": "rabbitmq", "url": rabbit.url(), "checkpointLocation": str(tmp_path / checkpoint)}
        query = (
            spark.readStream.format("mq")
            .options(**options, queue=queue)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / folder))
            .option("checkpointLocation", options["checkpointLocation"])
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
        return sorted(bytes(row.body) for row in spark.read.parquet(str(tmp_path / folder)).collect())

    rabbit.publish(queue, [b"old"])
    assert run("first", "rows") == run("first", "rows") == [b"old"]
    assert poll(lambda: total(rabbit, queue) == 0, 30)
    rabbit.publish(queue, [b"skipped"])
    with pytest.raises(StreamingQueryException, match="its folder already has a batch with this number"):
        run("second", "rows")
    assert total(rabbit, queue) == 1
    assert run("second", "rows") == [b"old"]
    assert poll(lambda: total(rabbit, queue) == 0, 30), "the next start takes it for committed"
    rabbit.publish(queue, [b"new"])
    assert run("third", "other rows") == [b"new"]
    rabbit.delete(queue)
    assert "**A new checkpoint needs a new folder.**" in (ROOT / PAGE).read_text("utf-8")
