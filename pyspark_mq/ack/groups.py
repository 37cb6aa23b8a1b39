"""Groups of messages in one state that meet an event together: one class for each kind of data in an event. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyspark_mq.ack.buffer import MessageRun, Parts
from pyspark_mq.ack.planned import Epoch
from pyspark_mq.ack.table import State

__all__ = ["Assigned", "DeliveredGroup", "Ended", "Group", "Whole", "sorted_by_state"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: payload: the object that the caller gets back when the message is emitted


@dataclass(slots=True)
class Group(Generic[K]):
    """Messages in order, without further data."""

    keys: Collection[K]


@dataclass(slots=True)
class DeliveredGroup(Group[K], Generic[K, P]):
    """Deliveries with their handles and payloads, and with their run if they form a run."""

    parts: Parts
    payloads: Sequence[P]
    run: MessageRun[K, P] | None = None


@dataclass(slots=True)
class Ended(Group[K]):
    """Messages whose handles in one session are void."""

    session: int


@dataclass(slots=True)
class Assigned(Group[K], Generic[K, P]):
    """Messages that join an epoch, and their runs if they form any."""

    epoch: Epoch[K, P]
    runs: Sequence[MessageRun[K, P]] = field(default=())


@dataclass(slots=True)
class Whole(Group[K], Generic[K, P]):
    """All messages of a planned epoch."""

    epoch: Epoch[K, P]


def sorted_by_state(
    session: int,
    tags: Sequence[int],
    keys: Sequence[K],
    payloads: Sequence[P],
    state_of: Callable[[K], State],
) -> dict[State, Group[K]]:
    """Sort deliveries of a session into groups, by the state of their messages."""
    groups: dict[State, list[tuple[int, K, P]]] = {}
    unseen: set[K] = set()
    for delivery in zip(tags, keys, payloads, strict=True):
        key = delivery[1]
        # A repetition within the same call meets the state after the first delivery.
        state = State.RECEIVED if key in unseen else state_of(key)
        if state is State.UNSEEN:
            unseen.add(key)
        groups.setdefault(state, []).append(delivery)
    found: dict[State, Group[K]] = {}
    for state in [state for state in State if state in groups]:
        its_tags, its_keys, its_payloads = zip(*groups[state], strict=True)
        found[state] = DeliveredGroup(its_keys, [(session, its_tags)], its_payloads)
    return found
