"""A session over AMQP 1.0 with a peer that answers as no broker should."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from proton import Condition, Connection, Delivery

from pyspark_mq.brokers import BROKERS
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.amqp10.session import Amqp10Session
from pyspark_mq.sources.connections.session import SessionLostError, Sink
from pyspark_mq.spark_source.options import parse_options
from tests.support.amqp10_peer import Peer, peer

SPEAKERS = [name for name, broker in BROKERS.items() if broker.amqp10 is not None]
#: Those that see an acceptance before its delivery is settled, and can answer it.
ANSWERED = [
    name
    for name, broker in BROKERS.items()
    if broker.amqp10 is not None and (broker.amqp10.confirms or broker.amqp10.settles_apart)
]


def consumer(broker: str, at: Peer) -> Amqp10Session:
    options = {"broker": broker, "url": at.url(), "queue": "q", "protocol": "amqp-1.0"}
    return Amqp10Session(parse_options(options).settings.endpoint, 1, Sink())


def turns(session: Amqp10Session, done: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    end_s = time.monotonic() + timeout_s
    while not done() and time.monotonic() < end_s:
        session.run(0.02)
    return done()


def received(session: Amqp10Session, count: int) -> list[Any]:
    """Deliveries of a session, which it opens."""
    session.open(session.endpoint.urls[0], 5)
    session.consume(10)
    raws: list[Any] = []

    def all_there() -> bool:
        raws.extend(session.sink.take())
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
        session.sink.confirmed = confirmed.append
        received(session, 3)
        session.acknowledge(1, 3, ())
        assert turns(session, lambda: confirmed == [1])
        session.close()
    assert at.accepted == [["a", "b", "c"]]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("outcome", [Delivery.RELEASED, Delivery.MODIFIED, Delivery.REJECTED])
@pytest.mark.parametrize("broker", ANSWERED)
def test_an_acceptance_that_the_broker_answers_with_another_outcome_is_not_confirmed(
    broker: str, outcome: Any, settled: bool
) -> None:
    with peer(["a", "b", "c"], answered(int(outcome), settled=settled, only="b")) as at:
        session = consumer(broker, at)
        confirmed: list[int] = []
        session.sink.confirmed = confirmed.append
        received(session, 3)
        session.acknowledge(1, 3, ())
        with pytest.raises(SessionLostError, match="did not take an acknowledgement") as lost:
            turns(session, lambda: False, 2)
        assert lost.value.stated
        assert confirmed == []
        session.close()


@pytest.mark.parametrize("broker", SPEAKERS)
def test_what_the_broker_took_back_before_it_was_acknowledged_is_not_confirmed(broker: str) -> None:
    with peer(["a", "b", "c"], released=["b"]) as at:
        session = consumer(broker, at)
        confirmed: list[int] = []
        session.sink.confirmed = confirmed.append
        received(session, 3)
        session.acknowledge(1, 3, ())
        with pytest.raises(SessionLostError, match="did not take an acknowledgement"):
            turns(session, lambda: False, 2)
        assert confirmed == []
        session.close()


@pytest.mark.parametrize("key", [("a", "list"), b"binary", b"\xff", ((), ("b",))])
def test_a_broker_that_says_odd_things_of_itself_ends_the_session_and_not_the_query(key: Any) -> None:
    def say_so(connection: Connection) -> None:
        connection.properties = {key: "x", "product": "peer"}  # type: ignore[dict-item]

    with peer(["a"], prepare=say_so) as at:
        session = consumer("artemis", at)
        with pytest.raises(BrokerUnavailableError, match="cannot be read"):
            session.open(session.endpoint.urls[0], 5)
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
            turns(session, lambda: False, 3)
        session.close()
