"""TLC on the specification: what holds on the models, and what fails without each rule, is what the page says.

With `--all` only. `make spec` checks larger models, too.
"""

from __future__ import annotations

import pytest

from tools.spec import PAGE, model_row, rule_row
from tools.spec_models import QUICK, RULES, SAFEGUARDS, without
from tools.tlc import LASTING, Model, check

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900), pytest.mark.usefixtures("checker")]

STALE = "docs/reports/specification.md is not what the checker says: run `make spec`"


@pytest.mark.parametrize("rule", [*RULES, *SAFEGUARDS])
def test_without_a_rule_something_fails(rule: str) -> None:
    outcome = check(without(rule), heap="1g")
    assert outcome.violated is not None, "nothing notices that it is gone"
    row = f"{rule_row(rule, outcome)}\n"
    if outcome.violated in LASTING:  # which of those that never get there is found first does not matter
        row = row.rpartition("| ")[0].rpartition("| ")[0]
    assert row in PAGE.read_text("utf-8"), STALE


@pytest.mark.parametrize("model", QUICK, ids=lambda model: model.name)
def test_every_property_holds(model: Model) -> None:
    outcome = check(model, heap="1g")
    assert outcome.violated is None, outcome.told
    assert f"{model_row(model, outcome)}\n" in PAGE.read_text("utf-8"), STALE
