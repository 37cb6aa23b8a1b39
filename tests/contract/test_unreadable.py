"""A message that cannot be decoded affects no other: those around it are received."""

from __future__ import annotations

import json
import struct

import pika
import pytest
from proton import ProtonException

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.cli.main import main
from pyspark_mq.decode.batch import UNREADABLE_PROPERTY
from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import MessageError
from testbed.process import poll
from testbed.publishers.amqp10 import OutgoingMessage, publish_amqp10
from tests.support.amqp10_messages import Message, V, section
from tests.support.amqp10_send import send
from tests.support.entries import LiveEntry

pytestmark = pytest.mark.contract("unreadable")
amqp091 = pytest.mark.protocols(AMQP_0_9_1)


class Encoded(pika.BasicProperties):
    """Properties with a message ID and one header, its value given as bytes."""

    def __init__(self, value: bytes) -> None:
        super().__init__()
        self._value = value

    def encode(self) -> list[bytes]:
        """Flags, headers, delivery mode, message ID."""
        table = b"\x04when" + self._value
        flags = pika.BasicProperties.FLAG_HEADERS | pika.BasicProperties.FLAG_DELIVERY_MODE
        flags |= pika.BasicProperties.FLAG_MESSAGE_ID
        return [struct.pack(">HI", flags, len(table)), table, b"\x02", b"\x03odd"]


def nested(depth: int) -> bytes:
    value = b"V"
    for _ in range(depth):
        value = b"F" + struct.pack(">I", len(value) + 2) + b"\x01a" + value
    return value


def publish_encoded(entry: LiveEntry, value: bytes) -> None:
    entry.on_channel(lambda channel: channel.basic_publish("", entry.queue, b"odd body", Encoded(value)))


def publish_odd(entry: LiveEntry) -> None:
    """Publish a message that cannot be decoded: one with headers nested two thousand deep."""
    publish_encoded(entry, nested(2_000))


@amqp091
def test_what_is_around_an_unreadable_message_is_received_and_it_can_be_settled(entry: LiveEntry) -> None:
    entry.node.delete(entry.queue)
    entry.declare(entry.queue, deliveries=1)
    before = entry.publish(20)
    publish_odd(entry)
    publish_odd(entry)
    after = entry.publish(20)
    with entry.session(keeps_unreadable=True) as session:
        session.take_any(42, window=100)
        odd = session.decoder.unreadable(session.raws)
        assert [unreadable.tag for unreadable in odd] == session.tags()[20:22]
        assert all(unreadable.error and unreadable.data for unreadable in odd)
        assert "'odd'" in str(odd[0])
        assert entry.queue in str(odd[0])
        good = [raw for raw in session.raws if not session.decoder.unreadable([raw])]
        assert [body.decode() for body in session.decoder.bodies(good)] == before + after
        # Every column can be made of all of them.
        for make in session.decoder.columns.values():
            assert len(make(session.raws)) == 42
        assert UNREADABLE_PROPERTY in dict(session.decoder.columns["properties"](session.raws)[20])
        assert not any(session.decoder.columns["redelivered"](session.raws))
        session.consumer.reject([odd[0].tag])
        session.acknowledge(upto=session.tags()[-1])
        assert session.turn(lambda: entry.total() == 0)


@amqp091
def test_a_date_that_client_libraries_cannot_read_is_a_number(entry: LiveEntry) -> None:
    nanoseconds = 1_700_000_000_000_000_000
    publish_encoded(entry, b"T" + struct.pack(">Q", nanoseconds))
    with entry.session() as session:
        session.take_any(1)
        assert ("when", str(nanoseconds)) in session.decoder.columns["properties"](session.raws)[0]
        session.acknowledge(upto=session.tags()[-1])
        assert session.turn(lambda: entry.total() == 0)


@amqp091
def test_an_unreadable_message_is_named_and_stays(entry: LiveEntry) -> None:
    publish_odd(entry)
    with entry.session() as session:
        with pytest.raises(MessageError, match=entry.queue) as raised:
            session.take_any(1)
        assert "delivery 1" in str(raised.value)
        assert session.raws == []
    assert poll(lambda: entry.counts().ready == 1, 30)


#: What brokers hand on over AMQP 1.0 without a look: values that are none, and values in values without an end.
ODD_BODIES = {
    "half a surrogate pair": section("amqp-value", b"\x73\x00\x00\xd8\x00"),
    "text that is none": section("amqp-value", b"\xa1\x02\xff\xfe"),
    "a list without an end": section("amqp-value", b"\xc0\x05\x03\x54\x01\x54\x02"),
    "nested": section("amqp-value", b"\x00\xa3\x01a" * 200 + b"\x40"),
    # As objects, these values would take a gigabyte.
    "millions of empty lists": section(
        "amqp-value", b"\xd0" + struct.pack(">II", (8 << 20) + 4, 8 << 20) + b"\x45" * (8 << 20)
    ),
}


@pytest.mark.protocols(AMQP_1_0)
@pytest.mark.parametrize("kind", ODD_BODIES)
def test_what_is_around_an_unreadable_message_is_emitted_and_it_is_named(entry: LiveEntry, kind: str) -> None:
    if entry.is_plugin and kind == "millions of empty lists":
        pytest.skip("the plugin of RabbitMQ 3 takes no lists as values")
    odd = Message(properties=[V("string", "odd")]).encode() + ODD_BODIES[kind]
    good = [Message(properties=[V("string", name)], body="data", contents=[V("binary", b"x")]) for name in "ab"]
    try:
        send(entry, good[0].encode(), odd, good[1].encode())
    except ProtonException as refused:
        pytest.skip(f"{entry.entry.name} takes no such message: {type(refused).__name__}")
    with entry.session() as session, pytest.raises(MessageError, match="'odd'"):
        session.take_any(3, window=100)
    assert poll(lambda: entry.counts().ready == 3, 30)
    if entry.entry.broker == "activemq" and kind not in {"half a surrogate pair", "millions of empty lists"}:
        pytest.skip("ActiveMQ Classic reads a message before it hands it out again, and keeps one that it cannot read")
    with entry.engine(onUnreadableMessage="row") as engine:
        emitted = [engine.batch()]
        assert poll(lambda: sum(emitted) == 3 or bool(emitted.append(engine.trigger())), 30)
        assert poll(lambda: engine.trigger() == 0 and entry.total() == 0, 30)


@pytest.mark.protocols(STOMP)
def test_a_message_that_cannot_be_acknowledged_is_named_once(entry: LiveEntry) -> None:
    if entry.entry.broker != "activemq":
        pytest.skip("only ActiveMQ Classic cannot settle over STOMP what came over AMQP 1.0")
    with entry.session() as session:
        publish_amqp10(entry.node.url(AMQP_1_0), entry.amqp10_address(), [OutgoingMessage(b"x", "plain")])
        with pytest.raises(MessageError, match=r"ID:plain.*amqp-1\.0"):
            session.take_any(1)
    assert poll(lambda: entry.counts().ready == 1, 30)


@pytest.mark.protocols(STOMP)
def test_a_property_in_the_place_of_the_brokers_id_makes_no_two_messages_one(entry: LiveEntry) -> None:
    if entry.entry.broker == "rabbitmq":
        pytest.skip("the IDs are the producers' there: see the contract tests of sessions")
    named = OutgoingMessage(b"x", None, {"message-id": "the same"})
    publish_amqp10(entry.node.url(AMQP_1_0), entry.amqp10_address(), [named, named])
    with entry.session() as session:
        if entry.entry.broker == "activemq":
            with pytest.raises(MessageError, match=r"'the same'.*amqp-1\.0"):
                session.take_any(1)
        else:
            session.take_any(2)
            assert len(set(map(str, session.decoder.ids(session.raws, IdSource("message-id"))))) == 2
            session.acknowledge(upto=session.tags()[-1])
    assert poll(lambda: entry.total() == (2 if entry.entry.broker == "activemq" else 0), 30)


@pytest.mark.protocols(STOMP)
def test_a_message_of_amqp_1_0_without_an_id_is_acknowledged(entry: LiveEntry) -> None:
    if entry.entry.broker != "activemq":
        pytest.skip("the other half of what only ActiveMQ Classic cannot")
    publish_amqp10(entry.node.url(AMQP_1_0), entry.amqp10_address(), [OutgoingMessage(b"x", None)])
    with entry.session() as session:
        session.take_any(1)
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.protocols(STOMP)
@pytest.mark.parametrize("properties", [17, 1], ids=["many", "one"])
def test_headers_beyond_the_limit_make_one_message_unreadable(
    entry: LiveEntry, properties: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if entry.entry.broker != "activemq":
        pytest.skip("other brokers do not take that many bytes of properties")
    headers = {f"p{number}": "x" * (17 * 2**20 // properties) for number in range(properties)}
    # Without a producer's ID, which would hide the broker's.
    entry.node.publish(entry.queue, [b"odd"], ids=[None], headers=headers, protocol=AMQP_1_0)
    sent = entry.publish(2)
    with entry.session(keeps_unreadable=True) as session:
        session.take_any(3)
        assert [body.decode() for body in session.decoder.bodies(session.raws)[1:]] == sent
        (odd,) = session.decoder.unreadable(session.raws)
        assert odd.tag == session.tags()[0]
        assert odd.known["message-id"].startswith("ID:")
        assert "the limit is 16777216" in odd.error
        for make in session.decoder.columns.values():
            make(session.raws)
    assert poll(lambda: entry.counts().ready == 3, 30)
    with entry.session() as session, pytest.raises(MessageError, match="its headers have 17"):
        session.take(1)
    assert poll(lambda: entry.counts().ready == 3, 30)
    options = [f"{name}={value}" for name, value in entry.options(onUnreadableMessage="row").items()]
    assert main(["peek", "--json", "--wait", "10", *options]) == 0
    shown = [json.loads(line)["body"] for line in capsys.readouterr().out.splitlines()]
    assert [body for body in shown if body in sent] == sent
    assert len(shown) == 3
    with entry.engine(onUnreadableMessage="reject") as engine:
        engine.drain(2)
        # The large message may come last.
        assert poll(lambda: engine.trigger() == 0 and entry.total() == 0, 30)
        assert sorted(engine.output) == sorted(sent)


@pytest.mark.protocols(STOMP)
@pytest.mark.parametrize("name", ["x\nack:1\ny", "x\nack:1", "x\nsubscription:0\n\ny"], ids=["within", "last", "end"])
def test_a_name_with_line_feeds_settles_no_other_message(entry: LiveEntry, name: str) -> None:
    if entry.entry.broker != "activemq":
        pytest.skip("other brokers escape the names of headers")
    entry.publish(1)
    entry.node.publish(entry.queue, [b"odd"], ids=[None], headers={name: "value"}, protocol=AMQP_1_0)
    with entry.session(keeps_unreadable=True) as session:
        try:
            session.take_any(2)
            known = [odd.tag for odd in session.decoder.unreadable(session.raws)] == session.tags()[1:]
        except MessageError as refused:
            known = "line feeds" in str(refused) or "STOMP frame" in str(refused)
        assert known
    assert poll(lambda: entry.counts().ready == 2, 30)
