"""A standalone cluster of Spark on this machine: a master and workers, each a process that can be killed."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pyspark

from testbed.ports import LOOPBACK, ReservedPort, listens
from testbed.process import Command, NodeError, Process, Started, poll

__all__ = ["SparkCluster"]

_HOME = Path(pyspark.__file__).parent
_START_TIMEOUT_S = 60.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkCluster(Started):
    """Master and workers of the installed Spark.

    Args:
        workers: how many; each has one core.
        memory_mb: of a worker; its executor gets three quarters.
    """

    def __init__(self, workers: int = 2, memory_mb: int = 1024) -> None:
        self._number = workers
        self._memory_mb = memory_mb
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-cluster-")))
        self._port = self._stack.enter_context(closing(ReservedPort()))
        self._master: Process | None = None
        self._workers: list[Process] = []
        self._killed = 0

    @property
    def url(self) -> str:
        """For `spark.master`."""
        return f"spark://{LOOPBACK}:{self._port.number}"

    @property
    def settings(self) -> dict[str, str]:
        """Of a job that fits the workers."""
        return {
            "spark.executor.memory": f"{self._memory_mb * 3 // 4}m",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
        }

    def start(self) -> None:
        """Start all; returns when the master listens."""
        self._master = self._run("master", _MASTER, "--port", str(self._port.number))
        if not poll(lambda: listens(self._port.number) or not self._running(self._master), _START_TIMEOUT_S):
            raise NodeError(f"Spark's master did not start within {_START_TIMEOUT_S:.0f} s: {self._log('master')}")
        if not self._running(self._master):
            raise NodeError(f"Spark's master ended: {self._log('master')}")
        self._workers = [self._start_worker(number) for number in range(self._number)]

    def kill_worker(self) -> bool:
        """One worker, with its executor and the Python workers of that; another one takes its place."""
        number = self._killed % self._number
        self._killed += 1
        self._workers[number].kill()
        self._workers[number] = self._start_worker(number)
        return True

    def close(self) -> None:
        """End all."""
        for process in [*self._workers, self._master]:
            if process is not None:
                process.kill()
        self._stack.close()

    @staticmethod
    def _running(process: Process | None) -> bool:
        return process is not None and process.running

    def _start_worker(self, number: int) -> Process:
        size = ("--cores", "1", "--memory", f"{self._memory_mb}m")
        work = str(self._folder / f"work-{number}")
        return self._run(f"worker-{number}", _WORKER, *size, "--work-dir", work, self.url)

    def _run(self, name: str, main: str, *arguments: str) -> Process:
        command = [str(_HOME / "bin" / "spark-class"), main, "--host", LOOPBACK, "--webui-port", "0", *arguments]
        environment = {
            **os.environ,
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        return Process(Command(command, environment), log=self._folder / f"{name}.log", folder=self._folder)

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text("utf-8", "replace")[-2000:]
