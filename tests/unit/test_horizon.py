"""The horizon: up to which moment the broker has had its chance to hand messages out again."""

from __future__ import annotations

from pyspark_mq.sources.horizon import TRANSIT_S, Flow, Horizon


def flow(taken: int = 0, *, room: bool = True, window: int = 100) -> dict[int, Flow]:
    return {1: Flow(taken, window, room)}


def test_time_counts_only_while_connected() -> None:
    horizon = Horizon()
    horizon.observe(10.0, flow())
    horizon.observe(12.0, flow())
    horizon.interrupt()
    horizon.observe(20.0, flow())
    horizon.observe(21.0, flow())
    assert horizon.connected_s == 3.0


def test_on_a_quiet_queue_it_follows_a_moment_behind() -> None:
    horizon = Horizon()
    for tenth in range(50):
        horizon.observe(tenth / 10, flow())
    assert horizon.horizon_s == horizon.connected_s - TRANSIT_S


def test_it_stands_still_while_a_window_is_full() -> None:
    horizon = Horizon()
    for second in range(1_000):
        horizon.observe(second, flow(100, room=False))
    assert horizon.connected_s == 999
    assert horizon.horizon_s == 0


def test_room_that_comes_and_goes_is_not_trusted() -> None:
    horizon = Horizon()
    for tenth in range(1_000):
        horizon.observe(tenth / 10, flow(100, room=bool(tenth % 5)))
    assert horizon.horizon_s == 0


def test_under_load_a_whole_window_has_to_pass() -> None:
    horizon = Horizon()
    for second, taken in enumerate((0, 50, 99, 150, 200)):
        horizon.observe(second, flow(taken, room=False))
        assert horizon.horizon_s == 0
    horizon.observe(10, flow(260, room=False))
    assert horizon.horizon_s == 3  # the mark was set anew when 150 were taken


def test_one_session_that_is_stuck_holds_it() -> None:
    horizon = Horizon()
    for second in range(100):
        flows = {1: Flow(second * 100, 100, room=True), 2: Flow(7, 100, room=False)}
        horizon.observe(second, flows)
    assert horizon.horizon_s == 0


def test_an_interruption_begins_anew_and_nothing_goes_back() -> None:
    horizon = Horizon()
    for second in range(10):
        horizon.observe(second, flow())
    before = horizon.horizon_s
    horizon.interrupt()
    horizon.observe(100, {2: Flow(0, 100, room=True)})
    horizon.observe(100 + TRANSIT_S / 2, {2: Flow(0, 100, room=True)})
    assert horizon.horizon_s == before
    horizon.observe(101, {2: Flow(0, 100, room=True)})
    assert horizon.horizon_s > before


def test_a_window_that_was_full_between_two_looks_is_not_trusted() -> None:
    horizon = Horizon()
    for second in range(100):
        horizon.observe(second, flow())
        horizon.block()
    assert horizon.horizon_s == 0
