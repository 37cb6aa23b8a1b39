"""Failure matrix, rule 9: planned messages that do not come back for their replay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_mq.cli.main import main
from pyspark_mq.cli.release import RECORDS
from testbed.process import poll
from tests.support.checks import assert_exactly_once
from tests.support.engine import At, Crashed, Engine, ReaderError
from tests.support.entries import LiveEntry

EPOCH = 20


pytestmark = pytest.mark.contract("planned messages that do not come back")


@contextmanager
def planned_and_crashed(entry: LiveEntry, replay_timeout: str = "2s", **options: object) -> Iterator[Engine]:
    """An engine whose first epoch is in the offset log and in no other."""
    with entry.engine(maxMessagesPerTrigger=EPOCH, replayTimeout=replay_timeout, **options) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        yield run


def assert_names_everything(failed: ReaderError, entry: LiveEntry, missing: int, replay_timeout: str = "2s") -> None:
    text = str(failed)
    assert failed.kind == "DataLossError"
    for word in (entry.queue, "epoch 1", f"{missing} of {EPOCH}", f"replayTimeout={replay_timeout}", "expired",
                 "dead-lettered", "purged", "another consumer", "failOnDataLoss"):  # fmt: skip
        assert word in text


def test_another_consumer_has_them(entry: LiveEntry) -> None:
    sent = entry.publish(EPOCH)
    with planned_and_crashed(entry, "4s") as run:
        with entry.held_elsewhere(5) as held, pytest.raises(ReaderError) as failed:
            run.batch()
        assert_names_everything(failed.value, entry, held, "4s")
        # When the other one has let go, a restart finds all of them.
        run.crash()
        run.drain(EPOCH)
        assert_exactly_once(entry, run, sent)


def test_they_come_back_late_but_in_time(entry: LiveEntry) -> None:
    sent = entry.publish(EPOCH)
    with planned_and_crashed(entry, "30s") as run:
        with entry.held_elsewhere(5):
            run.reader.begin("rows", run._start(0), run._offsets[0])
            time.sleep(1)
        assert [row["body"].decode() for row in run.reader.answer()] == sent


def purge(entry: LiveEntry) -> None:
    def gone() -> bool:
        # Not all of them while the broker still has to notice the end of the reader.
        entry.node.purge(entry.queue)
        return entry.total() == 0

    assert poll(gone, 30)


def dead_letter(entry: LiveEntry) -> None:
    with entry.session() as other:
        other.take(EPOCH)
        other.consumer.reject(other.tags())
        assert other.turn(lambda: entry.total() == 0)


@pytest.mark.parametrize("remove", [purge, dead_letter])
def test_purged_or_dead_lettered(entry: LiveEntry, remove: Callable[[LiveEntry], None]) -> None:
    entry.publish(EPOCH)
    with planned_and_crashed(entry) as run:
        remove(entry)
        with pytest.raises(ReaderError) as failed:
            run.batch()
        assert_names_everything(failed.value, entry, EPOCH)


def test_expired(entry: LiveEntry) -> None:
    entry.publish(EPOCH, expires_ms=5_000)
    expired = time.monotonic() + 5.5
    with planned_and_crashed(entry) as run:
        time.sleep(max(0.0, expired - time.monotonic()))
        with pytest.raises(ReaderError) as failed:
            run.batch()
        assert_names_everything(failed.value, entry, EPOCH)


@pytest.mark.thorough
def test_going_on_without_them_when_the_user_says_so(entry: LiveEntry) -> None:
    sent = entry.publish(EPOCH)
    with planned_and_crashed(entry, "4s", failOnDataLoss="false") as run:
        with entry.held_elsewhere(5) as held:
            assert run.batch() == EPOCH - held
            assert run.counters()["lost"] == held
            assert set(run.output) < set(sent)
        # They were not emitted, so when they turn up after all they count as new.
        run.drain(EPOCH)
        assert sorted(map(str, run.output)) == sorted(map(str, sent))
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.network
@pytest.mark.sampled
@pytest.mark.parametrize("at", [At.AFTER_SINK, At.AFTER_COMMIT_LOG])
def test_what_was_abandoned_is_new_although_the_run_ends_behind_it(entry: LiveEntry, tmp_path: Path, at: At) -> None:
    # Its offset lists them as planned, and the next one is never written.
    sent = entry.publish(EPOCH)
    options = {"failOnDataLoss": "false", "checkpointLocation": tmp_path}
    with planned_and_crashed(entry, "4s", **options) as run:
        with entry.held_elsewhere(5) as held:
            with pytest.raises(Crashed):
                run.batch(crash=at)
            assert len(run.output) == EPOCH - held
        run.drain(EPOCH)
        assert sorted(map(str, run.output)) == sorted(map(str, sent))
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.network
@pytest.mark.sampled
def test_an_epoch_is_released(entry: LiveEntry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sent = entry.publish(EPOCH)
    command = ["release", str(tmp_path), *(f"{name}={value}" for name, value in entry.options().items())]
    with planned_and_crashed(entry, "4s") as run:
        with entry.held_elsewhere(5) as held:
            with pytest.raises(ReaderError, match="pyspark-mq release"):
                run.batch()
            run.crash()
            run.save(tmp_path)
            assert main([*command, "--yes"]) == 0
            out = capsys.readouterr().out
            assert f"{held} of the {EPOCH} planned messages are missing" in out, out
            run.load(tmp_path)
            with pytest.raises(Crashed):
                run.batch(crash=At.AFTER_COMMIT_LOG)
            assert len(run.output) == EPOCH - held
        (record,) = (tmp_path / RECORDS).glob("*.json")
        assert len(json.loads(record.read_text())["missing"][entry.queue]) == held
        # What has turned up counts as new, and the mark is gone with its epoch.
        run.drain(EPOCH)
        assert sorted(map(str, run.output)) == sorted(map(str, sent))
        run.save(tmp_path)
        assert main([*command, "--yes"]) == 1
        assert "nothing to release" in capsys.readouterr().err


@pytest.mark.thorough
def test_nothing_is_acknowledged_by_a_failed_replay(entry: LiveEntry) -> None:
    entry.publish(EPOCH + 10)
    with planned_and_crashed(entry) as run:
        with entry.held_elsewhere(5), pytest.raises(ReaderError):
            run.batch()
        run.crash()
        assert poll(lambda: entry.total() == EPOCH + 10, 30)
