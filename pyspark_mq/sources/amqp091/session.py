"""AMQP 0-9-1 by pika.

The session drives pika's callback connection directly: :meth:`Amqp091Session.run` runs its I/O loop for a while on the
supervisor's thread. pika's blocking connection adds a layer per message, and rejects its buffered messages when a
consumer is cancelled.

A flush marker confirms acknowledgements: it is a passive queue.declare sent after them on the same channel. A channel
handles its methods in order, so the answer proves that the earlier methods were processed (measured on classic and
quorum queues; a classic queue may write to disk half a second later, which `settleGrace` covers). The answer also
reports the depth of the queue. At most one flush marker is outstanding; the next one covers everything sent meanwhile.
On a slow link the answer arrives after a whole window, and pika sends a declare only when the previous declare is
answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pika

from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.brokers.facts import version_of
from pyspark_mq.decode.amqp091 import Amqp091Batch, as_text, unreadable_of
from pyspark_mq.decode.amqp091_properties import Raw, check, unreadable
from pyspark_mq.decode.batch import ROW_BYTES, DeliveryBatch
from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MessageError, OptionError
from pyspark_mq.logs import leave_out_own_lines
from pyspark_mq.sources.amqp091.client import Answer, Loop, PikaConnection
from pyspark_mq.sources.amqp091.errors import connect_error, handshake_hint, queue_error, reason_of, was_stated
from pyspark_mq.sources.amqp091.frames import Amqp091FrameError
from pyspark_mq.sources.amqp091.login import connection_parameters
from pyspark_mq.sources.connections.session import Greeting, QueueDepth, Session, SessionLostError
from pyspark_mq.sources.endpoint import exclusive_error
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["Amqp091Session"]

_LOG = logging.getLogger("pyspark_mq")
#: The version from which a quorum queue counts no delivery of messages that a consumer returns.
_RETURNS_SINCE = (4, 3)
# pika writes a traceback for each failed attempt; this package reports failed attempts itself.
leave_out_own_lines("pika")

_CLOSE_TIMEOUT_S = 1.0
#: Header of each message of a stream, as a short string with its length (AMQP 0-9-1, 4.2.5.3).
_STREAM_OFFSET = b"\x0fx-stream-offset"
#: Interval for checking the file with a secret. Tokens are replaced minutes before they expire.
_SECRET_LOOK_S = 5.0


class Amqp091Session(Session):
    """One connection with one channel. Each widening of the window adds consumers to the channel."""

    batches: ClassVar[type[DeliveryBatch]] = Amqp091Batch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._secret: str | None = None
        self._loop = Loop(lambda: self._ended(SessionLostError("the broker closed the connection")))
        self._pika: PikaConnection | None = None
        self._channel: Any = None
        self._queue = self.endpoint.queue or ""
        self._consumer_tags: list[str] = []
        self._started = 0
        # The current window; the sum of the windows of all consumers so far; the newest delivery tag.
        self._window = self._granted = self._last_tag = 0
        #: Whether any delivery was acknowledged or rejected.
        self._acknowledged = self._reading_one = False
        self._end: object = None
        #: Acknowledgements not covered by a flush marker yet; acknowledgements covered by the outstanding marker, or
        #: None.
        self._unconfirmed: list[int] = []
        self._confirming: list[int] | None = None
        self._url: BrokerUrl | None = None

    # -- opening

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        deadline = self.now_s() + timeout_s
        self._url = url
        opened = Answer(self._loop)
        self._pika = PikaConnection(
            self._parameters(url, timeout_s),
            on_open_callback=opened,
            on_open_error_callback=lambda _, error: self._ended(error),
            on_close_callback=lambda _, error: self._ended(error),
            custom_ioloop=self._loop,
        )
        try:
            self._until(lambda: opened.came, deadline)
        except SessionLostError:
            raise connect_error(self._end, url, self.endpoint) from None
        except TimeoutError:
            text = f"{url}: no answer within {timeout_s:.0f} s{handshake_hint((), url)}"
            raise BrokerUnavailableError(text) from None
        try:
            depth = self._open_queue(deadline)
        except SessionLostError:
            raise queue_error(self._end, url, self.endpoint) from None
        except TimeoutError:
            text = f"{url}: {self.endpoint.destination} did not answer within {timeout_s:.0f} s"
            raise BrokerUnavailableError(text) from None
        if self.endpoint.password_file is not None:
            self._loop.call_later(_SECRET_LOOK_S, partial(self._renew_secret, url))
        return Greeting(url, self._broker_id(), depth, server=f"{self._field('product')}/{self._field('version')}")

    def _renew_secret(self, url: BrokerUrl) -> None:
        """Send the broker the secret in the file, if it has changed.

        When a token expires, the session ends, unless the token was replaced before (connection.update-secret,
        RabbitMQ's extension for OAuth 2). If the file cannot be read, the next check tries again.
        """
        with suppress(OptionError):
            secret = self.endpoint.credentials(url)[1]
            if secret != self._secret and self._pika is not None and self._pika.is_open:
                self._secret = secret
                self._pika.update_secret(secret, "passwordFile has changed", callback=lambda _: None)
                _LOG.info("%s: sent the broker the new secret from 'passwordFile'", url)
        self._loop.call_later(_SECRET_LOOK_S, partial(self._renew_secret, url))

    def _broker_id(self) -> str:
        """Return the cluster's name, if it has one.

        In a cluster without a name each node reports its own name, `rabbit@host` (RabbitMQ 3.10, `rabbit_nodes`). A URL
        with several candidates means a cluster; a hosted broker may be a cluster.
        """
        name = self._field("cluster_name")
        return "" if "@" in name and self.endpoint.clustered else name

    def _field(self, name: str) -> str:
        """Return a server property as text; empty if missing."""
        assert self._pika is not None
        return as_text((self._pika.server_properties or {}).get(name)) or ""

    def _parameters(self, url: BrokerUrl, timeout_s: float) -> pika.ConnectionParameters:
        login = self.endpoint.credentials(url)
        self._secret = login[1]
        name = f"pyspark-mq {self.endpoint.destination}"
        return connection_parameters(self.endpoint, url, timeout_s, login, name, self.options.attempt)

    def _open_queue(self, deadline: float) -> QueueDepth:
        opened = Answer(self._loop)
        assert self._pika is not None
        self._channel = self._pika.channel(on_open_callback=opened)
        self._channel.add_on_close_callback(lambda _, error: self._ended(error))
        cancelled = SessionLostError("the broker cancelled the consumer")
        self._channel.add_on_cancel_callback(lambda _: self._ended(cancelled))
        self._until(lambda: opened.came, deadline)
        if self.endpoint.topic is not None:
            self._bind_topic(self.endpoint.topic, deadline)
        return self._depth(self._call(deadline, self._channel.queue_declare, self._queue, passive=True), 0)

    def _bind_topic(self, topic: str, deadline: float) -> None:
        """Bind a queue to the exchange that stands for the topic. A durable subscription gets a durable queue."""
        name = self.endpoint.subscription
        kind = {"durable": name is not None, "exclusive": name is None, "auto_delete": name is None}
        self._call(deadline, self._channel.exchange_declare, topic, passive=True)
        declared = self._call(deadline, self._channel.queue_declare, name or "", **kind)
        self._queue = declared.method.queue
        self._call(deadline, self._channel.queue_bind, self._queue, topic, routing_key="#")

    def _call(self, deadline: float, method: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        """Call a synchronous method of the channel and wait for its answer."""
        answer = Answer(self._loop)
        method(*args, **kwargs, callback=answer)
        self._until(lambda: answer.came, deadline)
        return answer.value

    def _depth(self, frame: Any, own: int) -> QueueDepth:
        return QueueDepth(frame.method.message_count, frame.method.consumer_count - own, own)

    # -- receiving

    def consume(self, window: int) -> None:
        """Start a consumer, or another one if the window has grown.

        A consumer's window is fixed. Cancelling a consumer returns the messages on their way to it: pika returns them
        (Channel._on_deliver, 1.3.2 and 1.4.4), and so do quorum queues (RabbitMQ 3.10), which count each as a delivery.
        So another consumer takes the difference, unless the present window is full: then no message is on its way, and
        a new consumer, which counts from zero, replaces the old one. A quorum queue alternates between consumers, so
        with several consumers messages arrive slightly out of order.

        Consumer tags ascend: when a session ends, a quorum queue requeues messages in the order of the tags (measured
        on RabbitMQ 3.10). The first consumer's messages are redelivered first, so a replay finds them without receiving
        all others.
        """
        if self._acknowledged or self._last_tag < self._granted:
            self.extend(window)
            return
        for tag in self._consumer_tags:
            self._channel.basic_cancel(tag)
        self._consumer_tags.clear()
        self._window = 0
        self.extend(window)

    def extend(self, window: int) -> None:
        """Widen the window, always by adding consumers for the difference."""
        assert self._pika is not None
        maximum = self.endpoint.broker.prefetch_max[AMQP_0_9_1]
        if not self._granted:  # from the first consumer on, deliveries are cut out before pika decodes them
            self._pika.read_deliveries(self._channel.channel_number, self._deliver)
        while (part := min(window - self._window, maximum)) > 0:
            self._window += part
            self._granted += part
            # RabbitMQ applies this to each consumer started later on the channel (global=False).
            self._channel.basic_qos(prefetch_count=part)
            self._started += 1
            tag = f"pyspark-mq-{self._started:06}"
            self._channel.basic_consume(self._queue, lambda *_: None, consumer_tag=tag, callback=self._consumes)
            self._consumer_tags.append(tag)

    def _consumes(self, _: Any) -> None:
        self.consuming = True

    def _deliver(self, raws: list[Raw] | Amqp091Batch) -> None:
        """Take deliveries in order, up to the first one that ends the session."""
        if self._end is not None:
            return
        tags = np.array([raw[0] for raw in raws], np.uint64).astype(np.int64) if isinstance(raws, list) else raws.tags
        ascend = tags > np.append(self._last_tag, tags[:-1])
        if not ascend.all():
            place = int(np.argmin(ascend))
            self._deliver(raws[:place])
            self._ended(Amqp091FrameError(f"delivery tag {tags[place]} follows {self._last_tag}"))
            return
        if isinstance(raws, list):
            for place, error in check(raws):
                raws[place] = marked = unreadable(raws[place], error)
                if not self.options.keeps_unreadable:
                    self._ended(self._refuse(unreadable_of(marked)))
                    del raws[place:]
                    break
        if not raws:
            return
        if not self._last_tag and _STREAM_OFFSET in (raws[0][2] if isinstance(raws, list) else raws.block(0)):
            self._ask_for_stream()
        self.buffer.inbox.extend(raws if isinstance(raws, list) else (raws,))
        self._last_tag = int(tags[len(raws) - 1])
        size = sum(map(Amqp091Batch.size, raws)) + ROW_BYTES * len(raws) if isinstance(raws, list) else raws.size_bytes
        self.buffer.count(len(raws), size)
        if self.buffer.full and (not self.paused or self._reading_one):
            # Cancelling the consumer would add deliveries, and the broker would not count it while it holds messages.
            self.paused = True
            self._reading_one = False
            self._loop.hold()

    def _ask_for_stream(self) -> None:
        """Refuse a stream. A queue may hold messages copied from a stream, so ask the broker whether this is a stream.

        The broker accepts a consumer with an offset only on a stream, and refuses it elsewhere (``invalid arg
        'x-stream-offset'``, measured on 3.10 and 4.3). The refusal closes just the channel.
        """

        def consume(channel: Any) -> None:
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(
                self._queue, lambda *_: None, arguments={"x-stream-offset": "next"},
                callback=lambda _: self._ended(self._refuse_stream()),
            )  # fmt: skip

        assert self._pika is not None
        self._pika.channel(on_open_callback=consume)

    def _resume(self) -> None:
        self.paused = self._reading_one = False
        if self._pika is not None:
            self._pika.looks = False
        self._loop.release()

    def run(self, timeout_s: float) -> None:
        self._raise_if_ended()
        if self.paused and self._pika is not None:
            # To see that the broker is alive, pika counts the bytes it gets, and unread bytes do not reach pika.
            self._pika.bytes_received += 1
            if self.keep_alive_read_due and not self._reading_one:
                self._reading_one = self._pika.looks = True
                self._loop.release()
        timer = self._loop.call_later(timeout_s, self._loop.stop)
        try:
            self._loop.start()
        except Exception as error:  # noqa: BLE001 - pika raises whatever it runs into
            # A dead connection that pika has not noticed, or frames that are not allowed. Earlier deliveries are valid.
            self._ended(getattr(self._pika, "_error", None) or error)
        finally:
            self._loop.remove_timeout(timer)
        self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        if self._end is None:
            return
        if isinstance(self._end, MessageError | DestinationError):
            raise self._end
        # If another connection has an exclusive consumer, the broker reports that only when consuming begins.
        exclusive = self._url and exclusive_error(reason_of(self._end), self._url, self.endpoint)
        if exclusive:
            raise exclusive
        raise SessionLostError(reason_of(self._end), stated=was_stated(self._end))

    def _ended(self, error: object) -> None:
        if self._end is None:
            self._end = error
        self._loop.stop()

    def wake(self) -> None:
        with suppress(Exception):  # the loop is closed: there is nothing to wake
            self._loop.add_callback_threadsafe(self._loop.stop)

    # -- acknowledging

    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        self._acknowledged = self._acknowledged or upto > 0 or bool(singles)
        if upto:
            self._channel.basic_ack(upto, multiple=True)
        for tag in singles:
            self._channel.basic_ack(tag)
        self._unconfirmed.append(number)
        self._send_flush_marker()

    def ask_depth(self) -> None:
        self._send_flush_marker()  # its answer reports the depth as well

    def _send_flush_marker(self) -> None:
        """Send a flush marker, unless one is outstanding."""
        if self._confirming is not None:
            return
        self._confirming, self._unconfirmed = self._unconfirmed, []
        answered = partial(self._answered, len(self._consumer_tags))
        self._channel.queue_declare(self._queue, passive=True, callback=answered)

    def _answered(self, own: int, frame: Any) -> None:
        confirmed, self._confirming = self._confirming or [], None
        for number in confirmed:
            self.buffer.confirmed(number)
        self.buffer.reported(self._depth(frame, own))
        if self._unconfirmed:
            self._send_flush_marker()

    def reject(self, tags: Sequence[int]) -> None:
        """Reject without requeueing; the broker dead-letters if the queue has a dead-letter exchange."""
        self._acknowledged = True
        for tag in tags:
            self._channel.basic_reject(tag, requeue=False)

    def close(self) -> None:
        connection = self._pika
        if connection is None:
            self._loop.close()
            return
        deadline = self.now_s() + _CLOSE_TIMEOUT_S
        try:
            if not (connection.is_closing or connection.is_closed):
                returns = version_of(self._field("version")) >= _RETURNS_SINCE
                if returns and self._channel is not None and self._channel.is_open:
                    # A quorum queue counts a delivery of what the end of a channel returns, but not of what its
                    # consumer returns. Without consumers, nothing comes back here. In 3.10 this costs the order.
                    for tag in self._consumer_tags:
                        self._channel.basic_cancel(tag)
                    self._channel.basic_nack(0, multiple=True)
                connection.close()
            # The answer to the close comes after all unread bytes.
            while not self.paused and not connection.is_closed and self.now_s() < deadline:
                timer = self._loop.call_later(0.1, self._loop.stop)
                self._loop.start()
                self._loop.remove_timeout(timer)
        except Exception as failed:  # noqa: BLE001 - the session is over, whatever pika says
            _LOG.debug("closing: %s", self.endpoint.hide(str(failed)))
        finally:
            self._drop_socket(connection)

    def _drop_socket(self, connection: Any) -> None:
        """Abort a connection that did not close in time, because it would otherwise keep its messages."""
        transport = getattr(connection, "_transport", None)
        if transport is not None and not connection.is_closed:
            with suppress(Exception):
                transport.abort()
                # A callback of the loop closes the socket.
                self._loop.add_callback_threadsafe(self._loop.stop)
                self._loop.start()
        self._loop.close()
