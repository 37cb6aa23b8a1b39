"""Epochs: the two-phase commit between Spark's checkpoint and the broker. This module does not use Spark itself.

A micro-batch is one epoch of the two-phase commit. :class:`EpochSource` answers Spark's calls by planning, replaying or
acknowledging an epoch, as the tables of :mod:`.calls` say. Each queue has a :class:`.QueueReader`, which processes the
events of its sessions and has an in-flight table. An epoch has messages of all queues, and :class:`.BatchSizing`
decides its size. These objects run on the thread of Spark's calls. Connections work in the background, so receiving and
heartbeats continue while Spark is busy.

Guarantee: with `exactly-once`, each message is in exactly one committed epoch, and an epoch that Spark asks for again
after a crash has the same messages in the same order.

A user may change the queues of a query at a restart. A new queue starts without committed IDs. The IDs of a removed
queue stay in the journal, so if the queue is read again later, no message is emitted twice. If an uncommitted epoch has
messages of a removed queue, it cannot be replayed, so the source refuses it (rule 9).

"Rule 9" means the rule with this number in docs/design.md#the-rules.
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
from pyspark_mq.sources.connections.block import BlockRows, Run
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
    """The arguments of a call.

    Attributes:
        start, end: the start and the end of the epoch that the call concerns.
        limit, alone: see :meth:`EpochSource.latest`.
    """

    start: Position
    end: Position
    limit: int | None = None
    alone: bool = False


@dataclass(slots=True)
class _EpochRecord:
    """An epoch from its plan, or from the end of its replay, until it is acknowledged.

    Attributes:
        end: the position at which the epoch ends.
        repeats: whether the epoch has messages without an ID whose content was known to occur twice when this process
            planned or replayed the epoch (:meth:`.Journal.begin_commit`).
        rows: name of each queue of the epoch, in order -> the rows that the epoch emits. They are kept until Spark has
            committed the epoch, because Spark may ask for them again. None until Spark asks for the first time.
    """

    end: Position
    repeats: bool
    rows: dict[str, BlockRows] | None = None


class EpochSource:
    """Plans, replays and acknowledges the epochs of one query. Not thread-safe.

    Args:
        settings: the settings of the query.
        worker: runs the query's connections.
        make_store: creates the store for committed IDs of a queue (option `dedupStore`).
        runtime: clock and threads; None for those of the machine.
        list_queues: returns the names of the broker's queues; required with option `queuePattern`.
        ask_depth: returns the number of messages that wait in a queue. Used for queues whose sessions do not report
            this number. None without `managementUrl`.
        files: the files of the journal; required with guarantee `exactly-once`.
        check: returns warnings about the settings of a queue, for the log.
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
        #: The end of the last epoch that this process knows.
        self._last = Position(0)
        #: The highest number of an epoch that was planned, even if its file could not be written.
        self._highest = 0
        #: Number of an epoch that this process has planned or replayed, but not acknowledged -> the epoch's record.
        self._epochs: dict[int, _EpochRecord] = {}
        #: Whether the epoch that was planned last may be the only epoch of the run.
        self._alone = False
        #: Number of the last epoch for which a note says that its data is on disk; None if this process wrote no note.
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
        """Return the position at which a new query starts.

        The call opens no connection, and does not prove that the query is new: Spark makes it after restarts, too.
        """
        return Position(0)

    def bound(self) -> None:
        """Make the run bounded (`Trigger.AvailableNow`): take only the messages that the queues hold at this moment."""
        self._show(Call.BOUND, Position(0))
        self._queues.start()
        self._batch_sizing.bound()

    def latest(self, start: Position, limit: int | None, *, alone: bool = False) -> Position:
        """Acknowledge the epoch that ends at `start` (phase two), then plan the next epoch (phase one).

        Args:
            start: the last committed position.
            limit: maximum number of messages in the epoch; None for all that are available now.
            alone: whether this may be the only epoch of the run, as with `Trigger.AvailableNow` before Spark 4.2.

        Returns:
            the end of the new epoch, or the last position if there are no new messages.
        """
        self._timings.asked()
        self._show(Call.LATEST, start)
        self._do(Call.COMMIT, _Asked(start, start))
        if start.epoch == 0 and not alone:
            self._apply(Trigger.NO_CRASH_LOOP)
        self._do(latest_at(start.epoch, self._last.epoch), _Asked(start, self._last, limit, alone))
        return self._last

    def payload(self, start: Position, end: Position) -> list[Run]:
        """Return the rows of the epoch from `start` to `end`, in planned order.

        If a former process has planned the epoch, wait until the broker has redelivered the planned messages.

        Raises:
            CheckpointError: the epoch has messages of a queue that the query does not read.
            DataLossError: not all planned messages were redelivered within `replayTimeout`, and `failOnDataLoss` is
                true.
        """
        former = step(Call.PAYLOAD, self._where(end)) is Act.REPLAY
        self._memory.check_start(start, end)
        self._show(Call.PAYLOAD, start, end, open_=end if former else None)
        self._do(Call.PAYLOAD, _Asked(start, end))
        rows = self._epochs[end.epoch].rows or {}
        return [Run(queue, its_rows) for queue, its_rows in rows.items() if its_rows]

    def commit(self, end: Position) -> None:
        """Acknowledge all epochs up to `end` (phase two), which Spark has committed."""
        self._show(Call.COMMIT, end)
        self._do(Call.COMMIT, _Asked(end, end))

    def stop(self) -> None:
        """Close the connections. Spark usually ends the process without calling this."""
        if self._backlog is not None:
            self._backlog.stop()
        self._queues.stop()

    # -- first steps ----------------------------------------------------------------------

    def _show(self, call: Call, *known: Position, open_: Position | None = None) -> None:
        """Take the first steps of a call, as the table ``SHOWING`` of :mod:`.calls` says.

        Args:
            call: the call.
            known: positions of the checkpoint that the call's arguments show. The first of them is committed.
            open_: the end of an epoch that a former process planned, and that is not committed; None if there is none.
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
        self._sync(start)  # what a former process has written may not be on disk yet
        self._last = start
        names = self._memory.queues(start)
        if names and self._settings.pattern is None and not any(map(self._queues.get, names)):
            # The user may remove queues from the options. But if none of them is read any more, the checkpoint
            # belongs to another query.
            raise CheckpointError(
                f"{self._destination}: the checkpoint was written for queues {', '.join(map(repr, names))}, but the "
                "query now reads none of them. Give each queue a checkpointLocation of its own, or correct the options"
            )
        self._queues.adopt(self._memory.adopt(start, open_), start.broker_id)

    def _check_power(self, newest: Position) -> None:
        """With option `settleAfter=synced`, raise an error if the machine may have lost power.

        After a loss of power, Spark's log may lack the entry of a batch although it has the entry of a later batch.

        Args:
            newest: the last position in Spark's commit log or offset log.
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
        """With option `settleAfter=synced`, write everything to disk before a step that relies on the data.

        Args:
            committed: the newest position for which Spark has written the commit, and the sink its output.
        """
        if not self._settings.syncs:
            return
        self._runtime.sync()
        if self._files is not None and committed.epoch != self._synced:
            self._files.note_synced(committed.epoch)
            self._synced = committed.epoch

    # -- epochs --------------------------------------------------------------------------------

    def _where(self, end: Position) -> EpochPlace:
        record = self._epochs.get(end.epoch)
        if record is None:
            return EpochPlace.ELSEWHERE
        return EpochPlace.PLANNED if record.rows is None else EpochPlace.BEGUN

    def _do(self, call: Call, asked: _Asked) -> None:
        """Do what the table ``EPOCHS`` of :mod:`.calls` says for a call and the place of its epoch.

        Raises:
            InternalError: the table has no entry for this call and place.
        """
        try:
            act = step(call, self._where(asked.end))
        except IllegalCallError:
            raise InternalError(
                f"{self._destination}: Spark continues from epoch {asked.start.epoch}, but the last epoch that the "
                f"source knows is {self._last.epoch}"
            ) from None
        self._act[act](asked)

    def _apply(self, trigger: Trigger) -> None:
        for queue in self._queues:
            queue.windows.enter(trigger)

    def _plan(self, asked: _Asked) -> None:
        """Plan the next epoch (phase one), if there are messages for it."""
        noted = asked.alone and self._memory.begin_alone(asked.start)
        once = asked.limit is None or noted
        if once:  # there is no crash loop, because all earlier epochs are committed
            self._apply(Trigger.NO_CRASH_LOOP if asked.limit is None else Trigger.ONE_EPOCH)
        self._queues.start()
        self._alone = asked.alone or asked.limit is None
        self._batch_sizing.await_first_messages(alone=self._alone)
        self._queues.drain_events()
        if self._backlog is not None:
            # Query only the queues whose sessions do not report how many messages wait.
            self._backlog.begin([queue.name for queue in self._queues if not queue.connections.depths()])
        sizes = self._batch_sizing.gather(asked.limit, once=once)
        self._timings.gathered()
        if sizes:
            self._cut(asked.start, sizes)
            return
        if self._batch_sizing.is_bounded or not self._queues.buffered:  # otherwise the next epoch's file records this
            self._memory.note_settled(asked.start, self._queues.in_flight_tables)
        if noted:
            self._memory.end_alone(asked.start)

    def _cut(self, start: Position, sizes: Mapping[QueueReader, int]) -> None:
        epoch = self._highest = max(self._highest, self._last.epoch) + 1
        bytes_before = self._queues.planned_bytes
        planned = {queue.name: queue.in_flight.plan(epoch, sizes.get(queue, 0)) for queue in self._queues}
        self._batch_sizing.planned()
        file = self._memory.plan(epoch, planned, self._queues.in_flight_tables, start.epoch)
        self._last = Position(epoch, file, self._queues.broker_id)
        record = self._epochs[epoch] = _EpochRecord(self._last, self._memory.repeats(planned))
        self._timings.planned(epoch, sum(sizes.values()), self._queues.planned_bytes - bytes_before)
        if self._settings.guarantee.acknowledges_first:
            rows = self._take_rows(record)
            for queue in self._queues:
                queue.acknowledge(epoch, retained_bytes=rows[queue.name].size_bytes)

    def _begin(self, asked: _Asked) -> None:
        self._sync(asked.start)  # the epoch's file and offset must be on disk before its messages are emitted
        self._take_rows(self._epochs[asked.end.epoch])
        # If this is the run's only epoch, no later call will record that its echoes (redeliveries that it acknowledges
        # but does not emit) are settled. So wait and record it now.
        if self._alone:
            self._batch_sizing.await_contents()
            self._memory.note_begun(asked.end, self._queues.in_flight_tables)

    def _begin_again(self, asked: _Asked) -> None:
        """Wait until the messages of an epoch that a former process planned are redelivered, then begin the epoch."""
        start, end = asked.start, asked.end
        self._sync(start)
        if end.epoch > self._last.epoch or self._last == start:
            self._last = end
        planned = self._replay.run(start, end)
        record = self._epochs[end.epoch] = _EpochRecord(end, self._memory.repeats(planned))
        self._take_rows(record)

    def _take_rows(self, record: _EpochRecord) -> dict[str, BlockRows]:
        """Take the rows that an epoch emits from the in-flight tables into its record, and return them."""
        rows = {queue.name: queue.begin(record.end.epoch) for queue in self._queues.with_ended()}
        order = dict.fromkeys([*self._memory.queues(record.end), *rows])
        record.rows = {name: rows[name] for name in order if name in rows}
        return record.rows

    def _acknowledge(self, asked: _Asked) -> None:
        """Acknowledge an epoch and all epochs before it (phase two).

        The order of the steps matters. The broker may delete a message as soon as its acknowledgement is sent, so
        everything that another process has to know about the message is recorded before.
        """
        self._sync(asked.end)  # now Spark's commit and the sink's data are on disk
        for epoch in sorted(epoch for epoch in self._epochs if epoch <= asked.end.epoch):
            record = self._epochs.pop(epoch)
            # Now the next process knows which messages may be redelivered.
            self._memory.begin_commit(record.end, repeats=record.repeats)
            waits = []
            for queue in self._queues.with_ended():
                queue.remember(epoch)  # now other queries know that the messages are committed
                queue.windows.enter(Trigger.COMMITTED)  # before the broker delivers more messages, see `WINDOWS`
                waits.append(queue.acknowledge(epoch))
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
        """Return the counters and the times of the last epochs, under their documented names."""
        return {"reads": self._destination, **self.counters().report(), **self._timings.report()}
