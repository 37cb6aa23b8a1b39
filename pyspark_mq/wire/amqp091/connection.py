"""The connection over AMQP 0-9-1: pika's asynchronous connection, and its event loop.

pika's blocking connection would take more time for each message. It would reject messages in its buffer when a consumer
is cancelled, and wait for the confirmation of each published message before it sends the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pika

from pyspark_mq.decode.amqp091 import as_text
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.logs import leave_out_own_lines
from pyspark_mq.wire.amqp091.client import Answer, Loop, PikaConnection
from pyspark_mq.wire.amqp091.errors import connect_error, handshake_hint
from pyspark_mq.wire.connection import Connection, ConnectionLostError
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.socket_loop import addresses_of
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["Amqp091Connection"]

_LOG = logging.getLogger("pyspark_mq")
# pika logs a traceback for each attempt that fails, but this package reports such attempts itself.
leave_out_own_lines("pika")

_CLOSE_TIMEOUT_S = 1.0


class Amqp091Connection(Connection):
    """A connection over AMQP 0-9-1.

    Attributes:
        loop: pika's event loop.
        pika: pika's connection; None before :meth:`open`.
        end: an error of pika or of this package, see the base class.
        secret: the password or token of the login.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loop = Loop()
        self.pika: Any = None
        self.secret: str | None = None

    def open(self, url: BrokerUrl, deadline: float, name: str, attempt: int = 0, late: str = "in time") -> None:
        """Connect and log in.

        Args:
            deadline: time limit, on the connection's clock.
            name: name of the connection, which the broker's management interface shows.
            attempt: number of failed attempts so far.
            late: words for the error if the broker does not answer in time, such as "within 30 s".

        Raises:
            BrokerUnavailableError: the broker does not answer in time.
            RefusedError: login, virtual host or TLS are wrong.
            StopRequestedError: the query is being stopped.
        """
        login = self.endpoint.credentials(url)
        self.secret = login[1]
        self.pika = PikaConnection(
            _parameters(self.endpoint, url, deadline - self.now_s(), login, name, attempt),
            on_open_callback=lambda _: self.loop.stop(),
            on_open_error_callback=lambda _, error: self.ended(error),
            on_close_callback=lambda _, error: self.ended(error),
            custom_ioloop=self.loop,
        )
        try:
            self.until(lambda: bool(self.pika.is_open), deadline)
        except ConnectionLostError:
            raise connect_error(self.end, url, self.endpoint) from None
        except TimeoutError:
            raise BrokerUnavailableError(f"{url}: no answer {late}{handshake_hint((), url)}") from None

    def server_property(self, name: str) -> str:
        """Return a property that the broker has stated for the connection, as text; empty if it is missing."""
        return as_text((self.pika.server_properties or {}).get(name)) or ""

    def channel(self, deadline: float) -> Any:
        """Open a channel, whose end also ends the connection, and return it.

        Raises:
            ConnectionLostError, TimeoutError, StopRequestedError: see :meth:`until`.
        """
        opened = Answer(self.loop)
        channel = self.pika.channel(on_open_callback=opened)
        channel.add_on_close_callback(lambda _, error: self.ended(error))
        self.until(lambda: opened.came, deadline)
        return channel

    def call(self, deadline: float, method: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        """Call a method of a channel to which the broker replies, and return the reply.

        Raises:
            ConnectionLostError, TimeoutError, StopRequestedError: see :meth:`until`.
        """
        answer = Answer(self.loop)
        method(*args, **kwargs, callback=answer)
        self.until(lambda: answer.came, deadline)
        return answer.value

    def turn(self, timeout_s: float) -> None:
        """Run pika's event loop until a callback stops it, but at most for `timeout_s` seconds."""
        try:
            self._run(timeout_s)
        except Exception as error:  # noqa: BLE001 - pika raises whatever it runs into
            # The connection is dead and pika has not noticed it, or a frame is malformed.
            self.ended(getattr(self.pika, "_error", None) or error)

    def _run(self, timeout_s: float) -> None:
        timer = self.loop.call_later(timeout_s, self.loop.stop)
        try:
            self.loop.start()
        finally:
            self.loop.remove_timeout(timer)

    def ended(self, error: object) -> None:
        """Note that the connection or its channel has ended, and stop the loop."""
        if self.end is None:
            self.end = error
        self.loop.stop()

    def wake(self) -> None:
        with suppress(Exception):  # the loop is closed: there is nothing to wake
            self.loop.add_callback_threadsafe(self.loop.stop)

    def close(self, *, waits: bool = True) -> None:
        """Close the connection in any state, within a moment. This never raises an error.

        Args:
            waits: whether to wait for the broker's answer.
        """
        connection, deadline = self.pika, self.now_s() + _CLOSE_TIMEOUT_S
        try:
            if connection is not None and not (connection.is_closing or connection.is_closed):
                connection.close()
            # Do not wait for long: a broker that has an alarm does not read anything, not even this.
            while waits and connection is not None and not connection.is_closed and self.now_s() < deadline:
                self._run(0.1)
        except Exception as failed:  # noqa: BLE001 - the connection is over, whatever pika says
            _LOG.debug("closing: %s", self.endpoint.hide(str(failed)))
        finally:
            self._drop_socket()

    def _drop_socket(self) -> None:
        """Abort a connection that was not closed in time, so that the broker requeues its messages."""
        transport = getattr(self.pika, "_transport", None)
        if transport is not None and not self.pika.is_closed:
            with suppress(Exception):
                transport.abort()
                self._run(0.0)  # a callback of the loop closes the socket
        self.loop.close()


def _parameters(
    endpoint: Endpoint,
    url: BrokerUrl,
    timeout_s: float,
    login: tuple[str | None, str | None],
    name: str,
    attempt: int,
) -> pika.ConnectionParameters:
    """Return pika's parameters for one attempt to connect; see :meth:`Amqp091Connection.open`.

    The first attempt tries all addresses of the host, one after the other. Each later attempt tries one address,
    because pika uses the first address that accepts a connection, even if no broker answers there.

    Args:
        login: user and password, as :meth:`.Endpoint.credentials` returns them.
    """
    # Divide the timeout by the number of addresses, because pika waits for the whole timeout at each of them.
    addresses = [url.host]
    with suppress(OSError):
        addresses = [address[0] for *_, address in addresses_of(url.host, url.port)] or addresses
    one_of_them = attempt > 0 and len(addresses) > 1
    return pika.ConnectionParameters(
        host=addresses[attempt % len(addresses)] if one_of_them else url.host,
        port=url.port,
        virtual_host=url.virtual_host,
        credentials=_credentials(endpoint, url, login),
        heartbeat=round(endpoint.heartbeat_s),
        socket_timeout=timeout_s / len(addresses),
        stack_timeout=timeout_s,
        client_properties={"product": "pyspark-mq", "connection_name": name},
        ssl_options=pika.SSLOptions(endpoint.tls.context(), url.host) if url.tls else None,
    )


def _credentials(endpoint: Endpoint, url: BrokerUrl, login: tuple[str | None, str | None]) -> Any:
    username, password = login
    if username is None and url.tls and endpoint.tls.cert_file is not None:
        # If there is a client certificate but no user, the certificate is the login (SASL EXTERNAL).
        return pika.credentials.ExternalCredentials()
    return pika.PlainCredentials("guest" if username is None else username, "guest" if password is None else password)
