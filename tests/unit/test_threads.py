"""Threads: one that dies is an error of the query."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import InternalError, MqError, RefusedError
from pyspark_mq.sources.queues.pattern import QueueWatch
from pyspark_mq.sources.queues.watch import BacklogWatch
from pyspark_mq.sources.runtime import Threads, begin_thread
from testbed.process import poll
from tests.support.sockets import LIMIT_S

PACKAGE = Path(__file__).parents[2] / "pyspark_mq"


class Broken:
    """Answers once, and then fails with something that nobody expects."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    def __call__(self, *_: object) -> Any:
        self.asked += 1
        if self.asked > 1:
            raise self.error
        return ["a"]


def watch_queues(ask: Callable[..., Any]) -> Callable[[], object]:
    watch = QueueWatch("a", ask, 0.01, 10, Threads())
    watch.begin()
    return watch.seen


def watch_backlog(ask: Callable[..., Any]) -> Callable[[], object]:
    watch = BacklogWatch(ask, 5.0, Threads())
    watch.begin(["a", "b"])
    return lambda: watch.seen("a")


def refused(call: Callable[[], object]) -> MqError | None:
    try:
        call()
    except MqError as error:
        return error
    return None


@pytest.mark.parametrize("watch", [watch_queues, watch_backlog])
def test_a_thread_that_dies_fails_the_query_at_its_next_call_and_prints_nothing(
    watch: Callable[..., Callable[[], object]], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = watch(Broken(KeyError("a bug")))
    assert poll(lambda: refused(seen) is not None, LIMIT_S)
    with pytest.raises(InternalError, match="a thread of the source has died: KeyError: 'a bug'"):
        seen()
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_thread_that_dies_of_an_error_of_ours_fails_the_query_with_it() -> None:
    ended = threading.Event()

    def life() -> Any:
        yield 0.0
        raise RefusedError("no")

    task = Threads().spawn("a", life(), ended)
    task.join(10)
    with pytest.raises(RefusedError, match="no"):
        task.check()


def test_whoever_starts_a_thread_is_told_of_its_death(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[Exception] = []
    error = ZeroDivisionError()

    def work() -> None:
        raise error

    begin_thread("a", work, told.append).join(10)
    assert told == [error]
    assert capfd.readouterr().err == ""


def test_every_thread_is_started_by_that_rule() -> None:
    started = [
        path.name
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"threading.Thread", "Thread", "threading.Timer"}
    ]
    assert started == ["runtime.py"]
