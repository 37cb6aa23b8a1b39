"""Forks processes for readers from one that has imported all that a reader needs.

A test of the failure matrix starts two or three of them, and what an interpreter takes to start and import was half of
its CPU time. A forked one has the same modules, nothing of another reader, and is killed like any other. How it is
started from nothing the tests with a parent of its own show, and those with a real Spark.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

__all__ = ["ForkedReader", "fork_reader"]

_ROOT = Path(__file__).resolve().parent.parent.parent
_REQUEST_BYTES_MAX = 1 << 20
_PID_BYTES = 8


class ForkedReader:
    """A process that runs `tests.support.reader_process`; of `subprocess.Popen` what is needed here."""

    def __init__(self, template: _Template, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._template = template
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._ended = False

    def wait(self) -> None:
        """Wait until it has ended. Before that its number is nobody else's."""
        if not self._ended:
            self._template.ask(("wait", self.pid))
            self._ended = True


class _Template:
    """The process that is forked, seen from the tests. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.reader_template", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=_ROOT,
                # One thread: only that one is in the forked process.
                env={**os.environ, "PYTHONPATH": str(_ROOT), "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        # It ends when there is nobody at the other end, however this process ended.
        atexit.register(self._socket.close)

    def ask(self, request: tuple[str, Any], fds: tuple[int, ...] = ()) -> int:
        """Hand over a request, and what it refers to; its answer."""
        with self._lock:
            socket.send_fds(self._socket, [pickle.dumps(request)], list(fds))
            answer = self._socket.recv(_PID_BYTES)
        if not answer:
            raise RuntimeError(f"the template of readers ended with exit code {self._process.wait()}")
        return int.from_bytes(answer, "big")


_templates: list[_Template] = []


def fork_reader() -> ForkedReader:
    """Start one, with the environment, the working directory and the standard error that this process has now."""
    if not _templates:
        _templates.append(_Template())
    their_stdin, stdin = os.pipe()
    stdout, their_stdout = os.pipe()
    try:
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        pid = _templates[0].ask(("fork", environment), (their_stdin, their_stdout, sys.__stderr__.fileno()))
    finally:
        os.close(their_stdin)
        os.close(their_stdout)
    return ForkedReader(_templates[0], pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))


# -- in the template -------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> bool:
    """Fork and wait as asked until nobody asks any more; True in a process that was forked."""
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
        except ConnectionResetError:
            return False
        if not data:
            return False
        kind, argument = pickle.loads(data)
        if kind == "wait":
            os.waitpid(argument, 0)
            answer = 0
        else:
            answer = os.fork()
            # A group of its own, from the first moment that somebody knows its number: by that all of it is killed.
            os.setpgid(answer, 0)
            if answer == 0:
                _become(argument, fds)
                return True
        for fd in fds:
            os.close(fd)
        requests.send(answer.to_bytes(_PID_BYTES, "big"))


def _become(environment: dict[str, str], fds: list[int]) -> None:
    for standard, fd in enumerate(fds):
        os.dup2(fd, standard)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)


def main() -> None:
    """Import what a reader needs, and wait for requests."""
    import pyarrow as pa

    from pyspark_mq.sources.connections.protocols import SESSIONS, session_class
    from tests.support import reader_process

    pa.array([0])  # the first one imports pandas

    for protocol in SESSIONS:
        # An extra that is missing is an error of the reader that needs it.
        with contextlib.suppress(Exception):
            session_class(protocol)
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        forked = _serve(requests)
    if forked:
        reader_process.main()


if __name__ == "__main__":
    main()
