"""The rule for resuming a stream. It derives the fate of a position from the members' copies of the stream. Pure.

Only chunk identities prove a loss. A time or a lower end proves nothing: after an election a leader correctly reports
a lower end until replicas have acknowledged again (``osiris_writer:handle_continue``), and replicas lag.

Epochs never decrease along a log, and increase with each election. But a restored backup repeats epoch numbers, and
clocks differ. So chunk B is newer than chunk A if B's epoch or B's time is later. If B's epoch is earlier, B's time
must be later by more than clocks may differ.
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

#: Largest difference between two leaders' clocks; a smaller difference between two times proves nothing.
_CLOCKS_MS = 5_000


class Outcome(Enum):
    """Fate of a position."""

    SAME = auto()
    #: Retention removed the chunk before the position, on all members.
    GONE = auto()
    #: Another stream has this name now.
    OTHER = auto()
    #: Chunks before the position were replaced, from a known offset on (CUT) or from an unknown offset on (AGAIN).
    CUT, AGAIN = auto(), auto()
    #: No member has reached the position. Lag and truncation look alike until the next publish.
    NOT_YET = auto()


class Found(NamedTuple):
    """Fate of a position, and where to resume.

    Attributes:
        begin: offset to resume at.
        end: position after the stream's last chunk; the examined position if there is nothing to read.
        stop: new end for an epoch whose logged end is the examined position. The new end is before the replaced chunks,
            and the next epoch reads those chunks.
    """

    outcome: Outcome
    begin: int
    end: StreamPosition
    stop: StreamPosition


def unchanged(place: StreamPosition, view: Copy) -> Found | None:
    """Return the fate `SAME` if a member's copy still has the chunk before a position. Otherwise return None.

    If the position does not name the chunk before it, the copy must have the stream's first chunk instead. If the
    position does not name that chunk either, the copy must not begin after the position.
    """
    mark = place.last or place.first
    if mark is None:
        same = view.low <= place.next
    else:
        same = view.end.last == mark or (view.end.next > mark.chunk and view.chunk(mark.chunk).identity == mark)
    return _found(Outcome.SAME, place, place.next, view) if same else None


def newest(view: Copy) -> tuple[int, int]:
    """Return the key by which leaders are elected: a copy's epoch, then the offset at the copy's end."""
    return (view.end.last.epoch if view.end.last else -1, view.end.next)


def resume(place: StreamPosition, views: Sequence[Copy]) -> Found:
    """Decide the fate of a position from all members' copies."""
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
    """Find the offset from which a stream differs from what was read. No member has the position unchanged."""
    view, head = ranked[0], ranked[0].chunk(0)
    # Each member has its own retention, so other members may have more of the same stream.
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
    """Return the start of the first newer chunk, or `high` if there is no newer chunk before offset `high`."""
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
    # The first chunk of another stream says nothing about the first chunk of this stream.
    first = place.first if outcome is Outcome.SAME else None
    return Found(outcome, begin, view.end_after(first) if view.end.next > begin else place, stop)
