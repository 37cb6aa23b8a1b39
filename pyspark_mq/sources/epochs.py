"""Epochs: the protocol between Spark's checkpoint and the broker, without Spark.

One micro-batch is one epoch of a two-phase commit. :class:`EpochSource` is what Spark's calls come down
to: plan, replay, settle. Each queue has a :class:`.QueueReader`, which takes in what its receivers bring and has a
ledger; an epoch goes over all queues, and :class:`.Admission` decides how much goes into it. All of it runs on the
thread that Spark calls. Receivers work on beside it, so receiving and heartbeats go on while Spark is busy.

Guarantee: with `exactly-once`, every message is in exactly one committed epoch, and an epoch that
is asked for again after a crash has the same messages in the same order.

The queues of a query may be others after a restart. One that is new begins empty. Of one that is gone, what was
committed stays in the journal, so that it may come back and nothing of it is emitted twice; what was planned and not
committed is lost without it, so that is refused (rule 9).

Rules cited by number are in docs/how-it-works.md#the-rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark_mq.ack import Ledger
from pyspark_mq.ack.counters import Counters
from pyspark_mq.dedup import CheckpointOnly, Key
from pyspark_mq.errors import BrokerError, CheckpointError, InternalError
from pyspark_mq.sources.admission import Admission
from pyspark_mq.sources.blind import BlindPlanning
from pyspark_mq.sources.connections.block import Run
from pyspark_mq.sources.connections.receivers import Receivers
from pyspark_mq.sources.journal.memory import Memory
from pyspark_mq.sources.position import JournalFiles, Limit, Position
from pyspark_mq.sources.queues.group import QueueGroup
from pyspark_mq.sources.queues.pattern import QueueWatch
from pyspark_mq.sources.queues.reader import Judge, MakeStore, QueueReader
from pyspark_mq.sources.queues.watch import BacklogWatch
from pyspark_mq.sources.replay import Replay
from pyspark_mq.sources.runtime import Runtime, Threads
from pyspark_mq.sources.settings import CONNECTIONS_MAX, Settings
from pyspark_mq.sources.timings import Timings

__all__ = ["EpochSource", "Limit", "Position", "Run"]

_LOG = logging.getLogger("pyspark_mq")


class EpochSource:
    """Plans, replays and settles epochs for one query. Not thread-safe.

    Args:
        settings: the query's.
        receivers: who keeps the connections.
        make_store: where settled IDs of a queue are shared, beyond the checkpoint.
        runtime: time and threads.
        list_queues: names of the queues there are, for option `queuePattern`.
        ask_depth: messages waiting in a queue, where no session is told; None if nobody can be asked.
        files: of the journal; needed where messages have IDs.
        judge: finds in what a connection tells of a queue what is worth a line of the log.
    """

    def __init__(
        self,
        settings: Settings,
        receivers: Receivers,
        make_store: MakeStore | None = None,
        runtime: Runtime | None = None,
        list_queues: Callable[[], Sequence[str]] | None = None,
        ask_depth: Callable[[str], int | None] | None = None,
        files: JournalFiles | None = None,
        judge: Judge = lambda _facts, _settings: (),
    ) -> None:
        self._settings = settings
        self._files = files
        self._memory: Memory | None = None
        if settings.guarantee.identifies:
            assert files is not None, "guarantee 'exactly-once' needs a place for its files"
            self._memory = Memory(settings, files)
        self._runtime = runtime or Threads()
        make_store = make_store or (lambda _: CheckpointOnly())
        self._queues = QueueGroup(settings, receivers, make_store, self._runtime, judge, self._memory)
        self._queues.may_end = self._may_end
        for one in settings.by_queue():
            self._queues.add(one)
        self._watch = self._make_watch(list_queues)
        self._backlog = (
            None if ask_depth is None else BacklogWatch(ask_depth, settings.management_interval_s, self._runtime)
        )
        self._crowded = False
        #: Queues that match and cannot be read by this user.
        self._refused: set[str] = set()
        self._admission = Admission(settings, self._queues, self._runtime)
        self._timings = Timings(self._runtime)
        self._first_call = True
        self._bounded = False
        self._adopted = False
        #: What the next epoch's number has to be above.
        self._highest = 0
        self._last = Position(0)
        #: Epochs that Spark has asked the payload of and not committed, and the queues in their order.
        self._begun: dict[int, list[str]] = {}
        #: The newest epoch that was noted as synced.
        self._synced: int | None = None
        self._replay = Replay(settings, self._queues, self._runtime, self._memory, files)
        self._blind = BlindPlanning(self._queues, self._runtime)

    # -- Spark's calls, in its order -----------------------------------------------------------

    def initial(self) -> Position:
        """The position of a new query. Opens nothing, and proves nothing: Spark 4.0 asks at restarts too."""
        return Position(0)

    def bound(self) -> None:
        """From now on take only what the queues hold at this moment (`Trigger.AvailableNow`)."""
        self._find_queues()
        self._bounded = True
        self._queues.start()
        self._admission.bound()

    def latest(self, start: Position | None, limit: Limit) -> Position:
        """Phase two of the epoch that ends at `start`, then phase one of the next.

        Args:
            start: the last committed position; None where Spark does not say (:mod:`.blind`).
            limit: how much to take.

        Returns:
            The end of a new epoch, or the last position if there is nothing new.
        """
        self._timings.asked()
        self._find_queues(start or Position(0))
        if start is not None:
            self.commit(start)
            if start.epoch == 0:
                self._open_wide()
            if start.epoch > self._last.epoch:
                raise self._unexpected(f"Spark goes on from epoch {start.epoch}, the last here is {self._last.epoch}")
        else:
            self._blind.begin()
        behind = start is not None and start.epoch < self._last.epoch
        if behind or (self._is_open(self._last.epoch) and self._last.epoch not in self._begun):
            return self._last  # planned before and never begun: it stays as it was written
        self._queues.start()
        if self._first_call:
            self._first_call = False
            self._admission.await_first_messages()
        self._queues.pump()
        if self._backlog is not None:
            # Those whose depth no session is told.
            self._backlog.begin([queue.name for queue in self._queues if queue.connections.newest_depth is None])
        if start is None:
            limit = self._blind.share_window(limit)
        elif limit.messages is None:
            # The one epoch of this run, and everything before it is committed: take what there is.
            self._open_wide()
        sizes = self._admission.gather(limit)
        self._timings.gathered()
        self._timings.look()
        if sizes or (start is None and self._blind.needs_empty_epoch(shown=self._adopted, running=bool(self._begun))):
            return self._plan(sizes)
        return self._last

    def _open_wide(self) -> None:
        for queue in self._queues:
            queue.open_wide()

    def _is_open(self, epoch: int) -> bool:
        """Is this epoch planned and not committed?"""
        return any(epoch in queue.ledger.planned.epochs for queue in self._queues.with_ended())

    def payload(self, start: Position, end: Position) -> list[Run]:
        """The deliveries of the epoch from `start` to `end`, in planned order.

        For an epoch of a former process this waits until the broker has handed out exactly the
        planned messages again.

        Raises:
            CheckpointError: it has messages of a queue that the query does not read.
            DataLossError: they do not all come within `replayTimeout`, and `failOnDataLoss` is on.
        """
        former = end.epoch not in self._begun and not self._is_open(end.epoch)
        if not self._adopted:
            self._find_queues(start, end)
        if former:
            self._check_power(end)
        self._adopt(start, end if former else None)
        if end.epoch not in self._begun:
            self._sync(start)  # what is emitted is planned
            if former:
                if not self._is_open(self._last.epoch) and (end.epoch > self._last.epoch or self._last == start):
                    self._last = end  # Spark 4.0 has a bounded run plan its end before it shows what is open
                self._highest = max(self._highest, end.epoch)
                self._replay.run(start, end)
            elif start.epoch == 0:
                self._open_wide()
            if self._memory is not None and self._memory.is_blind(end):
                self._memory.plan_beside(end, self._ledgers)
            self._hold(end)
        queues = [queue for name in self._begun[end.epoch] if (queue := self._queues.get(name))]
        return [Run(queue.name, rows) for queue in queues if (rows := queue.emitted(end.epoch))]

    def commit(self, end: Position) -> None:
        """Phase two of all epochs up to `end`: Spark has committed them."""
        self._adopt(end)
        if end.epoch not in self._begun:
            return  # of a former process, or committed before: nothing that was run here (rule 16)
        self._sync(end)  # what is acknowledged is committed, and written by the sink
        for epoch in sorted(epoch for epoch in self._begun if epoch <= end.epoch):
            del self._begun[epoch]
            self._settle(epoch)
        self._queues.forget_ended()

    def _settle(self, epoch: int) -> None:
        """Phase two of an epoch."""
        segment = None if self._memory is None else self._memory.begin_commit(epoch)
        number = 0 if segment is None else segment.number
        settled = [(queue.ledger, queue.commit(epoch, number)) for queue in self._queues.with_ended()]
        if self._memory is not None and segment is not None:
            self._memory.commit(segment)
        self._timings.committed(
            epoch, lambda: any(ledger.settling.under_way(asked) for ledger, asked in settled if asked)
        )

    @property
    def _ledgers(self) -> dict[str, Ledger[Key, Any]]:
        return {queue.name: queue.ledger for queue in self._queues.with_ended()}

    def stop(self) -> None:
        """Close the connections. Usually Spark ends the process before it gets here."""
        if self._watch is not None:
            self._watch.stop()
        if self._backlog is not None:
            self._backlog.stop()
        self._queues.stop()

    def counters(self) -> Counters:
        """The counters that a user sees in the query's progress (rule 8)."""
        forgotten = 0 if self._memory is None else self._memory.forgotten
        return sum(map(self._counters_of, self._queues), self._queues.ended_counters + Counters(forgotten=forgotten))

    def _counters_of(self, queue: QueueReader) -> Counters:
        counters = queue.counters()
        if counters.backlog is not None or self._backlog is None:
            return counters
        return replace(counters, backlog=self._backlog.seen(queue.name))

    def report(self) -> dict[str, Any]:
        """The counters and the times of the last epochs, under their documented names."""
        return {"reads": self._destination, **self.counters().report(), **self._timings.report()}

    # -- queues by a pattern -------------------------------------------------------------------

    def _make_watch(self, list_queues: Callable[[], Sequence[str]] | None) -> QueueWatch | None:
        settings = self._settings
        if settings.pattern is None:
            return None
        assert list_queues is not None, "option 'queuePattern' needs 'managementUrl'"
        return QueueWatch(
            settings.pattern,
            list_queues,
            settings.pattern_interval_s,
            settings.endpoint.connect_timeout_s,
            self._runtime,
        )

    def _find_queues(self, *known: Position) -> None:
        """Have a queue for each queue that matches by now; a bounded run keeps to those it began with.

        Args:
            known: positions of the checkpoint. Where there are too many queues, theirs come first.
        """
        if self._watch is None or (self._bounded and self._adopted):
            return
        self._queues.forget_ended()  # one that has come back is read by a new reader
        if self._watch.begun:
            names = self._watch.seen()
        else:
            names = self._watch.begin()
            if not names:
                _LOG.warning("%s: there is none yet; it is looked again every %g s", self._destination,
                             self._settings.pattern_interval_s)  # fmt: skip
        most = CONNECTIONS_MAX // self._settings.consumers
        if not self._adopted and len(names) > most:
            begun = {name for position in known for name in self._names_in(position)}
            names = sorted(names, key=lambda name: name not in begun)
            for late in [queue for queue in self._queues if queue.name not in names[:most] and not queue.taking]:
                self._queues.drop(late)
        self._refused.intersection_update(names)
        for name in names:
            if self._queues.get(name) is not None or name in self._refused:
                continue
            if len(self._queues) >= most:
                if not self._crowded:
                    _LOG.error(
                        "%s: %d match, and %d are read: more connections than that are not opened. Narrow the pattern, "
                        "or use several queries; the others wait in their queues",
                        self._destination, len(names), most,
                    )  # fmt: skip
                self._crowded = True
                return
            self._add(name, len(names))
        self._crowded = False

    def _add(self, name: str, among: int) -> None:
        queue = self._queues.add(self._settings.of_queue(name, among))
        if self._adopted:
            _LOG.info("%s: '%s' is read from now on", self._destination, name)
            queue.adopt((), self._last.broker_id)

    def _may_end(self, queue: QueueReader, error: BrokerError) -> bool:
        """A receiver says that there is no such queue, or none for us: may the query do without?

        A queue by a pattern may be deleted; and one that comes later need not be for us.
        """
        if self._watch is None:
            return False
        try:
            listed = queue.name in self._watch.look()
        except BrokerError:
            return False
        if not listed:
            _LOG.warning(
                "%s: '%s' is no longer there; what was planned of it is emitted", self._destination, queue.name
            )
            return True
        if queue.ever_opened or queue.ledger.expected or not any(one.ever_opened for one in self._queues):
            return False
        self._refused.add(queue.name)
        _LOG.error("%s: %s. It is left, and the others are read on. It is tried again when the query is restarted, or "
                   "when it has been away", self._destination, error.text)  # fmt: skip
        return True

    # -- phase one -----------------------------------------------------------------------------

    def _plan(self, sizes: Mapping[QueueReader, int]) -> Position:
        epoch = self._highest + 1 if self._adopted else self._blind.number(self._highest)
        self._highest = epoch
        bytes_before = self._queues.planned_bytes
        planned = {queue.name: queue.plan(epoch, sizes.get(queue, 0)) for queue in self._queues}
        self._admission.planned()
        file = ""
        if self._memory is not None:
            file = self._memory.plan(epoch, planned, self._ledgers, self._begun, blind=not self._adopted)
        broker_id = next((queue.broker_id for queue in self._queues if queue.broker_id), "")
        self._last = Position(epoch, file, broker_id)
        self._timings.planned(epoch, sum(sizes.values()), self._queues.planned_bytes - bytes_before)
        if self._settings.guarantee.acknowledges_first:
            self._hold(self._last)
            for queue in self._queues:
                queue.acknowledge_first(epoch)
        return self._last

    def _hold(self, end: Position) -> None:
        """Keep what an epoch emits until it is committed: Spark may ask for it again."""
        if end.epoch in self._begun:
            return
        queues = self._queues.with_ended()
        self._begun[end.epoch] = list(dict.fromkeys([*self._names_in(end), *(queue.name for queue in queues)]))
        for queue in queues:
            queue.hold(end.epoch)

    def _sync(self, committed: Position) -> None:
        """Option `settleAfter=synced`: after a loss of power the logs say no less than what rests on them.

        Args:
            committed: the newest position of which the commit, and the sink's part, are among what was written.
        """
        if not self._settings.syncs:
            return
        self._runtime.sync()
        if self._files is not None and committed.epoch != self._synced:
            self._files.note_synced(committed.epoch)
            self._synced = committed.epoch

    def _check_power(self, newest: Position) -> None:
        """A machine that lost power may have one log of a batch, and not another that was written before.

        Args:
            newest: the last position that Spark shows as committed, or has in its log.
        """
        if self._files is None or self._adopted:
            return
        if not self._settings.syncs:
            self._files.forget_synced()
        elif self._files.lost_power(newest.epoch):
            raise CheckpointError(
                f"{self._destination}: epoch {newest.epoch} is in Spark's logs, and the machine has been started anew "
                "before it was known that everything of it is on the disks. Run 'pyspark-mq repair' with the "
                "checkpointLocation, and --sink with the folder of a file sink: then it is run again. Nothing of it "
                "was acknowledged"
            )

    # -- restart -------------------------------------------------------------------------------

    def _adopt(self, start: Position, open_: Position | None = None) -> None:
        """Learn what a former process left behind (rule 5).

        Args:
            start: the first committed position that is shown.
            open_: the end of an epoch that it planned and did not see committed. Its file says what was remembered when
                it was planned, if that had been shown then.
        """
        if self._adopted:
            return
        self._check_power(start)
        self._adopted = True
        self._sync(start)  # a former process may have been told what no disk has yet
        self._highest = max(self._highest, start.epoch)
        if self._last.epoch == 0:
            self._last = start
        recent: Mapping[str, Sequence[Key]] = {}
        if self._memory is not None:
            self._check_queues(start)
            if open_ is not None and open_.file and not self._memory.is_blind(open_):
                recent = self._memory.recall(open_, committed=False)
            else:
                recent = self._memory.recall(start, committed=True)
        elif start.file:
            _LOG.warning(
                "%s: the checkpoint has message IDs, and guarantee '%s' does not use them: what the former query had "
                "committed and not acknowledged yet comes again",
                self._destination, self._settings.guarantee.value,
            )  # fmt: skip
        for queue in self._queues:
            queue.adopt(recent.get(queue.name, ()), start.broker_id)

    def _names_in(self, position: Position) -> list[str]:
        """The queues of an epoch, in their order; without IDs nothing says which it has."""
        return [] if self._memory is None else self._memory.queues(position)

    def _check_queues(self, start: Position) -> None:
        """Queues come and go, but not all of those that were named at once."""
        names = self._names_in(start)
        if names and self._settings.pattern is None and not any(map(self._queues.get, names)):
            raise CheckpointError(
                f"{self._destination}: the checkpoint was written for queues {', '.join(map(repr, names))}, and the "
                "query now reads none of them. Use a checkpointLocation of its own for each queue, or correct the "
                "options"
            )

    @property
    def _destination(self) -> str:
        return self._settings.destination

    def _unexpected(self, what: str) -> InternalError:
        return InternalError(f"{self._destination}: {what}")
