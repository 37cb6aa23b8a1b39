"""What is read of a message is its own: nothing of the one before it, whatever each of them leaves out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.dedup import IdSource
from testbed.process import poll
from testbed.publishers.stomp import publish_stomp
from tests.support.amqp10_messages import Message, V
from tests.support.amqp10_send import send
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("each message alone"), pytest.mark.network]

_NONE = V("null")
#: Messages of AMQP 1.0 with some of the sections. Nearly none of them is scanned.
AMQP_1_0_FORMS = [
    Message(
        header=[V("boolean", True), V("ubyte", 7)],
        message_annotations=[
            (V("symbol", "x-opt-own"), V("string", "here")),
            (V("symbol", "x-opt-jms-msg-type"), V("byte", 5)),
        ],
        properties=[
            V("string", "id-1"), _NONE, _NONE, V("string", "subject"), V("string", "reply"), V("uuid", UUID(int=5)),
            V("symbol", "text/plain"), _NONE, _NONE, V("timestamp", 1_700_000_000_000), V("string", "group"),
        ],
        application=[(V("string", "own"), V("string", "first"))],
        body="amqp-value",
    ),
    Message(body="amqp-value"),
    Message(header=[V("boolean", True)], body="amqp-value"),
    Message(properties=[V("string", "id-2")], body="amqp-value"),
    Message(properties=[_NONE, _NONE, _NONE, V("string", "other")], body="data"),
    Message(application=[(V("string", "own"), V("int", 2))], body="amqp-value"),
    Message(header=[V("boolean", True), V("ubyte", 2)], body="data"),
    Message(body="data"),
    Message(body="data", footer=[]),
]  # fmt: skip
AMQP_0_9_1_FORMS: list[dict[str, Any]] = [
    {"message_id": "id-1", "correlation_id": "c", "reply_to": "r", "content_type": "text/plain", "type": "order",
     "priority": 7, "timestamp": 1_700_000_000, "expiration": "60000000", "headers": {"own": "first"}},
    {}, {"message_id": "id-2"}, {"headers": {}}, {"headers": {"own": "second", "more": 5}}, {"priority": 1},
    {"correlation_id": "c2"}, {"type": "other"},
]  # fmt: skip
STOMP_FORMS: list[dict[str, str]] = [
    {"correlation-id": "c", "reply-to": "/queue/r", "content-type": "text/plain", "type": "order", "priority": "7",
     "own": "first"},
    {}, {"own": "second", "more": "5"}, {"priority": "1"}, {"correlation-id": "c2"}, {"type": "other"},
]  # fmt: skip
FORMS: dict[str, list[Any]] = {AMQP_0_9_1: AMQP_0_9_1_FORMS, AMQP_1_0: AMQP_1_0_FORMS, STOMP: STOMP_FORMS}
#: What brokers set by themselves, another each time.
OWN = {AMQP_0_9_1: set(), AMQP_1_0: set(), STOMP: {"id", "timestamp", "expiration"}}


def with_body(form: Message, number: int) -> bytes:
    """A message of AMQP 1.0 whose body has a number in it: a map, or several sections."""
    pairs = [(V("string", "form"), V("int", number))]
    parts = [V("binary", b"form"), V("binary", b"%d" % number)]
    return replace(form, contents=[V("map", pairs)] if form.body == "amqp-value" else parts).encode()


def publish(entry: LiveEntry, numbers: Sequence[int]) -> None:
    """Send messages of the forms of these numbers, which are in their bodies."""
    forms = [(number, FORMS[entry.entry.protocol][number]) for number in numbers]
    if entry.entry.protocol == AMQP_1_0:
        send(entry, *(with_body(form, number) for number, form in forms))
    elif entry.entry.protocol == STOMP:
        assert entry.broker.stomp is not None
        destination = entry.broker.stomp.queue.format(name=entry.queue)
        publish_stomp(entry.url(), destination, [(b"%d" % number, form) for number, form in forms])
    else:
        import pika

        def work(channel: Any) -> None:
            for number, form in forms:
                channel.basic_publish("", entry.queue, b"%d" % number, pika.BasicProperties(delivery_mode=2, **form))

        entry.on_channel(work)


def rows(entry: LiveEntry, count: int) -> list[dict[str, Any]]:
    """What one session reads of all that is in the queue."""
    with entry.session() as session:
        session.take_any(count, window=100)
        found = []
        for raw in session.raws:
            row = {name: make([raw])[0] for name, make in session.decoder.columns.items()}
            row |= {"body": session.decoder.bodies([raw])[0]}
            row |= {"id": session.decoder.ids([raw], IdSource("message-id"))[0]}
            found.append({name: value for name, value in row.items() if name not in OWN[entry.entry.protocol]})
        session.acknowledge(upto=session.tags()[-1])
        assert session.turn(lambda: entry.total() == 0)
    return found


def unflagged(entry: LiveEntry, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """What is read of new messages of these forms.

    Under load a broker may hand some to the session before, whose end it has not noticed, and flag them after that.
    """
    for _ in range(5):
        publish(entry, numbers)
        found = rows(entry, len(numbers))
        if not any(row["redelivered"] for row in found):
            break
    return found


def test_a_message_is_read_as_if_it_were_alone(entry: LiveEntry) -> None:
    numbers = [*range(len(FORMS[entry.entry.protocol]))]
    alone = {}
    for number in numbers:
        (row,) = unflagged(entry, [number])
        alone[row["body"]] = row
    order = numbers + numbers[::-1] + random.Random(1).choices(numbers, k=30)
    # Brokers put them in an order of their own, by priority.
    found = unflagged(entry, order)
    assert {row["body"] for row in found} == alone.keys()
    for row in found:
        assert row == alone[row["body"]]


@pytest.mark.protocols(AMQP_1_0)
def test_messages_without_an_id_are_all_emitted_behind_one_that_has_one(entry: LiveEntry) -> None:
    first = Message(properties=[V("string", "the only id")], body="amqp-value")
    send(entry, with_body(first, 0), *(with_body(Message(body="amqp-value"), number) for number in range(1, 11)))
    assert poll(lambda: entry.counts().ready == 11, 30)
    with entry.engine(onMissingMessageId="content") as engine:
        emitted = [engine.batch()]
        while emitted[-1] and sum(emitted) < 11:
            emitted.append(engine.trigger())
        assert sum(emitted) == 11
