"""What is compared: each a job that reads a queue into files, is killed, and is started again.

All of them are told from outside alone what they have: by the files that their sink has committed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import psutil

from testbed.brokers.java import PASSWORD, USER
from testbed.chaos.audit import committed_files, marks
from testbed.chaos.chaos import Job
from testbed.distributions import find_java, find_maven, run_to_end
from testbed.ports import free_ports
from testbed.process import NodeError, poll

__all__ = [
    "FLINK_OPTIONS",
    "FLINK_PROJECT",
    "HAZELCAST_OPTIONS",
    "FlinkReader",
    "HazelcastReader",
    "JavaReader",
    "OurReader",
    "build_project",
]

_HERE = Path(__file__).resolve().parent
#: Also has the program of the benchmark.
FLINK_PROJECT = _HERE / "flink"
_BUILD_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 20.0
#: A member that has just come is given what is backed up on it; until then the other one has the only copy.
_SETTLED_S = 15.0
_MEMBERS = 2
#: What Hazelcast asks for when it starts without: it gets the best performance then.
HAZELCAST_OPTIONS = (
    "--add-modules=java.se",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)
#: What Flink's own configuration opens for Java 17.
FLINK_OPTIONS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        *("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text", "java.time", "java.util"),
        *("java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch"),
    )
)


def build_project(project: Path) -> Path:
    """Build the program of a folder by Maven, if it has to be.

    Returns:
        the folder of its classes. The folder `lib` beside that has what it needs.

    Raises:
        NodeError: Maven or a compiler is missing, or it cannot be built.
    """
    command = [find_maven(), "--quiet", "--batch-mode", "--file", str(project / "pom.xml"), "compile"]
    try:
        code, said = run_to_end(command, _BUILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NodeError(f"Maven did not build {project.name} in {_BUILD_TIMEOUT_S:g} s") from None
    if code != 0:
        raise NodeError(f"Maven could not build {project.name}; is Maven Central reachable? It said:\n{said[-2000:]}")
    return project / "target" / "classes"


@dataclass
class OurReader(Job):
    """This source, as :class:`testbed.chaos.chaos.Job` runs it, into Spark's file sink."""

    title = "pyspark-mq"

    def build(self) -> None:
        """There is nothing to build."""

    def files(self) -> list[Path]:
        """Those that are committed."""
        return committed_files(self.output)

    def marks(self, file: Path) -> list[str]:
        """What is in one."""
        return marks(file)

    def steady(self) -> bool:
        """May it be harmed?"""
        return True

    def freeze(self, seconds: float) -> bool:
        """SIGSTOP to what reads, and SIGCONT."""
        return self.freeze_worker(seconds)


@dataclass
class JavaReader(Job):
    """One or more JVMs in its place."""

    title = ""
    project = ""
    main = ""
    java_options: ClassVar[tuple[str, ...]] = ()
    _members: dict[int, tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)

    def build(self) -> None:
        """Build the program, if it has to be.

        Raises:
            NodeError: it cannot be built.
        """
        build_project(_HERE / self.project)

    # -- what differs

    def arguments(self) -> list[list[str]]:
        """Of each JVM."""
        raise NotImplementedError

    def committed(self, file: Path) -> bool:
        """Does this file of the sink count?"""
        raise NotImplementedError

    # -- as a job

    def files(self) -> list[Path]:
        """Those that are committed."""
        return [file for file in self.output.rglob("*") if file.is_file() and self.committed(file)]

    def marks(self, file: Path) -> list[str]:
        """What is in one."""
        return file.read_text("ascii").split()

    def steady(self) -> bool:
        """May it be harmed?"""
        return all(process.poll() is None for process, _ in self._members.values())

    @property
    def epochs(self) -> int:
        """How many files are committed."""
        return len(self.files())

    @property
    def running(self) -> bool:
        """Are all of them?"""
        return bool(self._members) and self.steady()

    def keep_alive(self) -> None:
        """Start those that are not running."""
        target = _HERE / self.project / "target"
        path = os.pathsep.join([str(target / "classes"), str(target / "lib" / "*")])
        for place, arguments in enumerate(self.arguments()):
            if place in self._members and self._members[place][0].poll() is None:
                continue
            self.starts += 1
            command = [find_java(), "-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *self.java_options]
            command += ["-cp", path, self.main, *arguments]
            with self.log.open("ab") as log:
                child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder)
            self._members[place] = child, time.monotonic()

    def workers(self) -> list[psutil.Process]:
        """The JVMs."""
        found = []
        for process, _ in self._members.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.poll() is None:
                    found.append(psutil.Process(process.pid))
        return found

    def _one(self) -> subprocess.Popen[bytes]:
        """The one that has run for longest: a fault hits another one each time."""
        return min(self._members.values(), key=lambda member: member[1])[0]

    def kill_driver(self) -> bool:
        """``kill -9`` of one."""
        process = self._one()
        process.kill()
        process.wait()
        return True

    def freeze(self, seconds: float) -> bool:
        """SIGSTOP of one, and SIGCONT."""
        process = self._one()
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        return True

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """End all of them."""
        for process, _ in self._members.values():
            process.terminate()
        poll(lambda: not self.workers(), timeout_s, interval_s=0.1)
        for process, _ in self._members.values():
            process.kill()
            process.wait()
        return 0


@dataclass
class FlinkReader(JavaReader):
    """Flink's RMQSource into its FileSink, in one JVM that has all of Flink."""

    title = "Flink RMQSource"
    project = "flink"
    main = "FlinkJob"
    java_options = FLINK_OPTIONS

    def arguments(self) -> list[list[str]]:
        """Host, port, queue, output, checkpoints."""
        port = str(urlsplit(self.url).port)
        return [["127.0.0.1", port, self.queue, str(self.output), str(self.folder / "checkpoints")]]

    def committed(self, file: Path) -> bool:
        """FileSink hides what is not: by a dot before the name."""
        return not file.name.startswith(".")


@dataclass
class HazelcastReader(JavaReader):
    """Hazelcast's JMS source into its file sink, in two members."""

    title = "Hazelcast JMS"
    project = "hazelcast"
    main = "JmsMember"
    java_options = HAZELCAST_OPTIONS
    user: str = USER
    password: str = PASSWORD
    _ports: list[int] = field(default_factory=lambda: free_ports(_MEMBERS))

    def arguments(self) -> list[list[str]]:
        """Of each member its own port comes first."""
        broker = [self.broker, self.url, self.user, self.password, self.queue, str(self.output)]
        return [[*broker, str(port), *(str(other) for other in self._ports if other != port)] for port in self._ports]

    def committed(self, file: Path) -> bool:
        """``FileSinkBuilder.TEMP_FILE_SUFFIX``."""
        return file.suffix != ".tmp"

    def steady(self) -> bool:
        """Are there two copies of its state?"""
        now = time.monotonic()
        return super().steady() and all(now - began > _SETTLED_S for _, began in self._members.values())
