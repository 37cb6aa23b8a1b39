"""What another process has received and not handed over yet: nothing is concluded from its not being there.

The process is played, and can be stopped, see :mod:`tests.support.played`.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_mq.sources.epochs import Position
from tests.support.memory import MemoryBroker
from tests.support.simulation import QUEUE, Query, World, ids_of, make_settings, only


class Scene:
    """A query whose deliveries come from another process."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.queue = self.broker.declare(QUEUE)
        self.query = Query(self.world, self.broker, make_settings(**settings), processes=1)
        assert self.query.source
        assert self.query.played is not None
        self.played = self.query.played
        self.sent: list[str] = []

    def publish(self, count: int) -> None:
        ids = [f"id-{len(self.sent) + number}" for number in range(count)]
        for key in ids:
            self.queue.publish(bytes(10), key)
        self.sent += ids

    def trigger_for(self, seconds: float) -> None:
        until = self.world.now_s + seconds
        while self.world.now_s < until:
            self.query.trigger()
            self.world.let_pass(0.1)

    def assert_exactly_once(self) -> None:
        self.query.drain()
        assert sorted(self.query.emitted) == sorted(self.sent)

    @property
    def carried(self) -> int:
        return self.query.source.counters().carried


def stopped_with_what_comes_again(scene: Scene) -> None:
    """Everything committed comes again in a new session, and the process stops before it has told it."""
    scene.publish(20)
    scene.query.trigger()
    scene.queue.weather.acks_s = 1_000.0
    scene.query.trigger()  # acknowledges, and it does not arrive
    scene.broker.cut()
    scene.queue.weather.acks_s = 0.0
    scene.queue.weather.rate = 0.0
    scene.trigger_for(0.5)  # the session opens, and the broker hands out nothing yet
    assert only(scene.query.source).connections.complete
    scene.played.stop(60.0)
    scene.queue.weather.rate = 1e6


@pytest.mark.parametrize("looks", [False, True])
def test_what_comes_again_is_recognised_however_late_that_is_told(looks: bool) -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    stopped_with_what_comes_again(scene)
    if looks:
        scene.trigger_for(59.0)
    else:
        scene.world.let_pass(59.0)  # Spark is busy with an epoch
    scene.trigger_for(30.0)
    scene.assert_exactly_once()
    assert scene.query.source.counters().duplicates_dropped == 20


def test_what_came_again_is_settled_once_it_is_told() -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    stopped_with_what_comes_again(scene)
    scene.trigger_for(120.0)
    assert scene.carried == 0
    for _ in range(10):
        scene.publish(5)
        scene.trigger_for(1.0)
    scene.assert_exactly_once()


def test_a_bounded_run_does_not_end_while_its_messages_are_on_their_way() -> None:
    scene = Scene(max_messages=20, prefetch=40)
    scene.queue.weather.rate = 0.0
    scene.publish(20)
    scene.query.bound()
    scene.played.stop(10.0)
    scene.queue.weather.rate = 1e6
    assert scene.query.trigger() == 20


def test_time_goes_no_further_than_the_last_word() -> None:
    scene = Scene(prefetch=40)
    scene.publish(5)
    scene.trigger_for(5.0)
    queue = only(scene.query.source)
    connections, before_s = queue.connections, queue.connected.seconds
    assert not connections.late
    assert before_s > 4
    scene.played.stop(20.0)
    scene.trigger_for(19.0)
    assert connections.late
    assert queue.connected.seconds < before_s + 0.5
    scene.trigger_for(3.0)
    assert not connections.late
    # What was no time to come in is none that passed.
    assert queue.connected.seconds < before_s + 4


def plan(scene: Scene, start: Position) -> Position:
    """The next epoch, when there is one."""
    end = start
    while end == start:
        end = scene.query.source.latest(start, 10_000)
    return end


@pytest.mark.parametrize("new", [3, 900])
def test_what_was_dropped_takes_no_room_for_as_long_as_what_came_with_it(new: int) -> None:
    scene = Scene(max_messages=10_000, prefetch=20_000)
    source = scene.query.source
    scene.publish(1_000)
    first = plan(scene, source.initial())
    (run,) = source.payload(source.initial(), first)
    assert len(run.rows) == 1_000
    scene.queue.weather.acks_s = 1_000.0
    source.commit(first)  # acknowledges, and it does not arrive
    scene.broker.cut()
    scene.publish(new)
    second = plan(scene, first)
    runs = source.payload(first, second)
    assert ids_of(runs) == scene.sent[1_000:]
    assert source.counters().duplicates_dropped == 1_000
    blocks = {id(block): block for run in runs for block, _ in run.rows.stretches}
    assert sum(map(len, blocks.values())) <= 2 * new + 200
