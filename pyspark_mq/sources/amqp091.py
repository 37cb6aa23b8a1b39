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
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, ClassVar, cast

import pika
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import (
    BrokerUnavailableError,
    DestinationError,
    MessageError,
    MqError,
    RefusedError,
)
from pyspark_mq.sources.base import Consumer, Decoder, Greeting, QueueDepth, SessionLostError
from pyspark_mq.sources.endpoint import Endpoint, tls_error
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["Amqp091Consumer", "Amqp091Decoder"]

Raw = tuple[Any, Any, bytes]  #: (pika.spec.Basic.Deliver, pika.BasicProperties, body)

_MICROSECONDS = 1_000_000
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_CLOSE_TIMEOUT_S = 1.0
_TLS_ALERT = re.compile(r"\[SSL: (\w*ALERT\w*)\]")
#: What pika makes of an exception in its own decoder: it ends the connection, keeps the words and
#: throws the exception away. Such a message would do the same to every connection to come.
_UNREADABLE = re.compile(
    r"Stream connection lost: "
    r"((?:ValueError|OverflowError|UnicodeDecodeError|InvalidFieldTypeException|KeyError|IndexError|error)\(.*)",
    re.DOTALL,
)


# -- columns ----------------------------------------------------------------------------------


def _text(value: object) -> str | None:
    """A field value for a string column; bytes that are no text are shown with escapes."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return _utc(value).isoformat()
    if isinstance(value, dict | list):
        return json.dumps(_plain(value), ensure_ascii=False)
    return f"{value:d}" if isinstance(value, int) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {_text(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | float):
        return value
    return int(value) if isinstance(value, int) else _text(value)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment


def _properties(raws: Sequence[Raw]) -> list[list[tuple[str, str | None]] | None]:
    return [
        [(_text(name) or "", _text(value)) for name, value in raw[1].headers.items()] if raw[1].headers else []
        for raw in raws
    ]


def _timestamp_us(properties: Any) -> int | None:
    # Seconds by the specification (section 4.2.5.4); producers that put milliseconds there get
    # a date far in the future, as in every other client. What does not fit the column is null.
    seconds = properties.timestamp
    if seconds is None or not 0 <= int(seconds) <= _INT64_MAX // _MICROSECONDS:
        return None
    return int(seconds) * _MICROSECONDS


def _expiration_us(properties: Any) -> int | None:
    # The property is a time to live in milliseconds as text, counted from publishing, so a
    # moment in time follows only if the producer also said when that was.
    published = _timestamp_us(properties)
    if published is None or not isinstance(properties.expiration, str):
        return None
    if not properties.expiration.isdecimal():
        return None
    moment = published + int(properties.expiration) * 1000
    return moment if moment <= _INT64_MAX else None


def _delivery_count(raw: Raw) -> int | None:
    method, properties, _ = raw
    # Quorum queues count the deliveries before this one (header x-delivery-count, absent at
    # first); classic queues only say that there was one.
    count = properties.headers.get("x-delivery-count") if properties.headers else None
    # On a classic queue a producer may have put anything there.
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _INT32_MAX:
        return int(count) + 1
    return None if method.redelivered else 1


class Amqp091Decoder(Decoder):
    """Columns of pika's (method, properties, body)."""

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        """Delivery tags: 1, 2, 3… on each channel (AMQP 0-9-1, domain delivery-tag)."""
        return [raw[0].delivery_tag for raw in raws]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        """Bodies as pika assembled them."""
        return [raw[2] for raw in raws]

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        """RabbitMQ gives no message an ID: these are the producer's."""
        if source.kind == "message-id":
            return [raw[1].message_id for raw in raws]
        if source.kind == "correlation-id":
            return [raw[1].correlation_id for raw in raws]
        name = source.name
        return [_header_id(raw[1].headers.get(name)) if raw[1].headers else None for raw in raws]

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], list[Any]]]] = MappingProxyType(
        {
            "properties": _properties,
            "correlationId": lambda raws: [_text(raw[1].correlation_id) for raw in raws],
            "replyTo": lambda raws: [_text(raw[1].reply_to) for raw in raws],
            "contentType": lambda raws: [_text(raw[1].content_type) for raw in raws],
            "type": lambda raws: [_text(raw[1].type) for raw in raws],
            "priority": lambda raws: [raw[1].priority for raw in raws],
            "timestamp": lambda raws: [_timestamp_us(raw[1]) for raw in raws],
            "expiration": lambda raws: [_expiration_us(raw[1]) for raw in raws],
            "redelivered": lambda raws: [raw[0].redelivered for raw in raws],
            "deliveryCount": lambda raws: [_delivery_count(raw) for raw in raws],
        }
    )


def _header_id(value: object) -> object:
    return value if isinstance(value, bytes) else _text(value)


# -- errors -----------------------------------------------------------------------------------


def _causes(error: object) -> list[BaseException]:
    """The error and everything pika wrapped in it, outermost first."""
    found: list[BaseException] = []
    pending: list[object] = [error]
    while pending:
        item = pending.pop(0)
        if not isinstance(item, BaseException) or item in found:
            continue
        found.append(item)
        pending += [getattr(item, "exception", None), *getattr(item, "exceptions", ()), *item.args]
        pending.append(item.__cause__)
    return found


def _reason(error: object) -> str:
    """The most telling words among the causes."""
    for cause in reversed(_causes(error)):
        if isinstance(cause, ConnectionClosedByBroker | ChannelClosedByBroker):
            return f"{cause.reply_code} {cause.reply_text}"
        if str(cause) and not isinstance(cause, AMQPConnectionError):
            return f"{type(cause).__name__}: {cause}"
    causes = _causes(error)
    return (str(causes[-1]) or type(causes[-1]).__name__) if causes else str(error)


def _connect_error(error: object, url: BrokerUrl, endpoint: Endpoint) -> MqError:
    """The error of this package for a failed attempt to connect."""
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return tls_error(cause, url)
        # What TLS 1.3 refuses comes after the handshake, and pika keeps only the words of it.
        alert = _TLS_ALERT.search(str(cause))
        if alert is not None:
            return tls_error(alert[1], url)
        if isinstance(cause, ProbableAuthenticationError) or _closed_with(cause, 403):
            user = endpoint.credentials(url)[0]
            return RefusedError(
                f"{url}: the broker refused the login of user '{user or 'guest'}'; check options "
                f"'username' and 'password' or those in 'url' ({_reason(error)})"
            )
        if isinstance(cause, ProbableAccessDeniedError) or _closed_with(cause, 530):
            reason = _reason(error)
            if "is down" in reason:
                break
            return RefusedError(
                f"{url}: the broker refused virtual host '{url.virtual_host}'; check the path of "
                f"'url' (%2F is '/') and the user's permissions ({reason})"
            )
    return BrokerUnavailableError(f"{url}: {_reason(error)}{_handshake_hint(causes, url)}")


def _closed_with(cause: BaseException, code: int) -> bool:
    return isinstance(cause, ConnectionClosedByBroker) and cause.reply_code == code


def _handshake_hint(causes: Sequence[BaseException], url: BrokerUrl) -> str:
    refused = any(isinstance(cause, ConnectionRefusedError | socket.gaierror) for cause in causes)
    if refused or url.tls:
        return ""
    if any(isinstance(cause, IncompatibleProtocolError) for cause in causes):
        return "; does the port speak AMQP 0-9-1? A TLS port needs amqps://"
    return "; if this is a TLS port use amqps://, and check that it speaks AMQP 0-9-1"


# -- the session ------------------------------------------------------------------------------


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
            raise _connect_error(self._end, url, self.endpoint) from None
        except TimeoutError:
            hint = _handshake_hint((), url)
            raise BrokerUnavailableError(f"{url}: no answer within {timeout_s:.0f} s{hint}") from None
        try:
            depth = self._open_queue(deadline)
        except SessionLostError:
            raise self._queue_error(url) from None
        except TimeoutError:
            text = f"{url}: {self.endpoint.destination} did not answer within {timeout_s:.0f} s"
            raise BrokerUnavailableError(text) from None
        properties = getattr(self._pika, "server_properties", None) or {}
        return Greeting(url, _text(properties.get("cluster_name")) or "", depth)

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

    def _queue_error(self, url: BrokerUrl) -> MqError:
        """The error of this package for a channel that ended while looking for the queue."""
        destination = self.endpoint.destination
        reason = _reason(self._end)
        for cause in _causes(self._end):
            if not isinstance(cause, ChannelClosedByBroker):
                continue
            if cause.reply_code == 404 and "down or inaccessible" not in reason:
                return DestinationError(
                    f"{destination} does not exist in virtual host '{url.virtual_host}' of {url}; "
                    f"declare it first, or correct the option ({reason})"
                )
            if cause.reply_code == 403:
                return DestinationError(
                    f"{destination} at {url} is not for this user or is in exclusive use by another consumer ({reason})"
                )
            if cause.reply_code == 406:
                return DestinationError(
                    f"{destination} at {url} exists with other properties; delete it or use "
                    f"another 'subscription' ({reason})"
                )
        return BrokerUnavailableError(f"{url}: {destination}: {reason}")

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
        unreadable = _UNREADABLE.match(str(self._end))
        if unreadable is not None:
            raise MessageError(
                f"{self.endpoint.destination} holds a message that pika cannot read ({unreadable[1]}), for example "
                "for a header with a date after the year 9999; remove the message, it was not acknowledged"
            )
        raise SessionLostError(_reason(self._end))

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
