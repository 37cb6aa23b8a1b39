"""The memory of a query: IDs and contents of committed messages, and which of these messages may be redelivered.

An acknowledgement is *settled* if the broker cannot redeliver its message any more (:mod:`pyspark_mq.ack.settling`). A
message is *left open*, or *left* for short, if its session or process ended before its acknowledgement was settled. The
memory has five sections. In each section the oldest entries are forgotten first, and only contents expire by time:

=============  =======================================================================================================
*unsettled*    committed epochs with an acknowledgement that is not settled
*window*       the newest settled epochs, as many as needed for `dedupWindow` IDs
*left*         the newest `remember_left` different IDs of messages that were left open, in the order in which they were
               first left open. If a message is left open again, its ID keeps its place
*contents*     digests of the contents of messages without an ID that were left open. A content is removed if an epoch
               with this content is settled. Otherwise it is removed after half a million other messages were left open,
               or after an hour of being connected: if the broker has processed the acknowledgement after all, equal
               messages must not be dropped for ever. Contents that are settled are in the window
*repeats*      the newest contents that two messages have had. A message with such a content is never taken for the
               redelivery of a message that was left open
=============  =======================================================================================================

The memory is stored in the files of epochs. A file has the changes since the previous file, and the names of the other
files that a restart has to read. The other files are *parts* of the window and of the left IDs, a *base* with the
unsettled epochs and all contents (at most 8 MB), and the files that were written after the base. After
:data:`FOLLOWING_MAX` files without a new base, the next file is a base and has a new part. A new part replaces older
parts that are not much larger, as long as the new part has at most an eighth of the IDs. So a file names a limited
number of other files, and the file of an epoch is small, however many IDs are remembered. (If each base had all of two
million IDs, a query with few messages would write half a megabyte for each epoch.)

When a process ends, the messages of its unsettled epochs are left open, in order. The next process records in its first
file which messages these are.

There are two guarantees. The ID of a message that was left open is recognised until `remember_left` different IDs were
left open after the message was *first* left open. A settled ID is recognised until `dedupWindow` newer IDs are settled.
(The first guarantee cannot count from when a message was *last* left open: if a process is killed while it acknowledges
a redelivery, no file records this.) IDs are forgotten in batches, such as all IDs of an epoch, so an ID may be
remembered for longer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np

from pyspark_mq.dedup.digests import DIGEST_BYTES, Batches, Digester, from_bytes
from pyspark_mq.dedup.epoch_file import ByQueue, EpochFile, Snapshot
from pyspark_mq.dedup.identity import Key, filed, parted
from pyspark_mq.dedup.shelf import Shelf

__all__ = ["KEPT_EPOCHS", "Memory"]

#: A file is kept until this number of epochs was planned after newer files stopped naming it. Spark keeps the offsets
#: of a hundred batches by default (`spark.sql.streaming.minBatchesToRetain`), so the file of each of these offsets
#: still exists.
KEPT_EPOCHS = 120
#: Maximum number of files between two bases, and of files with IDs left open between two parts of these IDs; and
#: maximum number of messages in the files after a base.
FOLLOWING_MAX, _FOLLOWING_MESSAGES_MAX = 32, 500_000
#: A content that was left open is forgotten after this many seconds of being connected, or after this number of other
#: messages were left open.
_CONTENTS_LEFT_S = 3_600.0
_CONTENTS_LEFT = 500_000
#: Maximum number of repeating contents that are remembered.
_REPEATS_MAX = 65_536
_NOTHING = from_bytes(b"")


@dataclass(slots=True)
class _Unsettled:
    """An epoch that is committed but not settled.

    Attributes:
        ids: number of the batch with the digests of the epoch's IDs.
        contents: number of the batch with the digests of the epoch's contents.
        queues: name of a queue -> number of its messages in the epoch.
    """

    ids: int
    contents: int
    queues: Counter[str] = field(default_factory=Counter)


class Memory:
    """The memory of a query, over all its queues.

    Args:
        window: value of option `dedupWindow`.
        most_left: maximum number of IDs of messages that were left open (`remember_left` of :class:`.Settings`).
        secret: random bytes for digests, see :class:`.Digester`. :meth:`load` replaces them by the secret in the files.

    Attributes:
        digester: computes the digests of keys. :meth:`load` replaces it, because the secret changes.
        ids: all digests, in numbered batches.
        window, left: the batches in the sections *window* (settled IDs) and *left* (IDs left open), in order.
        connected_s: seconds for which every connection of the query was up, over all its processes.
        forgotten: number of IDs that were forgotten although their messages may be redelivered.
        contents: number of a batch of contents that were left open -> the value of `connected_s` when the newest of
            them were left open, and how many messages had been left open before that.
        repeats: digest of a content that repeats -> number of messages with this content that were left open and not
            redelivered since.
    """

    def __init__(self, window: int, most_left: int, secret: bytes) -> None:
        self._numbers = count(1)
        self.digester = Digester(secret)
        self.ids = Batches()
        self.window, self.left = Shelf(window), Shelf(most_left)
        #: Number of a committed epoch that is not settled -> its batches of digests, in the order of commits.
        self._unsettled: dict[int, _Unsettled] = {}
        #: Number of the newest batch into which several batches of contents were joined.
        self._joined = 0
        #: Number of messages that were left open so far.
        self._left_so_far = 0
        #: Numbers of the batches of left IDs that are not in a file yet.
        self._new: list[int] = []
        self._new_contents: Any = _NOTHING
        self._new_repeats: list[bytes] = []
        #: Numbers of the epochs that :meth:`note` has settled since the last file was written.
        #: `_noted`: how many entries of `_new`, `_new_contents` and `_new_repeats` a note already has.
        self._settled: list[int] = []
        self._noted = (0, 0, 0)
        #: Contents that were found to repeat, and messages that were left open, before the first file was written. They
        #: are kept as keys instead of digests, because `load` changes the secret of digests.
        self._repeated: dict[tuple[str, Key], None] | None = {}
        self._left: dict[str, dict[Key, None]] | None = {}
        self._base: str | None = None
        #: Name of a file that was written after the base -> number of messages in this file.
        self._after: dict[str, int] = {}
        self._left_after: list[str] = []
        self._gone: deque[Sequence[str]] = deque()
        #: Whether the next file must be a base, because the unsettled epochs of the former process count as left open.
        self._loaded = False
        self.connected_s = 0.0
        self.forgotten = 0
        self.contents: dict[int, tuple[int, int]] = {}
        self.repeats: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return the number of digests in the memory."""
        return len(self.ids)

    @property
    def contents_left(self) -> int:
        return sum(map(self.ids.size, self.contents))

    # -- events

    def commit(self, epoch: int, queue: str, keys: Collection[Key], digests: Any = None) -> None:
        """Record that messages of an epoch are committed.

        Args:
            epoch: number of the epoch.
            queue: name of the queue of these messages.
            keys: the messages' keys.
            digests: the digests of all keys, in any order, if all keys are IDs and the caller has computed their
                digests before; otherwise None.
        """
        if not keys:
            return
        if epoch not in self._unsettled:
            self._unsettled[epoch] = _Unsettled(next(self._numbers), next(self._numbers))
        one = self._unsettled[epoch]
        one.queues[queue] += len(keys)
        ids, contents = self._digests(queue, keys) if digests is None else (digests, _NOTHING)
        self.ids.put(one.ids, ids)
        self.ids.put(one.contents, contents)

    def _digests(self, queue: str, keys: Collection[Key]) -> tuple[Any, Any]:
        """Return two arrays: the digests of the IDs among the keys, and the digests of the contents."""
        begin = self.digester.begin(queue)
        ids, contents = parted(keys)
        return self.digester.digests(begin, ids), self.digester.digests(begin, contents)

    def settle(self, epochs: Iterable[int]) -> list[int]:
        """Record that epochs are settled. Return the numbers of those that were unsettled until now."""
        settled = [epoch for epoch in epochs if epoch in self._unsettled]
        for epoch in settled:
            its = self._unsettled.pop(epoch)
            number = its.ids
            if self.ids.size(its.contents):
                self._remove(self.ids.get([its.contents]), self.contents)
                number = next(self._numbers)
                self.ids.join([its.ids, its.contents], number)
            self.window.add(number, self.ids.size(number))
        for number in self.window.take_over():
            self.ids.forget(number)
        return settled

    def leave(self, keys: Mapping[str, Collection[Key]]) -> None:
        """Record that committed messages were left open. An ID that was left open before keeps its place in the order.

        Args:
            keys: name of a queue -> keys of its messages.
        """
        for queue, some in keys.items():
            if self._left is not None:
                self._left.setdefault(queue, {}).update(dict.fromkeys(some))
            ids, contents = self._digests(queue, some)
            self._leave(ids)
            self._leave_contents(contents, int(self.connected_s))
            self._new_contents = np.concatenate([self._new_contents, contents])

    def _leave(self, digests: Any) -> None:
        known = set(self.ids.find(digests, self.left.sizes.keys()))
        fresh = digests[[place for place in range(len(digests)) if place not in known]] if known else digests
        if len(fresh):
            number = next(self._numbers)
            self._new.append(number)
            self.ids.put(number, fresh)
            self.left.add(number, len(fresh))
            self._left_so_far += len(fresh)

    def _leave_contents(self, digests: Any, connected_s: int) -> None:
        if len(digests):
            # Remove the contents from unsettled epochs. Otherwise the settlement of an epoch would also count for
            # messages whose acknowledgement was cut off.
            self._remove(digests, [its.contents for its in self._unsettled.values()])
            self._remove(digests, self.contents)
            number = next(self._numbers)
            self.ids.put(number, digests)
            self.contents[number] = connected_s, self._left_so_far
            self._left_so_far += len(digests)
            for text in map(bytes, digests) if self.repeats else ():
                if text in self.repeats:
                    self.repeats[text] += 1

    def _remove(self, contents: Any, batches: Collection[int]) -> None:
        """Remove contents from the batches with these numbers."""
        for number in batches if batches and any(True for _ in self.ids.find(contents, batches)) else ():
            there = self.ids.forget(number)
            self.ids.put(number, there[~np.isin(_texts(there), _texts(contents))])

    def has_contents(self, epochs: Collection[int]) -> bool:
        """Whether one of these epochs, which are committed but not settled, has messages without an ID."""
        unsettled = (self._unsettled.get(epoch) for epoch in epochs)
        return any(its is not None and self.ids.size(its.contents) for its in unsettled)

    def holds(self, epoch: int, keys: ByQueue) -> bool:
        """Whether an epoch is unsettled and still has all contents in `keys`, because none of them was left open."""
        its = self._unsettled.get(epoch)
        if its is None:
            return False
        contents = [self._digests(queue, some)[1] for queue, some in keys.items()]
        return all(len({*self.ids.find(some, [its.contents])}) == len(some) for some in contents)

    def note(self, held: Collection[int]) -> EpochFile | None:
        """Settle epochs, and return a note with the changes since the last file or note.

        :meth:`load` needs the note if no further file is written. If no contents were settled or found to repeat since
        the last file or note, there is no note, and no epoch is settled.

        Args:
            held: numbers of the epochs that have an unsettled acknowledgement. All other epochs are settled.

        Returns:
            the note, or None if there is none.
        """
        settled = [epoch for epoch in self._unsettled if epoch not in held]
        left, contents, repeats = self._noted
        if not self.has_contents(settled) and len(self._new_repeats) == repeats:
            return None
        self._settled += self.settle(settled)
        self._noted = len(self._new), len(self._new_contents), len(self._new_repeats)
        return EpochFile(
            connected_s=self.connected_s,
            left_so_far=self._left_so_far,
            settled=settled,
            left=self.ids.get(self._new[left:]),
            left_contents=self._new_contents[contents:],
            repeating=from_bytes(b"".join(self._new_repeats[repeats:])),
        )

    def note_repeat(self, queue: str, key: Key) -> None:
        """Record that a content repeats: two messages have had it.

        Until the first file is written, also keep the key, because :meth:`load` changes the secret of digests.
        """
        if self._repeated is not None and len(self._repeated) < _REPEATS_MAX:
            self._repeated[queue, key] = None
        self.repeat(self._digests(queue, [key])[1])

    def repeat(self, digests: Any) -> None:
        """Record that the contents with these digests repeat: two messages have had each of them."""
        left = {*self.ids.find(digests, self.contents)}
        self._new_repeats += map(bytes, digests)
        for place, text in enumerate(map(bytes, digests)):
            self.repeats.setdefault(text, int(place in left))
            if len(self.repeats) > _REPEATS_MAX:
                del self.repeats[next(iter(self.repeats))]

    def forget_contents(self) -> None:
        """Forget contents that were left open too long ago (:data:`_CONTENTS_LEFT_S`, :data:`_CONTENTS_LEFT`)."""
        late_s, far = self.connected_s - _CONTENTS_LEFT_S, self._left_so_far - _CONTENTS_LEFT
        while self.contents:
            oldest = next(iter(self.contents))
            left_s, so_far = self.contents[oldest]
            if left_s >= late_s and so_far >= far:
                break
            del self.contents[oldest]
            self.ids.forget(oldest)

    def _join_contents(self) -> None:
        """Join the batches of contents left open since the last base into one, so that fewer batches are searched."""
        fresh = [number for number in self.contents if number > self._joined]
        self._joined = next(self._numbers)
        if fresh:
            times = [self.contents.pop(number) for number in fresh]
            self.ids.join(fresh, self._joined)
            self.contents[self._joined] = times[-1]

    # -- files

    def compose(
        self,
        epoch: int,
        queues: Sequence[str],
        planned: ByQueue,
        held: Collection[int],
        echoes: ByQueue = MappingProxyType({}),
    ) -> EpochFile:
        """Settle epochs, forget old IDs, and return the content for the file of a new epoch.

        After the file was written, the caller has to call :meth:`written`.

        Args:
            epoch: number of the new epoch.
            queues: names of the queues that the query reads.
            planned: keys of the messages that the epoch emits.
            held: numbers of the epochs that have an unsettled acknowledgement. All other epochs are settled.
            echoes: keys of messages that belong to the epoch but are not emitted, because they are redeliveries
                (:mod:`pyspark_mq.ack.content_matcher`).
        """
        self._repeated = self._left = None
        settled = [*self._settled, *self.settle([one for one in self._unsettled if one not in held])]
        number = next(self._numbers)
        self._join(self.left, self._new, number)
        left = self.ids.get([number])
        self._new = []
        new_contents, new_repeats = self._new_contents, from_bytes(b"".join(self._new_repeats))
        self._new_contents, self._new_repeats, self._settled, self._noted = _NOTHING, [], [], (0, 0, 0)
        self.forgotten += self._forget_left()
        window_part = left_part = repeats = _NOTHING
        unsettled: list[Snapshot] = []
        remembered: list[Snapshot] = []
        if self._loaded or len(self._after) >= FOLLOWING_MAX or sum(self._after.values()) > _FOLLOWING_MESSAGES_MAX:
            self._base, self._after, self._loaded = "", {}, False
            window_part = self._part(self.window)
            unsettled = [
                Snapshot(one, self.ids.get([its.contents]), self.ids.get([its.ids]), dict(its.queues))
                for one, its in self._unsettled.items()
            ]
            self._join_contents()
            remembered = [
                Snapshot(left_s, self.ids.get([one]), so_far=so_far) for one, (left_s, so_far) in self.contents.items()
            ]
            repeats = from_bytes(b"".join(self.repeats))
        if len(self._left_after) >= FOLLOWING_MAX:
            self._left_after = []
            left_part = self._part(self.left)
        return EpochFile(
            epoch=epoch,
            queues=list(queues),
            planned={queue: filed(keys) for queue, keys in planned.items()},
            echoes={queue: filed(keys) for queue, keys in echoes.items()},
            connected_s=self.connected_s,
            left_so_far=self._left_so_far,
            settled=settled,
            left=left,
            left_contents=new_contents,
            repeating=new_repeats,
            base=self._base,
            after=[*self._after],
            left_after=[*self._left_after],
            window_parts=[file for file, _ in self.window.parts],
            left_parts=[file for file, _ in self.left.parts],
            window_part=window_part,
            left_part=left_part,
            unsettled=unsettled,
            contents=remembered,
            repeats=repeats,
            secret=self.digester.secret.hex(),
        )

    def _join(self, shelf: Shelf, numbers: Sequence[int], into: int) -> Any:
        numbers = [number for number in numbers if number in shelf.sizes]
        if not numbers:
            return _NOTHING
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
        """Record that the content which :meth:`compose` returned was written as a file with this name."""
        self._base = name if self._base == "" else self._base
        for shelf in (self.window, self.left):
            shelf.parts = [(part or name, number) for part, number in shelf.parts]
        if self._base != name:
            self._after[name] = sum(map(len, file.planned.values()))
        if len(file.left) and not len(file.left_part):
            self._left_after.append(name)

    def forget_files(self, before: Iterable[str], kept: Collection[str]) -> tuple[list[str], list[list[str]]]:
        """Record which files are dropped with the newest epoch, and return the files that are no longer needed.

        Args:
            before: names of the files that earlier files named, and that were not removed yet.
            kept: names of the files that are needed from now on. The others in `before` are dropped.

        Returns:
            the names of the files to remove now; and the names of the files to remove later, grouped by the epoch that
            dropped them.
        """
        self._gone.append(sorted(set(before).difference(kept)))
        files = [file for _ in range(len(self._gone) - KEPT_EPOCHS) for file in self._gone.popleft()]
        return [file for file in files if file not in kept], [list(names) for names in self._gone]

    # -- restart

    def load(
        self,
        name: str,
        read: Callable[[str], EpochFile],
        *,
        committed: bool,
        notes: Sequence[EpochFile] = (),
        begun: bool = False,
    ) -> Counter[str]:
        """Load the memory of a former process from its files. This memory must not have committed messages.

        Args:
            name: name of the newest file.
            read: returns the content of the file with a name, without messages that its epoch has abandoned.
            committed: whether the epoch of the newest file is committed.
            notes: the notes that :meth:`note` returned after that commit, oldest first; empty if the epoch is not
                committed.
            begun: whether the epoch's echoes (messages that it acknowledges but does not emit) are settled already. The
                epoch itself may not be committed yet.

        Returns:
            name of each queue -> number of its messages that are left open now, because the former process has ended.
        """
        own, repeated, left = read(name), self._repeated or {}, self._left or {}
        self.digester, self.repeats = Digester(bytes.fromhex(own.secret)), {}
        self._repeated = self._left = None
        self._new_repeats = []
        for queue, key in repeated:
            self.note_repeat(queue, key)
        new_repeats = [*self._new_repeats]
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
        if begun:
            self._commit_all(own.epoch, own.echoes)
            self.settle([own.epoch])
        if committed:
            self._commit_all(own.epoch, own.planned)
            self._commit_all(own.epoch, {} if begun else own.echoes)
        for note in notes:
            self._apply(note)
        self.written(name, own)
        last = notes[-1] if notes else own
        self.connected_s = max(self.connected_s, last.connected_s)
        self._left_so_far = last.left_so_far - sum(len(note.left) for note in notes)
        self.forget_contents()
        self._forget_left()
        self._new, self.forgotten, self._loaded = [], 0, True
        # The next file has to repeat what the notes record.
        noted = [bytes(content) for note in notes for content in note.repeating]
        self._new_contents, self._new_repeats, self._noted = _NOTHING, [*noted, *new_repeats], (0, 0, len(noted))
        for note in notes:
            self._leave(note.left)
        recent = self._leave_unsettled()
        self.leave(left)
        return recent

    def _put_part(self, shelf: Shelf, file: str, digests: Any) -> None:
        number = next(self._numbers)
        self.ids.put(number, digests)
        shelf.add(number, len(digests))
        shelf.parts.append((file, number))

    def _apply_base(self, file: EpochFile) -> None:
        self.repeat(file.repeats)
        for one in file.contents:
            self._left_so_far = one.so_far
            self._leave_contents(one.contents, one.number)
        self._joined = next(self._numbers)
        # Add the unsettled epochs last, because `_leave_contents` removes contents from unsettled epochs. If a message
        # was left open and redelivered since, its content belongs to both.
        for one in file.unsettled:
            its = self._unsettled[one.number] = _Unsettled(
                next(self._numbers), next(self._numbers), Counter(one.queues)
            )
            self.ids.put(its.ids, one.digests)
            self.ids.put(its.contents, one.contents)

    def _apply(self, file: EpochFile) -> None:
        """Apply the changes that a file or a note records."""
        self._left_so_far = file.left_so_far - len(file.left_contents)
        self._leave_contents(file.left_contents, int(file.connected_s))
        self.settle(file.settled)  # do this last, so that it does not settle contents that were left open
        self.repeat(file.repeating)

    def _plan(self, file: EpochFile) -> None:
        """Record that the messages of a file's epoch are committed, with its echoes."""
        self._commit_all(file.epoch, file.planned)
        self._commit_all(file.epoch, file.echoes)

    def _commit_all(self, epoch: int, planned: ByQueue) -> None:
        for queue, keys in planned.items():
            self.commit(epoch, queue, keys)

    def _leave_unsettled(self) -> Counter[str]:
        recent: Counter[str] = Counter()
        for its in self._unsettled.values():
            recent += its.queues
            self._leave(self.ids.forget(its.ids))
            contents = self.ids.forget(its.contents)
            self._leave_contents(contents, int(self.connected_s))
            self._new_contents = np.concatenate([self._new_contents, contents])
        self._unsettled = {}
        return recent


def _texts(digests: Any) -> Any:
    """Return the digests as a one-dimensional array that has one value of 16 bytes for each digest."""
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}").ravel()
