"""The table of windows, read as a specification, and what sessions come to have by it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from pyspark_mq.sources.queues import windows
from pyspark_mq.sources.queues.reader import QueueReader
from pyspark_mq.sources.queues.windows import WINDOWS, Trigger, Window, window_of
from tests.support.scene import Scene
from tests.support.simulation import make_settings, only

PREFETCH, SLOW, EPOCH = 9_000, 2_000, 6_000
#: Moment -> windows of a session to be opened, and of one that is open, of which both were 5,000.
EXPECTED = {
    Trigger.UNPROVEN: (SLOW, 5_000),
    Trigger.REPLAY: (SLOW, 5_000),
    Trigger.NO_CRASH_LOOP: (PREFETCH, PREFETCH),
    Trigger.ONE_EPOCH: (EPOCH, EPOCH),
    Trigger.COMMITTED: (5_000, PREFETCH),
}
#: The same where both were 1.
EXPECTED_OF_ONE = {**EXPECTED, Trigger.UNPROVEN: (SLOW, 1), Trigger.REPLAY: (SLOW, SLOW), Trigger.COMMITTED: (1,
PREFETCH)}  # fmt: skip


def opened() -> QueueReader:
    """A queue with one session."""
    scene = Scene(max_messages=EPOCH, prefetch=PREFETCH)
    scene.query.trigger()
    return only(scene.query.source)


def check(trigger: Trigger, queue: QueueReader) -> None:
    """Check what a trigger changes, for a large window and a small one."""
    (session,) = queue.connections.windows
    for size, expected in ((5_000, EXPECTED), (1, EXPECTED_OF_ONE)):
        queue.connections.first_window = size
        queue.connections.set_window(session, size)
        queue.windows.enter(trigger)
        assert (queue.connections.first_window, queue.windows.total) == expected[trigger]


@pytest.mark.parametrize("trigger", Trigger, ids=lambda one: one.value)
def test_a_moment_changes_the_windows_that_the_table_says(trigger: Trigger) -> None:
    check(trigger, opened())


@pytest.mark.parametrize("trigger", Trigger, ids=lambda one: one.value)
def test_every_change_of_a_row_is_noticed(trigger: Trigger, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = opened()
    sizes: list[Window | None] = [None, *Window]
    for row in [(first, least) for first in sizes for least in sizes if (first, least) != WINDOWS[trigger]]:
        mutant: Mapping[Trigger, tuple[Window | None, Window | None]] = {**WINDOWS, trigger: row}
        monkeypatch.setattr(windows, "WINDOWS", MappingProxyType(mutant))
        with pytest.raises(AssertionError):
            check(trigger, queue)


def test_an_open_replay_is_handed_its_epoch_and_little_else() -> None:
    settings = make_settings(prefetch=PREFETCH, min_messages=10)
    assert window_of(Window.SLOW, settings, planned=5_000, expected=7_000, replays=True) == 5_100
    assert window_of(Window.SLOW, settings, planned=5, expected=7_000, replays=True) == SLOW
    assert window_of(Window.SLOW, settings, planned=5, expected=4_000, replays=False) == SLOW + 4_000


def test_the_only_epoch_of_a_run_leaves_nothing_that_is_delivered_for_nothing() -> None:
    settings = make_settings(prefetch=PREFETCH, max_messages=100, min_messages=10, consumers=2)
    assert window_of(Window.EPOCH, settings, planned=0, expected=40, replays=False) == 70


def test_an_epoch_comes_again_whole_whatever_the_prefetch_is_by_now() -> None:
    settings = make_settings(prefetch=100, consumers=2)
    assert window_of(Window.SLOW, settings, planned=1_001, expected=0, replays=True) == 501
    assert window_of(Window.WIDE, settings, planned=1_001, expected=0, replays=True) == 100
