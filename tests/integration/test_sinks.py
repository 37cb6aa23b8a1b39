"""The examples that write to PostgreSQL, killed at the two moments that count, and audited."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.audit import verdict
from testbed.process import NodeError
from tests.plugin import missing
from tests.support.pages import block
from tests.support.sink_jobs import SinkJob, drained, killed

try:
    from tests.support.postgres import Postgres
except ImportError:
    if "CI" in os.environ:
        raise
    pytest.skip("needs psycopg", allow_module_level=True)

PAGE = "docs/sinks.md"
EXAMPLES = Path(__file__).parents[2] / "examples"
#: That are published at a time.
MESSAGES = 200

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres()
    except NodeError as absent:
        missing(str(absent))
    with server:
        yield server


@pytest.fixture
def shop(postgres: Postgres, rabbit: RabbitNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty queues, and no tables."""
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    for queue in ("orders", "refunds"):
        rabbit.delete(queue)
        rabbit.declare(queue)
    yield
    postgres.ask("DROP TABLE IF EXISTS messages, orders, refunds, dead_letters, batches")
    for queue in ("orders", "refunds"):
        rabbit.delete(queue)


def test_postgres_has_every_message_once_whenever_the_job_is_killed(
    postgres: Postgres, rabbit: RabbitNode, shop: None, tmp_path: Path
) -> None:
    job = SinkJob("rabbitmq", rabbit.url(), "orders", tmp_path, program="to_postgres.py", arguments=(
        "--broker", "rabbitmq", "--url", rabbit.url(), "--queue", "orders", "--database", postgres.url,
        "--option", "maxMessagesPerTrigger=50"))  # fmt: skip
    bodies = [os.urandom(20) for _ in range(3 * MESSAGES)]
    ids = rabbit.publish("orders", bodies[:MESSAGES])
    try:
        job.keep_alive()
        assert postgres.has("SELECT 1 FROM batches"), job.log.read_text("utf-8")[-4000:]
        # In the middle of the transaction: the batch is noted, its rows are not there.
        with postgres.locked("messages"):
            ids += rabbit.publish("orders", bodies[MESSAGES : 2 * MESSAGES])
            assert postgres.somebody_waits("messages")
            killed(job)
        ((before,),) = postgres.ask("SELECT last FROM batches")
        # Between the transaction and Spark's commit: everything is there, and Spark does not know.
        with postgres.unconfirmed():
            ids += rabbit.publish("orders", bodies[2 * MESSAGES :])
            job.keep_alive()
            assert postgres.somebody_committed()
            killed(job)
        assert postgres.has(f"SELECT 1 FROM batches WHERE last > {before}")
        ((last,),) = postgres.ask("SELECT last FROM batches")
        assert job.has("offsets", last)
        assert not job.has("commits", last)
        job.keep_alive()
        left = drained(job, rabbit, "orders")
    finally:
        job.stop()
    rows = postgres.ask("SELECT message_id, body FROM messages")
    result = verdict([str(name) for name in ids], [name for name, _ in rows], left)
    assert result.holds, result
    assert sorted(rows) == sorted(zip(ids, bodies, strict=True))
    assert job.has("commits", last)


#: Bodies that are no orders, and why.
BAD = {
    b"": "no JSON of the schema, in UTF-8",
    b"null": "no JSON of the schema, in UTF-8",
    b"no json": "no JSON of the schema, in UTF-8",
    b'{"id": 1': "no JSON of the schema, in UTF-8",
    b'[{"id": 1}]': "no JSON of the schema, in UTF-8",
    b'{"id": "one"}': "no JSON of the schema, in UTF-8",
    b'{"id": 1, "amount": 12345678901}': "no JSON of the schema, in UTF-8",
    b'{"id": 1, "customer": "\xff"}': "no JSON of the schema, in UTF-8",
    b'{"customer": "x"}': "without 'id'",
    b'{"id": 1, "customer": "a\\u0000b"}': "a text with a NUL, which PostgreSQL refuses",
}


def test_queues_go_to_their_tables_and_what_does_not_parse_to_dead_letters(
    postgres: Postgres, rabbit: RabbitNode, shop: None, tmp_path: Path
) -> None:
    job = SinkJob("rabbitmq", rabbit.url(), "orders,refunds", tmp_path, program="to_tables.py", arguments=(
        "--broker", "rabbitmq", "--url", rabbit.url(), "--database", postgres.url))  # fmt: skip
    orders = [(number, f"customer {number} ü", f"{number}.50") for number in range(MESSAGES)]
    refunds = [(number, number + 1, "broken") for number in range(MESSAGES)]
    sent: dict[str, list[tuple[str, bytes]]] = {"orders": [], "refunds": []}

    def publish(queue: str, bodies: list[bytes]) -> None:
        sent[queue] += [(str(name), body) for name, body in zip(rabbit.publish(queue, bodies), bodies, strict=True)]

    try:
        job.keep_alive()
        publish("refunds", [b"{}"])
        assert postgres.has("SELECT 1 FROM batches"), job.log.read_text("utf-8")[-4000:]
        # The table that is written last: the rows of the others are in the open transaction.
        with postgres.locked("dead_letters"):
            publish("orders", list(BAD))
            publish("orders", [f'{{"id": {i}, "customer": "{c}", "amount": {a}}}'.encode() for i, c, a in orders])
            publish("refunds", [json.dumps({"id": i, "order_id": o, "reason": r}).encode() for i, o, r in refunds])
            assert postgres.somebody_waits("dead_letters")
            killed(job)
        job.keep_alive()
        left = drained(job, rabbit, "orders", "refunds")
    finally:
        job.stop()
    id_of = {queue: {body: name for name, body in pairs} for queue, pairs in sent.items()}
    dead = postgres.ask("SELECT message_id, queue, body, why FROM dead_letters")
    assert sorted(dead) == sorted(
        [(id_of["orders"][bad], "orders", bad, why) for bad, why in BAD.items()]
        + [(id_of["refunds"][b"{}"], "refunds", b"{}", "without 'id'")]
    )
    named = postgres.ask("SELECT message_id FROM orders UNION ALL SELECT message_id FROM refunds")
    everything = [name for pairs in sent.values() for name, _ in pairs]
    result = verdict(everything, [name for name, *_ in [*dead, *named]], left)
    assert result.holds, result
    assert sorted(postgres.ask("SELECT id, customer, amount FROM orders")) == [
        (number, customer, Decimal(amount)) for number, customer, amount in orders
    ]
    assert sorted(postgres.ask("SELECT id, order_id, reason FROM refunds")) == refunds


def test_the_code_of_the_page_sorts_into_folders(spark: Any, rabbit: RabbitNode, tmp_path: Path) -> None:
    queues = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "refunds")]
    good, bad = [f'{{"id": {number}}}'.encode() for number in range(20)], [b"{}", b"", b"no json", b'{"id": "x"}']
    sent = {}
    for queue in queues:
        rabbit.declare(queue)
        ids = rabbit.publish(queue, good + bad)
        sent |= {name: (queue, body in good, body) for name, body in zip(ids, good + bad, strict=True)}
    given = {"broker": "rabbitmq", "url": rabbit.url(), "checkpointLocation": str(tmp_path / "checkpoint")}
    messages = spark.readStream.format("mq").options(**given, queue=",".join(queues)).load()
    write = block(PAGE, "from pyspark.sql.functions import col, expr, from_json, try_validate_utf8")
    read = block(PAGE, 'rows = spark.read.parquet("rows")')
    names: dict[str, Any] = {"messages": messages, "spark": spark, "checkpoint": given["checkpointLocation"]}

    def run(code: str) -> None:
        code = code.replace('"rows"', repr(str(tmp_path / "rows")))  # Spark has a folder of its own
        exec(compile(code.replace("'orders'", f"'{queues[0]}'"), PAGE, "exec"), names)

    run(write)
    names["query"].awaitTermination(120)
    assert names["query"].exception() is None
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    for queue in queues:
        rabbit.delete(queue)
    assert len(rows) == len(sent)
    assert {row.messageId: (row.destination, row.readable == "true", bytes(row.body)) for row in rows} == sent
    assert sorted(row.id for row in rows if row.readable == "true") == sorted([*range(20), *range(20)])
    run(read)
    assert sorted(bytes(row.body) for row in names["dead"].collect()) == sorted(bad)


def test_a_batch_is_known_by_its_query_as_well(
    spark: Any, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # which the example sets
    found = importlib.util.spec_from_file_location("to_postgres", EXAMPLES / "to_postgres.py")
    assert found is not None
    assert found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    postgres.ask(example._TABLES)
    schema = "messageId string, timestamp timestamp, body binary"
    spark.createDataFrame([("a", None, b"1"), ("b", None, b"2")], schema).write.parquet(str(tmp_path / "rows"))

    def count_after(checkpoint: Path) -> int:
        batches = (
            spark.readStream.schema(schema)
            .parquet(str(tmp_path / "rows"))
            .writeStream.foreachBatch(lambda batch, batch_id: example.write(batch, batch_id, postgres.url))
        )
        query = batches.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        ((count,),) = postgres.ask("SELECT count(*) FROM messages")
        return int(count)

    first = tmp_path / "first"
    assert count_after(first) == 2
    # As a crash before the commit leaves it.
    for commit in (first / "commits").glob("*0*"):
        commit.unlink()
    assert count_after(first) == 2
    assert (first / "commits" / "0").exists()
    assert count_after(tmp_path / "second") == 4
    postgres.ask("DROP TABLE messages, batches")
