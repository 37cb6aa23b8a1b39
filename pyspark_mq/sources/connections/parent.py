"""Rule 11: this process must not outlive its JVM.

Spark's worker process is a child of the JVM. When the JVM is killed, nobody tells the worker, and one that is blocked
in a wait would keep the connection, and with it the unacknowledged messages, forever. So a thread of its own looks at
the parent twice a second and ends the process when that has changed. (The kernel's parent-death signal is of no use: it
fires when the *thread* that started the worker ends.)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from pyspark_mq.sources.runtime import begin_thread

__all__ = ["watch_parent"]

_PARENT_CHECK_S = 0.5


def watch_parent(end: Callable[[], None] | None = None) -> threading.Thread:
    """End this process, without any clean-up, soon after its parent has (rule 11).

    Args:
        end: what to do instead of ending the process, for tests.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        if end is not None:
            end()
            return
        # The kernel closes the connection and the broker takes its messages back at once.
        os._exit(1)

    return begin_thread("pyspark-mq parent watch", watch, lambda _: os._exit(1))
