"""Describes a sample of a queue's messages: IDs, sizes and priorities, and other values that could serve as IDs."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark_mq.admin.checks import Sample

__all__ = ["sample_of"]

#: With fewer messages than this, different values do not suggest that the values could serve as IDs.
_UNIQUE_MIN = 3


def sample_of(rows: Sequence[dict[str, Any]], how: str) -> Sample:
    """Describe the deliveries in these rows (see :func:`.rows_of`). :class:`.Sample` says what `how` means."""
    contents = Counter((row["body"], repr(sorted(row["properties"].items()))) for row in rows)
    return Sample(
        how,
        [row["messageId"] for row in rows],
        [len(row["body"]) for row in rows],
        [row["priority"] for row in rows],
        unique=_unique(rows),
        repeated=len(rows) - len(contents),
    )


def _unique(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the values of option `messageIdFrom` with which all of these messages would have different IDs."""
    found = [dict(_candidates(row)) for row in rows]
    if len(found) < _UNIQUE_MIN:
        return []
    shared = [name for name in found[0] if all(name in one for one in found)]
    return [name for name in shared if len({one[name] for one in found}) == len(found)]


def _candidates(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each value of option `messageIdFrom` with which this message would have an ID, together with that ID."""
    if row["correlationId"]:
        yield "correlation-id", row["correlationId"]
    for name, value in row["properties"].items():
        if value:
            yield f"property:{name}", value
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(row["body"])
        if isinstance(body, dict):
            yield from _in_object(body, "json:$")


def _in_object(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if "." not in name:
                yield from _in_object(inner, f"{path}.{name}")
    elif (isinstance(value, str) and value) or type(value) is int:
        yield path, str(value)
