"""Failure matrix, the driver's rows: killed at every point of a trigger, on real queues of both kinds."""

from __future__ import annotations

import pytest

from pyspark_mq.brokers.process import poll
from pyspark_mq.brokers.rabbitmq_node import RabbitNode
from tests.support.checks import assert_exactly_once, bodies, total
from tests.support.engine import At, Crashed, Engine
from tests.support.proxy import Direction, FaultProxy

MESSAGES = 60
EPOCH = 20


def engine(rabbit: RabbitNode, queue: str, **options: object) -> Engine:
    return Engine(url=rabbit.url(), queue=queue, maxMessagesPerTrigger=EPOCH, **options)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("at", list(At))
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(
    rabbit: RabbitNode, queue: str, at: At, batch: int
) -> None:
    sent = rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue) as run:
        for _ in range(batch):
            assert run.batch() == EPOCH
        with pytest.raises(Crashed):
            run.batch(crash=at)
        run.drain(MESSAGES)
        assert run.replays == (1 if at in {At.AFTER_OFFSET_LOG, At.AFTER_SINK} else 0)
        assert_exactly_once(rabbit, queue, run, sent)


def test_a_replay_is_the_same_batch_even_when_the_sink_has_it_already(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_SINK)
        first = run.sink[0]
        rabbit.publish(queue, bodies(5), ids=[f"later-{number}" for number in range(5)])
        assert run.batch() == EPOCH
        assert run.sink[0] == first == sent[:EPOCH]


def test_redeliveries_of_a_committed_epoch_are_dropped_and_acknowledged_at_once(rabbit: RabbitNode, queue: str) -> None:
    rabbit.publish(queue, bodies(MESSAGES))
    with engine(rabbit, queue) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_COMMIT_LOG)
        assert total(rabbit, queue) == MESSAGES
        assert run.batch() > 0
        assert run.counters()["duplicatesDropped"] == EPOCH
        assert poll(lambda: total(rabbit, queue) == MESSAGES - EPOCH, 10)


def test_a_driver_killed_in_the_middle_of_phase_two_has_the_rest_dropped(rabbit: RabbitNode, queue: str) -> None:
    # Every other message is a duplicate, so that its epoch is acknowledged in many frames, and the
    # connection lets only some of them through.
    ids = [f"id-{number}" for number in range(EPOCH)]
    rabbit.publish(queue, bodies(EPOCH), ids=ids)
    rabbit.publish(queue, bodies(EPOCH), ids=[f"other-{number}" for number in range(EPOCH)])
    rabbit.publish(queue, bodies(EPOCH), ids=ids)
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        with Engine(url=url, queue=queue, maxMessagesPerTrigger=EPOCH, prefetch=100) as run:
            assert run.batch() == EPOCH
            basic_ack_bytes = 21
            cut = proxy.cut_after(basic_ack_bytes * 5 + 7, Direction.TO_BROKER)
            run.reader.begin("latestOffset", run._offsets[0], None)
            assert cut.wait(20)
            run.crash()
            left = total(rabbit, queue)
            assert EPOCH < left < 3 * EPOCH
            run.drain(2 * EPOCH)
            assert sorted(run.output) == sorted([*ids, *(f"other-{number}" for number in range(EPOCH))])
            assert poll(lambda: total(rabbit, queue) == 0, 10)


def test_crashes_in_a_row_keep_the_offsets_bounded(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, bodies(200))
    with engine(rabbit, queue, settleGrace="1s") as run:
        sizes = []
        for at in [*At, *At]:
            with pytest.raises(Crashed):
                run.batch(crash=at)
            sizes.append(max(map(len, run._offsets.values()), default=0))
        run.drain(200)
        assert_exactly_once(rabbit, queue, run, sent)
        assert max(sizes) < 6_000


def test_an_empty_range_asked_for_first_does_not_hide_the_replay(rabbit: RabbitNode, queue: str) -> None:
    # Spark 4.0 begins a replay like this.
    sent = rabbit.publish(queue, bodies(EPOCH))
    with engine(rabbit, queue) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        assert run.reader.call("rows", run._offsets[0], run._offsets[0]) == []
        run.reader.call("initialOffset")
        run.drain(EPOCH)
        assert_exactly_once(rabbit, queue, run, sent)
