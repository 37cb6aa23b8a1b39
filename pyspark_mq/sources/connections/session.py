"""The contract of a session: one connection to a broker, from its opening to its end.

A session never reconnects: when the connection, the channel or the subscription ends, it
raises :class:`SessionLostError` and is thrown away, and with it every handle it gave (rule 10: a handle used in another
session acknowledges another message). Its supervisor then makes a new one.

What may be called when: :meth:`~Session.open` once; then :meth:`~Session.consume`, again to widen the window;
then :meth:`~Session.run`, again and again, with the requests (acknowledge, reject, ask, resume) between two runs;
:meth:`~Session.close` at any time. One thread, the supervisor's, calls all of them. :meth:`~Session.wake` is for
other threads.

What may block: `open` for its timeout, `run` for its timeout, `close` for a moment. Requests only write down what the
next `run` sends.

A message that comes is checked, and goes as it is into the inbox of the :class:`ReceiveBuffer`. Another thread empties
that, and decodes.

What survives a crash: nothing. The broker hands out again what was not acknowledged.

Guarantee: a message is acknowledged only by :meth:`~Session.acknowledge` and refused only by
:meth:`~Session.reject`; the end of the session for any reason gives all others back.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts
from pyspark_mq.decode.batch import DeliveryBatch, Unreadable
from pyspark_mq.errors import DestinationError, MessageError, shown
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
]

#: How long a broker may take to hand out what is ready: on one machine milliseconds, more with paging or under load.
TRANSIT_S = 0.5
#: A broker that cannot write for a while gives up the connection, and everything handed out over it counts as
#: delivered once more: RabbitMQ (`tcp_listen_options.send_timeout`, 15 s) and ActiveMQ Classic over STOMP after
#: 30 s. So a session that does not read while paused takes one delivery at this interval.
KEEP_ALIVE_READ_S = 5.0
#: What else a message with the offset of a stream may be, where the broker cannot be asked.
COPIED = (
    ". If it is a queue with messages that were copied from a stream, read it with protocol amqp-0-9-1, or have them "
    "copied without header 'x-stream-offset'"
)


class SessionLostError(Exception):
    """The session ended by itself. Unacknowledged messages are with the broker again.

    Not an error for users: the supervisor answers it by connecting again.

    Attributes:
        stated: the broker gave the reason, so it may give it again; otherwise the connection is gone.
    """

    def __init__(self, reason: str, *, stated: bool = False) -> None:
        self.stated = stated
        super().__init__(shown(reason))


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The broker's report about the queue.

    Attributes:
        ready: messages waiting to be handed out.
        other_consumers: those of the queue other than this session, as the broker sees it: also one whose
            connection has died without the broker knowing.
        own_consumers: those of this session.
    """

    ready: int
    other_consumers: int
    own_consumers: int = 0


@dataclass(frozen=True, slots=True)
class Greeting:
    """Facts that are known once a session is open.

    Attributes:
        url: the candidate that answered.
        broker_id: a name the broker keeps over restarts, or empty if it does not report one.
        depth: state of the queue before this session took anything; None if the broker does
            not report it.
        server: what the broker calls itself, `product/version`; empty if it does not say.
        facts: what else it reports of the queue.
    """

    url: BrokerUrl
    broker_id: str
    depth: QueueDepth | None
    server: str = ""
    facts: QueueFacts = NOTHING_KNOWN


class ReceiveBuffer:
    """Deliveries of one session on their way to another thread, and what its broker answers.

    The session appends and counts what arrives, on its thread; the other thread takes, and counts what it took. The
    difference pauses the session.

    Args:
        arrived: set when there is something for the other thread to look at.
        confirmed: called on the session's thread when an acknowledgement is confirmed, with its number.
        reported: called on the session's thread when the broker reported the depth of the queue.

    Attributes:
        inbox: deliveries in order, also as batches; the other thread takes them from the left.
        deliveries: appended so far.
        bytes_arrived: bytes appended so far, see :attr:`.DeliveryBatch.size_bytes`.
        bytes_grown: bytes that they take more in blocks than as they came.
        bytes_taken: bytes taken out so far.
        bytes_allowed: the session pauses when more bytes than this wait.
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
        self.deliveries = self.bytes_arrived = self.bytes_grown = self.bytes_taken = 0
        self.bytes_allowed = float("inf")

    @property
    def full(self) -> bool:
        """Whether more bytes wait than may. For any thread."""
        return self.bytes_arrived + self.bytes_grown - self.bytes_taken > self.bytes_allowed

    def count(self, deliveries: int, size: int) -> None:
        """Count deliveries that were appended to the inbox and their bytes, and wake the other thread."""
        self.deliveries += deliveries
        self.bytes_arrived += size
        self.wake()

    def wake(self) -> None:
        if not self.arrived.is_set():
            self.arrived.set()

    def take(self, maximum: float = math.inf) -> list[Any]:
        """Take deliveries out of the inbox, as they are there: all, or until there are `maximum` of them or more."""
        items: list[Any] = []
        with suppress(IndexError):  # it is empty, or the session has ended, on another thread, and what it had is void
            while maximum > 0:
                items.append(item := self.inbox.popleft())
                maximum -= len(item) if isinstance(item, DeliveryBatch) else 1
        return items


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Choices for a session.

    Attributes:
        keeps_unreadable: messages that cannot be decoded go into the inbox like others; otherwise :meth:`.Session.run`
            raises for the first.
        browses: look through the queue without taking anything, where the broker has that for the protocol.
    """

    keeps_unreadable: bool = False
    browses: bool = False


class Session(ABC):
    """One session, not opened yet; see the contract at the top of this module.

    Args:
        number: of this session, unique in the process.
        buffer: where deliveries and answers go.
    """

    #: What its deliveries become.
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
        self._paused = False
        self._keep_alive_read_s = 0.0

    @property
    def paused(self) -> bool:
        """Whether it pauses because too many bytes wait in the buffer."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._keep_alive_read_s = self.now_s() + KEEP_ALIVE_READ_S

    @property
    def keep_alive_read_due(self) -> bool:
        """Paused, and due to take one delivery all the same. Pausing again puts off the next one."""
        return self._paused and self.now_s() >= self._keep_alive_read_s

    @abstractmethod
    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        """Connect, log in, find the queue. Consumes nothing yet. Blocks up to `timeout_s`.

        Raises:
            BrokerUnavailableError: nobody there, or not now; worth another try.
            RefusedError: credentials, virtual host, permission, TLS; another try is pointless.
            DestinationError: no such queue, or not for us.
        """

    @abstractmethod
    def consume(self, window: int) -> None:
        """Take messages in, at most `window` unacknowledged at a time, those held included.

        Called again to widen the window: what was handed out stays handed out. A broker that
        counts a new window from zero may hand out as much again.
        """

    def extend(self, window: int) -> None:
        """Widen the window, and be handed no more than it in all, whatever that takes."""
        self.consume(window)

    @abstractmethod
    def run(self, timeout_s: float) -> None:
        """Send and receive for `timeout_s` or until :meth:`wake`.

        Raises:
            SessionLostError: the session has ended.
            MessageError: a message cannot be decoded, and option `keeps_unreadable` is off.
        """

    def _refuse(self, unreadable: Unreadable) -> MessageError:
        """The error for a message that cannot be decoded, where they are not kept."""
        return MessageError(
            f"{self.endpoint.destination} holds a message that cannot be read: {unreadable}. It was not acknowledged "
            "and stays in the queue. Take it out with the tools of the broker, or set 'onUnreadableMessage' to "
            "'reject' (dead-lettered, or dropped where there is no target) or to 'row' (a row with its bytes)"
        )

    def _refuse_stream(self, hint: str = "") -> DestinationError:
        """The error for a stream of RabbitMQ, which forgets nothing that is acknowledged (docs/streams.md)."""
        return DestinationError(
            f"{self.endpoint.destination} is a stream: it keeps what is acknowledged, and a consumer without an offset "
            "skips what came while it was away. Read it with a URL rabbitmq-stream://user:password@host:5552/vhost and "
            f"option 'stream' in place of 'queue'{hint}"
        )

    @abstractmethod
    def wake(self) -> None:
        """Make :meth:`run` return soon. The one method for other threads."""

    @abstractmethod
    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        """Acknowledge, and call `confirmed(number)` of the buffer once the broker has taken it.

        The confirmation comes after what the broker had handed out before. Where nothing is to be acknowledged, it is
        asked for all the same.

        Args:
            number: names the request in the confirmation.
            upto: all open deliveries of this session with a tag up to this one; 0 for none.
            singles: further tags, one by one.
        """

    @abstractmethod
    def reject(self, tags: Sequence[int]) -> None:
        """Refuse messages for good: the broker dead-letters them where it is configured to, or drops them."""

    @abstractmethod
    def ask_depth(self) -> None:
        """Ask for the depth of the queue; the answer goes to `reported` of the buffer, or never comes."""

    def resume(self) -> None:
        """Take messages in again after a pause, unless too many bytes wait. Without a pause it does nothing."""
        if self.paused and not self.buffer.full:
            self._resume()

    @abstractmethod
    def _resume(self) -> None:
        """Take messages in again."""

    def end(self, why: str) -> None:
        """End the session by its supervisor's will, so that the broker takes back what it holds.

        Raises:
            SessionLostError: always.
        """
        raise SessionLostError(why)

    @abstractmethod
    def close(self) -> None:
        """End the session as far as possible within a moment. Never raises."""
