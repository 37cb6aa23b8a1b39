"""Identifies messages without an ID by their contents. It decides whether a delivery is a known message or a new one.

Within a process, a message without an ID has a unique key: the digest of its content, followed by an ordinal number,
which tells messages with equal contents apart. Files have only the digest.

The broker's flag `redelivered` proves little. On RabbitMQ a delivery without the flag is a new message, unless the
message was dead-lettered. A delivery with the flag may be new or not, because brokers also flag messages that a
consumer has never processed. A content *repeats* if two messages with this content are known; the memory records which
contents repeat. A message is *left open* if the end of a session or a process has cut off its acknowledgement. The
first of these rules that applies decides what a delivery is:

1. a planned message with the same content that has no handle;
2. a new message, if the missing flag proves this;
3. a committed message with the same content that had no handle when it was committed, and so was not acknowledged. The
   delivery is an *echo*: a redelivery of a message that is already emitted;
4. a message with the same content that was left open, if the content does not repeat. The delivery is an echo. If the
   content repeats, the delivery counts as a new message, and as ambiguous;
5. a message that was proved new, and that another session holds or is acknowledging, if its content does not repeat.
   The delivery is a redelivery, because the broker has given up that session. It is an echo if the message is
   committed;
6. a new message.

An echo is planned in an epoch like a new message, but not emitted. It is acknowledged when the epoch begins. By then
Spark's log names the epoch's file, which records the echo. If echoes were acknowledged when they arrive, a process
could end before it writes a file. The next process would not know that the message is acknowledged, and would take an
equal message for its redelivery and drop it.

A session never delivers a message twice. So after rules 3 to 5 have matched a delivery, another delivery with the same
content in the same session is a new message. A message counts as left open until an epoch with its content is settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress, count
from operator import not_
from typing import TYPE_CHECKING, Any

from pyspark_mq.ack.table import State
from pyspark_mq.dedup import Key, QueueMemory, filed
from pyspark_mq.dedup.identity import NAMELESS, content_of, is_content, numbered

if TYPE_CHECKING:
    from pyspark_mq.ack.in_flight import InFlightTable

__all__ = ["ContentMatcher"]

#: :meth:`ContentMatcher.sweep` does nothing if the matcher's dicts and sets have at most this number of entries.
_NOTED_MIN = 4_096


class ContentMatcher:
    """Identifies the messages without an ID of one queue, and creates their keys for the in-flight table.

    Args:
        memory: the committed messages of this queue.
        proves: whether the broker (RabbitMQ) proves that a message is new by delivering it without the flag
            `redelivered`.

    Attributes:
        ambiguous: number of deliveries that were taken for new messages although they may be redeliveries.
    """

    def __init__(self, memory: QueueMemory, *, proves: bool) -> None:
        self._memory = memory
        self._proves = proves
        self._ordinals = count(1)
        #: Planned messages without an open delivery: digest -> keys, oldest first.
        self._waiting: dict[bytes, dict[bytes, None]] = {}
        #: Digest -> number of messages that were committed without an open delivery, so that they will be redelivered.
        self._coming: Counter[Any] = Counter()
        #: Digest of a redelivered message -> the sessions that received its redelivery.
        self._again: dict[bytes, set[int]] = {}
        #: Keys of messages that were not proved new.
        self._unproved: set[bytes] = set()
        #: Key of an echo that was received or planned -> whether rule 3 of the module's docstring has matched it.
        self._echoes: dict[Any, bool] = {}
        self._noted_max = _NOTED_MIN
        self.ambiguous = 0

    # -- a delivery ------------------------------------------------------------------------

    def name(
        self, session: int, digests: Sequence[bytes], not_redelivered: Sequence[bool], in_flight: InFlightTable[Any]
    ) -> list[bytes]:
        """Identify deliveries of a session by their contents, and return their keys.

        Args:
            session: number of the session.
            digests: digest of each delivery's content.
            not_redelivered: for each delivery, whether it is neither flagged as redelivered nor a dead letter.
            in_flight: the in-flight table.

        Returns:
            the key of each delivery. A delivery that is taken for a redelivery of a planned message has its key.
        """
        first = [numbered(digest, 0) for digest in digests]
        every: set[Key] = set(first)
        known, left, repeats = self._memory.contents_among(every)
        quiet = not known and not repeats and len(every) == len(first) and in_flight.none_here(every)
        if quiet and self._waiting.keys().isdisjoint(digests) and self._coming.keys().isdisjoint(digests):
            self._doubt(compress(first, map(not_, not_redelivered)))
            return first
        state_of = in_flight.states(every)
        suspects = self._proves and not all(not_redelivered)
        elsewhere = in_flight.in_other_sessions(session, every) if suspects else set()
        here: set[bytes] = set()
        names: list[bytes] = []
        for digest, key, sure in zip(digests, first, not_redelivered, strict=True):
            held = key in here or state_of(key) is not State.UNSEEN
            found = self._next_waiting(digest, in_flight)
            new = sure and self._proves
            if found is not None:
                if new:
                    # This proved new message takes the place of an equal planned one, whose redelivery may follow.
                    self._repeat(key, repeats)
                self._doubt([] if sure else [found])
            elif not new and (
                (expected := self._is_expected(digest))
                or self._was_committed(session, digest, key, left, repeats, set() if held else elsewhere)
            ):
                self._again.setdefault(digest, set()).add(session)
                found = self._further(digest)
                self._echoes[found] = expected
            elif held and not new and self._is_there(session, digest, key, repeats, elsewhere):
                self._again.setdefault(digest, set()).add(session)
                found = key
            else:
                if held or key in known or key in repeats:
                    self._repeat(key, repeats)
                    self.ambiguous += not new and self._memory.emit_again(key)
                found = self._further(digest) if key in repeats else key
                here.add(found)
                self._doubt([] if sure else [found])
            names.append(found)
        return names

    def _is_expected(self, digest: bytes) -> bool:
        """Whether a message with this content was committed but could not be acknowledged, so that it is redelivered.

        If so, this delivery is the redelivery (rule 3 of the module), and one redelivery fewer is expected from now on.
        """
        if not self._coming.get(digest):
            return False
        self._coming[digest] -= 1
        if not self._coming[digest]:
            del self._coming[digest]
        return True

    def _was_committed(
        self,
        session: int,
        digest: bytes,
        key: bytes,
        left: Collection[Any],
        repeats: Collection[Any],
        acknowledged: Collection[Any],
    ) -> bool:
        if key in left and self._may_be(session, digest, key, repeats):
            return True
        return self._is_there(session, digest, key, repeats, acknowledged)

    def _is_there(
        self, session: int, digest: bytes, key: bytes, repeats: Collection[Any], elsewhere: Collection[Any]
    ) -> bool:
        """Whether a delivery repeats a message that another session holds or acknowledges (rule 5 of the module)."""
        return key in elsewhere and self._is_proved(key) and self._may_be(session, digest, key, repeats)

    def _may_be(self, session: int, digest: bytes, key: bytes, repeats: Collection[Any]) -> bool:
        """Whether a delivery may be a redelivery of the only known message with this content.

        False if several known messages have this content, or if the session has received that redelivery already.
        """
        return key not in repeats and session not in self._again.get(digest, ())

    def _is_proved(self, key: bytes) -> bool:
        return self._proves and key not in self._unproved

    def name_nothing(self, count_of: int) -> list[bytes]:
        """Create keys for deliveries that have neither an ID nor an identity by content (`onMissingMessageId=row`)."""
        return [self._further(NAMELESS) for _ in range(count_of)]

    def _further(self, digest: bytes) -> bytes:
        return numbered(digest, next(self._ordinals))

    def _repeat(self, key: bytes, repeats: set[Any]) -> None:
        if key not in repeats:
            repeats.add(key)
            self._memory.repeat(key)

    def _doubt(self, keys: Iterable[bytes]) -> None:
        if self._proves:
            self._unproved.update(keys)

    def _next_waiting(self, digest: bytes, in_flight: InFlightTable[Any]) -> bytes | None:
        """Return the key of the oldest planned message with this content that waits for its redelivery.

        From now on, the message does not wait any more. None if there is no such message.
        """
        keys = self._waiting.get(digest)
        while keys:
            key = next(iter(keys))
            del keys[key]
            if not keys:
                del self._waiting[digest]
            if in_flight.states([key])(key) is State.PLANNED:
                return key
        return None

    # -- events of messages ----------------------------------------------------------

    def wait(self, keys: Iterable[Any]) -> None:
        """Record that planned messages have no open delivery, so the broker is going to redeliver them."""
        for key in _contents(keys):
            self._waiting.setdefault(content_of(key), {})[key] = None

    def expect(self, keys: Iterable[Any]) -> None:
        """Record that messages were committed without an open delivery, so the broker is going to redeliver them."""
        for key in _contents(keys):
            digest = content_of(key)
            waiting = self._waiting.get(digest, {})
            waiting.pop(key, None)
            if not waiting:
                self._waiting.pop(digest, None)
            self._coming[digest] += 1

    def restore(self, keys: Sequence[Any], in_flight: InFlightTable[Any]) -> list[Any]:
        """Create keys for the messages of an epoch that a former process planned.

        Args:
            keys: the keys in the epoch's file. There, the keys of messages without an ID have no ordinal.
            in_flight: the in-flight table.

        Returns:
            the keys, in the same order. Keys of messages that have an ID are unchanged.
        """
        digests = {key for key in keys if is_content(key)}
        known, _, repeats = self._memory.contents_among(digests)
        every: list[Any] = []
        used: set[bytes] = set()
        for key in keys:
            if key not in digests:
                every.append(key)
            else:
                first = numbered(key, 0)
                if first in used or key in known or not in_flight.none_here({first}):
                    self._repeat(key, repeats)
                    first = self._further(key)
                every.append(first)
            used.add(every[-1])
        return every

    def echoes(self, keys: Collection[Any]) -> list[Any]:
        """Return those of these keys that belong to echoes: redeliveries of committed messages, not to be emitted."""
        return [key for key in keys if key in self._echoes] if self._echoes else []

    def give_back(self, keys: Iterable[Any]) -> None:
        """Record that messages that were received but not planned have been returned to the broker."""
        for key in _contents(keys):
            self._unproved.discard(key)
            if self._echoes.pop(key, False):
                self._coming[content_of(key)] += 1

    def drop(self, echoes: Iterable[Any]) -> None:
        """Record that echoes (redeliveries of committed messages) are acknowledged, and forget them."""
        for key in echoes:
            self._echoes.pop(key, None)

    def end(self, session: int) -> None:
        """Record the end of a session."""
        for digest, sessions in [*self._again.items()]:
            sessions.discard(session)
            if not sessions:
                del self._again[digest]

    def sweep(self, in_flight: InFlightTable[Any]) -> None:
        """If there are many notes about contents, drop those that are no longer needed.

        These are notes about messages that are neither held nor remembered, and waiting messages that are no longer
        planned.
        """
        noted = (self._unproved, self._again, self._waiting, self._coming)
        if sum(map(len, noted)) <= self._noted_max:
            return
        state_of = in_flight.states(self._unproved)
        self._unproved = {key for key in self._unproved if state_of(key) is not State.UNSEEN}
        digests = {*self._again, *self._waiting, *self._coming}
        remembered = set(filed(self._memory.contents_among(digests)[0]))
        state_of = in_flight.states({numbered(digest, 0) for digest in self._again})
        for digest in [one for one in self._again if one not in remembered]:
            if state_of(numbered(digest, 0)) is State.UNSEEN:
                del self._again[digest]
        for digest in [one for one in self._coming if one not in remembered]:
            del self._coming[digest]
        planned = in_flight.states({key for keys in self._waiting.values() for key in keys})
        for digest, keys in [*self._waiting.items()]:
            self._waiting[digest] = {key: None for key in keys if planned(key) is State.PLANNED}
            if not self._waiting[digest]:
                del self._waiting[digest]
        noted = (self._unproved, self._again, self._waiting, self._coming)
        self._noted_max = _NOTED_MIN + 2 * sum(map(len, noted))


def _contents(keys: Iterable[Any]) -> Iterator[bytes]:
    """Yield those of these keys that were made from contents, with an ordinal or, as in files, without one."""
    return (key for key in keys if is_content(key) and not key.startswith(NAMELESS))
