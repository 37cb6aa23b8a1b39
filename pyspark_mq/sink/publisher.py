"""The contract of publishers, and how a task writes with a publisher. A publisher is one connection for one task.

A publisher sends messages and returns once the broker has confirmed all of them. A publisher never reconnects: after
the end of a connection an unconfirmed message may or may not be in the queue. So the task fails, Spark retries the
task, and the copies of a message have equal IDs.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.errors import BrokerUnavailableError, WriteError
from pyspark_mq.sink.columns import ColumnPlan, RowReader
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.settings import Destination, Message, SinkSettings
from pyspark_mq.sources.connections.protocols import client_class
from pyspark_mq.sources.connections.socket_loop import count_addresses
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["PUBLISHERS", "Publisher", "SendWindow", "publisher_class", "write_rows"]

_LOG = logging.getLogger("pyspark_mq")

#: Most unconfirmed messages, and most bytes of these. A larger message is sent alone.
WINDOW_MESSAGES, WINDOW_BYTES = 4_000, 8 << 20
#: After this time, or half a heartbeat, without a message, the connection is replaced: the broker's heartbeats went
#: unanswered meanwhile. ActiveMQ Classic drops an idle connection after 30 s.
_GAP_S = 10.0
#: A blocked write logs a warning after this time.
_BLOCKED_S = 30.0
_PAUSE_S = 0.5
#: Most bytes of a batch that are converted to messages at a time.
_COPIED_BYTES = 64 << 20

#: protocol -> (module, class, package to install)
PUBLISHERS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        AMQP_0_9_1: ("pyspark_mq.sink.amqp091", "Amqp091Publisher", "pyspark-mq"),
        AMQP_1_0: ("pyspark_mq.sink.amqp10", "Amqp10Publisher", "pyspark-mq[amqp10]"),
        STOMP: ("pyspark_mq.sink.stomp", "StompPublisher", "pyspark-mq[stomp]"),
    }
)


class SendWindow:
    """Sent messages that are not confirmed yet.

    Args:
        where: the broker's URL, for errors.
        send_timeout_s: see :class:`.SinkSettings`.
        now_s: a clock.
    """

    def __init__(self, where: object, send_timeout_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self.unconfirmed: dict[Any, int] = {}
        self.bytes = 0
        #: The broker's reason for blocking the connection; empty if it does not block.
        self.blocked = ""
        self._where, self._timeout_s, self._now_s = where, send_timeout_s, now_s
        self._moved_s = now_s()
        self._warned = False

    @property
    def full(self) -> bool:
        return len(self.unconfirmed) >= WINDOW_MESSAGES or self.bytes >= WINDOW_BYTES

    def sent(self, key: Any, size: int) -> None:
        """Record a sent message."""
        if not self.unconfirmed:
            self._moved()
        self.unconfirmed[key] = size
        self.bytes += size

    def confirmed(self, key: Any) -> None:
        """Record a confirmation. An unknown key changes no count."""
        self.bytes -= self.unconfirmed.pop(key, 0)
        self._moved()

    def block(self, reason: str) -> None:
        """Record that the broker blocks the connection. An empty reason means that the broker no longer blocks."""
        if reason != self.blocked:
            self.blocked = reason
            self._moved()

    def _moved(self) -> None:
        self._moved_s, self._warned = self._now_s(), False

    def check(self) -> None:
        """Check for a timeout while messages are unconfirmed.

        Raises:
            WriteError: no message was confirmed for too long, and the broker does not report that it blocks.
        """
        waited_s = self._now_s() - self._moved_s
        if self.blocked and waited_s >= _BLOCKED_S and not self._warned:
            self._warned = True
            _LOG.warning(
                "%s: the broker is not accepting messages at the moment (%s); the write waits",
                self._where,
                self.blocked,
            )
        if not self.blocked and waited_s >= self._timeout_s:
            raise WriteError(
                f"{self._where}: no confirmation of {len(self.unconfirmed)} message(s) within "
                f"sendTimeout={self._timeout_s:g}s. A queue without a majority of its nodes confirms nothing, and a "
                "full broker may withhold confirmations: fix the cause, or raise 'sendTimeout'"
            )


class Publisher(ABC):
    """One connection that publishes.

    Args:
        attempt: number of failed attempts at this URL so far; see :attr:`.SessionOptions.attempt`.
    """

    #: Property names reserved by the protocol, each with the reason.
    reserved_properties: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: SinkSettings, url: BrokerUrl, attempt: int = 0) -> None:
        self.settings, self.endpoint, self.url, self.attempt = settings, settings.endpoint, url, attempt
        self.window = SendWindow(url, settings.send_timeout_s)

    @abstractmethod
    def open(self, deadline: float) -> None:
        """Connect, log in, and check the destination that options name.

        Raises:
            BrokerUnavailableError: the broker does not answer in time.
            RefusedError: the broker refused the connection or the login.
            DestinationError: the destination is missing, or this user may not access it.
        """

    @abstractmethod
    def probe(self, destination: Destination, deadline: float) -> None:
        """Check whether this user may write to a destination, without a message that consumers can see.

        A broker that creates missing destinations creates this destination if it is missing. The publisher cannot send
        anything afterwards.

        Raises:
            DestinationError: the destination is missing, or this user may not access it.
            WriteError: the broker refused without a reason.
            BrokerUnavailableError: the broker did not answer.
        """

    @abstractmethod
    def encode(self, message: Message) -> Any:
        """Encode a message for :meth:`send`.

        Raises:
            RowError: the protocol cannot carry the message.
        """

    @abstractmethod
    def send(self, encoded: list[Any]) -> None:
        """Send messages, and wait until all are confirmed.

        Raises:
            WriteError: the broker did not accept a message, or confirmed none for too long.
            BrokerUnavailableError: the connection ended.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, whatever its state."""

    def lost(self, reason: object) -> BrokerUnavailableError:
        """Return the error for a connection that ended."""
        return BrokerUnavailableError(
            f"{self.url}: the connection ended with {len(self.window.unconfirmed)} message(s) unconfirmed ({reason}). "
            "A rerun of the write sends these messages with the same IDs"
        )


def publisher_class(protocol: str) -> type[Publisher]:
    """Return the publisher of a protocol; for errors see :func:`.client_class`."""
    found: type[Publisher] = client_class(protocol, PUBLISHERS)
    return found


def connect(settings: SinkSettings) -> Publisher:
    """Return an open publisher at the first URL that answers within `connectTimeout`.

    A silent address, such as the address of a host without power, takes only its share of that time.

    Raises:
        BrokerUnavailableError: no URL has answered. The error is that of the last URL.
    """
    kind, urls = publisher_class(settings.endpoint.protocol), settings.endpoint.urls
    deadline = time.monotonic() + settings.endpoint.connect_timeout_s
    addresses, tried = sum(map(count_addresses, urls)), 0
    while True:
        attempt, number = divmod(tried, len(urls))
        publisher, now_s = kind(settings, urls[number], attempt), time.monotonic()
        try:
            publisher.open(now_s + (deadline - now_s) / max(1, addresses - tried))
        except BrokerUnavailableError:
            publisher.close()
            tried += 1
            if tried % len(urls) == 0:
                if time.monotonic() + _PAUSE_S >= deadline:
                    raise
                time.sleep(_PAUSE_S)
        except BaseException:
            publisher.close()
            raise
        else:
            return publisher


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches into parts small enough to copy: Spark's batches may hold ten thousand large bodies."""
    for batch in batches:
        rows = max(1, batch.num_rows * _COPIED_BYTES // max(batch.nbytes, _COPIED_BYTES))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def write_rows(batches: Iterable[pa.RecordBatch], settings: SinkSettings, plan: ColumnPlan, identity: Identity) -> int:
    """Publish the rows of one task. Return the number of rows once all messages are confirmed.

    The connection is opened for the first row, and closed at the end. Each batch is confirmed before the next batch is
    sent.
    """
    kind = publisher_class(settings.endpoint.protocol)
    reader = RowReader(plan, identity, {**kind.reserved_properties, **settings.endpoint.broker.header_properties})
    publisher: Publisher | None = None
    used_s, count = 0.0, 0
    gap_s = min(_GAP_S, settings.endpoint.heartbeat_s / 2)
    with settings.endpoint.hiding():
        try:
            for batch in _parts(batches):
                messages = reader.messages(batch)
                if publisher is not None and time.monotonic() - used_s > gap_s:
                    publisher.close()
                    publisher = None
                publisher = publisher or connect(settings)
                publisher.send([publisher.encode(message) for message in messages])
                used_s = time.monotonic()
                count += len(messages)
        finally:
            if publisher is not None:
                publisher.close()
    return count
