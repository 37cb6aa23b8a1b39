"""What comes again slowly, late or behind other things: nothing of it is emitted twice, and every wait ends."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

import pytest

from pyspark_mq.dedup import Key
from pyspark_mq.errors import DataLossError
from pyspark_mq.sources.journal import Journal, file_of
from pyspark_mq.wire.url import parse_urls
from tests.support.effort import LONG, with_all
from tests.support.engine import At, Crashed
from tests.support.memory_broker import MemoryBroker, MemoryQueue, Message
from tests.support.scene import Scene
from tests.support.simulation import QUEUE, SUPERVISOR, WORKER, Query, World, make_settings, only


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
    scene.slow.faults.rate = 20.0
    scene.go_on(8.0)
    scene.query.crash()
    scene.slow.faults.rate = float("inf")
    scene.assert_exactly_once()


@pytest.mark.parametrize("rate", [0.5, 2.0, 7.0])
def test_they_may_come_as_slowly_as_that(rate: float) -> None:
    scene = TwoQueues(max_messages=1_000, max_bytes=1 << 24, prefetch=1_000, dedup_window=0)
    scene.publish("slow", 20)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.slow.faults.rate = rate
    scene.go_on(9.0)
    scene.query.crash()
    scene.slow.faults.rate = float("inf")
    scene.assert_exactly_once()


@pytest.mark.whole
def test_a_link_on_which_a_window_takes_minutes_does_not_double_what_a_half_open_connection_held() -> None:
    # What the dead connection held comes behind a window that is on its way.
    scene = Scene(max_messages=500, prefetch=4_000, dedup_window=0)
    scene.queue.faults.tells_depth = False  # nobody tells that we are alone
    scene.publish(500)
    assert scene.query.trigger() == 500
    scene.query.crash(unnoticed_s=100.0)
    scene.publish(12_000)
    scene.queue.faults.link_rate = 20.0
    until = scene.world.now_s + 280.0
    while scene.world.now_s < until:
        scene.query.trigger()
        scene.world.let_pass(2.0)
    scene.query.crash()
    scene.queue.faults.link_rate = float("inf")
    scene.assert_exactly_once()


@pytest.mark.parametrize("noticed_s", [with_all(27.0), 29.5])
def test_a_window_that_is_on_its_way_on_a_slow_link_is_no_room_for_what_comes_again(noticed_s: float) -> None:
    # What a machine that died held is ready while all of the window is on its way or here, and the question is asked
    # together with the acknowledgements that make room for it.
    scene = Scene(max_messages=100, prefetch=200, dedup_window=0, heartbeat_s=10.0)
    scene.queue.faults.tells_depth = False
    scene.publish(100)
    while len(scene.query.emitted) < 100:
        scene.query.trigger()
    scene.query.crash(unnoticed_s=noticed_s)
    scene.publish(900)
    scene.queue.faults.link_rate = 10.0
    until_s = scene.world.now_s + 160.0
    while scene.world.now_s < until_s:
        scene.query.trigger()
        scene.world.let_pass(8.0)
    scene.query.crash()
    scene.queue.faults.link_rate = float("inf")
    scene.assert_exactly_once()


def test_a_session_that_is_silent_from_its_beginning_does_not_end_a_wait() -> None:
    scene = TwoQueues(max_messages=100, prefetch=200, dedup_window=0)
    scene.publish("slow", 10)
    scene.query.trigger()
    scene.slow.faults.acks_s = 1_000.0  # what acknowledges them is on its way when the connection is reset
    scene.query.trigger()
    (session,) = scene.slow.sessions
    scene.slow.end(session, "the connection was reset")
    scene.slow.faults.rate = 0.0
    scene.go_on(0.6)
    (session,) = scene.slow.sessions
    scene.slow.silence(session, 140.0)
    scene.slow.faults.rate, scene.slow.faults.acks_s = float("inf"), 0.0
    scene.go_on(100.0)
    scene.query.crash()
    scene.assert_exactly_once()


def test_on_a_quiet_queue_everything_is_settled_soon() -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    scene.publish(20)
    scene.query.trigger()
    scene.queue.faults.confirms_s = 1_000.0
    scene.query.trigger()
    scene.broker.cut()
    scene.queue.faults.confirms_s = 0.0
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
    scene.queue.faults.rate = 8.0
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.queue.faults.rate = float("inf")
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


@pytest.mark.parametrize("back_s", [60.0, 110.0])
@pytest.mark.parametrize("who", ["process", WORKER, SUPERVISOR])
def test_who_stands_still_has_no_time_in_which_messages_could_come(who: str, back_s: float) -> None:
    scene = Scene(max_messages=10, replay_timeout_s=30.0)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)

    def stop() -> None:
        process = scene.query.process
        if who == "process":
            process.stop(100.0)
        else:
            process.starve(who, 100.0)

    scene.queue.take_away(10)
    scene.world.at(5.0, stop)
    scene.world.at(back_s, scene.queue.bring_back)
    assert scene.query.trigger() == 10


# -- what a replay needs -------------------------------------------------------------------------------


def test_a_replay_asks_for_more_though_the_broker_answers_questions_meanwhile() -> None:
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
    assert len(only(scene.query.source).in_flight.planned.epochs) == 0
    scene.query.crash()
    scene.query.settings = make_settings(max_messages=2_000, prefetch=2, replay_timeout_s=60.0)
    assert scene.query.trigger() == 2_000
    scene.query.settings = make_settings(max_messages=2_000, prefetch=4_000)
    scene.assert_exactly_once()


# -- what shows that everything has come -------------------------------------------------------


def known(scene: Scene, ids: set[str]) -> set[Key]:
    """Those that a process knows which goes on from the newest offset."""
    query = scene.query
    assert query._codec.log is not None
    journal, newest = Journal(query.settings, query._codec.log), query.position(max(query.offsets))
    journal.adopt(newest, None)
    return journal.known(QUEUE).among(ids)


def left(scene: Scene, ids: set[str]) -> set[str]:
    """Those whose messages the broker has."""
    return ids.intersection(message.id for message in [*scene.queue.ready, *scene.queue.handed_out] if message.id)


@pytest.mark.parametrize(
    "disturbance", ["a worker without a turn", with_all("a supervisor without a turn"), "another cut"]
)
def test_what_is_on_its_way_while_something_else_begins_anew_is_not_forgotten(disturbance: str) -> None:
    several = disturbance == "another cut"
    scene = Scene(
        max_messages=20, prefetch=100, dedup_window=1_000, heartbeat_s=10.0, reconnect_timeout_s=1e6,
        consumers=2 if several else 1,
    )  # fmt: skip
    scene.queue.faults.tells_depth = False
    scene.publish(1_000 * (1 + several))
    scene.query.trigger()
    scene.query.crash(unnoticed_s=25.0)
    scene.queue.faults.link_rate = 2.0
    began_s, disturbed = scene.world.now_s, False
    while scene.world.now_s < began_s + 62.0:
        scene.query.trigger()
        if not disturbed and scene.world.now_s >= began_s + 55.0:
            disturbed = True
            if several:
                scene.queue.faults.link_rate = 1e6
                scene.queue.end(scene.queue.sessions[1], "reset")
            else:
                scene.query.process.starve(*((WORKER, 0.7) if "worker" in disturbance else (SUPERVISOR, 1.3)))
        scene.world.let_pass(0.5)
    scene.query.crash()
    scene.queue.faults.link_rate = float("inf")
    scene.assert_exactly_once()


@pytest.mark.parametrize("machines", [with_all(1), 2])
def test_several_machines_that_died_may_each_have_left_a_window(machines: int) -> None:
    scene = Scene(max_messages=20, prefetch=100, dedup_window=1_000, heartbeat_s=10.0, reconnect_timeout_s=1e6)
    scene.queue.faults.tells_depth = False
    scene.publish(3_000)
    for _ in range(machines - 1):
        scene.query.source.latest(scene.query.source.initial(), 20)
        scene.query.crash(unnoticed_s=25.0)
    scene.query.trigger()
    committed = set(scene.query.emitted)
    scene.query.crash(unnoticed_s=25.0)
    for _ in range(2):  # these find it open
        scene.query.trigger()
        scene.world.let_pass(1.0)
        scene.query.trigger()
        scene.query.crash()
    assert committed == known(scene, committed)
    scene.world.let_pass(3_600.0)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    assert left(scene, committed) <= known(scene, committed)
    scene.assert_exactly_once()


def test_a_smaller_prefetch_than_that_of_before_ends_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is given back comes behind what was given back before it, as in a quorum queue."""
    give_back, count = MemoryQueue._give_back, itertools.count()

    def behind(queue: MemoryQueue, message: Message, now_s: float) -> None:
        message.rank = next(count) - 1e9
        give_back(queue, message, now_s)

    monkeypatch.setattr(MemoryQueue, "_give_back", behind)
    scene = Scene(max_messages=100, prefetch=2_000, dedup_window=1_000, heartbeat_s=10.0, reconnect_timeout_s=1e6)
    scene.publish(6_000)
    scene.query.trigger()
    committed = set(scene.query.emitted)
    scene.query.crash()
    scene.query.settings = replace(scene.query.settings, prefetch=200)
    scene.query.source._queues.start()  # is handed a window, and killed before it has looked at it
    scene.world.let_pass(0.3)
    scene.query.crash()
    for _ in range(30):
        scene.query.trigger()
        scene.world.let_pass(3.0)
        assert left(scene, committed) <= known(scene, committed)
    scene.query.crash()
    scene.assert_exactly_once()


def test_without_flags_a_whole_prefetch_may_come_before_what_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = set[str]()
    give_back = MemoryQueue._give_back

    def last(queue: MemoryQueue, message: Message, now_s: float) -> None:
        if message.id in committed:
            message.rank = 799.5
        give_back(queue, message, now_s)

    monkeypatch.setattr(MemoryQueue, "_give_back", last)
    scene = Scene(max_messages=100, prefetch=800, dedup_window=1_000, heartbeat_s=10.0, reconnect_timeout_s=1e6)
    scene.queue.faults.tells_depth, scene.queue.faults.flags = False, False
    scene.publish(2_000)
    scene.query.trigger()
    committed |= set(scene.query.emitted)
    scene.query.crash(unnoticed_s=25.0)
    for _ in range(2):
        scene.query.trigger()
        scene.world.let_pass(1.0)
        scene.query.trigger()
        scene.query.crash()
    scene.world.let_pass(3_600.0)
    _ = scene.query.source
    scene.world.at(0.05, scene.broker.cut)  # while it is handed little, as behind any restart
    for _ in range(4):
        scene.query.trigger()
        assert left(scene, committed) <= known(scene, committed)
    scene.query.crash()
    scene.assert_exactly_once()


# -- what is bounded all the same --------------------------------------------------------------


def assert_small(scene: Scene) -> None:
    """What is remembered has few names, in few files that are small, and none in the offset."""
    query = scene.query
    assert query.offset_bytes < 400
    assert query._codec.log is not None
    assert len(file_of(query._codec.log, query.position(max(query.offsets)).file).names) < 97
    assert len(query.folder.files) < 300
    # A digest has 16 bytes, and a file has some that it is about, or what is remembered in a part.
    assert max(map(len, query.folder.files.values())) < 32_768 + 17 * scene.counters.remembered


#: Triggers of a history that connections cut all the time.
TRIGGERS = 400 if LONG else 200


def cut_every(scene: Scene, life_s: float) -> None:
    def cut() -> None:
        scene.broker.cut()
        scene.world.at(life_s, cut)

    scene.world.at(life_s, cut)


@pytest.mark.parametrize(("life_s", "batch_s", "late_s"), [(30.0, 1.0, 2.0), with_all(150.0, 10.0, 10.0)])
def test_a_backlog_of_which_everything_is_flagged_leaves_few_names(
    life_s: float, batch_s: float, late_s: float
) -> None:
    """As a classic queue of RabbitMQ is after a restart."""
    scene = Scene(max_messages=50, prefetch=100, dedup_window=0, heartbeat_s=10.0, reconnect_timeout_s=1e6)
    scene.queue.faults.tells_depth, scene.queue.faults.confirms_s, scene.queue.faults.flags = False, late_s, True
    scene.publish(30_000)
    cut_every(scene, life_s)
    for _ in range(TRIGGERS):
        scene.query.trigger()
        scene.world.let_pass(batch_s)
        assert_small(scene)
    assert len(scene.query.emitted) >= 75 * TRIGGERS // 2


@pytest.mark.parametrize("life_s", [with_all(60.0), 20.0])
def test_one_session_of_two_that_gets_everything_leaves_few_names(
    life_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a single active consumer."""
    hand_out = MemoryQueue._hand_out

    def to_the_first(queue: MemoryQueue, now_s: float) -> None:
        windows = {session: session.window for session in queue.sessions}
        for session in queue.sessions[1:]:
            session.window = 0
        hand_out(queue, now_s)
        for session, window in windows.items():
            session.window = window

    monkeypatch.setattr(MemoryQueue, "_hand_out", to_the_first)
    scene = Scene(
        max_messages=50, prefetch=100, dedup_window=0, heartbeat_s=10.0, reconnect_timeout_s=1e6, consumers=2
    )  # fmt: skip
    scene.queue.faults.tells_depth, scene.queue.faults.confirms_s = False, 1.0
    scene.publish(25_000)
    cut_every(scene, life_s)
    for _ in range(TRIGGERS):
        scene.query.trigger()
        scene.world.let_pass(life_s / 10)
        assert_small(scene)
    assert len(scene.query.emitted) >= 75 * TRIGGERS // 2


@pytest.mark.parametrize(
    ("life_s", "batch_s"),
    [(5.0, 10.0), *(with_all(*s) for s in ((2.0, 5.0), (20.0, 30.0), (60.0, 90.0)))],
)
def test_connections_that_live_shorter_than_a_batch_do_not_stop_the_stream_and_leave_few_names(
    life_s: float, batch_s: float
) -> None:
    scene = Scene(
        max_messages=20, prefetch=100, dedup_window=1_000, heartbeat_s=10.0, reconnect_timeout_s=1e6,
        replay_timeout_s=1e6, max_delay_s=1.0,
    )  # fmt: skip
    scene.queue.faults.tells_depth = False
    scene.publish(5_000)
    cut_every(scene, life_s)
    scene.query.between = lambda: scene.world.let_pass(batch_s)
    emitted = [0]
    for _ in range(TRIGGERS // 100):
        until_s = scene.world.now_s + 60 * batch_s
        while scene.world.now_s < until_s:
            scene.query.trigger()
        emitted.append(len(scene.query.emitted))
        assert_small(scene)
    assert min(after - before for before, after in itertools.pairwise(emitted)) >= 400


@pytest.mark.parametrize("shows_start", [True, False])
@pytest.mark.parametrize("at", [At.AFTER_SINK, At.AFTER_COMMIT_LOG])
def test_of_equal_contents_that_were_abandoned_none_is_abandoned_twice(at: At, shows_start: bool) -> None:
    scene = Scene(shows_start=shows_start, fail_on_data_loss=False, replay_timeout_s=5.0, max_messages=50)
    query = scene.query
    for body in (b"equal", b"equal", b"other"):
        scene.queue.publish(body, None)
    with contextlib.suppress(Crashed):
        for _ in range(10):
            query.trigger(At.AFTER_OFFSET_LOG)
        pytest.fail("nothing was planned")
    scene.queue._ready.remove(next(entry for entry in scene.queue._ready if entry[-1].body == b"equal"))
    with pytest.raises(Crashed):
        query.trigger(at)
    first = query.sink.pop(0) if at is At.AFTER_SINK else query.sink[0]  # a sink that knows batch 0 skips its replay
    query.drain()
    assert query.sink[0] == first
    assert sorted(row for rows in query.sink.values() for row in rows) == ["equal", "other"]
