"""What `make test` runs where: each test on the queue in memory, and dealt to the real matrix entries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.plugin import dealt
from tests.support.entries import ENTRIES
from tests.support.memory_entry import MEMORY_ENTRY

ROOT = Path(__file__).parents[2]
#: One folder with a dealt test on each entry, one with drawn examples.
COLLECTED = ("tests/contract", "tests/faults/test_driver_matrix.py", "tests/property/test_runs.py")
DRAWING = ("tests/contract/test_session.py", "tests/property/test_runs.py")
EVERYWHERE = [MEMORY_ENTRY, *ENTRIES]


def test_the_queue_in_memory_has_every_test() -> None:
    for turn in range(20):
        for every_protocol in (False, True):
            assert MEMORY_ENTRY in dealt(turn, EVERYWHERE, every_protocol=every_protocol)


def test_as_many_tests_as_there_are_entries_come_by_all_of_them() -> None:
    for first in range(10):
        counts = Counter(
            entry
            for turn in range(first, first + len(ENTRIES))
            for entry in dealt(turn, EVERYWHERE, every_protocol=False)
            if entry != MEMORY_ENTRY
        )
        assert set(counts.values()) == {1}
        assert set(counts) == set(ENTRIES)


def test_a_contract_is_tested_on_each_protocol_and_in_turn_on_each_broker() -> None:
    protocols = {entry.protocol for entry in ENTRIES}
    met = set()
    for turn in range(6):
        entries = [entry for entry in dealt(turn, EVERYWHERE, every_protocol=True) if entry != MEMORY_ENTRY]
        assert Counter(entry.protocol for entry in entries) == dict.fromkeys(protocols, 1)
        met |= set(entries)
    assert met == set(ENTRIES)


def test_a_test_that_fits_a_few_entries_only_is_dealt_among_those() -> None:
    few = list(ENTRIES[:2])
    assert {entry for turn in range(4) for entry in dealt(turn, few, every_protocol=False)} == set(few)


def collected(*arguments: str) -> set[str]:
    """Names of the tests of a run, which also does without pytest-xdist."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", "-q", *arguments, *COLLECTED]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:]
    return {line for line in ran.stdout.splitlines() if "::" in line}


@pytest.mark.whole
def test_make_test_and_the_three_thirds_are_everything() -> None:
    thirds = [collected("--all", "--third", str(third)) for third in (1, 2, 3)]
    short, everything = collected(), collected("--all")
    assert everything <= set().union(short, *thirds)
    assert all(thirds)
    assert all(one.isdisjoint(other) for one in thirds for other in thirds if one is not other)
    # What draws its examples is in both, as it draws more of them with --all.
    assert {name for third in thirds for name in third & short if not name.startswith(DRAWING)} == set()
