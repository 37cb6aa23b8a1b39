"""The replay of an epoch that a former process planned and Spark did not commit.

It reads from top to bottom: see whether the epoch is ours to replay, expect its messages, wait until all of them were
handed out again, and give up those that do not come (rule 9). Guarantee: the epoch is emitted with exactly the
messages that were planned, in their order, or without those of which it was written down before that they are given
up (rule 15).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from pyspark_mq.dedup import Key, key_text
from pyspark_mq.errors import CheckpointError, DataLossError
from pyspark_mq.sources.admission import IDLE_WAIT_S
from pyspark_mq.sources.journal.memory import Memory
from pyspark_mq.sources.position import JournalFiles, Position
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["Replay"]

_LOG = logging.getLogger("pyspark_mq")

#: A replay whose windows are full of other messages for so long has them doubled; the next time after twice as
#: long, and so on. What it waits for may be behind any number of messages (priorities), or may not be there yet
#: (delayed): so the number asked for grows with the time waited, and no faster.
_REPLAY_GAP_S = 1.0
#: How often a replay that waits says so.
_REPLAY_LOG_S = 10.0
_WAYS_ON = (
    "'pyspark-mq release' with the checkpointLocation does so for this epoch alone, 'failOnDataLoss' set to 'false' "
    "for all"
)
#: Missing IDs named in an error; the rest is counted.
_IDS_SHOWN = 10


class Replay:
    """Replays epochs for one query. Called by the query's thread, which waits here for as long as `replayTimeout`.

    Args:
        settings: the query's.
        queues: that it reads.
        runtime: the clock.
        memory: what was committed; None for a guarantee without IDs.
        files: of the journal; None if there is no place for them.
    """

    def __init__(
        self,
        settings: Settings,
        queues: QueueGroup,
        runtime: Runtime,
        memory: Memory | None,
        files: JournalFiles | None,
    ) -> None:
        self._settings = settings
        self._queues = queues
        self._runtime = runtime
        self._memory = memory
        self._files = files

    def run(self, start: Position, end: Position) -> None:
        """Have the messages of an epoch in the ledgers again, as one planned epoch.

        Args:
            start: the committed position before it.
            end: of the epoch.

        Raises:
            CheckpointError: it was planned at another broker, or has messages of a queue that the query does not read.
            DataLossError: they do not all come within `replayTimeout`, and `failOnDataLoss` is on.
        """
        self._check_broker(end)
        if self._memory is None:
            for queue in self._queues:
                queue.restore(end.epoch, ())
            self._run_empty(start, end)
            return
        planned = self._memory.planned(end)
        self._check_all_are_read(end, planned)
        for queue in self._queues:
            queue.restore(end.epoch, planned.get(queue.name, ()))
        try:
            self._queues.start()
            self._await(end)
        finally:
            for queue in self._queues:
                queue.replaying = False

    def _run_empty(self, start: Position, end: Position) -> None:
        """Give up all messages of an epoch, as a guarantee without IDs runs it empty: they come again in later epochs.

        If the guarantee is raised again, its file would say that they are committed.

        Raises:
            CheckpointError: there is no place to write that down.
        """
        if not end.file:
            return
        if self._files is None:
            guarantee = self._settings.guarantee.value
            raise CheckpointError(
                f"{self._settings.destination}: epoch {end.epoch} was planned with guarantee 'exactly-once' and is not "
                f"committed. '{guarantee}' runs it empty, and there is no place to write that down: set "
                "'checkpointLocation' (or 'idLog') at the source, or run the query with 'exactly-once' until the epoch "
                "is committed. Nothing was acknowledged"
            )
        # What is known beside it, were it planned blindly, has to be there for whoever goes on from it.
        memory = Memory(self._settings, self._files)
        if memory.is_blind(end):
            memory.recall(start, committed=True)
            memory.plan_beside(end, {})
        memory.give_up(end, memory.planned(end))

    def _check_broker(self, end: Position) -> None:
        """An open epoch of another broker than all before it: Spark before 4.2 writes it before that is noticed."""
        for queue in self._queues:
            known = queue.broker_id
            if known and end.broker_id and end.broker_id != known:
                raise CheckpointError(
                    f"{self._settings.destination}: the checkpoint was written with broker '{known}', except for "
                    f"its open epoch, which was planned at broker '{end.broker_id}' by a query that then failed. "
                    "Nothing of that epoch was emitted: correct 'url' if it still names that broker, and delete the "
                    "newest file in the folder 'offsets' of the checkpoint"
                )
            queue.expect_broker(end.broker_id)

    def _check_all_are_read(self, end: Position, planned: Mapping[str, Sequence[Key]]) -> None:
        """An open epoch with messages of a queue that is gone cannot be replayed.

        Args:
            end: of the epoch.
            planned: what is left of it, by queue.
        """
        gone = {name: keys for name, keys in planned.items() if keys and self._queues.get(name) is None}
        if not gone:
            return
        told = ", ".join(f"{len(keys)} of queue '{name}'" for name, keys in gone.items())
        text = (
            f"{self._settings.destination}: epoch {end.epoch} was planned and not committed, and has messages of "
            f"queues that the query does not read any more: {told}. "
        )
        why = self._may_go_on(end)
        if why is None:
            raise CheckpointError(
                f"{text}Read them once more until that epoch is committed, and leave them away then; or go on without "
                f"those messages: {_WAYS_ON}"
            )
        self._keep_record(end, gone)
        _LOG.error("%sGoing on without them, as %s", text, why)

    def _await(self, end: Position) -> None:
        """Wait until every planned message is here again, `replayTimeout` long while its queue is connected."""
        epoch = end.epoch
        timeout_s = self._settings.replay_timeout_s
        gaps_s = dict.fromkeys(self._queues.with_ended(), _REPLAY_GAP_S)
        began_s = {queue: queue.connected.seconds for queue in self._queues.with_ended()}
        said = -math.inf
        while True:
            self._queues.pump()
            queues = self._queues.with_ended()
            missing = {queue: count for queue in queues if (count := queue.ledger.planned.epochs[epoch].missing)}
            if not missing:
                return
            if any(queue.ended for queue in missing):
                self._give_up(end, [queue for queue in missing if queue.ended])
                continue
            now = self._runtime.monotonic_s()
            waited_s = {queue: queue.connected.seconds - began_s[queue] for queue in missing}
            if min(waited_s.values()) > timeout_s:
                self._give_up(end, list(missing))
                return
            if now - said >= _REPLAY_LOG_S:
                said = now
                for queue, count in missing.items():
                    _LOG.warning(
                        "%s: waiting for %d of %d planned messages of epoch %d, %.0f s left",
                        queue.destination, count, len(queue.ledger.planned.keys(epoch)), epoch,
                        timeout_s - waited_s[queue],
                    )  # fmt: skip
            for queue, count in missing.items():
                # What the broker holds back cannot be had by asking for more.
                if waited_s[queue] > queue.connected.delay_s and queue.open_windows_for_replay(count, gaps_s[queue]):
                    gaps_s[queue] *= 2
            self._queues.wait(IDLE_WAIT_S)

    def _give_up(self, end: Position, queues: Sequence[QueueReader]) -> None:
        """Rule 9: the planned messages are not all there."""
        epoch, settings = end.epoch, self._settings
        missing = {queue: [key_text(key) for key in queue.ledger.planned.missing(epoch)] for queue in queues}
        told = "; ".join(
            f"{queue.destination}: {len(keys)} of {len(queue.ledger.planned.keys(epoch))} messages of epoch {epoch} "
            f"did not come back within replayTimeout={settings.replay_timeout_s:g}s after a restart: "
            f"{', '.join(keys[:_IDS_SHOWN])}{', ...' if len(keys) > _IDS_SHOWN else ''}"
            for queue, keys in missing.items()
        )
        broker = settings.endpoint.broker
        notes = "; ".join(note for note in (broker.delivery_limit_note, broker.stranded_note) if note)
        text = (
            f"{told}. Likely reasons: they expired, were dead-lettered, purged, or are held by another consumer "
            f"of the queue; {notes}. "
        )
        why = self._may_go_on(end)
        if why is None:
            advice = (
                "The messages that are there were not acknowledged and stay in the queue. Return the "
                f"missing ones to the queue, or go on without them: {_WAYS_ON}"
            )
            everything = [key for keys in missing.values() for key in keys]
            where = ", ".join(queue.destination for queue in queues)
            raise DataLossError(where, epoch, everything, text + advice)
        self._keep_record(end, {queue.name: queue.ledger.planned.missing(epoch) for queue in queues})
        for queue in queues:
            queue.ledger.abandon(epoch)
        _LOG.error("%sGoing on without them, as %s", text, why)

    def _keep_record(self, end: Position, given_up: Mapping[str, Sequence[Key]]) -> None:
        """Write down what is given up, before anything of the epoch is emitted: it counts as new then (rule 15)."""
        assert self._memory is not None, "nothing is given up without IDs"
        self._memory.give_up(end, given_up)

    def _may_go_on(self, end: Position) -> str | None:
        """Why an epoch may be run without what does not come back; None if it may not."""
        if end.released:
            return "the epoch was released"
        return None if self._settings.fail_on_data_loss else "'failOnDataLoss' is 'false'"
