"""Confirmed publishing to RabbitMQ in bulk, for tests, demo and benchmark.

pika's blocking channel waits for the confirmation of each message before it takes the next; with
a window of unconfirmed messages on the callback connection the same promise is some ten times
as fast. A message counts when the broker has confirmed it: a persistent one in a durable queue
is then on disk (classic) or with a majority (quorum).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any

from testbed.process import PublishError

__all__ = ["publish_confirmed"]

_WINDOW_MESSAGES = 5000
_BATCH_MESSAGES = 1000
_CLOSE_TIMEOUT_S = 1.0


def publish_confirmed(parameters: Any, queue: str, messages: Iterable[tuple[bytes, Any]], *, timeout_s: float) -> None:
    """Publish (body, pika properties) to a queue; returns when all are confirmed.

    Args:
        parameters: a pika ConnectionParameters or URLParameters.

    Raises:
        PublishError: no connection, it broke, no such queue, the broker refused a message, or
            the time is over.
    """
    _Publisher(parameters, queue, iter(messages)).run(timeout_s)


class _Publisher:
    """Callbacks of one pika connection; lives as long as one call of `publish_confirmed`."""

    def __init__(self, parameters: Any, queue: str, messages: Iterator[tuple[bytes, Any]]) -> None:
        # Imported here, as only those who publish need pika.
        from pika.adapters.select_connection import SelectConnection  # noqa: PLC0415

        self._queue = queue
        self._messages = messages
        self._exhausted = False
        self._tag = 0
        #: Tags without an answer yet; a dict, as it keeps their order and finds one at once.
        self._open: dict[int, None] = {}
        self._confirmed = 0
        self._failure: str | None = None
        self._crash: BaseException | None = None
        self._channel: Any = None
        self._connection = SelectConnection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_connection_lost,
            on_close_callback=self._on_connection_lost,
        )

    def run(self, timeout_s: float) -> None:
        loop = self._connection.ioloop
        loop.call_later(timeout_s, lambda: self._fail(f"not all confirmed in {timeout_s:g} s"))
        try:
            loop.start()
            if self._connection.is_open:
                self._connection.close()
                # A broker under an alarm does not even read that we leave.
                loop.call_later(_CLOSE_TIMEOUT_S, loop.stop)
                loop.start()
        finally:
            loop.close()
        if self._crash is not None:
            raise self._crash
        if self._failure is not None:
            raise PublishError(self._queue, self._confirmed, self._failure)

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_lost)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_answer, callback=lambda _frame: self._fill())

    def _fill(self) -> None:
        try:
            while not self._exhausted and len(self._open) < _WINDOW_MESSAGES:
                self._publish_next()
        except Exception as error:  # noqa: BLE001 (the caller's iterator, or pika's encoder)
            self._crash = error
            self._connection.ioloop.stop()
            return
        if self._exhausted and not self._open:
            self._connection.ioloop.stop()

    def _publish_next(self) -> None:
        message = next(self._messages, None)
        if message is None:
            self._exhausted = True
            return
        body, properties = message
        self._tag += 1
        self._open[self._tag] = None
        # Mandatory: a message nobody takes would otherwise be confirmed and thrown away.
        self._channel.basic_publish("", self._queue, body, properties, mandatory=True)

    def _on_answer(self, frame: Any) -> None:
        answer = frame.method
        tags = [answer.delivery_tag]
        if answer.multiple:
            tags = list(takewhile(lambda tag: tag <= answer.delivery_tag, self._open))
        for tag in tags:
            del self._open[tag]
        if answer.NAME == "Basic.Ack":
            self._confirmed += len(tags)
        else:
            self._refuse("the broker refused messages (it or the queue is full, or failed)")
        # Not one by one: pika writes to the socket once per callback.
        if self._exhausted or len(self._open) <= _WINDOW_MESSAGES - _BATCH_MESSAGES:
            self._fill()

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        self._confirmed -= 1  # the broker goes on to confirm what it has returned
        self._refuse(f"no such queue ({method.reply_text})")

    def _refuse(self, reason: str) -> None:
        """Publish no more, but wait for the answers to the others: a refusal overtakes them."""
        self._failure = self._failure or reason
        self._exhausted = True

    def _on_channel_lost(self, _channel: Any, reason: Exception) -> None:
        if self._open or not self._exhausted:
            self._fail(str(reason))

    def _on_connection_lost(self, connection: Any, reason: BaseException | str) -> None:
        if self._open or not self._exhausted:
            self._failure = self._failure or f"connection lost: {reason!r}"
        connection.ioloop.stop()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._connection.ioloop.stop()
