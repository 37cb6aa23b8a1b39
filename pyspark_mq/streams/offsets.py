"""Encodes the offset of a stream query for Spark's offset log, and parses options with offsets or times by partition.

Spark's offset is one JSON object: ``{"v": 1, "of": "streams 'orders' in virtual host '/'", "at": {"orders-0": {"next":
500, "last": [480, timestamp, epoch, crc], "first": [0, …]}}}``. It has a position for each partition. ``next`` is the
stream's offset after the last record read. ``last`` is the identity of the chunk with that record, and ``first`` is the
identity of the chunk that was the stream's first chunk when the offset was recorded; each is null if there was no such
chunk. These identities tell the stream from a later stream with the same name. Partitions are sorted by name, because
Spark compares offsets as text.
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
#: Numbers in options that stand for the start and the end of a partition, as in Spark's Kafka source.
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True)
class StreamPosition:
    """A position in one partition, before the record with offset `next`.

    Attributes:
        next: offset of the record after the position.
        last: identity of the chunk with the record before the position; None if unknown.
        first: identity of the stream's first chunk when the position was recorded; None if the stream had no chunk.
    """

    next: int
    last: ChunkIdentity | None = None
    first: ChunkIdentity | None = None


def encode(of: str, places: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Encode the positions of all partitions as an offset for Spark.

    Args:
        of: the query's streams, as :attr:`.StreamSettings.of` names them.
        places: the position in each partition.
    """
    at = {
        name: {"next": place.next, "last": place.last and list(place.last), "first": place.first and list(place.first)}
        for name, place in sorted(places.items())
    }
    return {"v": _VERSION, "of": of, "at": at}


def decode(of: str, offset: Any) -> dict[str, StreamPosition]:
    """Return the position in each partition from an offset that Spark passes.

    Args:
        of: the query's streams, as :attr:`.StreamSettings.of` names them.
        offset: the offset, which may come from a checkpoint.

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
    """Parse an option with offsets or times by partition.

    The text is JSON such as `{"events": 500}`. Value -2 stands for the start of the partition and -1 for its end.

    Raises:
        OptionError: the text does not have this form.
    """
    accepted = 'use JSON that maps partitions to whole numbers, such as {"events": 500}'
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
