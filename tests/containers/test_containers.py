"""Brokers in containers: the same nodes to their users, and read exactly once. Run by ``make test-containers``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.brokers.factory import make_node
from testbed.brokers.node import Node, QueueCounts
from testbed.process import NodeError, PublishError
from tests.plugin import missing
from tests.support.checks import assert_exactly_once, bodies
from tests.support.engine import Engine
from tests.support.entries import LiveEntry, MatrixEntry

MESSAGES = 60
EPOCH = 20
QUEUE = "containers"

ENTRIES = (
    MatrixEntry("rabbitmq", AMQP_0_9_1, kind="classic"),
    MatrixEntry("rabbitmq", AMQP_0_9_1, kind="quorum"),
    MatrixEntry("rabbitmq", STOMP),
    MatrixEntry("rabbitmq", AMQP_0_9_1, version="4"),
    MatrixEntry("rabbitmq", STOMP, version="4"),
    MatrixEntry("rabbitmq", AMQP_1_0, version="4"),
    MatrixEntry("activemq", STOMP),
    MatrixEntry("artemis", AMQP_1_0),
    MatrixEntry("artemis", STOMP),
)


@pytest.fixture(scope="module")
def containers() -> Iterator[dict[tuple[str, str], Node]]:
    """One of each broker and version, filled by the other fixtures; at the end all are removed."""
    made: dict[tuple[str, str], Node] = {}
    yield made
    for node in made.values():
        node.close()


@pytest.fixture
def node(containers: dict[tuple[str, str], Node], request: pytest.FixtureRequest) -> Node:
    broker, version = request.param
    if (broker, version) not in containers:
        try:
            containers[broker, version] = make_node(broker, version, container=True)
        except NodeError as absent:
            missing(str(absent))
    node = containers[broker, version]
    if not node.running:
        node.start()
    return node


@pytest.fixture
def live(node: Node, request: pytest.FixtureRequest) -> Iterator[LiveEntry]:
    """As the fixture `entry` of the other tests, whose brokers are processes."""
    with LiveEntry(request.param, node) as entry:
        yield entry


each_broker = pytest.mark.parametrize(
    "node",
    [("rabbitmq", ""), ("rabbitmq", "4"), ("activemq", ""), ("artemis", "")],
    ids=["rabbitmq", "rabbitmq4", "activemq", "artemis"],
    indirect=True,
)
each_entry = pytest.mark.parametrize(
    ("node", "live"),
    [pytest.param((entry.broker, entry.version), entry, id=entry.name) for entry in ENTRIES],
    indirect=True,
)


def engine(entry: LiveEntry) -> Engine:
    return entry.engine(maxMessagesPerTrigger=EPOCH, prefetch=100)


@each_broker
def test_a_container_is_a_node(node: Node) -> None:
    assert node.version[0].isdigit()
    assert node.log_tail()
    with pytest.raises(NodeError, match="is running already"):
        node.start()
    with pytest.raises(NodeError, match="TLS"):
        node.url(tls=True)
    with pytest.raises(NodeError, match="does not speak 'mqtt'"):
        node.url("mqtt")

    node.declare(QUEUE)
    assert node.counts(QUEUE) == QueueCounts(0, 0)
    node.publish(QUEUE, bodies(5))
    assert node.counts(QUEUE) == QueueCounts(5, 0)
    node.purge(QUEUE)
    assert node.counts(QUEUE) == QueueCounts(0, 0)
    node.delete(QUEUE)
    node.delete(QUEUE)
    with pytest.raises(NodeError):
        node.counts(QUEUE)


@each_broker
def test_data_and_urls_outlive_an_orderly_stop_and_a_kill(node: Node) -> None:
    url = node.url()
    node.declare(QUEUE)
    node.publish(QUEUE, bodies(3))
    node.stop()
    node.stop()
    assert not node.running
    with pytest.raises(PublishError):
        node.publish(QUEUE, bodies(1), timeout_s=5)
    node.start()
    assert node.counts(QUEUE) == QueueCounts(3, 0)
    node.kill()
    node.kill()
    assert not node.running
    node.start()
    assert node.url() == url
    assert node.counts(QUEUE) == QueueCounts(3, 0)
    node.delete(QUEUE)


@each_entry
def test_read_exactly_once(live: LiveEntry) -> None:
    sent = live.publish(MESSAGES)
    with engine(live) as run:
        run.drain(MESSAGES)
        assert_exactly_once(live, run, sent)


@each_entry
def test_killed_between_plan_and_commit(live: LiveEntry) -> None:
    sent = live.publish(MESSAGES)
    with engine(live) as run:
        run.between = live.kill_and_start
        assert run.batch() == EPOCH
        run.between = lambda: None
        run.drain(MESSAGES)
        assert run.counters()["reconnects"] >= 1
        assert_exactly_once(live, run, sent, ordered=False)  # its order after a restart is its own


def test_no_docker_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(NodeError) as absent:
        make_node("rabbitmq", container=True)
    assert str(absent.value).splitlines()[0] == "Docker does not answer"
