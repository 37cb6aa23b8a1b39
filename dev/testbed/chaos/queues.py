"""The broker of a demo or a soak: a private one that can be killed, or the user's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.sources.connections.session import ReceiveBuffer, SessionLostError
from pyspark_mq.spark_source.options import parse_options
from testbed.brokers.factory import make_node
from testbed.brokers.node import FROZEN_S, Node
from testbed.brokers.rabbitmq import RabbitNode
from testbed.clusters.cluster import Fault
from testbed.clusters.factory import make_cluster
from testbed.process import NodeError, poll
from testbed.publishers.amqp091 import publish_confirmed
from testbed.publishers.amqp10 import OutgoingMessage, publish_amqp10
from testbed.publishers.stomp import publish_stomp

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ClusterBroker", "OwnBroker", "PrivateBroker", "ids_of"]

_CONFIRM_TIMEOUT_S = 30.0
_OPEN_TIMEOUT_S = 10.0
#: Messages left are counted by taking them without acknowledging: as long as they keep coming.
_QUIET_S = 2.0
_LOOKED_AT = 5_000
#: The last acknowledgements may be a moment behind on the node of a cluster that is asked.
_EMPTY_TIMEOUT_S = 60.0
#: Of several queues each is sent so many times as much as the next.
_RATES = 4


class PrivateBroker:
    """A node of its own, started and ended with this object, with the queues that `queue` names with commas between.

    Attributes:
        name, url, protocol: values of the options.
        node: the broker.
    """

    def __init__(
        self,
        name: str,
        queue: str,
        protocol: str | None = None,
        *,
        version: str = "",
        quorum: bool = False,
        **settings: Any,
    ) -> None:
        self.name = name
        self.protocol = protocol or (AMQP_0_9_1 if name == "rabbitmq" else STOMP)
        self._queues = queue.split(",")
        self._quorum = quorum
        self.node: Node = make_node(name, version, **settings)

    def __enter__(self) -> Self:
        self.node.__enter__()
        for queue in self._queues:
            if isinstance(self.node, RabbitNode):
                self.node.declare(queue, quorum=self._quorum)
            else:
                self.node.declare(queue)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.node.__exit__(kind, error, trace)

    @property
    def title(self) -> str:
        """What it is, for reports."""
        return self.name

    @property
    def version(self) -> str:
        """Of the broker."""
        return self.node.version

    @property
    def url(self) -> str:
        return self.node.url(self.protocol)

    @property
    def options(self) -> dict[str, str]:
        """Options of the source, beside broker, URL and queue."""
        return {"protocol": self.protocol, **ids_of(self.name, self.protocol)}

    def send(self, bodies: Sequence[bytes], ids: Sequence[str]) -> None:
        """Publish, confirmed: a :data:`.Send`. Of several queues an ID has the same one each time, the first most."""
        parts: dict[str, tuple[list[bytes], list[str]]] = {queue: ([], []) for queue in self._queues}
        for body, key in zip(bodies, ids, strict=True):
            part = parts[self.queue_of(key)]
            part[0].append(body)
            part[1].append(key)
        for queue, (some, theirs) in parts.items():
            if some:
                self.node.publish(queue, some, ids=theirs, protocol=self.protocol, timeout_s=_CONFIRM_TIMEOUT_S)

    def queue_of(self, key: str) -> str:
        """Where a message with this ID goes."""
        *queues, last = self._queues
        number = crc32(key.encode())
        for queue in queues:
            number, rest = divmod(number, _RATES)
            if rest:
                return queue
        return last

    def left(self) -> int:
        """Messages in the queues, waiting or handed out."""
        return sum(self.node.counts(queue).total for queue in self._queues)

    def freeze(self) -> bool:
        """SIGSTOP for longer than heartbeats last, and SIGCONT."""
        self.node.freeze(FROZEN_S)
        return True

    def kill_and_start(self) -> bool:
        """``kill -9``, and a start with its data."""
        self.node.kill()
        self.node.start()
        return True


class ClusterBroker:
    """A cluster of its own, started and ended with this object; all its nodes are candidates in `url`.

    Attributes:
        name, protocol: values of the options.

    Raises:
        NodeError: what it needs is not installed, or it is not read over that protocol.
    """

    def __init__(self, name: str, queue: str, protocol: str | None = None, *, version: str = "") -> None:
        self.name = name
        self._queue = queue
        self._cluster = make_cluster(name, version)
        self.protocol = protocol or self._cluster.protocols[0]
        if self.protocol not in self._cluster.protocols:
            self._cluster.close()
            raise NodeError(f"clusters of {name!r} are read over {', '.join(self._cluster.protocols)}")

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        self._cluster.declare(self._queue)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.__exit__(kind, error, trace)

    @property
    def title(self) -> str:
        """What it is, for reports."""
        return self._cluster.title

    @property
    def version(self) -> str:
        """Of the brokers."""
        return self._cluster.version

    @property
    def url(self) -> str:
        return self._cluster.url(self.protocol)

    @property
    def options(self) -> dict[str, str]:
        """Options of the source, beside broker, URL and queue."""
        return {"protocol": self.protocol, **ids_of(self.name, self.protocol)}

    def send(self, bodies: Sequence[bytes], ids: Sequence[str]) -> None:
        """Publish, confirmed, to whichever node is up: a :data:`.Send`."""
        self._cluster.publish(self._queue, bodies, ids, self.protocol)

    def left(self) -> int:
        """Messages in the queue, once they do not get fewer."""
        poll(lambda: self._cluster.counts(self._queue).total == 0, _EMPTY_TIMEOUT_S, interval_s=0.5)
        return self._cluster.counts(self._queue).total

    def faults(self) -> dict[str, Fault]:
        """What a chaos test does to it."""
        return self._cluster.faults(self._queue)


class OwnBroker:
    """A broker that somebody runs; nothing is done to it but publishing and reading.

    Attributes:
        name, url, protocol: values of the options.

    Raises:
        OptionError: they do not fit together.
    """

    def __init__(self, name: str, url: str, queue: str, protocol: str | None) -> None:
        chosen = {"broker": name, "url": url, "queue": queue} | ({"protocol": protocol} if protocol else {})
        self._endpoint = parse_options(chosen).settings.endpoint
        self.name = name
        self.url = url.split(",", maxsplit=1)[0]
        self.protocol = self._endpoint.protocol
        self._queue = queue
        if self.protocol == AMQP_0_9_1:
            self._declare()

    def _declare(self) -> None:
        import pika  # noqa: PLC0415 - one of three is used

        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        connection.channel().queue_declare(self._queue, durable=True)
        connection.close()

    @property
    def options(self) -> dict[str, str]:
        """Options of the source, beside broker, URL and queue."""
        return {"protocol": self.protocol, **ids_of(self.name, self.protocol)}

    def send(self, bodies: Sequence[bytes], ids: Sequence[str]) -> None:
        """Publish, confirmed: a :data:`.Send`."""
        broker, messages = BROKERS[self.name], zip(bodies, ids, strict=True)
        if self.protocol == STOMP and broker.stomp is not None:
            destination = broker.stomp.queue.format(name=self._queue)
            given = "correlation-id" if ids_of(self.name, STOMP) else broker.stomp.id_header
            headed = ((body, {given: key}) for body, key in messages)
            publish_stomp(self.url, destination, headed, timeout_s=_CONFIRM_TIMEOUT_S)
        elif self.protocol == AMQP_1_0 and broker.amqp10 is not None:
            address = broker.amqp10.queue.format(name=self._queue)
            outgoing = (OutgoingMessage(body, key) for body, key in messages)
            publish_amqp10(self.url, address, outgoing, timeout_s=_CONFIRM_TIMEOUT_S)
        else:
            import pika  # noqa: PLC0415

            mailed = ((body, pika.BasicProperties(message_id=key, delivery_mode=2)) for body, key in messages)
            publish_confirmed(pika.URLParameters(self.url), self._queue, mailed, timeout_s=_CONFIRM_TIMEOUT_S)

    def left(self) -> int:
        """Messages that a consumer is handed, up to some thousands."""
        consumer = session_class(self.protocol)(self._endpoint, 0, ReceiveBuffer())
        try:
            consumer.open(self._endpoint.urls[0], _OPEN_TIMEOUT_S)
            consumer.consume(_LOOKED_AT)
            seen, since = -1, time.monotonic()
            while time.monotonic() - since < _QUIET_S:
                consumer.run(0.1)
                if consumer.buffer.deliveries > seen:
                    seen, since = consumer.buffer.deliveries, time.monotonic()
        except SessionLostError:
            pass
        finally:
            consumer.close()
        return consumer.buffer.deliveries


def ids_of(name: str, protocol: str) -> dict[str, str]:
    """Where the IDs are.

    A producer whose confirmation is lost sends again. Where the broker gives the IDs the second message has another
    one, so the producer's own are in the correlation ID.
    """
    stomp = BROKERS[name].stomp
    own = protocol == STOMP and stomp is not None and stomp.id_header == "message-id"
    return {"messageIdFrom": "correlation-id"} if own else {}
