"""The code on the page of migration, run as it is there."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from testbed.brokers.rabbitmq import RabbitNode

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
ENDS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


@pytest.mark.whole
@pytest.mark.skipif(not ENDS, reason="before Spark 4.2 it does not end by itself")
def test_a_batch_that_is_written_again_changes_nothing(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queue = f"migration-{uuid.uuid4().hex[:8]}"
    rabbit.declare(queue)
    ids = rabbit.publish(queue, [f"order {number}".encode() for number in range(10)])
    given = {"broker": "rabbitmq", "url": rabbit.url(), "checkpointLocation": str(tmp_path / "checkpoint")}
    messages = spark.readStream.format("mq").options(**given, queue=queue).load()
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))  # Spark has a folder of its own
    names: dict[str, Any] = {"messages": messages}
    exec(compile(code, PAGE.name, "exec"), names)
    names["query"].awaitTermination(120)
    assert names["query"].exception() is None
    assert written(tmp_path) == sorted((name, f"order {number}".encode()) for number, name in enumerate(ids))
    batch = spark.createDataFrame([("again", b"x")], "messageId string, body binary")
    names["write"](batch, 0)
    assert len(written(tmp_path)) == 10
    names["write"](batch, 1)
    assert len(written(tmp_path)) == 11
    rabbit.delete(queue)


def written(folder: Path) -> list[tuple[str, bytes]]:
    with closing(sqlite3.connect(folder / "orders.db")) as connection:
        return sorted(connection.execute("SELECT id, body FROM orders"))
