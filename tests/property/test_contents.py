"""The rules that say which message a delivery without an ID is: each of them, left out, loses or doubles a message.

The histories and their oracle are those of tests/unit/test_contents.py: a broker, Spark's calls, and counts of what was
published and emitted.
"""

from __future__ import annotations

import inspect
import itertools
import types

import pytest

from pyspark_mq.ack import content_matcher, in_flight
from pyspark_mq.errors import MqError
from tests.support.effort import each_of
from tests.unit.test_contents import (
    Contents,
    a_history,
    test_what_is_acknowledged_in_a_half_open_session_is_not_emitted_again,
)
from tests.unit.test_contents_limits import (
    test_a_settled_redelivery_is_not_waited_for_by_the_next_process,
    test_runs_with_trigger_once_get_on,
)

#: A rule: what stands for it in the code, and what stands there without it.
RULES = {
    "a planned message without a handle comes first": (
        "            found = self._next_waiting(digest, in_flight)\n", "            found = None\n"
    ),
    "what has no flag is new": ("            new = sure and self._proves\n", "            new = False\n"),
    "a committed message without a handle comes": (
        "        if not self._coming.get(digest):\n", "        if True:\n"
    ),
    "what was left open is dropped": ("        if key in left and ", "        if False and "),
    "what another session holds is that": ("        return key in elsewhere and ", "        return False and "),
    "what repeats is not dropped": ("        return key not in repeats and ", "        return "),
    "a session brings a message once": (
        "session not in self._again.get(digest, ())", "True"
    ),
    "two messages of a content repeat": (
        "                if held or key in known or key in repeats:\n", "                if key in repeats:\n"
    ),
    "an echo is not emitted": ("                self._echoes[found] = expected\n", ""),
}  # fmt: skip

#: Histories that break without a rule which others take long to break: seed, contents, proves, shows_start.
TELLING = [(1, 20, False, True), (1, None, True, False), (0, None, True, False), (0, None, True, True)]


def _without(rule: str) -> types.ModuleType:
    old, new = RULES[rule]
    source = inspect.getsource(content_matcher)
    assert source.count(old) == 1, f"{rule!r} is not in the code as {old!r}"
    module = types.ModuleType(content_matcher.__name__)
    exec(compile(source.replace(old, new), content_matcher.__file__, "exec"), module.__dict__)
    return module


def _at_random(seed: int, contents: int | None, *, proves: bool, shows_start: bool) -> None:
    one = Contents(proves=proves, shows_start=shows_start)
    if contents is not None:  # it is known of each that it repeats
        one.publish(*(f"content {number % contents}" for number in range(2 * contents)))
        one.trigger()
        one.trigger()
    a_history(one, seed, contents)
    lost, twice = one.lost_and_twice
    assert lost == 0
    assert twice == 0 or contents is not None


def _two_come_in_one_session() -> None:
    one = Contents(proves=False)
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    one.scene.query.crash()
    one.publish("21 degrees", "21 degrees")
    assert one.lost_and_twice[0] <= 1


def _two_come_in_two_sessions() -> None:
    one = Contents(proves=True, consumers=2)
    one.publish("21 degrees", "21 degrees")
    assert one.lost_and_twice == (0, 0)


def _one_without_a_flag_comes_after_a_cut() -> None:
    one = Contents(proves=True)
    one.publish("21 degrees")
    one.trigger()
    one.trigger()
    one.scene.broker.cut(lose_acks=False)
    one.scene.world.let_pass(5.0)
    one.publish("21 degrees")
    assert one.lost_and_twice == (0, 0)


def test_one_without_a_flag_is_emitted_after_a_cut() -> None:
    _one_without_a_flag_comes_after_a_cut()


def test_of_two_that_come_in_two_sessions_each_is_emitted() -> None:
    _two_come_in_two_sessions()


def test_of_two_that_come_in_one_session_one_is_emitted() -> None:
    _two_come_in_one_session()


@pytest.mark.parametrize("rule", each_of([*RULES], 3))
def test_a_rule_that_is_left_out_loses_or_doubles_a_message(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "ContentMatcher", _without(rule).__dict__["ContentMatcher"])

    def every() -> None:
        _two_come_in_one_session()
        _two_come_in_two_sessions()
        _one_without_a_flag_comes_after_a_cut()
        for seed, contents, proves, shows in TELLING:
            _at_random(seed, contents, proves=proves, shows_start=shows)
        for triggers, which in itertools.product((1, 2, 3), (0, 1)):
            test_what_is_acknowledged_in_a_half_open_session_is_not_emitted_again(triggers, which)
        test_a_settled_redelivery_is_not_waited_for_by_the_next_process()
        test_runs_with_trigger_once_get_on(proves=False)
        for seed, contents, proves, shows in itertools.product(range(30), (None, 1, 20), (True, False), (True, False)):
            _at_random(seed, contents, proves=proves, shows_start=shows)

    with pytest.raises((AssertionError, MqError)):
        every()
