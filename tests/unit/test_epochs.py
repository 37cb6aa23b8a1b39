"""Epochs on the queue in memory: what is planned, replayed, settled and remembered, by a clock turned by hand."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from pyspark_mq.errors import CheckpointError, ConfigurationError, DataLossError, MessageError
from pyspark_mq.sources.settings import Guarantee, OnUnreadable
from pyspark_mq.wire.url import parse_urls
from tests.support.effort import LONG, with_all
from tests.support.engine import At, Crashed
from tests.support.memory_broker import MemorySession, MemoryStore
from tests.support.scene import Scene
from tests.support.simulation import QUEUE, Query, ids_of, make_settings, only
from tests.unit.test_redelivery import assert_small

# -- planning -----------------------------------------------------------------------------------


def test_an_epoch_has_the_oldest_messages_in_their_order_and_no_more_than_the_limit() -> None:
    scene = Scene(max_messages=20)
    scene.publish(50)
    assert [scene.query.trigger() for _ in range(3)] == [20, 20, 10]
    assert scene.query.emitted == scene.sent


def test_bytes_limit_an_epoch_and_one_message_always_fits() -> None:
    scene = Scene(max_bytes=1_000)
    scene.publish(6, size=100)
    scene.publish(1, size=5_000)
    scene.publish(2, size=100)
    assert [scene.query.trigger() for _ in range(5)] == [2, 2, 2, 1, 2]


def test_nothing_new_is_the_same_position() -> None:
    scene = Scene()
    scene.publish(3)
    scene.query.trigger()
    assert scene.query.trigger() == 0
    assert len(scene.query.offsets) == 1


def test_a_small_epoch_waits_for_company_but_not_for_ever() -> None:
    scene = Scene(min_messages=10, max_delay_s=30.0)
    scene.publish(4)
    began = scene.world.now_s
    while not scene.query.trigger():
        assert scene.world.now_s < began + 60
    assert 30 <= scene.world.now_s - began < 35
    scene.publish(10)
    began = scene.world.now_s
    while not scene.query.trigger():
        pass
    assert scene.world.now_s - began < 2


@pytest.mark.parametrize("guarantee", Guarantee)
def test_an_epoch_that_was_planned_and_not_begun_is_returned_again(guarantee: Guarantee) -> None:
    scene = Scene(max_messages=5, guarantee=guarantee)
    scene.publish(20)
    source = scene.query.source
    first = source.latest(source.initial(), 5)
    assert source.latest(source.initial(), 5) == first


@pytest.mark.parametrize("guarantee", Guarantee)
def test_the_report_has_the_messages_and_bytes_of_the_last_epoch(guarantee: Guarantee) -> None:
    scene = Scene(max_messages=20, guarantee=guarantee)
    found = []
    for count, size in ((20, 1_000), (10, 5_000)):
        scene.publish(count, size=size)
        scene.query.trigger()
        planned = scene.query.source.report()["lastPlanned"]
        assert planned["messages"] == count
        assert count * size < planned["bytes"] < 2 * count * size
        found.append(planned["epoch"])
    assert found == [1, 2]


# -- what is acknowledged, and when ---------------------------------------------------------------


def test_the_next_trigger_settles_even_if_nothing_new_comes() -> None:
    scene = Scene()
    scene.publish(5)
    assert scene.query.trigger() == 5
    assert scene.queue.acknowledged == []
    scene.query.trigger()
    assert len(scene.queue.acknowledged) == 5


def test_a_commit_of_an_epoch_that_was_not_run_here_settles_nothing() -> None:
    scene = Scene(max_messages=5)
    scene.publish(5)
    source = scene.query.source
    end = source.latest(source.initial(), 5)
    with pytest.raises(ConfigurationError, match=r"epoch 1 without asking for its messages"):
        source.commit(end)
    scene.world.let_pass(1)
    assert scene.queue.acknowledged == []
    source.payload(source.initial(), end)
    source.commit(end)
    scene.world.let_pass(1)
    assert len(scene.queue.acknowledged) == 5


@pytest.mark.parametrize("at", At)
@pytest.mark.parametrize("idle", [1, 3])
def test_before_spark_4_2_an_idle_restart_forgets_nothing(at: At, idle: int) -> None:
    # Spark compares the answer of a process that has found nothing with an offset which that has not seen.
    scene = Scene(shows_start=False, max_messages=10)
    scene.publish(10)
    assert scene.query.trigger() == 10
    scene.query.crash(unnoticed_s=3.0)
    for _ in range(idle):
        with contextlib.suppress(Crashed):
            scene.query.trigger(at)
            scene.query.crash()
    scene.publish(5)
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted(scene.sent)


def test_before_spark_4_2_a_broker_that_forgets_doubles_nothing_after_a_restart() -> None:
    scene = Scene(shows_start=False, max_messages=10)
    scene.publish(10)
    assert scene.query.trigger() == 10
    scene.query.crash(unnoticed_s=2.0)
    scene.publish(5)
    scene.queue.faults.forgets_s = 4.0  # less than `settleGrace`
    # Planned before the first ten came again, and emitted behind their acknowledgement.
    assert scene.query.trigger() == 5
    scene.broker.kill()
    scene.query.crash()
    scene.broker.start()
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted(scene.sent)


@pytest.mark.parametrize("shows_start", [True, False])
def test_another_broker_is_refused_before_anything_of_it_is_emitted(shows_start: bool) -> None:
    scene = Scene(shows_start=shows_start, max_messages=10)
    scene.publish(10)
    assert scene.query.trigger() == 10
    scene.query.crash()
    scene.publish(10)
    scene.broker.name = "another"
    with pytest.raises(CheckpointError, match=r"was written with broker 'memory', but .* is broker 'another'"):
        scene.query.trigger()
    assert scene.query.emitted == scene.sent[:10]
    assert scene.queue.acknowledged == []


# -- limits count what is kept ----------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_any_number_of_duplicates_does_not_stop_receiving(shared: bool) -> None:
    # Ten times the bytes that may be held, of messages that are dropped.
    store = MemoryStore() if shared else None
    scene = Scene(store=store, max_bytes=4_000, max_messages=10, prefetch=60)
    if store is not None:
        store.remember([f"old-{number}" for number in range(200)])
        for number in range(200):
            scene.queue.publish(bytes(100), f"old-{number}")
    else:
        scene.publish(1, size=100)
        for _ in range(200):
            scene.queue.publish(bytes(100), scene.sent[0])
    scene.publish(20, size=100)
    scene.assert_exactly_once()
    assert scene.counters.duplicates_dropped == 200


def test_rejected_messages_do_not_stop_receiving() -> None:
    from pyspark_mq.dedup import OnMissing

    scene = Scene(max_bytes=4_000, max_messages=10, prefetch=60, on_missing=OnMissing.REJECT)
    for _ in range(100):
        scene.queue.publish(bytes(100), None)
    scene.publish(20, size=100)
    scene.assert_exactly_once()
    assert scene.counters.rejected == len(scene.queue.dead_letters) == 100


@pytest.mark.whole
def test_a_thousand_pauses_cost_no_delivery() -> None:
    scene = Scene(max_bytes=2_000, max_messages=10, prefetch=100)
    scene.queue.faults.delivery_limit = 1
    scene.publish(3_000, size=400)
    scene.assert_exactly_once()
    assert scene.queue.dead_letters == []
    assert scene.counters.redelivered == 0


# -- replays ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffles", [False, True])
@pytest.mark.parametrize("at", At)
def test_a_replay_is_the_same_batch(at: At, shuffles: bool) -> None:
    scene = Scene(max_messages=10)
    scene.queue.faults.shuffles = shuffles
    scene.publish(35)
    scene.query.trigger()
    with pytest.raises(Crashed):
        scene.query.trigger(at)
    scene.assert_exactly_once()


def test_what_did_not_come_back_fails_the_query_and_is_named() -> None:
    scene = Scene(max_messages=10, replay_timeout_s=60.0)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(3)
    began = scene.world.now_s
    with pytest.raises(DataLossError) as failed:
        scene.query.trigger()
    assert 60 <= scene.world.now_s - began < 65
    assert failed.value.missing == ("id-0", "id-1", "id-2")
    assert scene.queue.acknowledged == []


@pytest.mark.parametrize("count", [10, 200])
def test_a_replay_that_failed_succeeds_in_the_same_process_once_all_came_back(count: int) -> None:
    scene = Scene(max_messages=count, prefetch=4_000, replay_timeout_s=10.0)
    scene.publish(count)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(3)
    source = scene.query.source
    start, end = source.initial(), scene.query.position(0)
    with pytest.raises(DataLossError):
        source.payload(start, end)
    scene.queue.bring_back()
    assert ids_of(source.payload(start, end)) == scene.sent


def test_after_a_file_that_could_not_be_written_only_what_is_emitted_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(prefetch=4_000)
    scene.publish(1_500)
    source = scene.query.source
    start = source.initial()

    def fail(*_: object, **__: object) -> str:
        raise CheckpointError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(source._memory._files, "put", fail)
        with pytest.raises(CheckpointError):
            source.latest(start, 5_000)
    scene.publish(300)
    while (end := source.latest(start, 5_000)) == start:
        scene.world.let_pass(1.0)
    emitted = ids_of(source.payload(start, end))
    assert emitted == scene.sent[1_500:]
    for _ in range(3):
        source.latest(end, 5_000)
        scene.world.let_pass(5.0)
    assert len(scene.queue.acknowledged) == len(emitted)


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_was_abandoned_and_comes_back_is_new(restarts: int) -> None:
    scene = Scene(max_messages=10, replay_timeout_s=10.0, fail_on_data_loss=False)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(3)
    assert scene.query.trigger() == 7
    for _ in range(3):
        scene.query.trigger()
    for _ in range(restarts):
        scene.query.crash()
        scene.query.trigger()
    scene.queue.bring_back()
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted(scene.sent)
    assert scene.broker.counts(QUEUE).total == 0


def test_a_replay_waits_while_the_broker_holds_messages_back() -> None:
    scene = Scene(max_messages=10)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(4)
    scene.world.at(120, scene.queue.bring_back)
    assert scene.query.trigger() == 10
    scene.assert_exactly_once()


# -- reconnects, and what is remembered ---------------------------------------------------------------


def test_what_a_session_holds_that_the_broker_takes_for_alive_is_recognised() -> None:
    scene = Scene(max_messages=10, heartbeat_s=5.0)
    scene.publish(10)
    scene.query.trigger()
    scene.broker.cut(unnoticed_s=25.0)
    scene.query.trigger()
    for _ in range(40):
        scene.world.let_pass(1)
        scene.publish(1)
        scene.query.trigger()
    scene.assert_exactly_once()


def test_a_pause_hides_the_consumer_but_not_what_it_holds() -> None:
    # A cancelled consumer is not counted by the broker: nobody seems to be there beside us.
    scene = Scene(max_messages=10, max_bytes=2_000, prefetch=40, heartbeat_s=5.0)
    scene.publish(40, size=100)
    scene.query.trigger()
    assert scene.queue.sessions[0].cancelled
    scene.broker.cut(unnoticed_s=14.0)
    for _ in range(60):
        scene.query.trigger()
        scene.world.let_pass(0.5)
    scene.assert_exactly_once()


#: For how long connections break again and again.
SHAKY_S = 500 if LONG else 120


@pytest.mark.parametrize(
    ("period_s", "consumers"),
    [(2.0, 1), *(with_all(s, n) for s, n in ((0.3, 2), (1.0, 2), (7.0, 2), (31.0, 1)))],
)
def test_few_names_are_remembered_for_any_period_of_reconnects(period_s: float, consumers: int) -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=100, consumers=consumers, reconnect_timeout_s=1e6)
    for number in range(1, int(SHAKY_S / period_s)):
        scene.world.at(number * period_s, scene.broker.cut)
    until_s = scene.world.now_s + SHAKY_S
    while scene.world.now_s < until_s:
        scene.publish(8)
        scene.query.trigger()
        scene.world.let_pass(0.25)
        assert scene.counters.carried < 20 * 40
    assert_small(scene)
    scene.assert_exactly_once()


@pytest.mark.parametrize("away_s", [with_all(0.0), 0.3])
@pytest.mark.parametrize(
    ("period_s", "gets_on"),
    [(2.1, True), *(with_all(s, s > 2) for s in (1.3, 1.6, 2.5))],
)
def test_a_backlog_and_connections_that_break_before_it_is_known_what_came_again(
    period_s: float, gets_on: bool, away_s: float
) -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0, reconnect_timeout_s=1e6)

    def flap() -> None:
        if away_s:
            scene.broker.kill()
            scene.world.at(away_s, scene.broker.start)
        else:
            scene.broker.cut()

    scene.queue.faults.forgets_s = 0.0
    for number in range(1, int(SHAKY_S / period_s)):
        scene.world.at(number * period_s, flap)
    carried = []
    until_s = scene.world.now_s + SHAKY_S
    while scene.world.now_s < until_s:
        scene.publish(8)
        scene.query.trigger()
        scene.world.let_pass(0.25)
        carried.append(scene.counters.carried)
    assert max(carried) < 20 * 40
    assert not gets_on or len(scene.query.emitted) > 5 * SHAKY_S
    scene.assert_exactly_once()
    for _ in range(200):
        scene.world.let_pass(0.5)
        scene.query.trigger()
    assert scene.query.source.counters().carried == 0


def test_one_end_of_a_session_that_leaves_many_ids_behind_stops_nothing_for_long() -> None:
    scene = Scene(max_messages=20, prefetch=20, dedup_window=0, settle_grace_s=60.0)
    scene.publish(4_000)
    while scene.query.trigger():
        pass
    assert scene.counters.carried == 4_000
    scene.broker.cut()
    scene.publish(100)
    began_s = scene.world.now_s
    while len(scene.query.emitted) < 4_100:
        scene.query.trigger()
    assert scene.world.now_s - began_s < 5.0
    scene.assert_exactly_once()


@pytest.mark.whole
def test_one_session_that_flaps_does_not_keep_what_the_other_settled() -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0, consumers=2, reconnect_timeout_s=1e6)
    scene.publish(20)
    scene.query.trigger()
    flapping = scene.queue.sessions[0].consumer.number

    def flap() -> None:
        steady = scene.queue.sessions[-1].consumer.number
        for session in list(scene.queue.sessions):
            if session.consumer.number not in (steady, flapping + 1) or len(scene.queue.sessions) > 1:
                scene.queue.end(session, "flapped")
                break

    for number in range(1, 600):
        scene.world.at(number, flap)
    carried = []
    while scene.world.now_s < 1_600:
        scene.publish(5)
        scene.query.trigger()
        scene.world.let_pass(0.5)
        carried.append(scene.counters.carried)
    assert max(carried[100:]) < 400
    scene.assert_exactly_once()


@pytest.mark.whole
def test_a_job_that_runs_every_few_minutes_does_not_remember_ever_more_names() -> None:
    scene = Scene(max_messages=50)
    for _ in range(120):
        scene.publish(50)
        until = scene.world.now_s + 30
        while scene.world.now_s < until:
            scene.query.trigger()
        assert_small(scene)
        scene.query.crash()
        scene.world.let_pass(270)
    scene.assert_exactly_once()


@pytest.mark.parametrize("rest_s", [0.0, 30.0])
@pytest.mark.parametrize(("life_s", "consumers"), [with_all(1.5, 1), (1.5, 2), with_all(5.0, 2)])
def test_nor_does_a_query_that_crashes_again_and_again(life_s: float, consumers: int, rest_s: float) -> None:
    scene = Scene(max_messages=20, prefetch=100, dedup_window=0, consumers=consumers)
    for _ in range(60):
        scene.publish(20)
        until = scene.world.now_s + life_s
        while scene.world.now_s < until:
            scene.query.trigger()
        assert scene.counters.carried < 20 * 40
        scene.query.crash()
        scene.world.let_pass(rest_s)
        assert_small(scene)
    scene.assert_exactly_once()


@pytest.mark.parametrize("plans", [with_all(1), 2, with_all(3)])
def test_nor_does_one_beside_a_backlog(plans: int) -> None:
    # All windows are full from beginning to end, so no session has room when it answers.
    scene = Scene(max_messages=50, prefetch=100, dedup_window=0)
    scene.publish(40 * plans * 50)
    for _ in range(30):
        for _ in range(plans):
            scene.query.trigger()
        assert scene.counters.carried <= 300
        assert_small(scene)
        scene.query.crash()
        scene.world.let_pass(100.0)
    scene.assert_exactly_once()


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_left_is_recognised_many_hours_later(restarts: bool) -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    scene.publish(20)
    scene.query.trigger()
    scene.queue.faults.acks_s = 1_000.0
    scene.query.trigger()
    scene.broker.cut()
    scene.queue.faults.acks_s = 0.0
    scene.queue.take_away(20)
    for _ in range(10):
        scene.publish(1)
        scene.query.trigger()
        assert scene.counters.remembered >= 20
        if restarts:
            scene.query.crash()
        scene.world.let_pass(7_200.0)
    scene.queue.bring_back()
    scene.assert_exactly_once()
    assert scene.counters.duplicates_dropped >= 20


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_producer_sends_again_is_recognised_within_the_window_whoever_reads(restarts: bool) -> None:
    scene = Scene(max_messages=10, dedup_window=40, settle_grace_s=1.0)
    scene.publish(10)
    go_on(scene, 5.0)  # so that they are settled, and not left by a restart
    for again in (1, 2):
        if restarts:
            scene.query.crash()
        scene.queue.publish(b"", "id-0")
        scene.query.drain()
        assert scene.query.emitted.count("id-0") == again
        go_on(scene, 30.0)


def test_what_was_left_long_before_is_forgotten_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(max_messages=10, dedup_window=0, remember_left=15)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    go_on(scene, 5.0)
    assert (scene.counters.duplicates_dropped, scene.counters.forgotten) == (10, 0)
    for _ in range(5):
        scene.broker.cut()
        go_on(scene, 5.0)
    assert scene.counters.forgotten >= 10
    assert "are forgotten" in caplog.text
    scene.queue.publish(b"", "id-0")
    scene.query.drain()
    assert scene.query.emitted.count("id-0") == 2


def test_what_a_process_was_handed_and_took_along_unseen_is_known_to_those_after_it() -> None:
    """The broker gives back late, as a rule, and each process is killed in the middle of a batch."""
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    scene.queue.faults.delay_s = scene.queue.faults.delay_max_s = 15.0
    scene.publish(20)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)  # committed, and not acknowledged
    scene.publish(1)
    scene.query.between = lambda: scene.world.let_pass(16.0)  # they come meanwhile
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    scene.query.between = lambda: None
    for _ in range(20):  # for longer than is left of the first wait
        scene.publish(1)
        scene.query.trigger()
        scene.world.let_pass(0.7)
    scene.query.crash()
    scene.assert_exactly_once()


def test_an_epoch_whose_messages_were_sent_many_times_is_settled_although_the_window_is_full_of_it() -> None:
    scene = Scene(max_messages=5, prefetch=12, dedup_window=0, shows_start=False)
    scene.publish(5)
    for _ in range(7):
        scene.queue.publish(b"", "id-0")
    assert scene.query.trigger() == 5
    scene.publish(5)
    deadline = scene.world.now_s + 60
    while len(scene.query.emitted) < 10:
        scene.query.trigger()
        assert scene.world.now_s < deadline
    assert sorted(scene.query.emitted) == sorted(scene.sent)


# -- what comes late -----------------------------------------------------------------------------------------


def delayed(delay_s: float, **settings: Any) -> Scene:
    """A queue that holds back what comes again, and a query that was cut off behind a commit."""
    scene = Scene(max_messages=10, dedup_window=0, **settings)
    scene.queue.faults.delay_s = delay_s
    scene.publish(30)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    return scene


def go_on(scene: Scene, seconds: float) -> None:
    until = scene.world.now_s + seconds
    while scene.world.now_s < until:
        scene.publish(1)
        scene.query.trigger()
        scene.world.let_pass(0.2)


def test_what_the_broker_holds_back_is_recognised_when_it_comes() -> None:
    scene = delayed(40.0)
    go_on(scene, 35.0)
    scene.query.crash()
    scene.assert_exactly_once()


def test_a_broker_that_does_not_count_lost_consumers_is_not_believed_that_we_are_alone() -> None:
    scene = Scene(max_messages=10, dedup_window=0)
    scene.queue.faults.hides_lost = True
    scene.publish(30)
    scene.query.trigger()
    # Its node is lost, and another one keeps the messages for a while.
    scene.query.crash(unnoticed_s=25.0)
    go_on(scene, 15.0)
    scene.query.crash()
    scene.assert_exactly_once()


def test_a_replay_holds_no_more_bytes_than_it_may_whatever_comes_before_its_messages() -> None:
    scene = Scene(max_messages=10, max_bytes=21_000, prefetch=200, dedup_window=0)
    scene.publish(10, size=100)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    for number in range(2_000):
        key = f"urgent-{number}"
        scene.queue.publish(bytes(100), key, priority=9)
        scene.sent.append(key)
    held, lane = [], only(scene.query.source)
    drain_events = lane.drain_events

    def watched() -> None:
        drain_events()
        inbox = sum(len(raw.message.body) for session in scene.queue.sessions for raw in session.consumer.buffer.inbox)
        held.append(lane.held_bytes + inbox)

    lane.drain_events = watched  # type: ignore[method-assign]
    assert scene.query.trigger() == 10
    # Two epochs, the replay's own, and what comes with one look.
    assert max(held) <= 2 * 21_000 + 4_200 + 2 * 21_000
    scene.assert_exactly_once()
    assert scene.queue.dead_letters == []


@pytest.mark.parametrize("confirms_s", [0.0, 1_000.0])
def test_what_a_replay_lets_go_is_covered_by_no_acknowledgement_and_comes_again(confirms_s: float) -> None:
    scene = Scene(max_messages=2, max_bytes=100, prefetch=200, dedup_window=0)
    for key, priority in (("first", 9), ("last", 0)):
        scene.queue.publish(bytes(300 if priority else 10), key, priority=priority)
        scene.sent.append(key)
    # Each is more than an epoch may have.
    assert scene.query.trigger() == 1
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    # Both come again, the others between them.
    for number in range(40):
        key = f"between-{number}"
        scene.queue.publish(bytes(300), key, priority=5)
        scene.sent.append(key)
    scene.queue.faults.confirms_s = confirms_s
    assert scene.query.trigger() == 1
    scene.publish(5)  # behind what was let go
    began = scene.world.now_s
    while scene.world.now_s < began + 20:
        scene.query.trigger()
    assert scene.counters.reconnects >= 1
    scene.queue.faults.confirms_s = 0.0
    scene.broker.cut()
    scene.assert_exactly_once()


def tell_delay(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have the broker tell for how long it holds back what comes again."""
    honest = MemorySession.open

    def telling(self: MemorySession, *args: Any) -> Any:
        greeting = honest(self, *args)
        return replace(greeting, facts=replace(greeting.facts, redelivery_delay_s=seconds))

    monkeypatch.setattr(MemorySession, "open", telling)


@pytest.mark.parametrize("tells", [with_all(True), False])
def test_a_replay_asks_for_no_more_while_the_broker_says_that_it_holds_its_messages_back(
    tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tells:
        tell_delay(monkeypatch, 60.0)
    scene = Scene(max_messages=10, prefetch=50)
    scene.queue.faults.delay_s = 50.0
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.publish(1_000)
    assert scene.query.trigger() == 10
    assert (scene.counters.unacked <= 100) is tells
    scene.assert_exactly_once()


def test_a_delay_that_no_replay_waits_for_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_delay(monkeypatch, 400.0)
    Scene(max_messages=10).query.trigger()
    warned = [record for record in caplog.records if "delays redeliveries" in record.message]
    assert "replayTimeout=300s" in warned[0].message


@pytest.mark.parametrize(("urls", "reconnects"), [("amqp://a/,amqp://b/", 1), ("amqp://a/", 0)])
def test_a_node_that_has_messages_and_hands_none_out_is_left_for_another(urls: str, reconnects: int) -> None:
    scene = Scene(max_messages=20, urls=parse_urls(urls))
    scene.publish(20)
    scene.query.trigger()
    scene.query.trigger()
    (cut_off,) = scene.queue.sessions
    cut_off.cancelled = True  # and it goes on to answer
    scene.publish(20)
    until = scene.world.now_s + 45
    while scene.world.now_s < until:
        scene.query.trigger()
    assert scene.counters.reconnects == reconnects
    assert len(scene.query.emitted) == (40 if reconnects else 20)


# -- what is said ------------------------------------------------------------------------------------------


def test_another_consumer_is_told_of_once_it_cannot_be_a_dead_connection_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(max_messages=10, heartbeat_s=2.0)
    other = Query(scene.world, scene.broker, make_settings(max_messages=10, heartbeat_s=2.0))
    other.trigger()
    scene.publish(40)
    told = []
    for _ in range(120):
        scene.query.trigger()
        other.trigger()
        scene.world.let_pass(0.5)
        told.append(sum("other consumer" in record.message for record in caplog.records))
    assert told[10] == 0
    assert told[-1] == 2  # each of the two, once
    assert sorted([*scene.query.emitted, *other.emitted]) == sorted(scene.sent)


def test_a_dead_connection_of_our_own_is_no_other_consumer(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(max_messages=10, heartbeat_s=2.0)
    scene.publish(10)
    scene.query.trigger()
    scene.broker.cut(unnoticed_s=5.0)
    for _ in range(100):
        scene.query.trigger()
        only(scene.query.source).connections.refresh_depth()
        scene.world.let_pass(0.5)
    assert not [record for record in caplog.records if "other consumer" in record.message]


def test_ids_that_a_lower_guarantee_does_not_use_are_said(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(max_messages=10)
    scene.publish(10)
    scene.query.trigger()
    scene.query.crash()
    scene.query.settings = make_settings(max_messages=10, guarantee=Guarantee.AT_LEAST_ONCE)
    scene.query.trigger()
    assert [record for record in caplog.records if "does not use them" in record.message]


# -- bounded runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells_depth", [True, False])
def test_a_bounded_run_takes_what_was_there_and_ends(tells_depth: bool) -> None:
    scene = Scene(max_messages=20)
    scene.queue.faults.tells_depth = tells_depth
    scene.publish(50)
    scene.world.let_pass(1)
    scene.query.bound()
    scene.world.let_pass(1)
    scene.publish(30)
    rows = 0
    while size := scene.query.trigger():
        rows += size
    assert rows == 50
    assert scene.broker.counts(QUEUE).total == 30


def test_a_timestamp_from_the_future_does_not_end_every_run_empty() -> None:
    scene = Scene(max_messages=20)
    scene.queue.faults.tells_depth = False
    scene.publish(10)
    scene.queue.ready[0].published_us *= 1_000  # milliseconds for seconds
    scene.world.let_pass(1)
    scene.query.bound()
    assert scene.query.trigger() == 10


# -- messages that cannot be decoded ----------------------------------------------------------------------


def odd_scene(decision: OnUnreadable, **settings: Any) -> Scene:
    """Twenty good messages around one that is not."""
    scene = Scene(on_unreadable=decision, max_messages=10, **settings)
    scene.publish(10)
    scene.queue.publish(b"odd bytes", None)
    scene.queue.ready[-1].odd = "ValueError: nanoseconds"
    scene.publish(10)
    return scene


def test_an_unreadable_message_fails_the_query_and_is_named() -> None:
    scene = odd_scene(OnUnreadable.FAIL)
    with pytest.raises(MessageError) as failed:
        scene.query.trigger()
    for words in ("queue 'orders'", "delivery 11", "nanoseconds", "onUnreadableMessage", "not acknowledged"):
        assert words in str(failed.value)
    assert scene.queue.acknowledged == []


def test_an_unreadable_message_is_rejected_and_what_is_around_it_is_emitted() -> None:
    scene = odd_scene(OnUnreadable.REJECT)
    scene.assert_exactly_once()
    assert [message.body for message in scene.queue.dead_letters] == [b"odd bytes"]
    assert scene.counters.rejected == 1


@pytest.mark.parametrize("at", At)
def test_an_unreadable_message_is_a_row_also_in_a_replay(at: At) -> None:
    scene = odd_scene(OnUnreadable.ROW)
    scene.query.trigger()
    with pytest.raises(Crashed):
        scene.query.trigger(at)
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted([*scene.sent, "odd bytes"])
    assert scene.queue.dead_letters == []


# -- the other guarantees ---------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_without_ids_everything_comes_and_the_bytes_held_are_bounded(guarantee: Guarantee) -> None:
    scene = Scene(guarantee=guarantee, max_bytes=4_200, max_messages=10, prefetch=100)
    scene.publish(200, size=100)
    held = []
    while scene.query.trigger():
        held.append(only(scene.query.source).held_bytes)
    assert sorted(scene.query.emitted) == sorted(scene.sent)
    assert max(held) <= 3 * 4_200


def test_an_old_range_that_is_asked_for_again_does_not_set_the_source_back() -> None:
    scene = Scene(guarantee=Guarantee.AT_LEAST_ONCE, max_messages=10)
    scene.publish(30)
    assert [scene.query.trigger() for _ in range(4)] == [10, 10, 10, 0]
    scene.query.crash()
    start, end, last = (scene.query.position(batch) for batch in (0, 1, 2))
    source = scene.query.source
    assert source.latest(last, 10) == last
    source.payload(start, end)
    assert source.latest(last, 10) == last


def test_the_log_says_so_once_where_no_confirmation_comes_for_long(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(max_messages=10)
    scene.queue.faults.confirms_s = 1_000.0
    scene.publish(10)
    scene.query.trigger()
    began_s = scene.world.now_s
    while (passed_s := scene.world.now_s - began_s) < 130.0:
        said = [record.message for record in caplog.records if "has confirmed none" in record.message]
        assert len(said) <= (passed_s >= 60.0)
        scene.query.trigger()
    (text,) = said
    assert "queue 'orders'" in text
    assert "'prefetch'" in text
