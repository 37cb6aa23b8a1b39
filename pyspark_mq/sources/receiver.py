"""The receiver: keeps one session alive after another, on a thread of its own.

It owns the connection, so heartbeats go on while Spark is busy for minutes; it connects again
when the session ends; and it carries out what the query's thread asks for, in order, in the
session it was meant for and in no other.

Everything it has to say goes through one :class:`Mailbox`, which the query's thread reads when
Spark calls. Nothing here decides about messages.

The receiver must not outlive its JVM. Spark's worker process is a child of the JVM; when the JVM
is killed, nobody tells the worker, and one that is blocked in a wait would keep the connection,
and with it the unacknowledged messages, forever. So :func:`watch_parent` looks at the parent
twice a second from a thread of its own and ends the process when it has changed. (The kernel's
parent-death signal is of no use: it fires when the *thread* that started the worker ends.)
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import count, cycle
from typing import Any, Protocol, TypeAlias

from pyspark_mq.errors import BrokerError, BrokerUnavailableError, MqError, OptionError, RefusedError
from pyspark_mq.sources.base import Consumer, Decoder, Greeting, QueueDepth, SessionLostError
from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.sources.runtime import Runtime, Task, begin_thread
from pyspark_mq.sources.settings import Settings
from pyspark_mq.sources.url import BrokerUrl

__all__ = [
    "AnyReceiver", "AnySession", "Confirmed", "Failed", "Lost", "Mailbox", "MakeConsumer", "Opened", "Receiver",
    "ReceiverPool", "Terms", "next_session", "watch_parent",
]  # fmt: skip

_LOG = logging.getLogger("pyspark_mq")

#: How long one turn of the I/O loop lasts when nobody wakes it. Only the stop of a receiver whose
#: wake-up was lost would wait for it.
_TURN_S = 0.5
#: Pause between attempts to connect: doubled from the first to the last, with jitter, so that a
#: restarted broker is not met by all of its clients at once.
_BACKOFF_FIRST_S = 0.1
_BACKOFF_LAST_S = 5.0
#: A session that lived this long was no worse than an idle one: the next needs no rest.
_LONG_SESSION_S = 10.0
#: Sessions that end with the same words and nothing confirmed, in a row. Half the delivery limit of
#: quorum queues in RabbitMQ 4 (20), and of Artemis (10) all but one: it also counts deliveries before ours.
_SAME_ENDS_MAX = 9
_DIGITS = re.compile(r"[0-9]+")
_PARENT_CHECK_S = 0.5

_session_numbers = count(1)


def next_session() -> int:
    """A number for a session, unique in this process."""
    return next(_session_numbers)


#: A consumer of an endpoint, with the number of its session and the signal that something arrived.
MakeConsumer: TypeAlias = Callable[[Endpoint, int, threading.Event], Consumer]


class AnySession(Protocol):
    """What the query's thread looks at of a session: a :class:`Consumer`, or what stands for one of another process."""

    inbox: deque[Any]
    bytes_taken: int
    bytes_allowed: float

    @property
    def session(self) -> int: ...
    @property
    def paused(self) -> bool: ...
    @property
    def behind(self) -> bool: ...
    @property
    def starved(self) -> bool | None: ...
    @property
    def attended(self) -> tuple[int, float] | None: ...


class AnyReceiver(Protocol):
    """A :class:`Receiver`, or what stands for one of another process. For the query's thread."""

    depth: QueueDepth | None
    depth_at_s: float

    def start(self) -> None: ...
    def ask(self, session: int, request: Callable[[Consumer], None]) -> None: ...
    def stop(self, timeout_s: float = 2.0) -> None: ...


class ReceiverPool(Protocol):
    """Processes that hold the connections of a query.

    Attributes:
        decoder: of what their sessions put into inboxes.
    """

    decoder: Decoder

    def receiver(self, settings: Settings, mailbox: Mailbox, terms: Callable[[], Terms]) -> AnyReceiver:
        """One connection more, kept by the process whose turn it is."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session is open and about to consume."""

    receiver: AnyReceiver
    consumer: AnySession
    greeting: Greeting
    window: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A session has ended, and what it had received and nobody has taken is gone.

    Attributes:
        ever_paused: it had stopped consuming for a while. A broker does not count a consumer that was
            cancelled, but what it was handed stays with it for as long as its connection is taken for alive.
    """

    session: int
    ever_paused: bool


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker took the acknowledgements of a settlement."""

    session: int
    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The receiver has given up, for this reason."""

    error: MqError


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a session begins.

    Attributes:
        window: how many unacknowledged messages to have handed out.
        bytes_allowed: when more bytes than this wait in the inbox, it pauses.
    """

    window: int
    bytes_allowed: float


class Mailbox:
    """What receivers tell the query's thread, and the signal that something arrived.

    Args:
        arrived: the signal; one for all mailboxes of a query.
    """

    def __init__(self, arrived: threading.Event | None = None) -> None:
        self.arrived = arrived or threading.Event()
        self._letters: deque[Opened | Lost | Confirmed | Failed] = deque()

    def put(self, letter: Opened | Lost | Confirmed | Failed) -> None:
        """Called by receivers."""
        self._letters.append(letter)
        self.arrived.set()

    def take(self) -> list[Opened | Lost | Confirmed | Failed]:
        """Called by the query's thread: the letters so far, in order."""
        return [self._letters.popleft() for _ in range(len(self._letters))]


class Receiver:
    """Keeps one connection to the broker; `consumers` of them serve a query.

    Args:
        endpoint: where to.
        make_consumer: the protocol's consumer class.
        mailbox: where to report.
        terms: tells on what terms each session begins; called beside the query's thread.
        runtime: the clock, and what runs :meth:`life`.
        again: was there a session before, in a process that is gone? Then the first attempts are those of a reconnect.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        make_consumer: MakeConsumer,
        mailbox: Mailbox,
        terms: Callable[[], Terms],
        runtime: Runtime,
        *,
        again: bool = False,
    ) -> None:
        self._again = again
        self._endpoint = endpoint
        self._make_consumer = make_consumer
        self._mailbox = mailbox
        self._terms = terms
        self._runtime = runtime
        self._requests: deque[tuple[int, Callable[[Consumer], None]]] = deque()
        self._consumer: Consumer | None = None
        self._stopping = threading.Event()
        self._task: Task | None = None
        self._urls = cycle(endpoint.urls)
        self._confirmed = 0
        self.depth: QueueDepth | None = None
        self.depth_at_s = -math.inf

    # -- for the query's thread

    def start(self) -> None:
        """Connect, and stay connected."""
        self._task = self._runtime.spawn("pyspark-mq receiver", self.life(), self._stopping)

    def ask(self, session: int, request: Callable[[Consumer], None]) -> None:
        """Have a request carried out beside, if `session` still lives then."""
        self._requests.append((session, request))
        self._wake()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Close the connection; what is unacknowledged goes back to the broker."""
        self._stopping.set()
        self._wake()
        if self._task is not None:
            self._task.join(timeout_s)

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
            self._mailbox.put(Failed(error))
        except Exception as error:  # noqa: BLE001 - what dies silently would hang the query
            _LOG.exception("the receiver failed")
            text = f"{self._endpoint.destination}: the receiver failed: {type(error).__name__}: {error}"
            self._mailbox.put(Failed(MqError(text)))

    def _sessions(self) -> Iterator[float]:
        trouble = _Trouble(self._endpoint, self._runtime)
        trouble.first = not self._again
        while not self._stopping.is_set():
            opened = yield from self._establish(trouble)
            if opened is None:
                return
            began_s, confirmed = self._runtime.monotonic_s(), self._confirmed
            lost = yield from self._live(*opened)
            if lost is None:
                return
            if self._confirmed > confirmed:
                trouble.over()
                continue
            if opened[0].bytes_arrived:
                trouble.count(lost)
            if self._runtime.monotonic_s() - began_s >= _LONG_SESSION_S:
                trouble.pause()
            else:
                yield trouble.rest_s(lost, began_s)

    def _establish(self, trouble: _Trouble) -> Generator[float, None, tuple[Consumer, Greeting] | None]:
        """A new session, from whichever candidate answers first; None when stopped meanwhile."""
        limits = self._endpoint
        began_s = self._runtime.monotonic_s()
        while not self._stopping.is_set():
            tried_s = self._runtime.monotonic_s() - began_s
            try:
                left_s = trouble.patience_s - tried_s
                opened = self._attempt(next(self._urls), max(0.1, min(left_s, limits.connect_timeout_s)))
            except BrokerUnavailableError as unavailable:
                problem: MqError = unavailable
            except RefusedError as refused:
                # A broker that is just starting or stopping may refuse a login it has accepted
                # before; one that still does after `connectTimeout` means it. Where the secret is in a file, it is
                # one that is being replaced, on both sides.
                patience_s = limits.connect_timeout_s if limits.password_file is None else trouble.patience_s
                if trouble.first or tried_s > patience_s:
                    raise
                problem = refused
            except OptionError as unreadable:
                # The file of the secret, while it is being replaced.
                rotating = unreadable.option == "passwordFile" and not trouble.first
                if not rotating or tried_s > limits.connect_timeout_s:
                    raise
                problem = unreadable
            else:
                trouble.first = False
                return opened
            yield trouble.rest_s(problem, began_s)
        return None

    def _attempt(self, url: BrokerUrl, timeout_s: float) -> tuple[Consumer, Greeting]:
        consumer = self._make_consumer(self._endpoint, next_session(), self._mailbox.arrived)
        try:
            return consumer, consumer.open(url, timeout_s)
        except BaseException:
            consumer.close()
            raise

    def _live(self, consumer: Consumer, greeting: Greeting) -> Generator[float, None, SessionLostError | None]:
        """Serve one session to its end; why it ended, None if it was told to."""
        session = consumer.session

        def confirmed(number: int) -> None:
            self._confirmed += 1
            self._mailbox.put(Confirmed(session, number))

        consumer.on_confirmed = confirmed
        consumer.on_depth = self._remember_depth
        if greeting.depth is not None:
            self._remember_depth(greeting.depth)
        else:  # what an earlier session was told may never be told again
            self.depth = None
        terms = self._terms()
        # Spark may be busy with an epoch for minutes before anybody looks at this session.
        consumer.bytes_allowed = terms.bytes_allowed
        self._mailbox.put(Opened(self, consumer, greeting, terms.window))
        self._consumer = consumer
        try:
            consumer.consume(terms.window)
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
            self._mailbox.put(Lost(session, consumer.ever_paused))

    def _carry_out_requests(self, consumer: Consumer) -> None:
        while self._requests:
            session, request = self._requests.popleft()
            if session == consumer.session:
                request(consumer)

    def _remember_depth(self, depth: QueueDepth) -> None:
        self.depth = depth
        self.depth_at_s = self._runtime.machine_s()
        self._mailbox.arrived.set()


class _Trouble:
    """Rests between attempts that came to nothing, and when to give up.

    Rule 13: a session was good when something was confirmed in it. Whatever opens, hands messages out
    and ends again ages everything it was handed (delivery limits), so there is a rest before the next,
    a longer one each time; and what ends session after session with the same words becomes an error.
    """

    def __init__(self, endpoint: Endpoint, runtime: Runtime) -> None:
        self._endpoint = endpoint
        self._runtime = runtime
        self._since_s: float | None = None
        self._next_s = _BACKOFF_FIRST_S
        self._end = ""
        self._ends = 0
        #: No session was ever opened.
        self.first = True

    @property
    def patience_s(self) -> float:
        """How long it may go on."""
        return self._endpoint.connect_timeout_s if self.first else self._endpoint.reconnect_timeout_s

    def over(self) -> None:
        """A session was good."""
        self._end, self._ends = "", 0
        self.pause()

    def pause(self) -> None:
        """A session was no worse than long: the next attempt needs no rest."""
        self._since_s, self._next_s = None, _BACKOFF_FIRST_S

    def rest_s(self, problem: Exception, since_s: float) -> float:
        """How long to wait before the next attempt.

        Args:
            problem: why the last one came to nothing.
            since_s: when it began.

        Raises:
            BrokerUnavailableError: it has gone on for too long.
        """
        self._since_s = since_s if self._since_s is None else self._since_s
        limits = self._endpoint
        pause_s = self._next_s * self._runtime.jitter()
        self._next_s = min(self._next_s * 2, _BACKOFF_LAST_S)
        if self._runtime.monotonic_s() + pause_s - self._since_s > self.patience_s:
            option = "connectTimeout" if self.first else "reconnectTimeout"
            text = (
                f"{limits.destination}: no broker could be used within {option}={self.patience_s:g}s "
                f"({', '.join(map(str, limits.urls))}); last problem: {_said(problem)}. Nothing is lost: "
                "unacknowledged messages stay in the queue. Restart the query when the broker is back, or raise "
                f"'{option}'"
            )
            raise BrokerUnavailableError(text) from problem
        _LOG.warning("%s; trying again in %.1f s", _said(problem), pause_s)
        return pause_s

    def count(self, problem: SessionLostError) -> None:
        """A session was handed messages, and ended with nothing confirmed.

        What a network does may happen to any number of sessions. What the broker says of one it will say
        of the next.

        Raises:
            BrokerError: it has said the same again and again.
        """
        if not problem.told:
            return
        end = _DIGITS.sub("", str(problem))
        self._ends = self._ends + 1 if end == self._end else 1
        self._end = end
        if self._ends >= _SAME_ENDS_MAX:
            raise BrokerError(
                f"{self._endpoint.destination}: {self._ends} sessions in a row were handed messages, had nothing "
                f"confirmed, and ended the same way: {problem}. Nothing is lost: the messages stay in the queue. But "
                "each end of a session counts towards delivery limits, so the query stops here"
            ) from problem


def _said(problem: Exception) -> str:
    """Its words, to be quoted: the short name is that of the error that fails the query."""
    return problem.text if isinstance(problem, MqError) else str(problem)


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

    return begin_thread("pyspark-mq parent watch", watch, lambda _: os._exit(1))
