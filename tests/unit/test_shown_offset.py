"""Where an epoch begins if Spark does not say it: behind the offset that it has shown last."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_mq.errors import CheckpointError, ConfigurationError
from pyspark_mq.spark_source.shown_offset import ShownOffset

BEGINNING: dict[str, Any] = {"epoch": 0}


def epoch(number: int) -> dict[str, Any]:
    return {"epoch": number}


class Planner:
    """Plans the next number, if there is something for it."""

    def __init__(self) -> None:
        self.empty = False

    def __call__(self, start: dict[str, Any]) -> dict[str, Any]:
        return start if self.empty else epoch(start["epoch"] + 1)


@pytest.fixture
def shown() -> ShownOffset:
    return ShownOffset("queue 'orders'")


@pytest.fixture
def plan() -> Planner:
    return Planner()


def test_a_query_that_was_shown_nothing_is_new(shown: ShownOffset, plan: Planner) -> None:
    assert shown.latest(lambda: BEGINNING, plan) == epoch(1)


def test_an_epoch_follows_the_offset_that_was_shown_last(shown: ShownOffset, plan: Planner) -> None:
    shown.show(epoch(7), epoch(7))
    shown.show(epoch(7), epoch(8))
    assert shown.latest(lambda: BEGINNING, plan) == epoch(9)


def test_a_new_query_that_waits_goes_on_with_what_it_was_told(shown: ShownOffset, plan: Planner) -> None:
    plan.empty = True
    for _ in range(3):
        assert shown.latest(lambda: BEGINNING, plan) == BEGINNING
    shown.show(BEGINNING, BEGINNING)  # batch 0 of an empty queue
    plan.empty = False
    assert shown.latest(lambda: BEGINNING, plan) == epoch(1)
    shown.show(BEGINNING, epoch(1))
    assert shown.latest(lambda: BEGINNING, plan) == epoch(2)


@pytest.mark.parametrize("shown_before", [False, True])
def test_an_epoch_that_spark_ended_without_showing_it_is_refused(
    shown: ShownOffset, plan: Planner, shown_before: bool
) -> None:
    if shown_before:
        shown.show(epoch(3), epoch(3))
    assert shown.latest(lambda: BEGINNING, plan) == epoch(4 if shown_before else 1)
    with pytest.raises(ConfigurationError, match=r"queue 'orders'.*without asking for its messages.*limit\(0\)"):
        shown.latest(lambda: BEGINNING, plan)


@pytest.mark.parametrize(("start", "end"), [(7, 7), (7, 8), (1, 1)])
def test_an_epoch_that_was_not_planned_here_and_is_shown_too_late_is_refused(
    shown: ShownOffset, plan: Planner, start: int, end: int
) -> None:
    assert shown.latest(lambda: BEGINNING, plan) == epoch(1)
    with pytest.raises(CheckpointError, match=r"queue 'orders'.*triggerAvailableNowWrapper.enabled to false"):
        shown.show(epoch(start), epoch(end))
