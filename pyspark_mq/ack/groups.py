"""Messages that meet an event together, and what moves with them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

from pyspark_mq.ack.planned import Epoch

__all__ = ["Group", "Moved", "joined"]

K = TypeVar("K", bound=Hashable)  #: identity of a message
P = TypeVar("P")  #: whatever the caller wants back when the message is emitted


@dataclass(slots=True)
class Group(Generic[K, P]):
    """Messages of one state that meet an event together, and what the event brings along.

    Attributes:
        keys: what is met, in order.
        session: where they were delivered, or whose end it is.
        tags, payloads: the handles under which they were delivered, and what was.
        into: the epoch they are planned in now.
        whole: the planned epoch they are, as a whole.
    """

    keys: Collection[K]
    session: int | None = None
    tags: Sequence[int] | None = None
    payloads: Sequence[P] | None = None
    into: Epoch[K, P] | None = None
    whole: Epoch[K, P] | None = None


@dataclass(slots=True)
class Moved(Generic[P]):
    """The content that leaves the container of a state with the messages of a group.

    Attributes:
        held: their payloads, None for one that has not come; None if none move.
        weight: bytes of them, None if unknown.
        unbound: not all of the messages have a handle, maybe.
    """

    held: Sequence[P | None] | None = None
    weight: int | None = None
    unbound: bool = False


def joined(group: Group[K, P], moved: Moved[P], other: Group[K, P], others: Moved[P]) -> tuple[Group[K, P], Moved[P]]:
    """Make one group of two; deliveries in the order of their tags."""
    both: Moved[P] = Moved(unbound=moved.unbound or others.unbound)
    if group.tags is None or other.tags is None:
        return Group({**dict.fromkeys(group.keys), **dict.fromkeys(other.keys)}), both
    pairs = sorted(
        [*zip(group.tags, group.keys, strict=True), *zip(other.tags, other.keys, strict=True)], key=itemgetter(0)
    )
    return Group([key for _, key in pairs], group.session, [tag for tag, _ in pairs]), both
