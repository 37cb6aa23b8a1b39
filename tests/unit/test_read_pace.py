"""The pace of reading: a rest behind little that came shortly after something, and never while more is there."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from pyspark_mq.sources.connections import socket_loop
from pyspark_mq.sources.connections.socket_loop import ReadPace

PIECE = 16 << 10  # of TLS, a record


class Reader:
    """One end of a connection, whose reads and rests are counted."""

    def __init__(self, ends: tuple[socket.socket, socket.socket]) -> None:
        self.near, self.far = ends
        self.now_s = 0.0
        self.pace = ReadPace(lambda: self.now_s)

    def read(self, after_s: float = 0.001) -> bool:
        """Read a piece; return whether a rest is due behind it."""
        self.now_s += after_s
        self.pace.read(len(self.near.recv(PIECE)), self.near)
        began_s = time.monotonic()
        self.pace.rest()
        return time.monotonic() - began_s >= 0.05


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(socket_loop, "_GATHER_S", 0.05)
    ends = socket.socketpair()
    yield Reader(ends)
    for end in ends:
        end.close()


def test_little_that_comes_shortly_after_something_is_rested_behind(reader: Reader) -> None:
    reader.far.send(b"x")
    assert not reader.read(after_s=1.0)
    reader.far.send(b"x" * 1_000)
    assert reader.read()
    reader.far.send(b"x" * 1_000)
    assert not reader.read(after_s=1.0)


def test_what_is_there_already_is_read_without_a_rest(reader: Reader) -> None:
    reader.far.send(b"x")
    assert not reader.read()
    reader.far.send(b"x" * (PIECE + 1_000))
    assert not reader.read()
    assert reader.read()


def test_pieces_that_are_much_together_are_not_rested_behind(reader: Reader) -> None:
    reader.far.send(b"x")
    assert not reader.read()
    reader.far.send(b"x" * 4 * PIECE)
    assert not any(reader.read() for _ in range(4))
