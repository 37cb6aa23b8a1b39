"""Equal messages without IDs in random histories: what an unclean end may cost, and nothing else.

The oracle counts what was published, what is in the sink, and the unclean ends: kills of the query, of the broker, of a
connection. It looks at nothing else.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.effort import part_of
from tests.support.engine import At
from tests.unit.test_contents import Contents


class History:
    """A history of one queue.

    Args:
        contents: how many different ones there are; None if all differ.
    """

    def __init__(self, seed: int, contents: int | None, *, proves: bool, shows_start: bool) -> None:
        self._chance = random.Random(seed)
        self._contents = contents
        self._number = 0
        self._shows_start = shows_start
        self.one = Contents(proves=proves, shows_start=shows_start)
        self.one.scene.query.running = self._batch
        self.unclean_ends = 0

    def _publish(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            self.one.publish(
                f"content {self._number if self._contents is None else self._chance.randrange(self._contents)}"
            )

    def _batch(self) -> None:
        """What happens while Spark runs a batch, which takes a tenth of a second at least."""
        self.one.scene.world.let_pass(0.1)
        if self._chance.random() < 0.2:
            self._publish(1)

    def run(self) -> None:
        for _ in range(self._chance.randrange(5, 80)):
            step = self._chance.choices(
                [self._send, self._trigger, self._job, self._pause, self._end], [9, 5, 3, 2, 2]
            )[0]
            step()
        self.one.scene.query.running = lambda: self.one.scene.world.let_pass(0.1)
        self.one.scene.world.let_pass(200.0)

    def _send(self) -> None:
        self._publish(self._chance.randrange(1, 6))

    def _trigger(self) -> None:
        self.one.trigger()

    def _job(self) -> None:
        """A run that ends by itself, in a process of its own."""
        if self._shows_start:
            if self.one.scene.query._process is not None:
                self._kill()
            self.one.scene.query.run_available()

    def _pause(self) -> None:
        self.one.scene.world.let_pass(self._chance.choice([0.1, 2.0, 20.0, 9_000.0]))

    def _kill(self, unnoticed_s: float = 0.0) -> None:
        self.unclean_ends += 1
        self.one.scene.query.crash(unnoticed_s)

    def _end(self) -> None:
        scene, chance = self.one.scene, self._chance
        kind = chance.randrange(4)
        if kind == 0:
            self._kill(chance.choice([0.0, 1.0, 40.0]))
            return
        self.unclean_ends += 1
        if kind == 1:
            scene.broker.cut(lose_acks=chance.random() < 0.5)
        elif kind == 2:
            scene.broker.kill()
            scene.world.let_pass(chance.choice([0.1, 3.0]))
            scene.broker.start()
        else:
            self.one.trigger(chance.choice(list(At)))

    def lost_and_twice(self) -> tuple[Counter[str], Counter[str]]:
        self.one.scene.query.drain()
        emitted = Counter(self.one.scene.query.emitted)
        return self.one.published - emitted, emitted - self.one.published


@pytest.mark.parametrize("proves", [True, False])
@pytest.mark.parametrize("shows_start", [True, False])
@pytest.mark.parametrize("contents", [None, 1, 3])
@pytest.mark.parametrize("seed", range(part_of(60)))
def test_a_content_costs_at_most_one_for_each_unclean_end(
    seed: int, contents: int | None, *, shows_start: bool, proves: bool
) -> None:
    history = History(seed, contents, proves=proves, shows_start=shows_start)
    history.run()
    lost, twice = history.lost_and_twice()
    if contents is None:
        assert (lost, twice) == (Counter(), Counter())
    assert max(lost.values(), default=0) <= history.unclean_ends


@pytest.mark.parametrize("proves", [True, False])
@pytest.mark.parametrize("contents", [1, 3])
@pytest.mark.parametrize("seed", range(part_of(40)))
def test_jobs_that_end_by_themselves_lose_and_double_nothing(seed: int, contents: int, *, proves: bool) -> None:
    history = History(seed, contents, proves=proves, shows_start=True)
    for _ in range(10):
        history._send()
        history._job()
        history._pause()
    assert history.unclean_ends == 0
    assert history.lost_and_twice() == (Counter(), Counter())
