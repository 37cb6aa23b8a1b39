"""The interface through which an in-flight table uses the memory of a query."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["Remembered"]

K = TypeVar("K")  #: identity of a message


class Remembered(Protocol[K]):
    """The committed messages of one queue."""

    def among(self, keys: Collection[K]) -> set[K]:
        """Return the keys that are known."""

    def left_among(self, keys: Collection[K]) -> set[K]:
        """Return the keys whose messages were left open when a session or process ended."""

    def hold(self, keys: Collection[K]) -> Any:
        """Hold the IDs of received messages, so that a later delivery with one of these IDs is noticed.

        Returns:
            the digests of the IDs; None if any ID was already known or held.
        """

    def hold_only(self, digests: Sequence[Any]) -> None:
        """Hold only the IDs with these digests from now on."""

    def committed(self, epoch: int, keys: Collection[K], digests: Sequence[Any] = ()) -> None:
        """Record that messages of an epoch are committed; `digests` has the digests of all keys, if known."""

    def leave(self, keys: Collection[K]) -> None:
        """Record that committed messages were left open and may be redelivered."""

    # -- messages without an ID

    def contents_among(self, keys: Collection[Any]) -> tuple[set[Any], set[Any], set[Any]]:
        """Return three sets: the keys whose content is known, was left open, and repeats, respectively."""

    def repeat(self, key: Any) -> None:
        """Record that the content of a message repeats."""

    def emit_again(self, key: Any) -> bool:
        """Record that a message is emitted although it may have been left open before.

        Returns:
            whether a message with this content was left open.
        """

    def has_contents(self, epochs: Collection[int]) -> bool:
        """Whether messages without an ID are in one of these epochs, which are committed and not settled."""
