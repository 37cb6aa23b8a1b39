"""Histories that broke a promise, as a reader found them who knew nothing but the promises."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from pyspark_mq.ack import InFlightTable
from pyspark_mq.dedup import memory
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.journal import Journal
from pyspark_mq.sources.position import Position
from pyspark_mq.spark_source.id_log import IdLog
from tests.support.effort import part_of, with_all
from tests.support.engine import At, Crashed
from tests.support.folder import MemoryFolder
from tests.support.scene import Scene
from tests.support.simulation import make_settings


def batch(scene: Scene, count: int) -> None:
    scene.publish(count)
    while not scene.query.trigger():
        pass


def test_the_last_file_of_a_token_stays_while_it_is_named(tmp_path: Path) -> None:
    folder, offsets = tmp_path / "mq-ids", tmp_path / "offsets"
    offsets.mkdir()
    (tmp_path / "metadata").write_text("{}")
    scene = Scene(shows_start=False, id_log=folder, max_messages=10)
    scene.query.trigger()
    batch(scene, 5)
    batch(scene, 5)
    scene.world.let_pass(1.0)
    scene.query.crash()  # the acknowledgement of the first five is taken and not settled
    written: set[int] = set()
    for _ in range(130):  # an idle job is started now and then, over more than a day
        scene.query.trigger()
        scene.query.crash()
        for number in set(scene.query.offsets) - written:
            (offsets / str(number)).write_text(scene.query.offsets[number])
            (offsets / str(number - 100)).unlink(missing_ok=True)
        written.update(scene.query.offsets)
        for file in folder.iterdir():
            os.utime(file, (time.time() - 90_000.0,) * 2)
    scene.assert_exactly_once()


@pytest.mark.whole
def test_files_that_crashes_leave_are_bounded_before_spark_4_2() -> None:
    scene = Scene(shows_start=False, max_messages=10)
    for _ in range(max(200, part_of(400))):
        batch(scene, 3)
        scene.publish(3)
        with contextlib.suppress(Crashed):
            for _ in range(5):
                scene.query.trigger(At.BEFORE_OFFSET_LOG)
    # For an epoch: its file, the note that its process planned alone, and the file that the crash left.
    assert len(scene.query.folder.files) <= 3 * (memory.KEPT_EPOCHS + memory.FOLLOWING_MAX)


def test_what_is_read_at_a_restart_is_bounded_by_what_is_known() -> None:
    folder, log, chance = MemoryFolder(), IdLog("/memory", "queue"), random.Random(1)
    log._folder = folder
    journal = Journal(make_settings(dedup_window=0), log)
    in_flight: InFlightTable[bytes] = InFlightTable(grace_s=5.0, memory=journal.known("queue"))
    messages, file = [f"id-{number}" for number in range(1_000)], ""
    for turn in range(1, 401):
        keys = messages[turn * 50 - 50 : turn * 50] or chance.sample(messages, 50)  # in any order, again and again
        in_flight.open_session(turn)
        in_flight.deliver(turn, range(1, 51), keys, [b""] * 50)
        file = journal.plan(turn, {"queue": in_flight.plan(turn, 50)}, {"queue": in_flight})
        journal.begin_commit(Position(turn, file), repeats=False)
        in_flight.commit(turn)
        in_flight.lose(turn)  # before anything is settled
    files = [log.read(name) for name in (file, *log.read(file).names)]
    digests = sum(len(one.left) + len(one.left_part) + len(one.window_part) for one in files)
    assert digests + sum(len(one.planned.get("queue", ())) for one in files) < 3 * len(messages)


class _Renaming(MemoryFolder):
    """A folder of HDFS: what is there is deleted before another content takes its place. Killed in between once."""

    killed = False

    def replace(self, name: str, data: bytes) -> None:
        if name in self.files and not self.killed:
            del self.files[name]
            self.killed = True
            raise Crashed
        super().replace(name, data)


def test_a_record_of_what_is_abandoned_survives_a_kill_while_it_is_written_again() -> None:
    scene = Scene(max_messages=10, replay_timeout_s=5.0, fail_on_data_loss=False)
    scene.query.folder = scene.query._codec.log._folder = _Renaming()  # type: ignore[union-attr]
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(3)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_SINK)  # seven are in the sink, three were given up
    scene.queue.take_away(2)
    with contextlib.suppress(CheckpointError, AssertionError):  # the sink has seven, and skips the five
        scene.query.trigger()  # two more are given up, and it is killed if it writes over what is there
    scene.query.crash()
    scene.queue.bring_back()
    with contextlib.suppress(AssertionError):  # the replay has ten messages, and the sink skips it
        scene.query.trigger()
    scene.query.committed = 0
    scene.query.drain()
    assert set(scene.query.emitted) == set(scene.sent)


def test_a_queue_by_a_pattern_that_comes_back_is_read_again() -> None:
    scene = Scene(queue="", pattern="orders", pattern_interval_s=1.0, max_messages=10)
    batch(scene, 5)
    for _ in range(20):  # everything is settled
        scene.query.trigger()
        scene.world.let_pass(1.0)
    scene.broker.delete("orders")
    for _ in range(20):
        scene.query.trigger()
        scene.world.let_pass(1.0)
    scene.queue = scene.broker.declare("orders")
    scene.publish(5)
    for _ in range(100):
        scene.query.trigger()
        scene.world.let_pass(1.0)
    assert len(scene.query.emitted) == 10


def settled_batch(scene: Scene, count: int) -> None:
    batch(scene, count)
    scene.world.let_pass(6.0)


def test_a_file_that_the_last_offset_names_is_there_when_a_plan_is_killed() -> None:
    # Before Spark 4.2 the first file of a process is taken for one that nobody names, by the file beside it.
    scene = Scene(shows_start=False, max_messages=50, prefetch=200, dedup_window=116)
    settled_batch(scene, 50)
    for _ in range(119):
        settled_batch(scene, 1)
    scene.publish(1)
    with contextlib.suppress(Crashed):
        while True:
            scene.query.trigger(At.BEFORE_OFFSET_LOG)
    scene.assert_exactly_once()


def for_ever(scene: Scene) -> None:
    while True:
        scene.query.trigger()


def kill_behind_a_commit(scene: Scene, count: int) -> None:
    scene.publish(count)
    with contextlib.suppress(Crashed):
        while True:
            scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.world.let_pass(1.0)


@pytest.mark.parametrize("following", [32, 3])
def test_contents_that_were_forgotten_stay_forgotten_when_files_become_one(
    monkeypatch: pytest.MonkeyPatch, following: int
) -> None:
    # The same with half a million that are left behind it.
    monkeypatch.setattr(memory, "FOLLOWING_MAX", following)
    monkeypatch.setattr(memory, "_CONTENTS_LEFT", 8)
    scene = Scene(max_messages=50, prefetch=200, dedup_window=0)
    scene.queue.faults.flags = True
    scene.query.trigger()
    scene.queue.publish(b"the same", None)
    kill_behind_a_commit(scene, 4)
    for _ in range(7):
        kill_behind_a_commit(scene, 2)
    for _ in range(4):  # more than eight are left behind it: an equal one is another message
        scene.query.trigger()
        scene.world.let_pass(6.0)
    for _ in range(2):
        kill_behind_a_commit(scene, 1)
    scene.query.trigger()
    scene.queue.publish(b"the same", None)
    scene.query.drain()
    assert scene.query.emitted.count("the same") == 2


@pytest.mark.parametrize("another_epoch", [with_all(True), False])
def test_contents_are_forgotten_after_an_hour_of_being_connected_to_an_idle_queue(*, another_epoch: bool) -> None:
    scene = Scene(max_messages=10, dedup_window=0)
    scene.queue.faults.flags, scene.queue.faults.forgets_s = True, 0.0
    scene.queue.publish(b"the same", None)
    while not scene.query.trigger():
        pass
    scene.query.trigger()
    scene.world.let_pass(0.3)
    assert len(scene.queue.acknowledged) == 1  # so it never comes again
    scene.query.crash()
    for _ in range(3_900):
        scene.query.trigger()
        scene.world.let_pass(1.0)
    if another_epoch:
        settled_batch(scene, 1)
    scene.queue.publish(b"the same", None)
    scene.query.drain()
    assert scene.query.emitted.count("the same") == 2
