"""A private ActiveMQ Classic node, as a local process.

The configuration is the one its makers ship (memory and store limits, policies, one dead-letter
queue `ActiveMQ.DLQ`) without the web console, with a user, and with only the three connectors
that are used here. Starts in 1.6 s (6.3) or 2.2 s (5.18) on two cores, with data or without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

from pyspark_mq.brokers.activemq import ACTIVEMQ
from testbed.brokers.java import PASSWORD, READER, READER_PASSWORD, STORE_PASSWORD, USER, JavaNode
from testbed.brokers.jmx import ActiveMqAdmin
from testbed.brokers.node import TlsFiles
from testbed.distributions import ACTIVEMQ_VERSIONS, newest
from testbed.ports import LOOPBACK

__all__ = ["ActiveMqNode"]

#: Of connectors: a write that takes longer ends the connection. Without it a peer that is gone may block the
#: broker's reader and writer for a quarter of an hour, and with them the messages it was handed.
_WRITE_TIMEOUT = "transport.soWriteTimeout=10000"
#: May use queues and topics there are, but not make any; see `auto_create`.
_GUEST_USER = "user"
_GUEST_PASSWORD = "user"

_CONFIGURATION = """\
<beans xmlns="http://www.springframework.org/schema/beans"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:schemaLocation="
        http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans.xsd
        http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="localhost" dataDirectory={data}>
    <managementContext><managementContext createConnector="false"/></managementContext>
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry topic=">">
        <pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="1000"/></pendingMessageLimitStrategy>
      </policyEntry>
      <policyEntry queue=">"{policy}>{policy_parts}</policyEntry>
    </policyEntries></policyMap></destinationPolicy>
    <destinations>{queues}</destinations>
    <persistenceAdapter><kahaDB directory={kahadb}/></persistenceAdapter>
    <plugins>
      <simpleAuthenticationPlugin><users>{users}</users></simpleAuthenticationPlugin>
      <authorizationPlugin><map><authorizationMap><authorizationEntries>
        <authorizationEntry queue=">" read="users,readers" write="users" admin="admins"/>
        <authorizationEntry topic=">" read="users,readers" write="users" admin="admins"/>
        <authorizationEntry topic="ActiveMQ.Advisory.>" read="users" write="users" admin="users,readers"/>
      </authorizationEntries></authorizationMap></map></authorizationPlugin>
    </plugins>
    {ssl}
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage percentOfJvmHeap="70"/></memoryUsage>
      <storeUsage><storeUsage limit="100 gb"/></storeUsage>
      <tempUsage><tempUsage limit="50 gb"/></tempUsage>
    </systemUsage></systemUsage>
    <transportConnectors>{connectors}</transportConnectors>
  </broker>
</beans>
"""


class ActiveMqNode(JavaNode):
    """One ActiveMQ Classic node with the user `admin`/`admin`, and one who may only read."""

    title = "ActiveMQ"
    broker = ACTIVEMQ

    def __init__(
        self,
        version: str = "6",
        *,
        data: Path | None = None,
        tls: TlsFiles | None = None,
        auto_create: bool = True,
        policy: Mapping[str, str | int] | None = None,
        policy_parts: str = "",
        write_timeout: bool = True,
        amqp_idle_timeout_ms: int | None = None,
        amqp_transformer: str = "native",
        heap: str = "1g",
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        """Nothing is started yet; the distribution is fetched if it is not in the cache.

        Args:
            version: "5" or "6" for the newest of these, or one in full.
            data: as for :class:`Node`.
            tls: listen for TLS as well, for each protocol on one more port.
            auto_create: are queues made when a client asks for them? If not, :meth:`url` names
                another user, as Classic only knows who may do so.
            policy: attributes of the policy of all queues, such as ``{"maxPageSize": 1000}``.
            policy_parts: elements within it, such as ``<slowConsumerStrategy>…``.
            write_timeout: do its connectors end writes that take longer than 10 s?
            amqp_idle_timeout_ms: silence after which a connection of AMQP 1.0 is given up; 30,000 if
                it is not said.
            amqp_transformer: how messages of AMQP 1.0 are kept: "native", "jms" or "raw".
            heap: most memory the JVM takes for objects, as its option `-Xmx` says it.

        Raises:
            NodeError: no such version, Java is missing, or the distribution cannot be had.
        """
        self._version = newest(ACTIVEMQ_VERSIONS, version)
        super().__init__(
            ACTIVEMQ_VERSIONS[self._version],
            data=data,
            tls=tls,
            heap=heap,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
        )
        self._auto_create = auto_create
        self._policy = dict(policy or {})
        self._policy_parts = policy_parts
        # Another option in its place, so that those behind it can stay as they are.
        self._write_timeout = _WRITE_TIMEOUT if write_timeout else "transport.tcpNoDelay=true"
        self._amqp_options = f"transport.transformer={amqp_transformer}"
        if amqp_idle_timeout_ms is not None:
            self._amqp_options += f"&transport.wireFormat.idleTimeout={amqp_idle_timeout_ms}"
        self._admin_client = ActiveMqAdmin(self.jolokia)

    @property
    def version(self) -> str:
        return self._version

    def declare(self, queue: str) -> None:
        # Classic forgets an empty queue when it ends.
        self._keep(self._kept() | {queue})
        super().declare(queue)

    def delete(self, queue: str) -> None:
        self._keep(self._kept() - {queue})
        super().delete(queue)

    @property
    def _credentials(self) -> tuple[str, str]:
        return (USER, PASSWORD) if self._auto_create else (_GUEST_USER, _GUEST_PASSWORD)

    @property
    def _admin(self) -> ActiveMqAdmin:
        return self._admin_client

    def _arguments(self) -> list[str]:
        configuration = self.data / "activemq.xml"
        configuration.write_text(self._configuration(), "utf-8")
        path = ":".join(str(self._home / folder / "*") for folder in ("", "lib", "lib/optional"))
        # Not a url: Classic 6 does not take all of those that Python makes of paths.
        main = ["org.apache.activemq.console.command.ShellCommand", "start", f"xbean:{configuration.name}"]
        return ["-cp", path, *main]

    def _configuration(self) -> str:
        return _CONFIGURATION.format(
            data=quoteattr(str(self.data)),
            kahadb=quoteattr(str(self.data / "kahadb")),
            policy="".join(f" {name}={quoteattr(str(value))}" for name, value in self._policy.items()),
            policy_parts=self._policy_parts,
            queues="".join(f"<queue physicalName={quoteattr(queue)}/>" for queue in sorted(self._kept())),
            users=_user(USER, PASSWORD, "admins,users")
            + _user(_GUEST_USER, _GUEST_PASSWORD, "users")
            + _user(READER, READER_PASSWORD, "readers"),
            ssl=self._ssl(),
            connectors="".join(self._connectors()),
        )

    def _ssl(self) -> str:
        stores = self._stores()
        if stores is None:
            return ""
        keys, trusted = (quoteattr(store.as_uri()) for store in stores)
        password = quoteattr(STORE_PASSWORD)
        return (
            f'<sslContext><sslContext keyStore={keys} keyStoreType="PKCS12" keyStorePassword={password} '
            f'trustStore={trusted} trustStoreType="PKCS12" trustStorePassword={password}/></sslContext>'
        )

    def _connectors(self) -> list[str]:
        connectors = [
            _connector("openwire", f"tcp://{LOOPBACK}:{self._jms_port}"),
            _connector("amqp", f"amqp://{LOOPBACK}:{self._amqp_port}?{self._write_timeout}&{self._amqp_options}"),
            _connector("stomp", f"stomp://{LOOPBACK}:{self._stomp_port}?{self._write_timeout}"),
        ]
        if self._tls is not None:
            options = f"?{self._write_timeout}&needClientAuth={str(self._tls.verify_client).lower()}"
            connectors += [
                _connector("amqps", f"amqp+ssl://{LOOPBACK}:{self._amqps_port}{options}&{self._amqp_options}"),
                _connector("stomps", f"stomp+ssl://{LOOPBACK}:{self._stomps_port}{options}"),
            ]
        return connectors

    def _kept(self) -> set[str]:
        """Queues to be there after a start."""
        file = self.data / "queues.json"
        return set(json.loads(file.read_text("utf-8"))) if file.exists() else set()

    def _keep(self, queues: set[str]) -> None:
        (self.data / "queues.json").write_text(json.dumps(sorted(queues)), "utf-8")


def _user(name: str, password: str, groups: str) -> str:
    return f'<authenticationUser username="{name}" password="{password}" groups="{groups}"/>'


def _connector(name: str, uri: str) -> str:
    return f"<transportConnector name={quoteattr(name)} uri={quoteattr(uri)}/>"
