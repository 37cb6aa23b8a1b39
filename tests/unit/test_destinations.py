"""Destinations as rows name them: what brokers write of them, and what is written."""

from __future__ import annotations

import pytest

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_1_0, STOMP
from pyspark_mq.brokers.destinations import KINDS, as_row, as_written, of_row

FORMS = {
    (name, protocol): dialect.forms
    for name, broker in BROKERS.items()
    for protocol, dialect in ((STOMP, broker.stomp), (AMQP_1_0, broker.amqp10))
    if dialect is not None
}

#: As brokers were seen to write `reply-to` (ActiveMQ Classic 6.1 and 6.3, Artemis 2.56, RabbitMQ 3.10 and 4.3).
SEEN = [
    ("activemq", STOMP, "/queue/N", None, "N"),
    ("activemq", STOMP, "/topic/N", None, "topic://N"),
    ("activemq", STOMP, "/remote-temp-queue/ID:h-1:2:3", None, "temp-queue://ID:h-1:2:3"),
    ("activemq", STOMP, "/remote-temp-topic/ID:h-1:2:3", None, "temp-topic://ID:h-1:2:3"),
    ("activemq", AMQP_1_0, "queue://N", 0, "N"),
    ("activemq", AMQP_1_0, "topic://N", 1, "topic://N"),
    ("activemq", AMQP_1_0, "temp-queue://T", 2, "temp-queue://T"),
    ("activemq", AMQP_1_0, "temp-topic://T", 3, "temp-topic://T"),
    ("artemis", STOMP, "queue://N", None, "N"),
    ("artemis", STOMP, "temp-topic://T", None, "temp-topic://T"),
    ("artemis", AMQP_1_0, "N", 0, "N"),
    ("artemis", AMQP_1_0, "N", 1, "topic://N"),
    ("artemis", AMQP_1_0, "T", 2, "temp-queue://T"),
    ("artemis", AMQP_1_0, "T", 3, "temp-topic://T"),
    ("artemis", AMQP_1_0, "N", None, "N"),
    ("rabbitmq", STOMP, "/reply-queue/N", None, "N"),
    ("rabbitmq", STOMP, "/exchange/e/k", None, "/exchange/e/k"),
    ("rabbitmq", AMQP_1_0, "/queues/a%20b%2Fc", None, "a b/c"),
    ("rabbitmq", AMQP_1_0, "/queue/N", None, "N"),
    ("rabbitmq", AMQP_1_0, "N", None, "N"),
    ("rabbitmq", AMQP_1_0, "/exchanges/e/k", None, "/exchanges/e/k"),
]


@pytest.mark.parametrize(("broker", "protocol", "text", "number", "row"), SEEN)
def test_what_a_broker_writes_is_shown_in_one_form(
    broker: str, protocol: str, text: str, number: int | None, row: str
) -> None:
    assert as_row(text, FORMS[broker, protocol], number) == row


@pytest.mark.parametrize(("broker", "protocol"), FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["N", "a b/c", "ID:h-1:2:3", "topic://x", "queue://"])
def test_what_is_written_is_shown_again(broker: str, protocol: str, kind: str, name: str) -> None:
    forms = FORMS[broker, protocol]
    if broker == "rabbitmq":
        assert as_row(as_written(name, forms), forms) == name
        return
    row = name if (kind, name) == of_row(name) else f"{kind}://{name}"
    written = as_written(row, forms) if forms else of_row(row)[1]
    assert of_row(as_row(written, forms, None if forms else KINDS.index(kind))) == (kind, name)


def test_a_name_in_the_protocol_s_own_form_stays() -> None:
    assert as_written("/queue/N", FORMS["activemq", STOMP]) == "/queue/N"
    assert as_written("/exchanges/e/k", FORMS["rabbitmq", AMQP_1_0]) == "/exchanges/e/k"
