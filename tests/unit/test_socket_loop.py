"""Dialling a host that has several addresses, of which some swallow everything."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.amqp091.session import Amqp091Session
from pyspark_mq.sources.connections.session import ReceiveBuffer
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.wire.socket_loop import SocketLoop
from tests.unit.test_amqp091_session import server

TIMEOUT_S = 1.0


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port whose backlog is full: the kernel answers nobody."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = []
        while len(waiting) < 50:
            one = socket.socket()
            one.settimeout(0.2)
            waiting.append(one)
            try:
                one.connect(listening.getsockname())
            except TimeoutError:
                break
        yield listening.getsockname()[1]
        for one in waiting:
            one.close()


def resolve_to(monkeypatch: pytest.MonkeyPatch, ports: list[int]) -> None:
    """Have every host resolve to these ports, as its addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

    def resolve(*_: Any, **__: Any) -> list[Any]:
        return found

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def dial(monkeypatch: pytest.MonkeyPatch, ports: list[int]) -> SocketLoop:
    """Dial a host whose addresses, as the resolver tells them, are these ports."""
    resolve_to(monkeypatch, ports)
    endpoint = parse_options(
        {"broker": "artemis", "url": "stomp://broker.example:61613", "queue": "q"}
    ).settings.endpoint
    loop = SocketLoop()
    try:
        loop.dial(endpoint.urls[0], endpoint, time.monotonic() + TIMEOUT_S, "STOMP")
    except BaseException:
        loop.close()
        raise
    return loop


def test_all_addresses_of_a_host_share_one_connect_timeout(deaf: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given_s: list[float] = []

    class Attempt(socket.socket):
        def settimeout(self, seconds: float | None) -> None:
            given_s.append(seconds or 0.0)
            super().settimeout(seconds)

    monkeypatch.setattr(socket, "socket", Attempt)
    with pytest.raises(BrokerUnavailableError, match="no answer in time"):
        dial(monkeypatch, [deaf] * 5)
    assert len(given_s) == 5
    assert sum(given_s) < 2 * TIMEOUT_S


def test_an_address_that_answers_is_found_behind_one_that_does_not(deaf: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = dial(monkeypatch, [deaf, server.getsockname()[1]])
        assert loop.connected
        loop.close()


def test_pika_finds_an_address_that_answers_behind_one_that_does_not(
    deaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(b"") as port:
        resolve_to(monkeypatch, [deaf, port])
        options = {"broker": "rabbitmq", "url": "amqp://broker.example", "queue": "q"}
        endpoint = parse_options(options).settings.endpoint
        consumer = Amqp091Session(endpoint, 1, ReceiveBuffer())
        try:
            consumer.open(endpoint.urls[0], 6 * TIMEOUT_S)
        finally:
            consumer.close()
