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

    def __init__(self, window: int = WINDOW) -> None:
        self.carried: Carried[str] = Carried(GRACE_S, window, remember=True, second_hash=second_hash)
        self.now_s = 0.0
        #: In the order in which they were last settled.
        self.settled: dict[str, None] = {}
        self._session = 0

    def settle(self, keys: list[str]) -> None:
        """These are acknowledged, first or again, and can come again no longer."""
        self.carried.take(keys)
        self._session += 1
        number = self.carried.put(
            dict.fromkeys(keys), State.COMMITTED, {self._session: len(keys)}, exposed=False, memo=None, wait_s=None,
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
        states = self.carried.states(self.settled)
        return {key for key in self.settled if states(key) is not State.UNSEEN}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("window", [WINDOW, WINDOW - 1], ids=["packed", "objects"])
@given(st.lists(st.lists(st.integers(0, 150), min_size=1, max_size=40, unique=True), max_size=40))
def test_the_newest_of_a_window_are_known_and_hardly_more(window: int, epochs: list[list[int]]) -> None:
    remembered = Remembered(window)
    for epoch in epochs:
        remembered.settle([f"m{number}" for number in epoch])
        known, settled = remembered.known(), list(remembered.settled)
        assert known >= set(settled[-window:])
        # By one generation, or by what waits for the rest of one.
        assert len(known) <= len(remembered.carried) <= window + 40
        others = {f"x{number}" for number in range(100)}
        assert remembered.carried.knows_none_of(others)
        for some in (settled[:5], settled[-5:]):
            assert remembered.carried.knows_none_of({*some, "x"}) is known.isdisjoint(some)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("sets", [1, 2, 3])
@pytest.mark.parametrize("times", [1, 3])
def test_ids_that_come_again_and_again_take_no_more_room(sets: int, times: int) -> None:
    remembered, most = Remembered(), 0
    for turn in range(300):
        some = [f"m{turn % sets}-{number}" for number in range(15)]
        remembered.settle(some * times)
        packed = remembered.carried._packed
        assert packed is not None
        most = max(most, packed.size)
        assert packed.size <= 2 * len(packed) + 15
        assert len(packed._generations) <= 2 * WINDOW
        assert len(remembered.carried) == len(remembered.settled)
        assert remembered.known() == set(remembered.settled)
    assert bool(most) is (sets > 1), "nothing was packed"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("window", [WINDOW, WINDOW - 1])
def test_an_id_that_comes_many_times_in_one_call_counts_once(window: int) -> None:
    remembered = Remembered(window)
    for number in range(30):
        remembered.settle([f"m{number}-{one}" for one in range(8)])
    newest = [f"m29-{one}" for one in range(8)] + [f"m28-{one}" for one in range(8)]
    for _ in range(20):
        remembered.settle(newest * 9)
        assert set(list(remembered.settled)[-window:]) <= remembered.known()
        assert len(remembered.known()) <= len(remembered.carried) <= window + 40


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("window", [WINDOW, WINDOW - 1])
def test_what_was_carried_for_long_does_not_push_out_what_was_settled_since(window: int) -> None:
    # The session of the first ended before it was confirmed, so they are carried until the connected time is over.
    remembered = Remembered(window)
    kept = remembered.carried
    early = [f"early{number}" for number in range(40)]
    kept.put(early, State.COMMITTED, {}, exposed=True, memo=None, wait_s=1_000.0, logged=-1)
    kept.start_clock(0.0, 0.0)
    for number in range(12):
        remembered.settle([f"m{number}-{one}" for one in range(8)])
    assert {kept.states(early)(key) for key in early} == {State.COMMITTED}
    kept.plan()
    kept.expire(remembered.now_s, 1_000.0)
    kept.plan()
    kept.expire(remembered.now_s, 1_000.0)
    assert remembered.known() >= set(list(remembered.settled)[-window:])
    assert {kept.states(early)(key) for key in early} == {State.UNSEEN}


@given(st.lists(st.sets(st.integers(0, 400), min_size=1, max_size=120), max_size=12), st.data())
def test_generations_are_sets_of_which_the_oldest_goes_first(generations: list[set[int]], data: st.DataObject) -> None:
    """Against sets, with a hash so short that many of them collide."""
    for second in (second_hash, len):
        aged: Aged[str] = Aged(second)
        model: dict[str, None] = {}
        largest = 0
        for generation in generations:
            keys = {f"{number}" if second is second_hash else "x" * number for number in generation} - model.keys()
            if keys:
                aged.add(sorted(keys))
                largest = max(largest, len(keys))
                model |= dict.fromkeys(sorted(keys))
            if model and data.draw(st.booleans()):
                oldest = set(list(model)[: aged.oldest])
                aged.drop()
                model = {key: None for key in model if key not in oldest}
            taken = data.draw(st.lists(st.sampled_from(sorted(model) or ["none"]), max_size=90))
            aged.take([*taken, "never", *taken[:3]])
            model = {key: None for key in model if key not in taken}
            assert len(aged) == len(model)
            assert aged.size <= 2 * len(aged) + largest
            every = {f"{number}" if second is second_hash else "x" * number for number in range(420)}
            assert aged.among(every) == model.keys()
            assert aged.knows_none_of(every) is not bool(model)


def test_a_block_with_some_known_ids_is_looked_up_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    aged: Aged[str] = Aged(second_hash)
    calls = []
    monkeypatch.setattr(aged, "_find", lambda keys, find=aged._find: calls.append(len(keys)) or find(keys))
    for number in range(16):
        aged.add([f"m{number}-{one}" for one in range(100)])
    block = [f"m{number}-0" for number in range(16)] + [f"x{number}" for number in range(100)]
    assert aged.among(block) == set(block[:16])
    assert calls == [116]


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
