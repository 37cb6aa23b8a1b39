"""Contract of a store of committed IDs besides the checkpoint.

The checkpoint alone makes a query exactly-once. A shared store adds what a checkpoint cannot
know: IDs committed by another query on the same queue, or by this one before its checkpoint
was lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from pyspark_mq.dedup.identity import Key

__all__ = ["CheckpointOnly", "SeenStore"]


class SeenStore(ABC):
    """IDs of committed messages, shared by whoever opens the same store.

    Called by one thread, once an epoch and never once a message. An ID is remembered after its
    epoch is committed and before it is acknowledged, so the store never knows an ID whose
    message could still be lost.
    """

    @abstractmethod
    def known(self, keys: Iterable[Key]) -> set[Key]:
        """Return those of `keys` that were remembered and are still in the store."""

    @abstractmethod
    def remember(self, keys: Iterable[Key]) -> None:
        """Add committed IDs; the oldest beyond the store's bound are dropped."""

    def close(self) -> None:  # noqa: B027 - most stores have nothing to do
        """Free what the store holds open. Not guaranteed to be called."""


class CheckpointOnly(SeenStore):
    """`dedupStore=checkpoint`: nothing beyond the offsets."""

    def known(self, keys: Iterable[Key]) -> set[Key]:  # noqa: ARG002
        """Know none of them, without looking at one."""
        return set()

    def remember(self, keys: Iterable[Key]) -> None:
        """Keep nothing: they are in the offset."""
