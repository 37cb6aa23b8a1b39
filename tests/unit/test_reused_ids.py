"""Messages that are dropped although the broker hands them out for the first time, as their IDs came before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.memory_broker import MEMORY
from tests.support.scene import Scene


def a_scene(*, proves: bool) -> Scene:
    scene = Scene(max_messages=20, prefetch=40, broker=replace(MEMORY, proves_new=proves))
    scene.queue.faults.flags = None if proves else False
    return scene


def run(scene: Scene, pause_s: float = 0.0) -> None:
    for _ in range(4):
        scene.query.trigger()
    scene.world.let_pass(pause_s)


@pytest.mark.parametrize("proves", [True, False])
def test_a_scheduler_that_uses_an_id_again_is_counted_and_said_once(
    caplog: pytest.LogCaptureFixture, *, proves: bool
) -> None:
    scene = a_scene(proves=proves)
    scene.publish(1)
    for number in range(10):
        scene.queue.publish(b"run %d" % number, "schedule-7")
        run(scene, 10.0)
    assert scene.query.emitted == ["id-0", "schedule-7"]
    assert scene.counters.reused_ids == scene.counters.duplicates_dropped == 9
    (said,) = [
        record.getMessage() for record in caplog.records if "delivered them for the first time" in record.message
    ]
    assert "queue 'orders': 1 messages" in said
    assert "schedule-7" in said
    assert "'messageIdFrom'" in said


@pytest.mark.parametrize("proves", [True, False])
def test_copies_that_come_together_are_counted(*, proves: bool) -> None:
    scene = a_scene(proves=proves)
    for _ in range(5):
        scene.queue.publish(b"", "again")
    run(scene)
    assert scene.counters.reused_ids == 4


@pytest.mark.parametrize("proves", [True, False])
def test_redeliveries_are_not(*, proves: bool) -> None:
    scene = a_scene(proves=proves)
    dropped = 0
    for _ in range(6):
        scene.queue.faults.forgets_s = 1_000.0
        scene.publish(30)
        run(scene)
        scene.broker.kill()
        scene.broker.start()
        run(scene, 5.0)
        scene.queue.faults.forgets_s = 0.0
        scene.broker.cut()
        run(scene)
        dropped += scene.counters.duplicates_dropped
        assert scene.counters.reused_ids == 0
        scene.query.crash()
    assert dropped > 0
    scene.assert_exactly_once()


def test_contents_have_no_id_to_use_again() -> None:
    scene = a_scene(proves=True)
    for _ in range(5):
        scene.queue.publish(b"21 degrees", None)
        run(scene)
    assert len(scene.query.emitted) == 5
    assert scene.counters.reused_ids == 0
