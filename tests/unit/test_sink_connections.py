"""Connections of a write that end before they are open."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sink.amqp091 import Amqp091Publisher
from pyspark_mq.sources.url import parse_urls
from tests.support.sink import settings_of

_NO_LINGER = struct.pack("ii", 1, 0)


@pytest.fixture
def resetting() -> Iterator[int]:
    """The port of somebody who resets each connection a moment after it is there."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                time.sleep(0.05)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_is_reset_as_it_opens_is_no_error_of_the_client(
    resetting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pika raises `ValueError: Expected connected socket` if the reset comes just before it asks for the name."""
    own = socket.socket.getpeername

    def late(self: socket.socket) -> object:
        time.sleep(0.2)
        return own(self)

    monkeypatch.setattr(socket.socket, "getpeername", late)
    (url,) = parse_urls(f"amqp://127.0.0.1:{resetting}")
    publisher = Amqp091Publisher(settings_of(), url)
    with pytest.raises(BrokerUnavailableError):
        publisher.open(time.monotonic() + 5)
    publisher.close()
