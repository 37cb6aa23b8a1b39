"""What is committed is known for as long as it may come again: contract tests, on a queue in memory and a clock turned
by hand.

Nothing here looks inside of the source: what counts is what the sink has, and what is in the queue. Each contract is
one that a reader from outside broke, or would have, while an ID was remembered for a time and not by a count.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection

import pytest

from pyspark_mq.dedup import memory
from pyspark_mq.sources.journal import file_of
from tests.support.effort import with_all
from tests.support.engine import At, Crashed
from tests.support.scene import Scene

#: A turn of Spark that is killed there leaves an epoch acknowledged, or not, or open.
POINTS = list(At)


def emitted_once(scene: Scene) -> None:
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted(scene.sent)


def names(scene: Scene) -> set[str]:
    """The files that the newest one names."""
    log = scene.query._codec.log
    assert log is not None
    return file_of(log, json.loads(scene.query.offsets[max(scene.query.offsets)])["file"]).names


def batches(scene: Scene, count: int, messages: int = 1, pause_s: float = 0.5) -> None:
    for _ in range(count):
        scene.publish(messages)
        while not scene.query.trigger():
            pass
        scene.world.let_pass(pause_s)


@pytest.mark.parametrize("shows_start", [True, with_all(False)])
def test_forty_kills_beside_a_consumer_that_gives_back_after_half_an_hour(*, shows_start: bool) -> None:
    scene = Scene(max_messages=5, prefetch=20, dedup_window=10, shows_start=shows_start)
    scene.publish(5)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.queue.take_away(5)
    scene.world.at(31 * 60.0, scene.queue.bring_back)
    for _ in range(40):
        scene.publish(5)
        with contextlib.suppress(Crashed):
            scene.query.trigger(At.AFTER_COMMIT_LOG)
            scene.query.trigger(At.AFTER_COMMIT_LOG)
        scene.world.let_pass(50.0)
    emitted_once(scene)


@pytest.mark.parametrize("flags", [True, False])
@pytest.mark.parametrize("half_open_s", [with_all(0.0), 1_800.0])
@pytest.mark.parametrize("at", POINTS)
def test_a_broker_that_flags_all_or_nothing_and_keeps_a_half_open_window(
    at: At, half_open_s: float, *, flags: bool
) -> None:
    scene = Scene(max_messages=20, prefetch=100, dedup_window=0)
    scene.queue.faults.flags, scene.queue.faults.hides_lost = flags, True
    scene.publish(100)
    for _ in range(2):
        with contextlib.suppress(Crashed):
            scene.query.trigger(at)
        scene.query.crash(half_open_s)
    batches(scene, 20, 5, pause_s=2.0)
    scene.world.let_pass(half_open_s)
    emitted_once(scene)


@pytest.mark.parametrize("shows_start", [True, False])
@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_a_window_that_comes_again_in_two_hundred_seconds(rate: float, *, shows_start: bool) -> None:
    scene = Scene(max_messages=100, prefetch=200, dedup_window=0, shows_start=shows_start)
    scene.publish(100)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.queue.faults.rate = rate
    for _ in range(4):  # each process is handed a part of it
        for _ in range(12):
            scene.query.trigger()
            scene.world.let_pass(1.0)
        scene.query.crash()
    scene.queue.faults.rate = float("inf")
    emitted_once(scene)


@pytest.mark.parametrize("delay_s", [20.0, with_all(290.0)])
def test_a_broker_that_holds_redeliveries_back_without_a_word(delay_s: float) -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0, replay_timeout_s=10_000.0)
    scene.queue.faults.delay_s = scene.queue.faults.delay_max_s = delay_s
    scene.publish(60)
    for _ in range(3):
        with contextlib.suppress(Crashed):
            scene.query.trigger(At.AFTER_COMMIT_LOG)
        batches(scene, 3, 5, pause_s=4.0)
        scene.query.crash()
    scene.query.drain(100_000.0)
    assert sorted(scene.query.emitted) == sorted(scene.sent)


def test_redeliveries_behind_a_backlog_of_higher_priority() -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    scene.publish(40)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    for number in range(600):
        scene.queue.publish(b"x", f"urgent-{number}", priority=9)
        scene.sent.append(f"urgent-{number}")
    for _ in range(6):
        for _ in range(5):
            scene.query.trigger()
            scene.world.let_pass(6.0)
        scene.query.crash()
    emitted_once(scene)


@pytest.mark.parametrize("machines", [with_all(2), with_all(4), 8])
def test_several_machines_that_died_with_a_window_each(machines: int) -> None:
    scene = Scene(max_messages=10, prefetch=30, dedup_window=0)
    for number in range(machines):
        scene.publish(30)
        with contextlib.suppress(Crashed):
            scene.query.trigger(At.AFTER_COMMIT_LOG)
            scene.query.trigger(At.AFTER_COMMIT_LOG)
        scene.query.crash(unnoticed_s=100.0 + 300.0 * (machines - number))
    batches(scene, 60, 3, pause_s=60.0)
    emitted_once(scene)


@pytest.mark.parametrize("kills", [1, 5])
def test_a_producers_second_message_behind_a_restart_is_dropped(kills: int) -> None:
    scene = Scene(max_messages=10, prefetch=30, dedup_window=100)
    scene.publish(20)
    scene.query.drain()
    scene.world.let_pass(60.0)
    for _ in range(kills):
        batches(scene, 1, 5)
        scene.query.crash()
        scene.world.let_pass(100.0)
    for key in scene.sent[:20]:
        scene.queue.publish(b"x", key)
    emitted_once(scene)


def test_behind_the_window_it_is_a_message_like_any_other() -> None:
    scene = Scene(max_messages=10, prefetch=30, dedup_window=100)
    scene.publish(10)
    scene.query.drain()
    scene.world.let_pass(60.0)
    batches(scene, 30, 10, pause_s=10.0)
    scene.queue.publish(b"x", scene.sent[0])
    scene.query.drain()
    assert scene.query.emitted.count(scene.sent[0]) == 2


def test_a_second_message_with_the_id_of_one_that_a_half_open_connection_holds() -> None:
    scene = Scene(max_messages=10, prefetch=30, dedup_window=0)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_SINK)  # committed by the next process, which is handed copies of other messages
    scene.query.crash(unnoticed_s=100.0)
    for key in scene.sent:
        scene.queue.publish(b"x", key)
    assert scene.query.trigger() == 10
    batches(scene, 10, 2, pause_s=4.0)
    scene.query.crash()
    batches(scene, 10, 2, pause_s=10.0)
    emitted_once(scene)


@pytest.mark.parametrize("silent_s", [0.08, 1.0, 4.0])
@pytest.mark.parametrize("killed_after_s", [6.0, 21.0])
def test_a_broker_that_confirms_and_dies_behind_a_network_that_is_silent(
    silent_s: float, killed_after_s: float
) -> None:
    scene = Scene(max_messages=100, prefetch=400, dedup_window=0, heartbeat_s=60.0)
    scene.queue.faults.forgets_s = 10.0
    scene.publish(300)
    assert scene.query.trigger() == 100
    assert scene.query.trigger() == 100  # which acknowledges those before
    scene.world.let_pass(silent_s)
    for session in list(scene.queue.sessions):
        scene.queue.silence(session, 4.0)
    scene.broker.kill()
    began_s = scene.world.now_s
    while scene.world.now_s < began_s + killed_after_s:  # it plans on from its buffer
        scene.query.trigger()
        scene.world.let_pass(1.0)
    scene.query.crash()
    scene.broker.start()
    emitted_once(scene)


@pytest.mark.parametrize("link_rate", [with_all(20.0), 60.0])
@pytest.mark.parametrize("at", POINTS)
def test_a_slow_link_on_which_a_window_is_on_its_way(at: At, link_rate: float) -> None:
    scene = Scene(max_messages=20, prefetch=100, dedup_window=0)
    scene.queue.faults.link_rate, scene.queue.faults.tells_depth = link_rate, False
    scene.publish(200)
    for _ in range(6):
        with contextlib.suppress(Crashed):
            scene.query.trigger()
            scene.query.trigger(at)
        scene.query.crash(unnoticed_s=5.0)
        scene.world.let_pass(7.0)
    scene.queue.faults.link_rate = float("inf")
    emitted_once(scene)


@pytest.mark.parametrize("lag_s", [0.0, 0.3])
@pytest.mark.parametrize("between_s", [0.0, 0.4, 3.0])
def test_without_settle_grace_two_kills(lag_s: float, between_s: float) -> None:
    scene = Scene(max_messages=10, prefetch=60, dedup_window=0, settle_grace_s=0.0)
    scene.queue.faults.acks_s = scene.queue.faults.confirms_s = lag_s
    scene.publish(50)
    for _ in range(2):
        with contextlib.suppress(Crashed):
            scene.query.trigger()
            scene.query.trigger(At.AFTER_COMMIT_LOG)
        scene.world.let_pass(between_s)
        scene.query.crash()
    emitted_once(scene)


def test_a_pause_in_what_comes_again_regularly() -> None:
    scene = Scene(max_messages=200, prefetch=400, dedup_window=0)
    scene.publish(200)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.queue.faults.rate = 10.0
    for pause_s in (1.5, 4.0, 11.0):
        for _ in range(4):
            scene.query.trigger()
            scene.world.let_pass(1.0)
        scene.queue.faults.rate = 0.01
        scene.world.let_pass(pause_s)
        scene.query.trigger()
        scene.queue.faults.rate = 10.0
    scene.query.crash()
    scene.queue.faults.rate = float("inf")
    emitted_once(scene)


@pytest.mark.parametrize("at", [*map(with_all, POINTS[:-1]), POINTS[-1]])
def test_duplicates_that_trickle_in_keep_nothing_from_being_settled(at: At) -> None:
    scene = Scene(max_messages=20, prefetch=60, dedup_window=50)
    batches(scene, 5, 10)
    for number in range(100):
        scene.queue.publish(b"x", scene.sent[-1 - number % 10])
        batches(scene, 1, 1, pause_s=1.0)
    assert scene.counters.carried < 60
    with contextlib.suppress(Crashed):
        scene.publish(5)
        scene.query.trigger(at)
    emitted_once(scene)


def test_one_queue_of_ten_that_flaps_leaves_its_own_alone() -> None:
    queues = tuple(f"queue-{number}" for number in range(10))
    scene = Scene(max_messages=100, prefetch=100, queues=queues, dedup_window=100, remember_left=1_000)
    made = [scene.broker.declare(name) for name in queues]
    for turn in range(60):
        for queue in made:
            for number in range(5):
                queue.publish(b"x", f"{turn}-{number}")
                scene.sent.append(f"{turn}-{number} of {queue.name}")
        while not scene.query.trigger():
            pass
        for session in list(made[3].sessions):
            made[3].end(session, "it flaps")
        scene.world.let_pass(2.0)
    assert scene.counters.forgotten == 0
    scene.query.crash()
    emitted_once(scene)


@pytest.mark.parametrize("epochs", [3, 8, *map(with_all, range(4, 8))])
@pytest.mark.parametrize("shows_start", [True, False])
def test_every_file_goes_wherever_its_process_ended(
    shows_start: bool, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "KEPT_EPOCHS", 5)
    monkeypatch.setattr(memory, "FOLLOWING_MAX", 4)
    scene = Scene(max_messages=1, shows_start=shows_start, dedup_window=0, remember_left=0)
    for count in [epochs] * 4 + [30]:
        scene.query.crash()
        before = {*scene.query.folder.files}
        for _ in range(count):
            scene.publish(1)
            scene.query.trigger()
            scene.world.let_pass(30.0)  # so all of it is settled
    assert before.isdisjoint(scene.query.folder.files)
    emitted_once(scene)


@pytest.mark.parametrize("faults", [with_all("kills"), with_all("cuts"), "all"])
def test_offsets_names_and_files_stay_bounded_over_many_epochs(faults: str) -> None:
    scene = Scene(max_messages=50, prefetch=100, dedup_window=300, remember_left=400)
    for epoch in range(160):
        scene.publish(1 + epoch * 7 % 50)
        if faults in {"duplicates", "all"} and epoch % 3 == 0:
            scene.queue.publish(b"x", scene.sent[-1])
        if faults in {"kills", "all"} and epoch % 4 == 0:
            with contextlib.suppress(Crashed):
                scene.query.trigger(POINTS[epoch // 4 % len(POINTS)])
        scene.query.drain()
        if faults in {"cuts", "all"} and epoch % 5 == 0:
            scene.broker.cut(lose_acks=epoch % 2 == 0)
        scene.world.let_pass(0.3)
        assert len(names(scene)) < 97
        assert scene.query.offset_bytes < 400
    assert len(scene.query.folder.files) < 300
    # No more is known than the windows have, and what is under way.
    assert scene.counters.remembered < 2 * (300 + 400) + 1_000
    emitted_once(scene)


@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("again", [*map(with_all, POINTS[:-1]), POINTS[-1]])
def test_before_spark_4_2_killed_at_each_point_twice(at: At, again: At) -> None:
    scene = Scene(max_messages=10, prefetch=40, dedup_window=0, shows_start=False)
    scene.publish(60)
    for point in (at, again, at, again):
        with contextlib.suppress(Crashed):
            scene.query.trigger()
            scene.query.trigger(point)
        scene.query.crash(unnoticed_s=20.0)
        with contextlib.suppress(Crashed):
            scene.query.trigger(point)
    emitted_once(scene)


def test_more_than_is_remembered_is_told(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0, remember_left=50)
    for _ in range(10):
        scene.publish(20)
        with contextlib.suppress(Crashed):
            scene.query.trigger(At.AFTER_COMMIT_LOG)
    # The broker has lost what was there, so nothing of it comes again.
    scene.queue.purge()
    batches(scene, 3)
    told = [record.getMessage() for record in caplog.records if "are forgotten" in record.message]
    assert told
    assert all("queue 'orders': the IDs of 20 messages" in text for text in told)
    assert scene.counters.remembered < 200


@pytest.mark.parametrize("shows_start", [True, False])
def test_what_was_left_twice_costs_no_other_id_at_a_restart(
    monkeypatch: pytest.MonkeyPatch, *, shows_start: bool
) -> None:
    """Of a hundred IDs that were left together sixty are left again, forty of them twice."""
    monkeypatch.setattr(memory, "FOLLOWING_MAX", 2)
    scene = Scene(max_messages=100, prefetch=400, dedup_window=0, shows_start=shows_start)
    scene.queue.faults.forgets_s = 1_000.0
    query, broker, queue = scene.query, scene.broker, scene.queue
    left: set[str] = set()

    def leave(ids: Collection[str]) -> None:
        """Have these messages acknowledged, and the broker forget it."""
        queue.bring_back()
        queue.take_away(len(left), lambda message: message.id in left.difference(ids))
        for _ in range(4):
            query.trigger()
        broker.kill()
        broker.start()
        left.update(ids)
        queue.take_away(len(left), lambda message: message.id in left)
        scene.publish(1)
        for _ in range(4):
            query.trigger()
        queue.faults.forgets_s = 0.0
        scene.world.let_pass(20.0)
        for _ in range(2):
            query.trigger()
        queue.faults.forgets_s = 1_000.0

    ids = scene.publish(100)
    leave(ids)
    for first in range(0, 50, 10):
        leave(ids[first : first + 20])
    for _ in range(3):
        leave(scene.publish(30))
    for _ in range(2):
        query.crash()
        scene.publish(1)
        while not query.trigger():
            pass
    queue.bring_back()
    emitted_once(scene)
