"""Failure matrix, the driver's rows: killed at every point of a trigger, on real queues of both kinds."""

from __future__ import annotations

import pytest

from testbed.process import poll
from testbed.storm.proxy import Direction
from tests.support.cells import LiveCell
from tests.support.checks import assert_exactly_once
from tests.support.engine import At, Crashed, Engine

MESSAGES = 60
EPOCH = 20


#: The last one has the traces of all checked behind it.
pytestmark = [pytest.mark.law("driver killed (`kill -9`)"), pytest.mark.timeout(600)]


def engine(cell: LiveCell, **options: object) -> Engine:
    return cell.engine(maxMessagesPerTrigger=EPOCH, **options)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("at", list(At))
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(cell: LiveCell, at: At, batch: int) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell) as run:
        for _ in range(batch):
            assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(crash=at)
        run.drain(MESSAGES)
        assert run.replays == (1 if at in {At.AFTER_OFFSET_LOG, At.AFTER_SINK} else 0)
        assert_exactly_once(cell, run, sent)


@pytest.mark.thorough
def test_a_replay_is_the_same_batch_even_when_the_sink_has_it_already(cell: LiveCell) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_SINK)
        first = run.sink[0]
        cell.publish(5)
        assert run.batch() == EPOCH
        assert run.sink[0] == first
        assert run.output == sent[:EPOCH]


def test_redeliveries_of_a_committed_epoch_are_dropped_and_acknowledged_at_once(cell: LiveCell) -> None:
    cell.publish(MESSAGES)
    with engine(cell) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_COMMIT_LOG)
        assert poll(lambda: cell.total() == MESSAGES, 30)
        assert run.batch() > 0

        def dropped() -> bool:
            run.trigger()  # they may come behind the new ones
            return run.counters()["duplicatesDropped"] >= EPOCH

        assert poll(dropped, 30)
        assert poll(lambda: cell.total() <= MESSAGES - EPOCH, 30)


@pytest.mark.network
@pytest.mark.parametrize("cut_bytes", [10, 100, 400])
def test_a_driver_killed_in_the_middle_of_phase_two_has_the_rest_dropped(cell: LiveCell, cut_bytes: int) -> None:
    sent = cell.publish(MESSAGES)
    with cell.proxy() as proxy:
        with cell.engine(proxy, maxMessagesPerTrigger=EPOCH, prefetch=100) as run:
            assert run.batch() == EPOCH
            # From here on go acknowledgements and heartbeats; the one that is cut may be the first or the last.
            cut = proxy.cut_after(cut_bytes, Direction.TO_BROKER)
            run.reader.begin("latestOffset", run._offsets[0], None)
            cut.wait(2)
            run.crash()
        with cell.engine() as later:
            later.take_over(run)
            later.drain(MESSAGES)
            assert_exactly_once(cell, later, sent)


@pytest.mark.thorough
def test_crashes_in_a_row_keep_the_offsets_bounded(cell: LiveCell) -> None:
    sent = cell.publish(200)
    with engine(cell, settleGrace="1s") as run:
        sizes = []
        for at in [*At, *At]:
            with pytest.raises(Crashed):
                run.batch(crash=at)
            sizes.append(max(map(len, run._offsets.values()), default=0))
        run.drain(200)
        assert_exactly_once(cell, run, sent)
        assert max(sizes) < 400


def test_an_empty_range_asked_for_first_does_not_hide_the_replay(cell: LiveCell) -> None:
    # Spark 4.0 begins a replay like this.
    sent = cell.publish(EPOCH)
    with engine(cell) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        assert run.reader.call("rows", run._offsets[0], run._offsets[0]) == []
        run.reader.call("initialOffset")
        run.drain(EPOCH)
        assert_exactly_once(cell, run, sent)
