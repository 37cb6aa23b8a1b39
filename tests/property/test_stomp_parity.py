"""STOMP with headers kept as bytes, against the plain reading of :mod:`tests.support.stomp_reference`.

Whatever bytes come, in whatever pieces: the same frames, columns, IDs and refusals.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_mq.brokers import BROKERS
from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.stomp.decoder import StompDecoder
from pyspark_mq.sources.stomp.frames import FrameError, FrameReader, UnreadableHeaders
from pyspark_mq.sources.stomp.headers import parse, value
from pyspark_mq.sources.stomp.table import HeaderTable
from tests.support.stomp_reference import ReferenceDecoder, ReferenceUnreadable, frames_of

#: Names with a meaning, names that begin or end like them, and names that are no text or escaped.
NAMES = [
    b"ack", b"amqp-message-id", b"message-id", b"correlation-id", b"content-type", b"type", b"priority", b"timestamp",
    b"expires", b"expiration", b"redelivered", b"x-delivery-count", b"reply-to", b"destination", b"subscription",
    b"destination-type", b"JMS_AMQP_X", b"__HDR_A", b"_AMQ_B", b"own", b"other",
    b"ack2", b"type-of", b"content-length2", b"x-type", b"my-message-id", b"ac", b"",
    b"a\\cb", b"a\\\\b", b"a\\b", b"odd\\", b"\xff", b"caf\xc3\xa9", b"caf\xe9", b"\xed\xa0\x80", b"x\rz", b"\\n",
]  # fmt: skip
VALUES = [
    b"", b"1", b"true", b"false", b"4", b"1700000000123", b"9" * 18, b"9" * 30, b"-1", b" 7", b"+7", b"1_0",
    b"\xc2\xb2", b"\xd9\xa1", b"ID\\ca-1\\c2\\c3\\c4", b"ID:a:1:2:-3", b"12,34", b"12,\xff", b"a\\\\cb\\n\\r\\t\\",
    b"\xff\xfe", b"caf\xc3\xa9", b"\xc3", b"a:b:c", b":", b"ack:9", b"x\ry", b"4\r", b"\0",
]  # fmt: skip
LENGTHS = [b"0", b"3", b"007", b"", b"-1", b"two", b"3 ", b"\xc2\xb2", b"9" * 15, b"9" * 16, b"9" * 5_000, b"\\c3"]
SOURCES = [
    IdSource("message-id"),
    IdSource("correlation-id"),
    *(IdSource("property", name) for name in ("own", "a:b", "a\\b", "café", "type", "ack", "\udcff", "\ud800", "x\rz")),
]
#: As the brokers speak, and one that takes the last entry of a header with a column.
DIALECTS = [
    *(dialect for broker in BROKERS.values() if (dialect := broker.stomp) is not None),
    replace(BROKERS["artemis"].stomp, id_header="own", last_header="own"),  # type: ignore[type-var]
]

entries = st.one_of(
    st.builds(lambda name, text: name + b":" + text, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.sampled_from(NAMES),
    st.binary(max_size=8).filter(lambda line: b"\n" not in line),
)
bodies = st.one_of(
    st.binary(max_size=12),
    st.lists(st.sampled_from([b"\0", b"\n", b"\r", b"M", b"MESSAGE\n", b"x", b"\n\n", b"\n\r\n"]), max_size=6).map(
        b"".join
    ),
)


@st.composite
def message(draw: st.DrawFn) -> bytes:
    """A frame, mostly one that a broker could send."""
    command = draw(st.sampled_from([b"MESSAGE"] * 12 + [b"RECEIPT", b"ERROR", b"CONNECTED", b"SEND", b"MESSAGES"]))
    lines = draw(st.lists(entries, max_size=6))
    body = draw(bodies)
    length = draw(st.sampled_from(["right"] * 6 + ["none"] * 4 + ["odd", "bare", "twice"]))
    at = draw(st.integers(0, len(lines)))
    announced = {
        "right": [b"content-length:%d" % len(body)],
        "none": [],
        "odd": [b"content-length:" + draw(st.sampled_from(LENGTHS))],
        "bare": [b"content-length"],
        "twice": [b"content-length:%d" % len(body), b"content-length:1"],
    }[length]
    lines[at:at] = announced
    end = draw(st.sampled_from([b"\n"] * 6 + [b"\r\n"]))
    behind = draw(st.sampled_from([b"\n", b"", b"\n\n\n", b"\r\n", b"x"]))
    return end.join([command, *lines, b"", b""]) + body + b"\0" + behind


streams = st.one_of(
    st.lists(message(), max_size=5).map(b"".join),
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda some: b"MESSAGE\n" + some),
    st.sampled_from([b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\0\0\x09\x01", b"\x15\x03\x03\0\x02\x02\x46"]),
)


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes]:
    """A stream as it is read: cut anywhere, and perhaps cut off."""
    data = draw(streams)
    data = data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def read(some: Sequence[bytes]) -> tuple[list[Any], bool]:
    """The frames in these pieces, behind which nothing more comes, and was there something else?"""
    reader, frames = FrameReader(), []
    try:
        for piece in some:
            for frame in reader.feed(piece):
                frames.append(frame)
        frames += reader.quiet()
    except FrameError:
        return frames, True
    return frames, False


@settings(max_examples=400, deadline=None)
@given(pieces())
@example([b"MESSAGE\nack\nack:1\n\n\0\nMESSAGE\nack2:1\nack:2\n\n\0"])
@example([b"MESSAGE\ncontent-length2:9\ncontent-length:1\n\nx\0"])
@example([b"MESSAGE\n\na\0", b"b\0", b"\nMES", b"SAGE\n\nx\0"])
@example([b"MESSAGE\r\na:1\r\n", b"\r", b"\nx\0\r\n"])
@example([b"MESSAGE\r\na:1\r\ncontent-length:2\r\n\r\n\nx\0\n"])
@example([b"MESSAGE\na:1\n\nx\0\n\r", b"MESSAGES\n\n\0"])
def test_the_same_frames_and_columns(some: list[bytes]) -> None:
    frames, refused = read(some)
    for dialect in DIALECTS:
        last = dialect.last_header
        expected, expected_refused = frames_of(b"".join(some), last)
        assert refused == expected_refused
        assert [
            (command, parse(block, last, escaped=command != "CONNECTED"), type(block) is UnreadableHeaders, body)
            for command, block, body in frames
        ] == [
            (command, dict(headers), type(headers) is ReferenceUnreadable, body) for command, headers, body in expected
        ]
        raws = [(tag, *frame[1:], dialect) for tag, frame in enumerate(frames, 1) if frame[0] == "MESSAGE"]
        plain = [(tag, *frame[1:], dialect) for tag, frame in enumerate(expected, 1) if frame[0] == "MESSAGE"]
        same_columns(raws, plain)
        for raw, old in zip(raws, plain, strict=True):
            same_columns([raw] * 3, [old] * 3)
            assert (value(raw[1], "ack", last) is None) == ("ack" not in old[1])


#: Texts with NULs, lengths that are wrong or none, and what is no frame, as a hostile producer may have them.
CUT_ANYWHERE = [
    b"MESSAGE\nack:1\n\na\0b\0\nMESSAGE\nack:2\n\nnext\0\n",
    b"MESSAGE\nack:1\n\na\0\nb\0\n",
    b"MESSAGE\nack:1\n\na\0Most\0\nRECEIPT\nreceipt-id:1\n\n\0",
    b"MESSAGE\nack:1\n\na\0\r\nMESSAGES\n\0\r\n\nMESSAGE\r\nack:2\r\n\r\n\nx\0\n",
    b"MESSAGE\nack:1\ncontent-length:x\n\na\0\nMESSAGE\nack:2\n\nnext\0\n",
    b"MESSAGE\nack:1\ncontent-length:2\n\nabcd\0\nMESSAGE\nack:2\ncontent-length:4\n\nne\0t\0\n",
    b"MESSAGE\nack:1\ncontent-length:30\n\nab\0\nMESSAGE\nack:2\n\nnext\0\nMESSAGE\nack:3\n\nlast\0\n",
    b"CONNECTED\nversion:1.2\n\n\0\nMESSAGE\nack:1\n\na\0\nERROR\nmessage:x\n\ny\0\n",
    b"MESSAGE\r\nack:1\r\ncontent-length:2\r\n\r\n\n\n\0\nMESSAGE\nack:2\n\n\r\n\0\n",
    b"MESSAGE\nack:1\n\na\0\n\n\n\n\n\n\n\n\n\n\n\n\n\n\nb\0\nMESSAGE\nack:2\n\nx\0",
    b"MESSAGE\nack:1\ncontent-length:1\n\na\0\nSEND\n\n\0",
]


@pytest.mark.parametrize("stream", CUT_ANYWHERE, ids=lambda stream: repr(stream[8:48]))
def test_what_is_read_of_a_stream_does_not_depend_on_where_it_is_cut(stream: bytes) -> None:
    whole = read([stream])
    for first in range(len(stream) + 1):
        assert read([stream[:first], stream[first:]]) == whole
        for second in range(first, len(stream) + 1):
            assert read([stream[:first], stream[first:second], stream[second:]]) == whole
    assert read([bytes([byte]) for byte in stream]) == whole


@st.composite
def alike(draw: st.DrawFn) -> list[list[bytes]]:
    """Header lines of messages that have mostly the same headers, some of them twice."""
    names = draw(st.lists(st.sampled_from([*NAMES, b"own", b"own", b"ack", b"type", b"amqp-message-id"]), max_size=6))
    messages = []
    for _ in range(draw(st.integers(1, 4))):
        lines = [name + b":" + draw(st.sampled_from(VALUES)) for name in names]
        if lines and draw(st.integers(0, 3)) == 0:
            lines[draw(st.integers(0, len(lines) - 1))] = draw(entries)
        messages.append([line for line in lines if line])
    return messages


@settings(max_examples=400, deadline=None)
@given(
    alike(), st.sampled_from([b"\n", b"\n", b"\r\n"]), st.sampled_from([b"", b"x", b"\n\n", b"\r"]), st.integers(1, 400)
)
def test_messages_that_are_alike_have_the_same_columns(
    messages: list[list[bytes]], end: bytes, body: bytes, size: int
) -> None:
    # Ends of lines may be mixed.
    data = b"".join(
        b"MESSAGE\n" + end.join([*lines, b"content-length:%d" % len(body), b"", b""]) + body + b"\0\n"
        for lines in messages
    )
    some = [data[at : at + size] for at in range(0, len(data), size)]
    frames, _ = read(some)
    for dialect in DIALECTS:
        expected, _ = frames_of(data, dialect.last_header)
        same_columns(
            [(tag, *frame[1:], dialect) for tag, frame in enumerate(frames, 1)],
            [(tag, *frame[1:], dialect) for tag, frame in enumerate(expected, 1)],
        )


def same_columns(raws: list[Any], plain: list[Any]) -> None:
    decoder, reference = StompDecoder(), ReferenceDecoder()
    for given_raws in (raws, decoder.batch(raws, list(decoder.columns)), decoder.batch(raws, ["body", "priority"])):
        assert decoder.tags(given_raws) == reference.tags(plain)
        assert decoder.bodies(given_raws) == reference.bodies(plain)
        for source in SOURCES:
            assert decoder.ids(given_raws, source) == reference.ids(plain, source)
        assert decoder.hidden(given_raws) == reference.hidden(plain)
        assert decoder.unreadable(given_raws) == reference.unreadable(plain)
        for name, column in decoder.columns.items():
            assert column(given_raws) == reference.columns[name](plain), name


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(entries, max_size=5), min_size=1, max_size=4), st.integers(1, 3), st.sampled_from(["", "own"]))
def test_a_table_of_headers_is_what_each_message_has(some: list[list[bytes]], times: int, last: str) -> None:
    blocks = [b"\n" + b"".join(line + b"\n" for line in lines if line) for lines in some for _ in range(times)]
    for turned in (True, False):
        table = HeaderTable(blocks, last, turned=turned)
        for name in ("own", "ack", "type", "priority", "a:b", "caf\udce9"):
            assert table.texts(name) == [parse(block, last).get(name) for block in blocks]


@pytest.mark.parametrize(
    "head",
    [
        b"MESSAGE\ncontent-length:999999999999999\n\n",
        b"MESSAGE\ncontent-length:2000000\n\n",
        b"MESSAGE\n\n",
        b"MESSAGE\nlong:",
        b"MESSAGE\n\na\0b",
    ],
)
def test_memory_is_what_has_come_of_a_frame_and_not_what_it_announces(head: bytes) -> None:
    reader, piece = FrameReader(), b"x" * 65_536
    tracemalloc.start()
    try:
        assert list(reader.feed(head)) == []
        for _ in range(16):
            assert list(reader.feed(piece)) == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A buffer that grows has some in reserve.
    assert 16 * len(piece) < most < 2.5 * 16 * len(piece)


def test_a_body_in_many_pieces_is_there_twice_at_most() -> None:
    size = 8_000_000
    reader, piece = FrameReader(), b"x" * 100_000
    tracemalloc.start()
    try:
        list(reader.feed(b"MESSAGE\ncontent-length:%d\n\n" % size))
        for _ in range(size // len(piece)):
            list(reader.feed(piece))
        ((_, _, body),) = reader.feed(b"\0\nMESSAGE\n")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) == size
    assert most < 2.3 * size


@pytest.mark.parametrize(
    "head", [b"MESSAGE\nlong:", b"MESSAGE\ncontent-length:9999999\n\n", b"MESSAGE\n\n", b"MESSAGE\n\na\0b"]
)
def test_what_comes_byte_by_byte_is_looked_at_once(head: bytes) -> None:
    """Four times the bytes take four times as long, not sixteen."""

    def steps(size: int) -> float:
        reader, body = FrameReader(), b"\0yyy" * (size // 4) if head.endswith(b"b") else b"y" * size
        list(reader.feed(head))
        started = process_time()
        for at in range(0, size, 4):
            list(reader.feed(body[at : at + 4]))
        return process_time() - started

    few, many = min(steps(50_000) for _ in range(3)), min(steps(200_000) for _ in range(3))
    assert many < 9 * few
