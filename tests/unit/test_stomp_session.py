"""A session over STOMP with a server that sends what a hostile producer, or a broken broker, has it send."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from pyspark_mq.decode.batch import BATCH_MIN
from pyspark_mq.errors import BrokerUnavailableError, MessageError, MqError
from pyspark_mq.sources.connections.session import (
    KEEP_ALIVE_READ_S,
    ReceiveBuffer,
    SessionLostError,
    SessionOptions,
)
from pyspark_mq.sources.stomp.session import StompSession
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.wire.connection import StopRequestedError
from pyspark_mq.wire.stomp.frames import FrameReader, UnreadableHeaders
from tests.support.decoding import Asked, take_each
from tests.support.receiving import failure, receive
from tests.support.sockets import LIMIT_S, Pieces, apart, cuts, port

CONNECTED = b"CONNECTED\nversion:1.2\nserver:ActiveMQ/6.0.0\nheart-beat:0,0\n\n\0\n"
#: What ends the names that this source gives its subscriptions and receipts.
OWN = b"-own"
SUBSCRIBED = b"RECEIPT\nreceipt-id:subscribed-own\n\n\0\n"
#: Headers of every message, besides its ID.
ALWAYS = b"destination:/queue/q\nexpires:0\npriority:4\ntimestamp:1\n"
HEAD = b"MESSAGE\nack:1\nsubscription:000000-own\nmessage-id:ID\\chost-1\\c1\\c1\\c1\\c1\n" + ALWAYS + b"\n"
PROVED = b"RECEIPT\nreceipt-id:proved-own\n\n\0\n"
#: A message behind another.
NEXT = b"MESSAGE\nack:2\nsubscription:000000-own\nmessage-id:next\n" + ALWAYS + b"\nnext\0\n"
#: Where the server waits until it is asked for the end of a text. It answers behind all that it has to send.
ASKED = b""


@contextmanager
def server(pieces: Sequence[bytes], connected: bytes = CONNECTED, *, proves: bool = True) -> Iterator[threading.Event]:
    """Lets anybody in, and sends these pieces to whoever subscribes, to be read one by one.

    Yields an event that is set once it is asked for proof.

    Args:
        proves: does it answer a transaction?
    """
    asked = threading.Event()

    def ask(client: socket.socket) -> bool:
        """Wait until it is asked; return whether it was."""
        while said := client.recv(65_536):
            if b"receipt:proved" in said:
                asked.set()
                return True
        return False

    def serve(client: socket.socket) -> None:
        client.recv(65_536)
        client.sendall(connected)
        client.recv(65_536)
        due = False
        for piece in [SUBSCRIBED, *pieces]:
            if piece == ASKED:
                due = ask(client)
            else:
                client.sendall(piece)
        while due or ask(client):
            if proves:
                client.sendall(PROVED)
            due = False

    with apart(serve):
        yield asked


def consumer(*, keeps: bool = True, now_s: Callable[[], float] = time.monotonic, **options: str) -> StompSession:
    told = {"broker": "activemq", "url": "stomp://localhost", "queue": "q", **options}
    endpoint = parse_options(told).settings.endpoint
    return StompSession(endpoint, 1, ReceiveBuffer(), SessionOptions(keeps_unreadable=keeps), now_s)


def received(pieces: Sequence[bytes], count: int, *, keeps: bool = True, connected: bytes = CONNECTED) -> list[Any]:
    """Deliveries, as many as there are to be, and a moment longer for what should not come."""
    with server(pieces, connected):
        return receive(consumer(keeps=keeps), count, longer_s=0.1)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that nobody else can guess are the same in each test."""
    monkeypatch.setattr("pyspark_mq.sources.stomp.session.secrets.token_urlsafe", lambda _: OWN[1:].decode())


@pytest.fixture
def only_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker does not prove is waited for."""
    monkeypatch.setattr("pyspark_mq.wire.stomp.connection._PROOF_S", 1e6)


def test_a_stop_ends_the_wait_for_the_answer_to_a_subscription() -> None:
    def serve(client: socket.socket) -> None:
        client.recv(65_536)
        client.sendall(CONNECTED)
        while client.recv(65_536):
            pass

    session = consumer()

    def stop() -> None:
        session.options.stopping.set()
        session.wake()

    with apart(serve):
        stops = threading.Timer(0.2, stop)
        try:
            session.open(session.endpoint.urls[0], LIMIT_S)
            stops.start()
            began_s = time.monotonic()
            with pytest.raises(StopRequestedError):
                session.consume(10)
            assert time.monotonic() - began_s < LIMIT_S / 2
        finally:
            stops.cancel()
            session.close()


@pytest.mark.usefixtures("only_proof")
def test_a_text_comes_also_when_nothing_follows_it() -> None:
    ((_, headers, body, _),) = received([HEAD + b"text\0\n"], 1)
    assert (type(headers), body) == (bytes, b"text")


def test_a_text_comes_also_from_a_broker_that_does_not_prove_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = "pyspark_mq.wire.stomp.connection._PROOF_S"
    monkeypatch.setattr(proof, 1e6)
    with server([HEAD + b"text\0\n"], proves=False) as asked:
        session = consumer()
        try:
            session.open(session.endpoint.urls[0], LIMIT_S)
            session.consume(10)
            while not asked.is_set():
                session.run(0.01)
            session.run(0.1)
            assert take_each(session.buffer) == []
            monkeypatch.setattr(proof, 0.1)
            while not session.buffer.deliveries:
                session.run(0.01)
            ((_, headers, body, _),) = take_each(session.buffer)
        finally:
            session.close()
    assert (type(headers), body) == (bytes, b"text")


def test_a_text_that_stalls_behind_a_nul_is_waited_for() -> None:
    ((_, headers, body, _),) = received([HEAD + b"a\0\n", ASKED, b"b\0\n"], 1)
    assert (type(headers), body) == (UnreadableHeaders, b"a\0\nb")


TEXT = b"a\0b\0\nc\0\n"


@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
def test_a_text_with_a_nul_never_passes_for_what_is_before_it(cut: int) -> None:
    pieces = [HEAD + TEXT[:cut], TEXT[cut:] + NEXT]
    odd, good = received(pieces, 2)
    assert (type(odd[1]), odd[2]) == (UnreadableHeaders, b"a\0b\0\nc")
    assert (type(good[1]), good[2]) == (bytes, b"next")
    with pytest.raises(MessageError, match="a text with a NUL"):
        received(pieces, 2, keeps=False)


@pytest.mark.parametrize("text", [b"a\0Cut\0", b"a\0M\0", b"a\0\nERR\0", b"a\0\n\r\nMESSAGES\n\n\0"])
def test_whatever_follows_a_nul_in_a_text_does_not_end_the_session(text: bytes) -> None:
    odd, good = received([HEAD + text + b"\n" + NEXT], 2)
    assert (type(odd[1]), odd[2], good[2]) == (UnreadableHeaders, text[:-1], b"next")


FAKES = [
    b"a\0\nMESSAGE\nack:9\nsubscription:000000\n\nfake",
    b"a\0\nMESSAGE\nx:y",
    b"a\0RECEIPT\nreceipt-id:proved\n\n",
    b"a\0\nERROR\nmessage:fake\n\nfake\0\n",
    b"a\0\nCONNECTED\nversion:1.2\n\n",
]


@pytest.mark.usefixtures("only_proof")
@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("behind", [b"", NEXT])
def test_a_frame_in_a_text_is_part_of_the_text(fake: bytes, behind: bytes) -> None:
    odd, *others = received([HEAD + fake + b"\0\n" + behind], 1 + bool(behind))
    assert (type(odd[1]), odd[2]) == (UnreadableHeaders, fake)
    assert [body for _, _, body, _ in others] == [b"next"] * bool(behind)
    with pytest.raises(MessageError, match=r"message-id 'ID:host-1.*a text with a NUL"):
        received([HEAD + fake + b"\0\n" + behind], 1, keeps=False)


def test_an_error_behind_a_text_is_the_reason_for_which_the_broker_closed_the_connection() -> None:
    *_, kind, words, stated = told([CONNECTED, SUBSCRIBED + HEAD + b"text\0\nERROR\nmessage:why\n\n\0\n"], keeps=False)
    assert (kind, words, stated) == (SessionLostError, "why", True)


def test_an_error_that_may_be_of_a_text_or_of_the_broker_ends_the_session_and_names_the_message() -> None:
    session = consumer()
    session._settling.ask(1)
    session._take(session._connection._reader.feed(HEAD + FAKES[3] + b"\0\n" + NEXT))
    with pytest.raises(
        SessionLostError, match=r"in message 'ID:host-1:1:1:1:1'. It is not certain .* 'amqp-1.0'"
    ) as lost:
        session.run(0)
    assert lost.value.stated
    assert take_each(session.buffer) == []


def test_a_message_for_no_subscription_of_ours_is_not_taken() -> None:
    # It is as long as its property `content-length` says, and what follows is more of it.
    head = HEAD.replace(b"\nack", b"\ncontent-length:4\nack")
    with pytest.raises(MessageError, match=r"contains a STOMP frame.*ack:9.*'amqp-1.0'"):
        received([head + b"text\0\nMESSAGE\nack:9\nsubscription:000000\n\nfake\0\n"], 2)


@pytest.mark.parametrize("count", [1, BATCH_MIN])
@pytest.mark.parametrize("ack", [b"", b"x\nack:7\ny:z\nack:1\n", b"ack:1\nx\nack:7\n"])
def test_a_message_without_one_handle_of_its_own_is_not_taken(ack: bytes, count: int) -> None:
    odd = HEAD.replace(b"ack:1\n", ack).replace(b"\n\n", b"\ncontent-length:4\n\n") + b"text\0\n"
    session = consumer()
    session._take(session._connection._reader.feed(odd * count + NEXT))
    with pytest.raises(MessageError, match=r"'ID:host-1:1:1:1:1', with a doubtful header 'ack': the header"):
        session.run(0)
    assert take_each(session.buffer) == []


@pytest.mark.parametrize("count", [1, BATCH_MIN])
def test_a_message_with_the_brokers_handle_in_its_body_is_not_taken(count: int) -> None:
    others = [HEAD.replace(b"ack:1", b"ack:ID\\c%d" % number) + b"ack: yes\nack:no\0\n" for number in range(count)]
    # The name of a property forges all headers of the broker, and ends them before the broker's own `ack`.
    odd = HEAD.replace(b"ack:1", b"ack:ID\\cforged") + b"q:value\nack:ID\\chost-1\\c7\n\ntext\0\n"
    session = consumer()
    session._take(session._connection._reader.feed(b"".join([*others, odd, NEXT])))
    with pytest.raises(MessageError, match=r"is in the body.*'amqp-1.0'"):
        session.run(0)
    assert Asked(session.batches).bodies(take_each(session.buffer)) == [b"ack: yes\nack:no"] * count


@pytest.mark.parametrize("count", [1, BATCH_MIN])
def test_a_message_with_the_handle_of_another_one_is_not_taken(count: int) -> None:
    def message(ack: bytes) -> bytes:
        return HEAD.replace(b"ack:1\n", b"ack:%b\n" % ack).replace(b"\n\n", b"\ncontent-length:4\n\n") + b"text\0\n"

    others = [message(b"other-%d" % number) for number in range(count)]
    session = consumer()
    session._take(session._connection._reader.feed(b"".join([message(b"7"), *others, message(b"7"), *others, NEXT])))
    with pytest.raises(MessageError, match=r"'ID:host-1:1:1:1:1', with a doubtful header 'ack': the header"):
        session.run(0)
    assert len(take_each(session.buffer)) <= 1 + count
    # Once a message is settled, its handle is free.
    session = consumer()
    session._take(session._connection._reader.feed(message(b"7") + NEXT))
    session._settling.acknowledge(1, 2, ())
    assert session._settling.ids == set()


def test_a_frame_of_the_login_in_a_message_is_an_error_that_names_the_message() -> None:
    head = HEAD.replace(b"\nack", b"\ncontent-length:5\nack")
    with pytest.raises(MessageError, match=r"begins with b'CONNECTED'.*'ID:host-1:1:1:1:1'.*'amqp-1.0'"):
        received([head + b"hello\0CONNECTED\nversion:1.2\nheart-beat:0,0\n\nrest\0\n"], 2)


def test_an_error_behind_a_message_names_the_message() -> None:
    head = HEAD.replace(b"\nack", b"\ncontent-length:5\nack")
    with pytest.raises(SessionLostError, match=r"forged.*the last message was 'ID:host-1:1:1:1:1'"):
        received([head + b"hello\0ERROR\nmessage:forged\n\nno\0\n"], 2)


def test_nobody_can_guess_what_a_broker_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert len({consumer()._own for _ in range(100)}) == 100


@pytest.mark.parametrize("length", [b"x", b"2", b"999999", b""])
def test_a_property_in_the_place_of_the_length_makes_one_message_unreadable(length: bytes) -> None:
    head = HEAD.replace(b"\nack", b"\ncontent-length:" + length + b"\nack")
    follow = b"\n" + NEXT + b"\n" * (length == b"999999")
    beats = [b"\n"] * 3 if length == b"999999" else []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pyspark_mq.wire.stomp.connection._BEAT_S", 0.0)
        odd, good = received([head + b"text\0" + follow, *beats], 2)
    assert (type(odd[1]), odd[2], good[2]) == (UnreadableHeaders, b"text", b"next")


@pytest.mark.parametrize(
    "behind",
    [
        b"RECEIPT\n\n\0\n",
        b"RECEIPT\nreceipt-id:proved\n\n\0\n",
        b"SEND\n\n\0\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"ERROR\n\n\0",
        b"\xff\xfe\n\n\0",
        b"ERROR\nmessage\n\nx\0",
    ],
)
def test_a_frame_that_no_broker_may_send_ends_the_session_and_not_the_query(behind: bytes) -> None:
    good = HEAD.replace(b"\n\n", b"\ncontent-length:4\n\n") + b"text\0\n"
    with pytest.raises(SessionLostError) as lost:
        received([good, behind], 2)
    assert lost.value.stated


@pytest.mark.parametrize("beats", [b"1,2,3", b"1", b"", b"a,b", b"-1,0", b"1,", b"9" * 5_000 + b",0"])
def test_a_heart_beat_of_another_form_ends_the_session_and_not_the_query(beats: bytes) -> None:
    with pytest.raises(BrokerUnavailableError, match="heart-beat"):
        received([], 0, connected=b"CONNECTED\nversion:1.2\nheart-beat:" + beats + b"\n\n\0\n")


@pytest.mark.parametrize("beats", [b"0,0", b" 10000 , 2147483647 ", b"0,500"])
def test_a_heart_beat_of_the_form_of_the_specification_is_taken(beats: bytes) -> None:
    assert received([], 0, connected=b"CONNECTED\nversion:1.2\nheart-beat:" + beats + b"\n\n\0\n") == []


#: A password as it is, and as URLs write it.
SPELLINGS = "s3cret/\u00e4 hush s3cret%2f%C3%a4+hush s3cret%2F%c3%A4%20hush %733cret/%C3%A4 hush"
LOGIN = {"username": "joe", "password": "s3cret/\u00e4 hush"}


def test_a_server_that_quotes_the_login_is_not_believed_to_keep_it(caplog: pytest.LogCaptureFixture) -> None:
    error = f"ERROR\nmessage:Bad CONNECT\n\nlogin refused: joe {SPELLINGS}\n\0".encode()
    with port(error) as opened:
        options = {"broker": "artemis", "url": f"stomp://127.0.0.1:{opened.number}", "queue": "q", **LOGIN}
        said = failure(StompSession, options)
    assert "login refused: joe *** *** *** ***" in said
    assert "hush" not in said + caplog.text
    with server([f"ERROR\nmessage:gone\n\nof joe {SPELLINGS}\n\0".encode()]):
        options = {"broker": "activemq", "url": "stomp://localhost", "queue": "q", **LOGIN}
        said = failure(StompSession, options, opened=True)
    assert "of joe *** *** *** ***" in said + caplog.text
    assert "hush" not in said + caplog.text


def test_no_heartbeat_joins_bytes_that_the_broker_does_not_read() -> None:
    later_s, ended = 0.0, threading.Event()

    def serve(client: socket.socket) -> None:
        client.recv(65_536)
        client.sendall(b"CONNECTED\nversion:1.2\nheart-beat:60000,1000\n\n\0")
        client.recv(65_536)
        client.sendall(SUBSCRIBED)
        ended.wait(LIMIT_S)

    with apart(serve):
        session = consumer(now_s=lambda: time.monotonic() + later_s, heartbeat="1s")
        try:
            session.open(session.endpoint.urls[0], LIMIT_S)
            session.consume(10)
            session._connection.socket.outgoing += bytes(16 << 20)
            session.run(0.05)
            waiting = len(session._connection.socket.outgoing)
            later_s = 10.0
            session.run(0.05)
            assert len(session._connection.socket.outgoing) == waiting > 0
        finally:
            ended.set()
            session._connection.socket.close()


def test_silence_and_pauses_go_by_the_clock_that_a_session_is_given() -> None:
    clock_s = 0.0

    def now_s() -> float:
        nonlocal clock_s
        clock_s += 0.001
        return clock_s

    connected = b"CONNECTED\nversion:1.2\nheart-beat:1000,1000\n\n\0"
    with server([HEAD + b"text\0\n"], connected):
        session = consumer(now_s=now_s)
        session.buffer.bytes_allowed = 0
        try:
            session.open(session.endpoint.urls[0], LIMIT_S)
            session.consume(10)
            while not session.paused:
                session.run(0.05)
            assert not session.keep_alive_read_due
            clock_s += KEEP_ALIVE_READ_S
            assert session.keep_alive_read_due
            clock_s += 1_000
            session.paused = False
            with pytest.raises(SessionLostError, match="nothing was heard"):
                session.run(0.1)
        finally:
            session.close()


@pytest.mark.parametrize("hides", [False, True])
def test_messages_of_another_protocol_stay_together_unless_one_hides_the_id_of_the_broker(hides: bool) -> None:
    ids = [b"ID\\chost-1\\c1\\c1\\c1\\c%d" % number for number in range(100)]
    if hides:
        ids[60] = b"mine"
    head = b"MESSAGE\nack:%d\nsubscription:0-own\nJMS_AMQP_NATIVE:true\nmessage-id:%b\ncontent-length:0\n"
    head += ALWAYS + b"\n\0\n"
    session = consumer(keeps=False)
    session._take(FrameReader(BATCH_MIN).feed(b"".join(head % one for one in enumerate(ids))))
    assert len(session.buffer.inbox) == (60 if hides else 1)
    if hides:
        with pytest.raises(MessageError, match="'mine'"):
            session.run(0)


@pytest.mark.parametrize("count", [1, BATCH_MIN])
@pytest.mark.parametrize("name", ["message-id", "destination", "expires", "priority", "timestamp"])
def test_a_message_without_a_header_of_the_broker_is_unreadable(name: str, count: int) -> None:
    whole = [HEAD.replace(b"ack:1\n", b"ack:%d\ncontent-length:0\n" % number) + b"\0\n" for number in range(count)]
    cut = [re.sub(b"\n%b:[^\n]*" % name.encode(), b"", one).replace(b"ack:", b"ack:cut") for one in whole]
    session = consumer()
    session._take(FrameReader(BATCH_MIN).feed(b"".join([*whole, *cut])))
    odd = Asked(session.batches).unreadable(take_each(session.buffer))
    assert [one.tag for one in odd] == [*range(count + 1, 2 * count + 1)]
    assert all("may contain an empty line" in one.error for one in odd)


def test_a_quiet_topic_is_read_further() -> None:
    told = {"broker": "artemis", "url": "stomp://localhost", "topic": "t", "guarantee": "none"}
    endpoint = parse_options(told).settings.endpoint
    session = StompSession(endpoint, 1, ReceiveBuffer(), SessionOptions(), time.monotonic)
    assert session._grant(10) == -1
    session._connection.received_bytes = len(GOOD)
    session._take(session._connection._reader.feed(GOOD))
    session._wake_queue(0.0)
    assert session._reading(ending=False)


# -- however the bytes are cut ------------------------------------------------------------------

GOOD = b"MESSAGE\nack:1\nsubscription:0-own\ncontent-length:4\nmessage-id:1\n" + ALWAYS + b"\ntext\0\n"
#: A message that is read only if nothing before it ended the session, and that ends it where such are refused.
ODD = b"MESSAGE\nack:2\nsubscription:0-own\nmessage-id:2\n" + ALWAYS + b"\na\0b\0\n" + SUBSCRIBED
WRONG = [
    b"SEND\n\n\0\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 50, b"\0", b"\xff\xfe\n\n\0", b"MESSAGES\n\n\0",
    b"ERROR\nmessage:why\n\n\0", b"ERROR\n\nwhy\0\n", b"RECEIPT\n\n\0\n", b"CONNECTED\nheart-beat:x\n\n\0",
    b"MESSAGE\r\r\n\n\0", b"MESSAGE\n", b"SEN", b"",
]  # fmt: skip


def told(pieces: Sequence[bytes], *, keeps: bool) -> tuple[Any, ...]:
    """What a session makes of these: deliveries, and why it ended."""
    session = consumer(keeps=keeps)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pyspark_mq.wire.socket_loop.connect", lambda *_: Pieces(pieces))
        try:
            session.open(session.endpoint.urls[0], LIMIT_S)
            session.consume(10)
            while True:
                session.run(LIMIT_S)
        except (SessionLostError, MqError) as ended:
            raws = take_each(session.buffer)
            odd = [(odd.tag, odd.error) for odd in Asked(session.batches).unreadable(raws)]
            return raws, odd, type(ended), str(ended), getattr(ended, "stated", None)
        finally:
            session.close()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("before", [SUBSCRIBED + GOOD, GOOD])
def test_why_a_session_ends_does_not_depend_on_how_its_bytes_were_read(
    before: bytes, wrong: bytes, keeps: bool
) -> None:
    expected = told([CONNECTED, before + wrong + ODD], keeps=keeps)
    for pieces in cuts(before + wrong + ODD):
        assert told([CONNECTED, *pieces], keeps=keeps) == expected


@pytest.mark.parametrize("wrong", WRONG)
def test_why_a_login_fails_does_not_depend_on_how_its_bytes_were_read(wrong: bytes) -> None:
    expected = told([wrong + CONNECTED], keeps=False)
    for pieces in cuts(wrong + CONNECTED):
        assert told(pieces, keeps=False) == expected


@pytest.mark.parametrize("wrong", WRONG[:9])
def test_the_end_of_a_session_that_subscribed_is_stated_by_what_the_broker_sent_and_not_by_its_silence(
    wrong: bytes,
) -> None:
    *_, kind, _, stated = told([CONNECTED, SUBSCRIBED + GOOD + wrong], keeps=False)
    assert (kind, stated) == (SessionLostError, True)
    *_, kind, words, stated = told([CONNECTED, SUBSCRIBED + GOOD], keeps=False)
    assert (kind, words, stated) == (SessionLostError, "the broker closed the connection", False)
