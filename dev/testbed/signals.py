"""Signals to processes that may be gone by then."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import psutil

__all__ = ["Choose", "freeze", "freeze_one", "is_named", "kill", "kill_one", "runs"]

#: Choose one of several, by chance.
Choose: TypeAlias = Callable[[list[psutil.Process]], psutil.Process]


def is_named(process: psutil.Process, name: str) -> bool:
    """Whether it is there and has this name."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.name() == name)
    return False


def runs(process: psutil.Process, word: str) -> bool:
    """Whether its command has a word."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(word in part for part in process.cmdline())
    return False


def freeze(processes: Sequence[psutil.Process], seconds: float) -> tuple[int, int]:
    """Stop them for so long; how many were stopped, and how many of those went on after it."""
    frozen = [process for process in processes if _signalled(process, signal.SIGSTOP)]
    try:
        time.sleep(seconds if frozen else 0)
    finally:
        thawed = sum(_signalled(process, signal.SIGCONT) for process in frozen)
    return len(frozen), thawed


def freeze_one(processes: list[psutil.Process], choose: Choose, seconds: float) -> bool:
    """Stop one of them for so long."""
    stopped, _ = freeze([choose(processes)] if processes else [], seconds)
    return stopped > 0


def kill(process: psutil.Process) -> bool:
    """``kill -9``; whether it was there."""
    return _signalled(process, signal.SIGKILL)


def kill_one(processes: list[psutil.Process], choose: Choose) -> bool:
    """``kill -9`` to one of them."""
    return bool(processes) and kill(choose(processes))


def _signalled(process: psutil.Process, number: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
        return True
    return False
