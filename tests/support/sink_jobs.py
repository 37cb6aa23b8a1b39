"""Jobs that write somewhere, as the tests of sinks start, kill and drain them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.chaos import Job
from testbed.process import poll

__all__ = ["SinkJob", "drained", "emptied", "killed"]

_EXAMPLES = Path(__file__).parents[2] / "examples"
_DRAIN_TIMEOUT_S = 240.0


@dataclass
class SinkJob(Job):
    """One of the examples as a process tree, or another program that takes a checkpoint.

    Attributes:
        program: name of the example, or path of another.
        arguments: of the program, without the checkpoint.
    """

    program: str | Path = ""
    arguments: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def command(self) -> list[str]:
        program = str(_EXAMPLES / self.program)
        return [str(self.python), program, *self.arguments, "--checkpoint", str(self.checkpoint)]

    def has(self, log: str, batch: int) -> bool:
        """Is a batch in Spark's log `offsets` or `commits`?"""
        return (self.checkpoint / log / str(batch)).exists()


def killed(job: SinkJob) -> None:
    """It lived, and is dead."""
    assert job.kill_driver(), job.log.read_text("utf-8")[-4000:]


def emptied(job: SinkJob, rabbit: RabbitNode, *queues: str) -> None:
    """Let it read everything, and acknowledge it: what is acknowledged is committed."""
    assert poll(
        lambda: not job.running or not any(rabbit.counts(queue).total for queue in queues),
        _DRAIN_TIMEOUT_S,
        interval_s=0.2,
    )
    assert job.running, job.log.read_text("utf-8")[-4000:]


def drained(job: SinkJob, rabbit: RabbitNode, *queues: str) -> int:
    """Let it read everything and stop it; what is left in the queues."""
    poll(lambda: not any(rabbit.counts(queue).total for queue in queues), _DRAIN_TIMEOUT_S, interval_s=0.5)
    job.stop()
    return sum(rabbit.counts(queue).total for queue in queues)
