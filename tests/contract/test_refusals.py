"""What cannot work is reported soon, with broker and queue named, and nothing is lost."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MqError, OptionError, RefusedError
from pyspark_mq.sources.connections.events import Event, EventQueue, Opened
from pyspark_mq.sources.connections.session import SessionOptions
from pyspark_mq.sources.connections.supervisor import ConnectionSupervisor, Limits
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.wire.endpoint import Tls
from pyspark_mq.wire.url import parse_urls
from testbed.brokers.artemis import ArtemisNode
from testbed.ports import free_port
from testbed.process import poll
from tests.support.certificates import Certificates
from tests.support.entries import LiveEntry
from tests.support.sockets import mute_address_first

pytestmark = pytest.mark.network

SECRET = "not-the-password"


def refusal(entry: LiveEntry, timeout_s: float = 8.0, **changes: Any) -> MqError:
    """What a session raises, when it is opened or when it begins to consume."""
    began = time.monotonic()

    def attempt() -> None:
        session.open(timeout_s)
        session.consume(10)
        session.idle(timeout_s)

    with entry.session(**changes) as session, pytest.raises(MqError) as raised:
        attempt()
    assert time.monotonic() - began < timeout_s + 7
    for secret in (SECRET, "guest:guest", "admin:admin"):
        assert secret not in str(raised.value)
    return raised.value


def at_port(entry: LiveEntry, port: int, scheme: str | None = None) -> dict[str, Any]:
    own = urlsplit(entry.url())
    user = own.netloc.rpartition("@")[0]
    return {"urls": parse_urls(f"{scheme or own.scheme}://{user}@127.0.0.1:{port}/")}


@pytest.mark.contract("a queue for one consumer")
@pytest.mark.protocols(AMQP_1_0)
def test_a_queue_that_takes_one_consumer_confirms_acknowledgements(entry: LiveEntry) -> None:
    """The link that asks for a confirmation is one consumer more, so the broker refuses it."""
    if not isinstance(entry.node, ArtemisNode):
        pytest.skip("no other broker has queues that take so many consumers")
    entry.node.delete(entry.queue)
    made = {"name": entry.queue, "address": entry.queue, "routing-type": "ANYCAST", "auto-create-address": True}
    entry.node.jolokia.call(
        'org.apache.activemq.artemis:broker="127.0.0.1"', "createQueue(java.lang.String,boolean)",
        json.dumps({**made, "durable": True, "auto-delete": False, "max-consumers": 1}), True,
    )  # fmt: skip
    entry.publish(20)
    with entry.session() as session:
        session.take(20)
        session.acknowledge(upto=10)
        session.acknowledge(upto=20)
    assert poll(lambda: entry.total() == 0, 10)


@contextmanager
def something_else() -> Iterator[int]:
    """A port that speaks HTTP."""

    def talk() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                with client, suppress(OSError):
                    client.settimeout(2)
                    client.recv(100)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=talk, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.contract("auth")
def test_a_wrong_password_is_refused(entry: LiveEntry) -> None:
    error = refusal(entry, password=SECRET, username=urlsplit(entry.url()).username)
    assert isinstance(error, RefusedError)
    for word in ("password", f"127.0.0.1:{urlsplit(entry.url()).port}", str(urlsplit(entry.url()).username)):
        assert word in str(error)


@pytest.mark.thorough
@pytest.mark.contract("auth")
def test_options_come_before_the_url(entry: LiveEntry) -> None:
    own = urlsplit(entry.url())
    urls = parse_urls(f"{own.scheme}://nobody:{SECRET}@127.0.0.1:{own.port}/")
    with entry.session(urls=urls, username=own.username, password=own.password) as session:
        session.open()


@pytest.mark.sampled
@pytest.mark.contract("auth")
def test_nobody_there_is_worth_another_try(entry: LiveEntry) -> None:
    error = refusal(entry, **at_port(entry, free_port()))
    assert isinstance(error, BrokerUnavailableError)
    assert "refused" in str(error)


@pytest.mark.contract("TLS")
def test_a_secured_connection(entry: LiveEntry, certificates: Certificates) -> None:
    sent = entry.publish(200)
    secured = {"urls": parse_urls(entry.tls_url())}
    with entry.session(**secured, tls=Tls(ca_file=str(certificates.ca.cert_file))) as session:
        assert session.take(200) == sent
        session.acknowledge(upto=session.tags()[-1])
        assert poll(lambda: entry.total() == 0, 30)


@pytest.mark.contract("TLS")
def test_a_certificate_of_an_unknown_authority_is_refused_unless_the_user_says_so(
    entry: LiveEntry, certificates: Certificates
) -> None:
    secured = {"urls": parse_urls(entry.tls_url())}
    other = str(certificates.other_ca.cert_file)
    error = refusal(entry, **secured, tls=Tls(ca_file=other))
    assert isinstance(error, RefusedError)
    assert "tls.caFile" in str(error)
    with entry.session(**secured, tls=Tls(ca_file=other, verify=False)) as session:
        session.open()


@pytest.mark.contract("TLS")
def test_tls_to_a_plain_port_and_the_reverse(entry: LiveEntry, certificates: Certificates) -> None:
    plain, secured = map(urlsplit, (entry.url(), entry.tls_url()))
    authority = Tls(ca_file=str(certificates.ca.cert_file))
    error = refusal(entry, **at_port(entry, plain.port or 0, secured.scheme), tls=authority)
    assert isinstance(error, RefusedError | BrokerUnavailableError)
    assert "TLS" in str(error)
    error = refusal(entry, **at_port(entry, secured.port or 0, plain.scheme))
    assert f"{secured.scheme}://" in str(error)


@pytest.mark.sampled
@pytest.mark.contract("wrong port")
def test_a_port_that_speaks_something_else_is_named(entry: LiveEntry) -> None:
    with something_else() as port:
        error = refusal(entry, **at_port(entry, port))
    spoken = {AMQP_0_9_1: "AMQP 0-9-1", AMQP_1_0: "AMQP 1.0", STOMP: "STOMP"}[entry.entry.protocol]
    assert spoken in str(error)
    assert str(port) in str(error)


@pytest.mark.protocols(AMQP_1_0, STOMP)
@pytest.mark.contract("another broker")
def test_a_broker_that_is_taken_for_another_says_so(entry: LiveEntry) -> None:
    others = [broker for broker in BROKERS.values() if broker is not entry.broker]
    for other in others:
        error = refusal(entry, broker=other)
        assert isinstance(error, OptionError)
        assert error.option == "broker"
        for words in (f"'{other.name}' is set", f"use '{entry.broker.name}'", str(urlsplit(entry.url()).port)):
            assert words in str(error)


@pytest.mark.contract("wrong port")
def test_the_port_of_another_protocol_is_named(entry: LiveEntry) -> None:
    other = AMQP_1_0 if entry.entry.protocol == STOMP else STOMP
    port = urlsplit(entry.node.url(other)).port
    error = refusal(entry, **at_port(entry, port or 0))
    spoken = {AMQP_0_9_1: "AMQP 0-9-1", AMQP_1_0: "AMQP 1.0", STOMP: "STOMP"}[entry.entry.protocol]
    assert spoken in str(error)


@pytest.mark.thorough
@pytest.mark.contract("wrong port")
def test_a_silent_port_is_left_in_time(entry: LiveEntry) -> None:
    with entry.proxy() as proxy:
        proxy.mute(new=True)
        error = refusal(entry, timeout_s=2.0, **entry.through(proxy))
    assert isinstance(error, BrokerUnavailableError)


@contextmanager
def supervised(entry: LiveEntry, **changes: Any) -> Iterator[tuple[ConnectionSupervisor, EventQueue]]:
    """A supervisor of connections to the queue, which is started and stopped; and what it reports."""
    events, limits = EventQueue(), Limits(10, 1e9)
    supervisor = ConnectionSupervisor(
        1, entry.endpoint(**changes), entry.make_session(), SessionOptions(), limits, events, count(1), Threads()
    )
    supervisor.start()
    try:
        yield supervisor, events
    finally:
        supervisor.stop()
        assert poll(lambda: supervisor.ended, 30)


def first_of(events: EventQueue) -> Event:
    found: list[Event] = []
    assert poll(lambda: found.extend(events.take()) or bool(found), 30)
    return found[0]


@pytest.mark.sampled
@pytest.mark.contract("wrong port")
def test_a_silent_host_leaves_time_for_the_next(entry: LiveEntry) -> None:
    with entry.proxy() as proxy:
        proxy.mute(new=True)
        urls = (*parse_urls(entry.url(proxy)), *parse_urls(entry.url()))
        with supervised(entry, urls=urls, connect_timeout_s=6.0) as (_, events):
            assert isinstance(first_of(events), Opened)


@pytest.mark.sampled
@pytest.mark.contract("wrong port")
def test_an_address_that_accepts_and_says_nothing_leaves_time_for_the_next(
    entry: LiveEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with entry.proxy() as proxy, mute_address_first(proxy, monkeypatch) as host:
        urls = parse_urls(entry.url(proxy).replace("127.0.0.1", host))
        with supervised(entry, urls=urls, connect_timeout_s=6.0) as (_, events):
            assert isinstance(first_of(events), Opened)


@pytest.mark.sampled
@pytest.mark.contract("wrong port")
def test_a_stop_ends_an_attempt_to_open(entry: LiveEntry) -> None:
    with entry.proxy() as proxy:
        proxy.mute(new=True)
        with supervised(entry, connect_timeout_s=60.0, **entry.through(proxy)) as (supervisor, events):
            time.sleep(0.5)
            supervisor.stop()
            assert poll(lambda: supervisor.ended, 30)
        assert not events.take()


@pytest.mark.contract("selector")
def test_a_selector_filters_at_the_broker(entry: LiveEntry) -> None:
    if not BROKERS[entry.entry.broker].selectors:
        pytest.skip("the broker has no selectors; the option is refused at load()")
    for color in ("red", "blue", "red"):
        entry.publish(5, headers={"color": color})
    with entry.session(selector="color = 'red'") as session:
        bodies = session.take(10, window=20)
        session.idle(0.5)
        assert len(session.raws) == 10
        assert bodies == [f"message {number}" for number in (*range(5), *range(10, 15))]
        session.acknowledge(upto=session.tags()[-1])
    with entry.session() as rest:
        assert rest.take(5) == [f"message {number}" for number in range(5, 10)]


@pytest.mark.contract("selector")
def test_a_selector_with_an_error_is_refused(entry: LiveEntry) -> None:
    if not BROKERS[entry.entry.broker].selectors:
        pytest.skip("the broker has no selectors; the option is refused at load()")
    error = refusal(entry, selector="color = = 'red'")
    assert isinstance(error, OptionError)
    assert "'selector'" in str(error)
    assert entry.queue in str(error)


@pytest.mark.contract("unknown queue")
def test_a_queue_that_does_not_exist_is_named_where_the_broker_makes_none(entry: LiveEntry) -> None:
    if entry.entry.broker != "rabbitmq":
        pytest.skip("the broker creates it by default; where it does not, see test_refused_destinations.py")
    error = refusal(entry, queue="nowhere")
    assert isinstance(error, DestinationError)
    assert "queue 'nowhere'" in str(error)


@contextmanager
def exclusive(entry: LiveEntry, what: str) -> Iterator[str]:
    """A queue that is another connection's alone, or has an exclusive consumer there; its name."""
    connection = pika.BlockingConnection(pika.URLParameters(entry.node.url(AMQP_0_9_1)))
    try:
        channel = connection.channel()
        queue = f"exclusive-{entry.queue}"
        channel.queue_declare(queue, exclusive=what == "queue")
        if what == "consumer":
            channel.basic_consume(queue, lambda *_: None, exclusive=True)
        yield queue
        channel.queue_delete(queue)
    finally:
        connection.close()


@pytest.mark.contract("missing queues")
@pytest.mark.parametrize("what", ["queue", "consumer"])
def test_a_queue_that_is_somebody_else_s_alone_is_refused_at_once(entry: LiveEntry, what: str) -> None:
    if entry.entry.broker != "rabbitmq":
        pytest.skip("has no exclusive queues, and does not report an exclusive consumer")
    words = {"queue": "only the connection that declared it", "consumer": "has an exclusive consumer elsewhere"}
    with exclusive(entry, what) as queue:
        error = refusal(entry, queue=queue)
        assert isinstance(error, DestinationError)
        assert words[what] in str(error)
        assert queue in str(error)
