"""CPU time of each test with the processes that it starts: ``--cpu 30`` prints the thirty that take most.

A test takes what its process, and all that descend from it, used between its set-up and its tear-down. A broker or a
Spark that several tests share counts for those during which it computes. A process whose parent died counts until then.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CpuReport", "subtree_cpu_s"]

_TICKS_A_S = os.sysconf("SC_CLK_TCK")
_PROPERTY = "cpu_s"


def subtree_cpu_s(root: int) -> float:
    """Return the CPU seconds of a process, its living descendants, and their reaped children (proc(5), stat)."""
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        process = int(folder.name)
        children[int(fields[1])].append(process)
        used[process] = sum(map(int, fields[11:15]))
    ticks, todo = 0, [root]
    while todo:
        process = todo.pop()
        ticks += used.get(process, 0)
        todo += children[process]
    return ticks / _TICKS_A_S


class CpuReport:
    """A plugin that measures each test, in every worker, and prints the dearest at the end.

    Args:
        number: how many tests to print.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._used_s = subtree_cpu_s(os.getpid())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """Give the last report of each test what was used since the last report of the test before."""
        report = yield
        if call.when == "teardown":
            before_s, self._used_s = self._used_s, subtree_cpu_s(os.getpid())
            report.user_properties.append((_PROPERTY, self._used_s - before_s))
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table, and the sum over all tests."""
        used: dict[str, float] = defaultdict(float)
        for reports in terminalreporter.stats.values():
            for report in reports:
                used[getattr(report, "nodeid", "")] += _used_s(getattr(report, "user_properties", ()))
        terminalreporter.section("CPU seconds, with all processes that a test started")
        for name, seconds in sorted(used.items(), key=lambda one: -one[1])[: self._number]:
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
        terminalreporter.write_line(f"{sum(used.values()):8.1f}  all {len(used)} tests")


def _used_s(properties: Iterable[tuple[str, Any]]) -> float:
    return sum(value for name, value in properties if name == _PROPERTY)
