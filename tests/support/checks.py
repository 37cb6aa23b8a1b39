"""What the fault tests count, in one place."""

from __future__ import annotations

from collections.abc import Sequence

from examples.audit import verdict
from pyspark_mq.brokers.process import poll
from pyspark_mq.brokers.rabbitmq_node import RabbitNode
from tests.support.engine import Engine

__all__ = ["assert_exactly_once", "bodies", "total"]

_SETTLE_TIMEOUT_S = 15.0


def bodies(count: int) -> list[bytes]:
    """Bodies that tell their number."""
    return [f"message {number}".encode() for number in range(count)]


def total(rabbit: RabbitNode, queue: str) -> int:
    """Messages the broker has, waiting or handed out."""
    counts = rabbit.counts(queue)
    return counts.ready + counts.unacked


def assert_exactly_once(
    rabbit: RabbitNode, queue: str, run: Engine, sent: Sequence[str | None], *, ordered: bool = True
) -> None:
    """Everything in the sink once, nothing in the queue, nothing held by a session."""
    # Spark goes on asking, and each time what came again is dropped and acknowledged.
    poll(lambda: run.trigger() == 0 and total(rabbit, queue) == 0, _SETTLE_TIMEOUT_S)
    result = verdict([str(key) for key in sent], run.output, total(rabbit, queue))
    assert result.holds, result
    if ordered:
        assert run.output == list(sent)
