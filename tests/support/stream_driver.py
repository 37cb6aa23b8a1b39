"""A query of a stream in a real Spark of any version, killed at two points of a batch.

Each start first recovers from the last kill: `before the sink`, when Spark has logged the offsets of a batch and no
more, and `after the sink`, when the batch is written and not committed.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from testbed.brokers.rabbitmq import RabbitNode
from testbed.process import Command, Process, poll
from tests.support.pages import ROOT
from tests.support.streams import publish

__all__ = ["StreamDriver"]

_TIMEOUT_S = 120.0
_BATCH = 20
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class StreamDriver:
    """One run through both points.

    Args:
        python: interpreter with the Spark to use.
        node: a broker that is running.
        stream: the name of a stream that is not there yet.
        folder: for checkpoint, sink and log.
    """

    def __init__(self, python: Path, node: RabbitNode, stream: str, folder: Path) -> None:
        self._node, self._stream, self._folder = node, stream, folder
        self._log = folder / "log"
        self._command = [str(python), "-m", "tests.support.spark_program", "--folder", str(folder)]
        options = {"broker": "rabbitmq", "url": node.stream_url(), "stream": stream, "startingOffsets": "earliest"}
        for name, value in options.items():
            self._command += ["--option", f"{name}={value}"]
        self._sent: list[str] = []

    def run(self) -> None:
        """Kill it at both points, and let it come to the end.

        Raises:
            AssertionError: a row is lost or twice, or a replay has other rows.
        """
        self._publish()
        self._die("before", 0)
        assert self._logged("offsets", 0)
        assert not self._logged("commits", 0)
        assert self._rows() == []
        self._publish()  # a replay must not have these
        self._die("after", 1)
        assert not self._logged("commits", 1)
        assert self._rows() == self._sent
        self._publish()
        process = self._start()
        try:
            assert poll(lambda: len(self._rows()) >= len(self._sent) or not process.running, _TIMEOUT_S), self._said()
            assert process.terminate(_TIMEOUT_S)
            assert process.exit_code == 0, self._said()
        finally:
            process.kill()
        assert self._rows() == self._sent
        first: dict[int, Any] = {}
        for call in self._calls():
            assert first.setdefault(call["batch"], call["rows"]) == call["rows"], "a replay of other rows"
        assert [call["batch"] for call in self._calls()] == [0, 0, 1, 1, 2]

    def _die(self, moment: str, batch: int) -> None:
        process = self._start("--die", moment, "--at", str(batch))
        try:
            assert poll(lambda: not process.running, _TIMEOUT_S, interval_s=0.05), self._said()
            assert process.exit_code == -signal.SIGKILL, self._said()
        finally:
            process.kill()

    def _start(self, *arguments: str) -> Process:
        environment = {"JDK_JAVA_OPTIONS": _JAVA, **os.environ, "PYTHONPATH": str(ROOT)}
        return Process(Command([*self._command, *arguments], environment), log=self._log, folder=ROOT)

    def _publish(self) -> None:
        texts = [f"message {len(self._sent) + number}" for number in range(_BATCH)]
        publish(self._node.stream_port, self._stream, [text.encode() for text in texts], batch=7)
        self._sent += texts

    def _logged(self, which: str, batch: int) -> bool:
        return (self._folder / "checkpoint" / which / str(batch)).exists()

    def _calls(self) -> list[dict[str, Any]]:
        file = self._folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    def _rows(self) -> list[str]:
        files = sorted(self._folder.glob("*.json"), key=lambda file: int(file.stem))
        return [text for file in files for _, text in json.loads(file.read_text("utf-8"))]

    def _said(self) -> str:
        return self._log.read_text("utf-8", "replace")[-4000:]
