"""Rule 11: this process must not outlive its JVM.

Spark's worker process is a child of the JVM, or of a script around Python (`PYSPARK_PYTHON`) that stays. When the JVM
is killed, nothing notifies the worker, and a blocked worker would keep the connection and its unacknowledged messages
forever. But its standard input is a pipe from the JVM, and scripts pass it on
(``PythonWorkerFactory.createSimpleWorker`` of Spark 4.0 to 4.3). The kernel hangs it up when the JVM dies. Where
standard input is not a pipe, a thread checks twice a second whether the parent has changed. (The kernel's parent-death
signal does not help: it fires when the *thread* that started the worker ends.)
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
        # The kernel closes the connection and the broker takes its messages back at once.
        os._exit(1)

    return begin_thread("pyspark-mq parent watch", watch, lambda _: os._exit(1))


def _pipe_from_jvm() -> select.poll:
    """Return an object that reports when standard input hangs up.

    If standard input is not a pipe with a writer, the object never reports anything.
    """
    hang_up, nothing = select.poll(), select.poll()
    with contextlib.suppress(OSError):  # closed
        if stat.S_ISFIFO(os.fstat(_STANDARD_INPUT).st_mode):
            # A copy stays this pipe when the descriptor is closed and reused. Errors and hang-ups are always reported.
            hang_up.register(os.dup(_STANDARD_INPUT), 0)
            return nothing if hang_up.poll(0) else hang_up
    return nothing
