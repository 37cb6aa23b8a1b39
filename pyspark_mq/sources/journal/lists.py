"""The journal: which IDs are remembered, by names of files and by counts, as docs/design.md has it. Pure.

Each epoch has a file, of one or more *segments* of IDs. These are known while their segment is open, and the file of
each epoch names all that are.

What is behind a segment is counted when it comes there, and written with its name: so a restart, or a segment of which
little is left, changes nothing. An ID that is left again leaves the segment that it was in. It is behind those that are
newer than that one from now on, and was behind the others before.

When a list has more than its share, its eight smallest segments become one, at the place of the newest of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

__all__ = ["KEPT_EPOCHS", "PLANNED", "Journal", "Kind", "Segment"]

#: The segment of a file that has its epoch.
PLANNED = "planned"
#: Files are kept for so many plans behind the last that names them. Spark keeps a hundred offsets by default
#: (`spark.sql.streaming.minBatchesToRetain`).
KEPT_EPOCHS = 120
#: So many become one.
_MERGED = 8
#: IDs that were left are remembered for so many seconds of being connected.
_LEFT_S = 86_400.0
#: The same of contents, and how many may be left behind one: an equal message must not be taken for it for longer than
#: a broker may keep what it has not seen the end of. A kill leaves some seconds of traffic.
_CONTENTS_LEFT_S = 3_600.0
_CONTENTS_LEFT = 500_000


class Kind(Enum):
    """The list that a segment is in."""

    UNDER_WAY = "under way"
    SETTLED = "settled"
    LEFT = "left"


#: How many names each list may have.
SHARES: Mapping[Kind, int] = {Kind.UNDER_WAY: 16, Kind.SETTLED: 44, Kind.LEFT: 32}


@dataclass(slots=True, eq=False)
class Segment:
    """IDs that are remembered together.

    Attributes:
        number: of this process alone.
        file, name: where they are.
        size: how many; of a left one those that were not left again since.
        written: how many there are in the file.
        behind: IDs that came into the same list behind it.
        since_s: connected seconds when it was left.
        contents: some of it may be contents.
        stale: its text in the file has contents that are forgotten.
    """

    number: int
    file: str
    name: str
    size: int
    written: int
    behind: int = 0
    since_s: float = 0.0
    contents: bool = False
    stale: bool = False

    def reference(self, kind: Kind) -> list[object]:
        """The segment as later files name it."""
        return [self.file, self.name, kind.value, self.behind, round(self.since_s)]


@dataclass
class Journal:
    """All open segments, and the files that are still to be kept.

    Attributes:
        window: `dedupWindow`.
        maximum_left: IDs behind a left segment until it closes.
        connected_s: seconds for which every connection of the query was up, over all its processes.
        lists: each from the oldest on.
        gone: files that are no longer named, by the plan that was the last to name them, the oldest first.
    """

    window: int
    maximum_left: int
    connected_s: float = 0.0
    lists: dict[Kind, list[Segment]] = field(default_factory=lambda: {kind: [] for kind in Kind})
    gone: deque[list[str]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._numbers = count(1)

    @property
    def left_numbers(self) -> list[int]:
        return [segment.number for segment in self.lists[Kind.LEFT]]

    def make(self, file: str, name: str, size: int) -> Segment:
        """Make a segment that is in no list yet."""
        return Segment(next(self._numbers), file, name, size, size)

    def files(self) -> set[str]:
        return {segment.file for segments in self.lists.values() for segment in segments}

    # -- from list to list

    def commit(self, segment: Segment) -> None:
        """Take note that the epoch of a segment is committed."""
        self.lists[Kind.UNDER_WAY].append(segment)

    def settle(self, segment: Segment) -> None:
        """Take note that nothing of a segment that was under way can come again, but for what was left."""
        self.lists[Kind.UNDER_WAY].remove(segment)
        for other in self.lists[Kind.SETTLED]:
            other.behind += segment.size
        self.lists[Kind.SETTLED].append(segment)

    def leave(self, segment: Segment, again: Mapping[int, int]) -> None:
        """Take note that IDs were left, as a segment of their own.

        Args:
            segment: of all of them.
            again: number of a left segment -> how many of them have left that one for this.
        """
        behind = segment.size - sum(again.values())
        for other in self.lists[Kind.LEFT]:
            moved = again.get(other.number, 0)
            behind += moved
            other.behind += behind
            other.size -= moved
        segment.since_s = self.connected_s
        self.lists[Kind.LEFT].append(segment)

    # -- closing

    def over(self, kind: Kind) -> list[Segment]:
        """Find the segments of a list that are to be closed: enough came behind them, or a day is over."""
        maximum = self.window if kind is Kind.SETTLED else self.maximum_left
        aged_s = self.connected_s - _LEFT_S
        return [
            segment
            for segment in self.lists[kind]
            if segment.behind > maximum or (kind is Kind.LEFT and segment.since_s < aged_s)
        ]

    def outlived(self, segment: Segment) -> bool:
        """Whether the contents of a left segment are to be forgotten."""
        return segment.behind > _CONTENTS_LEFT or segment.since_s < self.connected_s - _CONTENTS_LEFT_S

    def drop(self, kind: Kind, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self.lists[kind].remove(segment)

    # -- merging

    def to_merge(self, kind: Kind) -> list[Segment]:
        """Find the segments of a list that have to become one, oldest first; none if it keeps to its share."""
        segments = self.lists[kind]
        if len(segments) <= SHARES[kind]:
            return []
        smallest = sorted(segments, key=lambda segment: segment.size)[:_MERGED]
        return [segment for segment in segments if segment in smallest]

    def merge(self, kind: Kind, group: Sequence[Segment], into: Segment) -> None:
        """Put one segment in the place of the newest of several."""
        newest = group[-1]
        into.behind, into.since_s = newest.behind, newest.since_s
        into.contents = any(segment.contents for segment in group)
        segments = self.lists[kind]
        segments[segments.index(newest)] = into
        self.drop(kind, group[:-1])

    # -- files

    def forget_files(self, before: Iterable[str], begun: Iterable[str]) -> list[str]:
        """Take note of a plan; the files that nobody needs any more.

        Args:
            before: files that the plan before named, and its own.
            begun: of epochs that are to be committed.
        """
        kept = self.files().union(begun)
        self.gone.append(sorted(set(before) - kept))
        files = [file for _ in range(len(self.gone) - KEPT_EPOCHS) for file in self.gone.popleft()]
        return [file for file in files if file not in kept]
