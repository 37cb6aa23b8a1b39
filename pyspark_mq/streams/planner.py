"""The driver's side: where epochs begin and end, and which ranges their tasks read. No payload passes here.

A position is compared with the stream before anything is planned from it: the chunk before it must be the one that it
was, as far as retention has left it, and the end must not have gone back. An epoch ends at the end of a committed
chunk, whose identity is in its offset, and which its tasks compare when they have read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark_mq.errors import DestinationError, OptionError
from pyspark_mq.streams.access import Access, make_access
from pyspark_mq.streams.connection import Connection, Member, NoStream
from pyspark_mq.streams.offsets import EARLIEST, LATEST, Place, decode, encode
from pyspark_mq.streams.ranges import Range, loss
from pyspark_mq.streams.settings import Settings, Where
from pyspark_mq.streams.tail import chunk_since, chunk_with, end_of, first_of
from pyspark_mq.streams.topology import located, persistently

__all__ = ["Planner"]

A = ParamSpec("A")
T = TypeVar("T")

_log = logging.getLogger("pyspark_mq")

#: An idle query asks every ten milliseconds; partitions of super streams and changes of leaders are seen after so long.
_TOPOLOGY_S = 1.0
#: How long an end that went back is not believed: who answers may be a replica that lags.
_BACK_S, _PAUSE_S = 10.0, 0.2
#: As often a stream may go while it is planned.
_TRIES = 3


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
        self._settled: set[str] = set()
        self._gone: set[str] = set()
        self._bounds: dict[str, Place] | None = None
        #: Places that were compared, and the end of the stream at that time.
        self._compared: dict[str, tuple[Place, Place, int]] = {}
        self._planned_s = time.monotonic()
        self._lost = self._planned = 0
        self._backlog: dict[str, int] = {}

    # -- asking

    def _look(self, *, again: bool = False) -> None:
        """See which partitions there are, and where."""
        now = time.monotonic()
        if now - self._looked_s < _TOPOLOGY_S and not again:
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

    def _located(self, name: str, limit_s: float | None) -> dict[str, list[Member]]:
        assert self._access is not None
        try:
            return persistently(self._access, (), lambda connection: located(connection, name), limit_s)
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
        raise loss(gone, "its nodes say that it exists, and when they are asked about it that it does not")

    def _ask(
        self, ask: Callable[Concatenate[Connection, str, A], T], partition: str, *given: A.args, **named: A.kwargs
    ) -> T:
        """Ask the members of a partition."""
        assert self._access is not None
        members = self._members.get(partition, ())
        return persistently(self._access, members, lambda connection: ask(connection, partition, *given, **named))

    def _end(self, partition: str, floor: int) -> Place:
        """Return the committed end; one below the floor only when it has stayed there."""
        deadline = time.monotonic() + _BACK_S
        while True:
            known, settled = self._ends.get(partition), partition in self._settled
            end = self._ask(end_of, partition, known, patient=not settled)
            if end.chunk is None or end.next >= floor or time.monotonic() > deadline:
                self._ends[partition] = end
                self._settled.add(partition)
                return end
            self._ends.pop(partition, None)
            time.sleep(_PAUSE_S)
            self._look(again=True)

    # -- where to begin

    def initial(self) -> dict[str, Any]:
        """The offset of a query that has read nothing."""
        places = self._steadily(lambda: self._resolved("startingOffsets", self._settings.starting))
        return encode(self._settings.of, places)

    def batch(self) -> list[Range]:
        """The tasks of a batch from `startingOffsets` to `endingOffsets`."""
        return self._steadily(self._batch)

    def _batch(self) -> list[Range]:
        starting = self._resolved("startingOffsets", self._settings.starting)
        ending = self._resolved("endingOffsets", self._settings.ending)
        for partition, place in ending.items():
            if place.next < starting[partition].next:
                ending[partition] = starting[partition]
        return self._split(starting, ending)

    def _resolved(self, option: str, where: Where) -> dict[str, Place]:
        for given in (where.offsets or {}, where.times_ms or {}):
            unknown = [name for name in given if name not in self._names]
            if unknown:
                problem = f"names partition '{unknown[0]}', which is none of {', '.join(self._names)}"
                raise OptionError(option, f"{problem}; correct it")
        return {name: self._resolve(option, where, name) for name in self._names}

    def _resolve(self, option: str, where: Where, partition: str) -> Place:
        end = self._end(partition, 0)
        since_ms = (where.times_ms or {}).get(partition, where.since_ms)
        offset = (where.offsets or {}).get(partition, where.offset)
        first = self._ask(first_of, partition)
        if since_ms is not None and end.chunk is not None:
            offset = LATEST
            if end.chunk.timestamp_ms >= since_ms:
                offset = self._ask(chunk_since, partition, since_ms).first
        if offset == LATEST or end.chunk is None:
            if offset > end.next:
                raise OptionError(option, f"{offset} is behind the end of stream '{partition}', which has nothing yet")
            return end
        if offset == EARLIEST:
            return Place(first)
        if offset > end.next:
            problem = f"{offset} is behind the end of stream '{partition}', which is {end.next}"
            raise OptionError(option, f"{problem}; correct it")
        if offset < first:
            text = f"offsets {offset} to {first - 1} of '{option}' are gone: retention took them"
            self._note_loss(partition, text, first - offset)
            return Place(first)
        if offset == first:
            return Place(offset)
        chunk = self._ask(chunk_with, partition, offset - 1)
        return Place(offset, chunk.identity if chunk.first < offset else None)

    # -- epochs

    def bound(self) -> None:
        """Fix the ends of a run of `Trigger.AvailableNow`."""
        self._looked_s = float("-inf")
        self._bounds = self._steadily(lambda: {name: self._end(name, 0) for name in self._names})

    def latest(self, start: dict[str, Any] | None, *, limited: bool = True) -> dict[str, Any]:
        """The end of the next epoch; `start` itself if there is nothing to read."""
        return self._steadily(lambda: self._latest(start, limited=limited))

    def _latest(self, start: dict[str, Any] | None, *, limited: bool) -> dict[str, Any]:
        if start is None:
            # Before Spark 4.2 nobody says where the epoch begins: it is compared when its tasks are planned.
            return encode(self._settings.of, {name: self._end(name, 0) for name in self._names})
        before = decode(self._settings.of, start)
        gone = [name for name in before if name not in self._names]
        for name in set(gone) - self._gone:
            # An idle query asks again and again: it is said once.
            self._note_loss(name, f"it was deleted; it was read up to offset {before[name].next}", 0)
        self._gone = set(gone)
        begins: dict[str, int] = {}
        ends: dict[str, Place] = {}
        for name in self._names:
            # A partition that has come later is read from its first message.
            place = before.get(name, Place(0))
            if self._bounds is not None and name not in self._bounds:
                continue
            end = self._end(name, place.next)
            begins[name] = self._begin(name, place, end)
            if self._bounds is not None and self._bounds[name].next < end.next:
                end = self._bounds[name]
            ends[name] = end if end.next > begins[name] else place
        self._backlog = {name: max(0, end.next - begins[name]) for name, end in ends.items()}
        total = sum(self._backlog.values())
        if total == 0 or self._waits(total):
            return start
        self._planned_s = time.monotonic()
        limit = self._settings.max_offsets if limited else None
        after = {name: self._cut(name, begins[name], end, limit, total) for name, end in ends.items()}
        for name, place in after.items():
            self._planned += max(0, place.next - begins[name])
            self._backlog[name] = ends[name].next - place.next
        # A partition that has gone keeps its place: if it was only not named, it is not read again.
        return encode(self._settings.of, before | after)

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
        chunk = self._ask(chunk_with, partition, at)
        return Place(chunk.end, chunk.identity) if chunk.end < end.next else end

    def _begin(self, partition: str, place: Place, end: Place) -> int:
        """The offset to go on from, when the stream was compared with the place."""
        known = self._compared.get(partition)
        if known is not None and known[:2] == (place, end):
            return known[2]
        begin = self._compare(partition, place, end)
        self._compared[partition] = place, end, begin
        return begin

    def _compare(self, partition: str, place: Place, end: Place) -> int:
        if end.chunk is None:
            return place.next  # nothing, or not yet
        remade = "the stream was deleted and made again, or its end was rewritten"
        first = self._ask(first_of, partition)
        if end.next < place.next:
            self._note_loss(partition, f"its end is {end.next}, and it was read up to {place.next}: {remade}", 0)
            return first
        if place.chunk is not None and first <= place.chunk.chunk:
            chunk = place.chunk.chunk
            found = end.chunk
            if chunk != found.chunk:
                found = self._ask(chunk_with, partition, chunk).identity
            if found != place.chunk:
                # Retention may have taken it in between.
                first = self._ask(first_of, partition)
                if first <= chunk:
                    text = f"before offset {place.next} is another chunk than was read, {found} for {place.chunk}"
                    self._note_loss(partition, f"{text}: {remade}", 0)
                    return first
        if first > place.next:
            text = f"offsets {place.next} to {first - 1} are gone: retention has taken them before they were read"
            self._note_loss(partition, text, first - place.next)
            return first
        return place.next

    def _note_loss(self, partition: str, text: str, count: int) -> None:
        if self._settings.fail_on_loss:
            raise loss(partition, text)
        self._lost += count
        _log.warning("stream '%s': %s; the query goes on, as 'failOnDataLoss' is false", partition, text)

    # -- tasks

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        """Cut an epoch into what its tasks read."""
        if start == end:
            return []
        return self._steadily(lambda: self._ranges(decode(self._settings.of, start), decode(self._settings.of, end)))

    def _ranges(self, before: Mapping[str, Place], after: Mapping[str, Place]) -> list[Range]:
        begun: dict[str, Place] = {}
        for name, place in after.items():
            begun[name] = held = before.get(name, Place(0))
            if held == place:
                continue
            if name not in self._names:
                self._note_loss(name, f"it was deleted; offsets from {held.next} on were planned", 0)
                begun[name] = place
            else:
                now = self._ends.get(name) or self._end(name, place.next)
                begun[name] = Place(self._begin(name, held, now))
        return self._split(begun, after)

    def _split(self, begun: Mapping[str, Place], after: Mapping[str, Place]) -> list[Range]:
        sizes = {name: place.next - begun[name].next for name, place in after.items() if place.next > begun[name].next}
        total, settings = sum(sizes.values()), self._settings
        assert self._access is not None
        planned: list[Range] = []
        for turn, (name, size) in enumerate(sizes.items()):
            parts = -(-(settings.min_partitions or 1) * size // total)
            parts = min(max(parts, -(-size // (settings.max_records or size))), size)
            begin, place, members = begun[name].next, after[name], tuple(self._members.get(name, ()))
            for number in range(parts):
                low, high = begin + size * number // parts, begin + size * (number + 1) // parts
                planned.append(
                    Range(
                        name, self._names[name], low, high, place.chunk, members, self._access, settings.fail_on_loss,
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
