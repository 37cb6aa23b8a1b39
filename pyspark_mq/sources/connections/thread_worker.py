"""A thread that takes what sessions of its process receive and emits it, in order.

Keepers have a thread each, for their connection. The worker goes round them, makes blocks of what is in their sinks,
and emits those and the events. It is the same in the source's process and in a receiver process: there what it emits
goes over a socket.

**Order** (rules 6 and 10). One thread emits everything. Before a confirmation, and before a word on the depth of the
queue, it hands over what the session had received by then; behind the end of a session it hands over nothing of it.

**Nothing is in flight unseen.** Connected time counts only while what was ready has come, and a worker may be slow, or
stopped. So its progress mark says, every tenth of a second: all that came up to then was emitted. A worker that finds
that it stood still for longer than a broker may take to hand something out reports that too, and nothing is counted.

**Bytes.** A session counts what arrived, learns from the worker what that takes in blocks, and from :class:`.Limits`
what was taken. The difference is what pauses it: what waits in the sink, what is being made into blocks, what is on
its way and what waits to be taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import TypeAlias

import pyarrow as pa

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.block import make_block
from pyspark_mq.sources.connections.events import (
    Confirmed,
    Delivered,
    DepthReported,
    Event,
    EventQueue,
    Failed,
    Lost,
    Opened,
    Progress,
    SessionStatus,
    Stopped,
)
from pyspark_mq.sources.connections.keeper import SessionKeeper
from pyspark_mq.sources.connections.requests import Ask, Begin, SetLimits, Stop, ToWorker
from pyspark_mq.sources.connections.session import TRANSIT_S, Session
from pyspark_mq.sources.connections.workers import Emit, Worker, Workers
from pyspark_mq.sources.runtime import Runtime

__all__ = ["FindSession", "ThreadWorker", "in_threads"]

_LOG = logging.getLogger("pyspark_mq")

#: Rounds with deliveries begin so far apart, and large ones farther: each block has a fixed cost.
_ROUND_S = 0.02
_LARGE_ROUND_S = 0.06
_LARGE_ROUND_ROWS = 200
#: The progress mark and the sessions' status are emitted at least so often.
_PROGRESS_S = 0.1
#: The worker does nothing for so long: its process was stopped, or had no turn. What came may be unread.
_BREAK_S = TRANSIT_S
#: A block is made in a small part of the time that counts as a break.
_ROWS_MAX = 5_000
_BYTES_MAX = 4 << 20

#: The session class of a protocol, by its name.
FindSession: TypeAlias = Callable[[str], type[Session]]


def in_threads(find_session: FindSession, schema: pa.Schema, runtime: Runtime) -> Workers:
    """Return workers of this process, which make blocks of that schema: one thread takes from all keepers."""
    one = partial(ThreadWorker, find_session, schema, runtime=runtime, now_s=runtime.monotonic_s, sessions=count(1))
    return Workers(lambda emit: [one(emit)], runtime)


class ThreadWorker(Worker):
    """One thread that takes from the keepers of this process.

    Args:
        schema: of the blocks to make.
        sessions: numbers for sessions, unique in the query.
    """

    def __init__(
        self,
        find_session: FindSession,
        schema: pa.Schema,
        emit: Emit,
        runtime: Runtime,
        now_s: Callable[[], float],
        sessions: Iterator[int],
    ) -> None:
        super().__init__(emit, runtime, now_s)
        self._find_session, self._schema, self._numbers = find_session, schema, sessions
        self._events = EventQueue()
        self._keepers: dict[int, SessionKeeper] = {}
        #: Key -> its session whose opening was emitted and whose end was not, and the status that was emitted last.
        self._open: dict[int, Session] = {}
        self._status: dict[int, SessionStatus] = {}
        self._progress = (0, now_s())
        self._looked_s = now_s()
        self._broke_off = False
        self._ending = False

    # -- for the thread that asks

    def send(self, message: ToWorker) -> None:
        if self._task is None:
            self._progress = (0, self.now_s())
            self._task = self._runtime.spawn("pyspark-mq worker", self._life(), self._events.arrived)
        self._task.check()
        keeper = self._keepers.get(message.key)
        if isinstance(message, Begin):
            self._begin(message)
        elif keeper is None:
            if isinstance(message, Stop):
                self._events.put(Stopped(message.key))  # it never began
        elif isinstance(message, Ask):
            keeper.ask(message.session, message.request)
        elif isinstance(message, SetLimits):
            keeper.limit(message.limits)
        else:
            keeper.stop()
            self._events.arrived.set()

    def _begin(self, begin: Begin) -> None:
        try:
            session_class = self._find_session(begin.endpoint.protocol)
        except MqError as missing:
            self._events.put(Failed(begin.key, missing))
            return
        keeper = SessionKeeper(begin, session_class, self._events, self._numbers, self._runtime)
        self._keepers[begin.key] = keeper
        keeper.start()

    def stop(self) -> None:
        self._ending = True
        for keeper in list(self._keepers.values()):
            keeper.stop()
        self._events.arrived.set()

    # -- its thread

    def _life(self) -> Iterator[float]:
        """Go round until it is to end; yield how long to rest, in seconds."""
        said_s = self.now_s()
        while self._keepers or not self._ending:
            began_s = self._look()
            self._events.arrived.clear()
            broke_off, self._broke_off = self._broke_off, False
            rows = self._round()
            if broke_off or began_s - said_s >= _PROGRESS_S:
                said_s = began_s
                self._progress = (self._progress[0] + broke_off, began_s)
                self._emit(Progress(began_s, broke_off))
            if rows:
                round_s = _ROUND_S if rows < _LARGE_ROUND_ROWS else _LARGE_ROUND_S
                self._runtime.sleep(max(0.0, began_s + round_s - self.now_s()))
                yield 0.0
            else:
                yield max(0.0, said_s + _PROGRESS_S - self.now_s())

    def _look(self) -> float:
        """Look at the clock; whoever finds it much later than the last time has stood still."""
        now_s = self.now_s()
        self._broke_off = self._broke_off or now_s - self._looked_s > _BREAK_S
        self._looked_s = now_s
        return now_s

    def _round(self) -> int:
        """Emit everything that is there; return how many deliveries that was."""
        # Looked at before the events: `Stopped` comes behind `Lost`, which a slow close reports late.
        ended = [key for key, keeper in list(self._keepers.items()) if keeper.stopping.is_set() and keeper.ended]
        rows = sum(map(self._pass_on, self._events.take()))
        for key, session in list(self._open.items()):
            rows += self._hand_over(key, session)
            if key in self._open:
                self._emit_status(key, session)
        for key in ended:
            del self._keepers[key]
            self._status.pop(key, None)
            self._emit(Stopped(key))
        return rows

    def _pass_on(self, event: Event) -> int:
        key, rows = event.key, 0
        if isinstance(event, Opened):
            session = self._keepers[key].session(event.session)
            if session is not None:
                self._open[key] = session
                self._status.pop(key, None)
        elif isinstance(event, Lost):
            self._open.pop(key, None)
        elif isinstance(event, Confirmed | DepthReported) and key in self._open:
            rows = self._hand_over(key, self._open[key])
        self._emit(event)
        return rows

    def _hand_over(self, key: int, session: Session) -> int:
        keeper, sink = self._keepers[key], session.sink
        rows, left = 0, len(sink.inbox)
        try:
            while left > 0:
                items = sink.take(_ROWS_MAX)
                if not items:
                    break  # the session has ended meanwhile
                left -= len(items)
                for raws in session.decoder.gather(items, _BYTES_MAX):
                    self._look()
                    metadata, block = make_block(session.decoder, raws, keeper.begin.ids, self._schema)
                    sink.bytes_grown += sum(block.sizes) - session.decoder.weight(raws)
                    self._emit(Delivered(key, session.number, metadata, block))
                    rows += len(raws)
        except Exception as error:  # noqa: BLE001 - what dies silently would hang the query
            _LOG.exception("handing over failed")
            text = f"{keeper.begin.endpoint.destination}: deliveries could not be taken in: "
            self._emit(Failed(key, MqError(f"{text}{type(error).__name__}: {error}")))
            keeper.stop()
            del self._open[key]
        return rows

    def _emit_status(self, key: int, session: Session) -> None:
        status = SessionStatus(key, session.number, session.paused)
        if status != self._status.get(key):
            self._status[key] = status
            self._emit(status)
