"""How large epochs are, and what is waited for: a source in memory, on a clock that is turned by hand."""

from __future__ import annotations

import contextlib
from itertools import count, pairwise
from typing import Any

import pytest

from pyspark_mq.sources.epochs import EpochSource
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.settings import Guarantee
from pyspark_mq.sources.timing import Timing
from tests.support.effort import with_all
from tests.support.engine import At, Crashed
from tests.support.memory_broker import MemoryBroker, numbered
from tests.support.scene import Scene
from tests.support.simulation import Query, World, make_settings


@pytest.fixture
def world() -> World:
    return World()


def query_of(world: World, *, tells_depth: bool = True, **changes: object) -> Query:
    broker = MemoryBroker(world.process(), 1)
    settings = make_settings(**{"max_messages": 50_000, "prefetch": 100_000, **changes})
    query = Query(world, broker, settings)
    query.queue.faults.tells_depth = tells_depth
    return query


def publish(query: Query, count: int, body: bytes = b"x", *, first: int | None = None) -> None:
    for key in numbered(count, len(query.emitted) if first is None else first):
        query.queue.publish(body, key)


def test_an_epoch_takes_what_came_while_the_one_before_ran(world: World) -> None:
    """A slow sink has large epochs, and a window that stands still is never waited for."""
    query, sink_s = query_of(world, prefetch=1_000), 0.5
    query.queue.faults.rate = 400
    publish(query, 3_000)
    query.between = lambda: world.let_pass(sink_s)
    query.trigger()
    for _ in range(5):
        asked = world.now_s
        assert 190 <= query.trigger() <= 210
        assert world.now_s - asked <= sink_s + 0.01


def test_while_a_backlog_flows_triggers_cost_a_fifth_of_the_time(world: World) -> None:
    """A slow broker: each epoch is given its time."""
    query, fixed_s = query_of(world), 0.25
    query.queue.faults.rate = 2_500
    publish(query, 45_000)
    query.between = lambda: world.let_pass(fixed_s)
    query.trigger()
    began, triggers = world.now_s, 10
    for _ in range(triggers):
        query.trigger()
    assert query.queue.ready
    assert triggers * fixed_s <= 0.22 * (world.now_s - began)


def test_a_first_epoch_is_full_where_a_backlog_waits(world: World) -> None:
    query = query_of(world, max_messages=5_000)
    query.queue.faults.rate = 4_000
    publish(query, 6_000)
    assert query.trigger() == 5_000


@pytest.mark.parametrize(
    ("guarantee", "least", "most"), [(Guarantee.EXACTLY_ONCE, 500, 620), (Guarantee.NONE, 1_000, 1_000)]
)
def test_an_epoch_leaves_half_of_the_window_for_the_next_unless_it_is_acknowledged_first(
    world: World, guarantee: Guarantee, least: int, most: int
) -> None:
    query = query_of(world, prefetch=1_000, guarantee=guarantee)
    query.queue.faults.rate = 2_000
    publish(query, 6_000)
    handed_out = []

    def run() -> None:
        world.let_pass(0.5)
        handed_out.append(len(query.queue.handed_out))

    query.between = run
    assert least <= query.trigger() <= most
    # While it ran the broker went on.
    assert handed_out[0] >= 950


@pytest.mark.parametrize(
    ("limit", "options", "size"),
    [
        (800, {}, 500),
        (400, {}, 334),
        (500, {}, 500),
        (1_000, {}, 1_000),
        (800, {"consumers": 2}, 667),
        (800, {"min_messages": 700}, 700),
        (800, {"guarantee": Guarantee.NONE}, 800),
    ],
)
def test_epochs_of_a_backlog_are_of_one_size_however_fast_it_comes(
    world: World, limit: int, options: dict[str, Any], size: int
) -> None:
    query = query_of(world, max_messages=limit, prefetch=1_000, **options)
    publish(query, 6_000)
    query.between = lambda: world.let_pass(0.5)
    sizes = [query.trigger() for _ in range(6)]
    assert {found for found in sizes if found} == {size}


def test_the_next_epoch_is_what_one_leaves_of_the_window(world: World) -> None:
    query = query_of(world, prefetch=1_000)
    query.queue.faults.rate = 10_000
    publish(query, 6_000)
    query.between = lambda: world.let_pass(0.5)
    sizes = [query.trigger() for _ in range(6)]
    assert all(first + second >= 990 for first, second in pairwise(sizes))


@pytest.mark.parametrize("tells_depth", [True, False])
def test_a_trickle_is_not_delayed(world: World, tells_depth: bool) -> None:
    query = query_of(world, tells_depth=tells_depth)
    publish(query, 10)
    query.between = lambda: world.let_pass(0.3)
    query.trigger()
    for _ in range(10):
        query.trigger()
    waited = []
    for _ in range(20):
        publish(query, 100)  # while Spark is busy with the epoch before
        world.let_pass(0.2)
        asked = world.now_s
        query.between = lambda: waited.append(world.now_s - asked)  # noqa: B023
        assert query.trigger() == 100
    assert max(waited) <= 0.1


def test_a_backlog_that_nobody_hands_out_does_not_keep_what_is_here(world: World) -> None:
    # The window is full of what was let out before, or somebody else gets the rest.
    query = query_of(world, max_messages=1_000)
    query.queue.faults.rate = 100
    publish(query, 2_000)
    query.between = lambda: world.let_pass(0.3)
    for _ in range(5):
        asked = world.now_s
        assert query.trigger() > 0
        assert world.now_s - asked < 16


def test_a_bounded_run_ends_where_the_broker_keeps_what_it_reports(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    query = query_of(world)
    query.queue.faults.rate = 0  # a queue that was paused
    publish(query, 10)
    began = world.now_s
    query.bound()
    assert query.trigger() == 0
    assert 60 <= world.now_s - began < 80
    assert "delivered none" in caplog.text


def test_epochs_fit_into_the_interval_that_a_user_has_chosen(world: World) -> None:
    """`processingTime`: Spark waits for its next trigger, which looks like a price."""
    query = query_of(world)
    query.queue.faults.rate = 100
    publish(query, 12_000)
    interval_s, starts = 10.0, []

    def run_and_wait() -> None:
        world.let_pass(0.3)
        world.let_pass(interval_s - world.now_s % interval_s)
        starts.append(world.now_s)

    query.between = run_and_wait
    for _ in range(8):
        query.trigger()
    late = [later - earlier for earlier, later in pairwise(starts)]
    assert max(late[2:]) <= interval_s + 0.1


@pytest.mark.parametrize("tells_depth", [True, with_all(False)])
def test_no_call_for_an_epoch_takes_longer_than_the_page_of_times_says(
    monkeypatch: pytest.MonkeyPatch, *, tells_depth: bool
) -> None:
    scene = Scene(max_messages=1_000_000, prefetch=1_000_000)
    scene.queue.faults.tells_depth = tells_depth
    for number in range(600):
        scene.world.at(number / 20, lambda: scene.publish(100))
    took_s, latest = [], EpochSource.latest

    def timed(*positional: Any, **named: Any) -> Position:
        began_s = scene.world.now_s
        position = latest(*positional, **named)
        took_s.append(scene.world.now_s - began_s)
        return position

    monkeypatch.setattr(EpochSource, "latest", timed)
    for _ in range(30):
        scene.query.trigger()
    scene.world.cancel()
    timing = Timing()
    most_s = max(timing.first_s + timing.first_fill_s, timing.idle_s + timing.confirm_s + timing.fill_s)
    assert 0.0 < max(took_s) <= most_s


@pytest.mark.parametrize("bounded", [with_all(False), True])
def test_processes_that_die_behind_their_first_commit_get_on_and_age_nothing_unread(
    world: World, *, bounded: bool
) -> None:
    """Each hands its whole window back, so what it took has to be a part of that worth the name."""
    query = query_of(world, max_messages=1_000, prefetch=1_000)
    query.queue.faults.delivery_limit, query.queue.faults.link_rate = 20, 300.0
    publish(query, 3_000)
    query.between = lambda: world.let_pass(0.5)
    for _ in range(30):
        with contextlib.suppress(Crashed):
            if bounded:
                query.bound()
            query.trigger(At.AFTER_COMMIT_LOG)
    assert len(query.emitted) == 3_000
    assert not query.queue.dead_letters


@pytest.mark.parametrize("tells_depth", [True, False])
def test_a_bounded_run_does_not_wait_for_what_came_behind_its_end(world: World, *, tells_depth: bool) -> None:
    query = query_of(world, tells_depth=tells_depth)
    publish(query, 300)
    query.bound()
    world.let_pass(0.1)
    query.queue.faults.rate = 1_000
    publish(query, 3_000, first=300)
    began_s = world.now_s
    assert query.trigger() == 300
    assert world.now_s - began_s < 0.5


@pytest.mark.parametrize("consumers", [1, 8])
def test_a_run_of_one_epoch_takes_the_bytes_it_may_though_a_session_pauses_for_its_share(
    world: World, consumers: int
) -> None:
    query = query_of(world, max_bytes=1_000_000, consumers=consumers)
    publish(query, 400, bytes(10_000))
    assert [query.trigger_once() for _ in range(4)] == [96] * 4


def test_a_run_of_one_epoch_waits_for_what_the_broker_says_it_has(world: World) -> None:
    query = query_of(world)
    query.queue.faults.rate = 2
    publish(query, 100)
    assert query.trigger_once() >= 15


def test_the_next_bytes_come_while_an_epoch_runs(world: World) -> None:
    query, epoch = query_of(world, max_bytes=1_000_000), 96
    query.queue.faults.rate = 200
    publish(query, 20 * epoch, bytes(10_000))
    query.between = lambda: world.let_pass(1.0)
    for _ in range(3):
        query.trigger()
    waited_s = []
    for _ in range(8):
        asked_s = world.now_s
        assert query.trigger() >= epoch - 2
        waited_s.append(world.now_s - asked_s - 1.0)
    assert max(waited_s) < 0.1


def test_one_busy_queue_of_ten_has_the_bytes_of_all(world: World) -> None:
    names = tuple(f"queue-{number}" for number in range(10))
    broker = MemoryBroker(world.process(), 1)
    queues = [broker.declare(name) for name in names]
    query = Query(world, broker, make_settings(queues=names, max_bytes=300_000, prefetch=1_000))
    for number in range(480):
        queues[0].publish(bytes(10_000), f"id-{number}")
    query.between = lambda: world.let_pass(0.5)
    triggers = 0
    while len(query.emitted) < 480:
        query.trigger()
        triggers += 1
    assert triggers <= 20


@pytest.mark.parametrize(("produced", "published"), [with_all(300, 0), (50, 5_000)])
def test_a_query_that_is_always_busy_knows_its_backlog(world: World, produced: int, published: int) -> None:
    query = query_of(world)
    query.queue.faults.rate = 200
    numbers = count()

    def produce(messages: int) -> None:
        for _ in range(messages):
            query.queue.publish(b"x", f"id-{next(numbers)}")

    produce(published)
    for number in range(600):
        world.at(number / 10, lambda: produce(produced // 10))
    query.between = lambda: world.let_pass(0.2)
    began_s = world.now_s
    while world.now_s < began_s + 55:
        query.trigger()
        told = query.source.counters().backlog
        if world.now_s > began_s + 10:
            assert told is not None
            assert abs(told - len(query.queue.ready)) <= 6 * 200
    world.cancel()
