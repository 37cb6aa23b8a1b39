"""The parent's side: a worker that is a process, one after another.

There are as many as were asked for, or as there are keepers for, and keepers are dealt to them in turn. A thread for
each reads what it says, from its start to its end and that of the next one; a second one sends, so that the query's
thread never waits for a process that does not read.
"""

from __future__ import annotations

import json
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

import pyarrow as pa

from pyspark_mq.errors import MqError
from pyspark_mq.sources.connections.events import Confirmed, Failed, Lost, Opened, Progress, Stopped
from pyspark_mq.sources.connections.processes.child import BOOT
from pyspark_mq.sources.connections.processes.wire import Channel, Hello, read_event
from pyspark_mq.sources.connections.requests import Begin, SetLimits, Stop, ToWorker
from pyspark_mq.sources.connections.workers import Emit, Worker, Workers
from pyspark_mq.sources.runtime import Runtime, begin_thread

__all__ = ["ChildProcess", "ProcessWorker", "in_processes"]

_LOG = logging.getLogger("pyspark_mq")

#: Rests before a process is started again: doubled from the first to the last, with jitter.
_REST_FIRST_S = 0.1
_REST_LAST_S = 5.0
#: A process that lived so long and said something, or in which something was confirmed, was a good one.
_GOOD_LIFE_S = 10.0
#: So many that were none, in a row, are an error. Each is an end of sessions, which counts towards delivery limits.
_BAD_LIVES_MAX = 5
#: A process that says nothing for three heartbeats, and for so long at least, is ended: its broker has given it up.
_SILENT_HEARTBEATS = 3
_SILENT_MIN_S = 10.0
#: How long a look for what a process says waits.
_STEP_S = 0.5
#: Numbers of sessions for one process: more than it can have.
_SESSIONS = 1 << 32


class ChildProcess:
    """A process of this machine, from its start to its end."""

    def __init__(self, hello: Hello) -> None:
        ours, theirs = socket.socketpair()
        self._schema = hello.schema
        self._channel = Channel(ours)
        self._outbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-c", BOOT, str(descriptor), json.dumps([*map(str, sys.path)])]
            # What it prints must not get between what the source's process says to Spark.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[descriptor])
        self._outbox.put(hello)
        self._sender = begin_thread("pyspark-mq sender", self._send_all, lambda _: self.hang_up())

    def _send_all(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._channel.send(message)
        except OSError:
            pass  # it is gone, as the thread that reads sees
        except Exception:  # noqa: BLE001 - what dies silently would hang the query
            _LOG.exception("a receiver process cannot be asked for something")
            self.hang_up()  # what is not asked for would be waited for

    def send(self, message: ToWorker) -> None:
        """Send a message. Never blocks. What is sent to one that has died is void, like its sessions."""
        self._outbox.put(message)

    def receive(self, timeout_s: float) -> Any:
        """Return its next event, progress mark or log record; None if nothing came in time.

        Raises:
            EOFError: it is gone.
        """
        try:
            frame = self._channel.receive(timeout_s)
        except TimeoutError:
            return None
        if frame is None:
            raise EOFError
        return read_event(frame, self._schema)

    def hang_up(self) -> None:
        """Have :meth:`receive` raise soon. For any thread."""
        self._channel.hang_up()

    def end(self) -> str:
        """Kill it, if it lives; return how it ended, in words."""
        # Its messages go back to the broker before anything else is done.
        self._process.kill()
        self.hang_up()
        self._outbox.put(None)
        self._sender.join()
        self._channel.close()
        code = self._process.wait()
        if code >= 0:
            return f"exit code {code}"
        known = [one.name for one in signal.Signals if one == -code]  # real-time signals have no names
        return f"signal {-code} ({known[0]})" if known else f"signal {-code}"


#: Starts a process; it is the one of this machine, unless it is played by something else.
StartChild: TypeAlias = Callable[[Hello], ChildProcess]


def in_processes(size: int, schema: pa.Schema, runtime: Runtime, start: StartChild = ChildProcess) -> Workers:
    """Return workers in processes of their own.

    Args:
        size: how many processes; fewer if they have fewer connections to hold.
        schema: of the blocks to make.
    """
    hello, lives = Hello(schema, _LOG.getEffectiveLevel(), 0), count(1)
    return Workers(lambda emit: [ProcessWorker(start, emit, hello, lives, size, runtime) for _ in range(size)], runtime)


class ProcessWorker(Worker):
    """One process after another, and the keepers that were dealt to it.

    Args:
        hello: what a process is sent first, but for its sessions' numbers.
        lives: numbers for processes, unique in the query.
        size: how many such workers there are.
    """

    def __init__(
        self, start: StartChild, emit: Emit, hello: Hello, lives: Iterator[int], size: int, runtime: Runtime
    ) -> None:
        super().__init__(emit, runtime, runtime.machine_s)
        self._start, self._hello, self._lives, self._size = start, hello, lives, size
        self._lock = threading.Lock()
        #: Keepers that have begun and were not asked to stop, with their newest limits.
        self._begun: dict[int, Begin] = {}
        #: Key of a keeper -> its session that lives.
        self._sessions: dict[int, int] = {}
        #: Keepers that were asked to stop, and have not said that they have.
        self._leaving: set[int] = set()
        self._child: ChildProcess | None = None
        self._stopping = threading.Event()
        self._good = self._spoke = False
        self._bad_lives = 0

    # -- for the query's thread

    def send(self, message: ToWorker) -> None:
        with self._lock:
            known = self._begun.get(message.key)
            if isinstance(message, Begin):
                self._begun[message.key] = message
            elif isinstance(message, SetLimits) and known is not None:
                self._begun[message.key] = replace(known, limits=message.limits)
            elif isinstance(message, Stop):
                self._begun.pop(message.key, None)
                if self._child is not None:
                    self._leaving.add(message.key)
                else:
                    self._emit(Stopped(message.key))
            if self._child is not None:
                self._child.send(message)
        if self._task is None:
            self._task = self._runtime.spawn("pyspark-mq process", self._life(), self._stopping)
        self._task.check()

    def stop(self) -> None:
        self._stopping.set()
        with self._lock:
            if self._child is not None:
                self._child.hang_up()

    # -- the thread that reads

    def _life(self) -> Iterator[float]:
        rest_s = _REST_FIRST_S
        while not self._stopping.is_set():
            if not self._begun:
                yield _STEP_S  # all of them were stopped; others may be dealt to it
                continue
            began_s = self._runtime.monotonic_s()
            self._good = self._spoke = False
            try:
                end = yield from self._live_once()
            except Exception as error:  # noqa: BLE001 - what dies silently would hang the query
                _LOG.exception("a receiver process could not be served")
                end = f"{type(error).__name__}: {error}"
            if self._stopping.is_set():
                return
            lived_s = self._runtime.monotonic_s() - began_s
            if self._good or (self._spoke and lived_s >= _GOOD_LIFE_S) or not self._begun:
                self._bad_lives, rest_s = 0, _REST_FIRST_S
            else:
                self._bad_lives += 1
            if self._bad_lives >= _BAD_LIVES_MAX:
                self._give_up(end)
                return
            pause_s = rest_s * self._runtime.jitter()
            rest_s = min(rest_s * 2, _REST_LAST_S)
            _LOG.warning("a receiver process ended: %s; starting another in %.1f s", end, pause_s)
            yield pause_s

    def _live_once(self) -> Generator[float, None, str]:
        """Start a process and serve it to its end; return how it ended, in words."""
        child = self._start(replace(self._hello, first_session=next(self._lives) * _SESSIONS))
        silent = False
        try:
            # From now on until something is heard, there is no progress.
            self._progress = (self._progress[0], self.now_s())
            with self._lock:
                self._child = child
                for begin in self._begun.values():
                    child.send(begin)
                if self._stopping.is_set():
                    child.hang_up()  # it was started while nobody knew it
            silent = yield from self._serve(child)
        finally:
            # Until everything is said of its sessions it counts as alive: what it is asked for is void, and a keeper
            # has not stopped before the end of its session was emitted.
            try:
                end = child.end()
            except Exception as error:  # noqa: BLE001 - whatever it is, its sessions are gone
                end = f"{type(error).__name__}: {error}"
            for key, session in self._sessions.items():
                self._emit(Lost(key, session))
            self._sessions.clear()
            with self._lock:
                self._child = None
                leaving, self._leaving = self._leaving, set()
                self._begun = {key: replace(begin, again=True) for key, begin in self._begun.items()}
            for key in leaving:
                self._emit(Stopped(key))
        return "it said nothing for too long and was killed" if silent else end

    def _serve(self, child: ChildProcess) -> Generator[float, None, bool]:
        """Handle a process's messages to their end; return whether it ended by silence."""
        received_s = self._runtime.monotonic_s()
        while True:
            try:
                said = child.receive(_STEP_S)
            except EOFError:
                return False
            now_s = self._runtime.monotonic_s()
            if said is not None:
                received_s, self._spoke = now_s, True
                self._handle(said)
                continue
            if now_s - received_s >= self._silence_max_s():
                return True
            yield 0.0

    def _handle(self, said: Any) -> None:
        if isinstance(said, Progress):
            self._progress = (self._progress[0] + said.broke_off, said.until_s)
            return
        if isinstance(said, logging.LogRecord):
            logging.getLogger(said.name).handle(said)
            return
        if isinstance(said, Confirmed):
            self._good = True
        elif isinstance(said, Opened):
            self._sessions[said.key] = said.session
        elif isinstance(said, Lost):
            self._sessions.pop(said.key, None)
        elif isinstance(said, Stopped):
            self._leaving.discard(said.key)
        self._emit(said)

    def _silence_max_s(self) -> float:
        with self._lock:
            beats_s = [begin.endpoint.heartbeat_s for begin in self._begun.values()]
        return max(_SILENT_MIN_S, _SILENT_HEARTBEATS * min(beats_s, default=0.0))

    def _give_up(self, end: str) -> None:
        with self._lock:
            begun = list(self._begun.values())
        for begin in begun:
            text = (
                f"{begin.endpoint.destination}: {self._bad_lives} receiver processes in a row (option 'receivers': "
                f"{self._size}) ended before anything was confirmed in them; the last: {end}. Nothing is lost: "
                "unacknowledged messages stay in the queue. See what the log and standard error of the source's "
                "process say, and whether the machine has the memory for so many, or set 'receivers' to 1"
            )
            self._emit(Failed(begin.key, MqError(text)))
