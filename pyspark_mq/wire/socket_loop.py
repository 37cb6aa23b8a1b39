"""The socket of a session, for protocols whose client libraries only encode and decode (AMQP 1.0 and STOMP).

Only :meth:`SocketLoop.wait` waits, and other threads can end the wait. TLS is that of Python, with the same settings
for all protocols.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import select
import socket
import ssl
import termios
import time
from array import array
from collections.abc import Callable
from typing import Any

from pyspark_mq.errors import BrokerUnavailableError, MqError
from pyspark_mq.wire.endpoint import Endpoint, tls_error
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["ReadPace", "SocketLoop", "addresses_of", "connect", "count_addresses", "dial_error", "hint"]

_SEND_BYTES = 64 * 1024
_WOKEN_BYTES = 4096
#: Brokers often write one or a few messages at a time, and a read takes more time than processing one message. If a
#: read returns fewer than `_FEW_BYTES` bytes, within `_SHORTLY_S` of the read before, the next read waits `_GATHER_S`
#: so that more bytes arrive.
_FEW_BYTES = 32 << 10
_SHORTLY_S = 0.005
_GATHER_S = 0.002
#: Event by which `poll` reports that the other side has closed the connection, even if no bytes are read. Only Linux
#: has it.
_HANG_UP = getattr(select, "POLLRDHUP", 0)
#: Errors of a non-blocking socket that cannot proceed now. (TLS may have to read before it can write, and vice versa.)
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ReadPace:
    """Delays the reads of a socket: if bytes arrive in small pieces, a short delay makes reads fewer and larger.

    The delay applies only after a read that has emptied the socket. (With TLS, a read returns only one record, even if
    several records have arrived.)
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._read_s = -math.inf
        self._bytes = 0
        self._delays = False

    def read(self, count: int, opened: socket.socket) -> None:
        """Record that this number of bytes was read just now."""
        now_s = self._now_s()
        self._bytes += count
        self._delays = False
        if _pending(opened) or _unread_bytes(opened.fileno()):
            return
        self._delays = 0 < self._bytes < _FEW_BYTES and now_s - self._read_s < _SHORTLY_S
        self._read_s, self._bytes = now_s, 0

    def delay(self) -> None:
        """If the last reads returned few bytes, wait a moment for more bytes."""
        if self._delays:
            self._delays = False
            time.sleep(_GATHER_S)


class SocketLoop:
    """The socket of one connection. Only one thread uses it, but other threads may call :meth:`wake`.

    Attributes:
        outgoing: bytes to send. The protocol's code appends to them.
        woken: whether :meth:`wake` was called. Code that reads this attribute resets it.
        sent_s, received_s: time when bytes were last sent and received, on the session's clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.outgoing = bytearray()
        self.woken = False
        self.sent_s = self.received_s = 0.0
        self._pace = ReadPace(now_s)
        self._socket: socket.socket | None = None
        self._wakeup_read, self._wakeup_write = socket.socketpair()
        for end in (self._wakeup_read, self._wakeup_write):
            end.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._wakeup_read, select.POLLIN)
        self._watched = 0

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def dial(self, url: BrokerUrl, endpoint: Endpoint, deadline: float, speaks: str, attempt: int = 0) -> None:
        """Connect, with TLS if the URL's scheme requires it.

        Args:
            deadline: time limit, on the session's clock.
            speaks: the protocol's name, for errors.
            attempt: number of failed attempts so far.

        Raises:
            BrokerUnavailableError: the broker does not answer in time.
            RefusedError: TLS was refused.
        """
        try:
            connected = connect(url.host, url.port, deadline, self._now_s, attempt)
            try:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if url.tls:
                    connected.settimeout(_left_s(deadline, self._now_s))
                    connected = endpoint.tls.context().wrap_socket(connected, server_hostname=url.host)
                connected.setblocking(False)
            except BaseException:
                connected.close()
                raise
        except (OSError, ValueError) as error:
            raise dial_error(error, url, speaks) from None
        self._socket = connected
        self.sent_s = self.received_s = self._now_s()

    def wake(self) -> None:
        """End the current or the next :meth:`wait`. Other threads call this."""
        with contextlib.suppress(OSError):  # the pipe is full, so the thread is awake; or it is closed, so it has ended
            self._wakeup_write.send(b"\0")

    def wait(self, timeout_s: float, *, reading: bool = True) -> bool:
        """Wait until bytes have arrived, bytes can be sent, or :meth:`wake` is called; at most for the timeout.

        Args:
            reading: whether bytes that arrive end the wait. Errors and the end of the connection always end it.

        Returns:
            whether the connection is still open, as far as this can be known. The result can be false only if `reading`
            is false.
        """
        assert self._socket is not None
        watched = (select.POLLIN if reading else _HANG_UP) | (select.POLLOUT if self.outgoing else 0)
        if watched != self._watched:
            self._watched = watched
            self._poll.register(self._socket, watched)
        if reading and _pending(self._socket):
            timeout_s = 0.0
        events = dict(self._poll.poll(math.ceil(max(0.0, timeout_s) * 1000)))
        if events.pop(self._wakeup_read.fileno(), 0):
            self.woken = True
            with contextlib.suppress(BlockingIOError):
                self._wakeup_read.recv(_WOKEN_BYTES)
        elif any(event & select.POLLIN for event in events.values()):
            self._pace.delay()
        return reading or not any(event & ~select.POLLOUT for event in events.values())

    def read(self, maximum: int) -> bytes | None:
        """Read at most this number of bytes. Return None if no bytes have arrived, and empty bytes after the end.

        Raises:
            OSError: the connection is broken.
        """
        assert self._socket is not None
        try:
            data = self._socket.recv(maximum)
        except _NOT_NOW:
            return None
        if data:
            self.received_s = self._now_s()
        self._pace.read(len(data), self._socket)
        return data

    def write(self) -> None:
        """Send as much of `outgoing` as the socket accepts now.

        Raises:
            OSError: the connection is broken.
        """
        assert self._socket is not None
        outgoing = self.outgoing
        try:
            while outgoing:
                # Send a copy, because the buffer cannot shrink while a view of it exists.
                del outgoing[: self._socket.send(bytes(outgoing[:_SEND_BYTES]))]
                self.sent_s = self._now_s()
        except _NOT_NOW:
            pass

    def close(self) -> None:
        for opened in (self._socket, self._wakeup_read, self._wakeup_write):
            if opened is not None:
                opened.close()
        self._socket = None


def connect(
    host: str, port: int, deadline: float, now_s: Callable[[], float] = time.monotonic, attempt: int = 0
) -> socket.socket:
    """Connect to the first address of a host that answers.

    Each address gets an equal share of the time that is left, so an address that does not answer does not use up the
    time of the others.

    Args:
        attempt: number of failed attempts so far. Each attempt begins with the next address.

    Raises:
        OSError: no address has answered. The error is that of the last address.
    """
    addresses = addresses_of(host, port)
    first = attempt % max(1, len(addresses))
    addresses = addresses[first:] + addresses[:first]
    failed = OSError(f"{host} has no address")
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(_left_s(deadline, now_s) / (len(addresses) - place))
            opened.connect(address)
        except OSError as error:
            opened.close()
            failed = error
        else:
            return opened
    raise failed


def addresses_of(host: str, port: int) -> list[tuple[Any, ...]]:
    """Look up the addresses of a host, as `socket.getaddrinfo` returns them.

    Raises:
        OSError: the host is unknown.
    """
    return [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def count_addresses(url: BrokerUrl) -> int:
    """Return the number of addresses of a broker's host; 1 if the host cannot be resolved at the moment."""
    with contextlib.suppress(OSError):
        return len(addresses_of(url.host, url.port))
    return 1


def _unread_bytes(descriptor: int) -> int:
    """Return the number of bytes that can be read from a socket; 0 if it is closed."""
    found = array("i", [0])
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile, by the thread that reads
        fcntl.ioctl(descriptor, termios.FIONREAD, found)
    return found[0]


def _pending(opened: socket.socket) -> int:
    """Return the number of bytes that TLS has already decrypted. `poll` does not report these bytes."""
    return opened.pending() if isinstance(opened, ssl.SSLSocket) else 0


def _left_s(deadline: float, now_s: Callable[[], float]) -> float:
    return max(0.1, deadline - now_s())


def dial_error(error: BaseException, url: BrokerUrl, speaks: str) -> MqError:
    """Return this package's error for a failed attempt to connect. It says if the port may speak another protocol."""
    cut = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError)
    if isinstance(error, ssl.SSLError) and not cut:
        return tls_error(error, url)
    if isinstance(error, TimeoutError):
        return BrokerUnavailableError(f"{url}: no answer in time{hint(url, speaks)}")
    refused = isinstance(error, ConnectionRefusedError | socket.gaierror)
    return BrokerUnavailableError(f"{url}: {type(error).__name__}: {error}{'' if refused else hint(url, speaks)}")


def hint(url: BrokerUrl, speaks: str) -> str:
    """Return a text for the end of an error. It says that the port may speak another protocol.

    Args:
        speaks: the name of the protocol that was expected.
    """
    if url.tls:
        return f"; does the port speak TLS, and {speaks}?"
    return f"; does the port speak {speaks}? A TLS port needs {url.partner}://"
