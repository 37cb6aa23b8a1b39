"""Chunks of streams, and the columns of their messages.

Chunks in every form of entry are those that were written. With bytes changed, cut short, or with counts and sizes that
lie, whatever the CRC, they are an error of chunks, or what another reader (`rstream`, which believes sizes) makes of
them. Columns of many messages at once are those that reading each alone gives.
"""

from __future__ import annotations

import gzip
import random
import struct
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import zstandard
from rstream.schema import Deliver

from pyspark_mq.decode.amqp10 import Amqp10Batch, ReadBatch, message_columns
from pyspark_mq.decode.amqp10_columns import COLUMN_TYPES
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.streams.chunk import ChunkError, read_chunk
from tests.support.decoding import Asked
from tests.support.stream_messages import FORMS, joined, message, mutated
from tests.support.stream_peer import chunk_bytes

__all__ = ["run"]

_NAMES = list(COLUMN_TYPES)
_MESSAGES = 200
#: What `rstream` unpacks.
_OF_RSTREAM = {None, 0, 1}
_PACKED = struct.Struct(">BHII")


# -- chunks


def _simple(records: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(record)) + record for record in records)


def _compressed(kind: int, plain: bytes) -> bytes:
    if kind == 1:
        return gzip.compress(plain, 1)
    if kind == 2:
        block = bytes(pa.Codec("snappy").compress(plain, asbytes=True))
        head = b"\xff\x06\x00\x00sNaPpY\x00" + struct.pack("<I", len(block) + 4)[:3] + bytes(4)
        return head + block if len(plain) % 2 else block
    if kind == 3:
        return bytes(pa.Codec("lz4").compress(plain, asbytes=True))
    return zstandard.compress(plain) if kind == 4 else plain


def _odd(rng: random.Random, value: int, maximum: int) -> int:
    """Another number, near it or at an edge."""
    return rng.choice((value + 1, max(0, value - 1), 0, maximum, maximum >> 1, rng.randrange(maximum))) & maximum


class _Case:
    """A chunk, its records, and whether it says what is not so."""

    def __init__(self, rng: random.Random) -> None:
        self.kinds: set[int | None] = set()
        self.records: list[bytes] = []
        self.lies = rng.random() < 0.6
        data, entries = b"", 0
        for _ in range(rng.randrange(1, 6)):
            size = rng.choice((0, 3, 30, 30, 700))
            records = [
                rng.randbytes(size if rng.random() < 0.5 else rng.randrange(40)) for _ in range(rng.randrange(1, 9))
            ]
            kind = rng.choice((None, None, 0, 1, 2, 3, 4))
            self.kinds.add(kind)
            self.records += records
            plain = _simple(records)
            if kind is None:
                data, entries = data + plain, entries + len(records)
                continue
            packed, count, plain_size = _compressed(kind, plain), len(records), len(plain)
            size = len(packed)
            if self.lies and rng.random() < 0.3:
                which = rng.randrange(4)
                count = _odd(rng, count, 0xFFFF) if which == 0 else count
                plain_size = _odd(rng, plain_size, 0xFFFFFFFF) if which == 1 else plain_size
                size = _odd(rng, size, 0xFFFFFFFF) if which == 2 else size
                kind = rng.randrange(8) if which == 3 else kind
                self.kinds.add(kind)
            data += _PACKED.pack(0x80 | kind << 4, count, plain_size, size) + packed
            entries += 1
        total = len(self.records)
        if self.lies and data:
            which = rng.randrange(5)
            if which == 0:
                data = data[: rng.randrange(len(data))]
            elif which == 1:
                at = rng.randrange(len(data))
                data = data[:at] + rng.randbytes(1) + data[at + 1 :]
            elif which == 2:
                total = _odd(rng, total, 0xFFFFFFFF)
            elif which == 3:
                entries = _odd(rng, entries, 0xFFFF)
        self.whole = chunk_bytes(rng.choice((0, 500, 2**60)), data, entries, total)
        if self.lies and rng.random() < 0.1:
            at = rng.randrange(len(self.whole))
            self.whole = self.whole[:at] + rng.randbytes(1) + self.whole[at + 1 :]
        if self.lies and rng.random() < 0.1:
            self.whole = self.whole[: rng.randrange(len(self.whole))]

    def judge(self) -> str:
        """The kind of the case, which was read as it should be."""
        try:
            chunk = read_chunk(self.whole)
            entries = [entry.unpacked() for entry in chunk.check()]
            found = [plain[begin : end - 4] for plain, begins in entries for begin, end in pairwise(begins)]
        except ChunkError:
            assert self.lies, f"refused: {self.whole!r}"
            return "refused chunks"
        assert len(found) == chunk.records, f"{len(found)} records of {chunk.records}: {self.whole!r}"
        if not self.lies:
            assert found == self.records, f"another record: {self.whole!r}"
            return "chunks"
        assert zlib.crc32(chunk.data) == chunk.crc
        if self.kinds <= _OF_RSTREAM and chunk.user:
            theirs = _of_rstream(self.whole)
            assert found == theirs, f"another record than rstream has: {self.whole!r}"
        return "chunks with changed bytes that are one"


def _of_rstream(whole: bytes) -> list[bytes]:
    magic, kind, entries, records, timestamp, epoch, first, crc, size, trailer, reserved = struct.unpack_from(
        ">bBHIqQQIIII", whole
    )
    made: Any = Deliver(
        0, magic, kind, entries, records, timestamp, epoch, first, crc, size, trailer, reserved, whole[48 : 48 + size]
    )
    found: list[bytes] = made.get_messages()
    return found


# -- columns


def _columns(rng: random.Random) -> int:
    """Compare the columns of messages of a form, some of them changed; how many."""
    form, rate = rng.choice(FORMS), rng.choice((0.0, 0.02, 0.5, 1.0))
    messages = [message(rng, form) for _ in range(_MESSAGES)]
    messages = [mutated(rng, one) if rng.random() < rate else one for one in messages]
    reader = SectionReader(counts_acquirers=False, names_annotations=rng.random() < 0.5)
    found, bad = message_columns(joined(messages), _NAMES, reader)
    raws = [reader.read(number, data) for number, data in enumerate(messages)]
    expected = {name: ReadBatch(raws).column(name) for name in _NAMES}
    wrong = [(one.tag, str(one.error)) for one in Asked(Amqp10Batch).unreadable(raws)]
    assert [(one.tag, str(one.error)) for one in bad] == wrong, f"unreadable of {messages!r}"
    for name in _NAMES:
        found[name].validate(full=True)
        if not found[name].equals(expected[name]):
            (at, *_) = [at for at in range(_MESSAGES) if found[name][at] != expected[name][at]]
            raise AssertionError(f"{name} of {messages[at]!r} is {found[name][at]}, and {expected[name][at]}")
    return len(messages)


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """Judge chunks and columns until the deadline."""
    cases: Counter[str] = Counter()
    while not cases or time.monotonic() < deadline:
        cases["messages"] += _columns(rng)
        for _ in range(50):
            cases[_Case(rng).judge()] += 1
    return cases
