"""Values that take several times their bytes as text make a message unreadable, from a million such bytes on."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import FLAGS, check
from pyspark_mq.decode.amqp10_message import UnreadableMessage
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.batch import listed
from pyspark_mq.decode.escapes import ESCAPES_MAX, escapes
from pyspark_mq.sources.connections.message_id import _in_json
from pyspark_mq.sources.connections.session import ReceiveBuffer
from pyspark_mq.streams.rows import _slices
from pyspark_mq.wire.stomp.frames import FrameReader, UnreadableHeaders

#: What is written in a list or a map, and whether that many bytes of it make a message unreadable.
CONTENTS = {
    "controls": (b"\x01", True),
    "line feeds": (b"\n", False),
    "quotes": (b'"', False),
    "letters": (b"a", False),
    "other letters": ("ä".encode(), False),
}


def _long(code: int, content: bytes) -> bytes:
    return struct.pack(">BI", code, len(content)) + content


def _compound(code: int, items: bytes, count: int) -> bytes:
    return struct.pack(">BII", code, len(items) + 4, count) + items


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"", 0), (b"a\tb\n", 0), (b"\0\x1f\x7f", 2), ("äö".encode(), 0), (b"\xff\x01a\xfe", 3), (b"\xc3\xa4\xff", 3)],
)
def test_escapes_are_what_a_text_has_more_than_its_bytes(value: bytes, expected: int) -> None:
    assert escapes(value) == expected


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("more", [0, 1])
def test_a_list_of_amqp_1_0(name: str, more: int) -> None:
    content, counts = CONTENTS[name]
    # Two texts, so that what counts is their sum.
    half = content * (ESCAPES_MAX // 2)
    items = _long(0xB1, half) + _long(0xB1, half + content * more)
    raw = SectionReader(counts_acquirers=False).read(1, b"\0\x53\x77" + _compound(0xD0, items, 2))
    if counts and more:
        assert isinstance(raw, UnreadableMessage)
        assert "1,000,000 control characters" in str(raw.of.application["unreadable"])
    else:
        assert json.loads(raw.body) == [half.decode(), (half + content * more).decode()]
        assert raw.size >= len(raw.body)


@pytest.mark.parametrize(("size", "unreadable"), [(32 << 20, False), ((32 << 20) + 1, True)])
def test_a_list_of_amqp_1_0_has_a_largest_size(size: int, unreadable: bool) -> None:
    content = b"a" * (size - 9)  # count of the list, code and length of the text
    raw = SectionReader(counts_acquirers=False).read(1, b"\0\x53\x77" + _compound(0xD0, _long(0xB1, content), 1))
    assert isinstance(raw, UnreadableMessage) is unreadable


@pytest.mark.parametrize("key", [_long(0xB1, "\x80".encode() * 50_000), _compound(0xD0, _long(0xB1, b"k" * 99_999), 1)])
def test_the_reason_is_short_however_large_a_key_is(key: bytes) -> None:
    pairs = (key + b"\x40") * 2
    raw = SectionReader(counts_acquirers=False).read(1, b"\0\x53\x74" + _compound(0xD1, pairs, 4))
    assert isinstance(raw, UnreadableMessage)
    assert len(str(raw.of.application["unreadable"])) < 1_000


@pytest.mark.parametrize(("values", "found"), [(1_000, "x"), (5_000_000, None)])
def test_a_json_body_with_too_many_values_has_no_id(values: int, found: str | None) -> None:
    body = b'{"a":[' + b"0," * values + b'0],"id":"x"}'
    assert _in_json(body, ["id"]) == found


def test_a_text_alone_of_amqp_1_0_has_no_escapes() -> None:
    content = b"\x01" * (2 * ESCAPES_MAX)
    raw = SectionReader(counts_acquirers=False).read(1, b"\0\x53\x77" + _long(0xB1, content))
    assert raw.body == content


@pytest.mark.parametrize("before", [0, 1, 5], ids=["message-id", "user-id", "correlation-id"])
def test_an_id_of_amqp_1_0_that_is_no_text(before: int) -> None:
    for size, unreadable in ((ESCAPES_MAX, False), (ESCAPES_MAX + 1, True)):
        fields = b"\x40" * before + _long(0xB0, b"\xff" * size)
        raw = SectionReader(counts_acquirers=False).read(1, b"\0\x53\x73" + _compound(0xD0, fields, before + 1))
        assert isinstance(raw, UnreadableMessage) is unreadable


def test_properties_of_amqp_1_0_that_become_json_count() -> None:
    value = _compound(0xD0, _long(0xB1, b"\x01" * 50_000), 1)
    data = b"\0\x53\x74" + _compound(0xD1, b"\xa1\x01x" + value, 2)
    raw = SectionReader(counts_acquirers=False).read(1, data)
    assert json.loads(str(raw.of.application["x"])) == ["\x01" * 50_000]
    assert raw.size >= len(data) + 6 * 50_000


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("kind", [b"S", b"x"])
def test_an_array_of_amqp_0_9_1(name: str, more: int, kind: bytes) -> None:
    content, counts = CONTENTS[name]
    half = content * (ESCAPES_MAX // 2)
    items = _long(kind[0], half) + _long(kind[0], half + content * more)
    table = b"\x01x" + _long(ord("A"), items)
    block = FLAGS["headers"].to_bytes(2, "big") + struct.pack(">I", len(table)) + table
    raws = [(1, False, block, b"", b"\0\0")]
    wrong = check(raws)
    if counts and more:
        assert [place for place, why in wrong if "control characters" in why] == [0]
    else:
        assert wrong == []
        ((pair,),) = listed(Amqp091Batch.of(raws).columns["properties"](Amqp091Batch.of(raws)))
        assert json.loads(pair[1]) == [half.decode(), (half + content * more).decode()]


@pytest.mark.parametrize(("byte", "unreadable"), [(b"\xff", True), (b"a", False)])
def test_headers_of_stomp(byte: bytes, unreadable: bool) -> None:
    frame = b"MESSAGE\nmessage-id:1\ncontent-length:4\nx:" + byte * (ESCAPES_MAX + 1) + b"\n\nbody\0"
    ((_, headers, body),) = FrameReader().feed(frame)
    assert isinstance(headers, UnreadableHeaders) is unreadable
    assert (b"\nmessage-id:1\n" in headers, body) == (True, b"body")


def test_a_session_pauses_at_what_is_not_yet_a_block() -> None:
    buffer = ReceiveBuffer()
    buffer.bytes_allowed = 40 << 20
    buffer.count(1, 10 << 20)
    assert not buffer.full
    buffer.count(1, 1)
    assert buffer.full
    buffer.made(10 << 20, 30 << 20)
    assert not buffer.full
    buffer.made(1, (10 << 20) + 1)
    assert buffer.full
    buffer.bytes_taken += 1
    assert not buffer.full


def test_a_small_limit_leaves_room_for_a_block() -> None:
    buffer = ReceiveBuffer()
    buffer.bytes_allowed = 4 << 20
    buffer.count(1, 4 << 20)
    assert not buffer.full


def test_a_large_entry_becomes_several_pieces() -> None:
    records = [bytes([number]) * size for number, size in enumerate((1, 3 << 20, 2 << 20, 5 << 20, 0, 7, 4 << 20))]
    data = b"".join(struct.pack(">I", len(record)) + record for record in records)
    edges = np.cumsum([4, *(len(record) + 4 for record in records)])
    pieces = [*_slices(100, 5, data, edges)]
    assert len(pieces) > 3
    found = [piece.data[begin:end] for piece in pieces for begin, end in zip(piece.begins, piece.ends, strict=True)]
    assert found == records
    firsts = np.cumsum([100, *(len(piece.begins) for piece in pieces)])[:-1]
    assert [piece.first for piece in pieces] == firsts.tolist()
    assert all(len(piece.data) <= (4 << 20) + 4 or len(piece.begins) == 1 for piece in pieces)
