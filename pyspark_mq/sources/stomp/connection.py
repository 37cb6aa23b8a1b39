"""The connection of a STOMP session: it logs in, sends and receives frames and heartbeats, and notes why it ended.

One thread runs :meth:`StompConnection._turn`, which waits only for the socket. Received frames are passed to
:meth:`~StompConnection._take`. If the connection ends, the first reason is kept, and the next call of `_turn` raises
it. What frames mean for the queue is decided by the session (:mod:`pyspark_mq.sources.stomp.session`).
"""

from __future__ import annotations

import math
import secrets
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from stomp.protocol import Protocol12

from pyspark_mq.brokers.base import StompDialect
from pyspark_mq.decode.batch import BATCH_MIN
from pyspark_mq.decode.stomp_frames import Frames
from pyspark_mq.decode.stomp_headers import parse
from pyspark_mq.errors import BrokerUnavailableError, MessageError, MqError
from pyspark_mq.logs import leave_out_own_lines
from pyspark_mq.sources.connections.session import Session, SessionLostError
from pyspark_mq.wire.socket_loop import SocketLoop, dial_error, hint
from pyspark_mq.wire.stomp.client import Transport, heart_beats
from pyspark_mq.wire.stomp.errors import error_text, login_error
from pyspark_mq.wire.stomp.frames import Frame, FrameReader
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["PROVED", "StompConnection"]

# Suppress stomp.py's log, as it has warnings about errors that this package reports itself.
leave_out_own_lines("stomp.py")

_SPEAKS = "STOMP"
#: Maximum number of bytes of one read, usually and while the session is paused. A paused session has to read now and
#: then, to notice heartbeats.
_RECEIVE_BYTES, _LOOK_BYTES = 1 << 20, 256 << 10
#: How to recognize heartbeats while a body is incomplete: `_BEATS_WITHIN` consecutive reads, each of only line ends, at
#: most `_BEAT_BYTES`, after a silence of at least `_BEAT_S`, are heartbeats and not part of the body.
_BEATS_WITHIN = 3
_BEAT_BYTES = 2
_BEAT_S = 0.5
#: If nothing follows for `_QUIET_S` after a text that may be complete, the session sends the broker a frame whose
#: answer shows that the text has ended. If the broker does not answer within `_PROOF_S`, the text counts as complete.
_QUIET_S = 0.002
_PROOF_S = 30.0
PROVED = "proved"
#: Number of random bytes with which the names of the session's subscriptions and receipts end.
_OWN_BYTES = 9


class StompConnection(Session):
    """One STOMP connection, from the login until it ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dialect = self.endpoint.broker.stomp
        assert dialect is not None, "an option of the source names this protocol for a broker without it"
        self._dialect: StompDialect = dialect
        self._url: Any = None
        self._socket = SocketLoop(self.now_s)
        self._transport: Any = None
        self._protocol: Any = None
        #: The text with which the names of this session's subscriptions and receipts end, so that frames of the broker
        #: can be told from frames within a text, see :mod:`pyspark_mq.wire.stomp.frames`.
        self._own = f"-{secrets.token_urlsafe(_OWN_BYTES)}"
        self._reader = FrameReader(BATCH_MIN, self._dialect.last_header, self._own.encode(), self._in_doubt)
        self._connected = False
        self._server = ""
        self._end: Exception | None = None
        self._send_every_s = self._silence_s = float("inf")
        self._beats_within = 0
        #: Time at which the broker was asked to show that a text has ended; -inf if no answer is outstanding.
        self._proof_s = -math.inf
        self._numbers = count()
        self._received_bytes = 0
        #: Time at which :meth:`_wake_queue` is to be called next.
        self._wake_s = float("inf")

    # -- implemented by the session

    @abstractmethod
    def _take(self, frames: Iterable[Frame | Frames]) -> None:
        """Process received frames."""

    @abstractmethod
    def _receipt(self, receipt: str) -> None:
        """Process a RECEIPT frame. `receipt` is the name of the receipt without its random end."""

    @abstractmethod
    def _in_doubt(self) -> bool:
        """Return whether the broker may send an ERROR that names no receipt, and continue afterwards."""

    @abstractmethod
    def _reading(self) -> bool:
        """Return whether the session may read from the socket now."""

    @abstractmethod
    def _wake_queue(self, now: float) -> None:
        """Handle a queue from which nothing has arrived until time `_wake_s`: if it has stalled, make it deliver."""

    # -- login

    def _log_in(self, url: BrokerUrl, deadline: float) -> None:
        self._url = url
        self._socket.dial(url, self.endpoint, deadline, _SPEAKS, self.options.attempt)
        host = url.virtual_host if self.endpoint.broker.virtual_hosts else url.host
        self._transport = Transport(host, url, self._socket.outgoing)
        # The only frames with a body are management messages, which must be text messages. A content-length would turn
        # them into bytes messages.
        self._protocol = Protocol12(self._transport, auto_content_length=False)
        # If no user is set, the broker uses its default user or the client certificate.
        self._protocol.connect(*self.endpoint.credentials(url), headers=self._connect_headers())
        try:
            self._until(lambda: self._connected, deadline)
        except TimeoutError as late:
            raise dial_error(late, url, _SPEAKS) from None
        except (SessionLostError, MessageError) as ended:
            raise self._open_error(ended, url) from None
        self.endpoint.check_product(url, self._server)

    def _connect_headers(self) -> dict[str, str]:
        beat_ms = round(self.endpoint.heartbeat_s * 1000)
        headers = {"heart-beat": f"{beat_ms},{beat_ms}"}
        if self.endpoint.subscription is not None and self._dialect.client_id:
            headers["client-id"] = self._dialect.client_id.format(subscription=self.endpoint.subscription)
        return headers

    def _open_error(self, ended: Exception, url: BrokerUrl) -> MqError:
        if isinstance(ended.__cause__, OSError):
            return dial_error(ended.__cause__, url, _SPEAKS)
        if self._reader.spoken:
            return login_error(str(ended), url, self.endpoint)
        return BrokerUnavailableError(f"{url}: {ended}{hint(url, _SPEAKS)}")

    def _welcome(self, headers: Mapping[str, str]) -> None:
        """Process frame CONNECTED, with which the broker accepts the login."""
        beats = heart_beats(headers.get("heart-beat", "0,0"), self.endpoint.heartbeat_s)
        if beats is None:
            self._ended(f"the broker's header heart-beat is malformed: {headers['heart-beat']!r:.60}", stated=True)
            return
        self._connected = True
        # stomp.py builds the frame DISCONNECT only if its transport is marked as connected.
        self._transport.set_connected(True)
        self._server = headers.get("server", "")
        self._send_every_s, self._silence_s = beats

    # -- a turn

    def _turn(self, timeout_s: float) -> None:
        """Send outgoing bytes, wait for an event (received bytes, a due time, or :meth:`wake`), and process it."""
        self._raise_if_ended()
        now = self.now_s()
        if now >= self._beat_s():
            self._transport.send(b"\n")
        if now >= self._wake_s:
            self._wake_queue(now)
        self._send()
        reading = self._reading()
        held_s = self._held_until_s() if reading and self._reader.held else math.inf
        wait_s = min(timeout_s, self._beat_s() - now, self._wake_s - now, held_s - now)
        if not self._socket.wait(wait_s, reading=reading):
            self._ended("the broker closed the connection")
        elif reading and not self._receive() and self._end is None and self.now_s() >= held_s:
            self._prove_end()

    def _beat_s(self) -> float:
        """Return the time at which to send the next heartbeat; infinite while other bytes wait to be sent."""
        return math.inf if self._socket.outgoing else self._socket.sent_s + self._send_every_s

    def _send(self) -> None:
        """Send as many bytes as the socket accepts now."""
        try:
            self._socket.write()
        except OSError as error:
            # Read what the broker has sent before it closed the connection, as it may include the reason.
            while self._end is None and not self.paused and self._receive():
                pass
            self._closed(f"{type(error).__name__}: {error}", error)

    def _receive(self) -> bool:
        """Read and process the bytes that have arrived. Return whether there were any."""
        quiet_s = self.now_s() - self._socket.received_s
        try:
            data = self._socket.read(_LOOK_BYTES if self.paused else _RECEIVE_BYTES)
        except OSError as error:
            self._closed(f"{type(error).__name__}: {error}", error)
            return False
        if data is None:
            silent_s = self.now_s() - self._socket.received_s
            if silent_s > self._silence_s:
                self._ended(f"nothing was heard from the broker for {silent_s:.0f} s")
            return False
        if not data:
            after = "" if self._reader.spoken or not self._reader.rest else f", after {self._reader.rest!r}"
            self._closed(f"the broker closed the connection{after}")
            return False
        self._received_bytes += len(data)
        self._take(self._reader.feed(data))
        # A message may be shorter than its header content-length says: on ActiveMQ Classic, a property with this name
        # hides the true length. Heartbeats then show that the message has ended.
        beat = quiet_s >= _BEAT_S and len(data) <= _BEAT_BYTES and not data.strip(b"\r\n")
        self._beats_within = self._beats_within + 1 if beat and self._reader.inside else 0
        if self._beats_within >= _BEATS_WITHIN:
            self._take(self._reader.idle())
        return True

    def _held_until_s(self) -> float:
        return max(self._socket.received_s + _QUIET_S, self._proof_s + _PROOF_S)

    def _prove_end(self) -> None:
        """Make the broker send a frame, which shows that a text before it is complete.

        The broker sends frames one after another, so it answers only after the whole text. The request is to begin and
        abort a transaction, because this has no effect and needs no permission. If an earlier request has not been
        answered in time, take the text as complete.
        """
        if self._proof_s > -math.inf:
            self._proof_s = -math.inf
            self._take(self._reader.quiet())
            return
        self._proof_s = self.now_s()
        transaction = f"{PROVED}-{next(self._numbers)}"
        self._protocol.begin(transaction, headers={"receipt": f"{PROVED}{self._own}"})
        self._protocol.abort(transaction)
        self._send()

    def _answered(self, command: str, block: bytes, body: bytes) -> None:
        """Process a frame other than MESSAGE. stomp.py cannot be used for this, as it fails if a header is missing."""
        headers = parse(block, self._dialect.last_header, escaped=command != "CONNECTED")
        if command == "CONNECTED":
            self._welcome(headers)
        elif command == "RECEIPT":
            receipt = headers.get("receipt-id", "")
            if receipt.endswith(self._own):
                self._receipt(receipt.removesuffix(self._own))
            else:
                self._ended(f"a RECEIPT arrived for {receipt!r:.60}, which was not requested", stated=True)
        else:  # after an ERROR most brokers close the connection, and the session ends in any case
            self._ended(error_text(headers, body), stated=True)

    def _raise_if_ended(self) -> None:
        if self._end is not None:
            raise self._end

    def _closed(self, reason: str, cause: OSError | None = None) -> None:
        """Note that the connection has ended. If the last bytes were an ERROR frame after a text, it is the reason."""
        if self._end is None and (error := self._reader.last_error()) is not None:
            self._answered(*error)
        self._ended(reason, cause)

    def _ended(self, reason: str, cause: BaseException | None = None, *, stated: bool = False) -> None:
        if self._end is None:
            self._end = SessionLostError(reason, stated=stated)
            self._end.__cause__ = cause

    def wake(self) -> None:
        self._socket.wake()
