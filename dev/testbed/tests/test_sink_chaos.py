"""The chaos test of writing, small, and its checker: what is done to a history that is right is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.chaos.sink.checker import verdict
from tests.support.pages import ROOT

#: Each kind of kill once, over broker and protocol; and where Spark tries no task twice, what a write has to outlive.
RUNS = {
    ("rabbitmq", "amqp-0-9-1"): ("kill -9 of an executor", "kill -9 of the broker, restart"),
    ("artemis", "stomp"): ("kill -9 of a Python worker", "kill -9 of a Spark worker, start"),
    ("rabbitmq", "amqp-0-9-1", "--local"): (
        "kill -9 of the broker, restart", "password changed, connections closed, file changed",
    ),
    ("artemis", "amqp-1.0", "--local", "--batch"): ("connection silent (half-open)", "kill -9 of the broker, restart"),
}  # fmt: skip
RIGHT = [(f"{copy}-{number}", f"{number} x") for number in range(10) for copy in "ab"]


@pytest.mark.whole
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
def test_a_chaos_loses_no_row_and_doubles_none_but_by_its_id(run: tuple[str, ...], tmp_path: Path) -> None:
    report, faults = tmp_path / "report.json", RUNS[run]
    broker, protocol, *flags = run
    command = [sys.executable, "-m", "testbed.chaos.sink", "--broker", broker, "--protocol", protocol, *flags]
    command += [
        "--rows",
        "100",
        "--faults",
        str(len(faults)),
        "--folder",
        str(tmp_path / "chaos"),
        "--report",
        str(report),
    ]
    command += [word for fault in faults for word in ("--only", fault)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    found = json.loads(report.read_text("utf-8"))
    assert [found[fault] for fault in faults] == [1, 1]
    assert found["messages"] >= found["rows of committed batches"] >= 600


def bodies(messages: list[tuple[str, str]]) -> list[str]:
    return [body for _, body in messages]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda right: (right, bodies(right)), {}),
        (lambda right: ([*right, right[3]], bodies(right)), {"copies": 1}),
        (lambda right: (right[1:], bodies(right[1:])), {"lost": 1, "lost_behind": 1}),
        (lambda right: ([*right[1:], right[1]], bodies(right)), {"lost": 1, "copies": 1, "twice_behind": 1}),
        (lambda right: ([*right, ("c-3", "3 x")], [*bodies(right), "3 x"]), {"other_ids": 1}),
        (lambda right: ([*right, right[3]], [*bodies(right), right[3][1]]), {"copies": 1, "twice_behind": 1}),
        (lambda right: ([("a-1", "0 x"), *right[1:]], bodies(right)), {"shared_ids": 1}),
        (lambda right: ([*right, ("k", "11 y")], [*bodies(right), "11 y"]), {"unexpected": 1}),
        (lambda right: ([*right, ("k", "11 x")], [*bodies(right), "11 x"]), {}),
        (lambda right: (right, bodies(right)[1:]), {"lost_behind": 1}),
    ],
)
def test_the_checker_sees_what_is_wrong(
    change: Callable[[list[tuple[str, str]]], tuple[list[tuple[str, str]], list[str]]], wrong: dict[str, int]
) -> None:
    found, behind = change(RIGHT)
    judged = verdict(found, behind, 10, "x")
    told = {name: getattr(judged, name) for name in judged.__slots__ if name != "messages" and getattr(judged, name)}
    assert told == wrong
    assert judged.holds == (not set(wrong) - {"copies"})


def test_nothing_at_all_does_not_hold() -> None:
    assert not verdict([], [], 0, "x").holds
