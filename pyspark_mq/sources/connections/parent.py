"""Rule 11: this process must not outlive its JVM.

Spark's worker process is a child of the JVM, or of a script around Python (`PYSPARK_PYTHON`) that stays. When the JVM
is killed, nothing notifies the worker, and a blocked worker would keep the connection and its unacknowledged messages
forever. So twice a second a thread checks the processes from the parent up to the JVM, and ends this process when the
parent of any of them has changed. Processes above the JVM may end. (The kernel's parent-death signal does not help: it
fires when the *thread* that started the worker ends.)
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pyspark_mq.sources.runtime import begin_thread

__all__ = ["parent_of", "watch_parent"]

_PARENT_CHECK_S = 0.5
#: The library that makes a process a JVM, whatever its program.
_JVM = "libjvm.so"


def watch_parent() -> threading.Thread:
    """End this process, without any clean-up, soon after its parent or its JVM has ended (rule 11)."""
    parents = _up_to_the_jvm()

    def watch() -> None:
        while _unchanged(parents):
            time.sleep(_PARENT_CHECK_S)
        # The kernel closes the connection and the broker takes its messages back at once.
        os._exit(1)

    return begin_thread("pyspark-mq parent watch", watch, lambda _: os._exit(1))


def parent_of(pid: int) -> int:
    """Return the parent of a process, as Linux reports it.

    Raises:
        OSError: the process is gone, or its parent is not reported.
    """
    # pid (name) state ppid …: a name may have anything in it (proc(5)).
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2]
    return int(fields.split()[1])


def _up_to_the_jvm() -> list[int]:
    """Return the parent, its parent, and so on up to the JVM; only the parent if no JVM is found."""
    parents = [os.getppid()]
    with contextlib.suppress(OSError):
        while not _is_jvm(parents[-1]):
            parents.append(parent_of(parents[-1]))
        return parents
    return parents[:1]


def _is_jvm(pid: int) -> bool:
    with contextlib.suppress(OSError):  # another user's process, such as sudo
        return _JVM in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
    return False


def _unchanged(parents: Sequence[int]) -> bool:
    if os.getppid() != parents[0]:
        return False
    try:
        return all(parent_of(low) == high for low, high in pairwise(parents))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True  # no descriptor is left; the next look decides
