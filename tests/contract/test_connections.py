"""The connections of a queue at a real broker, as the thread that Spark calls sees them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pyspark_mq.ack import Acknowledgements, SessionAcks
from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.decode.batch import UNREADABLE_PROPERTY, Unreadable
from pyspark_mq.errors import MessageError
from pyspark_mq.sources.connections.block import BlockRows, Row
from pyspark_mq.sources.connections.connections import Connections
from pyspark_mq.sources.connections.events import Confirmed, Delivered, EventQueue, Lost, Opened
from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.sources.settings import OnUnreadable, Settings
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.schema import SCHEMA, BatchBuilder
from testbed.process import poll
from tests.contract.test_unreadable import publish_odd
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("connections of a queue"), pytest.mark.network, pytest.mark.sampled]
amqp091 = pytest.mark.protocols(AMQP_0_9_1)


class Scene:
    """The connections of a queue, as the query's thread sees them."""

    def __init__(self, entry: LiveEntry, worker: Worker, **changes: Any) -> None:
        given = {name: str(value) for name, value in entry.options().items()}
        parsed = parse_options({**given, "heartbeat": "5s"}).settings
        endpoint = {name: changes.pop(name) for name in list(changes) if hasattr(parsed.endpoint, name)}
        settings: Settings = replace(parsed, endpoint=replace(parsed.endpoint, **endpoint))
        self.settings = replace(settings, **{"prefetch": 100, **changes})
        self.connections = Connections(self.settings, worker, Threads(), EventQueue())
        self.events: list[Any] = []
        self.rows: list[Row] = []
        self.tags: dict[int, list[int]] = {}
        self.redelivered = 0
        self.unreadable: list[Unreadable] = []

    def start(self, most: float = 1e9) -> None:
        self.connections.bound_bytes(most, resume=True)
        self.connections.start()

    def poll(self, *, taking: bool = True) -> None:
        for event in self.connections.news(taking=taking):
            self.events.append(event)
            if isinstance(event, Delivered):
                self.rows += event.rows
                self.tags.setdefault(event.session, []).extend(event.metadata.tags)
                self.redelivered += sum(event.metadata.redelivered)
                self.unreadable += event.metadata.unreadable.values()

    def until(self, condition: Callable[[], bool], timeout_s: float = 60.0, *, taking: bool = True) -> bool:
        def done() -> bool:
            self.poll(taking=taking)
            return condition()

        return poll(done, timeout_s)

    def events_of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def bodies(self) -> list[str]:
        return [body.decode() for body in BlockRows.of(self.rows).values("body")]


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(session_class, BatchBuilder(SCHEMA).block_schema, Threads())
    yield made
    made.stop()


def test_what_two_connections_receive_is_taken_once_and_confirmed_where_it_came(
    entry: LiveEntry, worker: Worker
) -> None:
    sent = entry.publish(300)
    scene = Scene(entry, worker, consumers=2, prefetch=1_000)
    scene.start()
    assert scene.until(lambda: scene.connections.complete and len(scene.rows) == 300)
    assert sorted(scene.bodies()) == sorted(sent)
    assert len(scene.events_of(Opened)) == 2
    parts = [SessionAcks(session, tags[-1], (), len(tags)) for session, tags in scene.tags.items()]
    scene.connections.acknowledge(Acknowledgements(7, tuple(parts)))
    assert scene.until(lambda: len(scene.events_of(Confirmed)) == len(parts))
    assert {(event.session, event.number) for event in scene.events_of(Confirmed)} == {
        (session, 7) for session in scene.tags
    }
    assert poll(lambda: entry.total() == 0, 30)
    scene.connections.stop()


@amqp091
def test_a_session_can_be_ended_on_request(entry: LiveEntry, worker: Worker) -> None:
    entry.publish(3)
    scene = Scene(entry, worker, consumers=1)
    scene.start()
    assert scene.until(lambda: len(scene.rows) == 3)
    (opened,) = scene.events_of(Opened)
    scene.connections.replace_session(opened.session, "for a test")
    assert scene.until(lambda: len(scene.rows) == 6)
    assert [lost.session for lost in scene.events_of(Lost)] == [opened.session]
    assert scene.redelivered == 3
    scene.connections.stop()


@amqp091
def test_all_that_was_received_and_not_taken_counts_wherever_it_is(entry: LiveEntry, worker: Worker) -> None:
    size, allowed = 20_000, 200_000
    entry.node.publish(entry.queue, (bytes(size) for _ in range(200)), protocol=entry.entry.protocol)
    scene = Scene(entry, worker, consumers=1, prefetch=300)
    scene.start(allowed)
    assert scene.until(lambda: scene.connections.paused, 30, taking=False)
    assert not scene.until(lambda: False, 1, taking=False)  # what is on its way arrives
    # All that is read at once goes into the inbox: pika reads until it has 100 KiB or more, in pieces of 256.
    beyond = (100 << 10) + (256 << 10)
    assert allowed <= scene.connections.untaken * size <= allowed + beyond
    assert scene.until(lambda: not scene.connections.late, 30, taking=False)  # a worker that is paused gets its turns
    while len(scene.rows) < 200:
        before = len(scene.rows)
        scene.poll()
        scene.connections.bound_bytes(allowed, resume=True)
        assert (len(scene.rows) - before) * size <= allowed + beyond
        time.sleep(0.01)
    assert len(scene.rows) == 200
    assert scene.redelivered == 0
    scene.connections.stop()


@amqp091
def test_a_message_that_cannot_be_decoded_is_named_or_taken_in(entry: LiveEntry, worker: Worker) -> None:
    before = entry.publish(3)
    publish_odd(entry)
    after = entry.publish(3)
    scene = Scene(entry, worker, consumers=1)
    scene.start()
    with pytest.raises(MessageError, match=r"delivery 4.*'odd'"):
        scene.until(lambda: False, 30)
    scene.connections.stop()
    assert poll(lambda: entry.counts().ready == 7, 30)
    keeping = Scene(entry, worker, consumers=1, on_unreadable=OnUnreadable.ROW)
    keeping.start()
    assert keeping.until(lambda: len(keeping.rows) == 7)
    (odd,) = keeping.unreadable
    assert "odd" in str(odd)
    assert UNREADABLE_PROPERTY in dict(BlockRows.of(keeping.rows).values("properties")[3])
    del keeping.rows[3]
    assert keeping.bodies() == before + after
    keeping.connections.stop()


@amqp091
def test_two_queues_share_the_worker(entry: LiveEntry, worker: Worker) -> None:
    other = f"{entry.queue}-other"
    entry.declare(other)
    try:
        sent = entry.publish(50)
        entry.node.publish(other, (b"other" for _ in range(70)), protocol=entry.entry.protocol)
        scenes = [Scene(entry, worker, consumers=2), Scene(entry, worker, consumers=2, queue=other)]
        for scene in scenes:
            scene.start()
        assert scenes[0].until(lambda: len(scenes[0].rows) == 50)
        assert scenes[1].until(lambda: len(scenes[1].rows) == 70)
        assert sorted(scenes[0].bodies()) == sorted(sent)
        # One that stops leaves the others alone.
        scenes[0].connections.stop()
        assert poll(lambda: entry.counts().ready == 50, 30)
        # One of its connections may have been handed all before the other was open.
        assert scenes[1].until(lambda: scenes[1].connections.complete)
        entry.node.publish(other, [b"one more"], protocol=entry.entry.protocol)
        assert scenes[1].until(lambda: len(scenes[1].rows) == 71)
        scenes[1].connections.stop()
    finally:
        entry.node.delete(other)


@amqp091
def test_what_the_broker_reports_of_the_queue_is_told(entry: LiveEntry, worker: Worker) -> None:
    entry.publish(40)
    scene = Scene(entry, worker, consumers=1, prefetch=10)
    scene.connections.first_window = 10
    scene.start()
    assert scene.until(lambda: len(scene.rows) == 10)
    (opened,) = scene.events_of(Opened)
    assert opened.greeting.depth.ready == 40
    assert opened.window == 10
    scene.connections.refresh_depth(0.0)
    assert scene.until(lambda: scene.connections.depths() == [30])
    # Not after the window is widened: a quorum queue counts a cancelled consumer for as long as it holds messages.
    assert scene.connections.other_consumers == 0
    scene.connections.widen(25)
    # A new consumer counts from zero, see Amqp091Session.consume.
    assert scene.until(lambda: len(scene.rows) == 35)
    scene.connections.refresh_depth(0.0)
    assert scene.until(lambda: scene.connections.depths() == [5])
    scene.connections.stop()


@amqp091
def test_bodies_of_any_size_come_in_order_and_whole(entry: LiveEntry, worker: Worker) -> None:
    sizes = [10, 9 << 20, 0, 3 << 20, 3 << 20, 3 << 20, 200_000, 1]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    entry.node.publish(entry.queue, iter(bodies), protocol=entry.entry.protocol)
    scene = Scene(entry, worker, consumers=1)
    scene.start()
    assert scene.until(lambda: len(scene.rows) == len(sizes))
    assert BlockRows.of(scene.rows).values("body") == bodies
    assert all(
        size < size_bytes < size + 1_000 for size, size_bytes in zip(sizes, BlockRows.of(scene.rows).sizes, strict=True)
    )
    scene.connections.stop()


@amqp091
def test_queues_that_ended_leave_nothing_with_the_worker(entry: LiveEntry, worker: Worker) -> None:
    entry.publish(1)
    kept = Scene(entry, worker)
    kept.start()
    assert kept.until(lambda: len(kept.rows) == 1)

    def supervisors() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "pyspark-mq supervisor"]

    assert len(supervisors()) == 1
    for _ in range(4):
        scene = Scene(entry, worker)
        scene.start()
        assert scene.until(lambda: bool(scene.events_of(Opened)))  # noqa: B023 - called at once
        scene.connections.stop()
        assert scene.until(lambda: bool(scene.events_of(Lost)))  # noqa: B023
    assert len(worker._supervised) == 1
    assert poll(lambda: len(supervisors()) == 1, 10)
    # The one that is there goes on.
    entry.publish(1)
    assert kept.until(lambda: len(kept.rows) == 2)
