"""The options of a stream query, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_mq.streams.chunk import ENTRY_BYTES_MAX
from pyspark_mq.wire.endpoint import Endpoint

__all__ = ["StreamSettings", "Where"]


@dataclass(frozen=True)
class Where:
    """The position in each partition at which a query begins or ends.

    Attributes:
        offset: `EARLIEST` or `LATEST`, for all partitions without a more specific value.
        offsets: offset by name of the partition; None if the options give none.
        times_ms: time by name of the partition; None if the options give none.
        since_ms: a time for all partitions without a time of their own. A time stands for the first chunk that is not
            older than the time, or for the end of the partition if there is no such chunk.
    """

    offset: int
    offsets: Mapping[str, int] | None = None
    times_ms: Mapping[str, int] | None = None
    since_ms: int | None = None


@dataclass(frozen=True)
class StreamSettings:
    """Options of a stream query.

    Attributes:
        endpoint: the brokers, with login, TLS settings and time limits.
        streams: names of the streams and super streams to read.
        starting: where the query begins if there is no checkpoint yet.
        ending: where a batch query ends.
        max_offsets: maximum number of offsets in an epoch, rounded up to the end of a chunk; None for no limit.
        min_offsets: an epoch with fewer new offsets is not planned yet; None to plan at once.
        max_delay_s: maximum seconds for which an epoch waits for `min_offsets`, counted from the plan of the previous
            epoch, or from the start.
        min_partitions: minimum number of tasks of an epoch; None for one task for each partition.
        max_records: maximum number of records of a task; None for no limit.
        fail_on_loss: whether the query fails if messages are lost.
        unreadable: what to do with an unreadable message: `fail`, `row` or `reject`.
        max_entry_bytes: maximum size of an unpacked entry. A larger entry counts as unreadable.
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
        """Description of the streams that the query reads, which is used in offsets and errors."""
        names = ", ".join(f"'{name}'" for name in self.streams)
        kind = "stream" if len(self.streams) == 1 else "streams"
        return f"{kind} {names} in virtual host '{self.virtual_host}'"
