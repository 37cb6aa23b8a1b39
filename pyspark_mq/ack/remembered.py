"""The interface through which an in-flight table uses the memory of committed messages (:mod:`pyspark_mq.dedup`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["Remembered"]

K = TypeVar("K")  #: identity of a message


class Remembered(Protocol[K]):
    """The committed messages of one queue."""

    def among(self, keys: Collection[K]) -> set[K]:
        """Return those of these keys whose messages are known to be committed."""

    def left_among(self, keys: Collection[K]) -> set[K]:
        """Return the keys of messages that were left open.

        This means that the end of a session or a process has cut off their acknowledgement.
        """

    def hold(self, keys: Collection[K]) -> Any:
        """Note the IDs of the messages in a run, so that a later delivery with one of these IDs is noticed.

        Returns:
            the digests of the IDs. None, and no ID is noted, if one of them is known or noted already.
        """

    def hold_only(self, digests: Sequence[Any]) -> None:
        """Forget all IDs that :meth:`hold` has noted, except those with these digests."""

    def committed(self, epoch: int, keys: Collection[K], digests: Sequence[Any] = ()) -> None:
        """Record that messages of an epoch are committed.

        Args:
            digests: arrays with the digests of all keys, as :meth:`hold` returned them; empty if they are unknown.
        """

    def leave(self, keys: Collection[K]) -> None:
        """Record that committed messages were left open: their acknowledgements were cut off by an end of a session."""

    # -- messages without an ID

    def contents_among(self, keys: Collection[Any]) -> tuple[set[Any], set[Any], set[Any]]:
        """Return three sets of keys, by what is known about their contents.

        A message with the content is committed; such a message was left open; two messages have had the content.
        """

    def repeat(self, key: Any) -> None:
        """Record that a content repeats: two messages have had the content of the message with this key."""

    def emit_again(self, key: Any) -> bool:
        """Record that a message is emitted, although it may be the redelivery of a message that was left open.

        Returns:
            whether there was a message with this content that was left open and not redelivered since.
        """

    def has_contents(self, epochs: Collection[int]) -> bool:
        """Whether one of these epochs, which are committed but not settled, has messages without an ID."""
