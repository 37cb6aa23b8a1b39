"""Any bytes as a message of AMQP 1.0: what is walked has the columns that reading it alone gives."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
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
from pyspark_mq.decode.amqp10_columns import walked_groups
from pyspark_mq.decode.amqp10_message import Raw, UnreadableMessage
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.dedup import IdSource
from tests.support.decoding import Asked
from tests.support.effort import part_of
from tests.support.stream_messages import assert_as_read, joined

#: The same examples in every run, whatever the speed of the machine.
DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=part_of(300))
DECODER = Asked(Amqp10Batch)
SOURCES = [IdSource("message-id"), IdSource("correlation-id"), IdSource("property", "a"), IdSource("content")]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["a", "\0", "a\0b", "None", ""])
NAMES = st.sampled_from(["a", "b", "JMSXGroupID", "täxt", ""]) | TEXT
MILLISECONDS = st.sampled_from([0, 1, 1_700_000_000_000, 2**48 - 1, 2**48, 2**53 + 1, 2**63 - 1, -1])
PLAIN = st.one_of(
    st.none(), st.booleans(), TEXT, st.binary(max_size=12), st.uuids(),
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.floats(width=32).map(float32),
    st.integers(0, 255).map(ubyte), st.integers(-128, 127).map(byte), st.integers(0, 2**16 - 1).map(ushort),
    st.integers(-(2**15), 2**15 - 1).map(short), st.integers(0, 2**32 - 1).map(uint),
    st.integers(-(2**31), 2**31 - 1).map(int32), st.integers(0, 2**64 - 1).map(ulong), MILLISECONDS.map(timestamp),
    st.sampled_from(["", "sym"]).map(symbol), st.sampled_from("aé€").map(char),
)  # fmt: skip
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
) | st.lists(st.integers(-5, 5), max_size=3).map(lambda items: Array(UNDESCRIBED, Data.INT, *items))
#: As most producers have them.
COMMON = st.none() | st.booleans() | TEXT | st.integers(-(2**63), 2**63 - 1)
IDS = st.one_of(st.none(), *[TEXT] * 6, st.binary(max_size=12), st.uuids(), st.integers(0, 2**64 - 1).map(ulong))


@st.composite
def library_messages(draw: st.DrawFn) -> bytes:
    """Messages as the client library encodes them."""
    values = draw(st.sampled_from([COMMON, COMMON, PLAIN, VALUES]))
    body = draw(st.one_of(st.binary(max_size=12), TEXT, values))
    message = Message(id=draw(IDS), correlation_id=draw(IDS), body=body, inferred=draw(st.booleans()))
    if draw(st.booleans()):
        message.properties = draw(st.dictionaries(NAMES, values, max_size=4))
    if draw(st.booleans()):
        message.annotations = {symbol("x-opt"): draw(values)}
        message.instructions = {symbol("x-opt"): draw(PLAIN)}
    if draw(st.booleans()):
        message.reply_to, message.subject, message.content_type = draw(TEXT), draw(TEXT), draw(st.sampled_from(["t/p"]))
        message.group_id, message.address, message.user_id = draw(TEXT), draw(TEXT), draw(st.binary(max_size=5))
        message.creation_time, message.expiry_time = 1_700_000_000.5, draw(st.sampled_from([0, 1_700_000_060]))
    if draw(st.booleans()):
        message.durable, message.priority = draw(st.booleans()), draw(st.integers(0, 255))
        message.ttl, message.first_acquirer = draw(st.sampled_from([0, 0.5, 60])), draw(st.booleans())
        message.delivery_count = draw(st.sampled_from([0, 1, 2**32 - 1]))
    return bytes(message.encode())


def section(descriptor: int, payload: bytes) -> bytes:
    return b"\x00\x53" + bytes([descriptor]) + payload


#: Type of the library -> code of its fixed width (1.6), and how it is packed.
FIXED = {
    bool: (0x56, ">?"), ubyte: (0x50, ">B"), byte: (0x51, ">b"), ushort: (0x60, ">H"), short: (0x61, ">h"),
    uint: (0x70, ">I"), int32: (0x71, ">i"), float32: (0x72, ">f"), ulong: (0x80, ">Q"), int: (0x81, ">q"),
    float: (0x82, ">d"), timestamp: (0x83, ">q"),
}  # fmt: skip
#: The same for those that have a shorter form, of one byte or none.
SHORT = {uint: 0x52, int32: 0x54, ulong: 0x53, int: 0x55}
WORDS = {(bool, 1): b"\x41", (bool, 0): b"\x42", (uint, 0): b"\x43", (ulong, 0): b"\x44"}


def encoded(value: Any, *, wide: bool) -> bytes:
    """A plain value, in the shortest or the longest form that there is."""
    kind = type(value)
    if value is None:
        return b"\x40"
    if kind is UUID:
        return b"\x98" + value.bytes
    if kind is char:
        return b"\x73" + struct.pack(">I", ord(value))
    if kind in FIXED:
        if not wide and (kind, value) in WORDS:
            return WORDS[kind, value]
        if not wide and kind in SHORT and 0 <= value < 128:
            return bytes((SHORT[kind], value))
        code, shape = FIXED[kind]
        return bytes((code,)) + struct.pack(shape, value)
    code, data = (0xA0, value) if kind is bytes else (0xA3 if kind is symbol else 0xA1, str(value).encode())
    return bytes((code + 16,)) + struct.pack(">I", len(data)) + data if wide else bytes((code, len(data))) + data


def compound(code: int, items: list[bytes], count: int, *, wide: bool) -> bytes:
    content = b"".join(items)
    if wide:
        return bytes((code + 16,)) + struct.pack(">II", len(content) + 4, count) + content
    return bytes((code, len(content) + 1, count)) + content


#: The types of the fields of `header` and `properties`, as the specification has them (3.2.1 and 3.2.4).
MOMENTS, SYMBOLS = MILLISECONDS.map(timestamp), st.sampled_from(["t/p", "None", ""]).map(symbol)
HEADER = [st.booleans(), st.integers(0, 255).map(ubyte), st.integers(0, 300).map(uint), st.booleans(),
          st.integers(0, 300).map(uint)]  # fmt: skip
PROPERTIES = [IDS, st.binary(max_size=5), TEXT, TEXT, TEXT, IDS, SYMBOLS, SYMBOLS, MOMENTS, MOMENTS, TEXT,
              st.integers(0, 300).map(uint), TEXT]  # fmt: skip
ORDERS = st.sampled_from([[0x70, 0x72, 0x73, 0x74, 0x75], [0x73, 0x75], [0x70, 0x73, 0x77], [0x73, 0x74, 0x75]])
WRONG_ONCE_IN = 60


@st.composite
def hand_made_messages(draw: st.DrawFn) -> bytes:
    """Sections mostly in their order, with fields mostly of the right types, and counts that are mostly right."""

    def wrong() -> bool:
        return draw(st.integers(1, WRONG_ONCE_IN)) == 1

    made = b""
    order = draw(ORDERS)
    if wrong():
        order = draw(st.lists(st.integers(0x70, 0x78), max_size=5))
    for descriptor in order:
        wide = draw(st.booleans())
        if descriptor in {0x70, 0x73, 0x76}:
            kinds = HEADER if descriptor == 0x70 else PROPERTIES
            values = [
                draw(PLAIN if wrong() else st.none() | kind) for kind in kinds[: draw(st.integers(0, len(kinds)))]
            ]
            items = [encoded(value, wide=draw(st.booleans())) for value in values]
            payload = compound(0xC0, items, max(0, len(items) + wrong()), wide=wide)
        elif descriptor in {0x71, 0x72, 0x74, 0x78}:
            names = NAMES if (descriptor == 0x74) ^ wrong() else NAMES.filter(str.isascii).map(symbol)
            pairs = draw(st.lists(st.tuples(names, draw(st.sampled_from([COMMON, PLAIN]))), max_size=4))
            items = [encoded(item, wide=False) for pair in pairs for item in pair]
            payload = compound(0xC1, items, max(0, len(items) + wrong()), wide=wide)
        else:
            bodies = st.binary(max_size=20)
            if descriptor != 0x75 or wrong():
                bodies |= st.none() | TEXT
            payload = encoded(draw(bodies), wide=wide)
        made += section(descriptor, payload)
    return made


@st.composite
def damaged(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    """A message with a few bytes changed, left out or put in, or cut off."""
    data = bytearray(draw(messages))
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["flip", "set", "cut", "insert", "delete"]))
        if kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif at < len(data):
            if kind == "delete":
                del data[at]
            else:
                data[at] = data[at] ^ (1 << draw(st.integers(0, 7))) if kind == "flip" else draw(st.integers(0, 255))
    return bytes(data)


BODY = section(0x75, b"\xa0\x01x")
ID_ONLY = section(0x73, compound(0xC0, [b"\xa1\x02id"], 1, wide=False))
#: As brokers send them: Artemis, RabbitMQ 4.3, RabbitMQ 3.10, and Qpid JMS through ActiveMQ Classic.
VECTORS = [
    section(0x70, b"\xc0\x02\x01A") + ID_ONLY
    + section(0x74, compound(0xC1, [b"\xa1\x01aU\x0c", b"\xa1\x05retryB"], 4, wide=True)) + BODY,
    section(0x70, b"\xc0\x06\x05A@@AC")
    + section(0x72, compound(0xC1, [b"\xa3\x0dx-routing-key\xa1\x01q", b"\xa3\x0ax-exchange\xa1\x00"], 4, wide=False))
    + ID_ONLY + BODY,
    section(0x70, b"\xc0\x06\x05A@@A@") + ID_ONLY + BODY,
    section(0x70, compound(0xC0, [b"A", b"P\x04", b"@", b"B", b"R\x01"], 5, wide=False))
    + section(0x72, compound(0xC1, [b"\xa3\x10x-opt-jms-dest\0\0Q\0"], 2, wide=False))
    + section(0x73, compound(0xC0, [b"\xa1\x02id", b"@", b"\xa1\x01q", b"@", b"@", b"@", b"\xa3\x03t/p", b"@", b"@",
                                    b"\x83\0\0\x01\x8b\xcf\xe5\x68\0"], 10, wide=True))
    + section(0x77, b"\xa1\x02hi"),
]  # fmt: skip


#: As many are walked.
COPIES = 16


def check(data: bytes) -> bool:
    """Whether so many of a message are walked; they have what reading one by one gives."""
    is_walked = False
    for counts_acquirers in (True, False):
        reader = SectionReader(counts_acquirers=counts_acquirers)
        assert_as_read([data] * COPIES, reader)
        groups, left = walked_groups(joined([data] * COPIES), reader)
        assert len(left) in {0, COPIES}
        assert not groups or not isinstance(reader.read(7, data), UnreadableMessage)
        is_walked = bool(groups)
    return is_walked


@DETERMINISTIC
@given(library_messages())
def test_a_message_of_the_library_is_walked_as_it_is_read(data: bytes) -> None:
    check(data)


@DETERMINISTIC
@given(hand_made_messages())
@example(section(0x73, b"\xc1\x05\x01\xa1\x02id") + BODY)
@example(section(0x73, b"\x45") + BODY)
@example(section(0x73, b"\xc0\x01\x00") + BODY)
@example(section(0x70, b"\x45") + BODY)
@example(section(0x74, b"\xc1\x01\x00") + BODY)
@example(section(0x74, b"\xc1\x09\x04\xa1\x01a\x41\xa1\x01a\x42") + BODY)
@example(section(0x73, b"\xc0\x07\x04\x40\x40\x40\xa1\x01\0") + BODY)
@example(section(0x77, b"\x40"))
def test_any_sections_are_walked_as_they_are_read(data: bytes) -> None:
    check(data)


@DETERMINISTIC
@given(damaged(library_messages() | hand_made_messages() | st.sampled_from(VECTORS)))
def test_a_damaged_message_is_left_or_walked_as_it_is_read(data: bytes) -> None:
    check(data)
    assert isinstance(SectionReader(counts_acquirers=True).read(7, data), Raw)


@DETERMINISTIC
@given(st.sampled_from(VECTORS), st.data())
def test_a_damaged_message_of_a_broker_is_left_or_walked_as_it_is_read(data: bytes, drawn: st.DataObject) -> None:
    changed = bytearray(data)
    for _ in range(drawn.draw(st.integers(1, 2))):
        changed[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    check(bytes(changed))


@pytest.mark.parametrize("messages", [library_messages(), hand_made_messages()], ids=["library", "hand-made"])
def test_many_of_these_messages_are_walked(messages: st.SearchStrategy[bytes]) -> None:
    # Otherwise nothing would be compared.
    walked: list[bool] = []

    @DETERMINISTIC
    @given(messages)
    def look(data: bytes) -> None:
        walked.append(check(data))

    look()
    assert sum(walked) > len(walked) / 20


@pytest.mark.parametrize("data", VECTORS)
def test_what_brokers_send_is_walked_and_what_is_cut_off_is_not(data: bytes) -> None:
    assert check(data)
    for size in range(len(data)):
        assert not check(data[:size])


def test_the_values_of_many_messages_do_not_change_with_the_next_one() -> None:
    reader = SectionReader(counts_acquirers=False)
    sent = [
        Message(id=key, correlation_id=key, properties={"a": key, "list": [key]}, body=Described("own", "x"))
        for key in (b"id-%d\xff" % number * (number + 1) for number in range(20))
    ]
    raws = [reader.read(number, bytes(message.encode())) for number, message in enumerate(sent)]
    for source in SOURCES[:3]:
        assert DECODER.ids(raws, source) == [message.id for message in sent]
    lists = [dict(pairs)["list"] for pairs in DECODER.columns["properties"](raws)]
    assert len(set(lists)) == len(sent)


@pytest.mark.parametrize("descriptor", range(0x70, 0x79))
@pytest.mark.parametrize("code", [0xA0, 0xA1, 0xB0, 0xB1, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0])
def test_a_size_takes_no_memory_that_the_bytes_do_not_hold(descriptor: int, code: int) -> None:
    hostile = section(descriptor, bytes([code]) + b"\xff" * 8 + b"x" * 100)
    reader = SectionReader(counts_acquirers=True)
    reader.read(1, BODY)
    tracemalloc.start()
    try:
        for data in (hostile, hostile + BODY, section(0x73, b"\xc0\x05\x01\xa1\x02id") + hostile):
            assert isinstance(reader.read(1, data), UnreadableMessage)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()
