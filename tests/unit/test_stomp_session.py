"""A session over STOMP with a server that sends what a hostile producer, or a broken broker, has it send."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from pyspark_mq.errors import BrokerUnavailableError, MessageError
from pyspark_mq.sources.connections.decoder import TOGETHER_MIN
from pyspark_mq.sources.connections.session import KEEP_ALIVE_READ_S, SessionLostError, SessionOptions, Sink
from pyspark_mq.sources.stomp.frames import FrameReader, UnreadableHeaders
from pyspark_mq.sources.stomp.session import StompSession
from pyspark_mq.spark_source.options import parse_options
from tests.support.receiving import failure, receive
from tests.support.sockets import port

CONNECTED = b"CONNECTED\nversion:1.2\nserver:ActiveMQ/6.0.0\nheart-beat:0,0\n\n\0\n"
SUBSCRIBED = b"RECEIPT\nreceipt-id:subscribed\n\n\0\n"
HEAD = b"MESSAGE\nack:1\nmessage-id:ID\\chost-1\\c1\\c1\\c1\\c1\ndestination:/queue/q\n\n"
PROVED = b"RECEIPT\nreceipt-id:proved\n\n\0\n"
#: Long enough to be read apart.
APART_S = 0.004


@contextmanager
def server(pieces: Sequence[bytes], connected: bytes = CONNECTED, *, proves: bool = True) -> Iterator[int]:
    """Lets anybody in, and sends these pieces one after the other to whom subscribes; the port.

    Args:
        proves: does it answer a transaction?
    """

    def serve() -> None:
        with suppress(OSError):
            client, _ = listening.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.recv(65_536)
                client.sendall(connected)
                client.recv(65_536)
                for piece in [SUBSCRIBED, *pieces]:
                    client.sendall(piece)
                    time.sleep(APART_S)
                # Frames are written one after the other: an answer is behind what has begun.
                while said := client.recv(65_536):
                    if proves and b"receipt:proved" in said:
                        client.sendall(PROVED)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def received(
    pieces: Sequence[bytes], count: int, *, keeps: bool = True, connected: bytes = CONNECTED, proves: bool = True
) -> list[Any]:
    """Deliveries, as many as there are to be, and a moment longer for what should not come."""
    with server(pieces, connected, proves=proves) as port:
        endpoint = parse_options(
            {"broker": "activemq", "url": f"stomp://127.0.0.1:{port}", "queue": "q"}
        ).settings.endpoint
        consumer = StompSession(endpoint, 1, Sink(), SessionOptions(keeps_unreadable=keeps))
        return receive(consumer, count, longer_s=0.1)


def test_a_text_comes_also_when_nothing_follows_it() -> None:
    began_s = time.monotonic()
    ((_, headers, body, _),) = received([HEAD + b"text\0\n"], 1)
    assert (type(headers), body) == (bytes, b"text")
    assert time.monotonic() - began_s < 2


def test_a_text_comes_also_from_a_broker_that_does_not_prove_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert received([HEAD + b"text\0\n"], 0, proves=False) == []
    monkeypatch.setattr("pyspark_mq.sources.stomp.connection._PROOF_S", 0.1)
    ((_, headers, body, _),) = received([HEAD + b"text\0\n"], 1, proves=False)
    assert (type(headers), body) == (bytes, b"text")


def test_a_text_that_stalls_behind_a_nul_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.APART_S", 0.3)
    ((_, headers, body, _),) = received([HEAD + b"a\0\n", b"b\0\n"], 1)
    assert (type(headers), body) == (UnreadableHeaders, b"a\0\nb")


TEXT = b"a\0b\0\nc\0\n"


@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
def test_a_text_with_a_nul_never_passes_for_what_is_before_it(cut: int) -> None:
    pieces = [HEAD + TEXT[:cut], TEXT[cut:] + b"MESSAGE\nack:2\n\nnext\0\n"]
    odd, good = received(pieces, 2)
    assert (type(odd[1]), odd[2]) == (UnreadableHeaders, b"a\0b\0\nc")
    assert (type(good[1]), good[2]) == (bytes, b"next")
    with pytest.raises(MessageError, match="a text with a NUL"):
        received(pieces, 2, keeps=False)


@pytest.mark.parametrize("text", [b"a\0Cut\0", b"a\0M\0", b"a\0\nERR\0", b"a\0\n\r\nMESSAGES\n\n\0"])
def test_whatever_follows_a_nul_in_a_text_does_not_end_the_session(text: bytes) -> None:
    odd, good = received([HEAD + text + b"\nMESSAGE\nack:2\n\nnext\0\n"], 2)
    assert (type(odd[1]), odd[2], good[2]) == (UnreadableHeaders, text[:-1], b"next")


@pytest.mark.parametrize("length", [b"x", b"2", b"999999", b""])
def test_a_property_in_the_place_of_the_length_makes_one_message_unreadable(length: bytes) -> None:
    head = HEAD.replace(b"\nack", b"\ncontent-length:" + length + b"\nack")
    follow = b"\nMESSAGE\nack:2\n\nnext\0\n" + b"\n" * (length == b"999999")
    beats = [b"\n"] * 3 if length == b"999999" else []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pyspark_mq.sources.stomp.connection._BEAT_S", APART_S / 2)
        patched.setattr("pyspark_mq.sources.connections.socket_loop._SHORTLY_S", 0.0)  # else beats are read together
        odd, good = received([head + b"text\0" + follow, *beats], 2)
    assert (type(odd[1]), odd[2], good[2]) == (UnreadableHeaders, b"text", b"next")


@pytest.mark.parametrize(
    "behind",
    [
        b"RECEIPT\n\n\0\n",
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
    with server([f"ERROR\nmessage:gone\n\nof joe {SPELLINGS}\n\0".encode()]) as number:
        options = {"broker": "activemq", "url": f"stomp://127.0.0.1:{number}", "queue": "q", **LOGIN}
        said = failure(StompSession, options, opened=True)
    assert "of joe *** *** *** ***" in said + caplog.text
    assert "hush" not in said + caplog.text


def test_silence_and_pauses_go_by_the_clock_that_a_session_is_given() -> None:
    ahead_s = 0.0

    def now_s() -> float:
        return time.monotonic() + ahead_s

    connected = b"CONNECTED\nversion:1.2\nheart-beat:1000,1000\n\n\0"
    with server([HEAD + b"text\0\n"], connected) as port:
        options = {"broker": "activemq", "url": f"stomp://127.0.0.1:{port}", "queue": "q"}
        endpoint = parse_options(options).settings.endpoint
        session = StompSession(endpoint, 1, Sink(), now_s=now_s)
        session.sink.bytes_allowed = 0
        try:
            session.open(endpoint.urls[0], 5)
            session.consume(10)
            while not session.paused:
                session.run(0.05)
            assert not session.keep_alive_read_due
            ahead_s += KEEP_ALIVE_READ_S
            assert session.keep_alive_read_due
            ahead_s += 1_000
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
    head = b"MESSAGE\nack:1\nJMS_AMQP_NATIVE:true\nmessage-id:%b\ncontent-length:0\n\n\0\n"
    options = {"broker": "activemq", "url": "stomp://localhost", "queue": "q"}
    session = StompSession(parse_options(options).settings.endpoint, 1, Sink())
    session._take(FrameReader(TOGETHER_MIN).feed(b"".join(head % one for one in ids)))
    assert len(session.sink.inbox) == (60 if hides else 1)
    if hides:
        with pytest.raises(MessageError, match="'mine'"):
            session.run(0)
