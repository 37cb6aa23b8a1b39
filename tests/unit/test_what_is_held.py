"""Nothing is kept alive beyond what is counted: blocks in any form, of sessions dead and alive."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_mq.ack import InFlightTable
from pyspark_mq.dedup import Memory, OnMissing, QueueMemory
from pyspark_mq.sources.connections.block import Block
from pyspark_mq.sources.connections.events import Confirmed, Delivered, EventQueue, Lost, Opened
from pyspark_mq.sources.queues.reader import QueueReader
from tests.support.effort import with_all
from tests.support.memory_broker import MemoryBroker
from tests.support.simulation import Query, World, make_settings

_MIB = 1 << 20


class Scene:
    """A query on queues in memory."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process(), 1)
        self.queues = [self.broker.declare(name) for name in names]
        chosen = make_settings(queues=names, max_bytes=_MIB, max_messages=100_000, prefetch=100_000, **settings)
        self.query = Query(self.world, self.broker, chosen)
        self.query.trigger()

    @property
    def readers(self) -> list[QueueReader]:
        return list(self.query.source._queues)

    def receive(self, seconds: float = 0.4) -> None:
        for _ in range(round(seconds / 0.05)):
            self.world.let_pass(0.05)
            self.query.source._queues.drain_events()


def bytes_alive() -> int:
    """Of the bodies of all blocks that anybody refers to, whatever columns they have."""
    gc.collect()
    return sum(sum(one.sizes) for one in gc.get_objects() if type(one) is Block)


@pytest.fixture(autouse=True)
def alive_before() -> int:
    return bytes_alive()


def test_small_blocks_do_not_outlive_their_epoch(alive_before: int) -> None:
    scene = Scene("a", "b", "c", "d")
    for turn in range(40):
        for queue in scene.queues:
            queue.publish(bytes(60_000), f"{queue.name}-{turn}")
        scene.query.drain()
    assert len(scene.query.emitted) == 160
    assert bytes_alive() - alive_before < _MIB


def test_small_blocks_that_are_held_are_put_together_and_all_there() -> None:
    scene = Scene("a")
    for turn in range(200):
        scene.queues[0].publish(b"%d" % turn, f"m{turn}")
        scene.receive(0.1)
    (reader,) = scene.readers
    blocks = {id(block) for block, _ in reader.in_flight.received.oldest(1_000)}
    assert len(reader.in_flight.received) == 200
    assert len(blocks) < 100
    scene.query.drain()
    assert scene.query.emitted == [f"m{turn} of a" for turn in range(200)]


@pytest.mark.parametrize("large_of_ten", [with_all(1), 4, with_all(5), 9])
def test_a_few_bytes_do_not_keep_the_large_duplicates_that_they_came_with(large_of_ten: int, alive_before: int) -> None:
    scene = Scene("a")
    (queue,) = scene.queues
    queue.publish(bytes(10_000), "large")
    scene.query.drain()
    for turn in range(20):
        for number in range(200):
            if number % 10 < large_of_ten:
                queue.publish(bytes(10_000), "large")
            else:
                queue.publish(b"small", f"{turn}-{number}")
        scene.receive()
    (reader,) = scene.readers
    assert len(reader.in_flight.received) == 20 * 20 * (10 - large_of_ten)
    assert bytes_alive() - alive_before < 2 * _MIB
    scene.query.drain()
    assert len(scene.query.emitted) == 1 + 20 * 20 * (10 - large_of_ten)


def test_what_dead_sessions_had_delivered_does_not_wait_while_spark_is_busy(alive_before: int) -> None:
    scene = Scene("a")
    (queue,) = scene.queues
    for number in range(300):
        queue.publish(bytes(10_000), f"m{number}")
    for _ in range(6):  # Spark asks for nothing meanwhile
        scene.world.let_pass(3.0)
        scene.broker.cut()
    scene.world.let_pass(3.0)
    assert bytes_alive() - alive_before < 2.5 * _MIB
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted(f"m{number} of a" for number in range(300))


def test_the_end_of_a_session_takes_back_its_deliveries_and_nothing_else() -> None:
    events = EventQueue()
    block: Any = SimpleNamespace()

    def delivered(key: int, session: int) -> Delivered:
        return Delivered(key, session, block, block)

    opened = Opened(1, 7, block, 10)
    told = [opened, delivered(1, 6), delivered(1, 7), Confirmed(1, 7, 1), delivered(2, 7), delivered(1, 7)]
    for event in told:
        events.put(event)
    lost = Lost(1, 7)
    events.put(lost)
    assert events.take() == [opened, delivered(1, 6), Confirmed(1, 7, 1), delivered(2, 7), lost]
    assert events.take() == []


def test_queues_that_come_and_go_leave_nothing_with_the_worker() -> None:
    scene = Scene("a", "b")
    worker = scene.query.source._queues._worker
    for reader in scene.readers:
        reader.stop()
        reader.stop()
    assert not worker._supervised


def test_what_is_held_is_bounded_though_a_rest_is_always_by_itself() -> None:
    memory = QueueMemory(Memory(1_000, 1_000, b"secret"), "a")
    in_flight: InFlightTable[str] = InFlightTable(grace_s=5.0, memory=memory)
    in_flight.open_session(1)
    numbers = iter(range(1, 1_000_000))

    def deliver(count: int) -> None:
        tags = [next(numbers) for _ in range(count)]
        in_flight.deliver(1, tags, [f"id-{tag}" for tag in tags], [""] * count)

    deliver(10)  # by itself, as it is few
    for epoch in range(1, 100):
        while len(in_flight.received) < 250:
            deliver(100)
        in_flight.plan(epoch, 100)
        in_flight.commit(epoch)
    assert in_flight.received.runs
    assert len(memory._held) <= len(in_flight.received)


def test_a_trickle_behind_a_large_block_is_no_run_for_each_message() -> None:
    scene = Scene("a", min_messages=100_000)
    (queue,) = scene.queues
    for turn in range(1_500):
        queue.publish(b"", f"large-{turn}")
    scene.receive(0.1)
    (reader,) = scene.readers
    assert reader.in_flight.received.runs
    for turn in range(300):
        queue.publish(b"", f"m{turn}")
        scene.receive(0.1)
    assert len(reader.in_flight.received) == 1_800
    assert len(reader.in_flight.received.runs) < 100
    keys = [key for run in reader.in_flight.received.runs for key in run.keys]
    assert [*reader.in_flight.received.order, *keys] == [f"large-{n}" for n in range(1_500)] + [
        f"m{n}" for n in range(300)
    ]


def test_a_refused_message_does_not_make_its_neighbours_duplicates() -> None:
    scene = Scene("a", on_missing=OnMissing.REJECT)
    (queue,) = scene.queues
    for turn in range(300):
        queue.publish(b"", None if turn == 150 else f"m{turn}")
    scene.receive(0.5)
    scene.query.drain()
    counters = scene.query.source.counters()
    assert len(scene.query.emitted) == 299
    assert (counters.rejected, counters.reused_ids, counters.duplicates_dropped) == (1, 0, 0)
