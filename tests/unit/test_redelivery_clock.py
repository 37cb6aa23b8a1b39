"""The horizon: up to which moment the broker has had its chance to hand messages out again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_mq.sources.queues.redelivery import OVERDUE_WAIT_S, TRANSIT_S, Flow, Horizon

#: A prefetch that no session takes in, so that it says nothing.
NEVER_TAKEN = 1_000_000


def flow(taken: int = 0, *, fresh: int = 0, room: bool = True, window: int = 100) -> dict[int, Flow]:
    return {1: one(taken, fresh=fresh, places=window if room else 0, window=window)}


def one(taken: int, *, fresh: int = 0, places: int = 0, window: int = 100) -> Flow:
    return Flow(taken, fresh, window - places, window)


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
    horizon.observe(0.0, flow(window=10_000))
    horizon.observe(1.0, flow(window=10_000))
    horizon.asked(-1)
    horizon.observe(200.0, flow(5_000, window=10_000))
    horizon.answered(-1, 1)
    horizon.observe(201.0, flow(5_001, window=10_000))
    assert horizon.horizon_s == 1.0 - TRANSIT_S


def test_every_session_has_to_answer() -> None:
    horizon = Horizon(NEVER_TAKEN)
    both = {1: one(0, places=100), 2: one(0, places=100)}
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


def test_room_that_was_filled_between_two_looks_is_not_trusted() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second in range(100):
        horizon.asked(second)
        horizon.answered(second, 1)
        horizon.observe(second, {1: one(50 * second, places=50)})
        assert horizon.horizon_s == 0
    for second in range(100, 102):
        horizon.asked(second)
        horizon.answered(second, 1)
        horizon.observe(second, {1: one(4_999, places=50)})
    assert horizon.horizon_s == 100 - TRANSIT_S


# -- under load --------------------------------------------------------------------------------


def test_in_a_new_session_a_window_and_something_new_come_behind_what_was_ready_when_it_opened() -> None:
    horizon = Horizon(100)
    for second, taken, fresh in ((0, 100, 0), (1, 150, 0), (2, 500, 0)):
        horizon.observe(second, flow(taken, fresh=fresh, room=False))
        assert horizon.horizon_s == 0
        assert not horizon.shows_new
    horizon.observe(3, flow(510, fresh=501, room=False))
    assert horizon.horizon_s == OVERDUE_WAIT_S
    assert horizon.shows_new


@pytest.mark.parametrize("flagged", [False, True])
def test_what_looks_new_proves_nothing_before_a_window_and_the_prefetch_where_nothing_is_flagged(flagged: bool) -> None:
    horizon = Horizon(prefetch=1_000)
    for second, taken in ((0, 10), (1, 99), (2, 100), (3, 999), (4, 1_000)):
        horizon.observe(second, {1: replace(one(taken, fresh=taken), flagged=flagged)})
        assert (horizon.horizon_s > 0) is (taken >= (100 if flagged else 1_000))


def test_what_may_have_been_on_its_way_at_the_mark_proves_nothing() -> None:
    horizon = Horizon(100)
    horizon.observe(0, {1: one(100, fresh=1, places=30)})
    horizon.observe(1, {1: one(200, fresh=150, places=30)})
    assert horizon.horizon_s == OVERDUE_WAIT_S  # the mark is set anew, at 200 and 30 on their way
    horizon.observe(2, {1: one(500, fresh=230, places=30)})
    assert horizon.horizon_s == OVERDUE_WAIT_S
    horizon.observe(3, {1: one(500, fresh=231, places=30)})
    assert horizon.horizon_s == 1


def test_of_a_session_that_outlives_another_one_only_what_comes_then_counts() -> None:
    horizon = Horizon(100)
    horizon.observe(0, {1: one(5_000, fresh=5_000)})
    horizon.observe(1, {1: one(5_000, fresh=5_000)})
    before_s = horizon.horizon_s
    horizon.interrupt()
    for second, old, new in ((2, 5_000, 10), (4, 5_039, 150), (5, 5_050, 170), (6, 5_150, 300)):
        horizon.observe(second, {1: one(old, fresh=min(old, 5_040), places=40), 2: one(new, fresh=1, places=9)})
        assert horizon.horizon_s == before_s
    horizon.observe(7, {1: one(5_150, fresh=5_041, places=40), 2: one(300, fresh=1, places=9)})
    assert horizon.horizon_s == 1 + OVERDUE_WAIT_S


def test_a_session_on_whose_way_something_may_be_holds_it_and_one_that_is_full_does_not() -> None:
    for places in (1, 0):
        horizon = Horizon(100)
        for second in range(100):
            taken = 100 * second
            horizon.observe(second, {1: one(taken, fresh=taken), 2: one(7, places=places)})
        assert (horizon.horizon_s > 0) is (places == 0)


def test_where_a_window_is_counted_in_bytes_more_may_be_on_its_way_to_one_that_is_full() -> None:
    for in_bytes in (False, True):
        horizon = Horizon(100)
        for second in range(100):
            taken = 1_000 * second
            flows = {1: one(taken, fresh=taken), 2: one(700)}
            horizon.observe(second, {name: replace(flow, in_bytes=in_bytes) for name, flow in flows.items()})
        assert (horizon.horizon_s > 0) is not in_bytes
    horizon = Horizon(100)
    for second, taken in ((0, 100), (1, 100), (2, 299), (3, 300), (4, 301), (5, 401)):
        horizon.observe(second, {1: replace(one(taken, fresh=taken), in_bytes=True)})
        # The first mark is of its opening, the second is set a second later.
        assert horizon.horizon_s == (OVERDUE_WAIT_S if 1 <= second < 5 else 0 if second < 1 else 1)


def test_two_that_are_full_show_nothing() -> None:
    horizon = Horizon(100)
    for second in range(100):
        horizon.observe(second, {1: one(700), 2: one(900)})
    assert horizon.horizon_s == 0


@pytest.mark.parametrize("flagged", [False, True])
def test_one_that_has_answered_since_shows_as_much_as_one_that_is_full(flagged: bool) -> None:
    horizon = Horizon(100)

    def look(second: float, taken: int) -> float:
        flows = {1: one(taken, fresh=taken), 2: one(7, places=93)}
        horizon.observe(second, {name: replace(flow, flagged=flagged) for name, flow in flows.items()})
        return horizon.horizon_s

    assert look(0, 100) == 0
    horizon.asked(-1)
    assert look(1, 200) == 0  # behind the question
    horizon.answered(-1, 2)
    assert look(2, 300) == 0
    horizon.asked(-2)
    assert look(3, 400) == 0
    horizon.answered(-2, 2)
    # Where nothing is flagged, all of them may have been left behind, and more with them.
    assert look(4, 500) == (OVERDUE_WAIT_S if flagged else 0)


def test_where_all_is_flagged_many_windows_are_enough_over_all_sessions() -> None:
    horizon, settled, second = Horizon(100), 0, 0
    while settled < 2_000:
        for taken in (100, 200):
            horizon.observe(second, {second // 2: one(taken)}, settled)
            assert horizon.horizon_s == 0
            settled, second = settled + 50, second + 1
        horizon.interrupt()
    horizon.observe(second, {second: one(99, places=1)}, settled)
    horizon.observe(second + 1, {second: one(99, places=1)}, settled)
    assert horizon.horizon_s == 0  # what is on its way to this one may be among them
    horizon.observe(second + 2, {second: one(100, places=1)}, settled)
    assert horizon.horizon_s == OVERDUE_WAIT_S
    horizon.observe(second + 9, {second: one(1_000)}, settled + 1_999)
    assert horizon.horizon_s == OVERDUE_WAIT_S
    horizon.observe(second + 9, {second: one(1_000)}, settled + 2_000)
    assert horizon.horizon_s > 1


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
