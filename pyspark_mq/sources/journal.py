"""The journal: keeps the memory of a query (:mod:`pyspark_mq.dedup.memory`) in files, one for each epoch.

:class:`.EpochFile` describes the content of a file. The file of an epoch is written once, and is durable before the
epoch's offset, which has the file's name, is returned to Spark.

A message is *left open* if its session or process ended before its acknowledgement was settled. An *echo* is a
redelivery of a message without an ID, which an epoch acknowledges but does not emit
(:mod:`pyspark_mq.ack.content_matcher`).
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
from pyspark_mq.dedup import ByQueue, EpochFile, Key, Memory, NoMemory, QueueMemory, filed, is_content
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import JournalFiles, Position
from pyspark_mq.sources.settings import Settings

__all__ = ["Journal", "LeftOpen", "NoJournal", "file_of", "planned_in", "remembered_in"]

_LOG = logging.getLogger("pyspark_mq")

#: Number of bytes in the secret for digests.
_SECRET_BYTES = 32
#: Names of the *notes* of an epoch: small files next to the epoch's file. They record facts about the epoch:
#:
#: * `acknowledged`: the process that ran the epoch is about to acknowledge it
#: * `expected`: another process expects redeliveries of the epoch's messages
#: * `alone`: a process plans the next epoch, which may be the only epoch of its run
#: * `begun`: the epoch's echoes are settled
#: * `replayed`: another process replays the epoch without its echoes
#: * `abandoned`: the messages that are abandoned. There may be several of these notes, with a number after the name
#: * `settled`: the changes of the memory after the epoch. Also with a number
_ACKNOWLEDGED, _EXPECTED, _ALONE, _BEGUN, _REPLAYED, _ABANDONED, _SETTLED = (
    "acknowledged", "expected", "alone", "begun", "replayed", "abandoned", "settled",
)  # fmt: skip
_TOKEN_BYTES = 4


class LeftOpen(NamedTuple):
    """Messages that were left open, because the former process ended before their acknowledgements were settled.

    Attributes:
        counts: name of a queue -> number of its messages that were left open.
        keys: name of a queue -> keys of its messages in the last committed epoch. The former process may have ended
            before it added these keys to the store of IDs (`dedupStore`).
        coming: name of a queue -> contents of messages that will certainly be redelivered, because the former process
            has not acknowledged them.
    """

    counts: Mapping[str, int]
    keys: Mapping[str, Sequence[Key]]
    coming: Mapping[str, Sequence[Key]]


def file_of(files: JournalFiles, name: str) -> EpochFile:
    """Read the file of an epoch. Leave out abandoned messages, and if the epoch was replayed, also its echoes.

    Echoes are redeliveries of committed messages, which the epoch does not emit.

    Args:
        files: the files of the journal.
        name: name of the file.

    Raises:
        CheckpointError: the file cannot be read.
    """
    file, notes = files.read(name), files.notes(name)
    abandoned = _abandoned(files, name, notes)
    if _REPLAYED in notes:
        file = replace(file, echoes={})
    if not abandoned:
        return file
    return replace(
        file,
        planned={queue: _without(keys, Counter(abandoned.get(queue, ()))) for queue, keys in file.planned.items()},
    )


def _abandoned(files: JournalFiles, name: str, kept: Iterable[str]) -> ByQueue:
    """Return the keys of the messages that an epoch is emitted without (rule 15).

    The last record of these abandoned messages includes all earlier records.

    Args:
        kept: names of the epoch's notes.
    """
    records = [note for note in kept if note.startswith(_ABANDONED)]
    return files.read(name, records[-1]).planned if records else {}


def _without(keys: Sequence[Key], gone: Mapping[Key, int]) -> list[Key]:
    """Return `keys` without the keys in `gone`. Each key is removed as often as its count in `gone` says.

    If a key occurs more often (messages with equal contents), its last occurrences are removed, because redelivered
    messages with this content take the first places of the epoch.
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
    """Read the keys of the messages that an epoch planned and has not abandoned.

    Args:
        name: name of the epoch's file; empty if the epoch has no file.

    Returns:
        name of each queue -> keys of its messages, in order.

    Raises:
        CheckpointError: the file cannot be read.
    """
    planned = file_of(files, name).planned if name else {}
    # Leave out messages without an identity (`onMissingMessageId=row`). A replay does not wait for them, and later
    # epochs emit them.
    return {queue: [key for key in keys if type(key) is str or any(key)] for queue, keys in planned.items()}


def remembered_in(files: JournalFiles, name: str) -> dict[str, int]:
    """Count the IDs that an epoch's file remembers in addition to the IDs of the epoch itself.

    The result has the number of settled IDs (`settled`), and of IDs of messages that were left open (`left`).

    Args:
        name: name of the epoch's file; empty if the epoch has no file.

    Raises:
        CheckpointError: a file cannot be read.
    """
    memory = Memory(sys.maxsize, sys.maxsize, b"")
    if name:
        memory.load(name, lambda file: file_of(files, file), committed=False)
    return {"settled": len(memory.window), "left": len(memory.left) + memory.contents_left}


class Journal:
    """The memory of one query, and its files. Only the query's thread calls the methods."""

    def __init__(self, settings: Settings, files: JournalFiles) -> None:
        self._destination = settings.destination
        self._files = files
        self.memory = Memory(settings.dedup_window, settings.remember_left, secrets.token_bytes(_SECRET_BYTES))
        #: Name of the newest file, and the names of the files that it names.
        self._named: set[str] = set()
        self._seen_s: float | None = None
        #: Part of the names of notes, so that the notes of two processes have different names.
        self._token = secrets.token_hex(_TOKEN_BYTES)

    def known(self, queue: str) -> QueueMemory:
        """Return the part of the memory that belongs to a queue, even if the query does not read this queue now."""
        return QueueMemory(self.memory, queue)

    @property
    def forgotten(self) -> int:
        """Number of messages whose IDs were forgotten, although the messages may be redelivered."""
        return self.memory.forgotten

    @property
    def remembered(self) -> int:
        """Number of committed messages whose IDs or contents are remembered."""
        return len(self.memory)

    def poll(self, until_s: float, *, connected: bool) -> None:
        """Record whether every connection of the query is up, and forget contents that have expired.

        Args:
            until_s: time up to which the connections have reported everything that they received.
        """
        if connected and self._seen_s is not None:
            self.memory.connected_s += max(0.0, until_s - self._seen_s)
        self._seen_s = until_s if connected else None
        self.memory.forget_contents()

    # -- phase one

    def plan(
        self, epoch: int, planned: ByQueue, in_flight_tables: Mapping[str, InFlightTable[Any]], start: int = -1
    ) -> str:
        """Write the file of a new epoch, and return the file's name.

        Args:
            epoch: number of the epoch.
            planned: name of each queue -> keys of the messages that the epoch emits, in order.
            in_flight_tables: name of each queue -> its in-flight table.
            start: number of the committed epoch that this epoch follows.

        Raises:
            CheckpointError: the file cannot be written.
        """
        those = {queue: keys for queue, keys in planned.items() if keys}
        file = replace(self._compose(epoch, [*planned], those, in_flight_tables), start=start)
        name = self._files.put(file)
        self.memory.written(name, file)
        self._named = {name, *file.names}
        return name

    def note_settled(self, start: Position, in_flight_tables: Mapping[str, InFlightTable[Any]]) -> None:
        """Write a note if the memory of messages without an ID has changed since the last file or note.

        Such messages may have been settled, or two of them may have had the same content. Called if no epoch is planned
        now, so that no new file records these changes. Without the note, the next process would take a new message with
        equal contents for a redelivery, and drop it.

        Args:
            start: the last committed position. The note belongs to the file of this position.
            in_flight_tables: name of each queue -> its in-flight table.

        Raises:
            CheckpointError: the note cannot be written.
        """
        note = self.memory.note(_held(in_flight_tables)) if start.file else None
        if note is not None:
            number = sum(note.startswith(_SETTLED) for note in self._files.notes(start.file))
            self._files.put(note, start.file, f"{_SETTLED}-{number:06d}-{self._token}")

    def note_begun(self, end: Position, in_flight_tables: Mapping[str, InFlightTable[Any]]) -> None:
        """If the echoes of an epoch are settled, write a note that says so. It is needed if the run ends with it.

        Echoes are redeliveries of committed messages, which the epoch acknowledges but does not emit.

        Raises:
            CheckpointError: the note cannot be written.
        """
        echoes = self._file(end.file).echoes if end.file else {}
        if echoes and end.epoch not in _held(in_flight_tables) and self.memory.holds(end.epoch, echoes):
            self._files.put(EpochFile(), end.file, _BEGUN)

    def begin_alone(self, start: Position) -> bool:
        """Record that this process plans an epoch that may be the only epoch of its run.

        Returns:
            whether the prefetch windows may be wide for this epoch. False if a former process has made the same record
            at this position, because that process ended before Spark logged an epoch. With wide windows, a job that
            crashes again and again would use up the delivery limit of all messages in the queue.
        """
        if not start.file:
            return True
        if _ALONE in self._files.notes(start.file):
            return False
        self._files.put(EpochFile(), start.file, _ALONE)
        return True

    def end_alone(self, start: Position) -> None:
        """Remove the record of :meth:`begin_alone`. The reader calls this if there were no messages to plan."""
        if start.file:
            self._files.remove([start.file], _ALONE)

    def check_start(self, start: Position, end: Position) -> None:
        """Check that an epoch was planned from the position that Spark states as its start.

        Raises:
            CheckpointError: the epoch was planned from another position.
        """
        planned = self._files.read(end.file).start if end.file else -1
        if planned not in {-1, start.epoch}:
            raise CheckpointError(
                f"{self._destination}: epoch {end.epoch} was planned after epoch {planned}, but Spark runs it after "
                f"epoch {start.epoch}. If two runs of the query share the checkpoint, end one of them. If the query "
                "sets 'asyncProgressTrackingEnabled', leave it out, because it makes Spark write its logs late. No "
                "message of the epoch was emitted. If the error happens again, delete the newest file in the folder "
                "'offsets' of the checkpoint"
            )

    def repeats(self, planned: ByQueue) -> bool:
        """Whether one of these messages has a content that is known to repeat: two messages have had it.

        Args:
            planned: name of each queue -> keys of messages that an epoch plans.
        """
        return bool(self._repeating(planned))

    def _repeating(self, planned: ByQueue, but: Collection[bytes] = ()) -> dict[str, list[Key]]:
        """Return a dict: name of each queue -> those of its keys whose contents are known to repeat."""
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
        in_flight_tables: Mapping[str, InFlightTable[Any]],
    ) -> EpochFile:
        memory, forgotten = self.memory, self.forgotten
        echoes = {
            queue: [*keys] for queue, in_flight in in_flight_tables.items() if (keys := in_flight.planned.echoes(epoch))
        }
        file = memory.compose(epoch, queues, planned, _held(in_flight_tables), echoes)
        if self.forgotten > forgotten:
            _LOG.warning(
                "%s: the IDs of %d messages are forgotten. The source remembers only the newest %s messages whose "
                "connection ended before their acknowledgement was complete. If the forgotten messages are "
                "redelivered, they count as new",
                self._destination, self.forgotten - forgotten, f"{memory.left.maximum:,}",
            )  # fmt: skip
        gone, going = memory.forget_files({*self._named, *self._files.left_by_crashes()}, file.names)
        self._files.remove(gone)
        return replace(file, gone=going)

    # -- phase two

    def begin_commit(self, end: Position, *, repeats: bool) -> None:
        """Record that an epoch is committed. Called before its messages are acknowledged.

        Args:
            end: the end of the epoch.
            repeats: the result of :meth:`repeats` for the epoch's messages when this process planned or replayed the
                epoch. If False, no record is needed.

        Raises:
            CheckpointError: another process of the query has taken over, and expects redeliveries of these messages.
        """
        if not repeats:
            return
        # The next process must know whether messages with equal contents will be redelivered. Each process first
        # writes its own note and then looks for the note of the other. So if two processes run at the same time, at
        # least one of them notices the other.
        self._files.put(EpochFile(), end.file, _ACKNOWLEDGED)
        if self._files.has_note(end.file, _EXPECTED):
            raise CheckpointError(
                f"{self._destination}: another run of the query has continued after epoch {end.epoch}, so this run "
                "ends. This run did not acknowledge the epoch. Let only one run at a time use the checkpoint"
            )

    # -- restart

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:  # noqa: ARG002
        """Read the keys of the messages of an epoch that is about to be replayed.

        Args:
            start: the position at which the epoch begins.
            end: the position at which the epoch ends.

        Returns:
            name of each queue -> keys of its messages, in order, without abandoned messages.

        Raises:
            CheckpointError: the file cannot be read.
        """
        if not end.file:
            return {}
        if _EXPECTED in self._files.notes(end.file):  # its process saw a commit that is no longer in Spark's log
            self._files.remove([end.file], _EXPECTED)
        if self._file(end.file).echoes and _BEGUN not in self._files.notes(end.file):
            self._files.put(EpochFile(), end.file, _REPLAYED)
        return planned_in(self._files, end.file)

    def queues(self, position: Position) -> list[str]:
        """Return the names of the queues that the query read when it planned the epoch that ends at `position`."""
        return list(self._files.read(position.file).queues) if position.file else []

    def adopt(self, start: Position, open_: Position | None) -> LeftOpen:
        """Load the memory of the former process.

        Args:
            start: the last committed position.
            open_: the end of an epoch that the former process planned, and that is not committed; None if there is
                none. The epoch's file has the memory as it was when the epoch was planned.

        Raises:
            CheckpointError: a file cannot be read.
        """
        if open_ is None or not open_.file:
            return self.recall(start.file, start, committed=True)
        return self.recall(open_.file, start, committed=False)

    def recall(self, name: str, start: Position, *, committed: bool) -> LeftOpen:
        """Load the memory from the file of an epoch.

        Args:
            name: name of the file; empty if there is none.
            start: the last committed position.
            committed: whether the epoch of this file is committed. If so, the memory includes its messages.

        Returns:
            the messages that were left open when the former process ended.
        """
        if not name:
            return LeftOpen({}, {}, {})
        beside = self._files.notes(name)
        notes = [self._files.read(name, note) for note in beside if committed and note.startswith(_SETTLED)]
        begun = _BEGUN in beside
        counts = self.memory.load(name, self._file, committed=committed, notes=notes, begun=begun)
        file, keys = self._file(name), planned_in(self._files, start.file)
        # Find the contents of the last committed epoch that will certainly be redelivered. If an epoch has contents
        # that were known to repeat when it was planned, the note `acknowledged` shows that it is acknowledged. For
        # contents that were found to repeat later, there is no such note. Echoes of an uncommitted epoch may have been
        # acknowledged when that epoch began, so they are left out.
        changed = notes if name == start.file else [file]
        since = frozenset(bytes(content) for one in changed for content in one.repeating)
        echoes = {} if name == start.file else file.echoes
        if any(start.epoch in note.settled for note in notes):
            keys = {}  # the last committed epoch is settled, so its messages are not redelivered
        coming = self._repeating(
            {queue: _without(some, Counter(echoes.get(queue, ()))) for queue, some in keys.items()}, since
        )
        if coming:
            if _EXPECTED not in self._files.notes(start.file):
                self._files.put(EpochFile(), start.file, _EXPECTED)
            if self._files.has_note(start.file, _ACKNOWLEDGED):
                coming = {}
        self._named = {name, *file.names}
        return LeftOpen(counts, keys, coming)

    def _file(self, name: str) -> EpochFile:
        return file_of(self._files, name)

    # -- abandoned messages

    def abandon(self, end: Position, keys: ByQueue) -> None:
        """Record which messages of an epoch are abandoned. Called before the epoch is emitted (rule 15).

        Raises:
            CheckpointError: the record cannot be written.
        """
        kept = self._files.notes(end.file)
        before = _abandoned(self._files, end.file, kept)
        joined = {queue: [*before.get(queue, ()), *filed(keys.get(queue, ()))] for queue in {**before, **keys}}
        number = sum(note.startswith(_ABANDONED) for note in kept)
        self._files.put(EpochFile(planned=joined), end.file, f"{_ABANDONED}-{number:06d}")


def _held(in_flight_tables: Mapping[str, InFlightTable[Any]]) -> set[int]:
    """Return the numbers of the epochs with unsettled acknowledgements."""
    return {epoch for in_flight in in_flight_tables.values() for epoch in in_flight.settling.epochs}


class NoJournal:
    """Takes the place of the journal for the guarantees `at-least-once` and `none`. It does not remember messages.

    Args:
        files: the files that a query with guarantee `exactly-once` has written, or would read later; None if no option
            names a folder for them.
    """

    forgotten = remembered = 0

    def __init__(self, settings: Settings, files: JournalFiles | None) -> None:
        self._settings = settings
        self._destination = settings.destination
        self._files = files

    def known(self, queue: str) -> QueueMemory:
        """Return a memory that remembers nothing."""
        return NoMemory(queue)

    def poll(self, until_s: float, *, connected: bool) -> None:
        """Do nothing, because there is no memory."""

    def plan(self, *_: Any, **__: Any) -> str:
        """Write no file, and return an empty name."""
        return ""

    def note_settled(self, start: Position, in_flight_tables: Mapping[str, InFlightTable[Any]]) -> None:
        """Do nothing, because no message is remembered."""

    def note_begun(self, end: Position, in_flight_tables: Mapping[str, InFlightTable[Any]]) -> None:
        """Do nothing, because redeliveries of committed messages are not recognised."""

    def begin_alone(self, start: Position) -> bool:  # noqa: ARG002
        """Return whether the prefetch windows may be wide: True only for guarantee `none`.

        With guarantee `at-least-once`, wide windows could use up delivery limits if the job crashes again and again.
        Without files, the source cannot recognise such crashes.
        """
        return self._settings.guarantee.acknowledges_first

    def end_alone(self, start: Position) -> None:
        """Do nothing, because :meth:`begin_alone` has recorded nothing."""

    def check_start(self, start: Position, end: Position) -> None:
        """Do nothing, because no file says from which position an epoch was planned."""

    def repeats(self, planned: ByQueue) -> bool:  # noqa: ARG002
        """Return False, because messages are not identified."""
        return False

    def begin_commit(self, end: Position, *, repeats: bool) -> None:
        """Do nothing, because no process needs to know about the commit."""

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:
        """Return no keys, so that the epoch is replayed without messages. Later epochs emit its messages.

        If the query had guarantee `exactly-once` before, the epoch has a file. Then record all its messages as
        abandoned: if the query is set to `exactly-once` again, it would otherwise take these messages for committed.

        Raises:
            CheckpointError: no option names a folder for the record.
        """
        if not end.file:
            return {}
        if self._files is None:
            guarantee = self._settings.guarantee.value
            raise CheckpointError(
                f"{self._destination}: epoch {end.epoch} was planned with guarantee 'exactly-once' and is not "
                f"committed. With guarantee '{guarantee}' the epoch would be replayed without messages, but no option "
                "names a folder in which to record that. Set 'checkpointLocation' (or 'idLog') on the source, or run "
                "the query with 'exactly-once' until the epoch is committed. No message was acknowledged"
            )
        journal = Journal(self._settings, self._files)
        journal.abandon(end, journal.planned(start, end))
        return {}

    def abandon(self, end: Position, keys: ByQueue) -> None:
        """Do nothing, because no replay waits for messages."""

    def queues(self, position: Position) -> list[str]:  # noqa: ARG002
        """Return an empty list, because no file has the names of an epoch's queues."""
        return []

    def adopt(self, start: Position, open_: Position | None) -> LeftOpen:  # noqa: ARG002
        """Load nothing. Log a warning if the checkpoint has IDs of a query with guarantee `exactly-once`."""
        if start.file:
            _LOG.warning(
                "%s: the checkpoint has message IDs, but guarantee '%s' does not use them: messages that the former "
                "query committed but did not acknowledge are emitted again",
                self._destination, self._settings.guarantee.value,
            )  # fmt: skip
        return LeftOpen({}, {}, {})
