"""A STOMP consumer without the rest, and a publisher of odd messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import stomp

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import STOMP
from pyspark_mq.sources.connections.session import ReceiveBuffer, SessionLostError
from pyspark_mq.sources.stomp.session import StompSession
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.url import parse_urls
from testbed.process import poll
from tests.support.decoding import Asked, take_each
from tests.support.stomp_oracle import escape

__all__ = ["SessionRun", "block", "lost", "publish", "session"]

_numbers = count(1)


class SessionRun:
    """One consumer, driven by the test's thread as the receiver would.

    Attributes:
        raws: what was taken so far.
        confirmed: numbers of confirmed requests.
    """

    def __init__(self, broker: str, url: str, **connection: Any) -> None:
        urls = parse_urls(url)
        settings = Endpoint(broker=BROKERS[broker], protocol=STOMP, urls=urls, **connection)
        self.raws: list[Any] = []
        self.confirmed: list[int] = []
        self.consumer = StompSession(settings, next(_numbers), ReceiveBuffer(confirmed=self.confirmed.append))
        self.consumer.open(urls[0], settings.connect_timeout_s)

    def run_until(self, reached: Callable[[], bool], timeout_s: float = 60.0) -> bool:
        """Run until a condition holds; whether it came to."""
        deadline = time.monotonic() + timeout_s
        while not reached() and time.monotonic() < deadline:
            self.consumer.run(0.02)
            self.take()
        return reached()

    def take(self) -> None:
        """Empty the inbox, as the query's thread does."""
        taken = take_each(self.consumer.buffer)
        self.raws += taken
        size = Asked(self.consumer.batches).size_bytes(taken)
        self.consumer.buffer.made(size, size)
        self.consumer.buffer.bytes_taken += size

    def receive(self, messages: int, timeout_s: float = 60.0) -> list[bytes]:
        """Receive at least this many; the bodies so far."""
        assert self.run_until(lambda: len(self.raws) >= messages, timeout_s), f"{len(self.raws)} of {messages}"
        return self.bodies

    def run(self, seconds: float) -> None:
        """Run for a time."""
        self.run_until(lambda: False, seconds)

    @property
    def bodies(self) -> list[bytes]:
        """Of what was taken so far."""
        return Asked(self.consumer.batches).bodies(self.raws)

    def acknowledge(self, upto: int, *singles: int) -> bool:
        """Acknowledge by position from 1; was it confirmed?"""
        number = next(_numbers)
        self.consumer.acknowledge(number, upto, singles)
        return self.run_until(lambda: number in self.confirmed, 30)


@contextmanager
def session(broker: str, url: str, window: int = 100, **connection: Any) -> Iterator[SessionRun]:
    """An open session that consumes."""
    opened = SessionRun(broker, url, **connection)
    try:
        opened.consumer.consume(window)
        yield opened
    finally:
        opened.consumer.close()


def block(headers: Mapping[str, str]) -> bytes:
    """Headers as a delivery has them."""
    lines = "".join(f"\n{escape(name)}:{escape(found)}" for name, found in headers.items())
    return f"{lines}\n".encode("utf-8", "surrogateescape")


def publish(
    url: str,
    destination: str,
    messages: Sequence[tuple[bytes | str, Mapping[str, str]]],
    common: Mapping[str, str],
    vhost: str | None,
) -> None:
    """Send (body, headers) by stomp.py's own client, all with some headers in common; returns when they are taken."""
    target = parse_urls(url)[0]
    waiting = stomp.WaitingListener("last")
    client = stomp.Connection12([(target.host, target.port)], vhost=vhost, auto_content_length=False)
    client.set_listener("last", waiting)
    client.connect(target.username, target.password, wait=True)
    for index, (body, headers) in enumerate(messages, 1):
        more = {"receipt": "last"} if index == len(messages) else {}
        length = {"content-length": str(len(body))} if isinstance(body, bytes) else {}
        client.send(destination, body, headers={"persistent": "true", **length, **common, **headers, **more})
    waiting.wait_on_receipt()
    client.disconnect()
    poll(lambda: not client.is_connected(), 5)


def lost(run: SessionRun, timeout_s: float = 60.0) -> str:
    """Why the session ends, which it has to."""
    try:
        run.run_until(lambda: False, timeout_s)
    except SessionLostError as ended:
        return str(ended)
    raise AssertionError("the session goes on")
