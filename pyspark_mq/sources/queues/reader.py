"""One queue of a query: its connections, its ledger, and its part in each epoch.

A query reads one queue or several, and each has a :class:`QueueReader`. So what a broker does to one queue (a session
that ends, a replay that waits, what comes again) says nothing about another, and a message is what its queue and its
ID say: the same ID in two queues is two messages, as an exchange that copies makes them.
:class:`~pyspark_mq.sources.epochs.EpochSource` takes all of them from epoch to epoch together.

The contract. One thread calls everything here, and nothing blocks but :meth:`QueueReader.stop`, for a moment.
:meth:`QueueReader.pump` is the one place where that thread takes in what happened beside it: openings and ends of
sessions, deliveries, confirmations, in the order in which they happened. It has the ledger decide, and sends what the
ledger makes due. An epoch is cut by :meth:`~QueueReader.plan`, held by :meth:`~QueueReader.hold` while Spark may ask
for it, and acknowledged by :meth:`~QueueReader.commit`. A process that goes on after another is told first what that
had committed (:meth:`~QueueReader.adopt`) and left open (:meth:`~QueueReader.restore`).

What survives a crash is the journal, which has what :meth:`~QueueReader.plan` returns, and the store of seen IDs.
Guarantee: a message is acknowledged only behind the commit of the epoch it was emitted in, or because its ID was.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pyspark_mq.ack import Ledger, Settlement
from pyspark_mq.ack.copies import Copies
from pyspark_mq.ack.counters import Counters
from pyspark_mq.ack.known import Known
from pyspark_mq.brokers.facts import QueueFacts
from pyspark_mq.dedup import Key, SeenStore, is_content
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.connections.block import Row, sizes_of
from pyspark_mq.sources.connections.connections import Connections
from pyspark_mq.sources.connections.events import Confirmed, Delivered, EventQueue, Lost, Opened
from pyspark_mq.sources.connections.receivers import Receivers
from pyspark_mq.sources.position import shortened
from pyspark_mq.sources.queues.connected import Connected, half_open_s
from pyspark_mq.sources.queues.deliveries import Deliveries
from pyspark_mq.sources.queues.watch import Confirmations, OtherConsumers, Silence
from pyspark_mq.sources.queues.windows import slow_start
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings

__all__ = ["Judge", "MakeStore", "QueueReader"]

_LOG = logging.getLogger("pyspark_mq")

#: The store of one queue, by the queue's settings.
MakeStore: TypeAlias = Callable[[Settings], SeenStore]
#: Of what a connection tells of a queue, what is worth a line of the log of a query with these settings.
Judge: TypeAlias = Callable[[QueueFacts, Settings], Sequence[str]]


class QueueReader:
    """Connections and ledger of one queue, and what they come to in an epoch.

    Args:
        settings: the query's, with this queue as its endpoint.
        receivers: who keeps the connections.
        store: where settled IDs of this queue are shared, beyond the checkpoint.
        runtime: the clock.
        events: where those of this queue come in.
        judge: finds in what a connection tells of a queue what is worth a line of the log.
        known: IDs of committed messages; None for a guarantee without.
        copies: tells messages apart that have no ID; None for a guarantee without.

    Attributes:
        ended: the queue is no longer there.
        taking: may deliveries be taken? Before Spark has shown what is committed nobody can tell new from old.
        broker_id: the name the broker gives itself; empty while unknown.
        ever_opened: has there been a session?
        ready_at_first: messages the broker had when it was first asked; None if it does not report it.
        last_sign_s: when a delivery or a confirmation last came; what is asked for its answer alone does not count.
        coming_again: planned and committed messages that the ends of sessions have left open, so that they may come
            again. Not all of them do: the broker may have taken the acknowledgement.
        replaying: is nothing but planned messages wanted? What else comes is passed over when it is too much.
    """

    def __init__(
        self,
        settings: Settings,
        receivers: Receivers,
        store: SeenStore,
        runtime: Runtime,
        events: EventQueue,
        judge: Judge = lambda _facts, _settings: (),
        known: Known[Key] | None = None,
        copies: Copies | None = None,
    ) -> None:
        self.settings = settings
        self.exact = settings.guarantee.identifies
        self.ledger: Ledger[Any, Row] = Ledger(
            grace_s=settings.settle_grace_s, known=known, copies=copies, weigh=lambda rows: sum(sizes_of(rows))
        )
        self.connections = Connections(settings, receivers, runtime, events)
        self.connected = Connected(settings)
        self._known = known
        self._copies = copies
        self._questions = 0
        self._store = store
        self._runtime = runtime
        self._judge = judge
        self._judged = False
        self._others = OtherConsumers(self.destination)
        self._silence = Silence()
        self._confirmations = Confirmations(self.destination)
        self._reconnects = 0
        self._deliveries = Deliveries(settings, self.ledger, self.connections, store, self._settle, copies)
        #: Epochs that Spark has asked the payload of and not committed: what they emit, as it may ask again.
        self._emitted: dict[int, list[Row]] = {}
        self._retained_bytes = 0
        self._bytes_max = float(settings.max_bytes)
        #: The epoch that was replayed last.
        self._replayed = 0
        self.ended = self.taking = self.ever_opened = self.replaying = False
        self.broker_id = ""
        self.ready_at_first: int | None = None
        self.last_sign_s = -math.inf
        self.coming_again = 0
        # Whether there was a former process is not known yet.
        self.connections.first_window = self._slow_start

    def __repr__(self) -> str:
        return f"<QueueReader of {self.destination}>"

    @property
    def name(self) -> str:
        """The bare name of the queue or topic."""
        return self.settings.endpoint.name

    @property
    def destination(self) -> str:
        """The queue or topic as errors call it."""
        return self.settings.endpoint.destination

    # -- what happens

    def start(self) -> None:
        """Have the receivers connect, if they have not been told to yet."""
        self.connections.start()

    def stop(self) -> None:
        """Close the connections; what is unacknowledged goes back to the broker."""
        self.connections.stop()
        self._store.close()

    def pump(self) -> None:
        """Take in everything that happened since the last time.

        Raises:
            MqError: a receiver has given up, a message has no ID, or it is another broker.
        """
        for event in self.connections.news(taking=self.taking):
            if isinstance(event, Delivered):
                self.last_sign_s = self._runtime.monotonic_s()
                crowded = self.replaying and self.held_bytes >= self._bytes_max
                self._deliveries.enter(event, crowded=crowded)
            elif isinstance(event, Confirmed):
                now_s = self._runtime.monotonic_s()
                if event.number > 0:  # and not the answer to a mere question
                    self.last_sign_s = now_s
                    self._confirmations.confirmed()
                self.ledger.confirm(event.number, event.session, now_s)
            elif isinstance(event, Opened):
                self._open(event)
            else:
                self._lose(event)
        now_s = self._runtime.monotonic_s()
        up = self.connections.complete and not self.connections.broke_off and self.taking
        self.connected.look(self.connections.attended_s, up=up)
        if self.taking and self.connections.complete:
            self._others.look(self.connections.other_consumers, now_s, half_open_s(self.settings))
        self._ask_for_answers(now_s)
        if self.connections.windows:
            self.connections.first_window = self._slow_start
        if not self.replaying and self._replayed not in self.ledger.planned.epochs:
            self._deliveries.take_back(now_s)
        self._look_for_silence(now_s)
        self._confirmations.look(now_s, under_way=self.ledger.settling.under_way())

    def _ask_for_answers(self, now_s: float) -> None:
        """Ask where nothing else is asked behind `settleGrace`, so that what was confirmed is settled."""
        if self.ledger.settling.asks(now_s):
            self._questions -= 1
            self.ledger.settling.asked(self._questions, self.connections.windows, now_s)
            self.connections.ask_for_answers(self._questions)

    def _open(self, event: Opened) -> None:
        greeting = event.greeting
        found = shortened(greeting.broker_id)
        if self.broker_id and found and found != self.broker_id:
            raise self._other_broker(self.broker_id, f"{greeting.url} is broker '{found}'")
        self.broker_id = self.broker_id or found
        self.ever_opened = True
        self._deliveries.begin(event.session)
        self.ledger.open_session(event.session)
        if self.ready_at_first is None and greeting.depth is not None:
            self.ready_at_first = greeting.depth.ready
        self.connected.opened(greeting)
        if not self._judged:
            self._judged = True
            for text in self._judge(greeting.facts, self.settings):
                _LOG.warning("%s: %s", self.destination, text)

    def _lose(self, lost: Lost) -> None:
        self._reconnects += 1
        self._deliveries.end(lost.session)
        self._silence.forget(lost.session)
        ledger = self.ledger
        held, returned, leaving = ledger.unacked_in(lost.session), ledger.counters.returned, ledger.leaving
        ledger.lose(lost.session)
        self.coming_again += held - (ledger.counters.returned - returned) + ledger.leaving - leaving

    def expect_broker(self, broker_id: str) -> None:
        """The checkpoint was written with that broker, as far as its name is known.

        Raises:
            CheckpointError: there is a connection to another one. Before Spark 4.2 the first connection comes before
                what is committed.
        """
        if broker_id and self.broker_id and broker_id != self.broker_id:
            raise self._other_broker(broker_id, f"the one at 'url' is broker '{self.broker_id}'")
        self.broker_id = self.broker_id or broker_id

    def _other_broker(self, expected: str, found: str) -> CheckpointError:
        return CheckpointError(
            f"{self.destination}: the checkpoint was written with broker '{expected}', but {found}. "
            "Its messages would be mistaken for others. Correct 'url', or start with a new checkpointLocation. If both "
            "are nodes of one cluster, name several of them in 'url'"
        )

    def _look_for_silence(self, now_s: float) -> None:
        if self.settings.endpoint.clustered:
            for session in self.connections.windows:
                depth, holds = self.connections.depth_in(session), bool(self._unacked_in(session))
                why = self._silence.look(session, depth, holds=holds, now_s=now_s)
                if why is not None:
                    self.connections.renew(session, why)

    # -- bytes and windows

    @property
    def held_bytes(self) -> int:
        """Bytes in this process that were taken in; what was dropped does not count."""
        return self.ledger.received.weight + self.ledger.planned.weight + self._retained_bytes

    def share_bytes(self, most: float, *, resumes: bool) -> None:
        """Tell the sessions how many bytes they may pile up, those to be opened too.

        Args:
            most: bytes that may be held here, with what was received and not taken in.
            resumes: may a session that pauses for bytes go on?
        """
        self._bytes_max = most
        # What a replay waits for may be behind anything: then nobody pauses, and what is too much is passed over here.
        left = most if self.replaying else max(0.0, most - self.held_bytes)
        self.connections.bound_bytes(left, resume=resumes or self.replaying)

    def _unacked_in(self, session: int) -> int:
        """Deliveries of an open session that nobody has acknowledged, those included that were passed over."""
        return self.ledger.unacked_in(session) + self._deliveries.passed_over_in(session)

    @property
    def window(self) -> int:
        """How many unacknowledged messages all sessions together may have been handed."""
        return sum(self.connections.windows.values())

    @property
    def first_window(self) -> int:
        """How many those to be opened may be."""
        return self.connections.first_window * self.settings.consumers

    @property
    def blocked(self) -> bool:
        """Can nothing come any more? Every window is taken, or some are, something may wait, and no other session has
        ever been handed anything: beside a single active consumer the others get nothing.
        """
        windows, received = self.connections.windows, self._deliveries.taken_in
        taken = {session for session, window in windows.items() if self._unacked_in(session) >= window}
        others = windows.keys() - taken
        waits = all(self.connections.depths())
        return bool(taken) and (not others or (waits and not any(received[session] for session in others)))

    @property
    def _slow_start(self) -> int:
        """How many messages a new session may be handed before it has proved to get anywhere."""
        planned = len(self.ledger.planned)
        replays = self._replayed in self.ledger.planned.epochs
        return slow_start(self.settings, planned, self.ledger.expected + self.ledger.recalled, replays=replays)

    def _start_slowly(self) -> None:
        self.connections.first_window = self._slow_start
        self.connections.widen(self.connections.first_window, strictly=True)

    def open_wide(self) -> None:
        """There was no former process, or everything that it planned is committed: there is no crash loop."""
        self.connections.first_window = self.settings.prefetch
        self.connections.widen(self.settings.prefetch)

    def open_windows_for_replay(self, missing: int, gap_s: float) -> bool:
        """Ask for more if everything handed out is something else, and that for so long; was it done?"""
        if self.connections.late or self._runtime.monotonic_s() - self.last_sign_s < gap_s:
            return False
        windows = self.connections.windows
        full = {session: window for session, window in windows.items() if self._unacked_in(session) >= window}
        for session, window in full.items():
            _LOG.warning(
                "%s: %d planned messages are not among the first %d handed out; asking for more",
                self.destination, missing, window,
            )  # fmt: skip
            self.connections.set_window(session, 2 * window, strictly=True)
        return bool(full)

    # -- phase one

    def plan(self, epoch: int, size: int) -> Sequence[Any]:
        """Cut the oldest `size` buffered messages, which may be none, into an epoch; their IDs, in order."""
        return self.ledger.plan(epoch, size)

    # -- run

    @property
    def has_open_epochs(self) -> bool:
        """Is anything planned or emitted here that is not committed?"""
        return bool(self._emitted) or len(self.ledger.planned.epochs) > 0

    def hold(self, epoch: int) -> None:
        """Keep what an epoch emits until it is committed: Spark may ask for it again."""
        if epoch in self.ledger.planned.epochs:
            self._emitted[epoch] = self.ledger.planned.payloads(epoch)

    def emitted(self, epoch: int) -> list[Row]:
        """The rows that are kept of an epoch, in planned order."""
        return self._emitted.get(epoch, [])

    # -- phase two

    def commit(self, epoch: int, segment: int) -> int | None:
        """Phase two of an epoch: Spark has committed it.

        Args:
            segment: where its IDs are known from now on.

        Returns:
            the number of its acknowledgements; None if there are none.
        """
        self._store.remember(key for key in self.ledger.planned.keys(epoch) if not is_content(key))
        # Before the acknowledgements make room: where a wider window is a new consumer, it is had while
        # nothing is on its way.
        self.connections.widen(self.settings.prefetch)
        self._emitted.pop(epoch, None)
        self._retain()
        return self._settle(self.ledger.commit(epoch, segment))

    def acknowledge_first(self, epoch: int) -> None:
        """Acknowledge an epoch before Spark runs it (guarantee `none`)."""
        self._settle(self.ledger.commit(epoch))
        self._retain()

    def _retain(self) -> None:
        """Count what is held here and no longer in the ledger."""
        gone = [rows for epoch, rows in self._emitted.items() if epoch not in self.ledger.planned.epochs]
        self._retained_bytes = sum(sum(sizes_of(rows)) for rows in gone)

    def _settle(self, settlement: Settlement | None) -> int | None:
        """Have acknowledgements sent; their number."""
        if settlement is None:
            return None
        sessions = [part.session for part in settlement.parts]
        self.ledger.settling.asked(settlement.number, sessions, self._runtime.monotonic_s())
        self.connections.acknowledge(settlement)
        return settlement.number

    # -- restart

    def adopt(self, recent: Sequence[Key], broker_id: str) -> None:
        """Learn that everything is known now that a former process had committed (rule 5).

        Args:
            recent: IDs of this queue that the end of that process has left open.
            broker_id: the broker that the checkpoint was written with.
        """
        self.expect_broker(broker_id)
        self.taking = True
        self._store.remember(key for key in recent if not is_content(key))
        self.ledger.recalled = len(recent)
        self._settle(self.ledger.restore_committed())
        if self._copies is not None:
            self._copies.shown = True
        # A session that is open has enough to begin with: what comes again of this is acknowledged on sight.
        self.connections.first_window = self._slow_start

    def restore(self, epoch: int, planned: Sequence[Key]) -> None:
        """Expect the messages of an epoch that a former process planned and Spark did not commit.

        Args:
            planned: their IDs in order. Empty for a guarantee without: nobody can tell which they were, and they come
                in later epochs.
        """
        if len(self.ledger.received) and any(map(is_content, planned)):
            # Before Spark 4.2: which of its messages an equal one is may be told when it comes, and not after.
            for session in self.connections.windows:
                self.connections.renew(session, "its messages are asked for again, as an epoch waits for some of them")
        self.ledger.restore_planned(epoch, planned)
        if self.exact:
            self.replaying, self._replayed = True, epoch
            self._start_slowly()

    # -- what it says of itself

    def counters(self) -> Counters:
        """The counters that a user sees in the query's progress (rule 8)."""
        ledger = self.ledger
        return replace(
            ledger.counters,
            redelivered=self._deliveries.redelivered,
            rejected=self._deliveries.rejected,
            nameless=self._deliveries.nameless,
            ambiguous=0 if self._copies is None else self._copies.ambiguous,
            reconnects=self._reconnects,
            unacked=ledger.unacked,
            buffered=len(ledger.received),
            carried=ledger.expected,
            remembered=0 if self._known is None else len(self._known),
            backlog=self.connections.newest_depth,
        )
