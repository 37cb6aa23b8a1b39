"""The table drives the in-flight table: each change of a row is noticed by a test of the in-flight table.

A mutant is the table with one row changed: another target state, another action, or no row at all. The
tests of ``test_in_flight.py`` are run against each until one fails. A row that could be changed without
anybody noticing would be a row that decides nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest

from pyspark_mq.ack import TRANSITIONS, Action, Event, State, table
from tests.unit import test_in_flight

Row = tuple[State, Action]
Table = Mapping[tuple[State, Event], Row]

CHECKS: list[Callable[[], None]] = [
    check
    for name, check in inspect.getmembers(test_in_flight, inspect.isfunction)
    if name.startswith("test_") and not inspect.signature(check).parameters
]


def mutants(state: State, event: Event) -> dict[str, Table]:
    """Every table in which this row is another one."""
    target, action = TRANSITIONS[state, event]
    rows: list[Row] = [(other, action) for other in State if other is not target]
    rows += [(target, other) for other in Action if other is not action]
    changed = {f"{to.value}, {do.value}": {**TRANSITIONS, (state, event): (to, do)} for to, do in rows}
    return {**changed, "no row": {pair: row for pair, row in TRANSITIONS.items() if pair != (state, event)}}


def noticed() -> bool:
    for check in CHECKS:
        try:
            check()
        except (AssertionError, Exception, pytest.fail.Exception):  # noqa: BLE001
            return True
    return False


def test_the_table_as_it_is_passes_every_check() -> None:
    assert len(CHECKS) > 20
    assert not noticed(), "the table as it is fails: tests/unit/test_in_flight.py says where"


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=lambda part: part.value)
def test_every_change_of_a_row_is_noticed(state: State, event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    unnoticed = []
    for what, mutant in mutants(state, event).items():
        monkeypatch.setattr(table, "TRANSITIONS", MappingProxyType(mutant))
        if not noticed():
            unnoticed.append(what)
    assert unnoticed == []
