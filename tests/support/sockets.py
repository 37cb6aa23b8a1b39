"""Peers that send what a test says: answers that are cut off, protocols that are spoken by nobody, bytes in pieces."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from testbed.chaos.proxy import FaultProxy
from tests.support.effort import PART

__all__ = ["LIMIT_S", "Apart", "Pieces", "Port", "apart", "cuts", "mute_address_first", "port"]

#: A limit for what is to happen at once, which only a hang reaches.
LIMIT_S = 60.0
_PIECES = 8
_DIAL = "pyspark_mq.wire.socket_loop.connect"


class Port:
    """Answers each connection with the same bytes once it has heard something, and closes it.

    Attributes:
        answer: the bytes; may be changed at any time.
        pause_s: how long it rests after each eighth of them; 0 if they are sent at once.
        again: what it sends behind them over and over, resting as long, until the other side hangs up.
        heard: what was received, one entry for each connection.
    """

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.pause_s = 0.0
        self.again = b""
        self.heard: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def number(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return int(self._server.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._server.accept()
            except OSError:
                return
            with connected:
                connected.settimeout(5)
                try:
                    self.heard.append(connected.recv(65536))
                    answer = self.answer
                    step = 1 + len(answer) // (_PIECES if self.pause_s else 1)
                    for at in range(0, len(answer), step):
                        connected.sendall(answer[at : at + step])
                        time.sleep(self.pause_s)
                    while self.again:
                        connected.sendall(self.again)
                        time.sleep(self.pause_s)
                    connected.shutdown(socket.SHUT_WR)
                    while connected.recv(65536):
                        pass
                except OSError:
                    pass

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)


@contextmanager
def port(answer: bytes) -> Iterator[Port]:
    """One while the block runs."""
    opened = Port(answer)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def mute_address_first(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host with two addresses: the first accepts connections and says nothing, the second is a proxy's."""
    name, resolve = "broker.example", socket.getaddrinfo

    def both(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        hosts = ("127.0.0.2", "127.0.0.1") if host == name else (host,)
        return [found for one in hosts for found in resolve(one, port, *args, **kwargs)]

    with socket.create_server(("127.0.0.2", proxy.port)):
        monkeypatch.setattr(socket, "getaddrinfo", both)
        yield name


class Apart(socket.socket):
    """An end of a connection on which each read takes what was sent at once, and no more."""

    def setsockopt(self, *_: Any) -> None:
        """Not of TCP, so it has none of its options."""


@contextmanager
def apart(serve: Callable[[socket.socket], None], dial: str = _DIAL) -> Iterator[None]:
    """Have whoever dials while the block runs speak with a server of the test's, and read apart what that sends apart.

    Args:
        serve: has the server's end of a connection, on a thread of its own.
        dial: the function that connects.
    """
    threads: list[threading.Thread] = []

    def run(end: socket.socket) -> None:
        with end, suppress(OSError):
            serve(end)

    def connect(*_: Any, **__: Any) -> socket.socket:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threads.append(threading.Thread(target=run, args=(far,), daemon=True))
        threads[-1].start()
        return Apart(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=near.detach())

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dial, connect)
        yield
    for thread in threads:
        thread.join(LIMIT_S)


class Pieces(Apart):
    """A connection that brings these pieces, one with each read, and ends. What is sent to it is swallowed."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        # There is always something to be read, as far as anybody can see who does not read it.
        near, self._far = socket.socketpair()
        super().__init__(near.family, near.type, fileno=near.detach())
        self._far.send(b"x")
        self._left = [piece for piece in pieces if piece][::-1]

    def recv(self, *_: Any) -> bytes:
        return self._left.pop() if self._left else b""

    def send(self, data: Any, *_: Any) -> int:
        return len(data)

    def sendall(self, *_: Any) -> None:
        """Swallow it."""

    def close(self) -> None:
        self._far.close()
        super().close()


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Yield these bytes in pieces: as a whole, byte by byte, and cut in two; at each place with `--all`."""
    size = len(data)
    for places in ([], range(1, size), *([at] for at in range(1, size, PART))):
        yield [data[low:high] for low, high in pairwise([0, *places, size])]
