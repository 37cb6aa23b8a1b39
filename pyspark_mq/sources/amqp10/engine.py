"""Proton's engine on our own socket: logging in over AMQP 1.0 and SASL, sending, and freeing links."""

from __future__ import annotations

from collections import deque

from proton import SASL, Connection, Link, Transport, symbol

from pyspark_mq.sources.connections.socket_loop import SocketLoop
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["FRAME_BYTES", "free_closed", "log_in", "send"]

#: Small frames make the incoming window, which counts frames, a fine measure of bytes.
FRAME_BYTES = 16 << 10
_CLOSING_LINKS_MAX = 100


def log_in(transport: Transport, connection: Connection, endpoint: Endpoint, url: BrokerUrl, container: str) -> None:
    """Set identity and login. Nothing is sent before the transport is asked for its bytes.

    Args:
        container: the ID of this container (AMQP 1.0, 2.7.1).
    """
    dialect = endpoint.broker.amqp10
    assert dialect is not None, "an option names this protocol for a broker without it"
    connection.container = container
    if url.virtual_host != "/" and dialect.virtual_host:
        connection.hostname = dialect.virtual_host.format(name=url.virtual_host)
    else:
        connection.hostname = url.host
    connection.properties = {symbol("product"): "pyspark-mq"}
    username, password = endpoint.credentials(url)
    sasl = SASL(transport)
    sasl.allow_insecure_mechs = True  # the user chose PLAIN without TLS by the URL
    if username is not None:
        connection.user, connection.password = username, password or ""
        sasl.allowed_mechs("PLAIN")
    elif url.tls and endpoint.tls.cert_file is not None:
        sasl.allowed_mechs("EXTERNAL")
    else:
        sasl.allowed_mechs("ANONYMOUS")
    transport.max_frame_size = FRAME_BYTES
    # proton advertises half of this timeout to the peer.
    transport.idle_timeout = 2 * endpoint.heartbeat_s
    transport.bind(connection)
    connection.open()


def free_closed(links: deque[Link]) -> None:
    """Free the oldest links that were closed here, once the broker has closed them, too.

    If a link is freed earlier, proton keeps 2 kB of it. The plugin of RabbitMQ 3 never closes a link, so if more than
    :data:`_CLOSING_LINKS_MAX` links wait, the oldest are freed all the same.
    """
    while links and (links[0].state & Link.REMOTE_CLOSED or len(links) > _CLOSING_LINKS_MAX):
        links.popleft().free()


def send(transport: Transport, connected: SocketLoop) -> None:
    """Write as much of the transport's output as the socket accepts."""
    outgoing = connected.outgoing
    connected.write()
    while not outgoing and (pending := transport.pending()) > 0:
        outgoing += transport.peek(pending) or b""
        transport.pop(pending)
        connected.write()
