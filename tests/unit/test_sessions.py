"""The sessions of a query: what they took in, what they may be handed, and how many bytes they may pile up."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_mq.ack import Part, Settlement
from pyspark_mq.errors import DestinationError
from pyspark_mq.sources.connections.connections import Sessions
from pyspark_mq.sources.connections.events import Lost, Opened
from tests.support.memory import MemoryBroker, memory_consumer
from tests.support.simulation import QUEUE, World, make_settings


class Scene:
    """The sessions of a queue in memory."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.queue = self.broker.declare(QUEUE)
        made = make_settings(**{"prefetch": 10, **settings})
        self.sessions = Sessions(made, memory_consumer(self.broker), self.world.process())
        self.sessions.bound_bytes(1_000, resume=True)
        self.sessions.start()

    def publish(self, count: int, size: int = 10) -> None:
        for number in range(count):
            self.queue.publish(bytes(size), f"id-{number}")

    def run(self, seconds: float = 0.2) -> list[Any]:
        self.world.let_pass(seconds)
        return list(self.sessions.news())

    def taken(self) -> list[tuple[int, int, int]]:
        return [(took.session, len(took.raws), took.body_bytes) for took in self.sessions.take()]


def test_what_arrived_is_taken_once_with_its_bytes() -> None:
    scene = Scene()
    scene.publish(4)
    (opened,) = scene.run()
    assert isinstance(opened, Opened)
    session = opened.consumer.session
    assert scene.sessions.untaken == 4
    assert scene.taken() == [(session, 4, 40)]
    assert scene.taken() == []
    assert scene.sessions.untaken == 0


def test_they_are_complete_when_each_receiver_is_connected() -> None:
    scene = Scene(consumers=3)
    assert not scene.sessions.complete
    scene.run()
    assert scene.sessions.complete
    assert list(scene.sessions.windows.values()) == [10, 10, 10]
    scene.queue.end(scene.queue.sessions[0], "reset")
    assert isinstance(scene.run(0.02)[0], Lost)
    assert not scene.sessions.complete
    scene.run(1)
    assert scene.sessions.complete


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
    assert scene.sessions.paused
    assert scene.sessions.untaken == 4  # one more than fits
    assert scene.queue.dead_letters == []


def test_a_pause_ends_when_it_is_told_to() -> None:
    scene = Scene()
    scene.publish(10, size=300)
    scene.run()
    scene.taken()
    scene.sessions.bound_bytes(400, resume=False)
    scene.run()
    assert scene.sessions.paused
    scene.sessions.bound_bytes(600, resume=True)
    scene.run()
    assert scene.sessions.untaken > 0


def test_the_bytes_are_shared_by_the_sessions() -> None:
    scene = Scene(consumers=2)
    scene.run()
    scene.publish(10, size=300)
    scene.run()
    assert scene.sessions.untaken == 4  # 500 bytes for each, and one message more


def test_a_window_grows_and_never_shrinks() -> None:
    scene = Scene()
    scene.publish(30)
    scene.run()
    scene.sessions.widen(5)
    assert list(scene.sessions.windows.values()) == [10]
    scene.sessions.widen(25)
    scene.run()
    assert scene.sessions.untaken == 25


def test_acknowledgements_go_to_the_session_they_are_for_or_nowhere() -> None:
    scene = Scene()
    scene.publish(4)
    (opened,) = scene.run()
    session = opened.consumer.session
    scene.sessions.acknowledge(Settlement(1, (Part(session + 1, 4, (), 4),)))
    scene.run()
    assert scene.queue.acknowledged == []
    scene.sessions.acknowledge(Settlement(2, (Part(session, 2, (4,), 3),)))
    (confirmed,) = scene.run()
    assert (confirmed.number, confirmed.session) == (2, session)
    assert [message.id for message in scene.queue.acknowledged] == ["id-0", "id-1", "id-3"]


def test_a_failure_is_raised_after_the_news_and_again() -> None:
    scene = Scene()
    scene.broker.delete(QUEUE)
    scene.world.let_pass(0.2)
    for _ in range(2):
        with pytest.raises(DestinationError):
            list(scene.sessions.news())


def test_alone_is_what_the_broker_says() -> None:
    scene = Scene()
    scene.run()
    assert scene.sessions.alone
    scene.broker.cut(unnoticed_s=60.0)
    scene.run(2)
    assert not scene.sessions.alone


def test_a_broker_that_reports_no_depth_never_says_that_nobody_else_is_there() -> None:
    scene = Scene()
    scene.queue.weather.tells_depth = False
    scene.run()
    assert not scene.sessions.alone
    assert scene.sessions.depths() == []
    assert scene.sessions.newest_depth is None


def test_the_depth_is_asked_for_and_not_too_often() -> None:
    scene = Scene(prefetch=1)
    scene.publish(5)
    scene.run()
    scene.publish(3)
    scene.sessions.refresh_depth()
    scene.run()
    assert scene.sessions.depths() == [5]  # known for less than a quarter of a second
    scene.run(1)
    scene.sessions.refresh_depth()
    scene.run()
    assert scene.sessions.depths() == [7]


@pytest.mark.parametrize(
    ("signs", "expected"),
    [((None, None), None), ((True, None), None), ((True, False), False), ((False, False), False), ((True, True), True)],
)
def test_they_are_starved_when_each_of_them_is(signs: tuple[bool | None, ...], expected: bool | None) -> None:
    scene = Scene(consumers=2)
    assert scene.sessions.starved is None
    for opened, sign in zip(scene.run(), signs, strict=True):
        opened.consumer.starved = sign
    assert scene.sessions.starved is expected


def test_a_pause_goes_on_until_what_it_waits_for_is_taken() -> None:
    scene = Scene()
    scene.run()
    scene.sessions.bound_bytes(100, resume=True)
    scene.publish(10, size=40)
    for _ in range(5):
        scene.run()
        scene.sessions.bound_bytes(100, resume=True)
        assert scene.sessions.untaken == 3  # the first that is too much pauses it
    scene.taken()
    scene.sessions.bound_bytes(100, resume=True)
    scene.run()
    assert scene.sessions.untaken == 3
