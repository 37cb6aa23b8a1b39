"""The command line, on checkpoints as Spark writes them."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

import pytest

from pyspark_mq import __version__
from pyspark_mq.cli.main import main
from pyspark_mq.cli.release import RECORDS
from pyspark_mq.dedup import EpochFile
from pyspark_mq.dedup.digests import from_bytes
from pyspark_mq.sources.position import Position
from pyspark_mq.sources.runtime import Threads
from pyspark_mq.spark_source.offset import OffsetCodec
from pyspark_mq.spark_source.options import parse_options
from tests.support.memory_broker import MemoryBroker, MemorySession, Message, Raw

GIVEN = {"broker": "rabbitmq", "url": "amqp://joe:hushhush@broker.example/", "queue": "orders"}
WRITTEN_AT_MS = 1_700_000_000_000


class Folder:
    """A checkpoint of a query with one source, or some."""

    def __init__(self, path: Path, **options: str) -> None:
        self.path = path
        parsed = parse_options(
            {**({} if "idLog" in options else {"checkpointLocation": str(path)}), **GIVEN, **options}
        )
        self.codec = OffsetCodec.of(parsed.settings, parsed.id_log)
        for name in ("offsets", "commits", "metadata"):
            (path / name).mkdir(parents=True)

    def position(self, epoch: int, broker_id: str = "", **queues: list[str]) -> Position:
        """The end of an epoch whose file says that an ID is left."""
        assert self.codec.log is not None
        content = EpochFile(epoch, list(queues), queues, left=from_bytes(bytes(16)))
        return Position(epoch, self.codec.log.put(content), broker_id)

    def plan(self, batch: int, *lines: str | Position) -> None:
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": WRITTEN_AT_MS + batch * 1000, "conf": {}}
        texts = [line if isinstance(line, str) else json.dumps(self.codec.encode(line)) for line in lines]
        (self.path / "offsets" / str(batch)).write_text("\n".join(["v1", json.dumps(metadata), *texts]))
        (self.path / "offsets" / f".{batch}.crc").write_bytes(b"crc")

    def commit(self, batch: int) -> None:
        (self.path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Two batches, of which the first was committed."""
    made = Folder(tmp_path / "checkpoint")
    made.plan(0, made.position(1, "rabbit@one", orders=["a", "b"]))
    made.commit(0)
    made.plan(1, made.position(2, "rabbit@one", orders=["c", "d", "e"]))
    return made


def told(*arguments: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert "hushhush" not in captured.out + captured.err
    return captured.err if code else captured.out


def as_json(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(told("inspect", *arguments, "--json", capsys=capsys))


# -- inspect ----------------------------------------------------------------------------------


def test_an_open_epoch_and_what_a_restart_waits_for(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    text = told("inspect", str(folder.path), capsys=capsys)
    assert "newest committed batch: 0" in text
    assert "queue 'orders' in virtual host '/', broker rabbitmq (rabbit@one)" in text
    assert "open: batch 1, epoch 2" in text
    assert "3 planned" in text
    assert "0 settled, 1 left" in text
    assert "waits up to replayTimeout until these 3 planned messages are redelivered" in text
    found = as_json(str(folder.path), capsys=capsys)
    (source,) = found["sources"]
    assert found["committedBatch"] == 0
    assert (source["open"]["batch"], source["open"]["planned"]) == (1, 3)
    assert source["open"]["remembered"] == {"settled": 0, "left": 1}
    assert (source["committed"]["batch"], source["committed"]["planned"]) == (0, 2)
    assert source["open"]["ageSeconds"] > 1_000_000


def test_everything_committed(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.commit(1)
    text = told("inspect", str(folder.path), capsys=capsys)
    assert "open:" not in text
    assert "a restart continues with new messages" in text
    assert as_json(str(folder.path), capsys=capsys)["sources"][0]["committed"]["batch"] == 1


def test_nothing_committed_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Folder(tmp_path / "checkpoint")
    made.plan(0, made.position(1, orders=["a"]))
    assert "newest committed batch: none" in told("inspect", str(made.path), capsys=capsys)


def test_all_ids_on_request(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = as_json(str(folder.path), "--ids", capsys=capsys)["sources"]
    (queue,) = source["open"]["queues"].values()
    assert queue["plannedIds"] == ["c", "d", "e"]
    text = told("inspect", str(folder.path), "--ids", capsys=capsys)
    assert [line.rpartition(": ")[2] for line in text.splitlines() if "    planned in" in line][:3] == ["c", "d", "e"]


#: What a producer may put into an ID: a cleared screen, another title, a line of its own, text that runs backwards.
HOSTILE = "a\x1b[2J\x1b]0;title\x07\nreleased by joe\u2028\u202ebc\x9b31m\x7f"


def harmless(output: str) -> bool:
    return all(line.isprintable() for line in output.split("\n"))


def test_an_id_cannot_move_the_cursor_or_forge_a_line(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.plan(1, folder.position(2, f"rabbit{HOSTILE}", orders=[HOSTILE]))
    text = told("inspect", str(folder.path), "--ids", capsys=capsys)
    assert harmless(text)
    assert "\nreleased by joe" not in text
    assert r": a\x1b[2J" in text
    assert harmless(told("inspect", str(folder.path), "--ids", "--json", capsys=capsys))
    (source,) = as_json(str(folder.path), "--ids", capsys=capsys)["sources"]
    (queue,) = source["open"]["queues"].values()
    assert queue["plannedIds"] == [HOSTILE]


def test_whatever_the_command_writes_goes_through_the_same_hands() -> None:
    tree = ast.parse(Path(sys.modules[main.__module__].__file__ or "").read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    writing = {one.name for one in functions if any("print(" in ast.unparse(step) for step in one.body)}
    assert writing == {"main", "_say", "_say_json"}


def test_several_queues_and_several_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Folder(tmp_path / "checkpoint", queue="orders,payments")
    made.plan(0, "-", '{"topic":{"0":5}}', made.position(1, orders=["a", "b"], payments=["c"]))
    text = told("inspect", str(made.path), capsys=capsys)
    assert "source 2: queues in virtual host '/'" in text
    assert "orders: 2 planned" in text
    assert "payments: 1 planned" in text


@pytest.mark.parametrize("as_uri", [False, True])
def test_ids_in_an_id_log_also_when_it_was_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, as_uri: bool
) -> None:
    logs = tmp_path / "ids"
    made = Folder(tmp_path / "checkpoint", idLog=str(logs))
    keys = [random.Random(number).randbytes(16).hex() for number in range(100)]
    made.plan(0, made.position(1, orders=keys))
    place = made.path.as_uri() if as_uri else f"file:{made.path}/"
    (source,) = as_json(place, "--id-log", str(logs), capsys=capsys)["sources"]
    assert source["open"]["planned"] == 100
    assert source["open"]["idLogFile"].endswith(".arrow")
    logs.rename(tmp_path / "moved")
    assert "cannot be read" in told("inspect", str(made.path), capsys=capsys, code=1)
    moved = as_json(str(made.path), "--id-log", str(tmp_path / "moved"), capsys=capsys)
    assert moved["sources"][0]["open"]["planned"] == 100


def test_without_ids_there_is_nothing_to_wait_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Folder(tmp_path / "checkpoint", guarantee="at-least-once")
    made.plan(0, Position(1))
    assert "does not wait for messages" in told("inspect", str(made.path), capsys=capsys)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: [file.unlink() for file in (path / "offsets").iterdir()], "no batch was planned yet"),
        (lambda path: (path / "offsets" / "1").write_text('v9\n{}\n{"v":1}'), "has format version 'v9'"),
        (lambda path: (path / "offsets" / "1").write_bytes(b"v1\n\xff\xfe"), "cannot be read"),
        (lambda path: (path / "offsets" / "1").write_text('v1\n{}\n{"partition-0":7}'), None),
        (lambda path: [(path / "offsets" / name).write_text("v1\n{}\n-") for name in "01"], "of format 'mq'"),
    ],
    ids=["empty", "version", "bytes", "another in the newest", "no source"],
)
def test_what_is_no_checkpoint_of_this_source_is_said(
    folder: Folder, capsys: pytest.CaptureFixture[str], change: Any, words: str | None
) -> None:
    change(folder.path)
    if words is None:
        assert as_json(str(folder.path), capsys=capsys)["sources"][0]["committed"]["batch"] == 0
    else:
        assert words in told("inspect", str(folder.path), capsys=capsys, code=1)


def test_a_damaged_offset_is_refused(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder.path / "offsets" / "1"
    file.write_text(file.read_text().replace('"epoch": 2', '"epoch": 3'))
    assert "its checksum does not match" in told("inspect", str(folder.path), capsys=capsys, code=1)


@pytest.mark.parametrize(
    ("chars", "words"), [(-20, "source 0 is cut off after"), (20, "it ends before"), (2, "it ends before")]
)
def test_an_offset_that_was_cut_off_is_refused(
    folder: Folder, capsys: pytest.CaptureFixture[str], chars: int, words: str
) -> None:
    file = folder.path / "offsets" / "1"
    file.write_text(file.read_text()[:chars])
    assert words in told("inspect", str(folder.path), capsys=capsys, code=1)


def test_a_place_that_cannot_be_opened_is_said_without_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not accepted" in told("inspect", "nowhere://key:hushhush@bucket/x", capsys=capsys, code=2)
    assert "cannot be read" in told("inspect", "s3://bucket/x?scheme=hushhush", capsys=capsys, code=1)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "FILE:{}/"])
@pytest.mark.parametrize("name", ["my ck", "a%20b", "gr\u00f6\u00dfe [1]", "a#b?c=d"])
def test_a_checkpoint_is_found_under_the_name_that_spark_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, form: str
) -> None:
    made = Folder(tmp_path / name)
    made.plan(0, made.position(1, orders=["a"]))
    place = form.format(made.path)
    assert as_json(place, capsys=capsys)["checkpoint"] == str(made.path)
    assert "records the previous state" in told("release", place, "--yes", capsys=capsys)
    assert len(list((made.path / RECORDS).iterdir())) == 1


def test_a_checkpoint_beside_the_caller_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Folder(tmp_path / "my ck")
    made.plan(0, made.position(1, orders=["a"]))
    monkeypatch.chdir(tmp_path)
    assert f"checkpoint {made.path}\n" in told("inspect", "my ck", capsys=capsys)
    assert f"{tmp_path}/your ck: there is no checkpoint" in told("inspect", "your ck", capsys=capsys, code=1)


# -- how it is called -------------------------------------------------------------------------


def test_the_module_is_the_command(folder: Folder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_mq", "inspect", str(folder.path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 planned" in done.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["nothing"], ["inspect"], ["peek", "-n", "0"], ["peek", "-n", "many"], ["inspect", "x", "--no"]]
)
def test_a_wrong_call_is_answered_with_how_it_goes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: pyspark-mq" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["broker=rabbitmq", "queue=q"], "option 'url': is required"),
        (["broker=rabbitmq", "url=amqp://joe:hushhush@host", "quue=q"], "did you mean 'queue'?"),
        (["amqp://joe:hushhush@host"], "is not of the form NAME=VALUE"),
        (["--from", "/nowhere.json"], "'/nowhere.json' cannot be read"),
    ],
)
def test_options_of_the_source_are_checked(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in told("peek", *arguments, capsys=capsys, code=2)


def test_options_come_from_a_file_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({**GIVEN, "url": "amqp://127.0.0.1:9", "connectTimeout": "200ms"}))
    assert "127.0.0.1:9" in told("peek", "--from", str(file), "queue=other", capsys=capsys, code=1)
    file.write_text("[]")
    assert "not a JSON object" in told("peek", "--from", str(file), capsys=capsys, code=2)


# -- release ----------------------------------------------------------------------------------


def test_releasing_marks_the_open_epoch_and_keeps_what_was_there(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder.path / "offsets" / "1").read_text().split("\n")
    text = told("release", str(folder.path), "--yes", capsys=capsys)
    assert "batch 1, epoch 2: 3 messages were planned but not committed" in text
    assert "whether messages are missing is unknown" in text
    after = (folder.path / "offsets" / "1").read_text().split("\n")
    assert after[:2] == before[:2]
    assert not (folder.path / "offsets" / ".1.crc").exists()
    assert (folder.path / "offsets" / ".0.crc").exists()
    position = folder.codec.decode(json.loads(after[2]))
    assert position == replace(folder.codec.decode(json.loads(before[2])), released=True)
    (record,) = (folder.path / RECORDS).iterdir()
    assert f"{RECORDS}/{record.name}" in text
    kept = json.loads(record.read_text())
    assert kept["offset"] == json.loads(before[2])
    (planned,) = kept["planned"].values()
    assert (kept["batch"], kept["epoch"], planned, kept["missing"]) == (1, 2, ["c", "d", "e"], None)
    assert "the epoch was released" in told("inspect", str(folder.path), capsys=capsys)
    assert "it is already released" in told("release", str(folder.path), capsys=capsys)


def test_releasing_one_of_several_sources_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Folder(tmp_path / "checkpoint")
    idle, first, second = (made.position(epoch, orders=[str(epoch)]) for epoch in (4, 1, 2))
    made.plan(0, idle, "-", first)
    made.commit(0)
    made.plan(1, idle, '{"topic":{"0":5}}', second)
    before = (made.path / "offsets" / "1").read_text().split("\n")
    text = told("release", str(made.path), "--yes", capsys=capsys)
    # What is not new in this batch was committed with the one before.
    assert "source 0" not in text
    assert "source 2" in text
    after = (made.path / "offsets" / "1").read_text().split("\n")
    assert after[:4] == before[:4]
    assert json.loads(after[4])["released"] is True


def test_releasing_needs_something_open_and_somebody_who_agrees(
    folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder.path / "offsets" / "1").read_bytes()
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115 - closed with the process
    assert "option '--yes'" in told("release", str(folder.path), capsys=capsys, code=2)
    assert (folder.path / "offsets" / "1").read_bytes() == before
    folder.commit(1)
    assert "nothing to release" in told("release", str(folder.path), "--yes", capsys=capsys, code=1)


def test_releasing_refuses_the_options_of_another_query(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"{name}={value}" for name, value in {**GIVEN, "queue": "others"}.items()]
    text = told("release", str(folder.path), *options, "--yes", capsys=capsys, code=1)
    assert "was written for queue 'orders'" in text


class Long(MemorySession):
    """A queue that takes long to read: each turn brings five more messages."""

    broker = MemoryBroker(Threads())
    alive: ClassVar[WeakSet[Message]] = WeakSet()
    most: ClassVar[int] = 0

    def run(self, timeout_s: float) -> None:
        for number in range(self.buffer.deliveries + 1, self.buffer.deliveries + 6):
            raw = Raw(number, Message(number, str(number), b"x"), redelivered=False, deliveries=1)
            self.alive.add(raw.message)
            self.buffer.inbox.append(raw)
        self.buffer.count(5, 0)
        Long.most = max(Long.most, len(self.alive))


def test_what_is_looked_at_for_a_release_is_not_kept_and_no_more_than_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Long.broker.declare("orders")
    monkeypatch.setattr("pyspark_mq.cli.peek.session_class", lambda _: Long)
    made = Folder(tmp_path / "checkpoint")
    made.plan(0, made.position(1, orders=["3", "201"]))
    options = [f"{name}={value}" for name, value in GIVEN.items()]
    text = told("release", str(made.path), *options, "--yes", capsys=capsys)
    assert "205 messages examined, 0 of the 2 planned messages are missing\n" in text
    assert Long.most <= 10


def test_options_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["broker=rabbitmq", "-n", "3", "url=amqp://joe:hushhush@127.0.0.1:9", "--wait", "1", "quue=q"]
    assert "did you mean 'queue'?" in told("peek", *words, capsys=capsys, code=2)
    for wrong in (["inspect", "x", "url=amqp://joe:hushhush@host"], ["peek", "--no", "url=amqp://joe:hushhush@host"]):
        with pytest.raises(SystemExit):
            main(wrong)
        assert "hushhush" not in capsys.readouterr().err
