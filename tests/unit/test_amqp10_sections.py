"""Valid and broken messages of AMQP 1.0 that are not common: each is read whole, or is unreadable."""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import re
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_message import Raw, UnreadableMessage
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.batch import UNREADABLE_PROPERTY
from pyspark_mq.dedup import IdSource
from tests.support.amqp10_messages import Message, V, encoded, json_of, section
from tests.support.decoding import Asked

DECODER = Asked(Amqp10Batch)
ROOT = Path(__file__).parents[2]


def read(*messages: bytes, counts_acquirers: bool = False) -> list[Raw]:
    """What one reader makes of messages that come one behind the other."""
    reader = SectionReader(counts_acquirers=counts_acquirers)
    return [reader.read(number, data) for number, data in enumerate(messages)]


def row(raw: Raw) -> dict[str, Any]:
    made = {name: make([raw])[0] for name, make in DECODER.columns.items()}
    return made | {"body": raw.body, "id": DECODER.ids([raw], IdSource("message-id"))[0]}


def body(value: V) -> bytes:
    """The body of a message with a value, behind an ID."""
    raw = read(of(value))[0]
    assert not isinstance(raw, UnreadableMessage), raw.of.application
    return raw.body


def of(value: V) -> bytes:
    return Message(properties=[V("string", "id")], body="amqp-value", contents=[value]).encode()


def test_a_message_may_have_a_million_values_and_no_more() -> None:
    def nulls(count: int) -> bytes:
        half = count // 2
        lists = [b"\xd0" + struct.pack(">II", some + 4, some) + b"\x40" * some for some in (half, count - half)]
        inner = b"".join(lists)
        return section("amqp-value", b"\xd0" + struct.pack(">II", len(inner) + 4, 2) + inner)

    (raw,) = read(nulls(999_998))
    assert not isinstance(raw, UnreadableMessage)
    assert raw.of.value is None
    assert raw.size >= len(raw.body)
    assert "more than 1,000,000 values" in unreadable(nulls(999_999))


def unreadable(data: bytes) -> str:
    """Why it is; its body is all of it, and every column can be made."""
    raw = read(data)[0]
    assert isinstance(raw, UnreadableMessage)
    assert raw.body == data
    assert DECODER.unreadable([raw])[0].data == data
    return str(dict(row(raw)["properties"])[UNREADABLE_PROPERTY])


def strings(*texts: str) -> V:
    return V("list", [V("string", text) for text in texts])


# -- each message is read as if it were alone

FULL = Message(
    [V("boolean", True), V("ubyte", 9), V("uint", 60_000), V("boolean", False), V("uint", 3)],
    None,
    [(V("symbol", "x-opt-jms-msg-type"), V("byte", 5))],
    [V("string", "id-1"), V("binary", b"u"), V("string", "to"), V("string", "subject"), V("string", "reply"),
     V("uuid", UUID(int=5)), V("symbol", "t/p"), V("symbol", "gzip"),
     V("timestamp", 1_700_000_060_000), V("timestamp", 1_700_000_000_000), V("string", "group"), V("uint", 4)],
    [(V("string", "a"), V("int", 1))],
    "amqp-value",
    [V("list", [V("int", 1)])],
)  # fmt: skip
SPARSE = [
    Message(body="amqp-value", contents=[V("list", [V("int", 2)])]),
    Message(properties=[V("string", "id-2")], body="amqp-value", contents=[V("map", [])]),
    Message(header=[V("boolean", True)], body="data", contents=[V("binary", b"a"), V("binary", b"b")]),
    Message(application=[(V("string", "b"), V("list", []))], body="amqp-sequence", contents=[strings("x")]),
    Message(body="data", contents=[V("binary", b"x")], footer=[]),
    Message(header=[], properties=[], body="amqp-value", contents=[V("null")]),
    Message(),
]


@pytest.mark.parametrize("counts_acquirers", [False, True])
def test_a_message_without_a_section_has_nothing_of_the_message_before(counts_acquirers: bool) -> None:
    alone = {
        message.encode(): row(read(message.encode(), counts_acquirers=counts_acquirers)[0])
        for message in [FULL, *SPARSE]
    }
    for order in itertools.permutations(alone, 3):
        raws = read(*order, counts_acquirers=counts_acquirers)
        assert [row(raw) for raw in raws] == [alone[data] for data in order]
    without = row(read(FULL.encode(), SPARSE[0].encode())[1])
    assert (without["id"], without["correlationId"], without["type"]) == (None, None, None)
    assert (without["priority"], without["deliveryCount"], without["timestamp"]) == (4, 1, None)
    assert without["properties"] == []


def test_ten_messages_without_an_id_do_not_get_the_id_before_them() -> None:
    items = [of(V("list", [V("int", 0)])), *(SPARSE[0].encode() for _ in range(10))]
    assert DECODER.ids(read(*items), IdSource("message-id")) == ["id"] + [None] * 10


# -- whole, or not at all


@pytest.mark.parametrize("nested", [False, True])
def test_a_list_of_seventy_thousand_numbers_is_whole(nested: bool) -> None:
    numbers = V("list", [V("int", number) for number in range(70_000)])
    sent = V("map", [(V("string", "in"), V("list", [numbers, V("string", "last")]))]) if nested else numbers
    found = json.loads(body(sent))
    assert found == ({"in": [list(range(70_000)), "last"]} if nested else list(range(70_000)))


def test_several_sequences_with_binary_items_and_a_footer_have_their_own_bytes() -> None:
    parts = [V("list", [V("binary", bytes([65 + number]) * 40)]) for number in range(5)]
    data = Message(body="amqp-sequence", contents=parts, footer=[(V("symbol", "x"), V("binary", b"!" * 40))]).encode()
    for raw in read(*[data, Message(body="data", contents=[V("binary", b"?" * 5_000)]).encode()] * 20)[::2]:
        assert [base64.b64decode(item) for item in json.loads(raw.body)] == [part.of[0].of for part in parts]


def test_nothing_is_read_of_memory_that_was_given_back() -> None:
    # Freed memory is overwritten, by Python's allocator and by C's. What is read has to be what was sent.
    poisoned = {**os.environ, "PYTHONMALLOC": "debug", "MALLOC_PERTURB_": "165"}
    command = [sys.executable, "-m", "tests.fuzz", "amqp10", "--minutes", "0.03", "--seed", "3"]
    done = subprocess.run(
        command, cwd=ROOT, env=poisoned, capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "whole" in done.stdout


# -- what would fail when columns are made is unreadable


@pytest.mark.parametrize("point", [0xD800, 0xDBFF, 0xDFFF, 0x110000, 0xFFFFFFFF])
def test_a_char_that_is_no_character_is_unreadable(point: int) -> None:
    wrong = b"\x73" + struct.pack(">I", point)
    assert "UnicodeDecodeError" in unreadable(section("amqp-value", wrong))
    properties = section("application-properties", b"\xc1\x09\x02\xa1\x01a" + wrong)
    assert "UnicodeDecodeError" in unreadable(properties + section("data", b"\xa0\x01x"))


@pytest.mark.parametrize(
    "value",
    [V("null"), V("list", []), strings("a", "b"), V("string", "a"), V("int", 5), V("binary", b"x"),
     V("described", [V("symbol", "own"), V("map", [])])],
)  # fmt: skip
def test_application_properties_that_are_no_map_are_unreadable(value: V) -> None:
    data = section("application-properties", encoded(value)) + section("data", b"\xa0\x01x")
    assert "application-properties" in unreadable(data)


def test_two_properties_of_one_name_are_unreadable() -> None:
    twice = [(V("string", "a"), V("int", 1)), (V("string", "a"), V("int", 2))]
    assert "'a'" in unreadable(Message(application=twice, body="data", contents=[V("binary", b"x")]).encode())


@pytest.mark.parametrize("kind", ["list", "map", "array", "described"])
def test_what_is_nested_too_deep_is_unreadable_and_a_hundred_deep_is_read(kind: str) -> None:
    def nested(depth: int) -> V:
        value = V("int", 1)
        for _ in range(depth):
            if kind == "map":
                value = V("map", [(V("int", 1), value)])
            elif kind == "described":
                value = V("described", [V("symbol", "own"), value])
            else:
                value = V(kind, [value])
        return value

    def deep_on_the_stack(frames: int) -> None:
        if frames:
            return deep_on_the_stack(frames - 1)
        body(nested(100))
        for place in ("amqp-value", "application-properties"):
            for depth in (101, 473, 5_000 if kind != "array" else 500):
                # Made by hand, as an encoder that recurses would be the first to fail.
                value = wrapped(kind, depth)
                if place == "application-properties":
                    entry = b"\xa1\x01a" + value
                    value = b"\xd1" + struct.pack(">II", len(entry) + 4, 2) + entry
                assert "nested" in unreadable(section(place, value) + section("data", b"\xa0\x01x"))
        return None

    deep_on_the_stack(300)


def wrapped(kind: str, depth: int) -> bytes:
    value = b"\x54\x01"
    for _ in range(depth):
        if kind == "described":
            value = b"\x00\xa3\x03own" + value
        elif kind == "array":
            value = b"\xf0" + struct.pack(">II", len(value) + 4, 1) + value
        else:
            items = value if kind == "list" else b"\x54\x01" + value
            value = bytes([0xD0 + (kind == "map")]) + struct.pack(">II", len(items) + 4, 1 + (kind == "map")) + items
    return value


def test_maps_as_keys_of_maps_do_not_grow_with_each_level() -> None:
    value = V("string", '"')
    for _ in range(90):
        value = V("map", [(value, V("int", 1))])
    assert len(body(value)) < 5_000


# -- sizes and counts are checked before memory is taken


@pytest.mark.parametrize("code", [0x40, 0x41, 0x42, 0x43, 0x44, 0x45])
@pytest.mark.parametrize("wide", [False, True])
def test_an_array_of_elements_without_bytes_takes_little_memory(code: int, wide: bool) -> None:
    def array(count: int) -> bytes:
        if wide:
            return b"\xf0" + struct.pack(">II", 5, count) + bytes([code])
        return b"\xe0\x02" + bytes([count, code])

    assert len(json.loads(read(section("amqp-value", array(200)))[0].body)) == 200
    if not wide:
        return
    assert len(json.loads(read(section("amqp-value", array(1_000)))[0].body)) == 1_000
    many = b"".join(array(1_000) for _ in range(200))
    lists = b"\xd0" + struct.pack(">II", len(many) + 4, 200) + many
    for hostile in (array(2**32 - 1), array(100_000), lists):
        tracemalloc.start()
        try:
            assert re.search("elements|values", unreadable(section("amqp-value", hostile)))
            assert tracemalloc.get_traced_memory()[1] < 500_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("code", [0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0])
@pytest.mark.parametrize("place", ["header", "message-annotations", "properties", "application-properties", "data",
                                   "amqp-sequence", "amqp-value", "footer"])  # fmt: skip
def test_a_size_or_a_count_beyond_the_message_takes_no_memory(place: str, code: int) -> None:
    unreadable(section(place, b"\xff"))  # what is imported or made once, is by now
    for content in (b"\xff" * 8 + b"x" * 50, b"\x00\x00\x00\x21\xff\xff\xff\xff" + b"\x40" * 28):
        tracemalloc.start()
        try:
            unreadable(section(place, bytes([code]) + content))
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


# -- sections

ID = section("properties", b"\xc0\x05\x01\xa1\x02id")


def test_sections_may_begin_with_their_names() -> None:
    rng = random.Random(5)
    for _ in range(50):
        data = FULL.encode(rng)
        assert row(read(data)[0]) == row(read(FULL.encode())[0])
    named = b"\x00\xa3\x10amqp:data:binary\xa0\x03abc"
    assert read(ID + named)[0].body == b"abc"
    assert read(ID + named + section("data", b"\xa0\x02de"))[0].body == b"abcde"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (ID + b"junk", "no section"),
        (ID + b"\x00", "cut off"),
        (ID + section("data", b"\xa0\x01x") + b"\xa0\x01y", "no section"),
        (ID + b"\x00\x53\x79\xa0\x01x", "no section"),
        (ID + b"\x00\xa3\x03own\xa0\x01x", "no section"),
        (ID + b"\x00\x00\x53\x75\x53\x75\xa0\x01x", "no section"),
        (ID + section("data", b"\xa1\x01x"), "amqp:data:binary"),
        (ID + section("data", b"\x00\xa3\x03own\xa0\x01x"), "amqp:data:binary"),
        (ID + section("amqp-sequence", b"\xc1\x01\x00"), "amqp:amqp-sequence:list"),
        (ID + ID + section("data", b"\xa0\x01x"), "second section"),
        (ID + section("amqp-value", b"\x40") * 2, "second section"),
        (ID + section("amqp-value", b"\x40") + section("data", b"\xa0\x01x"), "a body of"),
        (section("properties", b"\xc0\x03\x01\x82\x00") + section("data", b"\xa0\x01x"), "0x82"),
        (section("properties", b"\xc0\x0f\x0e" + b"\x40" * 14) + section("data", b"\xa0\x01x"), "14 fields"),
        (section("header", b"\xc0\x03\x01\x40\x40"), "end at"),
        (section("amqp-value", b"\xc1\x03\x01\x54\x01"), "has no value"),
        (section("amqp-value", b"\x57"), "0x57"),
        (section("amqp-value", b"\x56\x02"), "boolean"),
        (section("amqp-value", b"\xa1\x02\xff\xfe"), "UnicodeDecodeError"),
        (section("amqp-value", b"\xa3\x02\xc3\xa9"), "UnicodeDecodeError"),
    ],
)
def test_what_is_no_message_is_unreadable_and_says_why(data: bytes, why: str) -> None:
    assert why in unreadable(data)
    odd = DECODER.unreadable(read(data))[0]
    assert odd.known == ({"message-id": "id"} if data.startswith(ID) else {})


def test_a_value_described_twice_is_read_without_its_descriptors() -> None:
    inner = V("described", [V("symbol", "in"), V("list", [V("int", 1)])])
    assert json.loads(body(V("described", [V("described", [V("int", 1), V("int", 2)]), inner]))) == [1]
    assert body(V("described", [V("symbol", "own"), V("string", "text")])) == b'"text"'


def test_a_described_null_is_null() -> None:
    nothing = V("described", [V("symbol", "own"), V("null")])
    assert body(nothing) == b"null"
    assert body(V("list", [nothing])) == b"[null]"


def test_text_with_a_nul_is_whole() -> None:
    data = Message(
        properties=[V("string", "a\0b"), V("null"), V("null"), V("string", "s\0t"), V("string", "r\0s")],
        body="amqp-value",
        contents=[V("list", [V("string", "x\0y")])],
    ).encode()
    found = row(read(data)[0])
    assert (found["id"], found["type"], found["replyTo"]) == ("a\0b", "s\0t", "r\0s")
    assert json.loads(found["body"]) == ["x\0y"]


# -- values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (V("decimal32", (0, 1, 0)), "1"),
        (V("decimal32", (1, 15, -1)), "-1.5"),
        (V("decimal32", (0, 9_999_999, 90)), "9.999999E+96"),
        (V("decimal64", (0, 1234567890123456, -2)), "12345678901234.56"),
        (V("decimal64", (0, 9_999_999_999_999_999, 0)), "9999999999999999"),
        (V("decimal128", (1, 10**34 - 1, -34)), "-0." + "9" * 34),
        (V("decimal128", (0, 0, -2)), "0.00"),
        (V("decimal128", "Infinity"), "Infinity"),
        (V("decimal64", "-Infinity"), "-Infinity"),
        (V("decimal32", "NaN"), "NaN"),
    ],
)
def test_decimals_are_numbers(value: V, text: str) -> None:
    number = text not in {"Infinity", "-Infinity", "NaN"}
    assert body(value) == (text if number else f'"{text}"').encode()
    data = Message(application=[(V("string", "d"), value)], body="data", contents=[V("binary", b"x")]).encode()
    assert row(read(data)[0])["properties"] == [("d", text)]


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("74 32 80 00 01", "1"),
        ("74 6c b8 96 7f", "9999999"),  # the form of large coefficients
        ("74 6c b8 96 80", "0"),  # 10,000,000 has no seven digits: not canonical
        ("74 b2 80 00 05", "-5"),
        ("74 78 00 00 00", "Infinity"),
        ("74 7e 00 00 01", "NaN"),  # signalling, with a payload
        ("84 31 c0 00 00 00 00 00 01", "1"),
        ("94 30 40 00 00 00 00 00 00 00 00 00 00 00 00 00 01", "1"),
        ("94 6c 10 00 00 00 00 00 00 00 00 00 00 00 00 00 00", "0"),  # never canonical in this form
    ],
)
def test_the_bits_of_decimals_are_those_of_ieee_754_2008(bits: str, text: str) -> None:
    raw = read(section("amqp-value", bytes.fromhex(bits)))[0]
    assert raw.body.decode().strip('"') == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (V("list", [V("double", float("nan")), V("float", float("inf"))]), '["NaN", "Infinity"]'),
        (V("double", float("-inf")), '"-Infinity"'),
        (V("map", [(V("binary", b"\xff"), V("int", 1))]), '{"/w==": 1}'),
        (V("map", [(V("int", 1), V("int", 1)), (V("string", "b"), V("null"))]), '{"1": 1, "b": null}'),
        (
            V("map", [(V("int", 1), V("string", "i")), (V("boolean", True), V("string", "b")),
                      (V("string", "1"), V("string", "s"))]),
            '[[1, "i"], [true, "b"], ["1", "s"]]',
        ),
        (V("map", [(V("boolean", True), V("int", 1)), (V("int", 1), V("int", 2))]), '{"true": 1, "1": 2}'),
        (V("map", [(V("null"), V("int", 1)), (V("string", ""), V("int", 2))]), '{"null": 1, "": 2}'),
        (V("map", [(V("list", []), V("int", 1))]), "[[[], 1]]"),
        (V("map", [(V("string", "a"), V("int", 1)), (V("string", "a"), V("int", 2))]), '[["a", 1], ["a", 2]]'),
        (V("array", [V("boolean", True), V("boolean", False)]), "[true, false]"),
        (V("char", "€"), "€"),
    ],
)  # fmt: skip
def test_the_json_of_a_body_is_json_and_has_all_of_it(value: V, text: str) -> None:
    assert body(value).decode() == text
    if value.kind != "char":
        json_of(text)


def test_the_kind_of_a_jms_message_is_a_property() -> None:
    def kind(number: int, *, form: str) -> bytes:
        content = V("string", '{"a":1}') if number == 5 else V("map", [(V("string", "a"), V("int", 1))])
        annotation = V("byte", number) if form != "described" else V("described", [V("symbol", "x"), V("byte", number)])
        extra = [(V("symbol", "x-opt-jms-dest"), V("list", []) if form == "odd" else V("byte", 0))]
        return Message(
            message_annotations=[*extra, (V("symbol", "x-opt-jms-msg-type"), annotation)],
            delivery_annotations=[(V("symbol", "x-opt-jms-msg-type"), V("byte", 9))],
            application=[(V("string", "own"), V("int", 1))],
            properties=[V("string", "id"), *[V("null")] * 9, V("string", "g")],
            body="amqp-value",
            contents=[content],
        ).encode()

    for form in ("plain", "odd", "described"):
        raws = read(kind(5, form=form), kind(2, form=form))
        assert [json.loads(raw.body) for raw in raws] == [{"a": 1}] * 2
        found = [dict(pairs) for pairs in DECODER.columns["properties"](raws)]
        assert found == [{"own": "1", "x-opt-jms-msg-type": kind, "JMSXGroupID": "g"} for kind in ("5", "2")]
        assert DECODER.ids(raws, IdSource("property", "x-opt-jms-msg-type")) == ["5", "2"]
        assert DECODER.ids(raws, IdSource("property", "own")) == ["1", "1"]
