"""Publishes messages over AMQP 0-9-1 with pika, publisher confirms and the flag `mandatory`.

This module runs the event loop of pika's asynchronous connection, because pika's blocking connection waits for the
confirmation of each message before it sends the next. With the flag `mandatory` RabbitMQ returns a message that it
cannot route to a queue. It then confirms this message, too, always after returning it (`rabbit_channel.erl`). So the
publisher notices a returned message before the message counts as confirmed.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from typing import Any, TypeAlias

from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from pika.spec import BasicProperties

from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MqError, WriteError
from pyspark_mq.logs import leave_out_own_lines
from pyspark_mq.sink.amqp091_message import content, publish_frame
from pyspark_mq.sink.publisher import Publisher, WriteInterruptedError
from pyspark_mq.sink.settings import DROP_ROWS, NO_DESTINATION, Destination, Message
from pyspark_mq.wire.amqp091.errors import connect_error, handshake_hint, reason_of
from pyspark_mq.wire.amqp091.login import connection_parameters

__all__ = ["Amqp091Publisher"]

_LOG = logging.getLogger("pyspark_mq")
leave_out_own_lines("pika")

#: Number of bytes passed to the socket at a time. Of a larger piece, pika would copy the unsent rest after each send.
_TURN_BYTES = 256 << 10
_TURN_S = 1.0
_CLOSE_TIMEOUT_S = 1.0
#: Names that are not ASCII, and longer than this, may make RabbitMQ's error text longer than AMQP allows.
_LONG_NAME_BYTES = 200
_COPIES = "which RabbitMQ reads as further routing keys, and refuses as text"
#: Overhead of a body frame (AMQP 0-9-1, 4.2.3).
_AROUND_BYTES = 8
#: Reply codes with which the broker closes a channel (AMQP 0-9-1, "reply-code").
_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION = 403, 404, 405, 406
#: Reply code with which a broker that is stopped closes connections.
_CONNECTION_FORCED = 320
_NO_EXCHANGE = re.compile(r"no exchange '(.*)' in vhost")
_Encoded: TypeAlias = "tuple[bytes, int, Destination, str]"


class Amqp091Publisher(Publisher):
    """A publisher over AMQP 0-9-1: one connection with one channel in confirm mode."""

    reserved_properties = {"CC": _COPIES, "BCC": _COPIES}  # noqa: RUF012 - as of the base class

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loop = IOLoop()
        self._connection: Any = None
        self._channel: Any = None
        self._end: object = None
        #: Number of bytes received so far, and the time when the last of them arrived.
        self._received, self._heard_s = 0, 0.0
        #: The error for the first message that the broker did not accept, and this message's destination.
        self._failed: tuple[WriteError, Destination] | None = None
        self._encoded: list[_Encoded] = []
        #: Destination -> the error for messages that were returned from there, and these messages' numbers. These are
        #: rows that may be dropped (`onUnwritableRow=drop`).
        self._gone: dict[Destination, tuple[WriteError, list[int]]] = {}
        self._left: Iterator[_Encoded] = iter(())
        self._exhausted = True
        self._tag = 0

    # -- opening

    def open(self, deadline: float) -> None:
        url, left_s = self.url, deadline - time.monotonic()
        login = self.endpoint.credentials(url)
        self._connection = SelectConnection(
            connection_parameters(self.endpoint, url, left_s, login, "pyspark-mq writes", self.attempt),
            on_open_callback=lambda _: self._loop.stop(),
            on_open_error_callback=lambda _, error: self._ended(error),
            on_close_callback=lambda _, error: self._ended(error),
            custom_ioloop=self._loop,
        )
        if not self._until(lambda: self._connection.is_open, deadline):
            if self._end is not None:
                raise connect_error(self._end, url, self.endpoint)
            raise BrokerUnavailableError(f"{url}: no answer in time{handshake_hint((), url)}")
        product = (self._connection.server_properties or {}).get("product")
        self.endpoint.check_product(url, str(product))
        self._connection.add_on_connection_blocked_callback(lambda _, frame: self._block(frame))
        self._connection.add_on_connection_unblocked_callback(lambda *_: self.window.block(""))
        if self.settings.destination is not None:
            self._check(self.settings.destination, deadline)
        self._open_channel(deadline)

    def _block(self, frame: Any) -> None:
        self.window.block(str(frame.method.reason) or "no reason given")

    def _check(self, destination: Destination, deadline: float) -> None:
        """Raise an error if the destination does not exist or is not accessible.

        This is checked on a separate channel, because the broker closes the channel if the destination does not exist.
        """
        closed: list[Any] = []
        done: list[Any] = []

        def look(channel: Any) -> None:
            channel.add_on_close_callback(lambda _, error: self._note(closed, error))
            declare = channel.exchange_declare if destination.kind == "exchange" else channel.queue_declare
            declare(destination.name, passive=True, callback=lambda _: self._note(done, channel))

        self._connection.channel(on_open_callback=look)
        if not self._until(lambda: bool(closed or done), deadline):
            raise self._end_error(f"{destination} did not answer in time")
        if done:
            done[0].close()
            return
        code, reason = getattr(closed[0], "reply_code", 0), reason_of(closed[0])
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
        # Publish a message with an invalid expiration, which RabbitMQ refuses. It checks the permissions before the
        # expiration (`rabbit_channel.erl`), so the reply code tells whether the user may write.
        properties = BasicProperties(expiration="none")
        exchange, key = (
            (destination.name, destination.key) if destination.kind == "exchange" else ("", destination.name)
        )
        self._channel.basic_publish(exchange, key, b"", properties, mandatory=True)
        self._until(lambda: False, deadline)
        if getattr(self._end, "reply_code", 0) != _PRECONDITION:
            raise self._end_error(f"{destination} did not answer in time")

    def _open_channel(self, deadline: float) -> None:
        confirms: list[Any] = []

        def use(channel: Any) -> None:
            self._channel = channel
            channel.add_on_close_callback(lambda _, error: self._ended(error))
            channel.add_on_return_callback(self._returned)
            channel.confirm_delivery(self._answered, callback=lambda _: self._note(confirms, channel))

        self._connection.channel(on_open_callback=use)
        if not self._until(lambda: bool(confirms), deadline):
            raise self._end_error("the broker did not open a channel in time")

    def _note(self, noted: list[Any], what: Any) -> None:
        noted.append(what)
        self._loop.stop()

    def _until(self, done: Callable[[], bool], deadline: float) -> bool:
        """Run pika's event loop until `done()` is true. Return False if the connection ends or time runs out before."""
        while not done():
            left_s = deadline - time.monotonic()
            if self._end is not None or left_s <= 0:
                return False
            self._turn(left_s)
        return self._end is None

    def _turn(self, timeout_s: float) -> None:
        timer = self._loop.call_later(timeout_s, self._loop.stop)
        try:
            self._loop.start()
        except Exception as error:  # noqa: BLE001 - pika raises whatever it runs into
            self._ended(error)
        finally:
            self._loop.remove_timeout(timer)
        received = getattr(self._connection, "bytes_received", 0)
        if received != self._received:
            self._received, self._heard_s = received, time.monotonic()

    def _ended(self, error: object) -> None:
        if self._end is None:
            self._end = error
        self._loop.stop()

    # -- sending

    def encode(self, message: Message) -> _Encoded:
        channel = self._channel.channel_number
        frame_bytes = self._connection.params.frame_max - _AROUND_BYTES
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
            if self._end is not None:
                raise self._end_error("")
            self.window.check(self._heard_s)
            self._turn(_TURN_S)

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
        if self._end is not None:
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

        After each :data:`_TURN_BYTES` the event loop runs in between, so that confirmations are read.
        """
        window, parts, written = self.window, [], 0
        while written < _TURN_BYTES and not window.full and self._end is None and self._failed is None:
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
            self._connection._output_marshaled_frames([b"".join(parts)])  # noqa: SLF001 - it has no other name
            if not self._exhausted:
                self._loop.add_callback_threadsafe(self._fill)
        elif self._exhausted and not window.unconfirmed:
            self._loop.stop()

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
            self._loop.stop()
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
        self._loop.stop()

    def _end_error(self, text: str) -> MqError:
        """Return the error for the end of the connection or the channel.

        Args:
            text: text of the error if neither has ended, for example because the broker did not answer in time.
        """
        if self._end is None:
            return BrokerUnavailableError(f"{self.url}: {text}")
        reason = reason_of(self._end)
        if isinstance(self._end, ChannelClosedByBroker):
            code = self._end.reply_code
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
        stated = isinstance(self._end, ConnectionClosedByBroker) and self._end.reply_code != _CONNECTION_FORCED
        return self.lost(reason, stated=stated)

    def _without(self, exchange: str, missing: DestinationError) -> WriteInterruptedError:
        """Drop the rows for an exchange that does not exist, and return the error that makes the write continue.

        RabbitMQ has closed the channel because of this exchange, so another connection has to send the other messages.
        """
        those = [number for number, (_, _, to, _) in enumerate(self._encoded) if to[:2] == ("exchange", exchange)]
        self.window.drop(those)
        self.remarks.drop(NO_DESTINATION, missing.text, len(those))
        return WriteInterruptedError(missing.text)

    def close(self) -> None:
        connection, deadline = self._connection, time.monotonic() + _CLOSE_TIMEOUT_S
        try:
            if connection is not None and connection.is_open:
                connection.close()
                # Do not wait for long: a broker that has an alarm does not read anything, not even this.
                while not connection.is_closed and time.monotonic() < deadline:
                    self._turn(0.1)
        except Exception as failed:  # noqa: BLE001 - the write is over, whatever pika says
            _LOG.debug("closing: %s", self.endpoint.hide(str(failed)))
        finally:
            transport = getattr(connection, "_transport", None)
            if transport is not None and not connection.is_closed:
                with suppress(Exception):
                    transport.abort()
                    self._turn(0.0)  # a callback of the loop closes the socket
            self._loop.close()


@lru_cache(maxsize=1_000)
def _method(destination: Destination, channel: int) -> bytes:
    return publish_frame(destination, channel)
