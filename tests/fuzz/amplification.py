"""Memory that a message takes against its size, in each decoder, for messages that are made to take much.

Cases by decoder. A delivery's `size` covers what it holds, so that sessions pause in time; and no message takes more
than `_PEAK_BYTES` while it is decoded, up to its block.
"""

from __future__ import annotations

import gzip
import random
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pyspark_mq.brokers import BROKERS
from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import FLAGS, check, unreadable
from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.batch import DeliveryBatch
from pyspark_mq.decode.stomp import StompBatch
from pyspark_mq.sources.connections.block import make_block
from pyspark_mq.spark_source.schema import ALL_COLUMNS, BatchBuilder
from pyspark_mq.streams.chunk import ChunkError, read_chunk
from tests.support.columns import BY_MESSAGE_ID
from tests.support.stream_peer import chunk_bytes

__all__ = ["run"]

#: Most memory that one message may take beyond its bytes while it is decoded, in MiB and times its size.
_PEAK_BYTES, _PEAK_TIMES = 128 << 20, 150
#: Memory that may be held uncounted: CPython keeps 2,000 tuples of each length for later.
_FREE_BYTES = 256 << 10
#: Sizes of messages; the largest has more values than are read.
_SIZES = (3_000, 50_000, 300_000)
_LARGE = 8 << 20
_SCHEMA = BatchBuilder(ALL_COLUMNS).block_schema
_DIALECT = next(dialect for broker in BROKERS.values() if (dialect := broker.stomp) is not None)


def _compound(code: int, items: bytes, count: int) -> bytes:
    return struct.pack(">BII", code, len(items) + 4, count) + items


def _amqp10_value(rng: random.Random, size: int) -> bytes:
    """A list or map of values that are small on the wire."""
    item = rng.choice(
        (b"\x45", b"\x40", b"\x41", b"\x43", b"\xc1\x01\x00", b"\xe0\x01\x00", b"\xa1\x00", b"\xa1\x01\x01",
         b"\xa0\x00", b"\x74\x12\x34\x56\x78", b"\x72\x00\x00\x00\x01", b"\x54\x80", b"\xc0\x02\x01\x45")
    )  # fmt: skip
    if rng.random() < 0.3:  # a list of texts, binary values or keys of which every byte becomes an escape
        item = _long(rng.choice((0xB0, 0xB1)), rng.choice((b"\x01", b"\x00")) * rng.choice((60, 5_000, size)))
    count = max(size // len(item) & ~1, 2)
    return _compound(rng.choice((0xD0, 0xD1)), item * count, count)


def _long(code: int, content: bytes) -> bytes:
    return struct.pack(">BI", code, len(content)) + content


def _amqp10(rng: random.Random, size: int) -> bytes:
    if rng.random() < 0.5:
        return b"\0\x53\x77" + _amqp10_value(rng, size)
    if rng.random() < 0.3:
        value = rng.choice((_long(0xB0, b"\xff" * size), _amqp10_value(rng, size)))
        return b"\0\x53\x74" + _compound(0xD1, b"\xa1\x01x" + value, 2)
    if rng.random() < 0.2:  # user-id or correlation-id
        fields = rng.choice((b"\x40", b"\x40" * 5)) + _long(0xB0, b"\xff" * size)
        return b"\0\x53\x73" + _compound(0xD0, fields, 2 if fields[1] != 0x40 else 6)
    pairs = b"".join(b"\xa1\x05%05x" % number + rng.choice((b"\x40", b"\x45", b"\x43")) for number in range(size // 8))
    return b"\0\x53\x74" + _compound(0xD1, pairs, size // 8 * 2)


def _amqp091(rng: random.Random, size: int) -> bytes:
    """Properties with a header table."""
    if rng.random() < 0.5:
        item = rng.choice((b"V", b"t\x01", b"b\x01", b"A\0\0\0\0", b"F\0\0\0\0", b"S\0\0\0\0"))
        if rng.random() < 0.4:
            content = rng.choice((b"\x01", b"\xff")) * rng.choice((60, 5_000, size))
            item = rng.choice((b"S", b"x")) + struct.pack(">I", len(content)) + content
        items = item * max(size // len(item), 1)
        table = b"\x01xA" + struct.pack(">I", len(items)) + items
    else:
        table = b"".join(b"\x05%05xV" % number for number in range(size // 7))
    return FLAGS["headers"].to_bytes(2, "big") + struct.pack(">I", len(table)) + table


def _stomp(rng: random.Random, size: int) -> bytes:
    """Lines of headers."""
    end = rng.choice((b":", b"", b":\\c", b":\xff"))
    return b"\n" + b"".join(b"%05x" % number + end + b"\n" for number in range(size // (6 + len(end))))


def _of_amqp10(data: bytes) -> tuple[type[DeliveryBatch], Any]:
    return Amqp10Batch, SectionReader(counts_acquirers=False).read(1, data)


def _of_amqp091(data: bytes) -> tuple[type[DeliveryBatch], Any]:
    raws: list[Any] = [(1, False, data, b"", b"\0\0")]
    for _, why in check(raws):
        raws = [unreadable(raws[0], why)]
    return Amqp091Batch, raws[0]


def _of_stomp(data: bytes) -> tuple[type[DeliveryBatch], Any]:
    return StompBatch, (1, data, b"", _DIALECT)


_DECODERS: dict[str, tuple[Callable[[random.Random, int], bytes], Callable[[bytes], Any]]] = {
    "amqp10": (_amqp10, _of_amqp10),
    "amqp091": (_amqp091, _of_amqp091),
    "stomp": (_stomp, _of_stomp),
}


def _measured(name: str, rng: random.Random, size: int) -> None:
    make, read = _DECODERS[name]
    batches, raw = read(make(rng, 100))
    make_block(batches.of([raw]), BY_MESSAGE_ID, _SCHEMA)  # what is imported and cached by the first use
    data = make(rng, size)
    case = f"{name}: {len(data):,} bytes from {data[:24]!r}"
    tracemalloc.start()
    try:
        batches, raw = read(data)
        held = tracemalloc.get_traced_memory()[0]
        counted = batches.size(raw)
        assert held <= counted + _FREE_BYTES, f"{case} hold {held:,} bytes, of which {counted:,} are counted"
        make_block(batches.of([raw]), BY_MESSAGE_ID, _SCHEMA)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= min(_PEAK_BYTES, _FREE_BYTES + _PEAK_TIMES * len(data)), f"{case} took {peak:,} bytes"


def _entry(rng: random.Random) -> None:
    """A packed entry of a stream that states more than it may have, or as much as it may."""
    plain_size = rng.choice((1 << 20, 4 << 20, 64 << 20, 1 << 30))
    content = gzip.compress(bytes(min(plain_size, 64 << 20)), 1)
    entry = struct.pack(">BHII", 0x90, rng.choice((1, 65_535)), plain_size, len(content)) + content
    (found,) = read_chunk(chunk_bytes(0, entry, 1, struct.unpack_from(">H", entry, 1)[0])).check()
    limit = 16 << 20
    tracemalloc.start()
    try:
        found.unpacked(limit)
    except ChunkError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 4 * limit, f"an entry of {len(entry):,} bytes that states {plain_size:,} took {peak:,} bytes"


def _cases() -> Iterator[tuple[str, int]]:
    for size in (*_SIZES, _LARGE):
        for name in _DECODERS:
            yield name, size


def run(rng: random.Random, deadline: float) -> Counter[str]:
    """See :mod:`tests.fuzz.__main__`."""
    cases: Counter[str] = Counter()
    while not cases or time.monotonic() < deadline:
        for name, size in _cases():
            if name == "stomp" and size == _LARGE:
                continue  # the reader of frames counts its lines
            _measured(name, rng, size)
            cases[name] += 1
            if cases["entry"] and time.monotonic() >= deadline:
                break
        _entry(rng)
        cases["entry"] += 1
    return cases
