"""Deliveries cut out of the bytes of AMQP 0-9-1, and their properties, against what pika makes of the same bytes.

pika's own decoder is the reference: the same columns, or a refusal of that message. Two of its ways are not followed:
it cuts fractions off, and fails on dates beyond the year 9999.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pika
import pika.frame
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pika.spec import Basic

from pyspark_mq.decode.amqp091 import Amqp091Batch, as_text
from pyspark_mq.decode.amqp091_properties import Raw, UnreadableDelivery, check, unreadable
from pyspark_mq.decode.batch import UNREADABLE_PROPERTY
from pyspark_mq.dedup import IdSource, id_keys
from pyspark_mq.wire.amqp091.frames import Amqp091FrameError, DeliveryReader
from tests.support.decoding import Asked

CHANNEL = 1
FRAME_MAX = 4096
DECODER = Asked(Amqp091Batch)
SOURCES = [IdSource("message-id"), IdSource("correlation-id"), IdSource("property", "id")]
DATE_MAX = 253_402_300_799

#: Encoded, exchange `ex` and routing key `key`.
WHERE = b"\x02ex\x03key"

# -- what a broker sends ------------------------------------------------------------------------

texts = st.text(max_size=20)
shorts = st.one_of(texts.map(str.encode), st.binary(max_size=20))


def pack(kind: bytes, form: str, *values: Any) -> bytes:
    return kind + struct.pack(form, *values)


def sized(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack(">I", len(data)) + data


def entry(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + value


leaves = st.one_of(
    st.booleans().map(lambda flag: pack(b"t", ">?", flag)),
    st.integers(-128, 127).map(lambda number: pack(b"b", ">b", number)),
    st.integers(0, 255).map(lambda number: pack(b"B", ">B", number)),
    st.integers(-(2**15), 2**15 - 1).map(lambda number: pack(b"U", ">h", number)),
    st.integers(-(2**15), 2**15 - 1).map(lambda number: pack(b"s", ">h", number)),
    st.integers(0, 2**16 - 1).map(lambda number: pack(b"u", ">H", number)),
    st.integers(-(2**31), 2**31 - 1).map(lambda number: pack(b"I", ">i", number)),
    st.integers(0, 2**32 - 1).map(lambda number: pack(b"i", ">I", number)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: pack(b"l", ">q", number)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: pack(b"L", ">q", number)),
    st.integers(-(2**50), 2**50).map(lambda number: pack(b"d", ">d", float(number))),
    st.integers(-(2**20), 2**20).map(lambda number: pack(b"f", ">f", float(number))),
    st.tuples(st.integers(0, 20), st.integers(-(2**31), 2**31 - 1)).map(lambda pair: pack(b"D", ">Bi", *pair)),
    st.integers(0, DATE_MAX).map(lambda seconds: pack(b"T", ">Q", seconds)),
    shorts.map(lambda data: sized(b"S", data)),
    shorts.map(lambda data: sized(b"x", data)),
    st.just(b"V"),
)
names = st.one_of(st.sampled_from([b"id", b"x-delivery-count", b"a", b"JMSXGroupID", b"JMSXGroupSeq"]), shorts)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: sized(b"A", b"".join(items))),
        st.lists(st.tuples(names, inner), max_size=3).map(
            lambda items: sized(b"F", b"".join(entry(name, value) for name, value in items))
        ),
    ),
    max_leaves=8,
)
tables = st.lists(st.tuples(names, values), max_size=5).map(
    lambda items: sized(b"", b"".join(entry(name, value) for name, value in items))
)
short_fields = shorts.map(lambda data: bytes((len(data),)) + data)
octets = st.integers(0, 255).map(lambda number: bytes((number,)))
FIELDS = [
    short_fields, short_fields, tables, octets, octets, short_fields, short_fields, short_fields, short_fields,
    st.integers(0, 2**64 - 1).map(lambda seconds: struct.pack(">Q", seconds)), short_fields, short_fields,
    short_fields, short_fields,
]  # fmt: skip


@st.composite
def blocks(draw: st.DrawFn) -> bytes:
    """Properties with any of their fields."""
    flags, parts = 0, []
    for bit, field in enumerate(FIELDS):
        if draw(st.booleans()):
            flags |= 0x8000 >> bit
            parts.append(draw(field))
    more = draw(st.sampled_from([b"", b"", b"", b"\x00\x00", b"\x00\x01\x80\x00"]))
    return struct.pack(">H", flags | bool(more)) + more + b"".join(parts)


bodies = st.one_of(st.just(b""), st.binary(max_size=50), st.integers(0, 9000).map(bytes))


def frames_of(tag: int, redelivered: bool, block: bytes, body: bytes, pieces: int) -> list[bytes]:
    """The frames of a delivery, the body in pieces."""
    method = pika.frame.Method(CHANNEL, Basic.Deliver("ctag", tag, redelivered, "ex", "key")).marshal()
    content = struct.pack(">HHQ", 60, 0, len(body)) + block
    head = struct.pack(">BHI", 2, CHANNEL, len(content)) + content + b"\xce"
    step = max(1, min(FRAME_MAX - 8, -(-len(body) // pieces)))
    parts = [body[at : at + step] for at in range(0, len(body), step)]
    return [method, head, *(pika.frame.Body(CHANNEL, part).marshal() for part in parts)]


HEARTBEAT = pika.frame.Heartbeat().marshal()
OTHERS = st.sampled_from(
    [
        HEARTBEAT,
        pika.frame.Method(CHANNEL, Basic.CancelOk("ctag")).marshal(),
        pika.frame.Method(2, Basic.Deliver("other", 1, False, "", "q")).marshal(),
        pika.frame.Header(2, 1, pika.BasicProperties()).marshal(),
        pika.frame.Body(2, b"x").marshal(),
    ]
)
#: What may come between the frames of a delivery.
BETWEEN = st.sampled_from([HEARTBEAT, pika.frame.Body(2, b"x").marshal()])


class Taken:
    """What a reader hands over."""

    def __init__(self) -> None:
        self.raws: list[Raw] = []
        self.others: list[bytes] = []
        self.order: list[object] = []
        self.reader = DeliveryReader(CHANNEL, FRAME_MAX, self._deliver, self._pass_on)

    def _deliver(self, raws: list[Raw]) -> None:
        assert raws
        self.raws += raws
        self.order += [raw[0] for raw in raws]

    def _pass_on(self, frame: bytes) -> None:
        self.others.append(frame)
        self.order.append(frame)


def chunked(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[low:high] for low, high in pairwise(places)]


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_deliveries_and_all_other_frames_come_out_in_order_however_the_bytes_are_cut(data: st.DataObject) -> None:
    stream, order, sent = [], [], []
    for tag in range(1, 1 + data.draw(st.integers(1, 6))):
        for other in data.draw(st.lists(OTHERS, max_size=2)):
            stream.append(other)
            order.append(other)
        raw = (tag, data.draw(st.booleans()), data.draw(blocks()), data.draw(bodies))
        frames = frames_of(*raw, data.draw(st.integers(1, 3)))
        where = frames[0][25:-1]
        for place, frame in enumerate(frames):
            stream.append(frame)
            if place < len(frames) - 1 and data.draw(st.integers(0, 9)) == 0:
                between = data.draw(BETWEEN)
                stream.append(between)
                order.append(between)
        order.append(tag)
        sent.append((*raw, where))
    taken = Taken()
    for chunk in chunked(b"".join(stream), data.draw(st.lists(st.integers(0, 10**6), max_size=8))):
        taken.reader.feed(chunk)
    assert taken.raws == sent
    assert taken.order == order


@given(st.data())
def test_bytes_that_are_no_frames_end_in_one_kind_of_error(data: st.DataObject) -> None:
    stream = bytearray(b"".join(frames_of(1, False, b"\x00\x00", b"body", 1) * 3))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    stream += data.draw(st.binary(max_size=30))
    taken = Taken()
    with suppress(Amqp091FrameError):
        for chunk in chunked(bytes(stream), data.draw(st.lists(st.integers(0, 10**6), max_size=4))):
            taken.reader.feed(chunk)
    came = sum(len(raw[2]) + len(raw[3]) for raw in taken.raws) + sum(map(len, taken.others))
    assert came <= len(stream)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (struct.pack(">BHI", 3, CHANNEL, 2**32 - 1) + b"x", "at most 4088"),
        (struct.pack(">BHI", 2, CHANNEL, FRAME_MAX) + b"x", "at most 4088"),
        (frames_of(1, False, b"\x00\x00", b"", 1)[0] + struct.pack(">BHI", 2, CHANNEL, 2**32 - 1), "at most 4088"),
        (struct.pack(">BHI", 1, CHANNEL, 4) + b"\x00\x3c\x00\x3c\xce", "too short"),
        (struct.pack(">BHI", 1, CHANNEL, 1) + b"\x00\x00", "does not begin a frame"),
        (frames_of(1, False, b"\x00\x00", b"", 1)[0] * 2, "interrupts"),
        (b"".join(frames_of(1, False, b"\x00\x00", b"ab", 1)[:2]) + b"\x03\x00\x01\x00\x00\x00\x03abc\xce", "longer"),
        (
            frames_of(1, False, b"\x00\x00", b"", 1)[0]
            + struct.pack(">BHIHHQ", 2, CHANNEL, 14, 61, 0, 0) + b"\x00\x00\xce",
            "class 61",
        ),
    ],
)  # fmt: skip
def test_frames_that_nobody_may_send_are_named(stream: bytes, words: str) -> None:
    with pytest.raises(Amqp091FrameError, match=words):
        Taken().reader.feed(stream)


@given(st.data())
def test_a_header_that_is_larger_than_agreed_is_taken(data: st.DataObject) -> None:
    block = b"\x20\x00" + sized(b"", b"".join(entry(b"%d" % number, sized(b"S", bytes(90))) for number in range(99)))
    assert len(block) > 2 * FRAME_MAX
    stream = b"".join(b"".join(frames_of(tag, False, block, b"body", 1)) for tag in (1, 2))
    taken = Taken()
    for chunk in chunked(stream, data.draw(st.lists(st.integers(0, 10**6), max_size=8))):
        taken.reader.feed(chunk)
    assert [(raw[0], raw[2], raw[3]) for raw in taken.raws] == [(1, block, b"body"), (2, block, b"body")]


def test_deliveries_before_a_broken_frame_are_handed_over() -> None:
    taken = Taken()
    with pytest.raises(Amqp091FrameError):
        taken.reader.feed(b"".join(frames_of(1, False, b"\x00\x00", b"good", 1)) + bytes(20))
    assert [raw[3] for raw in taken.raws] == [b"good"]


def test_a_body_that_is_announced_takes_no_room_before_it_comes() -> None:
    taken = Taken()
    method, _ = frames_of(1, False, b"\x00\x00", b"", 1)
    taken.reader.feed(method + struct.pack(">BHIHHQ", 2, CHANNEL, 14, 60, 0, 2**63) + b"\x00\x00\xce")
    taken.reader.feed(pika.frame.Body(CHANNEL, b"abc").marshal())
    assert taken.raws == []


# -- properties -----------------------------------------------------------------------------------


def of_pika(block: bytes) -> pika.BasicProperties | None:
    try:
        return pika.BasicProperties().decode(block)
    except Exception:  # noqa: BLE001 - pika fails with whatever its decoder runs into
        return None


def reference(properties: pika.BasicProperties) -> dict[str, Any]:
    """Columns of what pika decodes."""
    headers = properties.headers or {}
    seconds = properties.timestamp
    published = None if seconds is None or seconds > (2**63 - 1) // 10**6 else seconds * 10**6
    lifetime = properties.expiration
    expires = None
    if published is not None and isinstance(lifetime, str) and lifetime.isdecimal():
        moment = published + int(lifetime) * 1000
        expires = moment if moment < 2**63 else None
    return {
        "properties": [(as_text(name) or "", as_text(value)) for name, value in headers.items()],
        "correlationId": as_text(properties.correlation_id),
        "replyTo": as_text(properties.reply_to),
        "contentType": as_text(properties.content_type),
        "type": as_text(properties.type),
        "priority": properties.priority,
        "timestamp": published,
        "expiration": expires,
        "routingKey": "key",
        "exchange": "ex",
        "userId": as_text(properties.user_id),
        "appId": as_text(properties.app_id),
        "contentEncoding": as_text(properties.content_encoding),
        "persistent": properties.delivery_mode == 2,
        "groupId": as_text(headers.get("JMSXGroupID")),
        "groupSequence": sequence(headers.get("JMSXGroupSeq")),
    }


def sequence(value: object) -> int | None:
    """A number, or a text of one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if 0 <= number < 2**63 else None


def same(found: Any, expected: Any) -> bool:
    """Equal, apart from how whole numbers in floating point are written."""
    if found == expected:
        return True
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return all(map(same, found, expected))
    if isinstance(found, tuple) and isinstance(expected, tuple) and len(found) == len(expected):
        return all(map(same, found, expected))
    if isinstance(found, str) and isinstance(expected, str):
        try:
            return bool(json.loads(found) == json.loads(expected))
        except ValueError:
            return False
    return False


@given(st.lists(blocks(), min_size=1, max_size=6))
def test_columns_and_ids_are_those_of_pika(drawn: list[bytes]) -> None:
    raws: list[Raw] = [(tag, False, block, b"", WHERE) for tag, block in enumerate(drawn, start=1)]
    assert check(raws) == []
    decoded = [of_pika(block) for block in drawn]
    for name, make in DECODER.columns.items():
        for found, properties, block in zip(make(raws), decoded, drawn, strict=True):
            if name == "groupSequence" and re.search(b"JMSXGroupSeq[df]", block):
                continue  # pika makes whole numbers of those in floating point
            if properties is not None and name not in {"redelivered", "deliveryCount"}:
                assert same(found, reference(properties)[name]), name
    for source in SOURCES:
        for key, properties in zip(id_keys(DECODER.ids(raws, source)), decoded, strict=True):
            if properties is None:
                continue
            header = (properties.headers or {}).get("id")
            taken = {
                "message-id": properties.message_id,
                "correlation-id": properties.correlation_id,
                "property": header if isinstance(header, bytes) else as_text(header),
            }[source.kind]
            if isinstance(header, list | dict):
                continue  # the text of numbers within may differ
            assert [key] == id_keys([taken])


@given(st.data())
def test_properties_of_any_bytes_have_columns_or_are_refused(data: st.DataObject) -> None:
    block = bytearray(data.draw(st.one_of(blocks(), st.binary(max_size=60))))
    for _ in range(data.draw(st.integers(0, 4))):
        if block:
            block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    del block[len(block) - data.draw(st.integers(0, len(block))) :]
    raws: list[Any] = [(1, False, bytes(block), b"body", WHERE)]
    wrong = check(raws)
    if wrong:
        ((place, error),) = wrong
        raws[place] = unreadable(raws[place], error)
        assert type(raws[0]) is UnreadableDelivery
        (odd,) = DECODER.unreadable(raws)
        assert error in str(odd)
        assert odd.data[2:] == bytes(block)[-len(odd.data) + 2 :] or len(odd.data) <= 2
        assert odd.known["routing key"] == "key"
        assert dict(DECODER.columns["properties"](raws)[0]) == {UNREADABLE_PROPERTY: error}
    else:
        assert DECODER.unreadable(raws) == []
    assert DECODER.bodies(raws) == [b"body"]
    assert [len(make(raws)) for make in DECODER.columns.values()] == [1] * len(DECODER.columns)
    assert [len(DECODER.ids(raws, source)) for source in SOURCES] == [1] * len(SOURCES)


def test_what_pika_reads_and_is_whole_is_not_refused_for_its_types() -> None:
    moment = datetime(2024, 1, 1, tzinfo=timezone.utc)
    headers = {"a": [1, None, True], "b": {"c": Decimal("1.5")}, "d": moment, "e": b"\xff", "f": "text", "g": 2**40}
    block = b"".join(pika.BasicProperties(headers=headers, message_id="m").encode())
    raws: list[Raw] = [(1, False, block, b"", WHERE)]
    assert check(raws) == []
    assert DECODER.ids(raws, IdSource("message-id")) == ["m"]
    assert dict(DECODER.columns["properties"](raws)[0] or [])["d"] == "2024-01-01T00:00:00+00:00"


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_nesting_is_read_to_a_depth_and_refused_beyond_it(kind: bytes) -> None:
    def nested(depth: int) -> list[Raw]:
        value = b"V"
        for _ in range(depth):
            value = sized(kind, (b"\x01a" if kind == b"F" else b"") + value)
        return [(1, False, b"\x20\x00" + sized(b"", entry(b"h", value)), b"", WHERE)]

    assert check(nested(64)) == []
    assert "nested" in check(nested(66))[0][1]
    assert "nested" in check(nested(20_000))[0][1]
    for frames in (0, 500):
        ((pair,),) = called_deeply(frames, lambda: DECODER.columns["properties"](nested(64)))
        assert pair[1].count("[" if kind == b"A" else "{") == 64


def called_deeply(frames: int, call: Callable[[], Any]) -> Any:
    """The result of a call by one who has been called by so many others."""
    return called_deeply(frames - 1, call) if frames else call()


def test_what_json_has_no_number_for_is_a_text_in_it() -> None:
    values = [struct.pack(">cd", b"d", value) for value in (float("nan"), float("inf"), float("-inf"), 1.5)]
    values.append(struct.pack(">cf", b"f", float("nan")))
    block = b"\x20\x00" + sized(b"", entry(b"h", sized(b"A", b"".join(values))))
    raws: list[Raw] = [(1, False, block, b"", WHERE)]
    assert check(raws) == []
    ((pair,),) = DECODER.columns["properties"](raws)

    def refuse(name: str) -> None:
        raise ValueError(name)

    assert json.loads(pair[1], parse_constant=refuse) == ["NaN", "Infinity", "-Infinity", 1.5, "NaN"]


@pytest.mark.parametrize(
    "arguments",
    [b"", b"\x01", b"\xffctag" + bytes(30), b"\x04ctag" + bytes(8), b"\x04ctag", b"\xf0" + bytes(60)],
)
def test_a_delivery_that_lies_about_its_lengths_is_no_frame(arguments: bytes) -> None:
    method = struct.pack(">BHIHH", 1, CHANNEL, 4 + len(arguments), 60, 60) + arguments + b"\xce"
    taken = Taken()
    with pytest.raises(Amqp091FrameError, match="too short"):
        taken.reader.feed(method + b"".join(frames_of(1, False, b"\x00\x00", b"body" * 80, 1)))
    assert taken.raws == []


@pytest.mark.parametrize("where", [b"", b"\x00", b"\xff", b"\x02ex", b"\x02e"])
def test_an_unreadable_message_is_named_also_where_its_delivery_ends_early(where: bytes) -> None:
    odd = unreadable((1, False, b"\x20\x00", b"body", where), "odd")
    (told,) = DECODER.unreadable([odd])
    assert "odd" in str(told)
    for name in ("exchange", "routingKey"):
        assert DECODER.columns[name]([odd]) == [None]
