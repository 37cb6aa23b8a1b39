"""Sessions over AMQP 0-9-1, with pika.

:meth:`Amqp091Session.run` runs the event loop of its connection for a while, on the supervisor's thread.

RabbitMQ does not answer acknowledgements. So the session sends a *flush marker* after them on the same channel: a
passive queue.declare. A channel processes its methods in order, so the answer proves that the acknowledgements were
processed. (This was tested on classic and quorum queues. A classic queue may write them to disk half a second later,
for which `settleGrace` is long enough.) The answer also has the depth of the queue. At most one flush marker is
unanswered, because pika sends a declare only when the previous one is answered. On a slow network, the answer arrives
after a whole prefetch window of messages. The next flush marker confirms everything that was sent meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pyspark_mq.brokers.base import AMQP_0_9_1
from pyspark_mq.brokers.facts import version_of
from pyspark_mq.decode.amqp091 import Amqp091Batch, unreadable_of
from pyspark_mq.decode.amqp091_properties import Raw, check, unreadable
from pyspark_mq.decode.batch import ROW_BYTES, DeliveryBatch
from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MessageError, OptionError
from pyspark_mq.sources.connections.session import Greeting, QueueDepth, Session, SessionLostError
from pyspark_mq.wire.amqp091.connection import Amqp091Connection
from pyspark_mq.wire.amqp091.errors import queue_error, reason_of, was_stated
from pyspark_mq.wire.amqp091.frames import Amqp091FrameError
from pyspark_mq.wire.connection import ConnectionLostError
from pyspark_mq.wire.endpoint import exclusive_error
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["Amqp091Session"]

_LOG = logging.getLogger("pyspark_mq")
#: From this version on a quorum queue does not count a delivery of messages that a consumer returns.
_RETURNS_SINCE = (4, 3)
#: The encoded name (AMQP 0-9-1, 4.2.5.3) of a header that each message of a RabbitMQ stream has.
_STREAM_OFFSET = b"\x0fx-stream-offset"
#: Interval at which the password file is checked for a new secret. Tokens are replaced minutes before they expire.
_SECRET_LOOK_S = 5.0


class Amqp091Session(Session):
    """A session over AMQP 0-9-1: one connection with one channel. If its window is widened, it may add consumers."""

    batches: ClassVar[type[DeliveryBatch]] = Amqp091Batch

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connection = Amqp091Connection(self.endpoint, self.now_s, self.options.stopping)
        self._channel: Any = None
        self._queue = self.endpoint.queue or ""
        self._consumer_tags: list[str] = []
        self._started = 0
        # The current window; the sum of the prefetches of all consumers that were started; the newest delivery tag.
        self._window = self._granted = self._last_tag = 0
        #: Whether any delivery was acknowledged or rejected; and whether a paused session is reading one delivery.
        self._acknowledged = self._reading_one = False
        #: Numbers of requests that a later flush marker will confirm. `_confirming`: numbers of requests that the
        #: unanswered flush marker will confirm; None if no flush marker is unanswered.
        self._unconfirmed: list[int] = []
        self._confirming: list[int] | None = None
        self._url: BrokerUrl | None = None

    # -- opening

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        deadline = self.now_s() + timeout_s
        self._url = url
        connection, late = self._connection, f"within {timeout_s:.0f} s"
        connection.open(url, deadline, f"pyspark-mq {self.endpoint.destination}", self.options.attempt, late)
        try:
            depth = self._open_queue(deadline)
        except ConnectionLostError:
            raise queue_error(connection.end, url, self.endpoint) from None
        except TimeoutError:
            raise BrokerUnavailableError(f"{url}: {self.endpoint.destination} did not answer {late}") from None
        if self.endpoint.password_file is not None:
            connection.loop.call_later(_SECRET_LOOK_S, partial(self._renew_secret, url))
        server = f"{connection.server_property('product')}/{connection.server_property('version')}"
        return Greeting(url, self._broker_id(), depth, server=server)

    def _renew_secret(self, url: BrokerUrl) -> None:
        """If the secret in the password file has changed, send it to the broker. Then schedule the next check.

        When an OAuth 2 token expires, the broker ends the session, unless it got a new token before
        (connection.update-secret, an extension of RabbitMQ).
        """
        connection = self._connection
        with suppress(OptionError):
            secret = self.endpoint.credentials(url)[1]
            if secret != connection.secret and connection.pika.is_open:
                connection.secret = secret
                connection.pika.update_secret(secret, "passwordFile has changed", callback=lambda _: None)
                _LOG.info("%s: sent the broker the new secret from 'passwordFile'", url)
        connection.loop.call_later(_SECRET_LOOK_S, partial(self._renew_secret, url))

    def _broker_id(self) -> str:
        """Return the name of the broker's cluster; empty if it may be the name of a single node of a cluster.

        If a cluster has no name of its own, each node reports its own name, `rabbit@host` (RabbitMQ 3.10,
        `rabbit_nodes`).
        """
        name = self._connection.server_property("cluster_name")
        return "" if "@" in name and self.endpoint.clustered else name

    def _open_queue(self, deadline: float) -> QueueDepth:
        self._channel = self._connection.channel(deadline)
        cancelled = SessionLostError("the broker cancelled the consumer")
        self._channel.add_on_cancel_callback(lambda _: self._connection.ended(cancelled))
        if self.endpoint.topic is not None:
            self._bind_topic(self.endpoint.topic, deadline)
        declare = self._channel.queue_declare
        return self._depth(self._connection.call(deadline, declare, self._queue, passive=True), 0)

    def _bind_topic(self, topic: str, deadline: float) -> None:
        """Bind a queue to the exchange that is the topic. For a durable subscription, the queue is durable."""
        name = self.endpoint.subscription
        kind = {"durable": name is not None, "exclusive": name is None, "auto_delete": name is None}
        channel, call = self._channel, partial(self._connection.call, deadline)
        call(channel.exchange_declare, topic, passive=True)
        self._queue = call(channel.queue_declare, name or "", **kind).method.queue
        call(channel.queue_bind, self._queue, topic, routing_key="#")

    def _depth(self, frame: Any, own: int) -> QueueDepth:
        return QueueDepth(frame.method.message_count, frame.method.consumer_count - own, own)

    # -- receiving

    def consume(self, window: int) -> None:
        """Start a consumer, or another one to widen the window.

        The prefetch of a consumer cannot be changed. If a consumer is cancelled, pika (Channel._on_deliver, 1.3.2 and
        1.4.4) and quorum queues (RabbitMQ 3.10) return messages that are on their way to it, and a quorum queue counts
        each of them as a delivery. So to widen the window, another consumer is added for the difference. A quorum queue
        alternates between its consumers, so messages then arrive slightly out of order. But if the window is full, and
        nothing was acknowledged or rejected yet, no message is on its way. Then a new consumer with the whole window
        replaces the others, and held messages do not count towards its window.

        The names of the consumers are in ascending order. When a session ends, a quorum queue requeues messages in the
        order of these names (RabbitMQ 3.10). So the messages of the first consumer are redelivered first, and a replay
        does not have to receive all other messages to find them.
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
        """Widen the window by adding consumers for the difference."""
        maximum = self.endpoint.broker.prefetch_max[AMQP_0_9_1]
        if not self._granted:  # this is the first consumer: from now on, cut deliveries out before pika decodes them
            self._connection.pika.read_deliveries(self._channel.channel_number, self._deliver)
        while (part := min(window - self._window, maximum)) > 0:
            self._window += part
            self._granted += part
            # RabbitMQ applies this prefetch to each consumer that is started later on the channel (global=False).
            self._channel.basic_qos(prefetch_count=part)
            self._started += 1
            tag = f"pyspark-mq-{self._started:06}"
            self._channel.basic_consume(self._queue, lambda *_: None, consumer_tag=tag, callback=self._consumes)
            self._consumer_tags.append(tag)

    def _consumes(self, _: Any) -> None:
        self.consuming = True

    def _deliver(self, raws: list[Raw] | Amqp091Batch) -> None:
        """Put deliveries into the inbox. If a delivery ends the session, leave out this delivery and all later ones."""
        if self._connection.end is not None:
            return
        tags = np.array([raw[0] for raw in raws], np.uint64).astype(np.int64) if isinstance(raws, list) else raws.tags
        ascend = tags > np.append(self._last_tag, tags[:-1])
        if not ascend.all():
            place = int(np.argmin(ascend))
            self._deliver(raws[:place])
            self._connection.ended(Amqp091FrameError(f"delivery tag {tags[place]} follows {self._last_tag}"))
            return
        if isinstance(raws, list):
            for place, error in check(raws):
                raws[place] = marked = unreadable(raws[place], error)
                if not self.options.keeps_unreadable:
                    self._connection.ended(self._refuse(unreadable_of(marked)))
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
            # Stop reading. Do not cancel the consumer: its messages would be redelivered, which counts as deliveries.
            self.paused = True
            self._reading_one = False
            self._connection.loop.hold(self._hung_up)

    def _hung_up(self) -> None:
        self._connection.ended(SessionLostError("the broker closed the connection"))

    def _ask_for_stream(self) -> None:
        """Find out whether the queue is a stream, and if so, end the session.

        A queue may also have messages that were copied from a stream. So try to start a consumer with an offset on
        another channel: the broker accepts this only for a stream, and otherwise closes that channel (``invalid arg
        'x-stream-offset'``, 3.10 and 4.3).
        """

        def consume(channel: Any) -> None:
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(
                self._queue, lambda *_: None, arguments={"x-stream-offset": "next"},
                callback=lambda _: self._connection.ended(self._refuse_stream()),
            )  # fmt: skip

        self._connection.pika.channel(on_open_callback=consume)

    def _resume(self) -> None:
        self.paused = self._reading_one = self._connection.pika.looks = False
        self._connection.loop.release()

    @property
    def partial_bytes(self) -> int:
        return int(self._connection.pika.partial_bytes)

    def run(self, timeout_s: float) -> None:
        self._raise_if_ended()
        connection = self._connection
        if self.paused:
            # pika takes the broker for dead if it gets no bytes for a while. While the session is paused, it gets none.
            connection.pika.bytes_received += 1
            if self.keep_alive_read_due and not self._reading_one:
                self._reading_one = connection.pika.looks = True
                connection.loop.release()
        connection.turn(timeout_s)
        self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        end = self._connection.end
        if end is None:
            return
        if isinstance(end, MessageError | DestinationError):
            raise end
        # If another connection has an exclusive consumer, the broker says so only when this session starts to consume.
        exclusive = self._url and exclusive_error(reason_of(end), self._url, self.endpoint)
        if exclusive:
            raise exclusive
        raise SessionLostError(reason_of(end), stated=was_stated(end))

    def wake(self) -> None:
        self._connection.wake()

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
        """Send a flush marker, whose answer confirms all earlier acknowledgements.

        Do nothing if the broker has not answered an earlier flush marker yet.
        """
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
        """Reject messages without requeueing them. The broker dead-letters them if the queue has such an exchange."""
        self._acknowledged = True
        for tag in tags:
            self._channel.basic_reject(tag, requeue=False)

    def close(self) -> None:
        connection, channel = self._connection, self._channel
        with suppress(Exception):  # the session is over, whatever pika says
            opened = channel is not None and channel.is_open
            if opened and version_of(connection.server_property("version")) >= _RETURNS_SINCE:
                # Return the messages before the channel is closed. A quorum queue counts a delivery of each message
                # that the end of a channel returns, but not of those that a consumer returns. Cancel the consumers
                # first, so that the messages are not delivered here again. (In 3.10 this would change the order.)
                for tag in self._consumer_tags:
                    channel.basic_cancel(tag)
                channel.basic_nack(0, multiple=True)
        # Do not wait if the session is paused, because the answer to the close comes after all unread bytes.
        connection.close(waits=not self.paused)
