"""IDs that were acknowledged together, and for how long they are carried. Pure.

How that is decided is in the text of :mod:`pyspark_mq.ack.ledger`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from pyspark_mq.ack.table import State

__all__ = ["Batch", "Exposure"]

K = TypeVar("K", bound=Hashable)  #: identity of a message


class Exposure(Enum):
    """What a session that ended had made of a batch."""

    UNCONFIRMED = "unconfirmed"
    CONFIRMED = "confirmed"


@dataclass(slots=True, eq=False)
class Batch(Generic[K]):
    """IDs acknowledged together. `memo` is the caller's, to keep the encoded form beside them."""

    number: int
    keys: tuple[K, ...]
    memo: str | None = None
    state: State = State.COMMITTED
    #: how many of the keys are not in a newer batch, nor evicted
    live: int = 0
    #: sessions that acknowledged it, and those of them that have not confirmed yet
    sessions: frozenset[int] = frozenset()
    open_sessions: set[int] = field(default_factory=set)
    #: deliveries acknowledged in each session, to be counted as settled when it confirms
    deliveries: dict[int, int] = field(default_factory=dict)
    exposure: Exposure | None = None
    #: how long it waits once it is exposed; None: as long as `start_clock` says
    wait_s: float | None = None
    #: when it stops being carried: by the monotonic clock if confirmed, by connected time if exposed
    grace_ends_s: float | None = None
    wait_ends_s: float | None = None
    #: the last plan whose offset names some of its keys
    logged: int = -1
    #: so many of the keys from the first were looked at for eviction
    evicted: int = 0

    def wait_left_s(self, connected_s: float, default: float | None = None) -> float | None:
        """Connected seconds it is still to be carried if this process ends now; `default` if that is not known."""
        if self.wait_ends_s is not None:
            return max(0.0, self.wait_ends_s - connected_s)
        return default if self.wait_s is None else self.wait_s

    def over(self, now_s: float, connected_s: float) -> bool:
        """Can none of it come again?"""
        return (self.grace_ends_s is not None and self.grace_ends_s <= now_s) or (
            self.wait_ends_s is not None and self.wait_ends_s <= connected_s
        )
