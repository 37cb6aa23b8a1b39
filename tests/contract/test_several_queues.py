"""Several queues in one query."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pyspark_mq.brokers.base import AMQP_0_9_1
from testbed.process import poll
from tests.support.engine import At, Crashed
from tests.support.entries import LiveEntry

pytestmark = [pytest.mark.contract("several queues"), pytest.mark.network, pytest.mark.sampled]

EACH = 40


@pytest.fixture
def queues(entry: LiveEntry) -> Iterator[list[str]]:
    """Three queues with messages that name them and count up."""
    names = [f"{entry.queue}-{letter}" for letter in "abc"]
    for name in names:
        entry.declare(name)
        publish(entry, name, 0)
    yield names
    if not entry.node.running:
        entry.node.start()
    for name in names:
        entry.node.delete(name)


def publish(entry: LiveEntry, name: str, first: int) -> None:
    bodies = (f"{name} {number}".encode() for number in range(first, first + EACH))
    entry.node.publish(name, bodies, protocol=entry.entry.protocol)


def empty(entry: LiveEntry, names: list[str]) -> bool:
    return poll(lambda: all(entry.node.counts(name).total == 0 for name in names), 30)


def test_each_message_of_each_queue_once_with_a_crash_everywhere(entry: LiveEntry, queues: list[str]) -> None:
    with entry.engine(queue=",".join(queues), maxMessagesPerTrigger=20) as engine:
        for at in At:
            with pytest.raises(Crashed):
                engine.batch(at)
            engine.batch()
        for name in queues:
            publish(entry, name, EACH)
        entry.kill_and_start()
        engine.drain(3 * 2 * EACH)
        expected = [f"{name} {number}" for name in queues for number in range(2 * EACH)]
        assert sorted(engine.output) == sorted(expected)
        assert all(row["destination"] == row["body"].decode().rpartition(" ")[0] for row in engine.rows)
        assert empty(entry, queues)


@pytest.mark.protocols(AMQP_0_9_1)
def test_a_queue_that_is_read_to_its_end_gives_way_though_it_is_written_to_on_and_on(
    entry: LiveEntry, queues: list[str]
) -> None:
    # What comes fills the room for bytes, and then the confirmation of what was acknowledged lies behind it.
    written, large, _ = queues
    size, many = 50_000, 60
    entry.node.publish(large, (bytes([number]) * size for number in range(many)), protocol=entry.entry.protocol)
    options = {"maxBytesPerTrigger": "200k", "maxMessagesPerTrigger": 10, "prefetch": 100}
    with entry.engine(queue=f"{written},{large}", **options) as engine:
        engine.reader.call("prepareForTriggerAvailableNow")
        rows, began_s = 0, time.monotonic()
        while epoch := engine.trigger():
            rows += epoch
            if EACH <= rows < EACH + epoch:
                entry.node.publish(
                    written, (bytes([200 + number]) * size for number in range(40)), protocol=entry.entry.protocol
                )
        # It took ten times as long when the other had only what was read by the drop.
        assert time.monotonic() - began_s < 40
        assert len(set(engine.ids)) == rows == 2 * EACH + many
    assert poll(lambda: entry.node.counts(written).ready == 40, 30)


def test_no_queue_starves_another(entry: LiveEntry, queues: list[str]) -> None:
    many = queues[0]
    for first in range(EACH, 20 * EACH, EACH):
        publish(entry, many, first)
    with entry.engine(queue=",".join(queues), maxMessagesPerTrigger=30) as engine:
        for _ in range(8):
            engine.batch()
        # 240 rows, of which the small queues have room for 80 each.
        got = [row["destination"] for row in engine.rows]
        assert all(got.count(name) == EACH for name in queues[1:])
        engine.drain(22 * EACH)
        assert len(set(engine.ids)) == 22 * EACH
        assert empty(entry, queues)
