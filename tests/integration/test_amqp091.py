"""AMQP 0-9-1 against a real RabbitMQ: what the protocol module promises and the options reach."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from testbed.brokers.node import TlsFiles
from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.process import poll
from tests.support.certificates import Certificates
from tests.support.checks import assert_ids_exactly_once, bodies, total
from tests.support.engine import At, Crashed, Engine, ReaderError, full_epochs


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[RabbitNode]:
    """A broker that listens for TLS and asks clients for a certificate."""
    files = TlsFiles(
        ca_file=Path(certificates.ca.cert_file),
        cert_file=Path(certificates.server.cert_file),
        key_file=Path(certificates.server.key_file),
        verify_client=True,
    )
    with RabbitNode(tls=files) as node:
        node.declare("q")
        yield node


def tls_options(secured: RabbitNode, certificates: Certificates) -> dict[str, object]:
    return {
        "url": secured.url(tls=True),
        "queue": "q",
        "tls.caFile": certificates.ca.cert_file,
        "tls.certFile": certificates.client.cert_file,
        "tls.keyFile": certificates.client.key_file,
        "connectTimeout": "3s",
    }


def failure(options: dict[str, object]) -> str:
    with Engine(**options) as run, pytest.raises(ReaderError) as failed:
        run.batch()
    assert "guest:guest" not in str(failed.value)
    return str(failed.value)


def test_tls_with_a_client_certificate(secured: RabbitNode, certificates: Certificates) -> None:
    sent = secured.publish("q", bodies(10))
    with Engine(**tls_options(secured, certificates)) as run:
        run.drain(10)
        assert_ids_exactly_once(secured, "q", run, sent)


def test_tls_refusals_are_told_apart(secured: RabbitNode, certificates: Certificates) -> None:
    options = tls_options(secured, certificates)
    wrong_authority = options | {"tls.caFile": certificates.other_ca.cert_file}
    assert "certificate of the broker was not accepted" in failure(wrong_authority)
    nobody = {name: value for name, value in options.items() if name not in {"tls.certFile", "tls.keyFile"}}
    assert "TLS failed" in failure(nobody)
    to_plain_port = options | {"url": secured.url().replace("amqp://", "amqps://")}
    assert "does not speak TLS" in failure(to_plain_port)
    to_tls_port = {
        "url": secured.url(tls=True).replace("amqps://", "amqp://"),
        "queue": "q",
        "connectTimeout": "3s",
    }
    assert "amqps://" in failure(to_tls_port)


def test_an_unknown_authority_is_accepted_when_the_user_says_so(
    secured: RabbitNode, certificates: Certificates
) -> None:
    insecure = tls_options(secured, certificates) | {
        "tls.verify": "false",
        "tls.caFile": certificates.other_ca.cert_file,
    }
    sent = secured.publish("q", bodies(3))
    with Engine(**insecure) as run:
        run.drain(3)
        assert_ids_exactly_once(secured, "q", run, sent)


def test_a_port_that_speaks_something_else_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_talk_http, args=(server,), daemon=True).start()
        port = server.getsockname()[1]
        text = failure({"url": f"amqp://guest:guest@127.0.0.1:{port}/", "queue": "q", "connectTimeout": "3s"})
    assert "connectTimeout=3s" in text
    assert "AMQP 0-9-1" in text


def _talk_http(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            with client:
                client.recv(100)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_silent_port_fails_within_the_connect_timeout(rabbit: RabbitNode) -> None:
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        proxy.mute(new=True)
        began = time.monotonic()
        options = {
            "url": f"amqp://guest:guest@127.0.0.1:{proxy.port}/",
            "queue": "q",
            "connectTimeout": "2s",
        }
        assert "connectTimeout=2s" in failure(options)
        assert time.monotonic() - began < 15


def test_a_topic_with_a_durable_subscription_keeps_messages_while_the_query_is_down(
    rabbit: RabbitNode,
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url()))
    channel = connection.channel()
    channel.exchange_declare("events", "topic", durable=True)
    options = {"url": rabbit.url(), "topic": "events", "subscription": "spark-events"}

    def publish(first: int, count: int) -> list[str]:
        ids = [f"event-{number}" for number in range(first, first + count)]
        for key in ids:
            channel.basic_publish("events", f"orders.{key}", b"x", pika.BasicProperties(message_id=key))
        return ids

    with Engine(**options) as run:
        assert run.trigger() == 0
        sent = publish(0, 5)
        run.drain(5)
        run.crash()
        sent += publish(5, 5)
        run.drain(10)
        assert {row["destination"] for row in run.rows} == {"events"}
        assert_ids_exactly_once(rabbit, "spark-events", run, sent)
    connection.close()
    rabbit.delete("spark-events")


def test_an_exclusive_consumer_elsewhere_is_named(rabbit: RabbitNode) -> None:
    # Classic queues only: on a quorum queue an exclusive consumer does not keep others out.
    queue = "exclusive"
    rabbit.declare(queue)
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url()))
    connection.channel().basic_consume(queue, lambda *_: None, exclusive=True)
    options = {"url": rabbit.url(), "queue": queue, "connectTimeout": "3s", "reconnectTimeout": "2s"}
    with Engine(**options) as run, pytest.raises(ReaderError) as failed:
        run.batch(timeout_s=40)
    assert queue in str(failed.value)
    assert "exclusive use" in str(failed.value)
    connection.close()
    rabbit.delete(queue)


def test_the_consumer_timeout_of_the_broker_is_survived(queue: str, rabbit: RabbitNode) -> None:
    before = rabbit.eval("application:get_env(rabbit, consumer_timeout)")
    rabbit.eval("begin application:set_env(rabbit, consumer_timeout, 2000), "
                "application:set_env(rabbit, channel_tick_interval, 1000) end")  # fmt: skip
    try:
        sent = rabbit.publish(queue, bodies(30))
        with Engine(url=rabbit.url(), queue=queue, **full_epochs(10)) as run:
            run.between = lambda: time.sleep(5)  # a batch that takes its time
            assert run.batch() == 10
            run.between = lambda: None
            run.drain(30)
            assert run.counters()["reconnects"] >= 1
            assert_ids_exactly_once(rabbit, queue, run, sent)
    finally:
        assert before.startswith("{ok")
        rabbit.eval("begin application:set_env(rabbit, consumer_timeout, 1800000), "
                    "application:set_env(rabbit, channel_tick_interval, 60000) end")  # fmt: skip


def test_a_message_that_cannot_be_read_is_named_and_stays(rabbit: RabbitNode, queue: str) -> None:
    rabbit.publish(queue, [b"x"], headers={"when": _TooDeep()})
    with Engine(url=rabbit.url(), queue=queue) as run, pytest.raises(ReaderError) as failed:
        run.batch()
    assert failed.value.kind == "MessageError"
    assert queue in str(failed.value)
    assert poll(lambda: rabbit.counts(queue).ready == 1, 30)


class _TooDeep(dict):  # type: ignore[type-arg]
    """Encodes as tables nested deeper than anybody reads."""

    def __init__(self) -> None:
        super().__init__(at=None)


@pytest.fixture(autouse=True)
def _encode_what_is_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    from pika import data

    plain = data.encode_value

    def encode(pieces: list[bytes], value: object) -> int:
        if isinstance(value, _TooDeep):
            piece = b"V"
            for _ in range(1_000):
                piece = b"F" + struct.pack(">I", len(piece) + 2) + b"\x01a" + piece
            pieces.append(piece)
            return len(piece)
        return plain(pieces, value)

    monkeypatch.setattr(data, "encode_value", encode)


def test_few_messages_are_handed_out_until_a_restart_has_got_anywhere(rabbit: RabbitNode, queue: str) -> None:
    # Each end of a session counts towards the delivery limit of everything it was handed.
    sent = rabbit.publish(queue, bodies(6_000))
    options = {"url": rabbit.url(), "queue": queue, **full_epochs(100), "prefetch": 6_000}
    with Engine(**options) as run:
        assert run.batch() == 100
        run.crash()
        assert poll(lambda: rabbit.counts(queue).unacked == 0, 30)
        start = run._offsets[0]
        assert run.reader.call("latestOffset", start, None) != start
        assert 0 < rabbit.counts(queue).unacked <= 2_200
        run.crash()
        assert run.batch() == 100
        run.options["maxMessagesPerTrigger"] = "6000"
        run.crash()
        run.drain(6_000)
        assert_ids_exactly_once(rabbit, queue, run, sent, ordered=False)


def test_more_bytes_than_the_bound_pause_the_consumer_and_nothing_is_lost(rabbit: RabbitNode, queue: str) -> None:
    # The bound leaves the rest in the sockets: two epochs of 1 MB, and what the kernel holds of two connections.
    sent = rabbit.publish(queue, [bytes(200_000)] * 200)
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        options = {"url": url, "queue": queue, **full_epochs(60), "prefetch": 200, "maxBytesPerTrigger": "1m"}
        with Engine(**options) as run:
            assert run.batch() == 5
            time.sleep(1)
            run.trigger()
            assert proxy.bytes_seen(Direction.TO_CLIENT) < 30_000_000
            run.drain(200)
            assert_ids_exactly_once(rabbit, queue, run, sent)


def test_an_epoch_with_all_the_bytes_it_may_have_waits_for_no_more_messages(rabbit: RabbitNode, queue: str) -> None:
    sent = rabbit.publish(queue, [bytes(300_000)] * 5)
    least = {"minMessagesPerTrigger": 5, "maxTriggerDelay": "1h"}
    with Engine(url=rabbit.url(), queue=queue, maxBytesPerTrigger="1m", **least) as run:
        assert run.batch() == 3
        assert run.trigger() == 0
        sent += rabbit.publish(queue, bodies(3))
        run.drain(8)
        assert_ids_exactly_once(rabbit, queue, run, sent)


def test_a_replay_behind_messages_of_higher_priority_asks_for_more(rabbit: RabbitNode) -> None:
    rabbit.declare("priorities", arguments={"x-max-priority": 5})
    sent = rabbit.publish("priorities", bodies(20), priority=1)
    options = {"url": rabbit.url(), "queue": "priorities", **full_epochs(20), "prefetch": 40}
    with Engine(**options, replayTimeout="20s") as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        assert poll(lambda: rabbit.counts("priorities").ready == 20, 30)
        urgent = rabbit.publish("priorities", bodies(60), priority=5)
        run.drain(80)
        assert run.sink[0] == sent
        assert sorted(map(str, run.ids)) == sorted(map(str, [*sent, *urgent]))
        assert poll(lambda: not run.trigger() and total(rabbit, "priorities") == 0, 30)
    rabbit.delete("priorities")


def test_an_acknowledgement_is_one_frame_for_a_whole_epoch(rabbit: RabbitNode, queue: str) -> None:
    rabbit.publish(queue, bodies(1_000))
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        with Engine(url=url, queue=queue, **full_epochs(1_000)) as run:
            assert run.batch() == 1_000
            before = proxy.bytes_seen(Direction.TO_BROKER)
            while run.trigger():
                pass
            assert poll(lambda: total(rabbit, queue) == 0, 30)
            assert proxy.bytes_seen(Direction.TO_BROKER) - before < 1_000


@pytest.mark.whole
def test_a_replay_from_another_broker_is_refused(rabbit: RabbitNode, queue: str) -> None:
    rabbit.publish(queue, bodies(20))
    with Engine(url=rabbit.url(), queue=queue) as run, RabbitNode() as other:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        other.declare(queue)
        run.options["url"] = other.url()
        with pytest.raises(ReaderError) as failed:
            run.batch()
        assert failed.value.kind == "CheckpointError"
        assert "the checkpoint was written with broker" in str(failed.value)


@pytest.mark.whole
def test_the_name_of_a_node_is_not_taken_for_that_of_a_cluster() -> None:
    def identity(url: str) -> str:
        with Engine(url=url, queue="q") as run:
            run.batch()
            return str(json.loads(run._offsets[0])["identity"])

    with RabbitNode() as node:
        node.declare("q")
        node.publish("q", bodies(20))
        several = f"{node.url()},{node.url()}"
        assert "@" in identity(node.url())
        assert identity(several) == ""
        node.ctl("set_cluster_name", "orders")
        assert identity(several) == identity(node.url()) == "orders"
