"""What was not read or not handed over yet, as a thread has no turn: nothing is concluded from its not being there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_mq.sources.epochs import Position
from tests.support.memory_broker import MemoryBatch, MemoryBroker
from tests.support.memory_entry import MemoryReader
from tests.support.simulation import QUEUE, SUPERVISOR, WORKER, Query, World, ids_of, make_settings, only


class Scene:
    """A query of which a thread stands still now and then.

    Args:
        who: its name.
    """

    def __init__(self, who: str, **settings: Any) -> None:
        self.who = who
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.queue = self.broker.declare(QUEUE)
        self.query = Query(self.world, self.broker, make_settings(**settings))
        assert self.query.source
        self.sent: list[str] = []

    def publish(self, count: int) -> None:
        ids = [f"id-{len(self.sent) + number}" for number in range(count)]
        for key in ids:
            self.queue.publish(bytes(10), key)
        self.sent += ids

    def stand_still(self, seconds: float) -> None:
        self.query.process.starve(self.who, seconds)

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


@pytest.fixture(params=[WORKER, SUPERVISOR])
def who(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stopped_with_what_comes_again(scene: Scene) -> None:
    """Everything committed comes again in a new session, and who is to tell it has no turn."""
    scene.publish(20)
    scene.query.trigger()
    scene.queue.faults.acks_s = 1_000.0
    scene.query.trigger()  # acknowledges, and it does not arrive
    scene.broker.cut()
    scene.queue.faults.acks_s = 0.0
    scene.queue.faults.rate = 0.0
    scene.trigger_for(0.5)  # the session opens, and the broker hands out nothing yet
    assert only(scene.query.source).connections.complete
    scene.stand_still(60.0)
    scene.queue.faults.rate = 1e6


@pytest.mark.parametrize("looks", [False, True])
def test_what_comes_again_is_recognised_however_late_that_is_told(who: str, looks: bool) -> None:
    scene = Scene(who, max_messages=20, prefetch=40, dedup_window=0)
    stopped_with_what_comes_again(scene)
    if looks:
        scene.trigger_for(59.0)
    else:
        scene.world.let_pass(59.0)  # Spark is busy with an epoch
    scene.trigger_for(30.0)
    scene.assert_exactly_once()
    assert scene.query.source.counters().duplicates_dropped == 20


def test_what_came_again_is_settled_once_it_is_told(who: str) -> None:
    scene = Scene(who, max_messages=20, prefetch=40, dedup_window=0)
    stopped_with_what_comes_again(scene)
    scene.trigger_for(120.0)
    assert scene.carried == 0
    for _ in range(10):
        scene.publish(5)
        scene.trigger_for(1.0)
    scene.assert_exactly_once()


def test_a_bounded_run_does_not_end_while_its_messages_are_on_their_way(who: str) -> None:
    scene = Scene(who, max_messages=20, prefetch=40)
    scene.queue.faults.rate = 0.0
    scene.publish(20)
    scene.query.bound()
    scene.stand_still(10.0)
    scene.queue.faults.rate = 1e6
    assert scene.query.trigger() == 20


def test_time_goes_no_further_than_the_last_word(who: str) -> None:
    scene = Scene(who, prefetch=40)
    scene.publish(5)
    scene.trigger_for(5.0)
    queue = only(scene.query.source)
    connections, before_s = queue.connections, queue.connected.seconds
    journal = scene.query.source._memory.memory
    forgets_s = journal.connected_s
    assert not connections.late
    assert before_s > 4
    scene.stand_still(20.0)
    scene.trigger_for(19.0)
    assert connections.late
    # A supervisor may be waiting at its socket for half a second before it is missed, and half a second is on the way.
    assert queue.connected.seconds < before_s + (1.2 if who == SUPERVISOR else 0.5)
    scene.trigger_for(3.0)
    assert not connections.late
    # What was no time to come in is none that passed.
    assert queue.connected.seconds < before_s + (5 if who == SUPERVISOR else 4)
    assert journal.connected_s < forgets_s + 5


def test_a_queue_that_was_abandoned_holds_up_no_other() -> None:
    world = World()
    broker = MemoryBroker(world.process())
    names = ("a", "b")
    for name in names:
        broker.declare(name)
    query = Query(world, broker, make_settings(queues=names))
    query.trigger()
    world.let_pass(1.0)
    stuck, other = query.source._queues
    query.process.starve(SUPERVISOR, 60.0, most=1)
    world.let_pass(2.0)
    other.drain_events()
    assert other.connections.late
    stuck.stop()
    world.let_pass(1.0)
    other.drain_events()
    assert not other.connections.late


def plan(scene: Scene, start: Position) -> Position:
    """The next epoch, when there is one."""
    end = start
    while end == start:
        end = scene.query.source.latest(start, 10_000)
    return end


@pytest.mark.parametrize("new", [3, 900])
def test_what_was_dropped_takes_no_room_for_as_long_as_what_came_with_it(new: int) -> None:
    scene = Scene(WORKER, max_messages=10_000, prefetch=20_000)
    source = scene.query.source
    scene.publish(1_000)
    first = plan(scene, source.initial())
    (run,) = source.payload(source.initial(), first)
    assert len(run.rows) == 1_000
    scene.queue.faults.acks_s = 1_000.0
    source.commit(first)  # acknowledges, and it does not arrive
    scene.broker.cut()
    scene.publish(new)
    second = plan(scene, first)
    runs = source.payload(first, second)
    assert ids_of(runs) == scene.sent[1_000:]
    assert source.counters().duplicates_dropped == 1_000
    blocks = {id(block): block for run in runs for block, _ in run.rows.stretches}
    assert sum(map(len, blocks.values())) <= 2 * new + 200


class SlowBatch(MemoryBatch):
    """Takes 0.6 s for a message."""

    def body(self) -> pa.Array:
        time.sleep(0.6 * len(self))
        return super().body()


def test_a_replay_waits_for_what_takes_longer_to_decode_than_it_may_wait(tmp_path: Path) -> None:
    broker = MemoryBroker()
    queue = broker.declare(QUEUE)
    for number in range(5):
        queue.publish(b"x", f"id-{number}")
    options = {"url": "amqp://memory:5672/", "queue": QUEUE, "idLog": str(tmp_path), "replayTimeout": "1s"}
    first = MemoryReader(options, broker)
    start = first.call("initialOffset")
    end = first.call("latestOffset", start, None)
    first.kill()
    second = MemoryReader(options, broker)
    second._consumers.batches = SlowBatch
    assert [row["messageId"] for row in second.call("rows", start, end)] == [f"id-{number}" for number in range(5)]
    second.kill()
