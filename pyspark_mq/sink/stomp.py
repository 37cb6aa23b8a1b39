"""Publishes messages over STOMP 1.2 to both ActiveMQ brokers. A receipt confirms each message.

The library stomp.py encodes the frames. It escapes the values of headers, but not their names, and a line feed in a
name could inject any header. So this module escapes the names. RabbitMQ is not supported over STOMP, because its
receipts do not tell whether a message was routed to a queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypeAlias

from pyspark_mq.brokers.destinations import as_written
from pyspark_mq.decode.stomp_frames import Frames
from pyspark_mq.decode.stomp_headers import parse
from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MqError, RowError, WriteError
from pyspark_mq.sink.publisher import Publisher, WriteInterruptedError
from pyspark_mq.sink.settings import COPY_ID, MQ_ID, NO_DESTINATION, Destination, Message
from pyspark_mq.wire.connection import ConnectionLostError
from pyspark_mq.wire.stomp.connection import StompConnection
from pyspark_mq.wire.stomp.errors import error_text
from pyspark_mq.wire.stomp.frames import Frame, FrameReader, StompFrameError

__all__ = ["StompPublisher", "frame_headers"]

_TURN_BYTES = 256 << 10
_TURN_S = 1.0
_PRIORITY_MAX = 9
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"})
_OWN = "which is a STOMP header: set it in its own column, if it has one"
#: Phrases with which brokers say that a destination does not exist, or that this user may not create it.
_GONE = (b"DestinationDoesNotExistException", b"deleted Destination", b"permission='CREATE_ADDRESS'")
#: Headers of STOMP 1.2, and headers that brokers define. A property with one of these names would act as the header.
_MEANT = (
    "accept-version", "ack", "amq-msg-type", "content-encoding", "content-length", "content-type", "correlation-id",
    "destination", "destination-type", "expires", "heart-beat", "host", "id", "login", "message-id", "passcode",
    "persistent", "priority", "receipt", "receipt-id", "redelivered", "reply-to", "selector", "server", "session",
    "subscription", "subscription-type", "timestamp", "transaction", "transformation", "transformation-error", "type",
    "version",
)  # fmt: skip
_COLUMNS = {
    "correlation-id": "correlationId", "reply-to": "replyTo", "content-type": "contentType", MQ_ID: "messageId",
    "content-encoding": "contentEncoding", "type": "type", "JMSXAppID": "appId", "JMSXGroupID": "groupId",
}  # fmt: skip
_FULL = ("full", "limit", "no space", "usage manager", "resourceallocation")
_REFUSED = ("authorized", "permission", "security", "access")
_Encoded: TypeAlias = "tuple[str, dict[str, str], bytes]"


class StompPublisher(Publisher):
    """A publisher over STOMP: one connection, on which the broker sends a receipt for each message."""

    reserved_properties = dict.fromkeys(_MEANT, _OWN)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connection = StompConnection(self.endpoint, take=self._take, reader=FrameReader())
        self._number = 0
        self._ids: dict[str, str] = {}

    # -- opening

    def open(self, deadline: float) -> None:
        self._connection.open(self.url, deadline, self.attempt)

    def probe(self, destination: Destination, deadline: float) -> None:
        """See the base class. A message is sent in a transaction that is then aborted, so consumers do not see it."""
        receipt, headers, body = self.encode(Message(destination, "probe", b"", is_text=False))
        transaction, send_frame = {"transaction": "probe"}, self._connection.protocol.send_frame
        send_frame("BEGIN", transaction)
        send_frame("SEND", headers | transaction, body)
        self.window.sent(receipt, 0)
        while self.window.unconfirmed:
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(f"{self.url}: the broker did not answer about {destination} in time")
            self._pass(0.1)
        send_frame("ABORT", transaction)

    # -- sending

    def encode(self, message: Message) -> _Encoded:
        dialect = self.endpoint.broker.stomp
        assert dialect is not None, "an option names this protocol for a broker without it"
        self._number += 1
        receipt = str(self._number)
        kind, name, _ = message.destination
        headers = frame_headers(message, self.endpoint.broker.name)
        headers["destination"] = as_written(f"{kind}://{name}", dialect.forms) if dialect.kinds_in_names else name
        if message.reply_to is not None:
            headers["reply-to"] = as_written(message.reply_to, dialect.forms)
        headers["receipt"] = receipt
        self._ids[receipt] = message.id
        return receipt, headers, message.body

    def send(self, encoded: list[_Encoded]) -> None:
        connection = self._connection
        for receipt, headers, body in encoded:
            while self.window.full:
                self._pass(_TURN_S)
            self.window.sent(receipt, len(body))
            connection.protocol.send_frame("SEND", headers, body)
            if len(connection.socket.outgoing) > _TURN_BYTES:
                self._pass(0.0)
        while self.window.unconfirmed:
            self._pass(_TURN_S)

    def _pass(self, timeout_s: float) -> None:
        connection = self._connection
        connection.turn(timeout_s)
        if connection.end is not None:
            raise self._end_error(connection.end)
        self.window.check(connection.socket.received_s)

    def _end_error(self, end: ConnectionLostError) -> MqError:
        if not end.stated:
            return self.lost(end)
        said, inner, _ = str(end).partition(" CoreMessage[")
        lower, user = said.lower(), self.endpoint.user(self.url)
        where = str(self.settings.destination or "a destination of the rows")
        if any(word in lower for word in _FULL):
            return WriteError(f"{self.url}: {where} is full ({said}): make room in it, or raise its limit")
        if any(word in lower for word in _REFUSED):
            return DestinationError(
                f"{where} at {self.url} may not be written to by user '{user}' ({said}): grant this user permission to "
                "write and to create, or correct option 'username'"
            )
        if inner:  # the ERROR frame has the refused message instead of a reason (Artemis)
            return WriteError(
                f"{self.url}: the broker refused a message for {where} ({said}) without a reason: user '{user}' may "
                "lack permission to write, or the address is full; see the broker's log"
            )
        # The text may also say why Artemis closes the connection, for example "AMQ229014: Did not receive data …". The
        # broker has refused the message only if another connection ends in the same way.
        refusal = WriteError(f"{self.url}: the broker refused a message for {where} ({said}): see the broker's log")
        return WriteInterruptedError(refusal.text, stated=True, refusal=refusal)

    def _take(self, frames: Iterable[Frame | Frames]) -> None:
        try:
            for frame in frames:
                assert isinstance(frame, tuple), "frames are not decoded in batches here"
                self._process(*frame)
        except StompFrameError as error:
            self._connection.ended(ConnectionLostError(f"{type(error).__name__}: {error}"))

    def _process(self, command: str, block: bytes, body: bytes) -> None:
        if command == "ERROR":
            headers = parse(block)
            receipt = headers.get("receipt-id", "")
            about, reason = self._ids.get(receipt), error_text(headers, body)
            if self._drops(receipt, body):
                self.remarks.drop(NO_DESTINATION, f"{self.url}: {reason}; messageId '{about}'")
                return
            text = f"{reason}; messageId '{about}'" if about else reason
            self._connection.ended(ConnectionLostError(text, stated=True))
            return
        confirmed = self._connection.answered(command, block, body)
        if confirmed is not None:
            self.window.confirmed(confirmed)
            self._ids.pop(confirmed, None)

    def _drops(self, receipt: str, body: bytes) -> bool:
        """Whether the broker refused a message because of its destination, and the message's row may be dropped.

        If so, mark the message as dropped. The reasons are, from ActiveMQ Classic: "…DestinationDoesNotExistException:
        The destination temp-queue://… does not exist" or "Cannot publish to a deleted Destination" (6.3); from Artemis,
        if the user may not create addresses: "AMQ229032: User: … does not have permission='CREATE_ADDRESS' on address
        …" (2.56). After such a refusal Artemis ends the connection, but ActiveMQ Classic does not.
        """
        if not (self.settings.drops_destinations and any(words in body for words in _GONE)):
            return False
        _, number = self.window.unconfirmed.get(receipt, (0, -1))
        if number < 0:
            return False
        self.window.drop([number])
        self.window.confirmed(receipt)
        return True

    def close(self) -> None:
        self._connection.close(waits=not self.window.unconfirmed)


def frame_headers(message: Message, broker: str) -> dict[str, str]:
    """Return the headers of the SEND frame for a message, without `destination` and `receipt`.

    Names of headers are escaped, and values are not, because stomp.py escapes them. Only a bytes message has the header
    `content-length`, because brokers take a message without this header for a text message.

    Raises:
        RowError: STOMP cannot carry the message.
    """
    if message.priority is not None and message.priority > _PRIORITY_MAX:
        raise RowError(
            f"a row has {message.priority} in column 'priority', but STOMP brokers allow 0 to {_PRIORITY_MAX}"
        )
    # STOMP cannot express null, and a null must not become a string such as "null".
    headers = {_escaped(name): value for name, value in message.properties if value is not None}
    own = {
        "correlation-id": message.correlation_id, "reply-to": message.reply_to, "content-type": message.content_type,
        "content-encoding": message.content_encoding, "type": message.type, "priority": message.priority,
        "timestamp": None if message.timestamp_us is None else message.timestamp_us // 1000,
        "expires": None if message.expiration_us is None else max(1, message.expiration_us // 1000),
        "JMSXAppID": message.app_id, "JMSXGroupID": message.group_id, "JMSXGroupSeq": message.group_sequence,
    }  # fmt: skip
    headers |= {name: str(value) for name, value in own.items() if value is not None}
    headers["persistent"] = "true" if message.persistent else "false"
    headers[MQ_ID] = message.id
    if broker == "artemis":
        headers.setdefault(COPY_ID, message.copy_id or message.id)
        headers["destination-type"] = "MULTICAST" if message.destination.kind.endswith("topic") else "ANYCAST"
    if not message.is_text:
        headers["content-length"] = str(len(message.body))
    else:
        _check_text(message.body)
    for name, value in headers.items():
        if "\0" in value or "\0" in name:
            raise RowError(
                f"a row has a NUL in column '{_COLUMNS.get(name, 'properties')}', which STOMP cannot carry: remove it"
            )
    return headers


def _check_text(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError:
        raise RowError("a row has a string that is not UTF-8 in column 'body': cast the column to binary") from None
    if b"\0" in body:
        raise RowError(
            "a row has a string with a NUL in column 'body', but a NUL ends text in STOMP: cast the column to binary"
        )


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
