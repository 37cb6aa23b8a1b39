"""The worker: a thread that makes blocks of the deliveries of a query's sessions, and passes them on in order.

Each connection has a supervisor with its own thread. The worker goes through the supervisors in rounds. In each round
it makes blocks of the deliveries in the sessions' buffers, and puts blocks and other events into the event queue of
each queue. The supervisors' threads could make the blocks instead. But then a message took 4.8 to 6.2 µs of CPU time,
against 4.4 µs with the worker; with four connections 5.5 to 6.1 µs against 5.5 µs, and with eight 5.6 to 6.9 µs against
6.5 µs. Also, a supervisor's thread cannot send or answer heartbeats while it makes a block.

**Order** (rules 6 and 10). One thread passes on all events. So a session's deliveries come before a confirmation or a
depth report that arrived later, and no event of a session comes after its end.

**Progress.** `replayTimeout` counts only time in which the broker could have delivered messages to the query. But the
worker may be slow, or the process stopped. So ten times a second the worker's *progress mark* states up to which time
everything that has arrived was passed on. If the worker or a supervisor was interrupted for longer than a broker's
delivery time, the mark records this, and the time does not count.

**Bytes.** A session counts the bytes that arrive. The worker tells the session how large these bytes are in blocks, and
:class:`.Limits` tell it how many bytes the query has processed. The difference is the number of bytes in the session's
buffer, in blocks that are being made, and in blocks that are not processed yet. It decides whether the session pauses.
"""

from __future__ import annotations

import contextlib
import logging
import math
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from pyspark_mq.decode.batch import ROW_BYTES, DeliveryBatch
from pyspark_mq.errors import InternalError, MqError, OptionError
from pyspark_mq.sources.connections.block import Block, Metadata, RowRange, make_block
from pyspark_mq.sources.connections.events import (
    Confirmed,
    Delivered,
    DepthReported,
    Event,
    EventQueue,
    Failed,
    Lost,
    Opened,
    SessionStatus,
)
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.connections.session import TRANSIT_S, Session, SessionOptions
from pyspark_mq.sources.connections.supervisor import STILL_S, ConnectionSupervisor, Limits
from pyspark_mq.sources.runtime import Runtime, Task
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["FindSession", "Mark", "Worker"]

_LOG = logging.getLogger("pyspark_mq")

#: Shortest interval between rounds with deliveries. After a round with many deliveries it is longer, so that blocks are
#: larger: each block has a fixed cost.
_ROUND_S = 0.02
_LARGE_ROUND_S = 0.06
_LARGE_ROUND_ROWS = 200
#: Longest interval between progress marks.
_PROGRESS_S = 0.1
#: If the worker has done nothing for this long, its process was stopped or not scheduled. Then bytes that have arrived
#: may not have been read.
_BREAK_S = TRANSIT_S
#: Maximum number of rows and bytes in a block. Making such a block takes only a small part of `_BREAK_S`.
_ROWS_MAX = 5_000
_BYTES_MAX = 4 << 20
#: A session has few deliveries if its inbox has at most this many entries. Several sessions with few deliveries share a
#: block of at most this many bytes.
_FEW, _FEW_BYTES = 32, 64 << 10
#: Number of file descriptors that a connection needs, and that the rest of the process needs.
_DESCRIPTORS, _DESCRIPTORS_ELSEWHERE = 4, 100
#: How long to wait for connections to close.
_END_TIMEOUT_S = 2.0

#: Takes the name of a protocol, and returns its session class.
FindSession: TypeAlias = Callable[[str], type[Session]]


class Mark(NamedTuple):
    """The progress mark of a worker: the time up to which it has passed on everything that arrived.

    Attributes:
        breaks: number of times that the worker or one of its supervisors was interrupted.
        until_s: time up to which everything that has arrived was passed on.
    """

    breaks: int
    until_s: float


@dataclass(slots=True)
class _Supervised:
    """A supervisor, and its state according to the events that the worker has passed on.

    Attributes:
        ids: finds the IDs of the deliveries.
        events: the event queue into which the worker puts the supervisor's events.
        session: the session whose opening was passed on, but not its end; None if there is none.
        status: the status of that session that was last passed on.
        breaks: number of the supervisor's interruptions that the worker has counted in its progress mark
            (:attr:`Mark.breaks`).
    """

    supervisor: ConnectionSupervisor
    ids: MessageIds
    events: EventQueue
    session: Session | None = None
    status: SessionStatus | None = None
    breaks: int = 0


class Worker:
    """Serves all connections of a query on one thread, which starts with the first connection.

    Args:
        find_session: returns the session class of a protocol, or raises an MqError if its client library is missing.
        schema: schema of the blocks to make.
        runtime: clock and threads.
    """

    def __init__(self, find_session: FindSession, schema: pa.Schema, runtime: Runtime) -> None:
        self._find_session, self._schema, self._runtime = find_session, schema, runtime
        self._events = EventQueue()
        self._keys, self._sessions = count(1), count(1)
        self._supervised: dict[int, _Supervised] = {}
        self._task: Task | None = None
        self._mark = Mark(0, -math.inf)
        self._looked_s = 0.0
        self._broke_off = False
        self._ending = False

    # -- for the query's thread

    def connect(self, settings: Settings, limits: Limits, events: EventQueue) -> ConnectionSupervisor:
        """Start a connection to the queue of these settings, and return its supervisor.

        Args:
            settings: the query's settings, with the queue as the endpoint.
            limits: the supervisor's first limits.
            events: the event queue into which to put the supervisor's events.

        Raises:
            MqError: a client library is missing, the worker was stopped, or there are too many connections.
        """
        if self._ending:
            raise InternalError(f"{settings.endpoint.destination}: the source has been stopped")
        _check_descriptors(len(self._supervised) + 1)
        make = self._find_session(settings.endpoint.protocol)
        options = SessionOptions(keeps_unreadable=settings.on_unreadable is not OnUnreadable.FAIL)
        if self._task is None:
            self._looked_s = self._runtime.monotonic_s()
            self._mark = Mark(0, self._looked_s)
            self._task = self._runtime.spawn("pyspark-mq worker", self._life(), self._events.arrived)
        supervisor = ConnectionSupervisor(
            next(self._keys), settings.endpoint, make, options, limits, self._events, self._sessions, self._runtime
        )
        self._supervised[supervisor.key] = _Supervised(supervisor, MessageIds.of(settings), events)
        try:
            supervisor.start()
        except BaseException:
            del self._supervised[supervisor.key]
            raise
        return supervisor

    @property
    def mark(self) -> Mark:
        """The worker's progress mark: the time up to which it has passed on everything that arrived.

        Raises:
            MqError: the worker's thread has failed.
        """
        if self._task is not None:
            self._task.check()
        return self._mark

    def join(self, supervisors: Iterable[ConnectionSupervisor]) -> None:
        """Wait a moment until supervisors that were asked to stop have stopped."""
        for supervisor in supervisors:
            left_s = supervisor.asked_s + _END_TIMEOUT_S - self._runtime.monotonic_s()
            self._runtime.wait(supervisor.stopped, max(0.0, left_s))

    def stop(self) -> None:
        """Close all connections, and wait a moment until they have ended."""
        self._ending = True
        for supervised in list(self._supervised.values()):
            supervised.supervisor.stop()
        self._events.arrived.set()
        if self._task is not None:
            self._task.join(_END_TIMEOUT_S)

    # -- its thread

    def _life(self) -> Iterator[float]:
        """Run one round after another until the worker is stopped. Yield the pauses in seconds."""
        while self._supervised or not self._ending:
            began_s = self._look()
            self._events.arrived.clear()
            waits = self._waits_for_a_supervisor(began_s)
            broke_off, self._broke_off = self._broke_off, False
            rows = self._round()
            broke_off = self._supervisor_broke_off() or broke_off
            if waits:
                self._broke_off |= broke_off
            elif broke_off or began_s - self._mark.until_s >= _PROGRESS_S:
                self._mark = Mark(self._mark.breaks + broke_off, began_s)
            if rows:
                round_s = _ROUND_S if rows < _LARGE_ROUND_ROWS else _LARGE_ROUND_S
                self._runtime.sleep(max(0.0, began_s + round_s - self._runtime.monotonic_s()))
                yield 0.0
            else:
                due_s = (began_s if waits else self._mark.until_s) + _PROGRESS_S
                yield max(0.0, due_s - self._runtime.monotonic_s())

    def _look(self) -> float:
        """Return the current time. If the last call was too long ago, record that the worker was interrupted."""
        now_s = self._runtime.monotonic_s()
        self._broke_off = self._broke_off or now_s - self._looked_s > _BREAK_S
        self._looked_s = now_s
        return now_s

    def _waits_for_a_supervisor(self, now_s: float) -> bool:
        """Whether a supervisor has not attended to its socket for too long, so that bytes may not have been read.

        Raises:
            MqError: a supervisor's thread has failed. This ends the worker, and so the query.
        """
        waits = False
        for supervised in list(self._supervised.values()):
            supervised.supervisor.check()
            lives = supervised.session is not None and not supervised.supervisor.stopping.is_set()
            waits |= lives and now_s - supervised.supervisor.turned_s > STILL_S
        return waits

    def _supervisor_broke_off(self) -> bool:
        """Whether a supervisor was interrupted since the last call."""
        found = False
        for supervised in list(self._supervised.values()):
            found |= supervised.breaks != supervised.supervisor.breaks
            supervised.breaks = supervised.supervisor.breaks
        return found

    def _round(self) -> int:
        """Pass on everything that has arrived. Return the number of deliveries."""
        # Find the supervisors that have ended before taking the events, so that all their events are taken.
        supervisors = [supervised.supervisor for supervised in list(self._supervised.values())]
        ended = [supervisor for supervisor in supervisors if supervisor.ended and supervisor.stopping.is_set()]
        rows = sum(map(self._pass_on, self._events.take()))
        few: dict[int, list[tuple[_Supervised, Session]]] = {}
        for supervised in list(self._supervised.values()):
            session = supervised.session
            if session is None:
                continue
            if 0 < len(session.buffer.inbox) <= _FEW:
                few.setdefault(id(supervised.events), []).append((supervised, session))
            else:
                rows += self._hand_over(supervised, session)
        for some in few.values():
            rows += self._hand_over(*some[0]) if len(some) == 1 else self._hand_over_together(some)
        for supervised in list(self._supervised.values()):
            if supervised.session is not None:
                self._tell_status(supervised, supervised.session)
        for supervisor in ended:
            del self._supervised[supervisor.key]
            supervisor.stopped.set()
        return rows

    def _pass_on(self, event: Event) -> int:
        supervised, rows = self._supervised[event.key], 0
        if isinstance(event, Opened):
            supervised.session, supervised.status = supervised.supervisor.session(event.session), None
        elif isinstance(event, Lost):
            supervised.session = None
        elif isinstance(event, Confirmed | DepthReported) and supervised.session is not None:
            rows = self._hand_over(supervised, supervised.session)
        supervised.events.put(event)
        return rows

    def _hand_over(self, supervised: _Supervised, session: Session) -> int:
        buffer = session.buffer
        rows, left = 0, len(buffer.inbox)
        with self._ending_on_error(supervised):
            while left > 0:
                items = buffer.take(_ROWS_MAX)
                if not items:
                    break  # the session has ended meanwhile
                left -= len(items)
                rows += self._convert(supervised, session, items)
        return rows

    def _convert(self, supervised: _Supervised, session: Session, items: Sequence[Any]) -> int:
        """Make blocks of deliveries of one session, and pass them on. Return the number of deliveries."""
        count = 0
        for batch in session.batches.gather(items, _BYTES_MAX):
            self._look()
            metadata, block = make_block(batch, supervised.ids, self._schema)
            session.buffer.made(batch.size_bytes, sum(block.sizes))
            supervised.events.put(Delivered(supervised.supervisor.key, session.number, metadata, block.rows))
            count += len(batch)
        return count

    @contextlib.contextmanager
    def _ending_on_error(self, supervised: _Supervised) -> Iterator[None]:
        """Report errors in this context to the query, and stop the supervisor.

        Otherwise the query would wait forever.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.exception("handing over failed")
            text = f"{supervised.supervisor.endpoint.destination}: deliveries could not be converted: "
            supervised.events.put(Failed(supervised.supervisor.key, MqError(f"{text}{type(error).__name__}: {error}")))
            supervised.supervisor.stop()
            supervised.session = None

    def _hand_over_together(self, some: Sequence[tuple[_Supervised, Session]]) -> int:
        """Pass on the few deliveries of several sessions of one queue, if possible in one block, to save time.

        Only messages whose metadata are plain (:attr:`.Metadata.is_plain`) share a block. Otherwise each session gets a
        block of its own.
        """
        taken = [(supervised, session, session.buffer.take(_ROWS_MAX)) for supervised, session in some]
        batches = some[0][1].batches
        alike = all(session.batches == batches for _, session in some)
        every = [item for _, _, items in taken for item in items]
        sizes = [batches.size_of(item) for item in every]
        made = self._shared_block(some[0][0], batches, every) if alike and sum(sizes) < _FEW_BYTES else None
        count = end = 0
        for supervised, session, items in taken:
            if made is None:
                with self._ending_on_error(supervised):
                    count += self._convert(supervised, session, items)
                continue
            begin, end = end, end + len(items)
            if items:
                rows, arrived = RowRange(made[1], range(begin, end)), sum(sizes[begin:end])
                session.buffer.made(arrived + ROW_BYTES * len(items), rows.size_bytes)
                metadata = made[0].part(slice(begin, end))
                supervised.events.put(Delivered(supervised.supervisor.key, session.number, metadata, rows))
                count += len(items)
        return count

    def _shared_block(
        self, supervised: _Supervised, batches: type[DeliveryBatch], items: Sequence[Any]
    ) -> tuple[Metadata, Block] | None:
        """Make one block of the deliveries of several sessions. Return None if their metadata are not all plain."""
        if not items or any(isinstance(item, DeliveryBatch) for item in items):
            return None
        with contextlib.suppress(Exception):  # the error is raised again when the sessions get blocks of their own
            metadata, block = make_block(batches.of(items), supervised.ids, self._schema)
            return (metadata, block) if metadata.is_plain else None
        return None

    def _tell_status(self, supervised: _Supervised, session: Session) -> None:
        status = SessionStatus(supervised.supervisor.key, session.number, session.paused, session.partial_bytes)
        if status != supervised.status:
            supervised.status = status
            supervised.events.put(status)


def _check_descriptors(connections: int) -> None:
    """Check that this process may open enough files for this number of connections.

    Raises:
        OptionError: the limit on open files is too low.
    """
    needed = _DESCRIPTORS * connections + _DESCRIPTORS_ELSEWHERE
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and needed > allowed:
        raise OptionError(
            "consumers",
            f"{connections} connections need up to {needed} open files, but this process may have {allowed}. Raise the "
            "limit for the driver (ulimit -n, or LimitNOFILE of its service), or read with fewer 'consumers' or queues",
        )
