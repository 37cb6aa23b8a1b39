"""The memory of a query: IDs and contents of committed messages, and which of these may be redelivered. Pure.

The oldest IDs are forgotten first, and only contents expire by time:

=============  =======================================================================================================
*unsettled*    committed epochs with an acknowledgement that is not settled
*window*       the newest settled epochs, enough to hold `dedupWindow` IDs
*left*         the newest `remember_left` distinct IDs whose acknowledgement was cut off by the end of a session or
               process, in the order in which they were first left. An ID that is left again keeps its place
*contents*     the same for messages without an ID, by digest. A content is removed once an epoch with this content is
               settled. Otherwise it is removed after half a million other messages were left, or after an hour of
               being connected, because the broker may have processed the acknowledgement, and an equal message must
               not be dropped for ever. Settled contents are in the window
*repeats*      the newest contents seen in two messages. A message with such a content is never taken for a left one
=============  =======================================================================================================

The file of an epoch has the changes since the previous file, and names the files that a load reads: *parts* of the
window and of the left IDs, a *base* with unsettled epochs, and the files that follow. When :data:`FOLLOWING_MAX` files
follow, the next file has a new base and part. A part absorbs the parts before it that are not much larger, up to an
eighth of the IDs remembered. So a file names a bounded number of other files, and an epoch writes little, however many
IDs are remembered. If two million IDs were in one base, each epoch of a trickle would write half a megabyte. A base has
all contents, at most 8 MB.

When a process ends, its unsettled epochs are left, in order. The next file records this.

The promise: an ID is recognised until `remember_left` distinct others have been left since it was *first* left, or, if
it was settled, until `dedupWindow` newer IDs have been settled. (The promise cannot count from when the ID was *last*
left. If a repeated acknowledgement was under way when a process was killed, no file records this acknowledgement.) IDs
are forgotten in batches, such as the batch of one plan, so they may be remembered for longer.
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
from pyspark_mq.dedup.identity import CONTENT_DIGEST_BYTES, Key, TextKeys, filed
from pyspark_mq.dedup.shelf import Shelf

__all__ = ["KEPT_EPOCHS", "Memory", "parted"]

#: Number of plans for which a file is kept after the last plan that names the file. Spark keeps a hundred offsets by
#: default (`spark.sql.streaming.minBatchesToRetain`).
KEPT_EPOCHS = 120
#: Most files that follow a base or a part, and most messages in the files that follow a base.
FOLLOWING_MAX, _FOLLOWING_MESSAGES_MAX = 32, 500_000
#: Left contents are forgotten after `_CONTENTS_LEFT_S` connected seconds, or when more than `_CONTENTS_LEFT` further
#: messages have been left.
_CONTENTS_LEFT_S = 3_600.0
_CONTENTS_LEFT = 500_000
#: How many of the newest repeating contents are remembered.
_REPEATS_MAX = 65_536
_NOTHING = from_bytes(b"")
#: Stands for the content digest of messages without an identity.
_NAMELESS = bytes(CONTENT_DIGEST_BYTES)


@dataclass(slots=True)
class _Unsettled:
    """A committed, unsettled epoch.

    Attributes:
        ids, contents: numbers of the batches that have the epoch's IDs and contents.
        queues: queue -> number of the epoch's messages.
    """

    ids: int
    contents: int
    queues: Counter[str] = field(default_factory=Counter)


class Memory:
    """The memory over all queues of a query.

    Args:
        window: `dedupWindow`.
        most_left: `remember_left` of :class:`.Settings`.
        secret: random bytes for digests, see :class:`.Digester`. A load replaces them by the secret of the files.

    Attributes:
        digester: makes digests of keys. A load replaces the digester, because the secret changes.
        connected_s: seconds for which every connection of the query was up, over all its processes.
        forgotten: number of IDs forgotten although their messages may be redelivered.
        contents: batches of left contents; for each, the connected second at which its contents were left, and the
            number of messages left by then.
        repeats: contents known to repeat, and how many messages with each content were left and not redelivered since.
    """

    def __init__(self, window: int, most_left: int, secret: bytes) -> None:
        self._numbers = count(1)
        self.digester = Digester(secret)
        self.ids = Batches()
        self.window, self.left = Shelf(window), Shelf(most_left)
        #: Epoch -> its batches, in the order of commits.
        self._unsettled: dict[int, _Unsettled] = {}
        #: The newest batch of contents that was joined from several batches.
        self._joined = 0
        #: Number of messages left so far.
        self._left_so_far = 0
        #: Batches of left IDs that are not in a file yet.
        self._new: list[int] = []
        self._new_contents: Any = _NOTHING
        self._new_repeats: list[bytes] = []
        #: Epochs settled by notes since the last file, and how many of the above are in a note.
        self._settled: list[int] = []
        self._noted = (0, 0, 0)
        #: Repeating contents found before the first file. They are kept by queue and key, not by digest, because a load
        #: changes the secret of digests.
        self._repeated: dict[tuple[str, Key], None] | None = {}
        self._left: dict[str, dict[Key, None]] | None = {}
        self._base: str | None = None
        #: File that follows the base -> number of messages in the file.
        self._after: dict[str, int] = {}
        self._left_after: list[str] = []
        self._gone: deque[Sequence[str]] = deque()
        #: Whether the next file needs a new base, because the former process's unsettled epochs are left now.
        self._loaded = False
        self.connected_s = 0.0
        self.forgotten = 0
        self.contents: dict[int, tuple[int, int]] = {}
        self.repeats: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Number of known digests."""
        return len(self.ids)

    @property
    def contents_left(self) -> int:
        return sum(map(self.ids.size, self.contents))

    # -- events

    def commit(self, epoch: int, queue: str, keys: Collection[Key], digests: Any = None) -> None:
        """Record that messages of an epoch are committed.

        Args:
            digests: the digests of `keys`, in any order, if the caller has them and all keys are IDs; None otherwise.
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
        """Record that epochs are settled; return the epochs that were not settled before."""
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
        """Record that committed messages were left open. A message left earlier keeps its place in the order."""
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
            # A content is either in an unsettled epoch or left, so that the epoch settles only what was not cut off.
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
        """Remove contents from these batches."""
        for number in batches if batches and any(True for _ in self.ids.find(contents, batches)) else ():
            there = self.ids.forget(number)
            self.ids.put(number, there[~np.isin(_texts(there), _texts(contents))])

    def has_contents(self, epochs: Collection[int]) -> bool:
        """Whether messages without an ID are in one of these epochs, which are committed and not settled."""
        unsettled = (self._unsettled.get(epoch) for epoch in epochs)
        return any(its is not None and self.ids.size(its.contents) for its in unsettled)

    def holds(self, epoch: int, keys: ByQueue) -> bool:
        """Whether all these contents are in an unsettled epoch, so that none of them was left open."""
        its = self._unsettled.get(epoch)
        if its is None:
            return False
        contents = [self._digests(queue, some)[1] for queue, some in keys.items()]
        return all(len({*self.ids.find(some, [its.contents])}) == len(some) for some in contents)

    def note(self, held: Collection[int]) -> EpochFile | None:
        """Settle epochs, and return what changed since the last file or note.

        Args:
            held: epochs with an unsettled acknowledgement.

        Returns:
            the note, for :meth:`load`; None unless it is in no file that contents are settled or repeat.
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
        """Record that a content repeats. Record the content's key, too, because a load may change the secret."""
        if self._repeated is not None and len(self._repeated) < _REPEATS_MAX:
            self._repeated[queue, key] = None
        self.repeat(self._digests(queue, [key])[1])

    def repeat(self, digests: Any) -> None:
        """Record that contents repeat."""
        left = {*self.ids.find(digests, self.contents)}
        self._new_repeats += map(bytes, digests)
        for place, text in enumerate(map(bytes, digests)):
            self.repeats.setdefault(text, int(place in left))
            if len(self.repeats) > _REPEATS_MAX:
                del self.repeats[next(iter(self.repeats))]

    def forget_contents(self) -> None:
        """Forget contents that have expired."""
        late_s, far = self.connected_s - _CONTENTS_LEFT_S, self._left_so_far - _CONTENTS_LEFT
        while self.contents:
            oldest = next(iter(self.contents))
            left_s, so_far = self.contents[oldest]
            if left_s >= late_s and so_far >= far:
                break
            del self.contents[oldest]
            self.ids.forget(oldest)

    def _join_contents(self) -> None:
        """Join contents left since the last base into one batch, so that few batches are searched."""
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
        """Settle epochs, forget IDs, and return the content of an epoch's file.

        Call :meth:`written` once the file exists.

        Args:
            held: epochs with an unsettled acknowledgement.
            echoes: messages of the epoch that it does not emit.
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
        """Record the name of a composed file."""
        self._base = name if self._base == "" else self._base
        for shelf in (self.window, self.left):
            shelf.parts = [(part or name, number) for part, number in shelf.parts]
        if self._base != name:
            self._after[name] = sum(map(len, file.planned.values()))
        if len(file.left) and not len(file.left_part):
            self._left_after.append(name)

    def forget_files(self, before: Iterable[str], kept: Collection[str]) -> tuple[list[str], list[list[str]]]:
        """Record that a plan names only the files `kept`, and find the files that are no longer needed.

        Args:
            before: files that were named until now and are not removed yet.
            kept: files that are named from now on.

        Returns:
            the files to remove now; and the files to remove later, by plan.
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
        """Load the memory of a former process. This memory must be empty.

        Args:
            name: name of the newest file.
            read: reads a file, without the abandoned messages of its epoch.
            committed: whether the epoch of that file is committed.
            notes: what :meth:`note` returned after that commit, oldest first; none before it.
            begun: whether the echoes of that epoch are settled.

        Returns:
            the number of messages in each queue that were left when the former process ended.
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
        # The next file has what notes have.
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
        # After the left contents: the echo of a left content is in an unsettled epoch, too.
        for one in file.unsettled:
            its = self._unsettled[one.number] = _Unsettled(
                next(self._numbers), next(self._numbers), Counter(one.queues)
            )
            self.ids.put(its.ids, one.digests)
            self.ids.put(its.contents, one.contents)

    def _apply(self, file: EpochFile) -> None:
        """Apply the changes that a file records."""
        self._left_so_far = file.left_so_far - len(file.left_contents)
        self._leave_contents(file.left_contents, int(file.connected_s))
        self.settle(file.settled)  # after that, because epochs settle only what was not left
        self.repeat(file.repeating)

    def _plan(self, file: EpochFile) -> None:
        """Commit the epoch of a file."""
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


def parted(keys: Collection[Key]) -> tuple[Sequence[Key], Sequence[Key]]:
    """Split keys into IDs and contents. Return the contents as files hold them, without ordinals."""
    if isinstance(keys, TextKeys):  # the usual case
        return keys, ()
    if bytes not in set(map(type, keys)):  # comparing types takes a tenth of the time
        return [*keys], []
    every = filed(keys)
    contents = [key for key in every if len(key) == CONTENT_DIGEST_BYTES and type(key) is bytes]
    if len(contents) == len(every):
        ids = []
    else:
        ids = [key for key in every if len(key) != CONTENT_DIGEST_BYTES or type(key) is str]
    return ids, contents if _NAMELESS not in contents else [key for key in contents if key != _NAMELESS]


def _texts(digests: Any) -> Any:
    """Return digests as an array with one value for each digest."""
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}").ravel()
