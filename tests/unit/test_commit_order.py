"""What is done when the broker is asked to forget messages: each step of a commit is looked for at that moment."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_mq.dedup import OnMissing
from pyspark_mq.sources.connections.connections import Connections
from tests.support.memory_broker import MemoryBroker, MemoryStore
from tests.support.simulation import Query, World, make_settings

WIDE = 60_000


class Scene:
    """A query with a shared store, whose state is looked at whenever the broker is asked to acknowledge."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.world = World()
        self.broker = MemoryBroker(self.world.process(), 1)
        self.queue = self.broker.declare("orders")
        chosen = make_settings(queues=("orders",), max_messages=10, prefetch=WIDE, **settings)
        self.query = Query(self.world, self.broker, chosen, store=MemoryStore())
        self.syncs = 0
        self.seen: list[dict[str, Any]] = []
        acknowledge = Connections.acknowledge

        def looked_at(connections: Connections, due: Any) -> None:
            self.seen.append(self.look())
            acknowledge(connections, due)

        monkeypatch.setattr(Connections, "acknowledge", looked_at)

    def look(self) -> dict[str, Any]:
        (reader,) = self.query.source._queues
        return {
            "stored": set(self.query._stores["orders"].seen),
            "notes": sorted(name.rpartition("-")[2] for name in self.query.folder.names() if "acknowledged" in name),
            "open": sorted(reader.in_flight.planned.epochs),
            "remembered": reader.counters().remembered + self.query.source.counters().remembered,
            "windows": list(reader.connections.windows.values()),
            "syncs": self.syncs,
        }


def test_another_query_knows_the_messages_before_they_are_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for number in range(5):
        scene.queue.publish(b"x", f"id-{number}")
    scene.query.drain()
    assert scene.seen[0]["stored"] == {f"id-{number}" for number in range(5)}


def test_the_memory_has_the_messages_and_the_table_has_them_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for number in range(5):
        scene.queue.publish(b"x", f"id-{number}")
    scene.query.drain()
    assert scene.seen[0]["open"] == []
    assert scene.seen[0]["remembered"] == 5


def test_the_next_process_finds_that_equal_messages_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, on_missing=OnMissing.CONTENT)
    for _ in range(3):
        scene.queue.publish(b"equal", None)
    scene.query.drain()
    assert scene.seen[0]["notes"] == ["acknowledged.arrow"]


def test_windows_are_wide_before_acknowledgements_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.queue.publish(b"x", "id-0")
    scene.query.trigger()
    scene.query.crash()  # the next process begins with slow windows
    for number in range(1, 30):
        scene.queue.publish(b"x", f"id-{number}")
    scene.query.trigger()
    (slow,) = scene.look()["windows"]
    assert slow < WIDE
    scene.seen.clear()
    scene.query.drain()
    assert [one["windows"] for one in scene.seen][:1] == [[WIDE]]


def test_the_disk_is_synced_before(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, syncs=True)
    assert scene.query.source is not None

    def synced() -> None:
        scene.syncs += 1

    scene.query.process.synced = synced
    scene.queue.publish(b"x", "id")
    scene.query.trigger()
    before = scene.syncs
    position = scene.query.position(0)
    scene.query.source.commit(position)
    assert scene.seen[0]["syncs"] == before + 1
