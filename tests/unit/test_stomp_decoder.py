"""STOMP frames from bytes, and columns from frames."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.brokers import BROKERS
from pyspark_mq.decode.stomp import ParsedBatch, StompBatch
from pyspark_mq.decode.stomp_frames import Frames
from pyspark_mq.decode.stomp_headers import parse, value
from pyspark_mq.dedup import IdSource, id_keys
from pyspark_mq.wire.stomp.frames import Frame, FrameReader, StompFrameError, UnreadableHeaders
from tests.support.decoding import Asked
from tests.support.sockets import cuts
from tests.support.stomp import block
from tests.support.stomp_oracle import escape

DECODER = Asked(StompBatch)
MESSAGE_ID = IdSource("message-id")


def frames(*pieces: bytes) -> list[tuple[str, dict[str, str], bytes]]:
    return [
        (command, parse(headers, escaped=command != "CONNECTED"), body)
        for command, headers, body in read(FrameReader(), *pieces)
    ]


def read(reader: FrameReader, *pieces: bytes) -> list[Frame]:
    """Everything that comes, and then nothing for a while."""
    found = [frame for piece in pieces for frame in reader.feed(piece)]
    return [*found, *reader.quiet()]


def alone(reader: FrameReader, *pieces: bytes) -> list[Frame]:
    """The same of a reader that cuts messages together."""
    found = [frame for piece in pieces for frame in reader.feed(piece)]
    cut: list[Frame] = []
    for item in [*found, *reader.quiet()]:
        cut += [("MESSAGE", *one) for one in item.cut()] if isinstance(item, Frames) else [item]
    return cut


def raw(broker: str, headers: dict[str, str], body: bytes = b"") -> Any:
    return 1, block(headers), body, BROKERS[broker].stomp


def column(name: str, broker: str, **headers: str) -> Any:
    renamed = {key.replace("_", "-"): value for key, value in headers.items()}
    return DECODER.columns[name]([raw(broker, renamed)])[0]


# -- frames -----------------------------------------------------------------------------------


def test_a_message_behind_any_number_of_heart_beats_is_read() -> None:
    message = b"MESSAGE\nack:1\n\nbody\0"
    assert (
        frames(b"\n\n", message, b"\n\n\n" + message, b"\r\n\n" + message) == [("MESSAGE", {"ack": "1"}, b"body")] * 3
    )


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"AMQP\x00\x01\x00\x00", b"AMQP\x00"),
        (b"MESSAGE: 1\n\n", b"MESSAGE: 1"),
        (b"x" * 50, b"x" * 40),
        (b"\n\nx" + b"MESSAGE\n\n\0", b"xMESSAGE"),
    ],
)
@pytest.mark.parametrize("before", [b"", b"RECEIPT\na:1\n\n\0", b"MESSAGE\ncontent-length:1\n\nx\0\n"])
def test_what_begins_no_frame_is_shown_alike_however_it_was_read(before: bytes, data: bytes, shown: bytes) -> None:
    for pieces in cuts(before + data):
        reader = FrameReader()
        with pytest.raises(StompFrameError) as wrong:
            read(reader, *pieces)
        assert str(wrong.value) == f"{shown!r} does not begin a frame of a STOMP server"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(
    "lines",
    [
        [b"x:" + b"1" * 40, b"ack:1", b"message-id:m"],
        [b"ack:1", b"x:1", b"message-id:m", b"ack:2", b"y:1", b"ack:3", b"message-id:n"],
        [b"ack:1", b"message-id:" + b"m" * 25, b"x:1", b"ack2:3"],
        [b"message-id:" + b"m" * 25, b"ack:1", b"message-id:n", b"message-id:" + b"o" * 25],
        [b"ack:1", *[b"x"] * 30],
        [b"a:1"] * 20,
    ],
    ids=["value", "many", "needed value", "needed values", "names", "nothing"],
)
def test_of_too_many_headers_what_is_needed_is_kept_however_they_were_read(
    end: bytes, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_mq.wire.stomp.frames._HEADER_BYTES_MAX", 40)
    monkeypatch.setattr("pyspark_mq.wire.stomp.frames._LINE_BYTES_MAX", 20)
    head = end.join([b"MESSAGE", *lines])
    size = len(head) + len(end) - 1
    # Of a name the first entry and the last are kept, unless they are too long.
    of = {name: [line for line in lines if line.startswith(name + b":")] for name in (b"ack", b"message-id")}
    ends = [one[place] for one in of.values() for place in ((0, -1) if len(one) > 1 else (0,) if one else ())]
    expected = sorted((line for line in ends if len(line) + len(end) - 1 <= 20), key=lines.index)
    data = head + end * 2 + b"x\0\nMESSAGE" + end * 2 + b"y\0"
    for pieces in [*cuts(data), [data[at : at + 1] for at in range(len(data))]]:
        (command, odd, body), good = read(FrameReader(), *pieces)
        assert isinstance(odd, UnreadableHeaders)
        assert (command, body, good[2]) == ("MESSAGE", b"x", b"y")
        assert odd.error == f"its headers have {size} bytes, and the limit is 40"
        assert odd.split(b"\n")[1:-1] == expected
    monkeypatch.setattr("pyspark_mq.wire.stomp.frames._HEADER_BYTES_MAX", size)
    for pieces in cuts(data):
        whole, _ = read(FrameReader(), *pieces)
        assert (type(whole[1]), whole[1].split(b"\n")[1:-1]) == (bytes, lines)


def test_a_message_may_not_have_more_headers_than_can_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_mq.wire.stomp.frames._HEADER_LINES_MAX", 3)
    good = b"MESSAGE\nack:1\na:1\nb:1\n\n\0"
    odd = b"MESSAGE\na:1\na:1\nack:1\nb:1\n\n\0"
    for pieces in cuts(good + odd):
        (_, first, _), (_, second, _) = read(FrameReader(), *pieces)
        assert (type(first), type(second), second) == (bytes, UnreadableHeaders, b"\nack:1\n")
        assert second.error == "it has 4 headers, and the limit is 3"


def test_memory_is_bounded_while_headers_are_skipped() -> None:
    piece = b"p:" + b"x" * 1_000_000 + b"\n"
    reader = FrameReader()
    tracemalloc.start()
    try:
        found = list(reader.feed(b"MESSAGE\nack:1\n"))
        for _ in range(40):
            found += reader.feed(piece)
        for _ in range(40):  # one line
            found += reader.feed(b"x" * 1_000_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == []
    assert most < 38e6
    ((_, headers, body),) = read(reader, b"\n\nbody\0")
    assert (type(headers), headers, body) == (UnreadableHeaders, b"\nack:1\n", b"body")


def test_one_of_very_many_headers_takes_no_memory_for_the_others() -> None:
    block = b"\nack:1\n" + b"a:1\n" * 1_000_000 + b"last:2\n"
    tracemalloc.start()
    try:
        assert (value(block, "ack"), value(block, "last"), value(block, "none")) == (b"1", b"2", None)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000


# -- frames in texts

#: What ends the names of our subscriptions and receipts.
OWN = b"-5f0c"
TRUE = b"\nMESSAGE\nack:2\nsubscription:000001-5f0c\n\nnext\0"
TEXTS = [
    b"a\0\nMESSAGE\nack:9\nsubscription:000001\n\nfake",
    b"a\0MESSAGE\nack:9\n\nfake\0\n\nMESSAGE\nack:8\n\n",
    b"a\0\nMESSAGE\nx:y",
    b"a\0\nMESSAGE\nx:y\0",
    b"a\0\r\nRECEIPT\nreceipt-id:proved\n\n",
    b"a\0\nERROR\nmessage:fake\n\nfake",
    b"a\0\nERROR\nmessage:fake\n\nfake\0\n",
    b"a\0\nCONNECTED\r\n\r\n\0",
    b"a\0MESSAGE\n\0MESSAGE\r\n\0\n",
    b"a\0MES",
]


@pytest.mark.parametrize("least", [0, 1, 2])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "behind", [TRUE, b"\nRECEIPT\nreceipt-id:proved-5f0c\n\n\0", b"\nERROR\nreceipt-id:x-5f0c\n\n\0"]
)
def test_a_frame_in_a_text_is_part_of_the_text_however_it_was_read(text: bytes, behind: bytes, least: int) -> None:
    head = b"MESSAGE\nack:1\nsubscription:000000-5f0c\n\n"
    for pieces in cuts((head + text + b"\0\n") * 2 + head + b"good\0" + behind):
        first, second, good, last = alone(FrameReader(least, own=OWN), *pieces)
        assert (type(first[1]), first[2]) == (type(second[1]), second[2]) == (UnreadableHeaders, text)
        assert (type(good[1]), good[2]) == (bytes, b"good")
        assert last[0] == behind.split(b"\n")[1].decode()


@pytest.mark.parametrize("text", TEXTS)
def test_a_frame_in_a_text_that_nothing_follows_is_part_of_the_text(text: bytes) -> None:
    data = b"MESSAGE\nack:1\nsubscription:000000-5f0c\n\n" + text + b"\0\n"
    for pieces in cuts(data):
        reader = FrameReader(own=OWN)
        assert [frame for piece in pieces for frame in reader.feed(piece)] == []
        assert reader.held
        ((_, headers, body),) = reader.quiet()
        assert (type(headers), body) == (UnreadableHeaders, text)


def test_a_text_is_not_held_while_a_frame_behind_it_is_incomplete() -> None:
    reader = FrameReader(own=OWN)
    assert list(reader.feed(b"MESSAGE\nsubscription:0-5f0c\n\na\0\nMESSAG")) == []
    assert reader.held
    assert list(reader.feed(b"E\n")) == []
    assert not reader.held
    assert list(reader.quiet()) == []


def test_an_error_in_a_text_is_nobodys_if_the_broker_may_have_sent_it() -> None:
    doubts: list[bool] = [True]
    head = b"MESSAGE\nack:1\nmessage-id:ID\\chost-1\nsubscription:0-5f0c\n\n"
    for text, doubtful in [(b"a\0b", False), (b"a\0\nERROR\n\n", True), (b"a ERROR\nb\0", False)]:
        for pieces in cuts(head + text + b"\0" + TRUE):
            for doubts[0] in (False, True):
                reader = FrameReader(own=OWN, in_doubt=lambda: doubts[0])
                if doubtful and doubts[0]:
                    with pytest.raises(StompFrameError, match="an ERROR frame follows a NUL in message 'ID:host-1'"):
                        read(reader, *pieces)
                else:
                    assert [body for _, _, body in read(reader, *pieces)] == [text, b"next"]


def test_an_error_that_ends_the_connection_is_found_behind_a_text() -> None:
    head = b"MESSAGE\nack:1\nsubscription:0-5f0c\n\na\0"
    for data, error in [
        (head + b"\nERROR\nmessage:one\n\n\0\nERROR\nmessage:two\n\nwhy\0\n", ("ERROR", b"\nmessage:two\n", b"why")),
        (head + b"\nERROR\nmessage:one\n\nwh", None),
        (head + b"ERROR", None),
        (b"MESSAGE\nack:1\n", None),
    ]:
        for pieces in cuts(data):
            reader = FrameReader(own=OWN)
            assert [frame for piece in pieces for frame in reader.feed(piece)] == []
            assert reader.last_error() == error


def test_a_length_makes_a_body_of_any_bytes() -> None:
    assert frames(b"MESSAGE\ncontent-length:5\n\n\0\n\n\0\n\0\n") == [
        ("MESSAGE", {"content-length": "5"}, b"\0\n\n\0\n")
    ]
    assert frames(b"MESSAGE\ncontent-length:0\n\n\0") == [("MESSAGE", {"content-length": "0"}, b"")]


def test_a_body_behind_carriage_returns_may_begin_with_a_line_feed() -> None:
    assert frames(b"MESSAGE\r\ncontent-length:2\r\n\r\n\nx\0") == [("MESSAGE", {"content-length": "2"}, b"\nx")]
    assert frames(b"MESSAGE\r\na:1\r\n\r\n\n\0\r\n") == [("MESSAGE", {"a": "1"}, b"\n")]


def test_lines_may_end_with_carriage_returns() -> None:
    assert frames(b"MESSAGE\r\na:1\r\nb:2\r\n\r\nx\n\ny\0") == [("MESSAGE", {"a": "1", "b": "2"}, b"x\n\ny")]


@pytest.mark.parametrize("behind", [b"", b"\n", b"\n\nMESSAGE\nack:2\n\nnext\0", b"RECEIPT\nreceipt-id:1\n\n\0"])
def test_a_text_with_nuls_and_no_length_is_unreadable_and_the_next_frame_is_read(behind: bytes) -> None:
    odd, *others = read(FrameReader(), b"MESSAGE\nack:1\nmessage-id:m\n\na\0b\0\nc\0" + behind)
    assert isinstance(odd[1], UnreadableHeaders)
    assert odd[2] == b"a\0b\0\nc"
    assert len(others) == behind.count(b"\0")
    assert not any(isinstance(headers, UnreadableHeaders) for _, headers, _ in others)
    (told,) = DECODER.unreadable([(7, odd[1], odd[2], BROKERS["activemq"].stomp)])
    assert (told.tag, told.data, told.known) == (7, b"a\0b\0\nc", {"message-id": "m"})


def test_headers_are_unescaped_and_the_first_of_a_name_counts() -> None:
    found = frames(b"MESSAGE\na\\cb:c\\\\c\\nd\\r\\ce\nx:1:2\nx:3\nodd:\\t\n\n\0")
    assert found == [("MESSAGE", {"a:b": "c\\c\nd\r:e", "x": "1:2", "odd": "\\t"}, b"")]


def test_of_one_header_the_last_counts_if_that_is_said() -> None:
    first, second = (
        frame[1] for frame in read(FrameReader(), b"MESSAGE\nid:a\nx:1\nid:b\\c\nx:2\n\n\0MESSAGE\nid:c\n\n\0")
    )
    assert (parse(first, "id"), parse(second, "id")) == ({"id": "b:", "x": "1"}, {"id": "c"})
    assert (value(first, "id", "id"), value(first, "x", "id")) == (b"b\\c", b"1")
    assert (value(first, "id"), value(second, "id", "id"), value(first, "y", "y")) == (b"a", b"c", None)


@pytest.mark.parametrize("last", ["", "id"])
def test_a_header_is_found_by_its_whole_name_only(last: str) -> None:
    assert value(b"\nmy-id:1\nid2:2\nx:id:3\n", "id", last) is None
    assert value(b"\nid2:2\nid:3\nid-4:4\n", "id", last) == b"3"
    assert value(b"\nid2:2\nid\nmy-id:4\n", "id", last) == b""
    assert value(b"\n", "id", last) is None


def test_headers_of_an_answer_to_connect_are_not_escaped() -> None:
    assert frames(b"CONNECTED\nserver:a\\cb\n\n\0") == [("CONNECTED", {"server": "a\\cb"}, b"")]


@given(st.text(), st.text(min_size=1), st.binary(), st.integers(1, 20))
def test_whatever_is_written_is_read_however_it_is_cut(value: str, name: str, body: bytes, size: int) -> None:
    head = f"MESSAGE\n{escape(name)}:{escape(value)}\ncontent-length:{len(body)}\n\n".encode()
    data = (head + body + b"\0\n") * 2
    expected = {"content-length": str(len(body))}
    expected = {**expected, name: value} if name != "content-length" else {name: value}
    if name != "content-length":
        assert frames(*(data[at : at + size] for at in range(0, len(data), size))) == [("MESSAGE", expected, body)] * 2


def test_headers_that_are_no_text_stay_different() -> None:
    found = read(FrameReader(), b"MESSAGE\nmessage-id:\xff\n\n\0MESSAGE\nmessage-id:\xfe\n\n\0")
    raws = [(1, headers, body, BROKERS["artemis"].stomp) for _, headers, body in found]
    ids = DECODER.ids(raws, MESSAGE_ID)
    assert ids == [b"\xff", b"\xfe"]
    assert len(set(id_keys(ids))) == 2


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"AMQP\0\0\x09\x01",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"MESSAGES\n\n\0",
        b"MESSAGE\ncontent-length:1\n\nx\0SEND\n\n\0",
        b"RECEIPT\nreceipt-id:1\n\n\0x\n",
    ],
)
def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(StompFrameError):
        frames(data)


@pytest.mark.parametrize(
    ("length", "body"),
    [
        (b"two", b"xy"),
        (b"-1", b"xy"),
        (b"", b"xy"),
        (b"1", b"xyz"),
        (b"9" * 20, b"x\0y"),
        (b"3", b"x"),
        (b"12", b"x\0y"),
    ],
)
def test_a_message_with_a_wrong_length_is_unreadable_and_the_next_frame_is_read(length: bytes, body: bytes) -> None:
    behind = b"\0\nMESSAGE\nack:2\n\nnext\0\n"
    odd, good = read(FrameReader(), b"MESSAGE\nack:1\nmessage-id:m\ncontent-length:" + length + b"\n\n" + body + behind)
    assert isinstance(odd[1], UnreadableHeaders)
    assert (odd[2], good[2], type(good[1])) == (body, b"next", bytes)
    (told,) = DECODER.unreadable([(7, odd[1], odd[2], BROKERS["activemq"].stomp)])
    assert (told.tag, told.data, told.known) == (7, body, {"message-id": "m"})
    assert "length" in told.error or "body" in told.error or "NUL" in told.error


def test_a_message_that_is_shorter_than_its_length_is_unreadable_once_the_broker_has_nothing_more_to_send() -> None:
    reader = FrameReader()
    assert read(reader, b"MESSAGE\nack:1\ncontent-length:99\n\nbody\0\n", b"\n", b"\n") == []
    assert reader.inside
    ((_, headers, body),) = reader.idle()
    assert (type(headers), body) == (UnreadableHeaders, b"body")
    assert not reader.inside
    assert frames_behind(reader) == [("MESSAGE", b"x")]


def test_a_body_without_an_end_ends_the_session() -> None:
    reader = FrameReader()
    assert read(reader, b"MESSAGE\nack:1\n\nbody", b"\n", b"\n") == []
    with pytest.raises(StompFrameError, match="did not end after"):
        list(reader.idle())
    assert list(FrameReader().idle()) == []


def frames_behind(reader: FrameReader) -> list[tuple[str, bytes]]:
    return [(command, body) for command, _, body in read(reader, b"MESSAGE\nack:2\n\nx\0\n")]


@pytest.mark.parametrize("behind", [b"", b"\n", b"\r\n", b"\nMESSAG", b"E"])
def test_a_text_is_held_until_it_is_certain_that_nothing_more_of_it_comes(behind: bytes) -> None:
    reader = FrameReader()
    assert list(reader.feed(b"MESSAGE\nack:1\n\ntext\0" + behind)) == []
    assert reader.held
    ((_, headers, body),) = reader.quiet()
    assert (type(headers), body, reader.held) == (bytes, b"text", False)
    assert list(reader.quiet()) == []


@pytest.mark.parametrize("head", [b"CONNECTED\nversion:1.2", b"RECEIPT\nreceipt-id:1", b"MESSAGE\ncontent-length:0"])
def test_what_has_a_certain_end_is_not_held(head: bytes) -> None:
    reader = FrameReader()
    assert len(list(reader.feed(head + b"\n\n\0"))) == 1
    assert not reader.held


@pytest.mark.parametrize("data", [b"", b"\n", b"M", b"MESSAGE\n", b"MESSAGE\nack:1\n", b"MESSAGE\nack:1\n\nbo"])
def test_what_is_not_complete_is_waited_for(data: bytes) -> None:
    assert frames(data) == []


# -- columns ----------------------------------------------------------------------------------


def test_ids_by_broker() -> None:
    rabbit = {"message-id": "T_0@@session-1@@1", "amqp-message-id": "mine"}
    assert DECODER.ids([raw("rabbitmq", rabbit)], MESSAGE_ID) == ["mine"]
    assert DECODER.ids([raw("rabbitmq", {"message-id": "T_0@@session-1@@1"})], MESSAGE_ID) == [None]
    assert DECODER.ids([raw("activemq", {"message-id": "ID:a-1:2:3:4"})], MESSAGE_ID) == ["ID:a-1:2:3:4"]
    hidden = [raw("activemq", {"message-id": "ID:mine"}), raw("activemq", {"message-id": "ID:a-1:2:-1:4"})]
    assert DECODER.ids(hidden, MESSAGE_ID) == [None, "ID:a-1:2:-1:4"]
    assert DECODER.hidden(hidden) == ["ID:mine"]
    assert DECODER.hidden([raw("rabbitmq", {})]) == []
    # The consumer's number, which is another one in each session, and the message's.
    assert DECODER.ids([raw("artemis", {"message-id": "26,23"})], MESSAGE_ID) == ["23"]
    assert DECODER.ids([], MESSAGE_ID) == []


def test_ids_from_elsewhere() -> None:
    headers = {"correlation-id": "c,1", "order": "o,7"}
    for broker in BROKERS:
        assert DECODER.ids([raw(broker, headers)], IdSource("correlation-id")) == ["c,1"]
        assert DECODER.ids([raw(broker, headers)], IdSource("property", "order")) == ["o,7"]
        assert DECODER.ids([raw(broker, {})], IdSource("property", "order")) == [None]


def test_properties_are_what_the_application_has_set() -> None:
    headers = {
        "destination": "q", "message-id": "1", "subscription": "0", "ack": "1", "content-length": "1",
        "content-type": "a/b", "priority": "4", "timestamp": "1", "expires": "0", "persistent": "true",
        "redelivered": "false", "type": "t", "correlation-id": "c", "reply-to": "r", "colour": "red", "": "x",
    }  # fmt: skip
    internal = {"__HDR_ARRIVAL": "0", "__AMQ_CID": "x", "_AMQ_GROUP_SEQUENCE": "0", "destination-type": "ANYCAST"}
    assert DECODER.columns["properties"]([raw("artemis", internal)]) == [[]]
    for broker in ("activemq", "artemis"):
        assert DECODER.columns["properties"]([raw(broker, headers)]) == [[("", "x"), ("colour", "red")]]


def test_times() -> None:
    assert column("timestamp", "activemq", timestamp="1700000000123") == 1_700_000_000_123_000
    assert column("timestamp", "rabbitmq", timestamp="1700000000") == 1_700_000_000_000_000
    assert column("expiration", "activemq", expires="1700000000123") == 1_700_000_000_123_000
    assert column("expiration", "artemis", expires="0") is None
    assert column("expiration", "rabbitmq", timestamp="1700000000", expiration="1500") == 1_700_000_001_500_000
    assert column("expiration", "rabbitmq", expiration="1500") is None
    for odd in ("", "-1", "soon", "9" * 19, "9" * 5_000, "²"):
        assert column("timestamp", "rabbitmq", timestamp=odd) is None
        assert column("expiration", "activemq", expires=odd) is None


def test_deliveries() -> None:
    assert column("redelivered", "activemq") is False
    assert column("redelivered", "activemq", redelivered="true") is True
    assert column("deliveryCount", "activemq", redelivered="true") is None
    assert column("deliveryCount", "rabbitmq", redelivered="false") == 1
    assert column("deliveryCount", "rabbitmq", redelivered="true") is None
    assert column("deliveryCount", "rabbitmq", redelivered="true", x_delivery_count="2") == 3


def test_priority_and_text() -> None:
    assert column("priority", "activemq", priority="7") == 7
    assert column("priority", "activemq", priority="high") is None
    assert column("type", "activemq", type="caf\udce9") == "caf\\xe9"
    assert column("contentType", "activemq") is None


def together(data: bytes, last: str = "") -> list[Frames]:
    return [item for item in FrameReader(100, last).feed(data) if isinstance(item, Frames)]


def test_messages_that_have_a_header_twice_are_looked_at_together() -> None:
    # As Artemis sends them whose producer has set `destination-type`.
    data = (
        b"".join(b"MESSAGE\nkind:%d\nack:no\nkind:x\nack:%d\n\n%d\0\n" % (n, n, n) for n in range(200)) + b"MESSAGE\n"
    )
    (found,) = together(data, "ack")
    assert found.values("kind") == found.values("ack") == [b"%d" % number for number in range(200)]
    assert found.values("other") == [b""] * 200


def test_a_long_name_takes_no_memory_for_each_message() -> None:
    data = b"MESSAGE\n" + b"n" * 100_000 + b":1\n\n\0\n" + b"MESSAGE\na:1\n\n\0\n" * 5_000 + b"MESSAGE\n"
    tracemalloc.start()
    try:
        assert len(frames(data)) == 5_001
        plain = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        # It is one by itself, and those behind it are not looked at until as many were taken one by one.
        assert sum(len(one.kinds) for one in together(data)) > 4_000
        assert tracemalloc.get_traced_memory()[1] < 4 * plain
    finally:
        tracemalloc.stop()


def test_a_batch_keeps_the_bytes_of_its_messages_alone() -> None:
    messages = b"MESSAGE\na:1\n\n\0\n" * 150
    (found,) = together(messages + b"\n" * 200_000)
    assert len(found.data) < len(messages)


def test_of_each_read_hardly_a_message_is_left_alone() -> None:
    data = b"".join(b"MESSAGE\nnumber:%d\ncontent-length:60\n\n%b\0\n" % (n, b"x" * 60) for n in range(2_000))
    reader, size = FrameReader(100), 30_000
    reads = [list(reader.feed(data[at : at + size])) for at in range(0, len(data), size)]
    for found in reads:
        # The last may end where the read does, and nothing shows yet that it has.
        assert sum(not isinstance(item, Frames) for item in found) <= 1
    assert sum(len(item.kinds) for found in reads for item in found if isinstance(item, Frames)) > 1_990


@pytest.mark.parametrize("length", [b"", b"content-length:4000\n"])
def test_larger_bodies_of_many_lines_are_looked_at_together(length: bytes) -> None:
    bodies = [b"\n\n%04d:\r\n\nx" % number * 400 for number in range(150)]
    bodies = [(body * 2)[:4_000] for body in bodies]
    data = b"".join(b"MESSAGE\nnumber:%d\n%b\n%b\0\n" % (n, length, body) for n, body in enumerate(bodies))
    (found,) = together(data + b"MESSAGE\n")
    assert [body for _, body in found.cut()] == bodies
    assert found.values("number") == [b"%d" % number for number in range(150)]


def test_headers_of_messages_that_come_one_by_one_are_read_once_for_all_columns() -> None:
    (some,) = DECODER.gather([raw("artemis", {"type": str(n)}) for n in range(3)], 4 << 20)
    assert isinstance(some, ParsedBatch)
    some.text("type")
    some.raws = []  # whoever parsed again would find nothing
    assert some.text("type").to_pylist() == ["0", "1", "2"]
