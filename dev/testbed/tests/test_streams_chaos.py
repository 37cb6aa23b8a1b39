"""The chaos test of streams, small, and its checker: what is done to a history that is right is seen."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.chaos.streams.audit import Records, joined, rows_of, verdict
from testbed.chaos.streams.files import records_of
from testbed.chaos.streams.messages import BODY_BYTES, ENTRY_BYTES, encoded, numbers_of
from testbed.chaos.streams.nodes import judged
from testbed.chaos.streams.parts import StreamCluster
from testbed.process import NodeError
from tests.plugin import missing
from tests.support.pages import ROOT

FAULTS = 4
MESSAGES = 20_000
SIZE = ("--local", "--messages", str(MESSAGES), "--rate", "2000", "--faults", str(FAULTS), "--epochs", "20")


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_chaos_loses_doubles_and_invents_nothing(tmp_path: Path) -> None:
    try:
        StreamCluster().close()
    except NodeError as absent:
        missing(str(absent))
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "testbed.chaos.streams", *SIZE, "--seed", "647"]
    command += ["--folder", str(tmp_path / "chaos"), "--report", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text("utf-8"))
    assert found["faults in all"] == FAULTS
    assert found["sent"] == found["records"] == found["rows"] == MESSAGES


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_chaos_of_nodes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    try:
        StreamCluster().close()
    except NodeError as absent:
        missing(str(absent))
    command = [sys.executable, "-m", "testbed.chaos.streams.nodes", "--minutes", "0.5", "--rate", "500", "--seed", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command += ["--folder", str(tmp_path / "chaos")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=390, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the checker is content" in done.stdout


RIGHT = Records(np.arange(10, 20), np.arange(10), np.arange(1_000, 1_010))
OLD = Records(np.arange(18, 20), np.arange(8, 10), np.array([500, 500]))


@pytest.mark.parametrize(
    ("change", "told", "errors", "holds"),
    [
        (lambda one: one, set(), {}, True),
        (lambda one: one, set(), {"broker-unavailable": 2}, True),
        (lambda one: one, set(), {"crash": 1}, False),
        (lambda one: one.at(np.arange(1, 10)), set(), {}, False),
        (lambda one: joined([one, one.at(np.array([2]))]), set(), {}, False),
        (lambda one: joined([one, OLD]), {"one"}, {}, True),
        (lambda one: joined([one, OLD]), {"one"}, {"data-loss": 1}, True),
        (lambda one: joined([one, OLD]), {"two"}, {}, False),
        (lambda one: joined([one, OLD, OLD]), {"one"}, {}, False),
        (lambda one: joined([one, replace(OLD, times_ms=OLD.times_ms + 1)]), {"one"}, {}, False),
        (lambda one: one.at(np.array([], int)), set(), {}, False),
    ],
)
def test_the_checker_of_nodes_accepts_no_loss_but_the_brokers(
    change: Callable[[Records], Records], told: set[str], errors: dict[str, int], holds: bool
) -> None:
    found = judged({"one": RIGHT}, {"one": OLD}, {"one": change(RIGHT)}, told, Counter(errors))
    assert json.loads(json.dumps(asdict(found)))["errors"] == errors
    assert found.is_content(broker_lost=True) == holds
    assert found.is_content(broker_lost=False) == (holds and "data-loss" not in errors)


def test_what_a_put_back_takes_is_named_from_the_files(tmp_path: Path) -> None:
    """A chunk with a filter and a trailer, one of the broker's own, and one that is cut off."""
    first, last = chunk(0), chunk(20)
    shown = {"now": [first, chunk(10, filtered=16, trailer=5), chunk(30, kind=1), last, first[:-1]], "then": [first]}
    for name, chunks in shown.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.segment").write_bytes(b"OSIL\0\0\0\1" + b"".join(chunks))
    assert records_of(tmp_path / "now").numbers.tolist() == [*range(30)]
    taken = records_of(tmp_path / "now", but=tmp_path / "then")
    assert taken.numbers.tolist() == taken.offsets.tolist() == [*range(10, 30)]
    assert {*taken.times_ms.tolist()} == {1_700_000_000_000}


def chunk(first: int, *, kind: int = 0, filtered: int = 0, trailer: int = 0) -> bytes:
    """Ten messages as a segment has them (``osiris_log.erl``)."""
    data = b"".join(entry(first + at) for at in range(10))
    numbers = (kind, 10, 10, 1_700_000_000_000, 1, first, 0, len(data), trailer, filtered)
    return struct.pack(">BBHIqQQIIIBxxx", 0x50, *numbers) + bytes(filtered) + data + bytes(trailer)


def entry(number: int) -> bytes:
    return len(encoded(number)).to_bytes(4, "big") + encoded(number)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lost", lambda one: one.at(np.arange(1, 10))),
        ("twice", lambda one: joined([one, one.at(np.array([2]))])),
        ("invented", lambda one: joined([one, Records(np.array([99]), np.array([2]), np.array([1_002]))])),
        ("invented", lambda one: replace(one, numbers=np.where(one.numbers == 3, 4, one.numbers))),
        ("invented", lambda one: replace(one, times_ms=np.where(one.numbers == 3, 9, one.times_ms))),
        ("lost_bodies", lambda one: replace(one, numbers=np.where(one.numbers == 3, 4, one.numbers))),
        ("twice_bodies", lambda one: replace(one, numbers=np.where(one.numbers == 3, 4, one.numbers))),
    ],
)
def test_the_checker_sees_what_is_wrong_with_rows(name: str, change: Callable[[Records], Records]) -> None:
    assert verdict(10, {"one": RIGHT}, {"one": RIGHT}).holds
    found = verdict(10, {"one": RIGHT}, {"one": change(RIGHT)})
    assert not found.holds
    assert getattr(found, name) == 1


@pytest.mark.parametrize(("name", "numbers"), [("missing", [0, 1, 2, 4, 5]), ("repeated", [0, 1, 2, 3, 3, 4, 5])])
def test_the_checker_sees_what_is_wrong_with_a_stream(name: str, numbers: list[int]) -> None:
    records = Records(np.arange(len(numbers)), np.array(numbers), np.zeros(len(numbers), np.int64))
    found = verdict(6, {"one": records}, {"one": records})
    assert not found.holds
    assert getattr(found, name) == 1


def test_rows_of_a_stream_that_is_not_there_are_invented_and_a_stream_without_rows_is_lost() -> None:
    found = verdict(10, {"one": RIGHT}, {"two": RIGHT})
    assert (found.lost, found.invented) == (10, 10)


@pytest.mark.parametrize("int96", [True, False])
def test_the_checker_reads_numbers_from_chunks_and_from_files(tmp_path: Path, int96: bool) -> None:
    entries = entry(7) + entry(123_456)
    assert numbers_of(entries, ENTRY_BYTES).tolist() == [7, 123_456]
    bodies = [encoded(number)[-BODY_BYTES:] for number in (3, 4, 5)]
    times = pa.array([1_000, 2_000, 3_000]).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"partition": ["a", "b", "a"], "streamOffset": [0, 0, 1], "chunkTimestamp": times, "body": bodies})
    # As Spark writes times, and as everybody else does.
    pq.write_table(table, tmp_path / "rows.parquet", use_deprecated_int96_timestamps=int96)
    found = rows_of([tmp_path / "rows.parquet"])
    assert {name: one.numbers.tolist() for name, one in found.items()} == {"a": [3, 5], "b": [4]}
    assert found["a"].offsets.tolist() == [0, 1]
    assert found["a"].times_ms.tolist() == [1, 3]
    with pytest.raises(ValueError, match="no producer"):
        numbers_of(bytes(ENTRY_BYTES), ENTRY_BYTES)
