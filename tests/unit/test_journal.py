"""The journal against lists of IDs: what has to be known is known, and what is named, written and kept is bounded."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from pyspark_mq.ack import Ledger
from pyspark_mq.ack.table import State
from pyspark_mq.dedup import Key
from pyspark_mq.sources.journal.lists import KEPT_EPOCHS
from pyspark_mq.sources.journal.memory import Memory
from pyspark_mq.sources.position import Position
from pyspark_mq.spark_source.id_log import IdLog
from tests.support.effort import with_all
from tests.support.folder import MemoryFolder
from tests.support.simulation import make_settings

QUEUE = "orders"
GRACE_S = 5.0
NAMES_MAX = 97


class Life:
    """A memory and a ledger, in one process after the other; and what an oracle says of each ID.

    Attributes:
        left: IDs that were left, the newest last.
        committed: all IDs, the newest last.
    """

    def __init__(self, window: int, most_left: int) -> None:
        self.settings = replace(make_settings(dedup_window=window), remember_left=most_left)
        self.folder = MemoryFolder()
        self.left: dict[Key, None] = {}
        self.committed: list[Key] = []
        self.position = Position(0)
        self.now_s = 0.0
        self.numbers = self.session = self.tag = self.epoch = 0
        self.under_way: list[Key] = []
        #: What the newest file names as under way, and the IDs of its epoch: left by a kill, whatever came of them.
        self.named: list[Key] = []
        #: What will be left when the next file is written.
        self.leaving: list[Key] = []
        self.begin()

    def begin(self) -> None:
        log = IdLog("/memory", QUEUE)
        log._folder = self.folder
        self.memory = Memory(self.settings, log)
        if self.position.file:
            log.show(self.position.file)
            self.memory.recall(self.position, committed=True)
        self.ledger: Ledger[Key, Any] = Ledger(grace_s=GRACE_S, known=self.memory.known(QUEUE))
        self.ledger.left = self.memory.left
        self.open()

    def open(self) -> None:
        self.session += 1
        self.ledger.open_session(self.session)

    def leave(self, keys: list[Key]) -> None:
        for key in keys:
            self.left.pop(key, None)
            self.left[key] = None

    def deliver(self, keys: list[Key]) -> None:
        tags = range(self.tag + 1, self.tag + 1 + len(keys))
        self.tag += len(keys)
        self.ask(self.ledger.deliver(self.session, list(tags), keys, ["x"] * len(keys)))

    def ask(self, due: Any) -> None:
        if due is not None:
            self.ledger.settling.asked(due.number, [part.session for part in due.parts], self.now_s)
            self.last = due.number

    def run(self, size: int) -> None:
        """An epoch of new messages, acknowledged."""
        keys: list[Key] = [f"id-{number}" for number in range(self.numbers, self.numbers + size)]
        self.numbers += size
        self.deliver(keys)
        self.epoch += 1
        planned = self.ledger.plan(self.epoch, size)
        file = self.memory.plan(self.epoch, {QUEUE: planned}, {QUEUE: self.ledger})
        self.leave(self.leaving)
        self.leaving, self.named = [], [*self.under_way, *keys]
        segment = self.memory.begin_commit(self.epoch)
        self.ask(self.ledger.commit(self.epoch, segment.number))
        self.memory.commit(segment)
        self.position = Position(self.epoch, file)
        self.under_way += keys
        self.committed += keys

    def answer(self) -> None:
        """All is confirmed, and something that was asked behind the grace is answered."""
        for number, _ in list(self.ledger.settling._batches):
            self.ledger.confirm(number, self.session, self.now_s)
        self.now_s += GRACE_S
        self.ledger.settling.asked(-1, [self.session], self.now_s)
        self.ledger.confirm(-1, self.session, self.now_s)
        self.under_way = []

    def cut(self) -> None:
        self.ledger.lose(self.session)
        self.leaving += self.under_way
        self.under_way = []
        self.open()

    def again(self, keys: list[Key]) -> None:
        """Messages that were left come again. Where the process is killed before it plans, they keep their places."""
        unseen = set(self.ledger.unseen(keys))
        known = [key for key in keys if key not in unseen]
        self.deliver(known)
        self.leaving += [key for key in known if key in self.left]

    def kill(self) -> None:
        self.leave(self.named)
        self.under_way, self.named, self.leaving = [], [], []
        self.begin()

    def check(self) -> None:
        newest = list(self.left)[-self.settings.remember_left :]
        assert list(self.ledger.unseen(newest)) == []
        newest = self.committed[len(self.committed) - self.settings.dedup_window :]
        assert list(self.ledger.unseen([key for key in newest if key not in self.left])) == []
        assert len(self.memory._files.read(self.position.file)["open"]) < NAMES_MAX if self.position.file else True


@pytest.mark.parametrize("seed", range(12))
def test_what_has_to_be_known_is_known_in_any_weather(seed: int) -> None:
    chance = random.Random(seed)
    life = Life(window=chance.choice((0, 30, 300)), most_left=chance.choice((40, 400)))
    most = chance.choice((1, 7, 60))
    for _ in range(120):
        life.run(chance.randint(1, most))
        for step in chance.choices(("answer", "answer", "answer", "cut", "again", "kill", "nothing"), k=2):
            if step == "again" and life.left:
                some = list(life.left)[-life.settings.remember_left :]
                life.again(chance.sample(some, min(len(some), 10)))
            elif step in {"answer", "cut", "kill"}:
                getattr(life, step)()
        life.check()


@pytest.mark.parametrize("sizes", [(1,), with_all((10,)), (1, 5_000), with_all((3, 40, 700))])
@pytest.mark.parametrize("weather", ["calm", with_all("cuts"), "kills"])
def test_names_files_and_memory_are_bounded_whatever_the_size_of_epochs(sizes: tuple[int, ...], weather: str) -> None:
    life = Life(window=2_000, most_left=3_000)
    written = life.folder.written
    for epoch in range(600 if max(sizes) < 1_000 else 100):
        life.run(sizes[epoch % len(sizes)])
        if weather != "calm" and epoch % 3 == 0:
            life.cut() if weather == "cuts" else life.kill()
        else:
            life.answer()
        assert len(life.memory._files.read(life.position.file)["open"]) < NAMES_MAX
    assert len(life.folder.files) < 2 * KEPT_EPOCHS + NAMES_MAX
    # A merged segment may be a fifth of its list, and is as young as its newest part.
    assert life.memory.remembered < 1.3 * (2_000 + 3_000) + 3 * max(sizes)
    assert life.folder.written > written


def test_what_is_left_is_closed_after_a_day_of_being_connected(caplog: pytest.LogCaptureFixture) -> None:
    life = Life(window=0, most_left=1_000)
    life.run(20)
    life.cut()
    life.run(1)
    for second in range(86_390):
        life.memory.look(float(second), connected=True)
    life.answer()
    life.run(1)
    assert life.ledger.state("id-0") is State.COMMITTED
    for second in range(86_390, 86_420):
        life.memory.look(float(second), connected=True)
    life.run(1)
    assert life.ledger.state("id-0") is State.UNSEEN
    assert life.memory.forgotten == 20
    assert "the IDs of 20 messages" in caplog.text


def test_time_that_is_not_looked_at_counts_for_a_second() -> None:
    life = Life(window=0, most_left=1_000)
    for at_s in (0.0, 100_000.0, 200_000.0):
        life.memory.look(at_s, connected=True)
    life.memory.look(300_000.0, connected=False)
    life.memory.look(400_000.0, connected=True)
    assert life.memory._journal.connected_s == 2.0
