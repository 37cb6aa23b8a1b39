"""The connection over STOMP 1.2: a non-blocking socket, the login, heartbeats, and frames.

stomp.py builds most outgoing frames, and writes them to :class:`.Transport`, which is this package's. So heartbeats
need no thread of their own, and TLS has the same settings as for the other protocols (stomp.py does not accept an
`ssl.SSLContext`). Incoming frames are read by :mod:`pyspark_mq.wire.stomp.frames`, for the reasons given in its
docstring.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

from stomp.protocol import Protocol12

from pyspark_mq.decode.stomp_frames import Frames
from pyspark_mq.decode.stomp_headers import parse
from pyspark_mq.errors import BrokerUnavailableError, MqError
from pyspark_mq.logs import leave_out_own_lines
from pyspark_mq.wire.connection import Connection, ConnectionLostError
from pyspark_mq.wire.socket_loop import SocketLoop, dial_error, hint
from pyspark_mq.wire.stomp.client import Transport, heart_beats
from pyspark_mq.wire.stomp.errors import error_text, login_error
from pyspark_mq.wire.stomp.frames import Frame, FrameReader
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["LOOK_BYTES", "RECEIVE_BYTES", "StompConnection"]

_LOG = logging.getLogger("pyspark_mq")
# Suppress stomp.py's log, as it has warnings about errors that this package reports itself.
leave_out_own_lines("stomp.py")

_SPEAKS = "STOMP"
_CLOSE_TIMEOUT_S = 1.0
#: Maximum number of bytes of one read, usually and while the session is paused. A paused session has to read now and
#: then, to notice heartbeats.
RECEIVE_BYTES, LOOK_BYTES = 1 << 20, 256 << 10
#: While a body is incomplete, `_BEATS_WITHIN` consecutive reads count as heartbeats, and not as parts of the body, if
#: each read has only line ends, at most `_BEAT_BYTES` of them, and follows a silence of at least `_BEAT_S`.
_BEATS_WITHIN = 3
_BEAT_BYTES = 2
_BEAT_S = 0.5
#: If nothing follows for `_QUIET_S` after a text that may be complete, the connection sends the broker a frame whose
#: answer shows that the text has ended. If the broker does not answer within `_PROOF_S`, the text counts as complete.
_QUIET_S = 0.002
_PROOF_S = 30.0
_PROVED, _DISCONNECTED = "proved", "disconnected"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class StompConnection(Connection):
    """A connection over STOMP.

    Args:
        take: called with received frames. It passes each frame that it does not process itself to :meth:`answered`.
        reader: divides received bytes into frames.
        reading: returns the maximum number of bytes to read from the socket now; 0 to leave them there. Its argument is
            True if the connection is ending.
        own: the text with which the names of receipts end, see :mod:`pyspark_mq.wire.stomp.frames`.

    Attributes:
        socket: the socket. Its `outgoing` may be appended to.
        protocol: stomp.py's encoder of frames; None before :meth:`open`.
        server: header `server` of the broker's frame CONNECTED.
        received_bytes: number of bytes received so far.
        end: an exception, see the base class.
    """

    def __init__(
        self,
        *args: Any,
        take: Callable[[Iterable[Frame | Frames]], None],
        reader: FrameReader,
        reading: Callable[[bool], int] = lambda _: RECEIVE_BYTES,
        own: str = "",
    ) -> None:
        super().__init__(*args)
        self._take, self._reader, self._reading, self._own = take, reader, reading, own
        self.socket = SocketLoop(self.now_s)
        self.protocol: Any = None
        self.server = ""
        self.received_bytes = 0
        self._connected = self._disconnected = False
        self._send_every_s = self._silence_s = math.inf
        self._beats_within = 0
        #: Time at which the broker was asked to show that a text has ended; -inf if no answer is outstanding.
        self._proof_s = -math.inf
        self._proofs = count()

    def open(self, url: BrokerUrl, deadline: float, attempt: int = 0, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        """Connect and log in.

        Args:
            deadline: time limit, on the connection's clock.
            attempt: number of failed attempts so far.
            headers: further headers of the frame CONNECT.

        Raises:
            BrokerUnavailableError: the broker does not answer in time.
            RefusedError: login, virtual host or TLS are wrong.
            OptionError: the broker is not the one that option `broker` names.
            StopRequestedError: the query is being stopped.
        """
        self.socket.dial(url, self.endpoint, deadline, _SPEAKS, attempt)
        host = url.virtual_host if self.endpoint.broker.virtual_hosts else url.host
        # The only frames of a session with a body are management messages, which must be text messages. A
        # content-length would turn them into bytes messages. A publisher sets it itself.
        self.protocol = Protocol12(Transport(host, url, self.socket.outgoing), auto_content_length=False)
        beat_ms = round(self.endpoint.heartbeat_s * 1000)
        # If no user is set, the broker uses its default user or the client certificate.
        login = self.endpoint.credentials(url)
        self.protocol.connect(*login, headers={"heart-beat": f"{beat_ms},{beat_ms}", **headers})
        try:
            self.until(lambda: self._connected, deadline)
        except TimeoutError as late:
            raise dial_error(late, url, _SPEAKS) from None
        except ConnectionLostError:
            raise self._open_error(url) from None
        self.endpoint.check_product(url, self.server)

    def _open_error(self, url: BrokerUrl) -> MqError:
        if isinstance(self.end.__cause__, OSError):
            return dial_error(self.end.__cause__, url, _SPEAKS)
        if self._reader.spoken:
            return login_error(str(self.end), url, self.endpoint)
        return BrokerUnavailableError(f"{url}: {self.end}{hint(url, _SPEAKS)}")

    def _welcome(self, headers: Mapping[str, str]) -> None:
        """Process frame CONNECTED, with which the broker accepts the login."""
        beats = heart_beats(headers.get("heart-beat", "0,0"), self.endpoint.heartbeat_s)
        if beats is None:
            text = f"the broker's header heart-beat is malformed: {headers['heart-beat']!r:.60}"
            self.ended(ConnectionLostError(text, stated=True))
            return
        self._connected = True
        # stomp.py builds the frame DISCONNECT only if its transport is marked as connected.
        self.protocol.transport.set_connected(True)
        self.server = headers.get("server", "")
        self._send_every_s, self._silence_s = beats

    # -- a turn

    def turn(self, timeout_s: float) -> None:
        """Send outgoing bytes, wait for an event (received bytes, a due time, or :meth:`wake`), and process it."""
        if self.end is not None:
            return
        now = self.now_s()
        if now >= self._beat_s():
            self.socket.outgoing += b"\n"
        try:
            self.socket.write()
        except OSError as error:
            # Read what the broker has sent before it closed the connection, as it may include the reason.
            while self.end is None and (maximum := self._reading(True)) and self._receive(maximum):
                pass
            self._closed(f"{type(error).__name__}: {error}", error)
            return
        maximum = self._reading(False)
        held_s = self._held_until_s() if maximum and self._reader.held else math.inf
        if not self.socket.wait(min(timeout_s, self._beat_s() - now, held_s - now), reading=maximum > 0):
            self.ended(ConnectionLostError("the broker closed the connection"))
        elif maximum and not self._receive(maximum) and self.end is None and self.now_s() >= held_s:
            self._prove_end()

    def _beat_s(self) -> float:
        """Return the time at which to send the next heartbeat; infinite while other bytes wait to be sent."""
        return math.inf if self.socket.outgoing else self.socket.sent_s + self._send_every_s

    def _receive(self, maximum: int) -> bool:
        """Read and process the bytes that have arrived. Return whether there were any."""
        quiet_s = self.now_s() - self.socket.received_s
        try:
            data = self.socket.read(maximum)
        except OSError as error:
            self._closed(f"{type(error).__name__}: {error}", error)
            return False
        if data is None:
            silent_s = self.now_s() - self.socket.received_s
            if silent_s > self._silence_s:
                self.ended(ConnectionLostError(f"nothing was heard from the broker for {silent_s:.0f} s"))
            return False
        if not data:
            after = "" if self._reader.spoken or not self._reader.rest else f", after {self._reader.rest!r}"
            self._closed(f"the broker closed the connection{after}")
            return False
        self.received_bytes += len(data)
        self._take(self._reader.feed(data))
        # A message may be shorter than its header content-length says: on ActiveMQ Classic, a property with this name
        # hides the true length. Heartbeats then show that the message has ended.
        beat = quiet_s >= _BEAT_S and len(data) <= _BEAT_BYTES and not data.strip(b"\r\n")
        self._beats_within = self._beats_within + 1 if beat and self._reader.inside else 0
        if self._beats_within >= _BEATS_WITHIN:
            self._take(self._reader.idle())
        return True

    def _held_until_s(self) -> float:
        return max(self.socket.received_s + _QUIET_S, self._proof_s + _PROOF_S)

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
        transaction = f"{_PROVED}-{next(self._proofs)}"
        self.protocol.begin(transaction, headers={"receipt": f"{_PROVED}{self._own}"})
        self.protocol.abort(transaction)

    def answered(self, command: str, block: bytes, body: bytes) -> str | None:
        """Process a frame other than MESSAGE. stomp.py cannot be used for this, as it fails if a header is missing.

        Returns:
            the name of a receipt that the owner (a session or a publisher) has requested, without the text `own` at its
            end; None for other frames.
        """
        dialect = self.endpoint.broker.stomp
        headers = parse(block, dialect.last_header if dialect else "", escaped=command != "CONNECTED")
        if command == "CONNECTED":
            self._welcome(headers)
        elif command == "RECEIPT":
            receipt = headers.get("receipt-id", "")
            name = receipt.removesuffix(self._own)
            if not receipt.endswith(self._own):
                text = f"a RECEIPT arrived for {receipt!r:.60}, which was not requested"
                self.ended(ConnectionLostError(text, stated=True))
            elif name == _PROVED:
                self._proof_s = -math.inf
            elif name == _DISCONNECTED:
                self._disconnected = True
            else:
                return name
        else:  # after an ERROR most brokers close the connection, and it ends in any case
            self.ended(ConnectionLostError(error_text(headers, body), stated=True))
        return None

    def _closed(self, reason: str, cause: OSError | None = None) -> None:
        """Note that the connection has ended. If the last bytes were an ERROR frame after a text, it is the reason."""
        if self.end is None and (error := self._reader.last_error()) is not None:
            self._take([error])
        lost = ConnectionLostError(reason)
        lost.__cause__ = cause
        self.ended(lost)

    def ended(self, error: Exception) -> None:
        """Note that the connection has ended.

        Args:
            error: a :class:`.ConnectionLostError`, or the reason why the connection must not be used any more.
        """
        self.end = self.end or error

    def wake(self) -> None:
        self.socket.wake()

    def close(self, *, waits: bool = True) -> None:
        """Close the connection in any state, within a moment. This never raises an error.

        Args:
            waits: whether to tell the broker, and wait for its answer.
        """
        try:
            if waits and self._connected and self.end is None:
                self.protocol.disconnect(f"{_DISCONNECTED}{self._own}")
                self.until(lambda: self._disconnected, self.now_s() + _CLOSE_TIMEOUT_S, closing=True)
        except Exception as failed:  # noqa: BLE001 - the connection is over, whatever the error
            _LOG.debug("closing: %s", self.endpoint.hide(str(failed)))
        finally:
            self.socket.close()
            self._take, self._reading = (
                lambda _: None,
                lambda _: 0,
            )  # let go of the owner, so that both are freed at once
