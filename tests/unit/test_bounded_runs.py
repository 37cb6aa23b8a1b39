"""Runs with an end, `Trigger.AvailableNow` and `Trigger.Once`: how far they read, and what they cost the broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyspark_mq.sources.queues.available_now import EndOfRun
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.timing import Timing
from tests.support.effort import with_all
from tests.support.engine import At, Crashed
from tests.support.memory_broker import MEMORY, MemoryBroker
from tests.support.scene import Scene
from tests.support.simulation import Query, World, make_settings


@pytest.mark.parametrize("run", ["available now", "before 4.2", with_all("triggers")])
def test_jobs_whose_sink_fails_night_after_night_do_not_empty_the_queue(run: str) -> None:
    scene = Scene(max_messages=100, prefetch=20_000, dedup_window=0, shows_start=run != "before 4.2")
    scene.queue.faults.delivery_limit = 6
    scene.publish(20_000, size=0)
    for _ in range(6):
        if run == "available now":
            assert scene.query.run_available(At.AFTER_SINK) == 0
            continue
        with pytest.raises(Crashed):
            scene.query.trigger(At.AFTER_SINK)
    # The broker counts once what a query without a checkpoint was handed, and then the open epoch and a little more.
    worn = [message for message in [*scene.queue.ready, *scene.queue.dead_letters] if message.deliveries > 1]
    assert len(worn) <= 2_100
    assert len(scene.queue.dead_letters) <= 2_100


def test_jobs_that_die_before_the_offset_log_age_a_few_messages_each() -> None:
    """Before Spark 4.2 the first plan of a process may be all of a run, and takes a whole window: once."""
    scene = Scene(max_messages=100, prefetch=20_000, dedup_window=0, shows_start=False)
    scene.publish(100)
    assert scene.query.trigger() == 100
    scene.query.crash()
    scene.publish(20_000, size=0)
    for _ in range(6):
        with pytest.raises(Crashed):
            scene.query.trigger(At.BEFORE_OFFSET_LOG)
    assert len([message for message in scene.queue.ready if message.deliveries > 1]) <= 2_200
    scene.assert_exactly_once()


def test_a_run_before_spark_4_2_that_finds_nothing_leaves_the_next_its_whole_window() -> None:
    scene = Scene(max_messages=5_000, prefetch=10_000, dedup_window=0, shows_start=False)
    for count in (10, 0, 0, 5_000):
        scene.publish(count, size=0)
        scene.world.let_pass(1.0)
        assert scene.query.trigger() == count
        assert bool([name for name in scene.query.folder.files if "alone" in name]) is (count == 5_000)
        scene.query.crash()


@pytest.mark.parametrize("tells_depth", [True, False])
def test_a_run_of_one_epoch_waits_for_a_message_that_is_on_its_way(tells_depth: bool) -> None:
    """Each run would find nothing otherwise, and a big message behind a slow link would never be read."""
    scene = Scene(shows_start=False)
    scene.queue.faults.tells_depth = tells_depth
    for count, way_s in ((1, 2.8), (1, 20.0 if tells_depth else 2.8), (0, 1.0)):
        scene.queue.faults.link_rate = 1 / way_s
        scene.publish(count)
        began_s = scene.world.now_s
        assert scene.query.trigger() == count
        assert scene.world.now_s - began_s < 2 * way_s + 10  # the redelivery of the last epoch comes first
        scene.query.crash()
    scene.assert_exactly_once()


@pytest.mark.parametrize("consumers", [1, 3])
def test_runs_of_one_epoch_age_only_their_own_messages(consumers: int) -> None:
    scene = Scene(max_messages=100, prefetch=4_000, consumers=consumers, dedup_window=0, shows_start=False)
    scene.queue.faults.delivery_limit = 20
    scene.publish(6_000, size=0)
    for _ in range(70):
        scene.query.trigger()
        scene.query.crash()
    assert not scene.queue.dead_letters
    assert len(scene.query.emitted) == 6_000
    scene.assert_exactly_once()


def test_the_only_epoch_of_a_run_does_not_wait_for_a_minimum() -> None:
    scene = Scene(max_messages=500, min_messages=500, max_delay_s=900.0, prefetch=4_000, shows_start=False)
    scene.publish(300)
    for count in (300, 0):
        assert scene.query.trigger() == count
        scene.query.crash()


@pytest.mark.parametrize(
    ("epoch", "consumers"),
    [(100, 4), (5_000, 1), *(with_all(*one) for one in ((100, 1), (2_000, 1), (2_000, 4), (5_000, 4)))],
)
def test_a_replay_that_fails_night_after_night_ages_its_epoch_and_little_more(epoch: int, consumers: int) -> None:
    scene = Scene(max_messages=epoch, prefetch=20_000, dedup_window=0, consumers=consumers)
    scene.query.running = lambda: scene.world.let_pass(5.0)
    scene.publish(20_000, size=0)
    for _ in range(5):
        assert scene.query.run_available(At.AFTER_SINK) == 0
    # The first run has no checkpoint, and takes all of its window once. What comes before Spark has shown that there is
    # a replay is a slow start.
    worn = [message for message in scene.queue.ready if message.deliveries > 1]
    assert len(worn) <= max(epoch, 2_000) + 200


def test_a_job_that_gets_on_reads_with_the_whole_prefetch() -> None:
    scene = Scene(max_messages=3_000, prefetch=9_000, dedup_window=0)
    scene.publish(9_000, size=0)
    scene.world.let_pass(1.0)
    assert scene.query.run_available() == 9_000
    assert len(scene.query.sink) == 3
    scene.publish(9_000, size=0)
    scene.world.let_pass(1.0)
    assert scene.query.run_available() == 9_000
    # The first epoch after a restart has what a slow start gives.
    assert len(scene.query.sink) <= 3 + 4


def test_a_run_of_one_epoch_takes_all_there_is_and_waits_for_no_more() -> None:
    scene = Scene(max_messages=50, prefetch=10_000, min_messages=50, max_delay_s=900.0)
    scene.publish(20)
    began_s = scene.world.now_s
    assert scene.query.trigger_once() == 20
    scene.publish(5_000, size=0)
    assert scene.query.trigger_once() == 5_000
    assert scene.world.now_s - began_s < 60


def test_minimum_and_a_full_window_do_not_wait_for_each_other() -> None:
    # A window taken by a producer's duplicates: what is left of it is less than an epoch should have.
    scene = Scene(max_messages=50, prefetch=60, min_messages=50, max_delay_s=900.0, dedup_window=0)
    began_s = scene.world.now_s
    for _ in range(10):
        for key in scene.publish(20):
            for _ in range(3):
                scene.queue.publish(b"", key)
    while len(scene.query.emitted) < 200:
        scene.query.trigger()
        assert scene.world.now_s - began_s < 100
    scene.assert_exactly_once()


@pytest.mark.parametrize("tells_depth", [True, False])
def test_a_minimum_above_the_window_of_a_single_active_consumer_is_not_waited_for(tells_depth: bool) -> None:
    scene = Scene(max_messages=500, prefetch=60, consumers=3, min_messages=150, max_delay_s=900.0)
    scene.queue.faults.single_active, scene.queue.faults.tells_depth = True, tells_depth
    for _ in range(10):
        scene.world.at(1.0, lambda: scene.publish(61))
        began_s = scene.world.now_s
        expected = len(scene.query.emitted) + 60
        while len(scene.query.emitted) < expected:
            scene.query.trigger()
            assert scene.world.now_s - began_s < 20


def test_a_minimum_is_waited_for_while_other_consumers_of_the_query_have_room() -> None:
    scene = Scene(max_messages=500, prefetch=60, consumers=3, min_messages=150, max_delay_s=900.0)
    scene.publish(100)
    began_s = scene.world.now_s
    while not scene.query.emitted:
        scene.world.at(1.0, lambda: scene.publish(1))
        scene.query.trigger()
        scene.world.let_pass(1.0)
        assert scene.world.now_s - began_s < 100
    assert len(scene.query.emitted) >= 150


def test_a_backlog_in_one_of_two_queues_does_not_wait_for_the_other() -> None:
    world = World()
    broker = MemoryBroker(world.process())
    full, _ = (broker.declare(name) for name in ("full", "empty"))
    chosen: dict[str, Any] = {"max_messages": 100, "min_messages": 80, "prefetch": 50, "max_delay_s": 900.0}
    query = Query(world, broker, make_settings(queues=("full", "empty"), **chosen))
    for number in range(1_000):
        full.publish(b"", f"id-{number}")
    began_s = world.now_s
    while len(query.emitted) < 1_000:
        query.trigger()
        assert world.now_s - began_s < 200


@pytest.mark.parametrize("rate", [with_all(5.0), 50.0])
def test_a_queue_at_its_end_that_is_written_to_leaves_the_bytes_to_the_others(rate: float) -> None:
    world = World()
    broker = MemoryBroker(world.process())
    done, slow = broker.declare("done"), broker.declare("slow")
    query = Query(world, broker, make_settings(queues=("done", "slow"), max_messages=1_000, max_bytes=8_400))
    sent = []
    for number in range(300):
        slow.publish(bytes(100), f"slow-{number}")
        sent.append(f"slow-{number} of slow")
    for number in range(10):
        done.publish(bytes(100), f"done-{number}")
        sent.append(f"done-{number} of done")
    world.let_pass(1.0)
    slow.faults.rate = rate
    for number in range(2_000):
        world.at(0.5 + number * 0.05, lambda number=number: done.publish(bytes(400), f"more-{number}"))  # type: ignore[misc]
    assert query.run_available() == 310
    assert sorted(query.emitted) == sorted(sent)
    world.cancel()
    assert done.dead_letters == []


def test_a_queue_at_its_end_is_not_read_on_whatever_comes_again_of_it() -> None:
    scene = Scene(max_messages=100, prefetch=100)
    scene.publish(10)
    scene.query.trigger()
    (queue,) = scene.query.source._queues
    end = EndOfRun(queue, scene.query.process)
    queue.coming_again += 5
    assert end.left > 0
    end.finish()
    assert end.left == 0
    queue.coming_again += 5
    assert end.left == 0


@pytest.mark.parametrize("forgets_s", [0.0, 0.5])
def test_a_broker_that_is_away_for_minutes_does_not_end_a_run(forgets_s: float) -> None:
    scene = Scene(max_messages=10, prefetch=10, reconnect_timeout_s=600.0)
    scene.publish(50)
    scene.queue.faults.forgets_s = forgets_s
    scene.query.between = lambda: scene.world.let_pass(1.0)
    scene.world.at(2.5, scene.broker.kill)
    scene.world.at(200.0, scene.broker.start)
    assert scene.query.run_available() == 50
    assert scene.world.now_s > 1_200
    scene.assert_exactly_once()


def test_a_run_of_one_epoch_gets_on_after_the_prefetch_was_lowered() -> None:
    scene = Scene(max_messages=1_000, prefetch=1_000)
    scene.publish(4_000)
    assert scene.query.trigger_once() >= 500
    scene.query.settings = replace(scene.query.settings, prefetch=100)
    assert all(scene.query.trigger_once() for _ in range(3))
    scene.assert_exactly_once()


def test_what_another_consumer_gives_back_during_a_run_takes_nobody_s_place() -> None:
    scene = Scene(max_messages=20, prefetch=40)
    scene.publish(40)
    scene.queue.take_away(40)
    there = scene.publish(200)
    scene.queue.faults.rate = 100.0
    scene.world.at(0.5, scene.queue.bring_back)
    for number in range(300):
        scene.world.at(0.1 * number, lambda: scene.publish(1))
    scene.query.run_available()
    assert set(there) <= set(scene.query.emitted)
    # It ends with about as many as there were, though it is written to.
    assert len(scene.query.emitted) <= 300
    scene.world.cancel()


@pytest.mark.parametrize("ahead_s", [with_all(1.0), 3_600.0, with_all(None), -1.5e9])
@pytest.mark.parametrize("rate", [2, with_all(20)])
def test_a_run_ends_though_a_producer_whose_clock_is_wrong_goes_on(ahead_s: float | None, rate: int) -> None:
    scene = Scene(max_messages=1_000, prefetch=2_000)
    scene.queue.faults.tells_depth, scene.queue.faults.ahead_s = False, ahead_s
    scene.publish(5_000)
    for number in range(100 * rate):
        scene.world.at(number / rate, lambda: scene.publish(1))
    began_s = scene.world.now_s
    assert scene.query.run_available() >= 5_000
    assert scene.world.now_s - began_s < 60
    scene.world.cancel()


@pytest.mark.parametrize("ahead_s", [None, -1.5e9])
def test_a_run_ends_however_fast_messages_of_unknown_age_come(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float | None
) -> None:
    monkeypatch.setattr(Runtime, "timing", Timing(unknown_age_s=40.0, claimed_age_s=40.0))
    scene = Scene(max_messages=1_000, prefetch=2_000)
    scene.queue.faults.tells_depth, scene.queue.faults.ahead_s = False, ahead_s
    for number in range(400):
        scene.world.at(number / 5, lambda: scene.publish(50))
    began_s = scene.world.now_s
    scene.query.run_available()
    assert 40 <= scene.world.now_s - began_s < 60
    scene.world.cancel()


@pytest.mark.parametrize("ahead_s", [None, -3_600.0])
def test_a_backlog_of_large_messages_over_a_slow_line_is_no_trickle(ahead_s: float | None) -> None:
    scene = Scene(max_messages=1_000, prefetch=2_000, max_bytes=1 << 30)
    scene.queue.faults.tells_depth, scene.queue.faults.ahead_s, scene.queue.faults.rate = False, ahead_s, 5.0
    for _ in range(300):
        scene.queue.publish(bytes(300_000), None)
    assert scene.query.run_available() == 300


def test_a_backlog_without_timestamps_is_read_to_its_end_also_by_slow_batches() -> None:
    scene = Scene(max_messages=100, prefetch=200)
    scene.queue.faults.tells_depth, scene.queue.faults.ahead_s = False, None
    scene.publish(2_000)
    scene.query.between = lambda: scene.world.let_pass(20.0)
    assert scene.query.run_available() == 2_000


def test_a_run_that_is_handed_nothing_of_what_waits_says_so_and_names_the_other_consumer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.publish(30)
    scene.queue.take_away(10)
    scene.queue.faults.rate = 0.0
    with caplog.at_level("WARNING"):
        assert scene.query.run_available() == 0
    assert "the broker reports waiting messages but has delivered none for 60 s" in caplog.text
    assert "1 other consumer(s)" in caplog.text


def test_what_a_run_that_failed_gave_back_is_not_counted_twice() -> None:
    # It is flagged, and among what waits.
    scene = Scene(max_messages=100, prefetch=400)
    scene.publish(1_000)
    assert scene.query.run_available(At.AFTER_SINK) == 0
    for number in range(2_000):
        scene.world.at(0.1 * number, lambda: scene.publish(1))
    scene.world.let_pass(1.0)
    assert 1_000 <= scene.query.run_available() <= 1_030
    scene.world.cancel()


@pytest.mark.parametrize("matches", [True, False])
def test_a_run_whose_selector_may_have_met_a_full_page_is_told(matches: bool, caplog: pytest.LogCaptureFixture) -> None:
    broker = replace(MEMORY, remedies={"page-size": "raise `maxPageSize`"})
    scene = Scene(broker=broker, selector="colour = 'red'")
    scene.queue.faults.tells_depth = False
    if matches:
        scene.publish(1)
    assert scene.query.run_available() == matches
    said = "matches selector \"colour = 'red'\"" in caplog.text and "raise `maxPageSize`" in caplog.text
    assert said is not matches
