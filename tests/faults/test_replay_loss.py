"""Failure matrix, rule 9: planned messages that do not come back for their replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pika
import pytest

from pyspark_mq.brokers.rabbitmq_node import RabbitNode
from tests.support.checks import assert_exactly_once, bodies, total
from tests.support.engine import At, Crashed, Engine, ReaderError

EPOCH = 20


@contextmanager
def planned_and_crashed(rabbit: RabbitNode, queue: str, **options: object) -> Iterator[Engine]:
    """An engine whose first epoch is in the offset log and in no other."""
    with Engine(url=rabbit.url(), queue=queue, maxMessagesPerTrigger=EPOCH, replayTimeout="2s", **options) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        yield run


@contextmanager
def other_consumer(rabbit: RabbitNode, queue: str, messages: int) -> Iterator[None]:
    """Somebody who takes messages and keeps them un-acknowledged."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url()))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=messages)
    for taken, _ in enumerate(channel.consume(queue), start=1):
        if taken == messages:
            break
    yield
    connection.close()


def assert_names_everything(failed: ReaderError, queue: str, missing: int, first: str | None) -> None:
    text = str(failed)
    assert failed.kind == "DataLossError"
    for word in (queue, "epoch 1", f"{missing} of {EPOCH}", str(first), "replayTimeout=2s", "expired",
                 "dead-lettered", "purged", "another consumer", "failOnDataLoss"):  # fmt: skip
        assert word in text


def test_another_consumer_has_them(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(EPOCH))
    with planned_and_crashed(rabbit, queue) as run:
        with other_consumer(rabbit, queue, 5), pytest.raises(ReaderError) as failed:
            run.batch()
        assert_names_everything(failed.value, queue, 5, sent[0])
        # When the other one has let go, a restart finds all of them.
        run.crash()
        run.drain(EPOCH)
        assert_exactly_once(rabbit, queue, run, sent)


def test_they_come_back_late_but_in_time(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(EPOCH))
    with planned_and_crashed(rabbit, queue) as run:
        with other_consumer(rabbit, queue, 5):
            run.reader.begin("rows", run._start(0), run._offsets[0])
            time.sleep(1)
        assert [row["messageId"] for row in run.reader.answer()] == sent


def purge(rabbit: RabbitNode, queue: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url()))
    connection.channel().queue_purge(queue)
    connection.close()


def dead_letter(rabbit: RabbitNode, queue: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url()))
    channel = connection.channel()
    for _ in range(EPOCH):
        method, _, _ = channel.basic_get(queue)
        channel.basic_reject(method.delivery_tag, requeue=False)
    connection.close()


@pytest.mark.parametrize("remove", [purge, dead_letter])
def test_purged_or_dead_lettered(rabbit: RabbitNode, queue: str, remove: Callable[[RabbitNode, str], None]) -> None:
    sent = rabbit.publish(queue, bodies(EPOCH))
    with planned_and_crashed(rabbit, queue) as run:
        remove(rabbit, queue)
        with pytest.raises(ReaderError) as failed:
            run.batch()
        assert_names_everything(failed.value, queue, EPOCH, sent[0])


def test_expired(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(EPOCH), expiration="1500")
    with planned_and_crashed(rabbit, queue) as run:
        time.sleep(2)
        with pytest.raises(ReaderError) as failed:
            run.batch()
        assert_names_everything(failed.value, queue, EPOCH, sent[0])


def test_going_on_without_them_when_the_user_says_so(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(EPOCH))
    with planned_and_crashed(rabbit, queue, failOnDataLoss="false") as run:
        with other_consumer(rabbit, queue, 5):
            assert run.batch() == EPOCH - 5
            assert run.counters()["lost"] == 5
            assert run.output == sent[5:]
        # They were not emitted, so when they turn up after all they count as new.
        run.drain(EPOCH)
        assert sorted(map(str, run.output)) == sorted(map(str, sent))
        assert total(rabbit, queue) == 0


def test_nothing_is_acknowledged_by_a_failed_replay(rabbit: RabbitNode, queue: str) -> None:
    rabbit.publish(queue, bodies(EPOCH + 10))
    with planned_and_crashed(rabbit, queue) as run:
        with other_consumer(rabbit, queue, 5), pytest.raises(ReaderError):
            run.batch()
        run.crash()
        assert total(rabbit, queue) == EPOCH + 10


def test_a_replay_from_another_broker_is_refused(rabbit: RabbitNode, queue: str) -> None:
    rabbit.publish(queue, bodies(EPOCH))
    with planned_and_crashed(rabbit, queue) as run, RabbitNode() as other:
        other.declare(queue)
        run.options["url"] = other.url()
        with pytest.raises(ReaderError) as failed:
            run.batch()
        assert failed.value.kind == "CheckpointError"
        assert "the checkpoint was written with broker" in str(failed.value)
