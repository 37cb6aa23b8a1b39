"""The ledger, rule by rule."""

from __future__ import annotations

from string import ascii_lowercase

import pytest

from pyspark_mq.ack import TRANSITIONS, Acknowledgements, Event, IllegalEventError, Ledger, SessionAcks, State, table
from pyspark_mq.dedup import Memory, QueueMemory

GRACE_S = 5.0
#: Messages of a run: each check of this page is done with as many runs as can be, and with none.
RUN_MINS = (1, 1_000_000)
run_min = RUN_MINS[0]


@pytest.fixture(params=RUN_MINS, ids=["runs", "no runs"], autouse=True)
def _with_and_without_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "run_min", request.param)


def make(**changes: object) -> Ledger[str, str]:
    memory = QueueMemory(Memory(100_000, 1_000, b"secret"), "orders")
    settings = {"grace_s": GRACE_S, "memory": memory, "run_min": run_min, **changes}
    ledger: Ledger[str, str] = Ledger(**settings)  # type: ignore[arg-type]
    ledger.open_session(1)
    return ledger


def remember(ledger: Ledger[str, str], keys: str) -> None:
    """Have these be committed by a former process."""
    assert ledger._memory is not None
    ledger._memory.committed(99, list(keys))


def left(ledger: Ledger[str, str]) -> str:
    """What was left open."""
    return "".join(sorted(ledger.left_among(ascii_lowercase)))


def deliver(ledger: Ledger[str, str], keys: str, session: int = 1, first: int = 1) -> Acknowledgements | None:
    """Deliver one message per letter; tags count from `first`."""
    tags = list(range(first, first + len(keys)))
    return ledger.deliver(session, tags, list(keys), [f"{key}@{session}" for key in keys])


def planned(keys: str) -> Ledger[str, str]:
    ledger = make()
    deliver(ledger, keys)
    ledger.plan(1, len(keys))
    return ledger


def committed(keys: str) -> tuple[Ledger[str, str], Acknowledgements]:
    """A ledger that has committed one epoch."""
    ledger = planned(keys)
    due = ledger.commit(1)
    assert due is not None
    return ledger, due


def settle(ledger: Ledger[str, str], due: Acknowledgements | None, session: int = 1, now_s: float = 0) -> None:
    assert due is not None
    ledger.confirm(due.number, session, now_s)
    ledger.settling.asked(-1, [session], now_s + GRACE_S)
    ledger.confirm(-1, session, now_s + GRACE_S)


def emitted(ledger: Ledger[str, str], epoch: int) -> list[str]:
    return ledger.planned.payloads(epoch)


def state(ledger: Ledger[str, str], key: str) -> State:
    return ledger.states(key)(key)


def states(ledger: Ledger[str, str], keys: str) -> set[State]:
    return {state(ledger, key) for key in keys}


def test_an_epoch_is_the_oldest_messages_in_their_order() -> None:
    ledger = make()
    deliver(ledger, "dcba")
    ledger.plan(1, 3)
    assert [*ledger.planned.keys(1)] == ["d", "c", "b"]
    assert emitted(ledger, 1) == ["d@1", "c@1", "b@1"]
    assert len(ledger.received) == 1
    assert state(ledger, "a") is State.RECEIVED


def test_what_was_passed_over_is_covered_by_no_acknowledgement() -> None:
    ledger = make()
    deliver(ledger, "ab")
    ledger.pass_over(1, 4)
    ledger.pass_over(1, 3)
    deliver(ledger, "cd", first=5)
    ledger.plan(1, 4)
    due = ledger.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=2, singles=(5, 6), deliveries=4),)
    dropped = deliver(ledger, "ad", first=7)
    assert dropped is not None
    assert dropped.parts == (SessionAcks(session=1, upto=0, singles=(7, 8), deliveries=2),)


def test_nothing_is_due_before_the_commit() -> None:
    ledger = make()
    assert deliver(ledger, "abc") is None
    ledger.plan(1, 3)
    assert deliver(ledger, "abc", first=4) is None
    assert ledger.commit(0) is None
    assert ledger.unacked == 6


def test_a_commit_acknowledges_up_to_the_last_delivery_of_the_epoch_and_no_further() -> None:
    ledger = make()
    deliver(ledger, "abcde")
    ledger.plan(1, 3)
    due = ledger.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=3, singles=(), deliveries=3),)
    assert ledger.unacked == 2


def test_an_unacknowledged_message_in_front_of_the_epoch_is_never_covered() -> None:
    ledger = make()
    ledger.restore_planned(1, ["c", "d"])
    deliver(ledger, "abcde")
    due = ledger.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=0, singles=(3, 4), deliveries=2),)


def test_a_producers_duplicate_is_dropped_counted_and_acknowledged_with_the_first() -> None:
    ledger = make()
    deliver(ledger, "abcab")
    assert ledger.counters.duplicates_dropped == 2
    ledger.plan(1, 2)
    due = ledger.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=2, singles=(4, 5), deliveries=4),)
    assert state(ledger, "c") is State.RECEIVED


def test_a_duplicate_of_a_committed_message_is_acknowledged_on_sight() -> None:
    ledger, _ = committed("ab")
    due = deliver(ledger, "xb", first=3)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=0, singles=(4,), deliveries=1),)
    assert len(ledger.received) == 1


def test_a_lost_session_gives_back_what_was_only_received() -> None:
    ledger = make()
    deliver(ledger, "abcd")
    ledger.plan(1, 2)
    ledger.lose(1)
    assert states(ledger, "ab") == {State.PLANNED}
    assert states(ledger, "cd") == {State.UNSEEN}
    assert ledger.counters.returned == 2
    assert emitted(ledger, 1) == ["a@1", "b@1"]


def test_what_comes_again_in_a_new_session_is_acknowledged_under_its_new_handle() -> None:
    ledger = planned("ab")
    ledger.lose(1)
    ledger.open_session(2)
    deliver(ledger, "ab", session=2)
    due = ledger.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=2, upto=2, singles=(), deliveries=2),)


def test_an_epoch_committed_while_disconnected_is_acknowledged_when_it_comes_again() -> None:
    ledger = planned("ab")
    ledger.lose(1)
    assert ledger.commit(1) is None
    ledger.open_session(2)
    due = deliver(ledger, "abc", session=2)
    assert due is not None
    assert due.parts == (SessionAcks(session=2, upto=2, singles=(), deliveries=2),)
    assert len(ledger.received) == 1


# -- what an acknowledgement settles, and what an end leaves ----------------------------------------


def test_an_answer_settles_that_was_asked_for_after_the_grace() -> None:
    ledger, due = committed("ab")
    settling = ledger.settling
    assert settling.unconfirmed()
    assert not settling.asks(1e9)
    ledger.confirm(due.number, 1, now_s=10)
    ledger.confirm(due.number, 1, now_s=11)
    assert not settling.unconfirmed()
    assert (ledger.counters.settled, ledger.expected) == (2, 2)
    assert [settling.asks(10 + GRACE_S - 0.1), settling.asks(10 + GRACE_S)] == [False, True]
    settling.asked(8, [1], 10 + GRACE_S - 0.1)
    ledger.confirm(8, 1, now_s=1e9)
    assert settling.asks(1e9)
    settling.asked(9, [1], 10 + GRACE_S)
    assert not settling.asks(1e9)
    assert settling.epochs == {1}
    ledger.confirm(9, 1, now_s=10 + GRACE_S)
    assert settling.epochs == set()
    assert (ledger.counters.settled, ledger.expected) == (2, 0)
    ledger.lose(1)
    assert left(ledger) == ""
    assert states(ledger, "ab") == {State.COMMITTED}


@pytest.mark.parametrize("confirmed", [False, True])
def test_an_end_leaves_what_is_not_settled(confirmed: bool) -> None:
    ledger, due = committed("ab")
    if confirmed:
        ledger.confirm(due.number, 1, now_s=0)
    ledger.settling.asked(8, [1], GRACE_S)
    ledger.lose(1)
    ledger.confirm(due.number, 1, now_s=0)
    ledger.confirm(8, 1, now_s=1e9)
    assert ledger.counters.settled == (2 if confirmed else 0)
    assert (left(ledger), ledger.expected, ledger.settling.epochs) == ("ab", 0, set())


def test_the_end_of_another_session_leaves_nothing_and_its_answers_settle_nothing() -> None:
    ledger, due = committed("ab")
    ledger.open_session(2)
    ledger.confirm(due.number, 1, now_s=0)
    ledger.settling.asked(8, [2], 1e9)
    ledger.confirm(8, 2, now_s=1e9)
    assert ledger.settling.asks(GRACE_S)
    ledger.settling.asked(9, [1, 2], GRACE_S)
    ledger.lose(2)
    assert left(ledger) == ""
    assert ledger.expected == 2
    ledger.confirm(9, 1, now_s=GRACE_S)
    assert ledger.expected == 0


def test_of_two_sessions_that_have_a_message_the_end_of_one_leaves_it() -> None:
    ledger = planned("a")
    ledger.open_session(2)
    deliver(ledger, "a", session=2)
    due = ledger.commit(1)
    settle(ledger, due, session=2)
    ledger.lose(2)
    assert left(ledger) == ""
    ledger.lose(1)
    assert left(ledger) == "a"


def test_what_is_committed_without_a_handle_is_left_alone() -> None:
    ledger = planned("abc")
    ledger.lose(1)
    ledger.open_session(2)
    deliver(ledger, "b", session=2)
    due = ledger.commit(1)
    assert left(ledger) == "ac"
    settle(ledger, due, session=2)
    ledger.lose(2)
    assert left(ledger) == "ac"


def test_what_never_came_is_left_when_its_epoch_is_committed() -> None:
    ledger = make()
    ledger.restore_planned(1, ["a", "b"])
    deliver(ledger, "a")
    ledger.commit(1)
    assert left(ledger) == "b"


def test_what_is_found_to_be_committed_without_a_handle_is_left() -> None:
    ledger = planned("ab")
    ledger.lose(1)
    ledger.open_session(2)
    deliver(ledger, "c", session=2)
    remember(ledger, "ac")
    assert ledger.restore_committed() is not None
    assert left(ledger) == "a"


def test_what_has_all_its_handles_again_is_not_left() -> None:
    ledger = planned("ab")
    ledger.lose(1)
    ledger.open_session(2)
    deliver(ledger, "ba", session=2)
    ledger.commit(1)
    assert left(ledger) == ""


def test_what_comes_again_and_again_adds_nothing_to_what_is_not_settled() -> None:
    ledger, due = committed("a")
    settle(ledger, due)
    for tag in range(2, 200):
        again = deliver(ledger, "a", first=tag)
        assert again is not None
        ledger.settling.asked(again.number, [1], tag)
        ledger.confirm(again.number, 1, now_s=tag)
        assert ledger.expected <= GRACE_S + 1


def test_what_comes_again_is_left_only_if_its_own_session_ends() -> None:
    ledger, due = committed("abc")
    settle(ledger, due)
    deliver(ledger, "b", first=4)
    assert left(ledger) == ""
    ledger.lose(1)
    assert left(ledger) == "b"


def test_what_somebody_else_has_committed_is_acknowledged_and_not_known_here() -> None:
    ledger = make()
    due = ledger.deliver(1, [1, 2], ["a", "b"], ["a", "b"], elsewhere={"a"})
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=1, singles=(), deliveries=1),)
    assert (state(ledger, "a"), state(ledger, "b")) == (State.UNSEEN, State.RECEIVED)
    assert ledger.counters.duplicates_dropped == 1


# -- several handles, replays -----------------------------------------------------------------------


def test_a_message_held_in_two_sessions_is_acknowledged_in_both() -> None:
    ledger = planned("ab")
    ledger.open_session(2)
    deliver(ledger, "b", session=2)
    due = ledger.commit(1)
    assert due is not None
    assert [(part.session, part.upto) for part in due.parts] == [(1, 2), (2, 1)]
    ledger.confirm(due.number, 2, now_s=0)
    assert not ledger.settling.unconfirmed(due.number + 1)
    assert ledger.settling.unconfirmed(due.number)
    ledger.confirm(due.number, 1, now_s=0)
    assert not ledger.settling.unconfirmed(due.number)
    assert ledger.counters.settled == 3


def test_a_buffered_message_that_another_session_holds_too_survives_the_first_ones_end() -> None:
    ledger = make()
    deliver(ledger, "ab")
    ledger.open_session(2)
    deliver(ledger, "b", session=2)
    ledger.lose(1)
    assert state(ledger, "a") is State.UNSEEN
    assert state(ledger, "b") is State.RECEIVED


def test_a_replay_waits_for_exactly_the_planned_and_keeps_their_order() -> None:
    ledger = make()
    remember(ledger, "z")
    ledger.restore_planned(7, ["c", "a", "b"])
    due = deliver(ledger, "zxab")
    assert due is not None
    assert due.parts[0].upto == 1
    assert ledger.planned.missing(7) == ["c"]
    deliver(ledger, "c", first=5)
    assert ledger.planned.epochs[7].missing == 0
    assert emitted(ledger, 7) == ["c@1", "a@1", "b@1"]
    assert len(ledger.received) == 1
    assert ledger.counters.rebound == 3


def test_a_message_given_up_counts_as_new_if_it_turns_up_after_all() -> None:
    ledger = make()
    ledger.restore_planned(7, ["a", "b"])
    deliver(ledger, "a")
    ledger.abandon(7)
    assert emitted(ledger, 7) == ["a@1"]
    assert ledger.counters.lost == 1
    deliver(ledger, "b", first=2)
    assert state(ledger, "b") is State.RECEIVED


def test_ids_learnt_as_committed_after_they_were_planned_are_taken_out_and_acknowledged() -> None:
    ledger = make()
    deliver(ledger, "abcd")
    ledger.plan(1, 2)
    remember(ledger, "acq")
    due = ledger.restore_committed()
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=1, singles=(3,), deliveries=2),)
    assert emitted(ledger, 1) == ["b@1"]
    assert len(ledger.received) == 1


def test_learning_again_what_is_committed_changes_nothing() -> None:
    ledger, _ = committed("ab")
    assert ledger.restore_committed() is None
    assert ledger.counters.duplicates_dropped == 0


def test_a_replay_leaves_out_what_is_committed() -> None:
    ledger, _ = committed("ab")
    ledger.restore_planned(7, ["a", "x", "b"])
    assert states(ledger, "ab") == {State.COMMITTED}
    assert ledger.planned.keys(7) == ("x",)
    assert (left(ledger), ledger.counters.duplicates_dropped) == ("", 0)


def test_bytes_are_those_of_what_is_kept() -> None:
    ledger = make(weigh=lambda payloads: sum(map(len, payloads)))
    deliver(ledger, "abcda")  # three bytes each
    assert (ledger.received.weight, ledger.planned.weight) == (12, 0)
    ledger.plan(1, 3)
    assert (ledger.received.weight, ledger.planned.weight) == (3, 9)
    deliver(ledger, "ab", first=6)
    assert (ledger.received.weight, ledger.planned.weight) == (3, 9)
    remember(ledger, "bd")
    ledger.restore_committed()
    assert (ledger.received.weight, ledger.planned.weight) == (0, 6)
    deliver(ledger, "ef", first=8)
    ledger.open_session(2)
    deliver(ledger, "f", session=2)
    ledger.lose(1)
    assert (ledger.received.weight, ledger.planned.weight) == (3, 6)
    ledger.commit(1)
    assert (ledger.received.weight, ledger.planned.weight) == (3, 0)
    ledger.restore_planned(2, "xyz")
    deliver(ledger, "axz", session=2, first=2)
    assert (ledger.received.weight, ledger.planned.weight) == (3, 6)
    ledger.abandon(2)
    assert (ledger.received.weight, ledger.planned.weight) == (3, 6)
    ledger.commit(2)
    assert (ledger.received.weight, ledger.planned.weight) == (3, 0)


def test_counters_are_a_snapshot() -> None:
    ledger = make()
    before = ledger.counters
    deliver(ledger, "a")
    assert (before.received, ledger.counters.received) == (0, 1)


def test_without_remembering_a_committed_message_is_forgotten_and_a_confirmation_settles() -> None:
    ledger = make(memory=None)
    deliver(ledger, "ab")
    ledger.plan(1, 2)
    due = ledger.commit(1)
    assert due is not None
    assert states(ledger, "ab") == {State.UNSEEN}
    ledger.confirm(due.number, 1, now_s=0)
    assert (ledger.expected, ledger.settling.asks(1e9)) == (0, False)
    deliver(ledger, "c", first=3)
    ledger.plan(2, 1)
    ledger.commit(2)
    ledger.lose(1)
    assert (left(ledger), ledger.expected) == ("", 0)
    assert ledger.restore_committed() is None


def test_an_epoch_left_open_takes_its_messages_back_from_wherever_they_are() -> None:
    ledger = make(weigh=lambda payloads: sum(map(len, payloads)))
    deliver(ledger, "abcdef")
    ledger.plan(9, 3)
    ledger.restore_planned(1, ["e", "x", "b"])
    assert ledger.planned.keys(1) == ("e", "x", "b")
    assert ledger.planned.missing(1) == ["x"]
    assert ledger.planned.keys(9) == ("a", "c")
    assert left(ledger) == ""
    assert len(ledger.received) == 2
    assert (ledger.received.weight, ledger.planned.weight) == (6, 12)
    deliver(ledger, "x", first=7)
    assert emitted(ledger, 1) == ["e@1", "x@1", "b@1"]
    due = ledger.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=0, singles=(2, 5, 7), deliveries=3),)
    assert states(ledger, "ac") == {State.PLANNED}
    assert states(ledger, "df") == {State.RECEIVED}


def test_an_epoch_left_open_may_take_one_that_waits_for_its_payload() -> None:
    ledger = make()
    ledger.restore_planned(5, ["a", "b"])
    ledger.restore_planned(4, ["b"])
    assert (ledger.planned.epochs[4].missing, ledger.planned.epochs[5].missing) == (1, 1)
    deliver(ledger, "ab")
    assert (emitted(ledger, 4), emitted(ledger, 5)) == (["b@1"], ["a@1"])


def test_what_the_table_does_not_have_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = make()
    deliver(ledger, "ab")
    without = {pair: row for pair, row in TRANSITIONS.items() if pair != (State.RECEIVED, Event.RESTORE_PLANNED)}
    monkeypatch.setattr(table, "TRANSITIONS", without)
    with pytest.raises(IllegalEventError):
        ledger.restore_planned(1, ["x", "a"])
    assert state(ledger, "x") is State.UNSEEN
    assert state(ledger, "a") is State.RECEIVED
    assert 1 not in ledger.planned.epochs


# -- payloads that are held in another form ---------------------------------------------------------


def test_what_a_delivery_left_here_is_told_by_its_place() -> None:
    ledger, _ = committed("ab")
    payloads = ["a@1", "c@1", "b@1", "d@1"]
    ledger.deliver(1, [11, 12, 13, 14], list("acbd"), payloads)
    assert ledger.held(list("acbd"), payloads) == [1, 3]
    assert ledger.held(list("cd"), ["".join(["c", "@", "2"]), "d@2"]) == []


def test_a_payload_in_another_form_is_what_is_emitted_whatever_state_it_is_in() -> None:
    ledger = planned("ab")
    deliver(ledger, "cd", first=3)
    deliver(ledger, "a", first=5)  # runs are spread by that
    ledger.exchange("bc", ["B", "C"])
    assert emitted(ledger, 1) == ["a@1", "B"]
    ledger.plan(2, 2)
    assert emitted(ledger, 2) == ["C", "d@1"]


def test_a_replayed_payload_is_held_and_can_be_exchanged() -> None:
    ledger = make()
    ledger.restore_planned(7, "ab")
    payloads = ["x@1", "b@1"]
    ledger.deliver(1, [1, 2], list("xb"), payloads)
    assert ledger.held(list("xb"), payloads) == [0, 1]
    assert ledger.held(["a"], ["a@1"]) == []
    ledger.exchange("b", ["B"])
    assert emitted(ledger, 7) == ["B"]
    assert ledger.planned.missing(7) == ["a"]
