"""The source inside a real Spark: what a user does, and what a user does wrong."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import psutil
import pytest

from pyspark_mq.cli.main import main
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.support.checks import bodies, total
from tests.support.effort import each_of, with_all
from tests.support.engine import full_epochs

ALL_COLUMNS = {
    "messageId": "string",
    "body": "binary",
    "destination": "string",
    "properties": "map<string,string>",
    "correlationId": "string",
    "replyTo": "string",
    "contentType": "string",
    "type": "string",
    "priority": "int",
    "timestamp": "timestamp",
    "expiration": "timestamp",
    "redelivered": "boolean",
    "deliveryCount": "int",
}
#: Does this Spark show the committed offset to a source, with limits, AvailableNow and a report of what is there?
_FULL_API = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
full_api = pytest.mark.skipif(not _FULL_API, reason="this Spark has no limits, AvailableNow and reports for sources")


class Job:
    """A query into memory: batches as lists of rows."""

    def __init__(self, spark: Any, folder: Path, rabbit: RabbitNode, queue: str, **options: Any) -> None:
        self._spark = spark
        self.checkpoint = str(folder / "checkpoint")
        self.schema: str | None = None
        self.options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": queue}
        self.options |= {key.replace("_", "."): str(value) for key, value in options.items()}
        if "idLog" not in options:
            self.options["checkpointLocation"] = self.checkpoint
        self.batches: dict[int, list[Any]] = {}
        self.partitions: list[int] = []

    @property
    def sizes(self) -> list[int]:
        """Of the batches with rows: on a busy machine the first may be empty."""
        return [len(batch) for batch in self.batches.values() if batch]

    def load(self) -> Any:
        reader = self._spark.readStream.format("mq").options(**self.options)
        return (reader.schema(self.schema) if self.schema else reader).load()

    def start(self, **trigger: Any) -> Any:
        def keep(frame: Any, batch: int) -> None:
            self.partitions.append(frame.rdd.getNumPartitions())
            self.batches[batch] = frame.collect()

        writer = self.load().writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, rows: int, timeout_s: float = 90) -> Any:
        """Run until so many rows came; the last progress."""
        query = self.start()
        try:
            assert poll(lambda: len(self.rows) >= rows or not query.isActive, timeout_s)
            if query.exception() is not None:
                raise query.exception()
            poll(lambda: len(query.recentProgress) >= len(self.batches), 10)
            time.sleep(1)  # the trigger that acknowledges
            return query.lastProgress
        finally:
            query.stop()

    def fail(self, timeout_s: float = 90) -> str:
        """Run until it fails; the words of the exception."""
        query = self.start()
        try:
            assert poll(lambda: not query.isActive, timeout_s), "it did not fail"
            return str(query.exception())
        finally:
            query.stop()

    @property
    def rows(self) -> list[Any]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


# -- reading -----------------------------------------------------------------------------------


@pytest.mark.whole
def test_several_queues_in_one_query_and_one_more_with_the_same_checkpoint(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    names = [name, f"{name}-b", f"{name}-c"]
    for other in names[1:]:
        rabbit.declare(other)
    for queue in names:
        rabbit.publish(queue, bodies(30))
    one = Job(spark, tmp_path, rabbit, name, numPartitions=2)
    one.run(30)
    job = Job(spark, tmp_path, rabbit, ",".join(names), numPartitions=2, maxMessagesPerTrigger=25)
    job.run(60)
    assert all(parts == 2 for parts in job.partitions if parts)
    for queue in names:
        rows = [row for row in [*one.rows, *job.rows] if row.destination == queue]
        assert [bytes(row.body) for row in rows] == bodies(30)
        assert poll(lambda queue=queue: total(rabbit, queue) == 0, 30)
    for other in names[1:]:
        rabbit.delete(other)


def test_every_column_has_its_documented_type(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    assert dict(Job(spark, tmp_path, rabbit, name).load().dtypes) == ALL_COLUMNS


@pytest.mark.whole
def test_the_columns_of_a_message(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    headers = {
        "text": "ä€",
        "number": 7,
        "flag": True,
        "none": None,
        "bytes": b"\xff\x00",
        "table": {"a": [1, "b"]},
    }
    rabbit.publish(
        name,
        [b"\x00\xff"],
        ids=["id-1"],
        headers=headers,
        correlation_id="c",
        reply_to="r",
        content_type="text/plain",
        type="t",
        priority=4,
        timestamp=1_700_000_000,
        expires_ms=600_000,
    )
    job = Job(spark, tmp_path, rabbit, name)
    job.run(1)
    row = job.rows[0].asDict()
    stamps = [row.pop("timestamp"), row.pop("expiration")]
    assert [stamp.timestamp() for stamp in stamps] == [1_700_000_000, 1_700_000_600]
    assert row == {
        "messageId": "id-1",
        "body": bytearray(b"\x00\xff"),
        "destination": name,
        "properties": {
            "text": "ä€",
            "number": "7",
            "flag": "true",
            "none": None,
            "bytes": "\\xff\x00",
            "table": '{"a": [1, "b"]}',
        },
        "correlationId": "c",
        "replyTo": "r",
        "contentType": "text/plain",
        "type": "t",
        "priority": 4,
        "redelivered": False,
        "deliveryCount": 1,
    }


@pytest.mark.whole
def test_a_subset_of_the_columns_in_the_users_order(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, [b"a"], ids=["id-1"])
    job = Job(spark, tmp_path, rabbit, name)
    job.schema = "body binary, messageId string"
    job.run(1)
    assert [tuple(row) for row in job.rows] == [(bytearray(b"a"), "id-1")]


@full_api
@pytest.mark.whole
def test_epochs_keep_to_the_limits(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, bodies(25))
    job = Job(spark, tmp_path, rabbit, name, **full_epochs(10), numPartitions=3)
    job.run(25)
    assert job.sizes == [10, 10, 5]
    assert set(job.partitions) == {3}


@pytest.mark.whole
def test_epochs_keep_to_the_limit_in_bytes(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, [bytes(300_000)] * 7)
    job = Job(spark, tmp_path, rabbit, name, **full_epochs(7), maxBytesPerTrigger="1m")
    job.run(7)
    assert job.sizes == [3, 3, 1]


@pytest.mark.whole
def test_a_query_whose_plan_needs_no_source_is_refused_in_words(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    job = Job(spark, tmp_path, rabbit, name)
    rabbit.publish(name, bodies(5))
    writer = job.load().limit(0).writeStream.foreachBatch(lambda batch, _: batch.collect())
    query = writer.option("checkpointLocation", job.checkpoint).trigger(processingTime="1 second").start()
    assert poll(lambda: query.exception() is not None, 60), query.status
    assert "without asking for its messages" in str(query.exception())
    assert total(rabbit, name) == 5


@pytest.mark.whole
def test_a_small_epoch_waits_until_it_is_full_or_late(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    job = Job(spark, tmp_path, rabbit, name, minMessagesPerTrigger=10, maxTriggerDelay="1h")
    first = 0 if _FULL_API else 1
    rabbit.publish(name, bodies(first))
    query = job.start()
    # Before Spark 4.2 the first epoch may be the only one of its run, and waits for no more.
    assert poll(lambda: len(job.rows) == first, 60)
    rabbit.publish(name, bodies(3))
    time.sleep(6)
    assert len(job.rows) == first
    rabbit.publish(name, bodies(7))
    assert poll(lambda: len(job.rows) == first + 10 and total(rabbit, name) == 0, 90)
    query.stop()
    # Else its last epoch is settled with the next one, and comes again for a new checkpoint.
    assert poll(lambda: rabbit.counts(name).unacked == 0, 30)
    rabbit.purge(name)
    late = Job(spark, tmp_path / "late", rabbit, name, minMessagesPerTrigger=10, maxTriggerDelay="2s")
    rabbit.publish(name, bodies(3))
    late.run(3)
    assert len(late.rows) == 3


@full_api
def test_available_now_takes_what_is_there_in_epochs_and_leaves_nothing(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    rabbit.publish(name, bodies(25))
    job = Job(spark, tmp_path, rabbit, name, maxMessagesPerTrigger=10)
    query = job.start(availableNow=True)
    assert query.awaitTermination(60)
    assert job.sizes == [10, 10, 5]
    assert poll(lambda: total(rabbit, name) == 0, 30)
    again = job.start(availableNow=True)
    assert again.awaitTermination(60)
    assert len(job.rows) == 25


@pytest.mark.skipif(_FULL_API, reason="this Spark has AvailableNow for sources")
def test_available_now_without_its_functions_takes_all_that_waits_in_one_epoch(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    job, sent = Job(spark, tmp_path, rabbit, name), []
    for count in (900, 400, 700, 0):
        sent += rabbit.publish(name, bodies(count))
        assert job.start(availableNow=True).awaitTermination(60)
        assert [row.messageId for row in job.rows] == sent
    assert job.sizes == [900, 400, 700]
    assert poll(lambda: total(rabbit, name) == 0, 30)


@pytest.mark.skipif(_FULL_API, reason="this Spark has AvailableNow for sources")
def test_the_wrapper_of_available_now_is_refused_in_words(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    sent = rabbit.publish(name, bodies(5))
    job = Job(spark, tmp_path, rabbit, name)
    assert job.start(availableNow=True).awaitTermination(60)
    wrapper = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    spark.conf.set(wrapper, "true")
    try:
        sent += rabbit.publish(name, bodies(5))
        query = job.start(availableNow=True)
        assert poll(lambda: not query.isActive, 60)
        assert wrapper in str(query.exception())
    finally:
        spark.conf.unset(wrapper)
    for _ in range(2):
        assert job.start(availableNow=True).awaitTermination(60)
    assert [row.messageId for row in job.rows] == sent


@pytest.mark.whole
def test_logs_that_spark_writes_late_are_refused_in_words(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    job, sent, early = Job(spark, tmp_path, rabbit, name), [], {}
    writer = job.load().writeStream.foreachBatch(lambda batch, number: early.update({number: batch.collect()}))
    late = {"asyncProgressTrackingEnabled": "true", "_asyncProgressTrackingOverrideSinkSupportCheck": "true"}
    late["asyncProgressTrackingCheckpointIntervalMs"] = "600000"  # logs of the first batch alone
    query = writer.options(**late, checkpointLocation=job.checkpoint).trigger(processingTime="1 second").start()
    while query.exception() is None and len(sent) < 2_000:
        sent += rabbit.publish(name, bodies(20))
        poll(lambda: query.exception() is not None, 1)
    assert "leave out 'asyncProgressTrackingEnabled'" in str(query.exception())
    query.stop()
    # The same checkpoint goes on without it: a batch that is not logged as committed is run again, as always.
    query = job.start()
    assert poll(lambda: total(rabbit, name) == 0 or not query.isActive, 120), query.status
    assert query.exception() is None, str(query.exception())
    query.stop()
    rows = [row for batch in {**early, **job.batches}.values() for row in batch]
    assert sorted(row.messageId for row in rows) == sorted(sent)


@full_api
@pytest.mark.whole
def test_runs_over_messages_without_ids_have_no_batch_more(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    job, sent = Job(spark, tmp_path, rabbit, name), []
    for run in range(3):
        of_this_run = [b"tick", b"run %d" % run]
        sent += of_this_run
        rabbit.publish(name, of_this_run, ids=[None, None])
        query = job.start(availableNow=True)
        assert query.awaitTermination(60)
        assert query.exception() is None
        assert total(rabbit, name) == 0
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 3
    assert sorted(bytes(row.body) for row in job.rows) == sorted(sent)


@full_api
@pytest.mark.whole
def test_available_now_replays_what_an_earlier_run_left_open(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    sent = rabbit.publish(name, bodies(12))
    job = Job(spark, tmp_path, rabbit, name, maxMessagesPerTrigger=5)
    seen: list[list[str]] = []

    def break_on_the_second(frame: Any, batch: int) -> None:
        seen.append([row.messageId for row in frame.collect()])
        if len(seen) == 2:
            raise RuntimeError("the sink broke")

    for _ in range(2):
        writer = job.load().writeStream.foreachBatch(break_on_the_second).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        poll(lambda: not query.isActive, 60)  # noqa: B023
    assert seen == [sent[:5], sent[5:10], sent[5:10], sent[10:]]
    assert poll(lambda: total(rabbit, name) == 0, 30)


def test_the_last_epoch_of_an_idle_queue_is_acknowledged(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    rabbit.publish(name, bodies(5))
    job = Job(spark, tmp_path, rabbit, name)
    query = job.start()
    assert poll(lambda: len(job.rows) == 5, 90)
    assert poll(lambda: total(rabbit, name) == 0, 30)
    query.stop()


def test_a_restart_goes_on_where_it_was(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    sent = rabbit.publish(name, bodies(10))
    job = Job(spark, tmp_path, rabbit, name)
    job.run(10)
    sent += rabbit.publish(name, bodies(10))
    job.run(20)
    assert [row.messageId for row in job.rows] == sent


def test_a_batch_that_failed_is_replayed_with_the_same_rows(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    sent = rabbit.publish(name, bodies(10))
    seen: list[list[str]] = []

    def break_once(frame: Any, batch: int) -> None:
        rows = frame.collect()
        if not rows:
            return  # the first batch of a query, where the broker is slow
        seen.append([row.messageId for row in rows])
        if len(seen) == 1:
            raise RuntimeError("the sink broke")

    frame = Job(spark, tmp_path, rabbit, name, **full_epochs(10)).load()
    for attempt in range(2):
        query = (
            frame.writeStream.foreachBatch(break_once)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        assert poll(lambda: len(seen) > attempt, 40)  # noqa: B023
        poll(lambda: not query.isActive, 5)  # noqa: B023
        query.stop()
    assert seen == [sent, sent]


@pytest.mark.whole
@pytest.mark.parametrize("epoch", [with_all(0), 2], ids=["its rows in the task", "its rows in memory"])
def test_a_failed_task_is_tried_again_from_the_same_payload(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, epoch: int
) -> None:
    rabbit.publish(name, bodies(50))
    armed, failed = tmp_path / "armed", tmp_path / "failed-once"

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        if armed.exists() and not failed.exists():
            failed.touch()
            os._exit(1)
        yield from batches

    job = Job(spark, tmp_path, rabbit, name, **full_epochs(10))
    counts: list[int] = []
    shared: list[int] = []

    def keep(some: Any, batch: int) -> None:
        counts.append(some.count())
        assert some.count() == counts[-1]
        shared.append(len(_memory_of_sources()))
        if batch + 1 >= epoch:
            armed.touch()

    armed.touch() if not epoch else None
    frame = job.load().select("messageId").mapInArrow(fail_once, "messageId string")
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert poll(lambda: sum(counts) == 50 or not query.isActive, 60)
    assert query.exception() is None
    assert failed.exists()
    # The mark of the source alone; then an epoch's rows as well.
    assert shared[0] < shared[-1]
    query.stop()


def _memory_of_sources() -> list[str]:
    """Files in memory of the processes that are sources of queries here."""
    found: list[str] = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if "python_streaming_source_runner" in " ".join(process.cmdline()):
                files = Path(f"/proc/{process.pid}/fd").iterdir()
                found += [str(file.readlink()) for file in files if "memfd:pyspark-mq" in str(file.readlink())]
    return found


@full_api
def test_the_progress_shows_the_counters(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, bodies(10), ids=["id-0", "id-1", *(f"id-{number}" for number in range(8))])
    progress = Job(spark, tmp_path, rabbit, name, **full_epochs(8)).run(8)
    counters = json.loads(progress["sources"][0]["latestOffset"])
    assert counters["reads"] == f"queue '{name}'"
    assert counters["received"] == 10
    assert counters["planned"] == 8
    assert counters["duplicatesDropped"] == counters["reusedIds"] == 2
    assert {
        "redelivered",
        "settled",
        "unacked",
        "reconnects",
        "replays",
        "lost",
        "forgotten",
        "backlog",
    } <= counters.keys()


@pytest.mark.whole
def test_the_checkpoint_can_be_inspected(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rabbit.publish(name, bodies(20))
    Job(spark, tmp_path, rabbit, name, **full_epochs(10)).run(20)
    assert main(["inspect", str(tmp_path / "checkpoint"), "--ids", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (source,) = told["sources"]
    assert source["reads"] == f"queue '{name}' in virtual host '/'"
    epoch = source["open"] or source["committed"]
    assert epoch["planned"] == 10
    assert told["committedBatch"] in {1, 2}  # the first batch may be empty


@pytest.mark.whole
def test_a_replay_that_cannot_complete_is_released(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = rabbit.publish(name, bodies(10))
    job = Job(spark, tmp_path, rabbit, name, replayTimeout="3s", **full_epochs(10))

    def break_(frame: Any, batch: int) -> None:
        raise RuntimeError("the sink broke")

    query = job.load().writeStream.foreachBatch(break_).option("checkpointLocation", job.checkpoint).start()
    assert poll(lambda: not query.isActive, 60)
    assert poll(lambda: rabbit.counts(name).ready == 10, 30)
    with pika.BlockingConnection(pika.URLParameters(rabbit.url())) as connection:
        channel = connection.channel()
        taken = [channel.basic_get(name, auto_ack=True)[1].message_id for _ in range(4)]
    assert "pyspark-mq release" in job.fail()

    options = [f"{key}={value}" for key, value in job.options.items()]
    assert main(["release", job.checkpoint, "--yes", *options]) == 0
    told = capsys.readouterr().out
    assert "4 of the 10 planned messages are missing" in told
    assert all(key in told for key in taken)
    assert "the epoch was released" in inspected(job, capsys)
    job.run(6)
    assert [row.messageId for row in job.rows] == [key for key in sent if key not in taken]
    assert "released" not in inspected(job, capsys)


@pytest.mark.whole
@full_api  # before 4.2 the last epoch is settled by the next run
def test_a_checkpoint_that_is_restored_alone_is_told_of(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(spark, tmp_path, rabbit, name)
    rows, copy, checkpoint = tmp_path / "rows", tmp_path / "copy", Path(job.checkpoint)

    def acknowledged() -> bool:
        return total(rabbit, name) == 0

    def run(until: Callable[[], object], messages: int = 10) -> set[str]:
        """Run with so many new messages."""
        sent = {str(key) for key in rabbit.publish(name, bodies(messages))}
        place = {"path": str(rows), "checkpointLocation": job.checkpoint}
        query = job.load().writeStream.format("parquet").options(**place).start()
        try:
            assert poll(lambda: until() or not query.isActive, 90)
            if error := query.exception():
                raise error
        finally:
            query.stop()
        return sent

    def told() -> str:
        assert main(["inspect", job.checkpoint, "--sink", str(rows)]) == 0
        return " ".join(capsys.readouterr().out.split())

    kept = run(acknowledged)
    shutil.copytree(checkpoint, copy)
    kept |= run(acknowledged)
    assert "ok sink: the sink's newest batch is" in told()
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)
    assert "problem sink: the sink's newest batch is" in told()
    options = [f"{key}={value}" for key, value in job.options.items()]
    assert main(["doctor", *options, "--sink", str(rows), "-n", "0"]) == 1
    assert "restore checkpoint and sink" in capsys.readouterr().out
    # What they warn of: Spark commits what the sink skips, so the query fails, and the next start acknowledges it.
    commits = set((checkpoint / "commits").iterdir())
    with pytest.raises(Exception, match="its folder already has a batch with this number"):
        run(lambda: False)
    assert set((checkpoint / "commits").iterdir()) > commits
    run(acknowledged, messages=0)
    assert {row.messageId for row in spark.read.parquet(str(rows)).collect()} == kept


def inspected(job: Job, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["inspect", job.checkpoint]) == 0
    return capsys.readouterr().out


@full_api
def test_spark_calls_in_the_order_the_test_engine_does(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    log = tmp_path / "calls"

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"n": 0}

        def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:
            n = min(start["n"] + 1, 3)
            if n != start["n"]:
                self.note(f"latest {start['n']}")
            return {"n": n}

        def partitions(self, start: Any, end: Any) -> list[InputPartition]:
            self.note(f"partitions {start['n']} {end['n']}")
            return [InputPartition(end["n"])]

        def commit(self, end: Any) -> None:
            self.note(f"commit {end['n']}")

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (partition.value,)

        def note(self, text: str) -> None:
            with log.open("a") as file:
                file.write(text + "\n")

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "call_order"

        def schema(self) -> str:
            return "n int"

        def streamReader(self, schema: Any) -> Reader:
            return Reader()

    spark.dataSource.register(Source)
    query = spark.readStream.format("call_order").load().writeStream.format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "c")).start()
    assert poll(lambda: log.exists() and "partitions 2 3" in log.read_text(), 180)
    query.stop()
    calls = list(dict.fromkeys(log.read_text().splitlines()))
    expected = ["latest 0", "partitions 0 1", "latest 1", "commit 1", "partitions 1 2"]
    assert calls[:5] == expected


@pytest.mark.whole
@pytest.mark.parametrize("guarantee", [with_all("at-least-once"), "none"])
def test_the_lower_guarantees_need_no_ids(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, guarantee: str
) -> None:
    rabbit.publish(name, bodies(10), ids=[None] * 10)
    job = Job(spark, tmp_path, rabbit, name, guarantee=guarantee)
    job.run(10)
    assert [bytes(row.body) for row in job.rows] == bodies(10)
    assert {row.messageId for row in job.rows} == {None}
    assert poll(lambda: total(rabbit, name) == 0, 30)


# -- IDs and odd messages ----------------------------------------------------------------------


@pytest.mark.whole
def test_odd_messages_become_correct_rows(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    ids = ["", "a\nb\0c", "x" * 255, "plain"]
    rabbit.publish(name, [b"", b"two", b"three", bytes(1_000)], ids=["empty-body", *ids[1:]])
    job = Job(spark, tmp_path, rabbit, name)
    job.run(4)
    assert [row.messageId for row in job.rows] == ["empty-body", *ids[1:]]
    assert [len(row.body) for row in job.rows] == [0, 3, 5, 1_000]


@pytest.mark.whole
def test_a_body_of_50_megabytes(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    big = os.urandom(1 << 20) * 50
    rabbit.publish(name, [b"before", big, b"after"])
    job = Job(spark, tmp_path, rabbit, name)
    job.run(3, timeout_s=90)
    assert [len(row.body) for row in job.rows] == [6, 50 << 20, 5]
    assert bytes(job.rows[1].body) == big


@pytest.mark.whole
def test_an_id_of_a_megabyte(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    ids = ["a" * (1 << 16) + str(number) for number in range(3)]
    for value in [*ids, ids[0]]:
        # The table of headers has to fit into one frame of 128 KiB.
        rabbit.publish(name, [b"x"], headers={"key": value})
    job = Job(spark, tmp_path, rabbit, name, messageIdFrom="property:key")
    job.run(3)
    time.sleep(1)
    assert [row.messageId for row in job.rows] == ids
    offsets = [file.read_text() for file in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")]
    assert max(map(len, offsets)) < 5_000


def test_a_message_without_an_id_fails_in_words_and_stays(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    rabbit.publish(name, bodies(2), ids=["id-1", None])
    text = Job(spark, tmp_path, rabbit, name, onMissingMessageId="fail").fail()
    for word in (name, "messageIdFrom='message-id'", "delivery 2", "'content'", "'at-least-once'"):
        assert word in text
    assert poll(lambda: rabbit.counts(name).ready == 2, 30)


@pytest.mark.whole
@pytest.mark.parametrize("options", [{}, with_all({"onMissingMessageId": "row"})])
def test_messages_without_an_id_are_emitted_each_however_equal(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, options: dict[str, str]
) -> None:
    rabbit.publish(name, [b"a", b"b", b"b", b"b"], ids=["id-1", None, None, None])
    job = Job(spark, tmp_path, rabbit, name, **options)
    job.run(4)
    assert [(row.messageId, bytes(row.body)) for row in job.rows] == [("id-1", b"a")] + 3 * [(None, b"b")]


@pytest.mark.whole
def test_a_message_without_an_id_is_rejected_to_the_dead_letters(
    spark: Any, rabbit: RabbitNode, tmp_path: Path
) -> None:
    queue, dead = f"reject-{uuid.uuid4().hex[:8]}", f"dead-{uuid.uuid4().hex[:8]}"
    rabbit.declare(dead)
    rabbit.declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    rabbit.publish(queue, bodies(3), ids=["id-1", None, "id-3"])
    job = Job(spark, tmp_path, rabbit, queue, onMissingMessageId="reject")
    job.run(2)
    assert [row.messageId for row in job.rows] == ["id-1", "id-3"]
    assert poll(lambda: rabbit.counts(dead).ready == 1, 30)


@pytest.mark.whole
@pytest.mark.parametrize("source", ["correlation-id", with_all("property:order"), with_all("json:$.order.id")])
def test_ids_from_elsewhere_drop_duplicates(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str, source: str
) -> None:
    for key in ("1", "2", "1"):
        body = json.dumps({"order": {"id": key}}).encode()
        rabbit.publish(name, [body], headers={"order": key}, correlation_id=key)
    job = Job(spark, tmp_path, rabbit, name, messageIdFrom=source)
    job.run(2)
    assert [row.messageId for row in job.rows] == ["1", "2"]


# -- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    each_of(
        [
            ({"colour": "red"}, ["colour", "unknown"]),
            ({"guarantee": "maybe"}, ["guarantee", "maybe", "exactly-once"]),
            ({"broker": "kafka"}, ["broker", "kafka", "rabbitmq"]),
            ({"topic": "t"}, ["topic", "queue"]),
            ({"prefetch": "70000"}, ["prefetch", "70000", "65535"]),
            ({"replayTimeout": "soon"}, ["replayTimeout", "soon", "30s"]),
        ],
        3,
    ),
)
def test_a_wrong_option_is_an_error_of_load(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, options: dict[str, str], words: list[str]
) -> None:
    from pyspark.errors import AnalysisException

    job = Job(spark, tmp_path, rabbit, "any")
    job.options |= options
    with pytest.raises(AnalysisException) as wrong:
        job.load()
    for word in words:
        assert word in str(wrong.value)


def test_a_wrong_password_fails_at_once_without_showing_it(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    job = Job(spark, tmp_path, rabbit, name, password="s3cr3t-pw", username="guest")
    began = time.monotonic()
    text = job.fail()
    assert time.monotonic() - began < 25
    assert "refused the login of user 'guest'" in text
    assert "s3cr3t-pw" not in text


@pytest.mark.whole
def test_an_unknown_queue_or_virtual_host_fails_in_words(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    text = Job(spark, tmp_path, rabbit, "no-such-queue").fail()
    assert "queue 'no-such-queue' does not exist in virtual host '/'" in text
    job = Job(spark, tmp_path / "2", rabbit, name)
    job.options["url"] = rabbit.url() + "nowhere"
    assert "virtual host 'nowhere'" in job.fail()


@pytest.mark.whole
def test_a_broker_that_is_away_fails_within_the_connect_timeout(spark: Any, rabbit: RabbitNode, tmp_path: Path) -> None:
    from testbed.ports import free_port

    job = Job(spark, tmp_path, rabbit, "any", connectTimeout="2s")
    job.options["url"] = f"amqp://u:s3cr3t-pw@127.0.0.1:{free_port()}/"
    text = job.fail()
    assert "connectTimeout=2s" in text
    assert "s3cr3t-pw" not in text


def test_a_checkpoint_of_another_queue_is_refused(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, bodies(3))
    Job(spark, tmp_path, rabbit, name).run(3)
    other = f"{name}-other"
    rabbit.declare(other)
    rabbit.publish(other, bodies(3))
    text = Job(spark, tmp_path, rabbit, other).fail()
    assert f"queue '{name}'" in text
    assert f"queue '{other}'" in text
    assert "checkpointLocation" in text
    assert poll(lambda: rabbit.counts(other).ready == 3, 30)
    rabbit.delete(other)


@pytest.mark.whole
def test_a_checkpoint_of_another_broker_is_refused(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, bodies(3))
    Job(spark, tmp_path, rabbit, name).run(3)
    with RabbitNode() as other:
        other.declare(name)
        other.publish(name, bodies(3))
        text = Job(spark, tmp_path, other, name).fail()
        assert "the checkpoint was written with broker" in text
        assert poll(lambda: other.counts(name).ready == 3, 30)


@pytest.mark.whole
def test_an_offset_edited_by_hand_is_refused(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, bodies(3))
    Job(spark, tmp_path, rabbit, name, **full_epochs(3)).run(3)
    log = tmp_path / "checkpoint" / "offsets"
    newest = max((file for file in log.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
    newest.write_text(newest.read_text().replace('"epoch": 1', '"epoch": 7').replace('"epoch":1', '"epoch":7'))
    (log / f".{newest.name}.crc").unlink()
    text = Job(spark, tmp_path, rabbit, name).fail()
    assert "was changed after it was written" in text


@pytest.mark.whole
def test_a_queue_deleted_under_the_query_is_named(spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    rabbit.publish(name, bodies(3))
    job = Job(spark, tmp_path, rabbit, name)
    query = job.start()
    assert poll(lambda: len(job.rows) == 3, 90)
    rabbit.delete(name)
    assert poll(lambda: not query.isActive, 30)
    assert f"queue '{name}' does not exist" in str(query.exception())


@pytest.mark.whole
def test_a_full_disk_at_the_broker_does_not_stop_reading(spark: Any, tmp_path: Path) -> None:
    with RabbitNode() as full:
        full.declare("q")
        full.publish("q", bodies(20))
        full.ctl("set_disk_free_limit", "900GB")
        connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", full.port, blocked_connection_timeout=2)
        )
        channel = connection.channel()
        channel.basic_publish("", "q", b"blocked")
        with pytest.raises(pika.exceptions.ConnectionBlockedTimeout):
            connection.process_data_events(time_limit=10)
        job = Job(spark, tmp_path, full, "q")
        job.run(20)
        assert len(job.rows) == 20


@pytest.mark.whole
def test_a_schema_with_an_unknown_column_fails_in_words(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    job = Job(spark, tmp_path, rabbit, name)
    job.schema = "payload binary"
    assert "payload" in job.fail()


def test_reading_without_a_stream_is_refused_in_words(spark: Any, rabbit: RabbitNode, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, rabbit, "any")
    with pytest.raises(Exception, match="readStream"):
        spark.read.format("mq").options(**job.options).load().collect()


@pytest.mark.whole
def test_sql_tables_work_with_the_options_of_the_stream_or_are_refused_in_words(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    sent = rabbit.publish(name, bodies(5))
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": name}
    table = name.replace("-", "_")
    given = ", ".join(f"{key} '{value}'" for key, value in options.items())
    for with_ in (f"OPTIONS ({given})", f"TBLPROPERTIES ({given.replace(' ', '=')})".replace(",=", ", ")):
        with pytest.raises(Exception, match=r"(?s)cannot be created like this.*spark\.readStream") as refused:
            spark.sql(f"CREATE TABLE {table} USING mq {with_}")
        assert "guest:guest" not in str(refused.value)
    spark.sql(f"CREATE TABLE {table} (messageId STRING, body BINARY) USING mq")
    try:
        rows: list[Any] = []

        def keep(frame: Any, batch: int) -> None:
            rows.extend(frame.collect())

        def start(reader: Any, checkpoint: str) -> Any:
            stream = reader.table(table).writeStream.foreachBatch(keep)
            return stream.option("checkpointLocation", str(tmp_path / checkpoint)).start()

        query = start(spark.readStream.options(**options, checkpointLocation=str(tmp_path / "with")), "with")
        assert poll(lambda: len(rows) == 5, 60)
        query.stop()
        assert [row.messageId for row in rows] == sent
        query = start(spark.readStream, "without")
        assert poll(lambda: not query.isActive, 60)
        assert "no options were set" in str(query.exception())
    finally:
        spark.sql(f"DROP TABLE {table}")


@pytest.mark.whole
def test_no_password_reaches_checkpoint_plan_or_log(rabbit: RabbitNode, tmp_path: Path, name: str) -> None:
    # In a process of its own, so that everything Spark writes at its most talkative is seen.
    rabbit.add_user("walter", "s3cr3t-pw")
    rabbit.publish(name, bodies(5))
    program = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("DEBUG")
df = (spark.readStream.format("mq").option("broker", "rabbitmq").option("queue", "{name}")
      .option("url", "amqp://walter:s3cr3t-pw@127.0.0.1:{rabbit.port}/")
      .option("checkpointLocation", r"{tmp_path}/c").load())
df.explain(True)
q = df.writeStream.foreachBatch(lambda f, i: f.collect()).option("checkpointLocation", r"{tmp_path}/c").start()
import time
deadline = time.monotonic() + 80
while not any(p["numInputRows"] for p in q.recentProgress) and time.monotonic() < deadline:
    time.sleep(0.5)
time.sleep(2)
print("ROWS", sum(p["numInputRows"] for p in q.recentProgress), q.lastProgress, q.status)
q.explain(True)
q.stop()
"""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "ROWS 5" in done.stdout, done.stderr[-3000:]
    for file in (tmp_path / "c").rglob("*"):
        assert not file.is_file() or b"s3cr3t-pw" not in file.read_bytes()
    leaks = [line for line in (done.stdout + done.stderr).splitlines() if "s3cr3t-pw" in line]
    assert leaks == []
