"""The loss of power, with a disk that has what was synced and, of the rest, what chance gives it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pyspark_mq.errors import CheckpointError
from pyspark_mq.spark_source import id_log
from tests.support.effort import part_of
from tests.support.engine import At, Crashed
from tests.support.scene import Scene
from tests.support.simulation import QUEUE


@dataclass
class Logs:
    """Batches of each log."""

    offsets: dict[int, str] = field(default_factory=dict)
    committed: int = -1
    sink: dict[int, list[str]] = field(default_factory=dict)


class Power:
    """A query on a machine that loses power.

    Args:
        tmp_path: for the ID log, which syncs by itself.
    """

    def __init__(
        self, tmp_path: Path, seed: int, *, syncs: bool, monkeypatch: pytest.MonkeyPatch, shows_start: bool = True
    ) -> None:
        self.chance = random.Random(seed)
        self.scene = Scene(id_log=tmp_path, shows_start=shows_start, max_messages=10, syncs=syncs)
        self._disk = Logs()
        self._starts = 0
        monkeypatch.setattr(id_log, "_boot", lambda: f"start {self._starts}")

    def trigger(self, at: At | None = None) -> None:
        """One trigger, which is killed where `at` says."""
        assert self.scene.query.source is not None
        self.scene.query.process.synced = self.sync
        with suppress(Crashed):
            self.scene.query.trigger(at)

    def sync(self) -> None:
        query = self.scene.query
        self._disk = Logs(dict(query.offsets), query.committed, dict(query.sink))

    def cut(self) -> None:
        """Each log has what was synced, and as much more as chance gives it."""
        query, disk, chance = self.scene.query, self._disk, self.chance
        query.crash()
        self._starts += 1
        offsets = chance.randint(len(disk.offsets), len(query.offsets))
        query.offsets = {batch: query.offsets[batch] for batch in range(offsets)}
        sink = chance.randint(len(disk.sink), len(query.sink))
        query.sink = {batch: query.sink[batch] for batch in sorted(query.sink)[:sink]}
        # A commit without its offset does not help Spark: those are read first.
        query.committed = min(offsets - 1, chance.randint(disk.committed, query.committed))

    def repair(self) -> None:
        """As the command does: what is not known to be on the disks is taken back, and what the sink has behind it."""
        query = self.scene.query
        query.crash()
        log = query._codec.log
        assert log is not None
        if query.committed >= 0 and log.lost_power(query.position(query.committed).epoch):
            query.committed -= 1
        query.sink = {batch: rows for batch, rows in query.sink.items() if batch <= query.committed}
        query.offsets = {batch: text for batch, text in query.offsets.items() if batch <= query.committed + 1}
        self.sync()
        log.note_synced(query.position(query.committed).epoch)
        query.crash()

    def twice_or_lost(self) -> Iterator[str]:
        emitted = self.scene.query.emitted
        yield from (f"lost {one}" for one in set(self.scene.sent) - set(emitted))
        yield from (f"twice {one}" for one in set(emitted) if emitted.count(one) > 1)

    def run(self) -> list[str]:
        """Cuts and kills at random moments; what is wrong at the end."""
        for _ in range(12):
            self.scene.publish(self.chance.randint(0, 25))
            for _ in range(self.chance.randint(1, 3)):
                self._go_on(self.chance.choice([None, None, *At]))
            if self.chance.random() < 0.6:
                self.cut()
        for _ in range(60):
            self._go_on(None)
        return sorted(self.twice_or_lost())

    def _go_on(self, at: At | None) -> None:
        try:
            self.trigger(at)
        except CheckpointError:
            self.repair()


@pytest.mark.parametrize("shows_start", [True, False])
@pytest.mark.parametrize("seed", range(part_of(30)))
def test_after_a_loss_of_power_nothing_is_lost_or_twice(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, shows_start: bool
) -> None:
    power = Power(tmp_path, seed, syncs=True, monkeypatch=monkeypatch, shows_start=shows_start)
    assert power.run() == []


def test_the_option_may_be_left_away_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    power = Power(tmp_path, 0, syncs=True, monkeypatch=monkeypatch)
    query = power.scene.query
    for syncs in (True, False, True):
        query.crash()
        power._starts += 1  # and everything was written
        query.settings = replace(query.settings, syncs=syncs)
        for _ in range(3):
            power.scene.publish(10)
            query.trigger()
        query.trigger()
        assert power.scene.broker.counts(QUEUE).total == 0
    assert list(power.twice_or_lost()) == []


def test_without_the_option_something_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    power = Power(tmp_path, 0, syncs=False, monkeypatch=monkeypatch)
    power.scene.publish(10)
    power.trigger()
    power.trigger()
    assert power.scene.broker.counts(QUEUE).total == 0
    power.scene.query.crash()
    power.scene.query.offsets, power.scene.query.committed, power.scene.query.sink = {}, -1, {}  # nothing was synced
    power.trigger()
    assert set(power.twice_or_lost()) == {f"lost {one}" for one in power.scene.sent}


def test_an_epoch_is_emitted_behind_its_offset_and_acknowledged_behind_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = Power(tmp_path, 0, syncs=True, monkeypatch=monkeypatch)
    power.scene.publish(20)
    power.trigger()
    assert list(power._disk.offsets) == [0]
    assert (power._disk.committed, power._disk.sink) == (-1, {})
    power.trigger()
    assert power._disk.committed == 0
    assert list(power._disk.offsets) == [0, 1]
