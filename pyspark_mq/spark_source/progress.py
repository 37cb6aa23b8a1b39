"""Typed progress of a query's `mq` sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_mq.ack.counters import Counters

__all__ = ["Reading", "readings"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One `mq` source in a query's progress.

    Attributes:
        source: place of the source in the query.
        reads: the queues, the topic or the streams, as errors name them.
        counters: counts since the source's process started. For streams only `planned`, `lost` and `backlog` are set.
        partitions: offsets available but not planned, by partition; None for queues.
        planned: the last planned epoch: `epoch`, `messages`, `bytes`, `askedAtMs` (since 1970), `receiveMs`, `planMs`.
            None before the first epoch is planned.
        confirmed: the last epoch whose acknowledgements were confirmed: `epoch`, `confirmedAtMs` (since 1970),
            `confirmMs` from the commit. None before the first confirmation.
    """

    source: int
    reads: str
    counters: Counters
    planned: Mapping[str, int] | None = None
    confirmed: Mapping[str, int] | None = None
    partitions: Mapping[str, int] | None = None


def readings(progress: Any) -> list[Reading]:
    """Return the readings of the `mq` sources in a progress report.

    Args:
        progress: a `StreamingQueryProgress`, or the mapping `query.lastProgress`; None before the first progress.

    Returns:
        one reading for each source that reports counters. Empty before Spark 4.2 and for a replayed batch.
    """
    if progress is None:
        return []
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    found = []
    for place, source in enumerate(sources):
        text = source["latestOffset"] if isinstance(source, Mapping) else source.latestOffset
        try:
            value = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            continue
        if isinstance(value, Mapping) and "reads" in value:
            parts = (value.get(name) for name in ("lastPlanned", "lastConfirmed", "backlogByPartition"))
            found.append(Reading(place, str(value["reads"]), Counters.of(value), *parts))
    return found
