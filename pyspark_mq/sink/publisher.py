"""The base class of publishers, and how a task writes rows with them. A publisher is one connection of one task.

A publisher sends messages, and returns once the broker has confirmed all of them. If its connection ends before that,
it is unknown whether the unconfirmed messages are in the queue. So the task sends these messages again through another
publisher, with the same IDs.
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
from pyspark_mq.wire.clients import client_class
from pyspark_mq.wire.connection import ENDS_MAX
from pyspark_mq.wire.endpoint import FILES, Endpoint
from pyspark_mq.wire.socket_loop import count_addresses
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["PUBLISHERS", "Publisher", "SendWindow", "WriteInterruptedError", "publisher_class", "write_rows"]

_LOG = logging.getLogger("pyspark_mq")

#: Maximum number of unconfirmed messages, and of bytes in them. A message that is larger than this is sent alone.
WINDOW_MESSAGES, WINDOW_BYTES = 4_000, 8 << 20
#: A task opens another connection if it has sent nothing for this time, or for half a heartbeat interval if that is
#: shorter. The idle connection may be dead, because no heartbeats are exchanged while the task computes its rows.
#: ActiveMQ Classic drops such a connection after 30 s.
_GAP_S = 10.0
#: If the broker blocks a write for this time, a warning is logged.
_BLOCKED_S = 30.0
#: Pauses between attempts to connect: the first pause, and the longest pause.
_PAUSE_S, _PAUSE_MAX_S = 0.5, 5.0
#: Longest wait for the answer to :meth:`Publisher.reading`.
_ASK_TIMEOUT_S = 5.0
#: URLs of brokers for which this process has already called :meth:`Publisher.reading`.
_ASKED = set[BrokerUrl]()
#: Maximum number of bytes of a batch that are converted to messages at a time, because the conversion copies the bytes.
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
    """Keeps track of the messages that a publisher has sent and the broker has not confirmed yet.

    Args:
        where: the broker's URL, for errors.
        send_timeout_s: the timeout of :meth:`check`, from option `sendTimeout`.
        now_s: returns the current time in seconds.
    """

    def __init__(self, where: object, send_timeout_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        #: Key by which the protocol identifies an unconfirmed message -> its size and its number since :meth:`begin`.
        self.unconfirmed: dict[Any, tuple[int, int]] = {}
        self.bytes = 0
        #: Number of messages sent since :meth:`begin`.
        self._sent = 0
        #: Numbers of messages that were confirmed but have to be sent again, and numbers of messages that are dropped.
        self._back, self._dropped = set[int](), set[int]()
        #: The broker's reason for blocking the connection; empty if the broker does not block it.
        self.blocked = ""
        self._where, self._timeout_s, self._now_s = where, send_timeout_s, now_s
        self._moved_s = now_s()
        self._warned = False

    @property
    def full(self) -> bool:
        return len(self.unconfirmed) >= WINDOW_MESSAGES or self.bytes >= WINDOW_BYTES

    def begin(self) -> None:
        """Start to number messages from 0. Called when all earlier messages are confirmed."""
        self._sent = 0
        self._back.clear()
        self._dropped.clear()

    def left(self, count: int) -> list[int]:
        """Return the numbers of the messages that still have to be sent, or sent again, out of the first `count`."""
        left = {*(number for _, number in self.unconfirmed.values()), *self._back, *range(self._sent, count)}
        return sorted(left - self._dropped)

    def put_back(self, number: int) -> None:
        """Record that the broker has returned a message. It has to be sent again, although the broker confirms it."""
        self._back.add(number)

    def drop(self, numbers: Iterable[int]) -> None:
        """Record that messages are dropped: they are never sent again, even if the broker has not confirmed them."""
        self._dropped.update(numbers)

    def skip(self) -> None:
        """Record that the next message is dropped before it is sent."""
        self._dropped.add(self._sent)
        self._sent += 1

    def sent(self, key: Any, size: int) -> None:
        """Record that a message was sent."""
        if not self.unconfirmed:
            self._moved()
        self.unconfirmed[key] = size, self._sent
        self._sent += 1
        self.bytes += size

    def confirmed(self, key: Any) -> None:
        """Record that the broker has confirmed a message. A key that is already confirmed, or unknown, is ignored."""
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
        """Raise an error if the broker has confirmed no message for `sendTimeout`, although messages are unconfirmed.

        If the broker blocks the connection, only log a warning.

        Args:
            heard_s: when the last bytes arrived from the broker.

        Raises:
            WriteInterruptedError: the broker has sent nothing for too long.
            WriteError: the broker has sent something, but has confirmed no message for too long.
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
                    f"{len(self.unconfirmed)} message(s) unconfirmed. A rerun of the write sends these messages again, "
                    "with the same IDs"
                )
            raise WriteError(
                f"{self._where}: no confirmation of {len(self.unconfirmed)} message(s) within "
                f"sendTimeout={self._timeout_s:g}s. Perhaps most nodes of the queue are down, or the broker is full "
                "and withholds confirmations: fix the cause, or raise 'sendTimeout'"
            )


class WriteInterruptedError(BrokerUnavailableError):
    """The connection ended, or a queue is temporarily unavailable. The task may try to send over another connection.

    Attributes:
        stated: whether the broker has stated a reason for ending the connection. The next connection may end for the
            same reason.
        refusal: the error to raise if the next connection is refused, too; None if the broker did not refuse a message.
            A queue refuses messages if it is full, but also for a moment after its node was down.
    """

    def __init__(self, text: str, *, stated: bool = False, refusal: WriteError | None = None) -> None:
        super().__init__(text)
        self.stated, self.refusal = stated, refusal


class Publisher(ABC):
    """A connection that publishes messages, over one protocol.

    Args:
        settings: the settings of the write.
        url: the broker to connect to.
        attempt: number of failed attempts at this URL so far; see :attr:`.SessionOptions.attempt`.
    """

    #: Name of a property that a message cannot have over this protocol -> the reason.
    reserved_properties: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: SinkSettings, url: BrokerUrl, attempt: int = 0) -> None:
        self.settings, self.endpoint, self.url, self.attempt = settings, settings.endpoint, url, attempt
        self.window = SendWindow(url, settings.send_timeout_s)
        self.remarks = Remarks()

    @abstractmethod
    def open(self, deadline: float) -> None:
        """Connect, log in, and check the destination, if options name it.

        Raises:
            BrokerUnavailableError: the broker does not answer in time.
            RefusedError: the broker refused the connection or the login.
            DestinationError: the destination is missing, or this user may not access it.
        """

    @abstractmethod
    def probe(self, destination: Destination, deadline: float) -> None:
        """Raise an error if this user may not write to a destination. No consumer receives a message of this check.

        A broker that creates missing destinations creates this destination if it is missing. Afterwards the publisher
        cannot send messages any more.

        Raises:
            DestinationError: the destination is missing, or this user may not access it.
            WriteError: the broker refused, and did not state a reason.
            BrokerUnavailableError: the broker did not answer.
        """

    def reading(self, deadline: float) -> str:  # noqa: ARG002 - most publishers need not ask
        """Find out whether readers that use another protocol can read what this publisher writes.

        Return a warning for the log, which says what such readers get instead; empty if they can read the messages, or
        if it is unknown.
        """
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
        """Close the connection. This works in any state, even if the connection has failed."""

    def lost(self, reason: object, *, stated: bool = False) -> WriteInterruptedError:
        """Return the error for a connection that has ended.

        Args:
            reason: why the connection ended, for the error's text.
            stated: whether the broker stated this reason.
        """
        return WriteInterruptedError(
            f"{self.url}: the connection ended with {len(self.window.unconfirmed)} message(s) unconfirmed ({reason}). "
            "A rerun of the write sends these messages again, with the same IDs",
            stated=stated,
        )

    def unavailable(self, destination: object, reason: object) -> WriteInterruptedError:
        """Return the error for a destination that exists, but is unavailable because its node is down."""
        return WriteInterruptedError(
            f"{self.url}: {destination} is unavailable, with {len(self.window.unconfirmed)} message(s) unconfirmed "
            f"({reason}). A rerun of the write sends these messages again, with the same IDs"
        )


def publisher_class(protocol: str) -> type[Publisher]:
    """Return the publisher class for a protocol. :func:`.client_class` says which errors this raises."""
    found: type[Publisher] = client_class(protocol, PUBLISHERS)
    return found


def connect(settings: SinkSettings, *, since_s: float | None = None) -> Publisher:
    """Connect to the first broker in `url` that answers, and return the open publisher.

    Each address gets an equal share of the time that is left, so an address that does not answer at all, such as that
    of a host without power, does not use up the time of the others.

    Args:
        since_s: the time from which `reconnectTimeout` counts, if the query was connected before; None for the first
            connection, which has to succeed within `connectTimeout`.

    Raises:
        BrokerUnavailableError: no broker has answered in time. The error is that of the broker that was tried last.
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
                time.sleep(pause_s * random.uniform(0.5, 1.0))  # so that not all tasks connect at the same moment
                if since_s is not None:
                    pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        except BaseException:
            publisher.close()
            raise
        else:
            return publisher


def _passes(problem: MqError, endpoint: Endpoint, tried_s: float, *, again: bool) -> bool:
    """Whether another attempt to connect may succeed, because the problem may be temporary.

    The source decides in the same way (:class:`.ConnectionSupervisor`).

    Args:
        tried_s: for how long the task has tried to connect.
        again: whether the query was connected before.
    """
    if isinstance(problem, RefusedError):
        return again and (endpoint.password_file is not None or tried_s <= endpoint.connect_timeout_s)
    if isinstance(problem, OptionError):
        return again and problem.option in FILES
    return isinstance(problem, BrokerUnavailableError)


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches into parts that are small enough to be copied. A Spark batch may have ten thousand large bodies."""
    for batch in batches:
        rows = max(1, batch.num_rows * _COPIED_BYTES // max(batch.nbytes, _COPIED_BYTES))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


class _Connection:
    """Sends the messages of one task. Opens a connection when needed, and another one if the connection ends.

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
        """Send messages, and return once the broker has confirmed all of them.

        If a connection ends, or a queue is unavailable, send the unconfirmed messages again through another connection.

        Raises:
            BrokerUnavailableError: no message was confirmed for `reconnectTimeout`.
            WriteError: the broker did not accept a message, or ended too many connections in a row.
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
                since_s += now_s - opened_s  # do not count this time, in which the broker may have blocked the write
                if len(rest) < len(left):
                    since_s, ends, pause_s, refused = now_s, 0, _PAUSE_S, False
                if not rest:
                    break
                if refused and lost.refusal is not None:
                    raise lost.refusal from lost
                refused = lost.refusal is not None
                if ends >= ENDS_MAX:
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
        """Encode messages. If `onUnwritableRow` is `drop`, drop messages that the protocol cannot carry.

        Returns:
            the messages that were not dropped, and their encodings in the same order.

        Raises:
            RowError: the protocol cannot carry a message, and `onUnwritableRow` is `fail`.
        """
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
    """Publish the rows of one task, and return the number of messages once the broker has confirmed all of them.

    The connection is opened for the first row, and closed at the end. All messages of a batch are confirmed before the
    first message of the next batch is sent.

    Args:
        plan: the checked columns of the write.
        identity: creates IDs for rows that have no ID.
        again: whether the query has written before. If so, wait up to `reconnectTimeout` for a broker that is down.
        remarks: object to which dropped rows and omitted properties are added; None if the caller does not need them.
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
