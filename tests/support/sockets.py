"""A port that sends what a test says: answers that are cut off, and protocols that are spoken by nobody."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Port", "port"]

_PIECES = 8


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
                    step = 1 + len(self.answer) // (_PIECES if self.pause_s else 1)
                    for at in range(0, len(self.answer), step):
                        connected.sendall(self.answer[at : at + step])
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
