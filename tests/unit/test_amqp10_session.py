"""A session over AMQP 1.0 with a peer that answers as no broker should."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from proton import Condition, Connection, Delivery

from pyspark_mq.brokers import BROKERS
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.amqp10 import session as session_module
from pyspark_mq.sources.amqp10.session import Amqp10Session
from pyspark_mq.sources.connections.session import ReceiveBuffer, SessionLostError
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.wire.socket_loop import SocketLoop
from tests.support.amqp10_peer import Peer, peer
from tests.support.decoding import take_each
from tests.support.sockets import LIMIT_S, Pieces, cuts

SPEAKERS = [name for name, broker in BROKERS.items() if broker.amqp10 is not None]
CONFIRM = [name for name in SPEAKERS if (dialect := BROKERS[name].amqp10) is not None and dialect.confirms]


def consumer(broker: str, at: Peer) -> Amqp10Session:
    options = {"broker": broker, "url": at.url(), "queue": "q", "protocol": "amqp-1.0"}
    return Amqp10Session(parse_options(options).settings.endpoint, 1, ReceiveBuffer())


def turns(session: Amqp10Session, done: Callable[[], bool], timeout_s: float = LIMIT_S) -> bool:
    end_s = time.monotonic() + timeout_s
    while not done() and time.monotonic() < end_s:
        session.run(0.02)
    return done()


def received(session: Amqp10Session, count: int) -> list[Any]:
    """Deliveries of a session, which it opens."""
    session.open(session.endpoint.urls[0], LIMIT_S)
    session.consume(10)
    raws: list[Any] = []

    def all_there() -> bool:
        raws.extend(session.buffer.take())
        return len(raws) >= count

    assert turns(session, all_there)
    return raws


def answered(outcome: int, *, settled: bool, only: str = "") -> Callable[[Delivery], None]:
    """An answer to what was accepted, to the message of that tag or to all; the others are settled."""

    def answer(delivery: Delivery) -> None:
        if not only or delivery.tag == only:
            delivery.update(outcome)  # type: ignore[arg-type]
            if not settled:
                return
        delivery.settle()

    return answer


@pytest.mark.parametrize("broker", SPEAKERS)
def test_what_the_broker_settles_is_confirmed(broker: str) -> None:
    with peer(["a", "b", "c"]) as at:
        session = consumer(broker, at)
        confirmed: list[int] = []
        session.buffer.confirmed = confirmed.append
        received(session, 3)
        session.acknowledge(1, 3, ())
        assert turns(session, lambda: confirmed == [1])
        session.close()
    assert at.accepted == [["a", "b", "c"]]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("outcome", [Delivery.RELEASED, Delivery.MODIFIED, Delivery.REJECTED])
@pytest.mark.parametrize("broker", SPEAKERS)
def test_an_acceptance_that_the_broker_answers_with_another_outcome_is_not_confirmed(
    broker: str, outcome: Any, settled: bool
) -> None:
    with peer(["a", "b", "c"], answered(int(outcome), settled=settled, only="b")) as at:
        session = consumer(broker, at)
        confirmed: list[int] = []
        session.buffer.confirmed = confirmed.append
        received(session, 3)
        session.acknowledge(1, 3, ())
        with pytest.raises(SessionLostError, match="did not accept an acknowledgement") as lost:
            turns(session, lambda: False)
        assert lost.value.stated
        assert confirmed == []
        session.close()


@pytest.mark.parametrize("broker", SPEAKERS)
def test_what_the_broker_took_back_before_it_was_acknowledged_is_not_confirmed(broker: str) -> None:
    with peer(["a", "b", "c"], released=["b"]) as at:
        session = consumer(broker, at)
        confirmed: list[int] = []
        session.buffer.confirmed = confirmed.append
        received(session, 3)
        session.acknowledge(1, 3, ())
        with pytest.raises(SessionLostError, match="did not accept an acknowledgement"):
            turns(session, lambda: False)
        assert confirmed == []
        session.close()


@pytest.mark.parametrize("broker", CONFIRM)
def test_a_broker_that_never_settles_a_delivery_ends_the_session(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(delivery: Delivery) -> None:
        if delivery.tag != "b":
            delivery.settle()

    monkeypatch.setattr(session_module, "_SETTLED_S", 0.5)
    with peer(["a", "b", "c"], settle) as at:
        session = consumer(broker, at)
        confirmed: list[int] = []
        session.buffer.confirmed = confirmed.append
        received(session, 3)
        for tag in (1, 2, 3):
            session.acknowledge(tag, tag, ())
        assert turns(session, lambda: confirmed == [1])
        began_s = time.monotonic()
        with pytest.raises(SessionLostError, match="no longer holds them"):
            turns(session, lambda: False)
        assert time.monotonic() - began_s > 0.3
        assert confirmed == [1]
        session.close()


@pytest.mark.parametrize("key", [("a", "list"), b"binary", b"\xff", ((), ("b",))])
def test_a_broker_that_says_odd_things_of_itself_ends_the_session_and_not_the_query(key: Any) -> None:
    def say_so(connection: Connection) -> None:
        connection.properties = {key: "x", "product": "peer"}  # type: ignore[dict-item]

    with peer(["a"], prepare=say_so) as at:
        session = consumer("artemis", at)
        with pytest.raises(BrokerUnavailableError, match="cannot be read"):
            session.open(session.endpoint.urls[0], LIMIT_S)
        session.close()


@pytest.mark.parametrize("of", ["link", "session", "connection"])
@pytest.mark.parametrize("key", [("a", "list"), b"binary", b"\xff", ((), ("b",))])
def test_odd_details_of_why_a_session_ends_end_that_and_not_the_query(key: Any, of: str) -> None:
    def close(delivery: Delivery) -> None:
        ended = {"link": delivery.link, "session": delivery.session, "connection": delivery.connection}[of]
        assert ended is not None
        ended.condition = Condition("amqp:internal-error", "why", {key: "x"})
        ended.close()

    with peer(["a"], close) as at:
        session = consumer("activemq", at)
        received(session, 1)
        session.acknowledge(1, 1, ())
        with pytest.raises(SessionLostError, match=r"why|cannot be read"):
            turns(session, lambda: False)
        session.close()


# -- however the bytes are cut ------------------------------------------------------------------

BODIES = ["a", "b", "c", "d"]
HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"


def frame(content: bytes, *, kind: int = 0, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(content), 2, kind, channel) + content


#: Detach, end and close without a reason; close with one.
CLOSES = [b"\0\x53\x16\xc0\x03\x02\x43\x41", b"\0\x53\x17\x45", b"\0\x53\x18\x45"]
REASON = b"\0\x53\x1d\xc0\x0d\x02\xa3\x03a:b\xa1\x05words"
ODDITIES = {
    "nothing": b"",
    "a frame of nothing": frame(b""),
    "a frame that is too large": b"\xff\xff\xff\xff no frame",
    "a frame that is shorter than its head": b"\0\0\0\x02 no frame",
    "a frame of no type": frame(b"abcd", kind=7),
    "a frame of what is nothing": frame(b"garbage!"),
    "a head of no size": b"\0\0\0\x08\x01\0\0\0",
    "a transfer without fields": frame(b"\0\x53\x14\x45"),
    "another protocol": HTTP,
    "the same protocol": b"AMQP\0\1\0\0",
    **{f"close {number}": frame(close) for number, close in enumerate(CLOSES)},
    "close with a reason": frame(b"\0\x53\x18\xc0" + bytes([len(REASON) + 1, 1]) + REASON),
}


@pytest.fixture(scope="module")
def recorded() -> tuple[list[bytes], bytes]:
    """What a peer sends: to open a link, read by read, and then with the messages."""
    came: list[bytes] = []
    read = SocketLoop.read

    def recording(self: SocketLoop, maximum: int) -> bytes | None:
        data = read(self, maximum)
        came.append(data or b"")
        return data

    with peer(BODIES) as at, pytest.MonkeyPatch.context() as patched:
        patched.setattr(SocketLoop, "read", recording)
        session = consumer("artemis", at)
        session.open(session.endpoint.urls[0], LIMIT_S)
        opening = came.copy()
        session.consume(10)
        assert turns(session, lambda: session.buffer.deliveries == len(BODIES))
        messages = b"".join(came[len(opening) :])
        session.close()
    return opening, messages


def told(pieces: Sequence[bytes]) -> tuple[Any, ...]:
    """What a session makes of these: deliveries, and why it ended."""
    options = {"broker": "artemis", "url": "amqp://localhost", "queue": "q", "protocol": "amqp-1.0"}
    session = Amqp10Session(parse_options(options).settings.endpoint, 1, ReceiveBuffer())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pyspark_mq.wire.socket_loop.connect", lambda *_: Pieces(pieces))
        try:
            session.open(session.endpoint.urls[0], LIMIT_S)
            session.consume(10)
            while True:
                session.run(LIMIT_S)
        except SessionLostError as lost:
            return take_each(session.buffer), str(lost), lost.stated
        finally:
            session.close()


@pytest.mark.parametrize("behind", [b"", HTTP])
@pytest.mark.parametrize("oddity", ODDITIES)
def test_what_a_session_makes_of_bytes_does_not_depend_on_how_they_were_read(
    recorded: tuple[list[bytes], bytes], oddity: str, behind: bytes
) -> None:
    opening, messages = recorded
    whole = messages + ODDITIES[oddity] + behind
    expected = told([*opening, whole])
    assert len(expected[0]) >= len(BODIES)
    for pieces in cuts(whole):
        assert told([*opening, *pieces]) == expected
    # More than the engine takes at once.
    assert told([*opening, whole + bytes(200_000)]) == told([*opening, whole, bytes(200_000)])


def test_the_end_of_a_connection_is_stated_by_what_the_broker_sent_and_not_by_its_silence(
    recorded: tuple[list[bytes], bytes],
) -> None:
    opening, messages = recorded
    assert told([*opening, messages])[1:] == ("the broker closed the connection", False)
    closed = ODDITIES["close with a reason"]
    assert told([*opening, messages, closed])[1:] == ("closed by the broker (a:b: words)", True)
    _, words, stated = told([*opening, messages, HTTP])
    assert "malformed frame" in words
    assert stated
