"""RabbitMQ 4.0 over AMQP 1.0: its links count deliveries from -5 on, and it ends a session where 4.3 ends a link."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_mq.brokers.base import AMQP_1_0
from testbed.process import poll
from tests.plugin import Nodes
from tests.support.entries import LiveEntry, MatrixEntry

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def live(nodes: Nodes) -> Iterator[LiveEntry]:
    with LiveEntry(MatrixEntry("rabbitmq", AMQP_1_0, "4.0"), nodes.get("rabbitmq", "4.0")) as live:
        yield live


def test_a_session_receives_no_more_than_its_window(live: LiveEntry) -> None:
    sent = live.publish(20)
    with live.session() as session:
        session.open()
        session.idle(0.5)
        assert not session.raws
        session.consume(3)
        session.idle(0.5)
        assert len(session.raws) == 3
        session.acknowledge(upto=session.tags()[-1])
        assert session.turn(lambda: len(session.raws) == 6)
    assert poll(lambda: live.counts().ready == 17, 30)
    with live.session() as session:
        assert session.take(17) == sent[3:]
        session.acknowledge(upto=session.tags()[-1])
    assert poll(lambda: live.total() == 0, 30)


def test_the_session_of_a_topic_survives_messages_beyond_its_window(live: LiveEntry) -> None:
    topic = live.topic()
    with live.session(queue=None, topic=topic) as session:
        session.open()
        live.publish_topic(topic, 20)
        session.consume(3)
        assert session.turn(lambda: len(session.raws) >= 3)
        session.idle(0.5)
        before = len(session.raws)
        assert before <= 8
        session.acknowledge(upto=session.tags()[-1])
        assert session.turn(lambda: len(session.raws) > before)


@pytest.mark.parametrize("consumers", [1, 2])
def test_a_bounded_run_takes_the_few_messages_that_wait(live: LiveEntry, consumers: int) -> None:
    sent = live.publish(4)
    with live.engine(consumers=consumers) as engine:
        engine.run_available()
        assert sorted(engine.output) == sorted(sent)
        engine.run_available()
    assert poll(lambda: live.total() == 0, 30)
