"""Brokers as local processes: spawning, readiness, ending; and the abstract :class:`Node`.

For tests, the demo and the benchmark: a broker of one's own that can be killed. Rules:

* Everything listens on 127.0.0.1, on ports of :mod:`testbed.ports`, so nodes run side
  by side and beside a broker the machine may have already.
* A process is the leader of a session of its own. Ctrl-C in the terminal does not reach it, and
  ``kill -9`` to its process group takes what its start script has left in between.
* A broker never outlives its owner for long. A shell of two lines holds the reading end of a
  pipe whose writing end only the owner has; when the owner is gone, however it ended, the shell
  reads end-of-file and kills the group. Rejected: PR_SET_PDEATHSIG, which fires when the *thread*
  that spawned the process ends (a test that restarts a broker from a helper thread would lose
  it) and needs code between fork and exec. A limit: children the owner forks without exec
  (multiprocessing's "fork") hold the pipe too, so the broker then lives as long as they do.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from testbed.ports import LOOPBACK, ReservedPort, free_port, free_ports, listens

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "FROZEN_S",
    "LOOPBACK",
    "Command",
    "Node",
    "NodeError",
    "Process",
    "ProcessNode",
    "PublishError",
    "QueueCounts",
    "ReservedPort",
    "Started",
    "TlsFiles",
    "free_port",
    "free_ports",
    "listens",
    "poll",
    "unique_ids",
]

#: For how long what is stopped is stopped: longer than heartbeats, and detectors of failures, last.
FROZEN_S = 15.0
_POLL_S = 0.01
_KILL_TIMEOUT_S = 10.0
# What went wrong is the first thing an Erlang or Java log says, and long traces follow.
_TAIL_LINES = 80

# The first line read dismisses the watchdog; end-of-file means that the owner is gone.
_WATCHDOG = 'read -r dismissed || kill -s KILL -- "-$1"'


class NodeError(Exception):
    """A broker process could not be started, used or stopped; the text has the end of its log.

    The data folder is kept as it is: messages the broker had stored are still stored.
    """


class PublishError(NodeError):
    """Not everything was confirmed.

    Attributes:
        confirmed: how many of the messages the broker has for certain. With a lost connection
            some of the others may be in the queue as well.
    """

    def __init__(self, queue: str, confirmed: int, reason: str) -> None:
        self.confirmed = confirmed
        super().__init__(f"publishing to {queue!r} ended after {confirmed} confirmations: {reason}")


def poll(condition: Callable[[], bool], timeout_s: float, *, interval_s: float = _POLL_S) -> bool:
    """Wait until `condition` is true, asking each interval. False when it was not within that time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True


def unique_ids() -> Iterator[str]:
    """Message IDs without end, unlike those of any other call."""
    prefix = secrets.token_hex(6)
    number = 0
    while True:
        yield f"{prefix}-{number}"
        number += 1


# -- one process ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: arguments, and the whole environment (nothing is inherited)."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


class Process:
    """A running program: own session, output appended to a file, dies with its owner.

    Every method may be called again, and from any thread.
    """

    def __init__(self, command: Command, *, log: Path, folder: Path) -> None:
        """Start it.

        Args:
            log: file that standard output and error are appended to.
            folder: working directory.

        Raises:
            OSError: there is no such program, or it cannot be run.
        """
        self._lock = threading.Lock()
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                list(command.arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(command.environment),
                cwd=folder,
                start_new_session=True,
            )
        try:
            self._watchdog = _spawn_watchdog(self._child.pid)
        except BaseException:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative numbers are signals."""
        code = self._child.poll()
        if code is not None:
            # From here on the system may give the number to a stranger, so nobody may kill by it.
            self._dismiss_watchdog()
        return code

    def kill(self) -> None:
        """SIGKILL to its whole process group; returns when it is dead."""
        # Also when the leader has ended by itself: its group may not have, and while the leader
        # is not yet waited for, its number cannot be a stranger's.
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(_KILL_TIMEOUT_S)
        self._dismiss_watchdog()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP to its whole process group, and SIGCONT after so long."""
        if not self.running:
            return
        os.killpg(self._child.pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGCONT)

    def terminate(self, timeout_s: float) -> bool:
        """SIGTERM to the process itself. True when it has ended in time, else it runs on."""
        if self.running:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout_s)
        return not self.running

    def _dismiss_watchdog(self) -> None:
        # Locked, as `running` may be asked from any thread and all of them come by here.
        with self._lock:
            if self._watchdog.returncode is None:
                self._watchdog.communicate(b"dismissed\n")


def _spawn_watchdog(group: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


# -- a broker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a broker needs to listen for TLS: PEM files.

    Attributes:
        ca_file: the authority that client certificates are checked against.
        cert_file, key_file: the broker's own certificate and its unencrypted key.
        verify_client: must clients show a certificate of that authority?
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    verify_client: bool = False


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Messages of a queue: to be delivered, and delivered but not acknowledged."""

    ready: int
    unacked: int

    @property
    def total(self) -> int:
        """Messages the broker has. Brokers count the two one after the other: in motion, the sum may be off."""
        return self.ready + self.unacked


class Started(ABC):
    """Something that is started on entry and closed on exit, also if the start fails."""

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def close(self) -> None:
        """End everything for good."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Node(Started):
    """One broker of our own, to be killed and started again.

    Ports and data stay the same over any number of kills and restarts, until it is closed. Not
    thread-safe: one thread starts and ends it; others may go on using what :meth:`url` returned.
    """

    #: Name of the broker in error messages.
    title: str = "broker"

    @property
    @abstractmethod
    def version(self) -> str:
        """Version of the broker, as its makers write it."""

    @abstractmethod
    def url(
        self,
        protocol: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
    ) -> str:
        """Where clients connect to, in the form of the source's option `url`.

        Args:
            protocol: as the option `protocol`; by default the broker's main one.
            user, password: by default those of the user every node has.

        Raises:
            NodeError: the node was not set up to speak that.
        """

    @abstractmethod
    def declare(self, queue: str) -> None:
        """Make a durable queue, on disk on return; nothing happens when there is one.

        Raises:
            NodeError: the broker refused.
        """

    @abstractmethod
    def delete(self, queue: str) -> None:
        """Delete a queue with its messages; nothing happens when there is none."""

    @abstractmethod
    def purge(self, queue: str) -> None:
        """Remove the messages of a queue that nobody holds.

        Raises:
            NodeError: no such queue.
        """

    @abstractmethod
    def counts(self, queue: str) -> QueueCounts:
        """Messages of a queue, both numbers of about one instant.

        Raises:
            NodeError: no such queue.
        """

    @abstractmethod
    def publish(
        self,
        queue: str,
        bodies: Iterable[bytes],
        *,
        ids: Iterable[str | None] | None = None,
        headers: Mapping[str, Any] | None = None,
        protocol: str | None = None,
        expires_ms: int | None = None,
        timeout_s: float = 120.0,
    ) -> list[str | None]:
        """Publish persistent messages; returns when the broker has confirmed all of them.

        Args:
            ids: message ID of each, None for a message without; by default ones that are unique
                over all calls. Where the broker gives all IDs itself they are not used.
            headers: application headers (properties) of each.
            protocol: to publish over, one of :meth:`url`; by default the broker's main one.
            expires_ms: time to live of each.
            timeout_s: for all of it.

        Returns:
            the IDs, in order.

        Raises:
            PublishError: not all were confirmed; it has how many were.
        """

    @property
    @abstractmethod
    def running(self) -> bool:
        """Is it there? A broker that is starting is."""

    @abstractmethod
    def start(self) -> None:
        """Start it with the data it has; returns when it serves clients.

        Raises:
            NodeError: it is running already, ended by itself, or was not ready in time (it is
                then killed).
        """

    @abstractmethod
    def stop(self) -> None:
        """Orderly end by SIGTERM; data is kept. May be called again.

        Raises:
            NodeError: it had to be killed as it took too long.
        """

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL; data is kept. May be called again."""

    @abstractmethod
    def freeze(self, seconds: float) -> None:
        """Stop it for so long (SIGSTOP), like a machine that swaps or is moved; its connections stay."""

    @abstractmethod
    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of its output since the last start."""

    @abstractmethod
    def close(self) -> None:
        """End everything for good, and delete the data if this node has made its place."""

    def restart(self) -> None:
        """Start again with the data it has, on the same ports; a running one is stopped first.

        Raises:
            NodeError: as :meth:`start` and :meth:`stop`.
        """
        self.stop()
        self.start()


class ProcessNode(Node):
    """A node that is a local process with data and ports of its own.

    Guarantee: after :meth:`stop` and :meth:`close` no process of it is left; data is only ever
    deleted by :meth:`close`, and only a folder this class has made.
    """

    def __init__(
        self,
        *,
        data: Path | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        """Nothing is started yet.

        Args:
            data: folder for everything the broker writes, with what an earlier node may have
                left in it; by default a new temporary one, deleted by :meth:`close`.
        """
        self._owns_data = data is None
        if data is None:
            data = Path(tempfile.mkdtemp(prefix=f"pyspark-mq-{self.title.lower()}-"))
        data.mkdir(parents=True, exist_ok=True)
        self.data = data.resolve()
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: Process | None = None
        self._ports: list[ReservedPort] = []
        self._log_start = 0

    @abstractmethod
    def _command(self) -> Command:
        """What to run; called before each start, so also the place to write configuration."""

    @abstractmethod
    def _ready(self) -> bool:
        """Does it serve clients? Asked every few milliseconds; must not block for long."""

    def _reserve_port(self) -> int:
        """A port that is this node's until it is closed."""
        port = ReservedPort()
        self._ports.append(port)
        return port.number

    def _end_helpers(self) -> None:
        """End processes beside the broker's own that it needs as long as it may be restarted."""

    @property
    def log(self) -> Path:
        """File with the output of the broker over all its starts."""
        return self.data / "node.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """Process id of the broker.

        Raises:
            NodeError: it is not running.
        """
        if self._process is None or not self._process.running:
            raise NodeError(f"{self.title} in {self.data} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start it with the data it has; returns when it serves clients.

        Raises:
            NodeError: it is running already, ended by itself, or was not ready in time (it is
                then killed).
        """
        if self.running:
            raise NodeError(f"{self.title} in {self.data} is running already")
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        process = Process(self._command(), log=self.log, folder=self.data)
        self._process = process
        try:
            self._wait_ready(process)
        except BaseException:
            process.kill()
            raise

    def _wait_ready(self, process: Process) -> None:
        # "Ended" is asked second: a stranger on the port must not pass for a node that has ended.
        if not poll(lambda: self._ready() or not process.running, self._start_timeout_s):
            raise self._error(f"was not ready within {self._start_timeout_s:g} s")
        if not process.running:
            raise self._error(f"ended with exit code {process.exit_code} while starting")

    def stop(self) -> None:
        """Orderly end by SIGTERM, of its helpers as well; data is kept. May be called again.

        Raises:
            NodeError: it had to be killed as it took too long.
        """
        try:
            if self._process is not None:
                in_time = self._process.terminate(self._stop_timeout_s)
                self._process.kill()
                if not in_time:
                    raise self._error(f"did not stop within {self._stop_timeout_s:g} s and was killed")
        finally:
            self._end_helpers()

    def kill(self) -> None:
        """SIGKILL: what it had only in memory is lost, its files stay as they are.

        Nothing happens when it is not running. Helpers stay, for the restart.
        """
        if self._process is not None:
            self._process.kill()

    def freeze(self, seconds: float) -> None:
        if self._process is not None:
            self._process.freeze(seconds)

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of its output since the last start."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(self._log_start)
            return b"\n".join(log.read().splitlines()[-lines:]).decode("utf-8", "replace")
        return ""

    def close(self) -> None:
        """End everything for good, and delete the data if the folder was made by this node.

        A node whose data is deleted anyway is killed, which is quicker; others are stopped.
        """
        try:
            if self._owns_data:
                self.kill()
            else:
                self.stop()
        finally:
            self._end_helpers()
            for port in self._ports:
                port.close()
            if self._owns_data:
                shutil.rmtree(self.data, ignore_errors=True)

    def _error(self, problem: str) -> NodeError:
        return NodeError(f"{self.title} in {self.data} {problem}; the end of its log:\n{self.log_tail()}")
