"""A storm: a publisher that never stops, a job that is started again whenever it dies, and a killer.

Shared by the demo, the soak and the fault tests. Real processes, real signals.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import psutil

from testbed.audit import MARK_CHARS, Verdict, output_marks, verdict
from testbed.process import PublishError

__all__ = ["Job", "Publisher", "Send", "Storm"]

_ROOT = Path(__file__).resolve().parent.parent
_RETRY_S = 0.2

#: Bodies and IDs of some messages: returns when the broker has confirmed them all.
Send: TypeAlias = Callable[[Sequence[bytes], Sequence[str]], object]
#: A worker that is killed fails the query and not the JVM, so the job can go on in the same one.
_RESTARTS = 1_000
_STREAM_WORKER = "python_streaming_source_runner"


class Publisher(threading.Thread):
    """Publishes messages at a steady rate until it has sent them all.

    A chunk that was not confirmed is sent again with the same IDs, as careful producers do. Each body
    begins with the message's own mark, as brokers that set IDs themselves do not report them to publishers.

    Args:
        send: publishes bodies with these IDs, and returns when all are confirmed.
        messages: how many.
        rate: messages a second; as fast as it can if 0.
        size: bytes of a body.
        on_progress: called with the number sent so far.
    """

    def __init__(
        self,
        send: Send,
        messages: int,
        rate: int,
        *,
        size: int = 200,
        on_progress: Callable[[int], None] = lambda sent: None,  # noqa: ARG005
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self._publish = send
        self._messages = messages
        self._rate = rate
        self._filling = os.urandom(max(0, size - MARK_CHARS))
        self._on_progress = on_progress
        self._stopping = threading.Event()
        self.sent: list[str] = []
        self.sent_again = 0

    def run(self) -> None:
        """Send chunk after chunk."""
        began = time.monotonic()
        chunk_size = max(100, self._rate // 5) if self._rate else 2_000
        while len(self.sent) < self._messages and not self._stopping.is_set():
            count = min(chunk_size, self._messages - len(self.sent))
            ids = [str(uuid.uuid4()) for _ in range(count)]
            self._send(ids)
            self.sent += ids
            self._on_progress(len(self.sent))
            if self._rate:
                self._stopping.wait(max(0.0, began + len(self.sent) / self._rate - time.monotonic()))

    def _send(self, ids: list[str]) -> None:
        bodies = [key.encode("ascii") + self._filling for key in ids]
        while not self._stopping.is_set():
            try:
                self._publish(bodies, ids)
            except PublishError:
                self.sent_again += len(ids)
                time.sleep(_RETRY_S)
            else:
                return

    def stop(self) -> None:
        """Give up."""
        self._stopping.set()
        self.join()


@dataclass
class Job:
    """``examples/job.py`` as a process tree, started again whenever it has ended.

    Attributes:
        broker, url, queue: what it reads.
        folder: for output, checkpoint, counters and log.
        options: of the source.
    """

    broker: str
    url: str
    queue: str
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> Path:
        """Folder of the parquet files."""
        return self.folder / "output"

    @property
    def log(self) -> Path:
        """What the job wrote to its standard streams, over all starts."""
        return self.folder / "job.log"

    def keep_alive(self) -> None:
        """Start it if it is not running."""
        if self._process is None or self._process.poll() is not None:
            self._start()

    def _start(self) -> None:
        self.starts += 1
        command = [
            sys.executable,
            str(_ROOT / "examples" / "job.py"),
            "--broker",
            self.broker,
            "--url",
            self.url,
            "--queue",
            self.queue,
        ]
        command += ["--output", str(self.output), "--checkpoint", str(self.folder / "checkpoint")]
        command += ["--report", str(self.folder / "counters.jsonl"), "--restarts", str(_RESTARTS)]
        for name, value in self.options.items():
            command += ["--option", f"{name}={value}"]
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment["PYSPARK_PYTHON"] = sys.executable
        # A JVM that is killed within the minute never gets back what optimising costs.
        environment["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd=self.folder
            )

    # -- what can be killed

    def _tree(self) -> list[psutil.Process]:
        if self._process is None or self._process.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            found: list[psutil.Process] = psutil.Process(self._process.pid).children(recursive=True)
            return found
        return []

    def jvm(self) -> psutil.Process | None:
        """Spark's JVM."""
        return next((process for process in self._tree() if _named(process, "java")), None)

    def workers(self) -> list[psutil.Process]:
        """The Python processes of the source: where the receiver and its connection live."""
        return [process for process in self._tree() if _runs(process, _STREAM_WORKER)]

    @property
    def epochs(self) -> int:
        """Epochs reported so far, over all starts."""
        report = self.folder / "counters.jsonl"
        return report.read_bytes().count(b"\n") if report.exists() else 0

    def kill_driver(self) -> bool:
        """The driver program and its JVM; the Python workers have to notice by themselves."""
        jvm = self.jvm()
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.kill()
        if jvm is not None:
            _kill(jvm)
        self._process.wait()
        return True

    def kill_jvm(self) -> bool:
        """The JVM alone."""
        jvm = self.jvm()
        return jvm is not None and _kill(jvm)

    def kill_worker(self) -> bool:
        """The Python worker of the source alone."""
        # All of them, and not only until the first is dead.
        return sum(map(_kill, self.workers())) > 0

    def freeze_worker(self, seconds: float) -> bool:
        """SIGSTOP to the Python worker of the source, and SIGCONT after so long: it has missed every heartbeat."""
        frozen = [worker for worker in self.workers() if _signalled(worker, signal.SIGSTOP)]
        if frozen:
            time.sleep(seconds)
        return sum(_signalled(worker, signal.SIGCONT) for worker in frozen) > 0

    def stop(self, timeout_s: float = 60.0) -> int:
        """Ask it to stop and wait; its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill_driver()
        return self._process.wait()

    def counters(self) -> dict[str, int]:
        """What the source counted, summed over all processes the job was."""
        last: dict[str, dict[str, int]] = {}
        report = self.folder / "counters.jsonl"
        for line in report.read_text("utf-8").splitlines() if report.exists() else ():
            counted = json.loads(line)
            last[counted.pop("run")] = counted
        total: dict[str, int] = {}
        for counted in last.values():
            for name, value in counted.items():
                total[name] = total.get(name, 0) + value
        return total


def _named(process: psutil.Process, name: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.name() == name)
    return False


def _runs(process: psutil.Process, module: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(module in word for word in process.cmdline())
    return False


def _kill(process: psutil.Process) -> bool:
    return _signalled(process, signal.SIGKILL)


def _signalled(process: psutil.Process, number: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
        return True
    return False


class Storm:
    """Runs a publisher, a job and faults side by side until all is sent and read.

    Args:
        publisher: not started yet.
        job: not started yet.
        faults: name -> what to do; returns whether it could be done now. Taken in turn.
        pause_s: tells how long to wait until the next fault, from the first epoch after the last.
        fault_count: stop after so many; None to go on as long as the publisher.
    """

    def __init__(
        self,
        publisher: Publisher,
        job: Job,
        faults: dict[str, Callable[[], bool]],
        *,
        pause_s: Callable[[], float],
        fault_count: int | None = None,
        on_fault: Callable[[str], None] = lambda name: None,  # noqa: ARG005
    ) -> None:
        self._publisher = publisher
        self._job = job
        self._faults = faults
        self._pause_s = pause_s
        self._fault_count = fault_count
        self._on_fault = on_fault
        self.done: dict[str, int] = dict.fromkeys(faults, 0)

    def run(self, drain_timeout_s: float = 300.0) -> None:
        """Publish and break things, then let everything come to rest and stop the job.

        Raises:
            TimeoutError: the job did not read all within `drain_timeout_s` after the last fault.
        """
        self._job.keep_alive()
        self._publisher.start()
        names = list(self._faults)
        turn = 0
        while self._go_on():
            if not self._calm():
                break
            name = names[turn % len(names)]
            if self._faults[name]():
                self.done[name] += 1
                self._on_fault(name)
            turn += 1
            self._job.keep_alive()
        self._publisher.join()
        self._drain(drain_timeout_s)
        self._job.stop()

    def _go_on(self) -> bool:
        enough = self._fault_count is not None and sum(self.done.values()) >= self._fault_count
        return not enough and (self._fault_count is not None or self._publisher.is_alive())

    def _calm(self) -> bool:
        """Let the job commit something and go on for a while; False when all is sent meanwhile."""
        before, since = self._job.epochs, None
        while since is None or time.monotonic() - since < self._pause_s():
            self._job.keep_alive()
            # With nothing left to read there will be no epoch; being there has to do.
            idle = not self._publisher.is_alive() and self._job.workers()
            if since is None and (self._job.epochs > before or idle):
                since = time.monotonic()
            if self._fault_count is None and not self._publisher.is_alive():
                return False
            time.sleep(0.05)
        return True

    def _drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        wanted = set(self._publisher.sent)
        while not wanted <= set(output_marks(self._job.output)):
            self._job.keep_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all was read within {timeout_s:.0f} s; see {self._job.log}")
            time.sleep(2.0)
        time.sleep(2.0)  # phase two of the last epoch, and a duplicate if there is one

    def verdict(self, left: int) -> Verdict:
        """Audit the output."""
        return verdict(self._publisher.sent, output_marks(self._job.output), left)
