"""STOMP with headers kept as bytes, against stomp.py and what was written (:mod:`tests.support.stomp_oracle`).

Whatever bytes come, in whatever pieces: the same frames, columns, IDs and refusals.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pyspark_mq.brokers import BROKERS
from pyspark_mq.decode.batch import DictionaryColumn
from pyspark_mq.decode.stomp import FramesBatch, StompBatch
from pyspark_mq.decode.stomp_frames import Frames, find_frames
from pyspark_mq.decode.stomp_headers import parse, value
from pyspark_mq.dedup import IdSource
from pyspark_mq.wire.stomp.frames import FrameReader, StompFrameError, UnreadableHeaders
from tests.support.decoding import Asked
from tests.support.effort import part_of
from tests.support.stomp_oracle import Delivery, cut_by_stomp_py, headers_of

EXAMPLES = part_of(400)
#: Names with a meaning, names that begin or end like them, and names that are no text or escaped.
NAMES = [
    b"ack", b"amqp-message-id", b"message-id", b"correlation-id", b"content-type", b"type", b"priority", b"timestamp",
    b"expires", b"expiration", b"redelivered", b"x-delivery-count", b"reply-to", b"destination", b"subscription",
    b"destination-type", b"persistent", b"user-id", b"JMSXUserID", b"app-id", b"content-encoding",
    b"JMS_AMQP_ContentEncoding", b"_AMQ_GROUP_SEQUENCE", b"JMSXGroupSeq", b"JMSXGroupID", b"JMS_AMQP_X",
    b"__HDR_A", b"_AMQ_B", b"own", b"other",
    b"ack2", b"type-of", b"content-length2", b"x-type", b"my-message-id", b"ac", b"",
    b"a\\cb", b"a\\\\b", b"a\\b", b"odd\\", b"\xff", b"caf\xc3\xa9", b"caf\xe9", b"\xed\xa0\x80", b"x\rz", b"\\n",
]  # fmt: skip
VALUES = [
    b"/queue/q", b"/topic/a.b", b"/exchange/e%2Fx/k%ff%", b"/exchange/e", b"/exchange/e/k/x", b"/amq/queue/q",
    b"/queue/%C3%A9\xff",
    b"", b"1", b"true", b"false", b"4", b"1700000000123", b"9" * 18, b"9" * 30, b"-1", b" 7", b"+7", b"1_0",
    b"\xc2\xb2", b"\xd9\xa1", b"ID\\ca-1\\c2\\c3\\c4", b"ID:a:1:2:-3", b"12,34", b"12,\xff", b"a\\\\cb\\n\\r\\t\\",
    b"\xff\xfe", b"caf\xc3\xa9", b"\xc3", b"a:b:c", b":", b"ack:9", b"x\ry", b"4\r", b"\0",
]  # fmt: skip
LENGTHS_REFUSED = [b"", b"-1", b"two", b"3 ", b"\xc2\xb2", b"9" * 16, b"9" * 5_000, b"\\c3"]
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
).filter(lambda line: line not in (b"", b"\r"))  # which ends the headers
bodies = st.one_of(
    st.binary(max_size=12),
    st.lists(st.sampled_from([b"\0", b"\n", b"\r", b"M", b"MESSAGE\n", b"x", b"\n\n", b"\n\r\n"]), max_size=6).map(
        b"".join
    ),
)
#: Of frames without a length, or with one that is none: no frame begins in them.
texts = st.lists(st.sampled_from([b"\n", b"\r", b"M", b"MESSAGES\n", b"x", b"\n\n", b"\n\r\n"]), max_size=6).map(
    b"".join
)
split_texts = st.lists(texts, min_size=2, max_size=4).map(b"\0".join)


@dataclass(frozen=True)
class Written:
    """A frame as it is written, and what it says.

    Attributes:
        lines: of its headers.
        error: how the reason begins for which it cannot be read; empty if it can.
        length: has it the right one?
    """

    data: bytes
    command: str
    lines: list[bytes]
    body: bytes
    error: str
    length: bool


@st.composite
def written(draw: st.DrawFn) -> Written:
    """A frame, mostly one that a broker could send."""
    command = draw(st.sampled_from(["MESSAGE"] * 12 + ["RECEIPT", "ERROR", "CONNECTED"]))
    lines = draw(st.lists(entries, max_size=6))
    if command == "CONNECTED":  # which stomp.py takes for escaped
        lines = [line for line in lines if b"\\" not in line]
    length = draw(st.sampled_from(["right"] * 6 + ["none"] * 4 + ["twice", "odd", "bare", "short", "split"]))
    body = draw(bodies if length in ("right", "twice") else texts)
    error, announced = "", [b"content-length:%d" % len(body)]
    if length == "twice":
        announced.append(b"content-length:1")
    if length == "none":
        announced = []
    if length == "odd":
        odd = draw(st.sampled_from(LENGTHS_REFUSED))
        announced, error = [b"content-length:" + odd], f"its content-length is {odd[:40]!r}"
    if length == "bare":
        announced, error = [b"content-length"], "its content-length is b''"
    if length == "short":
        body += b"x"
        told = draw(st.integers(0, len(body) - 1))
        announced, error = [b"content-length:%d" % told], f"no end of frame after a body of {told} bytes"
    if length == "split" and command == "MESSAGE":
        body, announced, error = draw(split_texts), [], "a text with a NUL in it"
    assume(command != "CONNECTED" or b"\\" not in b"".join(announced))
    at = draw(st.integers(0, len(lines)))
    lines[at:at] = announced
    end = draw(st.sampled_from([b"\n"] * 6 + [b"\r\n"]))
    data = end.join([command.encode(), *lines, b"", b""]) + body + b"\0"
    if end == b"\n":
        lines = [line.removesuffix(b"\r") for line in lines]
    # Two names of which one has an escape that means nothing may say the same.
    assume(len(headers_of(lines)) == len({line.partition(b":")[0] for line in lines}))
    return Written(data, command, lines, body, error if command == "MESSAGE" else "", length in ("right", "twice"))


ends_of_lines = st.sampled_from([b"\n", b"", b"\n\n\n", b"\r\n"])
#: What is no frame.
STRANGERS = [
    b"x",
    b"SEND\n\n\0",
    b"MESSAGES\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"AMQP\0\0\x09\x01",
    b"\x15\x03\x03\0\x02",
]
anything = st.one_of(
    st.lists(written(), max_size=4).map(lambda some: b"".join(one.data for one in some)),
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda some: b"MESSAGE\n" + some),
    st.lists(st.sampled_from([b"MESSAGE\n", b"\0", b"\n", b"\n\n", b"\r\n", b"SEND\n", b"a:1\n", b"content-length:3\n",
                              b"content-length:x\n", b"\0\nMES", b"x"]), max_size=12).map(b"".join),
    st.sampled_from(STRANGERS),
)  # fmt: skip


def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """As it is read: in pieces of any size."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Written], list[bytes], list[bytes]]:
    """Frames, the ends of lines behind each, and their stream in pieces."""
    frames = draw(st.lists(written(), max_size=5))
    behind = [draw(ends_of_lines) for _ in frames]
    return frames, behind, cut(draw, b"".join(one.data + end for one, end in zip(frames, behind, strict=True)))


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes]:
    """Whatever may come, in pieces."""
    return cut(draw, draw(anything))


def read(some: Sequence[bytes]) -> tuple[list[Any], str]:
    """The frames in these pieces, after which nothing more comes, and why the rest is none; empty if it is."""
    found = read_with(FrameReader(), some)
    for least in (1, 3):
        assert read_with(FrameReader(least), some) == found
    return found


def read_with(reader: FrameReader, some: Sequence[bytes]) -> tuple[list[Any], str]:
    frames: list[Any] = []
    try:
        for piece in [*some, None]:
            for item in reader.quiet() if piece is None else reader.feed(piece):
                frames += [("MESSAGE", *one) for one in item.cut()] if isinstance(item, Frames) else [item]
    except StompFrameError as wrong:
        return frames, str(wrong)
    return frames, ""


def expected_of(frames: Sequence[Written], last: str) -> list[Any]:
    return [(one.command, headers_of(one.lines, last), one.error, one.body) for one in frames]


def found_in(frames: Sequence[Any], last: str) -> list[Any]:
    return [
        (
            command,
            parse(block, last, escaped=command != "CONNECTED"),
            block.error if type(block) is UnreadableHeaders else "",
            body,
        )
        for command, block, body in frames
    ]


def same_frames(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert [(command, headers, body) for command, headers, _, body in found] == [
        (command, headers, body) for command, headers, _, body in expected
    ]
    for (_, _, error, _), (_, _, beginning, _) in zip(found, expected, strict=True):
        assert error.startswith(beginning)
        assert bool(error) == bool(beginning)


@settings(max_examples=EXAMPLES, deadline=None)
@given(streams())
def test_the_frames_and_columns_that_were_written(given: tuple[list[Written], list[bytes], list[bytes]]) -> None:
    written, _, some = given
    frames, refused = read(some)
    assert not refused
    for dialect in DIALECTS:
        last = dialect.last_header
        expected = expected_of(written, last)
        same_frames(found_in(frames, last), expected)
        raws = [(tag, *frame[1:], dialect) for tag, frame in enumerate(frames, 1) if frame[0] == "MESSAGE"]
        plain = [
            Delivery(tag, headers, body, dialect, error)
            for tag, (command, headers, error, body) in enumerate(expected, 1)
            if command == "MESSAGE"
        ]
        same_columns(raws, plain)
        for raw, old in zip(raws, plain, strict=True):
            same_columns([raw] * 3, [old] * 3)
            assert (value(raw[1], "ack", last) is None) == ("ack" not in old.headers)


@settings(max_examples=EXAMPLES, deadline=None)
@given(streams())
def test_frames_are_cut_as_stomp_py_cuts_them(given: tuple[list[Written], list[bytes], list[bytes]]) -> None:
    written, _, some = given
    assume(not any(one.error or b"\0" in b"".join(one.lines) for one in written))
    # Of a length that is wrong in another frame than a message it makes what it can.
    assume(
        all(one.command == "MESSAGE" or one.length or b"content-length" not in b"".join(one.lines) for one in written)
    )
    frames, _ = read(some)
    assert [(command, body) for command, _, body in frames] == cut_by_stomp_py(b"".join(some))


@settings(max_examples=EXAMPLES, deadline=None)
@given(streams(), st.data())
def test_of_a_stream_that_ends_anywhere_the_frames_that_have_ended(
    given: tuple[list[Written], list[bytes], list[bytes]], data: st.DataObject
) -> None:
    written, behind, some = given
    stream = b"".join(some)[: data.draw(st.integers(0, sum(map(len, some))))]
    whole, at = [], 0
    for one, end in zip(written, behind, strict=True):
        at += len(one.data)
        if at > len(stream):
            # The first part of a text with a NUL in it is a text, and a length may be right for a while.
            if one.error:
                frames, _ = read(cut(data.draw, stream))
                same_frames(found_in(frames[: len(whole)], ""), expected_of(whole, ""))
                return
            break
        whole.append(one)
        at += len(end)
    frames, refused = read(cut(data.draw, stream))
    same_frames(found_in(frames, ""), expected_of(whole, ""))
    assert not refused


@settings(max_examples=part_of(200), deadline=None)
@given(streams(), st.sampled_from(STRANGERS), st.data())
def test_what_is_no_frame_is_refused_behind_the_frames_before_it(
    given: tuple[list[Written], list[bytes], list[bytes]], stranger: bytes, data: st.DataObject
) -> None:
    written, _, some = given
    # Behind a text without a length it is more of the text.
    assume(not written or written[-1].length)
    # A line that is no command is shown as a whole, so it is read to its end.
    frames, refused = read(cut(data.draw, b"".join(some) + stranger + b"\n"))
    same_frames(found_in(frames, ""), expected_of(written, ""))
    assert refused


@settings(max_examples=EXAMPLES, deadline=None)
@given(pieces())
@example([b"MESSAGE\n\na\0", b"b\0", b"\nMES", b"SAGE\n\nx\0"])
@example([b"MESSAGE\r\na:1\r\n", b"\r", b"\nx\0\r\n"])
@example([b"MESSAGE\na:1\n\nx\0\n\r", b"MESSAGES\n\n\0"])
def test_what_is_read_of_anything_does_not_depend_on_where_it_is_cut(some: list[bytes]) -> None:
    whole, stream = read([b"".join(some)]), b"".join(some)
    assert read(some) == whole
    assert read([stream[at : at + 1] for at in range(len(stream))]) == whole


@pytest.mark.parametrize(
    ("stream", "headers", "body"),
    [
        (b"MESSAGE\nack\nack:1\n\n\0\nMESSAGE\nack2:1\nack:2\n\n\0", [{"ack": ""}, {"ack2": "1", "ack": "2"}], b""),
        (
            b"MESSAGE\ncontent-length2:9\ncontent-length:1\n\nx\0",
            [{"content-length2": "9", "content-length": "1"}],
            b"x",
        ),
        (b"MESSAGE\r\na:1\r\ncontent-length:2\r\n\r\n\nx\0\n", [{"a": "1", "content-length": "2"}], b"\nx"),
    ],
    ids=["name", "length", "line feed"],
)
def test_streams_that_were_once_read_wrongly(stream: bytes, headers: list[dict[str, str]], body: bytes) -> None:
    frames, refused = read([stream])
    assert not refused
    assert [(parse(block), found) for _, block, found in frames] == [(one, body) for one in headers]


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


#: What ends the names of our subscriptions and receipts, and texts of pieces of frames, without these bytes.
OWN = b"-5f0c"
framed = st.lists(
    st.sampled_from([b"\0", b"\0", b"\n", b"\r\n", b"\n\n", b"MESSAGE\n", b"MESSAGE\r\n", b"RECEIPT\n", b"ERROR\n",
                     b"CONNECTED\n", b"MES", b"E", b"ack:1\n", b"subscription:000000\n", b"content-length:1\n", b"-5f0",
                     b"x"]),
    max_size=14,
).map(b"".join).filter(lambda text: OWN not in text)  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(framed, min_size=1, max_size=6), st.booleans(), st.data())
def test_a_text_is_whole_whatever_is_in_it(texts: list[bytes], follows: bool, data: st.DataObject) -> None:
    head = b"MESSAGE\nack:%d\nsubscription:000000-5f0c\n\n%b\0\n"
    stream = b"".join(head % (number, text) for number, text in enumerate(texts))
    stream += b"RECEIPT\nreceipt-id:proved-5f0c\n\n\0\n" if follows else b""
    expected = [(b"\nack:%d\nsubscription:000000-5f0c\n" % number, text) for number, text in enumerate(texts)]
    some = cut(data.draw, stream)
    for pieces in ([stream], some, [stream[at : at + 1] for at in range(len(stream))]):
        for least in (0, 1, 3):
            frames, refused = read_with(FrameReader(least, own=OWN), pieces)
            assert not refused
            assert [frame[1:] for frame in frames[: len(texts)]] == expected
            assert [b"\0" in text for text in texts] == [
                type(frame[1]) is UnreadableHeaders for frame in frames[: len(texts)]
            ]
            assert len(frames) == len(texts) + follows


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


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    alike(), st.sampled_from([b"\n", b"\n", b"\r\n"]), st.sampled_from([b"", b"x", b"\n\n", b"\r"]), st.integers(1, 400)
)
def test_messages_that_are_alike_have_the_same_columns(
    messages: list[list[bytes]], end: bytes, body: bytes, size: int
) -> None:
    # Ends of lines may be mixed.
    heads = [[*lines, b"content-length:%d" % len(body)] for lines in messages]
    data = b"".join(b"MESSAGE\n" + end.join([*lines, b"", b""]) + body + b"\0\n" for lines in heads)
    if end == b"\n":
        heads = [[line.removesuffix(b"\r") for line in lines] for lines in heads]
    assume(all(len(headers_of(lines)) == len({line.partition(b":")[0] for line in lines}) for lines in heads))
    frames, _ = read([data[at : at + size] for at in range(0, len(data), size)])
    for dialect in DIALECTS:
        same_columns(
            [(tag, *frame[1:], dialect) for tag, frame in enumerate(frames, 1)],
            [
                Delivery(tag, headers_of(lines, dialect.last_header), body, dialect)
                for tag, lines in enumerate(heads, 1)
            ],
        )


def values_of(column: Any) -> list[Any]:
    """A column in one of the forms that it may have."""
    if isinstance(column, DictionaryColumn):
        return [column.values[row] for row in column.rows]
    return list(column.to_pylist()) if isinstance(column, pa.Array) else list(column)


def together(raws: list[Any]) -> list[FramesBatch]:
    """The same deliveries as a batch, if they are alike enough."""
    if not raws or any(type(raw[1]) is UnreadableHeaders for raw in raws):
        return []
    # As frames again, and behind them the beginning of another one.
    data = b"".join(b"MESSAGE" + raw[1] + b"\n" + raw[2] + b"\0\n" for raw in raws) + b"MESSAGE\n"
    dialect = raws[0][3]
    found, _ = find_frames(data, len(raws), len(raws), dialect.last_header)
    if found is None or len(found.kinds) < len(raws):
        return []
    return [FramesBatch(found, np.array([raw[0] for raw in raws]), dialect)]


def same_columns(raws: list[Any], plain: list[Delivery]) -> None:
    decoder = Asked(StompBatch)
    for given_raws in (raws, *together(raws)):
        assert decoder.tags(given_raws) == [one.tag for one in plain]
        assert decoder.bodies(given_raws) == [one.body for one in plain]
        if isinstance(given_raws, FramesBatch):
            assert given_raws.body().to_pylist() == [one.body for one in plain]
        for source in SOURCES:
            assert decoder.ids(given_raws, source) == [one.id(source.kind, source.name) for one in plain]
        assert decoder.hidden(given_raws) == [name for one in plain for name in one.hidden]
        odd = [one for one in plain if one.error]
        told = decoder.unreadable(given_raws)
        assert [(one.tag, one.known, one.data) for one in told] == [(one.tag, one.known, one.body) for one in odd]
        assert all(one.error.startswith(other.error) for one, other in zip(told, odd, strict=True))
        for name, column in decoder.columns.items():
            if name != "properties":
                assert values_of(column(given_raws)) == [one.column(name) for one in plain], name
        for pairs, one in zip(values_of(decoder.columns["properties"](given_raws)), plain, strict=True):
            own = pairs[1:] if one.error else pairs
            assert (len(own), dict(own)) == (len(one.properties), one.properties)
            if one.error:
                assert pairs[0][0] == "unreadable"
                assert str(pairs[0][1]).startswith(one.error)


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


#: Texts and headers that a hostile producer may send, in units.
HOSTILE = {
    "NULs": b"\0",
    "first lines": b"\0\nMESSAGE\n",
    "frames": b"\0\nMESSAGE\nack:1\n\n",
    "other frames": b"\0ERROR\n\n",
    "begun lines": b"\0MESSAGE",
    "begun marks": OWN[:-1],
    "line ends": b"\n",
    "carriage returns": b"\r\n",
}


def cost_s(message: bytes) -> float:
    """CPU time to read a message in pieces, with another behind it."""
    head = b"\nMESSAGE\nack:2\nsubscription:000001-5f0c\n\n\0\n"
    data = message + b"\0" + head + b"RECEIPT\nreceipt-id:proved-5f0c\n\n\0"
    least_s = float("inf")
    for _ in range(3):
        reader = FrameReader(100, own=OWN)
        started_s, count = process_time(), 0
        for at in range(0, len(data), 1 << 16):
            count += sum(1 for _ in reader.feed(data[at : at + (1 << 16)]))
        least_s = min(least_s, process_time() - started_s)
        assert count == 3
    return least_s


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_text_costs_as_much_as_a_harmless_one(kind: str) -> None:
    """A text in lines is the harmless one. At 4 MiB a text of NULs once took a thousand times as long."""
    size, head = 4 << 20, b"MESSAGE\nack:1\nsubscription:000000-5f0c\n\na\0"
    unit = HOSTILE[kind]
    harmless_s = cost_s(head[:-2] + b"a line of a text\n" * (size // 17))
    assert cost_s(head + unit * (size // len(unit))) < 4 * harmless_s + 0.05


@pytest.mark.parametrize("line", ["a:1", "ack:1", "ack", "a:1\r", f"ack:{'1' * 100_000}"], ids=lambda line: line[:5])
def test_headers_beyond_the_limit_cost_in_proportion(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_mq.wire.stomp.frames._HEADER_BYTES_MAX", 1 << 18)

    def headed_s(size: int) -> float:
        lines = f"{line}\n".encode() * (size // len(line))
        return cost_s(b"MESSAGE\nsubscription:000000-5f0c\n" + lines + b"ack:2\n\n")

    assert headed_s(8 << 20) < 9 * headed_s(2 << 20)
