"""Epochs: the protocol between Spark's checkpoint and the broker, without Spark.

One micro-batch is one epoch of a two-phase commit. :class:`EpochSource` maps Spark's calls to three acts, plan, replay
and acknowledge, by the tables of :mod:`.calls`. Each queue has a :class:`.QueueReader`, which processes the events of
its sessions and owns an in-flight table. An epoch spans all queues, and :class:`.BatchSizing` decides its size. All
these run on Spark's thread. Supervisors work in the background, so receiving and heartbeats continue while Spark is
busy.

Guarantee: with `exactly-once`, every message is in exactly one committed epoch, and an epoch that Spark asks for again
after a crash has the same messages in the same order.

The queues of a query may change over a restart. A new queue starts without committed IDs. The IDs of a removed queue
stay in the journal: if the queue is read again, nothing is emitted twice. An open epoch with messages of a removed
queue cannot be replayed, so the source refuses it (rule 9).

Rules cited by number are in docs/how-it-works.md#the-rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_mq.ack.counters import Counters
from pyspark_mq.dedup import CheckpointOnly
from pyspark_mq.errors import CheckpointError, InternalError, unread_epoch
from pyspark_mq.sources.batch_sizing import BatchSizing
from pyspark_mq.sources.calls import Act, Call, Committed, EpochPlace, First, IllegalCallError, latest_at, show, step
from pyspark_mq.sources.connections.block import Run
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.journal import Journal, NoJournal
from pyspark_mq.sources.position import JournalFiles, Position
from pyspark_mq.sources.queues.connected import CheckFacts
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.matching import MatchingQueues
from pyspark_mq.sources.queues.reader import MakeStore, QueueReader
from pyspark_mq.sources.queues.timings import Timings
from pyspark_mq.sources.queues.watch import BacklogWatch
from pyspark_mq.sources.queues.windows import Trigger
from pyspark_mq.sources.replay import Replay
from pyspark_mq.sources.runtime import Runtime, Threads
from pyspark_mq.sources.settings import Settings

__all__ = ["EpochSource", "Position", "Run"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of a call, such as the start and end of the epoch that the call is about."""

    start: Position
    end: Position
    limit: int | None = None
    alone: bool = False


class EpochSource:
    """Plans, replays and acknowledges epochs for one query. Not thread-safe.

    Args:
        make_store: creates the store that shares a queue's committed IDs beyond the checkpoint.
        list_queues: lists the broker's queues, for option `queuePattern`.
        ask_depth: asks how many messages wait in a queue, for queues whose depth no session learns; None without
            management.
        files: files of the journal; required if the guarantee uses IDs.
        check: finds warnings about a queue, for the log.
    """

    def __init__(
        self,
        settings: Settings,
        worker: Worker,
        make_store: MakeStore | None = None,
        runtime: Runtime | None = None,
        list_queues: Callable[[], Sequence[str]] | None = None,
        ask_depth: Callable[[str], int | None] | None = None,
        files: JournalFiles | None = None,
        check: CheckFacts = lambda _facts, _settings: (),
    ) -> None:
        self._settings = settings
        self._destination = settings.destination
        self._files = files
        if settings.guarantee.identifies:
            assert files is not None, "guarantee 'exactly-once' needs a place for its files"
            self._memory: Journal | NoJournal = Journal(settings, files)
        else:
            self._memory = NoJournal(settings, files)
        self._runtime = runtime or Threads()
        make_store = make_store or (lambda _: CheckpointOnly())
        group = (settings, worker, make_store, self._runtime, self._memory, check)
        if settings.pattern is None:
            self._queues = QueueGroup(*group)
        else:
            assert list_queues is not None, "option 'queuePattern' needs 'managementUrl'"
            self._queues = MatchingQueues(list_queues, *group)
        self._backlog = (
            None if ask_depth is None else BacklogWatch(ask_depth, settings.management_interval_s, self._runtime)
        )
        self._batch_sizing = BatchSizing(settings, self._queues, self._runtime)
        self._timings = Timings(self._runtime)
        self._replay = Replay(settings, self._queues, self._runtime, self._memory)
        self._committed_offset = Committed.UNKNOWN
        #: The end of the last known epoch.
        self._last = Position(0)
        #: The highest epoch number so far.
        self._highest = 0
        #: Uncommitted epoch whose payload Spark has asked for -> names of the epoch's queues, in order.
        self._begun: dict[int, list[str]] = {}
        #: Whether the planned epoch may be the only one of the run.
        self._alone = False
        #: The newest epoch noted as synced.
        self._synced: int | None = None
        self._act: Mapping[Act, Callable[[_Asked], None]] = {
            Act.NOTHING: lambda _: None,
            Act.PLAN: self._plan,
            Act.REPLAY: self._begin_again,
            Act.BEGIN: self._begin,
            Act.ACKNOWLEDGE: self._acknowledge,
            Act.REFUSE: self._refuse,
        }

    # -- Spark's calls, in its order -----------------------------------------------------------

    def initial(self) -> Position:
        """Return the position of a new query.

        This call opens nothing and proves nothing, because Spark makes it after restarts, too.
        """
        return Position(0)

    def bound(self) -> None:
        """From now on, take only what the queues hold at this moment (`Trigger.AvailableNow`)."""
        self._show(Call.BOUND, Position(0))
        self._queues.start()
        self._batch_sizing.bound()

    def latest(self, start: Position, limit: int | None, *, alone: bool = False) -> Position:
        """Run phase two of the epoch that ends at `start`, then phase one of the next epoch.

        Args:
            start: the last committed position.
            limit: the most messages to take; None for all available now.
            alone: whether this may be the only epoch of the run, as before Spark 4.2 with `Trigger.AvailableNow`.

        Returns:
            The end of a new epoch, or the last position if there is nothing new.
        """
        self._timings.asked()
        self._show(Call.LATEST, start)
        self._do(Call.COMMIT, _Asked(start, start))
        if start.epoch == 0 and not alone:
            self._apply(Trigger.NO_CRASH_LOOP)
        self._do(latest_at(start.epoch, self._last.epoch), _Asked(start, self._last, limit, alone))
        return self._last

    def payload(self, start: Position, end: Position) -> list[Run]:
        """Return the deliveries of the epoch from `start` to `end`, in planned order.

        For an epoch of a former process, this waits until the broker has redelivered exactly the planned messages.

        Raises:
            CheckpointError: the epoch has messages of a queue that the query does not read.
            DataLossError: not all its messages are redelivered within `replayTimeout`, and `failOnDataLoss` is on.
        """
        former = step(Call.PAYLOAD, self._where(end)) is Act.REPLAY
        self._memory.check_start(start, end)
        self._show(Call.PAYLOAD, start, end, open_=end if former else None)
        self._do(Call.PAYLOAD, _Asked(start, end))
        queues = [queue for name in self._begun[end.epoch] if (queue := self._queues.get(name))]
        return [Run(queue.name, rows) for queue in queues if (rows := queue.emitted(end.epoch))]

    def commit(self, end: Position) -> None:
        """Run phase two of all epochs up to `end`, which Spark has committed."""
        self._show(Call.COMMIT, end)
        self._do(Call.COMMIT, _Asked(end, end))

    def stop(self) -> None:
        """Close the connections. Spark usually ends the process before this is called."""
        if self._backlog is not None:
            self._backlog.stop()
        self._queues.stop()

    # -- first steps ----------------------------------------------------------------------

    def _show(self, call: Call, *known: Position, open_: Position | None = None) -> None:
        """Take the first steps of a call.

        Args:
            known: positions of the checkpoint; the first of them is committed.
            open_: the end of an epoch that a former process planned but did not see committed.
        """
        first, shown = show(call, self._committed_offset)
        if First.FIND in first:
            self._queues.find(*known)
        if First.LEARN in first:
            for newest in (open_, known[0]):
                if newest is not None:
                    self._check_power(newest)
        self._committed_offset = shown
        if First.LEARN in first:
            self._learn(known[0], open_)

    def _learn(self, start: Position, open_: Position | None) -> None:
        self._sync(start)  # a former process may have reported data that is not on disk yet
        self._highest = max(self._highest, start.epoch)
        if self._last.epoch == 0:
            self._last = start
        names = self._memory.queues(start)
        if names and self._settings.pattern is None and not any(map(self._queues.get, names)):
            # Single queues may be removed, but if all of them are, the checkpoint is another query's.
            raise CheckpointError(
                f"{self._destination}: the checkpoint was written for queues {', '.join(map(repr, names))}, but the "
                "query now reads none of them. Give each queue a checkpointLocation of its own, or correct the options"
            )
        self._queues.adopt(self._memory.adopt(start, open_), start.broker_id)

    def _check_power(self, newest: Position) -> None:
        """Check for a loss of power. After it, Spark's log may have an entry for a batch but none for an earlier batch.

        Args:
            newest: the last position that Spark has committed or logged.
        """
        if self._files is None:
            return
        if not self._settings.syncs:
            self._files.forget_synced()
        elif self._files.lost_power(newest.epoch):
            raise CheckpointError(
                f"{self._destination}: epoch {newest.epoch} is in Spark's logs, but the machine was restarted before "
                "all of the epoch's data was known to be on disk. Run 'pyspark-mq repair' with the checkpointLocation, "
                "and for a file sink with --sink and its folder. The epoch is then rerun: none of its messages was "
                "acknowledged"
            )

    def _sync(self, committed: Position) -> None:
        """Sync the disks (option `settleAfter=synced`), so that no loss of power removes logs that later steps rely on.

        Args:
            committed: the newest position whose commit and sink output have been written.
        """
        if not self._settings.syncs:
            return
        self._runtime.sync()
        if self._files is not None and committed.epoch != self._synced:
            self._files.note_synced(committed.epoch)
            self._synced = committed.epoch

    # -- epochs --------------------------------------------------------------------------------

    def _where(self, end: Position) -> EpochPlace:
        if end.epoch in self._begun:
            return EpochPlace.BEGUN
        return EpochPlace.PLANNED if self._queues.is_open(end.epoch) else EpochPlace.ELSEWHERE

    def _do(self, call: Call, asked: _Asked) -> None:
        """Carry out a call on its epoch.

        Raises:
            InternalError: the call is not possible now.
        """
        try:
            act = step(call, self._where(asked.end))
        except IllegalCallError:
            raise InternalError(
                f"{self._destination}: Spark continues from epoch {asked.start.epoch}, but the last epoch here is "
                f"{self._last.epoch}"
            ) from None
        self._act[act](asked)

    def _apply(self, trigger: Trigger) -> None:
        for queue in self._queues:
            queue.apply_trigger(trigger)

    def _plan(self, asked: _Asked) -> None:
        """Plan the next epoch (phase one), if there are messages for it."""
        noted = asked.alone and self._memory.begin_alone(asked.start)
        once = asked.limit is None or noted
        if once:  # everything before it is committed
            self._apply(Trigger.NO_CRASH_LOOP if asked.limit is None else Trigger.ONE_EPOCH)
        self._queues.start()
        self._batch_sizing.await_first_messages()
        self._queues.drain_events()
        if self._backlog is not None:
            # Poll only queues whose depth no session learns.
            self._backlog.begin([queue.name for queue in self._queues if not queue.view.depths])
        sizes = self._batch_sizing.gather(asked.limit, once=once)
        self._timings.gathered()
        self._alone = asked.alone or asked.limit is None
        if sizes:
            self._cut(asked.start, sizes)
            return
        if self._batch_sizing.is_bounded or not self._queues.buffered:  # else the next epoch's file has the news
            self._memory.note_settled(asked.start, self._queues.in_flight_tables)
        if noted:
            self._memory.end_alone(asked.start)

    def _cut(self, start: Position, sizes: Mapping[QueueReader, int]) -> None:
        epoch = self._highest = self._highest + 1
        bytes_before = self._queues.planned_bytes
        planned = {queue.name: queue.plan(epoch, sizes.get(queue, 0)) for queue in self._queues}
        self._batch_sizing.planned()
        file = self._memory.plan(epoch, planned, self._queues.in_flight_tables, start.epoch)
        self._last = Position(epoch, file, self._queues.broker_id)
        self._timings.planned(epoch, sum(sizes.values()), self._queues.planned_bytes - bytes_before)
        if self._settings.guarantee.acknowledges_first:
            self._hold(self._last)
            for queue in self._queues:
                queue.acknowledge(epoch)

    def _begin(self, asked: _Asked) -> None:
        self._sync(asked.start)  # emit only messages that are planned durably
        self._hold(asked.end)
        # No later call would find the epoch's echoes settled.
        if self._alone:
            self._batch_sizing.await_contents()
            self._memory.note_begun(asked.end, self._queues.in_flight_tables)

    def _begin_again(self, asked: _Asked) -> None:
        """Begin an epoch of a former process as soon as its messages are here."""
        start, end = asked.start, asked.end
        self._sync(start)
        if end.epoch > self._last.epoch or self._last == start:
            self._last = end
        self._highest = max(self._highest, end.epoch)
        self._replay.run(start, end)
        self._hold(end)

    def _hold(self, end: Position) -> None:
        """Keep an epoch's rows until the epoch is committed, because Spark may ask for the rows again."""
        queues = self._queues.with_ended()
        self._begun[end.epoch] = list(dict.fromkeys([*self._memory.queues(end), *(queue.name for queue in queues)]))
        for queue in queues:
            queue.hold(end.epoch)

    def _acknowledge(self, asked: _Asked) -> None:
        """Acknowledge an epoch and all epochs before it (phase two).

        Each step is done before a later step relies on it. Everything that another process has to know is recorded
        before the broker may forget a message.
        """
        self._sync(asked.end)  # Spark's commit and the sink's data are on disk
        for epoch in sorted(epoch for epoch in self._begun if epoch <= asked.end.epoch):
            del self._begun[epoch]
            self._memory.begin_commit(epoch)  # the next process knows what may be redelivered
            waits = []
            for queue in self._queues.with_ended():
                queue.remember(epoch)  # other queries know the messages
                queue.apply_trigger(Trigger.COMMITTED)  # if this takes a new consumer, nothing is on its way yet
                waits.append(queue.acknowledge(epoch))
                queue.drop(epoch)
            self._timings.committed(epoch, waits)
        self._queues.forget_ended()

    def _refuse(self, asked: _Asked) -> None:
        raise unread_epoch(self._destination, f"epoch {asked.end.epoch}")

    # -- counters and times ----------------------------------------------------------------

    def counters(self) -> Counters:
        """Return the counters for the query's progress (rule 8)."""
        memory = self._memory
        others = self._queues.ended_counters + Counters(forgotten=memory.forgotten, remembered=memory.remembered)
        return sum(map(self._counters_of, self._queues), others)

    def _counters_of(self, queue: QueueReader) -> Counters:
        counters = queue.counters()
        if counters.backlog is not None or self._backlog is None:
            return counters
        return replace(counters, backlog=self._backlog.seen(queue.name))

    def report(self) -> dict[str, Any]:
        """Return counters and the times of the last epochs, under their documented names."""
        return {"reads": self._destination, **self.counters().report(), **self._timings.report()}
