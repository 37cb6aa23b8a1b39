"""Rule 11: the receiver must not outlive the process that started it."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from pyspark_mq.brokers.process import poll
from pyspark_mq.brokers.rabbitmq_node import RabbitNode
from tests.support.checks import bodies
from tests.support.engine import At, Crashed, Engine, ReaderProcess

MESSAGES = 20


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def options(rabbit: RabbitNode, queue: str) -> dict[str, str]:
    return {"broker": "rabbitmq", "url": rabbit.url(), "queue": queue}


def assert_lets_go(rabbit: RabbitNode, queue: str, reader: int, held: int) -> None:
    began = time.monotonic()
    assert poll(lambda: gone(reader), 5), "the reader outlived its parent"
    assert poll(lambda: rabbit.counts(queue).ready == held, 5)
    assert time.monotonic() - began < 5


def test_a_reader_between_two_calls_ends_with_its_parent(rabbit: RabbitNode, queue: str) -> None:
    rabbit.publish(queue, bodies(MESSAGES))
    process = ReaderProcess(options(rabbit, queue), through_parent=True)
    start = process.call("initialOffset")
    while process.call("latestOffset", start, None) == start:
        pass
    assert rabbit.counts(queue).unacked == MESSAGES
    assert_lets_go(rabbit, queue, process.kill_parent(), MESSAGES)


def test_a_reader_blocked_in_a_wait_ends_with_its_parent(rabbit: RabbitNode, queue: str) -> None:
    rabbit.publish(queue, bodies(MESSAGES))
    with Engine(**options(rabbit, queue)) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        planned = run._offsets[0]
        initial = run._initial
    # The planned messages are gone for good, so the replay waits for minutes.
    rabbit.delete(queue)
    rabbit.declare(queue)
    rabbit.publish(queue, bodies(3))
    process = ReaderProcess(options(rabbit, queue), through_parent=True)
    process.begin("partitions", initial, planned)
    assert poll(lambda: rabbit.counts(queue).unacked == 3, 20)
    reader = process.pids()[-1]
    assert os.getppid() != reader
    assert_lets_go(rabbit, queue, process.kill_parent(), 3)
