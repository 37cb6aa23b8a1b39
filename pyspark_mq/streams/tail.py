"""Reads the start, the end and single chunks of the copy of a stream that one member has.

The copy ends with the last *committed* chunk, because later chunks may be lost with the leader. The broker's
StreamStats command reports the offset at which that chunk begins (in RabbitMQ 3.11 and later). The command reports -1
if the stream is empty, but also for up to a second after a restart of the node, when the node does not know the end
yet.
"""

from __future__ import annotations

import time
from dataclasses import replace

from pyspark_mq.streams.chunk import Chunk, ChunkError, ChunkIdentity
from pyspark_mq.streams.connection import StreamConnection, StreamLost
from pyspark_mq.streams.offsets import StreamPosition

__all__ = ["Copy", "chunk_with", "sure_chunk"]

#: Maximum seconds to wait for the end of a stream that seems empty, and of a stream with a new leader; and seconds
#: between two requests. A node that has just started does not know the end for 0.1 to 0.7 s. A new leader has to find
#: out again which chunks are committed.
_EMPTY_S, _ELECTED_S, _PAUSE_S = 2.0, 10.0, 0.1


class Copy:
    """A member's copy of a stream: the committed chunks within its retention, read on demand.

    Args:
        connection: a connection to the member.
        stream: name of the stream.
        known: the end at the last request. If the end is still the same, no chunk is read.
        patient: whether to wait for the end if the node has just started or has just been elected leader.

    Attributes:
        low: the lowest offset that the member reports. Only a delivered chunk proves that the member has this offset.
        end: the position after the copy's last intact chunk. If the member has no chunk, or does not know its last
            chunk yet, the position is offset 0, without the identity of a chunk.
        is_cut: whether the copy's last chunk is damaged. The copy then counts as ending before that chunk.

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
                # The chunks before the damaged chunk can still be read.
                self.is_cut = True
                chunk = sure_chunk(connection, stream, last - 1) if last > self.low else None
            if chunk is not None:
                self.end = StreamPosition(chunk.end, chunk.identity)

    def chunk(self, offset: int) -> Chunk:
        """Return the chunk that contains an offset before the end of the copy. The chunk's data may be damaged.

        If retention has removed the offset from this copy, return the copy's first chunk.
        """
        return chunk_with(self._connection, self._stream, offset)

    def end_after(self, first: ChunkIdentity | None) -> StreamPosition:
        """Return the position at the copy's end, completed with the identity of the stream's first chunk.

        Args:
            first: the identity of the first chunk at an earlier call. The chunk is read only if the stream begins at
                another offset now.
        """
        if self.end.last is None:
            return self.end
        if first is None or first.chunk != self.low:
            first = sure_chunk(self._connection, self._stream, 0, self.low).identity
        return replace(self.end, first=first)


def _settled(connection: StreamConnection, stream: str) -> dict[str, int]:
    """Wait, at most for some seconds, until all chunks that the first request for statistics reports are committed.

    Returns:
        the stream's statistics after the wait.
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
    """Return the chunk that contains a committed offset, or the stream's first chunk if retention removed that offset.

    Args:
        offset: the offset; None to search by time.
        since_ms: if `offset` is None, the first chunk that is not older than this time is returned. The stream must
            have such a chunk.

    Raises:
        StreamLost: the chunk does not arrive, or has a damaged header.
    """
    deadline = time.monotonic() + connection.patience_s
    try:
        with connection.subscribed(stream, offset, since_ms) as subscription:
            while True:
                chunk = subscription.next(deadline - time.monotonic())
                # A replica that lags behind begins with earlier chunks.
                if chunk.timestamp_ms >= since_ms if offset is None else chunk.end > offset:
                    return chunk
                subscription.want(1)
    except (TimeoutError, ChunkError) as failed:
        where = f"since {since_ms} ms" if offset is None else f"with offset {offset}"
        raise StreamLost(f"the chunk of stream '{stream}' {where} did not arrive: {failed}") from None


def sure_chunk(connection: StreamConnection, stream: str, offset: int, first: int = -1) -> Chunk:
    """Return the chunk that contains an offset, like :func:`chunk_with`, but make sure that its header is correct.

    The CRC of a chunk does not cover its header. So the chunk is read a second time, unless it is intact and begins at
    the expected offset `first`.

    Raises:
        StreamLost: two reads of the chunk differ, or the chunk does not arrive.
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
