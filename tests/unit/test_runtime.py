"""The clock of a process stands still while the process does: a real one, stopped and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pyspark_mq.sources.runtime import Threads, begin_thread
from testbed.process import poll
from tests.support.sockets import LIMIT_S

_PROGRAM = """
import sys, time
from pyspark_mq.sources.runtime import Threads
clock = Threads()
began_s = clock.monotonic_s()
while clock.monotonic_s() < began_s + 1.0:
    time.sleep(0.01)
began_s, machine_s = clock.monotonic_s(), clock.machine_s()
print("goes", flush=True)
sys.stdin.readline()
print(clock.monotonic_s() - began_s, clock.machine_s() - machine_s, flush=True)
"""


def test_the_clock_of_a_process_stands_still_while_it_is_stopped() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "goes\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(5.0)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        run_s, machine_s = map(float, process.stdout.readline().split())
    # What is counted of the stop is what may pass between two looks. How long it ran besides is up to the machine.
    assert machine_s - run_s > 5.0 - 1.5


def test_the_clock_goes_on_while_nobody_asks_for_it() -> None:
    # The thread that asks may be in an epoch of Spark's for minutes.
    clock = Threads()

    def counted_s() -> float:
        began_s = clock.monotonic_s()
        time.sleep(3.0)
        return clock.monotonic_s() - began_s

    # A busy machine may cost a part of it. Without looks, no more than a second is ever counted.
    assert any(counted_s() > 2.5 for _ in range(10))


def test_it_never_goes_back() -> None:
    clock = Threads()
    seen = [clock.monotonic_s() for _ in range(10_000)]
    assert seen == sorted(seen)


def test_a_clock_that_nobody_has_any_more_leaves_no_thread() -> None:
    def clocks() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "pyspark-mq clock"}

    before = clocks()
    clock = Threads()
    clock.monotonic_s()
    (its,) = clocks() - before
    del clock
    assert poll(lambda: its not in clocks(), LIMIT_S)


@pytest.mark.parametrize("end", [SystemExit(1), KeyboardInterrupt(), ValueError("x")])
def test_whatever_ends_a_thread_is_told(end: BaseException) -> None:
    def work() -> None:
        raise end

    died: list[BaseException] = []
    begin_thread("a test", work, died.append).join()
    assert died == [end]
