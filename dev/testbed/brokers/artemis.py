"""A private ActiveMQ Artemis node, as a local process.

The configuration is that of a fresh ``artemis create --nio --require-login --no-autotune``
(dead letters in `DLQ` after ten attempts, expired ones in `ExpiryQueue`), with three acceptors of
one protocol each, and without the web console. Starts in 3 s on two cores, with data or without.

Of a consumer that is gone, each message it held has one delivery attempt more: over STOMP
always, over AMQP 1.0 only sometimes and only if the connection was reset. Killing the broker
counts for nothing. Artemis 2.40 may keep messages of a STOMP consumer that was reset: they stay
`unacked` until it is restarted; 2.56 does not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from pyspark_mq.brokers.artemis import ARTEMIS
from testbed.brokers.java import PASSWORD, READER, READER_PASSWORD, STORE_PASSWORD, USER, JavaNode, JavaQueues
from testbed.brokers.jmx import ArtemisAdmin
from testbed.brokers.node import TlsFiles
from testbed.distributions import ARTEMIS_VERSIONS, newest
from testbed.ports import LOOPBACK
from testbed.process import NodeError, poll

__all__ = ["ArtemisNode", "ArtemisQueues"]

_VISIBLE_TIMEOUT_S = 5.0
_NAME = LOOPBACK
_ROLE = "amq"
_READERS = "readers"
_PERMISSIONS = (
    "createNonDurableQueue",
    "deleteNonDurableQueue",
    "createDurableQueue",
    "deleteDurableQueue",
    "createAddress",
    "deleteAddress",
    "consume",
    "browse",
    "send",
    "manage",
)
_OF_READERS = frozenset({"consume"})
_SETTINGS: Mapping[str, str | int] = MappingProxyType(
    {
        "dead-letter-address": "DLQ",
        "expiry-address": "ExpiryQueue",
        "redelivery-delay": 0,
        "message-counter-history-day-limit": 10,
        "address-full-policy": "PAGE",
        "auto-create-queues": "true",
        "auto-create-addresses": "true",
        "auto-delete-queues": "false",
        "auto-delete-addresses": "false",
        "page-size-bytes": "10M",
        "max-size-bytes": -1,
        "max-size-messages": -1,
        "max-read-page-messages": -1,
        "max-read-page-bytes": "20M",
        "page-limit-bytes": -1,
        "page-limit-messages": -1,
    }
)
_CONFIGURATION = """\
<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>{name}</name>
    <persistence-enabled>true</persistence-enabled>
    <max-redelivery-records>1</max-redelivery-records>
    <journal-type>NIO</journal-type>
    <paging-directory>{data}/paging</paging-directory>
    <bindings-directory>{data}/bindings</bindings-directory>
    <journal-directory>{data}/journal</journal-directory>
    <large-messages-directory>{data}/large-messages</large-messages-directory>
    <journal-datasync>true</journal-datasync>
    <journal-min-files>2</journal-min-files>
    <journal-pool-files>10</journal-pool-files>
    <journal-device-block-size>4096</journal-device-block-size>
    <journal-file-size>10M</journal-file-size>
    <!-- 90 in a fresh instance: how full the machine's disk is must not decide whether tests pass. -->
    <max-disk-usage>100</max-disk-usage>
    <critical-analyzer>true</critical-analyzer>
    <critical-analyzer-timeout>120000</critical-analyzer-timeout>
    <critical-analyzer-check-period>60000</critical-analyzer-check-period>
    <critical-analyzer-policy>HALT</critical-analyzer-policy>
    <global-max-messages>-1</global-max-messages>
    <acceptors>{acceptors}</acceptors>
    <security-settings><security-setting match="#">{permissions}</security-setting></security-settings>
    <address-settings>
      <address-setting match="activemq.management.#">
        <auto-create-queues>true</auto-create-queues>
        <auto-create-addresses>true</auto-create-addresses>
      </address-setting>
      <address-setting match="#">{settings}</address-setting>
    </address-settings>
    <addresses>
      <address name="DLQ"><anycast><queue name="DLQ"/></anycast></address>
      <address name="ExpiryQueue"><anycast><queue name="ExpiryQueue"/></anycast></address>
    </addresses>
  </core>
</configuration>
"""
_BOOTSTRAP = """\
<broker xmlns="http://activemq.apache.org/schema">
  <jaas-security domain="activemq"/>
  <server configuration={configuration}/>
</broker>
"""
_MANAGEMENT = '<management-context xmlns="http://activemq.apache.org/schema"/>\n'
_LOGIN = """\
activemq {
  org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
    org.apache.activemq.jaas.properties.user="artemis-users.properties"
    org.apache.activemq.jaas.properties.role="artemis-roles.properties";
};
"""


class ArtemisQueues(JavaQueues):
    """What can be done to the queues of an Artemis, wherever it runs."""

    title = "Artemis"
    broker = ARTEMIS
    # Else a missing address would be made for topics, and what is sent to it is gone.
    _stomp_headers = MappingProxyType({"destination-type": "ANYCAST"})

    @property
    @abstractmethod
    def _admin(self) -> ArtemisAdmin:
        """How its queues are managed."""

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
        before: int | None = None
        with suppress(NodeError):  # what is down says so when it is published to
            before = self._admin.added(queue)
        used = super().publish(
            queue, bodies, ids=ids, headers=headers, protocol=protocol, expires_ms=expires_ms, timeout_s=timeout_s
        )
        # Artemis confirms what is on its disk; it is to be had, and counted, some milliseconds later.
        if before is not None:
            after = before + len(used)
            with suppress(NodeError):
                poll(lambda: self._admin.added(queue) >= after, _VISIBLE_TIMEOUT_S)
        return used


class ArtemisNode(ArtemisQueues, JavaNode):
    """One Artemis node with the user `admin`/`admin`, and one who may only read."""

    def __init__(
        self,
        version: str = "2",
        *,
        data: Path | None = None,
        tls: TlsFiles | None = None,
        auto_create: bool = True,
        max_delivery_attempts: int | None = None,
        address_settings: Mapping[str, str | int] | None = None,
        amqp_idle_timeout_ms: int | None = None,
        heap: str = "1g",
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        """Nothing is started yet; the distribution is fetched if it is not in the cache.

        Args:
            version: "2" for the newest, or one in full.
            data: as for :class:`Node`.
            tls: listen for TLS as well, for each protocol on one more port.
            auto_create: are queues and addresses made when a client asks for them?
            max_delivery_attempts: deliveries of a message before it goes to `DLQ`; 10 if it is
                not said, -1 for no limit.
            address_settings: further settings of all addresses, as `broker.xml` names them.
            amqp_idle_timeout_ms: silence after which a connection of AMQP 1.0 is given up; 60,000 if
                it is not said.
            heap: most memory the JVM takes for objects, as its option `-Xmx` says it.

        Raises:
            NodeError: no such version, Java is missing, or the distribution cannot be had.
        """
        self._version = newest(ARTEMIS_VERSIONS, version)
        super().__init__(
            ARTEMIS_VERSIONS[self._version],
            data=data,
            tls=tls,
            heap=heap,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
        )
        self._settings = dict(_SETTINGS)
        if not auto_create:
            self._settings |= {"auto-create-queues": "false", "auto-create-addresses": "false"}
        if max_delivery_attempts is not None:
            self._settings["max-delivery-attempts"] = max_delivery_attempts
        self._settings |= dict(address_settings or {})
        self._amqp = _AMQP if amqp_idle_timeout_ms is None else f"{_AMQP};amqpIdleTimeout={amqp_idle_timeout_ms}"
        self._admin_client = ArtemisAdmin(self.jolokia, _NAME)

    @property
    def version(self) -> str:
        return self._version

    @property
    def _admin(self) -> ArtemisAdmin:
        return self._admin_client

    def _arguments(self) -> list[str]:
        etc = self.data / "etc"
        self._write_files(etc)
        (self.data / "tmp").mkdir(exist_ok=True)
        properties = {
            "artemis.home": self._home,
            "artemis.instance": self.data,
            "artemis.instance.etc": etc,
            "data.dir": self.data,
            "java.io.tmpdir": self.data / "tmp",
            "java.security.auth.login.config": etc / "login.config",
            "log4j2.disableJmx": "true",
        }
        options = [f"-D{name}={value}" for name, value in properties.items()]
        options += ["--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"]
        boot = self._home / "lib" / "artemis-boot.jar"
        return [*options, "-cp", str(boot), "org.apache.activemq.artemis.boot.Artemis", "run"]

    def _write_files(self, etc: Path) -> None:
        etc.mkdir(exist_ok=True)
        configuration = etc / "broker.xml"
        files = {
            "broker.xml": self._configuration(),
            "bootstrap.xml": _BOOTSTRAP.format(configuration=quoteattr(configuration.as_uri())),
            "management.xml": _MANAGEMENT,
            "login.config": _LOGIN,
            "artemis-users.properties": f"{USER} = {PASSWORD}\n{READER} = {READER_PASSWORD}\n",
            "artemis-roles.properties": f"{_ROLE} = {USER}\n{_READERS} = {READER}\n",
        }
        for name, content in files.items():
            (etc / name).write_text(content, "utf-8")

    def _configuration(self) -> str:
        return _CONFIGURATION.format(
            name=_NAME,
            data=escape(str(self.data)),
            acceptors="".join(self._acceptors()),
            permissions="".join(_permission(name) for name in _PERMISSIONS),
            settings="".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in self._settings.items()),
        )

    def _acceptors(self) -> list[str]:
        acceptors = [
            _acceptor("jms", self._jms_port, "protocols=CORE,OPENWIRE"),
            _acceptor("amqp", self._amqp_port, self._amqp),
            _acceptor("stomp", self._stomp_port, "protocols=STOMP"),
        ]
        stores = self._stores()
        if stores is not None and self._tls is not None:
            keys, trusted = stores
            options = (
                f";sslEnabled=true;keyStorePath={keys};keyStorePassword={STORE_PASSWORD};keyStoreType=PKCS12"
                f";trustStorePath={trusted};trustStorePassword={STORE_PASSWORD};trustStoreType=PKCS12"
                f";needClientAuth={str(self._tls.verify_client).lower()}"
            )
            acceptors += [
                _acceptor("amqps", self._amqps_port, self._amqp + options),
                _acceptor("stomps", self._stomps_port, "protocols=STOMP" + options),
            ]
        return acceptors


_AMQP = "protocols=AMQP;amqpCredits=1000;amqpLowCredits=300;amqpMinLargeMessageSize=102400;amqpDuplicateDetection=true"


def _permission(name: str) -> str:
    roles = f"{_ROLE},{_READERS}" if name in _OF_READERS else _ROLE
    return f'<permission type="{name}" roles="{roles}"/>'


def _acceptor(name: str, port: int, options: str) -> str:
    buffers = "tcpSendBufferSize=1048576;tcpReceiveBufferSize=1048576;useEpoll=true"
    return f'<acceptor name="{name}">{escape(f"tcp://{LOOPBACK}:{port}?{buffers};{options}")}</acceptor>'
