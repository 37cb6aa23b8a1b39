"""Plans stream queries on the driver: starts and ends of epochs, and the ranges of offsets that tasks read.

The driver does not read the messages themselves; the tasks do. In this module, a *place* is a position in one
partition: the start of an epoch, the end of an epoch as Spark has logged it, or the end of a run with
`Trigger.AvailableNow`. A stream may be deleted, truncated or rewritten after a place was recorded, so :func:`.resume`
compares the place with the stream. An epoch ends at the end of a committed chunk. Spark's offset contains the identity
of this chunk, and a task fails if the chunk that it reads has another identity.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from pyspark_mq.errors import BrokerUnavailableError, DestinationError, OptionError
from pyspark_mq.streams.access import Access, make_access
from pyspark_mq.streams.connection import Member, NoStream, StreamConnection, StreamLost
from pyspark_mq.streams.offsets import LATEST, StreamPosition, decode, encode
from pyspark_mq.streams.ranges import Range, loss
from pyspark_mq.streams.resume import Found, Outcome, newest, resume, unchanged
from pyspark_mq.streams.settings import StreamSettings, Where
from pyspark_mq.streams.tail import Copy, chunk_with, sure_chunk
from pyspark_mq.streams.topology import everywhere, located, persistently

__all__ = ["Planner"]

T = TypeVar("T")

_log = logging.getLogger("pyspark_mq")

#: Shortest time between two refreshes of partitions and leaders. Spark asks an idle query for new data every 10 ms.
_TOPOLOGY_S = 1.0
#: How long the first search for the end of a partition waits for members that cannot be reached.
_SOON_S = 10.0
#: How many times planning is tried if streams disappear meanwhile.
_TRIES = 3
#: Texts of errors and warnings about a place. {0} is the offset at which reading continues, {1} the offset before {0},
#: and {2} the offset of the place.
_TEXTS = {
    Outcome.GONE: "offsets {2} to {1} are gone: retention removed them before they were read",
    Outcome.OTHER: "it was read up to offset {2}, but has been deleted and recreated since then: the new stream begins "
    "at offset {0}",
    Outcome.CUT: "it was read up to offset {2}, but chunks from offset {0} on differ now: its end was rewritten",
    Outcome.AGAIN: "it was read up to offset {2}, but its end was rewritten from an unknown offset on: "
    "rows from offset {0} on may repeat",
    Outcome.NOT_YET: "no member has offset {1}, which was committed before. The query waits for this offset. Whether "
    "it is lost will be known when the next message is published",
}


@dataclass
class _Partition:
    """The planner's knowledge about a partition, which is a stream or one of the streams of a super stream.

    Attributes:
        of: the name in the query's options: that of the stream itself, or of its super stream.
        members: the nodes with a copy of the partition, the leader first.
        there: whether the partition existed at the last refresh.
        seen: result of the last comparison since the last refresh: the compared place, the stream's end at that time,
            and the outcome. A refresh discards the result, because a re-created stream may have the same end as before.
        planned: the last planned epoch: its start place, the offset at which its reading begins, and its end place.
        furthest: the furthest place that this process has used.
        reported: losses reported so far, by place and outcome, with the offset up to which each loss was counted.
        bound: end of a run of `Trigger.AvailableNow`; None before such a run.
        backlog: number of offsets between the end of the last planned epoch and the end of the partition.
    """

    name: str
    of: str = ""
    members: list[Member] = field(default_factory=list)
    there: bool = False
    seen: tuple[StreamPosition, StreamPosition, Found] | None = None
    planned: tuple[StreamPosition, int, StreamPosition] | None = None
    furthest: StreamPosition | None = None
    reported: dict[tuple[StreamPosition, Outcome | None], int] = field(default_factory=dict)
    bound: StreamPosition | None = None
    backlog: int = 0


class Planner:
    """Plans the epochs of one query. A planner is used by one thread, and connects to the brokers at the first call."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._access: Access | None = None
        #: By name: all partitions that the broker has listed so far or that the checkpoint contains.
        self._partitions: dict[str, _Partition] = {}
        self._looked_s = float("-inf")
        self._bounded = False
        self._planned_s = time.monotonic()
        self._lost = self._planned = 0

    # -- queries

    def _at(self, name: str) -> _Partition:
        return self._partitions.setdefault(name, _Partition(name))

    def _there(self) -> list[_Partition]:
        return [partition for partition in self._partitions.values() if partition.there]

    def _look(self) -> None:
        """Ask the broker for the partitions and their members, unless this was done less than a second ago."""
        if time.monotonic() - self._looked_s < _TOPOLOGY_S:
            return
        limit_s = self._settings.endpoint.connect_timeout_s if self._access is None else None
        # Read secret files again, so that tasks get the newest secrets.
        self._access = make_access(self._settings.endpoint)
        found = {name: self._located(self._access, name, limit_s) for name in self._settings.streams}
        for partition in self._partitions.values():
            partition.there, partition.seen = False, None
        for of, parts in found.items():
            for name, members in parts.items():
                partition = self._at(name)
                partition.of, partition.members, partition.there = of, members, True
        self._looked_s = time.monotonic()

    def _located(self, access: Access, name: str, limit_s: float | None) -> dict[str, list[Member]]:
        known = [partition for partition in self._partitions.values() if partition.of == name]
        members = [member for partition in known if partition.there for member in partition.members]
        # Do not wait again for a stream that was already missing at the last refresh.
        absent_s = 0.0 if known and not members else None
        try:
            return persistently(
                access, members, partial(located, name=name), f"stream '{name}'", limit_s=limit_s, absent_s=absent_s
            )
        except NoStream:
            if known:
                return {}  # the stream existed before, so its messages are lost; the check of its place reports this
            raise DestinationError(
                f"stream '{name}' does not exist in virtual host '{self._settings.virtual_host}', or is a queue "
                "of another kind; correct option 'stream', or read a queue with 'queue' and amqp://"
            ) from None

    def _steadily(self, plan: Callable[[], T]) -> T:
        """Call `plan` and return its result. If a stream disappears meanwhile, refresh the partitions and try again."""
        for _ in range(_TRIES):
            self._look()
            try:
                return plan()
            except NoStream as missing:
                gone, self._looked_s = missing.stream, float("-inf")
        text = "the broker lists this stream, but answers requests about the stream with 'the stream does not exist'"
        raise loss(gone, text, fails=self._settings.fail_on_loss)

    def _ask(self, partition: _Partition, ask: Callable[[StreamConnection], T], limit_s: float | None = None) -> T:
        """Call `ask` with a connection to one member of a partition after another, until a call succeeds."""
        assert self._access is not None
        return persistently(self._access, partition.members, ask, f"stream '{partition.name}'", limit_s=limit_s)

    def _copy(self, partition: _Partition, connection: StreamConnection) -> Copy:
        known = None if partition.seen is None else partition.seen[1]
        return Copy(connection, partition.name, known, patient=partition.furthest is None)

    def _see(self, partition: _Partition, place: StreamPosition) -> Found:
        """Compare a place with the stream, and return what has become of the place.

        If the first member that answers still has the place unchanged, the other members are not asked. Otherwise the
        place is compared with the copies of all members, twice.
        """

        def look(connection: StreamConnection) -> Found:
            assert self._access is not None
            copy = self._copy(partition, connection)
            if partition.seen is not None and partition.seen[:2] == (place, copy.end):
                return partition.seen[2]
            found = unchanged(place, copy)
            if found is None:
                with everywhere(self._access, connection.members(partition.name)) as connections:
                    copies = ([Copy(one, partition.name) for one in connections] for _ in range(2))
                    found, again = (resume(place, some) for some in copies)
                    if found[:2] != again[:2]:
                        text = f"two comparisons of offset {place.next} with the stream have different outcomes"
                        raise StreamLost(f"stream '{partition.name}': {text}")
            partition.seen = place, copy.end, found
            return found

        found = self._ask(partition, look)
        partition.furthest = partition.furthest or place
        return found

    def _end(self, partition: _Partition) -> StreamPosition:
        """Return the committed end of a partition, at which a run of `Trigger.AvailableNow` ends.

        If all members can be reached soon, this is the end of the newest copy. Otherwise it is the end of the copy of
        the first member that answers.
        """

        def furthest(connection: StreamConnection) -> StreamPosition:
            assert self._access is not None
            with everywhere(self._access, connection.members(partition.name)) as connections:
                copies = [self._copy(partition, one) for one in connections]
                return max(copies, key=newest).end_after(None)

        try:
            return self._ask(partition, furthest, _SOON_S)
        except BrokerUnavailableError:
            return self._ask(partition, lambda connection: self._copy(partition, connection).end_after(None))

    # -- starts

    def initial(self) -> dict[str, Any]:
        """Return the offset at which a new query starts, encoded for Spark. Option `startingOffsets` determines it."""
        places = self._steadily(lambda: self._resolved("startingOffsets", self._settings.starting))
        for name, place in places.items():
            self._at(name).furthest = place
        return encode(self._settings.of, places)

    def batch(self) -> list[Range]:
        """Return the ranges of offsets that the tasks of a batch query read, `startingOffsets` to `endingOffsets`."""
        return self._steadily(self._batch)

    def _batch(self) -> list[Range]:
        starting = self._resolved("startingOffsets", self._settings.starting)
        ending = self._resolved("endingOffsets", self._settings.ending)
        return self._split([(self._at(name), place.next, ending[name]) for name, place in starting.items()])

    def _resolved(self, option: str, where: Where) -> dict[str, StreamPosition]:
        names = [partition.name for partition in self._there()]
        for name in (*(where.offsets or {}), *(where.times_ms or {})):
            if name not in names:
                problem = f"names partition '{name}', which is not one of {', '.join(names)}"
                raise OptionError(option, f"{problem}; correct it")
        return {
            partition.name: self._ask(partition, partial(self._resolve, partition, option, where))
            for partition in self._there()
        }

    def _resolve(
        self, partition: _Partition, option: str, where: Where, connection: StreamConnection
    ) -> StreamPosition:
        name = partition.name
        assert self._access is not None
        copy = self._copy(partition, connection)
        end = copy.end_after(None)
        if copy.is_cut and option == "endingOffsets":
            # A batch query omits the messages after a damaged chunk for good, so look for an intact copy.
            with everywhere(self._access, connection.members(name)) as connections:
                copy = max([Copy(one, name) for one in connections], key=newest)
                end = copy.end_after(None)
            if copy.is_cut:
                self._note_loss(
                    partition, f"the last chunk is damaged: messages after offset {end.next - 1} are not read", 0
                )
        since_ms = (where.times_ms or {}).get(name, where.since_ms)
        offset = (where.offsets or {}).get(name, where.offset)
        if since_ms is not None and end.last is not None:
            offset = LATEST
            if end.last.timestamp_ms >= since_ms:
                offset = chunk_with(connection, name, since_ms=since_ms).first
        if offset > end.next:
            there = f"which is {end.next}" if end.last else "which is still empty"
            raise OptionError(option, f"{offset} is past the end of stream '{name}', {there}; correct it")
        if offset == LATEST or end.first is None:
            return end
        first = end.first.chunk
        if 0 <= offset < first:
            with everywhere(self._access, connection.members(name)) as connections:
                first = min(Copy(one, name).low for one in connections)
        if 0 <= offset < first:
            text = f"offsets {offset} to {first - 1} of '{option}' are gone: retention removed them"
            self._tell(partition, StreamPosition(offset), Outcome.GONE, text, first)
        if offset <= first:
            return StreamPosition(first, None, end.first)
        chunk = sure_chunk(connection, name, offset - 1)
        return StreamPosition(offset, chunk.identity if chunk.first < offset else None, end.first)

    # -- epochs

    def bound(self) -> None:
        """Begin a run of `Trigger.AvailableNow`: the run ends at the current ends of all partitions."""
        self._looked_s = float("-inf")
        for partition, end in self._steadily(lambda: [(one, self._end(one)) for one in self._there()]):
            partition.bound = end
        self._bounded = True

    def latest(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """Return the end of the next epoch, encoded for Spark, or `start` itself if there is no epoch to plan yet.

        Args:
            start: the start of the epoch, encoded.
            limited: whether option `maxOffsetsPerTrigger` applies.
        """
        return self._steadily(lambda: self._latest(start, limited=limited))

    def _latest(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        before = decode(self._settings.of, start)
        for name, place in before.items():
            if not self._at(name).there:
                text = f"it was deleted after it had been read up to offset {place.next}"
                self._tell(self._at(name), place, None, text, place.next)
        planned: list[tuple[_Partition, int, StreamPosition]] = []
        for partition in self._there():
            if self._bounded and partition.bound is None:
                continue
            # A new partition is read from its first message.
            place = before.setdefault(partition.name, StreamPosition(0))
            found = self._see(partition, place)
            begin = self._judged(partition, place, found)
            end = self._bound_of(partition, found) if self._bounded else found.end
            partition.backlog = max(0, end.next - begin)
            planned.append((partition, begin, end))
        total = sum(partition.backlog for partition, *_ in planned)
        if total == 0 or self._waits(total):
            return start
        self._planned_s = time.monotonic()
        limit = self._settings.max_offsets if limited else None
        after = {one.name: self._cut(one, begin, end, limit, total) for one, begin, end in planned}
        for partition, begin, end in planned:
            place = partition.furthest = after[partition.name]
            partition.planned = before[partition.name], begin, place
            partition.backlog = end.next - place.next
            self._planned += max(0, place.next - begin)
        # A partition that the broker does not list keeps its place. If the partition is listed again later, it is then
        # not read a second time.
        return encode(self._settings.of, before | after)

    def _bound_of(self, partition: _Partition, found: Found) -> StreamPosition:
        """Return the position up to which an epoch of a run of `Trigger.AvailableNow` may read.

        If the stream no longer contains the recorded end of the run, because it was truncated or re-created, the
        stream's current end becomes the end of the run.
        """
        assert partition.bound is not None
        is_kept = found.outcome in {Outcome.SAME, Outcome.NOT_YET}
        if is_kept and partition.bound.next < found.end.next:
            is_kept = self._see(partition, partition.bound).outcome is Outcome.SAME
        if not is_kept:
            partition.bound = found.end
        return min(partition.bound, found.end, key=lambda place: place.next)

    def _waits(self, total: int) -> bool:
        minimum = self._settings.min_offsets
        if minimum is None or total >= minimum or self._bounded:
            return False
        return time.monotonic() - self._planned_s < self._settings.max_delay_s

    def _cut(
        self, partition: _Partition, begin: int, end: StreamPosition, limit: int | None, total: int
    ) -> StreamPosition:
        if limit is None or total <= limit or partition.backlog == 0:
            return end
        at = begin + max(1, limit * partition.backlog // total) - 1
        chunk = self._ask(partition, lambda connection: sure_chunk(connection, partition.name, at))
        return StreamPosition(chunk.end, chunk.identity, end.first) if chunk.end < end.next else end

    def _judged(
        self, partition: _Partition, place: StreamPosition, found: Found, end: int | None = None, gone: int = 0
    ) -> int:
        """Report a loss at a place, if there is any, and return the offset at which reading continues.

        Args:
            place: the start or the end of an epoch in the partition.
            found: the result of the comparison of the place with the stream.
            end: offset at which the epoch ends; None if the end is not planned yet, or is the place itself. Messages
                after the end that retention removed are counted with the next epoch.
            gone: how many planned offsets before the place no longer exist.

        Raises:
            DataLossError: messages are lost, and option `failOnDataLoss` is true.
        """
        begin, outcome = found.begin, found.outcome
        if outcome in _TEXTS and (begin > place.next or outcome is not Outcome.GONE):
            text = _TEXTS[outcome].format(begin, begin - 1, place.next)
            self._tell(partition, place, outcome, text, begin if end is None else min(begin, end), gone)
        return begin

    def _tell(
        self,
        partition: _Partition,
        place: StreamPosition,
        outcome: Outcome | None,
        text: str,
        begin: int,
        gone: int = 0,
    ) -> None:
        """Report a loss once for each place. If retention removes more messages later, report and count these, too."""
        counted = partition.reported.get((place, outcome))
        if outcome is Outcome.GONE:
            gone = max(0, begin - (place.next if counted is None else counted))
        if outcome is Outcome.NOT_YET and counted is None:
            _log.warning("stream '%s': %s", partition.name, text)
        elif counted is None or (outcome is Outcome.GONE and gone):
            self._note_loss(partition, text, gone)
        partition.reported[place, outcome] = begin

    def _note_loss(self, partition: _Partition, text: str, count: int) -> None:
        if self._settings.fail_on_loss:
            raise loss(partition.name, text)
        self._lost += count
        _log.warning("stream '%s': %s; the query continues, because 'failOnDataLoss' is false", partition.name, text)

    # -- tasks

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        """Divide an epoch into the ranges of offsets that its tasks read.

        Args:
            start: the epoch's start, encoded.
            end: the epoch's end, encoded.
        """
        if start == end:
            return []
        return self._steadily(lambda: self._ranges(decode(self._settings.of, start), decode(self._settings.of, end)))

    def _ranges(self, before: Mapping[str, StreamPosition], after: Mapping[str, StreamPosition]) -> list[Range]:
        planned: list[tuple[_Partition, int, StreamPosition]] = []
        for name, end in after.items():
            partition, start = self._at(name), before.get(name, StreamPosition(0))
            if start == end:
                continue
            if not partition.there:
                text = f"it was deleted before the planned offsets from {start.next} on were read"
                self._note_loss(partition, text, end.next - start.next)
            elif partition.planned is not None and partition.planned[::2] == (start, end):
                planned.append((partition, partition.planned[1], end))
            else:
                planned.append((partition, *self._logged(partition, start, end)))
        return self._split(planned)

    def _logged(self, partition: _Partition, start: StreamPosition, end: StreamPosition) -> tuple[int, StreamPosition]:
        """Check an epoch that a former process planned, and that Spark has read from its log.

        Returns:
            the offset at which reading begins, and the position at which the epoch ends.
        """
        found = self._see(partition, start)
        begin = self._judged(partition, start, found, end.next)
        partition.furthest = end
        found = self._see(partition, end)
        if found.outcome is not Outcome.GONE:
            self._judged(partition, end, found, gone=max(0, end.next - max(start.next, found.stop.next)))
        return begin, found.stop

    def _split(self, planned: Sequence[tuple[_Partition, int, StreamPosition]]) -> list[Range]:
        sizes = [(*one, one[2].next - one[1]) for one in planned if one[2].next > one[1]]
        total, settings = sum(size for *_, size in sizes), self._settings
        assert self._access is not None
        found: list[Range] = []
        for turn, (partition, begin, place, size) in enumerate(sizes):
            parts = -(-(settings.min_partitions or 1) * size // total)
            parts = min(max(parts, -(-size // (settings.max_records or size))), size)
            edges = [begin + size * number // parts for number in range(parts + 1)]
            for number, (low, high) in enumerate(pairwise(edges)):
                found.append(
                    Range(
                        partition.name, partition.of, low, high, place.last, tuple(partition.members), self._access,
                        settings.fail_on_loss, turn + number,
                    )
                )  # fmt: skip
        return found

    def report(self) -> dict[str, Any]:
        """Return the counters for the query's progress, which have the same names as those of a source of queues."""
        backlog = {partition.name: partition.backlog for partition in self._there()}
        return {
            "reads": self._settings.of,
            "planned": self._planned,
            "lost": self._lost,
            "backlog": sum(backlog.values()),
            "backlogByPartition": backlog,
        }
