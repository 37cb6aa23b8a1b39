"""Publishes messages over AMQP 0-9-1 with pika, publisher confirms and the flag `mandatory`.

With the flag `mandatory` RabbitMQ returns a message that it cannot route to a queue. It then confirms this message,
too, always after returning it (`rabbit_channel.erl`). So the publisher notices a returned message before the message
counts as confirmed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from typing import Any, TypeAlias

from pika.exceptions import ChannelClosedByBroker
from pika.spec import BasicProperties

from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MqError, WriteError
from pyspark_mq.sink.amqp091_message import content, publish_frame
from pyspark_mq.sink.publisher import Publisher, WriteInterruptedError
from pyspark_mq.sink.settings import DROP_ROWS, NO_DESTINATION, Destination, Message
from pyspark_mq.wire.amqp091.client import Answer
from pyspark_mq.wire.amqp091.connection import Amqp091Connection
from pyspark_mq.wire.amqp091.errors import reason_of, was_stated
from pyspark_mq.wire.connection import ConnectionLostError

__all__ = ["Amqp091Publisher"]

#: Number of bytes passed to the socket at a time. With larger pieces, pika would copy the unsent rest after each send.
_TURN_BYTES = 256 << 10
_TURN_S = 1.0
#: Names that are not ASCII, and longer than this, may make RabbitMQ's error text longer than AMQP allows.
_LONG_NAME_BYTES = 200
_COPIES = "which RabbitMQ reads as a list of further routing keys, and refuses if the value is text"
#: Overhead of a body frame (AMQP 0-9-1, 4.2.3).
_AROUND_BYTES = 8
#: Reply codes with which the broker closes a channel (AMQP 0-9-1, "reply-code").
_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION = 403, 404, 405, 406
_NO_EXCHANGE = re.compile(r"no exchange '(.*)' in vhost")
_Encoded: TypeAlias = "tuple[bytes, int, Destination, str]"


class Amqp091Publisher(Publisher):
    """A publisher over AMQP 0-9-1: one connection with one channel in confirm mode."""

    reserved_properties = {"CC": _COPIES, "BCC": _COPIES}  # noqa: RUF012 - as of the base class

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connection = Amqp091Connection(self.endpoint)
        self._channel: Any = None
        #: The error for the first message that the broker did not accept, and this message's destination.
        self._failed: tuple[WriteError, Destination] | None = None
        self._encoded: list[_Encoded] = []
        #: Destination -> the error for returned messages to this destination, and their numbers. Their rows may be
        #: dropped (`onUnwritableRow=drop`).
        self._gone: dict[Destination, tuple[WriteError, list[int]]] = {}
        self._left: Iterator[_Encoded] = iter(())
        self._exhausted = True
        self._tag = 0

    # -- opening

    def open(self, deadline: float) -> None:
        connection = self._connection
        connection.open(self.url, deadline, "pyspark-mq writes", self.attempt)
        self.endpoint.check_product(self.url, connection.server_property("product"))
        connection.pika.add_on_connection_blocked_callback(lambda _, frame: self._block(frame))
        connection.pika.add_on_connection_unblocked_callback(lambda *_: self.window.block(""))
        if self.settings.destination is not None:
            self._check(self.settings.destination, deadline)
        try:
            self._channel = channel = connection.channel(deadline)
            channel.add_on_return_callback(self._returned)
            connection.call(deadline, channel.confirm_delivery, self._answered)
        except (ConnectionLostError, TimeoutError):
            raise self._end_error("the broker did not open a channel in time") from None

    def _block(self, frame: Any) -> None:
        self.window.block(str(frame.method.reason) or "no reason given")

    def _check(self, destination: Destination, deadline: float) -> None:
        """Raise an error if the destination does not exist or is not accessible.

        The check uses a separate channel, because the broker closes the channel if the destination does not exist.
        """
        closed, found = Answer(self._connection.loop), Answer(self._connection.loop)

        def look(channel: Any) -> None:
            channel.add_on_close_callback(lambda _, error: closed(error))
            declare = channel.exchange_declare if destination.kind == "exchange" else channel.queue_declare
            declare(destination.name, passive=True, callback=found)

        channel = self._connection.pika.channel(on_open_callback=look)
        try:
            self._connection.until(lambda: closed.came or found.came, deadline)
        except (ConnectionLostError, TimeoutError):
            raise self._end_error(f"{destination} did not answer in time") from None
        if found.came:
            channel.close()
            return
        code, reason = getattr(closed.value, "reply_code", 0), reason_of(closed.value)
        if code == _LOCKED:
            return  # the queue is exclusive to a connection, but other connections may publish to it
        if code == _NOT_FOUND and not self.endpoint.broker.will_be_back(reason):
            raise DestinationError(
                f"{destination} does not exist in virtual host '{self.url.virtual_host}' of {self.url}: declare it, or "
                f"correct option '{destination.kind}' ({reason})"
            )
        if code == _REFUSED:
            raise DestinationError(
                f"this user may not access {destination} at {self.url}: see option 'username' ({reason})"
            )
        raise BrokerUnavailableError(f"{self.url}: {destination}: {reason}")

    def probe(self, destination: Destination, deadline: float) -> None:
        self._check(destination, deadline)
        # Publish a message with an invalid expiration, which RabbitMQ refuses. RabbitMQ checks the permissions before
        # the expiration (`rabbit_channel.erl`), so the reply code tells whether the user may write.
        properties = BasicProperties(expiration="none")
        exchange, key = (
            (destination.name, destination.key) if destination.kind == "exchange" else ("", destination.name)
        )
        self._channel.basic_publish(exchange, key, b"", properties, mandatory=True)
        with suppress(ConnectionLostError, TimeoutError):
            self._connection.until(lambda: False, deadline)
        if getattr(self._connection.end, "reply_code", 0) != _PRECONDITION:
            raise self._end_error(f"{destination} did not answer in time")

    # -- sending

    def encode(self, message: Message) -> _Encoded:
        channel = self._channel.channel_number
        frame_bytes = self._connection.pika.params.frame_max - _AROUND_BYTES
        frames = _method(message.destination, channel) + content(message, channel, frame_bytes)
        return frames, len(message.body), message.destination, message.id

    def send(self, encoded: list[_Encoded]) -> None:
        self._encoded, self._left, self._exhausted = encoded, iter(encoded), False
        self._fill()
        while True:
            # Check for failures first, because RabbitMQ also confirms messages that it has returned.
            if self._failed is not None:
                raise self._failure(*self._failed)
            if self._exhausted and not self.window.unconfirmed:
                self._drop_returned()
                return
            if self._connection.end is not None:
                raise self._end_error("")
            self.window.check(self._connection.pika.received_s)
            self._connection.turn(_TURN_S)

    def _drop_returned(self) -> None:
        """Drop the rows whose messages were returned because their destination does not exist.

        Raises:
            WriteInterruptedError: a destination exists after all, or is only temporarily unavailable. Another attempt
                may write the messages.
        """
        while self._gone:
            destination, (refusal, numbers) = self._gone.popitem()
            failure = self._failure(refusal, destination)
            if isinstance(failure, WriteInterruptedError):
                raise failure
            self.window.drop(numbers)
            self.remarks.drop(NO_DESTINATION, refusal.text, len(numbers))

    def _failure(self, refusal: WriteError, destination: Destination) -> MqError:
        """Return the error for a message that the broker did not accept, after looking up the message's queue.

        The error is a WriteInterruptedError if another attempt may succeed. While the node of a classic queue is down,
        RabbitMQ 3.10 returns messages as if the queue did not exist, and 4.3 refuses them with `basic.nack`.
        """
        if destination.kind != "queue":
            return refusal
        size = len(destination.name.encode())
        if size > _LONG_NAME_BYTES and not destination.name.isascii():
            return refusal  # looking such a queue up would end the connection with 541 INTERNAL_ERROR (4.3)
        if self._connection.end is not None:
            return WriteInterruptedError(refusal.text, refusal=refusal)
        try:
            self._check(destination, time.monotonic() + self.endpoint.connect_timeout_s)
        except BrokerUnavailableError as away:
            return self.unavailable(destination, away.text)
        except DestinationError:
            return refusal
        return WriteInterruptedError(refusal.text, refusal=refusal)

    def _fill(self) -> None:
        """Publish messages until the window of unconfirmed messages is full.

        After each :data:`_TURN_BYTES`, the event loop reads confirmations before it calls this method again.
        """
        connection, window, parts, written = self._connection, self.window, [], 0
        while written < _TURN_BYTES and not window.full and connection.end is None and self._failed is None:
            item = next(self._left, None)
            if item is None:
                self._exhausted = True
                break
            frames, size, _, _ = item
            self._tag += 1
            window.sent(self._tag, size)
            parts.append(frames)
            written += len(frames)
        if parts:
            # Send the frames of many messages with one system call. pika itself would make three for each message.
            connection.pika._output_marshaled_frames([b"".join(parts)])  # noqa: SLF001 - it has no other name
            if not self._exhausted:
                connection.loop.add_callback_threadsafe(self._fill)
        elif self._exhausted and not window.unconfirmed:
            connection.loop.stop()

    def _answered(self, frame: Any) -> None:
        answer, window = frame.method, self.window
        if self._failed is not None:
            return  # the confirmation may be for a message that was returned
        upto = answer.delivery_tag
        tags = list(takewhile(lambda tag: tag <= upto, window.unconfirmed)) if answer.multiple else [upto]
        if answer.NAME != "Basic.Ack":
            _, number = window.unconfirmed.get(upto, (0, 0))
            self._fail(
                self._encoded[number][2],
                f"{self.url}: the broker refused {len(tags)} message(s) for {self._named()}: the queue is full and "
                "rejects messages (`overflow` is reject-publish), or the queue failed. Make room in the queue, or "
                "raise its limit; see the broker's log",
            )
            return
        was_full = window.full
        for tag in tags:
            window.confirmed(tag)
        if self._exhausted and not window.unconfirmed:
            self._connection.loop.stop()
        elif was_full and not window.full:
            self._fill()

    def _named(self) -> str:
        return str(self.settings.destination or "the destinations of the rows")

    def _returned(self, _: Any, method: Any, properties: Any, __: bytes) -> None:
        said = f"({method.reply_code} {method.reply_text}), messageId '{properties.message_id}'"
        if method.exchange:
            self._not_routed(
                Destination("exchange", method.exchange, method.routing_key),
                properties.message_id,
                f"{self.url}: exchange '{method.exchange}' does not route key '{method.routing_key}' to any queue "
                f"{said}: bind a queue, or correct option or column 'routingKey'",
            )
        else:
            self._not_routed(
                Destination("queue", method.routing_key),
                properties.message_id,
                f"{self.url}: queue '{method.routing_key}' does not exist in virtual host '{self.url.virtual_host}' "
                f"{said}: declare it, or correct option or column 'queue'",
            )

    def _not_routed(self, destination: Destination, message_id: str, text: str) -> None:
        if not self.settings.drops_destinations:
            self._fail(destination, text if self.settings.destination else f"{text}. {DROP_ROWS}")
            return
        _, numbers = self._gone.setdefault(destination, (WriteError(text), []))
        for number, (_, _, to, key) in enumerate(self._encoded):
            if key == message_id and to == destination:
                self.window.put_back(number)
                numbers.append(number)
                break

    def _fail(self, destination: Destination, text: str) -> None:
        self._failed = self._failed or (WriteError(text), destination)
        self._connection.loop.stop()

    def _end_error(self, text: str) -> MqError:
        """Return the error for the end of the connection or the channel.

        Args:
            text: text of the error if neither has ended, for example because the broker did not answer in time.
        """
        end = self._connection.end
        if end is None:
            return BrokerUnavailableError(f"{self.url}: {text}")
        reason = reason_of(end)
        if isinstance(end, ChannelClosedByBroker):
            code = end.reply_code
            if code == _PRECONDITION and "size" in reason:
                return WriteError(
                    f"{self.url}: a message for {self._named()} is larger than the broker accepts ({reason}): shorten "
                    "column 'body', or raise the broker's `max_message_size`"
                )
            if code == _NOT_FOUND:
                missing = DestinationError(
                    f"{self.url}: the exchange does not exist ({reason}): declare it, or correct option or column "
                    "'exchange'"
                )
                found = _NO_EXCHANGE.search(reason)
                return self._without(found[1], missing) if found and self.settings.drops_destinations else missing
            if code == _REFUSED:
                return DestinationError(
                    f"{self.url}: user '{self.endpoint.user(self.url) or 'guest'}' may not write to {self._named()} "
                    f"({reason}): grant this user permission to write, or correct option 'username'"
                )
            return WriteError(f"{self.url}: the broker ended the write to {self._named()} ({reason})")
        return self.lost(reason, stated=was_stated(end))

    def _without(self, exchange: str, missing: DestinationError) -> WriteInterruptedError:
        """Drop the rows for an exchange that does not exist, and return the error that makes the write continue.

        RabbitMQ has closed the channel because of this exchange, so another connection has to send the other messages.
        """
        those = [number for number, (_, _, to, _) in enumerate(self._encoded) if to[:2] == ("exchange", exchange)]
        self.window.drop(those)
        self.remarks.drop(NO_DESTINATION, missing.text, len(those))
        return WriteInterruptedError(missing.text)

    def close(self) -> None:
        self._connection.close()


@lru_cache(maxsize=1_000)
def _method(destination: Destination, channel: int) -> bytes:
    return publish_frame(destination, channel)
