"""Functions for proton's engine: logging in, sending, and freeing links."""

from __future__ import annotations

import re
from collections import deque

from proton import SASL, Connection, Link, Transport, symbol

from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.socket_loop import SocketLoop
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["FRAME_BYTES", "free_closed", "log_in", "send", "state_unsettled"]

#: Size of frames. The incoming window of a session counts frames, so with small frames it limits bytes precisely.
FRAME_BYTES = 16 << 10
_CLOSING_LINKS_MAX = 100
#: A frame has its size, its data offset in words, and its type and channel (AMQP 1.0, 2.3.1).
_SIZE_BYTES, _OFFSET_AT, _WORD_BYTES = 4, 4, 4
#: The protocol headers before the frames of SASL and AMQP (2.2, 5.3.2).
_PROTOCOL, _PROTOCOL_BYTES = b"AMQP", 8
#: The disposition of a receiver with the state `accepted`, up to a `settled` of null (2.7.6).
_DISPOSITION = b"\0\x53\x15"
_ACCEPTED_UNSETTLED = re.compile(
    rb"\0\x53\x15\xc0.\x05\x41(?:\x43|\x52.|\x70.{4})(?:[\x40\x43]|\x52.|\x70.{4})(\x40)\0\x53\x24\x45", re.DOTALL
)
_FALSE = 0x42


def log_in(transport: Transport, connection: Connection, endpoint: Endpoint, url: BrokerUrl, container: str) -> None:
    """Set the container ID and the login of a connection. They are sent with the first bytes of the transport.

    Args:
        container: the container ID (AMQP 1.0, 2.7.1).
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
    """Free the memory of the oldest links that this side has closed, as soon as the broker has closed them, too.

    If a link is freed earlier, proton leaks 2 kB. The plugin of RabbitMQ 3 never closes a link in return, so if there
    are more than :data:`_CLOSING_LINKS_MAX` links, the oldest are freed nevertheless.
    """
    while links and (links[0].state & Link.REMOTE_CLOSED or len(links) > _CLOSING_LINKS_MAX):
        links.popleft().free()


def send(transport: Transport, connected: SocketLoop) -> None:
    """Write all of proton's output, after :func:`state_unsettled` has corrected it."""
    frames = bytearray()
    while (pending := transport.pending()) > 0:
        frames += transport.peek(pending) or b""
        transport.pop(pending)
    state_unsettled(frames)
    connected.outgoing += frames
    connected.write()


def state_unsettled(frames: bytearray) -> None:
    """Write `settled=false` into each disposition in `frames` that leaves out `settled`.

    proton writes a false `settled` as null, which stands for the default, false (AMQP 1.0, 2.7.6). RabbitMQ closes the
    connection at that null (`{case_clause,undefined}`; 3.10.8, 4.0.5, 4.3.6). RabbitMQ answers an explicit false by
    settling.

    Args:
        frames: whole frames, and the headers before them.
    """
    at = 0 if _DISPOSITION in frames else len(frames)
    while at < len(frames):
        if frames.startswith(_PROTOCOL, at):
            at += _PROTOCOL_BYTES
            continue
        found = _ACCEPTED_UNSETTLED.match(frames, at + _WORD_BYTES * frames[at + _OFFSET_AT])
        if found is not None:
            frames[found.start(1)] = _FALSE
        at += int.from_bytes(frames[at : at + _SIZE_BYTES], "big")
