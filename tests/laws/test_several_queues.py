"""Several queues in one query."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.process import poll
from tests.support.cells import LiveCell
from tests.support.engine import At, Crashed

pytestmark = [pytest.mark.law("several queues"), pytest.mark.network, pytest.mark.sampled]

EACH = 40


@pytest.fixture
def queues(cell: LiveCell) -> Iterator[list[str]]:
    """Three queues with messages that name them and count up."""
    names = [f"{cell.queue}-{letter}" for letter in "abc"]
    for name in names:
        cell.declare(name)
        publish(cell, name, 0)
    yield names
    if not cell.node.running:
        cell.node.start()
    for name in names:
        cell.node.delete(name)


def publish(cell: LiveCell, name: str, first: int) -> None:
    bodies = (f"{name} {number}".encode() for number in range(first, first + EACH))
    cell.node.publish(name, bodies, protocol=cell.cell.protocol)


def empty(cell: LiveCell, names: list[str]) -> bool:
    return poll(lambda: all(cell.node.counts(name).total == 0 for name in names), 30)


def test_each_message_of_each_queue_once_with_a_crash_everywhere(cell: LiveCell, queues: list[str]) -> None:
    with cell.engine(queue=",".join(queues), maxMessagesPerTrigger=20) as engine:
        for at in At:
            with pytest.raises(Crashed):
                engine.batch(at)
            engine.batch()
        for name in queues:
            publish(cell, name, EACH)
        cell.kill_and_start()
        engine.drain(3 * 2 * EACH)
        expected = [f"{name} {number}" for name in queues for number in range(2 * EACH)]
        assert sorted(engine.output) == sorted(expected)
        assert all(row["destination"] == row["body"].decode().rpartition(" ")[0] for row in engine.rows)
        assert empty(cell, queues)


def test_no_queue_starves_another(cell: LiveCell, queues: list[str]) -> None:
    many = queues[0]
    for first in range(EACH, 20 * EACH, EACH):
        publish(cell, many, first)
    with cell.engine(queue=",".join(queues), maxMessagesPerTrigger=30) as engine:
        for _ in range(8):
            engine.batch()
        # 240 rows, of which the small queues have room for 80 each.
        got = [row["destination"] for row in engine.rows]
        assert all(got.count(name) == EACH for name in queues[1:])
        engine.drain(22 * EACH)
        assert len(set(engine.ids)) == 22 * EACH
        assert empty(cell, queues)
