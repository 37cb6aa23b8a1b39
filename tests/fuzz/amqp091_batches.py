"""The contract of equal blocks over AMQP 0-9-1: deliveries that are decoded together are the same as one by one.

A case is a stream of some producers, in any cuts, with some bytes changed or none. It is read twice, with batches of
any size and without, and both make blocks, also of one delivery each; rows, IDs, sizes, other frames and the end of the
connection are equal. What a delivery alone says is compared with pika's words by :mod:`tests.fuzz.amqp091`.
"""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from itertools import pairwise
from typing import Any

from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import UnreadableDelivery, check, unreadable
from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.wire.amqp091.frames import Amqp091FrameError, DeliveryReader
from tests.fuzz._blocks import block_rows, same_rows
from tests.fuzz.amqp091 import FIELDS, SHORTS, TYPES, Made
from tests.support.decoding import Asked

__all__ = ["run"]

_CHANNEL = 1
_FRAME_MAX = 4096
_DECODER = Asked(Amqp091Batch)
_SOURCES = [("message-id",), ("correlation-id",), ("property", "h0"), ("content",), ("json", "a")]
_NEVER = 1 << 30
_SMALL = 500
_HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_TAG_MAX = 2**63 - 1
_CHANGES = 5
#: Of the cases, those in which each delivery is compared with a block of its own, too.
_EACH_SHARE = 0.3
_SPECIAL = ("x-delivery-count", "x-death", "JMSXGroupID", "JMSXGroupSeq", "h0", "")


def _short(text: str) -> bytes:
    return bytes((len(text.encode()),)) + text.encode()


class _Producer:
    """Encodes deliveries that have the same fields and headers, with other values."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._made = rng, Made()
        self._fields = [name for name in FIELDS if rng.random() < 0.4]
        self._headers = [
            (rng.choice((f"h{number}", *_SPECIAL)), rng.choice("SSSSlItbi" + TYPES))
            for number in range(rng.randrange(4))
        ]
        self._where = _short(rng.choice(("", "ex"))) + _short(rng.choice(("orders", "täst")))
        self._regular = rng.random() < 0.5

    def _field(self, name: str) -> bytes:
        rng = self._rng
        if name == "headers":
            entries = [_short(key) + kind.encode() + self._made.content(rng, kind, 3)[0] for key, kind in self._headers]
            return struct.pack(">I", len(b"".join(entries))) + b"".join(entries)
        if name == "timestamp":
            return struct.pack(">Q", rng.choice((0, 1_700_000_000, 2**63, 2**64 - 1)))
        if name in SHORTS:
            odd = rng.choice(("", "x", "täxt", "60000", "y" * 99))
            return _short(f"{rng.randrange(10**9):09}" if self._regular else odd)
        return bytes((rng.randrange(4),))

    def frames(self, tag: int) -> bytes:
        """The frames of a delivery."""
        rng = self._rng
        flags = sum(0x8000 >> bit for bit, name in enumerate(FIELDS) if name in self._fields)
        text = rng.randbytes(40 if self._regular else rng.choice((0, 1, 50, 5_000)))
        parts = [(3, text[at : at + _FRAME_MAX - 8]) for at in range(0, len(text), _FRAME_MAX - 8)]
        method = struct.pack(">I5sQB", 0x003C003C, b"\x04ctag", tag, rng.random() < 0.1) + self._where
        head = struct.pack(">HHQH", 60, 0, len(text), flags) + b"".join(map(self._field, self._fields))
        return b"".join(
            struct.pack(">BHI", kind, _CHANNEL, len(data)) + data + b"\xce"
            for kind, data in ((1, method), (2, head), *parts)
        )


def _read(data: bytes, cuts: list[int], least: int) -> tuple[list[Any], list[bytes], bool]:
    """What a session's inbox has then, the other frames, and whether there were bytes that are none."""
    items: list[Any] = []
    others: list[bytes] = []

    def deliver(raws: list[Any] | Amqp091Batch) -> None:
        if isinstance(raws, Amqp091Batch):
            items.append(raws)
            return
        for place, error in check(raws):
            raws[place] = unreadable(raws[place], error)
        items.extend(raws)

    reader = DeliveryReader(_CHANNEL, _FRAME_MAX, deliver, others.append, least)
    try:
        for low, high in pairwise([0, *sorted(cuts), len(data)]):
            reader.feed(data[low:high])
    except Amqp091FrameError:
        return items, others, True
    return items, others, False


def _case(rng: random.Random) -> Counter[str]:
    producers = [_Producer(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    turns = [rng.choice(producers) if rng.random() < 0.2 else producers[0] for _ in range(rng.randrange(1, 30))]
    frames = [
        producer.frames(tag) + (_HEARTBEAT if rng.random() < 0.02 else b"") for tag, producer in enumerate(turns, 1)
    ]
    data = bytearray(b"".join(frames))
    changes = rng.randrange(_CHANGES) if rng.random() < 0.7 else 0
    for _ in range(changes):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 255, 206, rng.randrange(256)))
    missing = rng.choice((OnMissing.CONTENT, OnMissing.ROW))
    ids = MessageIds(IdSource(*rng.choice(_SOURCES)), missing, exact=True, unreadable_rows=True)
    cuts = [rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3)))]
    if rng.random() < 0.1:  # a byte at a time
        cuts += range(cut := rng.randrange(len(data)), min(len(data), cut + 300))
    least = rng.choice((1, 2, 8))
    together, alone = _read(bytes(data), cuts, least), _read(bytes(data), cuts, _NEVER)
    wrong = f"{bytes(data)!r}, cut at {cuts}, is read in another way by batches of {least}, IDs by {ids.source}"
    assert together[1:] == alone[1:], f"{together[1:]} and {alone[1:]}: {wrong}"
    tags = [raw[0] for raw in alone[0]]
    if max(tags, default=0) > _TAG_MAX or any(one >= other for one, other in pairwise(tags)):
        return Counter()  # a tag that no broker reaches, or an order for which the session ends: no block is made
    # What counts of a key depends on the whole block, and what cannot be read is in one of its own.
    bytes_max = rng.choice((_SMALL, 4 << 20))
    left_out = {"size"} if UnreadableDelivery in map(type, alone[0]) or bytes_max == _SMALL else set()
    made = [block_rows(_DECODER, items, ids, bytes_max) for items in (together[0], alone[0])]
    same_rows(*made, left_out, wrong)
    if rng.random() < _EACH_SHARE:
        each = [row for item in alone[0] for row in block_rows(_DECODER, [item], ids, bytes_max)]
        same_rows(made[0], each, {"size"}, wrong)
    batched = sum(len(item) for item in together[0] if isinstance(item, Amqp091Batch))
    return Counter({"changed" if changes else "whole": len(turns), "together": batched})


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Read streams until the deadline; count deliveries by kind, see :mod:`tests.fuzz.__main__`."""
    cases: Counter[str] = Counter()
    while True:
        cases += _case(rng)
        if time.monotonic() >= deadline and {"changed", "whole"} <= cases.keys():
            return cases
