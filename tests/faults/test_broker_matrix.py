"""Failure matrix, the broker's rows: killed around phase two, restarted, away for too long."""

from __future__ import annotations

import threading
import time

import pytest

from pyspark_mq.brokers.rabbitmq_node import RabbitNode
from tests.support.checks import assert_exactly_once, bodies, total
from tests.support.engine import At, Crashed, Engine, ReaderError

MESSAGES = 120
EPOCH = 40


def engine(rabbit: RabbitNode, queue: str, **options: object) -> Engine:
    return Engine(url=rabbit.url(), queue=queue, maxMessagesPerTrigger=EPOCH, prefetch=100, **options)


def kill_and_start(rabbit: RabbitNode) -> None:
    rabbit.kill()
    rabbit.start()


def test_killed_between_plan_and_commit(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue) as run:
        run.between = lambda: kill_and_start(rabbit)
        assert run.batch() == EPOCH
        run.between = lambda: None
        run.drain(MESSAGES)
        assert_exactly_once(rabbit, queue, run, sent, ordered=False)  # its order after a restart is its own


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.4])
def test_killed_right_after_an_acknowledgement_was_confirmed(rabbit: RabbitNode, queue: str, after_s: float) -> None:
    sent = rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue) as run:
        assert run.batch() == EPOCH
        assert run.batch() == EPOCH  # its trigger acknowledged the first epoch
        time.sleep(after_s)
        kill_and_start(rabbit)
        run.drain(MESSAGES)
        assert_exactly_once(rabbit, queue, run, sent, ordered=False)  # its order after a restart is its own


@pytest.mark.parametrize("after_s", [0.0, 0.2])
def test_broker_and_driver_killed_together_after_phase_two(rabbit: RabbitNode, queue: str, after_s: float) -> None:
    sent = rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue) as run:
        assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_COMMIT_LOG)
        time.sleep(after_s)
        kill_and_start(rabbit)
        run.drain(MESSAGES)
        assert_exactly_once(rabbit, queue, run, sent, ordered=False)  # its order after a restart is its own


def test_killed_while_the_acknowledgement_is_sent(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue) as run:
        assert run.batch() == EPOCH
        killer = threading.Thread(target=rabbit.kill)
        run.reader.begin("latestOffset", run._offsets[0], None)
        killer.start()
        killer.join()
        run.reader.answer()
        run.crash()  # what this call planned is in no log
        rabbit.start()
        run.drain(MESSAGES)
        assert_exactly_once(rabbit, queue, run, sent, ordered=False)  # its order after a restart is its own


def test_an_orderly_restart_in_the_middle(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue) as run:
        assert run.batch() == EPOCH
        rabbit.restart()
        run.drain(MESSAGES)
        assert run.counters()["reconnects"] >= 1
        assert_exactly_once(rabbit, queue, run, sent, ordered=False)  # its order after a restart is its own


def test_away_for_longer_than_the_reconnect_timeout(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue, reconnectTimeout="2s", connectTimeout="1s") as run:
        assert run.batch() == EPOCH
        rabbit.kill()
        with pytest.raises(ReaderError) as failed:
            run.drain(MESSAGES, timeout_s=30)
        assert failed.value.kind == "BrokerUnavailableError"
        for word in (queue, "reconnectTimeout=2s", f"127.0.0.1:{rabbit.port}", "Nothing is lost"):
            assert word in str(failed.value)
        assert "guest:guest" not in str(failed.value)
        run.crash()
        rabbit.start()
        assert total(rabbit, queue) > 0
        run.drain(MESSAGES)
        assert_exactly_once(rabbit, queue, run, sent, ordered=False)  # its order after a restart is its own


def test_away_at_the_start(rabbit: RabbitNode, queue: str) -> None:
    rabbit.kill()
    with engine(rabbit, queue, connectTimeout="2s") as run:
        began = time.monotonic()
        with pytest.raises(ReaderError) as failed:
            run.batch()
        assert time.monotonic() - began < 10
    rabbit.start()
    assert failed.value.kind == "BrokerUnavailableError"
    assert "connectTimeout=2s" in str(failed.value)
