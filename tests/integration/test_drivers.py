"""Drivers that are killed or stopped as processes, and the readers below them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import poll
from tests.support.checks import bodies, gone, total
from tests.support.real_spark import real_spark

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 90.0
#: A script around Python that stays: it has a second command to run.
SCRIPT = '#!/bin/sh\n"{python}" "$@"\nexit $?\n'


@pytest.fixture
def queue(rabbit: RabbitNode) -> Iterator[str]:
    name = f"drivers-{uuid.uuid4().hex[:8]}"
    rabbit.declare(name)
    yield name
    rabbit.delete(name)


class Driver:
    """A query in a Spark of its own, with its sink and checkpoint in a folder that others may use."""

    def __init__(self, python: Path, workers: Path, rabbit: RabbitNode, queue: str, folder: Path, *more: str) -> None:
        self._log = folder / f"log-{uuid.uuid4().hex[:8]}"
        options = {
            "broker": "rabbitmq", "url": rabbit.url(), "queue": queue, "heartbeat": "2s", "maxMessagesPerTrigger": 5
        }  # fmt: skip
        command = [str(python), "-m", "tests.support.spark_program", "--folder", str(folder), *more]
        for name, value in options.items():
            command += ["--option", f"{name}={value}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(workers)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")[-6_000:]

    def await_(self, condition: Any) -> None:
        assert poll(lambda: condition() or self.process.poll() is not None, TIMEOUT_S), self.log
        assert condition(), self.log

    def send(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.send(signal.SIGKILL)
        self.process.wait()


def rows(folder: Path) -> list[str]:
    files = sorted(folder.glob("*.json"), key=lambda file: int(file.stem))
    return [body for file in files for _, body in json.loads(file.read_text("utf-8"))]


def reader_below(driver: int, port: int) -> psutil.Process:
    """The process that is connected to the broker."""
    for process in psutil.Process(driver).children(recursive=True):
        if any(one.raddr and one.raddr.port == port for one in process.net_connections("tcp")):
            return process
    raise AssertionError("no process below the driver is connected")


@pytest.mark.parametrize("script", [False, True], ids=["Python", "a script around Python"])
def test_the_death_of_the_jvm_alone_returns_its_messages(
    rabbit: RabbitNode, queue: str, tmp_path: Path, script: bool
) -> None:
    workers = Path(sys.executable)
    if script:
        workers = tmp_path / "python"
        workers.write_text(SCRIPT.format(python=sys.executable), "utf-8")
        workers.chmod(0o755)
    rabbit.publish(queue, bodies(12))
    driver = Driver(Path(sys.executable), workers, rabbit, queue, tmp_path, "--hold", "0")
    try:
        driver.await_((tmp_path / "0.json").exists)
        reader = reader_below(driver.process.pid, rabbit.port)
        (jvm,) = [one for one in reader.parents() if one.name() == "java"]
        assert (reader.ppid() == jvm.pid) is not script
        assert rabbit.counts(queue).unacked == 10  # the prefetch
        jvm.kill()
        assert poll(lambda: gone(reader.pid), 2), "the reader outlived its JVM"
        assert poll(lambda: rabbit.counts(queue).ready == 12, 10)
    finally:
        driver.kill()


@pytest.mark.timeout(900)  # the first time another Spark is installed
@pytest.mark.parametrize("version", ["4.0", ""], ids=["4.0", "here"])
def test_a_driver_that_wakes_after_its_replacement_fails_and_harms_nothing(
    rabbit: RabbitNode, queue: str, tmp_path: Path, version: str
) -> None:
    python = real_spark(version) if version else Path(sys.executable)
    rabbit.publish(queue, bodies(15))
    old = Driver(python, python, rabbit, queue, tmp_path, "--hold", "1")
    new: Driver | None = None
    try:
        old.await_((tmp_path / "1.json").exists)
        old.send(signal.SIGSTOP)
        new = Driver(python, python, rabbit, queue, tmp_path)
        new.await_(lambda: len(rows(tmp_path)) == 15)
        old.send(signal.SIGCONT)
        (tmp_path / "go").touch()
        assert old.process.wait(TIMEOUT_S) == 1, old.log
        assert "concurrent" in old.log.lower(), old.log
        rabbit.publish(queue, bodies(20)[15:])
        new.await_(lambda: len(rows(tmp_path)) == 20)
        new.await_(lambda: total(rabbit, queue) == 0)
        assert sorted(rows(tmp_path)) == sorted(body.decode() for body in bodies(20))
    finally:
        old.kill()
        if new is not None:
            new.kill()
