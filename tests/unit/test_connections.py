"""The sessions of a query: what they took in, what they may be handed, and how many bytes they may pile up."""

from __future__ import annotations

import logging
import resource
from typing import Any

import pyarrow as pa
import pytest

from pyspark_mq.ack import Acknowledgements, SessionAcks
from pyspark_mq.decode.batch import ROW_BYTES
from pyspark_mq.dedup import OnMissing
from pyspark_mq.errors import DestinationError, InternalError, OptionError
from pyspark_mq.sources.connections.block import block_schema
from pyspark_mq.sources.connections.connections import Connections
from pyspark_mq.sources.connections.events import Delivered, EventQueue, Lost, Opened
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.runtime import Threads
from testbed.process import poll
from tests.support.memory_broker import MemoryBroker, MemorySession, memory_session
from tests.support.simulation import QUEUE, World, make_settings
from tests.support.sockets import LIMIT_S


class Scene:
    """The connections of a queue in memory."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.queue = self.broker.declare(QUEUE)
        made = make_settings(**{"prefetch": 10, **settings})
        process, self.make = self.world.process(), memory_session(self.broker)
        worker = Worker(lambda _: self.make, block_schema(pa.schema([("body", pa.binary())])), process)
        self.connections = Connections(made, worker, process, EventQueue())
        self.connections.bound_bytes(2_000, resume=True)
        self.connections.start()

    def publish(self, count: int, size: int = 10) -> None:
        for number in range(count):
            self.queue.publish(bytes(size), f"id-{number}")

    def run(self, seconds: float = 0.2, *, taking: bool = False) -> list[Any]:
        self.world.let_pass(seconds)
        return list(self.connections.news(taking=taking))

    def taken(self) -> list[tuple[int, int, int]]:
        """Session, deliveries and bytes of everything that is there."""
        took = [event for event in self.connections.news(taking=True) if isinstance(event, Delivered)]
        return [(event.session, len(event.rows), event.rows.size_bytes) for event in took]


def test_more_connections_than_the_process_may_open_are_an_error_at_the_start() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, limits[1]))
    try:
        Scene(consumers=12)
        with pytest.raises(OptionError, match=r"'consumers': 13 connections .* may have 150\. .*ulimit -n"):
            Scene(consumers=13)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_few_deliveries_of_several_sessions_share_a_block() -> None:
    scene = Scene(consumers=4)
    scene.connections.bound_bytes(100_000, resume=True)
    scene.run()
    scene.publish(10)
    events = [one for one in scene.run(taking=True) if isinstance(one, Delivered)]
    assert len({one.session for one in events}) > 2
    assert len({id(one.rows.block) for one in events}) < len(events)
    rows = [(one.session, tag, row) for one in events for tag, row in zip(one.metadata.tags, one.rows, strict=True)]
    assert len(rows) == 10
    # Each session's tags ascend, and each row is there once, with its own ID.
    for session in {session for session, _, _ in rows}:
        tags = [tag for one, tag, _ in rows if one == session]
        assert tags == sorted(set(tags))
    assert sorted(key for one in events for key in one.metadata.keys) == sorted(f"id-{number}" for number in range(10))
    assert len({(id(block), number) for _, _, (block, number) in rows}) == 10
    for one in events:
        assert len(one.metadata.redelivered) == len(one.metadata.keys) == len(one.rows)
        assert one.rows.size_bytes == sum(ROW_BYTES + len(key) + 10 for key in one.metadata.keys)


def test_messages_without_an_id_share_no_block() -> None:
    scene = Scene(consumers=4, on_missing=OnMissing.CONTENT)
    scene.connections.bound_bytes(100_000, resume=True)
    scene.run()
    for number in range(10):
        scene.queue.publish(b"x", None if number % 3 else f"id-{number}")
    events = [one for one in scene.run(taking=True) if isinstance(one, Delivered)]
    assert sum(len(one.rows) for one in events) == 10
    alone = [one for one in events if not one.metadata.is_plain]
    assert alone
    blocks = [id(one.rows.block) for one in events]
    assert all(blocks.count(id(one.rows.block)) == 1 for one in alone)


def test_what_arrived_is_taken_once_with_its_bytes() -> None:
    scene = Scene()
    scene.publish(4)
    (opened,) = scene.run()
    assert isinstance(opened, Opened)
    session = opened.session
    assert scene.connections.untaken == 4
    assert scene.taken() == [(session, 4, 4 * (ROW_BYTES + len("id-0") + 10))]
    assert scene.taken() == []
    assert scene.connections.untaken == 0


def test_they_are_complete_when_each_receiver_is_connected() -> None:
    scene = Scene(consumers=3)
    assert not scene.connections.complete
    scene.run()
    assert scene.connections.complete
    assert list(scene.connections.windows.values()) == [10, 10, 10]
    scene.queue.end(scene.queue.sessions[0], "reset")
    assert isinstance(scene.run(0.02)[0], Lost)
    assert not scene.connections.complete
    scene.run(1)
    assert scene.connections.complete


def test_nothing_is_taken_from_a_session_that_has_ended() -> None:
    scene = Scene()
    scene.publish(4)
    scene.run()
    scene.broker.cut()
    scene.run(0.02)
    assert scene.taken() == []


def test_a_session_begins_with_the_bytes_that_are_allowed_and_pauses() -> None:
    scene = Scene()
    scene.publish(10, size=300)
    scene.run(5)
    assert scene.connections.paused
    assert scene.connections.untaken == 4  # one more than fits
    assert scene.queue.dead_letters == []


def test_a_pause_ends_when_it_is_told_to() -> None:
    scene = Scene()
    scene.publish(10, size=300)
    scene.run()
    scene.taken()
    scene.connections.bound_bytes(400, resume=False)
    scene.run()
    assert scene.connections.paused
    scene.connections.bound_bytes(600, resume=True)
    scene.run()
    assert scene.connections.untaken > 0


def test_each_session_has_bytes_of_its_own() -> None:
    scene = Scene(consumers=2)
    scene.connections.bound_bytes(1_000, resume=True)
    scene.run()
    scene.publish(10, size=300)
    scene.run()
    assert scene.connections.untaken == 4  # 1,000 bytes for each, and one message more


def test_a_window_grows_and_never_shrinks() -> None:
    scene = Scene()
    scene.connections.bound_bytes(100_000, resume=True)
    scene.publish(30)
    scene.run()
    scene.connections.widen(5)
    assert list(scene.connections.windows.values()) == [10]
    scene.connections.widen(25)
    scene.run()
    assert scene.connections.untaken == 25


def test_acknowledgements_go_to_the_session_they_are_for_or_nowhere() -> None:
    scene = Scene()
    scene.publish(4)
    (opened,) = scene.run()
    session = opened.session
    scene.connections.acknowledge(Acknowledgements(1, (SessionAcks(session + 1, 4, (), 4),)))
    scene.run()
    assert scene.queue.acknowledged == []
    scene.connections.acknowledge(Acknowledgements(2, (SessionAcks(session, 2, (4,), 3),)))
    (confirmed,) = scene.run()
    assert (confirmed.number, confirmed.session) == (2, session)
    assert [message.id for message in scene.queue.acknowledged] == ["id-0", "id-1", "id-3"]


def test_a_failure_is_raised_after_the_news_and_again() -> None:
    scene = Scene()
    scene.broker.delete(QUEUE)
    scene.world.let_pass(0.2)
    for _ in range(2):
        with pytest.raises(DestinationError):
            list(scene.connections.news(taking=True))


def test_others_are_those_that_the_broker_counts() -> None:
    scene = Scene()
    scene.run()
    assert scene.connections.other_consumers == 0
    scene.broker.cut(unnoticed_s=60.0)
    scene.run(2)
    assert scene.connections.other_consumers == 1


def test_a_broker_that_reports_no_depth_says_nothing() -> None:
    scene = Scene()
    scene.queue.faults.tells_depth = False
    scene.run()
    assert scene.connections.depths() == []
    assert scene.connections.newest_depth is None


def test_the_depth_is_asked_for_and_not_too_often() -> None:
    scene = Scene(prefetch=1)
    scene.publish(5)
    scene.run()
    scene.publish(3)
    scene.connections.refresh_depth()
    scene.run()
    assert scene.connections.depths() == [5]  # known for less than a quarter of a second
    scene.run(1)
    scene.connections.refresh_depth()
    scene.run()
    assert scene.connections.depths() == [7]


def test_a_pause_goes_on_until_what_it_waits_for_is_taken() -> None:
    scene = Scene()
    scene.run()
    scene.connections.bound_bytes(1_000, resume=True)
    scene.publish(10, size=40)
    for _ in range(5):
        scene.run()
        scene.connections.bound_bytes(1_000, resume=True)
        assert scene.connections.untaken == 3  # the first that is too much pauses it
    scene.taken()
    scene.connections.bound_bytes(1_000, resume=True)
    scene.run()
    assert scene.connections.untaken == 3


class Breaks(MemorySession):
    """Raises what nobody expects."""

    def run(self, timeout_s: float) -> None:
        raise ValueError(f"nobody expects that within {timeout_s} s")


class _Raises(logging.Handler):
    """A handler of the user's that fails itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            raise RuntimeError("the disk of the log is full")


def test_a_connection_whose_thread_dies_of_what_it_cannot_report_ends_the_query() -> None:
    broker = MemoryBroker()
    broker.declare(QUEUE)
    make = type("BrokenSession", (Breaks,), {"broker": broker})
    runtime = Threads()
    worker = Worker(lambda _: make, block_schema(pa.schema([("body", pa.binary())])), runtime)
    connections = Connections(make_settings(), worker, runtime, EventQueue())
    log, handler = logging.getLogger("pyspark_mq"), _Raises()
    log.addHandler(handler)
    try:
        connections.bound_bytes(2_000, resume=True)
        connections.start()
        with pytest.raises(InternalError, match=r"queue 'orders'.*the disk of the log is full"):
            poll(lambda: bool([*connections.news(taking=True)]) and False, LIMIT_S)
        connections.stop()
        worker.stop()
        with pytest.raises(InternalError, match="queue 'orders': the source has been stopped"):
            Connections(make_settings(), worker, runtime, EventQueue()).start()
    finally:
        log.removeHandler(handler)
