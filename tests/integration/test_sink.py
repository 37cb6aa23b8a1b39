"""Writes through a real Spark: what a user does, what a user does wrong, and what is there after kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.sink.settings import COPY_ID
from testbed.brokers.node import Node
from testbed.process import poll
from tests.plugin import Nodes
from tests.support.checks import total
from tests.support.effort import each_of, with_all
from tests.support.pages import block

WRITTEN = [
    "body", "messageId", "correlationId", "replyTo", "contentType", "type", "priority", "timestamp", "persistent",
    "properties",
]  # fmt: skip
SCHEMA = (
    "body binary, messageId string, correlationId string, replyTo string, contentType string, type string, "
    "priority int, timestamp timestamp, persistent boolean, properties map<string,string>"
)
#: As rows have times: in the time zone of the process.
MOMENT = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc).astimezone().replace(tzinfo=None)


@dataclass
class Target:
    """A queue to be written to.

    Attributes:
        options: of a write.
        reading: further options of a source, which finds the IDs of the sink.
    """

    node: Node
    queue: str
    options: dict[str, str]
    reading: dict[str, str]

    def write(self, frame: Any, mode: str = "append", **more: str) -> None:
        options = {name: value for name, value in {**self.options, **more}.items() if value}
        frame.write.format("mq").mode(mode).options(**options).save()

    def read(self, spark: Any, folder: Path, count: int) -> list[Any]:
        """The messages, through the source; it stops when there are no more."""
        rows: list[Any] = []
        checkpoint = str(folder / f"read-{uuid.uuid4().hex[:6]}")
        reader = spark.readStream.format("mq").options(**self.options, **self.reading, checkpointLocation=checkpoint)
        frame = reader.option("includeMetadata", "true").load()
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            poll(lambda: len(rows) >= count or not query.isActive, 90)
            poll(lambda: total(self.node, self.queue) == 0, 10)
            if query.exception() is not None:
                raise query.exception()
        finally:
            query.stop()
        return rows


ENTRIES = [
    ("rabbitmq", "", AMQP_0_9_1),
    with_all(("rabbitmq", "4.3", AMQP_1_0)),
    with_all(("activemq", "", AMQP_1_0)),
    with_all(("activemq", "", STOMP)),
    with_all(("artemis", "", AMQP_1_0)),
    with_all(("artemis", "", STOMP)),
]


@pytest.fixture(params=ENTRIES, ids="-".join)
def target(nodes: Nodes, request: pytest.FixtureRequest) -> Iterator[Target]:
    broker, version, protocol = request.param
    yield from target_of(nodes, broker, version, protocol)


@pytest.fixture
def orders(nodes: Nodes) -> Iterator[Target]:
    """A queue of RabbitMQ, for what is above the brokers."""
    yield from target_of(nodes, "rabbitmq", "", AMQP_0_9_1)


def target_of(nodes: Nodes, broker: str, version: str, protocol: str) -> Iterator[Target]:
    node = nodes.get(broker, version)
    queue = f"sink-{uuid.uuid4().hex[:8]}"
    node.declare(queue)
    options = {"broker": broker, "url": node.url(protocol), "protocol": protocol, "queue": queue}
    yield Target(node, queue, options, {} if broker == "rabbitmq" else {"messageIdFrom": "property:mq_id"})
    node.delete(queue)


def refused(action: Any) -> str:
    with pytest.raises(Exception, match=r"\[mq:") as caught:
        action()
    return str(caught.value)


# -- what arrives


def test_what_is_written_comes_out_of_the_source(spark: Any, target: Target, tmp_path: Path) -> None:
    rows = [
        (bytes([number]), f"id-{number}", "c", "r", "text/plain", "t", 5, MOMENT, True, {"own": "ä", "n": str(number)})
        for number in range(20)
    ]
    target.write(spark.createDataFrame(rows, SCHEMA).repartition(2))
    found = {row.messageId: row for row in target.read(spark, tmp_path, 20)}
    assert len(found) == 20
    if (target.options["broker"], target.options["protocol"]) == ("artemis", STOMP):
        rows = [(*row[:7], found[row[1]].timestamp, *row[8:]) for row in rows]  # its own, whatever is written
    for row in rows:
        read = found[row[1]]
        assert (bytes(read.body), *(read[name] for name in WRITTEN[1:-1])) == row[:-1]
        assert row[-1].items() <= read.properties.items()


@pytest.mark.whole
def test_what_is_read_with_its_metadata_can_be_written(spark: Any, target: Target, tmp_path: Path) -> None:
    rows = [(b"one", {"a": "1"}), (b"two", None)]
    target.write(spark.createDataFrame(rows, "body binary, properties map<string,string>"))
    first = target.read(spark, tmp_path, 2)
    again = spark.createDataFrame([row.asDict() for row in first], metadata_schema(spark, target, tmp_path))
    target.write(again)
    second = target.read(spark, tmp_path, 2)
    left_out = {"redelivered", "deliveryCount", "timestamp", "expiration"}
    for row, other in zip(sorted(first, key=key), sorted(second, key=key), strict=True):
        for name in set(row.__fields__) - left_out:
            assert own(row[name]) == own(other[name]), name


def own(value: Any) -> Any:
    """A value of a column, without the property by which Artemis knows the copies of a row in one write."""
    return {name: text for name, text in value.items() if name != COPY_ID} if isinstance(value, dict) else value


def key(row: Any) -> bytes:
    return bytes(row.body)


def metadata_schema(spark: Any, target: Target, folder: Path) -> Any:
    reader = spark.readStream.format("mq").options(**target.options, checkpointLocation=str(folder / "schema"))
    return reader.option("includeMetadata", "true").load().schema


@pytest.mark.whole
def test_a_query_writes_each_batch_and_goes_on(spark: Any, target: Target, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(2):
        frame = spark.range(10 * number, 10 * number + 10).selectExpr("cast(id as string) as body")
        frame.write.mode("append").parquet(str(source))
        (
            spark.readStream.schema("body string")
            .parquet(str(source))
            .writeStream.format("mq")
            .options(**target.options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(120)
        )
    rows = target.read(spark, tmp_path, 20)
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(20))
    assert len({row.messageId for row in rows}) == 20


@pytest.mark.whole
def test_a_batch_that_is_run_again_has_the_same_ids(spark: Any, orders: Target, tmp_path: Path) -> None:
    """The last batch is written, and the commit log forgets it: the next start runs it again."""
    checkpoint, source = tmp_path / "checkpoint", str(tmp_path / "in")
    spark.range(0, 50, 1, 4).selectExpr("cast(id % 10 as string) as body").write.parquet(source)

    def run() -> None:
        stream = spark.readStream.schema("body string").parquet(source).repartition(3)
        writer = stream.writeStream.format("mq").options(**orders.options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None

    run()
    for log in (checkpoint / "commits").iterdir():
        log.unlink()
    run()
    assert total(orders.node, orders.queue) == 100
    rows = orders.read(spark, tmp_path, 50)
    assert len(rows) == len({row.messageId for row in rows}) == 50, "the source dropped the copies"


# -- batches and foreachBatch


@pytest.mark.whole
def test_a_named_write_has_the_same_ids_and_another_has_others(spark: Any, orders: Target, tmp_path: Path) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as body")
    for name in ("nightly", "nightly", "other", "", ""):
        orders.write(frame, writeId=name)
    assert total(orders.node, orders.queue) == 50
    assert len(orders.read(spark, tmp_path, 40)) == 40


_WITHIN = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.range(5).selectExpr("cast(id as string) as body")
frame.write.parquet({folder!r} + "/in")
options = dict(broker="rabbitmq", url={url!r}, queue={queue!r})

def run(name, **more):
    def write(batch, _):
        batch.write.format("mq").mode("append").options(**options, **more).save()
    print("RUN", name, file=sys.stderr, flush=True)
    stream = spark.readStream.schema("body string").parquet({folder!r} + "/in").writeStream.foreachBatch(write)
    stream.option("checkpointLocation", {folder!r} + "/" + name).trigger(availableNow=True).start().awaitTermination()

run("unnamed")
run("named", writeId="query/0/orders")
print("RUN batch", file=sys.stderr, flush=True)
frame.write.format("mq").mode("append").options(**options).save()
spark.stop()
"""


@pytest.mark.whole
def test_a_write_within_foreach_batch_warns_without_a_name(orders: Target, tmp_path: Path) -> None:
    program = _WITHIN.format(folder=str(tmp_path), url=orders.options["url"], queue=orders.queue)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    _, unnamed, named, batch = done.stderr.split("RUN ")
    assert ["has no 'writeId'" in part for part in (unnamed, named, batch)] == [True, False, False]
    assert total(orders.node, orders.queue) == 15


def test_an_empty_frame_writes_nothing(spark: Any, orders: Target) -> None:
    orders.write(spark.createDataFrame([], "body string"), url="amqp://guest:guest@127.0.0.1:1/")
    assert total(orders.node, orders.queue) == 0


# -- what a user does wrong


@pytest.mark.parametrize(
    ("ddl", "row", "words"),
    each_of(
        [
            ("body string, mesageId string", ("a", "b"), "did you mean 'messageId'?"),
            ("value string", ("a",), "which is not a column of a write"),
            ("body int", (1,), "column 'body' has type int, but must be string or binary"),
            ("body string", (None,), "column 'body' is null in a row"),
            ("body string, properties map<string,string>", ("a", {"": "x"}), "has the name ''"),
            ("body string, messageId string", ("a", "x" * 256), "a row has 256 bytes in column 'messageId'"),
        ],
        3,
    ),
    ids=str,
)
def test_rows_that_are_no_messages_are_refused_in_words(
    spark: Any, orders: Target, ddl: str, row: tuple[Any, ...], words: str
) -> None:
    good = ("good", *row[1:]) if ddl.startswith("body string") and row[0] is None else row
    frame = spark.createDataFrame([good, row], ddl).coalesce(1)
    assert words in refused(lambda: orders.write(frame))
    assert total(orders.node, orders.queue) == 0


@pytest.mark.whole
def test_options_and_modes_are_refused_in_words(spark: Any, orders: Target) -> None:
    frame = spark.createDataFrame([("a",)], "body string")
    assert "did you mean 'queue'?" in refused(lambda: orders.write(frame, queue="", queu="x"))
    assert "set option 'queue' or 'exchange'" in refused(lambda: orders.write(frame, queue=""))
    assert "use mode 'append'" in refused(lambda: orders.write(frame, mode="overwrite"))
    missing = refused(lambda: orders.write(frame, queue="not-there"))
    assert "queue 'not-there' does not exist in virtual host '/'" in missing
    wrong = refused(lambda: orders.write(frame, username="guest", password="s3cret-pw"))
    assert "refused the login of user 'guest'" in wrong
    assert "s3cret-pw" not in wrong
    stomp = refused(lambda: orders.write(frame, url="stomp://guest:guest@127.0.0.1:1/", protocol=""))
    assert "RabbitMQ does not report over STOMP" in stomp
    old = refused(lambda: orders.write(frame, protocol=AMQP_1_0))
    assert "cannot write to RabbitMQ 3." in old
    assert total(orders.node, orders.queue) == 0


@pytest.mark.parametrize("output", ["update", with_all("complete")])
def test_other_modes_of_output_are_refused(spark: Any, orders: Target, tmp_path: Path, output: str) -> None:
    spark.range(5).selectExpr("cast(id as string) as body").write.parquet(str(tmp_path / "in"))
    counts = spark.readStream.schema("body string").parquet(str(tmp_path / "in")).groupBy("body").count()
    writer = counts.select("body").writeStream.format("mq").options(**orders.options).outputMode(output)
    with pytest.raises(Exception, match=r"append|update|Update") as caught:
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(60)
    assert caught.value
    assert total(orders.node, orders.queue) == 0


# -- the pages


@pytest.mark.whole
def test_the_code_of_the_pages_writes(spark: Any, orders: Target, tmp_path: Path) -> None:
    url = orders.options["url"]
    batch = spark.createDataFrame([("id", b"x")], "messageId string, body binary")
    batch.write.parquet(str(tmp_path / "orders"))

    def execute(page: str, begin: str, **names: Any) -> dict[str, Any]:
        code = block(page, begin).replace("amqp://guest:guest@localhost:5672/", url)
        code = code.replace('"invoices"', repr(orders.queue)).replace('"orders"', repr(str(tmp_path / "orders")))
        exec(compile(code, page, "exec"), names)
        return names

    stream = spark.readStream.schema(batch.schema).parquet(str(tmp_path / "orders"))
    names = execute("docs/write-to-queues.md", "query = (", rows=stream, checkpoint=str(tmp_path / "checkpoint"))
    names["query"].processAllAvailable()
    names["query"].stop()
    assert total(orders.node, orders.queue) == 1
    given = {"broker": "rabbitmq", "url": url}
    execute("docs/write-to-queues.md", 'url = "amqp://guest:guest@localhost:5672/"', spark=spark)
    written = execute(
        "docs/write-to-queues.md", "def write(batch, number):", options={**given, "queue": orders.queue}, query_name="q"
    )["write"]
    written(batch, 7)
    assert total(orders.node, orders.queue) == 3


@pytest.mark.whole
def test_the_code_of_the_page_answers_and_asks(spark: Any, orders: Target, tmp_path: Path) -> None:
    """From question to answer: a query asks, another one answers, and a third would read the answers."""
    page, node, answers = "docs/request-reply.md", orders.node, f"answers.{uuid.uuid4().hex[:8]}"
    node.declare(answers)
    spark.createDataFrame([("why?", "1")], "body string, id string").write.parquet(str(tmp_path / "questions"))
    options = {name: value for name, value in orders.options.items() if name != "queue"}

    def execute(begin: str, **names: Any) -> dict[str, Any]:
        code = block(page, begin).replace("'answers'", repr(answers)).replace('"questions"', repr(orders.queue))
        exec(compile(code, page, "exec"), names)
        return names

    questions = spark.readStream.schema("body string, id string").parquet(str(tmp_path / "questions"))
    asking = execute(
        'columns = ["body", "id AS correlationId", "\'answers\' AS replyTo"]',
        questions=questions,
        options=options,
        checkpoint=str(tmp_path / "asking"),
    )["query"]
    place = str(tmp_path / "answering")
    source = spark.readStream.format("mq").options(**orders.options, checkpointLocation=place)
    requests = execute('names = "^(answers$|answers[.]|temp-queue://)"', requests=source.load())["trusted"]
    answering = execute(
        'answers = requests.filter("replyTo is not null").selectExpr(',
        requests=requests,
        options=options,
        checkpoint=place,
    )["query"]
    try:
        assert poll(lambda: total(node, answers) == 1 or not (asking.isActive and answering.isActive), 90)
    finally:
        asking.stop()
        answering.stop()
    (row,) = Target(node, answers, {**options, "queue": answers}, {}).read(spark, tmp_path, 1)
    assert (bytes(row.body), row.correlationId) == (b"re: why?", "1")
    node.delete(answers)


# -- kills


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_job_that_is_killed_writes_copies_with_equal_ids_and_a_reader_has_each_once(
    spark: Any, orders: Target, tmp_path: Path
) -> None:
    """From queue to queue. What else is killed, and on every broker, is in dev/testbed/chaos test/sink."""
    node, read_from, count = orders.node, f"from-{uuid.uuid4().hex[:8]}", 1_200
    node.declare(read_from)
    source = {"broker": "rabbitmq", "url": node.url(AMQP_0_9_1), "queue": read_from, "maxMessagesPerTrigger": "200"}
    given = json.dumps({"source": source, "sink": orders.options})
    command = [sys.executable, "-m", "tests.support.writing_job", str(tmp_path / "checkpoint"), given]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    log = tmp_path / "log.txt"
    node.publish(read_from, [b"%d" % row for row in range(count)])
    try:
        # Killed with batches behind it, and most probably in the middle of one; the second run goes to the end.
        for enough in (count // 3, count):
            with log.open("ab") as output:
                job = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
            done = poll(lambda enough=enough: total(node, orders.queue) >= enough, 300)
            done = done and (enough < count or poll(lambda: total(node, read_from) == 0, 60))
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            assert done, log.read_text("utf-8", "replace")[-4000:]
        assert total(node, read_from) == 0, "everything was committed and acknowledged"
        rows = orders.read(spark, tmp_path, count)
    finally:
        node.delete(read_from)
    assert sorted(bytes(row.body) for row in rows) == sorted(b"%d" % row for row in range(count))
