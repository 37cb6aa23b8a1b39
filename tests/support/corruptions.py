"""Ways in which a trace can be wrong: each gives its events back changed, or None if they have no place for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.support.traces import Event

__all__ = ["CORRUPTIONS", "acknowledged_before_its_commit"]

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


def _before_its_commit(events: Events, name: str) -> Events | None:
    for sink in places(events, "sink"):
        for commit in places(events[: sink + 2], "commit", sink):
            for at in places(events, name, commit):
                if events[at][-1][:2] in batch_of(events[sink]):
                    return moved(events, at, commit)
    return None


def acknowledged_before_its_commit(events: Events) -> Events | None:
    return _before_its_commit(events, "take")


def asked_to_acknowledge_before_its_commit(events: Events) -> Events | None:
    return _before_its_commit(events, "acknowledge")


def asked_to_acknowledge_beyond_its_epoch(events: Events) -> Events | None:
    for ask in places(events, "acknowledge"):
        session = events[ask][1]
        since = max((*places(events[:ask], "lose"), *places(events[:ask], "crash")), default=0)
        emitted = [one for sink in places(events[:ask], "sink") for one in batch_of(events[sink])]
        for deliver in places(events[:ask], "deliver", since):
            if events[deliver][1] == session and events[deliver][2][:2] not in emitted:
                return [*events[: ask + 1], ("acknowledge", session, events[deliver][2]), *events[ask + 1 :]]
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
    other = next((at for at in sinks if events[at] != events[sinks[0]]), None)
    return None if other is None else changed(events, other, *events[sinks[0]])


def planned_and_never_delivered(events: Events) -> Events | None:
    for at in places(events, "deliver"):
        if ("plan" in [event[0] for event in events[at:]]) and sum(
            event[0] == "deliver" and event[2] == events[at][2] for event in events
        ) == 1:
            return changed(events, at)
    return None


def planned_in_another_order(events: Events) -> Events | None:
    for at in places(events, "plan"):
        _, planned = events[at]
        for name, ids in planned.items():
            if len(ids) > 1:
                return changed(events, at, "plan", {**planned, name: ids[::-1]})
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
    before = (at - 1 for at in places(events, "commit") if events[at - 1][0] == "sink")
    return next((changed(events, at) for at in before), None)


def planned_again_before_the_commit(events: Events) -> Events | None:
    return next((changed(events, at) for at in places(events, "commit") if "plan" in [e[0] for e in events[at:]]), None)


def planned_unasked(events: Events) -> Events | None:
    for at in places(events, "latest"):
        end = next((later for later in range(at + 1, len(events)) if events[later][0] != "acknowledge"), None)
        if end is not None and events[end][0] == "plan":
            return moved(events, end, at)
    return None


def replayed_what_is_its_own(events: Events) -> Events | None:
    return next((changed(events, at, "replay") for at in places(events, "run")), None)


def forgotten_and_never_acknowledged(events: Events) -> Events | None:
    return next((changed(events, at, "kill", frozenset({("b", 10, 1)})) for at in places(events, "kill")), None)


def begun_twice(events: Events) -> Events | None:
    return next((changed(events, at) for at in places(events, "crash") if "start" in [e[0] for e in events[at:]]), None)


CORRUPTIONS: Sequence[Callable[[Events], Events | None]] = [
    acknowledged_before_its_commit, asked_to_acknowledge_before_its_commit, asked_to_acknowledge_beyond_its_epoch,
    replayed_with_one_less, emitted_in_another_order, emitted_twice,
    planned_and_never_delivered, planned_in_another_order,
    taken_twice, delivered_twice_in_a_session, delivered_without_a_session, delivered_in_the_session_of_another_queue,
    opened_twice, committed_without_a_sink, planned_again_before_the_commit, planned_unasked, replayed_what_is_its_own,
    forgotten_and_never_acknowledged, begun_twice,
]  # fmt: skip
