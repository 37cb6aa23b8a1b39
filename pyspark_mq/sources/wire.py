"""The way to a broker for protocols whose client libraries leave the socket to us."""

from __future__ import annotations

import socket
import ssl
import time

from pyspark_mq.errors import BrokerUnavailableError, MqError
from pyspark_mq.sources.endpoint import Endpoint, tls_error
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["dial", "dial_error", "hint"]


def dial(url: BrokerUrl, endpoint: Endpoint, deadline: float, speaks: str) -> socket.socket:
    """A connected socket that does not block, with TLS if the url says so.

    Args:
        deadline: on the clock of `time.monotonic`.
        speaks: the protocol's name, for errors.

    Raises:
        BrokerUnavailableError: nobody there, or not in time.
        RefusedError: TLS was refused.
    """
    try:
        connected = socket.create_connection((url.host, url.port), _left_s(deadline))
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.tls:
                connected.settimeout(_left_s(deadline))
                connected = endpoint.tls.context().wrap_socket(connected, server_hostname=url.host)
            connected.setblocking(False)
        except BaseException:
            connected.close()
            raise
    except (OSError, ValueError) as error:
        raise dial_error(error, url, speaks) from None
    return connected


def _left_s(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def dial_error(error: BaseException, url: BrokerUrl, speaks: str) -> MqError:
    """The error of this package for a connection that was not made, or not to somebody who speaks that."""
    cut = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError)
    if isinstance(error, ssl.SSLError) and not cut:
        return tls_error(error, url)
    if isinstance(error, TimeoutError):
        return BrokerUnavailableError(f"{url}: no answer in time{hint(url, speaks)}")
    refused = isinstance(error, ConnectionRefusedError | socket.gaierror)
    return BrokerUnavailableError(f"{url}: {type(error).__name__}: {error}{'' if refused else hint(url, speaks)}")


def hint(url: BrokerUrl, speaks: str) -> str:
    """What else the port may be."""
    if url.tls:
        return f"; does the port speak TLS, and {speaks}?"
    secured = {"amqp": "amqps", "stomp": "stomp+ssl"}[url.scheme]
    return f"; does the port speak {speaks}? A TLS port needs {secured}://"
