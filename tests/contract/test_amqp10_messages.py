"""All that AMQP 1.0 can put into a message, sent by a real client through a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Described,
    Message,
    byte,
    char,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.dedup import IdSource
from tests.support.amqp10_messages import Message as Encoded
from tests.support.amqp10_messages import V
from tests.support.amqp10_send import send
from tests.support.decoding import Asked
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.protocols("amqp-1.0"), pytest.mark.contract("all body sections and types")]
DECODER = Asked(Amqp10Batch)


def received(entry: LiveEntry, count: int) -> list[Any]:
    with entry.session() as session:
        session.take_any(count)
        session.acknowledge(upto=session.tags()[-1])
        return session.raws


def body_of(entry: LiveEntry, message: Message | bytes) -> bytes:
    send(entry, message)
    return DECODER.bodies(received(entry, 1))[0]


def test_binary_and_text(entry: LiveEntry) -> None:
    send(
        entry,
        Message(id="1", body=b"\x00data\xff", inferred=True),
        Message(id="2", body=b"\x00value\xff"),
        Message(id="3", body="täxt\n"),
        Message(id="4", body=b"", inferred=True),
    )
    assert DECODER.bodies(received(entry, 4)) == [b"\x00data\xff", b"\x00value\xff", "täxt\n".encode(), b""]


def test_a_message_without_any_body_is_an_empty_one(entry: LiveEntry) -> None:
    if entry.node.version.startswith("4."):
        pytest.skip("RabbitMQ 4 ends the session, or from 4.3 the link, of whoever sends such a message")
    assert body_of(entry, Message(id="1")) == b""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"name": "a", "number": 5, "no": None}, {"name": "a", "number": 5, "no": None}),
        ({"binary": b"\x01\x02"}, {"binary": "AQI="}),
        (42, 42),
        (True, True),
        (UUID(int=7), str(UUID(int=7))),
    ],
)  # fmt: skip
def test_values_become_json(entry: LiveEntry, body: object, expected: object) -> None:
    assert json.loads(body_of(entry, Message(id="1", body=body))) == expected


def test_a_list_becomes_json(entry: LiveEntry) -> None:
    if entry.is_plugin:
        pytest.skip("the plugin of RabbitMQ 3 ends the connection of whoever sends a list as a value")
    assert json.loads(body_of(entry, Message(id="1", body=[1, "two", 3.5, None]))) == [1, "two", 3.5, None]


def test_a_sequence_becomes_a_json_list(entry: LiveEntry) -> None:
    assert json.loads(body_of(entry, Message(id="1", body=[1, "two"], inferred=True))) == [1, "two"]


def section(descriptor: int, payload: bytes) -> bytes:
    return b"\x00\x53" + bytes([descriptor]) + payload


def test_several_data_sections_are_one_body(entry: LiveEntry) -> None:
    properties = section(0x73, b"\xc0\x06\x01\xa1\x03one")
    data = section(0x75, b"\xa0\x03abc") + section(0x75, b"\xa0\x02de")
    if entry.is_plugin:
        assert body_of(entry, properties + data) == b"deabc"
        pytest.skip("the plugin of RabbitMQ 3 turns the order of the sections around")
    assert body_of(entry, properties + data) == b"abcde"
    same = section(0x75, b"\xa0\x03abc") * 2
    assert body_of(entry, properties + same) == b"abcabc"
    sequences = section(0x76, b"\xc0\x03\x01\x54\x01") + section(0x76, b"\xc0\x03\x01\x54\x02")
    assert json.loads(body_of(entry, properties + sequences)) == [1, 2]


def test_ids_of_all_four_types(entry: LiveEntry) -> None:
    ids = ["text", ulong(5), UUID(int=9), b"\x00\xff"]
    send(entry, *(Message(id=key, correlation_id=key, body=b"x", inferred=True) for key in ids))
    raws = received(entry, 4)
    for source in ("message-id", "correlation-id"):
        keys = DECODER.ids(raws, IdSource(source))
        assert keys[0] == "text"
        assert str(UUID(int=9)) in str(keys[2])
        assert len({str(key) for key in keys}) == 4
        assert None not in keys


def test_binary_ids_and_properties_of_many_messages_differ(entry: LiveEntry) -> None:
    ids = [b"\xff-%d-\xfe" % number for number in range(50)]
    send(entry, *(Message(id=key, body=b"x", inferred=True, properties={"own": key}) for key in ids))
    raws = received(entry, 50)
    for source in (IdSource("message-id"), IdSource("property", "own")):
        keys = DECODER.ids(raws, source)
        assert None not in keys
        assert len({str(key) for key in keys}) == 50


def test_properties_of_every_type_are_text(entry: LiveEntry) -> None:
    properties = {
        "boolean": True, "byte": byte(-1), "short": short(-2), "int": int32(-3), "long": -4, "ubyte": ubyte(1),
        "ushort": ushort(2), "uint": uint(3), "ulong": ulong(4), "float": float32(1.5), "double": 2.25,
        "string": "täxt", "symbol": symbol("sym"), "char": char("c"), "uuid": UUID(int=3),
        "time": timestamp(1_700_000_000_000),
    }  # fmt: skip
    send(entry, Message(id="1", body=b"x", properties=properties))
    found = dict(DECODER.columns["properties"](received(entry, 1))[0])
    expected = {
        "boolean": "true", "byte": "-1", "short": "-2", "int": "-3", "long": "-4", "ubyte": "1", "ushort": "2",
        "uint": "3", "ulong": "4", "float": "1.5", "double": "2.25", "string": "täxt", "symbol": "sym",
        "char": "c", "uuid": str(UUID(int=3)), "time": "1700000000000",
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected


def test_the_columns_of_a_message(entry: LiveEntry) -> None:
    now = round(time.time())
    message = Message(
        id="id-1", correlation_id="c-1", reply_to="answers", content_type="text/plain", subject="kind", priority=7,
        creation_time=now, expiry_time=now + 600, ttl=600, durable=True, group_id="g-1", body=b"x", inferred=True,
    )  # fmt: skip
    send(entry, message)
    raws = received(entry, 1)
    columns: dict[str, Callable[[Any], list[Any]]] = dict(DECODER.columns)
    row = {name: make(raws)[0] for name, make in columns.items()}
    assert row.pop("properties")
    assert row.pop("groupSequence") in {0, None}  # the client library writes it, or not
    where = (
        {"exchange": "", "routingKey": entry.queue} if entry.entry.broker == "rabbitmq" and not entry.is_plugin else {}
    )
    type_of = "kind" if entry.entry.broker != "rabbitmq" else row["type"]  # the plugin puts the routing key there
    assert row == {
        "correlationId": "c-1", "replyTo": "answers", "contentType": "text/plain", "type": type_of, "priority": 7,
        "timestamp": now * 1_000_000, "expiration": (now + 600) * 1_000_000, "redelivered": False, "deliveryCount": 1,
        "persistent": True, "groupId": "g-1", "contentEncoding": None, "userId": None, "appId": None,
        "exchange": None, "routingKey": None, **where,
    }  # fmt: skip


def test_a_described_value_is_read_without_its_description(entry: LiveEntry) -> None:
    assert body_of(entry, Message(id="1", body=Described(symbol("own:type"), "value"))) in {b"value", b'"value"'}


def test_an_array_is_a_list(entry: LiveEntry) -> None:
    array = Array(UNDESCRIBED, Data.INT, 1, 2, 3)
    assert json.loads(body_of(entry, Message(id="1", body=array))) == [1, 2, 3]


def test_a_list_of_seventy_thousand_numbers_is_whole(entry: LiveEntry) -> None:
    if entry.is_plugin:
        pytest.skip("the plugin of RabbitMQ 3 ends the connection of whoever sends a list as a value")
    numbers = V("list", [V("int", number) for number in range(70_000)])
    sent = Encoded(properties=[V("string", "1")], body="amqp-value", contents=[numbers]).encode()
    assert json.loads(body_of(entry, sent)) == [*range(70_000)]


def test_decimals_and_maps_with_any_keys_are_json(entry: LiveEntry) -> None:
    if entry.is_plugin:
        pytest.skip("the plugin of RabbitMQ 3 reads no such values")
    pairs = [(V("int", 1), V("decimal32", (0, 150, -2))), (V("boolean", True), V("decimal128", (1, 1, 3)))]
    pairs += [(V("string", "1"), V("decimal64", "NaN")), (V("binary", b"\xff"), V("null"))]
    sent = Encoded(properties=[V("string", "1")], body="amqp-value", contents=[V("map", pairs)]).encode()
    assert body_of(entry, sent) == b'[[1, 1.50], [true, -1E+3], ["1", "NaN"], ["/w==", null]]'
