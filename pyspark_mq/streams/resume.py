"""Decides where to resume reading a stream, by comparing a recorded position with the members' copies of the stream.

Since the position was recorded, retention may have removed messages, or the stream may have been truncated, or deleted
and re-created. Only the identities of chunks prove such a change. A member may report an end before the position
although the stream was not truncated: after an election a leader reports an earlier end until replicas have
acknowledged again (``osiris_writer:handle_continue``), and replicas lag behind.

In this module, *epoch* is the broker's count of elections. Epochs never decrease along a stream, and increase with each
election. But a restored backup repeats epoch numbers, and the clocks of nodes differ. So chunk B counts as newer than
chunk A if B's epoch is later. B also counts as newer if B's time is later: by any difference if the epochs are equal,
and by more than the clocks may differ if B's epoch is earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from pyspark_mq.streams.chunk import Chunk, ChunkIdentity
from pyspark_mq.streams.offsets import StreamPosition

if TYPE_CHECKING:
    from pyspark_mq.streams.tail import Copy

__all__ = ["Found", "Outcome", "newest", "resume", "unchanged"]

#: Largest expected difference between the clocks of two leaders. If the times of two chunks of different epochs
#: differ by less, the times do not prove which chunk is newer.
_CLOCKS_MS = 5_000


class Outcome(Enum):
    """The state of a recorded position in the stream as it is now."""

    SAME = auto()
    #: Retention has removed the chunk before the position on all members.
    GONE = auto()
    #: The stream was deleted, and another stream has its name now.
    OTHER = auto()
    #: Chunks before the position were replaced, from a known offset on (CUT) or from an unknown offset on (AGAIN).
    CUT, AGAIN = auto(), auto()
    #: No member's copy reaches the position. The members may lag or the stream may be truncated; until the next message
    #: is published, this cannot be decided.
    NOT_YET = auto()


class Found(NamedTuple):
    """Result of the comparison of a recorded position with a stream.

    Attributes:
        outcome: what has become of the position.
        begin: offset at which reading resumes.
        end: position after the stream's last chunk; the recorded position if there is nothing to read.
        stop: the end of an epoch that Spark has logged with the recorded position as its end. If chunks before the
            recorded position were replaced, `stop` is before the replaced chunks, which the next epoch reads.
    """

    outcome: Outcome
    begin: int
    end: StreamPosition
    stop: StreamPosition


def unchanged(place: StreamPosition, view: Copy) -> Found | None:
    """Return a result with outcome `SAME` if a member's copy still has the position unchanged. Otherwise return None.

    The position is unchanged if the copy has the chunk before the position (`last`). If that chunk is unknown, the copy
    must have the chunk that was the stream's first chunk (`first`). If that chunk is unknown, too, the copy must not
    begin after the position.
    """
    mark = place.last or place.first
    if mark is None:
        same = view.low <= place.next
    else:
        same = view.end.last == mark or (view.end.next > mark.chunk and view.chunk(mark.chunk).identity == mark)
    return _found(Outcome.SAME, place, place.next, view) if same else None


def newest(view: Copy) -> tuple[int, int]:
    """Return a sort key, which is larger for a newer copy: the epoch of its last chunk, then the offset at its end.

    The broker elects a leader by the same key.
    """
    return (view.end.last.epoch if view.end.last else -1, view.end.next)


def resume(place: StreamPosition, views: Sequence[Copy]) -> Found:
    """Compare a recorded position with all members' copies of the stream.

    Args:
        place: the recorded position.
        views: the copies of all members.

    Returns:
        what has become of the position, and where to resume.
    """
    ranked = sorted(views, key=newest, reverse=True)
    for view in ranked:
        if (found := unchanged(place, view)) is not None:
            return found
    if not all(view.end.last for view in views) or not views:
        return Found(Outcome.NOT_YET, place.next, place, place)
    mark = place.last or place.first
    offset = place.next if mark is None else mark.chunk
    beyond = [view for view in ranked if view.end.next > offset]
    left = min((view.chunk(offset).first for view in beyond), default=-1)
    if left > offset:
        return _found(Outcome.GONE, place, max(place.next, left), beyond[0])
    return _found(Outcome.SAME, place, place.next, ranked[0]) if mark is None else _replaced(place, mark, ranked)


def _replaced(place: StreamPosition, mark: ChunkIdentity, ranked: Sequence[Copy]) -> Found:
    """Find the offset from which a stream differs from the stream that was read.

    Args:
        place: the recorded position, which is not unchanged in any copy as far as is known.
        mark: the chunk by which the position was compared.
        ranked: the copies of all members, the newest first.
    """
    view, head = ranked[0], ranked[0].chunk(0)
    # Each member applies retention by itself, so another member may still have earlier chunks of the same stream.
    alike = [one for one in ranked if one.end.next > head.first and one.chunk(head.first) == head]
    most = min(alike, key=lambda one: one.chunk(0).first)

    def chunk_at(offset: int) -> Chunk:
        return (most if offset < head.first else view).chunk(offset)

    def is_later(chunk: Chunk) -> bool:
        return chunk.timestamp_ms > mark.timestamp_ms + (0 if chunk.epoch == mark.epoch else _CLOCKS_MS)

    first, low, high = place.first, most.chunk(0).first, min(place.next, view.end.next)
    kept = chunk_at(first.chunk) if first is not None and low <= first.chunk < view.end.next else None
    if kept is not None and kept.identity != first:
        return _found(Outcome.OTHER, place, low, view)
    cut = _first_of(chunk_at, low, high, lambda chunk: chunk.epoch > mark.epoch)
    cut = _first_of(chunk_at, low, cut, is_later)
    if cut < high:
        return _found(Outcome.CUT, place, cut, view)
    if view.end.next < place.next:
        return Found(Outcome.NOT_YET, place.next, place, place)
    return _found(*((Outcome.OTHER, place, low) if kept is None else (Outcome.AGAIN, place, kept.end)), view)


def _first_of(chunk_at: Callable[[int], Chunk], low: int, high: int, is_newer: Callable[[Chunk], bool]) -> int:
    """Search offsets `low` to `high` for the first chunk for which `is_newer` is true.

    Returns:
        the chunk's first offset, or `high` if there is no such chunk.
    """
    while low < high:
        chunk = chunk_at((low + high) // 2)
        if is_newer(chunk):
            high = chunk.first
        else:
            low = chunk.end
    return min(low, high)


def _found(outcome: Outcome, place: StreamPosition, begin: int, view: Copy) -> Found:
    stop = place if outcome is Outcome.SAME else StreamPosition(0)
    if outcome in {Outcome.CUT, Outcome.AGAIN} and begin > 0:
        before = view.chunk(begin - 1)
        stop = StreamPosition(begin, before.identity if before.first < begin else None) if begin < place.next else place
    # Unless the stream is the same, its first chunk has to be read again.
    first = place.first if outcome is Outcome.SAME else None
    return Found(outcome, begin, view.end_after(first) if view.end.next > begin else place, stop)
