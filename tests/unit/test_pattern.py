"""Names of queues and the pattern for them: the same as Python says, and never for longer than some seconds."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_mq.errors import BrokerUnavailableError, OptionError
from pyspark_mq.sources.queues import pattern as patterns
from pyspark_mq.sources.queues.pattern import QueueWatch, matching
from pyspark_mq.sources.runtime import Threads
from testbed.process import poll
from tests.support.sockets import LIMIT_S

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
    monkeypatch.setattr(patterns, "_MATCH_CPU_S", 1)
    began_s = time.monotonic()
    with pytest.raises(OptionError, match="took longer than") as refused:
        matching(pattern, ["a" * 200])
    assert time.monotonic() - began_s < 30
    assert refused.value.option == "queuePattern"
    assert pattern in str(refused.value)


def test_a_pattern_is_not_blamed_for_time_in_which_it_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is busy, or that was paused."""
    monkeypatch.setattr(patterns, "_MATCH", f"import time; time.sleep(1.5)\n{patterns._MATCH}")
    monkeypatch.setattr(patterns, "_MATCH_CPU_S", 1)
    assert matching("(a+)+b", ["aab", "a"]) == ["aab"]


FATES = ["raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)", "import time; time.sleep(9)"]


@pytest.mark.parametrize("fate", FATES)
def test_names_that_could_not_be_matched_are_matched_later(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = QueueWatch("(a+)+b", lambda: ["aab"], 0.02, 10, Threads())
    with monkeypatch.context() as broken:
        broken.setattr(patterns, "_MATCH", fate)
        broken.setattr(patterns, "_MATCH_TIMEOUT_S", 0.5)
        with pytest.raises(BrokerUnavailableError, match=r"'\(a\+\)\+b' cannot be matched with 1 names of queues"):
            watch.look()
    assert watch.begin() == ["aab"]
    watch.stop()


def test_a_new_queue_whose_name_takes_for_ever_fails_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_MATCH_CPU_S", 1)
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

    assert poll(refused, LIMIT_S)
