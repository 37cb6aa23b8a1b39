"""The contract of a receiver: it keeps one session alive after another, on a thread of its own.

It owns the connection, so heartbeats go on while Spark is busy for minutes. It connects again when the session ends,
after the rest that :mod:`.backoff` has for that end. It carries out what the query's thread asks for, in order, in the
session it was meant for and in no other: a request for a session that has ended is dropped, as its handles are void.

What may be called when: `start` once; `ask` and `limit` by any thread, at any time, before, within and after a session;
`stop` last. Only `stop` blocks, for the close of the
connection, at most for its timeout.

All its events go into one queue, which its host passes on: opened, confirmed, depth, lost, failed.
Each session is opened once and lost once, and everything about it comes between the two. `failed` is the last event.
Nothing here decides about messages, and nothing here survives a crash.

Guarantee: what was handed out in a session is acknowledged in it or not at all.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import cycle
from typing import TypeAlias

from pyspark_mq.errors import BrokerUnavailableError, MqError, OptionError, RefusedError
from pyspark_mq.sources.connections.backoff import Backoff
from pyspark_mq.sources.connections.events import Confirmed, DepthReported, EventQueue, Failed, Lost, Opened
from pyspark_mq.sources.connections.requests import Begin, Limits, Request
from pyspark_mq.sources.connections.session import Greeting, Session, SessionLostError
from pyspark_mq.sources.endpoint import FILES, Endpoint
from pyspark_mq.sources.runtime import Runtime, Task
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["MakeSession", "SessionKeeper"]

_LOG = logging.getLogger("pyspark_mq")

#: How long one turn of the I/O loop lasts when nobody wakes it. Only the stop of a receiver whose
#: wake-up was lost would wait for it.
_TURN_S = 0.5
#: A session that lived this long was no worse than an idle one: the next needs the shortest rest.
_LONG_SESSION_S = 10.0

#: A consumer of an endpoint, with the number of its session and the signal that something arrived.
MakeSession: TypeAlias = Callable[[Endpoint, int, threading.Event], Session]


class SessionKeeper:
    """Keeps one connection to the broker; `consumers` of them serve a queue.

    Args:
        begin: what it is to keep.
        make_session: the protocol's consumer class.
        events: where to report. Deliveries are not reported: they wait in the inbox of the session's consumer.
        sessions: numbers for sessions.
        runtime: the clock, and what runs :meth:`life`.

    Attributes:
        ended: every event of it was emitted, and nothing comes any more.
    """

    def __init__(
        self, begin: Begin, make_session: MakeSession, events: EventQueue, sessions: Iterator[int], runtime: Runtime
    ) -> None:
        self._key = begin.key
        self._again = begin.again
        self._endpoint = begin.endpoint
        self._limits = begin.limits
        self._make_consumer = make_session
        self._events = events
        self._numbers = sessions
        self._runtime = runtime
        self._requests: deque[tuple[int, Request]] = deque()
        self._consumer: Session | None = None
        self._stopping = threading.Event()
        self._asked_to_stop_s = 0.0
        self._task: Task | None = None
        self._urls = cycle(begin.endpoint.urls)
        self._confirmed = 0
        self.ended = False

    # -- for other threads

    def start(self) -> None:
        """Connect, and stay connected."""
        self._task = self._runtime.spawn("pyspark-mq receiver", self.life(), self._stopping)

    def ask(self, session: int, request: Request) -> None:
        """Have a request carried out beside, if `session` still lives then."""
        self._requests.append((session, request))
        self._wake()

    def limit(self, limits: Limits) -> None:
        """Other limits hold, for the session that lives and for the next one."""
        self._limits = limits
        consumer = self.consumer_of(limits.session)
        if consumer is not None:
            consumer.bytes_taken, consumer.bytes_allowed = limits.bytes_taken, limits.bytes_allowed

    def consumer_of(self, session: int) -> Session | None:
        """The consumer of a session, if that lives."""
        consumer = self._consumer
        return consumer if consumer is not None and consumer.session == session else None

    def stop(self, timeout_s: float = 2.0) -> None:
        """Close the connection; what is unacknowledged goes back to the broker.

        Args:
            timeout_s: how long to wait for that, from the first time it was asked for.
        """
        now_s = self._runtime.monotonic_s()
        if not self._stopping.is_set():
            self._asked_to_stop_s = now_s
        self._stopping.set()
        self._wake()
        if self._task is not None:
            self._task.join(max(0.0, self._asked_to_stop_s + timeout_s - now_s))

    def _wake(self) -> None:
        consumer = self._consumer
        if consumer is not None:
            consumer.wake()

    # -- beside it

    def life(self) -> Iterator[float]:
        """One session after another, until stopped or failed; yields how long to rest, in seconds."""
        try:
            yield from self._sessions()
        except MqError as error:
            self._events.put(Failed(self._key, error))
        except Exception as error:  # noqa: BLE001 - what dies silently would hang the query
            _LOG.exception("the receiver failed")
            text = f"{self._endpoint.destination}: the receiver failed: {type(error).__name__}: {error}"
            self._events.put(Failed(self._key, MqError(text)))
        finally:
            self.ended = True

    def _sessions(self) -> Iterator[float]:
        backoff = Backoff(self._endpoint, self._runtime)
        backoff.first = not self._again
        while not self._stopping.is_set():
            opened = yield from self._establish(backoff)
            if opened is None:
                return
            began_s, confirmed = self._runtime.monotonic_s(), self._confirmed
            lost = yield from self._live(*opened)
            if lost is None:
                return
            if self._confirmed > confirmed:
                backoff.over()
                yield backoff.first_s()
                continue
            if opened[0].deliveries:
                backoff.count(lost)
            if self._runtime.monotonic_s() - began_s >= _LONG_SESSION_S:
                yield backoff.first_s()
            else:
                yield backoff.rest_s(lost, began_s)

    def _establish(self, backoff: Backoff) -> Generator[float, None, tuple[Session, Greeting] | None]:
        """A new session, from whichever candidate answers first; None when stopped meanwhile."""
        limits = self._endpoint
        began_s = self._runtime.monotonic_s()
        while not self._stopping.is_set():
            tried_s = self._runtime.monotonic_s() - began_s
            try:
                left_s = backoff.patience_s - tried_s
                opened = self._attempt(next(self._urls), max(0.1, min(left_s, limits.connect_timeout_s)))
            except BrokerUnavailableError as unavailable:
                problem: MqError = unavailable
            except RefusedError as refused:
                # A broker that is just starting or stopping may refuse a login it has accepted
                # before; one that still does after `connectTimeout` means it. Where the secret is in a file, it is
                # one that is being replaced, on both sides.
                patience_s = limits.connect_timeout_s if limits.password_file is None else backoff.patience_s
                if backoff.first or tried_s > patience_s:
                    raise
                problem = refused
            except OptionError as unreadable:
                # They were readable at `load()`.
                if unreadable.option not in FILES:
                    raise
                problem = unreadable
            else:
                backoff.first = False
                return opened
            yield backoff.rest_s(problem, began_s)
        return None

    def _attempt(self, url: BrokerUrl, timeout_s: float) -> tuple[Session, Greeting]:
        consumer = self._make_consumer(self._endpoint, next(self._numbers), self._events.arrived)
        try:
            with self._endpoint.hiding():
                return consumer, consumer.open(url, timeout_s)
        except BaseException:
            consumer.close()
            raise

    def _live(self, consumer: Session, greeting: Greeting) -> Generator[float, None, SessionLostError | None]:
        """Serve one session to its end; return why it ended, None if it was stopped."""
        session = consumer.session

        def confirmed(number: int) -> None:
            self._confirmed += 1
            self._events.put(Confirmed(self._key, session, number))

        consumer.on_confirmed = confirmed
        consumer.on_depth = lambda depth: self._events.put(DepthReported(self._key, depth))
        limits = self._limits
        # Spark may be busy with an epoch for minutes before anybody looks at this session.
        consumer.bytes_allowed = limits.bytes_allowed
        self._consumer = consumer
        self._events.put(Opened(self._key, session, greeting, limits.window))
        try:
            with self._endpoint.hiding():
                consumer.consume(limits.window)
                while not self._stopping.is_set():
                    self._carry_out_requests(consumer)
                    consumer.run(_TURN_S)
                    yield 0.0
        except SessionLostError as lost:
            _LOG.warning("%s: session lost: %s", greeting.url, lost)
            return lost
        else:
            return None
        finally:
            self._consumer = None
            consumer.close()
            consumer.inbox.clear()
            self._events.put(Lost(self._key, session))

    def _carry_out_requests(self, consumer: Session) -> None:
        while self._requests:
            session, request = self._requests.popleft()
            if session == consumer.session:
                request.carry_out(consumer)
