"""The in-flight table, rule by rule."""

from __future__ import annotations

from string import ascii_lowercase

import pytest

from pyspark_mq.ack import (
    TRANSITIONS,
    Acknowledgements,
    Event,
    IllegalEventError,
    InFlightTable,
    SessionAcks,
    State,
    table,
)
from pyspark_mq.ack.content_matcher import ContentMatcher
from pyspark_mq.dedup import Memory, NoMemory, QueueMemory, content_digest
from tests.support.effort import with_all

GRACE_S = 5.0
#: Messages of a run: each check of this page has as many runs as can be, and with --all none as well. Random histories
#: check that runs change nothing (tests/property/test_runs.py).
RUN_MINS = (1, 1_000_000)
run_min = RUN_MINS[0]


@pytest.fixture(params=[RUN_MINS[0], with_all(RUN_MINS[1])], ids=["runs", "no runs"], autouse=True)
def _with_and_without_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "run_min", request.param)


def make(**changes: object) -> InFlightTable[str]:
    memory = QueueMemory(Memory(100_000, 1_000, b"secret"), "orders")
    settings = {"grace_s": GRACE_S, "memory": memory, "run_min": run_min, **changes}
    in_flight: InFlightTable[str] = InFlightTable(**settings)  # type: ignore[arg-type]
    in_flight.open_session(1)
    return in_flight


def remember(in_flight: InFlightTable[str], keys: str) -> None:
    """Have these be committed by a former process."""
    in_flight._memory.committed(99, list(keys))


def left(in_flight: InFlightTable[str]) -> str:
    """What was left open."""
    return "".join(sorted(in_flight.left_among(ascii_lowercase)))


def deliver(in_flight: InFlightTable[str], keys: str, session: int = 1, first: int = 1) -> Acknowledgements | None:
    """Deliver one message per letter; tags count from `first`."""
    tags = list(range(first, first + len(keys)))
    return in_flight.deliver(session, tags, list(keys), [f"{key}@{session}" for key in keys])


def planned(keys: str) -> InFlightTable[str]:
    in_flight = make()
    deliver(in_flight, keys)
    in_flight.plan(1, len(keys))
    return in_flight


def committed(keys: str) -> tuple[InFlightTable[str], Acknowledgements]:
    """An in-flight table that has committed one epoch."""
    in_flight = planned(keys)
    due = in_flight.commit(1)
    assert due is not None
    return in_flight, due


def settle(in_flight: InFlightTable[str], due: Acknowledgements | None, session: int = 1, now_s: float = 0) -> None:
    assert due is not None
    in_flight.confirm(due.number, session, now_s)
    in_flight.settling.asked(-1, [session], now_s + GRACE_S)
    in_flight.confirm(-1, session, now_s + GRACE_S)


def emitted(in_flight: InFlightTable[str], epoch: int) -> list[str]:
    return [payload for part in in_flight.planned.parts(epoch) for payload in part]


def state(in_flight: InFlightTable[str], key: str) -> State:
    return in_flight.states(key)(key)


def states(in_flight: InFlightTable[str], keys: str) -> set[State]:
    return {state(in_flight, key) for key in keys}


def test_an_epoch_is_the_oldest_messages_in_their_order() -> None:
    in_flight = make()
    deliver(in_flight, "dcba")
    in_flight.plan(1, 3)
    assert [*in_flight.planned.keys(1)] == ["d", "c", "b"]
    assert emitted(in_flight, 1) == ["d@1", "c@1", "b@1"]
    assert len(in_flight.received) == 1
    assert state(in_flight, "a") is State.RECEIVED


def test_what_was_passed_over_is_covered_by_no_acknowledgement() -> None:
    in_flight = make()
    deliver(in_flight, "ab")
    in_flight.pass_over(1, 4)
    in_flight.pass_over(1, 3)
    deliver(in_flight, "cd", first=5)
    in_flight.plan(1, 4)
    due = in_flight.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=2, singles=(5, 6), deliveries=4),)
    dropped = deliver(in_flight, "ad", first=7)
    assert dropped is not None
    assert dropped.parts == (SessionAcks(session=1, upto=0, singles=(7, 8), deliveries=2),)


def test_nothing_is_due_before_the_commit() -> None:
    in_flight = make()
    assert deliver(in_flight, "abc") is None
    in_flight.plan(1, 3)
    assert deliver(in_flight, "abc", first=4) is None
    assert in_flight.commit(0) is None
    assert in_flight.unacked == 6


def test_a_commit_acknowledges_up_to_the_last_delivery_of_the_epoch_and_no_further() -> None:
    in_flight = make()
    deliver(in_flight, "abcde")
    in_flight.plan(1, 3)
    due = in_flight.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=3, singles=(), deliveries=3),)
    assert in_flight.unacked == 2


def test_an_unacknowledged_message_in_front_of_the_epoch_is_never_covered() -> None:
    in_flight = make()
    in_flight.restore_planned(1, ["c", "d"])
    deliver(in_flight, "abcde")
    due = in_flight.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=0, singles=(3, 4), deliveries=2),)


def test_a_producers_duplicate_is_dropped_counted_and_acknowledged_with_the_first() -> None:
    in_flight = make()
    deliver(in_flight, "abcab")
    assert in_flight.counters.duplicates_dropped == 2
    in_flight.plan(1, 2)
    due = in_flight.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=2, singles=(4, 5), deliveries=4),)
    assert state(in_flight, "c") is State.RECEIVED


def test_a_duplicate_of_a_committed_message_is_acknowledged_on_sight() -> None:
    in_flight, _ = committed("ab")
    due = deliver(in_flight, "xb", first=3)
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=0, singles=(4,), deliveries=1),)
    assert len(in_flight.received) == 1


def test_a_lost_session_gives_back_what_was_only_received() -> None:
    in_flight = make()
    deliver(in_flight, "abcd")
    in_flight.plan(1, 2)
    in_flight.lose(1)
    assert states(in_flight, "ab") == {State.PLANNED}
    assert states(in_flight, "cd") == {State.UNSEEN}
    assert in_flight.counters.returned == 2
    assert emitted(in_flight, 1) == ["a@1", "b@1"]


def test_what_comes_again_in_a_new_session_is_acknowledged_under_its_new_handle() -> None:
    in_flight = planned("ab")
    in_flight.lose(1)
    in_flight.open_session(2)
    deliver(in_flight, "ab", session=2)
    due = in_flight.commit(1)
    assert due is not None
    assert due.parts == (SessionAcks(session=2, upto=2, singles=(), deliveries=2),)


def test_an_epoch_committed_while_disconnected_is_acknowledged_when_it_comes_again() -> None:
    in_flight = planned("ab")
    in_flight.lose(1)
    assert in_flight.commit(1) is None
    in_flight.open_session(2)
    due = deliver(in_flight, "abc", session=2)
    assert due is not None
    assert due.parts == (SessionAcks(session=2, upto=2, singles=(), deliveries=2),)
    assert len(in_flight.received) == 1


# -- what an acknowledgement settles, and what an end leaves ----------------------------------------


def test_an_answer_settles_that_was_asked_for_after_the_grace() -> None:
    in_flight, due = committed("ab")
    settling = in_flight.settling
    assert settling.unconfirmed()
    assert not settling.asks(1e9)
    in_flight.confirm(due.number, 1, now_s=10)
    in_flight.confirm(due.number, 1, now_s=11)
    assert not settling.unconfirmed()
    assert (in_flight.counters.settled, in_flight.expected) == (2, 2)
    assert [settling.asks(10 + GRACE_S - 0.1), settling.asks(10 + GRACE_S)] == [False, True]
    settling.asked(8, [1], 10 + GRACE_S - 0.1)
    in_flight.confirm(8, 1, now_s=1e9)
    assert settling.asks(1e9)
    settling.asked(9, [1], 10 + GRACE_S)
    assert not settling.asks(1e9)
    assert settling.epochs == {1}
    in_flight.confirm(9, 1, now_s=10 + GRACE_S)
    assert settling.epochs == set()
    assert (in_flight.counters.settled, in_flight.expected) == (2, 0)
    in_flight.lose(1)
    assert left(in_flight) == ""
    assert states(in_flight, "ab") == {State.COMMITTED}


@pytest.mark.parametrize("confirmed", [False, True])
def test_an_end_leaves_what_is_not_settled(confirmed: bool) -> None:
    in_flight, due = committed("ab")
    if confirmed:
        in_flight.confirm(due.number, 1, now_s=0)
    in_flight.settling.asked(8, [1], GRACE_S)
    in_flight.lose(1)
    in_flight.confirm(due.number, 1, now_s=0)
    in_flight.confirm(8, 1, now_s=1e9)
    assert in_flight.counters.settled == (2 if confirmed else 0)
    assert (left(in_flight), in_flight.expected, in_flight.settling.epochs) == ("ab", 0, set())


def test_the_end_of_another_session_leaves_nothing_and_its_answers_settle_nothing() -> None:
    in_flight, due = committed("ab")
    in_flight.open_session(2)
    in_flight.confirm(due.number, 1, now_s=0)
    in_flight.settling.asked(8, [2], 1e9)
    in_flight.confirm(8, 2, now_s=1e9)
    assert in_flight.settling.asks(GRACE_S)
    in_flight.settling.asked(9, [1, 2], GRACE_S)
    in_flight.lose(2)
    assert left(in_flight) == ""
    assert in_flight.expected == 2
    in_flight.confirm(9, 1, now_s=GRACE_S)
    assert in_flight.expected == 0


def test_of_two_sessions_that_have_a_message_the_end_of_one_leaves_it() -> None:
    in_flight = planned("a")
    in_flight.open_session(2)
    deliver(in_flight, "a", session=2)
    due = in_flight.commit(1)
    settle(in_flight, due, session=2)
    in_flight.lose(2)
    assert left(in_flight) == ""
    in_flight.lose(1)
    assert left(in_flight) == "a"


def test_what_is_committed_without_a_handle_is_left_alone() -> None:
    in_flight = planned("abc")
    in_flight.lose(1)
    in_flight.open_session(2)
    deliver(in_flight, "b", session=2)
    due = in_flight.commit(1)
    assert left(in_flight) == "ac"
    settle(in_flight, due, session=2)
    in_flight.lose(2)
    assert left(in_flight) == "ac"


def test_what_never_came_is_left_when_its_epoch_is_committed() -> None:
    in_flight = make()
    in_flight.restore_planned(1, ["a", "b"])
    deliver(in_flight, "a")
    in_flight.commit(1)
    assert left(in_flight) == "b"


def test_what_has_all_its_handles_again_is_not_left() -> None:
    in_flight = planned("ab")
    in_flight.lose(1)
    in_flight.open_session(2)
    deliver(in_flight, "ba", session=2)
    in_flight.commit(1)
    assert left(in_flight) == ""


def test_what_comes_again_and_again_adds_nothing_to_what_is_not_settled() -> None:
    in_flight, due = committed("a")
    settle(in_flight, due)
    for tag in range(2, 200):
        again = deliver(in_flight, "a", first=tag)
        assert again is not None
        in_flight.settling.asked(again.number, [1], tag)
        in_flight.confirm(again.number, 1, now_s=tag)
        assert in_flight.expected <= GRACE_S + 1


def test_what_comes_again_is_left_only_if_its_own_session_ends() -> None:
    in_flight, due = committed("abc")
    settle(in_flight, due)
    deliver(in_flight, "b", first=4)
    assert left(in_flight) == ""
    in_flight.lose(1)
    assert left(in_flight) == "b"


def test_what_somebody_else_has_committed_is_acknowledged_and_not_known_here() -> None:
    in_flight = make()
    due = in_flight.deliver(1, [1, 2], ["a", "b"], ["a", "b"], committed_elsewhere={"a"})
    assert due is not None
    assert due.parts == (SessionAcks(session=1, upto=1, singles=(), deliveries=1),)
    assert (state(in_flight, "a"), state(in_flight, "b")) == (State.UNSEEN, State.RECEIVED)
    assert in_flight.counters.duplicates_dropped == 1


# -- several handles, replays -----------------------------------------------------------------------


def test_a_message_held_in_two_sessions_is_acknowledged_in_both() -> None:
    in_flight = planned("ab")
    in_flight.open_session(2)
    deliver(in_flight, "b", session=2)
    due = in_flight.commit(1)
    assert due is not None
    assert [(part.session, part.upto) for part in due.parts] == [(1, 2), (2, 1)]
    in_flight.confirm(due.number, 2, now_s=0)
    assert not in_flight.settling.unconfirmed(due.number + 1)
    assert in_flight.settling.unconfirmed(due.number)
    in_flight.confirm(due.number, 1, now_s=0)
    assert not in_flight.settling.unconfirmed(due.number)
    assert in_flight.counters.settled == 3


def test_a_buffered_message_that_another_session_holds_too_survives_the_first_ones_end() -> None:
    in_flight = make()
    deliver(in_flight, "ab")
    in_flight.open_session(2)
    deliver(in_flight, "b", session=2)
    in_flight.lose(1)
    assert state(in_flight, "a") is State.UNSEEN
    assert state(in_flight, "b") is State.RECEIVED


def test_a_replay_waits_for_exactly_the_planned_and_keeps_their_order() -> None:
    in_flight = make()
    remember(in_flight, "z")
    in_flight.restore_planned(7, ["c", "a", "b"])
    due = deliver(in_flight, "zxab")
    assert due is not None
    assert due.parts[0].upto == 1
    assert in_flight.planned.missing(7) == ["c"]
    deliver(in_flight, "c", first=5)
    assert in_flight.planned.epochs[7].missing == 0
    assert emitted(in_flight, 7) == ["c@1", "a@1", "b@1"]
    assert len(in_flight.received) == 1
    assert in_flight.counters.rebound == 3


def test_a_message_abandoned_counts_as_new_if_it_turns_up_after_all() -> None:
    in_flight = make()
    in_flight.restore_planned(7, ["a", "b"])
    deliver(in_flight, "a")
    in_flight.abandon(7)
    assert emitted(in_flight, 7) == ["a@1"]
    assert in_flight.counters.lost == 1
    deliver(in_flight, "b", first=2)
    assert state(in_flight, "b") is State.RECEIVED


def test_bytes_are_those_of_what_is_kept() -> None:
    in_flight = make(size_of=lambda payloads: sum(map(len, payloads)))
    deliver(in_flight, "abcda")  # three bytes each
    assert (in_flight.received.size_bytes, in_flight.planned.size_bytes) == (12, 0)
    in_flight.plan(1, 3)
    assert (in_flight.received.size_bytes, in_flight.planned.size_bytes) == (3, 9)
    deliver(in_flight, "ab", first=6)
    assert (in_flight.received.size_bytes, in_flight.planned.size_bytes) == (3, 9)
    deliver(in_flight, "ef", first=8)
    in_flight.open_session(2)
    deliver(in_flight, "f", session=2)
    in_flight.lose(1)
    assert (in_flight.received.size_bytes, in_flight.planned.size_bytes) == (3, 9)
    in_flight.commit(1)
    assert (in_flight.received.size_bytes, in_flight.planned.size_bytes) == (3, 0)
    in_flight.restore_planned(2, "xyz")
    deliver(in_flight, "axz", session=2, first=2)
    assert (in_flight.received.size_bytes, in_flight.planned.size_bytes) == (3, 6)
    in_flight.abandon(2)
    assert (in_flight.received.size_bytes, in_flight.planned.size_bytes) == (3, 6)
    in_flight.commit(2)
    assert (in_flight.received.size_bytes, in_flight.planned.size_bytes) == (3, 0)


def test_counters_are_a_snapshot() -> None:
    in_flight = make()
    before = in_flight.counters
    deliver(in_flight, "a")
    assert (before.received, in_flight.counters.received) == (0, 1)


def test_without_remembering_a_committed_message_is_forgotten_and_a_confirmation_settles() -> None:
    in_flight = make(memory=NoMemory("orders"), grace_s=None)
    deliver(in_flight, "ab")
    in_flight.plan(1, 2)
    due = in_flight.commit(1)
    assert due is not None
    assert states(in_flight, "ab") == {State.UNSEEN}
    in_flight.confirm(due.number, 1, now_s=0)
    assert (in_flight.expected, in_flight.settling.asks(1e9)) == (0, False)
    deliver(in_flight, "c", first=3)
    in_flight.plan(2, 1)
    in_flight.commit(2)
    in_flight.lose(1)
    assert (left(in_flight), in_flight.expected) == ("", 0)


def test_what_the_table_does_not_have_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = make()
    deliver(in_flight, "ab")
    without = {pair: row for pair, row in TRANSITIONS.items() if pair != (State.UNSEEN, Event.RESTORE_PLANNED)}
    monkeypatch.setattr(table, "TRANSITIONS", without)
    with pytest.raises(IllegalEventError):
        in_flight.restore_planned(1, ["x"])
    assert state(in_flight, "x") is State.UNSEEN
    assert state(in_flight, "a") is State.RECEIVED
    assert 1 not in in_flight.planned.epochs


# -- payloads that are held in another form ---------------------------------------------------------


def test_what_a_delivery_left_here_is_told_by_its_place() -> None:
    in_flight, _ = committed("ab")
    payloads = ["a@1", "c@1", "b@1", "d@1"]
    in_flight.deliver(1, [11, 12, 13, 14], list("acbd"), payloads)
    assert in_flight.held(list("acbd"), payloads) == [1, 3]
    assert in_flight.held(list("cd"), ["".join(["c", "@", "2"]), "d@2"]) == []


def test_a_payload_in_another_form_is_what_is_emitted_whatever_state_it_is_in() -> None:
    in_flight = planned("ab")
    deliver(in_flight, "cd", first=3)
    deliver(in_flight, "a", first=5)  # runs are spread by that
    in_flight.exchange("bc", ["B", "C"])
    assert emitted(in_flight, 1) == ["a@1", "B"]
    in_flight.plan(2, 2)
    assert emitted(in_flight, 2) == ["C", "d@1"]


def test_a_replayed_payload_is_held_and_can_be_exchanged() -> None:
    in_flight = make()
    in_flight.restore_planned(7, "ab")
    payloads = ["x@1", "b@1"]
    in_flight.deliver(1, [1, 2], list("xb"), payloads)
    assert in_flight.held(list("xb"), payloads) == [0, 1]
    assert in_flight.held(["a"], ["a@1"]) == []
    in_flight.exchange("b", ["B"])
    assert emitted(in_flight, 7) == ["B"]
    assert in_flight.planned.missing(7) == ["a"]


# -- messages without an ID


def make_without_ids(*, proves: bool) -> tuple[InFlightTable[str], ContentMatcher]:
    in_flight = make(memory=QueueMemory(Memory(100, 100, b"secret"), "orders"), proves=proves)
    return in_flight, in_flight.matcher


def receive(
    in_flight: InFlightTable[str], matcher: ContentMatcher, contents: str, session: int, *, flagged: bool
) -> Acknowledgements | None:
    """Deliver one message without an ID per letter."""
    digests = [content_digest(b"", content.encode()) for content in contents]
    keys = matcher.name(session, digests, [not flagged] * len(digests), in_flight)
    tags = range(1, len(digests) + 1)
    return in_flight.deliver(session, tags, keys, [f"{content}@{session}" for content in contents])


def test_an_echo_is_acknowledged_when_its_epoch_begins_and_is_not_emitted() -> None:
    in_flight, matcher = make_without_ids(proves=True)
    receive(in_flight, matcher, "ab", 1, flagged=False)
    in_flight.plan(1, 2)
    in_flight.commit(1)
    assert in_flight.lose(1) == 2  # the acknowledgement is cut off
    in_flight.open_session(2)
    assert receive(in_flight, matcher, "abc", 2, flagged=True) is None
    assert in_flight.unacked == 3
    assert len(in_flight.plan(2, 3)) == 1
    assert len(in_flight.planned.echoes(2)) == 2
    due = in_flight.begin(2)
    assert due is not None
    assert due.parts == (SessionAcks(2, 2, (), 2),)
    assert in_flight.begin(2) is None
    assert emitted(in_flight, 2) == ["c@2"]
    assert in_flight.unacked == 1
    assert in_flight.counters.duplicates_dropped == 2
    assert in_flight.counters.planned == 3
    assert in_flight.settles_contents
    settle(in_flight, due, session=2)
    last = in_flight.commit(2)
    assert last is not None
    assert last.parts == (SessionAcks(2, 3, (), 1),)


def test_an_echo_that_goes_back_comes_again_as_one() -> None:
    in_flight, matcher = make_without_ids(proves=False)
    receive(in_flight, matcher, "aa", 1, flagged=False)
    in_flight.plan(1, 2)
    in_flight.lose(1)
    assert in_flight.commit(1) is None  # both come again
    for session in (2, 3):
        in_flight.open_session(session)
        receive(in_flight, matcher, "aa", session, flagged=False)
        if session == 2:
            in_flight.lose(session)
    assert list(in_flight.plan(2, 2)) == []
    in_flight.lose(3)
    in_flight.open_session(4)
    receive(in_flight, matcher, "aa", 4, flagged=False)
    due = in_flight.begin(2)
    assert due is not None
    assert [acks.session for acks in due.parts] == [4]
    assert emitted(in_flight, 2) == []
    assert in_flight.commit(2) is None
