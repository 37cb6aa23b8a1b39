"""Contract of a store of committed IDs in addition to the checkpoint.

The checkpoint alone makes a query exactly-once. A shared store adds IDs that a checkpoint cannot know: those committed
by another query on the same queue, or by this query before its checkpoint was lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from pyspark_mq.dedup.identity import Key

__all__ = ["CheckpointOnly", "SeenStore"]


class SeenStore(ABC):
    """IDs of committed messages, shared by all users of the store.

    One thread calls the methods, once per epoch and never per message. An ID is remembered after the commit of its
    epoch and before the acknowledgement of its message, so the store never knows an ID whose message could still be
    lost.
    """

    @abstractmethod
    def known(self, keys: Iterable[Key]) -> set[Key]:
        """Return the keys that were remembered and are still in the store."""

    @abstractmethod
    def remember(self, keys: Iterable[Key]) -> None:
        """Add committed IDs; drop the oldest ones beyond the store's limit."""

    def close(self) -> None:  # noqa: B027 - most stores have nothing to do
        """Close the store. Not guaranteed to be called."""


class CheckpointOnly(SeenStore):
    """`dedupStore=checkpoint`: no store beyond the checkpoint."""

    def known(self, keys: Iterable[Key]) -> set[Key]:  # noqa: ARG002
        """Return an empty set, without consuming `keys`."""
        return set()

    def remember(self, keys: Iterable[Key]) -> None:
        """Do nothing: the checkpoint has the IDs."""
