"""A large window of remembered IDs: what is packed is known as long, and nothing else is."""

from __future__ import annotations

import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.ack import State, carried
from pyspark_mq.ack.aged import Aged
from pyspark_mq.ack.carried import Carried
from pyspark_mq.dedup import second_hash
from tests.support.memory import numbered

GRACE_S = 5.0
WINDOW = 48


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "_PACKED_WINDOW", WINDOW)


class Remembered:
    """Epochs that are settled one after the other, and a list of what a window has to know: a model of sets."""

    def __init__(self) -> None:
        self.carried: Carried[str] = Carried(GRACE_S, WINDOW, remember=True, second_hash=second_hash)
        self.now_s = 0.0
        #: In the order in which they were last settled.
        self.settled: dict[str, None] = {}
        self._session = 0

    def settle(self, keys: list[str]) -> None:
        """These are acknowledged, first or again, and can come again no longer."""
        self.carried.take(keys)
        self._session += 1
        number = self.carried.put(
            keys, State.COMMITTED, {self._session: len(keys)}, exposed=False, memo=None, wait_s=None,
            logged=self.carried.plans,
        )  # fmt: skip
        self.carried.plan()
        self.carried.confirm(number, self._session, self.now_s)
        self.now_s += GRACE_S
        self.carried.expire(self.now_s, self.now_s)
        # The next offset does not name them any more.
        self.carried.plan()
        self.carried.expire(self.now_s, self.now_s)
        for key in keys:
            self.settled.pop(key, None)
        self.settled.update(dict.fromkeys(keys))

    def known(self) -> set[str]:
        return {key for key in self.settled if self.carried.state(key) is not State.UNSEEN}


@pytest.mark.usefixtures("small")
@given(st.lists(st.lists(st.integers(0, 150), min_size=1, max_size=40, unique=True), max_size=40))
def test_the_newest_of_a_window_are_known_and_hardly_more(epochs: list[list[int]]) -> None:
    remembered = Remembered()
    for epoch in epochs:
        remembered.settle([f"m{number}" for number in epoch])
        known, settled = remembered.known(), list(remembered.settled)
        assert known >= set(settled[-WINDOW:])
        # By one generation, or by what waits for the rest of one.
        assert len(known) <= len(remembered.carried) <= WINDOW + 40
        others = {f"x{number}" for number in range(100)}
        assert remembered.carried.knows_none_of(others)
        for some in (settled[:5], settled[-5:]):
            assert remembered.carried.knows_none_of({*some, "x"}) is known.isdisjoint(some)


@pytest.mark.usefixtures("small")
def test_ids_that_come_again_and_again_take_no_more_room() -> None:
    remembered = Remembered()
    for _ in range(200):
        remembered.settle([f"m{number}" for number in range(30)])
    packed = remembered.carried._packed
    assert packed is not None
    assert packed.size <= 2 * WINDOW + 30
    assert remembered.known() == set(remembered.settled)


@given(st.lists(st.sets(st.integers(0, 400), min_size=1, max_size=120), max_size=12), st.data())
def test_generations_are_sets_of_which_the_oldest_goes_first(generations: list[set[int]], data: st.DataObject) -> None:
    """Against sets, with hashes so short that all of them collide in one or the other."""
    for second in (second_hash, len):
        aged: Aged[str] = Aged(second)
        model: list[set[str]] = []
        for generation in generations:
            keys = {f"{number}" if second is second_hash else "x" * number for number in generation}
            aged.add(sorted(keys))
            model.append(keys)
            if data.draw(st.booleans()):
                aged.drop()
                model.pop(0)
            taken = data.draw(st.sets(st.sampled_from(sorted(set().union(*model) or {"none"})), max_size=3))
            for key in taken:
                found = [keys for keys in model if key in keys]
                assert aged.take(key) is bool(found)
                if found:
                    assert key in aged or len(found) == 1
            assert aged.size == sum(map(len, model))
            for number in range(0, 420, 7):
                key = f"{number}" if second is second_hash else "x" * number
                assert (key in aged) is any(key in keys for keys in model)


def test_texts_that_share_a_hash_are_told_apart() -> None:
    """CPython hashes what a text has in memory, of one byte or of two for each character, and bytes alike."""
    pairs = [("AB", "\u4241"), ("orders-1", "\u726f\u6564\u7372\u312d"), ("abc", b"abc")]
    for one, other in pairs:
        assert hash(one) == hash(other) or sys.implementation.name != "cpython"
        aged: Aged[str | bytes] = Aged(second_hash)
        aged.add([one])
        assert one in aged
        assert other not in aged


def test_a_remembered_id_takes_less_than_forty_bytes() -> None:
    window = 1_000_000
    aged: Aged[str] = Aged(second_hash)
    for _ in range(16):
        aged.add([str(uuid.uuid4()) for _ in range(window // 16)])
    held = aged._filter.nbytes + sum(one.firsts.nbytes + one.seconds.nbytes for one in aged._generations)
    assert held / window < 30
    assert aged.knows_none_of(list(numbered(1_000)))
