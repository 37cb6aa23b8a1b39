"""IDs of messages sent over AMQP 1.0, by their type: docs/guarantees.md says which are the same elsewhere."""

from __future__ import annotations

from uuid import UUID

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0
from pyspark_mq.dedup import IdSource, Key, id_keys
from tests.contract.test_alone import with_body
from tests.support.amqp10_messages import Message, V
from tests.support.amqp10_send import send
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("IDs"), pytest.mark.network, pytest.mark.protocols(AMQP_0_9_1, AMQP_1_0)]


def read_id(entry: LiveEntry, value: V) -> Key | None:
    """The key of a message with this ID."""
    if entry.entry.broker != "rabbitmq":
        pytest.skip("elsewhere the protocol is a part of the checkpoint")
    send(entry, with_body(Message(properties=[value], body="data"), 0))
    with entry.session() as session:
        session.take_any(1, 10)
        (key,) = id_keys(session.decoder.ids(session.raws, IdSource("message-id")))
    return key


def test_a_string_is_the_same_over_both_protocols(entry: LiveEntry) -> None:
    assert read_id(entry, V("string", "id-1")) == "id-1"


def test_a_uuid_is_another_one_over_amqp_0_9_1(entry: LiveEntry) -> None:
    known = str(UUID(int=5))
    key = read_id(entry, V("uuid", UUID(int=5)))
    assert (key == known) is (entry.entry.protocol == AMQP_1_0)


def test_bytes_have_a_digest_over_amqp_1_0_and_something_else_or_nothing_over_amqp_0_9_1(entry: LiveEntry) -> None:
    key = read_id(entry, V("binary", b"abc"))
    assert isinstance(key, bytes) is (entry.entry.protocol == AMQP_1_0)
