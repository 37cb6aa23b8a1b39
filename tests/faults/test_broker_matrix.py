"""Failure matrix, the broker's rows: killed around phase two, restarted, away for too long."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.checks import assert_exactly_once
from tests.support.effort import with_all
from tests.support.engine import At, Crashed, Engine, ReaderError
from tests.support.entries import LiveEntry

MESSAGES = 60
EPOCH = 20


#: The last one has the traces of all checked behind it.
pytestmark = [pytest.mark.contract("broker killed (`kill -9`, restart) or away"), pytest.mark.timeout(900)]


def engine(entry: LiveEntry, **options: object) -> Engine:
    return entry.engine(maxMessagesPerTrigger=EPOCH, prefetch=50, **options)


def test_killed_between_plan_and_commit(entry: LiveEntry) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        run.between = entry.kill_and_start
        assert run.batch() == EPOCH
        run.between = lambda: None
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)  # its order after a restart is its own


@pytest.mark.thorough
@pytest.mark.parametrize("after_s", [0.0, with_all(0.05), 0.2, with_all(0.4)])
def test_killed_right_after_an_acknowledgement_was_confirmed(entry: LiveEntry, after_s: float) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        assert run.batch() == EPOCH
        assert run.batch() == EPOCH  # its trigger acknowledged the first epoch
        time.sleep(after_s)
        entry.kill_and_start()
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)  # its order after a restart is its own


@pytest.mark.parametrize("after_s", [with_all(0.0), 0.2])
def test_broker_and_driver_killed_together_after_phase_two(entry: LiveEntry, after_s: float) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_COMMIT_LOG)
        time.sleep(after_s)
        entry.kill_and_start()
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)  # its order after a restart is its own


@pytest.mark.thorough
def test_killed_while_the_acknowledgement_is_sent(entry: LiveEntry) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        assert run.batch() == EPOCH
        killer = threading.Thread(target=entry.node.kill)
        run.reader.begin("latestOffset", run._offsets[0], None)
        killer.start()
        killer.join()
        run.reader.answer()
        run.crash()  # what this call planned is in no log
        entry.node.start()
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)  # its order after a restart is its own


@pytest.mark.thorough
def test_an_orderly_restart_in_the_middle(entry: LiveEntry) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        assert run.batch() == EPOCH
        entry.node.restart()
        run.drain(MESSAGES)
        assert run.counters()["reconnects"] >= 1
        assert_exactly_once(entry, run, sent, ordered=False)  # its order after a restart is its own


def test_away_for_longer_than_the_reconnect_timeout(entry: LiveEntry) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry, reconnectTimeout="2s", connectTimeout="1s") as run:
        assert run.batch() == EPOCH
        entry.node.kill()
        with pytest.raises(ReaderError) as failed:
            run.drain(MESSAGES, timeout_s=30)
        assert failed.value.kind == "BrokerUnavailableError"
        words = (entry.queue, "reconnectTimeout=2s", entry.url().rpartition("@")[2].rstrip("/"), "No message is lost")
        for word in words:
            assert word in str(failed.value)
        assert "@" not in str(failed.value)
        run.crash()
        entry.node.start()
        assert entry.total() > 0
        run.drain(MESSAGES)
        assert_exactly_once(entry, run, sent, ordered=False)  # its order after a restart is its own


@pytest.mark.thorough
def test_away_at_the_start(entry: LiveEntry) -> None:
    entry.node.kill()
    with engine(entry, connectTimeout="2s") as run:
        began = time.monotonic()
        with pytest.raises(ReaderError) as failed:
            run.batch()
        assert time.monotonic() - began < 10
    entry.node.start()
    assert failed.value.kind == "BrokerUnavailableError"
    assert "connectTimeout=2s" in str(failed.value)
