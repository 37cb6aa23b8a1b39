"""Receivers in processes: for the query's thread, sessions are what they are without, and their processes may die."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from pyspark_mq.ack import Acknowledgements, SessionAcks
from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.errors import MessageError, MqError, RefusedError
from pyspark_mq.sources.connections.block import BlockRows, Row
from pyspark_mq.sources.connections.connections import Connections
from pyspark_mq.sources.connections.decoder import UNREADABLE_PROPERTY, Unreadable
from pyspark_mq.sources.connections.events import Confirmed, Delivered, EventQueue, Lost, Opened
from pyspark_mq.sources.connections.processes import worker as process_worker
from pyspark_mq.sources.connections.processes.worker import in_processes
from pyspark_mq.sources.connections.workers import Workers
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.sources.settings import OnUnreadable, Settings
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.schema import SCHEMA, BatchBuilder
from testbed.process import poll
from testbed.signals import kill, runs
from tests.laws.test_unreadable import publish_odd
from tests.support.cells import LiveCell

pytestmark = [pytest.mark.network, pytest.mark.sampled]
amqp091 = pytest.mark.protocols(AMQP_0_9_1)


class Scene:
    """The connections of a queue, as the query's thread sees them."""

    def __init__(self, cell: LiveCell, pool: Workers, **changes: Any) -> None:
        given = {name: str(value) for name, value in cell.options().items()}
        parsed = parse_options({**given, "heartbeat": "5s"}).settings
        endpoint = {name: changes.pop(name) for name in list(changes) if hasattr(parsed.endpoint, name)}
        settings: Settings = replace(parsed, endpoint=replace(parsed.endpoint, **endpoint))
        self.settings = replace(settings, **{"prefetch": 100, **changes})
        self.connections = Connections(self.settings, pool, Threads(), EventQueue())
        self.events: list[Any] = []
        self.rows: list[Row] = []
        self.tags: dict[int, list[int]] = {}
        self.redelivered = 0
        self.unreadable: list[Unreadable] = []

    def start(self, most: float = 1e9) -> None:
        self.connections.bound_bytes(most, resume=True)
        self.connections.start()

    def look(self, *, taking: bool = True) -> None:
        for event in self.connections.news(taking=taking):
            self.events.append(event)
            if isinstance(event, Delivered):
                self.rows += event.block.rows
                self.tags.setdefault(event.session, []).extend(event.metadata.tags)
                self.redelivered += sum(event.metadata.redelivered)
                self.unreadable += event.metadata.unreadable.values()

    def until(self, condition: Callable[[], bool], timeout_s: float = 60.0, *, taking: bool = True) -> bool:
        def done() -> bool:
            self.look(taking=taking)
            return condition()

        return poll(done, timeout_s)

    def events_of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def bodies(self) -> list[str]:
        return [body.decode() for body in BlockRows.of(self.rows).values("body")]


@pytest.fixture
def pool() -> Iterator[Workers]:
    made = in_processes(2, BatchBuilder(SCHEMA).block_schema, Threads())
    yield made
    made.stop()
    assert poll(lambda: children() == [], 10)


def children() -> list[psutil.Process]:
    """The receiver processes of this one that run, in the order of their start."""
    ours = [child for child in psutil.Process().children() if runs(child, "processes.child")]
    return sorted(ours, key=psutil.Process.create_time)


def test_what_two_processes_receive_is_taken_once_and_acknowledged_where_it_came(cell: LiveCell, pool: Workers) -> None:
    sent = cell.publish(300)
    scene = Scene(cell, pool, consumers=2, prefetch=1_000)
    scene.start()
    assert scene.until(lambda: scene.connections.complete and len(scene.rows) == 300)
    assert len(children()) == 2
    assert sorted(scene.bodies()) == sorted(sent)
    assert len(scene.events_of(Opened)) == 2
    parts = [SessionAcks(session, tags[-1], (), len(tags)) for session, tags in scene.tags.items()]
    scene.connections.acknowledge(Acknowledgements(7, tuple(parts)))
    assert scene.until(lambda: len(scene.events_of(Confirmed)) == len(parts))
    assert {(event.session, event.number) for event in scene.events_of(Confirmed)} == {
        (session, 7) for session in scene.tags
    }
    assert poll(lambda: cell.total() == 0, 30)
    scene.connections.stop()


def test_a_killed_process_ends_its_sessions_and_another_takes_its_place(cell: LiveCell, pool: Workers) -> None:
    sent = cell.publish(100)
    scene = Scene(cell, pool, consumers=1)
    scene.start()
    assert scene.until(lambda: len(scene.rows) == 100)
    (opened,) = scene.events_of(Opened)
    (first,) = children()
    scene.rows.clear()
    first.kill()
    assert scene.until(lambda: len(scene.events_of(Opened)) == 2)
    (lost,) = scene.events_of(Lost)
    assert lost.session == opened.session
    assert scene.until(lambda: len(scene.rows) >= 100)
    assert sorted(scene.bodies()) == sorted(sent)
    # What is asked for in the session that is gone is done in no other (rule 10).
    scene.connections.acknowledge(Acknowledgements(1, (SessionAcks(lost.session, 100, (), 100),)))
    assert not scene.until(lambda: bool(scene.events_of(Confirmed)), 1)
    assert cell.total() == 100
    scene.connections.stop()
    assert poll(lambda: cell.counts().ready == 100, 30)


@amqp091
def test_a_session_can_be_ended_on_request(cell: LiveCell, pool: Workers) -> None:
    cell.publish(3)
    scene = Scene(cell, pool, consumers=1)
    scene.start()
    assert scene.until(lambda: len(scene.rows) == 3)
    (opened,) = scene.events_of(Opened)
    scene.connections.renew(opened.session, "for a test")
    assert scene.until(lambda: len(scene.rows) == 6)
    assert [lost.session for lost in scene.events_of(Lost)] == [opened.session]
    assert len(children()) == 1
    assert scene.redelivered == 3
    scene.connections.stop()


@amqp091
def test_all_that_was_received_and_not_taken_counts_wherever_it_is(cell: LiveCell, pool: Workers) -> None:
    size, allowed = 20_000, 200_000
    cell.node.publish(cell.queue, (bytes(size) for _ in range(200)), protocol=cell.cell.protocol)
    scene = Scene(cell, pool, consumers=1, prefetch=300)
    scene.start(allowed)
    assert scene.until(lambda: scene.connections.paused, 30, taking=False)
    assert not scene.until(lambda: False, 1, taking=False)  # what is on its way arrives
    # All that is read at once goes into the inbox: pika reads until it has 100 KiB or more, in pieces of 256.
    beyond = (100 << 10) + (256 << 10)
    assert allowed < scene.connections.untaken * size <= allowed + beyond
    assert scene.connections.late is False
    while len(scene.rows) < 200:
        before = len(scene.rows)
        scene.look()
        scene.connections.bound_bytes(allowed, resume=True)
        assert (len(scene.rows) - before) * size <= allowed + beyond
        time.sleep(0.01)
    assert len(scene.rows) == 200
    assert scene.redelivered == 0
    scene.connections.stop()


@amqp091
def test_a_process_that_stands_still_says_so_when_it_goes_on(cell: LiveCell, pool: Workers) -> None:
    cell.publish(5)
    scene = Scene(cell, pool, consumers=1)
    scene.start()
    assert scene.until(lambda: len(scene.rows) == 5)
    assert scene.until(lambda: time.monotonic() - scene.connections.progress_s < 0.2)
    (child,) = children()
    child.send_signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    more = cell.publish(5)
    assert scene.until(lambda: scene.connections.late, 5)
    assert not scene.until(lambda: scene.connections.progress_s > stopped_s + 0.2, 2)
    assert len(scene.rows) == 5
    child.send_signal(signal.SIGCONT)
    assert scene.until(lambda: scene.connections.broke_off, 10)
    # At that moment the broker's word on what came meanwhile may not have been read: hence the break.
    assert scene.until(lambda: len(scene.rows) == 10, 10)
    assert scene.bodies()[5:] == more
    assert scene.until(lambda: not scene.connections.late and not scene.connections.broke_off, 5)
    assert scene.events_of(Lost) == []
    scene.connections.stop()


@amqp091
def test_a_process_that_stands_still_when_it_is_to_stop_says_later_that_it_has(cell: LiveCell, pool: Workers) -> None:
    cell.publish(5)
    scene = Scene(cell, pool, consumers=1)
    scene.start()
    assert scene.until(lambda: len(scene.rows) == 5)
    (child,) = children()
    child.send_signal(signal.SIGSTOP)
    scene.connections.stop()  # waits for its answer, and not for ever
    assert scene.events_of(Lost) == []
    child.send_signal(signal.SIGCONT)
    assert scene.until(lambda: len(scene.events_of(Lost)) == 1, 20)
    assert poll(lambda: cell.counts().ready == 5, 30)


@amqp091
def test_a_process_that_says_nothing_for_too_long_is_replaced(
    cell: LiveCell, pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_worker, "_SILENT_MIN_S", 2.0)
    monkeypatch.setattr(process_worker, "_SILENT_HEARTBEATS", 0)
    sent = cell.publish(5)
    scene = Scene(cell, pool, consumers=1)
    scene.start()
    assert scene.until(lambda: len(scene.rows) == 5)
    (child,) = children()
    child.send_signal(signal.SIGSTOP)
    scene.rows.clear()
    assert scene.until(lambda: len(scene.events_of(Opened)) == 2, 30)
    assert scene.until(lambda: len(scene.rows) == 5, 30)
    assert scene.bodies() == sent
    assert not psutil.pid_exists(child.pid)
    scene.connections.stop()


@amqp091
def test_processes_that_die_again_and_again_are_an_error_that_names_the_option(cell: LiveCell, pool: Workers) -> None:
    done = threading.Event()

    def kill_all() -> None:
        while not done.wait(0.02):
            for child in children():
                kill(child)

    killer = threading.Thread(target=kill_all)
    scene = Scene(cell, pool, consumers=1)
    killer.start()
    try:
        scene.start()
        with pytest.raises(MqError, match="'receivers': 2") as raised:
            scene.until(lambda: False, 60)
    finally:
        done.set()
        killer.join()
    for words in (cell.queue, "5 receiver processes in a row", "SIGKILL", "Nothing is lost"):
        assert words in str(raised.value)


def test_a_login_that_is_refused_has_its_own_error_and_no_password(cell: LiveCell, pool: Workers) -> None:
    scene = Scene(cell, pool, consumers=2, username="nobody", password="not-to-be-seen")
    scene.start()
    with pytest.raises(RefusedError) as raised:
        scene.until(lambda: False, 30)
    assert "not-to-be-seen" not in str(raised.value)
    for child in children():
        assert not any("not-to-be-seen" in word for word in [*child.cmdline(), *child.environ().values()])


@amqp091
def test_a_message_that_cannot_be_decoded_is_named_or_taken_in(cell: LiveCell, pool: Workers) -> None:
    before = cell.publish(3)
    publish_odd(cell)
    after = cell.publish(3)
    scene = Scene(cell, pool, consumers=1)
    scene.start()
    with pytest.raises(MessageError, match=r"delivery 4.*'odd'"):
        scene.until(lambda: False, 30)
    scene.connections.stop()
    assert poll(lambda: cell.counts().ready == 7, 30)
    keeping = Scene(cell, pool, consumers=1, on_unreadable=OnUnreadable.ROW)
    keeping.start()
    assert keeping.until(lambda: len(keeping.rows) == 7)
    (odd,) = keeping.unreadable
    assert "odd" in str(odd)
    assert UNREADABLE_PROPERTY in dict(BlockRows.of(keeping.rows).values("properties")[3])
    del keeping.rows[3]
    assert keeping.bodies() == before + after
    keeping.connections.stop()


@amqp091
def test_two_queues_share_the_processes(cell: LiveCell, pool: Workers) -> None:
    other = f"{cell.queue}-other"
    cell.declare(other)
    try:
        sent = cell.publish(50)
        cell.node.publish(other, (b"other" for _ in range(70)), protocol=cell.cell.protocol)
        scenes = [Scene(cell, pool, consumers=2), Scene(cell, pool, consumers=2, queue=other)]
        for scene in scenes:
            scene.start()
        assert scenes[0].until(lambda: len(scenes[0].rows) == 50)
        assert scenes[1].until(lambda: len(scenes[1].rows) == 70)
        assert len(children()) == 2
        assert sorted(scenes[0].bodies()) == sorted(sent)
        # One that stops leaves the others alone.
        scenes[0].connections.stop()
        assert poll(lambda: cell.counts().ready == 50, 30)
        # One of its connections may have been handed all before the other was open.
        assert scenes[1].until(lambda: scenes[1].connections.complete)
        cell.node.publish(other, [b"one more"], protocol=cell.cell.protocol)
        assert scenes[1].until(lambda: len(scenes[1].rows) == 71)
        scenes[1].connections.stop()
    finally:
        cell.node.delete(other)


@amqp091
def test_what_the_broker_reports_of_the_queue_is_told(cell: LiveCell, pool: Workers) -> None:
    cell.publish(40)
    scene = Scene(cell, pool, consumers=1, prefetch=10)
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
def test_bodies_of_any_size_come_in_order_and_whole(cell: LiveCell, pool: Workers) -> None:
    sizes = [10, 9 << 20, 0, 3 << 20, 3 << 20, 3 << 20, 200_000, 1]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    cell.node.publish(cell.queue, iter(bodies), protocol=cell.cell.protocol)
    scene = Scene(cell, pool, consumers=1)
    scene.start()
    assert scene.until(lambda: len(scene.rows) == len(sizes))
    assert BlockRows.of(scene.rows).values("body") == bodies
    assert all(size < weight < size + 1_000 for size, weight in zip(sizes, BlockRows.of(scene.rows).sizes, strict=True))
    scene.connections.stop()


@amqp091
def test_queues_that_ended_leave_nothing_in_the_processes(cell: LiveCell, pool: Workers) -> None:
    cell.publish(1)
    kept = Scene(cell, pool)
    kept.start()
    assert kept.until(lambda: len(kept.rows) == 1)

    def come_and_go() -> None:
        for _ in range(4):
            scene = Scene(cell, pool)
            scene.start()
            assert scene.until(lambda: bool(scene.events_of(Opened)))  # noqa: B023 - called at once
            scene.connections.stop()
            assert scene.until(lambda: bool(scene.events_of(Lost)))  # noqa: B023

    come_and_go()
    threads = sum(child.num_threads() for child in children())
    for _ in range(3):
        come_and_go()
    assert sum(len(process._begun) for process in pool._workers) == 1
    assert poll(lambda: sum(child.num_threads() for child in children()) <= threads, 10)
    # The one that is there goes on.
    cell.publish(1)
    assert kept.until(lambda: len(kept.rows) == 2)
