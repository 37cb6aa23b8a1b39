"""Failure matrix with `receivers`: their processes are killed and stopped, and end with the process they serve."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1
from testbed.process import poll
from tests.faults.test_orphans import gone
from tests.laws.test_unreadable import publish_odd
from tests.support.cells import LiveCell
from tests.support.checks import assert_exactly_once
from tests.support.engine import At, Crashed, Engine, ReaderProcess

MESSAGES = 120
EPOCH = 40
#: As in test_frozen_matrix.
FROZEN_S = 7.0

pytestmark = [pytest.mark.law("receiver processes killed and stopped"), pytest.mark.network, pytest.mark.sampled]


def engine(cell: LiveCell, **options: object) -> Engine:
    return cell.engine(**{"maxMessagesPerTrigger": EPOCH, "prefetch": 100, "receivers": 2, **options})


def receivers(run: Engine) -> list[psutil.Process]:
    """The processes that hold the connections."""
    found = [psutil.Process(pid) for pid in run.reader.pids() if not gone(pid)]
    return [process for process in found if any("processes.child" in word for word in process.cmdline())]


def test_everything_comes_once_through_three_processes(cell: LiveCell) -> None:
    sent = cell.publish(20 * MESSAGES)
    with engine(cell, receivers=3, maxMessagesPerTrigger=10 * EPOCH, prefetch=1_000) as run:
        run.drain(len(sent))
        assert len(receivers(run)) == 3
        assert run.counters()["reconnects"] == 0
        assert_exactly_once(cell, run, sent, ordered=False)


def test_a_receiver_is_killed_between_plan_and_commit(cell: LiveCell) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell) as run:
        assert run.batch() == EPOCH
        run.between = receivers(run)[0].kill
        assert run.batch() == EPOCH
        run.between = lambda: None
        run.drain(MESSAGES)
        # Another is in its place. It is a reconnect only if its session had begun.
        assert poll(lambda: len(receivers(run)) == 2, 30)
        assert_exactly_once(cell, run, sent, ordered=False)


def test_receivers_are_killed_at_any_moment(cell: LiveCell) -> None:
    sent = cell.publish(10 * MESSAGES)
    done = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not done.wait(1.0):
            for process in receivers(run)[-1:]:
                killed.append(process.pid)
                process.kill()

    with engine(cell) as run:
        assert run.batch() == EPOCH
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while len(killed) < 4:
                run.trigger()
        finally:
            done.set()
            killer.join()
        run.drain(len(sent))
        assert_exactly_once(cell, run, sent, ordered=False)


@pytest.mark.whole
def test_a_receiver_is_stopped_until_the_broker_has_given_it_up(cell: LiveCell) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell, heartbeat="1s") as run:
        assert run.batch() == EPOCH
        stopped = receivers(run)[0]
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(FROZEN_S)
        stopped.send_signal(signal.SIGCONT)
        run.drain(MESSAGES)
        assert poll(lambda: not run.trigger() and cell.total() == 0, 90)
        assert_exactly_once(cell, run, sent, ordered=False)


@pytest.mark.whole
def test_a_receiver_that_is_stopped_for_good_is_replaced(cell: LiveCell) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell, heartbeat="1s") as run:
        assert run.batch() == EPOCH
        stopped = receivers(run)[0]
        stopped.send_signal(signal.SIGSTOP)
        run.drain(MESSAGES)
        assert poll(lambda: not run.trigger() and cell.total() == 0, 90)
        assert poll(lambda: gone(stopped.pid), 30)
        assert_exactly_once(cell, run, sent, ordered=False)


def test_the_source_is_stopped_and_its_receivers_go_on(cell: LiveCell) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell, heartbeat="1s") as run:
        assert run.batch() == EPOCH
        source = psutil.Process(run.reader.pids()[0])
        source.send_signal(signal.SIGSTOP)
        time.sleep(FROZEN_S)
        source.send_signal(signal.SIGCONT)
        run.drain(MESSAGES)
        # Heartbeats were answered all the time.
        assert run.counters()["reconnects"] == 0
        assert_exactly_once(cell, run, sent, ordered=False)


@pytest.mark.parametrize("crash", At)
def test_a_crash_of_the_source_anywhere_is_replayed(cell: LiveCell, crash: At) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell) as run:
        assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(crash)
        run.drain(MESSAGES)
        assert_exactly_once(cell, run, sent, ordered=False)


def test_receivers_end_with_the_source_alone(cell: LiveCell) -> None:
    cell.publish(MESSAGES)
    with engine(cell) as run:
        assert run.batch() == EPOCH
        children = receivers(run)
        assert len(children) == 2
        os.kill(run.reader.pids()[0], signal.SIGKILL)
        assert poll(lambda: all(gone(child.pid) for child in children), 5), "a receiver outlived its source"
        assert poll(lambda: cell.counts().ready == MESSAGES, 30)


def test_receivers_end_with_the_jvm(cell: LiveCell, tmp_path: Path) -> None:
    cell.publish(MESSAGES)
    given = {name: str(value) for name, value in cell.options(receivers=2, idLog=tmp_path).items()}
    process = ReaderProcess(given, through_parent=True)
    start = process.call("initialOffset")
    while process.call("latestOffset", start, None) == start:
        pass
    assert poll(lambda: cell.counts().unacked == MESSAGES, 30)
    pids = process.pids()
    assert len(pids) == 4
    process.kill_parent()
    assert poll(lambda: all(map(gone, pids[1:])), 5), "a process outlived its parent"
    assert poll(lambda: cell.counts().ready == MESSAGES, 30)


@pytest.mark.parametrize("guarantee", ["at-least-once", "none"])
def test_the_lower_guarantees_need_no_ids(cell: LiveCell, guarantee: str) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell, guarantee=guarantee) as run:
        run.drain(MESSAGES)
        assert sorted(run.output) == sorted(sent)
        assert poll(lambda: not run.trigger() and cell.total() == 0, 30)


@pytest.mark.untraced
@pytest.mark.parametrize(
    "options", [{"messageIdFrom": "content"}, {"messageIdFrom": "property:none", "onMissingMessageId": "content"}]
)
def test_contents_identify_messages_too(cell: LiveCell, options: dict[str, str]) -> None:
    sent = cell.publish(MESSAGES)
    with engine(cell, **options) as run:
        assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(At.AFTER_SINK)
        run.drain(MESSAGES)
        assert_exactly_once(cell, run, sent, ordered=False)


@pytest.mark.protocols(AMQP_0_9_1)
@pytest.mark.parametrize("decision", ["reject", "row"])
def test_a_message_that_cannot_be_decoded_is_what_the_user_decided(cell: LiveCell, decision: str) -> None:
    sent = cell.publish(20)
    publish_odd(cell)
    sent += cell.publish(20)
    with engine(cell, onUnreadableMessage=decision, maxMessagesPerTrigger=100) as run:
        run.drain(40 + (decision == "row"))
        assert sorted(run.output) == sorted([*sent, *(["odd body"] if decision == "row" else [])])
        assert run.counters()["rejected"] == (decision == "reject")
        assert poll(lambda: not run.trigger() and cell.total() == 0, 30)


def test_a_bounded_run_takes_what_is_there_and_ends(cell: LiveCell) -> None:
    sent = cell.publish(3 * MESSAGES)
    with engine(cell) as run:
        run.reader.call("initialOffset")
        run.reader.call("prepareForTriggerAvailableNow")
        while run.trigger():
            pass
        assert sorted(run.output) == sorted(sent)
