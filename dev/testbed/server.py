"""Private servers: how any of them is started, waited for, and ended.

Everything listens on 127.0.0.1, on ports of :mod:`testbed.ports`, so servers run side by side and beside one the
machine may have already.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from testbed.ports import ReservedPort
from testbed.process import Command, NodeError, Process, poll

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TAIL_LINES", "Killable", "LocalServer", "Server", "Started", "at_once"]

#: What went wrong is the first thing an Erlang or Java log says, and long traces follow.
TAIL_LINES = 80


def at_once(*works: Callable[[], object]) -> None:
    """Do all of this side by side; raises what the first of them raised, when all have ended."""
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work) for work in works]
    for one in running:
        one.result()


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


class Killable(Started):
    """What can be ended and started any number of times, with the data it has.

    Not thread-safe: one thread starts and ends it.
    """

    #: Its name in error messages.
    title: str = "server"

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it is there. What is starting is."""

    @abstractmethod
    def start(self) -> None:
        """Start it with the data it has; returns when it serves clients.

        Raises:
            NodeError: it is running already, ended by itself, or was not ready in time (it is
                then killed).
        """

    @abstractmethod
    def stop(self) -> None:
        """Orderly end; data is kept. May be called again.

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
    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of its output since the last start."""

    def restart(self) -> None:
        """Start again with the data it has, on the same ports; what is running is stopped first.

        Raises:
            NodeError: as :meth:`start` and :meth:`stop`.
        """
        self.stop()
        self.start()


class Server(Killable):
    """A server, wherever it runs."""

    #: How often a server that starts is asked whether it serves clients.
    _poll_s = 0.01

    def __init__(self, *, start_timeout_s: float = 60.0, stop_timeout_s: float = 30.0) -> None:
        """Nothing is started yet."""
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s

    @property
    @abstractmethod
    def _place(self) -> object:
        """Its folder or image, for error messages."""

    @abstractmethod
    def _launch(self) -> None:
        """Start it, without waiting for it."""

    @abstractmethod
    def _ready(self) -> bool:
        """Does it serve clients? Asked again and again; must not block for long."""

    def _how_it_ended(self) -> str:
        return "ended"

    @abstractmethod
    def _terminate(self) -> bool:
        """End it in order; False if it had to be killed. Nothing happens when it is not running."""

    def start(self) -> None:
        if self.running:
            raise NodeError(f"{self.title} in {self._place} is running already")
        self._launch()
        try:
            self._wait_ready()
            self._started()
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self) -> None:
        # "Ended" is asked second: a stranger on the port must not pass for a server that has ended.
        if not poll(lambda: self._ready() or not self.running, self._start_timeout_s, interval_s=self._poll_s):
            raise self._error(f"was not ready within {self._start_timeout_s:g} s")
        if not self.running:
            raise self._error(f"{self._how_it_ended()} while starting")

    def _started(self) -> None:
        """It serves clients, for the first time or again."""

    def stop(self) -> None:
        if not self._terminate():
            raise self._error(f"did not stop within {self._stop_timeout_s:g} s and was killed")

    def _error(self, problem: str) -> NodeError:
        return NodeError(f"{self.title} in {self._place} {problem}; the end of its log:\n{self.log_tail()}")


class LocalServer(Server):
    """A server that is a process of this machine, with a folder and ports of its own, which stay over kills and starts.

    Guarantee: after :meth:`stop` and :meth:`close` no process of it is left; data is only ever
    deleted by :meth:`close`, and only a folder this class has made.
    """

    #: Name of the file with its output.
    _log_name = "log"
    #: What it ends in order by.
    _stop_signal = signal.SIGTERM

    def __init__(
        self, *, folder: Path | None = None, start_timeout_s: float = 60.0, stop_timeout_s: float = 30.0
    ) -> None:
        """Nothing is started yet.

        Args:
            folder: for everything the server writes, with what an earlier one may have left in it; by
                default a new temporary one, deleted by :meth:`close`.
        """
        super().__init__(start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s)
        self._owns_folder = folder is None
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix=f"pyspark-mq-{self.title.lower()}-"))
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self._process: Process | None = None
        self._ports: list[ReservedPort] = []
        self._log_start = 0

    @abstractmethod
    def _command(self) -> Command:
        """What to run; called before each start, so also the place to write configuration."""

    def _reserve_port(self) -> int:
        """A port that is this server's until it is closed."""
        port = ReservedPort()
        self._ports.append(port)
        return port.number

    def end_helpers(self) -> None:
        """End processes beside its own that it needs as long as it may be restarted."""

    @property
    def log(self) -> Path:
        """File with its output over all its starts."""
        return self.folder / self._log_name

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """Process id.

        Raises:
            NodeError: it is not running.
        """
        if self._process is None or not self._process.running:
            raise NodeError(f"{self.title} in {self.folder} is not running")
        return self._process.pid

    @property
    def _place(self) -> Path:
        return self.folder

    def _launch(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._process = Process(self._command(), log=self.log, folder=self.folder)

    def _how_it_ended(self) -> str:
        return "ended" if self._process is None else f"ended with exit code {self._process.exit_code}"

    def _terminate(self) -> bool:
        if self._process is None:
            return True
        in_time = self._process.terminate(self._stop_timeout_s, self._stop_signal)
        self._process.kill()
        return in_time

    def stop(self) -> None:
        """Orderly end by a signal, of its helpers as well."""
        try:
            super().stop()
        finally:
            self.end_helpers()

    def kill(self) -> None:
        """SIGKILL: what it had only in memory is lost, its files stay as they are.

        Nothing happens when it is not running. Helpers stay, for the restart.
        """
        if self._process is not None:
            self._process.kill()

    def freeze(self, seconds: float) -> None:
        if self._process is not None:
            self._process.freeze(seconds)

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(self._log_start)
            return b"\n".join(log.read().splitlines()[-lines:]).decode("utf-8", "replace")
        return ""

    def close(self) -> None:
        """End everything for good, and delete the folder if it was made by this server.

        A server whose data is deleted anyway is killed, which is quicker; others are stopped.
        """
        try:
            if self._owns_folder:
                self.kill()
            else:
                self.stop()
        finally:
            self.end_helpers()
            for port in self._ports:
                port.close()
            if self._owns_folder:
                shutil.rmtree(self.folder, ignore_errors=True)
