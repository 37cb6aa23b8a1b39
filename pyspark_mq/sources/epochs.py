"""Epochs: the protocol between Spark's checkpoint and the broker, without Spark.

One micro-batch is one epoch of a two-phase commit. :class:`EpochSource` is what Spark's calls come down
to: plan, replay, settle. The intake takes in what receivers bring, the filling decides how much goes into
an epoch, the ledger keeps the books. All of it runs on the thread that Spark calls; receivers work on
beside it, so receiving and heartbeats go on while Spark is busy.

Guarantee: with `exactly-once`, every message is in exactly one committed epoch, and an epoch that
is asked for again after a crash has the same messages in the same order.

Rules cited by number are in docs/how-it-works.md#the-rules.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_mq.ack import Ledger
from pyspark_mq.dedup import CheckpointOnly, SeenStore, encode_ids, key_text
from pyspark_mq.errors import CheckpointError, DataLossError, InternalError
from pyspark_mq.sources.base import Consumer
from pyspark_mq.sources.counters import Counters
from pyspark_mq.sources.filling import IDLE_WAIT_S, Filling, Limit
from pyspark_mq.sources.intake import Intake
from pyspark_mq.sources.receiver import ReceiverPool
from pyspark_mq.sources.runtime import Runtime, Threads
from pyspark_mq.sources.sessions import Sessions
from pyspark_mq.sources.settings import Settings

__all__ = ["EpochSource", "Limit", "Position"]

_LOG = logging.getLogger("pyspark_mq")

#: A replay whose windows are full of other messages for so long has them doubled; the next time after twice as
#: long, and so on. What it waits for may be behind any number of messages (priorities), or may not be there yet
#: (delayed): so the number asked for grows with the time waited, and no faster.
_REPLAY_GAP_S = 1.0
#: Room for an epoch that waits to be settled and for the next one.
_WINDOW_LEAST = 2
#: How often a replay that waits says so.
_REPLAY_LOG_S = 10.0
#: Missing IDs named in an error; the rest is counted.
_IDS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Position:
    """The end of an epoch, as the offset holds it.

    Attributes:
        epoch: 0 before the first.
        planned: the epoch's IDs in order, encoded.
        carried: IDs of earlier epochs that may still come again, encoded in pieces.
        until_s: for each piece, up to when it has to be carried, seconds since 1970; None where no clock
            runs yet. Shorter than `carried` in offsets of 0.1.0.
        broker_id: the name of the broker they came from, empty while unknown.
    """

    epoch: int
    planned: str = ""
    carried: tuple[str, ...] = ()
    broker_id: str = ""
    until_s: tuple[int | None, ...] = ()

    def pieces(self) -> list[tuple[str, int | None]]:
        """The carried IDs, each piece with its end."""
        ends = self.until_s + (None,) * (len(self.carried) - len(self.until_s))
        return list(zip(self.carried, ends, strict=True))


class EpochSource:
    """Plans, replays and settles epochs for one query. Not thread-safe.

    Args:
        settings: the query's.
        make_consumer: the consumer class of the protocol.
        store: where settled IDs are shared, beyond the checkpoint.
        runtime: time and threads.
        pool: processes that hold the connections; None if this one does.
    """

    def __init__(
        self,
        settings: Settings,
        make_consumer: type[Consumer],
        store: SeenStore | None = None,
        runtime: Runtime | None = None,
        pool: ReceiverPool | None = None,
    ) -> None:
        self._settings = settings
        self._decoder = make_consumer.decoder if pool is None else pool.decoder
        self._exact = settings.guarantee.identifies
        self._store = store or CheckpointOnly()
        self._runtime = runtime or Threads()
        self._ledger: Ledger[Any, Any] = Ledger(
            grace_s=settings.settle_grace_s, window=settings.dedup_window, remember=self._exact, weigh=self._weigh
        )
        self._sessions = Sessions(settings, make_consumer, self._runtime, pool)
        self._intake = Intake(settings, self._decoder, self._store, self._ledger, self._sessions, self._runtime)
        self._filling = Filling(settings, self._decoder, self._ledger, self._intake, self._sessions, self._runtime)
        self._first_call = True
        self._adopted = False
        #: What the next epoch's number has to be above.
        self._highest = 0
        self._last = Position(0)
        #: Epochs that Spark has asked the payload of and not committed: what they emit, as it may ask again.
        self._emitted: dict[int, list[Any]] = {}
        self._gave_up = False
        #: The epoch that was planned before anything was known (Spark before 4.2).
        self._blind_epoch = 0

    def _weigh(self, raws: Sequence[Any]) -> int:
        return sum(self._decoder.sizes(raws))

    # -- Spark's calls, in its order -----------------------------------------------------------

    def initial(self) -> Position:
        """The position of a new query. Opens nothing, and proves nothing: Spark 4.0 asks at restarts too."""
        return Position(0)

    def bound(self) -> None:
        """From now on take only what the queue holds at this moment (`Trigger.AvailableNow`)."""
        self._intake.bound_bytes()
        self._sessions.start()
        self._filling.bound()

    def latest(self, start: Position | None, limit: Limit) -> Position:
        """Phase two of the epoch that ends at `start`, then phase one of the next.

        Args:
            start: the last committed position; None where Spark does not say (before 4.2).
            limit: how much to take.

        Returns:
            The end of a new epoch, or the last position if there is nothing new.
        """
        self._filling.asked()
        if start is not None:
            self.commit(start)
            if start.epoch > self._last.epoch:
                raise self._unexpected(f"Spark goes on from epoch {start.epoch}, the last here is {self._last.epoch}")
        else:
            # Before 4.2 Spark plans after a restart without showing what is committed: it is shown later,
            # and what was planned twice is taken out then.
            self._intake.taking = True
        behind = start is not None and start.epoch < self._last.epoch
        if behind or (self._ledger.has_epoch(self._last.epoch) and self._last.epoch not in self._emitted):
            return self._last  # planned before and never begun: it stays as it was written
        self._intake.bound_bytes()
        self._sessions.start()
        if self._first_call:
            self._first_call = False
            self._filling.await_first_messages()
            self._filling.await_overdue()
        self._intake.pump()
        if start is None or limit.messages is None:
            # The one epoch of this run, maybe: take what there is.
            self._sessions.widen(max(_WINDOW_LEAST, self._settings.prefetch))
        if start is None:
            limit = self._shared_window(limit)
        size = self._filling.gather(limit)
        return self._plan(size) if size or self._gave_up or (start is None and self._in_the_way()) else self._last

    def _in_the_way(self) -> bool:
        """Is every window taken by an epoch that only the next one has settled (Spark before 4.2)?

        As when a producer has sent its messages many times. Then the next one is planned without messages.
        """
        windows = self._sessions.windows.items()
        return (
            bool(self._emitted)
            and bool(windows)
            and all(self._intake.unacked_in(session) >= window for session, window in windows)
        )

    def _shared_window(self, limit: Limit) -> Limit:
        """Phase two comes an epoch late before Spark 4.2: two epochs share the window."""
        settings = self._settings
        most = max(1, settings.prefetch * settings.consumers // 2)
        return Limit(most if limit.messages is None else min(most, limit.messages))

    def payload(self, start: Position, end: Position) -> list[Any]:
        """The raw deliveries of the epoch from `start` to `end`, in planned order.

        For an epoch of a former process this waits until the broker has handed out exactly the
        planned messages again.

        Raises:
            DataLossError: they do not all come within `replayTimeout`, and `failOnDataLoss` is on.
        """
        self._adopt(start)
        if end.epoch not in self._emitted:
            if not self._ledger.has_epoch(end.epoch):
                self._replay(end)
            elif end.epoch == self._blind_epoch and self._exact:
                # Its offset was written before Spark had shown what is committed, so it does not carry those
                # IDs. While it is not committed either, a restart is shown the offset before it, which does.
                self._filling.await_leftovers()
            self._hold(end.epoch)
        return self._emitted[end.epoch]

    def commit(self, end: Position) -> None:
        """Phase two of all epochs up to `end`: Spark has committed them."""
        self._adopt(end)
        if end.epoch not in self._emitted:
            return  # of a former process, or committed before: nothing that was run here (rule 16)
        self._intake.look_for_room()
        for epoch in self._ledger.epochs(end.epoch):
            self._store.remember(self._ledger.keys(epoch))
        # Before the acknowledgements make room: where a wider window is a new consumer, it is had while
        # nothing is on its way.
        self._sessions.widen(self._settings.prefetch)
        for epoch in [epoch for epoch in self._emitted if epoch <= end.epoch]:
            del self._emitted[epoch]
        self._retain()
        self._intake.settle(self._ledger.commit(end.epoch))

    def stop(self) -> None:
        """Close the connections. Usually Spark ends the process before it gets here."""
        self._sessions.stop()
        self._store.close()

    def message_ids(self, raws: Sequence[Any]) -> list[str | None]:
        """Column `messageId`."""
        return self._intake.texts(raws)

    def counters(self) -> Counters:
        """What a user sees in the query's progress (rule 8)."""
        tally, intake = self._ledger.counters, self._intake
        return Counters(
            received=tally.received,
            redelivered=intake.redelivered,
            duplicates_dropped=tally.duplicates_dropped,
            rebound=tally.rebound,
            planned=tally.planned,
            settled=tally.settled,
            returned=tally.returned,
            rejected=intake.rejected,
            reconnects=intake.reconnects,
            replays=tally.replays,
            lost=tally.lost,
            unacked=self._ledger.unacked,
            buffered=self._ledger.buffered,
            carried=self._ledger.expected,
            backlog=self._sessions.newest_depth,
        )

    # -- phase one -----------------------------------------------------------------------------

    def _plan(self, size: int) -> Position:
        # Before Spark 4.2 the epoch before this one is settled after this one is planned. Whoever finds this one in
        # the offset log knows that the one before was committed.
        before = [self._ids(number) for number in self._ledger.epochs(self._highest)] if self._exact else []
        epoch = self._highest = self._next_epoch()
        self._gave_up = False
        self._ledger.plan(epoch, size, encode_ids if self._exact else None)
        planned = self._ledger.epoch_memo(epoch) or ""
        batches = self._ledger.carried() if self._exact else []
        carried = (*map(_memo, batches), *filter(None, before))
        until_s = (*map(self._intake.carried_until_s, batches), *(None for memo in before if memo))
        self._filling.planned(size, len(planned))
        self._last = Position(epoch, planned, carried, self._intake.broker_id, until_s)
        if self._settings.guarantee.acknowledges_first:
            self._hold(epoch)
            self._intake.settle(self._ledger.commit(epoch))
            self._retain()
        return self._last

    def _ids(self, epoch: int) -> str:
        """The encoded IDs of a planned epoch."""
        return self._ledger.epoch_memo(epoch) or encode_ids(self._ledger.keys(epoch))

    def _next_epoch(self) -> int:
        if self._adopted:
            return self._highest + 1
        # Spark before 4.2 plans after a restart without showing the committed offset. It has to be another
        # one, as Spark compares them; that the clock is usually above all earlier numbers is of no
        # importance (rule 16).
        self._blind_epoch = max(self._highest + 1, self._runtime.utc_us())
        return self._blind_epoch

    def _hold(self, epoch: int) -> None:
        """Keep what an epoch emits until it is committed: Spark may ask for it again."""
        if self._ledger.has_epoch(epoch):
            self._emitted[epoch] = self._ledger.payloads(epoch)
        self._emitted.setdefault(epoch, [])

    def _retain(self) -> None:
        """Tell the intake what is held here and no longer in the ledger."""
        gone = [raws for epoch, raws in self._emitted.items() if not self._ledger.has_epoch(epoch)]
        self._intake.retained_bytes = sum(map(self._weigh, gone))

    # -- restart -------------------------------------------------------------------------------

    def _adopt(self, start: Position) -> None:
        """Learn from the first committed position what a former process left behind (rule 5)."""
        if self._adopted:
            return
        self._intake.expect_broker(start.broker_id)
        self._adopted = self._intake.taking = True
        self._highest = max(self._highest, start.epoch)
        if self._last.epoch == 0:
            self._last = start
        if self._exact:
            for text, until_s in start.pieces():
                self._intake.recall(text, until_s)
            self._intake.recall(start.planned)
        elif start.planned:
            _LOG.warning(
                "%s: the checkpoint has message IDs, and guarantee '%s' does not use them: what the former query had "
                "committed and not acknowledged yet comes again",
                self._settings.endpoint.destination, self._settings.guarantee.value,
            )  # fmt: skip
        self._sessions.first_window = self._intake.slow_start
        if start.epoch == 0:
            # A new query: no restart, so no crash loop either.
            self._sessions.first_window = self._settings.prefetch
            self._sessions.widen(self._settings.prefetch)

    def _replay(self, end: Position) -> None:
        self._check_planned_here(end)
        if not self._ledger.has_epoch(self._last.epoch):
            self._last = end  # Spark 4.0 has a bounded run plan its end before it shows what is open
        self._highest = max(self._highest, end.epoch)
        if not self._exact:
            # Without IDs nobody can tell which messages it had: they come in later epochs.
            self._ledger.restore_planned(end.epoch, ())
            return
        for text, until_s in end.pieces():
            self._intake.recall(text, until_s)
        keys = self._intake.decode(end.planned)
        self._ledger.restore_planned(end.epoch, keys, end.planned)
        self._sessions.first_window = self._intake.slow_start
        self._intake.replaying, self._intake.replayed = True, end.epoch
        try:
            self._intake.bound_bytes()
            self._sessions.start()
            self._await_replay(end.epoch)
        finally:
            self._intake.replaying = False

    def _check_planned_here(self, end: Position) -> None:
        """An open epoch of another broker than all before it: Spark before 4.2 writes it before that is noticed."""
        known = self._intake.broker_id
        if known and end.broker_id and end.broker_id != known:
            raise CheckpointError(
                f"{self._settings.endpoint.destination}: the checkpoint was written with broker '{known}', except for "
                f"its open epoch, which was planned at broker '{end.broker_id}' by a query that then failed. Nothing "
                "of that epoch was emitted: correct 'url' if it still names that broker, and delete the newest file in "
                "the folder 'offsets' of the checkpoint"
            )
        self._intake.expect_broker(end.broker_id)

    def _unexpected(self, what: str) -> InternalError:
        return InternalError(f"{self._settings.endpoint.destination}: {what}")

    def _await_replay(self, epoch: int) -> None:
        """Wait until every planned message is here again, `replayTimeout` long while connected."""
        timeout_s = self._settings.replay_timeout_s
        connected_s, gap_s = 0.0, _REPLAY_GAP_S
        before = said = self._runtime.monotonic_s()
        while True:
            self._intake.pump()
            missing = self._ledger.missing_count(epoch)
            if not missing:
                return
            now = self._runtime.monotonic_s()
            connected_s += now - before if self._sessions.complete else 0.0
            before = now
            if connected_s > timeout_s:
                self._give_up(epoch)
                return
            if now - said >= _REPLAY_LOG_S:
                said = now
                _LOG.warning(
                    "%s: waiting for %d of %d planned messages of epoch %d, %.0f s left",
                    self._settings.endpoint.destination, missing, len(self._ledger.keys(epoch)), epoch,
                    timeout_s - connected_s,
                )  # fmt: skip
            # What the broker holds back cannot be had by asking for more.
            if connected_s > self._intake.delay_s and self._open_windows_for_replay(missing, gap_s):
                gap_s *= 2
            self._sessions.wait(IDLE_WAIT_S)

    def _open_windows_for_replay(self, missing: int, gap_s: float) -> bool:
        """Ask for more if everything handed out is something else, and that for so long; was it done?"""
        if self._sessions.untaken or self._runtime.monotonic_s() - self._intake.last_sign_s < gap_s:
            return False
        opened = False
        for session, window in list(self._sessions.windows.items()):
            if self._intake.unacked_in(session) < window:
                continue
            opened = True
            _LOG.warning(
                "%s: %d planned messages are not among the first %d handed out; asking for more",
                self._settings.endpoint.destination, missing, window,
            )  # fmt: skip
            self._sessions.set_window(session, 2 * window)
        return opened

    def _give_up(self, epoch: int) -> None:
        """Rule 9: the planned messages are not all there."""
        settings = self._settings
        missing = [key_text(key) for key in self._ledger.missing(epoch)]
        total = len(self._ledger.keys(epoch))
        shown = ", ".join(missing[:_IDS_SHOWN]) + (", ..." if len(missing) > _IDS_SHOWN else "")
        text = (
            f"{settings.endpoint.destination}: {len(missing)} of {total} messages of epoch {epoch} did "
            f"not come back within replayTimeout={settings.replay_timeout_s:g}s after a restart: {shown}. "
            "Likely reasons: they expired, were dead-lettered, purged, or are held by another consumer "
            f"of the queue; {settings.endpoint.broker.delivery_limit_note}. "
        )
        if settings.fail_on_data_loss:
            advice = (
                "The messages that are there were not acknowledged and stay in the queue. Return the "
                "missing ones to the queue, or set 'failOnDataLoss' to 'false' to go on without them"
            )
            raise DataLossError(settings.endpoint.destination, epoch, missing, text + advice)
        self._ledger.abandon(epoch)
        # The offset of this epoch lists them and cannot be changed. The next one is written as soon as
        # this is committed, even if it is of an empty epoch: from then on they count as new (rule 15).
        self._gave_up = True
        _LOG.error("%sGoing on without them, as 'failOnDataLoss' is 'false'", text)


def _memo(batch: Any) -> str:
    """The encoded IDs of a carried batch, kept beside it."""
    if batch.memo is None:
        batch.memo = encode_ids(batch.keys)
    return str(batch.memo)
