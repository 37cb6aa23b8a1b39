"""Metadata: what each matrix entry's messages say, against what was sent, one by one and in several queues and
processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.publishers.stomp import publish_stomp
from tests.support.amqp10_messages import Message, V
from tests.support.amqp10_send import send
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("metadata"), pytest.mark.network]

NOTHING = dict.fromkeys(["routingKey", "exchange", "userId", "appId", "contentEncoding", "groupId", "groupSequence"])
GROUP = {"JMSXGroupID": "g", "JMSXGroupSeq": "7"}
#: Over STOMP each broker has names of its own.
STOMP_HEADERS = {
    "rabbitmq": {"user-id": "guest", "app-id": "app", "content-encoding": "gzip", **GROUP},
    "activemq": {"JMSXUserID": "guest", "JMSXAppID": "app", "content-encoding": "gzip", **GROUP},
    "artemis": {"JMSXUserID": "guest", "JMSXAppID": "app", "content-encoding": "gzip", **GROUP},
}
#: ActiveMQ Classic says over STOMP neither who sent a message, unless it is told to, nor of which group it is.
NOT_SAID = {("activemq", STOMP): {"userId", "groupId", "groupSequence"}}


def full(entry: LiveEntry) -> None:
    """A message with all that the matrix entry's protocol has."""
    dialect = entry.broker.stomp
    if entry.entry.protocol == STOMP:
        assert dialect is not None
        headers = STOMP_HEADERS[entry.entry.broker]
        publish_stomp(entry.url(), dialect.queue.format(name=entry.queue), [(b"full", headers)])
    elif entry.entry.protocol == AMQP_1_0:
        none = V("null")
        properties = [
            V("string", "full"), V("binary", b"guest"), none, none, none, none, none, V("symbol", "gzip"), none, none,
            V("string", "g"), V("uint", 7),
        ]  # fmt: skip
        application = [(V("string", "JMSXAppID"), V("string", "app"))]
        contents = [V("binary", b"full")]
        header = [V("boolean", True)]
        message = Message(header=header, properties=properties, application=application, body="data", contents=contents)
        send(entry, message.encode())
    else:
        import pika

        entry.on_channel(
            lambda channel: channel.basic_publish(
                "",
                entry.queue,
                b"full",
                pika.BasicProperties(
                    user_id="guest", app_id="app", content_encoding="gzip", delivery_mode=2,
                    headers={"JMSXGroupID": "g", "JMSXGroupSeq": 7},
                ),
            )
        )  # fmt: skip


def bare(entry: LiveEntry) -> None:
    """A message with nothing that can be left out, and not to be kept over a restart."""
    if entry.entry.protocol == AMQP_1_0:
        send(entry, Message(body="data", contents=[V("binary", b"bare")]).encode())
    elif entry.entry.protocol == AMQP_0_9_1:
        entry.on_channel(lambda channel: channel.basic_publish("", entry.queue, b"bare"))


def routed(entry: LiveEntry, exchange: str, key: str) -> None:
    """A message through an exchange of RabbitMQ, whatever the matrix entry's protocol is."""

    def work(channel: Any) -> None:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_bind(entry.queue, exchange, key)
        channel.basic_publish(exchange, key, b"routed")
        channel.exchange_delete(exchange)

    entry.on_channel(work)


def says_where(entry: LiveEntry) -> bool:
    """Does the broker say over this protocol where a message was published?"""
    early = entry.node.version.startswith("3.")
    return entry.entry.broker == "rabbitmq" and not (entry.entry.protocol == AMQP_1_0 and early)


@pytest.fixture
def second(entry: LiveEntry) -> Iterator[str]:
    """Another queue, which stays empty but for one message."""
    name = f"{entry.queue}-second"
    entry.declare(name)
    yield name
    entry.node.delete(name)


def test_a_row_says_what_its_message_said(entry: LiveEntry, second: str) -> None:
    full(entry)
    bare(entry)
    exchange, key = f"ex/{entry.queue}", "a/b.c d%é"
    if entry.entry.broker == "rabbitmq":
        routed(entry, exchange, key)
    entry.node.publish(second, [b"second"], protocol=entry.entry.protocol)
    count = 2 + (entry.entry.protocol != STOMP) + (entry.entry.broker == "rabbitmq")
    names = f"{entry.queue},{second}"
    options = {"includeMetadata": "true", "onMissingMessageId": "content"}
    with entry.engine(queue=names, **options) as engine:
        engine.drain(count)
        rows: Mapping[str, dict[str, Any]] = {row["body"].decode(): row for row in engine.rows}
    where = {"exchange": "", "routingKey": entry.queue} if says_where(entry) else {}
    told = {"userId": "guest", "appId": "app", "contentEncoding": "gzip", "groupId": "g", "groupSequence": 7}
    for name in NOT_SAID.get((entry.entry.broker, entry.entry.protocol), ()):
        del told[name]
    seen = {name: rows["full"][name] for name in NOTHING}
    assert (seen, rows["full"]["persistent"]) == ({**NOTHING, **where, **told}, True)
    if "bare" in rows:
        seen = {name: rows["bare"][name] for name in NOTHING}
        # Of a message of AMQP 1.0 without a header, RabbitMQ 4.0 says that it is durable.
        durable = entry.entry.protocol == AMQP_1_0 and entry.node.version.startswith("4.0")
        assert (seen, rows["bare"]["persistent"]) == ({**NOTHING, **where}, durable)
    if "routed" in rows:
        expected = (exchange, key) if says_where(entry) else (None, None)
        assert (rows["routed"]["exchange"], rows["routed"]["routingKey"]) == expected
    assert rows["second"]["destination"] == second
    assert rows["second"]["routingKey"] == (second if says_where(entry) else None)


def test_without_being_asked_for_metadata_is_in_no_row(entry: LiveEntry) -> None:
    entry.publish(1)
    with entry.engine() as engine:
        engine.drain(1)
        assert not {*NOTHING, "persistent"} & set(engine.rows[0])
