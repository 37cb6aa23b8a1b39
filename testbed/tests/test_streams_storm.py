"""The storm of streams, small, and its judge: what is done to a history that is right is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.process import NodeError
from testbed.storm.streams.audit import Records, rows_of, verdict
from testbed.storm.streams.messages import BODY_BYTES, ENTRY_BYTES, encoded, numbers_of
from testbed.storm.streams.nodes import is_content
from testbed.storm.streams.parts import StreamCluster
from tests.plugin import missing
from tests.support.pages import ROOT

FAULTS = 4
MESSAGES = 20_000
SIZE = ("--local", "--messages", str(MESSAGES), "--rate", "2000", "--faults", str(FAULTS), "--epochs", "20")


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_storm_loses_doubles_and_invents_nothing(tmp_path: Path) -> None:
    try:
        StreamCluster().close()
    except NodeError as absent:
        missing(str(absent))
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "testbed.storm.streams", *SIZE, "--seed", "647"]
    command += ["--folder", str(tmp_path / "storm"), "--report", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text("utf-8"))
    assert found["faults in all"] == FAULTS
    assert found["sent"] == found["records"] == found["rows"] == MESSAGES


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_storm_of_nodes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    try:
        StreamCluster().close()
    except NodeError as absent:
        missing(str(absent))
    command = [sys.executable, "-m", "testbed.storm.streams.nodes", "--minutes", "0.5", "--rate", "500", "--seed", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command += ["--folder", str(tmp_path / "storm")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=390, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the judge is content" in done.stdout


@pytest.mark.parametrize(
    ("counts", "errors", "broker_lost", "holds"),
    [
        ({}, {}, False, True),
        ({}, {"broker-unavailable": 2}, False, True),
        ({"lost": 1}, {}, True, False),
        ({"twice": 1}, {}, True, False),
        ({"invented": 1}, {}, False, False),
        ({"invented": 1}, {}, True, True),
        ({}, {"data-loss": 1}, False, False),
        ({}, {"data-loss": 1}, True, True),
        ({"rows": 0}, {}, False, False),
    ],
)
def test_the_judge_of_nodes_accepts_no_loss_but_the_brokers(
    counts: dict[str, int], errors: dict[str, int], broker_lost: bool, holds: bool
) -> None:
    right = verdict(10, {"one": RIGHT}, {"one": RIGHT})
    assert is_content(replace(right, **counts), Counter(errors), broker_lost=broker_lost) == holds


RIGHT = Records(np.arange(10, 20), np.arange(10))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lost", lambda one: Records(one.offsets[1:], one.numbers[1:])),
        ("twice", lambda one: Records(np.append(one.offsets, 12), np.append(one.numbers, 2))),
        ("invented", lambda one: Records(np.append(one.offsets, 99), np.append(one.numbers, 2))),
        ("invented", lambda one: Records(one.offsets, np.where(one.numbers == 3, 4, one.numbers))),
        ("lost_bodies", lambda one: Records(one.offsets, np.where(one.numbers == 3, 4, one.numbers))),
        ("twice_bodies", lambda one: Records(one.offsets, np.where(one.numbers == 3, 4, one.numbers))),
    ],
)
def test_the_judge_sees_what_is_wrong_with_rows(name: str, change: Callable[[Records], Records]) -> None:
    assert verdict(10, {"one": RIGHT}, {"one": RIGHT}).holds
    found = verdict(10, {"one": RIGHT}, {"one": change(RIGHT)})
    assert not found.holds
    assert getattr(found, name) == 1


@pytest.mark.parametrize(("name", "numbers"), [("missing", [0, 1, 2, 4, 5]), ("repeated", [0, 1, 2, 3, 3, 4, 5])])
def test_the_judge_sees_what_is_wrong_with_a_stream(name: str, numbers: list[int]) -> None:
    records = Records(np.arange(len(numbers)), np.array(numbers))
    found = verdict(6, {"one": records}, {"one": records})
    assert not found.holds
    assert getattr(found, name) == 1


def test_rows_of_a_stream_that_is_not_there_are_invented_and_a_stream_without_rows_is_lost() -> None:
    found = verdict(10, {"one": RIGHT}, {"two": RIGHT})
    assert (found.lost, found.invented) == (10, 10)


def test_the_judge_reads_numbers_from_chunks_and_from_files(tmp_path: Path) -> None:
    entries = b"".join(len(encoded(0)).to_bytes(4, "big") + encoded(number) for number in (7, 123_456))
    assert numbers_of(entries, ENTRY_BYTES).tolist() == [7, 123_456]
    bodies = [encoded(number)[-BODY_BYTES:] for number in (3, 4, 5)]
    table = pa.table({"partition": ["a", "b", "a"], "streamOffset": [0, 0, 1], "body": bodies})
    pq.write_table(table, tmp_path / "rows.parquet")
    found = rows_of([tmp_path / "rows.parquet"])
    assert {name: one.numbers.tolist() for name, one in found.items()} == {"a": [3, 5], "b": [4]}
    assert found["a"].offsets.tolist() == [0, 1]
    with pytest.raises(ValueError, match="no producer"):
        numbers_of(bytes(ENTRY_BYTES), ENTRY_BYTES)
