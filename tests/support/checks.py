"""What the fault tests count, in one place."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from testbed.brokers.node import Node
from testbed.chaos.audit import verdict
from testbed.process import poll
from tests.support.engine import Engine
from tests.support.entries import LiveEntry

__all__ = ["assert_exactly_once", "assert_ids_exactly_once", "bodies", "gone", "total"]

_SETTLE_TIMEOUT_S = 60.0


def bodies(count: int) -> list[bytes]:
    """Bodies made of their numbers."""
    return [f"message {number}".encode() for number in range(count)]


def gone(pid: int) -> bool:
    """Whether a process has ended; it may end between two questions."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def total(node: Node, queue: str) -> int:
    """Messages the broker has, waiting or handed out."""
    return node.counts(queue).total


def assert_exactly_once(entry: LiveEntry, run: Engine, sent: Sequence[str], *, ordered: bool = True) -> None:
    """Everything in the sink once, nothing in the queue, nothing held by a session; in order, where there is one.

    There is no order for a client that reconnects before the broker has noticed the end of the last session:
    the messages behind those that were held come first.
    """
    _settle(run, entry.node, entry.queue)
    _assert_holds(run.output, sent, entry.total(), ordered=ordered and entry.keeps_order)


def assert_ids_exactly_once(
    node: Node, queue: str, run: Engine, sent: Sequence[str | None], *, ordered: bool = True
) -> None:
    """The same by message IDs, on any queue of a node."""
    _settle(run, node, queue)
    _assert_holds(run.ids, [str(key) for key in sent], total(node, queue), ordered=ordered)


def _settle(run: Engine, node: Node, queue: str) -> None:
    # Spark goes on asking, and each time what came again is dropped and acknowledged.
    poll(lambda: run.trigger() == 0 and total(node, queue) == 0, _SETTLE_TIMEOUT_S)


def _assert_holds(output: list[str], sent: Sequence[str], left: int, *, ordered: bool) -> None:
    result = verdict(sent, output, left)
    assert result.holds, result
    if ordered:
        assert output == list(sent)
