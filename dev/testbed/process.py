"""Programs as processes of this machine that can be killed. Rules:

* A process is the leader of a session of its own. Ctrl-C in the terminal does not reach it, and
  ``kill -9`` to its process group takes what its start script has left in between.
* A process never outlives its owner for long. A shell of two lines holds the reading end of a
  pipe whose writing end only the owner has; when the owner is gone, however it ended, the shell
  reads end-of-file and kills the group. Rejected: PR_SET_PDEATHSIG, which fires when the *thread*
  that spawned the process ends (a test that restarts a broker from a helper thread would lose
  it) and needs code between fork and exec. A limit: children the owner forks without exec
  (multiprocessing's "fork") hold the pipe too, so the process then lives as long as they do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Command", "NodeError", "Process", "PublishError", "poll"]

#: How soon `poll` asks again: at first, and at most. In between, after a tenth of the time that it has waited.
_POLL_S, _POLL_MAX_S = 0.01, 0.1
_KILL_TIMEOUT_S = 10.0

# The first line read dismisses the watchdog; end-of-file means that the owner is gone.
_WATCHDOG = 'read -r dismissed || kill -s KILL -- "-$1"'


class NodeError(Exception):
    """A server could not be had, started, used or stopped; the text has the end of its log.

    Its data is kept as it is: messages a broker had stored are still stored.
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


def poll(condition: Callable[[], bool], timeout_s: float, *, interval_s: float | None = None) -> bool:
    """Wait until `condition` is true. False when it was not within that time.

    Args:
        interval_s: between two questions. Without it, questions become rarer the longer the wait is, because many of
            them start a program (`erl_call` for each count of a RabbitMQ queue).
    """
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            return False
        time.sleep(interval_s if interval_s is not None else min(max(_POLL_S, waited_s / 10), _POLL_MAX_S))
    return True


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

    def terminate(self, timeout_s: float, by: signal.Signals = signal.SIGTERM) -> bool:
        """Send a signal to the process itself. True when it has ended in time, else it runs on."""
        if self.running:
            self._child.send_signal(by)
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
