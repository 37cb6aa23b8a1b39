"""The journal: the memory of a query, and its files. :class:`.EpochFile` describes their content.

The file of an epoch is written once, and is durable before the offset that names it is returned.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark_mq.ack import InFlightTable
from pyspark_mq.dedup import ByQueue, EpochFile, Key, Memory, QueueMemory, filed, is_content
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import JournalFiles, Position
from pyspark_mq.sources.settings import Settings

__all__ = ["Journal", "LeftOpen", "NoJournal", "file_of", "planned_in", "remembered_in"]

_LOG = logging.getLogger("pyspark_mq")

#: Bytes of the secret for digests.
_SECRET_BYTES = 32
#: Parts of an epoch next to its file: a note that its process is about to acknowledge it; a note that another process
#: expects its messages; a note that a process plans, after this epoch, what may be the only epoch of its run; a note
#: that its echoes are settled; a note that another process replays it without its echoes; and, numbered, records of
#: abandoned messages, and notes of what was settled since.
_ACKNOWLEDGED, _EXPECTED, _ALONE, _BEGUN, _REPLAYED, _ABANDONED, _SETTLED = (
    "acknowledged", "expected", "alone", "begun", "replayed", "abandoned", "settled",
)  # fmt: skip
_TOKEN_BYTES = 4


class LeftOpen(NamedTuple):
    """Messages that the end of a former process has left open.

    Attributes:
        counts: queue -> number of these messages.
        keys: queue -> keys of the last committed epoch, which the store of IDs may lack.
        coming: queue -> contents that will certainly be redelivered, because no process has acknowledged them.
    """

    counts: Mapping[str, int]
    keys: Mapping[str, Sequence[Key]]
    coming: Mapping[str, Sequence[Key]]


def file_of(files: JournalFiles, name: str) -> EpochFile:
    """Read the file of an epoch, without its abandoned messages, and without echoes if it was replayed.

    Raises:
        CheckpointError: the file cannot be read.
    """
    file, parts = files.read(name), files.parts(name)
    abandoned = _abandoned(files, name, parts)
    if _REPLAYED in parts:
        file = replace(file, echoes={})
    if not abandoned:
        return file
    return replace(
        file,
        planned={queue: _without(keys, Counter(abandoned.get(queue, ()))) for queue, keys in file.planned.items()},
    )


def _abandoned(files: JournalFiles, name: str, kept: Iterable[str]) -> ByQueue:
    """Return the abandoned messages of an epoch (rule 15). The last record includes all earlier records."""
    records = [part for part in kept if part.startswith(_ABANDONED)]
    return files.read(name, records[-1]).planned if records else {}


def _without(keys: Sequence[Key], gone: Mapping[Key, int]) -> list[Key]:
    """Return `keys` without the keys in `gone`, each left out as often as `gone` counts it.

    If a key occurs several times, its last occurrences are left out, because redelivered messages with this content
    take the first places.
    """
    counts = Counter(gone)
    kept: list[Key] = []
    for key in reversed(keys):
        if counts[key]:
            counts[key] -= 1
        else:
            kept.append(key)
    return kept[::-1]


def planned_in(files: JournalFiles, name: str) -> dict[str, list[Key]]:
    """Read the keys of an epoch: queue -> keys in order, without the keys of abandoned messages.

    Args:
        name: name of the epoch's file; empty for none.

    Raises:
        CheckpointError: the keys cannot be read.
    """
    planned = file_of(files, name).planned if name else {}
    # Messages without an identity are not awaited: later epochs emit them.
    return {queue: [key for key in keys if type(key) is str or any(key)] for queue, keys in planned.items()}


def remembered_in(files: JournalFiles, name: str) -> dict[str, int]:
    """Count the IDs that an epoch's file remembers besides the IDs of the epoch itself: settled IDs, and left IDs.

    Args:
        name: name of the epoch's file; empty for none.

    Raises:
        CheckpointError: a file cannot be read.
    """
    memory = Memory(sys.maxsize, sys.maxsize, b"")
    if name:
        memory.load(name, lambda file: file_of(files, file), committed=False)
    return {"settled": len(memory.window), "left": len(memory.left) + memory.contents_left}


class Journal:
    """The memory of one query, and its files. Called by the query's thread."""

    def __init__(self, settings: Settings, files: JournalFiles) -> None:
        self._destination = settings.destination
        self._files = files
        self.memory = Memory(settings.dedup_window, settings.remember_left, secrets.token_bytes(_SECRET_BYTES))
        #: Uncommitted epoch -> name of its file.
        self._open: dict[int, str] = {}
        #: Files of epochs for which a note is written once the epoch is committed.
        self._to_note: set[str] = set()
        #: Files that the last plan named, and the file of that plan.
        self._named: set[str] = set()
        self._seen_s: float | None = None
        #: In the names of notes, so that two processes write different ones.
        self._token = secrets.token_hex(_TOKEN_BYTES)

    def known(self, queue: str) -> QueueMemory:
        """Return the memory of a queue, even of a queue that is not read now."""
        return QueueMemory(self.memory, queue)

    @property
    def forgotten(self) -> int:
        """Number of messages forgotten although they may be redelivered."""
        return self.memory.forgotten

    @property
    def remembered(self) -> int:
        """Number of known committed messages."""
        return len(self.memory)

    def poll(self, until_s: float, *, connected: bool) -> None:
        """Record whether every connection is up, and forget contents that have expired.

        Args:
            until_s: time up to which everything received was reported.
        """
        if connected and self._seen_s is not None:
            self.memory.connected_s += max(0.0, until_s - self._seen_s)
        self._seen_s = until_s if connected else None
        self.memory.forget_contents()

    # -- phase one

    def plan(
        self, epoch: int, planned: ByQueue, in_flight_tables: Mapping[str, InFlightTable[Key, Any]], start: int = -1
    ) -> str:
        """Write the file of an epoch; return its name.

        Args:
            planned: keys of each queue, in order.
            in_flight_tables: tables of the queues that may have an open epoch.
            start: number of the committed epoch that this epoch follows.

        Raises:
            CheckpointError: the file cannot be written.
        """
        those = {queue: keys for queue, keys in planned.items() if keys}
        file = replace(self._compose(epoch, [*planned], those, in_flight_tables), start=start)
        name = self._files.put(file)
        self.memory.written(name, file)
        self._named = {name, *file.names}
        self._open[epoch] = name
        if self._repeating(those):
            self._to_note.add(name)
        return name

    def note_settled(self, start: Position, in_flight_tables: Mapping[str, InFlightTable[Key, Any]]) -> None:
        """Write down what no file says yet about messages without an ID: which are settled, and which repeat.

        A process that starts without this knowledge would take an equal message for a redelivery and drop it.

        Args:
            start: the last committed position, to whose file the note belongs.

        Raises:
            CheckpointError: the note cannot be written.
        """
        note = self.memory.note(_held(in_flight_tables)) if start.file else None
        if note is not None:
            number = sum(part.startswith(_SETTLED) for part in self._files.parts(start.file))
            self._files.put(note, start.file, f"{_SETTLED}-{number:06d}-{self._token}")

    def note_begun(self, end: Position, in_flight_tables: Mapping[str, InFlightTable[Key, Any]]) -> None:
        """Write down that the echoes of an epoch are settled, if they are, for a run that ends without another call.

        Raises:
            CheckpointError: the note cannot be written.
        """
        echoes = self._file(end.file).echoes if end.file else {}
        if echoes and end.epoch not in _held(in_flight_tables) and self.memory.holds(end.epoch, echoes):
            self._files.put(EpochFile(), end.file, _BEGUN)

    def begin_alone(self, start: Position) -> bool:
        """Record that this process plans an epoch that may be the only epoch of its run.

        Returns:
            whether windows may be wide for this epoch. They must stay small if a former process made the same record at
            this position, and Spark has logged nothing since. Otherwise a job that crashes again and again would use up
            the delivery limit of its whole queue.
        """
        if not start.file:
            return True
        if _ALONE in self._files.parts(start.file):
            return False
        self._files.put(EpochFile(), start.file, _ALONE)
        return True

    def end_alone(self, start: Position) -> None:
        """Remove the record of :meth:`begin_alone`, because there was nothing to plan."""
        if start.file:
            self._files.remove([start.file], _ALONE)

    def check_start(self, start: Position, end: Position) -> None:
        """Check that the position from which an epoch was planned is the start that Spark states for this epoch.

        Raises:
            CheckpointError: the epoch was planned from another position.
        """
        planned = self._files.read(end.file).start if end.file else -1
        if planned not in {-1, start.epoch}:
            raise CheckpointError(
                f"{self._destination}: epoch {end.epoch} follows epoch {planned}, but Spark runs it after epoch "
                f"{start.epoch}. If two runs of the query share the checkpoint, end one of them. If Spark writes its "
                "logs late, leave out 'asyncProgressTrackingEnabled'. Nothing of the epoch was emitted. If the error "
                "happens again, delete the newest file in the folder 'offsets' of the checkpoint"
            )

    def _repeating(self, planned: ByQueue, but: Collection[bytes] = ()) -> dict[str, list[Key]]:
        """Find the messages whose contents are known to repeat."""
        found = {}
        for queue, keys in planned.items() if self.memory.repeats else ():
            contents = [key for key in filed(keys) if is_content(key)]
            found[queue] = self.known(queue).repeating(contents, but)
        return {queue: keys for queue, keys in found.items() if keys}

    def _compose(
        self,
        epoch: int,
        queues: Sequence[str],
        planned: ByQueue,
        in_flight_tables: Mapping[str, InFlightTable[Key, Any]],
    ) -> EpochFile:
        memory, forgotten = self.memory, self.forgotten
        echoes = {
            queue: [*keys] for queue, in_flight in in_flight_tables.items() if (keys := in_flight.planned.echoes(epoch))
        }
        file = memory.compose(epoch, queues, planned, _held(in_flight_tables), echoes)
        if self.forgotten > forgotten:
            _LOG.warning(
                "%s: the IDs of %d messages are forgotten. When connections ended, these messages were left open, and "
                "since then %s more were left open. If the forgotten messages are redelivered, they count as new",
                self._destination, self.forgotten - forgotten, f"{memory.left.maximum:,}",
            )  # fmt: skip
        gone, going = memory.forget_files({*self._named, *self._files.left_by_crashes()}, file.names)
        self._files.remove(gone)
        return replace(file, gone=going)

    # -- phase two

    def begin_commit(self, epoch: int) -> None:
        """Record the commit of an epoch; its queues then record its messages and acknowledge them.

        Raises:
            CheckpointError: another process of the query has taken over, and expects the messages of the epoch.
        """
        file = self._open.pop(epoch, "")
        if file in self._to_note:
            # The next process must know whether several equal messages may be redelivered. It writes its note before
            # it looks for this one, and this process looks for that note now: so one of the two sees the other.
            self._to_note.discard(file)
            self._files.put(EpochFile(), file, _ACKNOWLEDGED)
            if self._files.has_part(file, _EXPECTED):
                raise CheckpointError(
                    f"{self._destination}: another run of the query has continued after epoch {epoch}, so this run "
                    "ends. It did not acknowledge the epoch. Let only one run at a time use the checkpoint"
                )

    # -- restart

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:  # noqa: ARG002
        """Read the keys of the epoch between two positions, by queue and in order, without abandoned messages.

        Raises:
            CheckpointError: the keys cannot be read.
        """
        if not end.file:
            return {}
        if _EXPECTED in self._files.parts(end.file):  # by a process that knew of a commit which is lost
            self._files.remove([end.file], _EXPECTED)
        self._open[end.epoch] = end.file
        if self._file(end.file).echoes and _BEGUN not in self._files.parts(end.file):
            self._files.put(EpochFile(), end.file, _REPLAYED)
        planned = planned_in(self._files, end.file)
        if self._repeating(planned):
            self._to_note.add(end.file)
        return planned

    def queues(self, position: Position) -> list[str]:
        """List the queues that were read when an epoch was planned."""
        return list(self._files.read(position.file).queues) if position.file else []

    def adopt(self, start: Position, open_: Position | None) -> LeftOpen:
        """Load the memory of a former process.

        Args:
            start: the first known committed position.
            open_: end of an epoch that the former process planned but did not see committed. The epoch's file has the
                memory as of the plan.

        Raises:
            CheckpointError: a file cannot be read.
        """
        if open_ is None or not open_.file:
            return self.recall(start.file, start, committed=True)
        return self.recall(open_.file, start, committed=False)

    def recall(self, name: str, start: Position, *, committed: bool) -> LeftOpen:
        """Load the memory from a file: as of the plan of the file's epoch, or, with `committed`, as of its commit."""
        if not name:
            return LeftOpen({}, {}, {})
        parts = self._files.parts(name)
        notes = [self._files.read(name, part) for part in parts if committed and part.startswith(_SETTLED)]
        begun = _BEGUN in parts
        counts = self.memory.load(name, self._file, committed=committed, notes=notes, begun=begun)
        file, keys = self._file(name), planned_in(self._files, start.file)
        # For contents that were known to repeat when the epoch was planned, a note tells whether it is acknowledged.
        # For contents found to repeat since then, there is no such note. The echoes of an open epoch may have been
        # acknowledged when that epoch began, so they are not expected.
        changed = notes if name == start.file else [file]
        since = frozenset(bytes(content) for one in changed for content in one.repeating)
        echoes = {} if name == start.file else file.echoes
        if any(start.epoch in note.settled for note in notes):
            keys = {}  # nothing of the epoch is redelivered
        coming = self._repeating(
            {queue: _without(some, Counter(echoes.get(queue, ()))) for queue, some in keys.items()}, since
        )
        if coming:
            if _EXPECTED not in self._files.parts(start.file):
                self._files.put(EpochFile(), start.file, _EXPECTED)
            if self._files.has_part(start.file, _ACKNOWLEDGED):
                coming = {}
        self._named = {name, *file.names}
        return LeftOpen(counts, keys, coming)

    def _file(self, name: str) -> EpochFile:
        return file_of(self._files, name)

    # -- abandoned messages

    def abandon(self, end: Position, keys: ByQueue) -> None:
        """Record abandoned messages before anything of the epoch is emitted (rule 15).

        Raises:
            CheckpointError: the record cannot be written.
        """
        kept = self._files.parts(end.file)
        before = _abandoned(self._files, end.file, kept)
        joined = {queue: [*before.get(queue, ()), *filed(keys.get(queue, ()))] for queue in {**before, **keys}}
        number = sum(part.startswith(_ABANDONED) for part in kept)
        self._files.put(EpochFile(planned=joined), end.file, f"{_ABANDONED}-{number:06d}")


def _held(in_flight_tables: Mapping[str, InFlightTable[Key, Any]]) -> set[int]:
    """Return the epochs with an unsettled acknowledgement."""
    return {epoch for in_flight in in_flight_tables.values() for epoch in in_flight.settling.epochs}


class NoJournal:
    """The journal of a query without IDs, which remembers nothing.

    Args:
        files: files that a later query with guarantee `exactly-once` would read; None if there is no place for files.
    """

    forgotten = remembered = 0

    def __init__(self, settings: Settings, files: JournalFiles | None) -> None:
        self._settings = settings
        self._destination = settings.destination
        self._files = files

    def poll(self, until_s: float, *, connected: bool) -> None:
        """Forget nothing."""

    def plan(self, *_: Any, **__: Any) -> str:
        """Write nothing."""
        return ""

    def note_settled(self, start: Position, in_flight_tables: Mapping[str, InFlightTable[Key, Any]]) -> None:
        """Note nothing: no message is known."""

    def note_begun(self, end: Position, in_flight_tables: Mapping[str, InFlightTable[Key, Any]]) -> None:
        """Note nothing."""

    def begin_alone(self, start: Position) -> bool:  # noqa: ARG002
        """Return whether windows may be wide.

        Without files a crash loop cannot be recognised, so only guarantee `none` allows wide windows.
        """
        return self._settings.guarantee.acknowledges_first

    def end_alone(self, start: Position) -> None:
        """Remove nothing."""

    def check_start(self, start: Position, end: Position) -> None:
        """Check nothing."""

    def begin_commit(self, epoch: int) -> None:
        """Note nothing."""

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:
        """Record all messages of an epoch as abandoned. The epoch is replayed without them, and later epochs emit them.

        Without this record, a later query with guarantee `exactly-once` would take the messages in the epoch's file for
        committed.

        Raises:
            CheckpointError: there is no place for the record.
        """
        if not end.file:
            return {}
        if self._files is None:
            guarantee = self._settings.guarantee.value
            raise CheckpointError(
                f"{self._destination}: epoch {end.epoch} was planned with guarantee 'exactly-once' and is not "
                f"committed. With guarantee '{guarantee}' the epoch would be replayed without messages, but there is "
                "no place to record that. Set 'checkpointLocation' (or 'idLog') on the source, or run the query with "
                "'exactly-once' until the epoch is committed. Nothing was acknowledged"
            )
        journal = Journal(self._settings, self._files)
        journal.abandon(end, journal.planned(start, end))
        return {}

    def abandon(self, end: Position, keys: ByQueue) -> None:
        """Write nothing, because no epoch waits for messages."""

    def queues(self, position: Position) -> list[str]:  # noqa: ARG002
        """Return an empty list, because without IDs the queues of an epoch are unknown."""
        return []

    def adopt(self, start: Position, open_: Position | None) -> LeftOpen:  # noqa: ARG002
        """Warn about unused IDs."""
        if start.file:
            _LOG.warning(
                "%s: the checkpoint has message IDs, but guarantee '%s' does not use them: messages that the former "
                "query committed but did not acknowledge are emitted again",
                self._destination, self._settings.guarantee.value,
            )  # fmt: skip
        return LeftOpen({}, {}, {})
