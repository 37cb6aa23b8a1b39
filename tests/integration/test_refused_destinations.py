"""Queues that must not be made, addresses of the wrong kind, unknown virtual hosts, deleted queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_mq.brokers.base import AMQP_1_0, STOMP
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.node import Node
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError
from tests.plugin import missing
from tests.support.engine import Engine, ReaderError

PROTOCOLS = pytest.mark.parametrize("protocol", [AMQP_1_0, STOMP])


def strict_node(kind: type[ActiveMqNode | ArtemisNode]) -> Iterator[Node]:
    try:
        node = kind(auto_create=False)
    except NodeError as absent:
        missing(str(absent))
        raise
    with node:
        yield node


@pytest.fixture(scope="module")
def classic() -> Iterator[Node]:
    yield from strict_node(ActiveMqNode)


@pytest.fixture(scope="module")
def artemis() -> Iterator[Node]:
    yield from strict_node(ArtemisNode)


def refusal(broker: str, node: Node, protocol: str, **options: object) -> ReaderError:
    given = {"broker": broker, "protocol": protocol, "url": node.url(protocol), "connectTimeout": "3s", **options}
    with Engine(**given) as run, pytest.raises(ReaderError) as failed:
        run.batch()
    assert "@" not in str(failed.value)
    return failed.value


@PROTOCOLS
def test_no_queue_is_made_where_classic_makes_none(classic: Node, protocol: str) -> None:
    error = refusal("activemq", classic, protocol, queue="nowhere")
    assert error.kind == "DestinationError"
    assert "queue 'nowhere'" in str(error)


@pytest.mark.whole
@PROTOCOLS
def test_no_queue_is_made_where_artemis_makes_none(artemis: Node, protocol: str) -> None:
    error = refusal("artemis", artemis, protocol, queue="nowhere")
    assert error.kind == "DestinationError"
    assert "queue 'nowhere'" in str(error)


@PROTOCOLS
def test_an_address_of_the_wrong_routing_type_is_refused_and_keeps_its_messages(artemis: Node, protocol: str) -> None:
    artemis.declare("orders")
    artemis.publish("orders", [b"one"], protocol=protocol)
    error = refusal("artemis", artemis, protocol, topic="orders", guarantee="none")
    assert error.kind in {"DestinationError", "BrokerUnavailableError"}
    assert "topic 'orders'" in str(error)
    assert artemis.counts("orders").ready == 1
    artemis.delete("orders")


@PROTOCOLS
def test_an_unknown_virtual_host_is_refused(rabbit: RabbitNode, protocol: str) -> None:
    error = refusal("rabbitmq", rabbit, protocol, url=rabbit.url(protocol) + "nowhere", queue="q")
    assert error.kind in {"RefusedError", "DestinationError"}
    assert "nowhere" in str(error)


@PROTOCOLS
def test_a_queue_deleted_under_the_query_is_named(rabbit: RabbitNode, protocol: str) -> None:
    queue = f"deleted-{protocol}"
    rabbit.declare(queue)
    rabbit.publish(queue, [b"one"] * 3)
    options = {"url": rabbit.url(protocol), "protocol": protocol, "queue": queue}
    with Engine(**options) as run:
        run.drain(3)
        rabbit.delete(queue)
        with pytest.raises(ReaderError) as failed:
            run.batch()
    assert failed.value.kind == "DestinationError"
    assert queue in str(failed.value)


@PROTOCOLS
def test_a_queue_with_a_slash_in_its_name(rabbit: RabbitNode, protocol: str) -> None:
    rabbit.declare("a/b")
    rabbit.publish("a/b", [b"one"] * 3)
    with Engine(url=rabbit.url(protocol), protocol=protocol, queue="a/b") as run:
        run.drain(3)
    rabbit.delete("a/b")
