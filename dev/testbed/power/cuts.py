"""Cuts of the power below a query: its checkpoint, its IDs and its sink are on the disk, its broker is elsewhere.

A query into parquet files, a producer that does not stop, and a disk whose power is cut at a random moment, again and
again. After each cut every process of the query is gone, the disk is mounted again, ``pyspark-mq repair`` is run as the
page on it says, and the query goes on.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa

from testbed.chaos.audit import Verdict, committed_files, marks, verdict
from testbed.chaos.chaos import Job, Publisher
from testbed.chaos.queues import PrivateBroker
from testbed.power.disk import Disk
from testbed.process import NodeError, poll

__all__ = ["Cuts", "run_cuts"]

_QUEUE = "power"
_RATE = 1_000
#: Messages published for each cut at the most: a slow machine has no longer queue to drain than a fast one.
_PER_CUT = 20_000
#: What is not synced may be beyond repair.
_EPOCH_TIMEOUT_S = {"committed": 30.0, "synced": 120.0}
#: Without an epoch.
_DRAIN_TIMEOUT_S = 120.0
#: Up to so long behind its first epochs a query lives.
_LIFE_S = 4.0
_KILL_TIMEOUT_S = 20.0
#: A machine that is started anew has another one. Here it is not, so processes are shown another file there.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SHOW_BOOT = f'mount --bind "$0" {_BOOT_ID} && exec "$@"'


@dataclass(frozen=True, slots=True)
class Cuts:
    """What came of a run.

    Attributes:
        settle_after: the option.
        cuts: of the power.
        empty: files of Spark's logs, and of their checksums, that were empty afterwards.
        taken_back: commits of which it was not known that the sink has the batch.
        refused: starts that Spark refused although the logs were repaired, and a new checkpoint.
        unreadable: files that are in the sink's log and have no content.
        verdict: of the output, against what the broker had confirmed.
        seconds: of the run.
    """

    settle_after: str
    cuts: int
    empty: int
    taken_back: int
    refused: int
    unreadable: int
    verdict: Verdict
    seconds: float


class _Machine:
    """What a started machine shows its processes."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "boot_id"
        self.start()

    def start(self) -> None:
        """Another start."""
        self._file.write_text(f"{secrets.token_hex(16)}\n", "ascii")

    def command(self, *words: str) -> list[str]:
        """The same command, in a process that sees this start."""
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _SHOW_BOOT, str(self._file), *words]


class _Job(Job):
    """A job whose checkpoint and output are on the disk, and whose log is not."""

    machine: _Machine
    beside: Path

    @property
    def report(self) -> Path:
        return self.beside / "counters.jsonl"

    @property
    def log(self) -> Path:
        return self.beside / "job.log"

    def command(self) -> list[str]:
        return self.machine.command(*super().command())

    def kill(self) -> None:
        """Everything of it at once, also what its driver has left behind: all of it lives in the folder on the disk."""
        here = str(self.folder)
        gone = [process for process in psutil.process_iter(["cwd"]) if (process.info["cwd"] or "").startswith(here)]
        for process in gone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.kill_driver()
        psutil.wait_procs(gone, _KILL_TIMEOUT_S)


def run_cuts(settle_after: str, cuts: int, seed: int, say: Callable[[str], None]) -> Cuts:
    """Cut the power so many times.

    Args:
        settle_after: option `settleAfter` of the query.
        seed: of the moments.
        say: is told what happens.

    Raises:
        NodeError: the disk cannot be had, or the query does not get on.
    """
    began_s, chance = time.monotonic(), random.Random(seed)
    removed: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-mq-power-")))
        disk = Disk(folder)
        stack.callback(disk.close)
        broker = stack.enter_context(PrivateBroker("rabbitmq", _QUEUE))
        options = {**broker.options, "settleAfter": settle_after, "maxMessagesPerTrigger": "2000", "heartbeat": "2s"}
        job = _Job(broker.name, broker.url, _QUEUE, disk.path, options)
        job.machine, job.beside = _Machine(folder), folder
        stack.callback(job.kill)
        cut = 0
        publisher = Publisher(broker.send, sys.maxsize, _RATE, allowed=lambda: _PER_CUT * (1 + cut))
        publisher.start()
        stack.callback(publisher.stop)
        rows: list[str] = []
        refused = unreadable = 0
        for cut in range(1, cuts + 1):
            if not _gets_on(job, _EPOCH_TIMEOUT_S[settle_after]):
                if settle_after == "synced":
                    raise NodeError(f"the query does not get on; the end of its log:\n{_end_of(job)}")
                refused += 1
                rows, unreadable = _join((rows, unreadable), _rows(job))
                _start_over(job)
                continue
            with disk.written_back(chance):
                time.sleep(chance.uniform(0.0, _LIFE_S))
                disk.cut()
            job.kill()
            job.machine.start()
            disk.restore()
            removed += _repair(job) if settle_after == "synced" else []
            say(f"{settle_after}: {cut} of {cuts} cuts, {len(removed)} files removed")
        publisher.stop()
        publisher.check()
        _drain(job, broker)
        rows, unreadable = _join((rows, unreadable), _rows(job))
        told = verdict(publisher.arrived(rows), rows, broker.left())
    return Cuts(
        settle_after,
        cuts,
        sum(line.endswith(": empty") for line in removed),
        sum("the machine restarted" in line for line in removed),
        refused,
        unreadable,
        told,
        round(time.monotonic() - began_s),
    )


def _gets_on(job: _Job, timeout_s: float) -> bool:
    """Does it run two epochs since it was started?"""
    before = job.epochs

    def got_on() -> bool:
        job.keep_alive()
        return job.epochs >= before + 2

    return poll(got_on, timeout_s, interval_s=0.1)


def _rows(job: _Job) -> tuple[list[str], int]:
    """The marks in the sink; and how many of its files cannot be read."""
    rows: list[str] = []
    unreadable = 0
    for file in committed_files(job.output):
        try:
            rows += marks(file)
        except (OSError, pa.ArrowInvalid):
            unreadable += 1
    return rows, unreadable


def _join(some: tuple[list[str], int], more: tuple[list[str], int]) -> tuple[list[str], int]:
    return some[0] + more[0], some[1] + more[1]


def _start_over(job: _Job) -> None:
    """A new checkpoint, and a new folder for the sink: what is left to a user."""
    job.kill()
    for folder in (job.output, job.folder / "checkpoint"):
        shutil.rmtree(folder, ignore_errors=True)


def _end_of(job: _Job) -> str:
    return job.log.read_text("utf-8")[-4_000:]


def _repair(job: _Job) -> list[str]:
    """What a user does; the lines of what was removed."""
    command = [sys.executable, "-m", "pyspark_mq", "repair", str(job.folder / "checkpoint")]
    done = subprocess.run(
        job.machine.command(*command, "--sink", str(job.output), "--yes"),
        capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[3], env=os.environ,
    )  # fmt: skip
    if done.returncode:
        raise NodeError(f"pyspark-mq repair: {done.stderr}")
    return [line for line in done.stdout.splitlines() if line.startswith("/")]


def _drain(job: _Job, broker: PrivateBroker) -> None:
    """Until everything is read and acknowledged."""
    while broker.node.counts(_QUEUE).total:
        before = job.epochs

        def got_on(before: int = before) -> bool:
            job.keep_alive()
            return job.epochs > before or broker.node.counts(_QUEUE).total == 0

        if not poll(got_on, _DRAIN_TIMEOUT_S, interval_s=1.0):
            raise NodeError(f"the queue is not emptied; the end of the job's log:\n{_end_of(job)}")
    job.stop()
