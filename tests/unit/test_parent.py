"""Rule 11 below a script around Python: processes that are really killed, one of which has what makes a JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pyspark_mq.sources.connections import parent
from testbed.process import poll
from tests.support.checks import gone
from tests.support.sockets import LIMIT_S

#: A process that has the library of a JVM in its memory, as far as the kernel shows, and starts what it is told to.
_JVM = """
import mmap, subprocess, sys
with open(sys.argv[1], "rb") as library:
    mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
    subprocess.run(sys.argv[2:])
"""
_READER = """
import time
from pyspark_mq.sources.connections.parent import watch_parent
watch_parent()
print("watches", flush=True)
time.sleep(60)
"""
#: Shells that stay: each has a second command to run.
_STAYS = ["/bin/sh", "-c", '"$@"; exit $?', "shell"]


@pytest.mark.parametrize("wrappers", [0, 1, 2])
def test_a_reader_behind_scripts_around_python_ends_with_the_jvm(wrappers: int, tmp_path: Path) -> None:
    library = tmp_path / "libjvm.so"
    library.write_bytes(b"x")
    reader = [*_STAYS * wrappers, sys.executable, "-c", _READER]
    command = [sys.executable, "-c", _JVM, str(library), *reader]
    # What started the JVM may go before it, as a shell does behind `nohup … &`.
    started = subprocess.Popen([*_STAYS, *command], stdout=subprocess.PIPE, text=True)
    below: list[psutil.Process] = []
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "watches\n"
        below = psutil.Process(started.pid).children(recursive=True)
        assert len(below) == 2 + wrappers
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


def test_a_real_jvm_is_known() -> None:
    # It waits for a debugger, for ever.
    waits = "-agentlib:jdwp=transport=dt_socket,server=y,suspend=y,address=127.0.0.1:0"
    with subprocess.Popen(["java", waits, "-version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as java:
        try:
            assert poll(lambda: parent._is_jvm(java.pid), LIMIT_S)
            assert not parent._is_jvm(parent.parent_of(java.pid))
        finally:
            java.kill()
