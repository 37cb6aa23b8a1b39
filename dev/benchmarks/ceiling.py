"""A consumer that costs nothing: `python -m benchmarks.ceiling URL QUEUE MESSAGES PREFETCH ACK_EVERY`, AMQP 0-9-1.

What the broker can hand out, whoever takes it. All messages of a turn have one size, so deliveries are told apart by
counting bytes: the first one is decoded, and nothing of the others. It says `done` when the broker has confirmed the
last acknowledgement, and ends when its standard input does.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from pika import amqp_object, frame, spec

__all__ = ["drain"]

_READ_BYTES = 1 << 20
_TIMEOUT_S = 60.0
_CHANNEL = 1


class _Broker:
    """One connection, of which frames are taken, or bytes."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._socket.sendall(frame.ProtocolHeader().marshal())
        self.expect(spec.Connection.Start)
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        start = spec.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}")
        tuned = self.ask(start, spec.Connection.Tune, channel=0)
        self.tell(spec.Connection.TuneOk(tuned.channel_max, tuned.frame_max, 0), channel=0)
        self.ask(spec.Connection.Open(unquote(parts.path[1:]) or "/"), spec.Connection.OpenOk, channel=0)
        self.ask(spec.Channel.Open(), spec.Channel.OpenOk)

    def tell(self, method: Any, *, channel: int = _CHANNEL) -> None:
        self._socket.sendall(frame.Method(channel, method).marshal())

    def ask(self, method: Any, expected: type[amqp_object.Method], *, channel: int = _CHANNEL) -> Any:
        self.tell(method, channel=channel)
        return self.expect(expected)

    def expect(self, expected: type[amqp_object.Method]) -> Any:
        """Take the next frame, which is this method."""
        _, found = self.next_frame()
        method = getattr(found, "method", None)
        if not isinstance(method, expected):
            raise TypeError(f"{expected.NAME} was expected, and {method or found} came")
        return method

    def next_frame(self) -> tuple[int, Any]:
        """Its bytes, and what it is."""
        while True:
            taken, found = frame.decode_frame(self._data)
            if found is not None:
                self._data = self._data[taken:]
                return taken, found
            came = self._socket.recv(_READ_BYTES)
            if not came:
                raise ConnectionError("the broker closed the connection")
            self._data += came

    def counts(self) -> Iterator[int]:
        """How many bytes have come since the frames that were taken, again and again."""
        came = len(self._data)
        self._data = b""
        buffer = memoryview(bytearray(_READ_BYTES))
        while True:
            yield came
            taken = self._socket.recv_into(buffer)
            if not taken:
                raise ConnectionError("the broker closed the connection")
            came += taken


def drain(url: str, queue: str, messages: int, prefetch: int, ack_every: int) -> None:
    """Empty a queue of messages of one size."""
    broker = _Broker(url)
    broker.ask(spec.Basic.Qos(prefetch_count=prefetch), spec.Basic.QosOk)
    broker.ask(spec.Basic.Consume(queue=queue, consumer_tag="ceiling"), spec.Basic.ConsumeOk)
    size, body = 0, -1
    while body:
        taken, found = broker.next_frame()
        size += taken
        if isinstance(found, frame.Header):
            body = found.body_size
        elif isinstance(found, frame.Body):
            body -= len(found.fragment)
    acknowledged = 0
    for came in broker.counts():
        done, rest = divmod(size + came, size)
        if done - acknowledged >= ack_every or done == messages:
            broker.tell(spec.Basic.Ack(done, multiple=True))
            acknowledged = done
        if done == messages and not rest:
            break
    # Behind the acknowledgements; and it can only be read if the count was right.
    broker.ask(spec.Queue.Declare(queue=queue, passive=True), spec.Queue.DeclareOk)


if __name__ == "__main__":
    drain(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
    print("done", flush=True)
    sys.stdin.read()
