"""The ID log: the files of the journal. In a real folder, by a path and by a URI of pyarrow's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import CheckpointError
from pyspark_mq.spark_source.folders import ID_FOLDER
from pyspark_mq.spark_source.id_log import IdLog

QUEUE = "queue 'orders'"


def content(number: int = 0) -> dict[str, Any]:
    return {"open": [], "parts": {"planned": {"orders": [f"text {number}"]}}, "blind": False, "queues": ["orders"]}


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def following(place: str, file: str) -> IdLog:
    """Of a process that goes on from an offset which names that file."""
    log = IdLog(place, QUEUE)
    log.follow(file)
    return log


@pytest.fixture(params=["path", "uri"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path / "below" / "ids"
    return str(folder) if request.param == "path" else folder.as_uri()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "below" / "ids"


def test_a_file_comes_back_as_it_was_written(place: str, folder: Path) -> None:
    name = IdLog(place, QUEUE).write(7, content())
    assert files(folder) == [name]
    assert IdLog(place, QUEUE).read(name) == content()
    assert "-000000000007-" in name


def test_files_of_a_checkpoint_have_its_token(place: str) -> None:
    first = IdLog(place, QUEUE).write(1, content(1))
    second = following(place, first).write(2, content(2))
    stranger = IdLog(place, QUEUE).write(2, content(2))
    assert first[:8] == second[:8] != stranger[:8]


def test_a_file_beside_another_comes_back_too(place: str, folder: Path) -> None:
    log = IdLog(place, QUEUE)
    name = log.write(7, content())
    assert not log.has(log.beside(name))
    log.write_beside(name, content(1))
    again = IdLog(place, QUEUE)
    assert again.has(again.beside(name))
    assert again.read(again.beside(name)) == content(1)
    assert len(files(folder)) == 2


@pytest.mark.parametrize("beside", [False, True])
def test_a_file_that_is_missing_or_changed_is_an_error_that_names_it(tmp_path: Path, beside: bool) -> None:
    log = IdLog(str(tmp_path), QUEUE)
    name = log.write(7, content())
    if beside:
        log.write_beside(name, content())
        name = log.beside(name)
    kept = (tmp_path / name).read_bytes()
    for broken in (kept.replace(b"planned", b"plannex"), kept[:-1], kept[: len(kept) // 2], b""):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(CheckpointError, match=f"queue 'orders'.*{name}.*was changed"):
            IdLog(str(tmp_path), QUEUE).read(name)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}.*cannot be read.*FileNotFoundError"):
        IdLog(str(tmp_path), QUEUE).read(name)


def test_a_file_beside_one_epoch_is_none_of_another(tmp_path: Path) -> None:
    log = IdLog(str(tmp_path), QUEUE)
    first, second = log.write(1, content(1)), log.write(2, content(2))
    log.write_beside(first, content())
    (tmp_path / log.beside(first)).rename(tmp_path / log.beside(second))
    with pytest.raises(CheckpointError, match="was changed"):
        IdLog(str(tmp_path), QUEUE).read(log.beside(second))


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", "utf-8")
    with pytest.raises(CheckpointError, match=r"the ID log in '.*file/ids'.*epoch 7 cannot be written.*right to write"):
        IdLog(str(tmp_path / "file" / "ids"), QUEUE).write(7, content())


def test_a_draft_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        IdLog(str(tmp_path), QUEUE).write(7, content())
    assert files(tmp_path) == []


def test_files_are_removed_with_all_that_is_kept_of_them(place: str, folder: Path) -> None:
    log = IdLog(place, QUEUE)
    names = [log.write(number, content(number)) for number in range(3)]
    for name in names:
        log.write_beside(name, content())
        log.give_up(name, {"orders": "x"})
    log.remove(names[:2])
    assert all(name.startswith(names[2].removesuffix(".json")) for name in files(folder))
    assert len(files(folder)) == 3


def test_what_crashes_have_left_goes_and_what_is_later_or_of_others_stays(place: str, folder: Path) -> None:
    log = IdLog(place, QUEUE)
    names = [log.write(number, content(number)) for number in range(1, 6)]
    log.write_beside(names[0], content())
    other = IdLog(place, "queue 'other'").write(1, content())
    (folder / "notes.txt").write_text("mine", "utf-8")
    again = following(place, names[3])
    again.remove_others([names[1]], 4)
    assert files(folder) == sorted([names[1], names[4], other, "notes.txt"])


def aged(folder: Path) -> None:
    for file in folder.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))


def test_what_dead_first_runs_have_left_goes_with_the_first_epoch_of_another(tmp_path: Path) -> None:
    folder = tmp_path / "my job" / ID_FOLDER
    for number in range(30):
        IdLog(str(folder), QUEUE, "orders at host").write(1, content(number))
    other = IdLog(str(folder), QUEUE, "payments at host").write(1, content(100))
    log = IdLog(str(folder), QUEUE, "orders at host")
    kept = log.write(1, content(300))
    log.remove_others([kept], 1)
    assert files(folder) == sorted([kept, other])


def test_drafts_go_after_a_day(tmp_path: Path) -> None:
    log = IdLog(str(tmp_path), QUEUE)
    name = log.write(1, content())
    (tmp_path / f".{name}.0123abcd").write_text("a draft")
    (tmp_path / ".synced.json.0123abcd").write_text("another")
    (tmp_path / ".notes.txt").write_text("mine")
    aged(tmp_path)
    (tmp_path / ".deadbeef-000000000001.json.0123abcd").write_text("a draft of this moment")
    log.remove_others([name], 1)
    assert files(tmp_path) == sorted([name, ".notes.txt", ".deadbeef-000000000001.json.0123abcd"])


def test_a_folder_that_several_queries_share_loses_no_file_of_another(place: str, folder: Path) -> None:
    quiet = IdLog(place, QUEUE).write(1, content())
    aged(folder)
    busy = IdLog(place, QUEUE)
    busy.remove_others([busy.write(9, content(1))], 9)
    assert IdLog(place, QUEUE).read(quiet) == content()


def test_what_was_given_up_is_kept_for_its_file_alone(place: str) -> None:
    log = IdLog(place, QUEUE)
    third, fourth = log.write(3, content(3)), log.write(4, content(4))
    assert log.given_up(third) == {}
    log.give_up(third, {"orders": "x"})
    log.give_up(third, {"orders": "xy"})
    again = IdLog(place, QUEUE)
    assert again.given_up(third) == {"orders": "xy"}
    assert again.given_up(fourth) == {}


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
