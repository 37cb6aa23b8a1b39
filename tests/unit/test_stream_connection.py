"""A connection to streams: what it makes of bytes does not depend on how they were read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from pyspark_mq.errors import MqError
from pyspark_mq.streams.access import Access
from pyspark_mq.streams.chunk import ChunkError
from pyspark_mq.streams.connection import Member, NoStream, StreamConnection, StreamLost
from pyspark_mq.wire.url import parse_urls
from tests.support.sockets import LIMIT_S, Pieces, cuts
from tests.support.stream_peer import (
    AUTHENTICATE,
    CLOSE,
    HANDSHAKE,
    HEARTBEAT,
    OK,
    OPEN,
    PEER,
    STATS,
    SUBSCRIBE,
    TUNE,
    UPDATE,
    chunk_bytes,
    deliver_frame,
    frame,
    text,
)

_RESPONSE = 0x8000


def answer(command: int, number: int, content: bytes = b"", code: int = OK) -> bytes:
    return frame(_RESPONSE | command, struct.pack(">IH", number, code) + content)


def pairs(**told: str) -> bytes:
    return struct.pack(">I", len(told)) + b"".join(text(name) + text(value) for name, value in told.items())


GREETING = [
    answer(PEER, 1, pairs(version="4.1.0")),
    answer(HANDSHAKE, 2, struct.pack(">I", 1) + text("PLAIN")),
    answer(AUTHENTICATE, 3),
    frame(TUNE, struct.pack(">II", 1 << 20, 60)),
    answer(OPEN, 4, pairs(advertised_host="host", advertised_port="5552")),
]
CHUNK = deliver_frame(0, chunk_bytes(7, struct.pack(">I", 2) + b"ab", 1, 1))
SUBSCRIBED = answer(SUBSCRIBE, 5)
ODDITIES = {
    "nothing": b"",
    "a chunk": CHUNK,
    "more chunks than it had credit": CHUNK + CHUNK,
    "a chunk that is none": deliver_frame(0, b"not a chunk") + CHUNK,
    "a chunk of another subscription": deliver_frame(9, b"x") + CHUNK,
    "the end of the stream": frame(UPDATE, struct.pack(">H", 6) + text("another")) + frame(UPDATE, b"\0\6" + text("s")),
    "a close": frame(CLOSE, struct.pack(">IH", 1, 5) + text("why")) + CHUNK,
    "a close that ends early": frame(CLOSE, b"x") + CHUNK,
    "an answer that nobody waits for": answer(STATS, 99) + frame(HEARTBEAT, b"") + CHUNK,
    "a frame that is too short": struct.pack(">IHH", 3, HEARTBEAT, 1) + CHUNK,
    "a frame that is too long": struct.pack(">IHH", 1 << 30, HEARTBEAT, 1) + CHUNK,
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


def told(monkeypatch: pytest.MonkeyPatch, pieces: Sequence[bytes]) -> tuple[Any, ...]:
    """The chunks of a stream as far as they come, and what ends them."""
    monkeypatch.setattr("socket.create_connection", lambda *_: Pieces(pieces))
    urls = parse_urls("rabbitmq-stream://host")
    chunks: list[Any] = []
    try:
        connection = StreamConnection(
            Access(urls, "user", "password", connect_timeout_s=LIMIT_S), Member("host", 5552), urls[0]
        )
        try:
            with connection.subscribed("s") as subscription:
                while True:
                    chunks.append(subscription.next(LIMIT_S).identity)
                    subscription.want(1)
        finally:
            connection.close()
    except (MqError, StreamLost, NoStream, ChunkError) as ended:
        return chunks, type(ended), str(ended)


@pytest.mark.parametrize("before", [SUBSCRIBED, SUBSCRIBED + CHUNK, answer(SUBSCRIBE, 5, code=2), b""])
@pytest.mark.parametrize("oddity", ODDITIES)
def test_what_is_made_of_bytes_does_not_depend_on_how_they_were_read(
    oddity: str, before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = before + ODDITIES[oddity]
    expected = told(monkeypatch, [*GREETING, data])
    for pieces in cuts(data):
        assert told(monkeypatch, [*GREETING, *pieces]) == expected


def test_a_greeting_is_read_alike_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(GREETING) + SUBSCRIBED + CHUNK
    expected = told(monkeypatch, [data])
    assert len(expected[0]) == 1
    for pieces in cuts(data):
        assert told(monkeypatch, pieces) == expected
