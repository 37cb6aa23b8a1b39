"""The contract of a session: one connection to a broker, from its opening to its end.

A session never reconnects. When the connection, the channel or the subscription ends, the session raises
:class:`SessionLostError` and is discarded with all its handles (rule 10: a handle used in another session acknowledges
another message). Its supervisor then opens a new session.

Calling order: :meth:`~Session.open` once; then :meth:`~Session.consume`, and again to widen the window; then
:meth:`~Session.run` repeatedly, with requests (acknowledge, reject, ask, resume) between two runs;
:meth:`~Session.close` at any time. Only one thread, the supervisor's, calls these methods. :meth:`~Session.wake` is for
other threads.

Blocking: `open` and `run` for their timeouts, `close` for a moment. Requests only record what the next `run` sends.

An incoming message is checked and goes undecoded into the inbox of the :class:`ReceiveBuffer`. Another thread empties
the inbox and decodes.

Nothing survives a crash. The broker redelivers unacknowledged messages.

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
from pyspark_mq.errors import DestinationError, MessageError, shown
from pyspark_mq.sources.connections.socket_loop import count_addresses
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.url import BrokerUrl

__all__ = [
    "COPIED",
    "TRANSIT_S",
    "Greeting",
    "QueueDepth",
    "ReceiveBuffer",
    "Session",
    "SessionLostError",
    "SessionOptions",
    "StopRequestedError",
]

#: How long a broker may take to deliver ready messages: milliseconds on one machine, more with paging or under load.
TRANSIT_S = 0.5
#: A broker that cannot write for a while closes the connection, which adds a delivery to each of its messages: RabbitMQ
#: after 15 s (`tcp_listen_options.send_timeout`), ActiveMQ Classic over STOMP after 30 s. So a paused session takes one
#: delivery at this interval.
KEEP_ALIVE_READ_S = 5.0
#: The part of the allowed bytes that may wait to become blocks, and a number of bytes that always may: a block.
_UNMADE_PARTS, _UNMADE_BYTES = 4, 4 << 20
#: A further hint about a message with a stream offset, for protocols that cannot ask the broker about the queue.
COPIED = (
    ". If it is a queue with messages that were copied from a stream, read it with protocol amqp-0-9-1, or have them "
    "copied without header 'x-stream-offset'"
)


class SessionLostError(Exception):
    """The session has ended by itself. The broker requeues the session's unacknowledged messages.

    Users do not see this error, because the supervisor reconnects.

    Attributes:
        stated: whether the broker stated a reason, which may recur; otherwise the connection broke.
    """

    def __init__(self, reason: str, *, stated: bool = False) -> None:
        self.stated = stated
        super().__init__(shown(reason))


class StopRequestedError(Exception):
    """The query stops while a session opens or subscribes."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The broker's report about the queue.

    Attributes:
        ready: messages waiting for delivery.
        other_consumers: consumers of the queue outside this session, as the broker counts them: the count may include a
            consumer whose connection has died unnoticed.
        own_consumers: consumers of this session.
    """

    ready: int
    other_consumers: int
    own_consumers: int = 0


@dataclass(frozen=True, slots=True)
class Greeting:
    """Facts known once a session is open.

    Attributes:
        url: the candidate that answered.
        broker_id: a name that the broker keeps across restarts; empty if the broker reports no such name.
        depth: the depth before this session took anything; None if the broker does not report the depth.
        server: the broker's `product/version`; empty if the broker reports neither.
        facts: other facts that the broker reports about the queue.
    """

    url: BrokerUrl
    broker_id: str
    depth: QueueDepth | None
    server: str = ""
    facts: QueueFacts = NOTHING_KNOWN


class ReceiveBuffer:
    """Deliveries of one session on their way to another thread, and callbacks for its broker's answers.

    The session appends deliveries and counts them on its thread. The other thread takes deliveries and counts what it
    takes. If the difference becomes too large, the session pauses.

    Args:
        arrived: set when there is news for the other thread.
        confirmed: called on the session's thread when a request is confirmed, with the request's number.
        reported: called on the session's thread when the broker has reported the depth of the queue.

    Attributes:
        inbox: deliveries in order, single or in batches; the other thread takes them from the left.
        deliveries: number of deliveries appended so far.
        bytes_arrived: bytes appended so far, see :attr:`.DeliveryBatch.size_bytes`.
        bytes_made: bytes of `bytes_arrived` that have become blocks.
        bytes_grown: bytes that deliveries take in blocks beyond their encoded size.
        bytes_taken: bytes taken out so far.
        bytes_allowed: the session pauses when more bytes than this wait. It also pauses when a quarter of that number
            waits to become blocks, because a delivery may take six times its bytes in a block.
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
        """Whether too many bytes wait. For any thread."""
        unmade = self.bytes_arrived - self.bytes_made
        if self.bytes_arrived + self.bytes_grown - self.bytes_taken > self.bytes_allowed:
            return True
        return unmade > max(_UNMADE_BYTES, self.bytes_allowed / _UNMADE_PARTS)

    def count(self, deliveries: int, size: int) -> None:
        """Count deliveries that were appended to the inbox, with their bytes, and wake the other thread."""
        self.deliveries += deliveries
        self.bytes_arrived += size
        self.wake()

    def made(self, arrived: int, size: int) -> None:
        """Count deliveries that became a block: their bytes on arrival, and in the block. For the other thread."""
        self.bytes_grown += size - arrived
        self.bytes_made += arrived

    def wake(self) -> None:
        if not self.arrived.is_set():
            self.arrived.set()

    def take(self, maximum: float = math.inf) -> list[Any]:
        """Take up to `maximum` deliveries out of the inbox, or a few more, because batches are not split."""
        items: list[Any] = []
        with suppress(IndexError):  # the inbox is empty, or the session ended on its thread and cleared it
            while maximum > 0:
                items.append(item := self.inbox.popleft())
                maximum -= len(item) if isinstance(item, DeliveryBatch) else 1
        return items


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Choices for a session.

    Attributes:
        keeps_unreadable: whether messages that cannot be decoded go into the inbox like other messages. Otherwise
            :meth:`.Session.run` raises an error for the first such message.
        browses: whether to look through the queue without taking anything, if the broker supports it for the protocol.
        attempt: failed attempts at this URL so far. Each attempt begins with the next of the host's addresses, because
            an address may accept connections but stay silent.
        stopping: once set and woken, opening and subscribing raise :class:`StopRequestedError`.
    """

    keeps_unreadable: bool = False
    browses: bool = False
    attempt: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)


class Session(ABC):
    """A session; see the contract at the top of this module. A new instance is not open.

    Args:
        number: number of this session, unique in the process.
        buffer: receives deliveries and answers.

    Attributes:
        consuming: whether the broker has accepted the consumer.
    """

    #: Decoder of the session's deliveries.
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
        """Return how many addresses a broker's host resolves to."""
        return count_addresses(url)

    @property
    def paused(self) -> bool:
        """Whether the session pauses because too many bytes wait in the buffer."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._keep_alive_read_s = self.now_s() + KEEP_ALIVE_READ_S

    @property
    def keep_alive_read_due(self) -> bool:
        """Whether a paused session should take one delivery all the same. The interval restarts with each pause."""
        return self._paused and self.now_s() >= self._keep_alive_read_s

    @abstractmethod
    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        """Connect, log in, and find the queue. Consumes nothing yet. Blocks up to `timeout_s`.

        Raises:
            BrokerUnavailableError: the broker does not answer, or cannot serve the session now; a retry may succeed.
            RefusedError: credentials, virtual host, permission or TLS are wrong; a retry is pointless.
            DestinationError: the queue does not exist, or this user may not read it.
        """

    @abstractmethod
    def consume(self, window: int) -> None:
        """Consume, with at most `window` unacknowledged messages, including messages held already.

        Call this again to widen the window. Deliveries stay valid. A broker that counts a new window from zero may then
        deliver `window` further messages.
        """

    def extend(self, window: int) -> None:
        """Widen the window so that the broker never exceeds the new window, even if that takes another consumer."""
        self.consume(window)

    @abstractmethod
    def run(self, timeout_s: float) -> None:
        """Send and receive for `timeout_s` or until :meth:`wake`.

        Raises:
            SessionLostError: the session has ended.
            MessageError: a message cannot be decoded, and option `keeps_unreadable` is off.
        """

    def _turn(self, timeout_s: float) -> None:
        """Send and receive until something happens, at most for `timeout_s`."""
        self.run(timeout_s)

    def _until(self, came: Callable[[], bool], deadline: float, *, closing: bool = False) -> None:
        """Take turns until `came()` is true.

        Args:
            deadline: time limit, on the session's clock.
            closing: whether to continue after a request to stop.

        Raises:
            TimeoutError: time has run out.
            SessionLostError: the session has ended.
            StopRequestedError: the query stops.
        """
        while not came():
            left_s = deadline - self.now_s()
            if left_s <= 0:
                raise TimeoutError
            if self.options.stopping.is_set() and not closing:
                raise StopRequestedError
            self._turn(left_s)

    def _refuse(self, unreadable: Unreadable) -> MessageError:
        """Return the error for a message that cannot be decoded, for sessions that do not keep such messages."""
        return MessageError(
            f"{self.endpoint.destination} holds a message that cannot be read: {unreadable}. The message was not "
            "acknowledged and stays in the queue. Take it out with the broker's tools, or set 'onUnreadableMessage' to "
            "'reject' (the broker dead-letters the message, or drops it if there is no target) or to 'row' (the "
            "message becomes a row with its bytes)"
        )

    def _refuse_stream(self, hint: str = "") -> DestinationError:
        """Return the error for a RabbitMQ stream, which keeps acknowledged messages (docs/streams.md)."""
        return DestinationError(
            f"{self.endpoint.destination} is a stream: it keeps acknowledged messages, and a consumer without an "
            "offset skips messages that arrived while the consumer was away. Read the stream with a URL "
            f"rabbitmq-stream://user:password@host:5552/vhost and option 'stream' instead of 'queue'{hint}"
        )

    @abstractmethod
    def wake(self) -> None:
        """Make :meth:`run` return soon. The only method for other threads."""

    @abstractmethod
    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        """Acknowledge, and call the buffer's `confirmed(number)` once the broker has processed the request.

        The confirmation comes after everything the broker had delivered before. A confirmation is requested even if
        there is nothing to acknowledge.

        Args:
            number: identifies the request in the confirmation.
            upto: acknowledge all open deliveries of this session with a tag of at most this; 0 for no deliveries.
            singles: further tags to acknowledge, one by one.
        """

    @abstractmethod
    def reject(self, tags: Sequence[int]) -> None:
        """Reject messages for good: the broker dead-letters them if it is configured to, or drops them."""

    @abstractmethod
    def ask_depth(self) -> None:
        """Ask for the depth of the queue; the answer goes to the buffer's `reported`, or never comes."""

    def resume(self) -> None:
        """Resume after a pause, unless too many bytes wait. Without a pause, do nothing."""
        if self.paused and not self.buffer.full:
            self._resume()

    @abstractmethod
    def _resume(self) -> None:
        """Resume consuming."""

    def end(self, why: str) -> None:
        """End the session on purpose, so that the broker requeues its messages.

        Raises:
            SessionLostError: always.
        """
        raise SessionLostError(why)

    @abstractmethod
    def close(self) -> None:
        """Close the session as cleanly as possible within a moment. Never raises."""
