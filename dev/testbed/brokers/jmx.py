"""Administration of ActiveMQ Classic and Artemis over JMX, by the HTTP of a Jolokia agent.

A question takes a few milliseconds and needs neither a Java client nor a session with the
broker. The web consoles of both brokers answer the same way, so this works with them as well.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from testbed.brokers.node import QueueCounts
from testbed.process import NodeError

__all__ = ["ActiveMqAdmin", "ArtemisAdmin", "Jolokia", "JolokiaError", "QueueAdmin"]

_DELETE_TIMEOUT_S = 10.0
_DELETE_RETRY_S = 0.2
_TIMEOUT_S = 30.0
_MISSING = "javax.management.InstanceNotFoundException"


class JolokiaError(NodeError):
    """A JMX request failed.

    Attributes:
        kind: class of the Java exception; empty if the agent did not answer at all.
    """

    def __init__(self, text: str, kind: str = "") -> None:
        self.kind = kind
        super().__init__(text)


class Jolokia:
    """Client of one agent. Keeps no connection, so it may be used from any thread."""

    def __init__(self, url: str, user: str, password: str) -> None:
        """Connects to nothing yet.

        Args:
            url: of the agent, such as `http://127.0.0.1:8778/jolokia/`.
        """
        parts = urlsplit(url)
        self._url = url
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._path = parts.path
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        # The consoles' agents refuse who does not say from where he comes.
        self._headers = {
            "Authorization": f"Basic {credentials}",
            "Content-Type": "application/json",
            "Origin": f"http://{self._host}",
        }

    def read(self, mbean: str, *attributes: str) -> dict[str, Any]:
        """Attributes of an MBean, all at about one instant; of a pattern, by the name of each.

        Raises:
            JolokiaError: no such MBean, or it cannot be asked.
        """
        value: dict[str, Any] = self._ask({"type": "read", "mbean": mbean, "attribute": list(attributes)})
        return value

    def call(self, mbean: str, operation: str, *arguments: Any) -> Any:
        """Result of an operation.

        Raises:
            JolokiaError: no such MBean, it failed, or it cannot be asked.
        """
        return self._ask({"type": "exec", "mbean": mbean, "operation": operation, "arguments": list(arguments)})

    def _ask(self, request: Mapping[str, Any]) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", self._path, json.dumps(request).encode(), self._headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise JolokiaError(f"the JMX agent at {self._url} does not answer: {error!r}") from error
        finally:
            connection.close()
        try:
            answer = json.loads(text)
        except ValueError:
            raise JolokiaError(f"the JMX agent at {self._url} answered {response.status} {response.reason}") from None
        if answer.get("status") != http.client.OK:
            what = request.get("operation") or request.get("attribute")
            raise JolokiaError(
                f"{what} of {request['mbean']} failed: {answer.get('error')}", answer.get("error_type", "")
            )
        return answer["value"]


class QueueAdmin(ABC):
    """What can be done to the queues of a broker, whether or not this package has started it.

    Every method raises a :class:`JolokiaError` when the broker does not answer or refuses.
    """

    def __init__(self, jolokia: Jolokia) -> None:
        self._jolokia = jolokia

    @abstractmethod
    def version(self) -> str:
        """As the broker itself says it."""

    @abstractmethod
    def declare(self, queue: str) -> None:
        """Make a durable queue; nothing happens when there is one."""

    @abstractmethod
    def delete(self, queue: str) -> None:
        """Delete a queue with its messages and consumers; nothing happens when there is none."""

    @abstractmethod
    def counts(self, queue: str) -> QueueCounts:
        """Messages of a queue; those handed to a consumer are `unacked`.

        Raises:
            NodeError: no such queue.
        """

    @abstractmethod
    def purge(self, queue: str) -> None:
        """Delete the messages of a queue; on Artemis those with a consumer stay.

        Raises:
            NodeError: no such queue.
        """


class ActiveMqAdmin(QueueAdmin):
    """ActiveMQ Classic. The broker's name is the one its makers' configuration gives it."""

    _BROKER = "org.apache.activemq:type=Broker,brokerName=localhost"
    _ENCODED = str.maketrans({**dict.fromkeys(":,'\"", "_"), "?": "&qe;", "=": "&amp;", "*": "&ast;"})

    def version(self) -> str:
        return str(self._jolokia.read(self._BROKER, "BrokerVersion")["BrokerVersion"])

    def declare(self, queue: str) -> None:
        self._jolokia.call(self._BROKER, "addQueue(java.lang.String)", queue)

    def delete(self, queue: str) -> None:
        self._jolokia.call(self._BROKER, "removeQueue(java.lang.String)", queue)

    def counts(self, queue: str) -> QueueCounts:
        try:
            found = self._jolokia.read(self._mbean(queue), "QueueSize", "InFlightCount")
        except JolokiaError as error:
            raise _no_queue(queue, error) from error
        # What was purged in flight stays in flight until its consumer is gone.
        return QueueCounts(max(0, found["QueueSize"] - found["InFlightCount"]), found["InFlightCount"])

    def purge(self, queue: str) -> None:
        try:
            self._jolokia.call(self._mbean(queue), "purge()")
        except JolokiaError as error:
            raise _no_queue(queue, error) from error

    def _mbean(self, queue: str) -> str:
        # As JMXSupport.encodeObjectNamePart of the broker writes it.
        return f"{self._BROKER},destinationType=Queue,destinationName={queue.translate(self._ENCODED)}"


class ArtemisAdmin(QueueAdmin):
    """ActiveMQ Artemis, by the name of queues; a queue made here has an address of the same name."""

    def __init__(self, jolokia: Jolokia, name: str) -> None:
        """As any.

        Args:
            name: of the broker, the first element of its `broker.xml`.
        """
        super().__init__(jolokia)
        self._broker = f"org.apache.activemq.artemis:broker={_quoted(name)}"

    def version(self) -> str:
        return str(self._jolokia.read(self._broker, "Version")["Version"])

    def declare(self, queue: str) -> None:
        made = {"name": queue, "address": queue, "routing-type": "ANYCAST", "durable": True}
        made |= {"auto-create-address": True, "auto-delete": False}
        self._jolokia.call(self._broker, "createQueue(java.lang.String,boolean)", json.dumps(made), True)

    def delete(self, queue: str) -> None:
        operation = "destroyQueue(java.lang.String,boolean,boolean)"
        deadline = time.monotonic() + _DELETE_TIMEOUT_S
        while self._find(queue, "Name"):
            try:
                self._jolokia.call(self._broker, operation, queue, True, True)
            except JolokiaError:
                # Artemis 2.56 stumbles over a consumer whose connection is just ending.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_DELETE_RETRY_S)

    def counts(self, queue: str) -> QueueCounts:
        found = self._one(queue, "MessageCount", "DeliveringCount")[1]
        return QueueCounts(found["MessageCount"] - found["DeliveringCount"], found["DeliveringCount"])

    def added(self, queue: str) -> int:
        """How many messages came into a queue since the broker started; 0 if there is no such queue."""
        found = self._find(queue, "MessagesAdded")
        return sum(int(one["MessagesAdded"]) for one in found.values())

    def purge(self, queue: str) -> None:
        self._jolokia.call(self._one(queue, "Name")[0], "removeAllMessages()")

    def _one(self, queue: str, *attributes: str) -> tuple[str, dict[str, Any]]:
        found = self._find(queue, *attributes)
        if not found:
            raise _no_queue(queue, None)
        return next(iter(found.items()))

    def _find(self, queue: str, *attributes: str) -> dict[str, Any]:
        # A pattern: the address and the routing type of a queue others have made are not known.
        pattern = f"{self._broker},component=addresses,subcomponent=queues,queue={_quoted(queue)},*"
        try:
            return self._jolokia.read(pattern, *attributes)
        except JolokiaError as error:
            if error.kind != _MISSING:
                raise
            return {}


def _no_queue(queue: str, error: JolokiaError | None) -> NodeError:
    if error is not None and error.kind != _MISSING:
        return error
    return NodeError(f"there is no queue {queue!r}")


def _quoted(text: str) -> str:
    # As javax.management.ObjectName.quote.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?").replace("*", "\\*")
    return f'"{escaped}"'
