"""Queries and sources that share a DataFrame, a folder or a checkpoint: each goes on, or is refused before anything is
acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.support.checks import bodies

_STEP_S = 90.0


class Rows:
    """A sink that has each batch once, and may fail in one."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, str]]] = {}
        self.fails_in = -1

    def __call__(self, frame: Any, batch: int) -> None:
        rows = [(row.destination, bytes(row.body).decode()) for row in frame.collect()]
        assert self.batches.setdefault(batch, rows) == rows, "the replay is not the same batch"
        if batch == self.fails_in:
            self.fails_in = -1
            raise RuntimeError("the sink fails as it was told to")

    def __len__(self) -> int:
        return sum(map(len, self.batches.values()))

    @property
    def counted(self) -> Counter[str]:
        return Counter(body for rows in self.batches.values() for _, body in rows)


def start(frame: Any, sink: Rows, checkpoint: Path) -> Any:
    return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()


def run(frame: Any, sink: Rows, checkpoint: Path, rows: int, waiting: Callable[[], int]) -> None:
    """Run a query until the sink has so many rows and nothing waits at the broker, and stop it in good order."""
    query = start(frame, sink, checkpoint)
    try:
        assert poll(lambda: (len(sink) >= rows and not waiting()) or not query.isActive, _STEP_S)
        assert query.exception() is None
    finally:
        query.stop()


def refusal(query: Any) -> str:
    """Wait until a query has failed; why it has."""
    try:
        assert poll(lambda: not query.isActive, _STEP_S)
    finally:
        query.stop()
    return str(query.exception())


@pytest.fixture
def frame(spark: Any, rabbit: RabbitNode, name: str, tmp_path: Path) -> Any:
    rabbit.declare(name)
    options = {"broker": "rabbitmq", "url": rabbit.url(), "queue": name, "checkpointLocation": str(tmp_path / "job")}
    return spark.readStream.format("mq").options(**options).load()


@pytest.mark.whole
def test_a_second_query_of_a_dataframe_is_refused_and_harms_nobody(
    frame: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    sink, other = Rows(), Rows()
    published: list[bytes] = []

    def waiting() -> int:
        return rabbit.counts(name).total

    for turn in range(2):
        some = [f"{turn}-{number}".encode() for number in range(20)]
        published += some
        rabbit.publish(name, some[:10])
        run(frame, sink, tmp_path / "job", len(published) - 10, waiting)
        rabbit.publish(name, some[10:])
        text = refusal(start(frame, other, tmp_path / "other"))
        assert "is not this query's checkpoint" in text, text
        assert "'checkpointLocation'" in text
        assert "pyspark-mq peek" in text
        run(frame, sink, tmp_path / "job", len(published), waiting)
    assert sink.counted == Counter(body.decode() for body in published)
    assert not other.batches


@pytest.mark.whole
def test_a_look_in_memory_while_the_job_is_stopped_takes_nothing(
    frame: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    sink = Rows()

    def waiting() -> int:
        return rabbit.counts(name).total

    rabbit.publish(name, bodies(10))
    run(frame, sink, tmp_path / "job", 10, waiting)
    rabbit.publish(name, bodies(20)[10:])
    for form in ("memory", "console"):
        query = frame.writeStream.format(form).queryName(f"look_{form}").start()
        assert "temporary folder" in refusal(query)
    assert poll(lambda: rabbit.counts(name).ready == 10, 30)
    for _ in range(2):
        run(frame, sink, tmp_path / "job", 20, waiting)
    assert sink.counted == Counter(body.decode() for body in bodies(20))


@pytest.mark.whole
def test_the_sources_of_a_union_go_on_after_a_failure(
    spark: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    names = [f"{name}-{letter}" for letter in "abcd"]
    for one in names:
        rabbit.declare(one)
    options = {"broker": "rabbitmq", "url": rabbit.url(), "checkpointLocation": str(tmp_path / "job")}
    several = spark.readStream.format("mq").options(**options)
    union = several.option("queue", f"{names[0]},{names[1]}").load()
    union = union.union(several.option("queue", f"{names[2]},{names[3]}").load())
    sink, sent = Rows(), Counter[str]()
    for turn in range(2):
        for one in names:
            some = [f"{one} {turn} {number}" for number in range(5)]
            rabbit.publish(one, [body.encode() for body in some])
            sent.update(some)
        if turn == 0:
            sink.fails_in = 0
            assert "as it was told to" in refusal(start(union, sink, tmp_path / "job"))
        run(union, sink, tmp_path / "job", sent.total(), lambda: sum(rabbit.counts(one).total for one in names))
    assert sink.counted == sent


@pytest.mark.whole
def test_a_union_of_a_dataframe_with_itself_has_each_message_on_both_sides(
    frame: Any, rabbit: RabbitNode, tmp_path: Path, name: str
) -> None:
    sink = Rows()
    rabbit.publish(name, bodies(10))
    run(frame.union(frame), sink, tmp_path / "job", 20, lambda: rabbit.counts(name).total)
    assert sink.counted == Counter({body.decode(): 2 for body in bodies(10)})
