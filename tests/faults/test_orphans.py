"""Rule 11: the receiver must not outlive the process that started it."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from testbed.process import poll
from tests.support.cells import LiveCell
from tests.support.engine import At, Crashed, ReaderProcess

MESSAGES = 20


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


pytestmark = [
    pytest.mark.law("JVM killed: nobody keeps its messages"),
    pytest.mark.network,
    pytest.mark.sampled,
]


def options(cell: LiveCell) -> dict[str, str]:
    return {name: str(value) for name, value in cell.options().items()}


def assert_lets_go(cell: LiveCell, reader: int, held: int) -> None:
    assert poll(lambda: gone(reader), 5), "the reader outlived its parent"
    assert poll(lambda: cell.counts().ready == held, 30)


def test_a_reader_between_two_calls_ends_with_its_parent(cell: LiveCell, tmp_path: Path) -> None:
    cell.publish(MESSAGES)
    process = ReaderProcess({**options(cell), "idLog": str(tmp_path)}, through_parent=True)
    start = process.call("initialOffset")
    while process.call("latestOffset", start, None) == start:
        pass
    assert poll(lambda: cell.counts().unacked == MESSAGES, 30)
    assert_lets_go(cell, process.kill_parent(), MESSAGES)


def test_a_reader_blocked_in_a_wait_ends_with_its_parent(cell: LiveCell, tmp_path: Path) -> None:
    cell.publish(MESSAGES)
    with cell.engine(idLog=tmp_path) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        planned = run._offsets[0]
        initial = run._initial
    # The planned messages are gone for good, so the replay waits for minutes.
    cell.node.delete(cell.queue)
    cell.declare(cell.queue)
    cell.publish(3)
    process = ReaderProcess({**options(cell), "idLog": str(tmp_path)}, through_parent=True)
    process.begin("partitions", initial, planned)
    assert poll(lambda: cell.counts().unacked == 3, 30)
    reader = process.pids()[-1]
    assert os.getppid() != reader
    assert_lets_go(cell, process.kill_parent(), 3)
