"""The contract of publishers, and how a task writes with them. A publisher is one connection for one task.

A publisher sends messages and returns once the broker has confirmed all of them. After the end of a connection an
unconfirmed message may or may not be in the queue. So the task sends it again through another publisher, with the same
ID.
"""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.errors import (
    BrokerUnavailableError,
    DestinationError,
    MqError,
    OptionError,
    RefusedError,
    RowError,
    WriteError,
)
from pyspark_mq.sink.columns import ColumnPlan, RowReader
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.settings import DROP_ROWS, NO_MESSAGE, Destination, Message, Remarks, SinkSettings
from pyspark_mq.sources.connections.protocols import client_class
from pyspark_mq.sources.connections.socket_loop import count_addresses
from pyspark_mq.sources.endpoint import FILES, Endpoint
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["PUBLISHERS", "Publisher", "SendWindow", "WriteInterruptedError", "publisher_class", "write_rows"]

_LOG = logging.getLogger("pyspark_mq")

#: Most unconfirmed messages, and most bytes of these. A larger message is sent alone.
WINDOW_MESSAGES, WINDOW_BYTES = 4_000, 8 << 20
#: After this time, or half a heartbeat, without a message, the connection is replaced: the broker's heartbeats went
#: unanswered meanwhile. ActiveMQ Classic drops an idle connection after 30 s.
_GAP_S = 10.0
#: A blocked write logs a warning after this time.
_BLOCKED_S = 30.0
#: Pauses between attempts to connect: the first, and the longest.
_PAUSE_S, _PAUSE_MAX_S = 0.5, 5.0
#: Most connections in a row that the broker ends for a stated reason before it confirms anything. The source allows as
#: many sessions.
_ENDS_MAX = 9
#: Longest wait for the answer to :meth:`Publisher.reading`.
_ASK_TIMEOUT_S = 5.0
#: Brokers that this process has asked.
_ASKED = set[BrokerUrl]()
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
        #: Key of a message -> its size and its number.
        self.unconfirmed: dict[Any, tuple[int, int]] = {}
        self.bytes = 0
        #: Number of messages sent since :meth:`begin`.
        self._sent = 0
        #: Numbers of confirmed messages that are to be sent again, and of messages that are dropped.
        self._back, self._dropped = set[int](), set[int]()
        #: The broker's reason for blocking the connection; empty if it does not block.
        self.blocked = ""
        self._where, self._timeout_s, self._now_s = where, send_timeout_s, now_s
        self._moved_s = now_s()
        self._warned = False

    @property
    def full(self) -> bool:
        return len(self.unconfirmed) >= WINDOW_MESSAGES or self.bytes >= WINDOW_BYTES

    def begin(self) -> None:
        """Number the messages that are sent from now on, from 0. All earlier messages are confirmed."""
        self._sent = 0
        self._back.clear()
        self._dropped.clear()

    def left(self, count: int) -> list[int]:
        """Return the numbers of those of the first `count` messages that are to be sent, or sent again."""
        left = {*(number for _, number in self.unconfirmed.values()), *self._back, *range(self._sent, count)}
        return sorted(left - self._dropped)

    def put_back(self, number: int) -> None:
        """Record that a message was not accepted, although it is confirmed."""
        self._back.add(number)

    def drop(self, numbers: Iterable[int]) -> None:
        """Record that messages are not sent again, whatever is said of them."""
        self._dropped.update(numbers)

    def skip(self) -> None:
        """Record that the next message is not sent."""
        self._dropped.add(self._sent)
        self._sent += 1

    def sent(self, key: Any, size: int) -> None:
        """Record a sent message."""
        if not self.unconfirmed:
            self._moved()
        self.unconfirmed[key] = size, self._sent
        self._sent += 1
        self.bytes += size

    def confirmed(self, key: Any) -> None:
        """Record a confirmation. An unknown key changes no count."""
        size, _ = self.unconfirmed.pop(key, (0, 0))
        self.bytes -= size
        self._moved()

    def block(self, reason: str) -> None:
        """Record that the broker blocks the connection. An empty reason means that the broker no longer blocks."""
        if reason != self.blocked:
            self.blocked = reason
            self._moved()

    def _moved(self) -> None:
        self._moved_s, self._warned = self._now_s(), False

    def check(self, heard_s: float) -> None:
        """Check for a timeout while messages are unconfirmed.

        Args:
            heard_s: when the broker last sent anything.

        Raises:
            WriteInterruptedError: the broker has sent nothing for too long.
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
            if heard_s <= self._moved_s:
                raise WriteInterruptedError(
                    f"{self._where}: nothing was heard from the broker within sendTimeout={self._timeout_s:g}s, with "
                    f"{len(self.unconfirmed)} message(s) unconfirmed. A rerun of the write sends these messages with "
                    "the same IDs"
                )
            raise WriteError(
                f"{self._where}: no confirmation of {len(self.unconfirmed)} message(s) within "
                f"sendTimeout={self._timeout_s:g}s. A queue without a majority of its nodes confirms nothing, and a "
                "full broker may withhold confirmations: fix the cause, or raise 'sendTimeout'"
            )


class WriteInterruptedError(BrokerUnavailableError):
    """The connection ended, or a queue is unavailable. Another connection may send what is not confirmed.

    Attributes:
        stated: whether the broker ended the connection for a stated reason, which may hold for the next one, too.
        refusal: if the broker refused a message, the error unless the next connection gets further. A queue refuses
            messages if it is full, but also if its node was away a moment ago.
    """

    def __init__(self, text: str, *, stated: bool = False, refusal: WriteError | None = None) -> None:
        super().__init__(text)
        self.stated, self.refusal = stated, refusal


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
        self.remarks = Remarks()

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

    def reading(self, deadline: float) -> str:  # noqa: ARG002 - most publishers need not ask
        """Return what readers will find instead of the messages; empty if readers find the messages, or if unknown."""
        return ""

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
            WriteInterruptedError: the connection ended, or a queue is unavailable.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, whatever its state."""

    def lost(self, reason: object, *, stated: bool = False) -> WriteInterruptedError:
        """Return the error for a connection that ended."""
        return WriteInterruptedError(
            f"{self.url}: the connection ended with {len(self.window.unconfirmed)} message(s) unconfirmed ({reason}). "
            "A rerun of the write sends these messages with the same IDs",
            stated=stated,
        )

    def unavailable(self, destination: object, reason: object) -> WriteInterruptedError:
        """Return the error for a destination that exists, but whose node is away."""
        return WriteInterruptedError(
            f"{self.url}: {destination} is unavailable, with {len(self.window.unconfirmed)} message(s) unconfirmed "
            f"({reason}). A rerun of the write sends these messages with the same IDs"
        )


def publisher_class(protocol: str) -> type[Publisher]:
    """Return the publisher of a protocol; for errors see :func:`.client_class`."""
    found: type[Publisher] = client_class(protocol, PUBLISHERS)
    return found


def connect(settings: SinkSettings, *, since_s: float | None = None) -> Publisher:
    """Return an open publisher at the first URL that answers.

    A silent address, such as the address of a host without power, takes only its share of the time.

    Args:
        since_s: if the query was connected before, the time from which `reconnectTimeout` counts; None for the first
            connection, for which `connectTimeout` counts.

    Raises:
        BrokerUnavailableError: no URL has answered in time. The error is that of the last URL.
        RefusedError: the broker refuses the login.
    """
    endpoint = settings.endpoint
    kind, urls = publisher_class(endpoint.protocol), endpoint.urls
    began_s = time.monotonic()
    deadline = began_s + endpoint.connect_timeout_s if since_s is None else since_s + endpoint.reconnect_timeout_s
    addresses, tried, pause_s = sum(map(count_addresses, urls)), 0, _PAUSE_S
    while True:
        attempt, number = divmod(tried, len(urls))
        publisher, now_s = kind(settings, urls[number], attempt), time.monotonic()
        share_s = max(0.1, (deadline - now_s) / max(1, addresses - tried))
        try:
            publisher.open(now_s + min(share_s, endpoint.connect_timeout_s))
        except MqError as problem:
            publisher.close()
            now_s = time.monotonic()
            if not _passes(problem, endpoint, now_s - began_s, again=since_s is not None):
                raise
            tried += 1
            if tried % len(urls) == 0:
                if now_s + pause_s >= deadline:
                    raise
                time.sleep(pause_s * random.uniform(0.5, 1.0))  # tasks whose broker restarts come one by one
                if since_s is not None:
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        except BaseException:
            publisher.close()
            raise
        else:
            return publisher


def _passes(problem: MqError, endpoint: Endpoint, tried_s: float, *, again: bool) -> bool:
    """Whether a problem may pass, so that another attempt is worthwhile. The source decides in the same way."""
    if isinstance(problem, RefusedError):
        return again and (endpoint.password_file is not None or tried_s <= endpoint.connect_timeout_s)
    if isinstance(problem, OptionError):
        return again and problem.option in FILES
    return isinstance(problem, BrokerUnavailableError)


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches into parts small enough to copy: Spark's batches may hold ten thousand large bodies."""
    for batch in batches:
        rows = max(1, batch.num_rows * _COPIED_BYTES // max(batch.nbytes, _COPIED_BYTES))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


class _Connection:
    """The connection of one task, replaced if it ends.

    Args:
        again: whether the query has written before.
    """

    def __init__(self, settings: SinkSettings, *, again: bool) -> None:
        self._settings, self._again = settings, again
        self._publisher: Publisher | None = None
        self._used_s = 0.0
        self.remarks = Remarks()
        self._gap_s = min(_GAP_S, settings.endpoint.heartbeat_s / 2)

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages until all are confirmed.

        After the end of a connection, and while a queue is unavailable, messages that were not confirmed are sent
        again, through another connection.

        Raises:
            BrokerUnavailableError: no message was confirmed for `reconnectTimeout`.
            WriteError: the broker did not accept a message, or ended too many connections.
        """
        timeout_s, left = self._settings.endpoint.reconnect_timeout_s, [*messages]
        since_s, ends, pause_s, refused = time.monotonic(), 0, _PAUSE_S, False
        if self._publisher is not None and since_s - self._used_s > self._gap_s:
            self.close()
        while left:
            publisher = self._publisher = self._publisher or connect(
                self._settings, since_s=since_s if self._again else None
            )
            self._again = True
            if publisher.url not in _ASKED:
                _ASKED.add(publisher.url)
                self.remarks.reading = publisher.reading(time.monotonic() + _ASK_TIMEOUT_S)
            opened_s = time.monotonic()
            publisher.window.begin()
            left, encoded = self._encoded(publisher, left)
            try:
                publisher.send(encoded)
            except WriteInterruptedError as lost:
                self.close()
                rest = publisher.window.left(len(left))
                now_s, ends = time.monotonic(), ends + lost.stated
                since_s += now_s - opened_s  # an alarm may block a connection for long
                if len(rest) < len(left):
                    since_s, ends, pause_s, refused = now_s, 0, _PAUSE_S, False
                if not rest:
                    break
                if refused and lost.refusal is not None:
                    raise lost.refusal from lost
                refused = lost.refusal is not None
                if ends >= _ENDS_MAX:
                    raise WriteError(
                        f"{lost.text}. The broker has ended {ends} connections in a row before it confirmed a message: "
                        "its log says why"
                    ) from lost
                if now_s + pause_s - since_s >= timeout_s:
                    raise
                _LOG.warning("%s. Reconnecting, to send %d message(s) again", lost.text, len(rest))
                left = [left[number] for number in rest]
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                left = []
        self._used_s = time.monotonic()

    def _encoded(self, publisher: Publisher, messages: Sequence[Message]) -> tuple[list[Message], list[Any]]:
        """Return the messages that the protocol can carry, and their encodings."""
        if not self._settings.drops:
            return [*messages], [publisher.encode(message) for message in messages]
        pairs = []
        for message in messages:
            try:
                pairs.append((message, publisher.encode(message)))
            except RowError as unwritable:
                self.remarks.drop(NO_MESSAGE, unwritable.text)
        return [message for message, _ in pairs], [encoded for _, encoded in pairs]

    def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            self.remarks += publisher.remarks
            publisher.close()


def write_rows(
    batches: Iterable[pa.RecordBatch],
    settings: SinkSettings,
    plan: ColumnPlan,
    identity: Identity,
    *,
    again: bool = False,
    remarks: Remarks | None = None,
) -> int:
    """Publish the rows of one task. Return the number of messages once all are confirmed.

    The connection is opened for the first row, and closed at the end. Each batch is confirmed before the next batch is
    sent.

    Args:
        again: whether the query has written before, so that a broker that is away is waited for.
        remarks: where to note what the log has to say.
    """
    kind = publisher_class(settings.endpoint.protocol)
    reserved = {**kind.reserved_properties, **settings.endpoint.broker.header_properties}
    connection, count = _Connection(settings, again=again), 0
    reader = RowReader(plan, identity, reserved, connection.remarks)
    with settings.endpoint.hiding():
        try:
            for batch in _parts(batches):
                messages = reader.messages(batch)
                connection.send(messages)
                count += batch.num_rows
        except RowError as unwritable:
            raise RowError(f"{unwritable.text}. {DROP_ROWS}") from None
        except DestinationError as missing:
            if settings.destination is not None:
                raise
            raise DestinationError(f"{missing.text}. {DROP_ROWS}") from None
        finally:
            connection.close()
    if remarks is not None:
        remarks += connection.remarks
    return count - connection.remarks.dropped.total()
