"""``pyspark-mq repair`` on folders as a file system leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_mq.cli.main import main
from pyspark_mq.cli.repair import find_damage
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import Part, Position
from pyspark_mq.spark_source import id_log
from pyspark_mq.spark_source.offset import OffsetCodec
from tests.support.simulation import make_settings


class Place:
    """A checkpoint and the folder of a file sink, with so many batches."""

    def __init__(self, folder: Path, batches: int) -> None:
        self.checkpoint, self.sink = folder / "checkpoint", folder / "out"
        self.codec = OffsetCodec.of(make_settings(), str(self.checkpoint / "mq-ids"))
        for batch in range(batches):
            offset = json.dumps(self.codec.encode(Position(batch + 1, {"orders": Part(str(batch))})))
            self.write(self.checkpoint, "offsets", batch, f'v1\n{{"batchTimestampMs":1}}\n{offset}')
            self.write(self.checkpoint, "commits", batch, 'v1\n{"nextBatchWatermarkMs":0}')
            self.write(self.sink, "_spark_metadata", batch, "v1\n{}")

    @staticmethod
    def write(place: Path, log: str, name: object, text: str) -> None:
        (place / log).mkdir(parents=True, exist_ok=True)
        (place / log / str(name)).write_text(text)
        (place / log / f".{name}.crc").write_bytes(b"crc")

    def noted(self, epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Synced up to that epoch, before the machine was started anew."""
        assert self.codec.log is not None
        self.codec.log.note_synced(epoch)
        monkeypatch.setattr(id_log, "_boot", lambda: "another start")

    def repair(self, *more: str) -> int:
        return main(["repair", str(self.checkpoint), "--sink", str(self.sink), *more])

    def logs(self) -> dict[str, set[str]]:
        places = {"offsets": self.checkpoint, "commits": self.checkpoint, "_spark_metadata": self.sink}
        return {log: {file.name for file in (place / log).iterdir()} for log, place in places.items()}


def named(*batches: int) -> set[str]:
    return {name for batch in batches for name in (str(batch), f".{batch}.crc")}


def test_a_whole_checkpoint_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, 3)
    before = place.logs()
    assert place.repair() == 0
    assert capsys.readouterr().out == "nothing is to be removed\n"
    assert place.logs() == before


@pytest.mark.parametrize("content", ["", "\0" * 500])
def test_what_is_empty_goes_with_what_the_sink_has_behind_it(tmp_path: Path, content: str) -> None:
    place = Place(tmp_path, 3)
    place.write(place.checkpoint, "commits", 2, content)
    place.write(place.checkpoint, "offsets", 3, content)
    assert place.repair("--yes") == 0
    assert place.logs() == {"offsets": named(0, 1, 2), "commits": named(0, 1), "_spark_metadata": named(0, 1)}


def test_an_empty_checksum_goes_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    (place.checkpoint / "commits" / ".1.crc").write_bytes(b"")
    assert place.repair("--yes") == 0
    assert place.logs()["commits"] == {*named(0), "1"}
    assert place.logs()["_spark_metadata"] == named(0, 1)


@pytest.mark.parametrize(("epoch", "kept"), [(3, (0, 1, 2)), (2, (0, 1))])
def test_a_commit_of_which_nothing_is_known_is_taken_back(
    tmp_path: Path, epoch: int, kept: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, 3)
    place.noted(epoch, monkeypatch)
    assert place.repair("--yes") == 0
    assert place.logs() == {"offsets": named(0, 1, 2), "commits": named(*kept), "_spark_metadata": named(*kept)}


def test_a_machine_that_was_not_started_anew_has_everything(tmp_path: Path) -> None:
    place = Place(tmp_path, 3)
    assert place.codec.log is not None
    place.codec.log.note_synced(1)
    assert place.repair("--yes") == 0
    assert place.logs()["commits"] == named(0, 1, 2)


def test_a_commit_without_its_offset_goes(tmp_path: Path) -> None:
    place = Place(tmp_path, 3)
    place.write(place.checkpoint, "offsets", 2, "")
    assert place.repair("--yes") == 0
    assert place.logs() == {"offsets": named(0, 1), "commits": named(0, 1), "_spark_metadata": named(0, 1)}


def test_spark_finds_the_newest_offset_the_one_before_and_a_commit(tmp_path: Path) -> None:
    place = Place(tmp_path, 6)
    place.write(place.checkpoint, "offsets", 3, "")
    for batch in (1, 2, 4):
        place.write(place.checkpoint, "commits", batch, "")
    assert place.repair("--yes") == 0
    assert place.logs() == {"offsets": named(0, 1), "commits": named(0), "_spark_metadata": named(0)}


def test_the_id_of_a_query_may_be_empty_too(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    (place.checkpoint / "metadata").write_bytes(b"")
    (place.checkpoint / ".metadata.crc").write_bytes(b"")
    assert place.repair("--yes") == 0
    assert [file.name for file in place.checkpoint.iterdir() if file.is_file()] == ["metadata"]
    assert list(json.loads((place.checkpoint / "metadata").read_bytes())) == ["id"]


def test_compacted_logs_of_a_sink_are_batches_too(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    place.write(place.checkpoint, "commits", 1, "")
    place.write(place.sink, "_spark_metadata", "1.compact", "v1\n{}")
    assert place.repair("--yes") == 0
    assert place.logs()["_spark_metadata"] == named(0)


def test_nothing_goes_without_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, 2)
    place.write(place.checkpoint, "commits", 1, "")
    before = place.logs()
    assert place.repair() == 2
    told = capsys.readouterr()
    assert "commits/1: empty" in told.out
    assert "--yes" in told.err
    assert place.logs() == before


def test_a_place_that_is_none_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(tmp_path / "nowhere"), "--yes"]) == 1
    assert "there is no checkpoint" in capsys.readouterr().err


def test_another_folder_than_a_sink_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    with pytest.raises(CheckpointError, match="no file sink"):
        find_damage(str(place.checkpoint), str(tmp_path), str(place.checkpoint / "mq-ids"))
