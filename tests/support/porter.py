"""Receivers behind a porter, in the simulation: what processes that receive are to a query, on a clock turned by hand.

The protocol is that of `sources/connections/processes`, without processes: a porter, which can be stopped, is between
the receivers and the query.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.connections.block import ChunkDecoder, encode
from pyspark_mq.sources.connections.consumer import Consumer, QueueDepth, drained
from pyspark_mq.sources.connections.decoder import Decoder
from pyspark_mq.sources.connections.events import Failed, Lost, Mailbox, Opened, Terms
from pyspark_mq.sources.connections.processes.memory import open_chunk, write_file
from pyspark_mq.sources.connections.receiver import Receiver
from pyspark_mq.sources.runtime import Runtime
from pyspark_mq.sources.settings import Settings
from tests.support.memory import MemoryConsumer, MemoryDecoder

__all__ = ["ChunkPool", "PortedPool"]

#: As in a receiver process: it tells how things stand ten times a second, and half a second is a break.
_WORD_S = 0.1
_BREAK_S = 0.5


class _Stand:
    """Stands for a session behind the porter."""

    def __init__(self, consumer: Consumer, now_s: float) -> None:
        self._consumer = consumer
        self.inbox: deque[Any] = deque()
        self.attended = (0, now_s)
        self.paused = self.behind = False
        self.starved: bool | None = None
        self.bytes_taken = 0

    @property
    def session(self) -> int:
        return self._consumer.session

    @property
    def bytes_allowed(self) -> float:
        return self._consumer.bytes_allowed

    @bytes_allowed.setter
    def bytes_allowed(self, allowed: float) -> None:
        self._consumer.bytes_allowed, self._consumer.bytes_taken = allowed, self.bytes_taken


class _Receiver:
    """A receiver, and the porter between it and the query."""

    def __init__(self, pool: PortedPool, receiver: Receiver, inside: Mailbox, outside: Mailbox) -> None:
        self._pool = pool
        self._receiver, self._inside, self._outside = receiver, inside, outside
        self._stand: _Stand | None = None
        self._consumer: Consumer | None = None
        self._rounds_s = pool.process.machine_s()
        self._breaks = 0
        self.depth: QueueDepth | None = None
        self.depth_at_s = -float("inf")
        self.ask, self.stop = receiver.ask, receiver.stop

    def start(self) -> None:
        self._receiver.start()
        self._pool.process.spawn("porter", self._life(), threading.Event())

    def _life(self) -> Iterator[float]:
        while True:
            if self._pool.process.machine_s() >= self._pool.stopped_until_s:
                self._round()
            yield _WORD_S

    def _round(self) -> None:
        now_s = self._pool.process.machine_s()
        self._breaks += now_s - self._rounds_s > _BREAK_S
        self._rounds_s = now_s
        for letter in self._inside.take():
            if isinstance(letter, Opened):
                assert isinstance(letter.consumer, Consumer)
                self._consumer, self._stand = letter.consumer, _Stand(letter.consumer, now_s)
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
            self._stand.paused = self._consumer.paused
            self._stand.attended = (self._breaks, now_s)
        self.depth, self.depth_at_s = self._receiver.depth, self._receiver.depth_at_s


class PortedPool:
    """Receivers whose porters can be stopped.

    Args:
        process: what receivers and porters run on.
        make_consumer: of the queue in memory.

    Attributes:
        stopped_until_s: no porter goes round before.
        reads_late: the first round after a stop finds nothing: what came is in the socket yet.
    """

    def __init__(self, process: Runtime, make_consumer: type[MemoryConsumer]) -> None:
        self.process = process
        self.decoder: Decoder = MemoryDecoder()
        self.stopped_until_s = 0.0
        self.reads_late = False
        self._make = make_consumer

    def receiver(self, settings: Settings, mailbox: Mailbox, terms: Callable[[], Terms]) -> _Receiver:
        inside = Mailbox()
        receiver = Receiver(settings.endpoint, self._make, inside, terms, self.process)
        return _Receiver(self, receiver, inside, mailbox)

    def handed_over(self, raws: list[Any]) -> list[Any]:
        """What the query gets of deliveries."""
        return raws


class ChunkPool(PortedPool):
    """Deliveries come in chunks, as from a real process."""

    def __init__(self, process: Runtime, make_consumer: type[MemoryConsumer]) -> None:
        super().__init__(process, make_consumer)
        self.decoder = ChunkDecoder()

    def handed_over(self, raws: list[Any]) -> list[Any]:
        message, books = encode(MemoryDecoder(), raws, IdSource("message-id"), ())
        return list(open_chunk(books, write_file([memoryview(message)]), ()).raws)
