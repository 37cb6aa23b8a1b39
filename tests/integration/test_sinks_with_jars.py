"""Delta, Kafka and JDBC, whose sinks are jars for one Spark: held and killed at the moments that count, and audited."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from pyspark_mq.admin.checks import Level
from pyspark_mq.cli.checkpoint import read_checkpoint
from pyspark_mq.cli.inspect import report
from pyspark_mq.cli.sink import check_sink
from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.audit import verdict
from testbed.distributions import JDBC_JARS, KAFKA_JARS, SPARK_OF_JARS, Distribution, fetch
from testbed.process import NodeError, poll
from tests.plugin import missing
from tests.support.delta import Commits
from tests.support.pages import block
from tests.support.real_spark import real_spark
from tests.support.sink_jobs import SinkJob, drained, emptied, killed

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable, write_deltalake

    from tests.support.kafka import Kafka
    from tests.support.postgres import Postgres
except ImportError:
    if "CI" in os.environ:
        raise
    pytest.skip("needs deltalake, confluent-kafka and psycopg", allow_module_level=True)

PAGE = "docs/sinks.md"
PROGRAM = Path(__file__).parents[1] / "support" / "page_program.py"
QUEUES = ("orders", "refunds")
#: That are published at a time.
MESSAGES = 200
WAIT_S = 120.0

#: A job, and the bodies that its sink has.
Sink: TypeAlias = "tuple[SinkJob, Callable[[], list[bytes]]]"

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900)]  # the first time that Spark is installed


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter with the Spark that the jars are for."""
    return real_spark(SPARK_OF_JARS)


@pytest.fixture
def commits(python: Path, tmp_path: Path) -> Commits:
    """Delta in that Spark."""
    (home,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    try:
        return Commits(home, tmp_path)
    except NodeError as absent:
        missing(str(absent))
        raise


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    try:
        broker = Kafka()
    except NodeError as absent:
        missing(str(absent))
    with broker:
        yield broker


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres()
    except NodeError as absent:
        missing(str(absent))
    with server:
        yield server


@pytest.fixture(autouse=True)
def empty_queues(rabbit: RabbitNode) -> Iterator[None]:
    for queue in QUEUES:
        rabbit.delete(queue)
        rabbit.declare(queue)
    yield
    for queue in QUEUES:
        rabbit.delete(queue)


def published(rabbit: RabbitNode, queue: str, size: int = 20) -> dict[str, bytes]:
    """Messages that were published: body by ID."""
    bodies = [os.urandom(size) for _ in range(MESSAGES)]
    return {str(name): body for name, body in zip(rabbit.publish(queue, bodies), bodies, strict=True)}


# -- Delta ------------------------------------------------------------------------------------


def content(table: Path) -> list[tuple[str, bytes]]:
    """ID and body of all rows, as a reader that is not Spark sees them."""
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return [(row["messageId"], row["body"]) for row in rows]


def last_batch(table: Path, job: SinkJob) -> int | None:
    """The last batch of the query that the log of the table has."""
    query = json.loads((job.checkpoint / "metadata").read_text("utf-8"))["id"]
    return DeltaTable(str(table)).transaction_version(query)


def batches(table: Path) -> list[int]:
    """The batches in the commits of a table, one by one."""
    lines = [line for file in sorted(table.glob("_delta_log/*.json")) for line in file.read_text("utf-8").splitlines()]
    return [action["txn"]["version"] for action in map(json.loads, lines) if "txn" in action]


def unnamed(table: Path) -> set[str]:
    """Files that were written and are in no commit."""
    named = {Path(uri).name for uri in DeltaTable(str(table)).file_uris()}
    return {file.name for file in table.glob("*.parquet")} - named


def test_delta_has_every_message_once_whenever_the_job_is_killed(
    python: Path, commits: Commits, rabbit: RabbitNode, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    job = SinkJob("rabbitmq", rabbit.url(), "orders", tmp_path, python=python, spark=commits.settings,
        program="to_delta.py", arguments=("--broker", "rabbitmq", "--url", rabbit.url(), "--queue", "orders",
        "--table", str(table)))  # fmt: skip
    sent = published(rabbit, "orders")
    try:
        job.keep_alive()
        emptied(job, rabbit, "orders")
        done = last_batch(table, job)
        assert done is not None
        batch = done + 1
        # In the middle of a batch: files are written, and no commit names them.
        with commits.held("before"):
            sent |= published(rabbit, "orders")
            assert commits.somebody_waits(), job.log.read_text("utf-8")[-4000:]
            assert unnamed(table)
            killed(job)
        assert last_batch(table, job) == done
        # Between the commit and Spark's: the table has the batch, and Spark does not know.
        with commits.held("after"):
            job.keep_alive()
            assert commits.somebody_waits(), job.log.read_text("utf-8")[-4000:]
            killed(job)
        assert last_batch(table, job) == batch
        assert job.has("offsets", batch)
        assert not job.has("commits", batch)
        written = content(table)
        sent |= published(rabbit, "orders")
        job.keep_alive()
        left = drained(job, rabbit, "orders")
    finally:
        job.stop()
    rows = content(table)
    result = verdict(sent, [name for name, _ in rows], left)
    assert result.holds, result
    assert dict(rows) == sent
    assert set(written) < set(rows)
    assert job.has("commits", batch)
    assert batches(table).count(batch) == 1
    assert len(set(batches(table))) == len(batches(table))
    # The command reads the same from the log; an older checkpoint is told of.
    last = last_batch(table, job)
    (sink,) = check_sink(str(job.checkpoint), str(table))
    assert [(one.level, one.what) for one in sink.findings] == [
        (Level.OK, f"the sink's newest batch is {last}, the checkpoint's {last}")
    ]
    (job.checkpoint / "offsets" / str(last)).unlink()
    (sink,) = check_sink(str(job.checkpoint), str(table))
    assert [one.level for one in sink.findings] == [Level.PROBLEM]


def job_of_the_page(
    code: Path, name: str, options: Mapping[str, str], folder: Path, python: Path, commits: Commits
) -> SinkJob:
    given = [f"--option={option}={value}" for option, value in options.items()]
    return SinkJob("rabbitmq", options["url"], options["queue"], folder, python=python, spark=commits.settings,
        program=PROGRAM, arguments=(str(code), f"--name={name}", *given))  # fmt: skip


def test_the_code_of_the_page_writes_each_delta_table_once(
    python: Path, commits: Commits, rabbit: RabbitNode, tmp_path: Path
) -> None:
    code = tmp_path / "delta.py"
    code.write_text(block(PAGE, "def write(batch, batch_id):"), "utf-8")
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": ",".join(QUEUES)}
    options |= {"minMessagesPerTrigger": str(2 * MESSAGES), "maxTriggerDelay": "1h"}  # each batch has all of both
    job = job_of_the_page(code, f"tables={tmp_path}", options, tmp_path, python, commits)
    orders, refunds = (tmp_path / queue for queue in QUEUES)
    sent = {queue: published(rabbit, queue) for queue in QUEUES}
    try:
        job.keep_alive()
        emptied(job, rabbit, *QUEUES)
        # Between the tables: the first has the batch, the second has not.
        with commits.held("before", "/refunds/"):
            for queue in QUEUES:
                sent[queue] |= published(rabbit, queue)
            assert commits.somebody_waits(), job.log.read_text("utf-8")[-4000:]
            killed(job)
        batch, behind = last_batch(orders, job), last_batch(refunds, job)
        assert batch is not None
        assert behind is not None
        assert batch == behind + 1
        assert not job.has("commits", batch)
        job.keep_alive()
        left = drained(job, rabbit, *QUEUES)
    finally:
        job.stop()
    for queue, table in zip(QUEUES, (orders, refunds), strict=True):
        rows = content(table)
        result = verdict(sent[queue], [name for name, _ in rows], left)
        assert result.holds, result
        assert dict(rows) == sent[queue]
        assert batches(table).count(batch) == 1


def test_the_code_of_the_page_merges_each_message_once(
    python: Path, commits: Commits, rabbit: RabbitNode, tmp_path: Path
) -> None:
    code, table = tmp_path / "merge.py", tmp_path / "orders"
    code.write_text(block(PAGE, "def merge(batch, batch_id):"), "utf-8")
    write_deltalake(table, pa.table({"messageId": pa.array([], pa.string()), "body": pa.array([], pa.binary())}))
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": "orders"}
    job = job_of_the_page(code, f"table={table}", options, tmp_path, python, commits)
    sent = published(rabbit, "orders")
    try:
        job.keep_alive()
        emptied(job, rabbit, "orders")
        with commits.held("after", "/orders/"):
            sent |= published(rabbit, "orders")
            assert commits.somebody_waits(), job.log.read_text("utf-8")[-4000:]
            killed(job)
        job.keep_alive()
        left = drained(job, rabbit, "orders")
    finally:
        job.stop()
    rows = content(table)
    result = verdict(sent, [name for name, _ in rows], left)
    assert result.holds, result
    assert dict(rows) == sent


# -- Kafka ------------------------------------------------------------------------------------


def test_kafka_has_every_message_and_what_the_open_batch_wrote_before_a_kill_twice(
    python: Path, kafka: Kafka, rabbit: RabbitNode, tmp_path: Path
) -> None:
    jars = jars_of(KAFKA_JARS)
    kafka.make_topic("orders")
    job = SinkJob("rabbitmq", rabbit.url(), "orders", tmp_path, python=python, spark=jars, program="to_kafka.py",
        arguments=("--broker", "rabbitmq", "--url", rabbit.url(), "--queue", "orders",
        "--servers", kafka.servers, "--topic", "orders",
        "--option", f"minMessagesPerTrigger={MESSAGES}", "--option", "maxTriggerDelay=1h"))  # fmt: skip
    # Whole batches of large messages: each is more than what a producer has under way at a time.
    sent = published(rabbit, "orders", 4_000)
    first = set(sent)
    try:
        job.keep_alive()
        emptied(job, rabbit, "orders")
        assert len(kafka.records("orders")) == MESSAGES
        with kafka.unanswered():
            sent |= published(rabbit, "orders", 4_000)
            assert poll(lambda: len(kafka.records("orders")) > MESSAGES, WAIT_S, interval_s=0.5)
            killed(job)
        early = {record.key for record in kafka.records("orders")} - first
        (source,) = report(read_checkpoint(str(job.checkpoint)), ids=True)["sources"]
        (queue,) = source["open"]["queues"].values()
        planned = set(queue["plannedIds"])
        # In the middle: a part of the batch is there.
        assert not job.has("commits", source["open"]["batch"])
        assert set() < early < planned
        job.keep_alive()
        left = drained(job, rabbit, "orders")
    finally:
        job.stop()
    records = kafka.records("orders")
    counts = Counter(record.key for record in records)
    result = verdict(sent, list(counts), left)  # of the keys, without their repetitions
    assert result.holds, result
    assert early <= {key for key, count in counts.items() if count == 2} <= planned
    assert max(counts.values()) == 2
    # Whoever writes by key has each once, as what is repeated is the same.
    assert {(record.key, record.value) for record in records} == set(sent.items())
    assert read_once(python, jars, kafka, tmp_path / "reader") == sorted(sent.items())


#: A reader of the topic; the page names the two calls by which it drops repetitions.
ONCE = """
once = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
    .withWatermark("timestamp", "1 day")
    .dropDuplicatesWithinWatermark(["key"])
)
query = (
    once.writeStream.format("parquet")
    .option("path", rows)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
"""


def read_once(python: Path, jars: dict[str, str], kafka: Kafka, folder: Path) -> list[tuple[str, bytes]]:
    """Key and value of what a reader gives that drops repetitions as the page says, run to the end of the topic."""
    folder.mkdir()
    code = folder / "kafka.py"
    code.write_text(ONCE, "utf-8")
    names = {"servers": kafka.servers, "topic": "orders", "rows": str(folder / "rows")}
    given = [f"--name={name}={value}" for name, value in names.items()]
    reader = SinkJob("", "", "", folder, python=python, spark=jars, program=PROGRAM, arguments=(str(code), *given))
    try:
        reader.keep_alive()
        assert poll(lambda: not reader.running, WAIT_S, interval_s=0.2)
    finally:
        assert reader.stop() == 0, reader.log.read_text("utf-8")[-4000:]
    rows = pq.read_table(folder / "rows").to_pylist()
    return sorted((row["key"].decode(), row["value"]) for row in rows)


# -- batches without a row ------------------------------------------------------------------------

#: A job that writes by JDBC, as Spark's documentation has it for `foreachBatch`.
BY_JDBC = """
def write(batch, number):
    batch.select("body").write.jdbc(url, "ticks", mode="append", properties={"driver": "org.postgresql.Driver"})

query = messages.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
"""


@pytest.fixture
def to_delta(python: Path, commits: Commits, rabbit: RabbitNode, tmp_path: Path) -> Sink:
    table = tmp_path / "table"
    job = SinkJob("rabbitmq", rabbit.url(), "orders", tmp_path, python=python, spark=commits.settings,
        program="to_delta.py", arguments=("--broker", "rabbitmq", "--url", rabbit.url(), "--queue", "orders",
        "--table", str(table)))  # fmt: skip
    return job, lambda: [body for _, body in content(table)] if (table / "_delta_log").exists() else []


@pytest.fixture
def to_kafka(python: Path, kafka: Kafka, rabbit: RabbitNode, tmp_path: Path) -> Sink:
    kafka.make_topic("ticks")
    job = SinkJob("rabbitmq", rabbit.url(), "orders", tmp_path, python=python, spark=jars_of(KAFKA_JARS),
        program="to_kafka.py", arguments=("--broker", "rabbitmq", "--url", rabbit.url(), "--queue", "orders",
        "--servers", kafka.servers, "--topic", "ticks"))  # fmt: skip
    return job, lambda: [record.value for record in kafka.records("ticks")]


@pytest.fixture
def to_jdbc(python: Path, postgres: Postgres, rabbit: RabbitNode, tmp_path: Path) -> Sink:
    code = tmp_path / "jdbc.py"
    code.write_text(BY_JDBC, "utf-8")
    url = f"jdbc:postgresql://{postgres.url.rpartition('@')[2]}?user=postgres&password={postgres.password}"
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": "orders"}
    given = [f"--option={option}={value}" for option, value in options.items()]
    job = SinkJob("rabbitmq", rabbit.url(), "orders", tmp_path, python=python, spark=jars_of(JDBC_JARS),
        program=PROGRAM, arguments=(str(code), f"--name=url={url}", *given))  # fmt: skip

    def rows() -> list[bytes]:
        ((there,),) = postgres.ask("SELECT to_regclass('ticks')")
        return [bytes(body) for (body,) in postgres.ask("SELECT body FROM ticks")] if there else []

    return job, rows


def jars_of(distribution: Distribution) -> dict[str, str]:
    try:
        return {"spark.jars": ",".join(map(str, sorted(fetch(distribution).glob("*.jar"))))}
    except NodeError as absent:
        missing(str(absent))
        raise


@pytest.mark.parametrize("sink", ["to_delta", "to_kafka", "to_jdbc"])
def test_a_sink_takes_a_batch_without_a_row(request: pytest.FixtureRequest, rabbit: RabbitNode, sink: str) -> None:
    """The first of a query on an empty queue; a restart may have one, too."""
    job, rows = request.getfixturevalue(sink)
    try:
        job.keep_alive()
        assert poll(lambda: job.has("commits", 0) or not job.running, WAIT_S, interval_s=0.2)
        assert job.running, job.log.read_text("utf-8")[-4000:]
        assert not rows()
        sent = published(rabbit, "orders")
        emptied(job, rabbit, "orders")
        assert sorted(rows()) == sorted(sent.values())
    finally:
        job.stop()
