"""What is lost of equal messages without IDs: at most the first repetition after an unclean end.

The first three lost every repetition, one with each start, and one that had been settled for hours.
"""

from __future__ import annotations

import contextlib

import pytest

from pyspark_mq.errors import DataLossError
from tests.support.engine import At, Crashed
from tests.support.scene import Scene
from tests.unit.test_contents import Contents


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("shows_start", [True, False])
def test_a_run_that_ends_leaves_nothing_open(others: int, *, shows_start: bool) -> None:
    one = Contents(shows_start=shows_start)
    for number in range(6):
        one.publish(*(f"other {number} {more}" for more in range(others)))
        ticked: list[int] = []

        def tick(ticked: list[int] = ticked) -> None:
            if not ticked:
                ticked.append(1)
                one.publish("tick")
                one.scene.world.let_pass(0.3)

        one.scene.query.running = tick
        one.scene.query.run_available()
        one.scene.query.running = lambda: None
        one.scene.world.let_pass(60.0)
    assert one.lost_and_twice == (0, 0)


@pytest.mark.parametrize("starts", [1, 6])
def test_a_start_that_fails_acknowledges_nothing(starts: int) -> None:
    one = Contents(replay_timeout_s=5.0)
    query = one.scene.query
    one.publish("equal")
    one.trigger()
    one.publish("gone")
    query.running = lambda: (one.publish(*["equal"] * 6), one.scene.world.let_pass(0.5))
    with contextlib.suppress(Crashed):
        query.trigger(At.AFTER_SINK)
    query.running = lambda: None
    one.scene.queue.take_away(1, lambda message: message.body == b"gone")
    there = query.left
    for _ in range(starts):
        with pytest.raises(DataLossError):
            query.trigger()
        one.scene.world.let_pass(1.0)
        query.crash()
        assert query.left == there


def test_what_was_settled_long_ago_is_not_taken_for_left_open() -> None:
    one = Contents()
    one.publish("equal")
    one.trigger()
    for _ in range(6):
        one.trigger()
        one.scene.world.let_pass(10.0)
    one.publish("equal")
    one.scene.world.let_pass(0.3)
    one.scene.query.crash()
    assert one.lost_and_twice == (0, 0)


def test_a_query_with_ids_writes_nothing_more_and_waits_for_nothing() -> None:
    scene = Scene()
    scene.publish(5)
    scene.query.trigger()
    files, began_s = len(scene.query.folder.files), scene.world.now_s
    for _ in range(20):
        scene.query.trigger()
        scene.world.let_pass(10.0)
    assert len(scene.query.folder.files) == files
    assert scene.world.now_s - began_s < 210
