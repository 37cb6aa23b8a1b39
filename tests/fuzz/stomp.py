"""Frames of STOMP: every form a server may write, what it may not, every cut, one reader for all of them.

Cases by kind: `frame`s by an encoder of its own, against what was encoded and against what stomp.py's parser reads, in
streams that are cut anywhere; `hostile` streams, with texts, lengths and bytes that nobody should send, which are read
alike wherever they are cut, and rightly up to the first wrong byte; and `column`s, the same beside other messages as
alone.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import pairwise
from typing import Any

from stomp.utils import parse_frame

from pyspark_mq.brokers import BROKERS
from pyspark_mq.decode.stomp import Raw, StompBatch
from pyspark_mq.decode.stomp_headers import parse
from pyspark_mq.dedup import IdSource
from pyspark_mq.wire.stomp.frames import MESSAGE, Frame, FrameReader, StompFrameError, UnreadableHeaders
from tests.support.decoding import Asked
from tests.support.stomp_oracle import escape

__all__ = ["run"]

_DECODER = Asked(StompBatch)
_DIALECTS = [dialect for broker in BROKERS.values() if (dialect := broker.stomp) is not None]
_SOURCES = (IdSource("message-id"), IdSource("correlation-id"), IdSource("property", "own"))
_NAMES = ("ack", "message-id", "amqp-message-id", "correlation-id", "reply-to", "content-type", "type", "priority",
          "timestamp", "expires", "redelivered", "own", "a:b", "a\\b", "naïve", "x\ny", "ack2", "my-type")  # fmt: skip
_VALUES = ("", "1", "true", "ID:host-1:2:-3", "1700000000123", "9" * 30, "a\\b", "line\r\nline", "täxt €", "a:b", " x ",
           "\0")  # fmt: skip
_BODIES = (b"", b"x", b"text", b"\n", b"\n\nx", b"\r\n", b"a\nMESSAGE\n\nb", b"x" * 300, "täxt".encode(), b"\xff\xfe")
_PIECES = (
    b"MESSAGE\n", b"MESSAGE\r\n", b"RECEIPT\n", b"ERROR\n", b"CONNECTED\n", b"SEND\n", b"MESSAGES\n", b"\n", b"\n\n",
    b"\r\n", b"\n\r\n", b"\r", b"\0", b"\0\n", b"\0\nMESSAGE\n", b"\0M", b"\0\nMES", b"ack:1\n", b"content-length:3\n",
    b"content-length:x\n", b"content-length\n", b"content-length:99\n", b"content-length:0\n", b"a\\cb:c\n", b"\xff",
    b"x", b":",
)  # fmt: skip
_CUTS_MAX = 160
_FRAMES_MAX = 4


class _Reader:
    """One reader, for one stream after another."""

    def __init__(self) -> None:
        self._reader = FrameReader()

    def read(self, data: bytes, cuts: list[int]) -> tuple[list[Frame], str]:
        """The frames in these bytes, after which nothing comes for a while, and why the rest is none, if it is none."""
        frames: list[Frame] = []
        places = [0, *sorted(cuts), len(data)]
        try:
            for low, high in pairwise(places):
                frames += self._reader.feed(data[low:high])
            frames += self._reader.quiet()
        except StompFrameError as wrong:
            return frames, str(wrong)
        return frames, ""


def _ways(rng: random.Random, data: bytes) -> list[list[int]]:
    """Places to cut it at: nowhere, everywhere, some, and one after the other."""
    size = len(data)
    ways = [[], list(range(size)), *([rng.randrange(size + 1) for _ in range(3)] for _ in range(4))]
    return ways + [[cut] for cut in range(size)] if size <= _CUTS_MAX else ways


def _found(frames: list[Frame], refused: str) -> tuple[list[tuple[str, dict[str, str], bytes, str]], str]:
    """Commands, headers, bodies, and why they are unreadable; and why the rest is no frame."""
    return [
        (
            command,
            parse(block, escaped=command != "CONNECTED"),
            body,
            block.error if isinstance(block, UnreadableHeaders) else "",
        )
        for command, block, body in frames
    ], refused


# -- frames that a server may write ---------------------------------------------------------------


def _frame(rng: random.Random) -> tuple[bytes, str, dict[str, str], bytes]:
    """A frame as it is written, its command, headers and body."""
    command = rng.choice(["MESSAGE"] * 8 + ["RECEIPT", "ERROR", "CONNECTED"])
    end = rng.choice(("\n",) * 4 + ("\r\n",))
    body = rng.choice(_BODIES) if command in ("MESSAGE", "ERROR") else b""
    pairs = [(rng.choice(_NAMES), rng.choice(_VALUES)) for _ in range(rng.randrange(7))]
    if command == "CONNECTED":  # which is not escaped
        pairs = [(name, value) for name, value in pairs if escape(name + value) == name + value]
    if end == "\r\n":
        pairs = [(name, value) for name, value in pairs if not value.endswith("\r")]
    if rng.random() < 0.6:
        body = rng.choice((body, b"a\0b", b"\0", b"\0\nMESSAGE\n\n\0")) if command == "MESSAGE" else body
        pairs.insert(rng.randrange(len(pairs) + 1), ("content-length", str(len(body))))
    headers: dict[str, str] = {}
    for name, value in pairs:
        headers.setdefault(name, value)
    write = escape if command != "CONNECTED" else str
    lines = [command, *(f"{write(name)}:{write(value)}" for name, value in pairs), "", ""]
    return end.join(lines).encode() + body, command, headers, body


def _frames(rng: random.Random, reader: _Reader, raws: list[Raw]) -> int:
    """A stream of frames; in how many ways it was read."""
    written = [_frame(rng) for _ in range(rng.randrange(1, _FRAMES_MAX))]
    data = b"".join(encoded + b"\0" + rng.choice((b"\n", b"", b"\r\n", b"\n\n\n")) for encoded, *_ in written)
    expected = [(command, headers, body, "") for _, command, headers, body in written]
    for encoded, command, headers, body in written:
        if b"\r" in encoded or command == "CONNECTED" or "" in headers:
            continue  # stomp.py ends lines otherwise, and escapes CONNECTED
        told = parse_frame(encoded)
        plain = dict(told.headers)
        assert (told.cmd, plain, told.body) == (command, headers, body), f"{encoded!r} is read by stomp.py as {told}"
    for cuts in (ways := _ways(rng, data)):
        frames, refused = reader.read(data, cuts)
        found = _found(frames, refused)
        assert found == (expected, ""), f"{data!r}, cut at {cuts[:20]}, is read as {found}"
    dialect = rng.choice(_DIALECTS)
    raws += [(len(raws) + 1, block, body, dialect) for command, block, body in frames if command == MESSAGE]
    return len(ways)


# -- what nobody should send -------------------------------------------------------------------


def _hostile(rng: random.Random, raws: list[Raw]) -> int:
    """A stream of pieces of frames, or of frames with some bytes changed; in how many ways it was read."""
    certain: list[tuple[str, dict[str, str], bytes, str]] = []
    if rng.random() < 0.5:
        data = bytearray(b"MESSAGE\n" if rng.random() < 0.8 else b"")
        data += b"".join(rng.choice(_PIECES) for _ in range(rng.randrange(12)))
    else:
        written = [_frame(rng) for _ in range(rng.randrange(1, _FRAMES_MAX))]
        data = bytearray(b"".join(encoded + b"\0\n" for encoded, *_ in written))
        changed = [rng.randrange(len(data)) for _ in range(rng.randrange(1, 5))]
        for at in changed:
            data[at] = rng.choice((0, 10, 13, 58, 77, 255, rng.randrange(256)))
        end = 0
        for encoded, command, headers, body in written:
            end += len(encoded) + 2
            # The end of a text without a length depends on what is behind it.
            if end > min(changed) or (command == MESSAGE and "content-length" not in headers):
                break
            certain.append((command, headers, body, ""))
    stream = bytes(data)
    expected, expected_refused = _found(*_Reader().read(stream, []))
    assert expected[: len(certain)] == certain, f"{stream!r} is read as {expected}"
    dialect = rng.choice(_DIALECTS)
    for cuts in (ways := _ways(rng, stream)):
        frames, refused = _Reader().read(stream, cuts)
        found = _found(frames, refused)
        assert found == (expected, expected_refused), f"{stream!r}, cut at {cuts[:20]}, is read as {found}"
    raws += [(len(raws) + 1, block, body, dialect) for command, block, body in frames if command == MESSAGE]
    return len(ways)


def _columns(raws: list[Raw]) -> int:
    """What is read of a message does not depend on those beside it; how many messages there were."""
    for dialect in _DIALECTS:
        some: list[Any] = [raw for raw in raws if raw[3] is dialect]
        batch = _DECODER.batches.of(some) if some else some
        for name, make in _DECODER.columns.items():
            for raw, found in zip(some, make(batch), strict=True):
                (alone,) = make([raw])
                assert found == alone, f"{raw[1]!r}: column {name} is {alone!r} alone, and {found!r} beside others"
        for source in _SOURCES:
            for raw, found in zip(some, _DECODER.ids(batch, source), strict=True):
                (key,) = _DECODER.ids([raw], source)
                assert found == key, f"{raw[1]!r}: the ID by {source} is {key!r} alone, and {found!r} beside others"
        assert len(_DECODER.unreadable(batch)) == sum(type(raw[1]) is UnreadableHeaders for raw in some)
    count = len(raws)
    raws.clear()
    return count


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Cases until the deadline, by kind; see :mod:`tests.fuzz.__main__`."""
    cases: Counter[str] = Counter()
    reader = _Reader()
    raws: list[Raw] = []
    while True:
        for _ in range(5):
            cases["frame"] += _frames(rng, reader, raws)
            cases["hostile"] += _hostile(rng, raws)
        cases["column"] += _columns(raws)
        if time.monotonic() >= deadline:
            return cases
