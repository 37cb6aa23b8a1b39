"""The private RabbitMQ node does what the failure tests rely on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ProbableAuthenticationError

from testbed.brokers.node import Node, QueueCounts, TlsFiles
from testbed.brokers.rabbitmq import RabbitNode
from testbed.ports import LOOPBACK, ReservedPort, free_ports, listens
from testbed.process import NodeError, PublishError, poll
from tests.support.certificates import Certificates, Identity, make_certificates

pytestmark = pytest.mark.whole

TIMEOUT_S = 20.0
MESSAGES = 3000
LOOPBACKS = {"0100007F", "00000000000000000000000001000000"}  # as the kernel writes them
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(certificates: Certificates) -> Iterator[RabbitNode]:
    """One with everything there is, for the tests that do not end it."""
    tls = TlsFiles(
        certificates.ca.cert_file,
        certificates.server.cert_file,
        certificates.server.key_file,
        verify_client=True,
    )
    plugins = ("rabbitmq_stomp", "rabbitmq_amqp1_0")
    with RabbitNode(tls=tls, plugins=plugins, config={"consumer_timeout": 123_000}) as node:
        yield node


@contextlib.contextmanager
def channel(url: str, **options: Any) -> Iterator[Any]:
    parameters = pika.URLParameters(url)
    for name, value in options.items():
        setattr(parameters, name, value)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(AMQPError):  # a test may have killed the broker
            connection.close()


def processes_of(node: Node) -> list[str]:
    """Every live process that was started with the node's folder in its environment."""
    mark = os.fsencode(node.data)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80])
    return found


def all_gone(node: Node) -> bool:
    return poll(lambda: not processes_of(node), TIMEOUT_S)


def listening_addresses() -> dict[int, set[str]]:
    """Port -> addresses on which something listens, of the whole machine."""
    found: dict[int, set[str]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":  # TCP_LISTEN
                address, port = local.split(":")
                found.setdefault(int(port, 16), set()).add(address)
    return found


# -- ports ------------------------------------------------------------------------------------


def test_free_ports_are_different_and_never_given_to_outgoing_connections() -> None:
    ports = free_ports(50)
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 50
    assert all(port < low for port in ports)
    assert not any(listens(port) for port in ports)


def test_a_reserved_port_is_for_ours_alone() -> None:
    port = ReservedPort()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind((LOOPBACK, port.number))
    for _ in range(2):
        with socket.create_server((LOOPBACK, port.number)):  # sets SO_REUSEADDR
            assert listens(port.number)
        assert not listens(port.number)
    port.close()
    with socket.socket() as stranger:
        stranger.bind((LOOPBACK, port.number))


# -- data, kill, restart, stop ----------------------------------------------------------------


def test_life_of_a_node() -> None:
    """Start, publish, hold, kill -9, restart, stop, start again: one node, as starting is slow."""
    node = RabbitNode()
    with node:
        check_data_survives_a_kill(node)
        check_stopping_leaves_nothing(node)
        data = node.data
    assert all_gone(node)
    assert not data.exists()


def check_data_survives_a_kill(node: RabbitNode) -> None:
    node.declare("classic")
    node.declare("quorum", quorum=True)
    for queue in ("classic", "quorum"):
        ids = node.publish(queue, (str(number).encode() for number in range(MESSAGES)))
        assert len(set(ids)) == MESSAGES
    with channel(node.url()) as holder:
        for _ in range(10):
            holder.basic_get("quorum")
        assert poll(lambda: node.counts("quorum") == QueueCounts(MESSAGES - 10, 10), TIMEOUT_S)
        pid = node.pid
        node.kill()
    assert not node.running
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((LOOPBACK, node.port))
    url = node.url()
    node.restart()
    assert node.url() == url
    for queue in ("classic", "quorum"):
        assert wait_until_released(node, queue) == QueueCounts(MESSAGES, 0)
    with channel(node.url()) as reader:
        _, properties, body = reader.basic_get("classic", auto_ack=True)
        assert (properties.message_id.endswith("-0"), body) == (True, b"0")


def wait_until_released(node: RabbitNode, queue: str) -> QueueCounts:
    """At first a quorum queue still knows the consumers of before the kill."""
    poll(lambda: node.unacked(queue) == 0, TIMEOUT_S)
    return node.counts(queue)


def check_stopping_leaves_nothing(node: RabbitNode) -> None:
    node.stop()
    assert all_gone(node), processes_of(node)
    assert not node.running
    node.stop()
    node.kill()
    with pytest.raises(NodeError, match="not running"):
        _ = node.pid
    node.start()
    assert node.depth("classic") == MESSAGES - 1
    with pytest.raises(NodeError, match="running already"):
        node.start()


def test_data_given_by_the_caller_is_kept_and_found_again(tmp_path: Path) -> None:
    with RabbitNode(data=tmp_path / "broker") as first:
        first.declare("q")
        first.publish("q", [b"1", b"2"])
    assert all_gone(first)
    second = RabbitNode(data=tmp_path / "broker")
    try:
        second.start()
        assert second.depth("q") == 2
        second.kill()
    finally:
        second.close()
    assert (tmp_path / "broker" / "mnesia").is_dir()


def test_it_does_not_outlive_its_owner(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from testbed.brokers.rabbitmq import RabbitNode\n"
        "RabbitNode(data=Path(sys.argv[1])).start()\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    looker = RabbitNode(data=tmp_path)  # never started: only to look for the processes
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        assert processes_of(looker)
        owner.send_signal(signal.SIGKILL)
    assert all_gone(looker), processes_of(looker)


def test_a_node_that_cannot_start_says_why() -> None:
    with pytest.raises(NodeError, match="no_such_setting") as caught:
        RabbitNode(config={"no_such_setting": 1}).__enter__()
    assert "exit code" in str(caught.value)


# -- beside others ----------------------------------------------------------------------------


def test_a_second_node_is_independent(node: RabbitNode) -> None:
    node.declare("same name")
    node.publish("same name", [b"1"])
    with RabbitNode() as other:
        other.declare("same name")
        assert (node.depth("same name"), other.depth("same name")) == (1, 0)
        node.eval("application:set_env(rabbit, mark, first)")
        assert other.eval("application:get_env(rabbit, mark)") == "undefined"
    assert node.depth("same name") == 1


def test_everything_listens_on_the_loopback_only(node: RabbitNode) -> None:
    taken = listening_addresses()
    mine = {port.number for port in node._ports if port.number in taken}
    assert len(mine) == 6
    for port in mine:
        assert taken[port] <= LOOPBACKS
    # And no seventh: every port the node's own process has.
    answer = node.eval(
        "[element(2, inet:port(P)) || P <- erlang:ports(), "
        'erlang:port_info(P, name) =:= {name, "tcp_inet"}, '
        "element(1, inet:peername(P)) =:= error]"
    )
    assert {int(text) for text in answer.strip("[]").split(", ")} <= mine


# -- operating --------------------------------------------------------------------------------


def test_ctl_and_configuration(node: RabbitNode) -> None:
    timeout = "rabbit_misc:get_env(rabbit, consumer_timeout, none)"
    assert node.ctl("eval", f"{timeout}.").strip() == "123000"
    assert node.eval(timeout) == "123000"
    assert node.version in node.ctl("version")
    with pytest.raises(NodeError, match="no_such_command"):
        node.ctl("no_such_command")
    with pytest.raises(NodeError, match="badmatch"):
        node.eval("1 = 2")


def test_a_user_may_do_what_was_said(node: RabbitNode) -> None:
    node.declare("readable")
    node.add_user("joe", "pass'word", configure="^$", read="^readable$")
    with pytest.raises(NodeError, match="exists"):
        node.add_user("joe", "another")
    access = pika.URLParameters(node.url(user="joe", password="pass'word"))
    with pika.BlockingConnection(access) as connection:
        assert connection.channel().basic_get("readable") == (None, None, None)
        with pytest.raises(ChannelClosedByBroker):
            connection.channel().queue_declare("another")
    node.delete_user("joe")
    with pytest.raises(ProbableAuthenticationError):
        pika.BlockingConnection(access)


@pytest.mark.parametrize("quorum", [False, True])
def test_counts_follow_deliveries(node: RabbitNode, quorum: bool) -> None:
    queue = f"counted é {quorum}"
    node.declare(queue, quorum=quorum)
    node.publish(queue, [b"x"] * 100)
    assert node.counts(queue) == QueueCounts(100, 0)
    with channel(node.url()) as reader:
        for _ in range(30):
            method, _, _ = reader.basic_get(queue)
        assert poll(lambda: node.unacked(queue) == 30, TIMEOUT_S)
        reader.basic_ack(method.delivery_tag, multiple=True)
        assert poll(lambda: node.counts(queue) == QueueCounts(70, 0), TIMEOUT_S)
    node.delete(queue)
    node.delete(queue)
    with pytest.raises(NodeError, match="not_found"):
        node.depth(queue)


def test_publishing_sets_what_is_asked_for(node: RabbitNode) -> None:
    node.declare("properties")
    ids = node.publish("properties", [b"a", b"b"], ids=["one", None], headers={"k": 1}, priority=5)
    assert ids == ["one", None]
    with channel(node.url()) as reader:
        _, first, body = reader.basic_get("properties", auto_ack=True)
        _, second, _ = reader.basic_get("properties", auto_ack=True)
    assert (body, first.headers, first.priority) == (b"a", {"k": 1}, 5)
    assert (first.message_id, second.message_id) == ("one", None)
    assert (first.delivery_mode, second.delivery_mode) == (2, 2)


def test_publishing_that_fails_says_so(node: RabbitNode) -> None:
    with pytest.raises(PublishError, match="no such queue"):
        node.publish("nowhere", [b"x"] * 10)
    full = {"x-max-length": 5, "x-overflow": "reject-publish"}
    node.declare("full", arguments=full)
    with pytest.raises(PublishError, match="refused") as caught:
        node.publish("full", [b"x"] * 10)
    assert caught.value.confirmed >= 5
    with pytest.raises(ValueError, match="shorter"):
        node.publish("full", [b"x", b"y"], ids=["only one"])


def test_declaring_otherwise_is_refused(node: RabbitNode) -> None:
    node.declare("declared")
    node.declare("declared")
    with pytest.raises(NodeError, match="inequivalent"):
        node.declare("declared", quorum=True)


def test_disk_alarm_by_configuration() -> None:
    with RabbitNode(config={"disk_free_limit.absolute": "1000000GB"}) as full:
        full.declare("q")
        with pytest.raises(PublishError, match="not all confirmed") as caught:
            full.publish("q", [b"held back"], timeout_s=0.5)
        assert caught.value.confirmed == 0
        assert full.depth("q") == 0
        assert "resource_limit" in full.eval("rabbit_alarm:get_alarms()")


# -- TLS and other protocols ------------------------------------------------------------------


def tls_options(ca: Identity, client: Identity | None) -> pika.SSLOptions:
    context = ssl.create_default_context(cafile=str(ca.cert_file))
    if client is not None:
        context.load_cert_chain(client.cert_file, client.key_file)
    return pika.SSLOptions(context, LOOPBACK)


def test_tls_with_a_client_certificate(node: RabbitNode, certificates: Certificates) -> None:
    options = tls_options(certificates.ca, certificates.client)
    with channel(node.url(tls=True), ssl_options=options) as secured:
        assert secured.queue_declare("over tls").method.message_count == 0


@pytest.mark.parametrize("case", ["no client certificate", "stranger", "wrong authority"])
def test_tls_refuses(node: RabbitNode, certificates: Certificates, case: str) -> None:
    ca = certificates.other_ca if case == "wrong authority" else certificates.ca
    client = {"stranger": certificates.stranger, "wrong authority": certificates.client}.get(case)
    with (
        pytest.raises((AMQPError, ssl.SSLError)),
        channel(node.url(tls=True), ssl_options=tls_options(ca, client), socket_timeout=5),
    ):
        pass


@pytest.mark.parametrize("tls", [False, True])
def test_stomp_answers(node: RabbitNode, certificates: Certificates, tls: bool) -> None:
    url = node.url("stomp", tls=tls)
    assert url.startswith("stomp+ssl://" if tls else "stomp://")
    port = int(url.rstrip("/").rpartition(":")[2])
    with socket.create_connection((LOOPBACK, port), timeout=TIMEOUT_S) as plain:
        end = plain
        if tls:
            context = tls_options(certificates.ca, certificates.client).context
            end = context.wrap_socket(plain, server_hostname="localhost")
        end.sendall(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0")
        assert end.recv(9) == b"CONNECTED"
        end.close()


def test_amqp_1_0_answers(node: RabbitNode) -> None:
    assert node.url("amqp-1.0") == node.url()
    greeting = b"AMQP\x03\x01\x00\x00"
    with socket.create_connection((LOOPBACK, node.port), timeout=TIMEOUT_S) as end:
        end.sendall(greeting)
        assert end.recv(8) == greeting


def test_urls_are_only_given_for_what_it_speaks() -> None:
    node = RabbitNode()
    try:
        assert node.url(user="u@x", password="p/w").startswith("amqp://u%40x:p%2Fw@127.0.0.1:")
        for wrong, complaint in (("stomp", "rabbitmq_stomp"), ("mqtt", "do not speak")):
            with pytest.raises(NodeError, match=complaint):
                node.url(wrong)
        with pytest.raises(NodeError, match="TLS"):
            node.url(tls=True)
        with pytest.raises(NodeError, match="rabbitmq_mqtt"):
            RabbitNode(plugins=("rabbitmq_mqtt",))
    finally:
        node.close()


def test_readiness_failure_is_told_in_time() -> None:
    node = RabbitNode(start_timeout_s=0.2)
    try:
        with pytest.raises(NodeError, match=r"not ready within 0\.2 s"):
            node.start()
        assert not node.running
    finally:
        node.close()
    assert all_gone(node)
