"""Periodic jobs (`Trigger.AvailableNow`) whose sink fails night after night, on a queue with a delivery limit."""

from __future__ import annotations

import contextlib

import pika
import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.support.checks import bodies
from tests.support.effort import with_all
from tests.support.engine import At, Crashed, Engine

MESSAGES = 10_000
EPOCH = 100
#: Handed out beside the open epoch until the first one after a restart is committed.
SLOW_START = 2_000


@pytest.mark.parametrize(
    ("available_now", "epoch"),
    [(True, 2_000), *(with_all(run, EPOCH) for run in (True, False))],
)
def test_failing_jobs_do_not_empty_a_queue_with_a_delivery_limit(
    rabbit: RabbitNode, name: str, available_now: bool, epoch: int
) -> None:
    queue = f"{name}-limited"
    rabbit.declare(queue, quorum=True, arguments={"x-delivery-limit": 4})
    try:
        rabbit.publish(queue, bodies(MESSAGES))
        options = {"maxMessagesPerTrigger": epoch, "prefetch": MESSAGES}
        with Engine(url=rabbit.url(), queue=queue, **options) as run:
            for _ in range(5):
                if available_now:
                    run.reader.call("prepareForTriggerAvailableNow")
                with contextlib.suppress(Crashed):
                    run.trigger(At.AFTER_SINK)
                    pytest.fail("it was not killed")
                assert poll(lambda: rabbit.counts(queue).unacked == 0, 30)
            # A query without a checkpoint is handed all of its prefetch once; then the open epoch, and little more, is.
            left = rabbit.counts(queue).ready
            assert left >= MESSAGES - max(SLOW_START, epoch) - 2 * EPOCH
    finally:
        rabbit.delete(queue)


@pytest.mark.whole
def test_what_a_killed_session_held_comes_back_in_order(rabbit: RabbitNode, name: str) -> None:
    """Also where it held it by two consumers: a quorum queue takes back what each held by itself."""
    queue = f"{name}-killed"
    rabbit.declare(queue, quorum=True)
    try:
        for _ in range(4):
            sent = bodies(3_000)
            rabbit.publish(queue, sent)
            with Engine(url=rabbit.url(), queue=queue, maxMessagesPerTrigger=EPOCH, prefetch=3_000) as run:
                run.reader.call("prepareForTriggerAvailableNow")
                with contextlib.suppress(Crashed):
                    run.trigger(At.AFTER_SINK)
                    pytest.fail("it was not killed")
            assert poll(lambda: rabbit.counts(queue).unacked == 0, 30)
            with contextlib.closing(pika.BlockingConnection(pika.URLParameters(rabbit.url()))) as connection:
                channel = connection.channel()
                assert [channel.basic_get(queue, auto_ack=True)[2] for _ in sent] == sent
    finally:
        rabbit.delete(queue)
