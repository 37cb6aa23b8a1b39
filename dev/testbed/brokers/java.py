"""What private nodes of ActiveMQ Classic and Artemis have in common: a JVM, ports, TLS, JMX."""

from __future__ import annotations

import os
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from pyspark_mq.brokers.base import AMQP_1_0, STOMP, Broker
from testbed.brokers.jmx import Jolokia, QueueAdmin
from testbed.brokers.node import Node, ProcessNode, QueueCounts, TlsFiles, unique_ids
from testbed.distributions import JOLOKIA, Distribution, fetch, find_java
from testbed.ports import LOOPBACK, listens, speaks
from testbed.process import Command, NodeError
from testbed.publishers.amqp10 import OutgoingMessage, publish_amqp10
from testbed.publishers.stomp import publish_stomp

__all__ = ["PASSWORD", "READER", "READER_PASSWORD", "USER", "JavaNode", "JavaQueues", "logs_in", "publish_java"]

#: The user every node has, and the one who may only read from its queues; nobody else gets in.
USER = "admin"
PASSWORD = "admin"
READER = "reader"
READER_PASSWORD = "a password"

#: Of the key and trust stores, which are as well protected as the PEM files they are made of.
STORE_PASSWORD = "changeit"

_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5level [%logger] %msg%n
"""


class JavaQueues(Node):
    """What can be done to the queues of such a broker, wherever it runs."""

    #: How the source speaks to such a broker.
    broker: Broker
    #: What the broker wants to see in each STOMP frame that publishes.
    _stomp_headers: Mapping[str, str] = MappingProxyType({})

    @property
    @abstractmethod
    def _admin(self) -> QueueAdmin:
        """How its queues are managed."""

    def declare(self, queue: str) -> None:
        self._admin.declare(queue)

    def delete(self, queue: str) -> None:
        self._admin.delete(queue)

    def counts(self, queue: str) -> QueueCounts:
        return self._admin.counts(queue)

    def purge(self, queue: str) -> None:
        """Delete the messages of a queue; on Artemis those with a consumer stay.

        Raises:
            NodeError: no such queue.
        """
        self._admin.purge(queue)

    def publish(
        self,
        queue: str,
        bodies: Iterable[bytes],
        *,
        ids: Iterable[str | None] | None = None,
        headers: Mapping[str, Any] | None = None,
        protocol: str | None = None,
        expires_ms: int | None = None,
        timeout_s: float = 120.0,
    ) -> list[str | None]:
        """Publish to a queue; returns when the broker has confirmed all of them.

        Args:
            ids: over AMQP 1.0 as for any :class:`Node`. Over STOMP the broker gives all IDs
                itself, and those given here become correlation IDs.
            headers: application headers of each; over STOMP also those with a meaning there
                (`priority`, `expires`, `correlation-id`, ...).
            protocol: "stomp" (default) or "amqp-1.0".
            expires_ms: time to live of each.
            timeout_s: for all of it.

        Returns:
            the IDs, in order; over STOMP a None for each.

        Raises:
            PublishError: not all were confirmed; it has how many were.
            ValueError: `bodies` and `ids` differ in number.
        """
        url = self.url(protocol, user=USER, password=PASSWORD)
        return publish_java(
            self.broker,
            url,
            queue,
            bodies,
            ids=ids,
            headers=headers,
            protocol=protocol or STOMP,
            stomp_headers=self._stomp_headers,
            expires_ms=expires_ms,
            timeout_s=timeout_s,
        )


class JavaNode(JavaQueues, ProcessNode):
    """A broker in a JVM of its own, from a distribution that Maven fetches."""

    def __init__(
        self,
        distribution: Distribution,
        *,
        data: Path | None,
        tls: TlsFiles | None,
        heap: str,
        start_timeout_s: float,
        stop_timeout_s: float,
    ) -> None:
        """Nothing is started yet; the distribution is fetched if it is not in the cache.

        Args:
            data: as for :class:`Node`.
            tls: listen for TLS as well, for each protocol on one more port.
            heap: most memory the JVM takes for objects, as its option `-Xmx` says it.

        Raises:
            NodeError: Java is missing, or the distribution cannot be had.
        """
        self._java = find_java()
        self._home = fetch(distribution)
        self._agent = next(fetch(JOLOKIA).glob("*.jar"))
        super().__init__(data=data, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
        self._tls = tls
        self._heap = heap
        self._stomp_port = self._reserve_port()
        self._stomps_port = self._reserve_port()
        self._amqp_port = self._reserve_port()
        self._amqps_port = self._reserve_port()
        self._jms_port = self._reserve_port()
        self._agent_port = self._reserve_port()
        self.jolokia = Jolokia(f"http://{LOOPBACK}:{self._agent_port}/jolokia/", USER, PASSWORD)

    @property
    def management_url(self) -> str:
        """Of the agent for JMX, with its user."""
        return f"http://{quote(USER, '')}:{quote(PASSWORD, '')}@{LOOPBACK}:{self._agent_port}/jolokia"

    # -- as any node

    @property
    def port(self) -> int:
        """Port of STOMP without TLS."""
        return self._stomp_port

    def url(
        self,
        protocol: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
    ) -> str:
        endpoints = {
            STOMP: (("stomp", self._stomp_port), ("stomp+ssl", self._stomps_port)),
            AMQP_1_0: (("amqp", self._amqp_port), ("amqps", self._amqps_port)),
        }.get(protocol or STOMP)
        if endpoints is None:
            raise NodeError(f"{self.title} nodes do not speak {protocol!r}")
        if tls and self._tls is None:
            raise NodeError("this node does not listen for TLS: give tls=TlsFiles(...)")
        scheme, port = endpoints[tls]
        own_user, own_password = self._credentials
        credentials = f"{quote(user or own_user, '')}:{quote(password or own_password, '')}"
        return f"{scheme}://{credentials}@{LOOPBACK}:{port}/"

    def jms_url(self) -> str:
        """Where the broker's own Java client connects to (OpenWire, on Artemis Core as well)."""
        return f"tcp://{LOOPBACK}:{self._jms_port}"

    # -- how it is run

    @property
    def _credentials(self) -> tuple[str, str]:
        """User and password of :meth:`url`."""
        return USER, PASSWORD

    @abstractmethod
    def _arguments(self) -> list[str]:
        """What the JVM runs, its system properties included; configuration is written as well."""

    def _command(self) -> Command:
        log4j = self.data / "log4j2.properties"
        log4j.write_text(_LOG4J, "ascii")
        agent = f"host={LOOPBACK},port={self._agent_port},discoveryEnabled=false,user={USER},password={PASSWORD}"
        options = [f"-Xmx{self._heap}", "-Djava.net.preferIPv4Stack=true", f"-Dlog4j2.configurationFile={log4j}"]
        return Command(
            [self._java, *options, f"-javaagent:{self._agent}={agent}", *self._arguments()], dict(os.environ)
        )

    def _ready(self) -> bool:
        return logs_in(self._stomp_port) and all(listens(port) for port in self._other_ports())

    def _other_ports(self) -> list[int]:
        ports = [self._amqp_port, self._jms_port, self._agent_port]
        return ports + ([self._stomps_port, self._amqps_port] if self._tls is not None else [])

    def _stores(self) -> tuple[Path, Path] | None:
        """Key store and trust store, made of the PEM files; None without TLS."""
        if self._tls is None:
            return None
        keys, trusted = self.data / "keys.p12", self.data / "trusted.p12"
        if not keys.exists():
            _run("openssl", "pkcs12", "-export", "-in", self._tls.cert_file, "-inkey", self._tls.key_file,
                 "-out", keys, "-passout", f"pass:{STORE_PASSWORD}")  # fmt: skip
        if not trusted.exists():
            # Not by openssl: Java trusts only what its own tool has marked as trusted.
            _run(Path(self._java).resolve().with_name("keytool"), "-importcert", "-noprompt", "-alias", "ca",
                 "-file", self._tls.ca_file, "-keystore", trusted, "-storetype", "PKCS12",
                 "-storepass", STORE_PASSWORD)  # fmt: skip
        return keys, trusted


def publish_java(
    broker: Broker,
    url: str,
    queue: str,
    bodies: Iterable[bytes],
    *,
    ids: Iterable[str | None] | None = None,
    headers: Mapping[str, Any] | None = None,
    protocol: str = STOMP,
    stomp_headers: Mapping[str, str] | None = None,
    expires_ms: int | None = None,
    timeout_s: float = 120.0,
) -> list[str | None]:
    """Publish to a queue of such a broker, wherever it runs; as :meth:`JavaNode.publish`.

    Args:
        stomp_headers: what the broker wants to see in each SEND.

    Raises:
        NodeError: no such protocol.
        PublishError: not all were confirmed; it has how many were.
        ValueError: `bodies` and `ids` differ in number.
    """
    used: list[str | None] = []

    def numbered() -> Iterator[tuple[bytes, str | None]]:
        for body, message_id in zip(bodies, unique_ids() if ids is None else ids, strict=ids is not None):
            used.append(message_id if protocol == AMQP_1_0 else None)
            yield body, message_id

    if protocol == AMQP_1_0 and broker.amqp10 is not None:
        address = broker.amqp10.queue_address(queue, "")
        options = {} if expires_ms is None else {"ttl": expires_ms / 1000}
        messages = (OutgoingMessage(body, message_id, headers, options) for body, message_id in numbered())
        publish_amqp10(url, address, messages, timeout_s=timeout_s)
    elif protocol == STOMP and broker.stomp is not None:
        destination = broker.stomp.queue.format(name=queue)
        sent = {name: str(value) for name, value in (headers or {}).items()} | dict(stomp_headers or {})
        if expires_ms is not None:
            sent["expires"] = str(time.time_ns() // 1_000_000 + expires_ms)
        own = ids is not None
        headed = ((body, sent | {"correlation-id": key} if own and key else sent) for body, key in numbered())
        publish_stomp(url, destination, headed, timeout_s=timeout_s)
    else:
        raise NodeError(f"nothing is published to {broker.name} over {protocol!r} here")
    return used


def logs_in(port: int, user: str = USER, password: str = PASSWORD) -> bool:
    """An open port is not enough: with all of the broker up, it answers a CONNECT."""
    login = f"CONNECT\naccept-version:1.2\nhost:/\nlogin:{user}\npasscode:{password}\n\n\0"
    return speaks(port, login.encode(), b"CONNECTED")


def _run(*command: str | Path) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except FileNotFoundError:
        raise NodeError(f"the program {str(command[0])!r} is missing, which TLS needs") from None
    if done.returncode != 0:
        raise NodeError(f"{Path(command[0]).name} failed with {done.returncode}: {(done.stdout + done.stderr).strip()}")
