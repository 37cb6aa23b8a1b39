"""What was given up and comes back is new, wherever the run ends (rule 15)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pyspark_mq.dedup import memory
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.settings import Guarantee
from pyspark_mq.spark_source.offset import released
from tests.support.engine import At, Crashed
from tests.support.scene import Scene


def abandoned(missing: int = 3, **settings: Any) -> Scene:
    """An epoch of ten is open, and some of its messages are not in the queue."""
    scene = Scene(max_messages=10, replay_timeout_s=10.0, fail_on_data_loss=False, **settings)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(missing)
    return scene


def assert_nothing_is_left_out(scene: Scene) -> None:
    scene.queue.bring_back()
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted(scene.sent)
    assert scene.broker.counts(scene.queue.name).total == 0


def test_a_run_of_one_epoch_that_ends_behind_it_loses_nothing() -> None:
    scene = abandoned()
    assert scene.query.trigger_once() == 7
    assert_nothing_is_left_out(scene)


@pytest.mark.parametrize("missing", [3, 10])
@pytest.mark.parametrize("at", [At.AFTER_SINK, At.AFTER_COMMIT_LOG])
def test_a_kill_in_the_epoch_that_goes_on_without_them_loses_nothing(at: At, missing: int) -> None:
    scene = abandoned(missing)
    with pytest.raises(Crashed):
        scene.query.trigger(at)
    assert_nothing_is_left_out(scene)


@pytest.mark.parametrize("kills", [1, 2, 3])
def test_a_replay_that_was_run_without_them_is_the_same_batch_although_they_are_back(
    kills: int,
) -> None:
    scene = abandoned()
    for _ in range(kills):
        with pytest.raises(Crashed):
            scene.query.trigger(At.AFTER_SINK)
        scene.queue.bring_back()
    assert_nothing_is_left_out(scene)


@pytest.mark.parametrize("missing", [3, 10])
@pytest.mark.parametrize("at", [At.AFTER_OFFSET_LOG, At.AFTER_SINK, At.AFTER_COMMIT_LOG])
def test_a_kill_in_the_next_epoch_loses_nothing(at: At, missing: int) -> None:
    scene = abandoned(missing)
    assert scene.query.trigger() == 10 - missing
    scene.queue.bring_back()
    scene.publish(5)
    scene.world.let_pass(0.5)
    with pytest.raises(Crashed):
        scene.query.trigger(at)
    assert_nothing_is_left_out(scene)


@pytest.mark.parametrize("ends", ["once", "killed"])
def test_what_a_released_epoch_went_without_is_written_down_beside_the_checkpoint(ends: str) -> None:
    scene = Scene(max_messages=10, replay_timeout_s=10.0)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.query.offsets[0] = json.dumps(released(json.loads(scene.query.offsets[0])))
    scene.queue.take_away(3)
    if ends == "once":
        assert scene.query.trigger_once() == 7
    else:
        with pytest.raises(Crashed):
            scene.query.trigger(At.AFTER_COMMIT_LOG)
    assert_nothing_is_left_out(scene)


def test_messages_of_a_queue_that_is_read_no_more_are_new_when_it_comes_back() -> None:
    from tests.support.simulation import Query, make_settings

    scene = Scene(queues=("orders", "other"), max_messages=20, fail_on_data_loss=False)
    for name in ("other", "third"):
        scene.broker.declare(name)
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)

    def restart(*names: str) -> None:
        before = scene.query
        before.crash()
        settings = make_settings(queues=names, max_messages=20, fail_on_data_loss=False)
        scene.query = Query(scene.world, scene.broker, settings, sink=before.sink)
        scene.query.folder = before.folder
        scene.query._codec = scene.query._make_codec()
        scene.query.offsets, scene.query.committed = before.offsets, before.committed

    restart("other", "third")
    scene.query.trigger_once()
    restart("orders", "other")
    scene.query.drain()
    assert sorted(scene.query.emitted) == sorted(f"{key} of orders" for key in scene.sent)


@pytest.mark.parametrize("at", [At.AFTER_SINK, At.AFTER_COMMIT_LOG])
def test_what_was_abandoned_of_an_epoch_says_nothing_of_another_of_its_number(at: At) -> None:
    # The newest offset is deleted by hand, or the checkpoint is restored, and the number comes again.
    scene = Scene(max_messages=10, replay_timeout_s=10.0, fail_on_data_loss=False, dedup_window=0)
    scene.publish(10)
    assert [scene.query.trigger() for _ in range(3)] == [10, 0, 0]
    scene.publish(10)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    scene.queue.take_away(3)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_SINK)
    assert len(scene.query.sink[1]) == 7
    del scene.query.offsets[1], scene.query.sink[1]
    scene.queue.bring_back()
    scene.publish(1)
    scene.queue.faults.shuffles = True
    scene.broker.cut()
    with pytest.raises(Crashed):
        scene.query.trigger(at)
    assert_nothing_is_left_out(scene)


def test_records_go_with_their_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "KEPT_EPOCHS", 5)
    monkeypatch.setattr(memory, "FOLLOWING_MAX", 3)
    scene = abandoned(dedup_window=0)
    scene.query.trigger()
    assert any("abandoned" in name for name in scene.query.folder.files)
    scene.queue.bring_back()
    for _ in range(12):
        scene.publish(1)
        while not scene.query.trigger():
            pass
        scene.world.let_pass(20.0)
    assert not any("abandoned" in name for name in scene.query.folder.files)


@pytest.mark.parametrize("lower", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
@pytest.mark.parametrize("shows_start", [True, False])
@pytest.mark.parametrize("runs_on", [False, True])
def test_a_lower_guarantee_over_an_open_epoch_and_back_loses_nothing(
    lower: Guarantee, shows_start: bool, runs_on: bool
) -> None:
    scene = Scene(max_messages=10, shows_start=shows_start)
    scene.publish(25)
    assert scene.query.trigger() == 10
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    exactly = scene.query.settings
    scene.query.settings = replace(exactly, guarantee=lower)
    assert scene.query.trigger() == 0  # a replay is empty, as nobody can tell which messages it had
    if runs_on:
        assert scene.query.trigger() > 0
    scene.query.crash()
    scene.query.settings = exactly
    scene.query.drain()
    assert set(scene.query.emitted) == set(scene.sent)
    if not runs_on:
        assert sorted(scene.query.emitted) == sorted(scene.sent)


def test_a_lower_guarantee_over_an_open_epoch_is_refused_where_nothing_can_be_written_down() -> None:
    scene = Scene(max_messages=10)
    scene.publish(25)
    with pytest.raises(Crashed):
        scene.query.trigger(At.AFTER_OFFSET_LOG)
    exactly = scene.query.settings
    scene.query.settings, scene.query.place = replace(exactly, guarantee=Guarantee.AT_LEAST_ONCE), False
    scene.query._codec = scene.query._make_codec()
    with pytest.raises(CheckpointError, match=r"at-least-once.*checkpointLocation"):
        scene.query.trigger()
    scene.query.settings, scene.query.place = exactly, True
    scene.query.crash()
    scene.assert_exactly_once()
