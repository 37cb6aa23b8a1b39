"""What `make test` runs where: each test on the queue in memory, and dealt to the real cells."""

from __future__ import annotations

from collections import Counter

from tests.plugin import dealt
from tests.support.cells import CELLS
from tests.support.memory_cell import MEMORY_CELL

EVERYWHERE = [MEMORY_CELL, *CELLS]


def test_the_queue_in_memory_has_every_test() -> None:
    for turn in range(20):
        for every_protocol in (False, True):
            assert MEMORY_CELL in dealt(turn, EVERYWHERE, every_protocol=every_protocol)


def test_as_many_tests_as_there_are_cells_come_by_all_of_them() -> None:
    for first in range(10):
        counts = Counter(
            cell
            for turn in range(first, first + len(CELLS))
            for cell in dealt(turn, EVERYWHERE, every_protocol=False)
            if cell != MEMORY_CELL
        )
        assert set(counts.values()) == {1}
        assert set(counts) == set(CELLS)


def test_a_law_is_tested_on_each_protocol_and_in_turn_on_each_broker() -> None:
    protocols = {cell.protocol for cell in CELLS}
    met = set()
    for turn in range(6):
        cells = [cell for cell in dealt(turn, EVERYWHERE, every_protocol=True) if cell != MEMORY_CELL]
        assert Counter(cell.protocol for cell in cells) == dict.fromkeys(protocols, 1)
        met |= set(cells)
    assert met == set(CELLS)


def test_a_test_that_fits_a_few_cells_only_is_dealt_among_those() -> None:
    few = list(CELLS[:2])
    assert {cell for turn in range(4) for cell in dealt(turn, few, every_protocol=False)} == set(few)
