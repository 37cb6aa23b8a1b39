"""Topics: durable subscriptions keep what is published while nobody is there; others keep nothing."""

from __future__ import annotations

import pytest

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_1_0
from pyspark_mq.errors import MqError, OptionError
from pyspark_mq.sources.connections.session import SessionLostError
from pyspark_mq.spark_source.options import parse_options
from tests.support.engine import At, Crashed, Engine
from tests.support.entries import LiveEntry, SessionRun

pytestmark = [pytest.mark.contract("topic"), pytest.mark.network]


def durable(entry: LiveEntry, topic: str, **options: object) -> Engine:
    given = entry.options(topic=topic, subscription=f"{topic}-readers", **options)
    del given["queue"]
    return Engine(**given)


def needs_durable(entry: LiveEntry) -> None:
    if entry.entry.protocol not in BROKERS[entry.entry.broker].durable_topics:
        options = entry.options(topic="t", subscription="s")
        del options["queue"]
        with pytest.raises(OptionError, match="no durable subscriptions"):
            parse_options({name: str(value) for name, value in options.items()})
        pytest.skip("no durable subscriptions over this protocol: refused at load(); a bound queue is read instead")


def test_a_durable_subscription_keeps_messages_while_the_query_is_down(entry: LiveEntry) -> None:
    needs_durable(entry)
    topic = entry.topic()
    with durable(entry, topic) as run:
        assert run.trigger() == 0  # the subscription is made with the first connection
        sent = entry.publish_topic(topic, 10)
        run.drain(10)
        run.crash()
        sent += entry.publish_topic(topic, 10)
        run.drain(20)
        assert sorted(run.output) == sorted(sent)


@pytest.mark.parametrize("at", list(At))
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(entry: LiveEntry, at: At) -> None:
    needs_durable(entry)
    topic = entry.topic()
    with durable(entry, topic, maxMessagesPerTrigger=10) as run:
        assert run.trigger() == 0
        sent = entry.publish_topic(topic, 30)
        with pytest.raises(Crashed):
            run.batch(crash=at)
        run.drain(30)
        assert sorted(run.output) == sorted(sent)


@pytest.mark.thorough
def test_a_broker_killed_keeps_the_subscription_and_what_was_not_acknowledged(entry: LiveEntry) -> None:
    needs_durable(entry)
    topic = entry.topic()
    with durable(entry, topic, maxMessagesPerTrigger=10) as run:
        assert run.trigger() == 0
        sent = entry.publish_topic(topic, 30)
        run.between = entry.kill_and_start
        run.batch()
        run.between = lambda: None
        run.drain(30)
        assert sorted(run.output) == sorted(sent)


def problem(session: SessionRun) -> Exception | None:
    """What a second session on a subscription fails with within a second, if anything."""
    try:
        session.consume(10)
        session.idle(1.0)
    except (MqError, SessionLostError) as met:
        return met
    return None


def test_a_subscription_in_use_is_said_or_shared(entry: LiveEntry) -> None:
    needs_durable(entry)
    topic = entry.topic()
    names = {"queue": None, "topic": topic, "subscription": f"{topic}-readers"}
    with entry.session(**names) as first:
        first.consume(10)
        first.idle(0.3)
        with entry.session(**names) as second:
            met = problem(second)
            assert met is None or ("in use" in str(met) and topic in str(met))
        sent = entry.publish_topic(topic, 5)
        # A second one that shared it has left again.
        assert first.turn(lambda: len(first.raws) >= 5)
        assert sorted(first.bodies()) == sorted(sent)


def test_without_a_subscription_only_what_comes_now_is_read(entry: LiveEntry) -> None:
    version = tuple(map(int, entry.node.version.split(".")[:2]))
    if entry.entry.broker == "rabbitmq" and entry.entry.protocol == AMQP_1_0 and version >= (4, 3):
        pytest.skip("from 4.3 on RabbitMQ lets AMQP 1.0 read queues only: bind one to the exchange, and read that")
    topic = entry.topic()
    entry.publish_topic(topic, 5)
    options = entry.options(topic=topic, guarantee="none")
    del options["queue"]
    with Engine(**options) as run:
        assert run.trigger() == 0
        sent = entry.publish_topic(topic, 10)
        run.drain(10)
        assert sorted(run.output) == sorted(sent)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_topic_without_a_subscription_is_refused_for_any_other_guarantee(entry: LiveEntry, guarantee: str) -> None:
    options = entry.options(topic="prices", guarantee=guarantee)
    del options["queue"]
    with pytest.raises(OptionError, match="subscription") as refused:
        parse_options({name: str(value) for name, value in options.items()})
    assert "prices" in str(refused.value)
