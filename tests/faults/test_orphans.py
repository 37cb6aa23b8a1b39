"""Rule 11: the receiver must not outlive the process that started it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.process import poll
from tests.support.checks import gone
from tests.support.engine import At, Crashed, ReaderProcess
from tests.support.entries import LiveEntry

MESSAGES = 20


pytestmark = [
    pytest.mark.contract("JVM killed: nobody keeps its messages"),
    pytest.mark.network,
    pytest.mark.sampled,
]


def options(entry: LiveEntry) -> dict[str, str]:
    return {name: str(value) for name, value in entry.options().items()}


def assert_lets_go(entry: LiveEntry, reader: int, held: int) -> None:
    assert poll(lambda: gone(reader), 5), "the reader outlived its parent"
    assert poll(lambda: entry.counts().ready == held, 30)


def test_a_reader_between_two_calls_ends_with_its_parent(entry: LiveEntry, tmp_path: Path) -> None:
    entry.publish(MESSAGES)
    process = ReaderProcess({**options(entry), "idLog": str(tmp_path)}, through_parent=True)
    start = process.call("initialOffset")
    while process.call("latestOffset", start, None) == start:
        pass
    assert poll(lambda: entry.counts().unacked == MESSAGES, 30)
    assert_lets_go(entry, process.kill_parent(), MESSAGES)


def test_a_reader_blocked_in_a_wait_ends_with_its_parent(entry: LiveEntry, tmp_path: Path) -> None:
    entry.publish(MESSAGES)
    with entry.engine(idLog=tmp_path) as run:
        with pytest.raises(Crashed):
            run.batch(crash=At.AFTER_OFFSET_LOG)
        planned = run._offsets[0]
        initial = run._initial
    # The planned messages are gone for good, so the replay waits for minutes.
    entry.node.delete(entry.queue)
    entry.declare(entry.queue)
    entry.publish(3)
    process = ReaderProcess({**options(entry), "idLog": str(tmp_path)}, through_parent=True)
    process.begin("partitions", initial, planned)
    assert poll(lambda: entry.counts().unacked == 3, 30)
    reader = process.pids()[-1]
    assert os.getppid() != reader
    assert_lets_go(entry, process.kill_parent(), 3)
