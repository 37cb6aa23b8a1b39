"""The journal: the memory of a query, and its files. What these have is at :class:`.EpochFile`.

The file of an epoch is written once, durable before the offset that names it is returned. Spark before 4.2 has an epoch
planned before it shows what is committed: such a *blind* file has what was planned and nothing else. When its epoch is
about to run, a complete one is written next to it, of what remains, and a reader of the first is given the second.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark_mq.ack import Ledger
from pyspark_mq.dedup import ByQueue, EpochFile, Key, Memory, QueueMemory, filed, is_content
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import JournalFiles, Position
from pyspark_mq.sources.settings import Settings

__all__ = ["Journal", "NoJournal", "Recent", "file_of", "planned_in", "remembered_in"]

_LOG = logging.getLogger("pyspark_mq")

#: The most connected seconds that one look counts for.
_LOOK_MAX_S = 1.0
#: Of what digests are made with.
_SECRET_BYTES = 32
#: What is kept of an epoch besides its file: what was remembered when it was about to run, if it was planned blindly;
#: that it is acknowledged; and records of what it was run without, by a number.
_BESIDE, _ACKNOWLEDGED, _GIVEN_UP = "beside", "acknowledged", "given-up"


class Recent(NamedTuple):
    """Messages that the end of a former process has left open.

    Attributes:
        counts: how many, by queue.
        keys: of the last committed epoch, by queue: no store of IDs may have them.
        coming: contents that surely come, as no process has asked for their acknowledgement.
    """

    counts: Mapping[str, int]
    keys: Mapping[str, Sequence[Key]]
    coming: Mapping[str, Sequence[Key]]


def file_of(files: JournalFiles, name: str, *, complete: bool = False) -> EpochFile:
    """Read the file of an epoch, without what its epoch was run without.

    Args:
        complete: a blind one does not do: its epoch was run, so there is one next to it.

    Raises:
        CheckpointError: it cannot be read.
    """
    file, kept = files.read(name), files.parts(name)
    if file.blind and (complete or _BESIDE in kept):
        file = files.read(name, _BESIDE)
    given_up = _given_up(files, name, kept)
    if not given_up:
        return file
    before = _given_up(files, name, kept, file.without) if file.without else {}
    return replace(
        file,
        planned={
            queue: _without(keys, Counter(given_up.get(queue, ())) - Counter(before.get(queue, ())))
            for queue, keys in file.planned.items()
        },
    )


def _given_up(files: JournalFiles, name: str, kept: Iterable[str], first: int | None = None) -> ByQueue:
    """Look up what an epoch was run without (rule 15), by the first records or by all. Each has those before it."""
    records = [part for part in kept if part.startswith(_GIVEN_UP)][:first]
    return files.read(name, records[-1]).planned if records else {}


def _without(keys: Sequence[Key], gone: Mapping[Key, int]) -> list[Key]:
    """Take keys out. Of equal contents the last ones go, as those that come take the first places."""
    counts = Counter(gone)
    kept: list[Key] = []
    for key in reversed(keys):
        if counts[key]:
            counts[key] -= 1
        else:
            kept.append(key)
    return kept[::-1]


def planned_in(files: JournalFiles, name: str) -> dict[str, list[Key]]:
    """Read the keys of an epoch: queue -> keys in order, without those that it is run without.

    Args:
        name: of its file; empty for none.

    Raises:
        CheckpointError: they cannot be read.
    """
    planned = file_of(files, name).planned if name else {}
    # What is not distinguished is not waited for: it comes in later epochs.
    return {queue: [key for key in keys if type(key) is str or any(key)] for queue, keys in planned.items()}


def remembered_in(files: JournalFiles, name: str) -> dict[str, int]:
    """Count the IDs that are remembered besides an epoch, by what they are.

    Args:
        name: of its file; empty for none.

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
        #: Epoch -> its file, until it is committed.
        self._open: dict[int, str] = {}
        #: Those of which a note says when they are acknowledged.
        self._to_note: set[str] = set()
        self._coming: Mapping[str, Sequence[Key]] = {}
        #: Files that the last plan named, and its own.
        self._named: set[str] = set()
        self._seen_s: float | None = None

    def known(self, queue: str) -> QueueMemory:
        """Return the memory of a queue, also of one that is not read now."""
        return QueueMemory(self.memory, queue)

    @property
    def forgotten(self) -> int:
        """Messages that were forgotten although they may come again."""
        return self.memory.forgotten

    @property
    def remembered(self) -> int:
        """Committed messages that are known, whatever becomes of theirs."""
        return self.memory.remembered

    def look(self, until_s: float, *, connected: bool) -> None:
        """Take note of whether every connection is up, and forget contents that were remembered for long enough.

        Args:
            until_s: up to when everything that had come was reported.
        """
        if connected and self._seen_s is not None:
            self.memory.connected_s += max(0.0, min(until_s - self._seen_s, _LOOK_MAX_S))
        self._seen_s = until_s if connected else None
        self.memory.forget_contents()

    # -- phase one

    def plan(
        self, epoch: int, planned: ByQueue, ledgers: Mapping[str, Ledger[Key, Any]], begun: Collection[int] = (),
        *, blind: bool = False,
    ) -> str:  # fmt: skip
        """Write the file of an epoch; its name.

        Args:
            planned: of each queue the keys, in order.
            ledgers: of the queues that may have an open epoch.
            begun: epochs that Spark has run, and of which it says only after this plan that they are committed.
            blind: was that not shown of any?

        Raises:
            CheckpointError: it cannot be written.
        """
        those = {queue: keys for queue, keys in planned.items() if keys}
        if blind:
            filed_ = {queue: filed(keys) for queue, keys in those.items()}
            name = self._files.put(EpochFile(epoch, [*planned], filed_, blind=True))
            self._named.add(name)
        else:
            file = self._compose(epoch, [*planned], those, ledgers, begun)
            name = self._files.put(file)
            self._written(name, file)
        self._open[epoch] = name
        if self._repeating(those):
            self._to_note.add(name)
        return name

    def _repeating(self, planned: ByQueue, but: Collection[bytes] = ()) -> dict[str, list[Key]]:
        """Find the messages whose contents are known to repeat."""
        found = {}
        for queue, keys in planned.items() if self.memory.repeats else ():
            contents = [key for key in filed(keys) if is_content(key)]
            found[queue] = self.known(queue).repeating(contents, but)
        return {queue: keys for queue, keys in found.items() if keys}

    def plan_beside(self, end: Position, ledgers: Mapping[str, Ledger[Key, Any]]) -> None:
        """Write down what is remembered, next to the file of an epoch that was planned blindly.

        Raises:
            CheckpointError: it cannot be written.
        """
        if not self.is_blind(end):
            return
        self._named.discard(end.file)  # it is not forgotten by this: its epoch is about to run
        kept = self._files.parts(end.file)
        if _BESIDE in kept:
            # By a former process, and read by this one.
            self._named.add(end.file)
            return
        planned = {queue: keys for queue, ledger in ledgers.items() if (keys := ledger.planned.keys(end.epoch))}
        file = self._compose(end.epoch, self.queues(end), planned, ledgers, ())
        # What is planned by now is without what was given up.
        without = sum(part.startswith(_GIVEN_UP) for part in kept)
        self._files.put(replace(file, without=without), end.file, _BESIDE)
        self._written(end.file, file)

    def _compose(
        self,
        epoch: int,
        queues: Sequence[str],
        planned: ByQueue,
        ledgers: Mapping[str, Ledger[Key, Any]],
        begun: Iterable[int],
    ) -> EpochFile:
        memory, forgotten = self.memory, self.forgotten
        held = {one for ledger in ledgers.values() for one in ledger.settling.epochs}
        file = memory.compose(
            epoch,
            queues,
            planned,
            held,
            {one: {queue: ledger.planned.keys(one) for queue, ledger in ledgers.items()} for one in begun},
        )
        if self.forgotten > forgotten:
            _LOG.warning(
                "%s: the IDs of %d messages that ends of connections had left open are forgotten, as %s others were "
                "left after them. One that comes now counts as new",
                self._destination, self.forgotten - forgotten, f"{memory.left.maximum:,}",
            )  # fmt: skip
        # A begun epoch's file goes by this list, too: the next process may load this file, and knows no other list.
        gone, going = memory.forget_files({*self._named, *self._files.left_by_crashes()}, file.names)
        self._files.remove(gone)
        return replace(file, gone=going)

    def _written(self, name: str, file: EpochFile) -> None:
        self.memory.written(name, file)
        self._named = {name, *file.names}

    # -- phase two

    def begin_commit(self, epoch: int) -> None:
        """Take note that an epoch is committed; its queues say of which messages, and acknowledge them after."""
        file = self._open.pop(epoch, "")
        if file in self._to_note:
            # Whether several equal ones can come again, the next process has to know.
            self._to_note.discard(file)
            self._files.put(EpochFile(), file, _ACKNOWLEDGED)

    # -- restart

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:  # noqa: ARG002
        """Read the keys of the epoch between: of each queue in order, without those that it is run without.

        Raises:
            CheckpointError: they cannot be read.
        """
        if not end.file:
            return {}
        self._open[end.epoch] = end.file
        planned = planned_in(self._files, end.file)
        if file_of(self._files, end.file).blind:
            # It may have what was committed before: IDs are known by the ledger.
            planned = {
                queue: _without(
                    keys, Counter(self.known(queue).recognise(contents, Counter(self._coming.get(queue, ()))))
                )
                for queue, keys in planned.items()
                for contents in [[key for key in keys if is_content(key)]]
            }
        if self._repeating(planned):
            self._to_note.add(end.file)
        return planned

    def queues(self, position: Position) -> list[str]:
        """Name the queues that were read when an epoch was planned."""
        return list(self._files.read(position.file).queues) if position.file else []

    def is_blind(self, position: Position) -> bool:
        """Whether an epoch was planned before Spark had shown what is committed."""
        return bool(position.file and self._files.read(position.file).blind)

    def adopt(self, start: Position, open_: Position | None) -> Recent:
        """Load what a former process had remembered.

        Args:
            start: the first committed position that is shown.
            open_: the end of an epoch that it planned and did not see committed. Its file says what was remembered when
                it was planned, if that had been shown then.

        Raises:
            CheckpointError: a file cannot be read.
        """
        if open_ is None or not open_.file or file_of(self._files, open_.file).blind:
            return self.recall(start.file, start, committed=True)
        return self.recall(open_.file, start, committed=False)

    def recall(self, name: str, start: Position, *, committed: bool) -> Recent:
        """Load what was remembered when the epoch of a file was planned, or committed."""
        if not name:
            return Recent({}, {}, {})
        counts = self.memory.load(name, self._file, committed=committed)
        file, keys = self._file(name), planned_in(self._files, start.file)
        # What repeats was known when the epoch was planned, or nobody has noted whether it is acknowledged.
        since = frozenset() if name == start.file else frozenset(map(bytes, file.repeating))
        coming = self._repeating(keys, since)
        if coming and _ACKNOWLEDGED in self._files.parts(start.file):
            coming = {}
        elif coming:
            # Or each further process would expect them once more.
            self._files.put(EpochFile(), start.file, _ACKNOWLEDGED)
        self._coming = coming
        self._named = {name, *file.names}
        return Recent(counts, keys, coming)

    def _file(self, name: str) -> EpochFile:
        return file_of(self._files, name, complete=True)

    # -- what is given up

    def give_up(self, end: Position, keys: ByQueue) -> None:
        """Write down what an epoch is run without, before anything of it is emitted (rule 15).

        Raises:
            CheckpointError: that cannot be done.
        """
        kept = self._files.parts(end.file)
        before = _given_up(self._files, end.file, kept)
        joined = {queue: [*before.get(queue, ()), *filed(keys.get(queue, ()))] for queue in {**before, **keys}}
        number = sum(part.startswith(_GIVEN_UP) for part in kept)
        self._files.put(EpochFile(planned=joined), end.file, f"{_GIVEN_UP}-{number:06d}")


class NoJournal:
    """The journal of a query without IDs: it remembers nothing.

    Args:
        files: for what a raised guarantee would read; None if there is no place for them.
    """

    forgotten = remembered = 0

    def __init__(self, settings: Settings, files: JournalFiles | None) -> None:
        self._settings = settings
        self._destination = settings.destination
        self._files = files

    def look(self, until_s: float, *, connected: bool) -> None:
        """Forget nothing."""

    def plan(self, *_: Any, **__: Any) -> str:
        """Write nothing."""
        return ""

    def plan_beside(self, end: Position, ledgers: Mapping[str, Ledger[Key, Any]]) -> None:
        """Write nothing."""

    def begin_commit(self, epoch: int) -> None:
        """Note nothing."""

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:
        """Give up all messages of an epoch, which is run empty: they come again in later epochs.

        If the guarantee is raised again, its file would say that they are committed.

        Raises:
            CheckpointError: there is no place to write that down.
        """
        if not end.file:
            return {}
        if self._files is None:
            guarantee = self._settings.guarantee.value
            raise CheckpointError(
                f"{self._destination}: epoch {end.epoch} was planned with guarantee 'exactly-once' and is not "
                f"committed. '{guarantee}' runs it empty, and there is no place to write that down: set "
                "'checkpointLocation' (or 'idLog') at the source, or run the query with 'exactly-once' until the epoch "
                "is committed. Nothing was acknowledged"
            )
        # If it was planned blindly, the file next to it has to be there for whoever goes on from it.
        journal = Journal(self._settings, self._files)
        if journal.is_blind(end):
            journal.recall(start.file, start, committed=True)
            journal.plan_beside(end, {})
        journal.give_up(end, journal.planned(start, end))
        return {}

    def give_up(self, end: Position, keys: ByQueue) -> None:
        """Write nothing: no epoch waits for messages."""

    def queues(self, position: Position) -> list[str]:  # noqa: ARG002
        """Name none: nothing says which queues an epoch has."""
        return []

    def adopt(self, start: Position, open_: Position | None) -> Recent:  # noqa: ARG002
        """Warn of IDs that are not used."""
        if start.file:
            _LOG.warning(
                "%s: the checkpoint has message IDs, and guarantee '%s' does not use them: what the former query had "
                "committed and not acknowledged yet comes again",
                self._destination, self._settings.guarantee.value,
            )  # fmt: skip
        return Recent({}, {}, {})
