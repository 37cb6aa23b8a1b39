"""Names of queues and the pattern for them: the same as Python says."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_mq.sources.queues.pattern import matching

NAMES = ["orders", "orders.eu", "orders.us", "Orders", "payments", "caf\u00e9", "a,b", "a\nb", "", "x" * 255]


@pytest.mark.parametrize(
    "pattern",
    [
        "orders",
        "orders.*",
        "(?i)orders",
        "orders(\\.(eu|us))?",
        "[a-z.]+",
        "\\w+|a,b",
        ".{3,8}",
        "(\\w+\\.)*(eu|us)",
        "a.b",
    ],
)
def test_the_names_that_match_are_those_that_python_says(pattern: str) -> None:
    assert matching(pattern, NAMES) == [name for name in NAMES if re.fullmatch(pattern, name)]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["a.*", "(a|b)*", "\\w{2,}?c?", "[^.]+\\.[^.]+"]),
    st.lists(st.text(st.characters(codec=None), max_size=8), max_size=5),
)
def test_any_names_may_be_matched(pattern: str, names: list[str]) -> None:
    assert matching(pattern, names) == [name for name in names if re.fullmatch(pattern, name)]
