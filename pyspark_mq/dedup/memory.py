"""The memory of a query: which IDs and contents it has committed, and which of their messages may come again. Pure.

Nothing is ever taken out but from the old end, and there is no clock but for contents:

=============  =======================================================================================================
*unsettled*    epochs that are committed, while an acknowledgement of theirs is not settled
*window*       settled epochs, as many as have the newest `dedupWindow` IDs
*left*         distinct IDs whose acknowledgement the end of a session or of a process has cut off, in the order in
               which they were left first, the newest `rememberLeft`. One that comes again stays where it is
*contents*     the same of messages without an ID. They go after an hour of being connected, or half a million: an
               equal message must not be taken for one of them for longer than a broker may keep what it has not seen
               the end of
=============  =======================================================================================================

The file of an epoch says what has changed since the file before. It names the files that a load reads: *parts* of what
is settled and left, a *base* with what was unsettled, and what follows. When :data:`FOLLOWING_MAX` files follow, the
next one has a new base and part; a part takes in those before it that are not much larger, and none is more than an
eighth of what is remembered. So a file names a bounded number of others, and an epoch writes little, however much is
remembered: two million IDs in one base were half a megabyte for each epoch of a trickle.

What was unsettled at the end of a process is left, in the order of the epochs. It is written down with the next file.

The promise: an ID is recognised until `rememberLeft` distinct others were left since it was *first* left, or, if it was
settled, until `dedupWindow` newer ones were. Last left cannot be promised: what is acknowledged again when a process is
killed is in no file. What is forgotten goes by batches, as of one plan, so later than that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from pyspark_mq.dedup.digests import Batches, Digester, from_bytes
from pyspark_mq.dedup.epoch_file import ByQueue, EpochFile, Snapshot
from pyspark_mq.dedup.identity import Key, is_content
from pyspark_mq.dedup.keys import TextKeys
from pyspark_mq.dedup.shelf import Shelf

__all__ = ["KEPT_EPOCHS", "Memory", "QueueMemory"]

#: Files are kept for so many plans behind the last that names them. Spark keeps a hundred offsets by default
#: (`spark.sql.streaming.minBatchesToRetain`).
KEPT_EPOCHS = 120
#: Files that follow a base or a part, and messages in them.
FOLLOWING_MAX, _FOLLOWING_MESSAGES_MAX = 32, 500_000
#: Contents are forgotten after so many seconds of being connected, or when so many were left behind them.
_CONTENTS_LEFT_S = 3_600.0
_CONTENTS_LEFT = 500_000
#: Settled contents: the newest, in batches of about so many. What comes with one of them is an equal message.
_MET_MAX, _MET_BATCH = 1_000_000, 65_536


@dataclass(slots=True)
class _Unsettled:
    """A committed epoch: its batch, how many messages it has of each queue, and its contents."""

    number: int
    queues: Counter[str] = field(default_factory=Counter)
    contents: dict[str, Sequence[Key]] = field(default_factory=dict)


class QueueMemory:
    """The memory as the ledger of one queue knows it."""

    def __init__(self, memory: Memory, queue: str) -> None:
        self._memory = memory
        self._queue = queue
        self._known_by: Digester | None = None
        self._begin: Any = None
        self._held = Batches()

    def among(self, keys: Collection[Key]) -> set[Key]:
        """Return those that are known."""
        memory = self._memory
        return self._found(keys, lambda digests: (*memory.ids.find(digests), *memory.contents.find(digests)))

    def knows_none_of(self, keys: Collection[Key]) -> bool:
        return not self.among(keys)

    def left_among(self, keys: Collection[Key]) -> set[Key]:
        """Return those that ends of sessions or processes have left open."""
        return self._found(keys, self._memory.find_left)

    def met_among(self, keys: Collection[Key]) -> set[Key]:
        """Return the contents of these that are settled."""
        return self._found(keys, self._memory.met.find)

    def hold(self, keys: Collection[Key]) -> Any:
        """Hold the IDs of messages that came.

        Returns:
            their digests; None if one of them is known or held, is no ID, or is there twice, and nothing is done.
        """
        if _parted(keys)[1]:
            return None
        digests = self._digests(keys)
        halves = np.sort(digests[:, 0])
        if (halves[1:] == halves[:-1]).any() or any(
            True for one in (self._memory.ids, self._held) for _ in one.find(digests)
        ):
            return None
        self._held.pile(digests)
        return digests

    def hold_only(self, digests: Sequence[Any]) -> None:
        """Hold these, and no others any more."""
        self._held = Batches()
        self._held.pile(np.concatenate([from_bytes(b""), *digests]))

    def committed(self, epoch: int, keys: Collection[Key], digests: Sequence[Any] = ()) -> None:
        """Take note that messages of an epoch are committed.

        Args:
            digests: theirs, where all were held; they are held until :meth:`hold_only`.
        """
        if keys:
            self._memory.commit(epoch, self._queue, keys, np.concatenate(digests) if digests else None)

    def leave(self, keys: Collection[Key]) -> None:
        """Take note that the end of a session has left committed messages open."""
        self._memory.leave({self._queue: keys})

    def _digests(self, keys: Collection[Key]) -> Any:
        digester = self._memory.digester
        if self._known_by is not digester:
            self._known_by, self._begin = digester, digester.begin(self._queue)
        return digester.digests(self._begin, keys)

    def _found(self, keys: Collection[Key], find: Callable[[Any], Iterable[int]]) -> set[Key]:
        if not keys or not len(self._memory):
            return set()
        places = {*find(self._digests(keys))}
        return {key for place, key in enumerate(keys) if place in places} if places else set()


class Memory:
    """What is remembered over all queues of a query.

    Args:
        window: `dedupWindow`.
        most_left: `rememberLeft`.
        secret: random bytes for digests, see :class:`.Digester`. A load brings others.

    Attributes:
        digester: makes the digests of keys. It is another one behind a load.
        connected_s: seconds for which every connection of the query was up, over all its processes.
        forgotten: messages that were forgotten although they may come again.
    """

    def __init__(self, window: int, most_left: int, secret: bytes) -> None:
        self._numbers = count(1)
        self.digester = Digester(secret)
        self.ids, self.contents, self.met = Batches(), Batches(), Batches()
        self.window, self.left = Shelf(window), Shelf(most_left)
        #: Settled contents, the oldest first.
        self._met: list[int] = []
        #: Epoch -> what it has, in the order of commits.
        self._unsettled: dict[int, _Unsettled] = {}
        #: Contents that were left, by batch.
        self._contents: dict[int, Snapshot] = {}
        #: The newest of them that has several of before.
        self._joined = 0
        #: Messages that were left so far.
        self._left_so_far = 0
        #: What was left and is in no file.
        self._new: list[int] = []
        self._new_contents: dict[str, list[Key]] = {}
        self._base: str | None = None
        #: Files that follow the base, and how many messages each has.
        self._after: dict[str, int] = {}
        self._left_after: list[str] = []
        self._gone: deque[Sequence[str]] = deque()
        #: What was unsettled at the end of a former process is left by now, so a load must not find it unsettled again.
        self._loaded = False
        self.connected_s = 0.0
        self.forgotten = 0

    def __len__(self) -> int:
        """Digests that are known."""
        return len(self.ids) + len(self.contents) + len(self.met)

    @property
    def remembered(self) -> int:
        """Committed messages that are known, whatever becomes of theirs."""
        return len(self.ids) + len(self.contents)

    # -- what happens

    def commit(self, epoch: int, queue: str, keys: Collection[Key], digests: Any = None) -> None:
        """Take note that messages of an epoch are committed.

        Args:
            digests: theirs, in any order, if they are IDs and these are known.
        """
        if epoch not in self._unsettled:
            self._unsettled[epoch] = _Unsettled(next(self._numbers))
        one = self._unsettled[epoch]
        one.queues[queue] += len(keys)
        if digests is None:
            digests, contents = self._digests(queue, keys)
            if contents:
                one.contents[queue] = contents
                self.contents.put(one.number, self._digests_of(queue, contents))
        self.ids.put(one.number, digests)

    def _digests_of(self, queue: str, keys: Collection[Key]) -> Any:
        return self.digester.digests(self.digester.begin(queue), keys)

    def _digests(self, queue: str, keys: Collection[Key]) -> tuple[Any, list[Key]]:
        """Return the digests of those that are IDs, and those that are contents."""
        ids, contents = _parted(keys)
        return self._digests_of(queue, ids), contents

    def settle(self, epochs: Iterable[int]) -> list[int]:
        """Take note that nothing of these can come again, but for what was left; those that were not settled."""
        settled = [epoch for epoch in epochs if epoch in self._unsettled]
        for epoch in settled:
            number = self._unsettled.pop(epoch).number
            self.window.add(number, self.ids.size(number))
            self._meet(self.contents.forget(number))
        for number in self.window.take_over():
            self.ids.forget(number)
        return settled

    def leave(self, keys: Mapping[str, Collection[Key]]) -> None:
        """Take note that committed messages were left open. One that was before stays where it was."""
        for queue, some in keys.items():
            digests, contents = self._digests(queue, some)
            self._leave(digests)
            if contents:
                self._leave_contents(Snapshot(int(self.connected_s), {queue: contents}, so_far=self._left_so_far))
                self._new_contents.setdefault(queue, []).extend(contents)

    def _leave(self, digests: Any) -> None:
        known = set(self.ids.find(digests, self.left.sizes.keys()))
        fresh = digests[[place for place in range(len(digests)) if place not in known]] if known else digests
        if len(fresh):
            number = next(self._numbers)
            self._new.append(number)
            self.ids.put(number, fresh)
            self.left.add(number, len(fresh))
            self._left_so_far += len(fresh)

    def _leave_contents(self, left: Snapshot) -> None:
        number = next(self._numbers)
        for queue, keys in left.contents.items():
            self.contents.put(number, self._digests_of(queue, keys))
            self._left_so_far += len(keys)
        self._contents[number] = left

    def forget_contents(self) -> None:
        """Forget contents that were left for long enough."""
        late_s, far = self.connected_s - _CONTENTS_LEFT_S, self._left_so_far - _CONTENTS_LEFT
        while self._contents:
            oldest = next(iter(self._contents))
            left = self._contents[oldest]
            if left.number >= late_s and left.so_far >= far:
                break
            del self._contents[oldest]
            self.forgotten += len(self.contents.forget(oldest))

    def _join_contents(self) -> None:
        """Have contents that were left since the last base be one batch, of the newest of them: few are searched."""
        fresh = [number for number in self._contents if number > self._joined]
        self._joined = next(self._numbers)
        if fresh:
            newest = self._contents[fresh[-1]]
            joined: dict[str, list[Key]] = {}
            for number in fresh:
                for queue, keys in self._contents.pop(number).contents.items():
                    joined.setdefault(queue, []).extend(keys)
            self.contents.join(fresh, self._joined)
            self._contents[self._joined] = Snapshot(newest.number, joined, so_far=newest.so_far)

    def find_left(self, digests: Any) -> set[int]:
        """Find the places of those that were left."""
        return {
            *self.ids.find(digests, self.left.sizes.keys()),
            *self.contents.find(digests, self._contents.keys()),
        }

    def _meet(self, digests: Any) -> None:
        """Add settled contents. Each batch is at least twice as large as the next, so a search looks into few."""
        if not len(digests):
            return
        met, batches, size = self._met, self.met, len(digests)
        joined: list[int] = []
        while met and batches.size(met[-1]) < min(_MET_BATCH, 2 * size):
            joined.append(met.pop())
            size += batches.size(joined[-1])
        joined.append(next(self._numbers))
        batches.put(joined[-1], digests)
        met.append(next(self._numbers))
        batches.join(joined, met[-1])
        while len(batches) > _MET_MAX and len(met) > 1:
            batches.forget(met.pop(0))

    # -- files

    def compose(
        self, epoch: int, queues: Sequence[str], planned: ByQueue, held: Collection[int], begun: Mapping[int, ByQueue]
    ) -> EpochFile:
        """Settle, forget, and make the file of an epoch; :meth:`written` is to follow.

        Args:
            held: epochs of which an acknowledgement is not settled.
            begun: epochs that are committed before this file is read, and of which that is not known: what they have.
        """
        settled = self.settle([one for one in self._unsettled if one not in held])
        number = next(self._numbers)
        self._join(self.left, self._new, number)
        left = self.ids.get([number])
        self._new = []
        contents, self._new_contents = self._new_contents, {}
        self.forgotten += self._forget_left()
        window_part = left_part = from_bytes(b"")
        unsettled: list[Snapshot] = []
        remembered: list[Snapshot] = []
        if self._loaded or len(self._after) >= FOLLOWING_MAX or sum(self._after.values()) > _FOLLOWING_MESSAGES_MAX:
            self._base, self._after, self._loaded = "", {}, False
            window_part = self._part(self.window)
            unsettled = [
                Snapshot(one, dict(its.contents), self.ids.get([its.number]), dict(its.queues))
                for one, its in self._unsettled.items()
            ] + [self._snapshot(one, keys) for one, keys in begun.items()]
            self._join_contents()
            remembered = [*self._contents.values()]
        if len(self._left_after) >= FOLLOWING_MAX:
            self._left_after = []
            left_part = self._part(self.left)
        return EpochFile(
            epoch=epoch,
            queues=list(queues),
            planned=planned,
            connected_s=self.connected_s,
            left_so_far=self._left_so_far,
            settled=settled,
            left=left,
            left_contents=contents,
            base=self._base,
            after=[*self._after],
            left_after=[*self._left_after],
            window_parts=[file for file, _ in self.window.parts],
            left_parts=[file for file, _ in self.left.parts],
            window_part=window_part,
            left_part=left_part,
            unsettled=unsettled,
            contents=remembered,
            secret=self.digester.secret.hex(),
        )

    def _snapshot(self, epoch: int, planned: ByQueue) -> Snapshot:
        parts = {queue: self._digests(queue, keys) for queue, keys in planned.items()}
        return Snapshot(
            epoch,
            {queue: contents for queue, (_, contents) in parts.items() if contents},
            np.concatenate([from_bytes(b""), *(digests for digests, _ in parts.values())]),
            {queue: len(keys) for queue, keys in planned.items()},
        )

    def _join(self, shelf: Shelf, numbers: Sequence[int], into: int) -> Any:
        numbers = [number for number in numbers if number in shelf.sizes]
        if not numbers:
            return from_bytes(b"")
        shelf.join(numbers, into)
        return self.ids.join(numbers, into)

    def _part(self, shelf: Shelf) -> Any:
        joined = shelf.to_join()
        number = next(self._numbers)
        if joined:
            shelf.parts.append(("", number))
        return self._join(shelf, joined, number)

    def _forget_left(self) -> int:
        over = self.left.take_over()
        for number in over:
            self.ids.forget(number)
        return sum(over.values())

    def written(self, name: str, file: EpochFile) -> None:
        """Take note of the name of a file that was composed."""
        self._base = name if self._base == "" else self._base
        for shelf in (self.window, self.left):
            shelf.parts = [(part or name, number) for part, number in shelf.parts]
        if self._base != name:
            self._after[name] = sum(map(len, file.planned.values()))
        if len(file.left) and not len(file.left_part):
            self._left_after.append(name)

    def forget_files(self, before: Iterable[str], kept: Collection[str]) -> tuple[list[str], list[list[str]]]:
        """Take note of a plan.

        Args:
            before: files that were named until now, and not removed.
            kept: those that are named from now on.

        Returns:
            the files that nobody needs any more; and those that will be so, by plan.
        """
        self._gone.append(sorted(set(before).difference(kept)))
        files = [file for _ in range(len(self._gone) - KEPT_EPOCHS) for file in self._gone.popleft()]
        return [file for file in files if file not in kept], [list(names) for names in self._gone]

    # -- restart

    def load(self, name: str, read: Callable[[str], EpochFile], *, committed: bool) -> Counter[str]:
        """Take in what a former process had remembered; only in an empty memory.

        Args:
            name: of the newest file.
            read: reads a file, without what was given up of its epoch.
            committed: whether its epoch is.

        Returns:
            how many messages of each queue the end of that process has left.
        """
        own = read(name)
        self.digester = Digester(bytes.fromhex(own.secret))
        self.connected_s = own.connected_s
        self._gone = deque(own.gone)
        self._base = own.base if own.base is None else own.base or name
        for shelf, parts, part in (
            (self.window, own.window_parts, "window_part"),
            (self.left, own.left_parts, "left_part"),
        ):
            for file in parts:
                self._put_part(shelf, file or name, getattr(read(file or name), part))
        if self._base is not None:
            base = own if self._base == name else read(self._base)
            self._apply_base(base)
            if base is not own:
                self._plan(base)
        for file in own.after:
            follower = read(file)
            self._apply(follower)
            self._plan(follower)
            self._after[file] = sum(map(len, follower.planned.values()))
        for file in own.left_after:
            self._leave(read(file).left)
            self._left_after.append(file)
        self._leave(own.left)
        if self._base != name:
            self._apply(own)
        if committed:
            self._plan(own)
        self.written(name, own)
        self._left_so_far = own.left_so_far
        self.forget_contents()
        self._forget_left()
        self._new, self.forgotten, self._loaded = [], 0, True
        return self._leave_unsettled()

    def _put_part(self, shelf: Shelf, file: str, digests: Any) -> None:
        number = next(self._numbers)
        self.ids.put(number, digests)
        shelf.add(number, len(digests))
        shelf.parts.append((file, number))

    def _apply_base(self, file: EpochFile) -> None:
        for one in file.unsettled:
            its = self._unsettled[one.number] = _Unsettled(next(self._numbers), Counter(one.queues), {**one.contents})
            self.ids.put(its.number, one.digests)
        for one in file.contents:
            self._leave_contents(one)
        self._joined = next(self._numbers)

    def _apply(self, file: EpochFile) -> None:
        """Take in what a file says has changed."""
        self.settle(file.settled)
        if file.left_contents:
            self._leave_contents(Snapshot(int(file.connected_s), file.left_contents, so_far=file.left_so_far))

    def _plan(self, file: EpochFile) -> None:
        """Take in the epoch of a file, which is committed."""
        for queue, keys in file.planned.items():
            self.commit(file.epoch, queue, keys)

    def _leave_unsettled(self) -> Counter[str]:
        recent: Counter[str] = Counter()
        for its in self._unsettled.values():
            recent += its.queues
            self._leave(self.ids.forget(its.number))
            self.contents.forget(its.number)
            for queue, keys in its.contents.items():
                self.leave({queue: keys})
        self._unsettled = {}
        return recent

    def contents_left(self) -> dict[str, list[Key]]:
        """Return the contents that were left, the oldest first."""
        found: dict[str, list[Key]] = {}
        for left in self._contents.values():
            for queue, keys in left.contents.items():
                found.setdefault(queue, []).extend(keys)
        return {queue: list(dict.fromkeys(keys)) for queue, keys in found.items()}


def _parted(keys: Collection[Key]) -> tuple[Collection[Key], list[Key]]:
    """Part keys into IDs and contents. IDs are texts, nearly always: types are looked at in a tenth of the time."""
    if isinstance(keys, TextKeys) or bytes not in set(map(type, keys)):
        return keys, []
    return [key for key in keys if not is_content(key)], [key for key in keys if is_content(key)]
