"""The memory of a query: the journal, its files, and the IDs that are known of each queue.

What an epoch's file has: in ``parts`` its segments, ``planned`` and others (for each a mapping of queues to IDs,
encoded in pieces); in ``open`` the segments of earlier files, and of this one, whose IDs are remembered; ``gone``, the
files to be removed later; ``connected`` seconds; ``queues``, the names that were read. ``nonce`` is of the process: an
epoch that is planned again behind a checkpoint that was restored inherits nothing of the one that it was before.
``blind`` is true where Spark (before 4.2) had not shown what is committed: such a file names no segment, and the file
beside it does, whose segments are referred to under the epoch's file.

Written once, durable before the offset that names it is returned.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from pyspark_mq.ack import Ledger
from pyspark_mq.ack.copies import any_repeats
from pyspark_mq.ack.known import Known, Segments
from pyspark_mq.dedup import Key, encode_ids, is_content, second_hash
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.journal.contents import Contents
from pyspark_mq.sources.journal.lists import PLANNED, Journal, Kind, Segment
from pyspark_mq.sources.journal.reading import BESIDE, keys_of, planned_in, texts_of
from pyspark_mq.sources.position import JournalFiles, Position, decode
from pyspark_mq.sources.settings import Settings

__all__ = ["Memory", "NoMemory"]

_LOG = logging.getLogger("pyspark_mq")

#: A look counts as so many seconds of being connected at most.
_LOOK_MAX_S = 1.0
#: Of so few IDs those that have left are left out when segments become one. More are decoded only if most have left.
_DECODED_MAX = 16_384


class Memory:
    """Memory of what was committed, over all queues of a query. Called by the query's thread.

    Attributes:
        contents: what distinguishes messages without IDs.
        left: the numbers of segments of IDs that were left, always the same list.
        forgotten: IDs that were forgotten although their messages may come again.
    """

    def __init__(self, settings: Settings, files: JournalFiles) -> None:
        self._destination = settings.destination
        self._files = files
        self._journal = Journal(settings.dedup_window, settings.remember_left)
        self._segments = Segments()
        self.contents = Contents(proves=settings.endpoint.broker.proves_new)
        self._nonce = secrets.token_hex(8)
        #: Epoch -> its file, until it is committed.
        self._open: dict[int, str] = {}
        #: Files of those of them that have contents which repeat.
        self._repeating: set[str] = set()
        #: Files that the last plan named, and its own.
        self._named: set[str] = set()
        #: What was left open in queues that are not read any more, until a plan writes it down.
        self._ended: dict[str, list[Key]] = {}
        self._seen_s: float | None = None
        self.left: list[int] = []
        self.forgotten = 0

    def known(self, queue: str) -> Known[Key]:
        """Return the IDs that are known of a queue, also of one that is not read now."""
        return Known(second_hash, self._segments, queue)

    def end(self, queue: str, ledger: Ledger[Key, Any]) -> None:
        """Take note that a queue is not read any more, and of what its end has left open."""
        leaving = ledger.take_leaving()
        if leaving:
            self._ended[queue] = [*self._ended.get(queue, ()), *leaving]
        self.contents.end(queue, ledger)

    def begin(self, queue: str) -> list[Key]:
        """Hand over what the end of a queue has left open and no plan has written down, as it is read again."""
        return self._ended.pop(queue, [])

    @property
    def remembered(self) -> int:
        """IDs of committed messages that are known, whatever becomes of theirs."""
        return len(self._segments)

    def look(self, until_s: float, *, connected: bool) -> None:
        """Take note of whether every connection is up, and forget contents that were remembered for long enough.

        Args:
            until_s: up to when everything that had come was reported.
        """
        if connected and self._seen_s is not None:
            self._journal.connected_s += max(0.0, min(until_s - self._seen_s, _LOOK_MAX_S))
        self._seen_s = until_s if connected else None
        for segment in self._journal.lists[Kind.LEFT]:
            if segment.contents and self._journal.outlived(segment):
                self._forget_contents(segment)

    # -- phase one

    def plan(
        self,
        epoch: int,
        planned: Mapping[str, Sequence[Key]],
        ledgers: Mapping[str, Ledger[Key, Any]],
        begun: Collection[int] = (),
        *,
        blind: bool = False,
    ) -> str:
        """Write the file of an epoch; its name.

        Args:
            planned: of each queue the IDs, in order.
            begun: epochs that Spark has run, and of which it says only after this plan that they are committed.
            blind: was that not shown of any?

        Raises:
            CheckpointError: it cannot be written.
        """
        texts = {PLANNED: {queue: [encode_ids(keys)] for queue, keys in planned.items() if keys}}
        before = [self._open[number] for number in begun if number in self._open]
        content, mine = self._compose(texts, ledgers, before)
        content |= {"queues": list(planned), "blind": blind}
        file = self._files.write(epoch, content)
        self._written(file, mine, [*before, file])
        self._open[epoch] = file
        if any_repeats(planned.values()):
            self._repeating.add(file)
        return file

    def plan_beside(self, end: Position, ledgers: Mapping[str, Ledger[Key, Any]]) -> None:
        """Write down what is remembered, beside the file of an epoch if that was planned blindly.

        Raises:
            CheckpointError: it cannot be written.
        """
        if not self.is_blind(end):
            return
        if self._files.has(self._files.beside(end.file)):
            self._named.add(end.file)
            return  # by a former process, which has read the same
        self._named.discard(end.file)  # it is not forgotten by this: its epoch is about to run
        content, mine = self._compose({}, ledgers, (), BESIDE)
        self._files.write_beside(end.file, content)
        self._written(end.file, mine, [end.file])

    def _compose(
        self,
        texts: dict[str, dict[str, list[str]]],
        ledgers: Mapping[str, Ledger[Key, Any]],
        begun: Collection[str],
        prefix: str = "",
    ) -> tuple[dict[str, Any], list[Segment]]:
        """Settle, leave, close and merge; what a file has to say of it, and the segments that are in that file.

        Args:
            texts: of the file's segments, by name. Those of left IDs, and of merged segments, are added.
            prefix: how names begin that are added.
        """
        journal = self._journal
        for segment in list(journal.lists[Kind.UNDER_WAY]):
            if not any(ledger.settling.holds(segment.number) for ledger in ledgers.values()):
                self._settle(segment)
        settled = journal.over(Kind.SETTLED)
        for ledger in ledgers.values():
            ledger.leave_again([segment.number for segment in settled])
        mine = self._leave(texts, ledgers, prefix)
        left = journal.over(Kind.LEFT)
        self._count_forgotten(left)
        self._close(Kind.SETTLED, settled)
        self._close(Kind.LEFT, [*left, *(one for one in journal.lists[Kind.LEFT] if not one.size and one not in left)])
        for kind in Kind:
            while group := journal.to_merge(kind):
                mine.append(self._merge(kind, group, texts, ledgers, prefix))
        self.left[:] = journal.left_numbers
        named = [one.reference(kind) for kind, segments in journal.lists.items() for one in segments]
        named += [[file, PLANNED, Kind.UNDER_WAY.value, 0, 0] for file in begun]
        gone = journal.forget_files({*self._named, *self._files.left_by_crashes()}, begun)
        self._files.remove(gone)
        content = {
            "open": named,
            "parts": texts,
            "connected": round(journal.connected_s, 1),
            "gone": list(journal.gone),
            "nonce": self._nonce,
        }
        return content, mine

    def _settle(self, segment: Segment) -> None:
        """Have a segment settled. Contents leave it: what is equal to one of them is another message."""
        contents = self._segments.take_contents(segment.number)
        if contents is not None:
            self.contents.met.add(*contents)
        segment.size = self._size(segment)
        if segment.size:
            self._journal.settle(segment)
        else:
            self._journal.drop(Kind.UNDER_WAY, [segment])

    def _forget_contents(self, segment: Segment) -> None:
        self._segments.take_contents(segment.number)
        segment.contents, segment.stale = False, True
        before, segment.size = segment.size, self._size(segment)
        self.forgotten += before - segment.size

    def _written(self, file: str, mine: Iterable[Segment], others: Iterable[str]) -> None:
        for segment in mine:
            segment.file = file
        self._named = {*self._journal.files(), *others}

    def _leave(
        self, texts: dict[str, dict[str, list[str]]], ledgers: Mapping[str, Ledger[Key, Any]], prefix: str
    ) -> list[Segment]:
        """Give what ends of sessions have left a segment of its own."""
        ended, self._ended = self._ended, {}
        leaving = ended | {queue: keys for queue, ledger in ledgers.items() if (keys := ledger.take_leaving())}
        if not leaving:
            return []
        segment = self._journal.make("", f"{prefix}{Kind.LEFT.value}", sum(map(len, leaving.values())))
        texts[segment.name] = {queue: [encode_ids(keys)] for queue, keys in leaving.items()}
        self._leave_as(segment, leaving)
        return [segment]

    def _leave_as(self, segment: Segment, leaving: Mapping[str, Sequence[Key]]) -> None:
        again: Counter[int] = Counter()
        for queue, keys in leaving.items():
            again += self.known(queue).take(keys, self._journal.left_numbers)
            segment.contents = segment.contents or any(map(is_content, keys))
        for queue, keys in leaving.items():
            self.known(queue).put(segment.number, keys)
        self._journal.leave(segment, again)

    def _count_forgotten(self, segments: Sequence[Segment]) -> None:
        count = sum(segment.size for segment in segments)
        if count:
            self.forgotten += count
            _LOG.warning(
                "%s: the IDs of %d messages that ends of connections had left open are forgotten, as %s were left "
                "after them, or a day of being connected is over. One that comes now counts as new",
                self._destination, count, f"{self._journal.maximum_left:,}",
            )  # fmt: skip

    def _close(self, kind: Kind, segments: Sequence[Segment]) -> None:
        self._journal.drop(kind, segments)
        for segment in segments:
            self._segments.forget(segment.number)

    def _merge(
        self,
        kind: Kind,
        group: Sequence[Segment],
        texts: dict[str, dict[str, list[str]]],
        ledgers: Mapping[str, Ledger[Key, Any]],
        prefix: str,
    ) -> Segment:
        numbers = [segment.number for segment in group]
        merged: dict[str, list[str]] = {}
        for segment in group:
            own = self._texts(segment.file, segment.name) if segment.file else texts[segment.name]
            for queue, pieces in own.items():
                merged.setdefault(queue, []).extend(pieces)
        live, written = (sum(getattr(segment, what) for segment in group) for what in ("size", "written"))
        if live <= _DECODED_MAX or 2 * live < written or any(segment.stale for segment in group):
            for queue, pieces in merged.items():
                keys = dict.fromkeys(key for piece in pieces for key in self._decode(piece))
                known = self.known(queue).among(keys, numbers)
                merged[queue] = [encode_ids([key for key in keys if key in known])]
            written = live
        into = self._journal.make("", f"{prefix}{kind.value} {len(texts)}", written)
        texts[into.name] = merged
        self._segments.merge(numbers, into.number)
        for ledger in ledgers.values():
            ledger.settling.merge(numbers, into.number)
        into.size = self._size(into)
        self._journal.merge(kind, group, into)
        return into

    def _size(self, segment: Segment) -> int:
        return self._segments.size(segment.number)

    def _texts(self, file: str, name: str) -> Mapping[str, Sequence[str]]:
        return texts_of(self._files, file, name, self._destination)

    def _decode(self, text: str) -> list[Key]:
        return decode(text, self._destination)

    # -- phase two

    def begin_commit(self, epoch: int) -> Segment:
        """Make a segment for the IDs of an epoch that is committed now; the ledgers fill it, and acknowledge after."""
        file = self._open.pop(epoch, "")
        if file in self._repeating:
            # Whether one of several equal ones can come again, the next process has to know.
            self._repeating.discard(file)
            self._files.note_acknowledged(file)
        return self._journal.make(file, PLANNED, 0)

    def commit(self, segment: Segment) -> None:
        """Take note that an epoch's IDs are in a segment. Nothing is written: Spark's log has it."""
        segment.size = segment.written = self._size(segment)
        if segment.size:
            self._journal.commit(segment)

    # -- restart

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:  # noqa: ARG002
        """Read the IDs of the epoch between: of each queue in order, without those that it is run without.

        Raises:
            CheckpointError: they cannot be read.
        """
        if not end.file:
            return {}
        self._open[end.epoch] = end.file
        planned = planned_in(self._files, end.file, self._destination)
        if any_repeats(planned.values()):
            self._repeating.add(end.file)
        return planned

    def queues(self, position: Position) -> list[str]:
        """Name the queues that were read when an epoch was planned."""
        names: list[str] = self._files.read(position.file)["queues"] if position.file else []
        return names

    def is_blind(self, position: Position) -> bool:
        """Whether an epoch was planned before Spark had shown what is committed."""
        return bool(position.file and self._files.read(position.file)["blind"])

    def adopt(self, start: Position, open_: Position | None) -> dict[str, list[Key]]:
        """Recall what a former process had remembered: queue -> IDs that its end has left open.

        Args:
            start: the first committed position that is shown.
            open_: the end of an epoch that it planned and did not see committed. Its file says what was remembered when
                it was planned, if that had been shown then.

        Raises:
            CheckpointError: a file cannot be read.
        """
        if open_ is not None and open_.file and not self.is_blind(open_):
            return self.recall(open_, committed=False)
        return self.recall(start, committed=True)

    def recall(self, position: Position, *, committed: bool) -> dict[str, list[Key]]:
        """Read what was remembered when an epoch was planned.

        What was under way then, and the epoch itself if it is committed, was left by the end of its process.

        Returns:
            queue -> those IDs.

        Raises:
            CheckpointError: a file cannot be read.
        """
        if not position.file:
            return {}
        content = self._files.read(position.file)
        own = position.file
        if content["blind"]:
            content = self._files.read(self._files.beside(own))
        journal = self._journal
        journal.connected_s = max(journal.connected_s, content["connected"])
        journal.gone.extend(content["gone"])
        under_way = [(file or own, name) for file, name, kind, *_ in content["open"] if kind == Kind.UNDER_WAY.value]
        if committed:
            under_way.append((own, PLANNED))
        for file, name, kind_name, behind, since_s in content["open"]:
            if (kind := Kind(kind_name)) is not Kind.UNDER_WAY:
                self._load(kind, file or own, name, behind, since_s)
        recent: dict[str, list[Key]] = {}
        for file, name in under_way:
            keys = self._read(file, name)
            count = sum(map(len, keys.values()))
            if count:
                self._leave_as(journal.make(file, name, count), keys)
            never = name == PLANNED and any_repeats(keys.values())
            never = never and not self._files.acknowledged(file)
            if never:
                self._files.note_acknowledged(file)  # or each further process would expect them once more
            for queue, some in keys.items():
                self.contents.recall(queue, some, never_acknowledged=never)
                recent.setdefault(queue, []).extend(some)
        for segment in journal.lists[Kind.LEFT]:
            segment.size = self._size(segment)
        self._named = {own, *(file or own for file, *_ in content["open"])}
        self.left[:] = journal.left_numbers
        return recent

    def _read(self, file: str, name: str) -> dict[str, list[Key]]:
        return keys_of(self._texts(file, name), self._destination)

    def _load(self, kind: Kind, file: str, name: str, behind: int, since_s: float) -> None:
        found = self._read(file, name)
        segment = self._journal.make(file, name, sum(map(len, found.values())))
        segment.behind, segment.since_s = behind, since_s
        forgets = kind is Kind.SETTLED or self._journal.outlived(segment)
        for queue, keys in found.items():
            if any(map(is_content, keys)):
                if forgets:
                    segment.stale = True
                    found[queue] = [key for key in keys if not is_content(key)]
                else:
                    segment.contents = True
                    self.contents.recall(queue, keys)
            if kind is Kind.LEFT:
                self.known(queue).take(found[queue], self._journal.left_numbers)
        for queue, keys in found.items():
            self.known(queue).put(segment.number, keys)
        segment.size = self._size(segment)
        if segment.size:
            self._journal.lists[kind].append(segment)

    # -- what is given up

    def give_up(self, end: Position, ids: Mapping[str, Sequence[Key]]) -> None:
        """Write down what an epoch is run without, before anything of it is emitted (rule 15).

        Raises:
            CheckpointError: that cannot be done.
        """
        before = self._files.given_up(end.file)
        joined = {
            queue: encode_ids(list(dict.fromkeys([*self._decode(before.get(queue, "")), *ids.get(queue, ())])))
            for queue in {**before, **ids}
        }
        self._files.give_up(end.file, joined)


class NoMemory(Memory):
    """The memory of a query without IDs: it remembers nothing.

    Args:
        files: for what a raised guarantee would read; None if there is no place for them.
    """

    def __init__(self, settings: Settings, files: JournalFiles | None) -> None:
        super().__init__(settings, cast("JournalFiles", files))  # nothing here asks it for anything
        self._settings = settings
        self._place = files

    def plan(self, *_: Any, **__: Any) -> str:
        return ""

    def plan_beside(self, end: Position, ledgers: Mapping[str, Ledger[Key, Any]]) -> None:
        """Write nothing."""

    def planned(self, start: Position, end: Position) -> dict[str, list[Key]]:
        """Give up all messages of an epoch, which is run empty: they come again in later epochs.

        If the guarantee is raised again, its file would say that they are committed.

        Raises:
            CheckpointError: there is no place to write that down.
        """
        if not end.file:
            return {}
        if self._place is None:
            guarantee = self._settings.guarantee.value
            raise CheckpointError(
                f"{self._destination}: epoch {end.epoch} was planned with guarantee 'exactly-once' and is not "
                f"committed. '{guarantee}' runs it empty, and there is no place to write that down: set "
                "'checkpointLocation' (or 'idLog') at the source, or run the query with 'exactly-once' until the epoch "
                "is committed. Nothing was acknowledged"
            )
        # What is known beside it, were it planned blindly, has to be there for whoever goes on from it.
        memory = Memory(self._settings, self._place)
        if memory.is_blind(end):
            memory.recall(start, committed=True)
            memory.plan_beside(end, {})
        memory.give_up(end, memory.planned(start, end))
        return {}

    def queues(self, position: Position) -> list[str]:  # noqa: ARG002
        """Name none: nothing says which queues an epoch has."""
        return []

    def adopt(self, start: Position, open_: Position | None) -> dict[str, list[Key]]:  # noqa: ARG002
        """Warn of IDs that are not used."""
        if start.file:
            _LOG.warning(
                "%s: the checkpoint has message IDs, and guarantee '%s' does not use them: what the former query had "
                "committed and not acknowledged yet comes again",
                self._destination, self._settings.guarantee.value,
            )  # fmt: skip
        return {}
