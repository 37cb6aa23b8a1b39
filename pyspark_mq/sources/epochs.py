"""Epochs: the protocol between Spark's checkpoint and the broker, without Spark.

One micro-batch is one epoch of a two-phase commit. :class:`EpochSource` joins the parts: receivers
bring deliveries, the ledger keeps the books, and this module decides when an epoch is cut, what
is waited for, and for how long. All of it runs on the thread that Spark calls; receivers work on
beside it, so receiving and heartbeats go on while Spark is busy.

Guarantee: with `exactly-once`, every message is in exactly one committed epoch, and an epoch that
is asked for again after a crash has the same messages in the same order.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, takewhile
from operator import methodcaller
from typing import Any

from pyspark_mq.ack import Ledger, Settlement
from pyspark_mq.dedup import CheckpointOnly, CodecError, Key, SeenStore, decode_ids, encode_ids, key_text
from pyspark_mq.errors import CheckpointError, DataLossError, InternalError
from pyspark_mq.sources.base import Consumer
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.identification import Identification
from pyspark_mq.sources.receiver import Confirmed, Lost, Opened
from pyspark_mq.sources.sessions import Sessions
from pyspark_mq.sources.settings import Guarantee, Settings

__all__ = ["EpochSource", "Limit", "Position"]

_LOG = logging.getLogger("pyspark_mq")

#: How long an idle `latest` waits for the first message. Spark asks again at once, some ninety
#: times a second otherwise, and each time passes the whole offset to and fro.
_IDLE_WAIT_S = 0.1
#: A replay whose window is full of other messages for so long has the window opened.
_REPLAY_GAP_S = 1.0
#: How long a bounded run that finds an empty queue makes sure of it.
_LEADER_WAIT_S = 1.0
#: How long the first messages of a queue that is not empty are waited for.
_FIRST_WAIT_S = 2.0
#: While a backlog waits at the broker an epoch is filled for at most this long. A trigger costs
#: Spark 0.2-0.3 s whatever its size, so larger epochs make a backlog end sooner.
_FILL_MAX_S = 3.0
#: ... and only while messages keep coming.
_FILL_GAP_S = 0.2
#: ... looked at so often: each look takes the interpreter away from the receiving thread.
_FILL_STEP_S = 0.05
#: ... where the broker does not tell that there is a backlog: while so many come with each look.
_FILL_STEP_MESSAGES = 100
_STEP_S = 0.005
#: Un-acknowledged messages asked for until the first epoch after a restart is committed, beyond
#: those expected again. Each end of a session counts towards the delivery limit of everything that
#: was handed out, so a job that crashes at once should not age its whole queue.
_CAREFUL_WINDOW = 2_000
#: A confirmation is waited for at most this long when there is nothing else to do.
_CONFIRM_WAIT_S = 5.0
#: An emptied queue has to stay so for this long before a bounded run ends.
_EMPTY_S = 0.3
#: ... and where the broker does not tell how many messages it has: nothing may come for this long.
_QUIET_S = 3.0
#: Missing IDs named in an error; the rest is counted.
_IDS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Position:
    """The end of an epoch, as the offset holds it.

    Attributes:
        epoch: 0 before the first.
        planned: the epoch's IDs in order, encoded.
        carried: IDs of earlier epochs that may still come again, encoded in pieces.
        broker_id: the name of the broker they came from, empty while unknown.
    """

    epoch: int
    planned: str = ""
    carried: tuple[str, ...] = ()
    broker_id: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much the next epoch may hold.

    Attributes:
        messages: at most so many; None for all that can be had now.
    """

    messages: int | None


class EpochSource:
    """Plans, replays and settles epochs for one query. Not thread-safe.

    Args:
        settings: the query's.
        make_consumer: the consumer class of the protocol.
        store: where settled IDs are shared, beyond the checkpoint.
    """

    def __init__(self, settings: Settings, make_consumer: type[Consumer], store: SeenStore | None = None) -> None:
        self._settings = settings
        self._decoder = make_consumer.decoder
        self._exact = settings.guarantee is Guarantee.EXACTLY_ONCE
        self._store = store or CheckpointOnly()
        self._ledger: Ledger[Any, Any] = Ledger(
            grace_s=settings.settle_grace_s, window=settings.dedup_window, remember=self._exact
        )
        self._serial = count(1)
        self._identification = Identification(settings, self._decoder)
        self._sessions = Sessions(settings, make_consumer)
        self._sessions.first_window = self._careful_window()
        self._first_call = True
        self._adopted = False
        self._blind = False
        self._last = Position(0)
        self._payloads: dict[int, list[Any]] = {}
        self._payload_bytes: dict[int, int] = {}
        self._broker_id = ""
        self._buffered_bytes = 0
        self._last_sign_s = 0.0
        self._waiting_since_s: float | None = None
        self._ready_at_first: int | None = None
        self._to_go: float | None = None
        self._bounded_at_us = 0
        self._reconnects = self._redelivered = self._rejected = 0

    # -- Spark's calls, in its order -----------------------------------------------------------

    def initial(self) -> Position:
        """The position of a new query. Opens nothing, and proves nothing: Spark 4.0 asks at restarts too."""
        return Position(0)

    def bound(self) -> None:
        """From now on take only what the queue holds at this moment (`Trigger.AvailableNow`).

        Where the broker does not tell how much that is, the end is the first message with a
        timestamp after this moment, or three seconds without any.
        """
        self._sessions.start()
        self._await_sessions()
        deadline = time.monotonic() + _LEADER_WAIT_S
        while self._ready_at_first == 0 and time.monotonic() < deadline:
            # A quorum queue that has no leader at the moment says that it is empty.
            self._sessions.refresh_depth()
            self._sessions.wait(_IDLE_WAIT_S)
            self._pump()
            waiting = sum(len(consumer.inbox) for consumer in self._sessions.consumers())
            self._ready_at_first = waiting + self._sessions.newest_depth
        self._bounded_at_us = time.time_ns() // 1_000
        self._to_go = math.inf if self._ready_at_first is None else self._ready_at_first

    def latest(self, start: Position | None, limit: Limit) -> Position:
        """Phase two of the epoch that ends at `start`, then phase one of the next.

        Args:
            start: the last committed position; None where Spark does not say (before 4.2).
            limit: how much to take.

        Returns:
            The end of a new epoch, or the last position if there is nothing new.
        """
        if start is not None:
            self.commit(start)
            if start.epoch < self._last.epoch:
                return self._last  # planned before and never begun: it stays as it was written
            if start.epoch > self._last.epoch:
                raise self._unexpected(f"Spark goes on from epoch {start.epoch}, the last here is {self._last.epoch}")
        self._blind = start is None
        self._sessions.start()
        if self._first_call:
            self._first_call = False
            self._await_first_messages()
        self._pump()
        if start is None or limit.messages is None:
            self._sessions.widen(self._settings.prefetch)  # the one epoch of this run, maybe: take what there is
        size = self._gather(limit)
        return self._plan(size) if size else self._last

    def payload(self, start: Position, end: Position) -> list[Any]:
        """The raw deliveries of the epoch from `start` to `end`, in planned order.

        For an epoch of a former process this waits until the broker has handed out exactly the
        planned messages again.

        Raises:
            DataLossError: they do not all come within `replayTimeout`, and `failOnDataLoss` is on.
        """
        self._adopt(start)
        if end.epoch not in self._payloads:
            if not self._ledger.has_epoch(end.epoch):
                self._replay(end)
            self._hold(end.epoch)
        return self._payloads[end.epoch]

    def commit(self, end: Position) -> None:
        """Phase two of all epochs up to `end`: Spark has committed them."""
        self._adopt(end)
        open_epochs = self._ledger.epochs(end.epoch)
        if self._shared():
            for epoch in open_epochs:
                self._store.remember(self._ledger.keys(epoch))
        held = [epoch for epoch in self._payloads if epoch <= end.epoch]
        if open_epochs or held:
            # Before the acknowledgements make room: a consumer cancelled while messages are on their
            # way to it has them requeued, which counts as a delivery.
            self._sessions.widen(self._settings.prefetch)
        for epoch in held:
            del self._payloads[epoch], self._payload_bytes[epoch]
        self._settle(self._ledger.commit(end.epoch))

    def _hold(self, epoch: int) -> None:
        """Keep what an epoch emits until it is committed: Spark may ask for it again."""
        if self._ledger.has_epoch(epoch):
            self._payloads[epoch] = self._ledger.payloads(epoch)
        raws = self._payloads.setdefault(epoch, [])
        self._payload_bytes[epoch] = self._bytes(raws)

    def stop(self) -> None:
        """Close the connections. Spark mostly ends the process before it gets here."""
        self._sessions.stop()
        self._store.close()

    def message_ids(self, raws: Sequence[Any]) -> list[str | None]:
        """Column `messageId`."""
        return self._identification.texts(raws)

    def counters(self) -> dict[str, int]:
        """What a user sees in the query's progress (rule 8)."""
        counted = self._ledger.counters
        return {
            "received": counted.received,
            "redelivered": self._redelivered,
            "duplicatesDropped": counted.duplicates_dropped,
            "rebound": counted.rebound,
            "planned": counted.planned,
            "settled": counted.settled,
            "unacked": self._ledger.unacked,
            "buffered": self._ledger.buffered,
            "returned": counted.forgotten,
            "rejected": self._rejected,
            "reconnects": self._reconnects,
            "replays": counted.replays,
            "lost": counted.lost,
            "carried": self._ledger.expected,
            "backlog": self._sessions.newest_depth,
        }

    # -- restart -------------------------------------------------------------------------------

    def _adopt(self, start: Position) -> None:
        """Learn from the first committed position what a former process left behind (rule 5)."""
        if self._adopted:
            return
        self._adopted = True
        self._broker_id = self._broker_id or start.broker_id
        if self._last.epoch < start.epoch:
            self._last = start
        if self._exact:
            for text in (*start.carried, start.planned):
                self._restore_committed(text)
        self._sessions.first_window = self._careful_window()
        if start.epoch == 0:
            # A new query: no restart, so no crash loop either.
            self._sessions.first_window = self._settings.prefetch
            self._sessions.widen(self._settings.prefetch)

    def _restore_committed(self, text: str) -> None:
        keys = _decode(text, self._settings.endpoint)
        if self._shared():
            self._store.remember(keys)
        self._settle(self._ledger.restore_committed(keys, text))

    def _replay(self, end: Position) -> None:
        if self._sessions.started and self._last.epoch >= end.epoch:
            raise self._unexpected(f"Spark asks for epoch {end.epoch}, the last here is {self._last.epoch}")
        self._last = end
        self._broker_id = self._broker_id or end.broker_id
        if not self._exact:
            # Without IDs nobody can tell which messages it had: they come in later epochs.
            self._ledger.restore_planned(end.epoch, ())
            return
        for text in end.carried:
            self._restore_committed(text)
        keys = _decode(end.planned, self._settings.endpoint)
        self._ledger.restore_planned(end.epoch, keys, end.planned)
        self._sessions.first_window = self._careful_window()
        self._sessions.start()
        self._await_replay(end.epoch)

    def _unexpected(self, what: str) -> InternalError:
        return InternalError(f"{self._settings.endpoint.destination}: {what}")

    def _await_replay(self, epoch: int) -> None:
        """Wait until every planned message is here again, `replayTimeout` long while connected."""
        timeout_s = self._settings.replay_timeout_s
        connected_s = 0.0
        before = time.monotonic()
        while True:
            self._pump(bounded=False)
            missing = self._ledger.missing_count(epoch)
            if not missing:
                return
            now = time.monotonic()
            connected_s += now - before if self._sessions.complete else 0.0
            before = now
            if connected_s > timeout_s:
                self._give_up(epoch)
                return
            self._open_window_for_replay(missing)
            self._sessions.wait(_IDLE_WAIT_S)

    def _open_window_for_replay(self, missing: int) -> None:
        """Ask for more if everything handed out is something else (a priority queue, say)."""
        for consumer in self._sessions.consumers():
            window = self._sessions.window(consumer.session)
            full = self._ledger.unacked_in(consumer.session) >= window
            if not full or consumer.inbox or time.monotonic() - self._last_sign_s < _REPLAY_GAP_S:
                continue
            _LOG.warning(
                "%s: %d planned messages are not among the first %d handed out; asking for more",
                self._settings.endpoint.destination, missing, window,
            )  # fmt: skip
            self._sessions.set_window(consumer.session, window + self._settings.prefetch)

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
        _LOG.error("%sGoing on without them, as 'failOnDataLoss' is 'false'", text)

    # -- receiving -----------------------------------------------------------------------------

    def _await_sessions(self) -> None:
        """Until every receiver is connected; a receiver that gives up ends this with its error."""
        while not self._sessions.complete:
            self._sessions.wait(_IDLE_WAIT_S)
            self._pump()

    def _await_first_messages(self) -> None:
        """Spark runs the first batch of a new query whatever the answer: better with messages in it.

        What only the broker can tell (login, queue) is known after this as well.
        """
        self._await_sessions()
        deadline = time.monotonic() + _FIRST_WAIT_S
        # Not if the queue is known to be empty.
        while not self._ledger.buffered and self._ready_at_first != 0 and time.monotonic() < deadline:
            self._sessions.wait(_IDLE_WAIT_S)
            self._pump()

    def _careful_window(self) -> int:
        """How many messages a new session may be handed before it has proved to get anywhere."""
        settings = self._settings
        if not settings.endpoint.broker.counts_drops:
            return settings.prefetch
        careful = max(_CAREFUL_WINDOW, settings.min_messages)
        return min(settings.prefetch, careful + self._ledger.expected)

    def _pump(self, *, bounded: bool = True) -> None:
        """Take in everything that arrived since the last time.

        Args:
            bounded: hold the receivers to the byte limit.
        """
        for letter in self._sessions.news():
            self._read(letter)
        if self._adopted or self._blind:
            # Not before: until Spark has shown what is planned and committed, nobody knows it here.
            for consumer in self._sessions.consumers():
                self._drain(consumer)
        now = time.monotonic()
        if self._sessions.complete:
            self._ledger.start_clock(now, self._redelivery_wait_s())
        self._ledger.expire(now, now)
        if self._sessions.consumers():
            self._sessions.first_window = self._careful_window()
        most = 2 * self._settings.max_bytes if bounded else math.inf
        self._sessions.bound_bytes(most, self._buffered_bytes + sum(self._payload_bytes.values()))

    def _read(self, letter: Opened | Lost | Confirmed) -> None:
        if isinstance(letter, Opened):
            self._check_broker_id(letter)
            self._ledger.open_session(letter.consumer.session)
            if self._ready_at_first is None and letter.greeting.depth is not None:
                self._ready_at_first = letter.greeting.depth.ready
        elif isinstance(letter, Lost):
            self._forget(letter.session)
            self._reconnects += 1
        else:
            self._last_sign_s = time.monotonic()
            self._ledger.confirm(letter.number, letter.session, self._last_sign_s)

    def _forget(self, session: int) -> None:
        held, forgotten = self._ledger.unacked_in(session), self._ledger.counters.forgotten
        self._ledger.lose(session)
        if self._to_go is not None:
            # What is planned already comes once more and is dropped then: not a part of the goal.
            self._to_go += held - (self._ledger.counters.forgotten - forgotten)
        self._buffered_bytes = self._bytes(self._ledger.buffered_payloads(self._ledger.buffered))

    def _check_broker_id(self, opened: Opened) -> None:
        found = opened.greeting.broker_id
        if self._broker_id and found and found != self._broker_id:
            raise CheckpointError(
                f"{self._settings.endpoint.destination}: the checkpoint was written with broker "
                f"'{self._broker_id}', but {opened.greeting.url} is broker '{found}'. Its messages would be "
                "mistaken for others. Correct 'url', or start with a new checkpointLocation"
            )
        self._broker_id = self._broker_id or found

    def _redelivery_wait_s(self) -> float:
        """How long after connecting the broker may still bring back what a lost session held.

        A broker that has noticed the end of the old connection hands its messages out again at
        once, before any others. One that has not (half-open TCP) notices after two heartbeats
        without a sign of life, and until then lists a consumer that is not ours.
        """
        endpoint, grace_s = self._settings.endpoint, self._settings.settle_grace_s
        half_open_s = endpoint.broker.half_open_s.get(endpoint.protocol, 0.0)
        return grace_s if self._sessions.alone else max(grace_s, 3 * endpoint.heartbeat_s, half_open_s)

    def _bytes(self, raws: Iterable[Any]) -> int:
        return sum(map(len, self._decoder.bodies(list(raws))))

    def _drain(self, consumer: Consumer) -> None:
        inbox = consumer.inbox
        raws = [inbox.popleft() for _ in range(len(inbox))]
        if not raws:
            return
        self._last_sign_s = time.monotonic()
        size = self._bytes(raws)
        consumer.bytes_taken += size
        self._buffered_bytes += size
        self._redelivered += sum(self._decoder.columns["redelivered"](raws))
        keys: list[Any] = self._identification.keys(raws) if self._exact else [next(self._serial) for _ in raws]
        if None in keys:
            self._reject(consumer.session, [raw for raw, key in zip(raws, keys, strict=True) if key is None])
            raws = [raw for raw, key in zip(raws, keys, strict=True) if key is not None]
            keys = [key for key in keys if key is not None]
        if self._exact:
            self._learn_from_store(keys)
        self._settle(self._ledger.deliver(consumer.session, self._decoder.tags(raws), keys, raws))

    def _reject(self, session: int, raws: list[Any]) -> None:
        self._rejected += len(raws)
        self._sessions.ask(session, methodcaller("reject", self._decoder.tags(raws)))
        _LOG.error(
            "%s: rejected %d message(s) without an ID under messageIdFrom='%s'",
            self._settings.endpoint.destination, len(raws), self._settings.id_source,
        )  # fmt: skip

    def _learn_from_store(self, keys: list[Key]) -> None:
        unseen = self._ledger.unseen(keys) if self._shared() else []
        if unseen and (known := self._store.known(unseen)):
            self._settle(self._ledger.restore_committed(known))

    def _shared(self) -> bool:
        return not isinstance(self._store, CheckpointOnly)

    # -- phase one -----------------------------------------------------------------------------

    def _gather(self, limit: Limit) -> int:
        """Wait for the messages of the next epoch; 0 if there is nothing to plan now."""
        if self._to_go is not None:
            return self._gather_bounded(limit)
        if not self._ledger.buffered:
            self._sessions.wait(_IDLE_WAIT_S)
            self._pump()
        if not self._ledger.buffered:
            self._await_confirmations()
        self._fill(limit)
        size = self._size(limit)
        return size if self._worth_it(size) else 0

    def _worth_it(self, size: int) -> bool:
        """`minMessagesPerTrigger`, `maxTriggerDelay`: a small epoch waits, but not for ever."""
        if not size:
            self._waiting_since_s = None
            return False
        now = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now
        if (
            size >= self._settings.min_messages
            or size < self._ledger.buffered  # as many bytes as an epoch may have
            or now - self._waiting_since_s >= self._settings.max_delay_s
            or self._sessions.paused
        ):
            return True
        self._sessions.wait(_IDLE_WAIT_S)
        return False

    def _gather_bounded(self, limit: Limit) -> int:
        """For `bound`: no empty answer before the goal is reached, as that ends the query."""
        empty_since: float | None = None
        while self._left() > 0:
            self._pump()
            if self._ledger.buffered:
                self._fill(limit)
                size = self._until_bound(self._size(limit))
                if size:
                    return size
                break
            now = time.monotonic()
            if not self._queue_is_empty():
                empty_since = None
            elif empty_since is None:
                empty_since = now
            elif now - empty_since >= (_EMPTY_S if self._sessions.depths() else _QUIET_S):
                break  # somebody else took the rest
            self._sessions.wait(_IDLE_WAIT_S)
        self._await_confirmations()
        return 0

    def _until_bound(self, size: int) -> int:
        """How many of the first `size` buffered messages belong to a bounded run."""
        left = self._left()
        if left < math.inf:
            return min(size, int(left))
        stamps = self._decoder.columns["timestamp"](list(self._ledger.buffered_payloads(size)))
        old = sum(1 for _ in takewhile(lambda stamp: stamp is None or stamp <= self._bounded_at_us, stamps))
        if old < size:
            self._to_go = self._done() + old
        return old

    def _left(self) -> float:
        return (self._to_go or 0) - self._done()

    def _done(self) -> int:
        counted = self._ledger.counters
        return counted.planned + counted.rebound + counted.duplicates_dropped + self._rejected

    def _queue_is_empty(self) -> bool:
        self._sessions.refresh_depth()
        return self._sessions.complete and not any(self._sessions.depths())

    def _await_confirmations(self) -> None:
        """With nothing new to read, leave nothing un-acknowledged behind."""
        deadline = time.monotonic() + _CONFIRM_WAIT_S
        while self._ledger.unconfirmed() and time.monotonic() < deadline:
            self._sessions.wait(_STEP_S)
            self._pump()

    def _fill(self, limit: Limit) -> None:
        """Let the epoch grow while a backlog keeps flowing in."""
        began = time.monotonic()
        came = _FILL_STEP_MESSAGES
        while self._could_grow(limit, began, came) and time.monotonic() - began < _FILL_MAX_S:
            before = self._ledger.counters.received
            time.sleep(_FILL_STEP_S)
            self._pump()
            came = self._ledger.counters.received - before

    def _could_grow(self, limit: Limit, began_s: float, came: int) -> bool:
        buffered = self._ledger.buffered
        most = self._settings.prefetch if limit.messages is None else limit.messages
        if not buffered or buffered >= most or self._buffered_bytes >= self._settings.max_bytes:
            return False
        # The window may have been full until a moment ago, and it takes a broker a while to get
        # through fifty thousand acknowledgements before it hands out more.
        quiet_s = time.monotonic() - max(began_s, self._last_sign_s)
        if quiet_s > _FILL_GAP_S and not self._ledger.unconfirmed():
            return False
        if self._ledger.unacked >= self._sessions.windows:
            return False
        self._sessions.refresh_depth()
        depths = self._sessions.depths()
        return any(depths) if depths else came >= _FILL_STEP_MESSAGES

    def _size(self, limit: Limit) -> int:
        """How many buffered messages the next epoch takes: at least one if there is any."""
        most = self._ledger.buffered if limit.messages is None else limit.messages
        raws = list(self._ledger.buffered_payloads(most))
        sizes = list(map(len, self._decoder.bodies(raws)))
        if sum(sizes) <= self._settings.max_bytes:
            return len(raws)
        return max(1, bisect_right(list(accumulate(sizes)), self._settings.max_bytes))

    def _plan(self, size: int) -> Position:
        epoch = self._next_epoch()
        self._waiting_since_s = None
        self._ledger.plan(epoch, size, encode_ids if self._exact else None)
        self._buffered_bytes = self._bytes(self._ledger.buffered_payloads(self._ledger.buffered))
        planned = self._ledger.epoch_memo(epoch) or ""
        carried = tuple(map(_memo, self._ledger.carried())) if self._exact else ()
        self._last = Position(epoch, planned, carried, self._broker_id)
        if self._settings.guarantee is Guarantee.NONE:
            self._hold(epoch)
            self._settle(self._ledger.commit(epoch))
        return self._last

    def _next_epoch(self) -> int:
        if self._adopted:
            return self._last.epoch + 1
        # Spark before 4.2 plans after a restart without showing the committed offset. Any number
        # above all earlier ones will do; the clock in milliseconds is.
        return max(self._last.epoch + 1, time.time_ns() // 1_000_000)

    # -- phase two -----------------------------------------------------------------------------

    def _settle(self, settlement: Settlement | None) -> None:
        if settlement is not None:
            self._sessions.acknowledge(settlement)


def _memo(batch: Any) -> str:
    """The encoded IDs of a carried batch, kept beside it."""
    if batch.memo is None:
        batch.memo = encode_ids(batch.keys)
    return str(batch.memo)


def _decode(text: str, endpoint: Endpoint) -> list[Key]:
    try:
        return decode_ids(text)
    except CodecError as broken:
        raise CheckpointError(
            f"{endpoint.destination}: the message IDs in the checkpoint's offset cannot be read "
            f"({broken}). Restore the checkpoint, or start with a new checkpointLocation"
        ) from None
