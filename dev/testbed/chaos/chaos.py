"""A chaos test: a publisher that never stops, a job that is started again whenever it dies, and a killer.

Shared by the demo, the soak and the fault tests. Real processes, real signals.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias

import psutil

from testbed.chaos.audit import MARK_CHARS, Output, Verdict, marks, output_marks, verdict
from testbed.process import NodeError, PublishError
from testbed.signals import freeze, is_named, kill, runs

__all__ = ["ChaosTest", "Job", "Publisher", "Send", "came_again"]

_ROOT = Path(__file__).resolve().parents[3]
_RETRY_S = 0.2
_DRAIN_POLL_S = 0.5
#: Phase two of the last epoch, and a duplicate if there is one.
_AFTERWARDS_S = 2.0
_HELD_S = 1.0
_END_TIMEOUT_S = 5.0
_TRICKLE = 20
_CHUNK = 2_000

#: Bodies and IDs of some messages: returns when the broker has confirmed them all.
Send: TypeAlias = Callable[[Sequence[bytes], Sequence[str]], object]
#: A worker that is killed fails the query and not the JVM, so the job can go on in the same one.
_RESTARTS = 1_000
_STREAM_WORKER = "python_streaming_source_runner"
_TASK_WORKER = "pyspark.daemon"


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
        begin: how many of them were sent before.
        allowed: up to how many may be sent by now, where something else sets the pace as well.
        chunk: as many at once at the most.
    """

    def __init__(
        self,
        send: Send,
        messages: int,
        rate: int,
        *,
        size: int = 200,
        on_progress: Callable[[int], None] = lambda sent: None,  # noqa: ARG005
        begin: int = 0,
        allowed: Callable[[], int] | None = None,
        chunk: int = _CHUNK,
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self._publish = send
        self._messages = messages
        self._rate = rate
        self._filling = os.urandom(max(0, size - MARK_CHARS))
        self._on_progress = on_progress
        self._begin = begin
        self._allowed = allowed or (lambda: messages)
        self._chunk = min(chunk, max(100, rate // 5) if rate else _CHUNK)
        self._stopping = threading.Event()
        #: Messages the broker has confirmed.
        self.count = begin
        #: Their marks, for those who can hold them all.
        self.sent: list[str] = []
        #: Those that were given up unconfirmed, and may be in the queue.
        self.doubtful: set[str] = set()
        self.sent_again = 0
        self._failed: Exception | None = None

    def run(self) -> None:
        """Send chunk after chunk."""
        try:
            self._run()
        except Exception as failed:  # noqa: BLE001 - whoever waits for it is told
            self._failed = failed

    def check(self) -> None:
        """Has it ended of itself before all was sent?

        Raises:
            NodeError: it has.
        """
        if self._failed is not None:
            raise NodeError(
                f"the publisher ended after {self.count:,} of {self._messages:,} messages: {self._failed!r}"
            ) from self._failed

    def _run(self) -> None:
        began = time.monotonic()
        while self.count < self._messages and not self._stopping.is_set():
            count = min(self._chunk, self._messages - self.count)
            if self.count >= self._allowed():
                # Not to a standstill: without a message there is no epoch, and without that no next fault.
                self._stopping.wait(_HELD_S)
                began += _HELD_S
                count = min(count, _TRICKLE)
            if not self._send(*self.named(self.count, count)):
                break
            self.count += count
            self._on_progress(self.count)
            if self._rate:
                due_s = (self.count - self._begin) / self._rate
                self._stopping.wait(max(0.0, began + due_s - time.monotonic()))

    def named(self, first: int, count: int) -> tuple[list[str], list[str]]:  # noqa: ARG002
        """Marks and IDs of so many messages; the same whenever it is asked for the same in one chunk."""
        chunk = [str(uuid.uuid4()) for _ in range(count)]
        return chunk, chunk

    def attempt(self, marks: list[str]) -> None:
        """They are about to be sent."""

    def unsure(self, marks: list[str]) -> None:
        """They were sent, and maybe arrived."""

    def confirmed(self, marks: list[str]) -> None:
        """The broker has them all."""
        self.sent += marks

    def _send(self, marks: list[str], ids: list[str]) -> bool:
        bodies = [mark.encode("ascii") + self._filling for mark in marks]
        while not self._stopping.is_set():
            self.attempt(marks)
            try:
                self._publish(bodies, ids)
            except PublishError:
                self.unsure(marks)
                self.sent_again += len(ids)
                time.sleep(_RETRY_S)
            else:
                self.confirmed(marks)
                return True
        self.doubtful.update(marks)
        return False

    def arrived(self, output: Iterable[str]) -> list[str]:
        """Return the marks of what the broker has had: all it confirmed, and what came out of what is doubtful."""
        return [*self.sent, *self.doubtful.intersection(output)]

    def stop(self) -> None:
        """Give up."""
        self._stopping.set()
        if self.ident is not None:
            self.join()


@dataclass
class Job:
    """``examples/job.py`` as a process tree, started again whenever it has ended; another program in a subclass.

    Attributes:
        broker, url, queue: what it reads.
        folder: for output, checkpoint, counters and log.
        options: of the source.
        master: of Spark.
        spark: settings of Spark.
        prometheus: `host:port` where it serves its metrics; None for nowhere.
        python: the interpreter, which decides on the Spark.
    """

    broker: str
    url: str
    queue: str
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    master: str = "local[2]"
    spark: dict[str, str] = field(default_factory=dict)
    prometheus: str | None = None
    python: Path = Path(sys.executable)
    #: Of the process, as :class:`subprocess.Popen` takes it; and what Python is given to run.
    stdin: ClassVar[int] = subprocess.DEVNULL
    program: ClassVar[Sequence[str]] = (str(_ROOT / "examples" / "job.py"), "--restarts", str(_RESTARTS))
    #: Of its JVM. One that is killed within the minute never gets back what optimising costs.
    java: ClassVar[str] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _reported: int = 0
    _report_bytes: int = 0

    @property
    def output(self) -> Path:
        """Folder of the parquet files."""
        return self.folder / "output"

    @property
    def checkpoint(self) -> Path:
        """Of the query, with the files of message IDs."""
        return self.folder / "checkpoint"

    @property
    def report(self) -> Path:
        """What the source counted, a line an epoch."""
        return self.folder / "counters.jsonl"

    @property
    def log(self) -> Path:
        """What the job wrote to its standard streams, over all starts."""
        return self.folder / "job.log"

    @property
    def running(self) -> bool:
        """Has it been started, and not ended?"""
        return self._process is not None and self._process.poll() is None

    def keep_alive(self) -> None:
        """Start it if it is not running."""
        if not self.running:
            self._start()

    def command(self) -> list[str]:
        """What is started: interpreter, program and arguments."""
        command = [
            str(self.python),
            *self.program,
            "--broker",
            self.broker,
            "--url",
            self.url,
            "--queue",
            self.queue,
        ]
        command += ["--output", str(self.output), "--checkpoint", str(self.checkpoint)]
        command += ["--report", str(self.report), "--master", self.master]
        if self.prometheus is not None:
            command += ["--prometheus", self.prometheus]
        for name, value in self.options.items():
            command += ["--option", f"{name}={value}"]
        return command

    def _start(self) -> None:
        self.starts += 1
        paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment["PYSPARK_PYTHON"] = str(self.python)
        given = " ".join(f"--conf {name}={value}" for name, value in self.spark.items())
        environment["PYSPARK_SUBMIT_ARGS"] = f"{given} pyspark-shell"
        # Who is killed deletes nothing: some 15 MB each time.
        temporary = self.folder / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True, exist_ok=True)
        environment["TMPDIR"] = str(temporary)
        environment["JDK_JAVA_OPTIONS"] = f'{self.java} "-Djava.io.tmpdir={temporary}"'
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=self.stdin, stdout=log, stderr=log, env=environment, start_new_session=True,
                cwd=self.folder,
            )  # fmt: skip

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
        return next((process for process in self._tree() if is_named(process, "java")), None)

    def workers(self) -> list[psutil.Process]:
        """The Python processes of the source: where the receiver and its connection live."""
        return [process for process in self._tree() if runs(process, _STREAM_WORKER)]

    @property
    def epochs(self) -> int:
        """Epochs reported so far, over all starts."""
        if self.report.exists():
            with self.report.open("rb") as report:
                report.seek(self._report_bytes)
                new = report.read()
            self._report_bytes += len(new)
            self._reported += new.count(b"\n")
        return self._reported

    def kill_driver(self) -> bool:
        """The driver program and its JVM; the Python workers have to notice by themselves."""
        jvm = self.jvm()
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.kill()
        if jvm is not None:
            kill(jvm)
        self._process.wait()
        return True

    def kill_jvm(self) -> bool:
        """The JVM alone."""
        jvm = self.jvm()
        return jvm is not None and kill(jvm)

    def kill_worker(self) -> bool:
        """The Python worker of the source alone."""
        # All of them, and not only until the first is dead.
        return sum(map(kill, self.workers())) > 0

    def freeze_worker(self, seconds: float) -> bool:
        """SIGSTOP to the Python worker of the source, and SIGCONT after so long: it has missed every heartbeat."""
        _, went_on = freeze(self.workers(), seconds)
        return went_on > 0

    def tasks(self) -> list[psutil.Process]:
        """The Python workers of tasks that run in this process tree, and what forks them."""
        return [process for process in self._tree() if runs(process, _TASK_WORKER)]

    def stop(self, timeout_s: float = 60.0) -> int:
        """Ask it to stop and wait; its exit code."""
        if self._process is None:
            return 0
        tree = self._tree()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill_driver()
        # A JVM whose driver is gone ends by itself, but one that was just starting takes its time.
        for left in psutil.wait_procs(tree, _END_TIMEOUT_S)[1]:
            kill(left)
        return self._process.wait()

    def counters(self) -> dict[str, int]:
        """What the source counted, summed over all processes the job was."""
        last: dict[str, dict[str, int]] = {}
        if self.report.exists():
            with self.report.open("rb") as report:
                for line in report:
                    # A process that was killed may have torn its last line.
                    with contextlib.suppress(ValueError):
                        counted = json.loads(line)
                        last[counted.pop("run")] = counted
        total: dict[str, int] = {}
        for counted in last.values():
            for name, value in counted.items():
                if isinstance(value, int):  # not what is read, nor a depth that is not known
                    total[name] = total.get(name, 0) + value
        return total


def came_again(job: Job, publisher: Publisher) -> dict[str, int]:
    """How often the job was started, and what was sent, delivered and done more than once, as reports name it."""
    counters = job.counters()
    return {
        "starts of the job": job.starts,
        "sent again by the publisher (unconfirmed)": publisher.sent_again,
        "redelivered by the broker": counters.get("redelivered", 0),
        "duplicates recognised and dropped": counters.get("duplicatesDropped", 0),
        "reconnects": counters.get("reconnects", 0),
        "epochs replayed": counters.get("replays", 0),
    }


class ChaosTest:
    """Runs a publisher, a job and faults side by side until all is sent and read.

    Args:
        publisher: not started yet.
        job: not started yet.
        faults: name -> what to do; returns whether it could be done now.
        pause_s: tells how long to wait until the next fault, from the first epoch after the last.
        fault_count: stop after so many.
        order: turn -> name of the fault; by default all of them in turn.
        turn: how many turns there were before.
        awaits_epoch: is an epoch awaited before each fault? Where a fault is itself a run of the job, there is none.
        ready: may the next fault come? Asked beside the pause.
        watch: called every now and then, at the latest before it is asked whether all was read.
        all_read: is everything that was sent in the output? By default the marks are compared.
    """

    def __init__(
        self,
        publisher: Publisher,
        job: Job,
        faults: dict[str, Callable[[], bool]],
        *,
        pause_s: Callable[[], float],
        fault_count: int,
        on_fault: Callable[[str], None] = lambda name: None,  # noqa: ARG005
        order: Callable[[int], str] | None = None,
        turn: int = 0,
        awaits_epoch: bool = True,
        ready: Callable[[], bool] = lambda: True,
        watch: Callable[[], None] = lambda: None,
        all_read: Callable[[], bool] | None = None,
    ) -> None:
        self._publisher = publisher
        self._job = job
        self._faults = faults
        self._pause_s = pause_s
        self._fault_count = fault_count
        self._on_fault = on_fault
        names = list(faults)
        self._order = order or (lambda turn: names[turn % len(names)])
        self._turn = turn
        self._awaits_epoch = awaits_epoch
        self._ready = ready
        self._watch = watch
        self._all_read = all_read or self._marks_read
        self._output = Output(job.output)
        self._missing: set[str] | None = None
        self.done: dict[str, int] = dict.fromkeys(faults, 0)

    def run(self, drain_timeout_s: float = 300.0) -> None:
        """Publish and break things, then let everything come to rest and stop the job.

        Raises:
            TimeoutError: the job read nothing of what is left for `drain_timeout_s` after the last fault.
            NodeError: the publisher ended before all was sent.
        """
        self._job.keep_alive()
        self._publisher.start()
        while sum(self.done.values()) < self._fault_count:
            self._calm()
            name = self._order(self._turn)
            if self._faults[name]():
                self.done[name] += 1
                self._on_fault(name)
            self._turn += 1
            self._job.keep_alive()
        while self._publisher.is_alive():
            # Nothing but the job itself can end it now.
            self._job.keep_alive()
            self._watch()
            self._publisher.join(_DRAIN_POLL_S)
        self._publisher.check()
        self._drain(drain_timeout_s)
        self._job.stop()

    def _calm(self) -> None:
        """Let the job commit something and go on for a while."""
        pause_s, before = self._pause_s(), self._job.epochs
        since = None if self._awaits_epoch else time.monotonic()
        while since is None or time.monotonic() - since < pause_s or not self._ready():
            self._job.keep_alive()
            self._watch()
            # With nothing left to read there will be no epoch; being there has to do.
            idle = not self._publisher.is_alive() and self._job.workers()
            if since is None and (self._job.epochs > before or idle):
                since = time.monotonic()
            time.sleep(0.05)

    def _drain(self, timeout_s: float) -> None:
        seen, deadline = self._job.epochs, time.monotonic() + timeout_s
        while not self._all_read():
            self._job.keep_alive()
            if self._job.epochs > seen:
                seen, deadline = self._job.epochs, time.monotonic() + timeout_s
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was read for {timeout_s:.0f} s, and not all is; see {self._job.log}")
            time.sleep(_DRAIN_POLL_S)
        time.sleep(_AFTERWARDS_S)

    def _marks_read(self) -> bool:
        if self._missing is None:
            self._missing = set(self._publisher.sent)
        for batch in self._output.new():
            for file in batch.files:
                self._missing.difference_update(marks(file))
        return not self._missing

    def verdict(self, left: int) -> Verdict:
        """Audit the output."""
        rows = output_marks(self._job.output)
        return verdict(self._publisher.arrived(rows), rows, left)
