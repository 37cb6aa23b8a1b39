"""Queues that are named in a way of their broker's, read by a real Spark."""

from __future__ import annotations

import importlib.util
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.brokers.base import AMQP_1_0, STOMP
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.java import JavaNode
from testbed.process import NodeError, poll
from testbed.publishers.amqp10 import OutgoingMessage, publish_amqp10
from testbed.publishers.stomp import publish_stomp
from tests.plugin import Nodes, missing
from tests.support.checks import total

#: Before Spark 4.2 the last epoch of a run is acknowledged by the next one.
_ENDS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None

pytestmark = [
    pytest.mark.skipif(not _ENDS, reason="this Spark acknowledges the last epoch in the next run"),
    pytest.mark.parametrize("protocol", [STOMP, pytest.param(AMQP_1_0, marks=pytest.mark.whole)]),
]


@pytest.fixture(scope="module")
def classic() -> Iterator[ActiveMqNode]:
    """A broker whose queues hand out what waits to a wildcard of STOMP within a second, and not within 30."""
    try:
        node = ActiveMqNode(policy={"expireMessagesPeriod": 1_000})
    except NodeError as absent:
        missing(str(absent))
        raise
    with node:
        yield node


@pytest.fixture
def artemis(nodes: Nodes) -> ArtemisNode:
    node = nodes.get("artemis")
    assert isinstance(node, ArtemisNode)
    return node


@pytest.fixture
def unique() -> str:
    return uuid.uuid4().hex[:8]


class Job:
    """A query into memory, which may be started again.

    Attributes:
        rows: (destination, body) of all rows, in order.
    """

    def __init__(self, spark: Any, node: JavaNode, protocol: str, queue: str, folder: Path, **options: object) -> None:
        self._place = {"checkpointLocation": str(folder)}
        given = {"broker": node.broker.name, "url": node.url(protocol), "queue": queue, **options, **self._place}
        self._frame = spark.readStream.format("mq").options(**given).load()
        self.rows: list[tuple[str, bytes]] = []

    def run(self, until: Callable[[], object]) -> None:
        def keep(frame: Any, _batch: int) -> None:
            self.rows += [(row.destination, bytes(row.body)) for row in frame.collect()]

        query = self._frame.writeStream.foreachBatch(keep).options(**self._place).start()
        try:
            assert poll(lambda: until() or not query.isActive, 60)
            assert query.exception() is None
        finally:
            query.stop()


def publish(node: JavaNode, protocol: str, address: str, bodies: list[bytes], routing: str = "MULTICAST") -> None:
    """Publish to an address of Artemis, or to a topic of ActiveMQ Classic."""
    assert node.broker.stomp is not None
    assert node.broker.amqp10 is not None
    if protocol == STOMP:
        headers = {"destination-type": routing} if node.broker.name == "artemis" else {}
        destination = node.broker.stomp.topic.format(name=address)
        publish_stomp(node.url(STOMP), destination, [(body, headers) for body in bodies])
    else:
        messages = [OutgoingMessage(body, str(uuid.uuid4())) for body in bodies]
        capability = {"MULTICAST": "topic", "ANYCAST": "queue"}[routing]
        target = node.broker.amqp10.topic_address(address)
        publish_amqp10(node.url(AMQP_1_0), target, messages, capability=capability)


def made(node: ArtemisNode, queue: str, address: str, routing: str, **more: object) -> None:
    """Have Artemis make a queue whose name is not that of its address."""
    settings = {"name": queue, "address": address, "routing-type": routing, "durable": True, "auto-delete": False}
    broker = 'org.apache.activemq.artemis:broker="127.0.0.1"'
    node.jolokia.call(broker, "createQueue(java.lang.String,boolean)", json.dumps(settings | more), True)


@pytest.mark.whole
def test_a_wildcard_of_classic_reads_all_queues_that_match(
    spark: Any, classic: ActiveMqNode, tmp_path: Path, unique: str, protocol: str
) -> None:
    queues = [f"{unique}.goods.{end}" for end in ("a", "b", "made.later")]
    job = Job(spark, classic, protocol, f"{unique}.goods.>", tmp_path)
    sent = []

    def run(*names: str) -> None:
        for name in names:
            classic.declare(name)
            sent.extend(f"{len(sent)} in {name}".encode() for _ in range(10))
            classic.publish(name, sent[-10:], protocol=protocol)
        job.run(lambda: len(job.rows) >= len(sent) and not any(total(classic, name) for name in names))

    try:
        run(*queues[:2])
        run(queues[0], queues[2])
    finally:
        for name in queues:
            classic.delete(name)
    assert Counter(body for _, body in job.rows) == Counter(sent)
    assert {destination for destination, _ in job.rows} == {f"{unique}.goods.>"}


@pytest.mark.whole
def test_the_queue_of_a_consumer_of_a_virtual_topic(
    spark: Any, classic: ActiveMqNode, tmp_path: Path, unique: str, protocol: str
) -> None:
    topic = f"VirtualTopic.{unique}"
    queue, another = f"Consumer.spark.{topic}", f"Consumer.another.{topic}"
    for name in (queue, another):
        classic.declare(name)
    sent = [str(number).encode() for number in range(10)]
    publish(classic, protocol, topic, sent)
    job = Job(spark, classic, protocol, queue, tmp_path)
    try:
        job.run(lambda: len(job.rows) >= len(sent) and total(classic, queue) == 0)
        assert total(classic, another) == len(sent)
    finally:
        for name in (queue, another):
            classic.delete(name)
    assert job.rows == [(queue, body) for body in sent]


@pytest.mark.whole
@pytest.mark.parametrize("routing", ["ANYCAST", "MULTICAST"])
def test_the_fully_qualified_name_of_a_queue_of_artemis(
    spark: Any, artemis: ArtemisNode, tmp_path: Path, unique: str, protocol: str, routing: str
) -> None:
    address, queue = f"orders-{unique}", f"spark-{unique}"
    made(artemis, queue, address, routing)
    sent = [str(number).encode() for number in range(10)]
    publish(artemis, protocol, address, sent, routing)
    job = Job(spark, artemis, protocol, f"{address}::{queue}", tmp_path)
    try:
        assert poll(lambda: total(artemis, queue) == len(sent), 10)
        job.run(lambda: len(job.rows) >= len(sent) and total(artemis, queue) == 0)
    finally:
        artemis.delete(queue)
    assert job.rows == [(f"{address}::{queue}", body) for body in sent]


@pytest.mark.whole
def test_a_non_destructive_queue_of_artemis_is_read_again_beyond_the_window(
    spark: Any, artemis: ArtemisNode, tmp_path: Path, unique: str, protocol: str
) -> None:
    made(artemis, unique, unique, "ANYCAST", **{"non-destructive": True})
    job = Job(spark, artemis, protocol, unique, tmp_path, dedupWindow=20, settleGrace="0s", maxMessagesPerTrigger=10)
    sent = [str(number).encode() for number in range(100)]

    def run(first: int, last: int) -> None:
        artemis.publish(unique, sent[first:last], protocol=protocol)
        job.run(lambda: sent[last - 1] in {body for _, body in job.rows} and total(artemis, unique) == last)

    try:
        run(0, 90)
        assert [body for _, body in job.rows] == sent[:90]
        run(90, 100)
    finally:
        artemis.delete(unique)
    times = Counter(body for _, body in job.rows)
    assert times.keys() == set(sent)
    # The newest that were settled are dropped, and what was not settled yet.
    assert {times[body] for body in sent[70:]} == {1}
    assert times[sent[0]] == 2
