"""Several queues in one query."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1
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


@pytest.mark.protocols(AMQP_0_9_1)
def test_a_queue_that_is_read_to_its_end_gives_way_though_it_is_written_to_on_and_on(
    cell: LiveCell, queues: list[str]
) -> None:
    # What comes fills the room for bytes, and then the confirmation of what was acknowledged lies behind it.
    written, large, _ = queues
    size, many = 50_000, 60
    cell.node.publish(large, (bytes([number]) * size for number in range(many)), protocol=cell.cell.protocol)
    options = {"maxBytesPerTrigger": "200k", "maxMessagesPerTrigger": 10, "prefetch": 100}
    with cell.engine(queue=f"{written},{large}", **options) as engine:
        engine.reader.call("prepareForTriggerAvailableNow")
        rows, began_s = 0, time.monotonic()
        while epoch := engine.trigger():
            rows += epoch
            if EACH <= rows < EACH + epoch:
                cell.node.publish(
                    written, (bytes([200 + number]) * size for number in range(40)), protocol=cell.cell.protocol
                )
        # It took ten times as long when the other had only what was read by the drop.
        assert time.monotonic() - began_s < 40
        assert len(set(engine.ids)) == rows == 2 * EACH + many
    assert poll(lambda: cell.node.counts(written).ready == 40, 30)


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
