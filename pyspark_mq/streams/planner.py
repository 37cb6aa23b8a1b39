"""The driver's side: where epochs begin and end, and which ranges their tasks read. No payload passes here.

What became of a place since it was read, :func:`.resume` tells, for the start of an epoch, for its logged end, and for
batches. An epoch ends at the end of a committed chunk, whose identity is in its offset, and which its tasks compare.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from pyspark_mq.errors import DestinationError, OptionError
from pyspark_mq.streams.access import Access, make_access
from pyspark_mq.streams.connection import Connection, Lost, Member, NoStream
from pyspark_mq.streams.offsets import LATEST, Place, decode, encode
from pyspark_mq.streams.ranges import Range, loss
from pyspark_mq.streams.resume import Found, Outcome, resume, unchanged
from pyspark_mq.streams.settings import Settings, Where
from pyspark_mq.streams.tail import Copy, chunk_since, sure_chunk
from pyspark_mq.streams.topology import everywhere, located, persistently

__all__ = ["Planner"]

T = TypeVar("T")

_log = logging.getLogger("pyspark_mq")

#: An idle query asks every ten milliseconds; partitions of super streams and changes of leaders are seen after so long.
_TOPOLOGY_S = 1.0
#: Planning attempts if a stream disappears meanwhile.
_TRIES = 3
#: What is said of a place: of the offset to go on from, the one before it, and the place's own.
_TEXTS = {
    Outcome.GONE: "offsets {2} to {1} are gone: retention has taken them before they were read",
    Outcome.OTHER: "it was read up to offset {2}, and was deleted and made again since: it begins at offset {0}",
    Outcome.CUT: "it was read up to offset {2}, and chunks from offset {0} on are others now: its end was rewritten",
    Outcome.AGAIN: "it was read up to offset {2}, and its end was rewritten, nobody can tell from where: "
    "rows from offset {0} on may repeat",
    Outcome.NOT_YET: "no member has offset {1}, which was committed once. It is waited for; if it is lost, that shows "
    "as soon as somebody publishes",
}


class Planner:
    """Plans the epochs of one query. Used by one thread; connects when it is first asked."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._access: Access | None = None
        self._names: dict[str, str] = {}
        self._members: dict[str, list[Member]] = {}
        self._looked_s = float("-inf")
        #: Ends that were read since partitions were looked at: a stream that is made again may have an end as before.
        self._ends: dict[str, Place] = {}
        #: The last place that was looked at, the end of the first member that was asked, and what became of the place.
        self._seen: dict[str, tuple[Place, Place, Found]] = {}
        self._gone: set[str] = set()
        self._bounds: dict[str, Place] | None = None
        #: The furthest places of this process: before 4.2 Spark does not say where an epoch begins.
        self._furthest: dict[str, Place] = {}
        #: Ends that Spark has logged below their starts, and these.
        self._carried: dict[str, tuple[Place, Place]] = {}
        #: Losses that were told, with the offset up to which they were counted.
        self._told: dict[tuple[str, Place, Outcome], int] = {}
        self._planned_s = time.monotonic()
        self._lost = self._planned = 0
        self._backlog: dict[str, int] = {}

    # -- asking

    def _look(self) -> None:
        """See which partitions there are, and where."""
        if time.monotonic() - self._looked_s < _TOPOLOGY_S:
            return
        first = self._access is None
        # Files of secrets are read again, so that tasks get the newest.
        self._access = make_access(self._settings.endpoint)
        names: dict[str, str] = {}
        limit_s = self._access.connect_timeout_s if first else None
        for name in self._settings.streams:
            for partition, members in self._located(name, limit_s).items():
                names[partition] = name
                self._members[partition] = members
        self._names, self._looked_s = names, time.monotonic()
        self._ends.clear()
        self._seen = {name: seen for name, seen in self._seen.items() if seen[2].outcome is not Outcome.NOT_YET}

    def _located(self, name: str, limit_s: float | None) -> dict[str, list[Member]]:
        assert self._access is not None
        try:
            # One that has gone already is not waited for again.
            absent_s = 0.0 if name in self._gone else None
            return persistently(self._access, (), lambda connection: located(connection, name), limit_s, absent_s)
        except NoStream:
            if name in self._members:
                return {}  # there was one: that is loss, and is said where its position is looked at
            raise DestinationError(
                f"stream '{name}' does not exist in virtual host '{self._settings.virtual_host}', or is a queue "
                "of another kind; correct option 'stream', or read a queue with 'queue' and amqp://"
            ) from None

    def _steadily(self, plan: Callable[[], T]) -> T:
        """Plan by what is there; anew if a stream has gone meanwhile."""
        for _ in range(_TRIES):
            self._look()
            try:
                return plan()
            except NoStream as missing:
                gone, self._looked_s = missing.stream, float("-inf")
        text = "its nodes say that it exists, and when they are asked about it that it does not"
        raise loss(gone, text, fails=self._settings.fail_on_loss)

    def _ask(self, name: str, ask: Callable[[Connection], T]) -> T:
        """Ask the members of a partition."""
        assert self._access is not None
        return persistently(self._access, self._members.get(name, ()), ask)

    def _is_new(self, name: str, found: Found, end: Place) -> bool:
        """Whether an end was planned a moment ago, and needs no second look."""
        return end in (found.end, self._furthest.get(name))

    def _see(self, name: str, place: Place, end: Place | None = None) -> Found:
        """Tell what became of a place: by one member if it has it unchanged, by all if not.

        Args:
            end: of an epoch that begins there.
        """
        seen = self._seen.get(name)
        if seen is not None and end is not None and seen[0] == place and self._is_new(name, seen[2], end):
            return seen[2]

        def look(connection: Connection) -> Found:
            assert self._access is not None
            copy = self._copy(connection, name)
            self._furthest.setdefault(name, place)
            if seen is not None and seen[:2] == (place, copy.end):
                return seen[2]
            found = unchanged(place, copy)
            if found is None:
                with everywhere(self._access, connection.members(name)) as connections:
                    found, again = (resume(place, [Copy(one, name) for one in connections]) for _ in range(2))
                    if found[:2] != again[:2]:
                        raise Lost(f"stream '{name}': what became of offset {place.next} is told in two ways")
            self._seen[name] = place, copy.end, found
            return found

        return self._ask(name, look)

    def _copy(self, connection: Connection, name: str) -> Copy:
        copy = Copy(connection, name, self._ends.get(name), patient=name not in self._furthest)
        self._ends[name] = copy.end
        return copy

    def _end(self, name: str) -> Place:
        """The committed end, of a place that nobody has been at."""
        return self._ask(name, lambda connection: self._copy(connection, name).end_after(Place(0)))

    # -- where to begin

    def initial(self) -> dict[str, Any]:
        """The offset of a query that has read nothing."""
        self._furthest = self._steadily(lambda: self._resolved("startingOffsets", self._settings.starting))
        return encode(self._settings.of, self._furthest)

    def batch(self) -> list[Range]:
        """The tasks of a batch from `startingOffsets` to `endingOffsets`."""
        return self._steadily(self._batch)

    def _batch(self) -> list[Range]:
        starting = self._resolved("startingOffsets", self._settings.starting)
        ending = self._resolved("endingOffsets", self._settings.ending)
        for partition, place in ending.items():
            if place.next < starting[partition].next:
                ending[partition] = starting[partition]
        return self._ranges(starting, ending)

    def _resolved(self, option: str, where: Where) -> dict[str, Place]:
        for given in (where.offsets or {}, where.times_ms or {}):
            unknown = [name for name in given if name not in self._names]
            if unknown:
                problem = f"names partition '{unknown[0]}', which is none of {', '.join(self._names)}"
                raise OptionError(option, f"{problem}; correct it")
        return {name: self._ask(name, partial(self._resolve, name, option, where)) for name in self._names}

    def _resolve(self, name: str, option: str, where: Where, connection: Connection) -> Place:
        copy = self._copy(connection, name)
        end = copy.end_after(Place(0))
        since_ms = (where.times_ms or {}).get(name, where.since_ms)
        offset = (where.offsets or {}).get(name, where.offset)
        if since_ms is not None and end.last is not None:
            offset = LATEST
            if end.last.timestamp_ms >= since_ms:
                offset = chunk_since(connection, name, since_ms).first
        if offset > end.next:
            there = f"which is {end.next}" if end.last else "which has nothing yet"
            raise OptionError(option, f"{offset} is behind the end of stream '{name}', {there}; correct it")
        if offset == LATEST or end.first is None:
            return end
        first = end.first.chunk
        if 0 <= offset < first:
            text = f"offsets {offset} to {first - 1} of '{option}' are gone: retention took them"
            self._tell(name, Place(offset), Outcome.GONE, text, first)
        if offset <= first:
            return Place(first, None, end.first)
        chunk = sure_chunk(connection, name, offset - 1)
        return Place(offset, chunk.identity if chunk.first < offset else None, end.first)

    # -- epochs

    def bound(self) -> None:
        """Fix the ends of a run of `Trigger.AvailableNow`."""
        self._looked_s = float("-inf")
        self._bounds = self._steadily(lambda: {name: self._end(name) for name in self._names})

    def latest(self, start: dict[str, Any] | None, *, limited: bool = True) -> dict[str, Any]:
        """The end of the next epoch; `start` itself if there is nothing to read.

        Args:
            start: None before Spark 4.2; then it is the furthest place of this process.
        """
        return self._steadily(lambda: self._latest(start, limited=limited))

    def _latest(self, start: dict[str, Any] | None, *, limited: bool) -> dict[str, Any]:
        before = dict(self._furthest) if start is None else decode(self._settings.of, start)
        gone = [name for name in before if name not in self._names]
        for name in set(gone) - self._gone:
            # An idle query asks again and again: it is said once.
            self._note_loss(name, f"it was deleted; it was read up to offset {before[name].next}", 0)
        self._gone = set(gone)
        begins: dict[str, int] = {}
        ends: dict[str, Place] = {}
        for name in self._names:
            if self._bounds is not None and name not in self._bounds:
                continue
            if start is None and name not in before:
                before[name] = self._end(name)
            # A partition that has come later is read from its first message.
            place = before.get(name, Place(0))
            found = self._see(name, place)
            begins[name] = self._judged(name, place, found)
            ends[name] = found.end if self._bounds is None else self._bounded(name, found)
        self._backlog = {name: max(0, end.next - begins[name]) for name, end in ends.items()}
        total = sum(self._backlog.values())
        if start is not None and (total == 0 or self._waits(total)):
            return start
        self._planned_s = time.monotonic()
        limit = self._settings.max_offsets if limited and start is not None else None
        after = {name: self._cut(name, begins[name], end, limit, total) for name, end in ends.items()}
        for name, place in after.items():
            self._planned += max(0, place.next - begins[name])
            self._backlog[name] = ends[name].next - place.next
        # A partition that has gone keeps its place: if it was only not named, it is not read again.
        self._furthest = before | after
        return encode(self._settings.of, self._furthest)

    def _bounded(self, name: str, found: Found) -> Place:
        """The end for a run that is bounded; a bound that the stream does not have any more is fixed anew."""
        assert self._bounds is not None
        bound, same = self._bounds[name], found.outcome in {Outcome.SAME, Outcome.NOT_YET}
        if same and bound.next < found.end.next:
            same = self._see(name, bound).outcome is Outcome.SAME
        if not same:
            self._bounds[name] = bound = found.end
        return bound if bound.next < found.end.next else found.end

    def _waits(self, total: int) -> bool:
        minimum = self._settings.min_offsets
        if minimum is None or total >= minimum or self._bounds is not None:
            return False
        return time.monotonic() - self._planned_s < self._settings.max_delay_s

    def _cut(self, partition: str, begin: int, end: Place, limit: int | None, total: int) -> Place:
        backlog = self._backlog[partition]
        if limit is None or total <= limit or backlog == 0:
            return end
        at = begin + max(1, limit * backlog // total) - 1
        chunk = self._ask(partition, lambda connection: sure_chunk(connection, partition, at))
        return Place(chunk.end, chunk.identity, end.first) if chunk.end < end.next else end

    def _judged(self, name: str, place: Place, found: Found, end: int | None = None) -> int:
        """Say what became of a place, and return the offset to go on from; a DataLossError if that is not accepted.

        Args:
            end: of an epoch; what retention took after that is counted with the next one.
        """
        begin, outcome = found.begin, found.outcome
        if outcome is Outcome.NOT_YET and (name, place, outcome) not in self._told:
            self._told[name, place, outcome] = begin
            _log.warning("stream '%s': %s", name, _TEXTS[outcome].format(begin, begin - 1, place.next))
        elif outcome not in {Outcome.SAME, Outcome.NOT_YET, Outcome.GONE} or begin > place.next:
            text = _TEXTS[outcome].format(begin, begin - 1, place.next)
            self._tell(name, place, outcome, text, begin if end is None else min(begin, end))
        return begin

    def _tell(self, name: str, place: Place, outcome: Outcome, text: str, begin: int) -> None:
        """Note a loss, once for each place; of what retention took, count what has not been counted."""
        told = self._told.get((name, place, outcome))
        count = max(0, begin - (place.next if told is None else told)) if outcome is Outcome.GONE else 0
        if told is None or count:
            self._note_loss(name, text, count)
        self._told[name, place, outcome] = begin

    def _note_loss(self, name: str, text: str, count: int) -> None:
        if self._settings.fail_on_loss:
            raise loss(name, text)
        self._lost += count
        _log.warning("stream '%s': %s; the query goes on, as 'failOnDataLoss' is false", name, text)

    # -- tasks

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        """Cut an epoch into what its tasks read."""
        if start == end:
            return []
        return self._steadily(lambda: self._ranges(decode(self._settings.of, start), decode(self._settings.of, end)))

    def _ranges(self, before: Mapping[str, Place], after: Mapping[str, Place]) -> list[Range]:
        begun: dict[str, int] = {}
        ends: dict[str, Place] = {}
        for name, end in after.items():
            start = before.get(name, Place(0))
            lower, carried = self._carried.get(name, (None, start))
            start = carried if start == lower else start
            if start == end:
                continue
            if name not in self._names:
                self._note_loss(
                    name, f"it was deleted; offsets from {start.next} on were planned", end.next - start.next
                )
                continue
            found = self._see(name, start, end)
            begun[name] = self._judged(name, start, found, end.next)
            ends[name] = end if self._is_new(name, found, end) else self._stop(name, start, end)
            self._furthest[name] = end
            if end.next < start.next and found.outcome in {Outcome.SAME, Outcome.NOT_YET}:
                self._carried[name], self._furthest[name] = (end, start), start
        return self._split(begun, ends)

    def _stop(self, name: str, start: Place, end: Place) -> Place:
        """Where an epoch ends that was logged with an end."""
        found = self._see(name, end)
        if found.outcome is not Outcome.GONE:
            self._judged(name, end, found)
            self._lost += max(0, end.next - max(start.next, found.stop.next))
        return found.stop

    def _split(self, begun: Mapping[str, int], after: Mapping[str, Place]) -> list[Range]:
        sizes = {name: place.next - begun[name] for name, place in after.items() if place.next > begun[name]}
        total, settings = sum(sizes.values()), self._settings
        assert self._access is not None
        planned: list[Range] = []
        for turn, (name, size) in enumerate(sizes.items()):
            parts = -(-(settings.min_partitions or 1) * size // total)
            parts = min(max(parts, -(-size // (settings.max_records or size))), size)
            begin, place, members = begun[name], after[name], tuple(self._members.get(name, ()))
            for number in range(parts):
                low, high = begin + size * number // parts, begin + size * (number + 1) // parts
                planned.append(
                    Range(
                        name, self._names[name], low, high, place.last, members, self._access, settings.fail_on_loss,
                        turn + number,
                    )
                )  # fmt: skip
        return planned

    def report(self) -> dict[str, Any]:
        """Counters, for the query's progress, by the names of those of queues."""
        return {
            "reads": self._settings.of,
            "planned": self._planned,
            "lost": self._lost,
            "backlog": sum(self._backlog.values()),
            "backlogByPartition": dict(self._backlog),
        }
