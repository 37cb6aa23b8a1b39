"""Examines the installation of this machine: Python, this package, Spark and Java.

Two Python interpreters matter: that of the driver, and the one that Spark starts for the source and for tasks. Each of
them is started in a process of its own, as Spark would start it, and reports its version and libraries.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_mq import __version__
from pyspark_mq.admin.checks import Finding, Level
from pyspark_mq.spark_source.folders import is_uri

__all__ = ["Interpreter", "Machine", "check_machine", "examine_machine"]

_TIMEOUT_S = 60.0
#: First and last Spark release with streaming sources in Python that this package is tested with.
_SPARK_FIRST, _SPARK_LAST = (4, 0), (4, 3)
#: A module that Spark has from 4.2 on. Some platforms also have it, although their version number is older.
_SPARK_FULL = "pyspark.sql.streaming.datasource"
#: Spark 4 runs on Java 17 and later.
_JAVA_FIRST = 17
#: The client library of each protocol.
_CLIENTS: Mapping[str, str] = {
    "amqp-0-9-1": "pika", "amqp-1.0": "python-qpid-proton", "stomp": "stomp.py", "stream": "numpy",
}  # fmt: skip
_QUESTION = """
import importlib, importlib.metadata, json, sys
found = {"python": sys.version.split()[0], "executable": sys.executable, "errors": {}, "versions": {}}
for name in sys.argv[1].split(","):
    try:
        module = importlib.import_module(name)
        found["versions"][name] = str(getattr(module, "__version__", ""))
    except Exception as failed:
        found["errors"][name] = f"{type(failed).__name__}: {failed}"
for name in sys.argv[2].split(","):
    try:
        found["versions"][name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_PYTHON = "PYSPARK_PYTHON"
#: Takes precedence over `PYSPARK_PYTHON` if Spark looks a source up by its name, and for the tasks of such a source
#: (PythonUtils.defaultPythonExec).
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_SET_IT = (
    f"set {_PYTHON} to the interpreter that has the package, before you create the session: "
    f'os.environ.setdefault("{_PYTHON}", sys.executable)'
)
_REMEDIES = {_DRIVER_PYTHON: f'{_SET_IT}; and unset {_DRIVER_PYTHON}: os.environ.pop("{_DRIVER_PYTHON}", None)'}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter, and what it has reported about itself.

    Attributes:
        name: the command that starts the interpreter: a name, or a path.
        python: the version of Python; empty if the interpreter could not be started.
        executable: the interpreter's path.
        versions: name of a module or distribution -> its version.
        errors: name of a module that cannot be imported -> the error.
        problem: why the interpreter could not be started, or did not report anything; empty if it reported.
    """

    name: str
    python: str = ""
    executable: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is installed on this machine.

    Attributes:
        driver: the Python that runs this command.
        worker: the Python that Spark would start for the source and for tasks.
        chosen: the environment variable that names the worker's Python; empty if no variable is set.
        java: the version line of `java -version`; empty if there is no Java.
    """

    driver: Interpreter
    worker: Interpreter
    chosen: str
    java: str = ""


def examine_machine() -> Machine:
    """Start both interpreters and Java, and return what they report."""
    driver = _ask(sys.executable, ("pyspark_mq", "pyarrow", "pyspark", _SPARK_FULL))
    chosen = next((name for name in (_DRIVER_PYTHON, _PYTHON) if name in os.environ), "")
    worker = _ask(os.environ.get(chosen, "python3"), ("pyspark_mq", "pyarrow"))
    return Machine(driver, worker, chosen, _java())


def _ask(name: str, modules: Sequence[str]) -> Interpreter:
    command = [name, "-c", _QUESTION, ",".join(modules), ",".join(_CLIENTS.values())]
    try:
        done = _run(command)
        return Interpreter(name, **json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError) as failed:
        return Interpreter(name, problem=f"{type(failed).__name__}: {failed}")
    except (ValueError, IndexError):
        return Interpreter(name, problem=(done.stderr.strip().splitlines() or ["no output"])[-1])


def _java() -> str:
    """Return the version line of the Java that Spark's scripts would start."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None:
        return ""
    try:
        done = _run([program, "-version"])
    except (OSError, subprocess.SubprocessError):
        return ""
    # Before the version line, Java names the environment variables whose options it has picked up.
    lines = (done.stderr + done.stdout).splitlines()
    return next((line for line in lines if " version " in line), next(iter(lines), ""))


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )


def check_machine(machine: Machine, protocol: str, id_log: str | None, *, syncs: bool) -> list[Finding]:
    """Return findings about the installation.

    Args:
        protocol: the query's protocol, whose client library has to be installed.
        id_log: folder of the query's ID log; None if the query has no such folder, or if it is unknown.
        syncs: whether option `settleAfter` is `synced`.
    """
    found = [_spark(machine), _java_finding(machine), _driver(machine, protocol), _workers(machine)]
    return found + ([] if id_log is None or is_uri(id_log) else [_power(id_log, syncs=syncs)])


def _power(place: str, *, syncs: bool) -> Finding:
    if syncs:
        return Finding("power", Level.OK, f"{place} is synced before messages are acknowledged")
    text = f"{place} is on this machine, and Spark does not sync it: a power loss may lose acknowledged messages"
    return Finding("power", Level.WARNING, text, "set 'settleAfter' to 'synced', or use a checkpoint in a store")


def _spark(machine: Machine) -> Finding:
    check, spark = "spark", machine.driver.versions.get("pyspark")
    if spark is None:
        why = machine.driver.errors.get("pyspark", machine.driver.problem)
        return Finding(
            check, Level.PROBLEM, f"pyspark cannot be imported by {machine.driver.name} ({why})",
            f"run: {machine.driver.name} -m pip install 'pyspark-mq[spark]', or set PYTHONPATH to the python folder of "
            "the cluster's Spark",
        )  # fmt: skip
    numbers = tuple(int(number) for number in re.findall(r"\d+", spark)[:2])
    if numbers < _SPARK_FIRST:
        return Finding(
            check, Level.PROBLEM, f"Spark {spark} has no streaming sources in Python", "use Spark 4.0 to 4.3"
        )
    if _SPARK_FULL in machine.driver.errors:
        text = f"Spark {spark}: a run of Trigger.AvailableNow is one epoch, and progress shows no counters"
        return Finding(check, Level.WARNING, text, "use 4.2 or later")
    if numbers > _SPARK_LAST:
        return Finding(check, Level.WARNING, f"Spark {spark} is newer than the tested versions", "see docs/versions.md")
    return Finding(check, Level.OK, f"Spark {spark}")


def _java_finding(machine: Machine) -> Finding:
    if not machine.java:
        text = "there is no Java: neither in JAVA_HOME nor on the PATH"
        return Finding(
            "java", Level.PROBLEM, text, "install Java 17 or 21, or set JAVA_HOME; Spark Connect needs no Java here"
        )
    major = re.search(r'version "(?:1\.)?(\d+)', machine.java)
    if major is not None and int(major[1]) < _JAVA_FIRST:
        return Finding("java", Level.PROBLEM, f"{machine.java} is too old for Spark 4", "install Java 17 or 21")
    return Finding("java", Level.OK, machine.java)


def _driver(machine: Machine, protocol: str) -> Finding:
    driver = machine.driver
    client = _CLIENTS[protocol]
    text = f"Python {driver.python} ({driver.executable}), pyspark-mq {__version__}, pyarrow "
    text += f"{driver.versions.get('pyarrow', 'missing')}, {client} {driver.versions.get(client) or 'missing'}"
    missing = next((name for name in ("pyspark_mq", "pyarrow") if name in driver.errors), None)
    if missing is not None:
        return Finding(
            "driver", Level.PROBLEM, f"{text}; {missing} cannot be imported ({driver.errors[missing]})",
            f"run: {driver.name} -m pip install pyspark-mq",
        )  # fmt: skip
    return Finding("driver", Level.OK, text)


def _workers(machine: Machine) -> Finding:
    """Check the Python that Spark would start for the source and for tasks.

    If no environment variable names an interpreter, Spark starts `python3`, which may differ from the interpreter that
    runs the program.
    """
    check, worker, driver = "workers", machine.worker, machine.driver
    who = f"{machine.chosen} {worker.name!r}" if machine.chosen else f"{_PYTHON} is not set, and 'python3' on the PATH"
    remedy = _REMEDIES.get(machine.chosen, _SET_IT)
    if worker.problem:
        text = f"{who} does not start as a Python ({worker.problem}): Spark finds no data source 'mq'"
        return Finding(check, Level.PROBLEM, text, remedy)
    for module in ("pyspark_mq", "pyarrow"):
        if module in worker.errors:
            text = f"{who} ({worker.executable}) cannot import {module} ({worker.errors[module]}): Spark finds no data "
            return Finding(check, Level.PROBLEM, f"{text}source 'mq', or tasks fail", remedy)
    versions = {one.python.rpartition(".")[0] for one in (worker, driver)}
    if len(versions) > 1 and machine.chosen != _DRIVER_PYTHON:
        text = f"{who} is Python {worker.python}, but the driver's is {driver.python}: Spark refuses that"
        return Finding(check, Level.PROBLEM, text, remedy)
    if worker.versions.get("pyspark_mq") != driver.versions.get("pyspark_mq"):
        text = f"{who} has pyspark-mq {worker.versions.get('pyspark_mq')}, but the driver has {__version__}"
        return Finding(check, Level.WARNING, text, "install the same version everywhere")
    text = f"{who} is Python {worker.python} ({worker.executable}) with pyspark-mq {worker.versions['pyspark_mq']}"
    return Finding(check, Level.OK, f"{text}. On a cluster each executor needs the same")
