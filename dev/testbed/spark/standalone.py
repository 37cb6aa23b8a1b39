"""A standalone cluster of Spark on this machine: a master and workers, each a process that can be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pyspark

from testbed.ports import LOOPBACK, listens
from testbed.process import Command, NodeError
from testbed.server import LocalServer, Started
from testbed.signals import runs

__all__ = ["SparkCluster"]

_HOME = Path(pyspark.__file__).parent


class _Daemon(LocalServer):
    """A master or a worker."""

    def _runs(self, main: str, host: str, *arguments: str) -> Command:
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        return Command([*command, "--host", host, "--webui-port", "0", *arguments], environment)


class _Master(_Daemon):
    title = "Spark-master"

    def __init__(self) -> None:
        super().__init__()
        self.port = self._reserve_port()

    @property
    def url(self) -> str:
        return f"spark://{LOOPBACK}:{self.port}"

    def _command(self) -> Command:
        return self._runs("master.Master", LOOPBACK, "--port", str(self.port))

    def _ready(self) -> bool:
        return listens(self.port)


class _Worker(_Daemon):
    title = "Spark-worker"

    def __init__(self, master: _Master, memory_mb: int, host: str) -> None:
        super().__init__()
        self._master = master
        self._host = host
        self._memory_mb = memory_mb

    def _command(self) -> Command:
        size = ("--cores", "1", "--memory", f"{self._memory_mb}m")
        return self._runs("worker.Worker", self._host, *size, "--work-dir", str(self.folder / "work"), self._master.url)

    def _ready(self) -> bool:
        # Jobs wait for workers.
        return True


class SparkCluster(Started):
    """Master and workers of the installed Spark.

    Args:
        workers: how many; each has one core.
        memory_mb: of a worker; its executor gets three quarters.
        hosts: names that workers have in turn; Spark runs no task twice at once on one host.
    """

    def __init__(self, workers: int = 2, memory_mb: int = 1024, hosts: Sequence[str] = (LOOPBACK,)) -> None:
        self._memory_mb = memory_mb
        self._master = _Master()
        self._workers = [_Worker(self._master, memory_mb, hosts[turn % len(hosts)]) for turn in range(workers)]
        self._killed = 0

    @property
    def url(self) -> str:
        """For `spark.master`."""
        return self._master.url

    @property
    def settings(self) -> dict[str, str]:
        """Of a job that fits the workers."""
        return {
            "spark.executor.memory": f"{self._memory_mb * 3 // 4}m",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
        }

    def start(self) -> None:
        """Start all; returns when the master listens.

        Raises:
            NodeError: it does not, or one of them has ended.
        """
        self._master.start()
        for worker in self._workers:
            worker.start()

    def kill_worker(self) -> bool:
        """One worker, with its executor and the Python workers of that; it starts again."""
        worker = self._workers[self._killed % len(self._workers)]
        self._killed += 1
        worker.kill()
        worker.start()
        return True

    @property
    def pids(self) -> list[int]:
        """Of the workers. What they have started is below them."""
        return [worker.pid for worker in self._workers]

    def processes(self, word: str) -> list[psutil.Process]:
        """What workers have started, executors and their Python workers, whose command has a word."""
        found: list[psutil.Process] = []
        for worker in self._workers:
            with suppress(NodeError, psutil.NoSuchProcess):
                found += psutil.Process(worker.pid).children(recursive=True)
        return [process for process in found if runs(process, word)]

    def close(self) -> None:
        """End all."""
        with ExitStack() as stack:
            for one in (self._master, *self._workers):
                stack.callback(one.close)
