"""The beginning and the end of a stream, and the chunk at a place.

The end is that of the last *committed* chunk, whose first offset StreamStats reports (3.11 and later): chunks behind it
may vanish when a leader is lost. -1 is "not yet", which lasts for a second behind a restart, or "nothing at all".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from pyspark_mq.streams.chunk import Chunk, ChunkError
from pyspark_mq.streams.connection import Connection, Lost, Subscription, SubscriptionEnded
from pyspark_mq.streams.offsets import Place

__all__ = ["chunk_since", "chunk_with", "end_of", "first_of"]

#: A node that has just been started knows nothing for 0.1 to 0.7 s.
_SETTLED_S, _PAUSE_S = 2.0, 0.1
#: For one chunk that is known to be there.
_CHUNK_S = 10.0


def first_of(connection: Connection, stream: str) -> int:
    """The lowest offset that is there; 0 of an empty stream."""
    return max(0, connection.stats(stream)["first_chunk_id"])


def end_of(connection: Connection, stream: str, known: Place | None = None, *, patient: bool = False) -> Place:
    """The committed end; it has no chunk of a stream that has none.

    Args:
        known: the last that was found: if it is still that, nothing is read.
        patient: wait for what a node knows that has just been started.
    """
    stats = _settled(connection, stream) if patient else connection.stats(stream)
    last = stats["committed_chunk_id"]
    if last < 0:
        return Place(0)
    if known is not None and known.chunk is not None and known.chunk.chunk == last:
        return known
    chunk = chunk_with(connection, stream, last)
    return Place(chunk.end, chunk.identity)


def _settled(connection: Connection, stream: str) -> dict[str, int]:
    began = time.monotonic()
    while True:
        stats = connection.stats(stream)
        # With a first chunk it has something; without, it is most likely empty.
        limit_s = _SETTLED_S if stats["first_chunk_id"] < 0 else _CHUNK_S
        if stats["committed_chunk_id"] >= 0 or time.monotonic() - began > limit_s:
            return stats
        time.sleep(_PAUSE_S)


def chunk_with(connection: Connection, stream: str, offset: int) -> Chunk:
    """The chunk that has an offset which is committed; if retention has taken it, the first there is."""
    problem = f"the chunk of stream '{stream}' with offset {offset} did not come"
    # Where a replica lags, it begins with earlier ones.
    return _first(connection.subscribed(stream, offset), lambda chunk: chunk.end > offset, problem)


def chunk_since(connection: Connection, stream: str, since_ms: int) -> Chunk:
    """The first chunk that is not older, where the last is not."""
    subscribing = connection.subscribed(stream, since_ms=since_ms)
    return _first(subscribing, lambda chunk: chunk.timestamp_ms >= since_ms, f"stream '{stream}' at {since_ms} ms")


def _first(
    subscribing: AbstractContextManager[Subscription], is_wanted: Callable[[Chunk], bool], problem: str
) -> Chunk:
    """A chunk that is known to be there; it is Lost if it does not come, or is broken."""
    deadline = time.monotonic() + _CHUNK_S
    try:
        with subscribing as subscription:
            while not is_wanted(chunk := subscription.next(deadline - time.monotonic())):
                subscription.want(1)
            return chunk
    except (SubscriptionEnded, TimeoutError, ChunkError) as failed:
        raise Lost(f"{problem}: {failed}") from None
