"""Messages of one state that meet an event together, by what the event brings along. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyspark_mq.ack.planned import Epoch
from pyspark_mq.ack.runs import Run

__all__ = ["Assigned", "DeliveredGroup", "Ended", "Group", "Whole"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: whatever the caller wants back when the message is emitted


@dataclass(slots=True)
class Group(Generic[K]):
    """Messages, in order, and nothing else."""

    keys: Collection[K]


@dataclass(slots=True)
class DeliveredGroup(Group[K], Generic[K, P]):
    """Deliveries of one session: the handle and the payload of each; and the run that they are, if they are one."""

    session: int
    tags: Sequence[int]
    payloads: Sequence[P]
    run: Run[K, P] | None = None


@dataclass(slots=True)
class Ended(Group[K]):
    """Messages whose handles in one session are void."""

    session: int


@dataclass(slots=True)
class Assigned(Group[K], Generic[K, P]):
    """Messages that become a part of an epoch; and the runs that they are, if they are some."""

    epoch: Epoch[K, P]
    runs: Sequence[Run[K, P]] = field(default=())


@dataclass(slots=True)
class Whole(Group[K], Generic[K, P]):
    """All messages of a planned epoch."""

    epoch: Epoch[K, P]
