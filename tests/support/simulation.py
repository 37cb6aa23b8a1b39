"""A world on one thread: a clock set by hand, processes that can be killed, Spark's side of the protocol.

:class:`World` runs whatever a source has going on beside Spark's calls, step by step, and lets time pass
only when somebody waits. An hour of a query takes a second or two, and the same choices give the same run.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pyarrow as pa

from pyspark_mq.dedup import SeenStore
from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.connections.block import block_schema
from pyspark_mq.sources.connections.worker import Worker
from pyspark_mq.sources.epochs import EpochSource, Position, Run
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.runtime import Runtime, Task
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.folders import ID_FOLDER
from pyspark_mq.spark_source.offset import OffsetCodec
from pyspark_mq.spark_source.offset_log import OffsetLog
from pyspark_mq.spark_source.options import parse_options
from pyspark_mq.spark_source.shown_offset import ShownOffset
from tests.support.engine import At, Crashed
from tests.support.folder import MemoryFolder
from tests.support.memory_broker import MEMORY, PROTOCOL, MemoryBroker, MemoryQueue, MemorySession, MemoryStore
from tests.support.watching import planned

__all__ = ["SUPERVISOR", "WORKER", "Process", "Query", "World", "ids_of", "make_settings"]

QUEUE = "orders"
#: Names of the threads that hold a connection, and of the one that makes blocks for all of them.
SUPERVISOR, WORKER = "pyspark-mq supervisor", "pyspark-mq worker"
#: Smaller than by default, so that few messages meet the limits.
_SIZES = {"maxMessagesPerTrigger": "50", "maxBytesPerTrigger": "16m", "prefetch": "100", "dedupWindow": "1000"}
#: What a query asks for here.
_SCHEMA = block_schema(pa.schema([("messageId", pa.string()), ("body", pa.binary())]))
#: Time passes in steps of this size, or of a fortieth of what is waited for.
_TICK_S = 0.02
_TICKS_MAX = 40
#: Between the end of a process and the begin of the next.
_RESTART_S = 0.5
#: 2026-01-01, for messages that tell when they were sent.
_EPOCH_US = 1_767_225_600_000_000


class World:
    """The clock, the processes, and the events to come."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._processes: list[Process] = []
        self._killed: list[list[_Task]] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._event_numbers = count()
        #: Is a step of somebody under way?
        self.turning = False

    def process(self) -> Process:
        """A process of its own."""
        process = Process(self)
        self._processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """Stop it: it does nothing any more."""
        self._processes.remove(process)
        # Whatever is let go of would clean up, which nobody does who is killed.
        self._killed.append(process.tasks)
        process.tasks = []
        process.killed = True

    def at(self, seconds: float, event: Callable[[], object]) -> None:
        """Let something happen after this long."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._event_numbers), event))

    def cancel(self) -> None:
        """Cancel what is to come: what was to happen happens now."""
        events, self._events = self._events, []
        for _, _, event in sorted(events, key=lambda entry: entry[:2]):
            event()

    def let_pass(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass while everything goes on; less if a condition comes to hold."""
        if self.turning:
            return  # whoever is inside of a step cannot wait for the world
        deadline = self.now_s + seconds
        tick = max(_TICK_S, seconds / _TICKS_MAX)
        while True:
            self._turn()
            if until() or self.now_s >= deadline:
                return
            self.now_s = min(deadline, self.now_s + tick)

    def _turn(self) -> None:
        self.turning = True
        try:
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[-1]()
            for process in self._processes[::-1]:
                for task in list(process.tasks):
                    if not process.stopped:
                        task.step(self.now_s)
        finally:
            self.turning = False


class Process(Runtime):
    """A runtime whose tasks end with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tasks: list[_Task] = []
        self.killed = False
        #: Stopped until then (`SIGSTOP`), and for how long so far.
        self._stopped_until_s = 0.0
        self._stood_s = 0.0
        #: Called when what was written is to be on the disks.
        self.synced: Callable[[], object] = lambda: None

    def stop(self, seconds: float) -> None:
        """``SIGSTOP``, and ``SIGCONT`` after so long: it does nothing meanwhile, and its clock stands still."""
        before_s = max(self._stopped_until_s, self.world.now_s)
        self._stopped_until_s = max(before_s, self.world.now_s + seconds)
        self._stood_s += self._stopped_until_s - before_s

    @property
    def stopped(self) -> bool:
        return self.world.now_s < self._stopped_until_s

    def starve(self, name: str, seconds: float, most: int | None = None) -> None:
        """Threads of that name, or so many of them, have no turn for so long; others go on, and the clock does."""
        for task in [task for task in self.tasks if task.name == name][:most]:
            task.starved_until_s = max(task.starved_until_s, self.world.now_s + seconds)

    def monotonic_s(self) -> float:
        return max(self.world.now_s, self._stopped_until_s) - self._stood_s

    def machine_s(self) -> float:
        return self.world.now_s

    def utc_us(self) -> int:
        return _EPOCH_US + int(self.world.now_s * 1e6)

    def sync(self) -> None:
        self.synced()

    def sleep(self, seconds: float) -> None:
        self.world.let_pass(seconds)
        self._live()

    def wait(self, event: threading.Event, seconds: float) -> None:
        self.world.let_pass(seconds, event.is_set)
        self._live()

    def _live(self) -> None:
        while self.stopped and not self.killed and not self.world.turning:
            self.world.let_pass(self._stopped_until_s - self.world.now_s)
        if self.killed:
            raise Crashed

    def jitter(self) -> float:
        return 0.75

    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Task:
        task = _Task(self, name, life, interrupt)
        self.tasks.append(task)
        return task


class _Task(Task):
    def __init__(self, process: Process, name: str, life: Iterator[float], interrupt: threading.Event) -> None:
        self.name = name
        self.starved_until_s = 0.0
        self._process = process
        self._life = life
        self._interrupt = interrupt
        self._due_s = 0.0
        self._done = False

    def step(self, now_s: float) -> None:
        if self._done or now_s < self.starved_until_s or (now_s < self._due_s and not self._interrupt.is_set()):
            return
        try:
            self._due_s = now_s + next(self._life)
        except StopIteration:
            self._done = True

    def join(self, timeout_s: float) -> None:
        self._process.world.let_pass(timeout_s, lambda: self._done)


def make_settings(**changes: Any) -> Settings:
    """Settings of a query on the queue in memory; on several with `queues`. Sizes are small, the rest is by default."""
    queue = ",".join(changes.get("queues") or (QUEUE,))
    settings = parse_options({"broker": "rabbitmq", "url": "amqp://memory:5672/", "queue": QUEUE, **_SIZES}).settings
    endpoint = replace(settings.endpoint, broker=MEMORY, protocol=PROTOCOL, queue=queue)
    endpoint = replace(endpoint, **{name: changes.pop(name) for name in list(changes) if hasattr(endpoint, name)})
    return replace(settings, **{"endpoint": endpoint, **changes})


def ids_of(runs: Sequence[Run]) -> list[str]:
    """Column `messageId` of what an epoch emits."""
    return [found for run in runs for found in run.rows.values("messageId")]


def _identities(run: Run) -> list[str]:
    """The ID of each row, or its body where it has none."""
    pairs = zip(run.rows.values("messageId"), run.rows.values("body"), strict=True)
    return [body.decode().strip() if found is None else found for found, body in pairs]


def only(source: EpochSource) -> QueueReader:
    """The queue of a source that reads one."""
    (queue,) = source._queues
    return queue


class _Log(OffsetLog):
    """Spark's log of a query in memory."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def _newest_first(self) -> Iterator[tuple[int, bytes]]:
        return ((batch, self._query.offsets[batch].encode()) for batch in sorted(self._query.offsets, reverse=True))


@dataclass
class Query:
    """A query: what survives a crash of it (logs, sink), and the source that does not.

    Attributes:
        id_log: folder for the files of the journal; one in memory if None.
        place: is there one at all? A lower guarantee needs none.
        shows_start: Spark 4.2 and later. Before, the source remembers which offset was shown, and the first plan of a
            process may be all of a run.
        sink: batch -> IDs of its rows, written once.
    """

    world: World
    broker: MemoryBroker
    settings: Settings
    store: MemoryStore | None = None
    shows_start: bool = True
    id_log: str | None = None
    place: bool = True
    sink: dict[int, list[str]] = field(default_factory=dict)
    crashes: int = 0

    def __post_init__(self) -> None:
        self.offsets: dict[int, str] = {}
        self.committed = -1
        self.replays = 0
        self.folder = MemoryFolder()
        self._codec = self._make_codec()
        self._process: Process | None = None
        self._source: EpochSource | None = None
        self._asked = False
        self._shown = ShownOffset("the query")
        self._stores: dict[str, MemoryStore] = {}
        self._consumers: type[MemorySession] | None = None
        #: Told of Spark's calls and writes, for tests/support/traces.py.
        self.trace: Callable[..., object] = lambda *_: None
        #: Called after the offset log was written and before the batch runs.
        self.between: Callable[[], object] = lambda: None
        #: While Spark runs an epoch.
        self.running: Callable[[], object] = lambda: None

    @property
    def process(self) -> Process:
        """The one that lives."""
        assert self.source is not None
        assert self._process is not None
        return self._process

    @property
    def queue(self) -> MemoryQueue:
        """The only one."""
        (queue,) = self.queues
        return queue

    @property
    def queues(self) -> list[MemoryQueue]:
        """What it reads."""
        if self.settings.pattern is not None:
            return [queue for name, queue in self.broker.queues.items() if re.fullmatch(self.settings.pattern, name)]
        return [self.broker.declare(one.endpoint.name) for one in self.settings.by_queue()]

    @property
    def source(self) -> EpochSource:
        """The source of this process, made when it is first asked for."""
        if self._source is None:
            self._process = self.world.process()
            self._consumers = type("QuerySession", (MemorySession,), {"broker": self.broker})
            make_store = None if self.store is None else self._store_of
            self._source = EpochSource(
                self.settings, self._worker(), make_store, self._process, self._list_queues,
                files=self._codec.log,
            )  # fmt: skip
            self._asked = False
            # Before Spark 4.2 a process begins with the partitions between the newest logged offset and itself.
            self._shown = ShownOffset("the query")
            if self.offsets:
                newest = self._offset(max(self.offsets))
                self._shown.show(newest, newest)
            self.trace("start", self._source)
        return self._source

    def _make_codec(self) -> OffsetCodec:
        codec = OffsetCodec.of(self.settings, (self.id_log or f"/memory/{ID_FOLDER}") if self.place else None)
        if codec.log is not None and self.id_log is None:
            codec.log._folder = self.folder
        if codec.log is not None and codec.log.offsets is not None:
            codec.log.offsets = _Log(self)
        return codec

    def _worker(self) -> Worker:
        consumers = self._consumers
        assert consumers is not None
        assert self._process is not None
        return Worker(lambda _: consumers, _SCHEMA, self._process)

    def _list_queues(self) -> list[str]:
        if not self.broker.up:
            raise BrokerUnavailableError("nobody there")
        return list(self.broker.queues)

    def _store_of(self, queue: Settings) -> SeenStore:
        assert self.store is not None, "asked for only where there is one"
        if not self._several:
            return self.store
        return self._stores.setdefault(queue.endpoint.name, MemoryStore(50))

    def crash(self, unnoticed_s: float = 0.0) -> None:
        """``kill -9`` of its process; or of its machine, which the broker notices later."""
        if self._process is None or self._consumers is None:
            return
        self.crashes += 1
        self.world.kill(self._process)
        self.trace("crash")
        for queue in self.broker.queues.values():
            for session in list(queue.sessions):
                if isinstance(session.consumer, self._consumers):
                    queue.end(session, "killed", unnoticed_s=unnoticed_s)
        self._process = self._source = self._consumers = None
        self._codec = self._make_codec()
        self.world.let_pass(_RESTART_S)

    def position(self, batch: int) -> Position:
        """The end of a batch, as Spark shows it; of -1, the beginning."""
        if batch < 0:
            return self.source.initial()
        position = self._codec.decode(self._offset(batch))
        if self._codec.log is not None:
            self._codec.log.show(position.file)
        return position

    def _offset(self, batch: int) -> dict[str, Any]:
        """The same, as Spark has it."""
        return self._codec.encode(Position(0)) if batch < 0 else json.loads(self.offsets[batch])

    def bound(self) -> None:
        """`Trigger.AvailableNow` begins."""
        self.source.bound()

    def run_available(self, crash: At | None = None) -> int:
        """A run with `Trigger.AvailableNow`, in a process of its own; how many rows it had.

        Args:
            crash: its first trigger fails there.
        """
        rows, before = 0, None
        with contextlib.suppress(Crashed):
            self.bound()
            while before != self.committed:
                before = self.committed
                rows += self.trigger(crash)
        self.crash()
        return rows

    def trigger_once(self) -> int:
        """A run with `Trigger.Once`, in a process of its own; how many rows it had."""
        rows = self.trigger(once=True)
        self.crash()
        return rows

    def trigger(self, crash: At | None = None, *, once: bool = False) -> int:
        """One trigger; how many rows it had.

        Args:
            crash: where it is killed.
            once: by `Trigger.Once`, which asks for all there is.

        Raises:
            Crashed: it was killed where `crash` says.
        """
        batch = self.committed + 1
        former = batch in self.offsets
        if not former:
            if not self._plan(batch, crash, None if once else self.settings.max_messages):
                return 0
            self._die_if(crash, At.AFTER_OFFSET_LOG)
        else:
            self.replays += 1
        self.between()
        start, end = self.position(batch - 1), self.position(batch)
        self._shown.show(self._offset(batch - 1), self._offset(batch))
        if self.source is not None and (former or batch == 0):
            self.trace("replay" if former else "run")
        ids = [self.row(run.name, found) for run in self.source.payload(start, end) for found in _identities(run)]
        self.running()
        if batch in self.sink and self.settings.guarantee.identifies:
            assert self.sink[batch] == ids, "the replay is not the same batch"
        self.sink.setdefault(batch, ids)
        self.trace("sink", ids)
        self._die_if(crash, At.AFTER_SINK)
        self.committed = batch
        self.trace("commit")
        self._die_if(crash, At.AFTER_COMMIT_LOG)
        return len(ids)

    def _plan(self, batch: int, crash: At | None, most: int | None) -> bool:
        source = self.source
        self.trace("latest")
        alone, self._asked = not self.shows_start and not self._asked, True
        start = self.position(batch - 1)
        ends: list[Position] = []

        def plan(shown: dict[str, Any]) -> dict[str, Any]:
            assert shown == self._offset(batch - 1), "the offset shown last is not the committed one"
            ends.append(source.latest(start, most, alone=alone))
            return self._codec.encode(ends[0])

        answer = (
            plan(self._offset(batch - 1)) if self.shows_start else self._shown.latest(lambda: self._offset(-1), plan)
        )
        (end,), offset = ends, json.dumps(answer)
        if end == start:
            self.trace("nothing")
            return False
        if offset == self.offsets.get(batch - 1):
            self.trace("nothing")
            return False  # Spark compares text
        self._die_if(crash, At.BEFORE_OFFSET_LOG)
        self.offsets[batch] = offset
        if self.settings.guarantee.identifies:
            self.trace("plan", planned(source, end))
        if batch > 0:
            self.trace("run")
            self.source.commit(start)
        return True

    def _die_if(self, wanted: At | None, here: At) -> None:
        if wanted is here:
            self.crash()
            raise Crashed

    def drain(self, seconds: float = 600.0) -> None:
        """Trigger until nothing is in the queue and nothing new comes.

        Raises:
            AssertionError: it did not get on in that time.
        """
        deadline = self.world.now_s + seconds
        while self.trigger() or self.left:
            counts = [self.broker.counts(queue.name) for queue in self.queues]
            assert self.world.now_s < deadline, f"stuck: {self.source.counters()}, {counts}"

    @property
    def left(self) -> int:
        """Messages in the queue that have no reason to be there."""
        return sum(len(queue.ready) + len(queue.handed_out) for queue in self.queues)

    @property
    def _several(self) -> bool:
        return bool(self.settings.queues) or self.settings.pattern is not None

    def row(self, queue: str, found: str | None) -> str:
        """What stands for a message in the sink: its ID, and where it was if there are several queues."""
        return f"{found} of {queue}" if self._several else str(found)

    @property
    def emitted(self) -> list[str]:
        """IDs of all rows in the sink, in order; see :meth:`row`."""
        return [key for batch in sorted(self.sink) for key in self.sink[batch]]

    @property
    def offset_bytes(self) -> int:
        """Size of the newest offset."""
        return len(self.offsets[max(self.offsets)]) if self.offsets else 0
