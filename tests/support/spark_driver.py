"""The driver's rows of the failure matrix, in a real Spark of any version: it is killed at five points in a row.

One query, one checkpoint: each start first recovers from the last kill, and then dies at the next point. The JVM and
the driver are really killed, and where Spark is when that happens is held from outside:

* `before the offset log`: messages trickle in, and the source waits for the next, inside ``latestOffset``.
* `after the offset log`, `after the sink wrote`: the sink, which Spark calls in between, kills its own process.
* `after the commit log`: the way to the broker is stalled, so no acknowledgement gets through; the kill comes when the
  commit log has the batch.
* `in phase two`: the way to the broker is cut within the first bytes after the commit log has the batch, and the kill
  comes with the cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from testbed.brokers.node import Node
from testbed.chaos.proxy import Direction, FaultProxy
from testbed.process import poll

__all__ = ["POINTS", "DriverMatrix"]

_ROOT = Path(__file__).resolve().parents[2]
EPOCH = 20
_STEP_TIMEOUT_S = 120.0
_TRICKLE_BYTES_PER_S = 500
POINTS = (
    "before the offset log",
    "after the offset log",
    "after the sink wrote",
    "after the commit log",
    "in phase two",
)


class DriverMatrix:
    """One run through all points.

    Args:
        python: interpreter with the Spark to use.
        node: a broker that is running.
        queue: an empty queue of it.
        folder: for checkpoint, sink and log.
    """

    def __init__(self, python: Path, node: Node, queue: str, folder: Path, options: dict[str, str]) -> None:
        self._python = python
        self._node = node
        self._queue = queue
        self._folder = folder
        port = urlsplit(options["url"]).port
        self._proxy = FaultProxy("127.0.0.1", port or 0)
        full = {"maxMessagesPerTrigger": EPOCH, "minMessagesPerTrigger": EPOCH, "maxTriggerDelay": "1h"}
        self._options = {**options, "url": options["url"].replace(f":{port}", f":{self._proxy.port}"), **full}
        self._process: subprocess.Popen[bytes] | None = None
        self.sent: list[str] = []
        self.passed: list[str] = []

    def run(self) -> None:
        """All points, and then to the end.

        Raises:
            AssertionError: something is lost, double, or otherwise.
        """
        try:
            for point in (self._before_offset_log, self._after_offset_log, self._after_sink):
                point()
            self._after_commit_log()
            self._in_phase_two()
            self._to_the_end()
        finally:
            self._kill()
            self._proxy.close()

    # -- the points

    def _before_offset_log(self) -> None:
        self._publish(EPOCH - 5)
        # The broker sends all at once, and seconds pass until the source has them.
        self._proxy.throttle(_TRICKLE_BYTES_PER_S, Direction.TO_CLIENT)
        self._start()
        self._wait(lambda: self._node.counts(self._queue).unacked == EPOCH - 5, "the messages to be received")
        self._kill()
        self._proxy.throttle(None)
        assert not self._logged("offsets", 0)
        self._publish(5)
        self.passed.append(POINTS[0])

    def _after_offset_log(self) -> None:
        self._start("--die", "before", "--at", "0")
        self._await_death()
        assert self._logged("offsets", 0)
        assert not self._logged("commits", 0)
        assert not (self._folder / "0.json").exists()
        self.passed.append(POINTS[1])

    def _after_sink(self) -> None:
        self._publish(EPOCH)
        self._start("--die", "after", "--at", "1")
        self._await_death()
        assert [call["batch"] for call in self._calls()] == [0, 0, 1]
        assert (self._folder / "1.json").exists()
        assert not self._logged("commits", 1)
        self.passed.append(POINTS[2])

    def _after_commit_log(self) -> None:
        self._publish(EPOCH)
        self._start("--hold", "2")
        self._wait((self._folder / "2.json").exists, "batch 2")
        assert [call["batch"] for call in self._calls()] == [0, 0, 1, 1, 2]
        self._proxy.stall(Direction.TO_BROKER)
        self._go()
        self._wait(lambda: self._logged("commits", 2), "the commit of batch 2")
        self._kill()
        assert self._node.counts(self._queue).total >= EPOCH
        self._proxy.resume()
        self.passed.append(POINTS[3])

    def _in_phase_two(self) -> None:
        self._publish(EPOCH)
        self._start("--hold", "3")
        self._wait((self._folder / "3.json").exists, "batch 3")
        # Shorter than any acknowledgement.
        cut = self._proxy.cut_after(10, Direction.TO_BROKER)
        self._go()
        assert cut.wait(_STEP_TIMEOUT_S), "nothing was acknowledged"
        self._kill()
        assert self._logged("commits", 3)
        self.passed.append(POINTS[4])

    def _to_the_end(self) -> None:
        self._publish(EPOCH)
        self._start()
        self._wait(lambda: len(self._rows()) >= len(self.sent), "all rows")
        self._wait(lambda: self._node.counts(self._queue).total == 0, "the queue to be empty")
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(_STEP_TIMEOUT_S) == 0, self._log()
        self._check()

    def _check(self) -> None:
        rows = [body for _, body in self._rows()]
        assert sorted(rows) == sorted(self.sent), "not everything once"
        # Each start was after the broker had noticed the end of the one before.
        assert rows == self.sent
        first: dict[int, Any] = {}
        for call in self._calls():
            assert first.setdefault(call["batch"], call["rows"]) == call["rows"], "a replay of other rows"
        numbers = [call["batch"] for call in self._calls()]
        # Committed batches are never asked for again.
        assert numbers == sorted(numbers)
        assert [number for number in numbers if numbers.count(number) > 1] == [0, 0, 1, 1]

    # -- the query

    def _start(self, *arguments: str) -> None:
        # Only who has noticed that the last one is gone hands out everything, and in order.
        self._wait(lambda: self._node.counts(self._queue).unacked == 0, "the last one to be noticed as gone")
        command = [str(self._python), "-m", "tests.support.spark_program", "--folder", str(self._folder), *arguments]
        for name, value in self._options.items():
            command += ["--option", f"{name}={value}"]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        environment.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=_ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _await_death(self) -> None:
        assert self._process is not None
        assert self._process.wait(_STEP_TIMEOUT_S) == -signal.SIGKILL, self._log()

    def _go(self) -> None:
        (self._folder / "go").touch()

    def _wait(self, condition: Any, what: str) -> None:
        def ended() -> bool:
            process = self._process
            return process is not None and process.poll() not in {None, -signal.SIGKILL}

        assert poll(lambda: condition() or ended(), _STEP_TIMEOUT_S, interval_s=0.005), f"no {what}: {self._log()}"
        assert condition(), self._log()

    def _log(self) -> str:
        return (self._folder / "log").read_text("utf-8", "replace")[-4000:]

    # -- what there is

    def _publish(self, count: int) -> None:
        texts = [f"message {len(self.sent) + number}" for number in range(count)]
        self._node.publish(self._queue, [text.encode() for text in texts], protocol=self._options.get("protocol"))
        self.sent += texts

    def _logged(self, which: str, batch: int) -> bool:
        return (self._folder / "checkpoint" / which / str(batch)).exists()

    def _calls(self) -> list[dict[str, Any]]:
        file = self._folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    def _rows(self) -> list[list[str]]:
        files = sorted(self._folder.glob("*.json"), key=lambda file: int(file.stem))
        return [row for file in files for row in json.loads(file.read_text("utf-8"))]
