"""Any order of deliveries, crashes and lost acknowledgements, against a model of Spark and a broker.

The model holds what survives a crash: the broker's queue, Spark's offset and commit logs, and a sink
that writes an epoch once. The ledger is the thing under test; the machine around it does what the
epoch source does, in the same order, with every step a rule of its own so that anything can happen in
between.

The model broker keeps to what brokers were measured to do: what a lost session held comes again
before anything else and as soon as somebody consumes; an acknowledgement it has confirmed may be
forgotten if it is killed less than `FORGETS_S` later. Connected time stands still until all of it was
taken in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_mq.ack import Ledger, Settlement

PREFETCH = 12
GRACE_S = 5.0
WAIT_S = 12.0
FORGETS_S = 0.5
#: Nothing but the carried IDs protects, so that a mistake there shows.
WINDOW = 0


@dataclass
class Broker:
    """A queue. Messages are serial numbers; `ids` tells the ID of each."""

    ids: dict[int, str] = field(default_factory=dict)
    ready: deque[int] = field(default_factory=deque)
    handed: dict[int, int] = field(default_factory=dict)  # tag -> message, of the one session
    last_tag: int = 0
    recent: list[tuple[float, int]] = field(default_factory=list)  # acknowledged when
    requeued: set[int] = field(default_factory=set)

    def publish(self, message_id: str) -> None:
        serial = len(self.ids)
        self.ids[serial] = message_id
        self.ready.append(serial)

    def hand_out(self, most: int) -> list[tuple[int, str]]:
        deliveries = []
        while self.ready and len(self.handed) < PREFETCH and len(deliveries) < most:
            message = self.ready.popleft()
            self.requeued.discard(message)
            self.last_tag += 1
            self.handed[self.last_tag] = message
            deliveries.append((self.last_tag, self.ids[message]))
        return deliveries

    def end_session(self) -> None:
        returned = sorted(self.handed.values())
        self.requeued.update(returned)
        self.ready = deque(sorted([*returned, *self.ready]))
        self.handed.clear()
        self.last_tag = 0

    def forget_recent_acks(self, now: float) -> None:
        forgotten = [message for at, message in self.recent if now - at < FORGETS_S]
        self.requeued.update(forgotten)
        self.ready = deque(sorted([*forgotten, *self.ready]))
        self.recent.clear()


@dataclass
class Offset:
    """What Spark's offset log holds of an epoch."""

    planned: tuple[str, ...] = ()
    #: IDs, and how long they still wait
    carried: tuple[tuple[tuple[str, ...], float | None], ...] = ()


@dataclass
class Trace:
    """What the bound of the carried IDs is made of, as the machine saw it."""

    under_way: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by number of the settlement
    confirmed: dict[str, tuple[float, float]] = field(default_factory=dict)  # when, by both clocks
    unconfirmed: dict[str, float] = field(default_factory=dict)  # at the end of a session, in connected time
    restored: dict[str, float] = field(default_factory=dict)  # by this process, until when
    pieces: list[frozenset[str]] = field(default_factory=list)  # of offsets, as they were restored


def weigh(payloads: Sequence[str]) -> int:
    return sum(map(len, payloads))


class LedgerMachine(RuleBasedStateMachine):
    """Rules are single steps; the teardown lets everything finish and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.now = 0.0
        self.connected_s = 0.0
        self.session = 0
        self.connected = False
        self.offsets: dict[int, Offset] = {0: Offset()}  # the offset log
        self.committed = 0  # the commit log
        self.sink: dict[int, tuple[str, ...]] = {}
        self.wire: list[Settlement] = []  # acknowledgements on their way to the broker
        self.answers: list[Settlement] = []  # confirmations on their way back
        self.doubled: set[str] = set()
        self.new_process()

    # -- the process

    def new_process(self) -> None:
        self.ledger: Ledger[str, str] = Ledger(grace_s=GRACE_S, window=WINDOW, weigh=weigh)
        self.trace = Trace()
        self.planned = self.proven = self.committed
        start = self.offsets[self.committed]
        self.restore(start)
        self.restore_committed(start.planned, None)
        last = max(self.offsets)
        if last > self.committed:
            self.planned = last
            self.restore(self.offsets[last])
            self.ledger.restore_planned(last, self.offsets[last].planned, "encoded")
            self.trace.unconfirmed.update(dict.fromkeys(self.offsets[last].planned, self.connected_s))

    def restore(self, offset: Offset) -> None:
        for keys, wait_s in offset.carried:
            self.restore_committed(keys, wait_s)

    def restore_committed(self, keys: tuple[str, ...], wait_s: float | None) -> None:
        assert self.ledger.restore_committed(keys, "encoded", wait_s) is None
        until_s = self.connected_s + (WAIT_S if wait_s is None else wait_s)
        # What the older of two offsets names together is one batch: what the newer says of some of it counts for all.
        together = {key for piece in self.trace.pieces if not piece.isdisjoint(keys) for key in piece}
        for key in together.union(keys):
            self.trace.restored[key] = max(until_s, self.trace.restored.get(key, 0))
        self.trace.pieces.append(frozenset(keys))

    def end_session(self) -> None:
        if self.connected:
            self.broker.end_session()
        self.connected = False
        self.wire.clear()
        self.answers.clear()

    def send(self, settlement: Settlement | None) -> None:
        if settlement is not None:
            assert {part.session for part in settlement.parts} == {self.session}
            self.wire.append(settlement)
            (keys,) = [batch.keys for batch in self.ledger.carried.batches() if batch.number == settlement.number]
            self.trace.under_way[settlement.number] = keys

    def look_at_the_clocks(self) -> None:
        """What the source does each time it looks after its sessions."""
        if self.connected:
            self.ledger.carried.start_clock(self.connected_s, WAIT_S)
        self.ledger.carried.expire(self.now, self.connected_s)

    # -- progress: what happens by itself, in any order that is possible

    def possible(self) -> list[Callable[[], None]]:
        """Steps that can be taken now."""
        steps: list[tuple[bool, Callable[[], None]]] = [
            (not self.connected, self.connect),
            (self.connected and bool(self.broker.ready), self.deliver),
            (not self.running and self.proven < self.committed, self.prove_the_commit),
            (not self.running and self.proven == self.committed and len(self.ledger.received) > 0, self.plan),
            (self.complete, self.write_to_the_sink),
            (self.complete and self.planned in self.sink, self.write_the_commit_log),
            (bool(self.wire), self.the_broker_takes_an_acknowledgement),
            (bool(self.answers), self.a_confirmation_arrives),
        ]
        return [step for enabled, step in steps if enabled]

    @property
    def running(self) -> bool:
        """Is an epoch planned that Spark has not committed?"""
        return self.planned > self.committed

    @property
    def complete(self) -> bool:
        """Is there one whose messages are all here?"""
        return self.running and not self.ledger.planned.epochs[self.planned].missing

    def connect(self) -> None:
        self.session += 1
        self.connected = True
        self.ledger.open_session(self.session)

    def deliver(self, most: int = 4) -> None:
        deliveries = self.broker.hand_out(most)
        if deliveries:
            tags, keys = zip(*deliveries, strict=True)
            self.send(self.ledger.deliver(self.session, tags, keys, [f"payload of {key}" for key in keys]))

    def prove_the_commit(self) -> None:
        """`latestOffset(start)`, first half."""
        self.proven = self.committed
        self.send(self.ledger.commit(self.committed))

    def plan(self, count: int = 5) -> None:
        """`latestOffset(start)`, second half, and Spark's offset log."""
        self.planned = self.committed + 1
        self.ledger.plan(self.planned, count)
        self.offsets[self.planned] = Offset(
            self.ledger.planned.keys(self.planned),
            tuple((batch.keys, batch.wait_left_s(self.connected_s)) for batch in self.ledger.carried.batches()),
        )

    def write_to_the_sink(self) -> None:
        emitted = tuple(payload.removeprefix("payload of ") for payload in self.ledger.planned.payloads(self.planned))
        assert emitted == self.offsets[self.planned].planned, "a replay is not the same batch"
        self.sink.setdefault(self.planned, emitted)

    def write_the_commit_log(self) -> None:
        self.committed = self.planned

    def the_broker_takes_an_acknowledgement(self) -> None:
        settlement = self.wire.pop(0)
        for part in settlement.parts:
            tags = [tag for tag in self.broker.handed if tag <= part.upto] + list(part.singles)
            for tag in tags:
                message = self.broker.handed.pop(tag)
                self.check_acknowledged(self.broker.ids[message])
                self.broker.recent.append((self.now, message))
        self.answers.append(settlement)

    def check_acknowledged(self, message_id: str) -> None:
        done = [epoch for epoch, ids in self.sink.items() if message_id in ids and epoch <= self.committed]
        assert done, f"{message_id} was acknowledged before its epoch was committed"

    def a_confirmation_arrives(self) -> None:
        number = self.answers.pop(0).number
        self.ledger.confirm(number, self.session, self.now)
        self.trace.confirmed.update(dict.fromkeys(self.trace.under_way.pop(number), (self.now, self.connected_s)))

    # -- rules

    @initialize()
    def begin(self) -> None:
        self.publish(3)

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.broker.publish(f"m{len(self.broker.ids)}")

    @rule(data=st.data())
    def publish_duplicate_of_an_open_message(self, data: st.DataObject) -> None:
        held = sorted({*self.broker.ready, *self.broker.handed.values()})
        if held:
            message_id = self.broker.ids[data.draw(st.sampled_from(held))]
            self.broker.publish(message_id)
            # How far apart both are handed out is open: the second may come when the window of
            # settled IDs has moved on. Together in one session is in tests/unit/test_ledger.py.
            self.doubled.add(message_id)

    @rule(choices=st.lists(st.integers(0, 7), min_size=1, max_size=25))
    def go_on(self, choices: list[int]) -> None:
        for choice in choices:
            steps = self.possible()
            if not steps:
                return
            steps[choice % len(steps)]()
            self.look_at_the_clocks()
            self.nothing_is_emitted_twice()

    @rule(seconds=st.sampled_from([0.1, 0.4, 1.0, GRACE_S]))
    def time_passes(self, seconds: float) -> None:
        # A broker brings back what it has to at once; only a full window can hold that up.
        if self.connected and self.broker.requeued:
            self.deliver(PREFETCH)
        self.look_at_the_clocks()
        self.now += seconds
        if self.connected and not self.broker.requeued:
            self.connected_s += seconds
        self.look_at_the_clocks()

    @rule(what=st.sampled_from(["connection", "broker", "driver", "broker and driver", "before the offset log"]))
    def something_is_killed(self, what: str) -> None:
        if what == "before the offset log":
            if self.running or self.proven < self.committed or not self.ledger.received:
                return
            self.plan()
            del self.offsets[self.planned]
        if "driver" not in what and "offset" not in what and self.connected:
            held = [
                *self.ledger.planned.keys(self.planned),
                *(key for keys in self.trace.under_way.values() for key in keys),
            ]
            self.trace.unconfirmed.update(dict.fromkeys(held, self.connected_s))
            self.trace.under_way.clear()
            self.ledger.lose(self.session)
        self.end_session()
        if "broker" in what:
            self.broker.forget_recent_acks(self.now)
        if "driver" in what or "offset" in what:
            self.new_process()

    @rule(times=st.integers(2, 8), seconds=st.sampled_from([0.4, 1.0, 3.0, GRACE_S]))
    def the_connection_is_cut_again_and_again(self, times: int, seconds: float) -> None:
        for _ in range(times):
            self.something_is_killed("connection")
            self.connect()
            self.deliver(PREFETCH)
            self.time_passes(seconds)

    # -- what always holds

    @invariant()
    def nothing_is_emitted_twice(self) -> None:
        counts = Counter(key for ids in self.sink.values() for key in ids)
        assert not [key for key, count in counts.items() if count > 1 and key not in self.doubled]

    @invariant()
    def the_carried_ids_are_bounded(self) -> None:
        self.look_at_the_clocks()
        trace, connected_s = self.trace, self.connected_s
        allowed = {key for keys in trace.under_way.values() for key in keys}
        allowed |= {key for key, until_s in trace.restored.items() if connected_s <= until_s}
        allowed |= {key for key, end_s in trace.unconfirmed.items() if connected_s <= end_s + WAIT_S}
        for key, (confirmed_s, confirmed_connected_s) in trace.confirmed.items():
            if self.now <= confirmed_s + GRACE_S or connected_s <= confirmed_connected_s + 2 * GRACE_S:
                allowed.add(key)
        assert {key for batch in self.ledger.carried.batches() for key in batch.keys} <= allowed

    @invariant()
    def no_id_is_carried_twice(self) -> None:
        carried = [key for batch in self.ledger.carried.batches() for key in batch.keys]
        assert len(carried) == len(set(carried))
        assert self.ledger.expected == len(carried) + sum(
            len(self.ledger.planned.keys(epoch)) for epoch in self.ledger.planned.numbers(self.planned)
        )

    @invariant()
    def the_bytes_are_those_of_the_payloads_that_are_held(self) -> None:
        buffered = list(self.ledger.received.oldest(len(self.ledger.received)))
        assert len(buffered) == len(self.ledger.received)
        assert self.ledger.received.weight == weigh(buffered)
        held = [
            payload
            for epoch in self.ledger.planned.numbers(self.planned)
            for payload in self.ledger.planned.payloads(epoch)
        ]
        assert self.ledger.planned.weight == weigh(held)

    def teardown(self) -> None:
        """Without further faults everything published is emitted, once, and the queue ends empty."""
        for _ in range(100 * (len(self.broker.ids) + 10)):
            steps = self.possible()
            if not steps:
                break
            steps[-1]()
        emitted = {key for ids in self.sink.values() for key in ids}
        assert emitted == set(self.broker.ids.values()), "forgotten messages"
        assert not self.broker.ready, "messages left in the queue"
        assert not self.broker.handed, "messages left unacknowledged"
        self.nothing_is_emitted_twice()


LedgerMachine.TestCase.settings = settings(
    max_examples=500 if settings.get_current_profile_name() == "all" else 200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLedger = LedgerMachine.TestCase
