"""The driver's rows of the failure matrix, and the files that offsets name."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.support.checks import assert_ids_exactly_once, bodies
from tests.support.effort import with_all
from tests.support.engine import At, Crashed, Engine, ReaderError, full_epochs


def publish(rabbit: RabbitNode, queue: str, count: int) -> list[str | None]:
    """With IDs that take room."""
    return rabbit.publish(queue, bodies(count), ids=[str(uuid.uuid4()) for _ in range(count)])


@pytest.mark.parametrize(
    ("option", "point"),
    [("idLog", At.AFTER_OFFSET_LOG), *(("checkpointLocation", at) for at in At),
     *(with_all("idLog", at) for at in At if at is not At.AFTER_OFFSET_LOG)],
)  # fmt: skip
def test_a_killed_driver_replays_what_the_file_says(
    rabbit: RabbitNode, queue: str, tmp_path: Path, point: At, option: str
) -> None:
    sent = publish(rabbit, queue, 300)
    with Engine(url=rabbit.url(), queue=queue, **{option: tmp_path / "place"}, **full_epochs(50)) as run:
        run.batch()
        for _ in range(3):
            with contextlib.suppress(Crashed):
                run.trigger(point)
        run.drain(300)
        assert all(len(offset) < 400 for offset in run._offsets.values())
        assert_ids_exactly_once(rabbit, queue, run, sent)


def test_without_its_file_an_epoch_is_not_run_and_nothing_is_lost(
    rabbit: RabbitNode, queue: str, tmp_path: Path
) -> None:
    sent = publish(rabbit, queue, 100)
    with Engine(url=rabbit.url(), queue=queue, idLog=tmp_path, **full_epochs(50)) as run:
        with contextlib.suppress(Crashed):
            run.trigger(At.AFTER_OFFSET_LOG)
        (file,) = tmp_path.iterdir()
        kept = file.read_bytes()
        file.unlink()
        with pytest.raises(ReaderError, match=file.name) as failed:
            run.trigger()
        assert failed.value.kind == "CheckpointError"
        run.crash()
        assert poll(lambda: rabbit.counts(queue).ready == 100, 30)
        file.write_bytes(kept)
        run.drain(100)
        assert_ids_exactly_once(rabbit, queue, run, sent)


def test_an_idle_query_that_was_restarted_reads_its_file_once(rabbit: RabbitNode, queue: str, tmp_path: Path) -> None:
    sent = publish(rabbit, queue, 100)
    with Engine(url=rabbit.url(), queue=queue, idLog=tmp_path, **full_epochs(50)) as run:
        run.drain(100)
        run.crash()
        assert run.trigger() == 0
        for file in tmp_path.iterdir():
            file.unlink()
        assert [run.trigger() for _ in range(5)] == [0] * 5
        assert_ids_exactly_once(rabbit, queue, run, sent)


def test_two_queries_may_have_one_folder_and_a_new_checkpoint_an_old_one(
    rabbit: RabbitNode, queue: str, tmp_path: Path
) -> None:
    for _ in range(2):
        sent = publish(rabbit, queue, 100)
        with Engine(url=rabbit.url(), queue=queue, idLog=tmp_path, **full_epochs(50)) as run:
            with contextlib.suppress(Crashed):
                run.trigger(At.AFTER_SINK)
            run.drain(100)
            assert_ids_exactly_once(rabbit, queue, run, sent)
