"""Ends this process when Spark's JVM has ended (rule 11), so that the broker gets unacknowledged messages back.

The process that runs the source is a child of the JVM, or of a script that starts Python (`PYSPARK_PYTHON`). If the JVM
is killed, nothing notifies this process, and it would keep its connections and unacknowledged messages forever. But its
standard input is a pipe from the JVM, which scripts pass on (``PythonWorkerFactory.createSimpleWorker`` of Spark 4.0 to
4.3). The kernel reports the end of this pipe when the JVM has ended. If standard input is not a pipe, a thread checks
twice a second whether this process has another parent now. (The kernel's parent-death signal does not help, because it
is sent when the *thread* that started this process ends.)
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading

from pyspark_mq.sources.runtime import begin_thread

__all__ = ["watch_parent"]

_PARENT_CHECK_MS = 500
_STANDARD_INPUT = 0


def watch_parent() -> threading.Thread:
    """End this process, without any clean-up, soon after its parent or its JVM has ended (rule 11)."""
    parent, pipe = os.getppid(), _pipe_from_jvm()

    def watch() -> None:
        while os.getppid() == parent and not pipe.poll(_PARENT_CHECK_MS):
            pass
        # The kernel closes the connections, and the broker requeues their messages at once.
        os._exit(1)

    return begin_thread("pyspark-mq parent watch", watch, lambda _: os._exit(1))


def _pipe_from_jvm() -> select.poll:
    """Return an object whose `poll` reports the end of standard input, if standard input is a pipe.

    If it is not a pipe, or if the pipe has ended already, `poll` never reports anything.
    """
    hang_up, nothing = select.poll(), select.poll()
    with contextlib.suppress(OSError):  # closed
        if stat.S_ISFIFO(os.fstat(_STANDARD_INPUT).st_mode):
            # Watch a copy of the descriptor, because other code may close and reuse the descriptor. `poll` always
            # reports errors and hang-ups, so no event has to be requested.
            hang_up.register(os.dup(_STANDARD_INPUT), 0)
            return nothing if hang_up.poll(0) else hang_up
    return nothing
