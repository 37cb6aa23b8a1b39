"""Queues by a pattern: looked up at real brokers, over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.errors import BrokerUnavailableError, RefusedError
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.options import parse_options
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.java import JavaNode
from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import NodeError, poll
from tests.plugin import missing
from tests.support.effort import with_all
from tests.support.engine import At, Crashed, Engine

PLUGINS = ("rabbitmq_management", "rabbitmq_stomp")
NODES = {
    "rabbitmq": (lambda: RabbitNode(plugins=PLUGINS), AMQP_0_9_1),
    "rabbitmq4.3": (lambda: RabbitNode(version="4.3", plugins=PLUGINS), AMQP_0_9_1),
    "activemq": (ActiveMqNode, STOMP),
    "artemis": (ArtemisNode, AMQP_1_0),
}


@pytest.fixture(scope="module", params=[with_all("rabbitmq"), "rabbitmq4.3", with_all("activemq"), "artemis"])
def broker(request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, str], RabbitNode | JavaNode]]:
    """Options that name the broker, and its node; each once for the module."""
    make, protocol = NODES[request.param]
    try:
        node = make()
    except NodeError as absent:
        missing(str(absent))
        raise
    with node:
        name = request.param.rstrip("0123456789.")
        options = {"broker": name, "protocol": protocol, "url": node.url(protocol)}
        yield {**options, "managementUrl": node.management_url}, node


def settings(options: dict[str, str], **more: str) -> Settings:
    return parse_options({**options, "queuePattern": ".*", **more}).settings


def names(options: dict[str, str], **more: str) -> list[str]:
    management = parse_options({**options, "queuePattern": ".*", **more}).management
    assert management is not None
    return management.names()


def publish(broker: tuple[dict[str, str], RabbitNode | JavaNode], name: str) -> None:
    options, node = broker
    node.publish(name, (f"{name} {number}".encode() for number in range(30)), protocol=options["protocol"])


def test_queues_that_match_are_read_new_ones_too(broker: tuple[dict[str, str], RabbitNode | JavaNode]) -> None:
    options, node = broker
    stem = f"p{uuid.uuid4().hex[:8]}"
    made = [f"{stem}.a", f"{stem}.b b", f"x{stem}"]
    for name in made:
        node.declare(name)
        publish(broker, name)
    pattern = {"queuePattern": f"{stem}\\..*", "queuePatternInterval": "1s"}
    with Engine(**options, **pattern, maxMessagesPerTrigger=25) as engine:
        with pytest.raises(Crashed):
            engine.batch(At.AFTER_OFFSET_LOG)
        engine.drain(60)
        late = f"{stem}.c"
        node.declare(late)
        publish(broker, late)
        engine.drain(90)
        expected = [f"{name} {number}" for name in (*made[:2], late) for number in range(30)]
        assert sorted(engine.output) == sorted(expected)
        assert poll(lambda: node.counts(late).total == 0, 30)
        node.delete(late)
        for _ in range(30):
            engine.trigger()
        node.publish(made[0], [b"last"], protocol=options["protocol"])
        engine.drain(91)
    assert node.counts(made[2]).ready == 30
    for name in made:
        node.delete(name)


def test_all_names_are_told_however_many(broker: tuple[dict[str, str], RabbitNode | JavaNode]) -> None:
    options, node = broker
    stem = f"m{uuid.uuid4().hex[:8]}"
    many = [f"{stem}-{number}" for number in range(30)]
    for name in many:
        node.declare(name)
    assert [name for name in names(options) if name.startswith(stem)] == sorted(many)
    for name in many:
        node.delete(name)
    assert not [name for name in names(options) if name.startswith(stem)]


def test_a_wrong_password_is_told_and_not_shown(broker: tuple[dict[str, str], RabbitNode | JavaNode]) -> None:
    options, node = broker
    url = "http://joe:hushhush@" + node.management_url.rpartition("@")[2].removeprefix("http://")
    with pytest.raises(RefusedError, match=r"at http://127.*40[13].*user 'joe' needs the right") as told:
        names(options, managementUrl=url)
    assert "hushhush" not in str(told.value)


def test_another_path_is_refused_with_an_example(broker: tuple[dict[str, str], RabbitNode | JavaNode]) -> None:
    options, node = broker
    wrong = f"{node.management_url}/nothing/here" if isinstance(node, RabbitNode) else node.management_url[:-3]
    with pytest.raises(RefusedError, match=r"'managementUrl' is, e\.g\., http://host:"):
        names(options, managementUrl=wrong)


def test_nobody_there_is_told(broker: tuple[dict[str, str], RabbitNode | JavaNode]) -> None:
    options, _ = broker
    with pytest.raises(BrokerUnavailableError, match="does not answer"):
        names(options, managementUrl="http://127.0.0.1:9/")


def test_the_management_tells_the_backlog_where_no_session_is_told(
    broker: tuple[dict[str, str], RabbitNode | JavaNode],
) -> None:
    options, node = broker
    if options["broker"] == "artemis":
        pytest.skip("its sessions are told, over STOMP")
    queue = f"backlog-{uuid.uuid4().hex[:8]}"
    node.declare(queue)
    node.publish(queue, (b"%d" % number for number in range(300)), protocol=STOMP)
    given = {**options, "protocol": STOMP, "url": node.url(STOMP), "queue": queue, "prefetch": 100}
    with Engine(**given, maxMessagesPerTrigger=50) as engine:
        engine.batch()
        assert poll(lambda: engine.counters()["backlog"] == 200, 40)
    del given["managementUrl"]
    with Engine(**given, maxMessagesPerTrigger=50) as engine:
        engine.batch()
        assert engine.counters()["backlog"] is None
    node.delete(queue)


def test_artemis_tells_it_over_amqp_1_0(broker: tuple[dict[str, str], RabbitNode | JavaNode]) -> None:
    options, node = broker
    if options["broker"] != "artemis":
        pytest.skip("of Artemis")
    queue = f"backlog-{uuid.uuid4().hex[:8]}"
    node.declare(queue)
    node.publish(queue, (b"%d" % number for number in range(300)), protocol=AMQP_1_0)
    with Engine(**options, queue=queue, prefetch=100, maxMessagesPerTrigger=50) as engine:
        engine.batch()
        assert poll(lambda: engine.counters()["backlog"] == 200, 40)
    node.delete(queue)
