"""Extracts the counters of `mq` sources from the progress that Spark reports for a query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_mq.ack.counters import Counters

__all__ = ["Reading", "readings"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The part of a query's progress that is about one `mq` source.

    Attributes:
        source: index of the source among the query's sources.
        reads: the queues, the topic or the streams that the source reads, in the words of error messages.
        counters: counts since the source's process started. For streams only `planned`, `lost` and `backlog` are set.
        partitions: for each partition of a stream, the number of offsets that are available but not planned; None for
            queues.
        planned: the last planned epoch: its number (`epoch`), its size (`messages`, `bytes`), when Spark asked for it
            (`askedAtMs`, milliseconds since 1970), and how long receiving and planning took (`receiveMs`, `planMs`).
            None before the first epoch is planned.
        confirmed: the last epoch whose acknowledgements the broker has confirmed: its number (`epoch`), when they were
            confirmed (`confirmedAtMs`, milliseconds since 1970), and how long after the commit (`confirmMs`). None
            before the first confirmation.
    """

    source: int
    reads: str
    counters: Counters
    planned: Mapping[str, int] | None = None
    confirmed: Mapping[str, int] | None = None
    partitions: Mapping[str, int] | None = None


def readings(progress: Any) -> list[Reading]:
    """Return one reading for each `mq` source in a progress report.

    Args:
        progress: a `StreamingQueryProgress`, or the mapping `query.lastProgress`, which is None before the first
            progress.

    Returns:
        the readings of the sources that report counters. The list is empty before Spark 4.2, and for a replayed batch.
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
