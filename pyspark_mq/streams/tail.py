"""One member's copy of a stream: its start, its end, and the chunk at an offset.

The copy ends with the last *committed* chunk, because later chunks may vanish with a leader. StreamStats reports the
first offset of that chunk (3.11 and later). -1 means that the stream is empty. For a second after a restart, -1 may
also mean that the end is unknown.
"""

from __future__ import annotations

import time
from dataclasses import replace

from pyspark_mq.streams.chunk import Chunk, ChunkError, ChunkIdentity
from pyspark_mq.streams.connection import StreamConnection, StreamLost
from pyspark_mq.streams.offsets import StreamPosition

__all__ = ["Copy", "chunk_with", "sure_chunk"]

#: A node that has just started does not know the end for 0.1 to 0.7 s; a new leader has to recover its commit point.
_EMPTY_S, _ELECTED_S, _PAUSE_S = 2.0, 10.0, 0.1


class Copy:
    """A member's copy of a stream: the committed chunks within its retention, read on demand.

    Args:
        connection: a connection to the member.
        known: the last known end. If the end is unchanged, no chunk is read.
        patient: whether to wait for a node that has just started or has just been elected.

    Attributes:
        low: the lowest offset that the member reports. Only a delivered chunk proves that the member has this offset.
        end: the position after the copy's last chunk. The position has no chunk if the member has no chunk or knows of
            no chunk.
        is_cut: whether a damaged chunk follows the end and was left out.

    Raises:
        StreamLost: the member cannot answer now.
        NoStream: the stream does not exist, or has no member on this node.
    """

    def __init__(
        self, connection: StreamConnection, stream: str, known: StreamPosition | None = None, *, patient: bool = False
    ) -> None:
        self._connection, self._stream = connection, stream
        numbers = _settled(connection, stream) if patient else connection.stats(stream)
        self.low, last = max(0, numbers["first_chunk_id"]), numbers["committed_chunk_id"]
        self.end, self.is_cut = StreamPosition(0), False
        if known is not None and known.last is not None and known.last.chunk == last:
            self.end = known
        elif last >= 0:
            chunk: Chunk | None = sure_chunk(connection, stream, last, last)
            if chunk is not None and _is_broken(chunk):
                # Earlier chunks can be read meanwhile.
                self.is_cut = True
                chunk = sure_chunk(connection, stream, last - 1) if last > self.low else None
            if chunk is not None:
                self.end = StreamPosition(chunk.end, chunk.identity)

    def chunk(self, offset: int) -> Chunk:
        """Return the chunk with an offset that is below the end. The chunk's data may be damaged.

        If the copy no longer has the offset, return the first remaining chunk.
        """
        return chunk_with(self._connection, self._stream, offset)

    def end_after(self, first: ChunkIdentity | None) -> StreamPosition:
        """Return the end together with the stream's first chunk. The first chunk is read unless it is still `first`."""
        if self.end.last is None:
            return self.end
        if first is None or first.chunk != self.low:
            first = sure_chunk(self._connection, self._stream, 0, self.low).identity
        return replace(self.end, first=first)


def _settled(connection: StreamConnection, stream: str) -> dict[str, int]:
    """Wait until the committed end has reached the chunk that was last at the first look, or for some seconds.

    Return the stream's statistics after the wait.
    """
    began, goal = time.monotonic(), -1
    while True:
        numbers = connection.stats(stream)
        goal = goal if goal >= 0 else numbers.get("last_chunk_id", numbers["first_chunk_id"])
        limit_s = _EMPTY_S if goal < 0 else _ELECTED_S
        if 0 <= goal <= numbers["committed_chunk_id"] or time.monotonic() - began > limit_s:
            return numbers
        time.sleep(_PAUSE_S)


def chunk_with(connection: StreamConnection, stream: str, offset: int | None = None, since_ms: int = 0) -> Chunk:
    """Return the chunk with a committed offset, or the first chunk if retention has removed that offset.

    Args:
        since_ms: a time, for calls without an offset: the first chunk that is not older is returned. There must be such
            a chunk.

    Raises:
        StreamLost: the chunk does not arrive, or has a damaged header.
    """
    deadline = time.monotonic() + connection.patience_s
    try:
        with connection.subscribed(stream, offset, since_ms) as subscription:
            while True:
                chunk = subscription.next(deadline - time.monotonic())
                # A lagging replica begins with earlier chunks.
                if chunk.timestamp_ms >= since_ms if offset is None else chunk.end > offset:
                    return chunk
                subscription.want(1)
    except (TimeoutError, ChunkError) as failed:
        where = f"since {since_ms} ms" if offset is None else f"with offset {offset}"
        raise StreamLost(f"the chunk of stream '{stream}' {where} did not arrive: {failed}") from None


def sure_chunk(connection: StreamConnection, stream: str, offset: int, first: int = -1) -> Chunk:
    """Read a chunk like :func:`chunk_with`. Read the chunk twice unless it is intact and begins at offset `first`.

    The second read is needed because no CRC covers the header of a chunk.

    Raises:
        StreamLost: two reads differ.
    """
    chunk = chunk_with(connection, stream, offset)
    if (chunk.first != first or _is_broken(chunk)) and chunk != chunk_with(connection, stream, offset):
        raise StreamLost(f"the chunk of stream '{stream}' with offset {offset} differs between two reads")
    return chunk


def _is_broken(chunk: Chunk) -> bool:
    try:
        chunk.check()
    except ChunkError:
        return True
    return False
