"""Connections of a write that end before they are open, say nothing, or confirm nothing."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from pyspark.sql.types import StructType

from pyspark_mq.errors import BrokerUnavailableError, WriteError
from pyspark_mq.sink.amqp091 import Amqp091Publisher
from pyspark_mq.sink.publisher import SendWindow, WriteInterruptedError
from pyspark_mq.sink.settings import NO_MESSAGE, Remarks
from pyspark_mq.spark_source.sink_writer import StreamWriter, Written
from pyspark_mq.wire.amqp10.errors import is_stated
from pyspark_mq.wire.url import parse_urls
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


def test_a_broker_that_confirms_nothing_is_an_error_and_one_that_says_nothing_is_left() -> None:
    now_s = [100.0]
    window = SendWindow("amqp://broker", 2.0, lambda: now_s[0])
    window.sent(1, 10)
    now_s[0] += 1.9
    window.check(heard_s=0.0)
    now_s[0] += 0.2
    with pytest.raises(WriteInterruptedError, match="nothing was heard from the broker within sendTimeout=2s"):
        window.check(heard_s=99.0)
    with pytest.raises(WriteError, match=r"no confirmation of 1 message\(s\) within sendTimeout=2s"):
        window.check(heard_s=101.0)
    window.block("memory")
    now_s[0] += 60.0
    window.check(heard_s=0.0)


@pytest.mark.parametrize(
    ("name", "description", "stated"),
    [
        ("amqp:connection:forced", "", False),
        (
            "amqp:internal-error",
            "Connection forced: \"broker forced connection closure with reason 'shutdown'\"",
            False,
        ),
        ("amqp:decode-error", "Could not process AMQP commands", False),
        ("amqp:resource-limit-exceeded", "local-idle-timeout expired", False),
        ("amqp:resource-limit-exceeded", "the queue is full", True),
        ("amqp:internal-error", "", True),
    ],
)
def test_how_a_broker_stops_is_no_reason_against_the_next_connection(name: str, description: str, stated: bool) -> None:
    assert is_stated(name, description) == stated


def test_the_driver_warns_once_a_batch_of_what_its_tasks_noticed(caplog: pytest.LogCaptureFixture) -> None:
    writer = StreamWriter(settings_of(), StructType().add("body", "string"), overwrite=False)
    noticed = Remarks(properties={"CC"}, reading="only some can read it")
    noticed.drop(NO_MESSAGE, "too long", 2)
    writer.commit([Written(1, True, noticed), None, Written(1, True, noticed)], 7)
    first, second, third = (record.getMessage() for record in caplog.records)
    assert first == "only some can read it"
    assert "left out of the messages: CC." in second
    assert "4 that cannot be messages. The first: too long" in third
