"""The soak itself: it goes on after a `kill -9`, and the checker sees what is done to the history it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.faults import PERIODIC
from testbed.history_checker.check import check
from testbed.process import poll

ROOT = Path(__file__).parents[3]
SIZE = ["--messages", "4000", "--rate", "400", "--faults", "2"]

pytestmark = pytest.mark.whole


class Soak:
    """A soak in a folder, started as often as wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.parent / "soak.log"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "testbed.chaos.soak", "--folder", str(self.folder), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_MQ_TEST": str(self.folder)}
        with self.log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def operations(self) -> list[dict[str, Any]]:
        file = self.folder / "history.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def count(self, f: str, kind: str = "ok") -> int:
        return sum(each["f"] == f and each["type"] == kind for each in self.operations())

    def processes(self) -> list[psutil.Process]:
        """Everything it has started."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PYSPARK_MQ_TEST") == str(self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    """A soak that was killed three times: while it sent, when its job had written something, and by SIGTERM."""
    RabbitNode().close()  # the reason if it is not there
    soak = Soak(tmp_path_factory.mktemp("soak") / "run")
    try:
        first = soak.start(*SIZE)
        assert poll(lambda: soak.count("enqueue", "invoke") > 3, 60)
        first.kill()
        first.wait()
        second = soak.start()
        assert poll(lambda: soak.count("dequeue") > 0, 120)
        second.kill()
        second.wait()
        third = soak.start()
        assert poll(lambda: soak.count("run", "info") > 2, 60)
        third.send_signal(signal.SIGTERM)
        assert third.wait(90) == 130
        assert soak.start().wait(240) == 0, soak.log.read_text("utf-8")[-4000:]
        yield soak
    finally:
        for process in soak.processes():
            process.kill()


@pytest.mark.timeout(900)
def test_a_soak_that_was_killed_goes_on_to_a_verdict_that_holds(soaked: Soak) -> None:
    findings = check(soaked.folder / "history.jsonl")
    assert findings.holds, findings
    assert (findings.counts["sent"], findings.counts["dequeued"], findings.counts["faults"]) == (4_000, 4_000, 2)
    assert soaked.count("run", "info") == 4
    # Nothing of it is left, and a further start has nothing more to do than to look.
    assert soaked.processes() == []
    edn = check(soaked.folder / "history.edn")
    assert (edn.counts, edn.holds) == (findings.counts, True)


@pytest.mark.timeout(900)
def test_another_run_in_the_folder_is_refused(soaked: Soak) -> None:
    assert soaked.start("--broker", "artemis").wait(60) == 1
    assert "the run in" in soaked.log.read_text("utf-8")


@pytest.mark.timeout(900)
def test_periodic_jobs_whose_sink_fails_lose_and_double_nothing(tmp_path: Path) -> None:
    RabbitNode().close()
    soak = Soak(tmp_path / "run")
    size = ["--messages", "3000", "--rate", "0", "--faults", "9", "--option", "maxMessagesPerTrigger=150"]
    try:
        assert soak.start("--periodic", *size).wait(720) == 0, soak.log.read_text("utf-8")[-4000:]
    finally:
        for process in soak.processes():
            process.kill()
    # Sinks failed, and the checker compares what a replay gave them again. On a busy machine a run may have no batch in
    # which its sink could fail.
    faults = [each for each in soak.operations() if each["f"] == "fault"]
    done = {each["value"] for each in faults if each["type"] == "ok"}
    assert {each["value"] for each in faults} == set(PERIODIC)
    assert len(done) >= len(PERIODIC) - 1
    assert soak.count("attempt", "info") >= soak.count("dequeue") + sum("fails" in name for name in done)


def _dequeues(operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in operations if each["f"] == "dequeue" and each["value"]]


def lose_the_last_row(operations: list[dict[str, Any]]) -> None:
    value = _dequeues(operations)[-1]["value"]
    if isinstance(value[-1], list):
        value[-1][1] -= 1
    else:
        del value[-1]


def repeat_a_row(operations: list[dict[str, Any]]) -> None:
    _dequeues(operations)[-1]["value"].append(0)


def add_a_row(operations: list[dict[str, Any]]) -> None:
    _dequeues(operations)[0]["value"].append(4_000)


def replay_with_a_row_less(operations: list[dict[str, Any]]) -> None:
    again = json.loads(json.dumps(_dequeues(operations)[0]))
    lose_the_last_row([again])
    operations.insert(-1, again)


SPOILED = {
    "lost": lose_the_last_row,
    "duplicated": repeat_a_row,
    "unexpected": add_a_row,
    "replayed otherwise": replay_with_a_row_less,
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", SPOILED)
def test_the_checker_sees_what_is_done_to_a_real_history(soaked: Soak, tmp_path: Path, kind: str) -> None:
    operations = soaked.operations()
    SPOILED[kind](operations)
    file = tmp_path / "history.jsonl"
    file.write_text("".join(json.dumps({**each, "index": at}) + "\n" for at, each in enumerate(operations)), "utf-8")
    assert {name: found.count for name, found in check(file).wrong.items() if found.count} == {kind: 1}
