"""One queue of a query: its connections, its books, and its part in each epoch.

A query reads one queue or several. Each has a lane of its own: sessions, intake, ledger. So what a broker does to one
queue (a session that ends, a replay that waits, what comes again) says nothing about another, and a message is what
its queue and its ID say: the same ID in two queues is two messages, as an exchange that copies makes them.
:class:`~pyspark_mq.sources.epochs.EpochSource` takes all lanes from epoch to epoch together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pyspark_mq.ack import Ledger
from pyspark_mq.dedup import SeenStore, encode_ids
from pyspark_mq.sources.connections.connections import Sessions
from pyspark_mq.sources.connections.consumer import Consumer
from pyspark_mq.sources.connections.events import ReceiverPool
from pyspark_mq.sources.counters import Counters
from pyspark_mq.sources.position import Part
from pyspark_mq.sources.queues.intake import Intake, Judge
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["Lane", "MakeStore"]

_LOG = logging.getLogger("pyspark_mq")

#: The store of one queue, by the queue's settings.
MakeStore: TypeAlias = Callable[[Settings], SeenStore]


class Lane:
    """Connections and books of one queue, and what they come to in an epoch. Called by the query's thread alone.

    Args:
        settings: the query's, with this queue as its endpoint.
        make_consumer: the consumer class of the protocol.
        store: where settled IDs of this queue are shared, beyond the checkpoint.
        runtime: time and threads.
        arrived: set when a receiver has something to look at; shared by all lanes of the query.
        pool: processes that hold the connections; None if this one does.
        judge: finds in what a connection tells of a queue what is worth a line of the log.

    Attributes:
        ended: the queue is no longer there.
    """

    def __init__(
        self,
        settings: Settings,
        make_consumer: type[Consumer],
        store: SeenStore,
        runtime: Runtime,
        arrived: threading.Event,
        pool: ReceiverPool | None = None,
        judge: Judge = lambda _facts, _settings: (),
    ) -> None:
        self.settings = settings
        self.decoder = make_consumer.decoder if pool is None else pool.decoder
        self.exact = settings.guarantee.identifies
        self.ledger: Ledger[Any, Any] = Ledger(
            grace_s=settings.settle_grace_s, window=settings.dedup_window, remember=self.exact, weigh=self._weigh
        )
        self.sessions = Sessions(settings, make_consumer, runtime, arrived, pool)
        self.intake = Intake(settings, self.decoder, store, self.ledger, self.sessions, runtime, judge)
        # Whether there was a former process is not known yet.
        self.sessions.first_window = self.intake.slow_start
        self.ended = False
        self._store = store
        self._runtime = runtime
        #: Epochs that Spark has asked the payload of and not committed: what they emit, as it may ask again.
        self._emitted: dict[int, list[Any]] = {}

    def __repr__(self) -> str:
        return f"<Lane of {self.destination}>"

    def _weigh(self, raws: Sequence[Any]) -> int:
        return sum(self.decoder.sizes(raws))

    @property
    def name(self) -> str:
        """The bare name of the queue or topic."""
        return self.settings.endpoint.name

    @property
    def destination(self) -> str:
        """The queue or topic as errors call it."""
        return self.settings.endpoint.destination

    def start(self) -> None:
        """Have the receivers connect, if they have not been told to yet."""
        self.intake.bound_bytes()
        self.sessions.start()

    def stop(self) -> None:
        """Close the connections; what is unacknowledged goes back to the broker."""
        self.sessions.stop()
        self._store.close()

    def counters(self) -> Counters:
        """What a user sees in the query's progress (rule 8)."""
        tally, intake = self.ledger.counters, self.intake
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
            unacked=self.ledger.unacked,
            buffered=self.ledger.buffered,
            carried=self.ledger.expected,
            backlog=self.sessions.newest_depth,
        )

    # -- phase one

    def plan(self, epoch: int, size: int, highest: int) -> Part:
        """Cut the oldest `size` buffered messages into an epoch.

        Args:
            epoch: its number.
            size: may be 0.
            highest: the number of the epoch before. Before Spark 4.2 that is settled after this one is planned.
                Whoever finds this one in the offset log knows that the one before was committed.
        """
        before = [self._ids(number) for number in self.ledger.epochs(highest)] if self.exact else []
        self.ledger.plan(epoch, size, encode_ids if self.exact else None)
        batches = self.ledger.carried() if self.exact else []
        return Part(
            self.ledger.epoch_memo(epoch) or "",
            (*map(_memo, batches), *filter(None, before)),
            (*map(self.intake.carried_until_s, batches), *(None for memo in before if memo)),
        )

    def _ids(self, epoch: int) -> str:
        """The encoded IDs of a planned epoch."""
        return self.ledger.epoch_memo(epoch) or encode_ids(self.ledger.keys(epoch))

    @property
    def window(self) -> int:
        """How many unacknowledged messages all sessions together may have been handed."""
        return sum(self.sessions.windows.values())

    @property
    def blocked(self) -> bool:
        """Is every window taken?"""
        windows = self.sessions.windows.items()
        return bool(windows) and all(self.intake.unacked_in(session) >= window for session, window in windows)

    # -- run

    @property
    def has_open_epochs(self) -> bool:
        """Is anything planned or emitted here that is not committed?"""
        return bool(self._emitted) or self.ledger.open_epochs > 0

    def hold(self, epoch: int) -> None:
        """Keep what an epoch emits until it is committed: Spark may ask for it again."""
        if self.ledger.has_epoch(epoch):
            self._emitted[epoch] = self.ledger.payloads(epoch)

    def emitted(self, epoch: int) -> list[Any]:
        """What is kept of it, in planned order."""
        return self._emitted.get(epoch, [])

    def retain(self) -> None:
        """Tell the intake what is held here and no longer in the ledger."""
        gone = [raws for epoch, raws in self._emitted.items() if not self.ledger.has_epoch(epoch)]
        self.intake.retained_bytes = sum(map(self._weigh, gone))

    # -- phase two

    def commit(self, upto: int) -> int | None:
        """Phase two of all epochs up to this one: Spark has committed them.

        Returns:
            the number of their acknowledgements; None if there are none.
        """
        self.intake.look_for_room()
        for epoch in self.ledger.epochs(upto):
            self._store.remember(self.ledger.keys(epoch))
        # Before the acknowledgements make room: where a wider window is a new consumer, it is had while
        # nothing is on its way.
        self.sessions.widen(self.settings.prefetch)
        for epoch in [epoch for epoch in self._emitted if epoch <= upto]:
            del self._emitted[epoch]
        self.retain()
        settlement = self.ledger.commit(upto)
        self.intake.settle(settlement)
        return None if settlement is None else settlement.number

    # -- restart

    def adopt(self, part: Part, broker_id: str) -> None:
        """Learn what a former process had committed and left behind (rule 5)."""
        self.intake.expect_broker(broker_id)
        self.intake.taking = True
        if self.exact:
            for text, until_s in part.pieces():
                self.intake.recall(text, until_s)
            self.intake.recall(part.planned)
        elif part.planned:
            _LOG.warning(
                "%s: the checkpoint has message IDs, and guarantee '%s' does not use them: what the former query had "
                "committed and not acknowledged yet comes again",
                self.destination, self.settings.guarantee.value,
            )  # fmt: skip
        self._start_slowly()

    def _start_slowly(self) -> None:
        self.sessions.first_window = self.intake.slow_start
        self.sessions.widen(self.sessions.first_window)

    def open_wide(self) -> None:
        """There was no former process, or everything that it planned is committed: there is no crash loop."""
        self.sessions.first_window = self.settings.prefetch
        self.sessions.widen(self.settings.prefetch)

    def restore(self, epoch: int, part: Part) -> None:
        """Expect the messages of an epoch that a former process planned and Spark did not commit."""
        if not self.exact:
            # Without IDs nobody can tell which messages it had: they come in later epochs.
            self.ledger.restore_planned(epoch, ())
            return
        for text, until_s in part.pieces():
            self.intake.recall(text, until_s)
        self.ledger.restore_planned(epoch, self.intake.decode(part.planned), part.planned)
        self._start_slowly()
        self.intake.replaying, self.intake.replayed = True, epoch

    def open_windows_for_replay(self, missing: int, gap_s: float) -> bool:
        """Ask for more if everything handed out is something else, and that for so long; was it done?"""
        if self.sessions.untaken or self._runtime.monotonic_s() - self.intake.last_sign_s < gap_s:
            return False
        opened = False
        for session, window in list(self.sessions.windows.items()):
            if self.intake.unacked_in(session) < window:
                continue
            opened = True
            _LOG.warning(
                "%s: %d planned messages are not among the first %d handed out; asking for more",
                self.destination, missing, window,
            )  # fmt: skip
            self.sessions.set_window(session, 2 * window)
        return opened


def _memo(batch: Any) -> str:
    """The encoded IDs of a carried batch, kept beside it."""
    if batch.memo is None:
        batch.memo = encode_ids(batch.keys)
    return str(batch.memo)
