"""The ID log: the files of the journal. In a real folder, by a path and by a URI of pyarrow's."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.dedup import EpochFile
from pyspark_mq.errors import CheckpointError
from pyspark_mq.spark_source import id_file
from pyspark_mq.spark_source.folders import ID_FOLDER
from pyspark_mq.spark_source.id_log import IdLog


@dataclass(frozen=True)
class Former(EpochFile):
    """What a version before this one wrote."""

    without_start: bool = True


def vars_of(file: EpochFile) -> dict[str, Any]:
    return {one.name: getattr(file, one.name) for one in fields(file)}


QUEUE = "queue 'orders'"


def content(number: int = 0) -> EpochFile:
    return EpochFile(number, ["orders"], {"orders": [f"text {number}"]})


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def following(place: str, *shown: str) -> IdLog:
    """Of a process that goes on from offsets which name these files."""
    log = IdLog(place, QUEUE)
    for file in shown:
        log.show(file)
    return log


def logged(folder: Path, batch: int, *names: str) -> None:
    """An entry of Spark's log."""
    offsets = folder.parent / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / str(batch)).write_text("\n".join(["v1", f'{{"batchTimestampMs":{batch}}}', *names]))


@pytest.fixture(params=["path", "uri"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path / "below" / "ids"
    return str(folder) if request.param == "path" else folder.as_uri()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "below" / "ids"


def test_a_file_comes_back_as_it_was_written(place: str, folder: Path) -> None:
    name = IdLog(place, QUEUE).put(content())
    assert files(folder) == [name]
    found = IdLog(place, QUEUE).read(name)
    assert found.state
    assert (found.epoch, found.queues, found.planned) == (0, ["orders"], {"orders": ["text 0"]})


def test_equal_files_of_two_processes_have_two_names(place: str, folder: Path) -> None:
    first = IdLog(place, QUEUE).put(content(1))
    names = {following(place, first).put(content(2)) for _ in range(2)}
    assert sorted({first, *names}) == files(folder)
    assert len(files(folder)) == 3


def test_a_note_of_an_epoch_comes_back_too(place: str, folder: Path) -> None:
    log = IdLog(place, QUEUE)
    name = log.put(content())
    assert log.notes(name) == []
    log.put(content(1), name, "alone")
    again = IdLog(place, QUEUE)
    assert again.notes(name) == ["alone"]
    assert again.read(name, "alone").planned == content(1).planned
    assert len(files(folder)) == 2


@pytest.mark.parametrize("of_note", [False, True])
def test_a_file_that_is_missing_or_changed_is_an_error_that_names_it(tmp_path: Path, of_note: bool) -> None:
    log = IdLog(str(tmp_path), QUEUE)
    file = name = log.put(content())
    if of_note:
        name = log.put(content(), file, "alone")
    kept = (tmp_path / name).read_bytes()
    for broken in (kept.replace(b"window_part", b"window_part"[::-1]), kept[:-1], kept[: len(kept) // 2], b""):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(CheckpointError, match=f"queue 'orders'.*{name}.*was changed"):
            IdLog(str(tmp_path), QUEUE).read(file, "alone" if of_note else "")
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}.*cannot be read.*FileNotFoundError"):
        IdLog(str(tmp_path), QUEUE).read(file, "alone" if of_note else "")


def test_a_file_of_another_version_is_refused_with_a_way_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_file, "_PLAIN", (*id_file._PLAIN, "without_start"))
    name = IdLog(str(tmp_path), QUEUE).put(Former(**vars_of(content())))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"format of another version.*without_start.*wrote it, or start with"):
        IdLog(str(tmp_path), QUEUE).read(name)


def test_a_note_of_one_epoch_is_not_one_of_another(tmp_path: Path) -> None:
    log = IdLog(str(tmp_path), QUEUE)
    first, second = log.put(content(1)), log.put(content(2))
    note = log.put(content(), first, "alone")
    (tmp_path / note).rename(tmp_path / f"{second.removesuffix('.arrow')}-alone.arrow")
    with pytest.raises(CheckpointError, match="was changed"):
        IdLog(str(tmp_path), QUEUE).read(second, "alone")


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", "utf-8")
    with pytest.raises(CheckpointError, match=r"the ID log in '.*file/ids'.*epoch 7 cannot be written.*right to write"):
        IdLog(str(tmp_path / "file" / "ids"), QUEUE).put(content(7))


def test_a_draft_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        IdLog(str(tmp_path), QUEUE).put(content())
    assert files(tmp_path) == []


def test_files_are_removed_with_all_that_is_kept_of_them(place: str, folder: Path) -> None:
    log = IdLog(place, QUEUE)
    names = [log.put(content(number)) for number in range(3)]
    for name in names:
        log.put(content(), name, "alone")
        log.put(EpochFile(planned={"orders": ["x"]}), name, "abandoned-000000")
    log.remove([names[2]], "alone")
    assert log.notes(names[2]) == ["abandoned-000000"]
    log.put(content(), names[2], "alone")
    log.remove(names[:2])
    assert all(name.startswith(names[2].removesuffix(".arrow")) for name in files(folder))
    assert len(files(folder)) == 3


def test_what_crashes_leave_behind_a_file_is_found_by_who_goes_on_from_it(place: str, folder: Path) -> None:
    life = IdLog(place, QUEUE)
    first, second, unlogged = (life.put(content(number)) for number in (1, 2, 3))
    dead = {following(place, first, second).put(content(3)) for _ in range(3)}
    (folder / f".{unlogged}").write_text("cut short")
    (folder / "notes.txt").write_text("mine", "utf-8")
    other = IdLog(place, "queue 'other'").put(content())
    again = following(place, first, second)
    left = again.left_by_crashes()
    assert set(left) == {unlogged, *dead}
    third = again.put(content(4))
    again.show(third)
    again.remove([*left, *again.left_by_crashes()])
    assert files(folder) == sorted([first, second, third, other, "notes.txt"])
    assert following(place, third).left_by_crashes() == []


def test_what_dead_first_starts_leave_is_found_once_the_log_names_another(tmp_path: Path) -> None:
    folder = tmp_path / "my job" / ID_FOLDER
    dead = {IdLog(str(folder), QUEUE).put(content(number)) for number in range(30)}
    one, two = IdLog(str(folder), QUEUE), IdLog(str(folder), QUEUE)  # two sources of one query, alike
    names = [one.put(content(300)), two.put(content(300))]
    assert one.left_by_crashes() == two.left_by_crashes() == []
    logged(folder, 0, *names)
    one.show(names[0])
    two.show(names[1])
    assert set(one.left_by_crashes()) == set(two.left_by_crashes()) == dead
    assert one.left_by_crashes() == []


def test_what_a_first_start_leaves_is_found_by_who_goes_on_from_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / ID_FOLDER
    dead = IdLog(str(folder), QUEUE).put(content(1))
    logged_and_dead = IdLog(str(folder), QUEUE).put(content(2))
    sibling = IdLog(str(folder), QUEUE).put(content(3))
    logged(folder, 0, logged_and_dead, sibling)
    logged(folder, 1, logged_and_dead)
    assert following(str(folder), logged_and_dead).left_by_crashes() == [dead]
    (folder.parent / "offsets" / "0").unlink()  # purged: what it named is not known
    assert following(str(folder), logged_and_dead).left_by_crashes() == []


@pytest.mark.parametrize("entries", [[], [[]], [["another-file"]]])
def test_a_checkpoint_of_another_query_is_refused(tmp_path: Path, entries: list[list[str]]) -> None:
    folder = tmp_path / "another job" / ID_FOLDER
    for batch, names in enumerate(entries):
        logged(folder, batch, *names)
    for _ in range(3):
        log = IdLog(str(folder), QUEUE)
        text = r"queue 'orders'.*another job.*not this query's checkpoint.*pyspark-mq peek"
        with pytest.raises(CheckpointError, match=text):
            log.show(log.put(content()))
        assert files(folder) == []


@pytest.mark.parametrize("name", ["", "a", "../orders", "0123456789abcdef-000001", ".arrow"])
def test_a_name_that_no_file_has_removes_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "orders-alone.arrow").write_text("of another program")
    folder = tmp_path / "shared"
    log = IdLog(str(folder), QUEUE)
    there = [log.put(content()), IdLog(str(folder), QUEUE).put(content())]
    log.remove([name])
    log.remove([name], "alone")
    assert files(folder) == sorted(there)
    assert (tmp_path / "orders-alone.arrow").exists()
    log.remove([there[0]])
    assert files(folder) == [there[1]]


def test_an_entry_that_spark_writes_late_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / ID_FOLDER
    log = IdLog(str(folder), QUEUE)
    file = log.put(content())
    later = threading.Timer(0.4, logged, (folder, 0, file))
    later.start()
    log.show(file)
    later.join()
    assert files(folder) == [file]


def test_what_a_process_goes_on_from_has_to_be_in_the_log_and_stays_if_it_is_not(tmp_path: Path) -> None:
    folder = tmp_path / ID_FOLDER
    log = IdLog(str(folder), QUEUE)
    file = log.put(content())
    logged(folder, 0, file)
    log.show(file)
    (tmp_path / "offsets").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="not this query's checkpoint"):
        following(str(folder), file)
    assert files(folder) == [file]


def test_a_log_that_cannot_be_read_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "offsets" / "0").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"Spark's log.*cannot be read.*IsADirectoryError.*readable"):
        following(str(tmp_path / ID_FOLDER), "file.arrow")


def test_a_draft_that_a_crash_left_is_written_over(tmp_path: Path) -> None:
    log = IdLog(str(tmp_path), QUEUE)
    name = log.put(content())
    record = f"{name.removesuffix('.arrow')}-abandoned-000000.arrow"
    (tmp_path / f".{record}").write_text("a draft that is longer than what is written over it" * 10)
    log.put(EpochFile(planned={"orders": ["x"]}), name, "abandoned-000000")
    assert files(tmp_path) == sorted([name, record])
    assert log.read(name, "abandoned-000000").planned == {"orders": ["x"]}


def test_what_was_abandoned_is_kept_for_its_file_alone(place: str) -> None:
    log = IdLog(place, QUEUE)
    third, fourth = log.put(content(3)), log.put(content(4))
    assert log.notes(third) == []
    for number, ids in enumerate((["x"], ["x", "y"])):
        log.put(EpochFile(planned={"orders": ids}), third, f"abandoned-{number:06d}")
    again = IdLog(place, QUEUE)
    assert again.notes(third) == ["abandoned-000000", "abandoned-000001"]
    assert again.read(third, "abandoned-000001").planned == {"orders": ["x", "y"]}
    assert again.notes(fourth) == []


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://key:hushhush@bucket/ids", "s3://***@bucket/ids is away"),
        ("abfss://store@account/ids?client_secret=hushhush", "abfss://***@account/ids?*** is away"),
        ("gs://bucket/ids?token=hushhush", "gs://bucket/ids?*** is away"),
    ],
)
def test_credentials_in_a_uri_are_in_no_error(uri: str, shown: str) -> None:
    said = str(IdLog(uri, QUEUE)._error("nothing", OSError(f"{uri} is away"), "advice"))
    assert "hushhush" not in said
    assert shown in said
