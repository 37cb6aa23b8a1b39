"""Decodes chunks, the units in which a stream is stored and delivered (``osiris_log.erl``, ``PROTOCOL.adoc``).

A chunk is written once and is the same on all replicas. Its header has the offset of the first record, the number of
records, and a CRC of the data. The data consists of *entries*: a simple entry is one record, and a packed entry holds
several records, which may be compressed. A size that the bytes state is used only after a check that it does not exceed
the chunk, and a packed entry is unpacked only up to its stated size. This module only decodes; it does not receive.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

__all__ = ["ENTRY_BYTES_MAX", "HEADER_BYTES", "Chunk", "ChunkError", "ChunkIdentity", "Entry", "read_chunk"]

_HEADER = struct.Struct(">BBHIqqqIIII")
HEADER_BYTES = _HEADER.size
_MAGIC = 0x50
#: The kind of user chunks, which hold messages, and the number of kinds. Other chunks hold the broker's own records.
_USER, _KINDS = 0, 3
#: Largest accepted offset, and largest accepted time in microseconds.
_NUMBER_MAX = 2**63 - 2**32
#: Header of a packed entry. Its first bit is set; the kind of compression, the number of records and the sizes after
#: and before unpacking follow.
_SUB_ENTRY = struct.Struct(">BHII")
#: Default of option `maxEntryBytes`, the maximum size of an unpacked entry. Producers pack up to 1 MiB (one frame),
#: unless the broker allows larger frames. The limit is needed because 300 bytes of Zstandard can unpack to 8 MiB.
ENTRY_BYTES_MAX = 16 << 20


class ChunkError(Exception):
    """The bytes are not a valid chunk: they are damaged or cut off, or do not match the chunk's header."""


class ChunkIdentity(NamedTuple):
    """Identity of a chunk: its first offset, time, epoch (the broker's, not Spark's) and CRC.

    If a stream is deleted and another stream is created with the same name, its chunks have other identities, even at
    the same offsets.
    """

    chunk: int
    timestamp_ms: int
    epoch: int
    crc: int


class Chunk(NamedTuple):
    """A chunk as the broker delivered it.

    Attributes:
        first: offset of the chunk's first record.
        records: number of records in the chunk, which is the number of offsets that the chunk takes.
        entries: number of entries in the data.
        user: whether the chunk has messages. Other chunks have the broker's own records, which take offsets, too.
        timestamp_ms: time at which the broker's leader wrote the chunk.
        epoch: the broker's count of leader elections when the chunk was written.
        crc: CRC of `data`, as stated in the chunk's header.
        data: the chunk's entries, as bytes.
    """

    first: int
    records: int
    entries: int
    user: bool
    timestamp_ms: int
    epoch: int
    crc: int
    data: bytes

    @property
    def end(self) -> int:
        return self.first + self.records

    @property
    def identity(self) -> ChunkIdentity:
        return ChunkIdentity(self.first, self.timestamp_ms, self.epoch, self.crc)

    def check(self) -> list[Entry]:
        """Check the CRC and the number of records, without unpacking any entry.

        Returns:
            the chunk's entries; an empty list if the chunk has no messages.

        Raises:
            ChunkError: the chunk's bytes or header are damaged.
        """
        if zlib.crc32(self.data) != self.crc:
            text = f"has CRC {zlib.crc32(self.data):08x}, but was written with {self.crc:08x}"
            raise ChunkError(f"the chunk at offset {self.first} {text}")
        entries = [*self._entries()] if self.user else []
        count = sum(entry.records for entry in entries)
        if self.user and count != self.records:
            raise ChunkError(f"the entries of the chunk at offset {self.first} hold {count} of {self.records} records")
        return entries

    def _entries(self) -> Iterator[Entry]:
        data, size = self.data, len(self.data)
        if self.entries == self.records:
            # Usually all entries are simple here. But a packed entry may hold just one record: read as a simple entry,
            # a packed entry would be longer than any chunk, so a ChunkError is raised.
            with suppress(ChunkError):
                begins = _begins(data, self.records)
                if len(begins) == self.records + 1:
                    yield Entry(self.records, data, begins)
                    return
        at = simple = 0
        for _ in range(self.entries):
            if at + 4 > size:
                raise ChunkError(f"its {self.entries} entries do not fit into its {size} bytes")
            if data[at] < 0x80:
                at += 4 + int.from_bytes(data[at : at + 4], "big")
                continue
            if simple < at:
                yield _simple(data[simple:at])
            if at + _SUB_ENTRY.size > size:
                raise ChunkError(f"the entry at byte {at} is cut off")
            _, records, _, packed_size = _SUB_ENTRY.unpack_from(data, at)
            simple = at + _SUB_ENTRY.size + packed_size
            yield Entry(records, data[at:simple])
            at = simple
        if simple < at:
            yield _simple(data[simple:at])
        if at != size:
            raise ChunkError(f"its entries end at byte {at}, but its data at {size}")


class Entry(NamedTuple):
    """A packed entry, or consecutive simple entries of a chunk, which are handled as one entry.

    Attributes:
        records: number of records in the entry, which is the number of offsets that the entry takes.
        data: the entry's bytes as stored.
        begins: the positions in `data` at which simple records begin, as :meth:`unpacked` returns them; None for a
            packed entry.
    """

    records: int
    data: bytes
    begins: list[int] | None = None

    def unpacked(self, bytes_max: int = ENTRY_BYTES_MAX) -> tuple[bytes, list[int]]:
        """Unpack the records of this entry.

        Args:
            bytes_max: maximum unpacked size, unless the packed entry itself is larger.

        Returns:
            a pair `data, begins`. In `data`, each record follows its size, which takes four bytes. `begins` has the
            position of each record in `data`, and one more number, so that record `n` extends from `begins[n]` to
            `begins[n + 1] - 4`.

        Raises:
            ChunkError: the entry cannot be unpacked, or does not match its header.
        """
        if self.begins is not None:
            return self.data, self.begins
        kind, records, plain_size, packed_size = _SUB_ENTRY.unpack_from(self.data)
        if plain_size < 4 * records:
            raise ChunkError(f"{records} records would unpack to {plain_size:,} bytes")
        if plain_size > max(bytes_max, packed_size):
            raise ChunkError(
                f"it would unpack to {plain_size:,} bytes, more than option 'maxEntryBytes' allows ({bytes_max:,})"
            )
        try:
            plain = _decompressed(kind >> 4 & 0x7, self.data[_SUB_ENTRY.size :], plain_size)
        except (zlib.error, pa.ArrowException, OSError, ValueError, IndexError) as broken:
            raise ChunkError(f"it cannot be unpacked: {broken}") from None
        begins = _begins(plain, records) if len(plain) == plain_size else []
        if len(begins) != records + 1:
            raise ChunkError(
                f"its header states {records} records in {plain_size} bytes, but its content does not match"
            )
        return plain, begins


def _simple(data: bytes) -> Entry:
    begins = _begins(data)
    return Entry(len(begins) - 1, data, begins)


def _begins(data: bytes, count: int | None = None) -> list[int]:
    """Return the positions at which the records in `data` begin, as :meth:`Entry.unpacked` describes.

    Args:
        count: the expected number of records; None if unknown. Reading stops after this number of records.
    """
    return _equal(data, count or 0) or _walked(data, count)


def _equal(data: bytes, count: int) -> list[int] | None:
    width, rest = divmod(len(data), count) if count else (0, 0)
    if rest or width < 4 or data[:4] != (width - 4).to_bytes(4, "big"):
        return None
    if any(data[at::width] != data[at : at + 1] * count for at in range(4)):
        return None
    return [*range(4, len(data) + 5, width)]


def _walked(data: bytes, count: int | None) -> list[int]:
    begins, at, size = [4], 0, len(data)
    read = struct.Struct(">I").unpack_from
    append = begins.append
    try:
        for _ in range(size if count is None else count):
            if at >= size:
                break
            at += 4 + read(data, at)[0]
            append(at + 4)
    except struct.error:
        raise ChunkError(f"no record begins at byte {at}") from None
    if at != size:
        raise ChunkError(f"the last record ends at byte {at}, but the data at {size}")
    return begins


def _decompressed(kind: int, packed: bytes, plain_size: int) -> bytes:
    """Unpack an entry, but stop one byte after the stated size: if there is one more byte, the stated size is wrong."""
    if kind == 0:
        return packed
    if kind == 1:
        return zlib.decompressobj(31).decompress(packed, plain_size + 1)
    if kind == 2:
        return b"".join(_snappy_blocks(packed, plain_size))
    if kind in {3, 4}:
        with pa.CompressedInputStream(pa.BufferReader(packed), "lz4" if kind == 3 else "zstd") as stream:
            return bytes(stream.read(plain_size + 1))
    raise ValueError(f"compression {kind} is unknown")


def _snappy_blocks(packed: bytes, plain_size: int) -> Iterator[bytes]:
    """Yield the unpacked blocks of an entry in Snappy's framing format. An entry in another form is a single block."""
    if packed[:4] != b"\xff\x06\x00\x00":
        yield _snappy(packed, plain_size)
        return
    at, left = 0, plain_size
    while at < len(packed):
        kind, begin = packed[at], at + 4
        at = begin + int.from_bytes(packed[at + 1 : begin], "little")
        if at > len(packed) or 1 < kind < 0x80:
            raise ValueError(f"a block of kind {kind} is cut off or unknown")
        if kind < 2:
            block = packed[begin + 4 : at] if kind else _snappy(packed[begin + 4 : at], left)
            left -= len(block)
            yield block


def _snappy(block: bytes, maximum: int) -> bytes:
    """Unpack a block of Snappy. A block begins with its unpacked size, encoded with seven bits in each byte."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > maximum:
        raise ValueError(f"a block would unpack to {size} bytes, but only {maximum} of the entry's stated size remain")
    return bytes(pa.Codec("snappy").decompress(block, size, asbytes=True))


def read_chunk(data: bytes, at: int = 0) -> Chunk:
    """Read the chunk that begins at byte `at` and extends to the end of a frame.

    Raises:
        ChunkError: the bytes are not a chunk, or the chunk is cut off.
    """
    try:
        magic, kind, entries, records, timestamp, epoch, first, crc, size, _, _ = _HEADER.unpack_from(data, at)
    except struct.error:
        raise ChunkError(f"{len(data) - at} bytes are not a chunk") from None
    if magic != _MAGIC:
        raise ChunkError(f"a chunk has format 0x{magic:02x}, but only 0x{_MAGIC:02x} is known")
    if kind >= _KINDS or (kind != _USER and records != 1):
        raise ChunkError(f"the chunk at offset {first} is of kind {kind}, with {records} records")
    if min(timestamp, epoch, first) < 0 or max(timestamp * 1000, first) > _NUMBER_MAX:
        raise ChunkError(f"no chunk can have offset {first}, epoch {epoch} and time {timestamp}")
    begin = at + HEADER_BYTES
    content = data[begin : begin + size]
    if len(content) != size:
        raise ChunkError(f"the chunk at offset {first} is cut off: it has {len(content)} of its {size} bytes")
    return Chunk(first, records, entries, kind == _USER, timestamp, epoch, crc, content)
