"""The private ActiveMQ Classic and Artemis nodes do what the failure tests rely on."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import distributions
from testbed.brokers.activemq import ActiveMqNode
from testbed.brokers.artemis import ArtemisNode
from testbed.brokers.java import READER, READER_PASSWORD, JavaNode, publish_java
from testbed.brokers.node import QueueCounts, TlsFiles
from testbed.distributions import ACTIVEMQ_VERSIONS, JOLOKIA, Distribution, fetch, newest
from testbed.ports import LOOPBACK
from testbed.process import NodeError, PublishError, poll
from testbed.publishers.stomp import publish_stomp
from tests.plugin import missing
from tests.support.certificates import Certificates, Identity, make_certificates
from tests.support.checks import total

pytestmark = pytest.mark.whole

TIMEOUT_S = 30.0
MESSAGES = 1500
LOOPBACKS = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
ROOT = Path(__file__).parents[3]

MAKERS: dict[str, Callable[..., JavaNode]] = {
    "activemq 5": lambda **options: ActiveMqNode("5", **options),
    "activemq 6": lambda **options: ActiveMqNode("6", **options),
    "artemis": ArtemisNode,
}


def make(kind: str, **options: object) -> JavaNode:
    try:
        return MAKERS[kind](**options)
    except NodeError as absent:
        missing(str(absent))
        raise


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=MAKERS)
def node(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[JavaNode]:
    """One with everything there is, for the tests that do not end it."""
    tls = TlsFiles(
        certificates.ca.cert_file,
        certificates.server.cert_file,
        certificates.server.key_file,
        verify_client=True,
    )
    with make(request.param, tls=tls) as node:
        yield node


class Holder:
    """A consumer that acknowledges what it is told to, on a plain socket."""

    def __init__(self, node: JavaNode, queue: str) -> None:
        assert node.broker.stomp is not None
        self._socket = socket.create_connection((LOOPBACK, node.port), TIMEOUT_S)
        self._received = b""
        self.send("CONNECT", **{"accept-version": "1.2", "host": "/", "login": "admin", "passcode": "admin"})
        assert self.receive().startswith(b"CONNECTED")
        destination = node.broker.stomp.queue.format(name=queue)
        window = {"activemq.prefetchSize": "10000", "consumer-window-size": "-1"}
        self.send("SUBSCRIBE", destination=destination, id="0", ack="client-individual", **window)

    def send(self, command: str, **headers: str) -> None:
        text = "".join(f"{name}:{value}\n" for name, value in headers.items())
        self._socket.sendall(f"{command}\n{text}\n\0".encode())

    def receive(self) -> bytes:
        while b"\0" not in self._received:
            data = self._socket.recv(65536)
            assert data, "closed"
            self._received += data
        frame, _, self._received = self._received.partition(b"\0")
        return frame.lstrip()

    def acknowledge(self, message: bytes) -> None:
        (handle,) = [line[4:] for line in message.split(b"\n") if line.startswith(b"ack:")]
        self.send("ACK", id=handle.decode(), receipt="acked")
        while not self.receive().startswith(b"RECEIPT"):
            pass

    def close(self) -> None:
        self._socket.close()


def holding(node: JavaNode, queue: str) -> contextlib.closing[Holder]:
    return contextlib.closing(Holder(node, queue))


def processes_of(data: Path) -> list[str]:
    """Every live process with the node's folder in its arguments."""
    mark = os.fsencode(data)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (folder / "cmdline").read_bytes()
            if mark in arguments and b"javaagent" in arguments:
                found.append(folder.name)
    return found


def all_gone(data: Path) -> bool:
    return poll(lambda: not processes_of(data), TIMEOUT_S)


# -- data, kill, restart, stop ----------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
def test_life_of_a_node(kind: str) -> None:
    """Start, publish, hold, kill -9, restart, stop, start again: one node, as starting is slow."""
    node = make(kind)
    with node:
        check_data_survives_a_kill(node)
        check_stopping_leaves_nothing(node)
        data = node.data
    assert all_gone(data)
    assert not data.exists()


def check_data_survives_a_kill(node: JavaNode) -> None:
    node.declare("q")
    node.declare("empty")
    node.publish("q", [b"stomp"] * MESSAGES)
    node.publish("q", [b"amqp"] * MESSAGES, protocol="amqp-1.0")
    with holding(node, "q") as holder:
        holder.receive()
        assert poll(lambda: node.unacked("q") > 0, TIMEOUT_S)
        assert poll(lambda: total(node, "q") == 2 * MESSAGES, TIMEOUT_S)
        pid = node.pid
        node.kill()
    assert not node.running
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((LOOPBACK, node.port))
    url = node.url()
    node.restart()
    assert node.url() == url
    assert node.counts("q") == QueueCounts(2 * MESSAGES, 0)
    assert node.counts("empty") == QueueCounts(0, 0)


def check_stopping_leaves_nothing(node: JavaNode) -> None:
    node.stop()
    assert all_gone(node.data), processes_of(node.data)
    node.stop()
    node.kill()
    with pytest.raises(NodeError, match="not running"):
        _ = node.pid
    node.start()
    assert node.depth("q") == 2 * MESSAGES
    with pytest.raises(NodeError, match="running already"):
        node.start()


@pytest.mark.parametrize("kind", ["activemq 6", "artemis"])
def test_data_given_by_the_caller_is_kept_and_found_again(kind: str, tmp_path: Path) -> None:
    with make(kind, data=tmp_path / "the broker & all") as first:
        first.declare("q")
        first.publish("q", [b"1", b"2"])
    assert all_gone(first.data)
    with make(kind, data=tmp_path / "the broker & all") as second:
        assert second.depth("q") == 2
    assert second.data.is_dir()


def test_it_does_not_outlive_its_owner(tmp_path: Path) -> None:
    make("activemq 6", data=tmp_path).close()  # skips where there is none
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from testbed.brokers.activemq import ActiveMqNode\n"
        "ActiveMqNode(data=Path(sys.argv[1])).start()\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        assert processes_of(tmp_path)
        owner.send_signal(signal.SIGKILL)
    assert all_gone(tmp_path), processes_of(tmp_path)


def test_a_node_that_cannot_start_says_why() -> None:
    node = make("activemq 6", policy={"noSuchPolicy": 1})
    with pytest.raises(NodeError, match="noSuchPolicy"):
        node.__enter__()
    assert all_gone(node.data)


def test_everything_listens_on_the_loopback_only(node: JavaNode) -> None:
    inodes = {os.readlink(link) for link in Path(f"/proc/{node.pid}/fd").iterdir() if link.is_symlink()}
    addresses = set()
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:  # TCP_LISTEN
                address, port = fields[1].split(":")
                addresses.add(address)
                ports.add(int(port, 16))
    assert addresses <= LOOPBACKS
    assert ports == {port.number for port in node._ports}


# -- operating --------------------------------------------------------------------------------


def test_the_version_is_what_the_broker_says(node: JavaNode) -> None:
    assert node.version == node._admin.version()


def test_older_artemis() -> None:
    try:
        older = ArtemisNode("2.40")
    except NodeError as absent:
        missing(str(absent))
    with older:
        older.declare("q")
        older.publish("q", [b"1"])
        assert (older.version, older._admin.version(), older.depth("q")) == ("2.40.0", "2.40.0", 1)


@pytest.mark.parametrize("protocol", ["stomp", "amqp-1.0"])
@pytest.mark.parametrize("queue", ["plain", "with.dots", "spaced é name", "with:colon"])
def test_publishing_counting_purging_deleting(node: JavaNode, protocol: str, queue: str) -> None:
    name = f"{queue} {protocol}"
    node.declare(name)
    node.declare(name)
    ids = node.publish(name, [b"x"] * 20, protocol=protocol)
    assert len(ids) == 20
    assert len(set(ids)) == (1 if protocol == "stomp" else 20)
    assert node.counts(name) == QueueCounts(20, 0)
    node.purge(name)
    assert node.counts(name) == QueueCounts(0, 0)
    node.delete(name)
    node.delete(name)
    for use in (node.counts, node.purge):
        with pytest.raises(NodeError, match="no queue"):
            use(name)


def test_counts_follow_deliveries(node: JavaNode) -> None:
    node.declare("counted")
    node.publish("counted", [b"x"] * 100)
    with holding(node, "counted") as holder:
        first = holder.receive()
        assert poll(lambda: node.counts("counted") == QueueCounts(0, 100), TIMEOUT_S)
        holder.acknowledge(first)
        assert poll(lambda: node.counts("counted") == QueueCounts(0, 99), TIMEOUT_S)
    assert poll(lambda: node.counts("counted") == QueueCounts(99, 0), TIMEOUT_S)


def test_publishing_to_a_queue_that_is_not_there_makes_it(node: JavaNode) -> None:
    for protocol in ("stomp", "amqp-1.0"):
        node.publish(f"made by {protocol}", [b"x"], protocol=protocol)
        assert node.depth(f"made by {protocol}") == 1


def test_messages_are_bytes_with_headers(node: JavaNode) -> None:
    node.declare("headers")
    node.publish("headers", [b"\x00\xff\n"], headers={"colour": "a:b\nc", "number": 1})
    with holding(node, "headers") as holder:
        message = holder.receive()
        assert b"colour:a\\cb\\nc\n" in message
        assert b"number:1\n" in message
        assert b"persistent:true" in message
        assert b"content-length:3" in message


def test_ids_are_used_over_amqp(node: JavaNode) -> None:
    ids = ["one", None, "three"]
    assert node.publish("ids", [b"a", b"b", b"c"], ids=ids, protocol="amqp-1.0") == ids
    assert node.publish("ids", [b"a", b"b", b"c"], ids=ids) == [None] * 3
    for protocol in ("amqp-1.0", "stomp"):
        with pytest.raises(ValueError, match="shorter"):
            node.publish("ids", [b"a", b"b"], ids=["only one"], protocol=protocol)


@pytest.mark.parametrize("protocol", ["stomp", "amqp-1.0"])
def test_who_publishes_has_to_know_the_password(node: JavaNode, protocol: str) -> None:
    wrong = node.url(protocol, password="wrong")
    with pytest.raises(PublishError) as caught:
        publish(wrong, "q", [b"x"])
    assert caught.value.confirmed == 0
    assert "wrong" not in str(caught.value)


def publish(url: str, queue: str, bodies: list[bytes]) -> None:
    from testbed.publishers.amqp10 import OutgoingMessage, publish_amqp10

    if url.startswith("stomp"):
        publish_stomp(url, queue, ((body, {}) for body in bodies), timeout_s=TIMEOUT_S)
    else:
        publish_amqp10(url, queue, map(OutgoingMessage, bodies), timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("protocol", ["stomp", "amqp-1.0"])
def test_publishing_ends_when_the_broker_is_killed(protocol: str) -> None:
    with make("artemis") as node:
        node.declare("q")
        published = 0

        def bodies() -> Iterator[bytes]:
            nonlocal published
            while True:
                published += 1
                if published == 5000:
                    node.kill()
                yield b"x"

        with pytest.raises(PublishError, match=r"connection lost|closed the connection") as caught:
            node.publish("q", bodies(), protocol=protocol)
        assert caught.value.confirmed < published <= 15_000
        with pytest.raises(PublishError):
            node.publish("q", [b"x"], protocol=protocol)
        node.restart()
        assert caught.value.confirmed <= node.depth("q") <= published


@pytest.mark.parametrize("protocol", ["stomp", "amqp-1.0"])
def test_an_error_of_the_iterator_is_the_callers(node: JavaNode, protocol: str) -> None:
    def bodies() -> Iterator[bytes]:
        yield b"x"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        node.publish("iterated", bodies(), protocol=protocol)


@pytest.mark.parametrize("kind", ["activemq 6", "artemis"])
def test_queues_are_not_made_when_it_is_switched_off(kind: str) -> None:
    with make(kind, auto_create=False) as node:
        node.declare("there")
        for protocol in ("stomp", "amqp-1.0"):
            publish = functools.partial(
                publish_java, node.broker, node.url(protocol), protocol=protocol, stomp_headers=node._stomp_headers
            )
            publish("there", [b"x"])
            with pytest.raises(PublishError):
                publish("missing", [b"x"])
        assert node.depth("there") == 2


@pytest.mark.parametrize("protocol", ["stomp", "amqp-1.0"])
def test_the_reader_may_not_publish_nor_make_a_queue(node: JavaNode, protocol: str) -> None:
    node.declare("readable")
    url = node.url(protocol, user=READER, password=READER_PASSWORD)
    for queue in ("readable", "not-there"):
        with pytest.raises(PublishError):
            publish_java(node.broker, url, queue, [b"x"], protocol=protocol, stomp_headers=node._stomp_headers)
    assert node.depth("readable") == 0


# -- TLS --------------------------------------------------------------------------------------


class _SlowContext(ssl.SSLContext):
    """Waits behind each handshake, until a broker's session tickets (RFC 8446, 4.6.1) have come."""

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        secured = super().wrap_socket(*arguments, **named)
        time.sleep(0.5)
        return secured


def tls_context(ca: Identity, client: Identity | None) -> ssl.SSLContext:
    context = _SlowContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca.cert_file)
    if client is not None:
        context.load_cert_chain(client.cert_file, client.key_file)
    return context


def test_tls_with_a_client_certificate(node: JavaNode, certificates: Certificates) -> None:
    node.declare("over tls")
    assert node.broker.stomp is not None
    destination = node.broker.stomp.queue.format(name="over tls")
    context = tls_context(certificates.ca, certificates.client)
    assert publish_stomp(node.url(tls=True), destination, [(b"x", {})], context=context, timeout_s=TIMEOUT_S) == 1
    assert node.depth("over tls") == 1
    greeting = b"AMQP\x03\x01\x00\x00"
    port = int(node.url("amqp-1.0", tls=True).rstrip("/").rpartition(":")[2])
    with (
        socket.create_connection((LOOPBACK, port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=LOOPBACK) as end,
    ):
        end.sendall(greeting)
        assert end.recv(8) == greeting


@pytest.mark.parametrize("case", ["no client certificate", "stranger", "wrong authority"])
def test_tls_refuses(node: JavaNode, certificates: Certificates, case: str) -> None:
    ca = certificates.other_ca if case == "wrong authority" else certificates.ca
    client = {"stranger": certificates.stranger, "wrong authority": certificates.client}.get(case)
    with pytest.raises(PublishError):
        publish_stomp(node.url(tls=True), "q", [(b"x", {})], context=tls_context(ca, client), timeout_s=TIMEOUT_S)


def test_urls_are_only_given_for_what_it_speaks() -> None:
    node = make("activemq 6")
    try:
        assert node.url(user="u@x", password="p/w").startswith("stomp://u%40x:p%2Fw@127.0.0.1:")
        assert node.url("amqp-1.0").startswith("amqp://admin:admin@127.0.0.1:")
        assert node.jms_url().startswith("tcp://127.0.0.1:")
        with pytest.raises(NodeError, match="do not speak"):
            node.url("mqtt")
        with pytest.raises(NodeError, match="TLS"):
            node.url(tls=True)
    finally:
        node.close()


# -- distributions ----------------------------------------------------------------------------


def test_versions_are_found_by_their_first_numbers() -> None:
    assert newest(ACTIVEMQ_VERSIONS, "5").startswith("5.")
    assert newest(ACTIVEMQ_VERSIONS, "6.3.1") == "6.3.1"
    for unknown in ("", "7", "6.3.11"):
        with pytest.raises(NodeError, match="known: 5"):
            newest(ACTIVEMQ_VERSIONS, unknown)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_MQ_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(NodeError, match="apt-get install openjdk"):
        ActiveMqNode()
    with pytest.raises(NodeError, match="apt-get install maven"):
        fetch(JOLOKIA)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_digest_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make("activemq 6").close()  # skips where there is no Maven
    monkeypatch.setattr(distributions, "_FETCH_TIMEOUT_S", TIMEOUT_S * 4)
    monkeypatch.setenv("PYSPARK_MQ_CACHE", str(tmp_path))
    with pytest.raises(NodeError, match="has the digest"):
        fetch(Distribution(JOLOKIA.name, JOLOKIA.artifacts, "0" * 64))
    with pytest.raises(NodeError, match="could not download"):
        fetch(Distribution("nothing", ("no.such.group:artifact:1",), "0" * 64))
    assert list(tmp_path.iterdir()) == []
