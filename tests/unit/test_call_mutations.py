"""The tables of Spark's calls drive the source: each change of a row is noticed by a check of `test_calls.py`.

A mutant is a table with one row changed, taken away, or added where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

import pytest

from pyspark_mq.sources import calls
from pyspark_mq.sources.calls import EPOCHS, SHOWING, Act, Call, Committed, EpochPlace, First
from tests.unit.test_calls import CHECKS, NAMES, SHOWS, check_first, test_every_pair_is_decided

FIRSTS = (First.NOTHING, First.FIND, First.LEARN, First.FIND | First.LEARN)


def unnoticed(table: str, mutants: dict[str, Any], checks: Iterable[Callable[[], None]]) -> list[str]:
    """Name the mutants that pass every check."""
    passed = []
    for what, mutant in mutants.items():
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(calls, table, MappingProxyType(mutant))
            if not any(map(_fails, checks)):
                passed.append(what)
    return passed


def _fails(check: Callable[[], None]) -> bool:
    try:
        check()
    except (AssertionError, Exception, pytest.fail.Exception):  # noqa: BLE001
        return True
    return False


def test_the_tables_as_they_are_pass_every_check() -> None:
    assert unnoticed("EPOCHS", {"as it is": dict(EPOCHS)}, [*CHECKS, test_every_pair_is_decided]) == ["as it is"]


@pytest.mark.parametrize("shown", Committed, ids=lambda one: one.value)
@pytest.mark.parametrize("call", SHOWS, ids=lambda one: one.value)
def test_every_change_of_what_comes_first_is_noticed(call: Call, shown: Committed) -> None:
    first, then = SHOWING[call, shown]
    rows = [(other, then) for other in FIRSTS if other != first] + [
        (first, other) for other in Committed if other is not then
    ]
    mutants: dict[str, Any] = {f"{row}": {**SHOWING, (call, shown): row} for row in rows}
    mutants["no row"] = {pair: row for pair, row in SHOWING.items() if pair != (call, shown)}
    assert unnoticed("SHOWING", mutants, [partial(check_first, call, shown)]) == []


# LATEST meets nothing that is planned or begun, as the COMMIT before it refuses or settles that: no check can notice a
# row there.
@pytest.mark.parametrize(
    ("call", "epoch"),
    [
        pair
        for pair in product(NAMES, EpochPlace)
        if pair == (Call.LATEST, EpochPlace.ELSEWHERE) or pair[0] != Call.LATEST
    ],
    ids=lambda one: one.value,
)
def test_every_change_of_what_becomes_of_an_epoch_is_noticed(call: Call, epoch: EpochPlace) -> None:
    pair = call, epoch
    mutants: dict[str, Any] = {act.value: {**EPOCHS, pair: act} for act in Act if EPOCHS.get(pair) is not act}
    if pair in EPOCHS:
        mutants["no row"] = {other: act for other, act in EPOCHS.items() if other != pair}
    assert unnoticed("EPOCHS", mutants, CHECKS) == []
