"""``pyspark-mq repair`` on folders as a file system leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_mq.cli.main import main
from pyspark_mq.sources.position import Position
from pyspark_mq.spark_source import id_log
from pyspark_mq.spark_source.offset import OffsetCodec
from tests.support.simulation import make_settings


class Place:
    """A checkpoint and the folder of a file sink, with so many batches."""

    def __init__(self, folder: Path, batches: int) -> None:
        self.checkpoint, self.sink = folder / "checkpoint", folder / "out"
        self.codec = OffsetCodec.of(make_settings(), str(self.checkpoint / "mq-ids"))
        for batch in range(batches):
            offset = json.dumps(self.codec.encode(Position(batch + 1)))
            self.write(self.checkpoint, "offsets", batch, f'v1\n{{"batchTimestampMs":1}}\n{offset}')
            self.write(self.checkpoint, "commits", batch, 'v1\n{"nextBatchWatermarkMs":0}')
            self.write(self.sink, "_spark_metadata", batch, "v1\n{}")
        self.noted(batches)

    @staticmethod
    def write(place: Path, log: str, name: object, text: str) -> None:
        (place / log).mkdir(parents=True, exist_ok=True)
        (place / log / str(name)).write_text(text)
        (place / log / f".{name}.crc").write_bytes(b"crc")

    def noted(self, epoch: int) -> None:
        """It is known to be on the disks up to that epoch."""
        assert self.codec.log is not None
        self.codec.log.note_synced(epoch)

    def repair(self, *more: str) -> int:
        (self.checkpoint / "metadata").exists() or (self.checkpoint / "metadata").write_text('{"id":"x"}')
        return main(["repair", str(self.checkpoint), "--sink", str(self.sink), *more])

    def logs(self) -> dict[str, set[str]]:
        places = {"offsets": self.checkpoint, "commits": self.checkpoint, "_spark_metadata": self.sink}
        return {log: {file.name for file in (place / log).iterdir()} for log, place in places.items()}


def named(*batches: int) -> set[str]:
    return {name for batch in batches for name in (str(batch), f".{batch}.crc")}


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Start the machine anew."""
    return lambda: monkeypatch.setattr(id_log, "_boot", lambda: "another start")


@pytest.mark.parametrize("restarted", [True, False])
def test_a_whole_checkpoint_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], anew: Callable[[], None], restarted: bool
) -> None:
    place = Place(tmp_path, 3)
    if restarted:
        anew()
    before = place.logs()
    assert place.repair() == 0
    assert capsys.readouterr().out == "nothing to remove\nyou can start the query as it is\n"
    assert place.logs() == before


@pytest.mark.parametrize("content", ["", "\0" * 50], ids=["empty", "zeros"])
def test_the_last_batch_is_taken_back_where_its_commit_is_empty(tmp_path: Path, content: str) -> None:
    place = Place(tmp_path, 3)
    place.noted(2)
    place.write(place.checkpoint, "commits", 2, content)
    place.write(place.checkpoint, "offsets", 3, content)
    place.write(place.sink, "_spark_metadata", 2, content)
    assert place.repair("--yes") == 0
    assert place.logs() == {"offsets": named(0, 1, 2), "commits": named(0, 1), "_spark_metadata": named(0, 1)}


def test_an_empty_checksum_goes_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    (place.checkpoint / "commits" / ".1.crc").write_bytes(b"")
    assert place.repair("--yes") == 0
    assert place.logs()["commits"] == {*named(0), "1"}
    assert place.logs()["_spark_metadata"] == named(0, 1)


@pytest.mark.parametrize(("epoch", "kept"), [(3, (0, 1, 2)), (2, (0, 1))])
def test_a_commit_of_which_nothing_is_known_is_taken_back_once(
    tmp_path: Path, epoch: int, kept: tuple[int, ...], anew: Callable[[], None]
) -> None:
    place = Place(tmp_path, 3)
    place.noted(epoch)
    anew()
    for _ in range(3):
        assert place.repair("--yes") == 0
        assert place.logs() == {"offsets": named(0, 1, 2), "commits": named(*kept), "_spark_metadata": named(*kept)}


def test_a_machine_that_was_not_started_anew_has_everything(tmp_path: Path) -> None:
    place = Place(tmp_path, 3)
    place.noted(2)
    assert place.repair("--yes") == 0
    assert place.logs()["commits"] == named(0, 1, 2)


def test_two_offsets_without_a_commit_are_more_than_a_loss_of_power_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, 4)
    place.noted(2)
    for batch in (2, 3):
        place.write(place.checkpoint, "commits", batch, "")
        (place.sink / "_spark_metadata" / str(batch)).unlink()
    before = place.logs()
    assert place.repair("--yes") == 1
    assert "the newest offset is 3, the newest commit 1" in capsys.readouterr().err
    assert place.logs() == before


def test_compacted_logs_of_a_sink_are_batches_too(tmp_path: Path) -> None:
    place = Place(tmp_path, 2)
    place.noted(1)
    place.write(place.checkpoint, "commits", 1, "")
    place.write(place.sink, "_spark_metadata", "1.compact", "v1\n{}")
    assert place.repair("--yes") == 0
    assert place.logs()["_spark_metadata"] == named(0)


def test_the_id_of_a_query_may_be_empty(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    _no_commits(place)
    (place.checkpoint / "metadata").write_bytes(b"")
    (place.checkpoint / ".metadata.crc").write_bytes(b"")
    assert place.repair("--yes") == 0
    assert [file.name for file in place.checkpoint.iterdir() if file.is_file()] == ["metadata"]
    assert list(json.loads((place.checkpoint / "metadata").read_bytes())) == ["id"]


@pytest.mark.parametrize("content", [b"", None], ids=["empty", "missing"])
@pytest.mark.parametrize("commit", ["", "v1\n{}"], ids=["an empty commit", "a commit"])
def test_another_query_id_is_not_made_up_beside_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, commit: str
) -> None:
    place = Place(tmp_path, 1)
    place.write(place.checkpoint, "commits", 0, commit)
    file = place.checkpoint / "metadata"
    file.write_bytes(content or b"")
    if content is None:
        file.unlink()
    before = place.logs()
    assert main(["repair", str(place.checkpoint), "--sink", str(place.sink), "--yes"]) == 1
    said = capsys.readouterr().err
    assert "nothing is removed: its file 'metadata' is" in said
    assert 'write {"id": "<uuid>"}' in said
    assert place.logs() == before
    assert file.exists() is (content is not None)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_checkpoint_is_repaired_under_the_name_that_spark_was_given(tmp_path: Path, form: str) -> None:
    place = Place(tmp_path / "my ck%20[1]", 3)
    place.noted(2)
    place.write(place.checkpoint, "commits", 2, "")
    (place.checkpoint / "metadata").write_text('{"id":"x"}')
    places = [form.format(folder) for folder in (place.checkpoint, place.sink)]
    assert main(["repair", places[0], "--sink", places[1], "--yes"]) == 0
    assert place.logs()["commits"] == named(0, 1)
    assert place.logs()["_spark_metadata"] == named(0, 1)
    assert place.codec.log is not None
    assert place.codec.log.synced() == 2


def purged(place: Place) -> None:
    """Spark has kept the last batches alone, and an empty file from long ago."""
    for batch in range(4):
        for folder in (place.checkpoint / "offsets", place.checkpoint / "commits"):
            (folder / str(batch)).unlink()
    place.write(place.checkpoint, "offsets", 2, "")


def test_a_purged_checkpoint_stays_as_it_is(tmp_path: Path) -> None:
    place = Place(tmp_path, 8)
    purged(place)
    before = place.logs()
    assert place.repair("--yes") == 0
    assert place.logs() == before


def _of_two_sources(place: Place) -> None:
    file = place.checkpoint / "offsets" / "2"
    file.write_text(f'{file.read_text()}\n{{"orders":{{"0":5}}}}')


def _stateful(place: Place) -> None:
    (place.checkpoint / "state" / "0").mkdir(parents=True)


def _without_note(place: Place) -> None:
    assert place.codec.log is not None
    place.codec.log.forget_synced()


def _another_sink(place: Place) -> None:
    place.write(place.sink, "_spark_metadata", 7, "v1\n{}")


def _sink_without_a_batch(place: Place) -> None:
    place.write(place.sink, "_spark_metadata", 2, "")


def _two_batches_behind(place: Place) -> None:
    place.noted(1)


def _no_commits(place: Place) -> None:
    for file in (place.checkpoint / "commits").iterdir():
        file.unlink()


def _gap(place: Place) -> None:
    place.write(place.checkpoint, "offsets", 1, "")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_of_two_sources, "the query has other sources"),
        (_stateful, "the query has state"),
        (_without_note, "has no note that the query ran with 'settleAfter=synced'"),
        (_another_sink, "Either this is another query's sink, or the checkpoint was restored"),
        (_sink_without_a_batch, "batch 2 was committed and acknowledged"),
        (_two_batches_behind, "mq-ids' notes epoch 1 as synced, but the last committed epochs are 2 and 3"),
        (_no_commits, "some offsets are missing"),
        (_gap, "some offsets are missing"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_what_is_beyond_repair_stays_as_it_is(
    tmp_path: Path,
    harm: Callable[[Place], None],
    words: str,
    anew: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = Place(tmp_path, 3)
    harm(place)
    anew()
    before = place.logs()
    assert place.repair("--yes") == 1
    told = capsys.readouterr().err
    assert words in told
    assert "nothing is removed" in told
    assert place.logs() == before


def test_a_batch_that_is_noted_is_not_taken_back_on_the_same_machine_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, 3)
    place.write(place.checkpoint, "commits", 2, "")
    before = place.logs()
    assert place.repair("--yes") == 1
    assert "mq-ids' notes epoch 3 as synced, but the last committed epochs are 1 and 2" in capsys.readouterr().err
    assert place.logs() == before


def test_nothing_goes_without_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, 2)
    place.noted(1)
    place.write(place.checkpoint, "commits", 1, "")
    before = place.logs()
    assert place.repair() == 2
    told = capsys.readouterr()
    assert "commits/1: empty" in told.out
    assert "--yes" in told.err
    assert place.logs() == before


def test_a_place_that_is_none_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(tmp_path / "nowhere"), "--sink", "none", "--yes"]) == 1
    assert "there is no checkpoint" in capsys.readouterr().err


def test_a_lower_epoch_is_no_earlier_one(tmp_path: Path, anew: Callable[[], None]) -> None:
    place = Place(tmp_path, 3)
    place.noted(9)
    assert place.codec.log is not None
    assert not place.codec.log.lost_power(3)
    anew()
    assert place.codec.log.lost_power(3)
    assert not place.codec.log.lost_power(9)
