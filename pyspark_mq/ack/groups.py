"""Groups of messages in the same state. The in-flight table applies an event to a whole group.

Events come with different data, so there is a class of groups for each kind of data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyspark_mq.ack.buffer import MessageRun, Parts
from pyspark_mq.ack.planned import Epoch
from pyspark_mq.ack.table import State
from pyspark_mq.dedup import Key

__all__ = ["Assigned", "DeliveredGroup", "Ended", "Group", "Whole", "sorted_by_state"]

P = TypeVar("P")  #: payload: the object that the caller gets back when the message is emitted


@dataclass(slots=True)
class Group:
    """A group of messages in order, for events without further data."""

    keys: Collection[Key]


@dataclass(slots=True)
class DeliveredGroup(Group, Generic[P]):
    """A group of delivered messages, with their deliveries, their payloads, and their run (:mod:`.buffer`), if any."""

    parts: Parts
    payloads: Sequence[P]
    run: MessageRun[P] | None = None


@dataclass(slots=True)
class Ended(Group):
    """A group of messages whose deliveries in one session are no longer valid, because the session has ended."""

    session: int


@dataclass(slots=True)
class Assigned(Group, Generic[P]):
    """A group of messages that are assigned to an epoch, with the runs (:mod:`.buffer`) that they form, if any."""

    epoch: Epoch[P]
    runs: Sequence[MessageRun[P]] = field(default=())


@dataclass(slots=True)
class Whole(Group, Generic[P]):
    """The group of all messages of a planned epoch."""

    epoch: Epoch[P]


def sorted_by_state(
    session: int,
    tags: Sequence[int],
    keys: Sequence[Key],
    payloads: Sequence[P],
    state_of: Callable[[Key], State],
) -> dict[State, Group]:
    """Sort deliveries of a session into groups, by the state of their messages."""
    groups: dict[State, list[tuple[int, Key, P]]] = {}
    unseen: set[Key] = set()
    for delivery in zip(tags, keys, payloads, strict=True):
        key = delivery[1]
        # If a message is delivered twice within these deliveries, the first delivery has already changed its state.
        state = State.RECEIVED if key in unseen else state_of(key)
        if state is State.UNSEEN:
            unseen.add(key)
        groups.setdefault(state, []).append(delivery)
    found: dict[State, Group] = {}
    for state in [state for state in State if state in groups]:
        its_tags, its_keys, its_payloads = zip(*groups[state], strict=True)
        found[state] = DeliveredGroup(its_keys, [(session, its_tags)], its_payloads)
    return found
