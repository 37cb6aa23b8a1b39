"""The tables of Spark's calls, read as a specification, and what a source does at each of their pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyspark_mq.errors import ConfigurationError, InternalError
from pyspark_mq.sources.calls import (
    EPOCHS,
    SHOWING,
    Act,
    Call,
    Committed,
    EpochPlace,
    First,
    IllegalCallError,
    latest_at,
    show,
    step,
)
from pyspark_mq.sources.epochs import EpochSource, Position
from pyspark_mq.sources.settings import Guarantee
from tests.support.scene import Scene
from tests.support.simulation import ids_of

LIMIT = 10
NEW = Position(0)
#: Machines and the calls that each of them sees.
SHOWS = (Call.BOUND, Call.LATEST, Call.PAYLOAD, Call.COMMIT)
NAMES = (Call.LATEST, Call.BEHIND, Call.BEYOND, Call.PAYLOAD, Call.COMMIT)
#: What cannot come: Spark goes on from what is not here, or from an epoch that it has just shown as committed.
ILLEGAL = {(Call.BEYOND, epoch) for epoch in EpochPlace} | {
    (Call.LATEST, EpochPlace.PLANNED),
    (Call.LATEST, EpochPlace.BEGUN),
}


def test_every_pair_is_decided() -> None:
    assert set(SHOWING) == {(call, shown) for call in SHOWS for shown in Committed}
    assert set(EPOCHS) | ILLEGAL == {(call, epoch) for call in NAMES for epoch in EpochPlace}
    assert not set(EPOCHS) & ILLEGAL


@pytest.mark.parametrize(("call", "epoch"), sorted(ILLEGAL, key=str))
def test_an_illegal_pair_is_an_error_that_names_both(call: Call, epoch: EpochPlace) -> None:
    with pytest.raises(IllegalCallError, match=f"'{call.value}'.*'{epoch.value}'"):
        step(call, epoch)


def test_what_was_shown_is_never_unknown_again_and_a_bounded_run_stays_one() -> None:
    for (_, shown), (_, then) in SHOWING.items():
        assert then in {Committed.KNOWN, Committed.CLOSED} or shown not in {Committed.KNOWN, Committed.CLOSED}
        assert then in {Committed.BOUNDED, Committed.CLOSED} or shown not in {Committed.BOUNDED, Committed.CLOSED}


def test_it_is_learnt_once_and_at_the_first_position_that_is_shown() -> None:
    for (call, shown), (first, then) in SHOWING.items():
        names_one = call is not Call.BOUND
        assert (First.LEARN in first) is (names_one and shown in {Committed.UNKNOWN, Committed.BOUNDED})
        assert (then in {Committed.KNOWN, Committed.CLOSED}) is (
            names_one or shown in {Committed.KNOWN, Committed.CLOSED}
        )
        assert show(call, shown) == (first, then)


def test_only_what_was_begun_here_is_acknowledged() -> None:
    assert [pair for pair, act in EPOCHS.items() if act is Act.ACKNOWLEDGE] == [(Call.COMMIT, EpochPlace.BEGUN)]


@pytest.mark.parametrize(("start", "last", "kind"), [(3, 3, Call.LATEST), (2, 3, Call.BEHIND), (4, 3, Call.BEYOND)])
def test_a_call_for_the_next_epoch_is_told_by_where_it_goes_on_from(start: int, last: int, kind: Call) -> None:
    assert latest_at(start, last) is kind


# -- what a source does -----------------------------------------------------------------------


@contextmanager
def seen(source: EpochSource) -> Iterator[list[str]]:
    """Watch what a source does, in order."""
    happened: list[str] = []
    watched = [
        (source._queues, "find", "find"),
        (source._memory, "adopt", "learn"),
        (source._batch_sizing, "gather", "gather"),
        (source._memory, "plan", "plan"),
        (source._replay, "run", "replay"),
        (source, "_take_rows", "begin"),
        (source._memory, "begin_commit", "acknowledge"),
        (source._queues, "forget_ended", "acknowledged"),
    ]

    def watching(name: str, done: Callable[..., Any]) -> Callable[..., Any]:
        def both(*arguments: Any, **named: Any) -> Any:
            happened.append(name)
            return done(*arguments, **named)

        return both

    for owner, attribute, name in watched:
        setattr(owner, attribute, watching(name, getattr(owner, attribute)))
    yield happened
    for owner, attribute, _ in watched:
        delattr(owner, attribute)


def make(messages: int = 3, **changes: Any) -> tuple[Scene, EpochSource]:
    scene = Scene(max_messages=10, prefetch=40, **changes)
    scene.publish(messages)
    return scene, scene.query.source


def bring_to(source: EpochSource, shown: Committed) -> None:
    if shown in {Committed.BOUNDED, Committed.CLOSED}:
        source.bound()
    if shown in {Committed.KNOWN, Committed.CLOSED}:
        source.commit(NEW)
    assert source._committed_offset is shown


def probe(source: EpochSource) -> Committed:
    """Find out by further calls what a source takes for shown."""
    with seen(source) as happened:
        source.commit(NEW)
        source.latest(NEW, LIMIT)
    return {
        (True, True): Committed.UNKNOWN,
        (True, False): Committed.BOUNDED,
        (False, True): Committed.KNOWN,
        (False, False): Committed.CLOSED,
    }["learn" in happened, "find" in happened]


CALLS: dict[Call, Callable[[EpochSource], object]] = {
    Call.BOUND: EpochSource.bound,
    Call.LATEST: lambda source: source.latest(NEW, LIMIT),
    Call.PAYLOAD: lambda source: source.payload(NEW, Position(1)),
    Call.COMMIT: lambda source: source.commit(NEW),
}
#: What is done first, and what is shown then, for calls of a fresh, a bounded, a shown, and a closed source.
FIRST: dict[Call, tuple[str, str, str, str]] = {
    Call.BOUND: ("find: bounded", "find: bounded", "find: closed", ": closed"),
    Call.LATEST: ("find learn: known", "find learn: closed", "find: known", ": closed"),
    Call.PAYLOAD: ("find learn: known", "find learn: closed", ": known", ": closed"),
    Call.COMMIT: ("learn: known", "learn: closed", ": known", ": closed"),
}


def check_first(call: Call, shown: Committed) -> None:
    _, source = make(0, guarantee=Guarantee.AT_LEAST_ONCE)
    bring_to(source, shown)
    with seen(source) as happened:
        CALLS[call](source)
    first = " ".join(step for step in happened if step in {"find", "learn"})
    assert f"{first}: {probe(source).value}" == FIRST[call][list(Committed).index(shown)]


@pytest.mark.parametrize("shown", Committed, ids=lambda one: one.value)
@pytest.mark.parametrize("call", SHOWS, ids=lambda one: one.value)
def test_what_a_call_does_first(call: Call, shown: Committed) -> None:
    check_first(call, shown)


def epoch_at(epoch: EpochPlace) -> tuple[Scene, EpochSource, Position]:
    """A source of which the last epoch is there: acknowledged if elsewhere."""
    scene, source = make()
    source.commit(NEW)
    end = source.latest(NEW, LIMIT)
    assert end.epoch > 0
    if epoch is not EpochPlace.PLANNED:
        source.payload(NEW, end)
    if epoch is EpochPlace.ELSEWHERE:
        source.commit(end)
    return scene, source, end


def acts(source: EpochSource, call: Callable[[], object]) -> list[str]:
    with seen(source) as happened:
        call()
    return [step for step in happened if step not in {"find", "learn"}]


def check_latest_plans_behind_what_is_acknowledged() -> None:
    scene, source, end = epoch_at(EpochPlace.ELSEWHERE)
    scene.publish(2)
    assert acts(source, lambda: source.latest(end, LIMIT)) == ["gather", "plan"]


def check_what_was_ended_and_never_begun_is_refused() -> None:
    for call in ("latest", "commit"):
        scene, source, end = epoch_at(EpochPlace.PLANNED)
        scene.publish(2)
        with pytest.raises(ConfigurationError, match="without asking for its messages"):
            source.latest(end, LIMIT) if call == "latest" else source.commit(end)
        assert source._last == end
        assert scene.queue.acknowledged == []


def check_latest_acknowledges_what_was_begun() -> None:
    scene, source, end = epoch_at(EpochPlace.BEGUN)
    scene.publish(2)
    assert acts(source, lambda: source.latest(end, LIMIT)) == ["acknowledge", "acknowledged", "gather", "plan"]


def check_from_behind_the_answer_is_the_last_one() -> None:
    for epoch in EpochPlace:
        scene, source, end = epoch_at(epoch)
        scene.publish(2)
        assert acts(source, lambda source=source: source.latest(NEW, LIMIT)) == []  # type: ignore[misc]
        assert source._last == end


def check_from_beyond_is_an_error() -> None:
    for epoch in EpochPlace:
        _, source, end = epoch_at(epoch)
        text = f"from epoch 99, but the last epoch that the source knows is {end.epoch}$"
        with pytest.raises(InternalError, match=text):
            source.latest(Position(99), LIMIT)


def check_a_payload_begins_what_was_planned() -> None:
    scene, source, end = epoch_at(EpochPlace.PLANNED)
    assert acts(source, lambda: source.payload(NEW, end)) == ["begin"]
    assert acts(source, lambda: source.payload(NEW, end)) == []
    assert ids_of(source.payload(NEW, end)) == scene.sent


def check_a_payload_of_a_former_process_is_a_replay() -> None:
    scene, _, end = epoch_at(EpochPlace.PLANNED)
    scene.query.crash()
    source = scene.query.source
    assert acts(source, lambda: source.payload(NEW, end)) == ["replay", "begin"]
    assert ids_of(source.payload(NEW, end)) == scene.sent


def check_only_what_was_begun_is_acknowledged() -> None:
    for epoch, expected in {
        EpochPlace.ELSEWHERE: [],
        EpochPlace.BEGUN: ["acknowledge", "acknowledged"],
    }.items():
        _, source, end = epoch_at(epoch)
        assert acts(source, lambda source=source, end=end: source.commit(end)) == expected  # type: ignore[misc]


CHECKS: list[Callable[[], None]] = [
    check_latest_plans_behind_what_is_acknowledged,
    check_what_was_ended_and_never_begun_is_refused,
    check_latest_acknowledges_what_was_begun,
    check_from_behind_the_answer_is_the_last_one,
    check_from_beyond_is_an_error,
    check_a_payload_begins_what_was_planned,
    check_a_payload_of_a_former_process_is_a_replay,
    check_only_what_was_begun_is_acknowledged,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_what_a_call_does_about_its_epoch(check: Callable[[], None]) -> None:
    check()
