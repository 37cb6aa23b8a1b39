"""What counts in the comparison with other sources: which files, and which messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.comparison.readers import FlinkReader, HazelcastReader, JavaReader


def reader(kind: type[JavaReader], folder: Path) -> JavaReader:
    made = kind("rabbitmq", "amqp://guest:guest@localhost:5672/", "orders", folder)
    (made.output / "part").mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    ("kind", "open_file"), [(FlinkReader, ".part-0.inprogress.1"), (HazelcastReader, "0-1.tmp")], ids=["flink", "hz"]
)
def test_only_what_the_sink_has_committed_counts(kind: type[JavaReader], open_file: str, tmp_path: Path) -> None:
    made = reader(kind, tmp_path)
    (made.output / "part" / "0-0").write_text("a\nb\n")
    (made.output / "part" / open_file).write_text("c\n")
    assert [made.marks(file) for file in made.files()] == [["a", "b"]]
    assert made.epochs == 1


def test_each_member_of_hazelcast_knows_the_other(tmp_path: Path) -> None:
    first, second = (arguments[-2:] for arguments in reader(HazelcastReader, tmp_path).arguments())
    assert first == second[::-1]
    assert first[0] != first[1]


def test_a_reader_that_was_not_started_does_not_run(tmp_path: Path) -> None:
    assert not reader(FlinkReader, tmp_path).running
