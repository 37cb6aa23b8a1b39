"""Sinks that have batches which the checkpoint has not, as `inspect` and `doctor` tell of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_mq.cli.main import main
from pyspark_mq.sources.position import Position
from pyspark_mq.spark_source.offset import OffsetCodec
from tests.support.simulation import make_settings

QUERY = "5a1c8b0e-93a5-4d53-8f0e-3a1f4f0c9d11"
ANOTHER = "00000000-93a5-4d53-8f0e-3a1f4f0c9d11"
LOST = "in batches 3 to 4, but the source acknowledges them, so they are lost"


class Places:
    """A checkpoint with three batches, of which the last may be open, and the folder of a sink."""

    def __init__(self, folder: Path, committed: int = 3) -> None:
        self.checkpoint, self.sink = folder / "checkpoint", folder / "out"
        codec = OffsetCodec.of(make_settings(), str(self.checkpoint / "mq-ids"))
        for batch in range(3):
            offset = json.dumps(codec.encode(Position(batch + 1)))
            self.write("checkpoint/offsets", str(batch), f'v1\n{{"batchTimestampMs":1}}\n{offset}')
        for batch in range(committed):
            self.write("checkpoint/commits", str(batch), 'v1\n{"nextBatchWatermarkMs":0}')
        self.write("checkpoint", "metadata", json.dumps({"id": QUERY}))

    def write(self, folder: str, name: str, text: str) -> None:
        place = self.checkpoint.parent / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
        (place / f".{name}.crc").write_bytes(b"crc")

    def files(self, *names: str) -> None:
        """Let a file sink have written these."""
        for name in names:
            self.write("out/_spark_metadata", name, "v1\n{}")

    def commit(self, version: int, batch: int, query: str = QUERY) -> None:
        """Let a query have written a batch to a Delta table, as a version of it."""
        actions: list[dict[str, object]] = [
            {"commitInfo": {"operation": "STREAMING UPDATE"}},
            {"txn": {"appId": query, "version": batch, "lastUpdated": 1}},
            {"add": {"path": f"part-{version}.parquet"}},
        ]
        self.write("out/_delta_log", f"{version:020}.json", "\n".join(map(json.dumps, actions)))

    def compact(self, version: int) -> None:
        """Put all versions up to this one together, and delete them, as Delta does after 30 days."""
        newest: dict[str, dict[str, object]] = {}
        for file in sorted((self.sink / "_delta_log").glob("*.json")):
            for action in map(json.loads, file.read_text().splitlines()):
                if "txn" in action:
                    newest[action["txn"]["appId"]] = action["txn"]
            file.unlink()
        added = [{"path": "part-0.parquet"}, *[None for _ in newest]]
        table = pa.table({"txn": [None, *newest.values()], "add": added})
        pq.write_table(table, self.sink / "_delta_log" / f"{version:020}.checkpoint.parquet")
        self.write("out/_delta_log", "_last_checkpoint", json.dumps({"version": version}))

    def inspect(self, capsys: pytest.CaptureFixture[str]) -> str:
        assert main(["inspect", str(self.checkpoint), "--sink", str(self.sink)]) == 0
        return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.mark.parametrize("names", [("3", "4"), ("3", "4.compact")], ids=["files", "compacted"])
def test_a_file_sink_that_has_more_than_the_checkpoint(
    places: Places, capsys: pytest.CaptureFixture[str], names: tuple[str, ...]
) -> None:
    places.files("0", "1", "2", *names)
    told = places.inspect(capsys)
    assert LOST in told
    assert (
        "restore checkpoint and sink from copies made at the same time, or start with a new checkpointLocation" in told
    )


def test_a_crash_between_sink_and_commit_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = Places(tmp_path, committed=2)
    places.files("0", "1", "2")
    assert "ok sink: the sink's newest batch is 2, the checkpoint's 2" in places.inspect(capsys)


def test_a_delta_table_that_has_more_than_the_checkpoint(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    for batch in range(5):
        places.commit(2 * batch, batch)
        places.commit(2 * batch + 1, 90 + batch, ANOTHER)
    assert LOST in places.inspect(capsys)
    places.compact(9)
    assert LOST in places.inspect(capsys)
    places.commit(10, 5)
    assert "in batches 3 to 5" in places.inspect(capsys)


def test_another_query_in_a_delta_table_is_none(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    places.commit(0, 2)
    places.commit(1, 90, ANOTHER)
    assert "ok sink: the sink's newest batch is 2, the checkpoint's 2" in places.inspect(capsys)


def test_a_folder_that_no_sink_has_written_to(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown sink: neither a file sink nor Delta has written a batch of this query there" in places.inspect(
        capsys
    )
    places.commit(0, 2, ANOTHER)
    assert "unknown sink: neither a file sink" in places.inspect(capsys)


@pytest.mark.parametrize("name", [f"{4:020}.json", f"{4:020}.checkpoint.parquet"])
def test_a_log_that_cannot_be_read(places: Places, capsys: pytest.CaptureFixture[str], name: str) -> None:
    places.write("out/_delta_log", name, '{"txn": ')
    assert main(["inspect", str(places.checkpoint), "--sink", str(places.sink)]) == 1
    assert f"{places.sink}: _delta_log/{name} cannot be read" in capsys.readouterr().err


def test_a_checkpoint_without_the_id_of_its_query(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    places.commit(0, 2)
    (places.checkpoint / "metadata").write_text("")
    assert main(["inspect", str(places.checkpoint), "--sink", str(places.sink)]) == 1
    assert "its file 'metadata' cannot be read" in capsys.readouterr().err


def test_json_has_the_finding(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    places.files("4")
    assert main(["inspect", str(places.checkpoint), "--sink", str(places.sink), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sink"]["level"] == "problem"
    (finding,) = found["sink"]["findings"]
    assert (finding["about"], finding["check"]) == (str(places.sink), "sink")
    assert main(["inspect", str(places.checkpoint), "--json"]) == 0
    assert "sink" not in json.loads(capsys.readouterr().out)


def test_the_doctor_compares_with_the_checkpoint_of_its_options(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    places.files("4")
    # Nobody is at that port.
    given = ["broker=rabbitmq", "url=amqp://127.0.0.1:9", "queue=q", "connectTimeout=1s", "--sink", str(places.sink)]
    assert main(["doctor", "--json", *given, f"CHECKPOINTLOCATION={places.checkpoint}"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["about"], one["level"]) for one in found if one["check"] == "sink"] == [(str(places.sink), "problem")]
    assert main(["doctor", *given]) == 2
    assert "'--sink': needs option 'checkpointLocation'" in capsys.readouterr().err
