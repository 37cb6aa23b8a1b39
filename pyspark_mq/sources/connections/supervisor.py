"""Keeps one connection to the broker: a supervisor opens one session after the other, on a thread of its own.

On this thread, heartbeats continue while Spark is busy for minutes. When a session ends, the supervisor opens another
one after the pause that :mod:`.backoff` computes. It carries out requests of the query's thread in order. A request
belongs to one session, and is dropped if that session has ended, because its handles are no longer valid.

Order of calls: `start` once; `ask` and `limit` from any thread, at any time; `stop` last. None of these waits.

The supervisor puts its events (:mod:`.events`) into one queue, from which the worker passes them on. For each session
there is one :class:`.Opened` and one :class:`.Lost` event, and all its other events are between these.
:class:`.Failed` is the last event. The supervisor makes no decisions about messages, and stores nothing that survives a
crash.

Guarantee: a delivery is acknowledged in its own session or not at all.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from itertools import cycle

from pyspark_mq.errors import BrokerUnavailableError, MqError, OptionError, RefusedError
from pyspark_mq.sources.connections.backoff import Backoff
from pyspark_mq.sources.connections.events import Confirmed, DepthReported, EventQueue, Failed, Lost, Opened
from pyspark_mq.sources.connections.session import (
    TRANSIT_S,
    Greeting,
    ReceiveBuffer,
    Session,
    SessionLostError,
    SessionOptions,
)
from pyspark_mq.sources.runtime import Runtime, Task
from pyspark_mq.wire.connection import StopRequestedError
from pyspark_mq.wire.endpoint import FILES, Endpoint
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["STILL_S", "ConnectionSupervisor", "Limits"]

_LOG = logging.getLogger("pyspark_mq")

#: Longest run of the I/O loop without a wake-up.
_TURN_S = 0.5
#: If a supervisor does not attend to its socket for longer than this, it counts as interrupted: its thread was not
#: scheduled, or is blocked. The time is the longest run of the I/O loop plus a broker's delivery time.
STILL_S = _TURN_S + TRANSIT_S
#: If a session has lasted this long, the shortest pause before the next session is enough.
_LONG_SESSION_S = 10.0
#: If a session has received nothing for this long, it did not end because of the first message.
_SERVED_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the messages and bytes that a supervisor's sessions may hold.

    Attributes:
        window: the window with which the next session begins: a maximum number of unacknowledged messages.
        bytes_allowed: a session pauses when more bytes than this were received but not processed.
        session: number of the session that is open, as far as the query knows; 0 if there is none.
        bytes_taken: number of bytes of that session that the query has processed so far.
    """

    window: int
    bytes_allowed: float
    session: int = 0
    bytes_taken: int = 0


class ConnectionSupervisor:
    """Keeps one connection to the broker. A queue has as many supervisors as option `consumers` says.

    Args:
        key: number of the supervisor, which is unique in the query.
        endpoint: the queue or topic, and how to connect to its broker.
        session_class: the class of the sessions.
        options: how sessions behave.
        limits: the first limits.
        events: receives the supervisor's events. Deliveries are not events: they wait in the session's buffer.
        numbers: yields the numbers of new sessions.
        runtime: clock and threads.

    Attributes:
        turned_s: time when the supervisor last attended to the socket of its current or last session.
        breaks: number of times that the supervisor was interrupted during a session, see :data:`STILL_S`.
        asked_s: time of the request to stop.
        stopping: set by the request to stop.
        ended: whether the supervisor has reported its last event.
        stopped: set by the worker when the supervisor has stopped, and all its events were passed on.
    """

    def __init__(
        self,
        key: int,
        endpoint: Endpoint,
        session_class: type[Session],
        options: SessionOptions,
        limits: Limits,
        events: EventQueue,
        numbers: Iterator[int],
        runtime: Runtime,
    ) -> None:
        self.key, self.endpoint = key, endpoint
        self.turned_s, self.asked_s = -math.inf, math.inf
        self.stopping, self.stopped = threading.Event(), threading.Event()
        self.ended = False
        self.breaks = 0
        self._session_class, self._limits = session_class, limits
        self._options = replace(options, stopping=self.stopping)
        self._events, self._numbers, self._runtime = events, numbers, runtime
        self._requests: deque[tuple[int, Callable[[Session], object]]] = deque()
        self._session: Session | None = None
        self._urls = cycle(endpoint.urls)
        self._attempts = 0
        self._confirmed = 0
        self._task: Task | None = None

    # -- for other threads

    def start(self) -> None:
        """Open the connection in the background, and reconnect whenever it ends."""
        self._task = self._runtime.spawn("pyspark-mq supervisor", self._life(), self.stopping)

    def check(self) -> None:
        """Raise an error if the supervisor's thread has failed.

        Raises:
            MqError: the thread has failed.
        """
        if self._task is not None:
            self._task.check(f"{self.endpoint.destination}: ")

    def ask(self, session: int, request: Callable[[Session], object]) -> None:
        """Run a request on the supervisor's thread, unless the session with this number has ended by then."""
        self._requests.append((session, request))
        self._wake()

    def limit(self, limits: Limits) -> None:
        """Set new limits for the current session and for later sessions."""
        self._limits = limits
        session = self.session(limits.session)
        if session is not None:
            session.buffer.bytes_taken, session.buffer.bytes_allowed = limits.bytes_taken, limits.bytes_allowed

    def session(self, number: int) -> Session | None:
        """Return the session with this number; None if it has ended."""
        session = self._session
        return session if session is not None and session.number == number else None

    def stop(self) -> None:
        """Close the connection, without waiting. The broker requeues unacknowledged messages."""
        self.asked_s = min(self.asked_s, self._runtime.monotonic_s())
        self.stopping.set()
        self._wake()
        self._events.arrived.set()  # wake the worker, even if this supervisor has ended before

    def _wake(self) -> None:
        session = self._session
        if session is not None:
            session.wake()

    # -- its own thread

    def _life(self) -> Iterator[float]:
        """Run one session after another until the supervisor is stopped or fails. Yield the pauses in seconds."""
        try:
            yield from self._sessions()
        except MqError as error:
            self._events.put(Failed(self.key, error))
        except Exception as error:  # noqa: BLE001 - without a report the query would wait forever
            _LOG.exception("the receiver failed")
            text = f"{self.endpoint.destination}: the receiver failed: {type(error).__name__}: {error}"
            self._events.put(Failed(self.key, MqError(text)))
        finally:
            self.ended = True
            self._events.arrived.set()

    def _sessions(self) -> Iterator[float]:
        backoff = Backoff(self.endpoint, self._runtime)
        while not self.stopping.is_set():
            opened = yield from self._establish(backoff)
            if opened is None:
                return
            began_s, confirmed = self._runtime.monotonic_s(), self._confirmed
            lost = yield from self._live(*opened)
            if lost is None:
                return
            session, greeting, lived_s = *opened, self.turned_s - began_s
            empty = greeting.depth is not None and not greeting.depth.ready
            idle = session.consuming and not session.buffer.deliveries and (empty or lived_s >= _SERVED_S)
            arriving = session.partial_bytes if idle and lived_s >= _LONG_SESSION_S else 0
            level = backoff.idle(lived_s) if idle and not arriving else logging.WARNING
            _LOG.log(level, "%s: session lost: %s", greeting.url, lost)
            if self._confirmed > confirmed:
                backoff.succeeded()
                yield backoff.reset_s()
                continue
            # The end may count as a delivery of messages: those that were received, or a first message on whose
            # delivery the broker has failed. If the broker did not accept the consumer, it has delivered none.
            if arriving:
                backoff.interrupted(lived_s, arriving)
            elif session.buffer.deliveries or (session.consuming and lived_s < _LONG_SESSION_S and not empty):
                backoff.record_refusal(lost)
            if lived_s >= _LONG_SESSION_S:
                yield backoff.reset_s()
            else:
                yield backoff.rest_s(lost, self._runtime.monotonic_s() if idle else began_s, level)

    def _establish(self, backoff: Backoff) -> Generator[float, None, tuple[Session, Greeting] | None]:
        """Open a session with the first broker in `url` that answers. Return None if this supervisor is stopped.

        Each address gets an equal share of the time, so an address that does not answer, such as that of a host without
        power, does not use up the time of the others.
        """
        endpoint = self.endpoint
        began_s, untried = self._runtime.monotonic_s(), sum(map(self._session_class.count_addresses, endpoint.urls))
        while not self.stopping.is_set():
            tried_s = self._runtime.monotonic_s() - began_s
            try:
                share_s, untried = (backoff.patience_s - tried_s) / max(1, untried), untried - 1
                opened = self._attempt(next(self._urls), max(0.1, min(share_s, endpoint.connect_timeout_s)))
            except StopRequestedError:
                return None
            except BrokerUnavailableError as unavailable:
                problem: MqError = unavailable
            except RefusedError as refused:
                # A broker that is starting or stopping may refuse a login that it has accepted before. So raise the
                # error only after `connectTimeout`. If the secret is in a file, wait longer, because the secret may be
                # replaced soon.
                patience_s = endpoint.connect_timeout_s if endpoint.password_file is None else backoff.patience_s
                if backoff.first or tried_s > patience_s:
                    raise
                problem = refused
            except OptionError as unreadable:
                # A file could be read at `load()`, so it may only be missing for a moment while it is replaced.
                if unreadable.option not in FILES:
                    raise
                problem = unreadable
            else:
                backoff.first = False
                return opened
            self._attempts += 1
            yield backoff.rest_s(problem, began_s)
        return None

    def _attempt(self, url: BrokerUrl, timeout_s: float) -> tuple[Session, Greeting]:
        number = next(self._numbers)

        def confirmed(request: int) -> None:
            self._confirmed += 1
            self._events.put(Confirmed(self.key, number, request))

        buffer = ReceiveBuffer(
            self._events.arrived, confirmed, lambda depth: self._events.put(DepthReported(self.key, depth))
        )
        options = replace(self._options, attempt=self._attempts // len(self.endpoint.urls))
        session = self._session_class(self.endpoint, number, buffer, options, self._runtime.machine_s)
        self._session = session  # so that a request to stop wakes it while it is being opened
        try:
            with self.endpoint.hiding():
                return session, session.open(url, timeout_s)
        except BaseException:
            self._session = None
            session.close()
            raise

    def _live(self, session: Session, greeting: Greeting) -> Generator[float, None, SessionLostError | None]:
        """Run one session until its end. Return why it has ended, or None if the supervisor was stopped."""
        limits = self._limits
        # Set the limit now, because Spark may be busy for minutes before the query can send limits for this session.
        session.buffer.bytes_allowed = limits.bytes_allowed
        self.turned_s = self._runtime.monotonic_s()
        self._events.put(Opened(self.key, session.number, greeting, limits.window))
        try:
            with self.endpoint.hiding():
                if not self.stopping.is_set():  # the supervisor may have been stopped while the session was opened
                    session.consume(limits.window)
                while not self.stopping.is_set():
                    while self._requests:
                        number, request = self._requests.popleft()
                        if number == session.number:
                            request(session)
                    session.run(_TURN_S)
                    self.turned_s = self._count_break()
                    yield 0.0
        except SessionLostError as lost:
            return lost
        except StopRequestedError:
            pass
        finally:
            self._count_break()
            self._session = None
            session.close()
            session.buffer.inbox.clear()
            self._events.put(Lost(self.key, session.number))
        return None

    def _count_break(self) -> float:
        """Return the current time. If the socket was last attended to too long ago, count an interruption."""
        now_s = self._runtime.monotonic_s()
        self.breaks += now_s - self.turned_s > STILL_S
        return now_s
