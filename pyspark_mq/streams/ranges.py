"""A range of offsets of one partition, read whole or not at all.

What a task emits is exactly the records of its range, so a retry emits the same. Four rules make it so:

1. Chunks of all kinds are asked for, and follow each other without a gap. A gap is loss, and says which offsets.
2. Each chunk has the CRC that it was written with.
3. When all is read, the chunk at the end of the epoch is the one that was planned. A stream that was deleted and made
   again does not turn back into what it was, so all that was read before is of the same stream.
4. A connection may be lost between two chunks; another one goes on at the next offset, at another member too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_mq.errors import START_ANEW, BrokerUnavailableError, DataLossError
from pyspark_mq.streams.access import Access
from pyspark_mq.streams.chunk import Chunk, ChunkError, Identity
from pyspark_mq.streams.connection import Connection, Lost, Member, NoStream, Subscription, SubscriptionEnded
from pyspark_mq.streams.tail import chunk_with, end_of, first_of
from pyspark_mq.streams.topology import candidates, connected

__all__ = ["Part", "Range", "loss", "read_range"]

_log = logging.getLogger("pyspark_mq")

#: Nothing for so long, and somebody looks what is there.
_WAIT_S = 5.0
#: As often as this a member may say that there is less, or a broken chunk, or no stream, before it is believed.
_TRIES = 3
_PAUSE_S, _PAUSE_MAX_S = 0.1, 2.0
#: Chunks on the way, at most: enough for chunks of one message, and not read for nothing behind the end.
_CHUNKS_MAX = 64


@dataclass(frozen=True)
class Range:
    """Offsets from `begin` to before `end` of a stream, which one task reads.

    Attributes:
        name: of the stream, or of the super stream that it is a partition of.
        proof: the chunk that the epoch ends with, or that has record `end - 1`; None for no proof.
        turn: where among the members to begin.
    """

    stream: str
    name: str
    begin: int
    end: int
    proof: Identity | None
    members: tuple[Member, ...]
    access: Access = field(repr=False)
    fail_on_loss: bool = True
    turn: int = 0

    def __str__(self) -> str:
        return f"stream '{self.stream}', offsets {self.begin} to {self.end - 1}"


class Part(NamedTuple):
    """Records `low` to before `high` of a chunk."""

    chunk: Chunk
    low: int
    high: int


def loss(stream: str, text: str) -> DataLossError:
    """The error for messages of a stream that are gone."""
    advice = f"Set 'failOnDataLoss' to false to go on with what is there, or {START_ANEW}"
    return DataLossError(stream, 0, (), f"stream '{stream}': {text}. {advice}")


def read_range(wanted: Range) -> Iterator[Part]:
    """Read a range, over as many connections as it takes.

    Raises:
        DataLossError: not all of it is there, or it is not what was planned.
        BrokerUnavailableError: there was no progress for `reconnectTimeout`.
    """
    yield from _RangeReader(wanted).parts()


class _Given(Exception):  # noqa: N818 - not an error: nothing more is to come
    """The rest of the range was lost, and that was to be accepted."""


class _RangeReader:
    def __init__(self, wanted: Range) -> None:
        self._wanted = wanted
        self._next = wanted.begin
        self._proved = wanted.proof is None
        self._tries = 0
        self._progress_s = time.monotonic()

    def parts(self) -> Iterator[Part]:
        wanted, turn, pause_s = self._wanted, self._wanted.turn, 0.0
        places = candidates(wanted.access, wanted.members, wanted.turn)
        fresh = False
        while self._next < wanted.end or not self._proved:
            member, url = places[(turn - wanted.turn) % len(places)]
            before = self._next
            try:
                with connected(wanted.access, member, url) as connection:
                    if self._next < wanted.end:
                        yield from self._subscribed(connection)
                    if self._next >= wanted.end and not self._proved and wanted.proof is not None:
                        self._prove(chunk_with(connection, wanted.stream, wanted.proof.chunk), wanted.proof)
                continue
            except _Given:
                return
            except (Lost, SubscriptionEnded, NoStream, ChunkError) as failed:
                self._failed(failed)
            if self._next > before:
                fresh, pause_s = False, 0.0
            elif not fresh:
                # It may have been a connection that was kept and had died: one more at the same place.
                fresh = True
                continue
            fresh, turn = False, turn + 1
            pause_s = min(max(_PAUSE_S, 2 * pause_s), _PAUSE_MAX_S)
            time.sleep(pause_s)

    def _failed(self, failed: Exception) -> None:
        """Decide whether to go on."""
        wanted = self._wanted
        if isinstance(failed, ChunkError) or (isinstance(failed, NoStream) and failed.code == 2):
            self._tries += 1
            if self._tries >= _TRIES:
                if isinstance(failed, ChunkError):
                    raise loss(wanted.stream, f"no member has a good chunk for offset {self._next}: {failed}") from None
                self._lost(wanted.end, "the stream was deleted")
                raise _Given
        silent_s = time.monotonic() - self._progress_s
        if silent_s > wanted.access.reconnect_timeout_s:
            raise BrokerUnavailableError(
                f"{wanted}: no progress at offset {self._next} for {silent_s:.0f} s: {failed}. Check the nodes "
                f"of '{','.join(map(str, wanted.access.urls))}', and that this worker reaches what they advertise"
            ) from None
        _log.info("%s: at offset %d: %s", wanted, self._next, failed)

    # -- one subscription

    def _subscribed(self, connection: Connection) -> Iterator[Part]:
        wanted, begun = self._wanted, time.monotonic()
        with connection.subscribed(wanted.stream, self._next) as subscription:
            while self._next < wanted.end:
                chunk = self._chunk(connection, subscription)
                left = wanted.end - chunk.end
                if left > 0:
                    # By records that are left: what comes behind the range is sent for nothing.
                    subscription.want(min(_CHUNKS_MAX, left // max(1, chunk.records) + 1))
                if chunk.end <= self._next:
                    # A member that lags begins below.
                    if time.monotonic() - max(begun, self._progress_s) > _WAIT_S:
                        raise Lost(f"{connection.place} has only got to offset {chunk.first}")
                    continue
                if chunk.first < self._next > wanted.begin:
                    raise ChunkError(f"the chunk at offset {chunk.first} begins within the one before it")
                if chunk.first > self._next:
                    self._gap(connection, chunk)
                if self._next >= wanted.end:
                    return
                if wanted.proof is not None and chunk.first <= wanted.proof.chunk < chunk.end:
                    self._prove(chunk, wanted.proof)
                low, high = self._next - chunk.first, min(wanted.end, chunk.end) - chunk.first
                self._next = chunk.first + high
                self._tries, self._progress_s = 0, time.monotonic()
                if chunk.user:
                    yield Part(chunk, low, high)
                    self._progress_s = time.monotonic()  # whatever took the rows may have taken long

    def _chunk(self, connection: Connection, subscription: Subscription) -> Chunk:
        """The next chunk; Lost if there is none at this member now."""
        wanted = self._wanted
        with suppress(TimeoutError):
            return subscription.next(_WAIT_S)
        end = end_of(connection, wanted.stream)
        if end.chunk is not None and end.next < wanted.end:
            self._tries += 1
            if self._tries >= _TRIES * len(candidates(wanted.access, wanted.members)):
                self._lost(wanted.end, f"its end went back to {end.next}, behind which {wanted.end} was committed once")
                raise _Given
        raise Lost(f"{connection.place} sent nothing from offset {self._next} on in {_WAIT_S:g} s")

    def _gap(self, connection: Connection, chunk: Chunk) -> None:
        end = min(chunk.first, self._wanted.end)
        first = first_of(connection, self._wanted.stream)
        reason = "retention has taken them" if first >= chunk.first else "and chunks before and behind them are there"
        self._lost(end, reason)

    def _lost(self, end: int, reason: str) -> None:
        """Take the offsets up to `end` as lost; a DataLossError if that is not to be accepted."""
        text = f"offsets {self._next} to {end - 1} are gone: {reason}"
        if self._wanted.fail_on_loss:
            raise loss(self._wanted.stream, text)
        lost = end - self._next
        _log.warning("stream '%s': %s; %d lost, as 'failOnDataLoss' is false", self._wanted.stream, text, lost)
        self._next = end

    def _prove(self, chunk: Chunk, proof: Identity) -> None:
        """Compare the chunk at the end with the one that was planned; a DataLossError if it is another."""
        self._proved = True
        if chunk.identity == proof:
            return
        text = (
            f"the chunk at offset {proof.chunk} is not the one that was planned, {chunk.identity} instead of "
            f"{proof}: the stream was deleted and made again, its end was rewritten, "
            "or retention has taken it since"
        )
        if self._wanted.fail_on_loss:
            raise loss(self._wanted.stream, text)
        _log.warning("stream '%s': %s; read all the same, as 'failOnDataLoss' is false", self._wanted.stream, text)
