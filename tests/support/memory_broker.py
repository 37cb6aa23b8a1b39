"""A queue in memory, with the faults of real brokers, and the consumer that reads it. No network.

It is one more matrix entry of the contract tests and of the failure matrix, so what it claims of brokers is checked by
the tests that real brokers pass. What it is for: runs of the whole source through hours of faults in a moment, in any
order, again and again (tests/property/test_source_machine.py), on a clock that is passed in.

It behaves as real brokers were measured to: what the end of a session gave back comes before what
nobody was handed yet, in its old order; a session whose end the broker has not noticed keeps its
messages; a broker that is killed may have forgotten the acknowledgements of the last moments; each delivery that
comes back counts towards a delivery limit. Where brokers differ it is a setting of :class:`Faults`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_mq.brokers.base import Broker, Listing
from pyspark_mq.decode.batch import Column, DeliveryBatch, Unreadable
from pyspark_mq.dedup import IdSource, Key, SeenStore, content_digest
from pyspark_mq.errors import BrokerUnavailableError, DestinationError
from pyspark_mq.sources.connections.session import Greeting, QueueDepth, Session, SessionLostError
from pyspark_mq.sources.runtime import Runtime, Threads
from pyspark_mq.wire.url import BrokerUrl
from testbed.brokers.node import QueueCounts

__all__ = [
    "MEMORY",
    "PROTOCOL",
    "Faults",
    "MemoryBatch",
    "MemoryBroker",
    "MemoryQueue",
    "MemorySession",
    "MemoryStore",
    "memory_session",
]  # fmt: skip

PROTOCOL = "memory"
_MOST = 100_000
#: How long a look for something new waits at a time: what depends on time alone wakes nobody.
_LOOK_S = 0.02
_HEARTBEATS_MISSED = 2.5

MEMORY = Broker(
    name="memory",
    protocols=MappingProxyType({"amqp": (PROTOCOL,)}),
    epoch_messages=50_000,
    prefetch_max=MappingProxyType({PROTOCOL: _MOST}),
    selectors=False,
    virtual_hosts=False,
    durable_topics=frozenset(),
    shared_topics=frozenset(),
    counts_session_ends=True,
    delays_session_returns=True,
    half_open_s=MappingProxyType({PROTOCOL: 30.0}),
    ids_by_protocol=False,
    proves_new=True,
    delivery_limit_note="a message that was handed out too often is dead-lettered",
    listing=Listing(url="http://host"),
)


@dataclass
class Faults:
    """What kind of a broker it is, and how it is doing. May be changed at any time.

    Attributes:
        acks_s: how long an acknowledgement is on its way to the broker.
        confirms_s: how long the confirmation of one is on its way back.
        forgets_s: a broker that is killed has forgotten the acknowledgements of this many seconds.
        tells_depth: does it report how many messages wait, and how many consumers there are?
        delivery_limit: a message that came back more often is dead-lettered; None for no limit.
        shuffles: what comes back comes in any order.
        delay_s: what comes back is held for this long, times the number of its deliveries ...
        delay_max_s: ... and no longer than this.
        half_open_s: how long the end of a connection may go unnoticed.
        hides_lost: consumers whose end it has not noticed are not counted, and it is known for that.
        rate: messages handed out in a second.
        link_rate: messages that arrive in a second; the others are on their way, and so is what the broker answers
            behind them.
        flags: are all deliveries flagged as redelivered, or none? None for those that are.
        ahead_s: how far the clock of producers is ahead; None if messages have no timestamp.
        single_active: does one consumer get all messages, and the others wait?
    """

    acks_s: float = 0.0
    confirms_s: float = 0.0
    forgets_s: float = 0.5
    tells_depth: bool = True
    delivery_limit: int | None = None
    shuffles: bool = False
    delay_s: float = 0.0
    delay_max_s: float = float("inf")
    half_open_s: float = 2.0
    hides_lost: bool = False
    rate: float = float("inf")
    link_rate: float = float("inf")
    flags: bool | None = None
    ahead_s: float | None = 0.0
    single_active: bool = False


@dataclass(eq=False)
class Message:
    """One message; `number` is its place in the queue."""

    number: int
    id: str | None
    body: bytes
    headers: Mapping[str, str | None] = field(default_factory=dict)
    priority: int = 0
    published_us: int | None = 0
    expires_s: float = float("inf")
    deliveries: int = 0
    available_s: float = 0.0
    rank: float = 0.0
    #: Why it cannot be decoded.
    odd: str = ""

    @property
    def name(self) -> str:
        """What tests know it by: its ID, or its body."""
        return self.body.decode().strip() if self.id is None else self.id


class Raw(NamedTuple):
    """A delivery as the consumer hands it on."""

    tag: int
    message: Message
    redelivered: bool
    deliveries: int


class MemoryBatch(DeliveryBatch):
    """Deliveries of a session, in order."""

    def __init__(self, raws: Sequence[Raw]) -> None:
        self.raws, self.tags = raws, np.array([raw.tag for raw in raws], np.int64)
        self.unreadable = {
            place: Unreadable(raw.tag, {}, raw.message.body, raw.message.odd)
            for place, raw in enumerate(raws)
            if raw.message.odd
        }

    @classmethod
    def of(cls, items: Sequence[Any]) -> MemoryBatch:
        return cls([raw for item in items for raw in (item.raws if isinstance(item, MemoryBatch) else (item,))])

    @classmethod
    def size(cls, raw: Raw) -> int:
        return len(raw.message.body) + len(raw.message.id or "")

    def taken(self, places: Any) -> MemoryBatch:
        return type(self)([self.raws[place] for place in places.tolist()])

    @property
    def sizes(self) -> Any:
        return np.array(list(map(self.size, self.raws)), np.int64)

    def body(self) -> pa.Array:
        return pa.array([raw.message.body for raw in self.raws], pa.binary())

    def ids(self, source: IdSource) -> list[object]:
        if source.kind == "property":
            return [raw.message.headers.get(source.name) for raw in self.raws]
        return [raw.message.id for raw in self.raws]

    def digests(self) -> list[bytes]:
        headers = [repr(sorted(raw.message.headers.items())).encode() for raw in self.raws]
        return [content_digest(named, raw.message.body) for named, raw in zip(headers, self.raws, strict=True)]

    def not_redelivered(self) -> list[bool]:
        return [not raw.redelivered for raw in self.raws]

    columns: ClassVar[Mapping[str, Column]] = MappingProxyType(
        {
            "properties": lambda batch: [list(raw.message.headers.items()) for raw in batch.raws],
            **dict.fromkeys(
                ("correlationId", "replyTo", "contentType", "type", "expiration"), lambda batch: batch.nothing()
            ),
            "priority": lambda batch: [raw.message.priority for raw in batch.raws],
            "timestamp": lambda batch: [raw.message.published_us for raw in batch.raws],
            "redelivered": lambda batch: [raw.redelivered for raw in batch.raws],
            "deliveryCount": lambda batch: [raw.deliveries + 1 for raw in batch.raws],
        }
    )


class _Session:
    """One session as the broker sees it."""

    def __init__(self, consumer: MemorySession, queue: MemoryQueue) -> None:
        self.consumer = consumer
        self.queue = queue
        self.window = 0
        self.tag = 0
        self.cancelled = False
        self.unacked: dict[int, Message] = {}
        #: When it arrives, and what.
        self.to_client: deque[tuple[float, Raw]] = deque()
        self.arrives_s = -float("inf")
        self.to_broker: deque[tuple[float, Callable[[float], None]]] = deque()
        self.confirmations: deque[tuple[float, int]] = deque()
        self.depth_asked = False
        #: What the client will find out: why it ended.
        self.ended: str | None = None
        self.silent_since_s: float | None = None


class MemoryQueue:
    """One queue of a :class:`MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.faults = Faults()
        #: The user may not read it.
        self.refused = False
        self.sessions: list[_Session] = []
        #: Sessions whose end the broker has not noticed, and when it will.
        self.ghosts: list[tuple[float, _Session]] = []
        self.dead_letters: list[Message] = []
        #: IDs whose acknowledgement the broker took.
        self.acknowledged: list[Message] = []
        self._recent: deque[tuple[float, Message]] = deque()
        self._ready: list[tuple[float, float, int, Message]] = []
        self._held_elsewhere: list[Message] = []
        self._turn_s = 0.0
        self._may_hand_out = 0.0
        self._numbers = itertools.count()

    # -- messages

    def publish(
        self,
        body: bytes,
        id: str | None,  # noqa: A002
        headers: Mapping[str, str | None] | None = None,
        priority: int = 0,
        expires_s: float | None = None,
    ) -> None:
        now = self.broker.now_s
        message = Message(next(self._numbers), id, body, headers or {}, priority)
        ahead_s = self.faults.ahead_s
        message.published_us = None if ahead_s is None else self.broker.runtime.utc_us() + int(ahead_s * 1e6)
        message.rank = message.number
        if expires_s is not None:
            message.expires_s = now + expires_s
        self._put(message)

    def _put(self, message: Message) -> None:
        heapq.heappush(self._ready, (-message.priority, message.rank, message.number, message))

    def _give_back(self, message: Message, now: float) -> None:
        """Whatever was handed out and not acknowledged."""
        message.deliveries += 1
        faults = self.faults
        if faults.delivery_limit is not None and message.deliveries > faults.delivery_limit:
            self.dead_letters.append(message)
            return
        message.available_s = now + min(faults.delay_s * message.deliveries, faults.delay_max_s)
        if faults.shuffles:
            message.rank = self.broker.chance.uniform(0, message.number + 1)
        self._put(message)

    @property
    def ready(self) -> list[Message]:
        """What waits, in order."""
        return [entry[-1] for entry in sorted(self._ready, key=lambda entry: entry[:3])]

    @property
    def handed_out(self) -> list[Message]:
        """What sessions hold, also those whose end was not noticed, and what others hold."""
        held = [session for _, session in self.ghosts] + self.sessions
        return [message for session in held for message in session.unacked.values()] + self._held_elsewhere

    def purge(self) -> None:
        self._ready.clear()

    def take_away(self, count: int, among: Callable[[Message], bool] = lambda _: True) -> None:
        """Another consumer is handed the next messages, or the next of some."""
        left = []
        while self._ready and count:
            entry = heapq.heappop(self._ready)
            if among(entry[-1]):
                self._held_elsewhere.append(entry[-1])
                self.broker.trace("depart", self, [entry[-1]])
                count -= 1
            else:
                left.append(entry)
        for entry in left:
            heapq.heappush(self._ready, entry)

    def bring_back(self) -> None:
        """The other consumer goes without acknowledging any."""
        self.broker.trace("return", self, self._held_elsewhere)
        for message in self._held_elsewhere:
            self._give_back(message, self.broker.now_s)
        self._held_elsewhere.clear()

    # -- sessions

    def end(self, session: _Session, why: str, *, unnoticed_s: float = 0.0, lose_acks: bool = True) -> None:
        """A session ends; its client finds out when it looks next, the broker maybe later.

        Args:
            unnoticed_s: the broker takes it for alive for this much longer.
            lose_acks: what was on its way to the broker is gone.
        """
        now = self.broker.now_s
        if not lose_acks:
            self._take_in(session, float("inf"))
        session.ended = why
        session.to_client.clear()
        session.to_broker.clear()
        session.confirmations.clear()
        if session in self.sessions:
            self.sessions.remove(session)
            if unnoticed_s:
                self.ghosts.append((now + unnoticed_s, session))
            else:
                self._release(session, now)
        session.consumer.wake()

    def silence(self, session: _Session, unnoticed_s: float) -> None:
        """Nothing gets through any more, and neither side knows."""
        session.silent_since_s = self.broker.now_s
        session.to_client.clear()
        session.to_broker.clear()
        session.confirmations.clear()
        self.sessions.remove(session)
        self.ghosts.append((self.broker.now_s + unnoticed_s, session))

    def _release(self, session: _Session, now: float) -> None:
        for message in session.unacked.values():
            self._give_back(message, now)
        session.unacked = {}

    def killed(self) -> None:
        """The broker's process is gone."""
        now = self.broker.now_s
        for session in [*self.sessions, *(ghost for _, ghost in self.ghosts)]:
            self.end(session, "the broker was killed")
            self._release(session, now)
        self.ghosts.clear()
        forgotten = [message for at, message in self._recent if now - at < self.faults.forgets_s]
        self._recent.clear()
        self.broker.trace("kill", self, forgotten)
        for message in forgotten:
            self.acknowledged.remove(message)
            self._give_back(message, now)

    def depth(self, asking: _Session | None) -> QueueDepth:
        """What a session is told."""
        known = [session for session in self.sessions if not session.cancelled and session.window]
        hides = self.faults.hides_lost
        known += [ghost for _, ghost in self.ghosts if not ghost.cancelled and ghost.window and not hides]
        others = [session for session in known if session is not asking]
        count = len(others) + bool(self._held_elsewhere)
        return QueueDepth(len(self._ready), count, len(known) - len(others))

    # -- one moment

    def step(self) -> None:
        """Everything the broker can do by now."""
        now = self.broker.now_s
        while self._recent and now - self._recent[0][0] >= self.faults.forgets_s:
            self._recent.popleft()
        noticed = [(until, ghost) for until, ghost in self.ghosts if until <= now]
        self.ghosts = [(until, ghost) for until, ghost in self.ghosts if until > now]
        for until, ghost in noticed:
            # It did then, by its own clock, also if nobody has looked since.
            self._release(ghost, until)
        for session in self.sessions:
            self._take_in(session, now)
        self._hand_out(now)

    def _take_in(self, session: _Session, now: float) -> None:
        while session.to_broker and session.to_broker[0][0] <= now:
            _, request = session.to_broker.popleft()
            request(self.broker.now_s)

    def _hand_out(self, now: float) -> None:
        later: list[tuple[float, float, int, Message]] = []
        turn = 0
        # What it could have handed out while nobody wanted it is not saved up.
        self._may_hand_out = min(self._may_hand_out, 1.0) + self.faults.rate * max(now - self._turn_s, 1e-9)
        self._turn_s = now
        served = [session for session in self.sessions if not session.cancelled and session.window]
        if self.faults.single_active:
            served = served[:1]
        while self._ready and self._may_hand_out >= 1:
            open_ = [session for session in served if len(session.unacked) < session.window]
            if not open_:
                break
            entry = heapq.heappop(self._ready)
            message = entry[-1]
            if message.expires_s <= now:
                continue
            if message.available_s > now:
                later.append(entry)
                continue
            session = open_[turn % len(open_)]
            turn += 1
            self._may_hand_out -= 1
            session.tag += 1
            session.unacked[session.tag] = message
            session.arrives_s = max(now, session.arrives_s) + 1 / self.faults.link_rate
            again = message.deliveries > 0 if self.faults.flags is None else self.faults.flags
            raw = Raw(session.tag, message, again, message.deliveries)
            session.to_client.append((session.arrives_s, raw))
        for entry in later:
            heapq.heappush(self._ready, entry)

    def acknowledge(self, session: _Session, number: int, upto: int, singles: Sequence[int], now: float) -> None:
        for tag in [*itertools.takewhile(lambda tag: tag <= upto, session.unacked), *singles]:
            message = session.unacked.pop(tag, None)
            assert message is not None, f"acknowledged twice, or never handed out: {tag}"
            self.acknowledged.append(message)
            self.broker.trace("take", self, [message])
            self._recent.append((now, message))
        session.confirmations.append((max(now, session.arrives_s) + self.faults.confirms_s, number))

    def reject(self, session: _Session, tags: Sequence[int]) -> None:
        self.dead_letters += [session.unacked.pop(tag) for tag in tags]


class MemoryBroker:
    """Queues by name; up or down; all of it may be used from several threads."""

    def __init__(self, runtime: Runtime | None = None, seed: int = 0) -> None:
        self.runtime = runtime or Threads()
        self.chance = random.Random(seed)
        self.lock = threading.RLock()
        self.queues: dict[str, MemoryQueue] = {}
        self.up = True
        #: Told of what happens to messages, for tests/support/traces.py.
        self.trace: Callable[..., object] = lambda *_: None
        #: What it calls itself.
        self.name = "memory"
        self.version = "1.0"
        #: Stopped (`SIGSTOP`): it does nothing, and nobody notices.
        self.stopped = False

    @property
    def now_s(self) -> float:
        return self.runtime.monotonic_s()

    def declare(self, name: str) -> MemoryQueue:
        with self.lock:
            return self.queues.setdefault(name, MemoryQueue(self, name))

    def delete(self, name: str) -> None:
        with self.lock:
            queue = self.queues.pop(name, None)
            if queue is not None:
                for session in list(queue.sessions):
                    queue.end(session, "the queue was deleted")

    def kill(self) -> None:
        """``kill -9``: the connections are reset, the messages are on disk."""
        with self.lock:
            self.up = False
            for queue in self.queues.values():
                queue.killed()

    def start(self) -> None:
        with self.lock:
            self.up = True

    def cut(self, **how: Any) -> int:
        """End every session, see :meth:`MemoryQueue.end`; how many there were."""
        with self.lock:
            ended = [(queue, session) for queue in self.queues.values() for session in list(queue.sessions)]
            for queue, session in ended:
                queue.end(session, "the connection was reset", **how)
            return len(ended)

    def step(self) -> None:
        """Let it do what it can by now."""
        with self.lock:
            if self.up and not self.stopped:
                for queue in self.queues.values():
                    queue.step()

    def counts(self, name: str) -> QueueCounts:
        with self.lock:
            self.step()
            queue = self.queues[name]
            return QueueCounts(len(queue._ready), len(queue.handed_out))


def memory_session(broker: MemoryBroker) -> type[MemorySession]:
    """The consumer class of a broker, as a protocol's is."""
    return type("BoundMemorySession", (MemorySession,), {"broker": broker})


class MemorySession(Session):
    """One session with a queue in memory."""

    batches: ClassVar[type[DeliveryBatch]] = MemoryBatch
    broker: ClassVar[MemoryBroker]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._woken = threading.Event()
        self._session: _Session | None = None

    @classmethod
    def count_addresses(cls, url: BrokerUrl) -> int:  # noqa: ARG003 - there is no network
        return 1

    def open(self, url: BrokerUrl, timeout_s: float) -> Greeting:
        broker = self.broker
        with broker.lock:
            if not broker.up or broker.stopped:
                raise BrokerUnavailableError(f"{url}: nobody there")
            queue = broker.queues.get(self.endpoint.name)
            if queue is None:
                raise DestinationError(f"{self.endpoint.destination} does not exist at {url}")
            if queue.refused:
                raise DestinationError(f"{self.endpoint.destination}: access refused at {url}")
            broker.step()
            self._session = _Session(self, queue)
            depth = queue.depth(None) if queue.faults.tells_depth else None
            queue.sessions.append(self._session)
            return Greeting(url, self.broker.name, depth, server=f"memory/{self.broker.version}")

    def consume(self, window: int) -> None:
        with self.broker.lock:
            self._live().window = min(window, _MOST)
            self.consuming = True

    def run(self, timeout_s: float) -> None:
        runtime = self.broker.runtime
        deadline = runtime.monotonic_s() + timeout_s
        while True:
            with self.broker.lock:
                self.broker.step()
                busy = self._take(self._live())
            left_s = deadline - runtime.monotonic_s()
            if busy or self._woken.is_set() or left_s <= 0:
                self._woken.clear()
                return
            before = runtime.monotonic_s()
            runtime.wait(self._woken, min(_LOOK_S, left_s))
            if runtime.monotonic_s() == before:
                return  # a clock that stands still for us: somebody else has to go on

    def _live(self) -> _Session:
        session = self._session
        assert session is not None, "not open"
        if session.ended is not None:
            raise SessionLostError(session.ended)
        if session.silent_since_s is not None:
            silent_s = self.broker.now_s - session.silent_since_s
            if silent_s > _HEARTBEATS_MISSED * self.endpoint.heartbeat_s:
                raise SessionLostError(f"nothing was heard from the broker for {silent_s:.0f} s")
        return session

    def _take(self, session: _Session) -> bool:
        if session.silent_since_s is not None or self.broker.stopped:
            return False
        buffer = self.buffer
        before = len(buffer.inbox)
        now = self.broker.now_s
        while session.to_client and session.to_client[0][0] <= now and not self.paused:
            raw = session.to_client.popleft()[1]
            if raw.message.odd and not self.options.keeps_unreadable:
                raise self._refuse(MemoryBatch([raw]).unreadable[0])
            buffer.inbox.append(raw)
            buffer.count(1, MemoryBatch([raw]).size_bytes)
            if buffer.full:
                self.paused = session.cancelled = True
        confirmed = False
        while session.confirmations and session.confirmations[0][0] <= self.broker.now_s:
            buffer.confirmed(session.confirmations.popleft()[1])
            confirmed = True
        if session.depth_asked and session.queue.faults.tells_depth and session.arrives_s <= now:
            session.depth_asked = False
            buffer.reported(session.queue.depth(session))
        return len(buffer.inbox) > before or confirmed

    def wake(self) -> None:
        self._woken.set()

    def acknowledge(self, number: int, upto: int, singles: Sequence[int]) -> None:
        tags = tuple(singles)
        self._send(lambda session, now: session.queue.acknowledge(session, number, upto, tags, now))

    def reject(self, tags: Sequence[int]) -> None:
        refused = tuple(tags)
        self._send(lambda session, _: session.queue.reject(session, refused))

    def _send(self, request: Callable[[_Session, float], None]) -> None:
        with self.broker.lock:
            session = self._session
            assert session is not None
            if session.ended is None and session.silent_since_s is None:
                at_s = self.broker.now_s + session.queue.faults.acks_s
                session.to_broker.append((at_s, lambda now: request(session, now)))

    def ask_depth(self) -> None:
        with self.broker.lock:
            if self._session is not None:
                self._session.depth_asked = True

    def _resume(self) -> None:
        with self.broker.lock:
            self.paused = False
            if self._session is not None:
                self._session.cancelled = False

    def close(self) -> None:
        with self.broker.lock:
            session = self._session
            if session is not None and session.ended is None and session.silent_since_s is None:
                session.queue.end(session, "closed", lose_acks=False)


class MemoryStore(SeenStore):
    """A store shared by the sources of a test; the newest `window` IDs."""

    def __init__(self, window: int = 100_000) -> None:
        self._window = window
        self.seen: dict[Key, None] = {}

    def known(self, keys: Iterable[Key]) -> set[Key]:
        return {key for key in keys if key in self.seen}

    def remember(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.seen.pop(key, None)
            self.seen[key] = None
        for key in list(itertools.islice(self.seen, max(0, len(self.seen) - self._window))):
            del self.seen[key]


def numbered(count: int, first: int = 0) -> Iterator[str]:
    """Texts made of their numbers."""
    return (f"message {number}" for number in range(first, first + count))
