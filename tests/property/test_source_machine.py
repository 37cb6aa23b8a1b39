"""The whole source against faults of any kind: Spark's calls, a broker in memory, time, kills, in any order.

What is real: everything under ``pyspark_mq/sources``, ``ack`` and ``dedup``, and the offsets. What is a model: Spark
(tests/support/simulation.py), the broker (tests/support/memory_broker.py, held to the contract tests of the real ones),
and the clock, which is turned by hand: hours pass in a second.

Two things are asked at the end, besides that nothing is lost and nothing comes twice: **it always gets on** (when the
faults end, everything in the queue is emitted within a bounded time) and **what is remembered stays bounded** (then
nothing is under way any more, and nothing is held; an offset and the names in a file are bounded at any time).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyspark_mq.sources.settings import Guarantee
from pyspark_mq.spark_source.id_file import decoded
from tests.support.effort import part_of
from tests.support.engine import At, Crashed
from tests.support.memory_broker import Faults, MemoryBroker, MemoryQueue, MemoryStore
from tests.support.simulation import QUEUE, SUPERVISOR, WORKER, Query, World, make_settings

BODIES = st.sampled_from([0, 1, 10, 100])
GRACE_S = 5.0
#: Where planned messages may be given up: longer than any fault keeps them away.
REPLAY_TIMEOUT_S = 60.0
#: A broker that holds redeliveries back does so for this long at most.
DELAY_MAX_S = 15.0
#: Once there are no more faults, everything is emitted and settled within so much time.
GETS_ON_S = 300.0
#: ... and nothing is under way any more after this: the grace, and an answer behind it.
SETTLES_S = 30.0
#: Names in a file, bytes of an offset.
NAMES_MAX, OFFSET_MAX = 97, 400


class SourceMachine(RuleBasedStateMachine):
    """Rules are Spark's triggers and the faults; the teardown ends them and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.queues = [self.broker.declare(QUEUE)]
        #: Row in the sink -> queue and ID.
        self.published: dict[str, tuple[MemoryQueue, str]] = {}
        self.numbers = 0
        self.repeated: set[str] = set()
        self.query: Query | None = None
        self.named = True

    @initialize(
        consumers=st.integers(1, 3),
        max_messages=st.sampled_from([1, 5, 20]),
        max_bytes=st.sampled_from([600, 4_000, 1 << 24]),
        prefetch=st.sampled_from([5, 12, 60]),
        min_messages=st.sampled_from([1, 3]),
        window=st.sampled_from([0, 10, 1_000]),
        shared=st.booleans(),
        guarantee=st.sampled_from([Guarantee.EXACTLY_ONCE] * 4 + [Guarantee.AT_LEAST_ONCE, Guarantee.NONE]),
        shows_start=st.sampled_from([True, True, True, False]),
        tells_depth=st.booleans(),
        shuffles=st.booleans(),
        hides_lost=st.booleans(),
        delay_s=st.sampled_from([0.0, 0.0, 2.0, DELAY_MAX_S]),
        lag_s=st.sampled_from([0.0, 0.03, 0.4]),
        seed=st.integers(0, 1_000),
        queues=st.sampled_from([1, 1, 2, 3]),
        rates=st.lists(st.sampled_from([math.inf, math.inf, 200.0, 20.0, 3.0]), min_size=3, max_size=3),
        link_rate=st.sampled_from([math.inf, math.inf, 50.0]),
        gives_up=st.sampled_from([False, False, True]),
        named=st.sampled_from([True, True, False]),
    )
    def begin(
        self, consumers: int, max_messages: int, max_bytes: int, prefetch: int, min_messages: int, window: int,
        shared: bool, guarantee: Guarantee, shows_start: bool, tells_depth: bool, shuffles: bool, hides_lost: bool,
        delay_s: float, lag_s: float, seed: int, queues: int, rates: list[float], link_rate: float,
        gives_up: bool, named: bool,
    ) -> None:  # fmt: skip
        self.named = named
        self.broker.chance.seed(seed)
        self.names = [f"{QUEUE}-{number}" for number in range(queues)] if queues > 1 else [QUEUE]
        self.queues = [self.broker.declare(name) for name in self.names]
        gives_up = gives_up and guarantee is Guarantee.EXACTLY_ONCE
        # What is given up is not there for longer than the replay waits: no broker is as slow as that.
        for queue, rate in zip(self.queues, [math.inf] * 3 if gives_up else rates, strict=False):
            queue.faults = Faults(
                acks_s=lag_s, confirms_s=lag_s, tells_depth=tells_depth, shuffles=shuffles, hides_lost=hides_lost,
                delay_s=delay_s, delay_max_s=DELAY_MAX_S, rate=rate, link_rate=math.inf if gives_up else link_rate,
            )  # fmt: skip
        least = min(min_messages, max_messages, prefetch * consumers)
        chosen = make_settings(
            consumers=consumers, max_messages=max_messages, max_bytes=max_bytes, prefetch=prefetch,
            min_messages=least, max_delay_s=20.0, dedup_window=window, guarantee=guarantee, settle_grace_s=GRACE_S,
            heartbeat_s=2.0, reconnect_timeout_s=100_000.0, connect_timeout_s=100_000.0,
            replay_timeout_s=REPLAY_TIMEOUT_S if gives_up else 100_000.0, fail_on_data_loss=not gives_up,
            queues=tuple(self.names) if queues > 1 else (),
        )  # fmt: skip
        store = MemoryStore(50) if shared and guarantee is Guarantee.EXACTLY_ONCE else None
        self.query = Query(self.world, self.broker, chosen, store=store, shows_start=shows_start)
        self.publish(4, 1, 0)

    @property
    def q(self) -> Query:
        assert self.query is not None
        return self.query

    # -- Spark

    @rule(times=st.integers(1, 6))
    def spark_triggers(self, times: int) -> None:
        for _ in range(times):
            self.q.trigger()

    @rule(at=st.sampled_from(At))
    def spark_is_killed_in_a_trigger(self, at: At) -> None:
        try:
            self.q.trigger(at)
        except Crashed:
            return

    @rule(unnoticed_s=st.sampled_from([0.0, 0.0, 3.0, 20.0]))
    def the_driver_dies(self, unnoticed_s: float) -> None:
        self.q.crash(unnoticed_s)

    @rule(seconds=st.sampled_from([0.05, 0.7, 3.0, 12.0, 100.0, 4_000.0]))
    def spark_is_busy(self, seconds: float) -> None:
        self.world.let_pass(seconds)

    @rule(seconds=st.sampled_from([1.0, 12.0, 400.0]), later_s=st.sampled_from([0.0, 0.2, 1.5]))
    def the_process_stands_still(self, seconds: float, later_s: float) -> None:
        process = self.q.process
        if later_s:  # in the middle of what comes next
            self.world.at(later_s, lambda: process.stop(seconds))
        else:
            process.stop(seconds)
            self.world.let_pass(seconds)

    @rule(
        fails=st.sampled_from([None, None, *At]),
        more=st.integers(0, 20),
        once=st.booleans(),
        where=st.integers(0, 2),
    )
    def a_job_runs_to_its_end(self, fails: At | None, more: int, once: bool, where: int) -> None:
        """A bounded run, whose sink may fail, while a producer goes on."""
        if not self.q.shows_start:
            return  # Spark has them from 4.2 on
        self.q.crash()
        for number in range(more):
            self.world.at(0.1 + number * 0.05, lambda: self.publish_one(where))
        if once:
            self.q.trigger_once()
        else:
            self.q.run_available(fails)

    def publish_one(self, where: int) -> None:
        self.numbers += 1
        self._send(self.queues[where % len(self.queues)], f"m{self.numbers}", 1)

    @rule(prefetch=st.sampled_from([2, 5, 12, 60]), max_messages=st.sampled_from([1, 5, 20]))
    def it_goes_on_with_other_options(self, prefetch: int, max_messages: int) -> None:
        self.q.crash()
        now = self.q.settings
        least = min(now.min_messages, max_messages, prefetch * now.consumers)
        self.q.settings = replace(now, prefetch=prefetch, max_messages=max_messages, min_messages=least)

    @rule(seconds=st.sampled_from([0.3, 2.0, 8.0]), end=st.sampled_from(["cut", "half-open", "broker killed"]))
    def something_ends_while_an_epoch_runs(self, seconds: float, end: str) -> None:
        def run() -> None:
            self.something_ends(end, lose_acks=True)
            self.world.let_pass(seconds)

        self.q.between = run
        self.q.trigger()
        self.q.between = lambda: None

    # -- producers

    @rule(count=st.integers(1, 30), size=BODIES, where=st.integers(0, 2))
    def publish(self, count: int, size: int, where: int) -> None:
        queue = self.queues[where % len(self.queues)]
        for _ in range(count):
            self.numbers += 1
            self._send(queue, f"m{self.numbers}", size)

    @rule(count=st.integers(1, 10))
    def publish_the_same_everywhere(self, count: int) -> None:
        """As an exchange that copies: in each queue it is a message of its own."""
        for _ in range(count):
            self.numbers += 1
            for queue in self.queues:
                self._send(queue, f"m{self.numbers}", 1)

    @rule(data=st.data(), count=st.integers(1, 20), size=BODIES)
    def publish_again(self, data: st.DataObject, count: int, size: int) -> None:
        """A producer whose confirmation was lost sends again; many times, at worst."""
        known = sorted(self.published)[-40:]
        row = data.draw(st.sampled_from(known))
        queue, message_id = self.published[row]
        for _ in range(count):
            # When the second comes after the window has moved on it is a message like any other.
            self.repeated.add(row)
            self._send(queue, message_id, size)

    def _send(self, queue: MemoryQueue, message_id: str, size: int) -> None:
        if self.named:
            queue.publish(bytes(size), message_id)
        else:  # its content is what it is known by
            queue.publish(message_id.ljust(size).encode(), None)
        self.published[self.q.row(queue.name, message_id)] = (queue, message_id)

    # -- the faults

    @rule(how=st.sampled_from(["cut", "half-open", "silent", "one silent", "broker killed"]), lose_acks=st.booleans())
    def something_ends(self, how: str, lose_acks: bool) -> None:
        sessions = [(queue, session) for queue in self.queues for session in queue.sessions]
        if how == "cut":
            self.broker.cut(lose_acks=lose_acks)
        elif how == "half-open":
            self.broker.cut(lose_acks=lose_acks, unnoticed_s=6.0)
        elif how == "broker killed":
            self.broker.kill()
            self.world.at(1.5, self.broker.start)
        else:
            for queue, session in sessions[: 1 if how == "one silent" else None]:
                queue.silence(session, 4.0)

    @rule(seconds=st.sampled_from([0.5, 6.0]))
    def the_broker_stops_for_a_while(self, seconds: float) -> None:
        self.broker.stopped = True
        self.world.at(seconds, self.go_on)

    def go_on(self) -> None:
        self.broker.stopped = False

    @rule(who=st.sampled_from([WORKER, SUPERVISOR]), seconds=st.sampled_from([0.3, 1.0, 7.0, 40.0]))
    def a_thread_of_the_source_has_no_turn(self, who: str, seconds: float) -> None:
        if self.q.source is not None:
            self.q.process.starve(who, seconds)

    @rule(count=st.integers(1, 10), seconds=st.sampled_from([1.0, 30.0]))
    def somebody_else_takes_some(self, count: int, seconds: float) -> None:
        for queue in self.queues:
            queue.take_away(count)
            self.world.at(seconds, queue.bring_back)

    @rule(count=st.integers(1, 10))
    def planned_messages_stay_away_for_too_long(self, count: int) -> None:
        """And turn up after all: they were not emitted, and are new."""
        if self.q.settings.fail_on_data_loss:
            return
        try:
            self.q.trigger(At.AFTER_OFFSET_LOG)
        except Crashed:
            for queue in self.queues:
                queue.take_away(count)
                self.world.at(4 * REPLAY_TIMEOUT_S, queue.bring_back)

    @rule(period_s=st.sampled_from([0.2, 1.0, 3.0]), times=st.integers(2, 8))
    def the_connection_flaps(self, period_s: float, times: int) -> None:
        for number in range(1, times + 1):
            self.world.at(number * period_s, self.broker.cut)

    # -- what always holds

    @invariant()
    def nothing_is_acknowledged_before_its_epoch_is_committed(self) -> None:
        if self.query is None or self.q.settings.guarantee is Guarantee.NONE:
            return
        committed = {key for batch, ids in self.q.sink.items() if batch <= self.q.committed for key in ids}
        if self.q.settings.guarantee is Guarantee.EXACTLY_ONCE:
            rows = [self.q.row(queue.name, message.name) for queue in self.queues for message in queue.acknowledged]
            early = [row for row in rows if row not in committed]
            assert not early, f"acknowledged before commit: {early}"

    @invariant()
    def nothing_is_emitted_twice(self) -> None:
        if self.query is None or self.q.settings.guarantee is not Guarantee.EXACTLY_ONCE:
            return
        twice = [key for key, count in Counter(self.q.emitted).items() if count > 1 and key not in self.repeated]
        assert not twice, f"emitted twice: {twice}"

    @invariant()
    def offsets_and_names_are_bounded(self) -> None:
        if self.query is None:
            return
        assert self.q.offset_bytes < OFFSET_MAX
        newest = max(self.q.offsets, default=None)
        file = "" if newest is None else json.loads(self.q.offsets[newest])["file"]
        if file:
            assert len(decoded(self.q.folder.files[file]).names) < NAMES_MAX

    def teardown(self) -> None:
        if self.query is None:
            return
        self.world.cancel()
        for queue in self.queues:
            queue.faults.rate = queue.faults.link_rate = math.inf
        self.go_on()
        self.broker.start()
        while self.q.process.stopped:
            self.world.let_pass(10.0)
        self.world.let_pass(30.0)  # what is half-open ends
        self.q.drain(GETS_ON_S)
        self.nothing_is_emitted_twice()
        missing = set(self.published) - set(self.q.emitted)
        if self.q.settings.guarantee is not Guarantee.NONE:
            assert not missing, f"lost: {sorted(missing)}"
        if not self.q.shows_start:
            return  # the last epoch stays open
        deadline = self.world.now_s + SETTLES_S
        while self.world.now_s < deadline:
            self.q.trigger()
        counted = self.q.source.counters()
        assert (counted.buffered, counted.unacked, counted.carried) == (0, 0, 0), counted


SourceMachine.TestCase.settings = settings(
    max_examples=part_of(32),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestSource = SourceMachine.TestCase
