"""The connection over AMQP 1.0: a socket, and proton's *engine*, which encodes and decodes frames but does no I/O.

The library's own event loop would take a fifth more time for each message.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from proton import SASL, Endpoint, ProtonException, Receiver, Transport
from proton import Connection as ProtonConnection

from pyspark_mq.errors import BrokerUnavailableError, MqError
from pyspark_mq.wire.amqp10.engine import log_in, send
from pyspark_mq.wire.amqp10.errors import PROTOCOL_NAME, is_stated, open_error
from pyspark_mq.wire.connection import Connection, ConnectionLostError
from pyspark_mq.wire.socket_loop import SocketLoop, dial_error, hint
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["UNREADABLE", "UNREADABLE_ERRORS", "Amqp10Connection", "condition_of"]

_READ_BYTES = 1 << 20
_CLOSE_TIMEOUT_S = 1.0
#: proton's description of the reason if nothing has arrived on a connection for the idle timeout.
_SILENCE = "local-idle-timeout expired"
#: Text of the error, and errors of proton, if the broker's properties cannot be decoded. proton decodes them when they
#: are read: text must be UTF-8 (1.6.20), and keys must be symbols (2.8.12), because other keys may not be hashable.
UNREADABLE = "the broker's description of itself cannot be read"
UNREADABLE_ERRORS = (ProtonException, TypeError, ValueError, OverflowError, RecursionError)


class Amqp10Connection(Connection):
    """A connection over AMQP 1.0.

    Args:
        look: called after each turn, to process what has arrived.
        cut: called with received bytes. Returns the bytes for the engine, perhaps without payloads.

    Attributes:
        socket: the socket.
        transport, proton: proton's engine.
        session: the AMQP session; None before it is begun.
        link: the link whose end also ends the connection; None if there is none.
        end: a text, see the base class.
        condition: name and description of the error condition with which the connection has ended; None if none.
        stated: whether the broker has stated a reason for the end, see :class:`.ConnectionLostError`.
    """

    def __init__(self, *args: Any, look: Callable[[], None], cut: Callable[[bytes], bytes] = bytes) -> None:
        super().__init__(*args)
        self._look, self._cut = look, cut
        self.socket = SocketLoop(self.now_s)
        self.transport, self.proton = Transport(Transport.CLIENT), ProtonConnection()
        self.session: Any = None
        self.link: Receiver | None = None
        self.condition: tuple[str, str] | None = None
        self.stated = False
        self._refused: ssl.SSLError | None = None

    def open(self, url: BrokerUrl, deadline: float, container: str, attempt: int = 0, late: str = "in time") -> None:
        """Connect and log in.

        Args:
            deadline: time limit, on the connection's clock.
            container: the container ID (AMQP 1.0, 2.7.1).
            attempt: number of failed attempts so far.
            late: words for the error if the broker does not answer in time, such as "within 30 s".

        Raises:
            BrokerUnavailableError: the broker does not answer in time.
            RefusedError: login, virtual host or TLS are wrong.
            StopRequestedError: the query is being stopped.
        """
        self.socket.dial(url, self.endpoint, deadline, PROTOCOL_NAME, attempt)
        log_in(self.transport, self.proton, self.endpoint, url, container)
        try:
            self.until(lambda: bool(self.proton.state & Endpoint.REMOTE_ACTIVE), deadline)
        except ConnectionLostError:
            raise self.open_error(url) from None
        except TimeoutError:
            raise BrokerUnavailableError(f"{url}: no answer {late}{hint(url, PROTOCOL_NAME)}") from None

    def open_error(self, url: BrokerUrl) -> MqError:
        """Return the error for a connection that has ended before it was used."""
        if self._refused is not None:
            return dial_error(self._refused, url, PROTOCOL_NAME)
        return open_error(
            self._condition() or ("", self.end),
            url,
            self.endpoint,
            opened=bool(self.proton.state & Endpoint.REMOTE_ACTIVE),
            login=self.transport.sasl().outcome in {SASL.AUTH, SASL.PERM},
        )

    def server_property(self, name: str) -> str:
        """Return a property that the broker has stated for the connection; empty if it is missing."""
        properties = self.proton.remote_properties
        return str(properties.get(name, "")) if isinstance(properties, Mapping) else ""

    # -- the end

    def _places(self) -> list[Any]:
        return [place for place in (self.link, self.session, self.proton) if place is not None]

    @property
    def closed(self) -> bool:
        """Whether the broker has closed the link, the session or the connection."""
        return any(place.state & Endpoint.REMOTE_CLOSED for place in self._places())

    def _condition(self) -> tuple[str, str] | None:
        """Return the name and description of the error condition that has ended the connection; None if there is none.

        Look first at the link, then at the session, then at the connection, then at proton's engine.
        """
        found = next(filter(None, map(condition_of, self._places())), None)
        # After a close, the condition of the engine is about bytes after the close.
        return found if found is not None or self.closed else condition_of(self.transport)

    def ended(self, words: str, *, stated: bool = False) -> None:
        """Note that the connection has ended, and with which error condition.

        Args:
            words: what has happened. Attribute `end` has these words, and the error condition if there is one. After
                silence of the broker, it says so instead.
            stated: whether the broker has stated a reason even if there is no error condition.
        """
        if self.end is not None:
            return
        self.condition = condition = self._condition()
        self.stated = stated
        if condition is None:
            self.end = words
        elif condition[1] == _SILENCE:
            self.end = f"nothing was heard from the broker for {self.transport.idle_timeout:g} s"
        else:
            self.stated = stated or is_stated(*condition)
            self.end = f"{words} ({condition[0]}: {condition[1]})"

    def note_close(self) -> None:
        """Note the end if the broker has closed the link, the session or the connection, or the engine has failed."""
        if self.closed:
            self.ended("closed by the broker")
        if self.transport.condition is not None:
            self.ended("the connection failed")

    # -- a turn

    def turn(self, timeout_s: float) -> None:
        if self.end is None:
            try:
                next_s = self.transport.tick(self.now_s())
                send(self.transport, self.socket)
                self.socket.wait(min(timeout_s, next_s - self.now_s()) if next_s else timeout_s)
                self._receive()
                send(self.transport, self.socket)
            except ssl.SSLError as error:
                # With TLS 1.3 the broker may refuse a certificate after the handshake, with the first bytes it sends.
                self._refused = error
                self.ended(f"{type(error).__name__}: {error}")
            except (OSError, UnicodeDecodeError, ProtonException) as error:
                self.ended(f"{type(error).__name__}: {error}")
        self._look()

    def _receive(self) -> None:
        """Read bytes that have arrived. A limit on the number of bytes keeps requests from waiting long."""
        transport = self.transport
        data = self.socket.read(_READ_BYTES) if transport.capacity() >= 0 else b""
        if data is None:
            return
        if not data:
            self.ended("the broker closed the connection")
            transport.close_tail()
            return
        left = memoryview(self._cut(data))
        while left and (room := transport.capacity()) >= 0:  # negative: the transport accepts no more bytes
            if not room:
                raise ProtonException("the engine has no room for the received bytes")
            transport.push(bytes(left[:room]))
            left = left[room:]

    def wake(self) -> None:
        self.socket.wake()

    def close(self, *, waits: bool = True) -> None:
        """Close the connection in any state, within a moment. This never raises an error.

        Args:
            waits: whether to tell the broker, and wait for its answer.
        """
        if waits and self.socket.connected and self.end is None:
            link, self.link = self.link, None
            with contextlib.suppress(Exception):  # the connection is over, whatever the other side says
                if link is not None:
                    # Detach the link first. A quorum queue of RabbitMQ 4.3 counts a delivery of each message that the
                    # end of a connection returns, but not of those that a detached link returns. Do not close the
                    # link, because this would end a durable subscription.
                    link.detach()
                self.proton.close()
                closed_s = self.now_s() + _CLOSE_TIMEOUT_S
                self.until(lambda: bool(self.proton.state & Endpoint.REMOTE_CLOSED), closed_s, closing=True)
        self.socket.close()
        # Let go of the owner, so that both are freed at once: Python's collector does not see the engine's memory.
        self._look, self._cut = lambda: None, bytes


def condition_of(part: Any) -> tuple[str, str] | None:
    """Return the name and description of the error condition of a part of the engine; None if it has none.

    Args:
        part: a link, a session or a connection, whose condition comes from the broker; or the transport.
    """
    try:
        condition = part.condition if isinstance(part, Transport) else part.remote_condition
    except UNREADABLE_ERRORS as unreadable:
        return "amqp:decode-error", f"{UNREADABLE} ({unreadable})"
    return None if condition is None else (str(condition.name), str(condition.description or ""))
