"""Confirmed publishing over STOMP 1.2 in bulk, for tests, demo and benchmark.

Messages go in transactions: while the broker commits one, the messages of the next are on their
way. A message counts when the receipt of its COMMIT has come. A receipt for each SEND promises
the same, but ActiveMQ Classic then writes to its disk message by message (200 bytes each, on two
cores: 3000 to 3900 msg/s against 7500; Artemis writes as fast either way).

On a plain socket rather than with stomp.py: a publisher needs four frames, and this way a broken
connection is an exception in the thread that publishes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from testbed.process import PublishError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["publish_stomp"]

_TRANSACTION_MESSAGES = 500
_CONNECT_TIMEOUT_S = 10.0
_READ_BYTES = 1 << 16
_DEFAULT_PORTS = {"stomp": 61613, "stomp+ssl": 61612}
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"})


class _FailedError(Exception):
    """It cannot go on; the text says why."""


def publish_stomp(
    url: str,
    destination: str,
    messages: Iterable[tuple[bytes, Mapping[str, str]]],
    *,
    context: ssl.SSLContext | None = None,
    timeout_s: float = 120.0,
) -> int:
    """Publish persistent messages, (body, headers), to a destination, as bytes messages.

    Args:
        url: `stomp://user:password@host:port/`, or `stomp+ssl://` with `context`.
        destination: as the broker writes it, with its prefix.
        headers: of each message; STOMP's own (`priority`, `expires`, ...) have the broker's meaning.
        timeout_s: for all of it.

    Returns:
        how many were published.

    Raises:
        PublishError: no connection, it broke, the broker refused, or the time is over. Of the
            others either the next 500, or as many as there were, are in the queue or nothing is.
    """
    deadline = time.monotonic() + timeout_s
    publisher = _Publisher(destination, iter(messages))
    try:
        with _Connection(url, context, deadline) as connection:
            publisher.run(connection)
    except (_FailedError, OSError) as error:
        raise PublishError(destination, publisher.confirmed, _reason(error, timeout_s)) from error
    return publisher.confirmed


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"not all confirmed in {timeout_s:g} s"
    return str(error) if isinstance(error, _FailedError) else f"connection lost: {error!r}"


class _Publisher:
    def __init__(self, destination: str, messages: Iterator[tuple[bytes, Mapping[str, str]]]) -> None:
        self._destination = destination
        self._messages = messages
        #: Receipt and size of the transaction whose COMMIT is under way.
        self._open: tuple[str, int] | None = None
        self.confirmed = 0

    def run(self, connection: _Connection) -> None:
        number = 0
        while chunk := list(islice(self._messages, _TRANSACTION_MESSAGES)):
            number += 1
            name = f"t{number}"
            connection.send(self._sends(name, chunk))
            # Only now. Of two that are under way Artemis has confirmed the second first.
            self._await_receipt(connection)
            connection.send(_frame("COMMIT", {"transaction": name, "receipt": name}))
            self._open = (name, len(chunk))
        self._await_receipt(connection)

    def _sends(self, name: str, chunk: list[tuple[bytes, Mapping[str, str]]]) -> bytes:
        parts = [_frame("BEGIN", {"transaction": name})]
        fixed = {"destination": self._destination, "transaction": name, "persistent": "true"}
        for body, headers in chunk:
            parts.append(_frame("SEND", {**headers, **fixed, "content-length": str(len(body))}, body))
        return b"".join(parts)

    def _await_receipt(self, connection: _Connection) -> None:
        if self._open is None:
            return
        name, size = self._open
        command, headers, body = connection.receive()
        if command != "RECEIPT" or headers.get("receipt-id") != name:
            text = headers.get("message") or body.decode("utf-8", "replace").strip() or "no reason given"
            raise _FailedError(f"the broker answered {command}: {text}")
        self._open = None
        self.confirmed += size


class _Connection:
    """One session, logged in. Every method gives up at the deadline with a TimeoutError."""

    def __init__(self, url: str, context: ssl.SSLContext | None, deadline: float) -> None:
        parts = urlsplit(url)
        secured = parts.scheme == "stomp+ssl"
        if parts.scheme not in _DEFAULT_PORTS or parts.hostname is None:
            raise _FailedError(f"a url is stomp://... or stomp+ssl://..., not {parts.scheme}://")
        self._deadline = deadline
        self._received = b""
        address = (parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme])
        self._socket: socket.socket = socket.create_connection(address, min(_CONNECT_TIMEOUT_S, self._left()))
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secured:
                context = context or ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=parts.hostname)
            self._log_in(unquote(parts.username or ""), unquote(parts.password or ""))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _log_in(self, user: str, password: str) -> None:
        headers = {"accept-version": "1.2", "host": "/", "login": user, "passcode": password}
        # The one frame whose headers are not escaped.
        text = "".join(f"{name}:{value}\n" for name, value in headers.items())
        self.send(f"CONNECT\n{text}\n\0".encode())
        command, answer, body = self.receive()
        if command != "CONNECTED":
            reason = answer.get("message") or body.decode("utf-8", "replace").strip()
            raise _FailedError(f"the broker did not let us in: {reason}")

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            # A broker that refuses says so and may read no more: without a look at its answer
            # both sides would wait.
            readable, writable, _ = select.select([self._socket], [self._socket], [], self._left())
            if readable:
                # Over TLS there may be nothing for us: session tickets make a socket readable too.
                self._socket.settimeout(0)
                with contextlib.suppress(ssl.SSLWantReadError):
                    self._read()
            if writable:
                self._socket.settimeout(self._left())
                view = view[self._socket.send(view[:_READ_BYTES]) :]

    def receive(self) -> tuple[str, dict[str, str], bytes]:
        """The next frame: command, headers, body."""
        while (frame := self._next_frame()) is None:
            self._socket.settimeout(self._left())
            self._read()
        return frame

    def _read(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            frame = self._next_frame()
            said = f" after {frame[0]}: {frame[1].get('message', '')}" if frame else ""
            raise _FailedError(f"the broker closed the connection{said}")
        self._received += data

    def _next_frame(self) -> tuple[str, dict[str, str], bytes] | None:
        received = self._received.lstrip(b"\r\n")
        head, separator, rest = received.partition(b"\n\n")
        if not separator:
            return None
        command, *lines = head.decode("utf-8", "replace").split("\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name, value.replace("\\c", ":").replace("\\n", "\n"))
        end = int(headers["content-length"]) if "content-length" in headers else rest.find(b"\0")
        if end < 0 or len(rest) <= end:
            return None
        self._received = rest[end + 1 :]
        return command, headers, rest[:end]


def _frame(command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = "".join(f"{_escaped(name)}:{_escaped(value)}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


def _escaped(text: str) -> str:
    # Looking is six times as fast as translating, and nearly no header needs it.
    return text.translate(_ESCAPES) if not text.isalnum() else text
