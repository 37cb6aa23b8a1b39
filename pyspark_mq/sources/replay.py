"""The replay of an epoch that a former process planned and Spark did not commit.

The steps are, in this order: check that the query reads the epoch's queues, tell the readers of these queues to expect
the epoch's messages, wait until all messages are redelivered, and handle messages that are not redelivered (rule 9).
Guarantee: the epoch is emitted with exactly the planned messages in their order. The only exception are messages that
were recorded as abandoned before the epoch is emitted (rule 15).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from pyspark_mq.dedup import Key, key_text
from pyspark_mq.errors import CheckpointError, DataLossError
from pyspark_mq.sources.journal import Journal, NoJournal
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["Replay"]

_LOG = logging.getLogger("pyspark_mq")

_WAYS_ON = (
    "run 'pyspark-mq release' with the checkpointLocation (for this epoch alone), or set 'failOnDataLoss' to 'false' "
    "(for all epochs)"
)
#: Maximum number of missing IDs that an error names. Further missing IDs are only counted.
_IDS_SHOWN = 10


class _Awaited:
    """The planned messages of one epoch in one queue. A replay waits until they are redelivered.

    Args:
        queue: the reader of the queue.
        epoch: number of the epoch.
        keys: keys of the messages, in planned order.
        gap_s: number of seconds without a message after which the prefetch window is doubled, see :class:`.Timing`.
    """

    def __init__(self, queue: QueueReader, epoch: int, keys: Sequence[Key], gap_s: float) -> None:
        self.queue = queue
        self._gap_s = gap_s
        self._began_s = queue.connected.seconds
        queue.begin_replay(epoch, keys)
        self._epoch = queue.in_flight.planned.epochs[epoch]

    @property
    def planned(self) -> int:
        """Number of messages that the epoch planned from this queue."""
        return len(self._epoch)

    @property
    def missing(self) -> int:
        """Number of messages that were not redelivered yet."""
        return self._epoch.missing

    def missing_keys(self) -> list[Key]:
        return self.queue.in_flight.planned.missing(self._epoch.number)

    @property
    def waited_s(self) -> float:
        """Seconds since the replay began during which every connection of the queue was open."""
        return self.queue.connected.seconds - self._began_s

    def ask_for_more(self, now_s: float) -> None:
        """If no message has arrived for a while, widen the prefetch windows that are full of other messages."""
        queue = self.queue
        if self.waited_s <= queue.connected.delay_s:
            return  # the broker delays redeliveries, so a wider window would not help
        if queue.connections.late or now_s - queue.last_activity_s < self._gap_s:
            return
        if queue.windows.double_taken(self.missing):
            self._gap_s *= 2


class Replay:
    """Replays epochs of one query. Only the query's thread calls the methods, and waits for up to `replayTimeout`."""

    def __init__(self, settings: Settings, queues: QueueGroup, runtime: Runtime, memory: Journal | NoJournal) -> None:
        self._settings = settings
        self._queues = queues
        self._runtime = runtime
        self._memory = memory

    def run(self, start: Position, end: Position) -> Mapping[str, Sequence[Key]]:
        """Wait until the messages that the epoch from `start` to `end` planned are redelivered into it.

        Returns:
            name of each queue -> keys of its messages in the epoch's file, in order.

        Raises:
            CheckpointError: the epoch has messages of a queue that the query does not read.
            DataLossError: not all planned messages were redelivered within `replayTimeout`, and `failOnDataLoss` is
                true.
        """
        for queue in self._queues:
            queue.connected.expect_broker(end.broker_id)
        planned = self._memory.planned(start, end)
        self._check_all_are_read(end, planned)
        gap_s = self._runtime.timing.gap_s
        awaited = [_Awaited(queue, end.epoch, planned.get(queue.name, ()), gap_s) for queue in self._queues]
        try:
            if planned:
                self._queues.start()
                self._await(end, awaited)
        finally:
            for one in awaited:
                one.queue.end_replay()
        return planned

    def _check_all_are_read(self, end: Position, planned: Mapping[str, Sequence[Key]]) -> None:
        """Raise an error if the epoch has messages of a queue that the query no longer reads.

        If the epoch may run without these messages, abandon them instead.
        """
        gone = {name: keys for name, keys in planned.items() if keys and self._queues.get(name) is None}
        if not gone:
            return
        those = ", ".join(f"{len(keys)} of queue '{name}'" for name, keys in gone.items())
        text = (
            f"{self._settings.destination}: epoch {end.epoch} was planned but not committed, and has messages of "
            f"queues that the query no longer reads: {those}. "
        )
        why = self._may_go_on(end)
        if why is None:
            raise CheckpointError(
                f"{text}Read these queues until that epoch is committed, then remove them from the options; or "
                f"continue without those messages: {_WAYS_ON}"
            )
        self._memory.abandon(end, gone)
        _LOG.error("%sContinuing without them, because %s", text, why)

    def _await(self, end: Position, awaited: Sequence[_Awaited]) -> None:
        """Wait until all planned messages are redelivered, for up to `replayTimeout`.

        Only time during which every connection is up counts.
        """
        timeout_s = self._settings.replay_timeout_s
        said = -math.inf
        while True:
            self._queues.drain_events()
            left = [one for one in awaited if one.missing]
            if not left:
                return
            if ended := [one for one in left if one.queue.ended]:
                self._abandon(end, ended)
                continue
            if min(one.waited_s for one in left) > timeout_s:
                self._abandon(end, left)
                return
            now = self._runtime.monotonic_s()
            if now - said >= self._runtime.timing.replay_log_s:
                said = now
                for one in left:
                    _LOG.warning(
                        "%s: waiting for %d of %d planned messages of epoch %d, %.0f s left",
                        one.queue.destination, one.missing, one.planned, end.epoch, timeout_s - one.waited_s,
                    )  # fmt: skip
            for one in left:
                one.ask_for_more(now)
            self._queues.wait(self._runtime.timing.idle_s)

    def _abandon(self, end: Position, awaited: Sequence[_Awaited]) -> None:
        """Handle planned messages that were not redelivered (rule 9): raise an error, or abandon them if allowed."""
        epoch, settings = end.epoch, self._settings
        missing = {one: one.missing_keys() for one in awaited}
        texts = {one: list(map(key_text, keys)) for one, keys in missing.items()}
        what = "; ".join(
            f"{one.queue.destination}: {len(keys)} of {one.planned} messages of epoch {epoch} "
            f"were not redelivered within replayTimeout={settings.replay_timeout_s:g}s after a restart: "
            f"{', '.join(keys[:_IDS_SHOWN])}{', ...' if len(keys) > _IDS_SHOWN else ''}"
            for one, keys in texts.items()
        )
        broker = settings.endpoint.broker
        notes = "; ".join(note for note in (broker.delivery_limit_note, broker.stranded_note) if note)
        text = (
            f"{what}. Likely causes: the messages expired, were dead-lettered or purged, or are held by another "
            f"consumer of the queue; {notes}. "
        )
        why = self._may_go_on(end)
        if why is None:
            advice = (
                "The other messages were not acknowledged and stay in the queue. Return the missing ones to "
                f"the queue, or continue without them: {_WAYS_ON}"
            )
            where = ", ".join(one.queue.destination for one in awaited)
            raise DataLossError(where, epoch, [key for keys in texts.values() for key in keys], text + advice)
        # Record the abandoned messages before the epoch is emitted. From now on they count as new (rule 15).
        self._memory.abandon(end, {one.queue.name: keys for one, keys in missing.items()})
        for one in awaited:
            one.queue.in_flight.abandon(epoch)
        _LOG.error("%sContinuing without them, because %s", text, why)

    def _may_go_on(self, end: Position) -> str | None:
        """Return the reason, for the log, why the epoch may run without its missing messages; None if it may not."""
        if end.released:
            return "the epoch was released"
        return None if self._settings.fail_on_data_loss else "'failOnDataLoss' is 'false'"
