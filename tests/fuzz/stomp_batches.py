"""The contract of equal blocks over STOMP: messages that are decoded together are the same as one by one.

A case is a stream of some producers, in any cuts, with some bytes changed or none. It is read twice, with batches of
any size and without, and both make blocks; rows, IDs, sizes, handles, other frames and the end of the stream are equal.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import StompDialect
from pyspark_mq.decode.stomp import FramesBatch, StompBatch
from pyspark_mq.decode.stomp_frames import Frames
from pyspark_mq.decode.stomp_headers import value
from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.wire.stomp.frames import MESSAGE, FrameReader, StompFrameError, UnreadableHeaders
from tests.fuzz._blocks import block_rows, same_rows
from tests.support.decoding import Asked

__all__ = ["run"]


_DECODER = Asked(StompBatch)
_DIALECTS = [dialect for broker in BROKERS.values() if (dialect := broker.stomp) is not None]
_SOURCES = [("message-id",), ("correlation-id",), ("property", "own"), ("property", "a:b"), ("content",), ("json", "a")]
_NAMES = (
    "ack", "message-id", "amqp-message-id", "correlation-id", "reply-to", "content-type", "type", "priority",
    "timestamp", "expires", "expiration", "redelivered", "x-delivery-count", "x-death", "own", "own2", "destination",
    "persistent", "user-id", "JMSXUserID", "JMSXAppID", "content-encoding", "JMS_AMQP_ContentEncoding", "JMSXGroupSeq",
    "_AMQ_GROUP_SEQUENCE", "JMSXGroupID", "_AMQ_GROUP_ID", "JMS_AMQP_X", "__HDR_A", "subscription", "h",
)  # fmt: skip
#: Names that are looked at alone.
_ODD = ("a\\cb", "a\\\\b", "odd\\", "täst", "", "x\rz")
_NEVER, _SMALL = 0, 500
#: What ends the names of our subscriptions, if the reader knows it.
_OWN = b"-5f0c"
_CHANGES = 5
_BODIES = (b"", b"x", b"text\n\ntext", b"\r\n", b"\0", b"\0\nMESSAGE\n\nx", b"\xff" * 20, b'{"a": 1}', b"\n")


def _value(rng: random.Random, name: str) -> bytes:
    """What a header may have, mostly what belongs to it."""
    if rng.random() < 0.9:
        if name in ("redelivered", "persistent"):
            return rng.choice((b"true", b"false"))
        if name in ("priority", "timestamp", "expires", "expiration", "x-delivery-count") or name.endswith("Seq"):
            return str(rng.choice((0, 4, rng.randrange(10**13), 2**63 // 1000, rng.randrange(2**64)))).encode()
        if name == "destination":
            return rng.choice((b"/queue/q", b"/exchange/a%2Fb/k", b"/exchange/x/%C3%A4", b"/amq/queue/q", b"/topic/t"))
        if name == "subscription":
            return b"000001" + _OWN
        if name == "message-id":
            return b"ID\\chost-1-17\\c1\\c1\\c%d" % rng.randrange(999)
        return rng.choice((b"value-%d" % rng.randrange(9999), b"plain", b"000001,%d" % rng.randrange(99), b""))
    return rng.choice(
        (b"", b"-1", b"+7", b" 7", b"0x1f", b"1_0", b"\xc2\xb2", b"9" * 19, b"9" * 30, b"\xff", "täxt €".encode(),
         b"x\\", b"\\c", b"c", b"cc\\", b"a\\\\c", b"\\n", b"\\\\", b"a\\cb\\", b"x\ry", b"a:b", b":", b"True",
         b"\xed\xa0\x80")
    )  # fmt: skip


class _Producer:
    """Writes messages that have the same headers in the same order, with other values."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = rng.sample(_NAMES, rng.randrange(8))
        if rng.random() < 0.7:
            self._names = [*dict.fromkeys([*self._names, "subscription"])]
        if rng.random() < 0.1:
            self._names.append(rng.choice((*_ODD, *self._names)))
        self._has_length = rng.random() < 0.8
        if self._has_length:
            self._names.insert(rng.randrange(len(self._names) + 1), "content-length")
        self._line = b"\r\n" if rng.random() < 0.05 else b"\n"
        #: Which of them have always the same.
        self._fixed = {name: _value(rng, name) for name in self._names if rng.random() < 0.4}

    def message(self) -> bytes:
        rng = self._rng
        body = rng.choice(_BODIES) if rng.random() < 0.5 else rng.randbytes(rng.randrange(40))
        # Of a text with a NUL in it what is before that looks like the whole.
        body = body if self._has_length or rng.random() < 0.02 else body.replace(b"\0", b"0")
        lines = [b"MESSAGE"]
        for name in self._names:
            length = b"%d" % len(body) if rng.random() < 0.995 else rng.choice((b"x", b"", b"3", b"0%d" % len(body)))
            found = self._fixed.get(name) or _value(rng, name) if name != "content-length" else length
            lines.append(name.encode() + b":" + found)
        end = rng.choice((b"\n",) * 60 + (b"", b"\n\n", b"\r\n"))
        return self._line.join([*lines, b"", b""]) + body + b"\0" + end


def _stream(rng: random.Random) -> bytes:
    """Messages of some producers, and now and then another frame."""
    producers = [_Producer(rng) for _ in range(rng.choice((1, 1, 2, 3, 6)))]
    parts = []
    for _ in range(rng.choice((1, 3, 30, 200))):
        if rng.random() < 0.01:
            parts.append(rng.choice((b"RECEIPT\nreceipt-id:1\n\n\0\n", b"\n", b"ERROR\nmessage:x\n\nx\0\n")))
        parts.append(rng.choice(producers).message())
    return b"".join(parts)


def _changed(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, _CHANGES)):
        changed[rng.randrange(len(changed))] = rng.choice((0, 10, 13, 58, 92, 255, rng.randrange(256)))
    return bytes(changed)


def _read(
    pieces: list[bytes], batch_min: int, dialect: StompDialect, own: bytes
) -> tuple[list[Any], list[bytes], list[Any]]:
    """What a session has of a stream: its inbox, how each is acknowledged, and what is no message."""
    reader = FrameReader(batch_min, dialect.last_header, own)
    inbox: list[Any] = []
    handles: list[bytes] = []
    others: list[Any] = []
    tag = 0
    try:
        for piece in [*pieces, None]:
            for item in reader.quiet() if piece is None else reader.feed(piece):
                if isinstance(item, Frames):
                    count = len(item.kinds)
                    handles += item.values("ack")
                    inbox.append(FramesBatch(item, np.arange(tag + 1, tag + 1 + count), dialect))
                    tag += count
                elif item[0] == MESSAGE:
                    tag += 1
                    handles.append(value(item[1], "ack", dialect.last_header) or b"")
                    inbox.append((tag, *item[1:], dialect))
                else:
                    others.append((tag, item))
    except StompFrameError as wrong:
        others.append((tag, str(wrong)))
    others.append(reader.rest)
    return inbox, handles, others


def _case(rng: random.Random) -> Counter[str]:
    data = _stream(rng)
    is_changed = rng.random() < 0.5
    data = _changed(rng, data) if is_changed else data
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 5))))
    pieces = [data[low:high] for low, high in pairwise([0, *cuts, len(data)]) if low < high]
    dialect = rng.choice(_DIALECTS)
    own = rng.choice((b"", _OWN))
    alone, *known = _read(pieces, _NEVER, dialect, own)
    together, *found = _read(pieces, rng.choice((1, 2, 8, 64)), dialect, own)
    assert found == known, f"{pieces!r}, with {own!r}"
    ids = MessageIds(IdSource(*rng.choice(_SOURCES)), OnMissing.CONTENT, exact=True, unreadable_rows=True)
    bytes_max = rng.choice((_SMALL, 4 << 20))
    made = [block_rows(_DECODER, together, ids, bytes_max), block_rows(_DECODER, alone, ids, bytes_max)]
    # What counts of a key depends on the whole block.
    parts = len(list(_DECODER.gather(together, bytes_max)))
    left_out = {"size"} if parts > 1 or any(type(raw[1]) is UnreadableHeaders for raw in alone) else set()
    same_rows(*made, left_out, f"{pieces!r}, IDs by {ids.source}")
    batched = sum(len(item) for item in together if isinstance(item, FramesBatch))
    return Counter({"changed" if is_changed else "whole": len(alone), "together": batched})


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Compare until the deadline; count messages by kind, see :mod:`tests.fuzz.__main__`."""
    cases: Counter[str] = Counter()
    while True:
        cases += _case(rng)
        if time.monotonic() >= deadline and {"changed", "whole", "together"} <= cases.keys():
            return cases
