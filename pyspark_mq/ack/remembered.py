"""What a ledger asks the memory of its query, and what it says to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["Remembered"]

K = TypeVar("K")  #: identity of a message


class Remembered(Protocol[K]):
    """The committed messages of one queue."""

    def among(self, keys: Collection[K]) -> set[K]:
        """Return those that are known."""

    def knows_none_of(self, keys: Collection[K]) -> bool:
        """Whether none of these is known."""

    def left_among(self, keys: Collection[K]) -> set[K]:
        """Return those that ends of sessions or processes have left open."""

    def met_among(self, keys: Collection[K]) -> set[K]:
        """Return the contents of these that are settled."""

    def hold(self, keys: Collection[K]) -> Any:
        """Hold the IDs of messages that came; their digests, an array, or None if one of them was known or held."""

    def hold_only(self, digests: Sequence[Any]) -> None:
        """Hold these, and no others any more."""

    def committed(self, epoch: int, keys: Collection[K], digests: Sequence[Any] = ()) -> None:
        """Take note that messages of an epoch are committed: known from now on. These are their digests, if known."""

    def leave(self, keys: Collection[K]) -> None:
        """Take note that committed messages are left open, and may come again."""
