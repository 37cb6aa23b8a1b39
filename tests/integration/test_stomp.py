"""STOMP against real brokers: what the protocol module promises, on each of them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_mq.brokers.base import AMQP_1_0, STOMP
from pyspark_mq.decode.batch import listed
from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import BrokerUnavailableError, MessageError, RefusedError
from pyspark_mq.wire.endpoint import Tls
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.node import Node, QueueCounts, TlsFiles
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.process import NodeError, poll
from testbed.publishers.amqp10 import OutgoingMessage, publish_amqp10
from tests.plugin import Nodes, missing
from tests.support.certificates import Certificates
from tests.support.decoding import Asked
from tests.support.effort import each_of
from tests.support.engine import At, Crashed, Engine, full_epochs
from tests.support.stomp import SessionRun, lost, session
from tests.support.stomp_nodes import NODES, Target


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have each test on one broker, in turn, and on the others with `--all`; with what else uses that broker."""
    if "target" in metafunc.fixturenames:
        turn = [name for name in vars(metafunc.module) if name.startswith("test_")].index(metafunc.function.__name__)
        names = []
        for place, name in enumerate(NODES):
            left_out = () if place == turn % len(NODES) else (pytest.mark.whole,)
            names.append(pytest.param(name, marks=(pytest.mark.shares(name), *left_out)))
        metafunc.parametrize("target", names, indirect=True)


@pytest.fixture
def target(request: pytest.FixtureRequest, nodes: Nodes) -> Target:
    return Target(request.param, nodes.get(request.param))


@pytest.fixture
def queue(target: Target) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    target.node.declare(name)
    yield name
    target.node.delete(name)


def numbered(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def held(target: Target, queue: str, ready: int, unacked: int) -> bool:
    """Does the broker come to count so many?"""
    return poll(lambda: target.node.counts(queue) == QueueCounts(ready, unacked), 30)


@contextlib.contextmanager
def proxied(target: Target, queue: str, **settings: float) -> Iterator[tuple[FaultProxy, SessionRun]]:
    with (
        FaultProxy("127.0.0.1", target.port) as proxy,
        session(target.broker, target.through(proxy.port), queue=queue, **settings) as run,
    ):
        yield proxy, run


# -- handing out ------------------------------------------------------------------------------


@pytest.mark.whole
def test_singles_are_confirmed_once_the_rest_is(target: Target, queue: str) -> None:
    target.node.publish(queue, numbered(10))
    with session(target.broker, target.url, queue=queue) as run:
        run.receive(10)
        run.consumer.acknowledge(1001, 0, [5, 7])
        run.consumer.acknowledge(1002, 4, [])
        run.consumer.acknowledge(1003, 0, [6, 8])
        assert run.run_until(lambda: {1001, 1002, 1003} <= set(run.confirmed))
        assert held(target, queue, 0, 2)
        run.acknowledge(10)
    assert held(target, queue, 0, 0)


@pytest.mark.whole
def test_waiting_singles_do_not_fill_the_window_for_good(target: Target, queue: str) -> None:
    target.node.publish(queue, numbered(40))
    with session(target.broker, target.url, 20, queue=queue) as run:
        run.receive(20)
        # All but the first, as if duplicates had come behind a new message.
        run.consumer.acknowledge(1001, 0, range(2, 21))
        run.receive(39)
        assert run.acknowledge(39)
        assert run.receive(40) == numbered(40)
        run.acknowledge(40)
    assert held(target, queue, 0, 0)


@pytest.mark.whole
def test_the_window_bounds_what_is_handed_out_and_can_be_widened(target: Target, queue: str) -> None:
    target.node.publish(queue, numbered(1_000))
    with session(target.broker, target.url, 50, queue=queue) as run:
        run.receive(50)
        run.run(0.5)
        more = len(run.raws) - 50
        assert more == 0 or (target.counts_bytes and more < 50)
        assert run.acknowledge(10)
        # Ten more; of bytes, those that came beyond the window are made up for.
        run.receive(60)
        run.run(0.3)
        assert len(run.raws) == 60 or target.counts_bytes
        assert run.acknowledge(20)
        run.consumer.consume(600)
        run.receive(620)
        run.run(0.5)
        # While the window is full, a new one counts from zero.
        assert 600 <= len(run.raws) - 20 <= (900 if target.counts_bytes else 650)
        assert run.bodies == numbered(len(run.raws))
        run.acknowledge(len(run.raws))
        run.receive(1_000)
        assert run.acknowledge(1_000)
    assert held(target, queue, 0, 0)


@pytest.mark.whole
def test_epochs_larger_than_a_page_of_the_broker_come_at_once(target: Target, queue: str) -> None:
    target.node.publish(queue, numbered(12_000))
    with session(target.broker, target.url, 10_000, queue=queue) as run:
        run.receive(10_000)  # a queue that stalls does so for good
        assert run.acknowledge(10_000)
        run.receive(12_000)
        assert run.bodies == numbered(12_000)
        assert run.acknowledge(12_000)
    assert held(target, queue, 0, 0)


def test_an_idle_session_is_quiet(target: Target, queue: str) -> None:
    target.node.publish(queue, numbered(10))
    with proxied(target, queue) as (proxy, run):
        run.receive(10)
        run.run(2)
        before = proxy.bytes_seen(Direction.TO_BROKER)
        run.run(2)
        # A queue that stalls is woken now and then.
        assert proxy.bytes_seen(Direction.TO_BROKER) - before < 1_000
        assert run.acknowledge(10)


# -- bodies and headers -----------------------------------------------------------------------


@pytest.mark.whole
def test_a_large_body_arrives(target: Target, queue: str) -> None:
    large = os.urandom(1024) * 50 * 1024
    target.node.publish(queue, [large, b"after"])
    with session(target.broker, target.url, queue=queue, heartbeat_s=5) as run:
        assert run.receive(2, 60)[0] == large
        assert run.acknowledge(2)


def test_text_arrives_as_utf_8(target: Target, queue: str) -> None:
    target.send(queue, [("größe €", {})])
    with session(target.broker, target.url, queue=queue) as run:
        assert run.receive(1) == ["größe €".encode()]
        assert run.acknowledge(1)


def test_columns_have_what_the_producer_set(target: Target, queue: str) -> None:
    headers = {
        "correlation-id": "c:1", "reply-to": target.queue("answers"), "content-type": "text/plain", "type": "order",
        "priority": "7", "colour": "a:b\\c\nd", "größe": "ü",
    }  # fmt: skip
    target.send(queue, [(b"x", headers)])
    with session(target.broker, target.url, queue=queue) as run:
        run.receive(1)
        columns = {name: column(run.raws)[0] for name, column in Asked(run.consumer.batches).columns.items()}
        assert run.acknowledge(1)
    assert dict(columns["properties"]) == {"colour": "a:b\\c\nd", "größe": "ü"}
    assert columns["correlationId"] == "c:1"
    assert columns["replyTo"]
    assert columns["contentType"] == "text/plain"
    assert columns["type"] == "order"
    assert columns["priority"] == 7
    assert columns["redelivered"] is False
    assert columns["expiration"] is None
    assert Asked(run.consumer.batches).ids(run.raws, IdSource("correlation-id")) == ["c:1"]
    assert Asked(run.consumer.batches).ids(run.raws, IdSource("property", "colour")) == ["a:b\\c\nd"]


@pytest.fixture
def jms_node() -> Iterator[ActiveMqNode]:
    """ActiveMQ Classic that keeps messages of AMQP 1.0 as messages of JMS."""
    try:
        node = ActiveMqNode(amqp_transformer="jms")
    except NodeError as absent:
        missing(str(absent))
        raise
    with node:
        yield node


@pytest.mark.whole
def test_a_message_of_amqp_1_0_that_cannot_be_settled_is_named_also_when_it_is_kept_as_one_of_jms(
    jms_node: ActiveMqNode,
) -> None:
    jms_node.publish("q", [b"good", b"odd"], ids=[None, "plain"], protocol=AMQP_1_0)
    with session("activemq", jms_node.url(STOMP), queue="q") as run, pytest.raises(MessageError, match="'ID:plain'"):
        run.run(10)
    assert held(Target("activemq", jms_node), "q", 2, 0)


@pytest.mark.whole
def test_a_name_with_an_empty_line_that_cuts_the_brokers_headers_makes_a_message_unreadable(
    jms_node: ActiveMqNode,
) -> None:
    found: Counter[str] = Counter()
    # The broker sends headers in the order of their hashes, so each name cuts them somewhere else.
    for number in range(24):
        # The broker keeps it as a text, which it sends without a length.
        odd = OutgoingMessage(b"odd", None, {f"{number}\n\ny": "value"}, {"content_type": "text/plain"})
        publish_amqp10(jms_node.url(AMQP_1_0), f"queue://q{number}", [odd])
        jms_node.publish(f"q{number}", [b"good"])
        with session("activemq", jms_node.url(STOMP), queue=f"q{number}") as run:
            try:
                assert run.receive(2)[1] == b"good"
            except MessageError as error:
                # The query ends if a header that settles the message was cut off.
                (why,) = (why for why in ("may contain an empty line", "contains a STOMP frame") if why in str(error))
                found[why] += 1
            else:
                batch = run.consumer.batches.of(run.raws[:1])
                columns = {name: listed(make(batch)) for name, make in batch.columns.items()}
                assert None not in columns["timestamp"] + columns["priority"]
                assert run.acknowledge(2)
                found["whole"] += 1
    assert found["may contain an empty line"] > 0, found
    assert found["whole"] > 0, found


# -- pauses, silence, ends --------------------------------------------------------------------


def test_too_many_bytes_pause_reading_and_acknowledgements_still_go_out(target: Target, queue: str) -> None:
    sent = [bytes([number]) * 100_000 for number in range(200)]
    target.node.publish(queue, sent)
    # RabbitMQ listens and talks in one process: while it cannot talk it hears no heartbeats.
    heartbeat_s = 10 if target.broker == "rabbitmq" else 2
    with session(target.broker, target.url, 1_000, queue=queue, heartbeat_s=heartbeat_s) as run:
        run.consumer.buffer.bytes_allowed = 1_000_000
        deadline = time.monotonic() + 60
        while not run.consumer.paused and time.monotonic() < deadline:
            run.consumer.run(0.05)
        arrived = len(run.consumer.buffer.inbox)
        assert 10 <= arrived < 30
        # Longer than the broker, or we, would bear silence.
        deadline = time.monotonic() + 5
        run.consumer.acknowledge(1001, 5, [])
        while time.monotonic() < deadline:
            run.consumer.run(0.1)
        assert len(run.consumer.buffer.inbox) <= arrived + 2 * 5  # what one look every five seconds may find
        run.take()
        run.consumer.buffer.bytes_allowed = float("inf")
        run.consumer.resume()
        assert run.receive(200) == sent
        assert run.run_until(lambda: 1001 in run.confirmed)
        assert run.acknowledge(200)
    assert held(target, queue, 0, 0)


def test_a_session_outlives_the_questions_before_it_over_a_slow_link(target: Target, queue: str) -> None:
    target.node.publish(queue, numbered(3))
    with FaultProxy("127.0.0.1", target.port) as proxy:
        proxy.throttle(1_000, Direction.TO_CLIENT)
        with session(target.broker, target.through(proxy.port), queue=queue, heartbeat_s=1) as run:
            proxy.throttle(None)
            run.receive(3)


def test_a_silent_broker_ends_the_session(target: Target, queue: str) -> None:
    with proxied(target, queue, heartbeat_s=1) as (proxy, run):
        run.run(3)
        proxy.mute()
        began = time.monotonic()
        assert "nothing was heard" in lost(run)
        assert time.monotonic() - began < 15


def test_a_closed_connection_ends_the_session_also_while_paused(target: Target, queue: str) -> None:
    target.node.publish(queue, numbered(10))
    for paused in (False, True):
        with proxied(target, queue) as (proxy, run):
            run.receive(10)
            run.consumer.paused = paused
            proxy.cut()
            assert lost(run)
    assert held(target, queue, 10, 0)


def test_waking_ends_a_wait(target: Target, queue: str) -> None:
    with session(target.broker, target.url, queue=queue) as run:
        run.run(0.2)
        threading.Timer(0.3, run.consumer.wake).start()
        began = time.monotonic()
        run.consumer.run(10)
        assert time.monotonic() - began < 9


@pytest.mark.whole
def test_a_broker_that_is_late_to_answer_a_subscription_is_waited_for(target: Target, queue: str) -> None:
    target.node.publish(queue, numbered(10))
    run = SessionRun(target.broker, target.url, queue=queue, heartbeat_s=60)
    # Classic closes a connection on which one write took 30 s (soWriteTimeout); stopped right behind the bytes of its
    # greeting, its thread would still be in that write.
    time.sleep(1)
    frozen = threading.Thread(target=target.node.freeze, args=(33,))
    frozen.start()
    try:
        time.sleep(0.5)
        began = time.monotonic()
        run.consumer.consume(100)
        assert time.monotonic() - began > 30
        assert run.receive(10) == numbered(10)
        assert run.acknowledge(10)
    finally:
        frozen.join()
        run.consumer.close()


@pytest.mark.whole
def test_a_backlog_on_activemq_classic_is_read_over_restarts_and_does_not_fill_its_heap() -> None:
    try:
        node = ActiveMqNode(heap="128m", policy={"useCache": "false"})
    except NodeError as absent:
        missing(str(absent))
        raise
    with node:
        node.declare("q")
        node.publish("q", (number.to_bytes(4, "big") * 50 for number in range(60_000)))
        options = {"broker": "activemq", "protocol": STOMP, "url": node.url(STOMP), "queue": "q"}
        with Engine(**options, **full_epochs(2_000)) as engine:
            for crash in (At.AFTER_OFFSET_LOG, At.AFTER_SINK, At.AFTER_COMMIT_LOG):
                with pytest.raises(Crashed):
                    engine.batch(crash)
                engine.batch()
            engine.drain(20_000)
            assert len(set(engine.ids)) == len(engine.ids) >= 20_000
            # With the cache of the queue, 60,000 messages fill 70 % (6.3).
            used = node.jolokia.read("org.apache.activemq:type=Broker,brokerName=localhost", "MemoryPercentUsage")
            assert used["MemoryPercentUsage"] < 40


# -- refusals ---------------------------------------------------------------------------------


def test_names_with_special_characters_are_found(target: Target) -> None:
    name = f"a.b-c_{uuid.uuid4().hex[:6]}" + (" /%:ü" if target.escapes else "")
    target.node.declare(name)
    target.node.publish(name, [b"x"])
    with session(target.broker, target.url, queue=name) as run:
        assert run.receive(1) == [b"x"]
        assert run.acknowledge(1)
    target.node.delete(name)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\0\0\x09\x01", b""])
def test_a_port_that_speaks_something_else_is_named(target: Target, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server, answer), daemon=True).start()
        with pytest.raises(BrokerUnavailableError, match="does the port speak STOMP"):
            SessionRun(target.broker, target.through(server.getsockname()[1]), queue="q", connect_timeout_s=3)


def _answer(server: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        client, _ = server.accept()
        with client:
            client.recv(1_000)
            client.sendall(answer)


def test_a_silent_port_is_abandoned_in_time(target: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for scheme in ("stomp", "stomp+ssl"):
            began = time.monotonic()
            url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
            with pytest.raises(BrokerUnavailableError, match="no answer in time"):
                SessionRun(target.broker, url, queue="q", connect_timeout_s=1)
            assert time.monotonic() - began < 8


# -- TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=each_of([*NODES]))
def secured(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Target]:
    """A broker that listens for TLS and asks clients for a certificate."""
    files = TlsFiles(
        ca_file=Path(certificates.ca.cert_file),
        cert_file=Path(certificates.server.cert_file),
        key_file=Path(certificates.server.key_file),
        verify_client=True,
    )
    try:
        node: Node = NODES[request.param](tls=files)
    except NodeError as absent:
        missing(str(absent))
        raise
    with node:
        node.declare("q")
        yield Target(request.param, node)


def test_tls(secured: Target, certificates: Certificates) -> None:
    url = secured.node.url(STOMP, tls=True)
    tls = Tls(str(certificates.ca.cert_file), str(certificates.client.cert_file), str(certificates.client.key_file))
    large = os.urandom(1024) * 5_000
    secured.node.publish("q", [*numbered(500), large])
    with session(secured.broker, url, 1000, queue="q", tls=tls) as run:
        assert run.receive(501) == [*numbered(500), large]
        assert run.acknowledge(501)


def test_tls_refusals_are_told_apart(secured: Target, certificates: Certificates) -> None:
    url, plain = secured.node.url(STOMP, tls=True), secured.node.url(STOMP)
    client = str(certificates.client.cert_file), str(certificates.client.key_file)
    tls = Tls(str(certificates.ca.cert_file), *client)
    settings = {"queue": "q", "connect_timeout_s": 3}
    with pytest.raises(RefusedError, match="certificate of the broker was not accepted"):
        SessionRun(secured.broker, url, tls=Tls(str(certificates.other_ca.cert_file), *client), **settings)
    with pytest.raises(RefusedError, match="certificate of the broker was not accepted"):
        SessionRun(secured.broker, url.replace("127.0.0.1", "127.1"), tls=tls, **settings)
    with pytest.raises((RefusedError, BrokerUnavailableError), match="TLS"):
        SessionRun(secured.broker, url, tls=Tls(str(certificates.ca.cert_file)), **settings)
    with pytest.raises((RefusedError, BrokerUnavailableError), match=r"TLS|in time"):
        SessionRun(secured.broker, plain.replace("stomp://", "stomp+ssl://"), tls=tls, **settings)
    with pytest.raises(BrokerUnavailableError, match=r"stomp\+ssl://"):
        SessionRun(secured.broker, url.replace("stomp+ssl://", "stomp://"), **settings)
