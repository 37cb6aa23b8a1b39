"""Flow control: who may hold how many bytes, and when a session pauses and resumes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.sources.connections import flow

MIB = 1 << 20
HELD = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 10**9))


@given(HELD, st.integers(1, 10**9))
def test_queues_may_hold_twice_an_epoch_together_or_what_they_hold(held: dict[str, int], max_bytes: int) -> None:
    shares = flow.share(held, max_bytes)
    assert shares.keys() == held.keys()
    assert all(shares[queue] >= size for queue, size in held.items())
    if held:
        assert sum(shares.values()) == pytest.approx(max(2 * max_bytes, sum(held.values())))
        extra = [shares[queue] - size for queue, size in held.items()]
        assert max(extra) - min(extra) < 1


@pytest.mark.parametrize(("held", "resumes"), [({}, True), ({"a": 74, "b": 75}, True), ({"a": 75, "b": 75}, False)])
def test_paused_sessions_resume_below_one_and_a_half_epochs(held: dict[str, int], resumes: bool) -> None:
    assert flow.resumes(held, 100) is resumes


def test_sessions_buffer_what_their_queue_may_still_hold() -> None:
    assert flow.allowed(200, 50, 3, replaying=False) == 50
    assert flow.allowed(200, 300, 3, replaying=False) == 0
    assert flow.allowed(200, 300, 2, replaying=True) == 100


@pytest.mark.parametrize(("held", "skips"), [(199, False), (200, True)])
def test_a_replay_skips_others_beyond_the_share(held: int, skips: bool) -> None:
    assert flow.skips(200, held) is skips


def test_a_session_is_full_by_what_it_has_in_any_form() -> None:
    most = 100 * MIB
    assert not flow.is_full(20 * MIB, 0, 0, 0, most)
    assert not flow.is_full(100 * MIB, 90 * MIB, 0, 0, most)
    assert flow.is_full(100 * MIB + 1, 90 * MIB, 0, 0, most)
    assert flow.is_full(100 * MIB, 90 * MIB, 1, 0, most)
    assert not flow.is_full(100 * MIB, 90 * MIB, 1, 1, most)


def test_a_session_is_full_by_what_is_not_yet_a_block() -> None:
    assert not flow.is_full(25 * MIB, 0, 0, 0, 100 * MIB)
    assert flow.is_full(25 * MIB + 1, 0, 0, 0, 100 * MIB)
    assert not flow.is_full(25 * MIB + 1, 1, 0, 0, 100 * MIB)
    # A block may always wait.
    assert not flow.is_full(4 * MIB, 0, 0, 0, 5 * MIB)
    assert flow.is_full(4 * MIB + 1, 0, 0, 0, 5 * MIB)
