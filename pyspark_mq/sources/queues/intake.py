"""The intake: what receivers report and deliver goes into the books.

:meth:`Intake.pump` is the one place where the query's thread takes in what happened beside it: openings
and ends of sessions, confirmations, deliveries. It finds out which message a delivery is, has the
ledger decide, sends what the ledger makes due, and keeps the account of bytes, of time and of the
broker's name. It decides nothing about epochs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeAlias

from pyspark_mq.ack import Ledger, Settlement
from pyspark_mq.brokers.facts import QueueFacts
from pyspark_mq.dedup import CodecError, Key, SeenStore, decode_ids, encode_ids
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.connections.connections import Deliveries, Sessions
from pyspark_mq.sources.connections.consumer import Greeting
from pyspark_mq.sources.connections.decoder import Decoder
from pyspark_mq.sources.connections.events import Confirmed, Lost, Opened
from pyspark_mq.sources.message_id import MessageIds
from pyspark_mq.sources.queues.redelivery import Flow, RedeliveryClock
from pyspark_mq.sources.queues.watch import company as told_of_company
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["Intake", "Judge", "decode"]

_LOG = logging.getLogger("pyspark_mq")

#: Unacknowledged messages asked for until the first epoch after a restart is committed, beyond
#: those expected again. Each end of a session counts towards the delivery limit of everything that
#: was handed out, so a job that crashes at once should not age its whole queue.
_SLOW_START_WINDOW = 2_000
#: For IDs past their time: just long enough for the broker to have had its chance.
_OVERDUE_WAIT_S = 0.01
#: The confirmation of a replayed epoch is waited for this long before its session may be ended.
_CONFIRM_MAX_S = 5.0
#: A broker that has messages and room for them hands them out within this time.
_SILENCE_MAX_S = 30.0
#: A half-open connection is given up by the broker after two heartbeats without a sign, and a bit.
_HALF_OPEN_HEARTBEATS = 3
#: Pause between questions that are asked for their answers: longer each time from the first to the last.
_ASK_FIRST_S = 0.1
_ASK_GROWTH = 1.25
_ASK_LAST_S = 5.0
#: What is kept of deliveries that share memory is copied if it is less than this part of them.
_KEPT_PARTS = 2

#: Of what a connection tells of a queue, what is worth a line of the log of a query with these settings.
Judge: TypeAlias = Callable[[QueueFacts, Settings], Sequence[str]]


class Intake:
    """Between the sessions and the ledger. Called by the query's thread alone.

    Args:
        settings: the query's.
        decoder: of the protocol.
        store: where settled IDs are shared, beyond the checkpoint.
        ledger: the books.
        sessions: the connections.
        runtime: the clock.
        judge: finds in what a connection tells of a queue what is worth a line of the log.

    Attributes:
        replaying: is nothing but planned messages wanted? What else comes is let go when it is too much.
        replayed: the epoch that was, last.
        taking: may deliveries be taken? Not before Spark has shown what is planned and committed:
            until then nobody here can tell new from old.
        broker_id: the name the broker gives itself; empty while unknown.
        ever_opened: has there been a session?
        ready_at_first: messages the broker had when it was first asked; None if it does not report it.
        last_sign_s: when something last came from the broker.
        overdue: IDs of the offset are carried for longer than a broker keeps what it has handed out.
        coming_again: deliveries of planned and committed messages whose session ended.
        retained_bytes: bodies kept by the caller after the ledger has let go of them.
        most_bytes: of bodies that may be held here, with what was received and not taken in.
        resumes: may a session that pauses for bytes go on?
        redelivered, rejected, reconnects: counters.
    """

    def __init__(
        self,
        settings: Settings,
        decoder: Decoder,
        store: SeenStore,
        ledger: Ledger[Any, Any],
        sessions: Sessions,
        runtime: Runtime,
        judge: Judge,
    ) -> None:
        self._settings = settings
        self._decoder = decoder
        self._store = store
        self._ledger = ledger
        self._sessions = sessions
        self._runtime = runtime
        self._judge = judge
        self._identification = MessageIds(settings, decoder)
        self._serial = count(1)
        self._horizon = RedeliveryClock()
        self._asked, self._ask_s, self._ask_rest_s = 0, -math.inf, _ASK_FIRST_S
        self._taken: dict[int, int] = {}
        self._unseen_ghosts = False
        self._strands: bool | None = None
        self._company_since_s: float | None = None
        self._company_told = self._advised = False
        self._let_go: dict[int, int] = {}
        self._settling_since_s: float | None = None
        self._silent_since_s: dict[int, float] = {}
        self._ledger.delay_s = settings.redelivery_delay_s
        self.replaying = False
        self.replayed = 0
        self.taking = False
        self.broker_id = ""
        self.ever_opened = False
        self.ready_at_first: int | None = None
        self.last_sign_s = -math.inf
        self.overdue = False
        self.coming_again = 0
        self.retained_bytes = 0
        self.most_bytes = float(settings.max_bytes)
        self.resumes = True
        self.redelivered = self.rejected = self.reconnects = 0

    def pump(self) -> None:
        """Take in everything that arrived since the last time.

        Raises:
            MqError: a receiver has given up, a message has no ID, or it is another broker.
        """
        for letter in self._sessions.news():
            self._read(letter)
        if self.taking:
            for deliveries in self._sessions.take():
                self._enter(deliveries)
        self._tell_time()
        if self._sessions.windows:
            self._sessions.first_window = self.slow_start
        self._take_back()
        self._look_for_silence()

    def bound_bytes(self) -> None:
        """Tell the sessions how many bytes they may pile up, those to be opened too."""
        # What a replay waits for may be behind anything: then nobody pauses, and what is too much is let go here.
        left = self.most_bytes if self.replaying else max(0.0, self.most_bytes - self.held_bytes)
        self._sessions.bound_bytes(left, resume=self.resumes or self.replaying)

    def unacked_in(self, session: int) -> int:
        """Deliveries of an open session that nobody has acknowledged, those included that were let go."""
        return self._ledger.unacked_in(session) + self._let_go.get(session, 0)

    def _take_back(self) -> None:
        """Have what was let go handed out again, once the replay it was in the way of is settled.

        Only the end of a session does that on every broker.
        """
        if not self._let_go or self.replaying or self._ledger.has_epoch(self.replayed):
            self._settling_since_s = None
            return
        now_s = self._runtime.monotonic_s()
        if self._settling_since_s is None:
            self._settling_since_s = now_s
        # Under load something is always unconfirmed; and over STOMP RabbitMQ confirms nothing behind what was let go.
        if self._ledger.unconfirmed() and now_s - self._settling_since_s < _CONFIRM_MAX_S:
            return
        for session in list(self._let_go):
            number = self._let_go.pop(session)
            self._sessions.renew(session, f"{number} messages that a replay had no use for are asked for again")

    def look_for_room(self) -> None:
        """Before acknowledgements make room: what was ready to come again may have had none for a long time."""
        if self._sessions.late:
            self._horizon.block()  # what is on its way from another process may take all of it
        for session, window in self._sessions.windows.items():
            if session in self._taken and self.unacked_in(session) + self._sessions.untaken_in(session) >= window:
                self._horizon.block()

    def settle(self, settlement: Settlement | None) -> None:
        """Have acknowledgements sent."""
        if settlement is not None:
            self._horizon.asked(settlement.number)
            self._sessions.acknowledge(settlement)

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies in this process that were taken in; what was dropped does not count."""
        return self._ledger.buffered_bytes + self._ledger.planned_bytes + self.retained_bytes

    @property
    def slow_start(self) -> int:
        """How many messages a new session may be handed before it has proved to get anywhere."""
        settings = self._settings
        window = settings.prefetch
        if settings.endpoint.broker.counts_drops:
            window = min(window, max(_SLOW_START_WINDOW, settings.min_messages) + self._ledger.expected)
        # An epoch comes again whole, whatever the prefetch is by now.
        return max(window, self._ledger.planned)

    def id_bytes(self, raws: Sequence[Any]) -> float:
        """Bytes that an ID of messages like these has in an offset."""
        keys = [key for key in self._identification.keys(raws) if key is not None]
        return len(encode_ids(keys)) / len(keys) if keys else 0.0

    def recall(self, text: str, until_s: int | None = None) -> None:
        """Learn from an offset that these IDs are committed.

        Args:
            text: the IDs, encoded.
            until_s: up to when they had to be carried, seconds since 1970; None if that was open.

        Raises:
            CheckpointError: they cannot be read.
        """
        keys = self.decode(text)
        self._store.remember(keys)
        wait_s = None
        if until_s is not None:
            # What the broker keeps for a connection that is gone it gives up by its own clock, also while
            # nobody is connected here; then it comes first.
            left_s = until_s + self._settings.settle_grace_s - self._runtime.utc_us() / 1e6
            wait_s = min(max(left_s, _OVERDUE_WAIT_S), self._kept_s + self.delay_s)
            self.overdue = self.overdue or left_s <= 0
        self.settle(self._ledger.restore_committed(keys, text, wait_s))

    def decode(self, text: str) -> list[Key]:
        """The IDs in a piece of an offset.

        Raises:
            CheckpointError: they cannot be read.
        """
        return decode(text, self._settings.endpoint.destination)

    # -- what receivers report

    def _read(self, letter: Opened | Lost | Confirmed) -> None:
        if isinstance(letter, Confirmed):
            self.last_sign_s = self._runtime.monotonic_s()
            self._horizon.answered(letter.number, letter.session)
            self._ledger.confirm(letter.number, letter.session, self.last_sign_s)
            return
        self._horizon.interrupt()
        self._ask_s, self._ask_rest_s = -math.inf, _ASK_FIRST_S
        if isinstance(letter, Opened):
            self._check_broker_id(letter)
            self.ever_opened = True
            self._taken[letter.consumer.session] = 0
            self._ledger.open_session(letter.consumer.session)
            if self.ready_at_first is None and letter.greeting.depth is not None:
                self.ready_at_first = letter.greeting.depth.ready
            self._learn_delay(letter.greeting.redelivery_delay_s)
            self._learn_of_stranding(letter.greeting)
            self._advise(letter.greeting)
        else:
            self._forget(letter)

    def _forget(self, lost: Lost) -> None:
        self.reconnects += 1
        self._unseen_ghosts = self._unseen_ghosts or lost.ever_paused
        del self._taken[lost.session]
        self._let_go.pop(lost.session, None)
        self._silent_since_s.pop(lost.session, None)
        held, returned = self._ledger.unacked_in(lost.session), self._ledger.counters.returned
        self._ledger.lose(lost.session)
        self.coming_again += held - (self._ledger.counters.returned - returned)

    def _check_broker_id(self, opened: Opened) -> None:
        found = opened.greeting.broker_id
        if self.broker_id and found and found != self.broker_id:
            raise self._other_broker(self.broker_id, f"{opened.greeting.url} is broker '{found}'")
        self.broker_id = self.broker_id or found

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
            f"{self._settings.endpoint.destination}: the checkpoint was written with broker '{expected}', but {found}. "
            "Its messages would be mistaken for others. Correct 'url', or start with a new checkpointLocation. If both "
            "are nodes of one cluster, name several of them in 'url'"
        )

    # -- time

    @property
    def steady_s(self) -> float:
        """For how long all sessions have been up, seen by the query's thread."""
        return self._horizon.steady_s

    @property
    def connected_s(self) -> float:
        """For how long all sessions were up so far, and what came was taken in."""
        return self._horizon.connected_s

    @property
    def horizon_s(self) -> float:
        """What was ready to come again at this moment of connected time has come."""
        return self._horizon.horizon_s

    def _tell_time(self) -> None:
        now_s = self._runtime.monotonic_s()
        if self._sessions.complete and self.taking:
            if self._sessions.broke_off:
                self._horizon.interrupt()
            self._horizon.observe(self._sessions.attended_s, self._flows())
            self._ledger.start_clock(self._horizon.connected_s, self._redelivery_wait_s())
            self._unseen_ghosts = False
            self._look_for_company(now_s)
            self._ask_for_an_answer(now_s)
        self._ledger.expire(now_s, self._horizon.horizon_s)

    def _ask_for_an_answer(self, now_s: float) -> None:
        """Have the horizon move on also where nothing is acknowledged, while something waits for that."""
        if now_s >= self._ask_s and self._ledger.exposed:
            self._ask_rest_s = min(self._ask_rest_s * _ASK_GROWTH, _ASK_LAST_S)
            self._ask_s = now_s + self._ask_rest_s
            # Settlements have numbers above it.
            self._asked -= 1
            self._horizon.asked(self._asked)
            self._sessions.ask_for_answers(self._asked)

    def _advise(self, greeting: Greeting) -> None:
        """Say once what bites late acknowledgement here, as far as the connection tells."""
        if not self._advised:
            self._advised = True
            for text in self._judge(greeting.facts, self._settings):
                _LOG.warning("%s: %s", self._settings.endpoint.destination, text)

    def _look_for_company(self, now_s: float) -> None:
        """Another consumer takes messages away: each sees a part of the queue.

        For as long as a dead connection of our own may be counted, it may be that.
        """
        company = self._sessions.company
        if not company:
            self._company_since_s = None
            return
        if self._company_since_s is None:
            self._company_since_s = now_s
        if not self._company_told and now_s - self._company_since_s > self._half_open_s:
            self._company_told = True
            _LOG.warning("%s: %s", self._settings.endpoint.destination, told_of_company(company))

    def _look_for_silence(self) -> None:
        """A node of a cluster may have messages by its word, and hand none out: it is cut off from the majority.

        From RabbitMQ 4.3 on such a node goes on to serve clients. Where there are others to go to, a session that holds
        nothing is ended then, which costs nothing.
        """
        if len(self._settings.endpoint.urls) == 1:
            return
        now_s = self._runtime.monotonic_s()
        for session in list(self._sessions.windows):
            depth = self._sessions.depth_in(session)
            if depth is None or not depth.ready or self.unacked_in(session) or self._sessions.untaken_in(session):
                self._silent_since_s.pop(session, None)
            elif now_s - self._silent_since_s.setdefault(session, now_s) > _SILENCE_MAX_S:
                del self._silent_since_s[session]
                self._sessions.renew(
                    session,
                    f"{depth.ready} messages wait by the broker's word, and none came for {_SILENCE_MAX_S:.0f} s",
                )

    def _flows(self) -> dict[int, Flow]:
        flows = {}
        for session, window in self._sessions.windows.items():
            room = self.unacked_in(session) < window and not self._sessions.paused
            flows[session] = Flow(self._taken[session], window, room)
        return flows

    def _redelivery_wait_s(self) -> float:
        """For how much of connected time the broker may still bring back what a lost session held.

        A broker that has noticed the end of the old connection hands its messages out again at
        once, before any others. One that has not (half-open TCP) notices after two heartbeats
        without a sign of life, and until then lists a consumer that is not ours, unless that had been
        cancelled for a pause. And there are brokers that hold back what comes again.
        """
        # A queue of a cluster that has no leader for a moment says that it has no consumers.
        alone = self._sessions.alone and not self._unseen_ghosts and len(self._settings.endpoint.urls) == 1
        return self.delay_s + (self._settings.settle_grace_s if alone else self._kept_s)

    @property
    def delay_s(self) -> float:
        """For how long the broker holds back what comes again, as the user or the broker said."""
        return self._ledger.delay_s

    def _learn_delay(self, told_s: float) -> None:
        if told_s <= self._ledger.delay_s:
            return
        self._ledger.delay_s = told_s
        settings = self._settings
        late = told_s >= settings.replay_timeout_s
        _LOG.log(
            logging.WARNING if late else logging.INFO,
            "%s: the queue holds back what comes again for up to %.0f s; message IDs are carried for as long%s",
            settings.endpoint.destination, told_s,
            f". That is not below replayTimeout={settings.replay_timeout_s:g}s: raise it, or a restart may fail with "
            "a DataLossError although nothing is lost" if late else "",
        )  # fmt: skip

    def _learn_of_stranding(self, greeting: Greeting) -> None:
        broker, version = self._settings.endpoint.broker, greeting.server.rpartition("/")[2]
        strands = greeting.facts.kind in {None, "quorum"} and broker.hides_lost_consumers(version)
        self._strands = bool(self._strands) or strands

    @property
    def _kept_s(self) -> float:
        """The longest that a broker keeps what a connection that is gone was handed.

        Only a cluster loses a node and goes on; but behind one address there may be a cluster, and nothing tells.
        Before the first connection, when an offset is read, it may be any version.
        """
        stranded_s = 0.0 if self._strands is False else self._settings.endpoint.broker.stranded_s
        return max(self._half_open_s, stranded_s)

    @property
    def _half_open_s(self) -> float:
        """The longest that a broker takes a connection for alive that is not."""
        endpoint = self._settings.endpoint
        half_open_s = endpoint.broker.half_open_s.get(endpoint.protocol, 0.0)
        if len(endpoint.urls) > 1:
            # A queue may be on another node than the one that hangs, which takes that for alive with its clients.
            half_open_s = max(half_open_s, endpoint.broker.node_lost_s)
        return max(self._settings.settle_grace_s, _HALF_OPEN_HEARTBEATS * endpoint.heartbeat_s, half_open_s)

    def carried_until_s(self, batch: Any) -> int | None:
        """Up to when a carried batch has to be, seconds since 1970; None if no clock runs for it yet."""
        left_s: float | None = batch.wait_left_s(self._horizon.horizon_s)
        return None if left_s is None else math.ceil(self._runtime.utc_us() / 1e6 + left_s)

    # -- deliveries

    def _enter(self, deliveries: Deliveries) -> None:
        session, raws = deliveries.session, deliveries.raws
        self.last_sign_s = self._runtime.monotonic_s()
        self._taken[session] += len(raws)
        self.redelivered += sum(self._decoder.columns["redelivered"](raws))
        if self._settings.on_unreadable is OnUnreadable.REJECT:
            raws = self._reject_unreadable(session, raws)
        if not self._settings.guarantee.identifies:
            keys: list[Any] = [next(self._serial) for _ in raws]
        else:
            found = self._identification.keys(raws)
            if None in found:
                self._reject(session, [raw for raw, key in zip(raws, found, strict=True) if key is None])
                raws = [raw for raw, key in zip(raws, found, strict=True) if key is not None]
                found = [key for key in found if key is not None]
            keys = found
            if self.replaying and self.held_bytes >= self.most_bytes:
                raws, keys = self._only_known(session, raws, keys)
            self._ask_store(keys)
        came, buffered, exposed = len(deliveries.raws), self._ledger.buffered, self._ledger.exposed
        rebound = self._ledger.counters.rebound
        self.settle(self._ledger.deliver(session, self._decoder.tags(raws), keys, raws))
        if self._ledger.exposed < exposed or self._ledger.counters.rebound > rebound:
            self._horizon.came_again()
        if self._decoder.shares_memory and self._ledger.buffered - buffered < came:
            self._compact(keys, raws, came)

    def _compact(self, keys: Sequence[Any], raws: Sequence[Any], came: int) -> None:
        """Let go of what was dropped, where it is most of what came: the rest would keep all of it in memory."""
        kept = self._ledger.held(keys, raws)
        if kept and _KEPT_PARTS * len(kept) < came:
            compact = self._decoder.compact([raws[place] for place in kept])
            self._ledger.exchange([keys[place] for place in kept], compact)

    def _only_known(self, session: int, raws: list[Any], keys: list[Any]) -> tuple[list[Any], list[Any]]:
        """What is planned, committed or here; the rest stays unacknowledged and is not looked at again."""
        new = set(self._ledger.unseen(keys))
        if not new:
            return raws, keys
        if not self._let_go:
            _LOG.warning(
                "%s: more than %d bytes came that the replay does not wait for; what else comes before its messages "
                "is asked for again later, which counts as a delivery",
                self._settings.endpoint.destination, self.most_bytes,
            )  # fmt: skip
        known = [(raw, key) for raw, key in zip(raws, keys, strict=True) if key not in new]
        first = next(raw for raw, key in zip(raws, keys, strict=True) if key in new)
        self._ledger.pass_over(session, self._decoder.tags([first])[0])
        self._let_go[session] = self._let_go.get(session, 0) + len(raws) - len(known)
        return [raw for raw, _ in known], [key for _, key in known]

    def _reject_unreadable(self, session: int, raws: list[Any]) -> list[Any]:
        """Those that can be decoded."""
        unreadable = self._decoder.unreadable(raws)
        if not unreadable:
            return raws
        refused = {delivery.tag for delivery in unreadable}
        self.rejected += len(refused)
        self._sessions.reject(session, sorted(refused))
        _LOG.error(
            "%s: rejected %d message(s) that cannot be decoded, the first: %s. Without a dead-letter target the "
            "broker drops them",
            self._settings.endpoint.destination, len(unreadable), unreadable[0],
        )  # fmt: skip
        return [raw for raw, tag in zip(raws, self._decoder.tags(raws), strict=True) if tag not in refused]

    def _reject(self, session: int, raws: list[Any]) -> None:
        self.rejected += len(raws)
        self._sessions.reject(session, self._decoder.tags(raws))
        _LOG.error(
            "%s: rejected %d message(s) without an ID under messageIdFrom='%s'",
            self._settings.endpoint.destination, len(raws), self._settings.id_source,
        )  # fmt: skip

    def _ask_store(self, keys: list[Any]) -> None:
        """Learn of those that are not known here and were settled by somebody else."""
        known = self._store.known(self._ledger.unseen(keys))
        if known:
            self.settle(self._ledger.restore_committed(known))


def decode(text: str, destination: str) -> list[Key]:
    """The IDs in a piece of an offset.

    Args:
        text: the IDs, encoded.
        destination: what errors call the queue.

    Raises:
        CheckpointError: they cannot be read.
    """
    try:
        return decode_ids(text)
    except CodecError as broken:
        raise CheckpointError(
            f"{destination}: the message IDs in the checkpoint's offset cannot be read ({broken}). Restore the "
            "checkpoint, or start with a new checkpointLocation"
        ) from None
