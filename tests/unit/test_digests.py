"""What makes a content: all that a producer sets is a part of it, and nothing that a broker changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pika
import pytest
from proton import Message, symbol

from pyspark_mq.brokers import BROKERS
from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.stomp import StompBatch
from tests.support.decoding import Asked
from tests.support.stomp import block


def amqp091(
    where: bytes = b"\x02ex\x06orders", body: bytes = b"body", *, redelivered: bool = False, **set_: Any
) -> Any:
    return 1, redelivered, b"".join(pika.BasicProperties(**set_).encode()), body, where


def amqp10(**set_: Any) -> Any:
    message = Message(**{"body": b"body", "inferred": True, **set_})
    return SectionReader(counts_acquirers=True).read(1, bytes(message.encode()))


def stomp(body: bytes = b"body", *, redelivered: bool = False, **set_: str) -> Any:
    headers = {"message-id": "T_1", "ack": "1", "destination": "/queue/q", "redelivered": str(redelivered).lower()}
    named = {name.replace("_", "-"): value for name, value in set_.items()}
    return 1, block(headers | named), body, BROKERS["rabbitmq"].stomp


#: What producers set: each of these is another message than one without, and than all others.
SET: Mapping[str, tuple[Asked, Callable[..., Any], list[dict[str, Any]]]] = {
    "amqp-0-9-1": (
        Asked(Amqp091Batch),
        amqp091,
        [
            {"body": b"other"}, {"message_id": "1"}, {"correlation_id": "1"}, {"reply_to": "1"}, {"type": "1"},
            {"content_type": "1"}, {"content_encoding": "1"}, {"priority": 1}, {"timestamp": 1}, {"timestamp": 10**15},
            {"timestamp": 10**15 + 1}, {"user_id": "1"}, {"app_id": "1"}, {"delivery_mode": 2},
            {"headers": {"a": "1"}}, {"headers": {"a": "2"}}, {"headers": {"b": "1"}},
            {"headers": {"a": "1", "b": "1"}}, {"headers": {"a": {"b": [1]}}}, {"headers": {"JMSXGroupID": "1"}},
        ],
    ),
    "amqp-1.0": (
        Asked(Amqp10Batch),
        amqp10,
        [
            {"body": b"other"}, {"body": [1]}, {"id": "1"}, {"correlation_id": "1"}, {"reply_to": "1"},
            {"subject": "1"}, {"content_type": "1"}, {"content_encoding": "1"}, {"priority": 1}, {"creation_time": 1},
            {"user_id": b"1"}, {"durable": True}, {"group_id": "1"}, {"group_id": "1", "group_sequence": 7},
            {"properties": {"a": "1"}}, {"properties": {"a": "2"}}, {"properties": {"b": "1"}},
            {"annotations": {symbol("x-opt-jms-msg-type"): 5}},
        ],
    ),
    "stomp": (
        Asked(StompBatch),
        stomp,
        [
            {"body": b"other"}, {"amqp_message_id": "1"}, {"correlation_id": "1"}, {"reply_to": "1"}, {"type": "1"},
            {"content_type": "1"}, {"content_encoding": "1"}, {"priority": "1"}, {"timestamp": "1"},
            {"timestamp": "2026-11-27"}, {"user_id": "1"}, {"app_id": "1"}, {"persistent": "true"}, {"a": "1"},
            {"a": "2"}, {"b": "1"}, {"a": "1", "b": "1"},
        ],
    ),
}  # fmt: skip
#: What brokers change from delivery to delivery.
CHANGED: Mapping[str, list[dict[str, Any]]] = {
    "amqp-0-9-1": [
        {"redelivered": True}, {"where": b"\x00\x04dead"}, {"headers": {"a": "1", "x-delivery-count": 3}},
        {"headers": {"x-death": [{"count": 1}], "x-first-death-queue": "q", "x-last-death-queue": "q", "a": "1"}},
        {"expiration": "60000"}, {"headers": {"x-acquired-count": 1, "x-opt-rabbitmq-sent-time": 5, "a": "1"}},
    ],
    "amqp-1.0": [
        {"delivery_count": 3}, {"first_acquirer": True}, {"ttl": 60.0}, {"expiry_time": 1.7e9},
        {"instructions": {symbol("x-opt"): 1}},
        {"annotations": {symbol("x-delivery-count"): 3, symbol("x-opt-deaths"): 1, symbol("x-exchange"): "dead"}},
    ],
    "stomp": [
        {"redelivered": True}, {"message_id": "T_2"}, {"ack": "2"}, {"subscription": "2"}, {"destination": "/queue/d"},
        {"x_delivery_count": "3"}, {"x_death": "{table,[]}", "x_first_death_queue": "q"}, {"expiration": "60000"},
        {"expires": "1"}, {"original_expiration": "60000"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("protocol", SET)
def test_whatever_a_producer_sets_makes_another_content(protocol: str) -> None:
    decoder, make, variants = SET[protocol]
    digests = decoder.digests([make(), *(make(**variant) for variant in variants)])
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("protocol", CHANGED)
def test_what_a_broker_changes_does_not(protocol: str) -> None:
    decoder, make, _ = SET[protocol]
    same = {"amqp-0-9-1": {"headers": {"a": "1"}}, "amqp-1.0": {"properties": {"a": "1"}}, "stomp": {"a": "1"}}[
        protocol
    ]
    (digest,) = set(decoder.digests([make(**{**same, **change}) for change in ({}, *CHANGED[protocol])]))
    assert len(digest) == 16


def test_headers_may_come_in_another_order() -> None:
    assert len(set(Asked(StompBatch).digests([stomp(a="1", b="2"), stomp(b="2", a="1")]))) == 1
    both = [amqp091(headers=headers) for headers in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})]
    assert len(set(Asked(Amqp091Batch).digests(both))) == 1


def test_two_headers_whose_names_are_shown_alike_have_a_digest() -> None:
    alike = [amqp091(headers={"\\xff": None, b"\xff": "1"}), amqp091(headers={"\\xff": "1", b"\xff": None})]
    assert all(len(digest) == 16 for digest in Asked(Amqp091Batch).digests(alike))
