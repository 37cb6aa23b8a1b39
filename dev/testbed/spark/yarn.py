"""YARN on this machine: a ResourceManager and a NodeManager, whose containers are processes that can be killed.

Hadoop's own two programs, from the one jar that has them with all they need and that Hadoop makes for tests of those
who build on it (`hadoop-client-minicluster`). Files are those of this machine: there is no HDFS.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import psutil

from testbed.distributions import HADOOP, fetch, find_java
from testbed.ports import LOOPBACK, ReservedPort, listens
from testbed.process import Command, NodeError
from testbed.server import LocalServer, Started, at_once

__all__ = ["YarnCluster"]

_SERVER = "org.apache.hadoop.yarn.server"
_RESOURCE_MANAGER = f"{_SERVER}.resourcemanager.ResourceManager"
_NODE_MANAGER = f"{_SERVER}.nodemanager.NodeManager"
_START_TIMEOUT_S = 90.0
_ASK_TIMEOUT_S = 10.0
_LOG_CHARS = 4_000
#: Main classes of Spark's in containers.
_DRIVER = "org.apache.spark.deploy.yarn.ApplicationMaster"
_EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"


class _Daemon(LocalServer):
    """One of Hadoop's programs."""

    title = "YARN"
    _poll_s = 0.2

    def __init__(self, command: Command, ready: Callable[[], bool]) -> None:
        super().__init__(start_timeout_s=_START_TIMEOUT_S)
        self._given = command
        self._answers = ready

    def _command(self) -> Command:
        return self._given

    def _ready(self) -> bool:
        return self._answers()


class YarnCluster(Started):
    """One node that gives containers of memory, and kills those that take more.

    Args:
        memory_mb: of the node, for all containers.

    Raises:
        NodeError: Hadoop or Java cannot be had.
    """

    def __init__(self, memory_mb: int = 6_144) -> None:
        home = fetch(HADOOP)
        java = Path(find_java()).resolve()
        self._memory_mb = memory_mb
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="yarn-")))
        self._web = self._port()

        def command(main: str) -> Command:
            path = os.pathsep.join([str(self.configuration), str(home / "*")])
            flags = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dyarn.log.dir={self.folder}"]
            # Containers get it from here: they run `{{JAVA_HOME}}/bin/java`.
            environment = {**os.environ, "JAVA_HOME": str(java.parents[1])}
            return Command([str(java), *flags, "-cp", path, main], environment)

        self._manager = _Daemon(command(_RESOURCE_MANAGER), lambda: listens(self._web))
        self._node = _Daemon(command(_NODE_MANAGER), lambda: self._nodes() > 0)

    @property
    def configuration(self) -> Path:
        """For `HADOOP_CONF_DIR`."""
        return self.folder / "conf"

    def start(self) -> None:
        """Start both; returns when the node has told of itself."""
        self._configure()
        at_once(self._manager.start, self._node.start)

    def close(self) -> None:
        """End all, also what runs in containers."""
        left = self._containers()
        self._manager.close()
        self._node.close()
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, _ASK_TIMEOUT_S)
        self._stack.close()

    # -- what runs there

    def application(self) -> dict[str, Any]:
        """The one that was submitted last, as YARN's REST API tells of it; empty if there is none."""
        told = self._ask("apps")
        applications = (told.get("apps") or {}).get("app") or [{}]
        return dict(max(applications, key=lambda one: one.get("startedTime", 0)))

    def attempts(self) -> int:
        """How often a driver of it was started."""
        told = self._ask(f"apps/{self.application()['id']}/appattempts")
        return len(told["appAttempts"]["appAttempt"])

    def driver(self) -> psutil.Process | None:
        """The JVM of Spark's driver."""
        return next(iter(self._find("java", _DRIVER)), None)

    def executors(self) -> list[psutil.Process]:
        """The JVMs of executors."""
        return self._find("java", _EXECUTOR)

    def program(self, file: str) -> psutil.Process | None:
        """The Python process that runs a file, which is the user's part of the driver."""
        return next(iter(self._find("python", file)), None)

    def kill_driver(self) -> bool:
        """``kill -9`` to the driver's JVM."""
        found = self.driver()
        return found is not None and _kill(found)

    def kill_executor(self) -> bool:
        """``kill -9`` to one executor."""
        return any(_kill(one) for one in self.executors()[:1])

    def said(self) -> str:
        """The end of what containers wrote, and of YARN's own logs, for people."""
        files = sorted((self.folder / "container-logs").rglob("std*"))
        return "\n".join([*(f"{one.parent.name}/{one.name}:\n{_end(one)}" for one in files), self._logs()])

    # -- the two processes

    def _configure(self) -> None:
        ports = [self._port() for _ in range(4)]
        names = ("", ".scheduler", ".resource-tracker", ".admin")
        settings = {
            f"yarn.resourcemanager{name}.address": f"{LOOPBACK}:{port}"
            for name, port in zip(names, ports, strict=True)
        } | {
            "yarn.resourcemanager.webapp.address": f"{LOOPBACK}:{self._web}",
            # One queue, and nothing to configure; the default one wants a file of its own.
            "yarn.resourcemanager.scheduler.class": f"{_SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.nodemanager.hostname": LOOPBACK,
            **{f"yarn.nodemanager.{name}address": f"{LOOPBACK}:0" for name in ("", "localizer.", "webapp.")},
            "yarn.nodemanager.local-dirs": self.folder / "local",
            "yarn.nodemanager.log-dirs": self.folder / "container-logs",
            "yarn.nodemanager.resource.memory-mb": self._memory_mb,
            "yarn.nodemanager.resource.cpu-vcores": 8,
            # Java reserves more addresses than it ever uses; what is really taken is checked, and by YARN itself
            # rather than by control groups, which are not everywhere.
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.resource.memory.enforced": "false",
            # How full the disk is belongs to others.
            "yarn.nodemanager.disk-health-checker.enable": "false",
            # What looks at the disks no more has looked once: a disk that is used by 90 % would take nothing.
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
        }  # fmt: skip
        # Folders that the web servers look for, even where nobody looks at them.
        for name in ("webapps/cluster", "webapps/node"):
            (self.configuration / name).mkdir(parents=True)
        (self.configuration / "yarn-site.xml").write_text(_site(settings), "utf-8")
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self.folder / "tmp"}
        (self.configuration / "core-site.xml").write_text(_site(core), "utf-8")

    def _port(self) -> int:
        return self._stack.enter_context(closing(ReservedPort())).number

    def _logs(self) -> str:
        return "\n".join(one.log_tail() for one in (self._manager, self._node))

    def _nodes(self) -> int:
        with suppress(OSError):
            return int(self._ask("metrics")["clusterMetrics"]["activeNodes"])
        return 0

    def _ask(self, what: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self._web}/ws/v1/cluster/{what}", headers={"Accept": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_ASK_TIMEOUT_S) as answer:
            return dict(json.load(answer))

    def _containers(self) -> list[psutil.Process]:
        with suppress(NodeError, psutil.NoSuchProcess):
            found: list[psutil.Process] = psutil.Process(self._node.pid).children(recursive=True)
            return found
        return []

    def _find(self, program: str, word: str) -> list[psutil.Process]:
        return [one for one in self._containers() if _runs(one, program, word)]


def _site(settings: dict[str, Any]) -> str:
    inner = "".join(
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{inner}</configuration>\n"


def _runs(process: psutil.Process, program: str, word: str) -> bool:
    # Not the shells around them, whose commands have the same words.
    with suppress(psutil.NoSuchProcess):
        return process.name().startswith(program) and any(word in part for part in process.cmdline())
    return False


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _end(file: Path) -> str:
    return file.read_text("utf-8", "replace")[-_LOG_CHARS:] if file.exists() else ""
