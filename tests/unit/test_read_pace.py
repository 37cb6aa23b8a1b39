"""The pace of reading: a rest behind little that came shortly after something, and never while more is there."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pyspark_mq.wire import socket_loop
from pyspark_mq.wire.socket_loop import ReadPace

PIECE = 16 << 10  # of TLS, a record


class Reader:
    """One end of a connection, whose reads and rests are counted."""

    def __init__(self, ends: tuple[socket.socket, socket.socket], rests: list[float]) -> None:
        self.near, self.far = ends
        self.rests = rests
        self.now_s = 0.0
        self.pace = ReadPace(lambda: self.now_s)

    def read(self, after_s: float = 0.001) -> bool:
        """Read a piece; return whether it was rested behind it."""
        self.now_s += after_s
        self.pace.read(len(self.near.recv(PIECE)), self.near)
        before = len(self.rests)
        self.pace.delay()
        return len(self.rests) > before


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    rests: list[float] = []
    monkeypatch.setattr(socket_loop.time, "sleep", rests.append)
    ends = socket.socketpair()
    yield Reader(ends, rests)
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
