"""What an in-flight table asks the memory of its query, and what it says to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["Remembered"]

K = TypeVar("K")  #: identity of a message


class Remembered(Protocol[K]):
    """The committed messages of one queue."""

    def among(self, keys: Collection[K]) -> set[K]:
        """Return those that are known."""

    def left_among(self, keys: Collection[K]) -> set[K]:
        """Return those that ends of sessions or processes have left open."""

    def hold(self, keys: Collection[K]) -> Any:
        """Hold the IDs of messages that came; their digests, an array, or None if one of them was known or held."""

    def hold_only(self, digests: Sequence[Any]) -> None:
        """Hold these, and no others any more."""

    def committed(self, epoch: int, keys: Collection[K], digests: Sequence[Any] = ()) -> None:
        """Take note that messages of an epoch are committed: known from now on. These are their digests, if known."""

    def leave(self, keys: Collection[K]) -> None:
        """Take note that committed messages are left open, and may come again."""

    # -- messages without an ID

    def contents_among(self, keys: Collection[Any]) -> tuple[set[Any], set[Any], set[Any]]:
        """Return those whose content is known, was left open, and repeats."""

    def repeat(self, key: Any) -> None:
        """Take note that the content of a message repeats."""

    def emit_again(self, key: Any) -> bool:
        """Take note of a message that may be one that was left open; whether there is one."""

    def recognise(self, keys: Sequence[Any], coming: Counter[Any]) -> list[Any]:
        """Find the committed messages among these, and take them out of those that are coming."""

    def settle_again(self, keys: Collection[Any]) -> None:
        """Take note that messages which were left open have come, and cannot come again."""
