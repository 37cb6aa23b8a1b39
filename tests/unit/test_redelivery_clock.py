"""The horizon: up to which moment the broker has had its chance to hand messages out again."""

from __future__ import annotations

import pytest

from pyspark_mq.sources.queues.redelivery import OVERDUE_WAIT_S, TRANSIT_S, Flow, Horizon

#: A prefetch that no session takes in, so that it says nothing.
NEVER_TAKEN = 1_000_000


def flow(taken: int = 0, *, room: bool = True, window: int = 100) -> dict[int, Flow]:
    return {1: Flow(taken, window, room)}


def test_time_counts_only_while_connected() -> None:
    horizon = Horizon(NEVER_TAKEN)
    horizon.observe(10.0, flow())
    horizon.observe(12.0, flow())
    horizon.interrupt()
    horizon.observe(20.0, flow())
    horizon.observe(21.0, flow())
    assert horizon.connected_s == 3.0


def test_it_goes_by_answers_and_stands_still_without() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for tenth in range(50):
        horizon.observe(tenth / 10, flow())
    assert horizon.horizon_s == 0
    horizon.asked(-1)
    horizon.observe(6.0, flow())
    horizon.answered(-1, 1)
    horizon.observe(7.0, flow())
    # What was ready a moment before the question has come before the answer.
    assert horizon.horizon_s == 4.9 - TRANSIT_S


def test_an_answer_that_comes_late_says_nothing_of_what_was_ready_since() -> None:
    horizon = Horizon(NEVER_TAKEN)
    horizon.observe(0.0, flow())
    horizon.observe(1.0, flow())
    horizon.asked(-1)
    horizon.observe(200.0, flow(5_000, window=10_000))
    horizon.answered(-1, 1)
    horizon.observe(201.0, flow(5_001, window=10_000))
    assert horizon.horizon_s == 1.0 - TRANSIT_S


def test_every_session_has_to_answer() -> None:
    horizon = Horizon(NEVER_TAKEN)
    both = {1: Flow(0, 100, room=True), 2: Flow(0, 100, room=True)}
    for second in range(10):
        horizon.observe(second, both)
    for number, session in ((-1, 1), (-2, 1), (-2, 2)):
        horizon.asked(number)
        horizon.answered(number, session)
        horizon.observe(10, both)
        assert horizon.horizon_s == (10 - TRANSIT_S if session == 2 else 0)


def test_an_answer_without_room_says_nothing() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second in range(1_000):
        horizon.asked(second)
        horizon.answered(second, 1)
        horizon.observe(second, flow(100, room=False))
    assert horizon.connected_s == 999
    assert horizon.horizon_s == 0


def test_room_that_comes_and_goes_is_not_trusted() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for tenth in range(1_000):
        horizon.asked(tenth)
        horizon.answered(tenth, 1)
        horizon.observe(tenth / 10, flow(100, room=bool(tenth % 5)))
    assert horizon.horizon_s == 0


def test_under_load_what_may_be_on_its_way_and_a_whole_window_have_to_pass() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second, taken in enumerate((0, 50, 99, 150, 199)):
        horizon.observe(second, flow(taken, room=False))
        assert horizon.horizon_s == 0
    horizon.observe(5, flow(200, room=False))
    horizon.observe(6, flow(300, room=False))
    assert horizon.horizon_s == 0
    horizon.observe(10, flow(400, room=False))
    assert horizon.horizon_s == 5  # the mark was set anew when 200 were taken


def test_one_session_that_is_stuck_holds_it() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second in range(100):
        flows = {1: Flow(second * 100, 100, room=True), 2: Flow(7, 100, room=False)}
        horizon.observe(second, flows)
    assert horizon.horizon_s == 0


def answered(horizon: Horizon, now_s: float, number: int) -> None:
    """A look at one session with room that answers at once."""
    horizon.observe(now_s, flow())
    horizon.asked(number)
    horizon.answered(number, 1)
    horizon.observe(now_s, flow())


@pytest.mark.parametrize(("gap_s", "more_s"), [(0.1, TRANSIT_S), (0.4, 1.6), (1.2, 4.8), (2.0, 5.0)])
def test_it_stands_still_while_things_come_again_however_slowly(gap_s: float, more_s: float) -> None:
    horizon = Horizon(NEVER_TAKEN)
    answered(horizon, 0.0, 0)
    answered(horizon, gap_s, 1)
    before_s = horizon.horizon_s
    for number in range(1, 30):
        horizon.came_again()
        answered(horizon, (number + 1) * gap_s, number + 1)
        assert horizon.horizon_s == before_s
    answered(horizon, 29 * gap_s + more_s - 0.01, 100)
    assert horizon.horizon_s == before_s
    answered(horizon, 29 * gap_s + more_s + 0.01, 101)
    assert horizon.horizon_s > 29 * gap_s - TRANSIT_S


def test_an_interruption_begins_anew_and_nothing_goes_back() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second in range(10):
        answered(horizon, second, second)
    before = horizon.horizon_s
    assert before > 0
    horizon.interrupt()
    horizon.answered(9, 1)  # of a session that has ended
    answered(horizon, 100, 100)
    answered(horizon, 100 + TRANSIT_S / 2, 101)
    assert horizon.horizon_s == before
    answered(horizon, 101, 102)
    assert horizon.horizon_s > before


def test_a_window_that_was_full_between_two_looks_is_not_trusted() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second in range(100):
        answered(horizon, second, second)
        horizon.block()
    assert horizon.horizon_s == 0


def test_questions_that_are_never_answered_are_forgotten() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for number in range(10_000):
        horizon.asked(number)
    assert len(horizon._asked) <= 100


def test_what_fills_a_first_window_comes_behind_what_was_ready_when_it_opened() -> None:
    horizon = Horizon(prefetch=1_000)
    horizon.observe(0.0, flow())
    for second, taken, window in ((1, 100, 100), (2, 999, 100), (3, 1_000, 2_000)):
        horizon.observe(second, flow(taken, window=window, room=False))
        assert horizon.horizon_s == 0
    horizon.observe(4.0, flow(1_000, room=False))
    assert horizon.horizon_s == OVERDUE_WAIT_S
    # What came first in one session says nothing of what another one has left.
    horizon.interrupt()
    horizon.observe(5.0, {1: Flow(1_000, 100, room=False), 2: Flow(999, 100, room=False)})
    horizon.observe(6.0, {1: Flow(1_000, 100, room=False), 2: Flow(999, 100, room=False)})
    assert horizon.horizon_s == OVERDUE_WAIT_S
