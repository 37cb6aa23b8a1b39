"""The contract of a supervisor: it keeps one session alive after another, on a thread of its own.

A supervisor owns its connection, so heartbeats continue while Spark is busy for minutes. When the session ends, the
supervisor reconnects after the delay that :mod:`.backoff` gives. It carries out requests of the query's thread in
order, each in the session for which it was made: a request for a session that has ended is dropped, because its handles
are void.

Calling order: `start` once; `ask` and `limit` from any thread, at any time; `stop` last. None of these blocks.

The supervisor's events go into one queue, which its worker passes on: opened, confirmed, depth, lost, failed. Each
session is opened once and lost once, with all its events in between. `failed` is the last event. The supervisor decides
nothing about messages, and nothing in it survives a crash.

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
    StopRequestedError,
)
from pyspark_mq.sources.endpoint import FILES, Endpoint
from pyspark_mq.sources.runtime import Runtime, Task
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["STILL_S", "ConnectionSupervisor", "Limits"]

_LOG = logging.getLogger("pyspark_mq")

#: Longest turn of the I/O loop without a wake-up. Only a request to stop whose wake-up was lost waits this long.
_TURN_S = 0.5
#: A supervisor that is away from its socket for longer than such a turn plus a broker's delivery time counts as
#: standing still: it was not scheduled, or is blocked.
STILL_S = _TURN_S + TRANSIT_S
#: After a session that lasted this long, the shortest delay before the next session is enough.
_LONG_SESSION_S = 10.0
#: A consumer that received nothing for this long did not end because of the first message.
_SERVED_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the messages and bytes that a supervisor receives.

    Attributes:
        window: window of the next session, in unacknowledged messages.
        bytes_allowed: a session pauses when more bytes than this are received but not taken.
        session: the live session, as far as known; 0 for none.
        bytes_taken: bytes taken from that session so far.
    """

    window: int
    bytes_allowed: float
    session: int = 0
    bytes_taken: int = 0


class ConnectionSupervisor:
    """Supervisor of one connection to the broker; `consumers` of them serve a queue.

    Args:
        events: receives the supervisor's events. Deliveries are not events: they wait in the session's buffer.
        numbers: yields the numbers of new sessions.

    Attributes:
        key: number of the supervisor, unique in the query.
        turned_s: time of the last turn at the socket of the current or last session.
        breaks: how often the supervisor stood still in a session.
        asked_s: time of the request to stop.
        stopping: set by the request to stop.
        ended: whether the supervisor has emitted its last event.
        stopped: set by the worker when, after a request to stop, all events were passed on.
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
        """Start to connect, and to stay connected."""
        self._task = self._runtime.spawn("pyspark-mq supervisor", self._life(), self.stopping)

    def check(self) -> None:
        """Check the supervisor's thread.

        Raises:
            MqError: the thread has died.
        """
        if self._task is not None:
            self._task.check(f"{self.endpoint.destination}: ")

    def ask(self, session: int, request: Callable[[Session], object]) -> None:
        """Run a request on the supervisor's thread, if `session` is still alive by then."""
        self._requests.append((session, request))
        self._wake()

    def limit(self, limits: Limits) -> None:
        """Set new limits for the current session and for later sessions."""
        self._limits = limits
        session = self.session(limits.session)
        if session is not None:
            session.buffer.bytes_taken, session.buffer.bytes_allowed = limits.bytes_taken, limits.bytes_allowed

    def session(self, number: int) -> Session | None:
        """Return the session with this number, if it is alive."""
        session = self._session
        return session if session is not None and session.number == number else None

    def stop(self) -> None:
        """Close the connection; the broker requeues unacknowledged messages."""
        self.asked_s = min(self.asked_s, self._runtime.monotonic_s())
        self.stopping.set()
        self._wake()
        self._events.arrived.set()  # wake the worker even if this supervisor ended long ago

    def _wake(self) -> None:
        session = self._session
        if session is not None:
            session.wake()

    # -- its own thread

    def _life(self) -> Iterator[float]:
        """Run one session after another, until stopped or failed; yield delays in seconds."""
        try:
            yield from self._sessions()
        except MqError as error:
            self._events.put(Failed(self.key, error))
        except Exception as error:  # noqa: BLE001 - a silent death would hang the query
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
            level = backoff.idle(lived_s) if idle else logging.WARNING
            _LOG.log(level, "%s: session lost: %s", greeting.url, lost)
            if self._confirmed > confirmed:
                backoff.succeeded()
                yield backoff.reset_s()
                continue
            # A broker may fail on the first message that it delivers. If it refused the consumer, it delivered none.
            if session.buffer.deliveries or (session.consuming and lived_s < _LONG_SESSION_S and not empty):
                backoff.record_refusal(lost)
            if lived_s >= _LONG_SESSION_S:
                yield backoff.reset_s()
            else:
                yield backoff.rest_s(lost, self._runtime.monotonic_s() if idle else began_s, level)

    def _establish(self, backoff: Backoff) -> Generator[float, None, tuple[Session, Greeting] | None]:
        """Open a session at whichever candidate answers first; return None if stopped meanwhile.

        Addresses share the time, so a silent address, such as that of a host without power, leaves time for the others.
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
                # A broker that is starting or stopping may refuse a login that it accepted before; after
                # `connectTimeout` the refusal counts. With a secret in a file, wait longer, because the secret may be
                # replaced soon.
                patience_s = endpoint.connect_timeout_s if endpoint.password_file is None else backoff.patience_s
                if backoff.first or tried_s > patience_s:
                    raise
                problem = refused
            except OptionError as unreadable:
                # The files were readable at `load()`.
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
        self._session = session  # a request to stop wakes it
        try:
            with self.endpoint.hiding():
                return session, session.open(url, timeout_s)
        except BaseException:
            self._session = None
            session.close()
            raise

    def _live(self, session: Session, greeting: Greeting) -> Generator[float, None, SessionLostError | None]:
        """Serve one session to its end; return why it ended, or None if it was stopped."""
        limits = self._limits
        # Spark may be busy with an epoch for minutes before this session is read.
        session.buffer.bytes_allowed = limits.bytes_allowed
        self.turned_s = self._runtime.monotonic_s()
        self._events.put(Opened(self.key, session.number, greeting, limits.window))
        try:
            with self.endpoint.hiding():
                if not self.stopping.is_set():  # the stop may have been requested during the opening
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
        """Return the time. If the last turn was too long ago, the thread stood still: count a break."""
        now_s = self._runtime.monotonic_s()
        self.breaks += now_s - self.turned_s > STILL_S
        return now_s
