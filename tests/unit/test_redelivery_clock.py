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
    horizon.answered(-1, 1, 0)
    horizon.observe(7.0, flow())
    # What was ready a moment before the question has come before the answer.
    assert horizon.horizon_s == 4.9 - TRANSIT_S


def test_an_answer_that_comes_late_says_nothing_of_what_was_ready_since() -> None:
    horizon = Horizon(NEVER_TAKEN)
    horizon.observe(0.0, flow(window=10_000))
    horizon.observe(1.0, flow(window=10_000))
    horizon.asked(-1)
    horizon.observe(200.0, flow(5_000, window=10_000))
    horizon.answered(-1, 1, 5_000)
    horizon.observe(201.0, flow(5_001, window=10_000))
    assert horizon.horizon_s == 1.0 - TRANSIT_S


def test_every_session_has_to_answer() -> None:
    horizon = Horizon(NEVER_TAKEN)
    both = {1: one(0, places=100), 2: one(0, places=100)}
    for second in range(10):
        horizon.observe(second, both)
    for number, session in ((-1, 1), (-2, 1), (-2, 2)):
        horizon.asked(number)
        horizon.answered(number, session, 0)
        horizon.observe(10, both)
        assert horizon.horizon_s == (10 - TRANSIT_S if session == 2 else 0)


def look(horizon: Horizon, second: float, taken: int, held: int, window: int = 100, number: int | None = None) -> float:
    """Ask, answer with so many taken by then, and look; the horizon."""
    number = int(second * 100) if number is None else number
    horizon.asked(number)
    horizon.answered(number, 1, taken)
    horizon.observe(second, {1: Flow(taken, 0, held, window)})
    return horizon.horizon_s


def test_an_answer_without_room_says_nothing() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second in range(1_000):
        assert look(horizon, second, 100, 100) == 0
    assert horizon.connected_s == 999


def test_room_that_was_made_just_before_the_question_is_not_trusted() -> None:
    # Every quarter of a second as many are acknowledged as came.
    horizon = Horizon(NEVER_TAKEN)
    for quarter in range(1_000):
        assert look(horizon, quarter / 4, 50 * quarter, 50 * (quarter % 2)) == 0
    moved = [look(horizon, quarter / 4, 50 * 999, 0) for quarter in range(1_000, 1_006)]
    # By 249.5 s half of a window less was given up than was handed out by the last answer.
    assert next(filter(None, moved)) == 250.0 - TRANSIT_S


def test_room_is_judged_by_what_had_been_handed_out_by_the_answer() -> None:
    # On a slow link a whole window is on its way, however little of it is here.
    horizon = Horizon(NEVER_TAKEN)
    for second in range(0, 100, 10):
        horizon.observe(second, {1: Flow(5 * second, 0, 0, 100)})
        horizon.asked(second)
        horizon.observe(second + 1, {1: Flow(5 * second + 5, 0, 5, 100)})
        horizon.answered(second, 1, 5 * second + 100)
        horizon.observe(second + 9, {1: Flow(5 * second + 45, 0, 45, 100)})
        assert horizon.horizon_s == 0


def test_a_tenth_of_a_window_may_be_free_without_being_asked_for() -> None:
    for held, moves in ((91, False), (90, False), (89, True)):
        horizon = Horizon(NEVER_TAKEN)
        for second in range(10):
            look(horizon, second, held, held)
        assert (horizon.horizon_s > 0) is moves


def test_a_window_that_was_widened_since_the_question_was_full_all_the_time() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second in range(10):
        look(horizon, second, 100, 100)
    horizon.asked(1)
    horizon.observe(10, {1: Flow(100, 0, 100, 200)})
    horizon.answered(1, 1, 100)
    horizon.observe(10.1, {1: Flow(100, 0, 100, 200)})
    assert horizon.horizon_s == 0
    horizon.observe(11, {1: Flow(100, 0, 100, 200)})
    assert look(horizon, 12, 100, 100, window=200) == 11 - TRANSIT_S


def test_a_session_that_was_paused_has_to_be_asked_again() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for second in range(10):
        horizon.asked(second)
        horizon.observe(second, {1: replace(one(10, places=90), paused=True)})
        horizon.answered(second, 1, 10)
    horizon.observe(10, {1: one(10, places=90)})
    assert horizon.horizon_s == 0
    assert look(horizon, 11, 10, 10) == 10 - TRANSIT_S


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

    def looked(second: float, taken: int) -> float:
        flows = {1: one(taken, fresh=taken), 2: one(7, places=93)}
        horizon.observe(second, {name: replace(flow, flagged=flagged) for name, flow in flows.items()})
        return horizon.horizon_s

    assert looked(0, 100) == 0
    horizon.asked(-1)
    assert looked(1, 200) == 0  # behind the question
    horizon.answered(-1, 2, 7)
    assert looked(2, 300) == 0
    horizon.asked(-2)
    assert looked(3, 400) == 0
    horizon.answered(-2, 2, 7)
    # Where nothing is flagged, all of them may have been left behind, and more with them.
    assert looked(4, 500) == (OVERDUE_WAIT_S if flagged else 0)


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
    horizon.answered(number, 1, 0)
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
    horizon.answered(9, 1, 0)  # of a session that has ended
    answered(horizon, 100, 100)
    answered(horizon, 100 + TRANSIT_S / 2, 101)
    assert horizon.horizon_s == before
    answered(horizon, 101, 102)
    assert horizon.horizon_s > before


def test_questions_that_are_never_answered_are_forgotten() -> None:
    horizon = Horizon(NEVER_TAKEN)
    for number in range(10_000):
        horizon.asked(number)
    assert len(horizon._asked) <= 100
