"""The receiver: a thread that keeps one session alive after another.

It owns the connection, so heartbeats go on while Spark is busy for minutes; it connects again
when the session ends; and it carries out what the query's thread asks for, in order, in the
session it was meant for and in no other.

Everything it has to say goes through one :class:`Mailbox`, which the query's thread reads when
Spark calls. Nothing here decides about messages.

The receiver must not outlive its JVM. Spark's worker process is a child of the JVM; when the JVM
is killed nobody tells the worker, and one that is blocked in a wait would keep the connection,
and with it the un-acknowledged messages, for ever. So :func:`watch_parent` looks at the parent
twice a second from a thread of its own and ends the process when it has changed. (The kernel's
parent-death signal is of no use: it fires when the *thread* that started the worker ends.)
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, cycle

from pyspark_mq.errors import BrokerUnavailableError, MqError, RefusedError
from pyspark_mq.sources.base import Consumer, Greeting, QueueDepth, SessionLostError
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.url import BrokerUrl

__all__ = ["Confirmed", "Failed", "Lost", "Mailbox", "Opened", "Receiver", "watch_parent"]

_LOG = logging.getLogger("pyspark_mq")

#: How long one turn of the I/O loop lasts when nobody wakes it. Only the stop of a receiver whose
#: wake-up was lost would wait for it.
_TURN_S = 0.5
#: Pause between attempts to connect: doubled from the first to the last, with jitter, so that a
#: restarted broker is not met by all of its clients at once.
_BACKOFF_FIRST_S = 0.1
_BACKOFF_LAST_S = 5.0
#: A session that lived this long was a good one: the back-off begins anew.
_GOOD_SESSION_S = 10.0
_PARENT_CHECK_S = 0.5

_session_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Opened:
    """A session is open and about to consume."""

    receiver: Receiver
    consumer: Consumer
    greeting: Greeting
    window: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A session has ended; its inbox is to be ignored."""

    receiver: Receiver
    session: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker took the acknowledgements of a settlement."""

    session: int
    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The receiver has given up, for this reason."""

    error: MqError


class Mailbox:
    """What receivers tell the query's thread, and the signal that something arrived."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._letters: deque[Opened | Lost | Confirmed | Failed] = deque()

    def put(self, letter: Opened | Lost | Confirmed | Failed) -> None:
        """Called by receivers."""
        self._letters.append(letter)
        self.arrived.set()

    def take(self) -> list[Opened | Lost | Confirmed | Failed]:
        """Called by the query's thread: the letters so far, in order."""
        return [self._letters.popleft() for _ in range(len(self._letters))]


class Receiver(threading.Thread):
    """Keeps one connection to the broker; `consumers` of them serve a query.

    Args:
        endpoint: where to.
        make_consumer: the protocol's consumer class.
        mailbox: where to report.
        window: tells how many messages to have handed out at first in each session; called on
            this thread.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        make_consumer: Callable[[Endpoint, int, threading.Event], Consumer],
        mailbox: Mailbox,
        window: Callable[[], int],
    ) -> None:
        super().__init__(name="pyspark-mq receiver", daemon=True)
        self._endpoint = endpoint
        self._make_consumer = make_consumer
        self._mailbox = mailbox
        self._window = window
        self._requests: deque[tuple[int, Callable[[Consumer], None]]] = deque()
        self._consumer: Consumer | None = None
        self._stopping = threading.Event()
        self._urls = cycle(endpoint.urls)
        self.depth: QueueDepth | None = None
        self.depth_at_s = 0.0

    # -- for the query's thread

    def ask(self, session: int, request: Callable[[Consumer], None]) -> None:
        """Have a request carried out by the receiving thread, if `session` still lives then."""
        self._requests.append((session, request))
        consumer = self._consumer
        if consumer is not None:
            consumer.wake()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Close the connection and end the thread; what is un-acknowledged goes back."""
        self._stopping.set()
        consumer = self._consumer
        if consumer is not None:
            consumer.wake()
        self.join(timeout_s)

    # -- the thread

    def run(self) -> None:
        """One session after another, until stopped or failed."""
        try:
            self._sessions()
        except MqError as error:
            self._mailbox.put(Failed(error))
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would hang the query
            _LOG.exception("the receiver failed")
            text = f"{self._endpoint.destination}: the receiver failed: {type(error).__name__}: {error}"
            self._mailbox.put(Failed(MqError(text)))

    def _sessions(self) -> None:
        backoff = _Backoff()
        first = True
        trouble_since: float | None = None
        while not self._stopping.is_set():
            opened = self._establish(backoff, first=first)
            if opened is None:
                return
            began = time.monotonic()
            lost = self._live(*opened)
            if opened[0].bytes_arrived or time.monotonic() - began >= _GOOD_SESSION_S:
                first, trouble_since, backoff = False, None, _Backoff()
                continue
            # It opened and was of no use: an exclusive consumer elsewhere, say.
            trouble_since = began if trouble_since is None else trouble_since
            self._rest(backoff, trouble_since, lost, first=first)

    def _rest(self, backoff: _Backoff, since_s: float, problem: Exception | None, *, first: bool) -> None:
        """Wait before the next attempt, or give up if it has gone on for too long."""
        limits = self._endpoint
        option = "connectTimeout" if first else "reconnectTimeout"
        patience_s = limits.connect_timeout_s if first else limits.reconnect_timeout_s
        pause = backoff.next_s()
        if time.monotonic() + pause - since_s > patience_s:
            text = (
                f"{limits.destination}: no broker could be used within {option}={patience_s:g}s "
                f"({', '.join(map(str, limits.urls))}); last problem: {problem}. Nothing is lost: un-acknowledged "
                f"messages stay in the queue. Restart the query when the broker is back, or raise '{option}'"
            )
            raise BrokerUnavailableError(text) from problem
        _LOG.warning("%s; trying again in %.1f s", problem, pause)
        self._stopping.wait(pause)

    def _establish(self, backoff: _Backoff, *, first: bool) -> tuple[Consumer, Greeting] | None:
        """A new session, from whichever candidate answers first; None when stopped meanwhile."""
        limits = self._endpoint
        patience_s = limits.connect_timeout_s if first else limits.reconnect_timeout_s
        began = time.monotonic()
        while not self._stopping.is_set():
            left = began + patience_s - time.monotonic()
            try:
                return self._attempt(next(self._urls), max(0.1, min(left, limits.connect_timeout_s)))
            except BrokerUnavailableError as unavailable:
                problem: MqError = unavailable
            except RefusedError as refused:
                # A broker that is just starting or stopping may refuse a login it has accepted
                # before; one that still does after `connectTimeout` means it.
                if first or time.monotonic() - began > limits.connect_timeout_s:
                    raise
                problem = refused
            self._rest(backoff, began, problem, first=first)
        return None

    def _attempt(self, url: BrokerUrl, timeout_s: float) -> tuple[Consumer, Greeting]:
        consumer = self._make_consumer(self._endpoint, next(_session_numbers), self._mailbox.arrived)
        try:
            return consumer, consumer.open(url, timeout_s)
        except BaseException:
            consumer.close()
            raise

    def _live(self, consumer: Consumer, greeting: Greeting) -> SessionLostError | None:
        """Serve one session to its end; why it ended, None if it was told to."""
        session = consumer.session
        consumer.on_confirmed = lambda number: self._mailbox.put(Confirmed(session, number))
        consumer.on_depth = self._remember_depth
        if greeting.depth is not None:
            self._remember_depth(greeting.depth)
        window = self._window()
        self._mailbox.put(Opened(self, consumer, greeting, window))
        self._consumer = consumer
        try:
            consumer.consume(window)
            while not self._stopping.is_set():
                self._carry_out_requests(consumer)
                consumer.run(_TURN_S)
        except SessionLostError as lost:
            _LOG.warning("%s: session lost: %s", greeting.url, lost)
            return lost
        else:
            return None
        finally:
            self._consumer = None
            consumer.close()
            consumer.inbox.clear()
            self._mailbox.put(Lost(self, session))

    def _carry_out_requests(self, consumer: Consumer) -> None:
        while self._requests:
            session, request = self._requests.popleft()
            if session == consumer.session:
                request(consumer)

    def _remember_depth(self, depth: QueueDepth) -> None:
        self.depth = depth
        self.depth_at_s = time.monotonic()
        self._mailbox.arrived.set()


class _Backoff:
    """Pauses between attempts, in seconds."""

    def __init__(self) -> None:
        self._next = _BACKOFF_FIRST_S

    def next_s(self) -> float:
        pause = self._next * random.uniform(0.5, 1.0)  # jitter, not secrecy
        self._next = min(self._next * 2, _BACKOFF_LAST_S)
        return pause


def watch_parent(end: Callable[[], None] | None = None) -> threading.Thread:
    """End this process, without any clean-up, soon after its parent has (rule 11).

    Args:
        end: what to do instead of ending the process, for tests.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        if end is not None:
            end()
            return
        # The kernel closes the connection and the broker takes its messages back at once.
        os._exit(1)

    thread = threading.Thread(target=watch, name="pyspark-mq parent watch", daemon=True)
    thread.start()
    return thread
