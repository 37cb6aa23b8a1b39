"""Identifies the messages that are delivered from a queue, and enters them into the queue's in-flight table."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any
from weakref import ref

import numpy as np

from pyspark_mq.ack import Acknowledgements, InFlightTable
from pyspark_mq.ack.buffer import MessageRun, joined
from pyspark_mq.dedup import OnMissing, SeenStore, TextKeys, is_content, key_text
from pyspark_mq.sources.connections.block import Block, BlockRows, Row, RowRange
from pyspark_mq.sources.connections.connections import Connections
from pyspark_mq.sources.connections.events import Delivered
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["Deliveries"]

_LOG = logging.getLogger("pyspark_mq")

#: If some rows of a block are dropped, and the others have less than this fraction of its bytes (1/n), the others are
#: copied, so that the block's memory is freed.
_KEPT_PARTS = 2
#: A block with fewer rows and fewer bytes than these limits is *small*. When there are `_SMALL_BLOCKS` small blocks,
#: they are merged, because each block takes some kilobytes in addition to its rows.
_SMALL_ROWS = 64
_SMALL_BYTES = 64 << 10
_SMALL_BLOCKS = 64
_NOTES = {
    OnMissing.CONTENT: "These messages are identified by their contents, and messages with equal contents may be "
    "duplicated when a connection or process ends. IDs set by the producer are better",
    OnMissing.ROW: "They are emitted each time they are delivered",
    OnMissing.REJECT: "They are rejected for good",
    OnMissing.FAIL: "Messages that cannot be decoded are identified by their bytes",
}


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Deliveries of one session on their way into the in-flight table, as parallel sequences.

    :meth:`Deliveries.enter` can drop deliveries for several reasons. Each reason is one step, which returns the
    deliveries that remain (:meth:`without`). A reason that needs only the delivery itself belongs in
    :meth:`Deliveries._wanted`. A reason that must not apply to known messages comes after messages are identified.
    Small blocks for which `Metadata.is_plain` is true skip these steps (:meth:`Deliveries._enter_new`), so this
    property must be false for blocks to which a new reason may apply.

    Attributes:
        session: number of the session.
        tags: handles of the deliveries, ascending.
        keys: the key of each message; None for a message that has neither an ID nor a digest.
        rows: the row of each message.
        not_redelivered: for each delivery, True if nothing marks the message as delivered before. Empty if no message
            is identified by its content.
    """

    session: int
    tags: Sequence[int]
    keys: Sequence[Any]
    rows: Sequence[Row]
    not_redelivered: Sequence[bool]

    def without(self, places: Collection[int]) -> _Arrivals:
        """Return the deliveries whose indexes are not in `places`."""
        if not places:
            return self
        kept = [place for place in range(len(self.rows)) if place not in places]
        return _Arrivals(
            self.session,
            [self.tags[place] for place in kept],
            [self.keys[place] for place in kept],
            [self.rows[place] for place in kept],
            [self.not_redelivered[place] for place in kept] if self.not_redelivered else [],
        )

    @property
    def lack_keys(self) -> bool:
        """Whether any message has no key."""
        return not isinstance(self.keys, range | TextKeys) and None in self.keys

    @property
    def need_names(self) -> bool:
        """Whether any message is identified by its content or has no key. Then :meth:`Deliveries._named` is needed."""
        return bool(self.not_redelivered) or self.lack_keys


class Deliveries:
    """Identifies the messages that the sessions of one queue deliver, and enters them into the in-flight table.

    Args:
        settings: the query's settings, with this queue as the endpoint.
        in_flight: the in-flight table of the queue.
        connections: the connections of the queue.
        store: committed IDs in addition to the checkpoint (option `dedupStore`).
        acknowledge: sends acknowledgements to the broker.
        take_back_s: seconds to wait for confirmations before deliveries that a replay skipped are requested again.

    Attributes:
        counted: name of a counter of :class:`.Counters` that this object maintains -> its value.
    """

    def __init__(
        self,
        settings: Settings,
        in_flight: InFlightTable[Row],
        connections: Connections,
        store: SeenStore,
        acknowledge: Callable[[Acknowledgements | None], object],
        take_back_s: float,
    ) -> None:
        self._settings = settings
        self._destination = settings.endpoint.destination
        self._exact = settings.guarantee.identifies
        self._ids = MessageIds.of(settings)
        self._in_flight = in_flight
        self._connections = connections
        self._store = store
        self._acknowledge = acknowledge
        self._take_back_s = take_back_s
        #: Whether the warning about messages without an ID was logged, or is not needed.
        self._noted = settings.id_source.kind == "content"
        self._told_of_echoes = False
        self._serial = 1
        #: Small blocks that were received, each with the keys and numbers of its rows. Those of their rows that are
        #: still needed will be merged.
        self._small: list[tuple[ref[Block], list[tuple[Any, int]]]] = []
        #: Runs of the in-flight table with the rows of small blocks, which will be merged.
        self._small_runs: list[ref[MessageRun[Row]]] = []
        self._unconfirmed_since_s: float | None = None
        self.counted = {"redelivered": 0, "rejected": 0, "nameless": 0, "reused_ids": 0}

    def enter_all(self, events: Sequence[Delivered]) -> None:
        """Enter deliveries of one or more sessions. Small blocks are entered together if possible.

        Raises:
            MissingMessageIdError: a message has no ID, and `onMissingMessageId` is `fail`.
        """
        for is_plain, group in groupby(events, self._is_plain):
            while some := [*islice(group, _SMALL_BLOCKS)]:
                if len(some) == 1 or not is_plain or not self._enter_new(some):
                    for event in some:
                        self.enter(event, over_limit=False)

    def _is_plain(self, event: Delivered) -> bool:
        """Whether a block is small, and each of its messages can be decoded and has an ID that is text."""
        is_small = len(event.rows) < _SMALL_ROWS and event.rows.size_bytes < _SMALL_BYTES
        return is_small and self._exact and event.metadata.is_plain

    def _enter_new(self, events: Sequence[Delivered]) -> bool:
        """If all messages of these small blocks are new, add them to the in-flight table in one step.

        Returns:
            whether they were added. Otherwise nothing has changed.
        """
        keys = TextKeys([TextKeys.joined([event.metadata.keys for event in events]).array])  # type: ignore[misc]
        if self._store.known(iter(keys)):
            return False
        rows = _together([event.rows for event in events])
        parts = [(event.session, event.metadata.tags) for event in events]
        if not self._in_flight.deliver_new(parts, keys, rows):
            return False
        for event in events:
            self._connections.live[event.session].deliveries += len(event.rows)
        self.counted["redelivered"] += sum(int(event.metadata.redelivered.sum()) for event in events)
        self._join_small(rows.block, keys, rows)
        return True

    def enter(self, event: Delivered, *, over_limit: bool) -> None:
        """Enter deliveries of one session.

        Args:
            over_limit: whether to skip new messages, because the queue already holds as many bytes as it may during a
                replay.

        Raises:
            MissingMessageIdError: a message has no ID, and `onMissingMessageId` is `fail`.
        """
        session, metadata, block, count = event.session, event.metadata, event.rows.block, len(event.rows)
        self._connections.live[session].deliveries += count
        self.counted["redelivered"] += int(metadata.redelivered.sum())
        arrivals = self._wanted(event)
        if arrivals.need_names:
            arrivals = self._named(arrivals)
        elsewhere: Collection[Any] = ()
        if self._exact:
            if over_limit:
                arrivals = self._only_known(arrivals)
            # Messages that are unknown here, but committed by another query.
            elsewhere = self._store.known(key for key in self._in_flight.not_here(arrivals.keys) if not is_content(key))
        keys, rows = arrivals.keys, arrivals.rows
        in_flight = self._in_flight
        buffered = len(in_flight.received)
        self._acknowledge(in_flight.deliver(session, arrivals.tags, keys, rows, elsewhere))
        taken = len(in_flight.received) - buffered
        if taken < count:
            places = range(len(keys)) if taken == len(keys) else in_flight.held(keys, rows)
            if self._exact and len(places) < len(keys):
                dropped = set(range(len(keys))).difference(places)
                flagged, first = metadata.redelivered, event.rows.numbers.start
                self._note_reused([keys[at] for at in sorted(dropped) if not flagged[rows[at][1] - first]], elsewhere)
            kept = [(keys[place], rows[place]) for place in places]
            if _KEPT_PARTS * sum(block.sizes[row] for _, (_, row) in kept) < sum(block.sizes):
                # Copy the kept rows. Otherwise they would keep the whole block in memory.
                self._join(kept)
                if taken == len(keys) and in_flight.received.runs:
                    run = in_flight.received.runs[-1]
                    run.payloads = BlockRows.of(run.payloads).joined().rows
                return
        self._join_small(block, keys, rows)

    def _join_small(self, block: Block, keys: Sequence[Any], rows: Sequence[Row]) -> None:
        """If a block is small, remember it. If there are many small blocks by now, merge them."""
        in_flight = self._in_flight
        if len(block) >= _SMALL_ROWS or block.batch.nbytes >= _SMALL_BYTES:
            return
        if in_flight.received.runs:
            self._small_runs.append(ref(in_flight.received.runs[-1]))
            if len(self._small_runs) == _SMALL_BLOCKS:
                self._join_runs()
        else:
            self._small.append((ref(block), [(key, row) for key, (_, row) in zip(keys, rows, strict=True)]))
            if len(self._small) == _SMALL_BLOCKS:
                small, self._small = self._small, []
                self._join([(key, (held, row)) for one, pairs in small if (held := one()) for key, row in pairs])

    def _note_reused(self, keys: Sequence[Any], elsewhere: Collection[Any]) -> None:
        """Count dropped deliveries that were the first deliveries of their messages, because a producer reused an ID.

        Args:
            keys: keys of the dropped deliveries that the broker has not flagged as redelivered.
            elsewhere: keys that another query has committed, which do not count.
        """
        in_flight, passed = self._in_flight, set(elsewhere)
        if not self._settings.endpoint.broker.proves_new:
            # On this broker a redelivery may lack the flag. But a delivery cannot be a redelivery if the message with
            # its ID is settled, or is buffered and not planned yet.
            passed |= in_flight.left_among(keys) | {key for key in keys if key in in_flight.planned}
        ids = [key for key in keys if key not in passed and not is_content(key)]
        if not ids:
            return
        if not self.counted["reused_ids"]:
            _LOG.warning(
                "%s: %d messages were dropped although the broker delivered them for the first time, because earlier "
                "messages had the same IDs; the first ID is %s. A scheduler that repeats messages, or a tool that "
                "redrives dead letters, reuses IDs. If the dropped messages were new, set 'messageIdFrom' to 'content' "
                "or to a property that distinguishes such messages, with a new checkpointLocation. Counter reusedIds "
                "counts all such messages",
                self._destination, len(ids), key_text(ids[0]),
            )  # fmt: skip
        self.counted["reused_ids"] += len(ids)

    def _named(self, arrivals: _Arrivals) -> _Arrivals:
        """Return the deliveries with a key for each message, also for messages without an ID."""
        in_flight, keys = self._in_flight, arrivals.keys
        matcher = in_flight.matcher
        if not self._noted:
            self._noted = True
            _LOG.warning(
                "%s: there are messages without an ID under messageIdFrom='%s'. %s",
                self._destination, self._ids.source, _NOTES[self._ids.on_missing],
            )  # fmt: skip
        places = [place for place, key in enumerate(keys) if is_content(key)]
        named = list(keys)
        digests = keys if len(places) == len(keys) else [keys[place] for place in places]
        sure = arrivals.not_redelivered
        sure = sure if digests is keys else [sure[place] for place in places]
        names = matcher.name(arrivals.session, digests, sure, in_flight)
        self._tell_of_echoes(matcher.echoes(names))
        for place, key in zip(places, names, strict=True):
            named[place] = key
        nameless = [place for place, key in enumerate(keys) if key is None]
        self.counted["nameless"] += len(nameless)
        for place, key in zip(nameless, matcher.name_nothing(len(nameless)), strict=True):
            named[place] = key
        return replace(arrivals, keys=named)

    def _tell_of_echoes(self, echoes: Sequence[Any]) -> None:
        if echoes and not self._told_of_echoes:
            self._told_of_echoes = True
            _LOG.warning(
                "%s: dropped %d messages without an ID, because they count as redeliveries of committed messages with "
                "equal contents. If a producer sends equal messages, the first repetition after a kill or a lost "
                "connection can be lost. Have the producer set IDs, or set 'messageIdFrom' to a property that "
                "distinguishes such messages, with a new checkpointLocation. Counter duplicatesDropped counts all "
                "dropped messages",
                self._destination, len(echoes),
            )  # fmt: skip

    def _join(self, pairs: Sequence[tuple[Any, Row]]) -> None:
        """Copy those rows that the in-flight table still has into a new block. The table then refers to the copies."""
        places = self._in_flight.held([key for key, _ in pairs], [row for _, row in pairs])
        if places:
            block = BlockRows.of(pairs[place][1] for place in places).joined()
            self._in_flight.exchange([pairs[place][0] for place in places], block.rows)

    def _join_runs(self) -> None:
        """Merge small runs that are still buffered into one run, and their rows into one block."""
        small, self._small_runs = {run for one in self._small_runs if (run := one())}, []
        self._in_flight.received.join(small, _joined)

    def _wanted(self, event: Delivered) -> _Arrivals:
        """Return the deliveries of an event without those that are rejected."""
        metadata = event.metadata
        keys: Sequence[Any] = metadata.keys
        if not self._exact:
            keys = range(self._serial, self._serial + len(event.rows))
            self._serial += len(event.rows)
        arrivals = _Arrivals(event.session, metadata.tags, keys, event.rows, metadata.not_redelivered)
        return arrivals.without(self._refused(event)) if metadata.unreadable or arrivals.lack_keys else arrivals

    def _refused(self, event: Delivered) -> dict[int, str]:
        """Reject messages that have no ID or cannot be decoded, if the options say so.

        Returns:
            index of a rejected message in the event's rows -> the reason.

        Raises:
            MissingMessageIdError: a message has no ID, and `onMissingMessageId` is `fail`.
        """
        tags, keys, unreadable = event.metadata.tags, event.metadata.keys, event.metadata.unreadable
        refused: dict[int, str] = {}
        if unreadable and self._settings.on_unreadable is OnUnreadable.REJECT:
            refused = dict.fromkeys(unreadable, "cannot be decoded")
            _LOG.error(
                "%s: rejected %d message(s) that cannot be decoded, the first: %s. If the queue has no dead-letter "
                "target, the broker drops them",
                self._destination, len(unreadable), next(iter(unreadable.values())),
            )  # fmt: skip
        missing = [row for row, key in enumerate(keys) if key is None and row not in refused]
        if missing and self._ids.on_missing is not OnMissing.ROW:
            self._ids.check(self._destination, len(missing), tags[missing[0]], event.metadata.hidden)
            refused |= dict.fromkeys(missing, "has no ID")
            _LOG.error(
                "%s: rejected %d message(s) without an ID under messageIdFrom='%s'",
                self._destination, len(missing), self._ids.source,
            )  # fmt: skip
        if refused:
            self.counted["rejected"] += len(refused)
            self._connections.reject(event.session, sorted(tags[row] for row in refused))
        return refused

    def _only_known(self, arrivals: _Arrivals) -> _Arrivals:
        """Return those deliveries whose messages are known.

        Deliveries of new messages are skipped: they stay unacknowledged until their session ends.
        """
        session, keys = arrivals.session, arrivals.keys
        new = set(self._in_flight.not_here(keys))
        places = {place for place, key in enumerate(keys) if key in new}
        if not places:
            return arrivals
        if not any(live.skipped for live in self._connections.live.values()):
            _LOG.warning(
                "%s: the queue holds as many bytes as it may during a replay. Further messages that the replay does "
                "not need are skipped and requested again later. This counts as one more delivery of each",
                self._destination,
            )
        self._in_flight.pass_over(session, arrivals.tags[min(places)])
        self._in_flight.matcher.give_back([keys[place] for place in places])
        self._connections.live[session].skipped += len(places)
        return arrivals.without(places)

    def take_back(self, now_s: float) -> None:
        """End the sessions that have skipped deliveries, so that the broker redelivers the skipped messages.

        Called repeatedly once the replayed epoch has been acknowledged. The end of its session is the only event after
        which every broker redelivers a message.
        """
        skipped = {session: live for session, live in self._connections.live.items() if live.skipped}
        if not skipped:
            self._unconfirmed_since_s = None
            return
        if self._unconfirmed_since_s is None:
            self._unconfirmed_since_s = now_s
        # Wait for confirmations, but not forever: under load there are always some to come, and over STOMP, RabbitMQ
        # does not confirm any acknowledgement after a skipped delivery.
        if self._in_flight.settling.unconfirmed() and now_s - self._unconfirmed_since_s < self._take_back_s:
            return
        for session, live in skipped.items():
            why = f"{live.skipped} messages skipped by a replay are requested again"
            live.skipped = 0
            self._connections.replace_session(session, why)


def _joined(runs: Sequence[MessageRun[Row]]) -> MessageRun[Row]:
    """Merge runs that follow one another into one run, and their rows into one block."""
    keys = joined([run.keys for run in runs])
    parts = groupby((part for run in runs for part in run.parts), itemgetter(0))
    return MessageRun(
        [(session, array("q", chain.from_iterable(tags for _, tags in its))) for session, its in parts],
        TextKeys([keys.array]) if isinstance(keys, TextKeys) else keys,
        BlockRows.of(*(run.payloads for run in runs)).joined().rows,
        sum(run.size_bytes for run in runs),
        np.concatenate([run.digests for run in runs]),
    )


def _together(ranges: Sequence[RowRange]) -> RowRange:
    """Return these rows as consecutive rows of one block. If they are not consecutive already, copy them."""
    first = ranges[0]
    ends = [first.numbers.start, *(rows.numbers.stop for rows in ranges)]
    if all(rows.block is first.block and rows.numbers.start == end for rows, end in zip(ranges, ends, strict=False)):
        return RowRange(first.block, range(ends[0], ends[-1]))
    return BlockRows.of(*ranges).joined().rows
