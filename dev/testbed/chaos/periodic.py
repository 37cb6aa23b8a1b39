"""Periodic jobs, one run after the other: each is a query with `Trigger.AvailableNow` that ends, or whose sink fails.

All runs are in one Spark, :mod:`testbed.chaos.periodic_job`, as a scheduler's would be in a session that is kept; each
has a source process of its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from testbed.chaos.chaos import Job
from testbed.process import NodeError, poll

__all__ = ["Failure", "PeriodicJob"]

_RUN_TIMEOUT_S = 300.0


class Failure(Enum):
    """Where the sink of a run fails."""

    BEFORE = "before it writes"
    HALFWAY = "halfway"
    BEHIND = "behind its commit"


@dataclass
class PeriodicJob(Job):
    """Runs a query to its end whenever it is asked to."""

    stdin: ClassVar[int] = subprocess.PIPE
    program: ClassVar[Sequence[str]] = ("-m", "testbed.chaos.periodic_job")
    java: ClassVar[str] = "-XX:+UseSerialGC"  # it is not killed

    @property
    def runs(self) -> Path:
        """How each run ended, a line a run."""
        return self.folder / "runs.jsonl"

    def run(self, failure: Failure | None, batch: int = 0) -> bool:
        """One run; did it end as it was to?

        Args:
            failure: where its sink fails; None if it does not.
            batch: in which batch of the run.

        Raises:
            TimeoutError: it does not end.
            NodeError: it failed of itself.
        """
        self.keep_alive()
        assert self._process is not None
        assert self._process.stdin is not None
        before = self._ended()
        wanted = {"fails": None if failure is None else failure.value, "batch": batch}
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        self._process.stdin.flush()
        if not poll(lambda: self._ended() > before or not self.running, _RUN_TIMEOUT_S, interval_s=0.05):
            raise TimeoutError(f"a run does not end; see {self.log}")
        if self._ended() == before:
            raise NodeError(f"the driver of a run has ended; see {self.log}")
        ended = json.loads(self.runs.read_bytes().splitlines()[-1])
        if ended["unexpected"]:
            raise NodeError(f"a run failed: {ended['unexpected']}")
        return bool(ended["failed"] == wanted["fails"])

    def _ended(self) -> int:
        return self.runs.read_bytes().count(b"\n") if self.runs.exists() else 0
