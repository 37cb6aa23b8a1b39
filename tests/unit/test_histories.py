"""Histories that broke a promise: of files on Spark before 4.2, of silent processes, and of forgotten contents."""

from __future__ import annotations

import contextlib

import pytest

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.processes.wire import Hello
from pyspark_mq.sources.journal import lists, memory
from tests.support.engine import At, Crashed
from tests.support.played import PlayedProcess
from tests.support.scene import Scene


def batch(scene: Scene, count: int) -> None:
    scene.publish(count)
    while not scene.query.trigger():
        pass
    scene.world.let_pass(6.0)


def test_a_file_that_the_last_offset_names_is_there_when_a_plan_is_killed() -> None:
    # Before Spark 4.2 the first file of a process is taken for one that nobody names, by the file beside it.
    scene = Scene(shows_start=False, max_messages=50, prefetch=200, dedup_window=116)
    batch(scene, 50)
    for _ in range(119):
        batch(scene, 1)
    scene.publish(1)
    with contextlib.suppress(Crashed):
        while True:
            scene.query.trigger(At.BEFORE_OFFSET_LOG)
    scene.assert_exactly_once()


@pytest.mark.xfail(
    strict=True, raises=TimeoutError, reason="each is killed for its silence after ten seconds, for ever"
)
def test_processes_that_never_say_anything_are_an_error() -> None:
    scene = Scene(max_messages=10, heartbeat_s=1.0, connect_timeout_s=20.0, reconnect_timeout_s=20.0)
    scene.query.processes = 1
    scene.publish(5)
    assert scene.query.source is not None
    played = scene.query.played
    assert played is not None
    start = played._start

    def start_stopped(hello: Hello) -> PlayedProcess:
        child = start(hello)
        child.process.stop(1e9)
        return child

    def an_end() -> None:
        raise TimeoutError("ten times connectTimeout, and no error")

    played._start = start_stopped
    scene.world.at(200.0, an_end)
    with pytest.raises(MqError):
        for_ever(scene)


def for_ever(scene: Scene) -> None:
    while True:
        scene.query.trigger()


def kill_behind_a_commit(scene: Scene, count: int) -> None:
    scene.publish(count)
    with contextlib.suppress(Crashed):
        while True:
            scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.world.let_pass(1.0)


@pytest.mark.parametrize("decoded_max", [16_384, 0])
def test_contents_that_were_forgotten_stay_forgotten_when_segments_become_one(
    monkeypatch: pytest.MonkeyPatch, decoded_max: int
) -> None:
    # The same with 16,384 IDs in the group that becomes one, 32 segments of left IDs, and half a million of them.
    monkeypatch.setattr(memory, "_DECODED_MAX", decoded_max)
    monkeypatch.setattr(lists, "SHARES", {**lists.SHARES, lists.Kind.LEFT: 3})
    monkeypatch.setattr(lists, "_MERGED", 3)
    monkeypatch.setattr(lists, "_CONTENTS_LEFT", 8)
    scene = Scene(max_messages=50, prefetch=200, dedup_window=0)
    scene.queue.weather.flags = True
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


@pytest.mark.parametrize("another_epoch", [True, False])
def test_contents_are_forgotten_after_an_hour_of_being_connected_to_an_idle_queue(*, another_epoch: bool) -> None:
    scene = Scene(max_messages=10, dedup_window=0)
    scene.queue.weather.flags, scene.queue.weather.forgets_s = True, 0.0
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
        batch(scene, 1)
    scene.queue.publish(b"the same", None)
    scene.query.drain()
    assert scene.query.emitted.count("the same") == 2
