"""A program that writes to a queue: `python -m benchmarks.writer WHO PROTOCOL BROKER URL QUEUE MESSAGES BYTES`.

WHO is `ours`, a task of a write without Spark; `bare`, the client library with the same window of confirmations; or
`conversion`, what a task does before it writes: rows to messages with their IDs. It says `ready`, begins when it is
told a line, and says how long it took and the CPU time, as JSON. A process of its own, as tasks of Spark are.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0
from pyspark_mq.sink.columns import ColumnPlan, RowReader
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.publisher import WINDOW_MESSAGES, write_rows
from pyspark_mq.spark_source.sink_options import parse_sink_options

#: Rows of a batch, as Spark hands them over.
_ROWS = 10_000
_TURN = 500


def bodies(messages: int, size: int) -> list[bytes]:
    """Different ones."""
    return [b"%010d" % number + b"x" * (size - 10) for number in range(messages)]


def _batches(data: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(data), _ROWS):
        yield pa.RecordBatch.from_arrays([pa.array(data[start : start + _ROWS], pa.binary())], names=["body"])


def ours(broker: str, protocol: str, url: str, queue: str, data: Sequence[bytes]) -> Callable[[], object]:
    settings = parse_sink_options(
        {"broker": broker, "protocol": protocol, "url": url, "queue": queue}, streaming=True
    )  # fmt: skip
    plan, batches = ColumnPlan([("body", "binary")], settings), list(_batches(data))
    identity = Identity(("query", uuid.uuid4().hex, "0"), 0)
    return lambda: write_rows(batches, settings, plan, identity)


def conversion(broker: str, protocol: str, url: str, queue: str, data: Sequence[bytes]) -> Callable[[], object]:
    settings = parse_sink_options(
        {"broker": broker, "protocol": protocol, "url": url, "queue": queue}, streaming=True
    )  # fmt: skip
    reader = RowReader(ColumnPlan([("body", "binary")], settings), Identity(("query", "a", "0"), 0), {})
    batches = list(_batches(data))
    return lambda: [len(reader.messages(batch)) for batch in batches]


def bare(broker: str, protocol: str, url: str, queue: str, data: Sequence[bytes]) -> Callable[[], object]:
    if protocol == AMQP_0_9_1:
        return lambda: _by_pika(url, queue, data)
    if protocol == AMQP_1_0:
        return lambda: _by_proton(broker, url, queue, data)
    return lambda: _by_stomp(broker, url, queue, data)


def _by_pika(url: str, queue: str, data: Sequence[bytes]) -> None:
    import pika

    left, sent, confirmed = iter(data), 0, 0

    def opened(channel: Any) -> None:
        channel.confirm_delivery(answered, callback=lambda _: fill(channel))

    def fill(channel: Any) -> None:
        nonlocal sent
        for _ in range(_TURN):
            if sent - confirmed >= WINDOW_MESSAGES:
                return
            body = next(left, None)
            if body is None:
                return
            properties = pika.BasicProperties(message_id=str(uuid.uuid4()), delivery_mode=2)
            channel.basic_publish("", queue, body, properties, mandatory=True)
            sent += 1
        connection.ioloop.add_callback(lambda: fill(channel))

    def answered(frame: Any) -> None:
        nonlocal confirmed
        was_full = sent - confirmed >= WINDOW_MESSAGES
        # RabbitMQ confirms a queue's messages in order.
        confirmed = frame.method.delivery_tag if frame.method.multiple else confirmed + 1
        if confirmed >= len(data):
            connection.close()
        elif was_full:
            fill(channels[0])

    channels: list[Any] = []
    connection = pika.SelectConnection(
        pika.URLParameters(url),
        on_open_callback=lambda one: channels.append(one.channel(on_open_callback=opened)),
        on_close_callback=lambda one, _: one.ioloop.stop(),
    )
    connection.ioloop.start()
    assert confirmed >= len(data), f"{confirmed} of {len(data)}"


def _by_proton(broker: str, url: str, queue: str, data: Sequence[bytes]) -> None:
    from proton import Delivery, Handler, Message, symbol
    from proton.reactor import Container, LinkOption

    dialect = BROKERS[broker].amqp10
    assert dialect is not None
    address, capabilities = dialect.queue_address(queue, "4"), dialect.capabilities
    parts, left = urlsplit(url), iter(data)

    class Target(LinkOption):  # type: ignore[misc, unused-ignore]
        def apply(self, link: Any) -> None:
            if capabilities is not None:
                link.target.capabilities.put_object(symbol(capabilities[0]))

    class Writer(Handler):  # type: ignore[misc, unused-ignore]
        sent = confirmed = 0

        def on_reactor_init(self, event: Any) -> None:
            self.connection = event.container.connect(
                f"amqp://{parts.hostname}:{parts.port}", user=unquote(parts.username or "guest"),
                password=unquote(parts.password or "guest"), allow_insecure_mechs=True, reconnect=False,
            )  # fmt: skip
            self.sender = event.container.create_sender(self.connection, address, options=Target())

        def on_link_flow(self, _event: Any) -> None:
            self.fill()

        def fill(self) -> None:
            while self.sender.credit > 0 and self.sent - self.confirmed < WINDOW_MESSAGES:
                body = next(left, None)
                if body is None:
                    return
                key = str(uuid.uuid4())
                own = None if broker == "rabbitmq" else {"mq_id": key}
                self.sender.send(Message(body, id=key, durable=True, inferred=True, properties=own))
                self.sent += 1

        def on_delivery(self, event: Any) -> None:
            delivery = event.delivery
            if delivery.updated and delivery.remote_state == Delivery.ACCEPTED:
                delivery.settle()
                self.confirmed += 1
                if self.confirmed == len(data):
                    self.connection.close()
                else:
                    self.fill()

    writer = Writer()
    Container(writer).run()
    assert writer.confirmed == len(data), f"{writer.confirmed} of {len(data)}"


def _by_stomp(broker: str, url: str, queue: str, data: Sequence[bytes]) -> None:
    import stomp

    dialect = BROKERS[broker].stomp
    assert dialect is not None
    room, confirmed = threading.Semaphore(WINDOW_MESSAGES), threading.Semaphore(0)

    class Listener(stomp.ConnectionListener):  # type: ignore[misc, unused-ignore]
        def on_receipt(self, _frame: Any) -> None:
            room.release()
            confirmed.release()

    parts = urlsplit(url)
    connection = stomp.Connection12([(parts.hostname, parts.port)])
    connection.set_listener("", Listener())
    connection.connect(unquote(parts.username or ""), unquote(parts.password or ""), wait=True)
    where = dialect.queue.format(name=queue)
    for body in data:
        room.acquire()
        key = str(uuid.uuid4())
        headers = {"mq_id": key, "persistent": "true", "destination-type": "ANYCAST"}
        connection.send(where, body, headers=headers, receipt=key)
    for _ in data:
        confirmed.acquire()
    connection.disconnect()


def main(who: str, protocol: str, broker: str, url: str, queue: str, messages: int, size: int) -> None:
    """Get ready, wait, write, and say what it took."""
    run = {"ours": ours, "bare": bare, "conversion": conversion}[who](
        broker, protocol, url, queue, bodies(messages, size)
    )
    print("ready", flush=True)
    sys.stdin.readline()
    began, cpu_s = time.perf_counter(), time.process_time()
    run()
    print(json.dumps({"s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_s}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]), int(sys.argv[7]))
