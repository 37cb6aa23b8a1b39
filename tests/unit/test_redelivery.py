"""What comes again slowly, late or behind other things: nothing of it is emitted twice, and every wait ends."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_mq.errors import DataLossError
from pyspark_mq.sources.url import parse_urls
from tests.support.engine import At, Crashed
from tests.support.memory import MemoryBroker
from tests.support.scene import Scene
from tests.support.simulation import Query, World, make_settings, only


class TwoQueues:
    """A query on the queues `slow` and `busy`."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.slow, self.busy = self.broker.declare("slow"), self.broker.declare("busy")
        self.query = Query(self.world, self.broker, make_settings(queues=("slow", "busy"), **settings))
        self.sent: list[str] = []

    def publish(self, name: str, count: int, size: int = 10) -> None:
        for _ in range(count):
            key = f"id-{len(self.sent)}"
            self.broker.declare(name).publish(bytes(size), key)
            self.sent.append(f"{key} of {name}")

    def go_on(self, seconds: float) -> None:
        """The busy queue has a message now and then, and Spark triggers."""
        until = self.world.now_s + seconds
        while self.world.now_s < until:
            self.publish("busy", 1)
            self.query.trigger()
            self.world.let_pass(0.2)

    def assert_exactly_once(self) -> None:
        self.query.drain()
        assert sorted(self.query.emitted) == sorted(self.sent)


def test_messages_that_come_again_slowly_while_another_queue_goes_on_are_not_doubled_by_a_second_kill() -> None:
    scene = TwoQueues(max_messages=1_000, max_bytes=1 << 24, prefetch=1_000, dedup_window=0)
    scene.publish("slow", 200, size=10_000)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.slow.weather.rate = 20.0
    scene.go_on(8.0)
    scene.query.crash()
    scene.slow.weather.rate = float("inf")
    scene.assert_exactly_once()


@pytest.mark.parametrize("rate", [0.5, 2.0, 7.0])
def test_they_may_come_as_slowly_as_that(rate: float) -> None:
    scene = TwoQueues(max_messages=1_000, max_bytes=1 << 24, prefetch=1_000, dedup_window=0)
    scene.publish("slow", 20)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.slow.weather.rate = rate
    scene.go_on(9.0)
    scene.query.crash()
    scene.slow.weather.rate = float("inf")
    scene.assert_exactly_once()


def test_a_link_on_which_a_window_takes_minutes_does_not_double_what_a_half_open_connection_held() -> None:
    # What the dead connection held comes behind a window that is on its way.
    scene = Scene(max_messages=500, prefetch=4_000, dedup_window=0)
    scene.queue.weather.tells_depth = False  # nobody tells that we are alone
    scene.publish(500)
    assert scene.query.trigger() == 500
    scene.query.crash(unnoticed_s=100.0)
    scene.publish(12_000)
    scene.queue.weather.link_rate = 20.0
    until = scene.world.now_s + 280.0
    while scene.world.now_s < until:
        scene.query.trigger()
        scene.world.let_pass(2.0)
    scene.query.crash()
    scene.queue.weather.link_rate = float("inf")
    scene.assert_exactly_once()


def test_a_session_that_is_silent_from_its_beginning_does_not_end_a_wait() -> None:
    scene = TwoQueues(max_messages=100, prefetch=200, dedup_window=0)
    scene.publish("slow", 10)
    scene.query.trigger()
    scene.slow.weather.acks_s = 1_000.0  # what acknowledges them is on its way when the connection is reset
    scene.query.trigger()
    (session,) = scene.slow.sessions
    scene.slow.end(session, "the connection was reset")
    scene.slow.weather.rate = 0.0
    scene.go_on(0.6)
    (session,) = scene.slow.sessions
    scene.slow.silence(session, 140.0)
    scene.slow.weather.rate, scene.slow.weather.acks_s = float("inf"), 0.0
    scene.go_on(100.0)
    scene.query.crash()
    scene.assert_exactly_once()


@pytest.mark.parametrize("ported", [False, True])
def test_ids_are_carried_no_longer_than_needed_on_a_quiet_queue(ported: bool) -> None:

    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    scene.query.processes = int(ported)
    scene.publish(20)
    scene.query.trigger()
    scene.queue.weather.confirms_s = 1_000.0
    scene.query.trigger()
    scene.broker.cut()
    scene.queue.weather.confirms_s = 0.0
    until = scene.world.now_s + 9.0
    while scene.world.now_s < until:
        scene.query.trigger()
    assert scene.counters.carried == 0


def test_before_spark_4_2_three_kills_double_nothing() -> None:
    # The second run is killed in its first epoch, whose offset was written before anything was known. The third replays
    # it and commits it, and is killed before what the first had left came again.
    scene = Scene(shows_start=False, max_messages=10, prefetch=40, dedup_window=0)
    scene.publish(20)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.queue.weather.rate = 8.0
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.queue.weather.rate = float("inf")
    scene.publish(10)
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted(scene.sent)


def test_before_spark_4_2_an_epoch_as_large_as_may_be_held_does_not_stop_the_stream() -> None:
    scene = Scene(shows_start=False, max_bytes=100, prefetch=100)
    scene.publish(6, size=120)
    until = scene.world.now_s + 60
    while len(scene.query.emitted) < 6:
        scene.query.trigger()
        assert scene.world.now_s < until, f"stuck with {len(scene.query.emitted)} of 6 rows"


# -- a process that stands still -------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [True, False])
def test_a_process_that_stood_still_for_longer_than_replay_timeout_waits_on(fails: bool) -> None:
    scene = Scene(max_messages=10, replay_timeout_s=60.0, fail_on_data_loss=fails)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(10)
    scene.world.at(5.0, lambda: scene.query.process.stop(600.0))
    scene.world.at(620.0, scene.queue.bring_back)
    assert scene.query.trigger() == 10
    scene.assert_exactly_once()


def test_a_replay_that_waits_in_vain_ends_after_replay_timeout_all_the_same() -> None:
    scene = Scene(max_messages=10, replay_timeout_s=60.0)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(10)
    scene.world.at(5.0, lambda: scene.query.process.stop(600.0))
    began_s = scene.world.now_s
    with pytest.raises(DataLossError):
        scene.query.trigger()
    assert 660 <= scene.world.now_s - began_s < 670


def test_a_process_that_stands_still_lets_no_grace_pass() -> None:
    # A broker that is killed has forgotten what it took in the last moments, whoever stood still meanwhile.
    scene = Scene(max_messages=20, dedup_window=0)
    scene.publish(20)
    scene.query.trigger()
    scene.query.trigger()
    scene.world.let_pass(0.1)
    scene.query.trigger()
    scene.query.process.stop(60.0)
    scene.world.let_pass(60.0)
    scene.publish(1)
    scene.query.trigger()
    assert scene.counters.carried >= 20


def test_reconnect_timeout_does_not_pass_while_the_process_stands_still() -> None:
    scene = Scene(max_messages=20, reconnect_timeout_s=30.0)
    scene.publish(20)
    scene.query.trigger()
    scene.broker.kill()
    scene.world.let_pass(2.0)
    scene.query.process.stop(600.0)
    scene.world.let_pass(599.0)
    scene.broker.start()
    scene.assert_exactly_once()


def test_a_receiver_process_that_stands_still_is_no_time_in_which_messages_could_come() -> None:

    scene = Scene(max_messages=10, replay_timeout_s=30.0)
    scene.query.processes = 1
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)

    def stop() -> None:
        assert scene.query.played is not None
        scene.query.played.stop(100.0)

    scene.queue.take_away(10)
    scene.world.at(5.0, stop)
    scene.world.at(60.0, scene.queue.bring_back)
    assert scene.query.trigger() == 10


# -- what a replay needs -------------------------------------------------------------------------------


def test_a_replay_asks_for_more_though_the_broker_answers_questions_meanwhile() -> None:
    # What is carried cannot be found out about while every window is full, so it is asked about again and again.
    scene = Scene(max_messages=5, prefetch=5, dedup_window=0, replay_timeout_s=200.0)
    scene.publish(100)
    assert scene.query.trigger() == 5
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(1)
    scene.world.at(30.0, scene.queue.bring_back)
    assert scene.query.trigger() == 5
    scene.assert_exactly_once()


@pytest.mark.parametrize("urls", ["amqp://a/", "amqp://a/,amqp://b/"])
def test_a_replay_has_the_window_that_its_epoch_had_whatever_prefetch_is_now(urls: str) -> None:
    scene = Scene(max_messages=2_000, prefetch=4_000, replay_timeout_s=60.0, urls=parse_urls(urls))
    scene.publish(2_000)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    assert len(only(scene.query.source).ledger.planned.numbers(9)) == 0
    scene.query.crash()
    scene.query.settings = make_settings(max_messages=2_000, prefetch=2, replay_timeout_s=60.0)
    assert scene.query.trigger() == 2_000
    scene.query.settings = make_settings(max_messages=2_000, prefetch=4_000)
    scene.assert_exactly_once()
