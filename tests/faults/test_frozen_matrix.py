"""Failure matrix: a process or the broker is stopped for longer than every timeout, and then goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testbed.process import poll
from tests.support.checks import assert_exactly_once
from tests.support.engine import Engine
from tests.support.entries import LiveEntry

MESSAGES = 60
EPOCH = 20
#: Heartbeats of a second are missed after 2.5; the brokers here give up after 4 at most.
FROZEN_S = 7.0

pytestmark = pytest.mark.contract("stopped and continued (`SIGSTOP`)")


def engine(entry: LiveEntry) -> Engine:
    return entry.engine(maxMessagesPerTrigger=EPOCH, prefetch=50, heartbeat="1s")


@contextmanager
def broker_frozen(entry: LiveEntry) -> Iterator[None]:
    frozen = threading.Thread(target=entry.node.freeze, args=(FROZEN_S,))
    frozen.start()
    yield
    frozen.join()


def test_the_broker_is_stopped_between_plan_and_commit(entry: LiveEntry) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        assert run.batch() == EPOCH
        run.between = lambda: entry.node.freeze(FROZEN_S)
        assert run.batch() == EPOCH
        run.between = lambda: None
        run.drain(MESSAGES)
        assert poll(lambda: not run.trigger() and entry.total() == 0, 90)
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.thorough
def test_the_broker_is_stopped_while_it_is_acknowledged_to(entry: LiveEntry) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        assert run.batch() == EPOCH
        with broker_frozen(entry):
            time.sleep(0.2)
            run.drain(MESSAGES)
        assert poll(lambda: not run.trigger() and entry.total() == 0, 90)
        assert_exactly_once(entry, run, sent, ordered=False)


@pytest.mark.network
def test_the_reader_is_stopped_until_the_broker_has_given_it_up(entry: LiveEntry) -> None:
    sent = entry.publish(MESSAGES)
    with engine(entry) as run:
        assert run.batch() == EPOCH
        for pid in run.reader.pids():
            os.kill(pid, signal.SIGSTOP)
        time.sleep(FROZEN_S)
        for pid in run.reader.pids():
            os.kill(pid, signal.SIGCONT)
        run.drain(MESSAGES)
        assert poll(lambda: not run.trigger() and entry.total() == 0, 90)
        assert_exactly_once(entry, run, sent, ordered=False)
