"""Copies: which message a delivery without an ID is, where only its content is known. Pure.

A message without an ID is known by the digest of its content and an *ordinal*, so that equal ones are counted and not
merged. The ledger treats both together as an ID. What is found out here is which ordinal a delivery has: that of a
message that is known already, or a new one.

A content that is not known to repeat has the ordinal zero, so nothing is kept of it here. One that was met a second
time *repeats*; each further copy has an odd ordinal of its own. Thereby a file of the journal says of each of its
messages whether its content repeats, without a word more. Even ordinals are for what comes before Spark 4.0 or 4.1 has
shown what is committed: multiples of four for what may be a message that was left open, the others for what is new.

Brokers say little. That a delivery is new is proved by a missing `redelivered` flag of RabbitMQ, if the message was
never dead-lettered; a flag proves nothing, as messages that nobody has read are flagged, too. So, in this order:

======================================================================================= ==============================
a delivery with this content                                                            is
======================================================================================= ==============================
while a planned message of it has no handle                                             that one
that is proved to be new                                                                new
while a committed message of it had no handle to be acknowledged by                     that one: dropped
while a message of it was left open, and the content does not repeat                    that one, once: dropped
the same, and it repeats                                                                new, and counted as ambiguous
while one that was proved to be new is held or acknowledged, and it does not repeat     that one again, once
otherwise                                                                               new
======================================================================================= ==============================

So a content of its own is emitted once, whatever ends; and an equal message is not lost, but for one: the first
repetition of a content which a process that is gone had left open, and of which no file says that it repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeGuard

from pyspark_mq.ack.remembered import Remembered
from pyspark_mq.ack.table import State

__all__ = ["Copies", "Look", "any_repeats", "is_nameless"]

#: Bytes of a digest, and of a key.
_DIGEST, _KEY = 16, 24
_PLAIN = bytes(_KEY - _DIGEST)
#: In place of the digest of what is not distinguished at all, under ordinals like those of further copies.
_NAMELESS = bytes(_DIGEST)
#: Contents that are known to repeat: the newest.
_REPEATS_MAX = 65_536
#: Entries until those are looked through that nobody needs any more.
_ENTRIES_MIN = 4_096


class Look(Protocol):
    """View of a ledger's messages."""

    def all_unseen(self, keys: set[Any]) -> bool:
        """Whether none of these is known."""

    def states(self, keys: Collection[Any]) -> Callable[[Any], State]:
        """Return the state of each of these, until something changes."""

    def left_among(self, keys: Collection[Any]) -> set[Any]:
        """Return those of these that ends of sessions or processes have left open."""

    def settling_among(self, keys: Collection[Any]) -> set[Any]:
        """Return those of these that are acknowledged and not settled."""


class Copies:
    """Messages without IDs of one queue. A message is known to the ledger by the keys that come from here.

    Args:
        ordinals: ascending numbers, none of which a process before has used.
        proves: a delivery without a flag is a new message.
        memory: knows settled contents.

    Attributes:
        shown: it is known what is committed.
        ambiguous: deliveries emitted although they may be redeliveries.
    """

    def __init__(self, ordinals: Iterator[int], memory: Remembered[Any], *, proves: bool) -> None:
        self._ordinals = ordinals
        self._proves = proves
        self._repeats: dict[bytes, None] = {}
        #: Planned messages without a handle, and committed ones that had none: digest -> keys, oldest first.
        self._waiting: dict[bytes, dict[bytes, None]] = {}
        self._coming: dict[bytes, dict[bytes, None]] = {}
        #: Of contents that repeat: how many were left open.
        self._left: Counter[bytes] = Counter()
        #: Messages that were left open and came again, in which session.
        self._came: dict[bytes, int] = {}
        #: Messages that came without a proof that they are new.
        self._unproved: set[bytes] = set()
        #: Messages of contents that do not repeat, with another ordinal than zero; and those that were left open, where
        #: there is one that came before that was known.
        self._named: dict[bytes, bytes] = {}
        self._older: dict[bytes, bytes] = {}
        self._memory = memory
        self._swept = _ENTRIES_MIN
        self.shown = False
        self.ambiguous = 0

    # -- a delivery ------------------------------------------------------------------------

    def name(self, session: int, digests: Sequence[bytes], proved: Sequence[bool], look: Look) -> list[bytes]:
        """Find out which messages these deliveries of a session are; their keys.

        Args:
            proved: the broker has flagged none of those as redelivered, nor were they dead letters.
        """
        plain = [digest + _PLAIN for digest in digests]
        every = set(plain)
        if (
            self.shown
            and len(every) == len(plain)
            and not self._entries(digests)
            and look.all_unseen(every)
            and not self._memory.met_among(every)
        ):
            if not all(proved):
                for key, sure in zip(plain, proved, strict=True):
                    if not sure:
                        self._doubt(key)
            return plain
        self._withdraw(digests, look)
        plain = [self._named.get(digest, key) for digest, key in zip(digests, plain, strict=True)]
        every = set(plain)
        state_of, left, met = look.states(every), look.left_among(every), self._memory.met_among(every)
        # Where all are new, nothing can be one that is being acknowledged.
        settling = look.settling_among(every) if self._proves and not all(proved) else ()
        here: set[bytes] = set()
        names: list[bytes] = []
        for digest, first, sure in zip(digests, plain, proved, strict=True):
            key = self._named.get(digest, first)
            state = State.RECEIVED if key in here else state_of(first)
            fresh = state is State.UNSEEN and key not in met and digest not in self._repeats
            new = self._proves and sure
            found = _next(self._waiting, digest, State.PLANNED, look)
            if found is not None and new:
                self._repeat(digest)  # of two equal ones either will do, and the other may come
            elif found is not None:
                self._doubt(found)
            elif not new:
                found = self._known(session, digest, key, state, left, settling, look)
            if found is None:
                found = key if fresh else self._another(digest, left=key in left and key not in self._came)
                if fresh and not self.shown:
                    found = self._named[digest] = digest + _ordinal(next(self._ordinals) << 2 | new << 1)
                if not sure:
                    self._doubt(found)
                here.add(found)
            names.append(found)
        return names

    def _known(
        self,
        session: int,
        digest: bytes,
        key: bytes,
        state: State,
        left: Collection[bytes],
        settling: Collection[bytes],
        look: Look,
    ) -> bytes | None:
        """Find the message that a delivery is if no planned one waits for it; None if it is new."""
        found = _next(self._coming, digest, State.COMMITTED, look)
        if found is not None:
            self._came[found] = session
            return found
        if digest in self._repeats:
            if self._left[digest] > 0:
                self._left[digest] -= 1
                self.ambiguous += 1
            return None
        held = state in {State.RECEIVED, State.PLANNED} or key in settling
        again = held and self._proves and key not in self._unproved
        if key in self._came or not ((state is State.COMMITTED and key in left) or again):
            return None
        self._came[key] = session
        return key

    def name_nothing(self, count_of: int) -> list[bytes]:
        """Make keys for deliveries that are not distinguished from others, whatever comes again."""
        return [_NAMELESS + self._odd() for _ in range(count_of)]

    def _doubt(self, key: bytes) -> None:
        if self._proves:
            self._unproved.add(key)

    def _odd(self) -> bytes:
        return _ordinal(next(self._ordinals) << 1 | 1)

    def _another(self, digest: bytes, *, left: bool) -> bytes:
        """Make the key of a further copy: its content repeats."""
        if digest not in self._repeats:
            self._repeat(digest)
            self._left[digest] += left
        return digest + self._odd()

    def _repeat(self, digest: bytes) -> None:
        self._repeats.setdefault(digest)
        if len(self._repeats) > _REPEATS_MAX:
            oldest = next(iter(self._repeats))
            del self._repeats[oldest]
            del self._left[oldest]

    def _note(self, key: bytes) -> None:
        """Take note of what the ordinal of a message says."""
        digest = key[:_DIGEST]
        if _repeats(key):
            self._repeat(digest)
        elif not key.endswith(_PLAIN):
            (self._older if digest in self._named else self._named)[digest] = key

    def _withdraw(self, digests: Iterable[bytes], look: Look) -> None:
        """Forget the ordinals of messages that are not known any more, as those whose session ended before a plan."""
        for key in _unseen([self._named[digest] for digest in self._named.keys() & digests], look):
            older = self._older.pop(key[:_DIGEST], None)
            if older is None:
                del self._named[key[:_DIGEST]]
            else:
                self._named[key[:_DIGEST]] = older

    def _entries(self, digests: Sequence[bytes]) -> bool:
        """Whether something is noted here of one of these."""
        noted = (self._repeats, self._waiting, self._coming, self._named)
        return any(not one.keys().isdisjoint(digests) for one in noted if one)

    # -- what becomes of messages ----------------------------------------------------------

    def wait(self, keys: Iterable[Any]) -> None:
        """Take note that planned messages have no handle."""
        for key in _contents(keys):
            digest = key[:_DIGEST]
            self._waiting.setdefault(digest, {})[key] = None
            self._note(key)

    def left_as(self, keys: Sequence[Any], look: Look) -> list[Any]:
        """Find out of messages that came before it was known what was left open, which of those each of them is.

        Returns:
            for each of them its own key, or that of the message which it is.
        """
        every = [*keys]
        doubtful = {key[:_DIGEST]: place for place, key in enumerate(every) if _is_doubtful(key)}
        for key in every:
            if _repeats(key):
                doubtful.pop(key[:_DIGEST], None)
        older = {
            digest: self._older.get(digest) or (digest + _PLAIN if named in (None, every[place]) else named)
            for digest, place in doubtful.items()
            for named in [self._named.get(digest)]
            if digest not in self._repeats
        }
        left = look.left_among(set(older.values()))
        for digest, key in older.items():
            if key in left:
                every[doubtful[digest]] = key
        return every

    def held_as(self, keys: Sequence[Any], held: Iterable[Any], look: Look) -> list[Any]:
        """Find out which messages that are held already an open epoch of a former process has.

        Before Spark 4.2 they may have come, and have been planned, before that epoch was shown: under other ordinals.

        Args:
            keys: of the epoch.
            held: received and planned messages, oldest first.

        Returns:
            for each of `keys` its own key, or that of the message which it is.
        """
        there: dict[bytes, list[bytes]] = {}
        for key in _contents(held):
            there.setdefault(key[:_DIGEST], []).append(key)
        state_of = look.states(keys)
        every: list[Any] = []
        for key in keys:
            some = there.get(key[:_DIGEST], []) if _is_key(key) and state_of(key) is State.UNSEEN else []
            every.append(some.pop(0) if some else key)
        return every

    def expect(self, keys: Iterable[Any]) -> None:
        """Take note that messages were committed that have no handle to be acknowledged by: they will come."""
        for key in _contents(keys):
            digest = key[:_DIGEST]
            self._waiting.get(digest, {}).pop(key, None)
            self._coming.setdefault(digest, {})[key] = None

    def give_back(self, keys: Iterable[Any]) -> None:
        """Take note that messages went back to the broker which were not planned."""
        for key in _contents(keys):
            self._unproved.discard(key)
            self._came.pop(key, None)

    def come_again(self, session: int, keys: Iterable[Any]) -> None:
        """Take note that what was left open has come again, in this session."""
        for key in _contents(keys):
            self._came[key] = session

    def leave(self, session: int, keys: Iterable[Any]) -> None:
        """Take note that the end of a session has left acknowledged messages open."""
        for key in [key for key, where in self._came.items() if where == session]:
            del self._came[key]
        for key in _contents(keys):
            if key[:_DIGEST] in self._repeats:
                self._left[key[:_DIGEST]] += 1

    def recall(self, keys: Iterable[Any], *, never_acknowledged: bool = False) -> None:
        """Take note of messages that a former process has left open.

        Args:
            never_acknowledged: it has asked for no acknowledgement of them, so they come.
        """
        for key in _contents(keys):
            self._note(key)
            if never_acknowledged and _repeats(key):
                self.expect([key])
            elif key[:_DIGEST] in self._repeats:
                self._left[key[:_DIGEST]] += 1

    def needed(self, look: Look) -> bool:
        """Whether something is noted of messages that are known, beyond their keys, or were left open."""
        queues = (self._waiting, self._coming)
        noted = [
            *self._named.values(),
            *self._older.values(),
            *(key for one in queues for some in one.values() for key in some),
        ]
        return any(self._left.values()) or len(_unseen(noted, look)) < len(noted)

    def sweep(self, look: Look) -> None:
        """Forget what is noted of messages that are not known any more, if there is much."""
        noted = (self._came, self._unproved)
        queues = (self._waiting, self._coming)
        if len(self._named) + sum(map(len, (*noted, *queues))) <= self._swept:
            return
        for keys in noted:
            for key in _unseen(keys, look):
                keys.pop(key, None) if isinstance(keys, dict) else keys.discard(key)
        for key in _unseen([*self._older.values()], look):
            del self._older[key[:_DIGEST]]
        self._withdraw([*self._named], look)
        for queue in queues:
            gone = set(_unseen([key for some in queue.values() for key in some], look))
            for digest, some in list(queue.items()):
                for key in some.keys() & gone:
                    del some[key]
                if not some:
                    del queue[digest]
        self._swept = _ENTRIES_MIN + 2 * (len(self._named) + sum(map(len, (*noted, *queues))))


def is_nameless(key: object) -> bool:
    """Whether a message is not distinguished from others."""
    return _is_key(key) and key.startswith(_NAMELESS)


def _contents(keys: Iterable[Any]) -> Iterator[bytes]:
    """Select the messages that are known by their contents."""
    return (key for key in keys if _is_key(key) and not key.startswith(_NAMELESS))


def any_repeats(parts: Iterable[Collection[object]]) -> bool:
    """Whether it is said of one of these messages that its content repeats."""
    # IDs are texts, nearly always: their types are looked at in a tenth of the time.
    return any(
        type(keys) in (list, tuple) and bytes in set(map(type, keys)) and any(map(_repeats, keys)) for keys in parts
    )


def _repeats(key: object) -> bool:
    return _is_key(key) and key[-1] & 1 == 1 and not key.startswith(_NAMELESS)


def _is_key(key: object) -> TypeGuard[bytes]:
    return type(key) is bytes and len(key) == _KEY


def _is_doubtful(key: object) -> bool:
    """Whether a message came before it was known what was left open, and may be one of that."""
    return _is_key(key) and not key[-1] & 3 and not key.endswith(_PLAIN)


def _ordinal(number: int) -> bytes:
    return (number & (1 << 64) - 1).to_bytes(8, "big")


def _next(queue: dict[bytes, dict[bytes, None]], digest: bytes, state: State, look: Look) -> bytes | None:
    """Take the oldest message of a content that is still in this state."""
    keys = queue.get(digest)
    while keys:
        key = next(iter(keys))
        del keys[key]
        if not keys:
            del queue[digest]
        if look.states([key])(key) is state:
            return key
    return None


def _unseen(keys: Collection[bytes], look: Look) -> list[bytes]:
    state_of = look.states(keys)
    return [key for key in keys if state_of(key) is State.UNSEEN]
