"""Failure matrix, the driver's rows: killed at every point of a trigger, on real queues of both kinds."""

from __future__ import annotations

import pytest

from testbed.chaos.proxy import Direction
from testbed.process import poll
from tests.support.checks import assert_exactly_once
from tests.support.effort import with_all
from tests.support.engine import At, Crashed, Engine
from tests.support.entries import LiveEntry

MESSAGES = 60
EPOCH = 20


#: The last one has the traces of all checked behind it.
pytestmark = [pytest.mark.contract("driver killed (`kill -9`)"), pytest.mark.timeout(900)]


def engine(entry: LiveEntry, **options: object) -> Engine:
    return entry.engine(maxMessagesPerTrigger=EPOCH, **options)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("at", list(At))
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(entry: LiveEntry, at: At, batch: int) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        for _ in range(batch):
            assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(crash=at)
        run.drain(MESSAGES)
        assert run.replays == (1 if at in {At.AFTER_OFFSET_LOG, At.AFTER_SINK} else 0)
        assert_exactly_once(entry, run, sent)


@pytest.mark.thorough
def test_a_replay_is_the_same_batch_even_when_the_sink_has_it_already(entry: LiveEntry) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_SINK)
        first = run.sink[0]
        entry.publish(5)
        assert run.batch() == EPOCH
        assert run.sink[0] == first
        assert run.output == sent[:EPOCH]


def test_redeliveries_of_a_committed_epoch_are_dropped_and_acknowledged_at_once(entry: LiveEntry) -> None:
    entry.publish(MESSAGES)
    with engine(entry) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_COMMIT_LOG)
        assert poll(lambda: entry.total() == MESSAGES, 30)
        assert run.batch() > 0

        def dropped() -> bool:
            run.trigger()  # they may come behind the new ones
            return run.counters()["duplicatesDropped"] >= EPOCH

        assert poll(dropped, 30)
        assert poll(lambda: entry.total() <= MESSAGES - EPOCH, 30)


@pytest.mark.network
@pytest.mark.parametrize("cut_bytes", [with_all(10), 100, with_all(400)])
def test_a_driver_killed_in_the_middle_of_phase_two_has_the_rest_dropped(entry: LiveEntry, cut_bytes: int) -> None:
    sent = entry.publish(MESSAGES)
    with entry.proxy() as proxy:
        with entry.engine(proxy, maxMessagesPerTrigger=EPOCH, prefetch=100) as run:
            assert run.batch() == EPOCH
            # From here on go acknowledgements and heartbeats; the one that is cut may be the first or the last.
            cut = proxy.cut_after(cut_bytes, Direction.TO_BROKER)
            run.reader.begin("latestOffset", run._offsets[0], None)
            cut.wait(2)
            run.crash()
        with entry.engine() as later:
            later.take_over(run)
            later.drain(MESSAGES)
            assert_exactly_once(entry, later, sent)


@pytest.mark.thorough
def test_crashes_in_a_row_keep_the_offsets_bounded(entry: LiveEntry) -> None:
    sent = entry.publish(200)
    with engine(entry, settleGrace="1s") as run:
        sizes = []
        for at in [*At, *At]:
            with pytest.raises(Crashed):
                run.batch(crash=at)
            sizes.append(max(map(len, run._offsets.values()), default=0))
        run.drain(200)
        assert_exactly_once(entry, run, sent)
        assert max(sizes) < 400


def test_an_empty_range_asked_for_first_does_not_hide_the_replay(entry: LiveEntry) -> None:
    # Spark 4.0 begins a replay like this.
    sent = entry.publish(EPOCH)
    with engine(entry) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        assert run.reader.call("rows", run._offsets[0], run._offsets[0]) == []
        run.reader.call("initialOffset")
        run.drain(EPOCH)
        assert_exactly_once(entry, run, sent)
