"""The channel to a receiver process: what is sent comes, in order, and files come with their frames."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Iterator

import pytest

from pyspark_mq.brokers import BROKERS
from pyspark_mq.sources.connections.processes.wire import Channel, write_file
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.url import parse_urls


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    first, second = map(Channel, socket.socketpair())
    yield first, second
    first.close()
    second.close()


def test_frames_of_every_size_come_in_order(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    sizes = [0, 1, 100, 5_000_000, 7, 300_000, 0]
    sender = threading.Thread(target=lambda: [near.send(("size", size), os.urandom(size)) for size in sizes])
    sender.start()
    for size in sizes:
        frame = far.receive()
        assert frame is not None
        assert frame.message == ("size", size)
        assert len(frame.data) == size
        assert frame.file is None
    sender.join()


def test_files_come_with_their_frames(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    for number in range(10):
        if number % 3:
            file = write_file(b"a file of %d" % number)
            near.send(number, b"beside", file)
            os.close(file)
        else:
            near.send(number)
    for number in range(10):
        frame = far.receive()
        assert frame is not None
        assert frame.message == number
        assert (frame.file is not None) == bool(number % 3)
        if frame.file is not None:
            assert os.pread(frame.file, 100, 0) == f"a file of {number}".encode()
            assert not os.get_inheritable(frame.file)
            os.close(frame.file)


def test_a_file_larger_than_one_write_is_whole() -> None:
    whole = os.urandom((3 << 20) + 5)
    file = write_file(whole)
    try:
        assert os.pread(file, 4 << 20, 0) == whole
    finally:
        os.close(file)


def test_a_broker_is_the_same_one_on_the_other_side(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    for broker in BROKERS.values():
        endpoint = Endpoint(broker, "stomp", parse_urls("stomp://u:p@h:1"), queue="q", password="p")
        with pytest.raises(TypeError):
            pickle.dumps(endpoint)  # its tables cannot be pickled, so it goes by name
        near.send(endpoint)
        frame = far.receive()
        assert frame is not None
        assert frame.message == endpoint
        assert frame.message.broker is broker


def test_the_end_of_the_other_side_is_seen_behind_what_it_said(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    near.send("last words")
    near.close()
    frame = far.receive()
    assert frame is not None
    assert frame.message == "last words"
    assert far.receive() is None
    assert far.receive() is None


def test_half_a_frame_is_waited_for_as_long_as_was_said_and_kept() -> None:
    left, right = socket.socketpair()
    near, far = Channel(left), Channel(right)
    with pytest.raises(TimeoutError):
        far.receive(0.01)
    near.send("first")
    near.send("second", b"beside it")
    whole = right.recv(1_000)
    left.sendall(whole[:-3])
    frame = far.receive(0.01)
    assert frame is not None
    assert frame.message == "first"
    for _ in range(2):
        with pytest.raises(TimeoutError):
            far.receive(0.01)
    left.sendall(whole[-3:])
    frame = far.receive(0.01)
    assert frame is not None
    assert (frame.message, frame.data) == ("second", b"beside it")
    near.close()
    far.close()


def test_half_a_frame_is_none(ends: tuple[Channel, Channel]) -> None:
    left, right = socket.socketpair()
    far = Channel(right)
    left.send(b"abc")
    left.close()
    assert far.receive() is None
    far.close()


def test_who_is_gone_cannot_be_told_anything(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    far.hang_up()
    with pytest.raises(OSError, match=r"."):
        near.send("anybody?")
