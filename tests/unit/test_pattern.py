"""Names of queues and the pattern for them: the same as Python says, and never for longer than some seconds."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_mq.errors import OptionError
from pyspark_mq.sources.queues import pattern as patterns
from pyspark_mq.sources.queues.pattern import QueueWatch, matching
from pyspark_mq.sources.runtime import Threads
from testbed.process import poll

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


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "a*a*a*a*a*a*a*a*a*a*b", "((a*)*)*b"])
def test_a_pattern_that_takes_for_ever_is_refused(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_MATCH_TIMEOUT_S", 0.5)
    began_s = time.monotonic()
    with pytest.raises(OptionError, match="took longer than") as refused:
        matching(pattern, ["a" * 200])
    assert time.monotonic() - began_s < 5
    assert refused.value.option == "queuePattern"
    assert pattern in str(refused.value)


def test_a_new_queue_whose_name_takes_for_ever_fails_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_MATCH_TIMEOUT_S", 0.5)
    names = ["aab"]
    watch = QueueWatch("(a+)+b", lambda: names, 0.02, 10, Threads())
    assert watch.begin() == ["aab"]
    names.append("a" * 200)

    def refused() -> bool:
        try:
            watch.seen()
        except OptionError as error:
            return error.option == "queuePattern"
        return False

    assert poll(refused, 20)
