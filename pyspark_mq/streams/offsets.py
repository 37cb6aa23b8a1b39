"""The offset of a stream query in Spark's log, and positions in options.

An offset is one JSON object: ``{"v": 1, "of": "streams 'orders' in virtual host '/'", "at": {"orders-0": {"next": 500,
"last": [480, timestamp, epoch, crc], "first": [0, …]}}}``. ``next`` is the offset after the last record read. ``last``
is the identity of the chunk with that record. ``first`` is the identity of the chunk that was the stream's first chunk
when the offset was recorded. No other stream of this name has these chunks. ``last`` and ``first`` are null if there
was no chunk. Partitions are sorted by name, because Spark compares offsets as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_mq.errors import START_ANEW, CheckpointError, OptionError
from pyspark_mq.streams.chunk import ChunkIdentity

__all__ = ["EARLIEST", "LATEST", "StreamPosition", "decode", "encode", "parse_places"]

_VERSION = 1
_OFFSET_MAX = 2**63 - 1
#: As in Spark's Kafka source.
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True)
class StreamPosition:
    """A position in one partition.

    Attributes:
        next: offset of the record after the position.
        last: the chunk with the record before the position; None if unknown.
        first: the stream's first chunk when the position was recorded; None if the stream had no chunk.
    """

    next: int
    last: ChunkIdentity | None = None
    first: ChunkIdentity | None = None


def encode(of: str, places: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Encode the positions of all partitions as an offset of the query that reads `of`."""
    at = {
        name: {"next": place.next, "last": place.last and list(place.last), "first": place.first and list(place.first)}
        for name, place in sorted(places.items())
    }
    return {"v": _VERSION, "of": of, "at": at}


def decode(of: str, offset: Any) -> dict[str, StreamPosition]:
    """Return the positions in an offset.

    Raises:
        CheckpointError: the offset has another version, or belongs to another query.
    """
    fresh = f"Restore the checkpoint, or {START_ANEW}"
    if not isinstance(offset, dict) or "at" not in offset or "of" not in offset:
        raise CheckpointError(
            f"{of}: the offset in the checkpoint is not for streams: it belongs to another source. {fresh}"
        )
    if offset.get("v") != _VERSION:
        raise CheckpointError(
            f"{of}: the checkpoint has stream offsets of version {offset.get('v')!r:.20}, but this pyspark-mq reads "
            f"only version {_VERSION}. Upgrade pyspark-mq"
        )
    if offset["of"] != of:
        raise CheckpointError(f"the checkpoint belongs to {offset['of']}, but the query reads {of}. {fresh}")
    try:
        return {name: _place(one) for name, one in offset["at"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as wrong:
        raise CheckpointError(f"{of}: the offset in the checkpoint is broken: {wrong!r}. {fresh}") from None


def _place(one: dict[str, Any]) -> StreamPosition:
    if not _is_offset(one["next"]):
        raise ValueError(f"'next' is {one['next']!r}")
    return StreamPosition(one["next"], _identity(one["last"]), _identity(one["first"]))


def _identity(parts: list[int] | None) -> ChunkIdentity | None:
    if parts is None:
        return None
    if not all(map(_is_offset, parts)):
        raise ValueError(f"a chunk is {parts!r}")
    return ChunkIdentity(*parts)


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _OFFSET_MAX


def parse_places(option: str, text: str) -> dict[str, int]:
    """Parse an option with offsets or times by partition: JSON, with -2 for the earliest and -1 for the latest.

    Raises:
        OptionError: the text is not of this form.
    """
    accepted = 'accepted is JSON that maps partitions to whole numbers, such as {"events": 500}'
    try:
        found = json.loads(text)
    except ValueError as wrong:
        raise OptionError(option, f"{text!r} is not JSON ({wrong}); {accepted}") from None
    if not isinstance(found, dict) or not found:
        raise OptionError(option, f"{text!r} names no partition; {accepted}")
    for name, value in found.items():
        if not (_is_offset(value) or value in (EARLIEST, LATEST)) or isinstance(value, bool):
            raise OptionError(option, f"{value!r} for partition '{name}' is not accepted; {accepted}")
    return found
