"""Publishes messages over STOMP 1.2 to both ActiveMQ brokers. A receipt confirms each message.

The library stomp.py encodes the frames; this package runs the socket. stomp.py escapes the values of headers, but not
their names, and a line feed in a name could inject any header. So this module escapes the names. RabbitMQ is not
supported over STOMP, because its receipts do not tell whether a message was routed to a queue.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, TypeAlias

from stomp.protocol import Protocol12

from pyspark_mq.brokers.destinations import as_written
from pyspark_mq.decode.stomp_headers import parse
from pyspark_mq.errors import BrokerUnavailableError, DestinationError, MqError, RowError, WriteError
from pyspark_mq.logs import leave_out_own_lines
from pyspark_mq.sink.publisher import Publisher, WriteInterruptedError
from pyspark_mq.sink.settings import COPY_ID, MQ_ID, NO_DESTINATION, Destination, Message
from pyspark_mq.wire.socket_loop import SocketLoop, dial_error, hint
from pyspark_mq.wire.stomp.client import Transport, heart_beats
from pyspark_mq.wire.stomp.errors import error_text, login_error
from pyspark_mq.wire.stomp.frames import FrameReader, StompFrameError

__all__ = ["StompPublisher", "frame_headers"]

leave_out_own_lines("stomp.py")

_SPEAKS = "STOMP"
_READ_BYTES = 64 << 10
_TURN_BYTES = 256 << 10
_TURN_S = 1.0
_CLOSE_TIMEOUT_S = 1.0
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
        self._socket = SocketLoop()
        self._reader = FrameReader()
        self._protocol: Any = None
        self._connected = False
        self._server = ""
        self._number = 0
        self._ids: dict[str, str] = {}
        self._end = ""
        #: Whether the broker stated a reason for ending the connection.
        self._stated = False
        self._cause: OSError | None = None
        self._send_every_s = self._silence_s = float("inf")

    # -- opening

    def open(self, deadline: float) -> None:
        url, endpoint = self.url, self.endpoint
        self._socket.dial(url, endpoint, deadline, _SPEAKS, self.attempt)
        transport = Transport(url.host, url, self._socket.outgoing)
        self._protocol = Protocol12(transport, auto_content_length=False)
        beat_ms = round(endpoint.heartbeat_s * 1000)
        # Without a user, the broker's default user or the client certificate applies.
        self._protocol.connect(*endpoint.credentials(url), headers={"heart-beat": f"{beat_ms},{beat_ms}"})
        while not self._connected and not self._end:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise BrokerUnavailableError(f"{url}: no answer in time{hint(url, _SPEAKS)}")
            self._turn(left_s)
        if self._cause is not None:
            raise dial_error(self._cause, url, _SPEAKS)
        if self._end:
            raise (
                login_error(self._end, url, endpoint)
                if self._stated
                else BrokerUnavailableError(f"{url}: {self._end}{hint(url, _SPEAKS)}")
            )
        transport.set_connected(True)
        endpoint.check_product(url, self._server)

    def probe(self, destination: Destination, deadline: float) -> None:
        """See the base class. A message is sent in a transaction that is then aborted, so consumers do not see it."""
        receipt, headers, body = self.encode(Message(destination, "probe", b"", is_text=False))
        transaction = {"transaction": "probe"}
        self._protocol.send_frame("BEGIN", transaction)
        self._protocol.send_frame("SEND", headers | transaction, body)
        self.window.sent(receipt, 0)
        while self.window.unconfirmed:
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(f"{self.url}: the broker did not answer about {destination} in time")
            self._pass(0.1)
        self._protocol.send_frame("ABORT", transaction)

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
        outgoing = self._socket.outgoing
        for receipt, headers, body in encoded:
            while self.window.full:
                self._pass(_TURN_S)
            self.window.sent(receipt, len(body))
            self._protocol.send_frame("SEND", headers, body)
            if len(outgoing) > _TURN_BYTES:
                self._pass(0.0)
        while self.window.unconfirmed:
            self._pass(_TURN_S)

    def _pass(self, timeout_s: float) -> None:
        self._turn(timeout_s)
        if self._end:
            raise self._end_error()
        self.window.check(self._socket.received_s)

    def _end_error(self) -> MqError:
        if not self._stated:
            return self.lost(self._end)
        said, inner, _ = self._end.partition(" CoreMessage[")
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
        # The reason may also be why Artemis closes the connection, for example "AMQ229014: Did not receive data …".
        # Only if another connection ends in the same way, the broker has refused the message.
        refusal = WriteError(f"{self.url}: the broker refused a message for {where} ({said}): see the broker's log")
        return WriteInterruptedError(refusal.text, stated=True, refusal=refusal)

    # -- the connection

    def _turn(self, timeout_s: float) -> None:
        """Write and read the socket once: send pending frames or a heartbeat, wait for bytes, and process them."""
        now = time.monotonic()
        if now - self._socket.sent_s >= self._send_every_s and not self._socket.outgoing:
            self._socket.outgoing += b"\n"
        try:
            self._socket.write()
            self._socket.wait(min(timeout_s, self._send_every_s, self._silence_s))
            self._receive()
            self._socket.write()
        except (OSError, StompFrameError) as error:
            self._receive_rest()
            self._cause = error if isinstance(error, OSError) and not self._stated else None
            self._end = self._end or f"{type(error).__name__}: {error}"

    def _receive(self) -> bool:
        data = self._socket.read(_READ_BYTES)
        if data is None:
            if time.monotonic() - self._socket.received_s > self._silence_s:
                self._end = self._end or "nothing was heard from the broker"
            return False
        if not data:
            self._end = self._end or "the broker closed the connection"
            return False
        for frame in self._reader.feed(data):
            assert isinstance(frame, tuple), "frames are not decoded in batches here"
            self._take(*frame)
        return True

    def _receive_rest(self) -> None:
        """Read what the broker has sent before it closed the connection: perhaps an ERROR frame with the reason."""
        with contextlib.suppress(OSError, StompFrameError):
            while not self._end and self._receive():
                pass

    def _take(self, command: str, block: bytes, body: bytes) -> None:
        headers = parse(block, escaped=command != "CONNECTED")
        if command == "CONNECTED":
            self._connected, self._server = True, headers.get("server", "")
            beats = heart_beats(headers.get("heart-beat", "0,0"), self.endpoint.heartbeat_s)
            if beats is not None:
                self._send_every_s, self._silence_s = beats
        elif command == "RECEIPT":
            receipt = headers.get("receipt-id", "")
            self.window.confirmed(receipt)
            self._ids.pop(receipt, None)
        elif command == "ERROR" and not self._end:
            receipt = headers.get("receipt-id", "")
            about = self._ids.get(receipt)
            if self._drops(receipt, body):
                self.remarks.drop(NO_DESTINATION, f"{self.url}: {error_text(headers, body)}; messageId '{about}'")
                return
            self._end, self._stated = error_text(headers, body) + (f"; messageId '{about}'" if about else ""), True

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
        if self._socket.connected and not self._end and not self.window.unconfirmed:
            deadline = time.monotonic() + _CLOSE_TIMEOUT_S
            with contextlib.suppress(Exception):  # the write is over, whatever the broker says
                self._protocol.send_frame("DISCONNECT", {"receipt": "end"})
                self.window.sent("end", 0)
                while self.window.unconfirmed and not self._end and time.monotonic() < deadline:
                    self._turn(0.1)
        self._socket.close()


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
