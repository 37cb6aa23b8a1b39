"""The parent's side: processes that hold connections, and what stands for their receivers and sessions here.

A pool has as many processes as it was asked for, or as it has receivers for, and deals receivers to them in turn. Two
threads serve each process: one reads what it says, from its start to its end and that of the next one; the other sends,
so that the query's thread never waits for a process that does not read.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, cycle
from typing import Any

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.block import ChunkDecoder
from pyspark_mq.sources.connections.consumer import Consumer, QueueDepth
from pyspark_mq.sources.connections.decoder import Decoder
from pyspark_mq.sources.connections.events import Confirmed, Failed, Lost, Mailbox, Opened, Terms, next_session
from pyspark_mq.sources.connections.processes.child import BOOT
from pyspark_mq.sources.connections.processes.memory import open_chunk
from pyspark_mq.sources.connections.processes.messages import (
    Allow,
    Answer,
    Ask,
    Attended,
    Begin,
    Confirm,
    Depth,
    End,
    Ended,
    Fail,
    Hello,
    Logged,
    Open,
    Question,
    Rows,
    Signs,
    Stop,
)
from pyspark_mq.sources.connections.processes.wire import Channel, Frame
from pyspark_mq.sources.runtime import begin_thread
from pyspark_mq.sources.settings import OnUnreadable, Settings

__all__ = ["Pool"]

_LOG = logging.getLogger("pyspark_mq")

#: Rests before a process is started again: doubled from the first to the last, with jitter.
_REST_FIRST_S = 0.1
_REST_LAST_S = 5.0
#: A process that lived so long, or in which something was confirmed, was a good one.
_GOOD_LIFE_S = 10.0
#: So many that were none, in a row, are an error. Each is an end of sessions, which counts towards delivery limits.
_BAD_LIVES_MAX = 5
#: A process that says nothing for three heartbeats, and for so long at least, is ended: its broker has given it up.
_SILENT_HEARTBEATS = 3
_SILENT_LEAST_S = 10.0
#: Silence is counted in steps, so that a stop of this process is no silence of the other.
_STEP_S = 0.5
_END_TIMEOUT_S = 2.0


class _Session:
    """Stands for a session of another process. Its fields are those of a :class:`Consumer` that are looked at here.

    Args:
        receiver: whose it is.
        number: of it in its process.
        outbox: of that process. Requests go there and nowhere else: a later process may give the same number (rule 10).
        allowed: see `bytes_allowed`.
    """

    def __init__(self, receiver: _Receiver, number: int, outbox: queue.SimpleQueue[object], allowed: float) -> None:
        #: Unique here; several processes give the same.
        self.session = next_session()
        self.number = number
        self.outbox = outbox
        self.inbox: deque[Any] = deque()
        self.paused = self.behind = False
        self.starved: bool | None = None
        self.bytes_taken = 0
        self._receiver = receiver
        self._opened_s = time.monotonic()
        self._allowed = allowed
        self._told = (0, allowed)

    @property
    def attended(self) -> tuple[int, float] | None:
        """See :attr:`Consumer.attended <pyspark_mq.sources.connections.consumer.Consumer.attended>`."""
        breaks, until_s = self._receiver.process.attended
        return breaks, max(until_s, self._opened_s)

    @property
    def bytes_allowed(self) -> float:
        """When more bytes than this were received and not taken, in all processes together, it pauses."""
        return self._allowed

    @bytes_allowed.setter
    def bytes_allowed(self, allowed: float) -> None:
        # Set with each look at the session, so this is also where what was taken is told.
        self._allowed = allowed
        if self._told != (self.bytes_taken, allowed):
            self._told = (self.bytes_taken, allowed)
            self.outbox.put(Allow(self._receiver.key, self.number, self.bytes_taken, allowed))


class _Receiver:
    """Stands for a receiver of another process; for the query's thread."""

    def __init__(
        self, process: _Process, key: int, settings: Settings, mailbox: Mailbox, terms: Callable[[], Terms]
    ) -> None:
        self.process = process
        self.key = key
        self.depth: QueueDepth | None = None
        self.depth_at_s = -math.inf
        self.endpoint = settings.endpoint
        self._settings = settings
        self._mailbox = mailbox
        self._terms = terms
        #: Not to be kept by the next process.
        self.stopping = False
        self._ended = threading.Event()
        self._allowed = math.inf
        self._session: _Session | None = None
        self._opened_before = False

    def start(self) -> None:
        """Have it connect, and stay connected."""
        self.process.begin(self)

    def ask(self, session: int, request: Callable[[Consumer], None]) -> None:
        """Have a request carried out in a session, if that still lives then. It has to be one that can be pickled."""
        live = self._session
        if live is not None and live.session == session:
            live.outbox.put(Ask(self.key, live.number, request))

    def stop(self, timeout_s: float = _END_TIMEOUT_S) -> None:
        """Close the connection; what is unacknowledged goes back to the broker."""
        self.stopping = True
        if self.process.send(Stop(self.key)):
            self._ended.wait(timeout_s)

    # -- for the thread that reads

    def beginning(self) -> Begin:
        """What its process is to do."""
        keeps = self._settings.on_unreadable is not OnUnreadable.FAIL
        return Begin(self.key, self.endpoint, self._settings.id_source, keeps, self._opened_before)

    def hear(self, message: object, frame: Frame, columns: Sequence[str]) -> None:
        """What its process says."""
        live = self._session
        if isinstance(message, Rows):
            # Unpacked in any case: a file is to be closed.
            chunk = open_chunk(frame.data, frame.file, columns)
            if live is not None and live.number == message.session:
                live.inbox.extend(chunk.raws)
                self._mailbox.arrived.set()
        elif isinstance(message, Confirm):
            self.process.good = True
            if live is not None and live.number == message.session:
                self._mailbox.put(Confirmed(live.session, message.number))
        elif isinstance(message, Signs):
            if live is not None and live.number == message.session:
                live.paused, live.behind, live.starved = message.paused, message.behind, message.starved
        elif isinstance(message, Depth):
            self.depth, self.depth_at_s = message.depth, time.monotonic()
            self._mailbox.arrived.set()
        elif isinstance(message, Question):
            terms = self._terms()
            self._allowed = terms.bytes_allowed
            self.process.send(Answer(self.key, terms))
        else:
            self._hear_of_sessions(message)

    def _hear_of_sessions(self, message: object) -> None:
        if isinstance(message, Open):
            self._opened_before = True
            outbox = self.process.outbox
            assert outbox is not None, "who is heard lives"
            self._session = _Session(self, message.session, outbox, self._allowed)
            self.depth = message.greeting.depth
            self.depth_at_s = -math.inf if self.depth is None else time.monotonic()
            self._mailbox.put(Opened(self, self._session, message.greeting, message.window))
        elif isinstance(message, End):
            self.lose(ever_paused=message.ever_paused)
        elif isinstance(message, Fail):
            self.fail(message.error)
        elif isinstance(message, Ended):
            self._ended.set()

    def lose(self, *, ever_paused: bool) -> None:
        """Its session is over; what of it was not taken is gone."""
        live, self._session = self._session, None
        if live is not None:
            live.inbox.clear()
            self._mailbox.put(Lost(live.session, ever_paused))

    def gone(self) -> None:
        """Its process is: there is nobody to stop any more."""
        self._ended.set()

    def fail(self, error: MqError) -> None:
        """It has given up."""
        self._mailbox.put(Failed(error))


class _Process:
    """One process after another, and the receivers that were dealt to it.

    Args:
        size: of the pool.
        columns: to make of deliveries.

    Attributes:
        attended: how often it stood still, and up to when everything was handed over; set at once.
        outbox: what is to be sent to the process that lives now; None while there is none.
        good: something was confirmed in this life.
    """

    def __init__(self, size: int, columns: Sequence[str]) -> None:
        self.attended = (0, -math.inf)
        self.good = False
        self._size = size
        self._columns = tuple(columns)
        self._lock = threading.Lock()
        self._receivers: dict[int, _Receiver] = {}
        self.outbox: queue.SimpleQueue[object] | None = None
        self._channel: Channel | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._bad_lives = 0

    # -- for other threads

    def begin(self, receiver: _Receiver) -> None:
        """Have it keep a receiver's connection."""
        with self._lock:
            self._receivers[receiver.key] = receiver
            if self.outbox is not None:
                self.outbox.put(receiver.beginning())
            if self._thread is None:
                self._thread = begin_thread("pyspark-mq process", self._live, self._died)

    def send(self, message: object) -> bool:
        """Say something, if it lives. What is said to one that has died is void, like its sessions."""
        outbox = self.outbox
        if outbox is not None:
            outbox.put(message)
        return outbox is not None

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        with self._lock:
            if self._channel is not None:
                self._channel.hang_up()
        if self._thread is not None:
            self._thread.join(_END_TIMEOUT_S)

    # -- the thread that reads

    def _live(self) -> None:
        rest_s = _REST_FIRST_S
        while not self._stopping.is_set():
            began_s = time.monotonic()
            self.good = False
            try:
                end = self._live_once()
            except Exception as error:  # noqa: BLE001 - what dies silently would hang the query
                _LOG.exception("a receiver process could not be served")
                end = f"{type(error).__name__}: {error}"
            if self._stopping.is_set():
                return
            if self.good or time.monotonic() - began_s >= _GOOD_LIFE_S:
                self._bad_lives, rest_s = 0, _REST_FIRST_S
            else:
                self._bad_lives += 1
            if self._bad_lives >= _BAD_LIVES_MAX:
                self._give_up(end)
                return
            pause_s = rest_s * random.uniform(0.5, 1.0)  # not secrecy
            rest_s = min(rest_s * 2, _REST_LAST_S)
            _LOG.warning("a receiver process ended: %s; starting another in %.1f s", end, pause_s)
            self._stopping.wait(pause_s)

    def _live_once(self) -> str:
        """Start a process and serve it to its end; how that was."""
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        process: subprocess.Popen[bytes] | None = None
        sender: threading.Thread | None = None
        outbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        try:
            with theirs:
                process = _start(theirs)
            # From now on until something is heard, nothing has been attended to.
            self.attended = (self.attended[0], time.monotonic())
            outbox.put(Hello(self._columns, _LOG.getEffectiveLevel()))
            sender = begin_thread("pyspark-mq sender", lambda: _send_all(channel, outbox), lambda _: channel.hang_up())
            with self._lock:
                if self._stopping.is_set():
                    return "it was not needed any more"
                self.outbox, self._channel = outbox, channel
                for receiver in self._receivers.values():
                    if not receiver.stopping:
                        outbox.put(receiver.beginning())
            silent = self._serve(channel)
        finally:
            with self._lock:
                self.outbox = self._channel = None
            # Its messages go back to the broker before anything else is done: nothing is taken from it any more.
            if process is not None:
                process.kill()
            channel.hang_up()
            outbox.put(None)
            for receiver in list(self._receivers.values()):
                receiver.lose(ever_paused=True)
                receiver.gone()
            with self._lock:
                self._receivers = {key: one for key, one in self._receivers.items() if not one.stopping}
            if sender is not None:
                sender.join()
            channel.close()
        code = process.wait()
        if silent:
            return "it said nothing for too long and was killed"
        return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"

    def _serve(self, channel: Channel) -> bool:
        """Hear it to its end; is that because it is silent?"""
        silent_s = 0.0
        while True:
            try:
                frame = channel.receive(_STEP_S)
            except TimeoutError:
                silent_s += _STEP_S
                if silent_s >= self._silence_max_s():
                    return True
                continue
            if frame is None:
                return False
            silent_s = 0.0
            message = frame.message
            if isinstance(message, Attended):
                self.attended = (self.attended[0] + message.broke_off, message.until_s)
            elif isinstance(message, Logged):
                logging.getLogger(message.record.name).handle(message.record)
            else:
                self._hear(message, frame)

    def _hear(self, message: Any, frame: Frame) -> None:
        """What concerns one receiver; it is forgotten when it has ended."""
        receiver = self._receivers.get(message.key)
        if receiver is None:
            return  # it has ended, and its thread had something to ask
        receiver.hear(message, frame, self._columns)
        if isinstance(message, Ended):
            with self._lock:
                self._receivers.pop(message.key, None)

    def _silence_max_s(self) -> float:
        beats_s = (receiver.endpoint.heartbeat_s for receiver in list(self._receivers.values()))
        return max(_SILENT_LEAST_S, _SILENT_HEARTBEATS * min(beats_s, default=0.0))

    def _died(self, error: Exception) -> None:
        self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, end: str) -> None:
        for receiver in list(self._receivers.values()):
            receiver.fail(
                MqError(
                    f"{receiver.endpoint.destination}: {self._bad_lives} receiver processes in a row (option "
                    f"'receivers': {self._size}) ended before anything was confirmed in them; the last: {end}. "
                    "Nothing is lost: unacknowledged messages stay in the queue. See what the log and standard error "
                    "of the source's process say, and whether the machine has the memory for so many, or set "
                    "'receivers' to 1"
                )
            )


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    descriptor = theirs.fileno()
    command = [sys.executable, "-c", BOOT, str(descriptor), json.dumps([*map(str, sys.path)])]
    # What it prints must not get between what the source's process says to Spark.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[descriptor])


def _send_all(channel: Channel, outbox: queue.SimpleQueue[object]) -> None:
    try:
        while (message := outbox.get()) is not None:
            channel.send(message)
    except OSError:
        pass  # it is gone, as the thread that reads sees
    except Exception:  # noqa: BLE001 - what dies silently would hang the query
        _LOG.exception("a receiver process cannot be asked for something")
        channel.hang_up()  # what is not asked for would be waited for


class Pool:
    """Processes that hold the connections of a query.

    Args:
        size: how many; fewer if they have fewer connections to hold.
        columns: those of the query's schema.

    Attributes:
        decoder: of what their sessions put into inboxes.
    """

    def __init__(self, size: int, columns: Sequence[str]) -> None:
        self.decoder: Decoder = ChunkDecoder()
        self._processes = [_Process(size, columns) for _ in range(size)]
        self._turns = cycle(self._processes)
        self._keys = count(1)

    def receiver(self, settings: Settings, mailbox: Mailbox, terms: Callable[[], Terms]) -> _Receiver:
        """One connection more, kept by the process whose turn it is. A process is started when it has one to open.

        Args:
            settings: the query's, with the queue that is to be read.
            mailbox: where to report.
            terms: tells on what terms each session begins; called beside the query's thread.
        """
        return _Receiver(next(self._turns), next(self._keys), settings, mailbox, terms)

    def stop(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.stop()
