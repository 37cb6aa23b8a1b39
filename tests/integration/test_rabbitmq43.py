"""RabbitMQ 4.3 and later: what quorum queues do there that they did not before."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pika
import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from testbed.publishers.amqp10 import OutgoingMessage, publish_amqp10
from tests.plugin import Nodes
from tests.support.checks import assert_exactly_once
from tests.support.effort import with_all
from tests.support.engine import At, Crashed, ReaderError, full_epochs
from tests.support.entries import LiveEntry, MatrixEntry

pytestmark = pytest.mark.shares("rabbitmq4.3")

EPOCH = 20
DELAY_S = 4.0


class DeclaredEntry(LiveEntry):
    """A quorum queue with arguments."""

    def __init__(self, node: RabbitNode, protocol: str, arguments: dict[str, Any]) -> None:
        super().__init__(MatrixEntry("rabbitmq", protocol, "4.3", "quorum"), node)
        self._rabbit = node
        self._arguments = arguments

    def declare(self, queue: str, *, deliveries: int | None = None) -> None:
        self._rabbit.declare(queue, quorum=True, arguments=self._arguments)


@pytest.fixture
def node(nodes: Nodes) -> RabbitNode:
    found = nodes.get("rabbitmq", "4.3")
    assert isinstance(found, RabbitNode)
    return found


protocols = pytest.mark.parametrize("protocol", [AMQP_0_9_1, STOMP, AMQP_1_0])


@pytest.fixture
def delayed(node: RabbitNode, protocol: str) -> Iterator[LiveEntry]:
    """A queue that holds back what comes again after a connection was lost."""
    arguments = {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 2_000, "x-delayed-retry-max": 4_000}
    with DeclaredEntry(node, protocol, arguments) as entry:
        yield entry


@pytest.mark.parametrize("protocol", [AMQP_0_9_1, AMQP_1_0])
def test_an_orderly_end_counts_no_delivery(node: RabbitNode, protocol: str) -> None:
    with DeclaredEntry(node, protocol, {"x-delivery-limit": 1}) as entry:
        sent = entry.publish(2_000)
        for taken in (2_000, 100, 0, 2_000):
            with entry.session() as session:
                session.consume(3_000)
                assert session.turn(lambda: len(session.raws) >= taken)  # noqa: B023
            assert poll(lambda: entry.counts().ready == 2_000, 30)
        with entry.session() as session:
            assert sorted(session.take(2_000, 3_000)) == sorted(sent)
            session.acknowledge(upto=2_000)
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.whole
@protocols
def test_a_message_that_is_not_acknowledged_in_time_costs_the_session_and_nothing_else(
    node: RabbitNode, protocol: str
) -> None:
    with DeclaredEntry(node, protocol, {"x-consumer-timeout": 3_000}) as entry:
        sent = entry.publish(EPOCH)
        with entry.engine(maxMessagesPerTrigger=EPOCH) as run:
            # The batch takes longer than the broker waits.
            run.between = lambda: time.sleep(6.0)
            assert run.batch() == EPOCH
            run.between = lambda: None
            assert poll(lambda: not run.trigger() and entry.total() == 0, 60)
            assert run.counters()["reconnects"] >= 1
            assert_exactly_once(entry, run, sent)


@protocols
@pytest.mark.parametrize("at", [At.AFTER_OFFSET_LOG, with_all(At.AFTER_COMMIT_LOG)])
def test_a_restart_waits_for_what_the_queue_holds_back(delayed: LiveEntry, at: At) -> None:
    sent = delayed.publish(2 * EPOCH)
    with delayed.engine(maxMessagesPerTrigger=EPOCH, settleGrace="500ms") as run:
        with pytest.raises(Crashed):
            run.batch(crash=at)
        # It is not the first restart that forgets, but the second.
        began = time.monotonic()
        while time.monotonic() - began < DELAY_S / 2:
            run.trigger()
        run.crash()
        run.drain(2 * EPOCH)
        assert poll(lambda: not run.trigger() and delayed.total() == 0, 60)
        assert sorted(run.output) == sorted(sent)


@pytest.mark.parametrize("protocol", [AMQP_1_0])
def test_over_amqp_1_0_the_queue_tells_how_long_it_holds_back(delayed: LiveEntry) -> None:
    with delayed.session() as session:
        greeting = session.open()
        assert greeting.facts.redelivery_delay_s == DELAY_S
        assert greeting.depth is not None
        assert greeting.depth.ready == 0
    delayed.publish(7)
    with delayed.session() as session:
        greeting = session.open()
        assert greeting.depth is not None
        assert (greeting.depth.ready, greeting.depth.other_consumers) == (7, 0)


@pytest.mark.parametrize("protocol", [AMQP_1_0])
def test_over_amqp_1_0_a_restart_waits_without_being_told(delayed: LiveEntry) -> None:
    sent = delayed.publish(2 * EPOCH)
    with delayed.engine(maxMessagesPerTrigger=EPOCH, settleGrace="500ms") as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_COMMIT_LOG)
        began = time.monotonic()
        while time.monotonic() - began < DELAY_S / 2:
            run.trigger()
        run.crash()
        run.drain(2 * EPOCH)
        assert sorted(run.output) == sorted(sent)


@protocols
def test_what_comes_again_comes_before_any_priority(node: RabbitNode, protocol: str) -> None:
    with DeclaredEntry(node, protocol, {}) as entry:
        low = [f"low {number}" for number in range(EPOCH)]
        high = [f"high {number}" for number in range(5 * EPOCH)]
        node.publish(entry.queue, (text.encode() for text in low), priority=0)
        with entry.engine(maxMessagesPerTrigger=EPOCH, prefetch=EPOCH) as run:
            with pytest.raises(Crashed):
                run.batch(crash=At.AFTER_OFFSET_LOG)
            assert poll(lambda: entry.counts().ready == EPOCH, 30)
            node.publish(entry.queue, (text.encode() for text in high), priority=31)
            assert run.batch() == EPOCH
            assert run.output == low
            assert run.counters()["unacked"] <= EPOCH
            run.drain(6 * EPOCH)
            assert_exactly_once(entry, run, low + high)


@protocols
def test_the_highest_priority_comes_first(node: RabbitNode, protocol: str) -> None:
    with DeclaredEntry(node, protocol, {}) as entry:
        for priority in (0, 5, 31, 12):
            node.publish(entry.queue, [f"{priority}".encode()], priority=priority)
        with entry.engine(**full_epochs(4)) as run:
            assert run.batch() == 4
            assert run.output == ["31", "12", "5", "0"]
            assert {row["priority"] for row in run.rows} == {0, 5, 12, 31}


@pytest.mark.whole
def test_more_than_one_window_of_the_protocol_can_be_asked_for(node: RabbitNode) -> None:
    # The prefetch count has 16 bits: beyond them there are more consumers.
    name = f"test-{uuid.uuid4().hex[:12]}"
    node.declare(name)
    node.publish(name, (b"" for _ in range(70_000)))
    entry = LiveEntry(MatrixEntry("rabbitmq", AMQP_0_9_1, "4.3", "classic"), node)
    entry.queue = name
    with entry.session() as session:
        session.consume(70_000)
        assert session.turn(lambda: len(session.raws) == 70_000)
    node.delete(name)


def test_headers_that_are_larger_than_a_frame_are_read_over_amqp_0_9_1(node: RabbitNode) -> None:
    with LiveEntry(MatrixEntry("rabbitmq", AMQP_0_9_1, "4.3", "quorum"), node) as entry:
        properties = {f"name {number}": f"value {number}" for number in range(10_000)}
        messages = [OutgoingMessage(f"large {number}".encode(), str(number), properties) for number in range(2)]
        publish_amqp10(node.url(AMQP_1_0), f"/queues/{entry.queue}", messages)
        sent = [message.body.decode() for message in messages] + entry.publish(EPOCH - 2)
        with entry.engine(maxMessagesPerTrigger=EPOCH) as run:
            run.drain(EPOCH)
            assert run.counters()["reconnects"] == 0
            assert properties.items() <= dict(run.rows[0]["properties"]).items()
            assert_exactly_once(entry, run, sent)


def publish_decimal(node: RabbitNode, queue: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(node.url(AMQP_0_9_1)))
    properties = pika.BasicProperties(message_id="odd", headers={"price": Decimal("12.34")}, delivery_mode=2)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"odd", properties)
    connection.close()


def publish_uuid(node: RabbitNode, queue: str) -> None:
    publish_amqp10(node.url(AMQP_1_0), f"/queues/{queue}", [OutgoingMessage(b"odd", "odd", {"order": uuid.uuid4()})])


@pytest.mark.parametrize(
    ("protocol", "other", "publish"),
    [
        (AMQP_0_9_1, AMQP_1_0, publish_uuid),
        with_all(STOMP, AMQP_1_0, publish_uuid),
        with_all(AMQP_1_0, AMQP_0_9_1, publish_decimal),
    ],
)
def test_a_message_that_the_broker_fails_on_stops_the_query_which_goes_on_over_another_protocol(
    node: RabbitNode, protocol: str, other: str, publish: Callable[[RabbitNode, str], None]
) -> None:
    with LiveEntry(MatrixEntry("rabbitmq", protocol, "4.3", "quorum"), node) as entry:
        publish(node, entry.queue)
        sent = ["odd", *entry.publish(EPOCH - 1)]
        with entry.engine(maxMessagesPerTrigger=EPOCH) as run:
            with pytest.raises(ReaderError, match=rf"BrokerError.*{entry.queue}.*over {protocol}.*another 'protocol'"):
                run.batch()
            entry.entry = MatrixEntry("rabbitmq", other, "4.3", "quorum")
            with entry.engine(maxMessagesPerTrigger=EPOCH) as again:
                again.take_over(run)
                again.drain(EPOCH)
                assert_exactly_once(entry, again, sent)
