"""Chunks of streams: whatever the bytes, they are read as they were written, or an error says what is wrong."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_mq.streams.chunk import HEADER_BYTES, ChunkError, ChunkIdentity, read_chunk
from tests.support.effort import part_of

FIXED = settings(derandomize=True, deadline=None, max_examples=part_of(200))
RECORDS = st.lists(st.binary(max_size=30), min_size=1, max_size=8)
PACK = {
    0: bytes,
    1: lambda plain: gzip.compress(plain, mtime=0),
    2: lambda plain: pa.Codec("snappy").compress(plain, asbytes=True),
    3: lambda plain: pa.Codec("lz4").compress(plain, asbytes=True),
    4: lambda plain: pa.Codec("zstd").compress(plain, asbytes=True),
}


def simple(records: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(record)) + record for record in records)


def packed(kind: int, records: list[bytes], *, count: int | None = None, size: int | None = None) -> bytes:
    plain = simple(records)
    content = PACK[kind](plain)
    count = len(records) if count is None else count
    size = len(plain) if size is None else size
    return struct.pack(">BHII", 0x80 | kind << 4, count, size, len(content)) + content


def chunk(data: bytes, entries: int, records: int, *, first: int = 500, kind: int = 0, crc: int | None = None) -> bytes:
    crc = zlib.crc32(data) if crc is None else crc
    return struct.pack(">BBHIqQQIIII", 0x50, kind, entries, records, 1_700, 3, first, crc, len(data), 0, 0) + data


def records_of(data: bytes) -> list[bytes]:
    entries = [entry.unpacked() for entry in read_chunk(data).check()]
    return [plain[begin : end - 4] for plain, begins in entries for begin, end in pairwise(begins)]


def test_a_chunk_says_what_it_is() -> None:
    found = read_chunk(b"..." + chunk(simple([b"a", b"bc"]), 2, 2), 3)
    assert (found.first, found.end, found.user) == (500, 502, True)
    assert found.identity == ChunkIdentity(500, 1_700, 3, found.crc)
    assert not read_chunk(chunk(simple([b"note"]), 1, 1, kind=1)).user


@FIXED
@given(RECORDS)
def test_records_are_as_they_were_written(records: list[bytes]) -> None:
    assert records_of(chunk(simple(records), len(records), len(records))) == records


@FIXED
@given(st.lists(st.tuples(st.sampled_from([None, *PACK]), RECORDS), min_size=1, max_size=5))
def test_packed_records_are_as_they_were_written(parts: list[tuple[int | None, list[bytes]]]) -> None:
    data = b"".join(simple(records) if kind is None else packed(kind, records) for kind, records in parts)
    entries = sum(len(records) if kind is None else 1 for kind, records in parts)
    written = [record for _, records in parts for record in records]
    assert records_of(chunk(data, entries, len(written))) == written


def test_a_framed_block_of_snappy_is_unpacked() -> None:
    plain = simple([b"a" * 100, b"b"])
    block = pa.Codec("snappy").compress(plain, asbytes=True)
    framed = b"\xff\x06\x00\x00sNaPpY" + b"\x00" + (len(block) + 4).to_bytes(3, "little") + bytes(4) + block
    data = struct.pack(">BHII", 0xA0, 2, len(plain), len(framed)) + framed
    assert records_of(chunk(data, 1, 2)) == [b"a" * 100, b"b"]


@pytest.mark.parametrize("end", range(HEADER_BYTES + 24))
def test_a_chunk_that_is_cut_off_anywhere_is_an_error(end: int) -> None:
    whole = chunk(simple([b"12345678", b"12345678"]), 2, 2)
    assert len(whole) == HEADER_BYTES + 24
    with pytest.raises(ChunkError):
        read_chunk(whole[:end])


@pytest.mark.parametrize("at", range(24))
def test_a_changed_byte_is_an_error(at: int) -> None:
    whole = bytearray(chunk(simple([b"12345678", b"12345678"]), 2, 2))
    whole[HEADER_BYTES + at] ^= 1
    with pytest.raises(ChunkError, match="CRC"):
        read_chunk(bytes(whole)).check()


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_a_bomb_is_not_unpacked(kind: int) -> None:
    bomb = packed(kind, [bytes(100_000)])
    small = bomb[:3] + struct.pack(">I", 1_000) + bomb[7:]
    with pytest.raises(ChunkError, match=r"cannot be unpacked|its header states"):
        records_of(chunk(small, 1, 1))
    huge = bomb[:3] + struct.pack(">I", 1 << 31) + bomb[7:]
    with pytest.raises(ChunkError, match="would unpack to 2,147,483,648 bytes"):
        records_of(chunk(huge, 1, 1))


@pytest.mark.parametrize("kind", [0, 1, 4])
def test_a_compressed_entry_has_a_limit_that_can_be_raised(kind: int) -> None:
    records = [bytes(1_000)] * 20
    (entry,) = read_chunk(chunk(packed(kind, records), 1, 20)).check()
    assert len(entry.unpacked(20_080)[1]) == 21
    if kind:
        with pytest.raises(ChunkError, match="20,080 bytes, more than option 'maxEntryBytes' allows"):
            entry.unpacked(20_079)
    else:
        assert len(entry.unpacked(1)[1]) == 21


def test_millions_of_records_in_a_chunk_of_a_few_bytes_are_unpacked_one_entry_after_the_other() -> None:
    count, entries = 65_535, 12
    entry = packed(1, [b"\0\x53\x75\xa0\x01x"] * count)
    tracemalloc.start()
    try:
        found = read_chunk(chunk(entry * entries, entries, entries * count)).check()
        assert sum(len(one.unpacked()[1]) - 1 for one in found) == entries * count
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [1, 4])
def test_records_without_bytes_are_not_more_than_are_stated(kind: int) -> None:
    """Two kilobytes of nothing but sizes, of which the entry says that they are one."""
    plain = bytes(16 << 20)
    content = PACK[kind](plain)
    assert len(content) < 100_000
    bomb = struct.pack(">BHII", 0x80 | kind << 4, 1, len(plain), len(content)) + content
    tracemalloc.start()
    try:
        with pytest.raises(ChunkError, match=r"not the 1 records|the last record ends"):
            records_of(chunk(bomb, 1, 1))
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "entries", "records"),
    [
        (simple([b"a", b"b"]), 2, 3),
        (simple([b"a", b"b"]), 3, 3),
        (simple([b"a", b"b"]), 1, 1),
        (simple([b"a"]) + b"\0\0\0", 1, 1),
        (b"\0\0\0\x09abc", 1, 1),
        (packed(1, [b"a", b"b"], count=3), 1, 3),
        (packed(1, [b"a", b"b"], count=1), 1, 1),
        (packed(0, [b"a"], size=6), 1, 1),
        (packed(0, [b"a"])[:-1], 1, 1),
        (b"\xf0" + packed(0, [b"a"])[1:], 1, 1),
        (b"", 1, 1),
    ],
)
def test_counts_and_sizes_that_lie_are_errors(data: bytes, entries: int, records: int) -> None:
    with pytest.raises(ChunkError):
        records_of(chunk(data, entries, records))


@FIXED
@given(st.binary(max_size=80), st.integers(0, 5), st.integers(0, 70_000))
def test_any_data_is_records_or_an_error(data: bytes, entries: int, records: int) -> None:
    try:
        found = records_of(chunk(data, entries, records))
    except ChunkError:
        return
    assert len(found) == records
