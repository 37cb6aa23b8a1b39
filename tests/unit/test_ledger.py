"""The ledger, rule by rule. ``tests/property/test_ledger_machine.py`` has the orders nobody thought of."""

from __future__ import annotations

import pytest

from pyspark_mq.ack import IllegalEventError, Ledger, Part, Settlement, State

GRACE_S = 5.0


def make(**changes: object) -> Ledger[str, str]:
    settings = {"grace_s": GRACE_S, "window": 100, **changes}
    ledger: Ledger[str, str] = Ledger(**settings)  # type: ignore[arg-type]
    ledger.open_session(1)
    return ledger


def deliver(ledger: Ledger[str, str], keys: str, session: int = 1, first: int = 1) -> Settlement | None:
    """Deliver one message per letter; tags count from `first`."""
    tags = list(range(first, first + len(keys)))
    return ledger.deliver(session, tags, list(keys), [f"{key}@{session}" for key in keys])


def planned(keys: str) -> Ledger[str, str]:
    ledger = make()
    deliver(ledger, keys)
    ledger.plan(1, len(keys))
    return ledger


def settled(keys: str) -> Ledger[str, str]:
    ledger = planned(keys)
    settlement = ledger.commit(1)
    assert settlement is not None
    ledger.confirm(settlement.number, 1, now_s=0)
    return ledger


def states(ledger: Ledger[str, str], keys: str) -> set[State]:
    return {ledger.state(key) for key in keys}


def carried(ledger: Ledger[str, str]) -> str:
    return "".join(sorted({key for batch in ledger.carried() for key in batch.keys}))


def test_an_epoch_is_the_oldest_messages_in_their_order() -> None:
    ledger = make()
    deliver(ledger, "dcba")
    assert ledger.plan(1, 3) == 3
    assert ledger.keys(1) == ("d", "c", "b")
    assert ledger.payloads(1) == ["d@1", "c@1", "b@1"]
    assert ledger.buffered == 1
    assert ledger.state("a") is State.RECEIVED


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
    settlement = ledger.commit(1)
    assert settlement is not None
    assert settlement.parts == (Part(session=1, upto=3, singles=(), deliveries=3),)
    assert ledger.unacked == 2


def test_a_commit_is_cumulative() -> None:
    ledger = make()
    deliver(ledger, "abcd")
    ledger.plan(1, 2)
    ledger.plan(2, 2)
    settlement = ledger.commit(2)
    assert settlement is not None
    assert settlement.parts[0].upto == 4
    assert ledger.commit(1) is None


def test_an_unacknowledged_message_in_front_of_the_epoch_is_never_covered() -> None:
    ledger = Ledger[str, str](grace_s=GRACE_S, window=10)
    ledger.restore_planned(1, ["c", "d"])
    ledger.open_session(1)
    deliver(ledger, "abcde")
    settlement = ledger.commit(1)
    assert settlement is not None
    assert settlement.parts == (Part(session=1, upto=0, singles=(3, 4), deliveries=2),)


def test_a_producers_duplicate_is_dropped_counted_and_acknowledged_with_the_first() -> None:
    ledger = make()
    deliver(ledger, "abcab")
    assert ledger.counters.duplicates_dropped == 2
    ledger.plan(1, 2)
    settlement = ledger.commit(1)
    assert settlement is not None
    assert settlement.parts == (Part(session=1, upto=2, singles=(4, 5), deliveries=4),)
    assert ledger.state("c") is State.RECEIVED


def test_a_duplicate_of_a_committed_message_is_acknowledged_on_sight() -> None:
    ledger = planned("ab")
    ledger.commit(1)
    settlement = deliver(ledger, "xb", first=3)
    assert settlement is not None
    assert settlement.parts == (Part(session=1, upto=0, singles=(4,), deliveries=1),)
    assert ledger.buffered == 1


def test_a_lost_session_gives_back_what_was_only_received() -> None:
    ledger = make()
    deliver(ledger, "abcd")
    ledger.plan(1, 2)
    ledger.lose(1)
    assert states(ledger, "ab") == {State.PLANNED}
    assert states(ledger, "cd") == {State.UNSEEN}
    assert ledger.counters.forgotten == 2
    assert ledger.payloads(1) == ["a@1", "b@1"]


def test_what_comes_again_in_a_new_session_is_acknowledged_under_its_new_handle() -> None:
    ledger = planned("ab")
    ledger.lose(1)
    ledger.open_session(2)
    deliver(ledger, "ab", session=2)
    settlement = ledger.commit(1)
    assert settlement is not None
    assert settlement.parts == (Part(session=2, upto=2, singles=(), deliveries=2),)


def test_an_epoch_committed_while_disconnected_is_acknowledged_when_it_comes_again() -> None:
    ledger = planned("ab")
    ledger.lose(1)
    assert ledger.commit(1) is None
    ledger.open_session(2)
    settlement = deliver(ledger, "abc", session=2)
    assert settlement is not None
    assert settlement.parts == (Part(session=2, upto=2, singles=(), deliveries=2),)
    assert ledger.buffered == 1


def test_an_id_is_carried_until_confirmed_and_for_the_grace_after() -> None:
    ledger = planned("ab")
    settlement = ledger.commit(1)
    assert settlement is not None
    ledger.expire(1e9)
    assert carried(ledger) == "ab"
    ledger.confirm(settlement.number, 1, now_s=10)
    ledger.expire(10 + GRACE_S - 0.1)
    assert carried(ledger) == "ab"
    ledger.expire(10 + GRACE_S)
    assert carried(ledger) == ""
    assert states(ledger, "ab") == {State.SETTLED}
    assert ledger.counters.settled == 2


def test_a_confirmation_for_a_lost_session_counts_for_nothing() -> None:
    ledger = planned("ab")
    settlement = ledger.commit(1)
    assert settlement is not None
    ledger.lose(1)
    ledger.confirm(settlement.number, 1, now_s=0)
    ledger.expire(1e9)
    assert carried(ledger) == "ab"
    assert states(ledger, "ab") == {State.COMMITTED}


def test_a_session_that_ends_within_the_grace_stops_the_clock() -> None:
    ledger = planned("ab")
    settlement = ledger.commit(1)
    assert settlement is not None
    ledger.confirm(settlement.number, 1, now_s=0)
    ledger.lose(1)
    ledger.expire(1e9)
    assert carried(ledger) == "ab"
    ledger.open_session(2)
    ledger.start_clock(100)
    ledger.expire(99)
    assert carried(ledger) == "ab"
    ledger.expire(100)
    assert carried(ledger) == ""


def test_what_was_not_confirmed_when_its_session_ended_counts_as_taken_once_it_had_its_time_to_come_again() -> None:
    ledger = planned("ab")
    ledger.commit(1)
    ledger.lose(1)
    assert states(ledger, "ab") == {State.COMMITTED}
    ledger.open_session(2)
    ledger.start_clock(100)
    ledger.expire(100)
    assert carried(ledger) == ""
    assert states(ledger, "ab") == {State.SETTLED}


def test_what_was_confirmed_stays_settled_when_its_session_ends() -> None:
    ledger = settled("ab")
    ledger.lose(1)
    assert states(ledger, "ab") == {State.SETTLED}
    assert carried(ledger) == "ab"
    assert ledger.counters.duplicates_dropped == 0


def test_a_settled_message_that_the_broker_forgot_is_carried_again() -> None:
    ledger = planned("a")
    settlement = ledger.commit(1)
    assert settlement is not None
    ledger.confirm(settlement.number, 1, now_s=0)
    ledger.expire(GRACE_S)
    assert carried(ledger) == ""
    again = deliver(ledger, "a", first=2)
    assert again is not None
    assert carried(ledger) == "a"
    assert ledger.state("a") is State.COMMITTED


def test_a_message_held_in_two_sessions_is_acknowledged_in_both() -> None:
    ledger = planned("ab")
    ledger.open_session(2)
    deliver(ledger, "b", session=2)
    settlement = ledger.commit(1)
    assert settlement is not None
    assert [(part.session, part.upto) for part in settlement.parts] == [(1, 2), (2, 1)]
    ledger.confirm(settlement.number, 2, now_s=0)
    assert states(ledger, "ab") == {State.COMMITTED}
    ledger.confirm(settlement.number, 1, now_s=0)
    assert states(ledger, "ab") == {State.SETTLED}


def test_a_buffered_message_that_another_session_holds_too_survives_the_first_ones_end() -> None:
    ledger = make()
    deliver(ledger, "ab")
    ledger.open_session(2)
    deliver(ledger, "b", session=2)
    ledger.lose(1)
    assert ledger.state("a") is State.UNSEEN
    assert ledger.state("b") is State.RECEIVED


def test_a_replay_waits_for_exactly_the_planned_and_keeps_their_order() -> None:
    ledger = Ledger[str, str](grace_s=GRACE_S, window=10)
    ledger.restore_committed(["z"])
    ledger.restore_planned(7, ["c", "a", "b"])
    ledger.open_session(1)
    settlement = deliver(ledger, "zxab")
    assert settlement is not None
    assert settlement.parts[0].upto == 1
    assert ledger.missing(7) == ["c"]
    deliver(ledger, "c", first=5)
    assert ledger.missing_count(7) == 0
    assert ledger.payloads(7) == ["c@1", "a@1", "b@1"]
    assert ledger.buffered == 1
    assert ledger.counters.rebound == 3


def test_a_message_given_up_counts_as_new_if_it_turns_up_after_all() -> None:
    ledger = Ledger[str, str](grace_s=GRACE_S, window=10)
    ledger.restore_planned(7, ["a", "b"], memo="encoded")
    ledger.open_session(1)
    deliver(ledger, "a")
    assert ledger.abandon(7) == ["b"]
    assert ledger.payloads(7) == ["a@1"]
    assert ledger.epoch_memo(7) is None
    assert ledger.counters.lost == 1
    deliver(ledger, "b", first=2)
    assert ledger.state("b") is State.RECEIVED


def test_ids_learnt_as_committed_after_they_were_planned_are_taken_out_and_acknowledged() -> None:
    ledger = make()
    deliver(ledger, "abcd")
    ledger.plan(1, 2)
    settlement = ledger.restore_committed(["a", "c", "q"])
    assert settlement is not None
    assert settlement.parts == (Part(session=1, upto=1, singles=(3,), deliveries=2),)
    assert ledger.payloads(1) == ["b@1"]
    assert ledger.buffered == 1


def test_ids_learnt_as_committed_that_were_never_met_are_carried_and_not_counted() -> None:
    ledger = make()
    assert ledger.restore_committed(["a", "b"], memo="encoded") is None
    assert states(ledger, "ab") == {State.COMMITTED}
    assert [(batch.keys, batch.memo) for batch in ledger.carried()] == [(("a", "b"), "encoded")]
    assert ledger.counters.duplicates_dropped == 0


def test_learning_again_what_is_committed_changes_nothing() -> None:
    ledger = planned("ab")
    ledger.commit(1)
    before = ledger.carried()
    assert ledger.restore_committed("ab") is None
    assert states(ledger, "ab") == {State.COMMITTED}
    assert ledger.carried() == before
    assert ledger.counters.duplicates_dropped == 0


def test_learning_again_what_is_settled_changes_nothing() -> None:
    ledger = settled("ab")
    before = ledger.carried()
    assert ledger.restore_committed("ab") is None
    assert states(ledger, "ab") == {State.SETTLED}
    assert ledger.carried() == before
    assert ledger.counters.duplicates_dropped == 0


def test_a_replay_leaves_out_what_is_committed() -> None:
    ledger = planned("ab")
    ledger.commit(1)
    ledger.restore_planned(7, ["a", "x", "b"])
    assert states(ledger, "ab") == {State.COMMITTED}
    assert ledger.keys(7) == ("x",)
    assert carried(ledger) == "ab"
    assert ledger.counters.duplicates_dropped == 0


def test_a_replay_leaves_out_what_is_settled() -> None:
    ledger = settled("ab")
    ledger.restore_planned(7, ["a", "x", "b"])
    assert states(ledger, "ab") == {State.SETTLED}
    assert ledger.keys(7) == ("x",)
    assert carried(ledger) == "ab"
    assert ledger.counters.duplicates_dropped == 0


def test_the_window_of_settled_ids_is_bounded_and_the_carried_ones_are_not_counted() -> None:
    ledger = make(window=3)
    for epoch, keys in enumerate(("abc", "def", "ghi"), start=1):
        deliver(ledger, keys, first=epoch * 10)
        ledger.plan(epoch, 3)
        settlement = ledger.commit(epoch)
        assert settlement is not None
        ledger.confirm(settlement.number, 1, now_s=epoch)
    ledger.expire(1)
    assert ledger.remembered == 9
    ledger.expire(2 + GRACE_S)
    assert ledger.remembered == 6
    assert states(ledger, "abc") == {State.UNSEEN}
    assert states(ledger, "defghi") == {State.SETTLED}


def test_without_remembering_a_committed_message_is_forgotten() -> None:
    ledger = Ledger[int, str](grace_s=GRACE_S, window=100, remember=False)
    ledger.open_session(1)
    ledger.deliver(1, [1, 2], [101, 102], ["a", "b"])
    ledger.plan(1, 2)
    ledger.commit(1)
    assert ledger.remembered == 0
    assert ledger.state(101) is State.UNSEEN


def test_a_replay_of_what_is_already_received_is_refused_and_changes_nothing() -> None:
    ledger = make()
    deliver(ledger, "ab")
    with pytest.raises(IllegalEventError):
        ledger.restore_planned(1, ["x", "a"])
    assert ledger.state("x") is State.UNSEEN
    assert ledger.state("a") is State.RECEIVED
    assert not ledger.has_epoch(1)
