"""Several queues in one query: one epoch over all of them, fair shares, and queues that come and go."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from pyspark_mq.errors import BrokerUnavailableError, CheckpointError, DataLossError, DestinationError
from pyspark_mq.sources.batch_sizing import fair_shares
from pyspark_mq.sources.settings import Guarantee
from tests.support.effort import LONG, with_all
from tests.support.engine import At, Crashed
from tests.support.memory_broker import MemoryBroker, MemoryQueue
from tests.support.simulation import QUEUE, Query, World, make_settings

NAMES = ("orders-1", "orders-2", "orders-3")


class Scene:
    """A query on some queues in memory. A message is `number` of `queue`."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.sent: list[str] = []
        self.query = Query(self.world, self.broker, self.settings(*(names or NAMES), **settings))
        self.more = settings

    def settings(self, *names: str, **settings: Any) -> Any:
        several = {"queues": names} if len(names) > 1 else {}
        made = make_settings(**{"prefetch_is_shared": True, **settings}, **several)
        return made if several else replace(made, endpoint=replace(made.endpoint, queue=names[0]))

    def publish(self, name: str, count: int, size: int = 10) -> None:
        queue = self.broker.declare(name)
        first = len(self.sent)
        for number in range(first, first + count):
            queue.publish(bytes(size), f"id-{number}")
            self.sent.append(f"id-{number} of {name}")

    def restart(self, *names: str, **settings: Any) -> None:
        """The query ends, and another one goes on from its checkpoint."""
        self.query.crash()
        before = self.query
        self.query = Query(
            self.world, self.broker, self.settings(*names, **{**self.more, **settings}), sink=before.sink
        )
        self.query.offsets, self.query.committed, self.query.folder = before.offsets, before.committed, before.folder
        self.query._codec = self.query._make_codec()

    @property
    def emitted(self) -> list[str]:
        """All rows, as `sent` has them, whatever the query was called then."""
        return [row if " of " in row else f"{row} of {QUEUE}" for row in self.query.emitted]

    def assert_exactly_once(self) -> None:
        self.query.drain()
        assert sorted(self.emitted) == sorted(self.sent)

    def rows(self, batch: int) -> dict[str, int]:
        """How many rows of each queue a batch has."""
        names = [row.split(" of ")[1] for row in self.query.sink[batch]]
        return {name: names.count(name) for name in dict.fromkeys(names)}


# -- shares ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "wants", "shares"),
    [
        (10, [], []),
        (10, [3], [3]),
        (2, [3], [2]),
        (9, [100, 100, 100], [3, 3, 3]),
        (10, [100, 1, 100], [5, 1, 4]),
        (10, [0, 2, 100], [0, 2, 8]),
        (2, [5, 5, 5], [1, 1, 0]),
        (0, [5, 5], [0, 0]),
        (100, [1, 2, 3], [1, 2, 3]),
    ],
)
def test_shares_are_fair(total: int, wants: list[int], shares: list[int]) -> None:
    assert fair_shares(total, wants) == shares


# -- one epoch over all ------------------------------------------------------------------------


def test_an_epoch_has_messages_of_all_queues_each_in_its_order() -> None:
    scene = Scene()
    for name in NAMES:
        scene.publish(name, 5)
    scene.query.trigger()
    assert scene.query.sink[0] == scene.sent
    scene.assert_exactly_once()


def test_the_limit_holds_over_all_queues_and_each_has_its_share() -> None:
    scene = Scene(max_messages=30)
    scene.publish(NAMES[0], 500)
    scene.publish(NAMES[1], 500)
    scene.publish(NAMES[2], 4)
    scene.query.trigger()
    assert scene.rows(0) == {NAMES[0]: 13, NAMES[1]: 13, NAMES[2]: 4}
    scene.assert_exactly_once()


def test_a_small_queue_beside_a_large_one_waits_for_one_epoch_at_most() -> None:
    scene = Scene(max_messages=20)
    for name in NAMES:
        scene.publish(name, 0)
    scene.publish(NAMES[0], 2_000)
    scene.query.trigger()
    scene.query.trigger()
    scene.publish(NAMES[1], 1)
    scene.world.let_pass(0.1)
    scene.query.trigger()
    assert any(row.endswith(NAMES[1]) for row in scene.query.emitted)
    scene.assert_exactly_once()


@pytest.mark.parametrize("large", NAMES)
def test_a_message_larger_than_any_share_of_the_bytes_gets_on(large: str) -> None:
    scene = Scene(max_bytes=4_000, max_messages=1_000)
    for name in NAMES:
        scene.publish(name, 40, size=3_600 if name == large else 100)
    scene.assert_exactly_once()
    most = max(sum(3_600 if row.endswith(large) else 100 for row in rows) for rows in scene.query.sink.values())
    assert most <= 4_000 + 3_600


def test_bytes_held_are_bounded_over_all_queues() -> None:
    scene = Scene(max_bytes=12_600, max_messages=10)
    for name in NAMES:
        scene.publish(name, 300, size=100)
    held = []

    def look() -> None:
        lanes = list(scene.query.source._queues)
        inbox = sum(len(raw.message.body) for queue in scene.query.queues for session in queue.sessions
                    for raw in session.consumer.buffer.inbox)  # fmt: skip
        held.append(sum(lane.held_bytes for lane in lanes) + inbox)
        scene.world.let_pass(5.0)

    scene.query.between = look
    while scene.query.trigger():
        pass
    # Two epochs, and what each of the connections takes before it pauses.
    assert max(held) <= 2 * 12_600 + 3 * 840
    scene.assert_exactly_once()


def test_a_pause_ends_when_half_of_the_bytes_of_all_queues_are_gone() -> None:
    scene = Scene(NAMES[0], NAMES[1], max_bytes=8_400, max_messages=1_000)
    for name in NAMES[:2]:
        scene.publish(name, 100, size=100)
    scene.query.trigger()
    scene.world.let_pass(3.0)
    assert all(lane.connections.paused for lane in scene.query.source._queues)
    scene.assert_exactly_once()
    assert not any(lane.connections.paused for lane in scene.query.source._queues)


def test_the_same_id_in_two_queues_is_two_messages() -> None:
    scene = Scene(NAMES[0], NAMES[1])
    for name in NAMES[:2]:
        scene.broker.declare(name).publish(b"copy", "the-same")
        scene.sent.append(f"the-same of {name}")
    scene.assert_exactly_once()


def test_a_default_prefetch_is_shared_and_one_that_was_set_is_not() -> None:
    def of_each(count: int, **settings: Any) -> list[int]:
        names = tuple(f"orders-{number}" for number in range(count))
        return [one.prefetch for one in make_settings(queues=names, prefetch=9_000, **settings).by_queue()]

    assert of_each(3, prefetch_is_shared=True) == [3_000] * 3
    assert of_each(100, prefetch_is_shared=True) == [1_000] * 100
    assert of_each(3) == [9_000] * 3


def test_one_queue_that_breaks_says_nothing_about_another() -> None:
    scene = Scene(NAMES[0], NAMES[1], max_messages=20)
    for name in NAMES[:2]:
        scene.publish(name, 100)
    scene.query.trigger()
    broken = scene.broker.declare(NAMES[0])
    for _ in range(30):
        for session in list(broken.sessions):
            broken.end(session, "cut")
        scene.query.trigger()
        scene.world.let_pass(0.3)
    assert sum(row.endswith(NAMES[1]) for row in scene.query.emitted) == 100
    scene.assert_exactly_once()


def test_a_bounded_run_reads_each_queue_as_far_as_it_went() -> None:
    scene = Scene(max_messages=20)
    for name in NAMES:
        scene.publish(name, 30)
    scene.query.bound()
    sent = list(scene.sent)
    for name in NAMES:
        scene.publish(name, 30)
    while scene.query.trigger():
        pass
    assert sorted(scene.query.emitted) == sorted(sent)


def test_a_bounded_run_with_an_empty_queue_ends() -> None:
    scene = Scene()
    scene.publish(NAMES[1], 30)
    for name in NAMES:
        scene.broker.declare(name)
    scene.query.bound()
    while scene.query.trigger():
        pass
    assert sorted(scene.emitted) == sorted(scene.sent)


# -- restarts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at", At)
def test_a_replay_is_the_same_batch_over_all_queues(at: At) -> None:
    scene = Scene(max_messages=20)
    for name in NAMES:
        scene.publish(name, 30)
    for _ in range(3):
        with pytest.raises(Crashed):
            scene.query.trigger(at)
        for name in NAMES:
            scene.publish(name, 5)
        scene.query.trigger()
    scene.assert_exactly_once()


def test_the_order_of_the_names_is_of_no_importance_to_a_replay() -> None:
    scene = Scene(max_messages=20)
    for name in NAMES:
        scene.publish(name, 30)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_SINK)
    scene.restart(*reversed(NAMES))
    scene.assert_exactly_once()


def test_queues_are_added_to_a_checkpoint_of_one() -> None:
    scene = Scene(QUEUE, max_messages=20)
    scene.publish(QUEUE, 50)
    scene.query.trigger()
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.query.sink = {batch: [f"{row} of {QUEUE}" for row in rows] for batch, rows in scene.query.sink.items()}
    scene.publish("new", 50)
    scene.restart(QUEUE, "new")
    scene.assert_exactly_once()


@pytest.mark.parametrize("at", [At.AFTER_COMMIT_LOG, At.BEFORE_OFFSET_LOG])
def test_a_queue_of_which_nothing_is_planned_can_be_left_away_and_comes_back(at: At) -> None:
    scene = Scene(max_messages=30)
    for name in NAMES:
        scene.publish(name, 30)
    scene.query.trigger()
    with pytest.raises(Crashed):
        scene.query.trigger(at)
    scene.restart(NAMES[0], NAMES[2])
    for _ in range(5):
        scene.query.trigger()
    assert sum(row.endswith(NAMES[1]) for row in scene.query.emitted) in (10, 20)
    scene.restart(*NAMES)
    scene.assert_exactly_once()


def test_a_query_goes_on_with_one_of_its_queues() -> None:
    scene = Scene(NAMES[0], NAMES[1], max_messages=20)
    for name in NAMES[:2]:
        scene.publish(name, 30)
    scene.query.trigger()
    scene.restart(NAMES[0])
    scene.query.drain()
    assert sum(row.startswith("id-") and " of " not in row for row in scene.query.emitted) == 20


def test_a_queue_with_planned_messages_cannot_be_left_away() -> None:
    scene = Scene(max_messages=30)
    for name in NAMES:
        scene.publish(name, 30)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.restart(NAMES[0], NAMES[2])
    with pytest.raises(CheckpointError, match=r"10 of queue 'orders-2'.*Read these queues.*'failOnDataLoss'"):
        scene.query.trigger()
    scene.restart(*NAMES)
    scene.assert_exactly_once()


def test_without_failing_on_data_loss_it_can_and_what_comes_back_is_new() -> None:
    scene = Scene(max_messages=30, fail_on_data_loss=False)
    for name in NAMES:
        scene.publish(name, 30)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.restart(NAMES[0], NAMES[2])
    scene.query.drain()
    scene.restart(*NAMES)
    scene.assert_exactly_once()


def test_a_checkpoint_of_other_queues_is_refused() -> None:
    scene = Scene(NAMES[0], NAMES[1])
    for name in NAMES[:2]:
        scene.publish(name, 3)
    scene.query.trigger()
    for names in [("x", "y"), ("x",)]:
        scene.restart(*names)
        with pytest.raises(CheckpointError, match=r"'x'.* written for queues 'orders-1', .*reads none of them"):
            scene.query.trigger()


def test_messages_that_do_not_come_back_are_named_by_queue() -> None:
    scene = Scene(NAMES[0], NAMES[1], max_messages=10, replay_timeout_s=30.0)
    for name in NAMES[:2]:
        scene.publish(name, 5)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.broker.declare(NAMES[1]).take_away(3)
    with pytest.raises(DataLossError, match="queue 'orders-2': 3 of 5 messages of epoch") as lost:
        scene.query.trigger()
    assert len(lost.value.missing) == 3


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_the_lower_guarantees_read_several_queues(guarantee: Guarantee) -> None:
    scene = Scene(guarantee=guarantee, max_messages=20)
    for name in NAMES:
        scene.publish(name, 30)
    scene.assert_exactly_once()


# -- queues by a pattern ----------------------------------------------------------------------


class Patterned(Scene):
    """A query that looks for its queues."""

    def settings(self, *names: str, **settings: Any) -> Any:
        made = make_settings(pattern="orders-.*", pattern_interval_s=60.0, prefetch_is_shared=True, **settings)
        return replace(made, endpoint=replace(made.endpoint, queue="orders-.*"))


def test_queues_that_match_are_read_and_others_are_not() -> None:
    scene = Patterned(max_messages=20)
    for name in NAMES:
        scene.publish(name, 30)
    sent = list(scene.sent)
    scene.publish("my-orders-1", 5)
    scene.query.drain()
    assert sorted(scene.emitted) == sorted(sent)


def test_a_queue_that_comes_later_is_read_from_the_next_look_on() -> None:
    scene = Patterned(max_messages=20)
    assert scene.query.trigger() == 0
    for name in NAMES:
        scene.publish(name, 10)
        scene.query.trigger()
        scene.world.let_pass(61.0)
        scene.query.trigger()
    scene.assert_exactly_once()


@pytest.mark.parametrize("at", At)
def test_a_restart_finds_them_again(at: At) -> None:
    scene = Patterned(max_messages=20)
    for name in NAMES[:2]:
        scene.publish(name, 30)
    scene.query.trigger()
    with pytest.raises(Crashed):
        scene.query.trigger(at)
    scene.publish(NAMES[2], 30)
    scene.assert_exactly_once()


def test_a_queue_that_is_deleted_ends_and_may_come_again() -> None:
    scene = Patterned(max_messages=20)
    for name in NAMES:
        scene.publish(name, 10)
    scene.query.between = lambda: scene.broker.delete(NAMES[1])
    scene.query.trigger()
    scene.query.between = lambda: None
    # Its payload was here: what was planned is emitted.
    planned = len(scene.query.emitted)
    scene.world.let_pass(1.0)
    scene.publish(NAMES[0], 5)
    for _ in range(5):
        scene.query.trigger()
    assert len(scene.query.emitted) > planned
    scene.publish(NAMES[1], 7)
    scene.world.let_pass(61.0)
    scene.query.drain()
    assert sum(row.endswith(NAMES[1]) for row in scene.query.emitted[planned:]) == 7


def test_a_named_queue_that_is_deleted_fails_the_query() -> None:
    scene = Scene(NAMES[0], NAMES[1])
    for name in NAMES[:2]:
        scene.publish(name, 3)
    scene.query.trigger()
    scene.broker.delete(NAMES[1])
    scene.world.let_pass(5.0)
    with pytest.raises(DestinationError, match="queue 'orders-2' does not exist"):
        scene.query.trigger()


def test_planned_messages_of_a_deleted_queue_are_refused_at_a_restart() -> None:
    scene = Patterned(max_messages=30)
    for name in NAMES:
        scene.publish(name, 30)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.broker.delete(NAMES[1])
    scene.sent = [row for row in scene.sent if not row.endswith(NAMES[1])]
    with pytest.raises(CheckpointError, match="10 of queue 'orders-2'"):
        scene.query.trigger()
    scene.restart(fail_on_data_loss=False)
    scene.assert_exactly_once()


def test_a_bounded_run_ends_although_a_queue_is_deleted() -> None:
    scene = Patterned(max_messages=10)
    for name in NAMES:
        scene.publish(name, 30)
    scene.query.bound()
    scene.query.trigger()
    scene.broker.delete(NAMES[1])
    while scene.query.trigger():
        pass
    assert sum(not row.endswith(NAMES[1]) for row in scene.query.emitted) == 60


def test_a_run_of_one_epoch_does_not_wait_for_a_queue_that_is_deleted() -> None:
    scene = Patterned()
    scene.publish(NAMES[0], 1)
    scene.broker.declare(NAMES[0]).faults.link_rate = 1 / 20
    scene.world.at(5.0, lambda: scene.broker.delete(NAMES[0]))
    assert scene.query.trigger_once() == 0
    assert scene.world.now_s < 1_000 + 20


def test_a_listing_that_fails_later_leaves_the_queues_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    scene = Patterned(max_messages=10)
    scene.publish(NAMES[0], 5)
    scene.query.trigger()
    scene.broker.kill()
    scene.world.let_pass(100.0)
    assert "still reading the queues known so far" in caplog.text
    scene.broker.start()
    scene.publish(NAMES[1], 5)
    scene.world.let_pass(61.0)
    scene.assert_exactly_once()


def test_a_broker_that_is_not_there_when_the_query_starts_is_waited_for() -> None:
    scene = Patterned(max_messages=10)
    scene.publish(NAMES[0], 5)
    scene.broker.kill()
    scene.world.at(10.0, scene.broker.start)
    scene.assert_exactly_once()
    scene.query.crash()
    scene.broker.kill()
    with pytest.raises(BrokerUnavailableError, match="nobody there"):
        scene.query.trigger()


def test_more_queues_than_connections_are_left_and_said(caplog: pytest.LogCaptureFixture) -> None:
    scene = Patterned(max_messages=10, consumers=64)
    for number in range(6):
        scene.publish(f"orders-{number}", 1)
    scene.query.trigger()
    assert len(scene.query.source._queues) == 4
    assert "6 queues match, but only 4 are read" in caplog.text


def test_a_query_with_names_goes_on_by_a_pattern_and_back() -> None:
    scene = Scene(*NAMES, max_messages=20)
    for name in NAMES:
        scene.publish(name, 30)
    scene.query.trigger()
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_COMMIT_LOG)
    patterned = Patterned(max_messages=20)
    patterned.world, patterned.broker, patterned.sent = scene.world, scene.broker, scene.sent
    patterned.query = scene.query
    patterned.restart()
    patterned.query.trigger()
    scene.query = patterned.query
    scene.restart(*NAMES)
    scene.assert_exactly_once()


@pytest.mark.parametrize(
    ("at", "bounded"),
    [
        (At.AFTER_OFFSET_LOG, False), (At.AFTER_COMMIT_LOG, True),
        with_all(At.AFTER_OFFSET_LOG, True), with_all(At.AFTER_COMMIT_LOG, False),
    ],
)  # fmt: skip
def test_new_queues_do_not_take_the_place_of_those_of_the_checkpoint(at: At, bounded: bool) -> None:
    scene = Patterned(max_messages=10, consumers=64)
    for number in range(4, 8):
        scene.publish(f"orders-{number}", 3)
    sent = list(scene.sent)
    with pytest.raises(Crashed):
        scene.query.trigger(at)
    for number in range(4):
        scene.publish(f"orders-{number}", 3)
    if bounded:
        scene.query.bound()
        while scene.query.trigger():
            pass
    else:
        for _ in range(4):
            scene.query.trigger()
    assert {lane.name for lane in scene.query.source._queues} == {f"orders-{number}" for number in range(4, 8)}
    assert sorted(scene.emitted) == sorted(sent)


@pytest.mark.parametrize(
    ("shows_start", "identified"),
    [(True, False), (False, True), with_all(True, True), with_all(False, False)],
)
def test_what_the_end_of_a_queue_has_left_open_is_known_when_it_comes_back(
    *, shows_start: bool, identified: bool
) -> None:
    """Its node is away, with messages whose acknowledgement it has not got."""
    scene = Patterned(max_messages=20, prefetch=50, dedup_window=20)
    scene.query.shows_start = shows_start
    queue, other = (scene.broker.declare(name) for name in NAMES[:2])

    def publish(to: MemoryQueue, count: int) -> None:
        for _ in range(count):
            scene.sent.append(f"{len(scene.sent)} of {to.name}")
            to.publish(scene.sent[-1].encode(), scene.sent[-1] if identified else None)

    def run(triggers: int) -> None:
        for _ in range(triggers):
            scene.query.trigger()
            scene.world.let_pass(1.0)

    publish(other, 1)
    run(20)
    publish(queue, 5)
    queue.faults.acks_s = 5.0
    while not scene.query.trigger():
        scene.world.let_pass(0.1)
    publish(other, 1)
    scene.query.trigger()  # what was read is committed, and its acknowledgement is on the way
    del scene.broker.queues[queue.name]
    for session in list(queue.sessions):
        queue.end(session, "its node is gone", lose_acks=True)
    run(80)
    queue.faults.acks_s = 0.0
    scene.broker.queues[queue.name] = queue
    run(80)
    publish(other, 1)  # before Spark 4.2 the last epoch is open until there is another, and so is the queue's
    run(160)
    assert len(scene.query.emitted) == len(scene.sent)
    assert not queue.ready


@pytest.mark.parametrize("identified", [with_all(True), False])
def test_queues_that_come_and_go_cost_what_is_remembered_of_them(identified: bool) -> None:
    scene = Patterned(max_messages=200, dedup_window=100)
    held: list[int] = []
    queues = 160 if LONG else 80
    tracemalloc.start()
    try:
        for number in range(queues):
            name = f"orders-{number}"
            queue = scene.broker.declare(name)
            for one in range(5):
                queue.publish(f"{one} of {name}".encode(), f"id-{one}" if identified else None)
            for pause_s in (61.0, 0.0, 6.0):
                scene.world.let_pass(pause_s)
                scene.query.trigger()
            scene.broker.delete(name)
            scene.world.let_pass(61.0)
            scene.query.trigger()
            if number in {59, queues - 1}:
                gc.collect()
                ours = [tracemalloc.Filter(True, f"*/pyspark_mq/{room}/*") for room in ("sources", "ack", "dedup")]
                taken = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
                held.append(sum(one.size for one in taken))
    finally:
        tracemalloc.stop()
    assert len(scene.query.emitted) == queues * 5
    # The simulation keeps some of it: the tasks of connections that have ended.
    assert held[1] - held[0] < 700 * (queues - 60)


def test_counters_do_not_fall_when_a_queue_ends() -> None:
    scene = Patterned(max_messages=100)
    for name in NAMES:
        scene.publish(name, 10)
    scene.query.trigger()
    scene.query.trigger()
    scene.world.let_pass(1.0)
    scene.query.trigger()
    before = scene.query.source.counters().report()
    scene.broker.delete(NAMES[1])
    scene.world.let_pass(61.0)
    for _ in range(3):
        scene.query.trigger()
        scene.world.let_pass(61.0)
    after = scene.query.source.counters().report()
    for counted in ("received", "planned", "settled"):
        assert after[counted] == before[counted] == 30
    assert after["reconnects"] > before["reconnects"]
    assert after["unacked"] == 0


def test_a_new_queue_that_may_not_be_read_is_said_and_left(caplog: pytest.LogCaptureFixture) -> None:
    scene = Patterned(max_messages=100)
    scene.publish(NAMES[0], 10)
    scene.query.trigger()
    scene.broker.declare(NAMES[1]).refused = True
    scene.publish(NAMES[0], 10)
    for _ in range(4):
        scene.query.trigger()
        scene.world.let_pass(61.0)
    assert sum(row.endswith(NAMES[0]) for row in scene.query.emitted) == 20
    said = [record for record in caplog.records if record.levelname == "ERROR" and NAMES[1] in record.message]
    assert len(said) == 1
    # Once it may be read, it is from the next start on at the latest.
    scene.broker.declare(NAMES[1]).refused = False
    scene.publish(NAMES[1], 5)
    scene.query.crash()
    scene.assert_exactly_once()


def test_a_query_none_of_whose_queues_may_be_read_fails() -> None:
    scene = Patterned(max_messages=100)
    scene.publish(NAMES[0], 1)
    scene.broker.declare(NAMES[0]).refused = True
    with pytest.raises(DestinationError, match="orders-1"):
        scene.query.trigger()
