"""A bare client that empties a queue: `python -m benchmarks.bare PROTOCOL BROKER URL QUEUE MESSAGES`.

BROKER is a value of the option `broker`, with a version where addresses differ by it, as in `rabbitmq-4.3`. A process
of its own, so that its CPU time can be told. It says `done` when the last acknowledgement was sent, and was confirmed
where the protocol does that, and ends when its standard input does. Each client is used in the fastest way it has with
manual acknowledgement on the machines this was written on.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0

#: So many are handed out ahead, and one acknowledgement is for so many; it never waits for its window.
_PREFETCH, _ACK_EVERY = 10_000, 5_000
#: ActiveMQ Classic hands out a page of 200 and waits for an acknowledgement.
_ACK_EVERY_CLASSIC = 100
_HOST, _USER, _PASSWORD = "127.0.0.1", "guest", "guest"


def drain_pika(url: str, queue: str, messages: int) -> None:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=_PREFETCH)
    for done, (method, _properties, _body) in enumerate(channel.consume(queue), start=1):
        if done % _ACK_EVERY == 0 or done == messages:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if done == messages:
            break
    channel.queue_declare(queue, passive=True)  # the acknowledgements have arrived


def drain_stomp(broker: str, url: str, queue: str, messages: int) -> None:
    import stomp

    dialect = BROKERS[broker.partition("-")[0]].stomp
    assert dialect is not None
    every = _ACK_EVERY_CLASSIC if broker.startswith("activemq") else _ACK_EVERY
    finished = threading.Event()

    class Listener(stomp.ConnectionListener):  # type: ignore[misc, unused-ignore]
        done = 0

        def on_message(self, frame: Any) -> None:
            self.done += 1
            if self.done == messages:
                connection.ack(frame.headers["ack"], receipt="last")
            elif self.done % every == 0:
                connection.ack(frame.headers["ack"])

        def on_receipt(self, _frame: Any) -> None:
            finished.set()

        def on_error(self, frame: Any) -> None:
            print(f"the broker answered: {frame.headers} {frame.body!r}", file=sys.stderr, flush=True)
            os._exit(1)  # this is a thread of stomp.py, which an exception would not end

    parts = urlsplit(url)
    host = (parts.hostname or _HOST, parts.port or 61613)
    connection = stomp.Connection12([host], auto_decode=False, vhost="/" if broker.startswith("rabbitmq") else None)
    connection.set_listener("", Listener())
    connection.connect(unquote(parts.username or _USER), unquote(parts.password or _PASSWORD), wait=True)
    # Artemis counts bytes there; a window that is full before an acknowledgement is due would be the end.
    window = -1 if dialect.window_bytes else _PREFETCH
    headers = {dialect.window_header: str(window), **dialect.queue_headers}
    connection.subscribe(dialect.queue.format(name=queue), "1", ack="client", headers=headers)
    finished.wait()


def drain_proton(broker: str, url: str, queue: str, messages: int) -> None:
    """With a plain handler of the reactor: a `MessagingHandler` costs a tenth to a half more CPU (0.40)."""
    from proton import Delivery, Handler, Message, symbol
    from proton.reactor import Container, LinkOption

    name, _, version = broker.partition("-")
    dialect = BROKERS[name].amqp10
    assert dialect is not None
    address, capabilities = dialect.queue_address(queue, version), dialect.capabilities
    parts = urlsplit(url)

    class Source(LinkOption):  # type: ignore[misc, unused-ignore]
        def apply(self, link: Any) -> None:
            if capabilities is not None:
                link.source.capabilities.put_object(symbol(capabilities[0]))

    class Reader(Handler):  # type: ignore[misc, unused-ignore]
        done = 0

        def on_reactor_init(self, event: Any) -> None:
            self.connection = event.container.connect(
                f"amqp://{parts.hostname}:{parts.port}",
                user=unquote(parts.username or _USER),
                password=unquote(parts.password or _PASSWORD),
                allow_insecure_mechs=True,
                reconnect=False,
            )
            self.receiver = event.container.create_receiver(self.connection, address, options=Source())
            self.receiver.flow(_PREFETCH)

        def on_delivery(self, event: Any) -> None:
            delivery = event.delivery
            if not delivery.readable or delivery.partial:
                return
            message = Message()
            message.decode(delivery.link.recv(delivery.pending))
            _touch(message.id, message.body)
            delivery.link.advance()
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
            self.done += 1
            if self.done == messages:
                self.connection.close()
            elif self.done % _ACK_EVERY == 0:
                self.receiver.flow(_ACK_EVERY)

    Container(Reader()).run()


def _touch(*_values: object) -> None:
    """What a program does with a message at least; proton makes some of it only when asked."""


def main(protocol: str, broker: str, url: str, queue: str, messages: int) -> None:
    """Empty the queue, say so, and wait."""
    if protocol == AMQP_0_9_1:
        drain_pika(url, queue, messages)
    elif protocol == AMQP_1_0:
        drain_proton(broker, url, queue, messages)
    else:
        drain_stomp(broker, url, queue, messages)
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
