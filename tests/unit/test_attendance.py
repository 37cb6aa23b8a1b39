"""What another process has received and not handed over yet: nothing is concluded from its not being there.

The pool here has no processes. Its receivers run in the simulation, and a porter that can be stopped is between them
and the query: the protocol of :mod:`pyspark_mq.sources.processes`, on a clock that is turned by hand.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.base import Consumer, Decoder, QueueDepth, drained
from pyspark_mq.sources.epochs import EpochSource, Limit, Position
from pyspark_mq.sources.processes.chunk import ChunkDecoder, encode, open_chunk, write_file
from pyspark_mq.sources.receiver import Failed, Lost, Mailbox, Opened, Receiver, Terms
from pyspark_mq.sources.settings import Settings
from tests.support.memory import MemoryBroker, MemoryDecoder, memory_consumer
from tests.support.simulation import QUEUE, Process, Query, World, make_settings, only

#: As in a receiver process: it tells how things stand ten times a second, and half a second is a break.
WORD_S = 0.1
BREAK_S = 0.5


class Stand:
    """Stands for a session behind the porter."""

    def __init__(self, consumer: Consumer, now_s: float) -> None:
        self._consumer = consumer
        self.inbox: deque[Any] = deque()
        self.attended = (0, now_s)
        self.paused = self.behind = False
        self.starved: bool | None = None
        self.bytes_taken = 0
        self.bytes_allowed = float("inf")

    @property
    def session(self) -> int:
        return self._consumer.session


class PortedReceiver:
    """A receiver, and the porter between it and the query."""

    def __init__(self, pool: Pool, receiver: Receiver, inside: Mailbox, outside: Mailbox) -> None:
        self._pool = pool
        self._receiver, self._inside, self._outside = receiver, inside, outside
        self._stand: Stand | None = None
        self._consumer: Consumer | None = None
        self._rounds_s = pool.process.monotonic_s()
        self._breaks = 0
        self.depth: QueueDepth | None = None
        self.depth_at_s = -float("inf")
        self.ask, self.stop = receiver.ask, receiver.stop

    def start(self) -> None:
        self._receiver.start()
        self._pool.process.spawn("porter", self._life(), threading.Event())

    def _life(self) -> Iterator[float]:
        while True:
            if self._pool.process.monotonic_s() >= self._pool.stopped_until_s:
                self._round()
            yield WORD_S

    def _round(self) -> None:
        now_s = self._pool.process.monotonic_s()
        self._breaks += now_s - self._rounds_s > BREAK_S
        self._rounds_s = now_s
        for letter in self._inside.take():
            if isinstance(letter, Opened):
                assert isinstance(letter.consumer, Consumer)
                self._consumer, self._stand = letter.consumer, Stand(letter.consumer, now_s)
                self._outside.put(Opened(self, self._stand, letter.greeting, letter.window))
                continue
            if isinstance(letter, Lost):
                self._consumer = self._stand = None
            assert not isinstance(letter, Failed), letter
            self._outside.put(letter)
        if self._stand is not None and self._consumer is not None:
            broke_off = self._stand.attended[0] != self._breaks
            if not (broke_off and self._pool.reads_late):
                raws = drained(self._consumer.inbox)
                if raws:
                    self._stand.inbox.extend(self._pool.handed_over(raws))
                    self._outside.arrived.set()
            self._stand.attended = (self._breaks, now_s)
        self.depth, self.depth_at_s = self._receiver.depth, self._receiver.depth_at_s


class Pool:
    """Receivers whose porters can be stopped.

    Attributes:
        reads_late: the first round after a stop finds nothing: what came is in the socket yet.
    """

    def __init__(self, process: Process, broker: MemoryBroker) -> None:
        self.process = process
        self.decoder: Decoder = MemoryDecoder()
        self.stopped_until_s = 0.0
        self.reads_late = False
        self._make = memory_consumer(broker)

    def receiver(self, settings: Settings, mailbox: Mailbox, terms: Callable[[], Terms]) -> PortedReceiver:
        inside = Mailbox()
        receiver = Receiver(settings.endpoint, self._make, inside, terms, self.process)
        return PortedReceiver(self, receiver, inside, mailbox)

    def handed_over(self, raws: list[Any]) -> list[Any]:
        """What the query gets of deliveries."""
        return raws


class ChunkPool(Pool):
    """Deliveries come in chunks, as from a real process."""

    def __init__(self, process: Process, broker: MemoryBroker) -> None:
        super().__init__(process, broker)
        self.decoder = ChunkDecoder()

    def handed_over(self, raws: list[Any]) -> list[Any]:
        message, books = encode(MemoryDecoder(), raws, IdSource("message-id"), ())
        return list(open_chunk(books, write_file([memoryview(message)]), ()).raws)


class Scene:
    """A query whose deliveries come through a pool."""

    def __init__(self, make_pool: type[Pool] = Pool, **settings: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process())
        self.queue = self.broker.declare(QUEUE)
        self.query = Query(self.world, self.broker, make_settings(**settings))
        process = self.world.process()
        self.pool = make_pool(process, self.broker)
        make = memory_consumer(self.broker)
        self.query._process, self.query._consumers = process, make  # type: ignore[assignment]
        self.query._source = EpochSource(self.query.settings, make, None, process, pool=self.pool)
        self.sent: list[str] = []

    def publish(self, count: int) -> None:
        ids = [f"id-{len(self.sent) + number}" for number in range(count)]
        for key in ids:
            self.queue.publish(bytes(10), key)
        self.sent += ids

    def trigger_for(self, seconds: float) -> None:
        until = self.world.now_s + seconds
        while self.world.now_s < until:
            self.query.trigger()
            self.world.let_pass(0.1)

    def assert_exactly_once(self) -> None:
        self.query.drain()
        assert sorted(self.query.emitted) == sorted(self.sent)

    @property
    def carried(self) -> int:
        return self.query.source.counters().carried


def stopped_with_what_comes_again(scene: Scene) -> None:
    """Everything committed comes again in a new session, and the porter stops before it has handed it over."""
    scene.publish(20)
    scene.query.trigger()
    scene.queue.weather.acks_s = 1_000.0
    scene.query.trigger()  # acknowledges, and it does not arrive
    scene.broker.cut()
    scene.queue.weather.acks_s = 0.0
    scene.queue.weather.rate = 0.0
    scene.trigger_for(0.5)  # the session opens, and the broker hands out nothing yet
    assert only(scene.query.source).sessions.complete
    scene.pool.stopped_until_s = scene.world.now_s + 60.0
    scene.queue.weather.rate = 1e6


@pytest.mark.parametrize("reads_late", [False, True])
@pytest.mark.parametrize("looks", [False, True])
def test_ids_are_carried_while_what_comes_again_is_on_its_way(looks: bool, reads_late: bool) -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    scene.pool.reads_late = reads_late
    stopped_with_what_comes_again(scene)
    if looks:
        scene.trigger_for(59.0)
        assert scene.carried >= 19  # a broker that hands out next to nothing has handed out one
    else:
        scene.world.let_pass(59.0)  # Spark is busy with an epoch
    scene.trigger_for(30.0)
    scene.assert_exactly_once()
    assert scene.query.source.counters().duplicates_dropped == 20


def test_ids_are_not_carried_for_ever() -> None:
    scene = Scene(max_messages=20, prefetch=40, dedup_window=0)
    stopped_with_what_comes_again(scene)
    scene.trigger_for(120.0)
    assert scene.carried == 0
    for _ in range(10):
        scene.publish(5)
        scene.trigger_for(1.0)
    scene.assert_exactly_once()


def test_a_bounded_run_does_not_end_while_its_messages_are_on_their_way() -> None:
    scene = Scene(max_messages=20, prefetch=40)
    scene.queue.weather.rate = 0.0
    scene.publish(20)
    scene.query.bound()
    scene.pool.stopped_until_s = scene.world.now_s + 10.0
    scene.queue.weather.rate = 1e6
    assert scene.query.trigger() == 20


def test_time_goes_no_further_than_the_last_word() -> None:
    scene = Scene(prefetch=40)
    scene.publish(5)
    scene.trigger_for(5.0)
    lane = only(scene.query.source)
    intake, sessions = lane.intake, lane.sessions
    assert not sessions.late
    steady_s = intake.steady_s
    assert steady_s > 4
    scene.pool.stopped_until_s = scene.world.now_s + 20.0
    scene.trigger_for(19.0)
    assert sessions.late
    assert intake.steady_s < steady_s + 0.5
    scene.trigger_for(3.0)
    assert not sessions.late
    # A break is a new beginning.
    assert intake.steady_s < 3


def plan(scene: Scene, start: Position) -> Position:
    """The next epoch, when there is one."""
    end = start
    while end == start:
        end = scene.query.source.latest(start, Limit(10_000))
    return end


@pytest.mark.parametrize("new", [3, 900])
def test_what_was_dropped_takes_no_room_for_as_long_as_what_came_with_it(new: int) -> None:
    scene = Scene(ChunkPool, max_messages=10_000, prefetch=20_000)
    source = scene.query.source
    scene.publish(1_000)
    first = plan(scene, source.initial())
    (run,) = source.payload(source.initial(), first)
    assert len(run.raws) == 1_000
    scene.queue.weather.acks_s = 1_000.0
    source.commit(first)  # acknowledges, and it does not arrive
    scene.broker.cut()
    scene.publish(new)
    second = plan(scene, first)
    ((_, raws),) = source.payload(first, second)
    assert source.message_ids(raws) == scene.sent[1_000:]
    assert source.counters().duplicates_dropped == 1_000
    chunks = {id(chunk): chunk for chunk, _ in raws}
    assert sum(map(len, chunks.values())) <= 2 * new + 200
