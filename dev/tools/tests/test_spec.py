"""The specification and the rules name each other; the page has what the tools say. What TLC says is in
tools/tests/test_tlc.py."""

from __future__ import annotations

import re

from tools.spec import MODULE, PAGE, RULES_PAGE, lines_of_rules, linked
from tools.spec_models import MODELS, RULES, SAFEGUARDS
from tools.tlc import SPEC

RULES_THERE = re.findall(r'<a id="rule-(\d+)"></a>', RULES_PAGE.read_text("utf-8"))


def test_every_rule_is_in_the_specification_once_and_no_other() -> None:
    found = re.findall(r"\brule (\d+):", MODULE.read_text("utf-8"))
    assert sorted(found, key=int) == RULES_THERE
    assert len(RULES_THERE) == 18


def test_every_rule_links_to_its_line() -> None:
    page = RULES_PAGE.read_text("utf-8")
    assert linked(page) == page, "the specification has moved on: run `make spec ARGS=--links`"
    links = re.findall(r"Journal\.tla#L(\d+)\)", page)
    assert [int(line) for line in links] == [lines_of_rules()[rule] for rule in RULES_THERE]


def test_a_link_to_another_line_is_written_again() -> None:
    page = RULES_PAGE.read_text("utf-8")
    assert linked(re.sub(r"tla#L\d+", "tla#L1", page)) == page


def test_every_rule_can_be_left_out_and_is_in_a_test() -> None:
    text = "".join(module.read_text("utf-8") for module in SPEC.glob("*.tla"))
    kept = set(re.findall(r'Keep\("([\w ]+)"\)', text))
    assert kept == {*RULES, *SAFEGUARDS}
    assert list(RULES) == RULES_THERE


def test_every_model_and_rule_is_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    assert [model.name for model in MODELS if f"| {model.name}" not in page] == []
    assert [rule for rule in RULES if f"| [{rule}](../design.md#rule-{rule}) |" not in page] == []
