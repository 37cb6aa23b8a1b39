"""Messages without IDs: one whose content is its own comes once, and of equal ones none is lost.

The oracle counts contents that were published and contents in the sink, and looks at nothing else.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from tests.support.effort import part_of
from tests.support.engine import At, Crashed
from tests.support.memory_broker import MEMORY
from tests.support.scene import Scene

POINTS = [None, None, *At]


class Contents:
    """A query on a queue whose producer sets no ID, and what was published."""

    def __init__(self, *, proves: bool = True, shows_start: bool = True, **settings: object) -> None:
        settings = {"max_messages": 20, "prefetch": 60, "dedup_window": 100, **settings}
        self.scene = Scene(shows_start=shows_start, broker=replace(MEMORY, proves_new=proves), **settings)
        if not proves:
            self.scene.queue.faults.flags = False
        self.published: Counter[str] = Counter()

    def publish(self, *contents: str) -> None:
        for content in contents:
            self.scene.queue.publish(content.encode(), None)
        self.published.update(contents)

    def trigger(self, at: At | None = None) -> None:
        with contextlib.suppress(Crashed):
            self.scene.query.trigger(at)

    @property
    def lost_and_twice(self) -> tuple[int, int]:
        """After everything has come: how many are missing, and how many came once more than they were published."""
        self.scene.query.drain()
        emitted = Counter(self.scene.query.emitted)
        return (self.published - emitted).total(), (emitted - self.published).total()


def a_fault(one: Contents, chance: random.Random) -> None:
    scene, broker = one.scene, one.scene.broker
    kind = chance.randrange(6)
    if kind == 0:
        scene.query.crash()
    elif kind == 1:
        scene.query.crash(chance.choice([1.0, 40.0]))
    elif kind == 2:
        broker.cut(lose_acks=chance.random() < 0.5)
    elif kind == 3:
        broker.kill()
        scene.world.let_pass(chance.choice([0.1, 3.0]))
        broker.start()
    elif kind == 4:
        scene.queue.take_away(chance.randrange(1, 30))
        scene.world.at(chance.choice([1.0, 100.0]), scene.queue.bring_back)
    else:
        one.trigger(chance.choice(list(At)))


def a_history(one: Contents, seed: int, contents: int | None, steps: int = 120) -> None:
    """Publish, trigger and fail at random.

    Args:
        contents: how many different ones there are; None for all.
    """
    chance = random.Random(seed)
    one.scene.queue.faults.forgets_s = chance.choice([0.1, 0.5])
    number = 0
    for _ in range(steps):
        what = chance.random()
        if what < 0.5:
            for _ in range(chance.randrange(1, 30)):
                number += 1
                one.publish(f"content {number if contents is None else chance.randrange(contents)}")
        elif what < 0.9:
            one.trigger()
        elif what < 0.95:
            one.scene.world.let_pass(chance.choice([0.1, 2.0, 20.0]))
        else:
            a_fault(one, chance)
    one.scene.world.let_pass(200.0)


@pytest.mark.parametrize("proves", [True, False])
@pytest.mark.parametrize("shows_start", [True, False])
@pytest.mark.parametrize("seed", range(part_of(16)))
def test_contents_of_their_own_come_once(seed: int, *, shows_start: bool, proves: bool) -> None:
    one = Contents(proves=proves, shows_start=shows_start)
    a_history(one, seed, None)
    assert one.lost_and_twice == (0, 0)


@pytest.mark.parametrize("proves", [True, False])
@pytest.mark.parametrize("shows_start", [True, False])
@pytest.mark.parametrize("contents", [1, 20])
@pytest.mark.parametrize("seed", range(part_of(8)))
def test_equal_contents_are_not_lost(seed: int, contents: int, *, shows_start: bool, proves: bool) -> None:
    one = Contents(proves=proves, shows_start=shows_start)
    one.publish(
        *(f"content {number}" for number in range(contents)), *(f"content {number}" for number in range(contents))
    )
    one.trigger()
    one.trigger()
    a_history(one, seed, contents)
    lost, twice = one.lost_and_twice
    print(seed, contents, shows_start, proves, lost, twice, one.scene.counters.ambiguous)
    assert lost == 0


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("triggers", [1, 2, 3])
def test_what_is_acknowledged_in_a_half_open_session_is_not_emitted_again(triggers: int, which: int) -> None:
    """The broker hands it out over the other connection, while its acknowledgement is on its way in this one."""
    one = Contents(proves=True, consumers=2)
    one.publish(*(f"own {number}" for number in range(60)))
    for _ in range(triggers):
        one.trigger()
    one.scene.queue.silence(one.scene.queue.sessions[which], 1.0)
    one.trigger()
    one.scene.world.let_pass(3.0)
    assert one.lost_and_twice == (0, 0)


@pytest.mark.parametrize("proves", [True, False])
@pytest.mark.parametrize("shows_start", [True, False])
@pytest.mark.parametrize("loses", [True, False])
def test_a_cut_before_the_first_batch_after_a_kill_has_nothing_emitted_again(
    *, loses: bool, shows_start: bool, proves: bool
) -> None:
    """Over a slow link some of what comes before Spark has shown anything comes again only afterwards."""
    wrong: list[tuple[int, ...]] = []
    for at, tick in product((At.AFTER_SINK, At.AFTER_COMMIT_LOG, None), (4, 19, 2, 10)[: part_of(8)]):
        one = Contents(proves=proves, shows_start=shows_start, min_messages=10, max_delay_s=0.5)
        one.publish(*(f"content {number}" for number in range(100)))
        for point in (None, None, at):
            one.trigger(point)
        one.scene.broker.cut(lose_acks=loses)
        one.scene.query.crash()
        one.scene.queue.faults.link_rate = 20.0
        one.scene.world.at(0.05 * tick, one.scene.broker.cut)
        one.trigger()
        if one.lost_and_twice != (0, 0):
            wrong.append((tick, *one.lost_and_twice))
    assert not wrong


@pytest.mark.parametrize("proves", [True, False])
def test_what_is_left_again_and_again_is_written_down_once(*, proves: bool) -> None:
    """Messages get through and acknowledgements do not, and the connection is cut again and again."""
    one = Contents(proves=proves)
    queue, query = one.scene.queue, one.scene.query
    one.publish(*(f"own {number}" for number in range(10)))
    one.trigger()
    queue.faults.acks_s = 1e9
    for _ in range(20):
        one.trigger()  # what is committed comes again
        one.scene.broker.cut()
        one.scene.world.let_pass(2.0)
    queue.faults.acks_s = 0.0
    one.publish("else")
    assert one.lost_and_twice == (0, 0)
    log = query._codec.log
    assert log is not None
    assert len(log.read(query.position(1).file).left_contents) == 10


def test_contents_that_time_ends_are_not_counted_as_forgotten() -> None:
    """All acknowledgements were taken, so nothing can come again; the counter is for IDs."""
    one = Contents(proves=True)
    one.publish(*(f"own {number}" for number in range(20)))
    one.trigger()
    one.trigger()
    one.scene.broker.cut(lose_acks=False)
    one.publish("else")
    one.trigger()
    memory = one.scene.query.source._memory.memory
    assert memory.contents_left == 20
    memory.connected_s += 4_000.0  # over an hour
    one.trigger()
    assert memory.contents_left == 0
    assert one.scene.counters.forgotten == 0
