"""The ID log: files that offsets name. In a real folder, by a path and by a URI of pyarrow's."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.dedup import encode_ids
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import Part, Position
from pyspark_mq.spark_source import id_log
from pyspark_mq.spark_source.id_log import IdLog
from pyspark_mq.spark_source.offset import OffsetCodec
from pyspark_mq.spark_source.options import parse_options

GIVEN = {"broker": "rabbitmq", "url": "amqp://joe:hushhush@broker.example/", "queue": "orders"}


def codec(place: object = None, **options: str) -> OffsetCodec:
    given = {**GIVEN, **options} | ({} if place is None else {"idLog": str(place)})
    parsed = parse_options(given)
    return OffsetCodec.of(parsed.settings, parsed.id_log)


def position(epoch: int = 7, messages: int = 50_000) -> Position:
    planned = encode_ids([str(uuid.UUID(int=number * 2**60)) for number in range(1, messages + 1)])
    part = Part(planned, (encode_ids([str(uuid.uuid4()) for _ in range(100)]),), (1_700_000_000,))
    return Position(epoch, {"orders": part}, "rabbit@one")


def through_spark(offset: dict[str, Any]) -> Any:
    return json.loads(json.dumps(offset))


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.fixture(params=["path", "uri"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path / "below" / "ids"
    return str(folder) if request.param == "path" else folder.as_uri()


def test_an_offset_is_small_and_gives_the_position_back(place: str, tmp_path: Path) -> None:
    planned = position()
    offset = codec(place).encode(planned)
    assert len(json.dumps(offset)) < 500
    assert codec(place).decode(through_spark(offset)) == planned
    assert len(files(tmp_path / "below" / "ids")) == 1


def test_the_same_position_has_the_same_offset(place: str) -> None:
    one = codec(place)
    planned = position()
    offset = one.encode(planned)
    assert one.encode(planned) == offset
    # A process that goes on from it.
    again = codec(place)
    assert again.decode(through_spark(offset)) == planned
    assert json.dumps(again.encode(planned)) == json.dumps(offset)


def test_few_ids_are_in_the_offset_itself(place: str, tmp_path: Path) -> None:
    few = Position(3, {"orders": Part(encode_ids(["a", "b"]))})
    offset = codec(place).encode(few)
    assert {**offset, "crc": 0} == {**codec().encode(few), "log": offset["log"], "crc": 0}
    assert files(tmp_path / "below" / "ids") == []


def test_the_log_can_be_switched_on_and_off(place: str) -> None:
    planned = position()
    without, with_log = codec().encode(planned), codec(place).encode(planned)
    assert codec(place).decode(through_spark(without)) == planned
    assert codec().decode(through_spark(with_log)) == planned


def test_a_folder_that_was_moved_is_named_by_the_option(tmp_path: Path) -> None:
    planned = position()
    offset = codec(tmp_path / "a").encode(planned)
    (tmp_path / "a").rename(tmp_path / "b")
    assert codec(tmp_path / "b").decode(through_spark(offset)) == planned
    with pytest.raises(CheckpointError, match="Set 'checkpointLocation' or 'idLog' to the place that the query had"):
        codec().decode(through_spark(offset))


def test_another_option_may_name_the_place_from_now_on(tmp_path: Path) -> None:
    planned = position()
    offset = through_spark(codec(tmp_path / "ids").encode(planned))
    later = codec(checkpointLocation=str(tmp_path / "checkpoint"))
    assert later.decode(offset) == planned
    following = position(8)
    assert later.decode(through_spark(later.encode(following))) == following
    assert len(files(tmp_path / "checkpoint" / "mq-ids")) == len(files(tmp_path / "ids")) == 1


def test_a_file_that_is_missing_or_changed_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "ids"
    offset = codec(folder).encode(position())
    (file,) = folder.iterdir()
    kept = file.read_bytes()
    file.write_bytes(kept.replace(b"planned", b"plannex"))
    with pytest.raises(CheckpointError, match=f"queue 'orders'.*{file.name}.*was changed"):
        codec(folder).decode(through_spark(offset))
    file.write_bytes(kept[:-1])
    with pytest.raises(CheckpointError, match="was changed"):
        codec(folder).decode(through_spark(offset))
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name}.*cannot be read.*FileNotFoundError"):
        codec(folder).decode(through_spark(offset))


def test_an_offset_that_names_another_file_is_refused(tmp_path: Path) -> None:
    one = codec(tmp_path)
    first, second = one.encode(position(1)), one.encode(position(2))
    with pytest.raises(CheckpointError, match="checksum"):
        one.decode({**through_spark(first), "file": second["file"]})


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", "utf-8")
    with pytest.raises(CheckpointError, match=r"the ID log in '.*file/ids'.*epoch 7 cannot be written.*right to write"):
        codec(tmp_path / "file" / "ids").encode(position())


def test_a_draft_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        codec(tmp_path).encode(position())
    assert files(tmp_path) == []


def run_epochs(place: str, start: dict[str, Any] | None, numbers: range) -> list[dict[str, Any]]:
    """The offsets of a checkpoint that goes on from `start`, in a new process for each."""
    offsets = [] if start is None else [start]
    for epoch in numbers:
        process = codec(place)
        if offsets:
            process.decode(through_spark(offsets[-1]))
        offsets.append(process.encode(position(epoch, 100)))
    return offsets


def test_old_files_go_and_those_of_others_stay(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_log, "_EPOCHS_KEPT", 5)
    folder = tmp_path / "below" / "ids"
    other = codec(place, queue="other").encode(position(1))["file"]
    (folder / "notes.txt").write_text("mine", "utf-8")
    names = [offset["file"] for offset in run_epochs(place, None, range(1, 13))]
    assert files(folder) == sorted([*names[-5:], other, "notes.txt"])


def aged(folder: Path) -> None:
    for file in folder.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))


def test_what_dead_first_runs_have_left_goes_after_a_day(tmp_path: Path) -> None:
    checkpoint = tmp_path / "my job"
    folder, place = checkpoint / "mq-ids", str(checkpoint)
    for number in range(30):
        codec(checkpointLocation=place).encode(position(1, 100 + number))
    kept = codec(checkpointLocation=place).encode(position(1))
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(kept)}")
    (folder / f".{kept['file']}.0123abcd").write_text("a draft")
    (folder / ".synced.json.0123abcd").write_text("another")
    (folder / ".notes.txt").write_text("mine")
    aged(folder)
    (folder / ".deadbeef-000000000001.json.0123abcd").write_text("a draft of this moment")
    # It is no folder of a checkpoint as long as Spark has none there.
    first = codec(checkpointLocation=place).encode(position(1, 300))["file"]
    assert len(files(folder)) == 30 + 4
    (checkpoint / "metadata").write_text('{"id":"x"}')
    second = codec(checkpointLocation=place).encode(position(1, 400))["file"]
    left = [first, second, kept["file"], ".notes.txt", ".deadbeef-000000000001.json.0123abcd"]
    assert files(folder) == sorted(left)
    assert codec(checkpointLocation=place).decode(through_spark(kept)).epoch == 1


def test_a_folder_that_several_queries_share_loses_no_file_of_another(place: str, tmp_path: Path) -> None:
    quiet = codec(place).encode(position())
    aged(tmp_path / "below" / "ids")
    codec(place).encode(position())
    assert codec(place).decode(through_spark(quiet)).epoch == 7


def test_an_offset_of_many_queues_stays_small(tmp_path: Path) -> None:
    names = [f"queue-{number:03d}-of-a-department" for number in range(256)]
    many = codec(tmp_path, queue=",".join(names))
    planned = Position(7, {name: Part(encode_ids(["a"]) if name == names[3] else "") for name in names}, "rabbit@one")
    offset = many.encode(planned)
    assert len(json.dumps(offset)) < 500
    assert many.decode(through_spark(offset)) == planned


def test_a_new_checkpoint_over_an_old_folder_keeps_its_own_files(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_log, "_EPOCHS_KEPT", 5)
    run_epochs(place, None, range(100, 112))
    for offset in run_epochs(place, None, range(1, 4)):
        assert codec(place).decode(through_spark(offset)).epoch == offset["epoch"]


def test_two_sources_that_read_queues_of_one_name_delete_nothing_of_each_other(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_log, "_EPOCHS_KEPT", 5)
    (quiet,) = run_epochs(place, None, range(7, 8))
    run_epochs(place, None, range(1, 40))
    assert codec(place).decode(through_spark(quiet)).epoch == 7


def test_a_checkpoint_that_was_restored_goes_on_and_can_be_restarted(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_log, "_EPOCHS_KEPT", 5)
    offsets = run_epochs(place, None, range(1, 13))
    restored = offsets[8]  # as old as can be
    again = run_epochs(place, restored, range(10, 14))
    for offset in [restored, *again]:
        assert codec(place).decode(through_spark(offset)).epoch == offset["epoch"]


def test_what_was_given_up_is_kept_for_its_checkpoint_alone(place: str) -> None:
    first, third, fourth = codec(place), position(3), position(4)
    offset = through_spark(first.encode(third))
    assert first.log is not None
    assert first.log.read_record(third) == {}
    first.log.write_record(third, {"orders": "x"})
    first.log.write_record(third, {"orders": "xy"})
    again = codec(place)
    assert again.log is not None
    assert again.log.read_record(again.decode(offset)) == {"orders": "xy"}
    assert again.log.read_record(fourth) == {}
    # Of the same number, and planned with other messages.
    assert again.log.read_record(position(3, 10)) == {}
    stranger = codec(place)
    assert stranger.log is not None
    assert stranger.log.read_record(third) == {}


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://key:hushhush@bucket/ids", "s3://***@bucket/ids is away"),
        ("abfss://store@account/ids?client_secret=hushhush", "abfss://***@account/ids?*** is away"),
        ("gs://bucket/ids?token=hushhush", "gs://bucket/ids?*** is away"),
    ],
)
def test_credentials_in_a_uri_are_in_no_offset_and_no_error(uri: str, shown: str) -> None:
    log = IdLog(uri, "queue 'orders'")
    assert log.public_place == ""
    said = str(log._error("nothing", OSError(f"{uri} is away"), "advice"))
    assert "hushhush" not in said
    assert shown in said


@pytest.mark.parametrize("place", ["/data/ids", "s3://bucket/ids", "s3://bucket/ids?scheme=http&region=eu-central-1"])
def test_where_it_is_is_in_the_offset(place: str) -> None:
    assert IdLog(place, "queue 'orders'").public_place == place
