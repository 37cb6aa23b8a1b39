"""What the source does is a behaviour of the specification, and TLC notices where it is not.

With `--all` only. ``python -m tests.support.traces 10000`` records and checks more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.traces import Event, Kind, Trace, kinds, record, refused, unexcused

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600), pytest.mark.usefixtures("checker")]

COUNT = 300
#: Runs that are corrupted: each corruption is done to the first of them that has a place for it.
_SEEDS = range(200)


def test_what_the_source_does_is_allowed() -> None:
    every = kinds()
    left = unexcused(refused([record(every[seed % len(every)], seed) for seed in range(COUNT)]))
    assert [(trace.kind, trace.seed) for trace in left] == []


def test_what_is_known_excuses_nothing_before_it() -> None:
    every = kinds()
    runs = (record(every[seed % len(every)], seed) for seed in range(COUNT))
    wrong = next(
        replace(trace, events=events)
        for trace in runs
        if trace.known is not None and (events := acknowledged_before_its_commit(trace.events[: trace.known]))
    )
    assert unexcused(refused([wrong])) != []


# -- corruptions: each gives the events back changed, or None if they have no place for it --------------------------

Events = list[Event]


def places(events: Events, name: str, after: int = 0) -> Iterator[int]:
    """Where events of this name are."""
    return (at for at, event in enumerate(events) if at >= after and event[0] == name)


def changed(events: Events, at: int, *event: Any) -> Events:
    """With another event there, or none."""
    return [*events[:at], *([event] if event else []), *events[at + 1 :]]


def moved(events: Events, at: int, to: int) -> Events:
    """With an event before another one that was before it."""
    return [*events[:to], events[at], *events[to:at], *events[at + 1 :]]


def batch_of(event: Event) -> list[Any]:
    """IDs of what went to the sink."""
    return [one for ids in event[1].values() for one in ids]


def less(planned: Mapping[str, Any], left_out: Any) -> dict[str, Any]:
    """The same without an ID."""
    return {name: tuple(one for one in ids if one != left_out) for name, ids in planned.items()}


def acknowledged_before_its_commit(events: Events) -> Events | None:
    for sink in places(events, "sink"):
        for commit in places(events[: sink + 2], "commit", sink):
            for take in places(events, "take", commit):
                if events[take][1][:2] in batch_of(events[sink]):
                    return moved(events, take, commit)
    return None


def replayed_with_one_less(events: Events) -> Events | None:
    for replay in places(events, "replay"):
        for sink in places(events, "sink", replay):
            batch = batch_of(events[sink])
            return changed(events, sink, "sink", less(events[sink][1], batch[0])) if batch else None
    return None


def emitted_in_another_order(events: Events) -> Events | None:
    for sink in places(events, "sink"):
        for name, ids in events[sink][1].items():
            if len(ids) > 1:
                return changed(events, sink, "sink", {**events[sink][1], name: ids[::-1]})
    return None


def emitted_twice(events: Events) -> Events | None:
    sinks = [at for at in places(events, "sink") if batch_of(events[at])]
    return changed(events, sinks[1], *events[sinks[0]]) if len(sinks) > 1 else None


def dropped_from_what_is_carried(events: Events) -> Events | None:
    for at in places(events, "plan"):
        _, planned, carried, blind = events[at]
        if carried:
            return changed(events, at, "plan", planned, carried - {min(carried)}, blind)
    return None


def carried_and_not_committed(events: Events) -> Events | None:
    for at in places(events, "plan"):
        _, planned, carried, blind = events[at]
        return changed(events, at, "plan", planned, carried | {("a", 10)}, blind)
    return None


def planned_and_never_delivered(events: Events) -> Events | None:
    for at in places(events, "deliver"):
        if ("plan" in [event[0] for event in events[at:]]) and sum(
            event[0] == "deliver" and event[2] == events[at][2] for event in events
        ) == 1:
            return changed(events, at)
    return None


def planned_in_another_order(events: Events) -> Events | None:
    for at in places(events, "plan"):
        _, planned, carried, blind = events[at]
        for name, ids in planned.items():
            if len(ids) > 1:
                return changed(events, at, "plan", {**planned, name: ids[::-1]}, carried, blind)
    return None


def planned_blindly(events: Events) -> Events | None:
    for at in places(events, "plan"):
        _, planned, carried, blind = events[at]
        return changed(events, at, "plan", planned, carried, not blind)
    return None


def confirmed_before_it_is_taken(events: Events) -> Events | None:
    for at in places(events, "confirm"):
        for take in places(events[:at], "take"):
            if events[take][1][:2] == events[at][1]:
                return moved(events, at, take)
    return None


def expired_before_it_is_taken(events: Events) -> Events | None:
    for at in places(events, "expire"):
        for take in places(events[:at], "take"):
            if events[take][1][:2] == events[at][1]:
                return moved(events, at, take)
    return None


def taken_twice(events: Events) -> Events | None:
    return next(([*events[:at], events[at], *events[at:]] for at in places(events, "take")), None)


def delivered_twice_in_a_session(events: Events) -> Events | None:
    return next(([*events[:at], events[at], *events[at:]] for at in places(events, "deliver")), None)


def delivered_without_a_session(events: Events) -> Events | None:
    for at in places(events, "open"):
        later = (event[0] for event in events[at + 1 :] if event[0] == "crash" or event[1:2] == (events[at][1],))
        if next(later, "") == "deliver":
            return changed(events, at)
    return None


def delivered_in_the_session_of_another_queue(events: Events) -> Events | None:
    for at in places(events, "deliver"):
        _, (queue, place), copy = events[at]
        return changed(events, at, "deliver", ({"a": "b", "b": "a"}[queue], place), copy)
    return None


def opened_twice(events: Events) -> Events | None:
    return next((changed(events, at) for at in places(events, "lose") if "open" in [e[0] for e in events[at:]]), None)


def committed_without_a_sink(events: Events) -> Events | None:
    return next((changed(events, at) for at in places(events, "sink")), None)


def planned_again_before_the_commit(events: Events) -> Events | None:
    return next((changed(events, at) for at in places(events, "commit") if "plan" in [e[0] for e in events[at:]]), None)


def planned_unasked(events: Events) -> Events | None:
    return next((moved(events, at + 1, at) for at in places(events, "latest") if events[at + 1][0] == "plan"), None)


def replayed_what_is_its_own(events: Events) -> Events | None:
    return next((changed(events, at, "replay") for at in places(events, "run")), None)


def forgotten_and_never_acknowledged(events: Events) -> Events | None:
    return next((changed(events, at, "kill", frozenset({("b", 10, 1)})) for at in places(events, "kill")), None)


def begun_twice(events: Events) -> Events | None:
    return next((changed(events, at) for at in places(events, "crash") if "start" in [e[0] for e in events[at:]]), None)


CORRUPTIONS: list[Callable[[Events], Events | None]] = [
    acknowledged_before_its_commit, replayed_with_one_less, emitted_in_another_order, emitted_twice,
    dropped_from_what_is_carried, carried_and_not_committed, planned_and_never_delivered, planned_in_another_order,
    planned_blindly, confirmed_before_it_is_taken, expired_before_it_is_taken, taken_twice,
    delivered_twice_in_a_session, delivered_without_a_session, delivered_in_the_session_of_another_queue, opened_twice,
    committed_without_a_sink, planned_again_before_the_commit, planned_unasked, replayed_what_is_its_own,
    forgotten_and_never_acknowledged, begun_twice,
]  # fmt: skip


def test_what_was_corrupted_is_refused() -> None:
    kind = Kind(shows_start=True, gives_up=False, consumers=1)
    runs = [trace for seed in _SEEDS if (trace := record(kind, seed)).known is None]
    corrupted: dict[str, Trace] = {}
    for corrupt in CORRUPTIONS:
        for trace in runs:
            events = corrupt(trace.events)
            if events is not None:
                corrupted[corrupt.__name__] = replace(trace, events=events)
                break
    assert list(corrupted) == [corrupt.__name__ for corrupt in CORRUPTIONS]
    noticed = {id(trace) for trace in refused(list(corrupted.values()))}
    assert [name for name, trace in corrupted.items() if id(trace) not in noticed] == []
