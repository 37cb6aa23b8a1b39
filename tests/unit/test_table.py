"""The table of a delivery's life, read as a specification."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_mq.ack import TRANSITIONS, Action, Event, IllegalEventError, State, step

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
EVERY_PAIR = [(state, event) for state in State for event in Event]


@pytest.mark.parametrize(("state", "event"), EVERY_PAIR)
def test_every_pair_is_either_in_the_table_or_an_error_that_names_both(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event) == TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalEventError) as caught:
        step(state, event)
    assert state.value in str(caught.value)
    assert event.value in str(caught.value)


def test_nothing_is_acknowledged_before_its_epoch_is_committed() -> None:
    for (_, event), (target, action) in TRANSITIONS.items():
        if action is Action.ACKNOWLEDGE:
            assert target is State.COMMITTED, event


def test_only_proof_of_a_commit_leads_from_open_to_committed() -> None:
    open_states = {State.UNSEEN, State.RECEIVED, State.PLANNED}
    proofs = {
        event
        for (state, event), (target, _) in TRANSITIONS.items()
        if state in open_states and target is State.COMMITTED
    }
    assert proofs == {Event.COMMIT, Event.BEGIN}  # an echo is of an epoch that is committed


def test_a_delivery_is_accepted_in_every_state() -> None:
    assert {state for state, event in TRANSITIONS if event is Event.DELIVER} == set(State)


def test_a_dropped_delivery_is_always_acknowledged() -> None:
    assert TRANSITIONS[State.COMMITTED, Event.DELIVER] == (State.COMMITTED, Action.ACKNOWLEDGE)


def test_the_end_of_a_session_changes_no_state_that_a_checkpoint_knows() -> None:
    for state in (State.PLANNED, State.COMMITTED):
        assert TRANSITIONS[state, Event.LOSE][0] is state
    assert TRANSITIONS[State.RECEIVED, Event.LOSE] == (State.UNSEEN, Action.FORGET)


def test_every_state_can_be_reached_and_all_but_the_last_can_be_left() -> None:
    reached = {State.UNSEEN}
    while True:
        more = {target for (state, _), (target, _) in TRANSITIONS.items() if state in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(State)
    # What ends a committed message is a number, and happens to many together.
    left = {state for (state, _), (target, _) in TRANSITIONS.items() if target is not state}
    assert left == set(State) - {State.COMMITTED}


def test_the_rules_that_the_code_cites_are_in_the_docs() -> None:
    text = DESIGN.read_text("utf-8")
    rules = [int(number) for number in re.findall(r'^(\d+)\. <a id="rule-\1"></a>', text, re.MULTILINE)]
    assert rules == list(range(1, 19))
    assert "\n## The rules\n" in text
    for path in sorted((DESIGN.parents[1] / "pyspark_mq").rglob("*.py")):
        cited = {int(number) for number in re.findall(r"\b[Rr]ule (\d+)", path.read_text("utf-8"))}
        assert cited <= set(rules), path


@pytest.mark.parametrize("name", ["ack/table.py", "ack/in_flight.py", "errors.py"])
def test_a_module_that_cites_a_rule_says_where_the_rules_are(name: str) -> None:
    source = (DESIGN.parents[1] / "pyspark_mq" / name).read_text("utf-8")
    assert re.search(r"\b[Rr]ule \d", source)
    assert "docs/design.md#the-rules" in source.partition('\n"""\n')[0]
