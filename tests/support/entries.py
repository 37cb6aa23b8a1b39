"""Matrix entries: a broker in one version, a protocol, a kind of queue. What the contract tests and the failure matrix
run on."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from pyspark_mq.brokers import BROKERS, Broker
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.sources.connections.protocols import session_class
from pyspark_mq.sources.connections.session import Greeting, ReceiveBuffer, Session, SessionOptions
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.url import parse_urls
from testbed.brokers.containers import ContainerNode
from testbed.brokers.factory import make_node
from testbed.brokers.java import READER, READER_PASSWORD, JavaNode
from testbed.brokers.node import Node, QueueCounts
from testbed.brokers.rabbitmq import RabbitNode, RabbitQueues
from testbed.chaos.proxy import FaultProxy
from testbed.process import poll
from testbed.publishers.amqp10 import OutgoingMessage, publish_amqp10
from testbed.publishers.stomp import publish_stomp
from tests.support.decoding import Asked, take_each
from tests.support.engine import Engine, full_epochs

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ALL_ENTRIES",
    "CHAOS_ENTRIES",
    "ENTRIES",
    "TRACED_ENTRY",
    "LiveEntry",
    "MatrixEntry",
    "SessionRun",
    "entry_node",
]

_HOLD_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class MatrixEntry:
    """One column of the compatibility matrix.

    Attributes:
        broker: value of the option.
        protocol: value of the option.
        version: of the broker, as its node class takes it; empty for the default.
        kind: of the queue, where the broker has several.
    """

    broker: str
    protocol: str
    version: str = ""
    kind: str = ""

    @property
    def name(self) -> str:
        """For command lines and test IDs."""
        return "-".join(filter(None, [self.broker + self.version, self.protocol, self.kind]))


#: One for each broker and protocol, and both kinds of queue where the failure matrix asks for them.
ENTRIES = (
    MatrixEntry("rabbitmq", AMQP_0_9_1, kind="classic"),
    MatrixEntry("rabbitmq", AMQP_0_9_1, kind="quorum"),
    MatrixEntry("rabbitmq", STOMP),
    MatrixEntry("rabbitmq", AMQP_1_0),
    MatrixEntry("activemq", STOMP),
    MatrixEntry("activemq", AMQP_1_0),
    MatrixEntry("artemis", STOMP),
    MatrixEntry("artemis", AMQP_1_0),
    MatrixEntry("rabbitmq", AMQP_0_9_1, version="4.3", kind="quorum"),
    MatrixEntry("rabbitmq", STOMP, version="4.3", kind="quorum"),
    MatrixEntry("rabbitmq", AMQP_1_0, version="4.3", kind="quorum"),
)
#: The matrix entry whose runs the checker of the specification follows.
TRACED_ENTRY = MatrixEntry("rabbitmq", AMQP_0_9_1, kind="quorum")
#: One for each broker and protocol, and quorum queues of the newest RabbitMQ.
CHAOS_ENTRIES = tuple(entry for entry in ENTRIES if entry.version or entry.kind != "quorum")
#: All of them, with the further versions and kinds of the whole matrix.
ALL_ENTRIES = (
    *ENTRIES,
    MatrixEntry("rabbitmq", STOMP, kind="quorum"),
    MatrixEntry("rabbitmq", AMQP_1_0, kind="quorum"),
    MatrixEntry("activemq", STOMP, version="5"),
    MatrixEntry("activemq", AMQP_1_0, version="5"),
    MatrixEntry("rabbitmq", AMQP_0_9_1, version="4.0"),
    MatrixEntry("rabbitmq", STOMP, version="4.0"),
    MatrixEntry("rabbitmq", AMQP_1_0, version="4.0"),
    MatrixEntry("rabbitmq", AMQP_0_9_1, version="4.3", kind="classic"),
)


def entry_node(broker: str, version: str = "", **settings: Any) -> Node:
    """A node for tests, not started."""
    # Over AMQP 1.0 the broker alone decides when it gives a silent connection up: a minute by default.
    if broker == "rabbitmq":
        # Messages of more than 16 MiB are refused by default from 4.0 on.
        settings["config"] = {"heartbeat": 2, "max_message_size": 128 << 20, **settings.get("config", {})}
    else:
        settings = {"amqp_idle_timeout_ms": 4_000, **settings}
    return make_node(broker, version, **settings)


class LiveEntry:
    """A matrix entry with its broker running and an empty queue of its own."""

    def __init__(self, entry: MatrixEntry, node: Node) -> None:
        self.entry = entry
        self.node = node
        self.queue = f"test-{uuid.uuid4().hex[:12]}"
        self._published = 0

    def __enter__(self) -> Self:
        self._ensure_running()
        self.declare(self.queue)
        return self

    def __exit__(self, *_: object) -> None:
        self._ensure_running()
        self.node.delete(self.queue)

    def declare(self, queue: str, *, deliveries: int | None = None) -> None:
        """A queue of the matrix entry's kind.

        Args:
            deliveries: how often a message may come again before the queue gives it up, where it counts that.
        """
        if isinstance(self.node, RabbitQueues):
            quorum = self.entry.kind == "quorum"
            limit = {"x-delivery-limit": deliveries} if quorum and deliveries is not None else {}
            self.node.declare(queue, quorum=quorum, arguments=limit)
        else:
            self.node.declare(queue)

    def _ensure_running(self) -> None:
        if not self.node.running:
            self.node.start()

    def kill_and_start(self) -> None:
        """``kill -9`` of the broker, and a start with its data."""
        self.node.kill()
        self.node.start()

    # -- messages

    def publish(self, count: int, **properties: Any) -> list[str]:
        """Publish messages numbered over the life of this object; their bodies as text."""
        texts = [f"message {self._published + number}" for number in range(count)]
        self._published += count
        self.node.publish(self.queue, (text.encode() for text in texts), protocol=self.entry.protocol, **properties)
        return texts

    def topic(self) -> str:
        """A topic of its own; where topics are exchanges, made now."""
        name = f"topic-{uuid.uuid4().hex[:12]}"
        if self.entry.broker == "rabbitmq":
            self.on_channel(lambda channel: channel.exchange_declare(name, "topic", durable=True))
        return name

    def publish_topic(self, topic: str, count: int) -> list[str]:
        """As :meth:`publish`, to all subscriptions of a topic."""
        texts = [f"message {self._published + number}" for number in range(count)]
        self._published += count
        dialects, url = BROKERS[self.entry.broker], self.node.url(self.entry.protocol)
        if self.entry.broker == "rabbitmq":
            import pika

            def send(channel: Any) -> None:
                for text in texts:
                    named = pika.BasicProperties(message_id=text, delivery_mode=2)
                    channel.basic_publish(topic, "any.key", text.encode(), named)

            self.on_channel(send)
        elif self.entry.protocol == STOMP and dialects.stomp is not None:
            headers = {"destination-type": "MULTICAST"} if self.entry.broker == "artemis" else {}
            messages = ((text.encode(), headers) for text in texts)
            publish_stomp(url, dialects.stomp.topic.format(name=topic), messages)
        elif dialects.amqp10 is not None:
            outgoing = (OutgoingMessage(text.encode(), text) for text in texts)
            publish_amqp10(url, dialects.amqp10.topic_address(topic), outgoing, capability="topic")
        return texts

    def on_channel(self, work: Callable[[Any], object]) -> None:
        """Work on a channel of pika's with confirms. Without them a quorum queue of RabbitMQ 3.10 may lose messages."""
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(self.node.url(AMQP_0_9_1)))
        channel = connection.channel()
        channel.confirm_delivery()
        work(channel)
        connection.close()

    def counts(self) -> QueueCounts:
        """Messages waiting and handed out."""
        return self.node.counts(self.queue)

    def total(self) -> int:
        """Messages the broker has, waiting or handed out."""
        return self.counts().total

    # -- readers

    def url(self, proxy: FaultProxy | None = None) -> str:
        """Where to connect to, through a proxy if there is one."""
        url = self.node.url(self.entry.protocol)
        return url if proxy is None else url.replace(f":{urlsplit(url).port}", f":{proxy.port}")

    def amqp10_address(self) -> str:
        """Where clients of AMQP 1.0 find the queue."""
        dialect = BROKERS[self.entry.broker].amqp10
        assert dialect is not None
        return dialect.queue_address(self.queue, self.node.version)

    @contextmanager
    def reader(self) -> Iterator[dict[str, str]]:
        """Name and password of a user who may only read, as options of the source."""
        if isinstance(self.node, JavaNode):
            yield {"username": READER, "password": READER_PASSWORD}
        elif isinstance(self.node, RabbitNode):
            user = f"reader-{self.queue}"
            self.node.add_user(user, READER_PASSWORD, configure="^$", write="^$")
            try:
                yield {"username": user, "password": READER_PASSWORD}
            finally:
                self.node.delete_user(user)
        else:
            pytest.skip("the queue in memory and brokers in containers have one user here")

    def tls_url(self) -> str:
        """The same over TLS."""
        if isinstance(self.node, ContainerNode):
            pytest.skip("brokers in containers are started without TLS here")
        return self.node.url(self.entry.protocol, tls=True)

    def proxy(self) -> FaultProxy:
        """A proxy in front of the matrix entry's port."""
        return FaultProxy("127.0.0.1", urlsplit(self.url()).port or 0)

    def options(self, **options: object) -> dict[str, object]:
        """Options of the source, with those that name the matrix entry."""
        names = {"broker": self.entry.broker, "protocol": self.entry.protocol, "url": self.url(), "queue": self.queue}
        return {**names, **options}

    def engine(self, proxy: FaultProxy | None = None, **options: object) -> Engine:
        """A reader of the queue. Epochs with a limit are full, as long as there are messages."""
        full = full_epochs(options["maxMessagesPerTrigger"]) if "maxMessagesPerTrigger" in options else {}
        return Engine(**self.options(**{"url": self.url(proxy), **full, **options}))

    @property
    def keeps_order(self) -> bool:
        """Does what a session held come first, once the broker has noticed its end?"""
        return self.entry.broker == "rabbitmq"

    def through(self, proxy: FaultProxy) -> dict[str, Any]:
        """For :meth:`session`: connect through a proxy."""
        return {"urls": parse_urls(self.url(proxy))}

    @property
    def broker(self) -> Broker:
        """What this package knows of the broker."""
        return BROKERS[self.entry.broker]

    @property
    def is_plugin(self) -> bool:
        """Is AMQP 1.0 the plugin of RabbitMQ 3, which loses much when it converts messages to AMQP 0-9-1?"""
        return self.entry.broker == "rabbitmq" and self.node.version.startswith("3.")

    @property
    def counts_bytes(self) -> bool:
        """Does the broker take the window in bytes?"""
        dialect = BROKERS[self.entry.broker].stomp
        return self.entry.protocol == STOMP and dialect is not None and dialect.window_bytes > 0

    def make_session(self) -> type[Session]:
        """The consumer class of the matrix entry's protocol."""
        return session_class(self.entry.protocol)

    def endpoint(self, **changes: Any) -> Endpoint:
        """What a consumer of the queue is made with."""
        settings = {
            "broker": self.broker,
            "protocol": self.entry.protocol,
            "urls": parse_urls(self.url()),
            "queue": self.queue,
            "heartbeat_s": 10.0,
            **changes,
        }
        return Endpoint(**settings)

    @contextmanager
    def session(self, *, keeps_unreadable: bool = False, **changes: Any) -> Iterator[SessionRun]:
        """A consumer of the queue, without anything around it."""
        options = SessionOptions(keeps_unreadable=keeps_unreadable)
        session = SessionRun(self.endpoint(**changes), self.make_session(), options)
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def held_elsewhere(self, messages: int) -> Iterator[int]:
        """Another consumer holds this many messages, or one more if windows count bytes, and acknowledges none.

        How many it is.
        """
        most = messages + self.counts_bytes
        with self.session() as other:
            other.take(messages, window=messages)
            # What a reader that was killed had may still be on its way back.
            assert poll(lambda: messages <= self.counts().unacked <= most, 30)
            done = threading.Event()
            # It has to go on, or the broker takes it for gone.
            alive = threading.Thread(target=other.turn, args=(done.is_set, float("inf")))
            alive.start()
            try:
                yield self.counts().unacked
            finally:
                done.set()
                alive.join()


class SessionRun:
    """One consumer, run by the test's own thread."""

    _numbers = iter(range(1_000_000, 2_000_000))

    def __init__(self, endpoint: Endpoint, make: type[Session], options: SessionOptions = SessionOptions()) -> None:  # noqa: B008
        self.confirmed: list[int] = []
        buffer = ReceiveBuffer(confirmed=self.confirmed.append)
        self.consumer = make(endpoint, next(self._numbers), buffer, options)
        self.decoder = Asked(self.consumer.batches)
        self.raws: list[Any] = []
        self.greeting: Greeting | None = None

    def open(self, timeout_s: float = 10.0) -> Greeting:
        """Connect."""
        self.greeting = self.consumer.open(self.consumer.endpoint.urls[0], timeout_s)
        return self.greeting

    def consume(self, window: int) -> None:
        """Open if needed, and take messages in."""
        if self.greeting is None:
            self.open()
        self.consumer.consume(window)

    def turn(self, until: Callable[[], bool], timeout_s: float = _HOLD_TIMEOUT_S) -> bool:
        """Receive until a condition holds; False if it did not in time."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline:
                return False
            self.consumer.run(0.05)
            self.raws += take_each(self.consumer.buffer)
        return True

    def idle(self, seconds: float) -> None:
        """Receive for this long."""
        self.turn(lambda: False, seconds)

    def take(self, messages: int, window: int | None = None) -> list[str]:
        """Receive this many messages; the bodies of all that came, as text."""
        self.take_any(messages, window)
        return self.bodies()

    def take_any(self, messages: int, window: int | None = None) -> None:
        """Receive this many messages, whatever is in them."""
        self.consume(messages if window is None else window)
        assert self.turn(lambda: len(self.raws) >= messages), f"{len(self.raws)} of {messages} came"

    def bodies(self) -> list[str]:
        """Of all that came, as text."""
        return [body.decode() for body in self.decoder.bodies(self.raws)]

    def tags(self) -> list[int]:
        """Of all that came."""
        return self.decoder.tags(self.raws)

    def acknowledge(self, upto: int = 0, singles: Sequence[int] = ()) -> None:
        """Acknowledge, and wait for the confirmation."""
        number = 1 + max(self.confirmed, default=0)
        self.consumer.acknowledge(number, upto, singles)
        assert self.turn(lambda: number in self.confirmed), "not confirmed"

    def close(self) -> None:
        """The end of the session."""
        self.consumer.close()
