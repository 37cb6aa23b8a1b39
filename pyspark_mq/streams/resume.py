"""Where reading goes on: what became of a place in a stream, by what its members hold. Pure.

Loss is told by identities of chunks, never by a time or a lower end: after an election a leader truthfully reports a
lower end until replicas have acknowledged again (``osiris_writer:handle_continue``), and replicas lag. Epochs never
fall along a log and rise with each election. A restored backup repeats their numbers, and clocks differ: so a chunk is
newer than another if its epoch or its time is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from pyspark_mq.streams.chunk import Chunk, Identity
from pyspark_mq.streams.offsets import Place

__all__ = ["Found", "Outcome", "View", "holds", "resume", "stop"]


class View(Protocol):
    """What one member holds of a stream: committed chunks, from where its retention begins.

    Attributes:
        low: the lowest offset, as the member says; only a delivered chunk proves it.
        end: the place behind its last chunk; without a chunk if it has none, or knows of none yet.
    """

    @property
    def low(self) -> int: ...

    @property
    def end(self) -> Place: ...

    def chunk(self, offset: int) -> Chunk:
        """The chunk with an offset below the end, or the first one that is left."""


class Outcome(Enum):
    """What became of a place."""

    SAME = auto()
    #: Retention took the chunk before the place, at all members.
    GONE = auto()
    #: The stream is another one of that name.
    OTHER = auto()
    #: Chunks before the place were replaced.
    CUT = auto()
    #: The same, and it cannot be told which.
    AGAIN = auto()
    #: No member has got there. Lag and truncation look alike until somebody publishes.
    NOT_YET = auto()


class Found(NamedTuple):
    """What became of a place.

    Attributes:
        begin: offset to go on from.
        view: of the member to believe; None if it is not known yet.
    """

    outcome: Outcome
    begin: int
    view: View | None


def holds(place: Place, view: View) -> bool:
    """Whether a member has the chunk before a place unchanged; of a place without one, what was first."""
    mark = place.last or place.first
    if mark is None:
        return view.low <= place.next
    if view.end.last == mark:
        return True
    return view.low <= mark.chunk < view.end.next and view.chunk(mark.chunk).identity == mark


def resume(place: Place, views: Sequence[View]) -> Found:
    """Tell what became of a place.

    Args:
        views: of all members.
    """
    ranked = sorted(views, key=_rank, reverse=True)
    for view in ranked:
        if holds(place, view):
            return Found(Outcome.SAME, place.next, view)
    if not views or not all(view.end.last for view in views):
        return Found(Outcome.NOT_YET, place.next, None)
    mark = place.last or place.first
    if mark is None:
        return Found(Outcome.GONE, max(place.next, min(view.low for view in views)), ranked[0])
    beyond = [view for view in ranked if view.end.next > mark.chunk]
    left = min((view.chunk(mark.chunk).first for view in beyond), default=-1)
    if left > mark.chunk:
        return Found(Outcome.GONE, max(place.next, left), beyond[0])
    return _replaced(place, mark, ranked[0])


def _replaced(place: Place, mark: Identity, view: View) -> Found:
    """Tell from where on a stream that has no place unchanged is another one."""
    first, low, high = place.first, view.chunk(0).first, min(place.next, view.end.next)
    kept = view.chunk(first.chunk) if first is not None and low <= first.chunk < view.end.next else None
    if kept is not None and kept.identity != first:
        return Found(Outcome.OTHER, low, view)
    cut = _first_of(view, low, high, lambda chunk: chunk.epoch > mark.epoch)
    cut = _first_of(view, low, cut, lambda chunk: chunk.timestamp_ms > mark.timestamp_ms)
    if cut < high:
        return Found(Outcome.CUT, cut, view)
    if view.end.next < place.next:
        return Found(Outcome.NOT_YET, place.next, None)
    return Found(Outcome.OTHER, low, view) if kept is None else Found(Outcome.AGAIN, kept.end, view)


def stop(found: Found, place: Place) -> Place | None:
    """Where an epoch ends whose logged end is a place; None if nothing of it is left.

    What was replaced below the place is for the next epoch, which begins there.
    """
    if found.outcome in {Outcome.SAME, Outcome.NOT_YET}:
        return place
    if found.view is None or found.outcome not in {Outcome.CUT, Outcome.AGAIN} or found.begin == 0:
        return None
    if found.begin >= place.next:
        return place
    before = found.view.chunk(found.begin - 1)
    return Place(found.begin, before.identity if before.first < found.begin else None)


def _rank(view: View) -> tuple[int, int]:
    last = view.end.last
    return (-1, 0) if last is None else (last.epoch, view.end.next)


def _first_of(view: View, low: int, high: int, is_newer: Callable[[Chunk], bool]) -> int:
    """Where the first newer chunk begins; `high` if there is none below it."""
    while low < high:
        chunk = view.chunk((low + high) // 2)
        if is_newer(chunk):
            high = chunk.first
        else:
            low = chunk.end
    return min(low, high)
