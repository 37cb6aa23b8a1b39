"""What a job uses while a chaos test goes on: memory, threads, descriptors, offsets. It is told, and nothing checks it.

A process that was killed a moment ago uses less than one that has run for minutes. So what is compared is not moments
but parts of a run: the medians of the first tenth of all looks, of that in the middle, and of the last. What grows
until as much is forgotten as comes, as message IDs do, grows before the middle and not after it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from pyspark_mq.spark_source.folders import ID_FOLDER
from testbed.chaos.chaos import Job
from testbed.chaos.history import History

__all__ = ["UsageWatch", "growth"]

_LOOK_S = 5.0
#: Looks that are compared: a part of all of them, and at least so many.
_PART, _LOOKS_MIN = 10, 5
_MIB = 1 << 20
#: What a process is that has just begun says nothing of what a run costs.
_AGE_MIN_S = 5.0


class UsageWatch:
    """Looks at a job now and then, and writes down what it uses.

    Args:
        job: which.
        history: of the run; one operation `usage` a look.
    """

    def __init__(self, job: Job, history: History) -> None:
        self._job = job
        self._history = history
        self._looked_s = 0.0

    def poll(self) -> None:
        """Take a look, if it is time for one and the job has run for some seconds."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return
        self._looked_s = time.monotonic()
        jvm = self._job.jvm()
        found = {} if jvm is None else self._of_processes("JVM", [jvm])
        if found:
            # Of periodic jobs a source lives for a moment only.
            found |= self._of_processes("source", self._job.workers())
            self._history.add("info", "usage", found | self._of_checkpoint(), "watch")

    def _of_processes(self, name: str, processes: Iterable[psutil.Process]) -> dict[str, int]:
        used = {f"{name}: MiB": 0, f"{name}: threads": 0, f"{name}: descriptors": 0}
        with contextlib.suppress(psutil.Error):
            for process in processes:
                if time.time() - process.create_time() < _AGE_MIN_S:
                    return {}
                used[f"{name}: MiB"] += process.memory_info().rss // _MIB
                used[f"{name}: threads"] += process.num_threads()
                used[f"{name}: descriptors"] += process.num_fds()
            return used if used[f"{name}: threads"] else {}
        return {}

    def _of_checkpoint(self) -> dict[str, int]:
        checkpoint = self._job.checkpoint
        offsets = _sizes(checkpoint / "offsets")
        newest = max((name for name in offsets if name.isdigit()), key=int, default="")
        ids = _sizes(checkpoint / ID_FOLDER)
        return {
            "offset: bytes": offsets.get(newest, 0),
            "files of IDs": len(ids),
            "files of IDs: KiB": sum(ids.values()) >> 10,
        }


def growth(history: History) -> dict[str, tuple[float, float, float]]:
    """What is used -> its median at the beginning of a run, in its middle and at its end.

    Without what was seen too rarely.
    """
    looks: dict[str, list[int]] = {}
    for operation in history.read():
        if operation["f"] == "usage":
            for name, value in operation["value"].items():
                looks.setdefault(name, []).append(value)
    found = {}
    for name, values in looks.items():
        size = max(len(values) // _PART, _LOOKS_MIN)
        middle = (len(values) - size) // 2
        if len(values) >= 2 * size:
            parts = (values[:size], values[middle : middle + size], values[-size:])
            found[name] = (statistics.median(parts[0]), statistics.median(parts[1]), statistics.median(parts[2]))
    return found


def _sizes(folder: Path) -> dict[str, int]:
    """Name -> size of the files in a folder; what is removed meanwhile is left out."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for file in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[file.name] = file.stat().st_size
    return found
