"""Columns of many messages at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_mq.sources.connections.decoder import Unreadable
from pyspark_mq.streams.scanned import arrays_of, read_messages, unreadable

__all__ = ["Messages", "message_columns"]


class Messages(NamedTuple):
    """Messages in one piece of memory, in ascending order.

    Attributes:
        begins, ends: of each, as arrays of 64-bit integers.
    """

    data: bytes
    begins: Any
    ends: Any

    def cut(self) -> list[bytes]:
        """Each by itself."""
        return [self.data[begin:end] for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True)]


def message_columns(messages: Messages, names: Collection[str]) -> tuple[dict[str, pa.Array], list[Unreadable]]:
    """The columns of these names, and the messages that cannot be read, by their numbers."""
    raws = read_messages(messages.cut())
    return arrays_of(raws, names), unreadable(raws)
