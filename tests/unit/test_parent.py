"""Rule 11: processes that are really killed, one of which starts the reader as a JVM does."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from testbed.process import poll
from tests.support.checks import gone
from tests.support.sockets import LIMIT_S

#: Starts what it is told to with a pipe as standard input, as Java's ProcessBuilder does.
_JVM = """
import contextlib, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
with contextlib.suppress(BrokenPipeError):  # the other end is closed
    child.stdin.write(b"nobody reads this")
    child.stdin.flush()
child.wait()
"""
_READER = """
import os, time
from pyspark_mq.sources.connections.parent import watch_parent
watch_parent()
os.closerange(0, 1)  # a descriptor that another part of the process closes
print("watches", flush=True)
time.sleep(60)
"""
#: Shells that stay: each has a second command to run.
_STAYS = ["/bin/sh", "-c", '"$@"; exit $?', "shell"]
_WITHOUT_INPUT = ["/bin/sh", "-c", 'exec "$@" </dev/null', "shell"]
_WITH_A_DEAD_PIPE = [
    sys.executable, "-c",
    "import os, sys; low, high = os.pipe(); os.dup2(low, 0); os.close(high); os.execv(sys.argv[1], sys.argv[1:])",
]  # fmt: skip


@pytest.mark.parametrize(
    "between",
    [[], _STAYS, _STAYS * 2, _WITHOUT_INPUT, _WITH_A_DEAD_PIPE],
    ids=["at once", "a script", "two scripts", "no input", "a pipe without a writer"],
)
def test_a_reader_ends_with_its_jvm_and_not_before(between: list[str]) -> None:
    command = [sys.executable, "-c", _JVM, *between, sys.executable, "-c", _READER]
    # What started the JVM may end before it, as a shell does after `nohup … &`.
    started = subprocess.Popen([*_STAYS, *command], stdout=subprocess.PIPE, text=True)
    below: list[psutil.Process] = []
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "watches\n"
        expected = 2 + between.count("/bin/sh") * (between is not _WITHOUT_INPUT)

        def found() -> bool:
            # A clock that is set may hide a child for a moment: psutil compares times of creation.
            below[:] = psutil.Process(started.pid).children(recursive=True)
            return len(below) == expected

        assert poll(found, LIMIT_S), below
        started.kill()
        started.wait()
        assert not poll(lambda: gone(below[-1].pid), 1.5), "the reader ended with what had started its JVM"
        below[0].kill()
        assert poll(lambda: gone(below[-1].pid), LIMIT_S), "the reader outlived its JVM"
    finally:
        for process in (started, *below):
            if process.pid and psutil.pid_exists(process.pid):
                process.kill()
        started.wait()
