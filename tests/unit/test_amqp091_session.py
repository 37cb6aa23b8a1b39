"""A session over AMQP 0-9-1 with a server that sends what no broker may send: written by pamqp, read by pika and us."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pamqp import body, commands, frame, header

from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import Raw
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.amqp091.session import Amqp091Session
from pyspark_mq.sources.connections.session import QueueDepth, ReceiveBuffer, SessionLostError, SessionOptions
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.wire.amqp091.errors import reason_of
from pyspark_mq.wire.amqp091.frames import Amqp091FrameError, DeliveryReader
from tests.support.decoding import Asked
from tests.support.receiving import failure, receive
from tests.support.sockets import LIMIT_S, cuts, port

#: What a server answers to each method of a session that begins.
ANSWERS = {
    commands.Connection.StartOk: commands.Connection.Tune(1, 131_072, 0),
    commands.Connection.Open: commands.Connection.OpenOk(),
    commands.Channel.Open: commands.Channel.OpenOk(),
    commands.Queue.Declare: commands.Queue.DeclareOk("q", 5, 0),
    commands.Basic.Qos: commands.Basic.QosOk(),
    commands.Basic.Consume: commands.Basic.ConsumeOk("ctag"),
    commands.Channel.Close: commands.Channel.CloseOk(),
    commands.Connection.Close: commands.Connection.CloseOk(),
}
START = commands.Connection.Start(0, 9, {"product": "RabbitMQ", "version": "4.1.0"}, "PLAIN", "en_US")


def method(arguments: bytes, channel: int = 1, class_id: int = 60, method_id: int = 60) -> bytes:
    return struct.pack(">BHIHH", 1, channel, 4 + len(arguments), class_id, method_id) + arguments + b"\xce"


def delivery(tag: int, text: bytes = b"text") -> bytes:
    content = header.ContentHeader(0, len(text), commands.Basic.Properties(message_id=f"m{tag}"))
    parts = [commands.Basic.Deliver("ctag", tag, False, "", "q"), content, body.ContentBody(text)]
    return b"".join(frame.marshal(part, 1) for part in parts)


class Client:
    """Reads what a client writes, and answers it."""

    def __init__(self, connected: socket.socket, after: bytes) -> None:
        self._socket, self._after = connected, after

    def serve(self) -> None:
        data = self._socket.recv(8)
        assert data.startswith(b"AMQP")
        self._send(START, 0)
        data = b""
        while came := self._socket.recv(65_536):
            data += came
            while True:
                try:
                    size, channel, said = frame.unmarshal(data)
                except frame.exceptions.UnmarshalingException:
                    break
                data = data[size:]
                answer = ANSWERS.get(type(said))
                if answer is not None:
                    self._send(answer, channel)
                if isinstance(said, commands.Basic.Consume):
                    self._socket.sendall(self._after)

    def _send(self, said: Any, channel: int) -> None:
        self._socket.sendall(frame.marshal(said, channel))


@contextmanager
def server(after: bytes) -> Iterator[int]:
    """Sends these bytes to whom consumes; the port."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connected, _ = listening.accept()
                with connected, suppress(OSError):
                    Client(connected, after).serve()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def received(after: bytes, count: int, *, keeps: bool = True) -> list[Any]:
    with server(after) as port:
        options = {"broker": "rabbitmq", "url": f"amqp://127.0.0.1:{port}", "queue": "q", "onUnreadableMessage": "row"}
        endpoint = parse_options(options).settings.endpoint
        consumer = Amqp091Session(endpoint, 1, ReceiveBuffer(), SessionOptions(keeps_unreadable=keeps))
        return receive(consumer, count)


@pytest.mark.parametrize("paused", [False, True])
def test_a_session_whose_end_nobody_answers_gives_its_connection_up_at_once(
    paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ANSWERS, commands.Channel.Close)
    gone = threading.Event()
    serve = Client.serve

    def watched(self: Client) -> None:
        serve(self)
        gone.set()

    monkeypatch.setattr(Client, "serve", watched)
    with server(delivery(1)) as port:
        options = {"broker": "rabbitmq", "url": f"amqp://127.0.0.1:{port}", "queue": "q"}
        endpoint = parse_options(options).settings.endpoint
        consumer = Amqp091Session(endpoint, 1, ReceiveBuffer())
        consumer.buffer.bytes_allowed = 0 if paused else float("inf")
        consumer.open(endpoint.urls[0], LIMIT_S)
        consumer.consume(10)
        consumer.run(0.2)
        assert consumer.paused is paused
        consumer.close()
        assert gone.wait(LIMIT_S)


def test_confirmations_do_not_pile_up_where_the_answer_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    declared, answers = [], threading.Semaphore(1)  # of the declare that opens the session
    send = Client._send

    def send_late(self: Client, said: Any, channel: int) -> None:
        if isinstance(said, commands.Queue.DeclareOk):
            declared.append(said)
            answers.acquire()
        send(self, said, channel)

    # pika sends nothing that has an answer before this one.
    monkeypatch.setitem(ANSWERS, commands.Basic.Consume, commands.Basic.ConsumeOk("pyspark-mq-000001"))
    monkeypatch.setattr(Client, "_send", send_late)
    with server(b"".join(map(delivery, range(1, 51)))) as port:
        options = {"broker": "rabbitmq", "url": f"amqp://127.0.0.1:{port}", "queue": "q"}
        endpoint = parse_options(options).settings.endpoint
        consumer = Amqp091Session(endpoint, 1, ReceiveBuffer())
        consumer.open(endpoint.urls[0], LIMIT_S)
        consumer.consume(100)
        confirmed: list[int] = []
        depths: list[QueueDepth] = []
        consumer.buffer.confirmed, consumer.buffer.reported = confirmed.append, depths.append
        deadline = time.monotonic() + LIMIT_S
        while consumer.buffer.deliveries < 50 and time.monotonic() < deadline:
            consumer.run(0.05)
        for tag in range(1, 51):
            consumer.acknowledge(tag, tag, ())
            consumer.ask_depth()
            consumer.run(0.001)
        assert confirmed == depths == []
        answers.release(1_000)
        while len(confirmed) < 50 and time.monotonic() < deadline:
            consumer.run(0.05)
        consumer.close()
    assert confirmed == list(range(1, 51))
    assert len(declared) == 3  # at the opening, for the first, for all others
    assert len(depths) == 2


def test_what_a_broker_sends_is_received() -> None:
    raws = received(delivery(1) + delivery(2, b"x" * 9_000), 2)
    assert [(raw[0], raw[3]) for raw in raws] == [(1, b"text"), (2, b"x" * 9_000)]
    assert Asked(Amqp091Session.batches).unreadable(raws) == []


LIES = {
    "a consumer tag that is longer than its frame": method(b"\xff" + bytes(20)) + delivery(1),
    "a delivery without arguments": method(b"") + delivery(1),
    "a delivery that ends in its tag": method(b"\x04ctag" + bytes(5)) + delivery(1),
    "tags that do not ascend": delivery(2) + delivery(1),
    "a tag that comes twice": delivery(1) + delivery(1),
    "a tag of nothing": delivery(0),
    "a method that there is not": method(b"", class_id=99, method_id=99),
    "a table that is longer than its frame": method(struct.pack(">I", 2**31) + b"x", 0, 10, 10),
    "a reason that is longer than its frame": method(b"\x01\x40\xff", class_id=20, method_id=40),
    "content of another class": frame.marshal(commands.Basic.Deliver("ctag", 1, False, "", "q"), 1)
    + struct.pack(">BHIHHQ", 2, 1, 14, 61, 0, 0) + b"\x00\x00\xce",
    "a body that nobody has announced": frame.marshal(body.ContentBody(b"x"), 1),
    "a frame of no type": b"\x09\x00\x01\x00\x00\x00\x01x\xce",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9,
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_what_no_broker_may_send_ends_the_session_and_not_the_query(lie: str) -> None:
    with pytest.raises(SessionLostError):
        received(LIES[lie], 3)


def test_a_message_whose_properties_lie_is_unreadable_also_where_its_delivery_has_no_routing_key() -> None:
    odd = method(b"\x04ctag" + struct.pack(">QB", 1, 0))
    odd += struct.pack(">BHIHHQ", 2, 1, 12 + 3, 60, 0, 0) + b"\x80\x00\xff\xce"
    raws = received(odd + delivery(2), 2)
    (told,) = Asked(Amqp091Session.batches).unreadable(raws)
    assert (told.tag, raws[1][3]) == (1, b"text")


# -- however the bytes are cut ------------------------------------------------------------------

#: The largest frame here, and what is too large for it.
FRAME_BYTES = 120
LARGE = bytes(FRAME_BYTES)
EMPTY = delivery(3, b"").removesuffix(frame.marshal(body.ContentBody(b""), 1))
ODDITIES = {
    **{name: lie for name, lie in LIES.items() if len(lie) < 2 * FRAME_BYTES},
    "nothing": b"",
    "a tag that comes twice between others": delivery(3) + delivery(4) + delivery(4) + delivery(7),
    "a tag that is out of range": delivery(3) + delivery(-4) + delivery(5),
    "a text that is empty": EMPTY + delivery(4),
    "a body frame for a text that is empty": delivery(3, b""),
    "a body that is larger than agreed": delivery(3, LARGE),
    "a method that is larger than agreed": method(LARGE),
    "a header that is shorter than its size": frame.marshal(commands.Basic.Deliver("ctag", 3, False, "", "q"), 1)
    + struct.pack(">BHIHH", 2, 1, 11, 60, 0) + bytes(7) + b"\xce" + frame.marshal(body.ContentBody(bytes(206)), 1),
    "properties that cannot be read": method(b"\x04ctag" + struct.pack(">QB", 3, 0))
    + struct.pack(">BHIHHQ", 2, 1, 12 + 3, 60, 0, 0) + b"\x80\x00\xff\xce" + delivery(3),
    "a short frame that is none": struct.pack(">BHI", 8, 0, 0) + b"x",
}  # fmt: skip


def cut(batch: Amqp091Batch) -> Iterator[Raw]:
    """The deliveries of a batch as they are one by one."""
    flagged, bodies = batch.redelivered, batch.body().to_pylist()
    for place, (begin, end) in enumerate(batch.spans[4:].T.tolist()):
        where = bytes(batch.data[begin:end])
        yield int(batch.tags[place]), flagged[place], batch.block(place), bodies[place], where


def told(pieces: Sequence[bytes], least: int, *, keeps: bool) -> tuple[Any, ...]:
    """What a session makes of what it reads: deliveries with what is for pika between them, and why it ends."""
    options = {"broker": "rabbitmq", "url": "amqp://localhost", "queue": "q"}
    session = Amqp091Session(
        parse_options(options).settings.endpoint, 1, ReceiveBuffer(), SessionOptions(keeps_unreadable=keeps)
    )
    found: list[Any] = []

    def take() -> None:
        for item in session.buffer.take():
            found.extend(cut(item) if isinstance(item, Amqp091Batch) else [item])

    def pass_on(other: bytes) -> None:
        take()
        if session._connection.end is None:
            found.append(other)

    reader = DeliveryReader(1, FRAME_BYTES, session._deliver, pass_on, least)
    try:
        for piece in pieces:
            reader.feed(piece)
    except Amqp091FrameError as wrong:
        session._connection.ended(wrong)
    finally:
        session.close()
    take()
    return (
        [(*raw[:5],) if isinstance(raw, tuple) else raw for raw in found],
        reason_of(session._connection.end),
        session._last_tag,
    )


@pytest.mark.parametrize(
    ("oddity", "keeps"), [*((oddity, True) for oddity in ODDITIES), ("properties that cannot be read", False)]
)
def test_what_a_session_makes_of_bytes_does_not_depend_on_how_they_were_read(
    oddity: str, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_mq.wire.amqp091.frames._FRAME_BYTES_MIN", FRAME_BYTES)
    monkeypatch.setattr("pyspark_mq.wire.amqp091.frames._DELIVERY_BYTES", 1)
    other = frame.marshal(commands.Basic.CancelOk("ctag"), 2)
    data = delivery(1) + other + delivery(2) + ODDITIES[oddity] + delivery(8) + other
    expected = told([data], 1_000_000, keeps=keeps)
    assert [raw[0] for raw in expected[0] if isinstance(raw, tuple)][:2] == [1, 2]
    for least in (1, 1_000_000):
        for pieces in cuts(data):
            assert told(pieces, least, keeps=keeps) == expected


@pytest.mark.parametrize("more", [b"x" * 50, delivery(1)])
def test_a_reason_that_the_broker_gave_is_stated_whatever_came_in_the_same_read(more: bytes) -> None:
    closed = frame.marshal(commands.Connection.Close(541, "why", 0, 0), 0)
    with pytest.raises(SessionLostError, match="541 why") as lost:
        received(closed + more, 2)
    assert lost.value.stated


GREETINGS = [b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n", method(b"\x00", 0, 10, 10)]


@pytest.mark.parametrize("said", [[START], [START, commands.Connection.Tune(1, 131_072, 0)]], ids=["login", "host"])
def test_a_connection_that_is_cut_while_it_opens_is_no_refusal(said: Sequence[Any]) -> None:
    with port(b"".join(frame.marshal(one, 0) for one in said)) as cut_off:
        url = f"amqp://u:p@127.0.0.1:{cut_off.number}/"
        endpoint = parse_options({"broker": "rabbitmq", "url": url, "queue": "q"}).settings.endpoint
        session = Amqp091Session(endpoint, 1, ReceiveBuffer())
        try:
            with pytest.raises(BrokerUnavailableError, match="StreamLostError"):
                session.open(endpoint.urls[0], LIMIT_S)
        finally:
            session.close()


@pytest.mark.parametrize("greeting", GREETINGS)
def test_a_port_that_greets_in_another_way_is_an_error_in_words(
    greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "serve", lambda self: self._socket.sendall(greeting))
    with pytest.raises(BrokerUnavailableError, match="AMQP 0-9-1"):
        received(b"", 0)


#: A password as it is, and as URLs write it.
SPELLINGS = "s3cret/\u00e4 hush s3cret%2f%C3%a4+hush s3cret%2F%c3%A4%20hush %733cret/%C3%A4 hush"
LOGIN = {"username": "joe", "password": "s3cret/\u00e4 hush"}


def test_a_server_that_quotes_the_login_is_not_believed_to_keep_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def closed(code: int) -> commands.Connection.Close:
        return commands.Connection.Close(code, f"REFUSED - joe with {SPELLINGS}", 0, 0)

    after = frame.marshal(closed(541), 0)
    with server(after) as number:
        options = {"broker": "rabbitmq", "url": f"amqp://127.0.0.1:{number}", "queue": "q", **LOGIN}
        said = failure(Amqp091Session, options, opened=True)
        assert "REFUSED - joe with *** *** *** ***" in said
        assert "hush" not in said + caplog.text
        missing = commands.Channel.Close(404, f"REFUSED - joe with {SPELLINGS}", 0, 0)
        for said_to, answer in (
            (commands.Connection.StartOk, closed(403)),
            (commands.Connection.Open, closed(403)),
            (commands.Queue.Declare, missing),
        ):
            with monkeypatch.context() as patched:
                patched.setitem(ANSWERS, said_to, answer)
                said = failure(Amqp091Session, options)
            assert "REFUSED - joe with *** *** *** ***" in said
            assert "hush" not in said + caplog.text
