"""CPU time of processes, by group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import psutil

__all__ = ["Usage", "difference", "has_source", "job_seconds", "spark_usage", "tree_usage"]

_SOURCE_RUNNER = "python_streaming_source_runner"


#: Group -> process ID -> CPU seconds of that process so far, without those it has started.
Usage = Mapping[str, Mapping[int, float]]


def tree_usage(group: str, pid: int) -> Usage:
    """Of a process and all it has started; empty if it is gone."""
    return {group: {process.pid: seconds for process, seconds in _tree(pid)}}


def spark_usage(jvm: int) -> Usage:
    """Of Spark's driver: the process of the source, the JVM, all other Python processes."""
    found: dict[str, dict[int, float]] = {"source": {}, "jvm": {}, "workers": {}}
    for process, seconds in _tree(jvm):
        found["jvm" if process.pid == jvm else _python_group(process)][process.pid] = seconds
    return found


def job_seconds(pid: int) -> dict[str, float]:
    """CPU seconds so far of a Spark job whose driver is a Python program, by group; ended processes are with `workers`.

    Those are Spark's launcher, and the Python processes that it starts to look for sources and to plan.
    """
    found = {"driver": 0.0, "jvm": 0.0, "source": 0.0, "workers": 0.0}
    for process, seconds in _tree(pid):
        with contextlib.suppress(psutil.Error):
            java = process.name() == "java"
            group = "driver" if process.pid == pid else "jvm" if java else _python_group(process)
            found[group] += seconds
            if java:
                times = process.cpu_times()
                found["workers"] += times.children_user + times.children_system
    return found


def has_source(jvm: int) -> bool:
    """Does the process of a source run?"""
    return any(_python_group(process) == "source" for process, _ in _tree(jvm))


def difference(after: Usage, before: Usage) -> dict[str, float]:
    """CPU seconds by group between two looks, of the processes that were there at the second.

    The time of those that ended in between is not in it, nor is it lost from another group: what a parent has of its
    ended children is left out, as those may have been counted by themselves before.
    """
    return {
        group: sum(seconds - before.get(group, {}).get(pid, 0.0) for pid, seconds in processes.items())
        for group, processes in after.items()
    }


def _python_group(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        if _SOURCE_RUNNER in " ".join(process.cmdline()):
            return "source"
    return "workers"


def _tree(pid: int) -> Iterator[tuple[psutil.Process, float]]:
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                yield process, float(times.user + times.system)
