"""How rows come to their tasks: inside them, until a worker says that it is below the same JVM."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_mq.errors import MqError
from pyspark_mq.spark_source.schema import SCHEMA, BatchBuilder
from pyspark_mq.spark_source.task_transport import Rows, TaskTransport

ROOT = Path(__file__).parents[2]
BUILDER = BatchBuilder(StructType([SCHEMA["body"]]))
#: Reads a partition as a worker does, behind so many shells, of which each is a process.
WORKER = """
import pickle, sys
with pickle.load(open(sys.argv[1], "rb")).opened() as stream:
    print(stream.read_all().num_rows)
"""


def handed(task_transport: TaskTransport, *bodies: bytes) -> InputPartition:
    partition, _ = task_transport.partition(
        BUILDER, [pa.record_batch([pa.array(bodies, pa.binary())], BUILDER._schema)]
    )
    return partition


def read(partition: Any) -> list[bytes]:
    """On the executor: what Spark sends there is pickled."""
    with pickle.loads(pickle.dumps(partition)).opened() as stream:
        return [body for batch in stream for body in batch.column(0).to_pylist()]


def memories() -> int:
    """Descriptors of this process that a task transport has made. Others come and go with threads of other tests."""
    links = (os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return sum(link.startswith("/memfd:pyspark-mq-") for link in links)


def told() -> TaskTransport:
    task_transport = TaskTransport()
    assert read(handed(task_transport.begin_epoch(), b"first")) == [b"first"]
    assert task_transport.same_jvm
    return task_transport


def test_the_first_rows_are_in_their_task_and_those_behind_a_mark_are_not() -> None:
    task_transport = TaskTransport()
    first = [handed(task_transport, b"a", b"b"), handed(task_transport, b"c")]
    assert [type(one) for one in first] == [Rows, Rows]
    assert not task_transport.same_jvm
    assert read(first[0]) == [b"a", b"b"]
    large = bytes(5_000_000)
    shared = handed(task_transport.begin_epoch(), large, b"d")
    assert len(pickle.dumps(shared)) < 1_000
    assert read(shared) == read(shared) == [large, b"d"]
    assert read(first[1]) == [b"c"]


def test_what_is_read_outlives_its_epoch_and_what_is_not_is_gone_in_words() -> None:
    task_transport = told()
    old = handed(task_transport.begin_epoch(), b"old" * 1_000)
    with pickle.loads(pickle.dumps(old)).opened() as stream:
        batch = stream.read_next_batch()
    new = handed(task_transport.begin_epoch(), b"new")
    assert batch.column(0).to_pylist() == [b"old" * 1_000]
    # The new one has the descriptor of the old one.
    assert read(new) == [b"new"]
    with pytest.raises(MqError, match=r"the task's epoch is already committed.*persist"):
        read(old)


def test_no_descriptor_is_left_behind() -> None:
    task_transport = told()
    handed(task_transport.begin_epoch(), b"x")
    gc.collect()
    before = memories()
    for _ in range(20):
        task_transport.begin_epoch()
        for _ in range(3):
            read(handed(task_transport, b"x"))
    handed(task_transport.begin_epoch(), b"x")
    assert memories() == before


@pytest.mark.parametrize(("shells", "below"), [(0, True), (1, True), (2, False)])
def test_only_a_worker_below_the_same_parent_leaves_a_mark(tmp_path: Path, shells: int, below: bool) -> None:
    """This process stands for the JVM, which has a daemon and that a worker; an executor has a JVM of its own."""
    task_transport = TaskTransport()
    partition = handed(task_transport, b"x")
    assert isinstance(partition, Rows)
    partition._parent = os.getpid()
    (tmp_path / "partition").write_bytes(pickle.dumps(partition))
    command = [sys.executable, "-c", WORKER, str(tmp_path / "partition")]
    for _ in range(shells):
        command = ["/bin/sh", "-c", '"$@"; exit $?', "shell", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "1"
    assert task_transport.same_jvm is below


def test_who_does_not_see_the_mark_reads_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    task_transport = TaskTransport()
    partition = handed(task_transport, b"x")
    assert isinstance(partition, Rows)
    assert partition._mark is not None
    for path in ("/nowhere", f"/proc/{os.getpid()}/fd/0", "/proc/self/maps"):
        monkeypatch.setattr(partition._mark, "path", path)
        assert read(partition) == [b"x"]
    assert not task_transport.same_jvm


@pytest.mark.parametrize("when", ["never", "later"])
def test_without_such_memory_rows_are_in_their_tasks(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task_transport = told() if when == "later" else None
    monkeypatch.delattr(os, "memfd_create")
    task_transport = task_transport or TaskTransport()
    for _ in range(2):
        partition = handed(task_transport.begin_epoch(), b"x")
        assert isinstance(partition, Rows)
        assert read(partition) == [b"x"]


def test_rows_for_which_there_is_no_room_in_such_memory_are_in_their_task() -> None:
    task_transport = told().begin_epoch()
    before, bounds = memories(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, bounds[1]))
    try:
        partition = handed(task_transport, bytes(5_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    assert isinstance(partition, Rows)
    assert read(partition) == [bytes(5_000_000)]
    assert memories() == before


def test_partitions_beyond_a_number_are_in_their_tasks() -> None:
    task_transport = told().begin_epoch()
    before = memories()
    partitions = [handed(task_transport, b"%d" % number) for number in range(300)]
    assert memories() - before <= 64
    assert [read(partition) for partition in partitions] == [[b"%d" % number] for number in range(300)]
    assert sum(isinstance(partition, Rows) for partition in partitions) == 300 - 64
