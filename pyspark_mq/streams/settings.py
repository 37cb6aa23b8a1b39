"""Options of a stream query, typed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_mq.sources.endpoint import Endpoint
from pyspark_mq.streams.chunk import ENTRY_BYTES_MAX

__all__ = ["StreamSettings", "Where"]


@dataclass(frozen=True)
class Where:
    """Place to begin or to end: an offset for all partitions, offsets or times by partition, or a time for all.

    Attributes:
        offset: `EARLIEST` or `LATEST`, for all partitions.
        offsets, times_ms: offsets or times by partition; `offset` applies to the other partitions.
        since_ms: a time for all partitions. It stands for the first chunk that is not older, or for the end if there is
            no such chunk.
    """

    offset: int
    offsets: Mapping[str, int] | None = None
    times_ms: Mapping[str, int] | None = None
    since_ms: int | None = None


@dataclass(frozen=True)
class StreamSettings:
    """Options of a query.

    Attributes:
        streams: names of streams and super streams.
        ending: where a batch query ends.
        max_offsets, min_offsets: limits of an epoch; None for no limit. The maximum is rounded up to the end of a
            chunk.
        max_delay_s: how long to wait for the minimum.
        min_partitions, max_records: bounds for splitting ranges among tasks. If both are None, each range has one task.
        unreadable: what to do with an unreadable message: `fail`, `row` or `reject`.
        max_entry_bytes: most bytes of an unpacked entry. A larger entry is unreadable.
    """

    endpoint: Endpoint
    streams: tuple[str, ...]
    starting: Where
    ending: Where
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = 900.0
    min_partitions: int | None = None
    max_records: int | None = None
    fail_on_loss: bool = True
    unreadable: str = "fail"
    max_entry_bytes: int = ENTRY_BYTES_MAX

    @property
    def virtual_host(self) -> str:
        return self.endpoint.urls[0].virtual_host

    @property
    def of(self) -> str:
        """The streams of the query, as named in offsets and errors."""
        names = ", ".join(f"'{name}'" for name in self.streams)
        kind = "stream" if len(self.streams) == 1 else "streams"
        return f"{kind} {names} in virtual host '{self.virtual_host}'"
