"""Reads a range of offsets of one partition in a task. The range is read as a whole, or the task fails.

A task emits exactly the records of its range, so a retry emits the same records. Four rules ensure this:

1. The task subscribes to chunks of all kinds. The chunks must follow each other without a gap, with valid headers and
   CRCs.
2. If offsets are missing or a chunk is damaged, the task skips these offsets only after each of the stream's members
   has shown the gap or the damage three times, on separate connections. Each member applies retention by itself, so
   another member may still have the offsets.
3. No chunk may have a later epoch than the chunk at the end of the range, and this end chunk must be the planned chunk.
   If the stream had been deleted and re-created during the read, the end chunk would be from the new stream. So if the
   end chunk is as planned, everything before it is from the planned stream, too.
4. If a connection is lost between two chunks, another connection, perhaps to another member, continues at the next
   offset.

If a member's copy ends before the range, this does not prove a loss, because the member may just lag behind. The task
waits, and fails only after it has made no progress for `reconnectTimeout`.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from pyspark_mq.errors import START_ANEW, DataLossError
from pyspark_mq.streams.access import Access
from pyspark_mq.streams.chunk import Chunk, ChunkError, ChunkIdentity, Entry
from pyspark_mq.streams.connection import Member, NoStream, StreamConnection, StreamLost
from pyspark_mq.streams.tail import chunk_with
from pyspark_mq.streams.topology import Attempts, connected

__all__ = ["Part", "Range", "loss", "read_range"]

_log = logging.getLogger("pyspark_mq")

#: How many seconds the first subscription waits for a chunk; each further subscription waits twice as long.
_WAIT_S = 5.0
#: How often each member must show a gap, a damaged chunk or a differing chunk before the task accepts this as true.
_TRIES = 3
#: Maximum number of chunks in flight. This is enough for good speed even if each chunk has one message. A larger number
#: would deliver many chunks after the end of the range, which are discarded.
_CHUNKS_MAX = 64


@dataclass(frozen=True)
class Range:
    """Offsets of a stream from `begin` to before `end`, read by one task.

    Attributes:
        stream: name of the stream, which may be a partition of a super stream.
        name: the name in the query's options: that of the stream itself, or of its super stream.
        proof: identity of the chunk with the last record of the epoch, or of all offsets that a batch query reads. The
            chunk may be after this range. None if unknown.
        members: the nodes with a copy of the stream.
        access: login and settings for connections to these nodes.
        fail_on_loss: value of option `failOnDataLoss`.
        turn: index of the member to try first, so that tasks are distributed over the members.
    """

    stream: str
    name: str
    begin: int
    end: int
    proof: ChunkIdentity | None
    members: tuple[Member, ...]
    access: Access = field(repr=False)
    fail_on_loss: bool = True
    turn: int = 0

    def __str__(self) -> str:
        return f"stream '{self.stream}', offsets {self.begin} to {self.end - 1}"


class Part(NamedTuple):
    """The records of a checked chunk that a task emits: those with indices `low` (inclusive) to `high` (exclusive)."""

    chunk: Chunk
    entries: list[Entry]
    low: int
    high: int


def loss(stream: str, text: str, *, fails: bool = True) -> DataLossError:
    """Return the error for messages that are missing from a stream.

    Args:
        stream: name of the stream.
        text: description of the loss.
        fails: value of option `failOnDataLoss`. The error advises to set the option to false if it is true, and
            to restart the query otherwise.
    """
    advice = "Restart the query: it then reads the messages that the stream has now"
    if fails:
        advice = f"Set 'failOnDataLoss' to false to continue with the remaining messages, or {START_ANEW}"
    return DataLossError(stream, 0, (), f"stream '{stream}': {text}. {advice}")


def read_range(wanted: Range) -> Iterator[Part]:
    """Read the records of a range, over as many connections as needed.

    Raises:
        DataLossError: records are missing and `failOnDataLoss` is true, or chunks differ from the planned chunks.
        RefusedError: nodes have refused the login or TLS certificate for `reconnectTimeout`.
        BrokerUnavailableError: no further record could be read for `reconnectTimeout`.
    """
    yield from _RangeReader(wanted).parts()


class _RangeReader:
    def __init__(self, wanted: Range) -> None:
        self._wanted = wanted
        self._proved = wanted.proof is None
        what = lambda: f"{wanted}: no progress at offset {self._next}"  # noqa: E731
        self._attempts = Attempts(wanted.access, wanted.members, what, turn=wanted.turn)
        #: For each member that does not have the next offset: one entry for each attempt, with the offset at which the
        #: member continues and the reason.
        self._lacking: dict[Member, list[tuple[int, str]]] = defaultdict(list)
        self._others = 0
        self._get_to(wanted.begin)

    def parts(self) -> Iterator[Part]:
        wanted = self._wanted
        try:
            for node in self._attempts:
                if self._next >= wanted.end and self._proved:
                    return
                with self._attempts, connected(wanted.access, *node) as connection:
                    if self._next < wanted.end:
                        yield from self._subscribed(connection)
                    if not self._proved and wanted.proof is not None:
                        self._prove(connection, chunk_with(connection, wanted.stream, wanted.proof.chunk), wanted.proof)
        except NoStream:
            self._skip(wanted.end, "the stream was deleted")

    def _get_to(self, offset: int) -> None:
        self._next, self._wait_s, self._others = offset, _WAIT_S, 0
        self._lacking.clear()
        self._attempts.progress()

    # -- one subscription

    def _subscribed(self, connection: StreamConnection) -> Iterator[Part]:
        wanted, proof, begun, broken, after = self._wanted, self._wanted.proof, time.monotonic(), "", 0
        with connection.subscribed(wanted.stream, self._next) as subscription:
            self._attempts.absent.clear()
            while self._next < wanted.end:
                try:
                    chunk = subscription.next(self._wait_s)
                    after = chunk.end
                    entries = self._checked(chunk)
                except ChunkError as wrong:
                    # Continue with the next chunk, as its first offset shows where the damaged chunk ends.
                    broken = broken or f"no member has an intact chunk with offset {self._next}: {wrong}"
                    self._wait(begun, broken)
                    subscription.want(1)
                    continue
                except TimeoutError:
                    if broken and after > self._next:
                        self._lacks(connection, after, broken)
                    self._wait(
                        0.0, f"{connection.place} sent nothing from offset {self._next} on within {self._wait_s:g} s"
                    )
                left = wanted.end - chunk.end
                if left > 0:
                    # Estimate the number of chunks from the remaining records, as chunks after the range are discarded.
                    subscription.want(min(_CHUNKS_MAX, left // max(1, chunk.records) + 1))
                if chunk.end <= self._next:
                    # A member that lags behind begins with earlier chunks.
                    self._wait(begun, f"{connection.place} has only reached offset {chunk.first}")
                    continue
                if chunk.first > self._next:
                    self._lacks(connection, chunk.first, broken or self._gap(connection, chunk))
                if proof is not None and chunk.epoch > proof.epoch:
                    self._differs(f"has epoch {chunk.epoch}, above {proof.epoch}")
                if proof is not None and chunk.first <= proof.chunk < chunk.end:
                    self._prove(connection, chunk, proof)
                low, high = self._next - chunk.first, min(wanted.end, chunk.end) - chunk.first
                if chunk.user:
                    yield Part(chunk, entries, low, high)
                # Spark may have taken long to process the rows, so restart the time limits.
                self._get_to(chunk.first + high)
                begun, broken = time.monotonic(), ""

    def _checked(self, chunk: Chunk) -> list[Entry]:
        if chunk.first < self._next < chunk.end and self._next > self._wanted.begin:
            raise ChunkError(f"the chunk at offset {chunk.first} begins within the previous chunk")
        return chunk.check()

    def _wait(self, since_s: float, text: str) -> None:
        """Raise StreamLost to try the next member, if this member has sent no useful chunk for too long.

        The next member may take longer.

        Args:
            since_s: monotonic time of the last useful chunk; 0 to raise the error in any case.
            text: text of the error, which says what the member has sent.
        """
        if time.monotonic() - since_s > self._wait_s:
            self._wait_s = max(_WAIT_S, min(2 * self._wait_s, self._attempts.left_s))
            raise StreamLost(
                f"{text}. If the newest messages of the stream are lost, the query can notice this only when the next "
                "message is published"
            )

    def _gap(self, connection: StreamConnection, chunk: Chunk) -> str:
        if connection.stats(self._wanted.stream)["first_chunk_id"] > self._next:
            return "retention removed them"
        return f"no member has these offsets, but all members have offset {chunk.first}"

    def _lacks(self, connection: StreamConnection, after: int, reason: str) -> NoReturn:
        """Note that a member does not have the next offset, and raise StreamLost to try another member.

        If each member has shown this often enough, skip the missing offsets.

        Args:
            after: the offset at which the member continues.
            reason: why the offsets before `after` are missing.
        """
        self._lacking[connection.advertised].append((after, reason))
        named = connection.members(self._wanted.stream)
        if named and all(len(self._lacking[member]) >= _TRIES for member in named):
            self._skip(*min(self._lacking[member][-1] for member in named))
        raise StreamLost(f"{connection.place} continues at offset {after}: {reason}")

    def _skip(self, after: int, reason: str) -> None:
        """Treat the offsets before `after` as lost and skip them.

        If `failOnDataLoss` is true, raise a DataLossError.
        """
        wanted, end = self._wanted, min(after, self._wanted.end)
        text = f"offsets {self._next} to {end - 1} are gone: {reason}"
        if self._next >= wanted.end:
            text = f"offsets {wanted.begin} to {end - 1} cannot be verified against the planned chunk: {reason}"
        if wanted.fail_on_loss:
            raise loss(wanted.stream, text)
        _log.warning(
            "stream '%s': %s; %d skipped, because 'failOnDataLoss' is false", wanted.stream, text, end - self._next
        )
        self._get_to(end)
        self._proved = self._proved or wanted.proof is None or wanted.proof.chunk < after

    def _prove(self, connection: StreamConnection, chunk: Chunk, proof: ChunkIdentity) -> None:
        """Check that the chunk at the end of the range is the planned chunk, whose identity is `proof`."""
        if chunk.first > proof.chunk:
            self._lacks(connection, chunk.first, "retention removed the chunk at the end of the range")
        if chunk.identity != proof:
            self._differs(f"is {chunk.identity} instead of {proof}")
        self._proved = True

    def _differs(self, text: str) -> NoReturn:
        """Handle a chunk that differs from the plan: raise StreamLost, so that the chunk is read again.

        If this has happened several times, raise a DataLossError instead.

        Args:
            text: how the chunk differs.
        """
        self._others += 1
        if self._others >= _TRIES * max(1, len(self._wanted.members)):
            text = f"a chunk from offset {self._next} on is not the planned chunk: it {text}"
            reason = "the stream was deleted and recreated, or its end was rewritten"
            raise loss(self._wanted.stream, f"{text}: {reason}", fails=self._wanted.fail_on_loss)
        raise StreamLost(text)
