"""The interface of a store of committed IDs in addition to the checkpoint (option `dedupStore`).

The checkpoint alone makes a query exactly-once. A store adds IDs that are not in the checkpoint: IDs that another query
on the same queue has committed, and IDs that this query committed before its checkpoint was lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from pyspark_mq.dedup.identity import Key

__all__ = ["CheckpointOnly", "SeenStore"]


class SeenStore(ABC):
    """A store of the IDs of committed messages, which several queries may share.

    One thread calls the methods. A call has IDs of an epoch, or of one or more blocks of deliveries. The IDs of an
    epoch are added after its commit, and before its messages are acknowledged. So a message whose ID is in the store is
    certainly emitted.
    """

    @abstractmethod
    def known(self, keys: Iterable[Key]) -> set[Key]:
        """Return those of the given keys that are in the store."""

    @abstractmethod
    def remember(self, keys: Iterable[Key]) -> None:
        """Add the keys of committed messages. If the store has more than its limit, remove the oldest keys."""

    def close(self) -> None:  # noqa: B027 - most stores have nothing to do
        """Close the store. A process that is killed does not call this method, so nothing may depend on it."""


class CheckpointOnly(SeenStore):
    """The store for `dedupStore=checkpoint`. It is always empty: all remembered IDs are in the query's checkpoint."""

    def known(self, keys: Iterable[Key]) -> set[Key]:  # noqa: ARG002
        """Return an empty set, without iterating over `keys`."""
        return set()

    def remember(self, keys: Iterable[Key]) -> None:
        """Do nothing: the checkpoint has the IDs."""
