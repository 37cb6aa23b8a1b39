"""The session supervisor: one session after another, with rests between those that came to nothing."""

from __future__ import annotations

import logging
import secrets
from itertools import count
from operator import methodcaller
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from pyspark_mq.errors import BrokerError, BrokerUnavailableError, DestinationError, OptionError, RefusedError
from pyspark_mq.sources.connections.events import Confirmed, Event, EventQueue, Failed, Lost, Opened
from pyspark_mq.sources.connections.session import Greeting, Session, SessionLostError, SessionOptions
from pyspark_mq.sources.connections.supervisor import ConnectionSupervisor, Limits
from pyspark_mq.wire.url import BrokerUrl
from tests.support.memory_broker import MemoryBroker, MemorySession
from tests.support.simulation import QUEUE, SUPERVISOR, World, make_settings


class Scene:
    """A supervisor of sessions with a queue in memory."""

    def __init__(self, consumer: type[MemorySession] = MemorySession, **endpoint: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.queue = self.broker.declare(QUEUE)
        self.told = EventQueue()
        self.process = self.world.process()
        make = type("SceneSession", (consumer,), {"broker": self.broker})
        settings = make_settings(**endpoint)
        limits = Limits(100, float("inf"))
        sessions = count(1)
        self.supervisor = ConnectionSupervisor(
            1, settings.endpoint, make, SessionOptions(), limits, self.told, sessions, self.process
        )
        self.events: list[Event] = []

    def run(self, seconds: float) -> None:
        self.world.let_pass(seconds)
        self.events += self.told.take()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def consumer(self) -> Session:
        """Of the session that lives."""
        found = self.supervisor.session(self.of(Opened)[-1].session)
        assert found is not None
        return found

    @property
    def failure(self) -> Exception:
        (failed,) = self.of(Failed)
        error: Exception = failed.error
        return error


class Talkative(MemorySession):
    """Its broker ends each session for a reason as soon as something was handed out, and names what it is about."""

    def run(self, timeout_s: float) -> None:
        super().run(timeout_s)
        if self.buffer.inbox:
            raise SessionLostError(f"{uuid4()}: a message cannot be sent to {secrets.token_urlsafe(8)}", stated=True)


def test_a_session_opens_and_its_end_is_told() -> None:
    scene = Scene()
    scene.supervisor.start()
    scene.run(0.1)
    assert [type(event) for event in scene.events] == [Opened]
    scene.broker.cut()
    scene.run(0.02)
    assert [type(event) for event in scene.events] == [Opened, Lost]
    scene.run(1)
    assert [type(event) for event in scene.events] == [Opened, Lost, Opened]


def test_sessions_in_which_nothing_is_confirmed_are_ever_further_apart() -> None:
    scene = Scene()
    scene.queue.publish(b"x", "a")
    scene.supervisor.start()
    for tenth in range(600):
        scene.run(0.1)
        if tenth % 2:
            scene.broker.cut()
    opened = len(scene.of(Opened))
    # A session every 0.3 s would be 200 in the minute; the rests grow to 5 s.
    assert 10 < opened < 30


def test_a_confirmation_makes_a_session_good_and_the_next_one_comes_at_once() -> None:
    scene = Scene()
    scene.supervisor.start()
    for number in range(20):
        scene.queue.publish(b"x", str(number))
        scene.run(0.1)
        scene.supervisor.ask(scene.consumer.number, methodcaller("acknowledge", 7, 1, ()))
        scene.run(0.1)
        assert len(scene.of(Confirmed)) == number + 1
        scene.broker.cut()
        scene.run(0.1)
    assert len(scene.of(Opened)) == 21


def test_there_is_no_reconnect_without_a_rest_behind_a_good_session_either() -> None:
    scene = Scene()
    scene.supervisor.start()
    scene.queue.publish(b"x", "a")
    scene.run(0.1)
    scene.supervisor.ask(scene.consumer.number, methodcaller("acknowledge", 7, 1, ()))
    scene.run(0.1)
    assert len(scene.of(Confirmed)) == 1
    scene.broker.cut()
    while not scene.of(Lost):
        scene.run(0.01)
    assert len(scene.of(Opened)) == 1
    scene.run(0.1)
    assert len(scene.of(Opened)) == 2


def test_a_broker_that_ends_one_session_after_another_ends_the_query_and_is_quoted() -> None:
    scene = Scene(Talkative)
    scene.queue.publish(b"x", "a")
    scene.supervisor.start()
    scene.run(600)
    assert isinstance(scene.failure, BrokerError)
    for words in ("queue 'orders'", "9 sessions in a row", "cannot be sent", "No message is lost", "over memory"):
        assert words in str(scene.failure)
    assert len(scene.of(Opened)) == 9


class Poisoned(MemorySession):
    """Its broker ends each session for a reason when it is about to hand out the first message."""

    def run(self, timeout_s: float) -> None:
        if self.broker.queues[QUEUE].ready:
            raise SessionLostError("541 INTERNAL_ERROR", stated=True)
        super().run(timeout_s)


@pytest.mark.parametrize("tells_depth", [True, False])
def test_a_broker_that_fails_on_the_first_message_ends_the_query_too(tells_depth: bool) -> None:
    scene = Scene(Poisoned)
    scene.queue.faults.tells_depth = tells_depth
    scene.queue.publish(b"x", "a")
    scene.supervisor.start()
    scene.run(600)
    assert isinstance(scene.failure, BrokerError)
    assert len(scene.of(Opened)) == 9


class Slow(MemorySession):
    """Its broker ends each session after half a minute, in the middle of the first message."""

    partial_bytes = 6_000_000
    world: World

    def consume(self, window: int) -> None:
        super().consume(window)
        self.until_s = self.world.now_s + 30.0

    def run(self, timeout_s: float) -> None:
        if self.world.now_s > self.until_s:
            raise SessionLostError("connection reset", stated=False)
        super().run(timeout_s)


def test_a_message_that_takes_longer_than_the_broker_allows_ends_the_query(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(Slow)
    scene.supervisor._session_class.world = scene.world  # type: ignore[attr-defined]
    scene.supervisor.start()
    scene.run(120)
    assert not scene.of(Failed)
    assert "3 connections in a row have ended while a message was arriving, the last after 30 s" in caplog.text
    assert "while no message came" not in caplog.text
    scene.run(500)
    assert isinstance(scene.failure, BrokerError)
    for words in ("queue 'orders'", "6,000,000 bytes", "'tcp_listen_options.send_timeout'", "No message is lost"):
        assert words in str(scene.failure)
    assert len(scene.of(Opened)) == 9


class Leaderless(MemorySession):
    """Its broker refuses every consumer for a reason while the queue has no leader."""

    refuses_until_s: ClassVar[float]

    def consume(self, window: int) -> None:
        if self.broker.now_s < self.refuses_until_s:
            raise SessionLostError("541 INTERNAL_ERROR - failed consuming from quorum queue", stated=True)
        super().consume(window)


def test_a_broker_that_refuses_consumers_for_minutes_is_tried_until_it_takes_one() -> None:
    scene = Scene(Leaderless)
    Leaderless.refuses_until_s = scene.broker.now_s + 300
    scene.queue.publish(b"x", "a")
    scene.supervisor.start()
    scene.run(200)
    assert len(scene.of(Opened)) > 9
    scene.run(200)
    assert not scene.of(Failed)
    assert scene.consumer.buffer.deliveries == 1


class Closing(MemorySession):
    """Its broker ends each session for a reason after a while."""

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        self.ends_s = self.broker.now_s + 20
        return super().open(url, timeout_s)

    def run(self, timeout_s: float) -> None:
        super().run(timeout_s)
        if self.broker.now_s > self.ends_s:
            raise SessionLostError("the token has expired", stated=True)


@pytest.mark.parametrize("tells_depth", [True, False])
def test_sessions_without_messages_may_end_for_a_reason_at_any_time(tells_depth: bool) -> None:
    scene = Scene(Closing)
    scene.queue.faults.tells_depth = tells_depth
    scene.supervisor.start()
    for _ in range(600):
        scene.run(1)
    assert len(scene.of(Opened)) > 20
    assert not scene.of(Failed)


def test_what_the_network_does_is_no_reason_to_stop_before_the_reconnect_timeout() -> None:
    scene = Scene(reconnect_timeout_s=60.0)
    scene.queue.publish(b"x", "a")
    scene.supervisor.start()
    for _ in range(40):
        scene.run(1)
        scene.broker.cut()
    assert not scene.of(Failed)
    for _ in range(60):
        scene.run(1)
        scene.broker.cut()
    assert isinstance(scene.failure, BrokerUnavailableError)
    assert "reconnectTimeout=60s" in str(scene.failure)


@pytest.mark.parametrize("tells_depth", [True, False])
def test_a_balancer_that_ends_every_quiet_connection_ends_no_query_and_is_told_once(
    tells_depth: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(reconnect_timeout_s=20.0)
    scene.queue.faults.tells_depth = tells_depth
    scene.supervisor.start()
    for _ in range(600):
        scene.run(6)
        scene.broker.cut()
    scene.run(6)
    assert not scene.of(Failed)
    assert len(scene.of(Opened)) > 500
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in warnings if "set 'heartbeat' (now 60s) below its limit" in text]) == 1
    assert len(warnings) <= 6


def test_sessions_that_end_at_once_add_up_where_the_first_message_may_be_the_cause() -> None:
    scene = Scene(reconnect_timeout_s=20.0)
    scene.queue.faults.tells_depth = False
    scene.supervisor.start()
    for _ in range(200):
        scene.run(0.3)
        scene.broker.cut()
    assert isinstance(scene.failure, BrokerUnavailableError)
    assert "reconnectTimeout=20s" in str(scene.failure)


def test_an_idle_session_that_ends_every_night_never_adds_up(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(reconnect_timeout_s=60.0)
    scene.supervisor.start()
    for _ in range(30):
        scene.run(30_000)
        scene.broker.cut()
    scene.run(1)
    assert not scene.of(Failed)
    assert len(scene.of(Opened)) == 31
    assert "'heartbeat'" not in caplog.text


@pytest.mark.parametrize("timeout_s", [2.0, 20.0])
def test_nobody_there_at_the_start_fails_after_the_connect_timeout(timeout_s: float) -> None:
    scene = Scene(connect_timeout_s=timeout_s)
    scene.broker.kill()
    scene.supervisor.start()
    scene.run(timeout_s * 0.4)
    assert not scene.of(Failed)
    scene.run(timeout_s)
    assert isinstance(scene.failure, BrokerUnavailableError)
    assert f"connectTimeout={timeout_s:g}s" in str(scene.failure)


def test_a_queue_that_is_not_there_fails_at_once() -> None:
    scene = Scene()
    scene.broker.delete(QUEUE)
    scene.supervisor.start()
    scene.run(0.1)
    assert isinstance(scene.failure, DestinationError)


class Suspicious(MemorySession):
    """Refuses every login but the first."""

    logins = 0

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        type(self).logins += 1
        if self.logins > 1:
            raise RefusedError(f"{url}: no")
        return super().open(url, timeout_s)


def test_a_login_that_worked_before_is_tried_again_for_the_connect_timeout() -> None:
    scene = Scene(Suspicious, connect_timeout_s=10.0)
    scene.supervisor.start()
    scene.run(1)
    scene.broker.cut()
    scene.run(8)
    assert not scene.of(Failed)
    scene.run(8)
    assert isinstance(scene.failure, RefusedError)


@pytest.mark.parametrize("option", ["passwordFile", "tls.caFile", "tls.certFile"])
def test_a_file_that_is_away_when_the_connection_breaks_is_read_again_until_it_is_there(option: str) -> None:
    files = set[str]()

    class Reads(MemorySession):
        def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
            if files:
                raise OptionError(option, "'/x' cannot be used")
            return super().open(url, timeout_s)

    scene = Scene(Reads, connect_timeout_s=10.0, reconnect_timeout_s=100.0)
    scene.supervisor.start()
    scene.run(1)
    files.add(option)
    scene.broker.cut()
    scene.run(60)
    assert not scene.of(Failed)
    files.clear()
    scene.run(10)
    assert [type(event) for event in scene.events] == [Opened, Lost, Opened]
    files.add(option)
    scene.broker.cut()
    scene.run(110)
    assert isinstance(scene.failure, BrokerUnavailableError)
    assert f"option '{option}': '/x' cannot be used" in str(scene.failure)


def test_an_option_that_the_broker_shows_to_be_wrong_fails_at_once() -> None:
    class Another(MemorySession):
        def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
            raise OptionError("broker", "'rabbitmq' is given")

    scene = Scene(Another)
    scene.supervisor.start()
    scene.run(0.1)
    assert isinstance(scene.failure, OptionError)


def test_a_request_for_a_session_that_is_gone_is_never_carried_out() -> None:
    scene = Scene()
    scene.supervisor.start()
    scene.run(0.1)
    old = scene.of(Opened)[0].session
    scene.broker.cut()
    scene.run(1)
    asked: list[int] = []

    scene.supervisor.ask(old, lambda session: asked.append(session.number))
    new = scene.of(Opened)[1].session
    scene.supervisor.ask(new, lambda session: asked.append(session.number))
    scene.run(1)
    assert asked == [new]


def test_stopping_closes_the_connection_and_ends_it() -> None:
    scene = Scene()
    scene.supervisor.start()
    scene.run(0.1)
    scene.supervisor.stop()
    scene.run(0.1)
    assert scene.queue.sessions == []
    scene.run(10)
    assert len(scene.of(Opened)) == 1


class Late(MemorySession):
    """Its query is stopped while it is being opened."""

    supervisor: ConnectionSupervisor
    windows: ClassVar[list[int]] = []

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        self.supervisor.stop()
        return super().open(url, timeout_s)

    def consume(self, window: int) -> None:
        self.windows.append(window)
        super().consume(window)


def test_a_session_that_opens_after_the_stop_consumes_nothing() -> None:
    scene = Scene(Late)
    scene.supervisor._session_class.supervisor = scene.supervisor  # type: ignore[attr-defined]
    scene.supervisor.start()
    scene.run(1)
    assert [type(event) for event in scene.events] == [Opened, Lost]
    assert Late.windows == []
    assert scene.queue.sessions == []


def test_messages_without_a_body_are_messages_too() -> None:
    scene = Scene(Talkative)
    scene.queue.publish(b"", "a")
    scene.supervisor.start()
    scene.run(600)
    assert isinstance(scene.failure, BrokerError)
    assert "9 sessions in a row" in str(scene.failure)


class Unanswered(MemorySession):
    """Its broker answers the first who begins to consume, and no other."""

    world: World
    begun = 0

    def consume(self, window: int) -> None:
        type(self).begun += 1
        if self.begun > 1:
            self.world.now_s += 11.0
            raise SessionLostError("no answer within 11 s")
        super().consume(window)


def test_sessions_in_which_nobody_answers_are_no_long_ones() -> None:
    scene = Scene(Unanswered, reconnect_timeout_s=30.0)
    scene.supervisor._session_class.world = scene.world  # type: ignore[attr-defined]
    scene.supervisor.start()
    scene.run(1)
    scene.broker.cut()
    for _ in range(20):
        scene.run(11)
    assert isinstance(scene.failure, BrokerUnavailableError)
    assert "reconnectTimeout=30s" in str(scene.failure)


def test_a_supervisor_counts_how_often_it_stood_still() -> None:
    scene = Scene()
    scene.supervisor.start()
    scene.run(1)
    assert scene.supervisor.breaks == 0
    for seconds in (0.4, 4.0, 0.4, 4.0):
        scene.process.starve(SUPERVISOR, seconds)
        scene.run(5)
    assert scene.supervisor.breaks == 2
