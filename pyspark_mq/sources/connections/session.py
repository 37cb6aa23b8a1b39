"""The base class of sessions. A session is one connection to a broker, from its opening to its end.

A session never reconnects. When the connection, the channel or the subscription ends, the session raises a
:class:`SessionLostError` and is dropped with all its handles, because in another session a handle means another message
(rule 10). Its supervisor then opens a new session.

Order of calls: :meth:`~Session.open` once; then :meth:`~Session.consume`, which may be called again to widen the
window; then :meth:`~Session.run` repeatedly. Between two runs there may be requests (acknowledge, reject, ask, resume).
:meth:`~Session.close` may be called at any time. Only the supervisor's thread calls these methods. Other threads may
call :meth:`~Session.wake`.

`open` and `run` may wait up to their timeouts, and `close` for a moment. Requests do not wait: they record what the
next `run` sends.

A message that arrives is checked, and put into the inbox of the :class:`ReceiveBuffer` without decoding it. Another
thread takes it from the inbox and decodes it.

A session stores nothing that survives a crash. The broker redelivers unacknowledged messages.

Guarantee: only :meth:`~Session.acknowledge` acknowledges a message, and only :meth:`~Session.reject` rejects one. When
the session ends, for any reason, the broker requeues all other messages.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts
from pyspark_mq.decode.batch import DeliveryBatch, Unreadable
from pyspark_mq.errors import DestinationError, MessageError
from pyspark_mq.sources.connections.flow import is_full
from pyspark_mq.wire.connection import ConnectionLostError
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.socket_loop import count_addresses
from pyspark_mq.wire.url import BrokerUrl

__all__ = [
    "COPIED",
    "TRANSIT_S",
    "Greeting",
    "QueueDepth",
    "ReceiveBuffer",
    "Session",
    "SessionLostError",
    "SessionOptions",
]

#: Time in seconds in which a broker usually delivers a waiting message, even under load. On one machine it takes only
#: milliseconds.
TRANSIT_S = 0.5
#: A paused session reads one delivery at this interval. A broker that cannot write for a while would otherwise close
#: the connection, and count one more delivery for each of its messages: RabbitMQ after 15 s
#: (`tcp_listen_options.send_timeout`), ActiveMQ Classic over STOMP after 30 s.
KEEP_ALIVE_READ_S = 5.0
#: Addition to the error about a stream, for protocols that cannot ask the broker whether the queue really is a stream.
COPIED = (
    ". If it is a queue with messages that were copied from a stream, read it with protocol amqp-0-9-1, or have them "
    "copied without header 'x-stream-offset'"
)


class SessionLostError(ConnectionLostError):
    """The session has ended, and the broker requeues its unacknowledged messages.

    Users do not see this error, because the supervisor opens another session.
    """


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The broker's report about the depth of the queue and about its consumers.

    Attributes:
        ready: number of messages that wait in the queue.
        other_consumers: number of consumers that are not of this session. The broker may still count a consumer that
            has vanished without closing its connection.
        own_consumers: number of consumers of this session.
    """

    ready: int
    other_consumers: int
    own_consumers: int = 0


@dataclass(frozen=True, slots=True)
class Greeting:
    """The broker's report about itself and the queue when a session was opened.

    Attributes:
        url: the URL to which the session is connected.
        broker_id: a name by which the broker identifies itself, and which it keeps across restarts; empty if there is
            no such name.
        depth: the depth of the queue before this session received messages; None if the broker does not report it.
        server: the broker's `product/version`; empty if the broker does not report it.
        facts: other facts that the broker reports about the queue.
    """

    url: BrokerUrl
    broker_id: str
    depth: QueueDepth | None
    server: str = ""
    facts: QueueFacts = NOTHING_KNOWN


class ReceiveBuffer:
    """Passes the deliveries of one session to another thread, and the broker's answers to callbacks.

    The session's thread adds deliveries and counts their bytes. The worker's thread takes deliveries, makes blocks of
    them, and the query counts the bytes that it has processed. If the difference becomes too large, the session pauses.

    Args:
        arrived: set when there are deliveries for the worker's thread.
        confirmed: called on the session's thread with the number of a request that the broker has answered.
        reported: called on the session's thread when the broker has reported the depth of the queue.

    Attributes:
        inbox: deliveries in order, single or in batches. The worker's thread takes them from the left.
        deliveries: number of deliveries that were added so far.
        bytes_arrived: number of bytes that were added so far, see :attr:`.DeliveryBatch.size_bytes`.
        bytes_made: how many of the bytes that arrived have become blocks.
        bytes_grown: number of bytes by which deliveries are larger in blocks than as they arrived.
        bytes_taken: number of bytes that the query has processed so far.
        bytes_allowed: number of bytes that may be unprocessed before the session pauses, see :mod:`.flow`.
    """

    def __init__(
        self,
        arrived: threading.Event | None = None,
        confirmed: Callable[[int], object] = lambda number: None,  # noqa: ARG005
        reported: Callable[[QueueDepth], object] = lambda depth: None,  # noqa: ARG005
    ) -> None:
        self.arrived = arrived or threading.Event()
        self.confirmed = confirmed
        self.reported = reported
        self.inbox: deque[Any] = deque()
        self.deliveries = self.bytes_arrived = self.bytes_made = self.bytes_grown = self.bytes_taken = 0
        self.bytes_allowed = float("inf")

    @property
    def full(self) -> bool:
        """Whether too many bytes are not processed yet. Any thread may read this."""
        return is_full(self.bytes_arrived, self.bytes_made, self.bytes_grown, self.bytes_taken, self.bytes_allowed)

    def count(self, deliveries: int, size: int) -> None:
        """Count deliveries that were added to the inbox, and their bytes. Wake the worker's thread."""
        self.deliveries += deliveries
        self.bytes_arrived += size
        self.wake()

    def made(self, arrived: int, size: int) -> None:
        """Count deliveries that became a block. Called on the worker's thread, which makes blocks.

        Args:
            arrived: number of bytes of these deliveries when they arrived.
            size: number of bytes that they take in the block.
        """
        self.bytes_grown += size - arrived
        self.bytes_made += arrived

    def wake(self) -> None:
        if not self.arrived.is_set():
            self.arrived.set()

    def take(self, maximum: float = math.inf) -> list[Any]:
        """Remove the oldest deliveries from the inbox, and return them, single or in batches.

        Args:
            maximum: maximum number of deliveries to return. Batches are not split, so the last batch may exceed it.
        """
        items: list[Any] = []
        with suppress(IndexError):  # the inbox is empty, perhaps because its session has just ended
            while maximum > 0:
                items.append(item := self.inbox.popleft())
                maximum -= len(item) if isinstance(item, DeliveryBatch) else 1
        return items


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of a session.

    Attributes:
        keeps_unreadable: whether messages that cannot be decoded go into the inbox like other messages. Otherwise
            :meth:`.Session.run` raises an error for the first such message.
        browses: whether to browse the queue, so that its messages stay available to other consumers. Only some brokers
            support this.
        attempt: number of failed attempts at this URL so far. Each attempt begins with the next address of the host,
            because one address may accept connections without answering.
        stopping: if this is set, and the session is woken, opening and consuming raise a :class:`.StopRequestedError`.
    """

    keeps_unreadable: bool = False
    browses: bool = False
    attempt: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)


class Session(ABC):
    """Base class of sessions. A session is one connection to a broker. A new instance is not connected.

    The module's docstring has the order of calls and the guarantees.

    Args:
        endpoint: the queue or topic, and how to connect to its broker.
        number: number of this session, which is unique in the process.
        buffer: receives deliveries and the broker's answers.
        options: how the session behaves.
        now_s: returns the current time in seconds.

    Attributes:
        consuming: whether the broker has accepted the session's consumer.
    """

    #: The class that decodes the session's deliveries.
    batches: ClassVar[type[DeliveryBatch]]

    def __init__(
        self,
        endpoint: Endpoint,
        number: int,
        buffer: ReceiveBuffer,
        options: SessionOptions = SessionOptions(),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.number = number
        self.buffer = buffer
        self.options = options
        self.now_s = now_s
        self.consuming = False
        self._paused = False
        self._keep_alive_read_s = 0.0

    @classmethod
    def count_addresses(cls, url: BrokerUrl) -> int:
        """Return the number of addresses of a broker's host."""
        return count_addresses(url)

    @property
    def paused(self) -> bool:
        """Whether the session does not read from its socket now, because too many bytes are not processed yet."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._keep_alive_read_s = self.now_s() + KEEP_ALIVE_READ_S

    @property
    def partial_bytes(self) -> int:
        """Number of bytes of an incomplete message that have arrived; 0 if there is none. Any thread may read this."""
        return 0

    @property
    def keep_alive_read_due(self) -> bool:
        """Whether a paused session has to read one delivery now, see :data:`KEEP_ALIVE_READ_S`."""
        return self._paused and self.now_s() >= self._keep_alive_read_s

    @abstractmethod
    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        """Connect, log in, and look the queue up. Messages are not delivered yet. This may take up to `timeout_s`.

        Raises:
            BrokerUnavailableError: the broker does not answer, or cannot serve the session now. Another attempt may
                succeed.
            RefusedError: login, virtual host, permission or TLS are wrong. Another attempt would fail, too.
            DestinationError: the queue does not exist, or this user may not read it.
        """

    @abstractmethod
    def consume(self, window: int) -> None:
        """Start to consume, with at most `window` unacknowledged messages. Call this again to widen the window.

        Messages that the session already holds count towards the window, and stay valid. But some brokers do not count
        them when the window is widened, and may deliver `window` further messages.
        """

    def extend(self, window: int) -> None:
        """Widen the window like :meth:`consume`, but never let the broker exceed it.

        With some protocols, this needs another consumer.
        """
        self.consume(window)

    @abstractmethod
    def run(self, timeout_s: float) -> None:
        """Send and receive for `timeout_s` seconds, or until another thread calls :meth:`wake`.

        Raises:
            SessionLostError: the session has ended.
            MessageError: a message cannot be decoded, and :attr:`SessionOptions.keeps_unreadable` is false.
        """

    def _refuse(self, unreadable: Unreadable) -> MessageError:
        """Return the error for a message that cannot be decoded, with `onUnreadableMessage=fail`."""
        return MessageError(
            f"{self.endpoint.destination} holds a message that cannot be read: {unreadable}. The message was not "
            "acknowledged and stays in the queue. Remove it with the broker's tools, or set 'onUnreadableMessage' to "
            "'reject' (the broker dead-letters the message, or drops it if the queue has no dead-letter target) or to "
            "'row' (the message becomes a row with its bytes)"
        )

    def _refuse_stream(self, hint: str = "") -> DestinationError:
        """Return the error for a queue that is a RabbitMQ stream, which keeps acknowledged messages (docs/streams.md).

        Args:
            hint: text to add to the error.
        """
        return DestinationError(
            f"{self.endpoint.destination} is a stream: it keeps acknowledged messages, and a consumer without an "
            "offset skips messages that arrived while the consumer was away. Read the stream with a URL "
            f"rabbitmq-stream://user:password@host:5552/vhost and option 'stream' instead of 'queue'{hint}"
        )

    @abstractmethod
    def wake(self) -> None:
        """Make :meth:`run` return soon. This is the only method that other threads may call."""

    @abstractmethod
    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        """Acknowledge deliveries. When the broker has processed this request, call the buffer's `confirmed(number)`.

        The broker answers the request even if there is nothing to acknowledge. Its answer arrives after everything that
        it has delivered before.

        Args:
            number: identifies the request in the confirmation.
            upto: acknowledge all open deliveries of this session up to this tag; 0 for none.
            singles: further tags, each of which is acknowledged on its own.
        """

    @abstractmethod
    def reject(self, tags: Sequence[int]) -> None:
        """Reject messages for good. The broker dead-letters them if the queue has a target for that, or drops them."""

    @abstractmethod
    def ask_depth(self) -> None:
        """Ask the broker for the depth of the queue. If it answers, call the buffer's `reported`."""

    def resume(self) -> None:
        """If the session is paused, and not too many bytes are unprocessed, read from the socket again."""
        if self.paused and not self.buffer.full:
            self._resume()

    @abstractmethod
    def _resume(self) -> None:
        """Read from the socket again, after a pause."""

    def end(self, why: str) -> None:
        """End the session on purpose, so that the broker requeues its messages.

        Raises:
            SessionLostError: always.
        """
        raise SessionLostError(why)

    @abstractmethod
    def close(self) -> None:
        """Close the session as cleanly as possible within a moment. This never raises an error."""
