"""Metadata: what each cell's messages say, against what was sent, one by one and in several queues and processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from testbed.publishers.stomp import publish_stomp
from tests.support.amqp10_messages import Message, V
from tests.support.amqp10_send import send
from tests.support.cells import LiveCell

pytestmark = [pytest.mark.law("metadata"), pytest.mark.network]

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


def full(cell: LiveCell) -> None:
    """A message with all that the cell's protocol has."""
    dialect = cell.broker.stomp
    if cell.cell.protocol == STOMP:
        assert dialect is not None
        headers = STOMP_HEADERS[cell.cell.broker]
        publish_stomp(cell.url(), dialect.queue.format(name=cell.queue), [(b"full", headers)])
    elif cell.cell.protocol == AMQP_1_0:
        none = V("null")
        properties = [
            V("string", "full"), V("binary", b"guest"), none, none, none, none, none, V("symbol", "gzip"), none, none,
            V("string", "g"), V("uint", 7),
        ]  # fmt: skip
        application = [(V("string", "JMSXAppID"), V("string", "app"))]
        contents = [V("binary", b"full")]
        header = [V("boolean", True)]
        message = Message(header=header, properties=properties, application=application, body="data", contents=contents)
        send(cell, message.encode())
    else:
        import pika

        cell._on_channel(
            lambda channel: channel.basic_publish(
                "",
                cell.queue,
                b"full",
                pika.BasicProperties(
                    user_id="guest", app_id="app", content_encoding="gzip", delivery_mode=2,
                    headers={"JMSXGroupID": "g", "JMSXGroupSeq": 7},
                ),
            )
        )  # fmt: skip


def bare(cell: LiveCell) -> None:
    """A message with nothing that can be left out, and not to be kept over a restart."""
    if cell.cell.protocol == AMQP_1_0:
        send(cell, Message(body="data", contents=[V("binary", b"bare")]).encode())
    elif cell.cell.protocol == AMQP_0_9_1:
        cell._on_channel(lambda channel: channel.basic_publish("", cell.queue, b"bare"))


def routed(cell: LiveCell, exchange: str, key: str) -> None:
    """A message through an exchange of RabbitMQ, whatever the cell's protocol is."""

    def work(channel: Any) -> None:
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_bind(cell.queue, exchange, key)
        channel.basic_publish(exchange, key, b"routed")
        channel.exchange_delete(exchange)

    cell._on_channel(work)


def says_where(cell: LiveCell) -> bool:
    """Does the broker say over this protocol where a message was published?"""
    early = cell.node.version.startswith("3.")
    return cell.cell.broker == "rabbitmq" and not (cell.cell.protocol == AMQP_1_0 and early)


@pytest.fixture
def second(cell: LiveCell) -> Iterator[str]:
    """Another queue, which stays empty but for one message."""
    name = f"{cell.queue}-second"
    cell.declare(name)
    yield name
    cell.node.delete(name)


def test_a_row_says_what_its_message_said(cell: LiveCell, second: str) -> None:
    full(cell)
    bare(cell)
    exchange, key = f"ex/{cell.queue}", "a/b.c d%é"
    if cell.cell.broker == "rabbitmq":
        routed(cell, exchange, key)
    cell.node.publish(second, [b"second"], protocol=cell.cell.protocol)
    count = 2 + (cell.cell.protocol != STOMP) + (cell.cell.broker == "rabbitmq")
    names = f"{cell.queue},{second}"
    options = {"includeMetadata": "true", "onMissingMessageId": "content"}
    with cell.engine(queue=names, **options) as engine:
        engine.drain(count)
        rows: Mapping[str, dict[str, Any]] = {row["body"].decode(): row for row in engine.rows}
    where = {"exchange": "", "routingKey": cell.queue} if says_where(cell) else {}
    told = {"userId": "guest", "appId": "app", "contentEncoding": "gzip", "groupId": "g", "groupSequence": 7}
    for name in NOT_SAID.get((cell.cell.broker, cell.cell.protocol), ()):
        del told[name]
    seen = {name: rows["full"][name] for name in NOTHING}
    assert (seen, rows["full"]["persistent"]) == ({**NOTHING, **where, **told}, True)
    if "bare" in rows:
        seen = {name: rows["bare"][name] for name in NOTHING}
        # Of a message of AMQP 1.0 without a header, RabbitMQ 4.0 says that it is durable.
        durable = cell.cell.protocol == AMQP_1_0 and cell.node.version.startswith("4.0")
        assert (seen, rows["bare"]["persistent"]) == ({**NOTHING, **where}, durable)
    if "routed" in rows:
        expected = (exchange, key) if says_where(cell) else (None, None)
        assert (rows["routed"]["exchange"], rows["routed"]["routingKey"]) == expected
    assert rows["second"]["destination"] == second
    assert rows["second"]["routingKey"] == (second if says_where(cell) else None)


def test_without_being_asked_for_metadata_is_in_no_row(cell: LiveCell) -> None:
    cell.publish(1)
    with cell.engine() as engine:
        engine.drain(1)
        assert not {*NOTHING, "persistent"} & set(engine.rows[0])
