"""AMQP 0-9-1 by pika.

pika's callback connection is driven directly: :meth:`Amqp091Consumer.run` runs its I/O loop for a
while on the receiver's thread. Compared to its blocking connection that saves a layer per message
and gives back control over cancelling: the blocking one rejects what it has buffered.

Acknowledgements are confirmed by a barrier, a passive queue.declare behind them on the same
channel: a channel handles its methods in order, so the answer says that the ones before were
taken (measured on classic and quorum queues; on classic ones the disk may be half a second
behind, which is what `settleGrace` is for). The answer also tells the depth of the queue.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import pika
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import AMQPConnectionError

from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.errors import BrokerUnavailableError, MessageError
from pyspark_mq.sources.amqp091.decoder import Amqp091Decoder, as_text
from pyspark_mq.sources.amqp091.errors import UNREADABLE, connect_error, handshake_hint, queue_error, reason_of
from pyspark_mq.sources.base import Consumer, Decoder, Greeting, QueueDepth, SessionLostError
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["Amqp091Consumer"]

_CLOSE_TIMEOUT_S = 1.0


class _Answer:
    """A callback that keeps what it was given and stops the loop."""

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop
        self.came = False
        self.value: Any = None

    def __call__(self, value: object) -> None:
        self.came = True
        self.value = value
        self._loop.stop()


class Amqp091Consumer(Consumer):
    """One connection with one channel and one consumer on it."""

    decoder: ClassVar[Decoder] = Amqp091Decoder()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # pika writes a traceback for each failed attempt; this package reports them itself.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        self._loop = IOLoop()
        self._pika: SelectConnection | None = None
        self._channel: Any = None
        self._queue = self.endpoint.queue or ""
        self._tag: str | None = None
        self._cancelling = False
        self._window = 0
        self._end: object = None

    # -- opening

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        """See :meth:`Consumer.open`."""
        deadline = time.monotonic() + timeout_s
        opened = _Answer(self._loop)
        self._pika = SelectConnection(
            self._parameters(url, timeout_s),
            on_open_callback=opened,
            on_open_error_callback=lambda _, error: self._ended(error),
            on_close_callback=lambda _, error: self._ended(error),
            custom_ioloop=self._loop,
        )
        try:
            self._until(opened, deadline)
        except SessionLostError:
            raise connect_error(self._end, url, self.endpoint) from None
        except TimeoutError:
            hint = handshake_hint((), url)
            raise BrokerUnavailableError(f"{url}: no answer within {timeout_s:.0f} s{hint}") from None
        try:
            depth = self._open_queue(deadline)
        except SessionLostError:
            raise queue_error(self._end, url, self.endpoint) from None
        except TimeoutError:
            text = f"{url}: {self.endpoint.destination} did not answer within {timeout_s:.0f} s"
            raise BrokerUnavailableError(text) from None
        properties = getattr(self._pika, "server_properties", None) or {}
        return Greeting(url, as_text(properties.get("cluster_name")) or "", depth)

    def _parameters(self, url: BrokerUrl, timeout_s: float) -> pika.ConnectionParameters:
        tls = self.endpoint.tls
        options: dict[str, Any] = {}
        if url.tls:
            options["ssl_options"] = pika.SSLOptions(tls.context(), url.host)
        return pika.ConnectionParameters(
            host=url.host,
            port=url.port,
            virtual_host=url.virtual_host,
            credentials=self._credentials(url),
            heartbeat=round(self.endpoint.heartbeat_s),
            socket_timeout=timeout_s,
            stack_timeout=timeout_s,
            client_properties={
                "product": "pyspark-mq",
                "connection_name": f"pyspark-mq {self.endpoint.destination}",
            },
            **options,
        )

    def _credentials(self, url: BrokerUrl) -> Any:
        username, password = self.endpoint.credentials(url)
        if username is None and url.tls and self.endpoint.tls.cert_file is not None:
            # A client certificate and nobody named: the certificate says who it is (SASL EXTERNAL).
            return pika.credentials.ExternalCredentials()
        return pika.PlainCredentials(
            "guest" if username is None else username, "guest" if password is None else password
        )

    def _open_queue(self, deadline: float) -> QueueDepth:
        opened = _Answer(self._loop)
        self._channel = cast(SelectConnection, self._pika).channel(on_open_callback=opened)
        self._channel.add_on_close_callback(lambda _, error: self._ended(error))
        self._channel.add_on_cancel_callback(
            lambda _: self._ended(SessionLostError("the broker cancelled the consumer"))
        )
        self._until(opened, deadline)
        if self.endpoint.topic is not None:
            self._bind_topic(self.endpoint.topic, deadline)
        return self._depth(self._call(deadline, self._channel.queue_declare, self._queue, passive=True))

    def _bind_topic(self, topic: str, deadline: float) -> None:
        """A topic is an exchange; its durable subscription is a queue bound to it."""
        durable = self.endpoint.subscription is not None
        self._call(deadline, self._channel.exchange_declare, topic, passive=True)
        declared = self._call(
            deadline,
            self._channel.queue_declare,
            self.endpoint.subscription or "",
            durable=durable,
            exclusive=not durable,
            auto_delete=not durable,
        )
        self._queue = declared.method.queue
        self._call(deadline, self._channel.queue_bind, self._queue, topic, routing_key="#")

    def _call(self, deadline: float, method: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        """A synchronous method of the channel, waited for."""
        answer = _Answer(self._loop)
        method(*args, **kwargs, callback=answer)
        self._until(answer, deadline)
        return answer.value

    def _depth(self, frame: Any) -> QueueDepth:
        own = 0 if self._tag is None else 1
        return QueueDepth(ready=frame.method.message_count, other_consumers=frame.method.consumer_count - own)

    def _until(self, answer: _Answer, deadline: float) -> None:
        while not answer.came:
            self.run(max(0.0, deadline - time.monotonic()))
            if not answer.came and time.monotonic() >= deadline:
                raise TimeoutError

    # -- receiving

    def consume(self, window: int) -> None:
        """See :meth:`Consumer.consume`. A new window counts from zero: it is a new consumer."""
        self._window = min(window, self.endpoint.broker.prefetch_max[AMQP_0_9_1])
        self._cancel()
        self._start()

    def _cancel(self) -> None:
        # What was handed out stays with this channel, un-acknowledged.
        if self._tag is not None:
            self._channel.basic_cancel(self._tag, callback=self._cancelled)
            self._tag = None
            self._cancelling = True

    def _cancelled(self, _: object) -> None:
        self._cancelling = False
        self._start()

    def _start(self) -> None:
        if self.paused or self._cancelling or self._tag is not None:
            return
        # RabbitMQ applies this to each consumer started later on the channel (global=False).
        self._channel.basic_qos(prefetch_count=self._window)
        self._tag = self._channel.basic_consume(self._queue, self._receiver())

    def _receiver(self) -> Callable[[Any, Any, Any, bytes], None]:
        append, arrived = self.inbox.append, self.arrived

        def receive(_: Any, method: Any, properties: Any, body: bytes) -> None:
            append((method, properties, body))
            self.bytes_arrived += len(body)
            if self.bytes_arrived - self.bytes_taken > self.bytes_allowed and not self.paused:
                self._pause()
            if not arrived.is_set():
                arrived.set()

        return receive

    def _pause(self) -> None:
        # The broker has up to 200 more on the way (its limit of unsent messages per consumer).
        self.paused = True
        self._cancel()

    def resume(self) -> None:
        """See :meth:`Consumer.resume`."""
        self.paused = False
        self._start()

    def run(self, timeout_s: float) -> None:
        """See :meth:`Consumer.run`."""
        self._raise_if_ended()
        timer = self._loop.call_later(timeout_s, self._loop.stop)
        try:
            self._loop.start()
        except (AMQPConnectionError, OSError, ValueError, AttributeError) as error:
            # pika raises plain errors on a connection it has not noticed to be dead.
            self._ended(error)
        finally:
            self._loop.remove_timeout(timer)
        self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        if self._end is None:
            return
        unreadable = UNREADABLE.match(str(self._end))
        if unreadable is not None:
            raise MessageError(
                f"{self.endpoint.destination} holds a message that pika cannot read ({unreadable[1]}), for example "
                "for a header with a date after the year 9999; remove the message, it was not acknowledged"
            )
        raise SessionLostError(reason_of(self._end))

    def _ended(self, error: object) -> None:
        if self._end is None:
            self._end = error
        self._loop.stop()

    def wake(self) -> None:
        """See :meth:`Consumer.wake`."""
        with contextlib.suppress(Exception):  # the loop is closed: nobody is left to be woken
            self._loop.add_callback_threadsafe(self._loop.stop)

    # -- settling

    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        """See :meth:`Consumer.acknowledge`."""
        if upto:
            self._channel.basic_ack(upto, multiple=True)
        for tag in singles:
            self._channel.basic_ack(tag)
        self._barrier(number)

    def _barrier(self, number: int | None) -> None:
        def answered(frame: Any) -> None:
            if number is not None:
                self.on_confirmed(number)
            self.on_depth(self._depth(frame))

        self._channel.queue_declare(self._queue, passive=True, callback=answered)

    def ask_depth(self) -> None:
        """See :meth:`Consumer.ask_depth`."""
        self._barrier(None)

    def reject(self, tags: Sequence[int]) -> None:
        """See :meth:`Consumer.reject`: dead-lettered if the queue has a dead-letter exchange."""
        for tag in tags:
            self._channel.basic_reject(tag, requeue=False)

    def close(self) -> None:
        """See :meth:`Consumer.close`."""
        connection = self._pika
        if connection is None:
            return
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        try:
            if connection.is_open:
                connection.close()
            while not connection.is_closed and time.monotonic() < deadline:
                timer = self._loop.call_later(0.1, self._loop.stop)
                self._loop.start()
                self._loop.remove_timeout(timer)
        except Exception as failed:  # noqa: BLE001 - the session is over, whatever pika says
            logging.getLogger(__name__).debug("closing: %s", failed)
        finally:
            self._drop_socket(connection)

    def _drop_socket(self, connection: Any) -> None:
        """A connection that did not close in time must not hold its messages hostage."""
        transport = getattr(connection, "_transport", None)
        if transport is not None and not connection.is_closed:
            transport.abort()
        self._loop.close()
