"""Depths that are asked for beside the sessions: when, and what is known while nobody answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from pyspark_mq.errors import BrokerUnavailableError
from pyspark_mq.sources.queues.watch import BacklogWatch
from pyspark_mq.sources.runtime import Task, Threads


class Idle(Task):
    """What goes on only when it is told to."""

    @property
    def alive(self) -> bool:
        return True

    def join(self, timeout_s: float) -> None:
        pass


class Steps(Threads):
    """Runs what is spawned a step at a time, on a clock that is turned by hand."""

    life: Iterator[float]
    spawned = 0
    now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def spawn(self, name: str, life: Iterator[float], interrupt: threading.Event) -> Task:
        self.life, self.spawned = life, self.spawned + 1
        return Idle()


def test_only_queues_that_are_asked_for_are_known_and_only_the_newest(caplog: pytest.LogCaptureFixture) -> None:
    depths: dict[str, int | Exception | None] = {"a": 5, "b": None, "c": 9}

    def ask(queue: str) -> int | None:
        depth = depths[queue]
        if isinstance(depth, Exception):
            raise depth
        return depth

    runtime = Steps()
    watch = BacklogWatch(ask, 5.0, runtime)
    assert watch.seen("a") is None
    watch.begin([])
    assert runtime.spawned == 0
    watch.begin(["a", "b"])
    watch.begin(["a", "b"])
    assert runtime.spawned == 1
    assert next(runtime.life) > 0
    assert [watch.seen(name) for name in "abc"] == [5, None, None]
    depths["a"] = 7
    watch.begin(["a", "b", "c"])
    next(runtime.life)
    assert [watch.seen(name) for name in "abc"] == [7, None, 9]
    depths["b"] = BrokerUnavailableError("nobody there")
    with caplog.at_level(logging.WARNING):
        next(runtime.life)
        next(runtime.life)
    assert [watch.seen(name) for name in "abc"] == [None, None, None]
    assert len(caplog.records) == 1
    depths["b"] = 0
    next(runtime.life)
    assert [watch.seen(name) for name in "abc"] == [7, 0, 9]
    watch.stop()
    assert list(runtime.life) == []


def test_a_depth_that_cannot_be_renewed_is_unknown_after_a_while() -> None:
    runtime = Steps()
    watch = BacklogWatch(lambda _: 5, 5.0, runtime)
    watch.begin(["a"])
    next(runtime.life)
    runtime.now_s += 30
    assert watch.seen("a") == 5
    runtime.now_s += 40  # a question that never ends
    assert watch.seen("a") is None
    next(runtime.life)
    assert watch.seen("a") == 5


def test_a_depth_that_is_rarely_asked_for_is_known_until_it_is_asked_for_again() -> None:
    runtime = Steps()
    watch = BacklogWatch(lambda _: 5, 60.0, runtime)
    watch.begin(["a"])
    assert next(runtime.life) == 60
    runtime.now_s += 110
    assert watch.seen("a") == 5
    runtime.now_s += 20
    assert watch.seen("a") is None
