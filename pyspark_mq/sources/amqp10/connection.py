"""The connection of an AMQP 1.0 session: it logs in, sends and receives bytes and heartbeats, and notes why it ended.

proton's *engine* encodes and decodes frames, but does not use a socket. One thread runs :meth:`Amqp10Connection._turn`,
which writes the engine's output to the socket, waits for bytes, and passes them to the engine. If the connection ends,
the first reason is kept and raised. Links and deliveries are handled by the session
(:mod:`pyspark_mq.sources.amqp10.session`).
"""

from __future__ import annotations

import contextlib
import ssl
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from proton import SASL, Endpoint, ProtonException, Receiver, Transport
from proton import Connection as ProtonConnection
from proton import Session as ProtonSession

from pyspark_mq.brokers.base import Amqp10Dialect
from pyspark_mq.errors import MqError
from pyspark_mq.sources.amqp10.transfers import Transfers
from pyspark_mq.sources.connections.session import Session, SessionLostError
from pyspark_mq.wire.amqp10.engine import FRAME_BYTES, log_in, send_acknowledgements
from pyspark_mq.wire.amqp10.errors import PROTOCOL_NAME, is_stated, open_error
from pyspark_mq.wire.socket_loop import SocketLoop, dial_error
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["UNREADABLE", "UNREADABLE_ERRORS", "Amqp10Connection"]

_READ_BYTES = 1 << 20
_CLOSE_TIMEOUT_S = 1.0
#: proton's description of the reason if nothing has arrived on a connection for the idle timeout.
_SILENCE = "local-idle-timeout expired"
#: Text of the error, and errors of proton, if the broker's properties cannot be decoded. proton decodes them when they
#: are read: text must be UTF-8 (1.6.20), and keys must be symbols (2.8.12), because other keys may not be hashable.
UNREADABLE = "the broker's description of itself cannot be read"
UNREADABLE_ERRORS = (ProtonException, TypeError, ValueError, OverflowError, RecursionError)


class Amqp10Connection(Session):
    """The connection of one session, until it ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dialect = self.endpoint.broker.amqp10
        assert dialect is not None, "an option of the source names this protocol for a broker without it"
        self._dialect: Amqp10Dialect = dialect
        self._socket = SocketLoop(self.now_s)
        self._link_name = self.endpoint.subscription or f"pyspark-mq-{self.number}"
        self._transfers = Transfers(self._link_name, FRAME_BYTES)
        self._transport = Transport(Transport.CLIENT)
        self._proton = ProtonConnection()
        self._session: ProtonSession | None = None
        self._link: Receiver | None = None
        self._window = 0
        self._end: str | None = None
        self._stated = False
        self._refused: ssl.SSLError | None = None

    # -- implemented by the session

    @abstractmethod
    def _top_up(self) -> None:
        """Grant more credit to the broker. Called before bytes are sent."""

    @abstractmethod
    def _take_deliveries(self) -> None:
        """Take messages out of the engine. Called after bytes were passed to the engine, which has limited memory."""

    @abstractmethod
    def _pass_on(self) -> None:
        """Put the messages that were taken out of the engine into the inbox."""

    @abstractmethod
    def _look(self) -> None:
        """Process what has arrived: confirm acknowledgements that the broker has settled.

        Raise an error if the broker has closed the link, the session or the connection, or has taken messages back.
        """

    # -- login

    def _begin(self, url: BrokerUrl) -> None:
        """Set the container ID and the login. They are sent by the first :meth:`_turn`."""
        log_in(self._transport, self._proton, self.endpoint, url, self._container_id())

    def _container_id(self) -> str:
        # Brokers take this for the JMS client ID, which together with the link's name identifies a durable
        # subscription.
        subscription = self.endpoint.subscription
        if subscription is None or self.endpoint.shared:
            return f"pyspark-mq-{id(self):x}-{time.time_ns():x}"
        return f"pyspark-mq.{subscription}"

    def _property(self, name: str) -> str:
        """Return a property that the broker has stated for the connection; empty if it is missing."""
        properties = self._proton.remote_properties
        return str(properties.get(name, "")) if isinstance(properties, Mapping) else ""

    # -- errors

    def _condition(self) -> tuple[str, str] | None:
        """Return the name and description of the error condition that has ended the session; None if there is none.

        Look first at the link, then at the session, then at the connection.
        """
        places = [place for place in (self._link, self._session, self._proton) if place is not None]
        for place in places:
            try:
                condition = place.remote_condition
            except UNREADABLE_ERRORS as unreadable:
                return "amqp:decode-error", f"{UNREADABLE} ({unreadable})"
            if condition is not None:
                return str(condition.name), str(condition.description or "")
        closed = any(place.state & Endpoint.REMOTE_CLOSED for place in places)
        condition = None if closed else self._transport.condition  # after a close, this is about bytes after the close
        return None if condition is None else (str(condition.name), str(condition.description or ""))

    def _open_error(self, url: BrokerUrl) -> MqError:
        if self._refused is not None:
            return dial_error(self._refused, url, PROTOCOL_NAME)
        return open_error(
            self._condition() or ("", self._end or "the connection was closed"),
            url,
            self.endpoint,
            opened=bool(self._proton.state & Endpoint.REMOTE_ACTIVE),
            login=self._transport.sasl().outcome in {SASL.AUTH, SASL.PERM},
        )

    def _ended(self, words: str) -> None:
        if self._end is None:
            condition = self._condition()
            if condition is not None and condition[1] == _SILENCE:
                self._end = f"nothing was heard from the broker for {self._transport.idle_timeout:g} s"
                return
            self._stated = condition is not None and is_stated(*condition)
            self._end = f"{words} ({condition[0]}: {condition[1]})" if condition is not None else words

    # -- a turn

    def _turn(self, timeout_s: float) -> None:
        """Send what is due, wait for bytes, and process them. Raise an error if the connection has ended."""
        if self._end is not None or not self._socket.connected:
            raise SessionLostError(self._end or "not connected", stated=self._stated)
        self._top_up()
        try:
            next_s = self._transport.tick(self.now_s())
            send_acknowledgements(self._transport, self._socket)
            if next_s:
                timeout_s = min(timeout_s, next_s - self.now_s())
            self._socket.wait(timeout_s)
            try:
                self._receive()
            finally:
                self._pass_on()  # even if receiving fails, because deliveries must come before later confirmations
            send_acknowledgements(self._transport, self._socket)
        except ssl.SSLError as error:
            # With TLS 1.3 the broker may refuse a certificate after the handshake, with the first bytes it sends.
            self._refused = self._refused or error
            self._ended(f"{type(error).__name__}: {error}")
        except (OSError, UnicodeDecodeError, ProtonException) as error:
            self._ended(f"{type(error).__name__}: {error}")
        self._look()

    def _receive(self) -> None:
        """Read the bytes that have arrived, up to a limit, so that requests do not have to wait long."""
        transport = self._transport
        data = self._socket.read(_READ_BYTES) if transport.capacity() >= 0 else b""
        if data is None:
            return
        if not data:
            self._ended("the broker closed the connection")
            transport.close_tail()
            return
        left = memoryview(self._transfers.cut(data, take=not self.paused))
        while left and (room := transport.capacity()) >= 0:  # negative: the transport accepts no more bytes
            if not room:
                raise ProtonException("the engine has no room for the received bytes")
            transport.push(bytes(left[:room]))
            left = left[room:]
        self._take_deliveries()

    def wake(self) -> None:
        self._socket.wake()

    def close(self) -> None:
        if self._socket.connected and self._end is None:
            link, self._window, self._link = self._link, 0, None
            with contextlib.suppress(Exception):  # the session is over, whatever the other side says
                if link is not None:
                    # Detach the link first. A quorum queue of RabbitMQ 4.3 counts a delivery of each message that the
                    # end of a connection returns, but not of those that a detached link returns. Do not close the
                    # link, because this would end a durable subscription.
                    link.detach()
                self._proton.close()
                closed_s = self.now_s() + _CLOSE_TIMEOUT_S
                self._until(lambda: bool(self._proton.state & Endpoint.REMOTE_CLOSED), closed_s, closing=True)
        self._socket.close()
