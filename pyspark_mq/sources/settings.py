"""The options of a query, typed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.sources.endpoint import Endpoint

__all__ = ["CONNECTIONS_MAX", "PREFETCH_MIN", "Guarantee", "OnUnreadable", "Settings"]

#: Most connections of a query, because each connection has a thread and a socket.
CONNECTIONS_MAX = 256
#: Smallest window of a queue, however many queues share the default `prefetch`.
PREFETCH_MIN = 1_000


class Guarantee(Enum):
    """Option `guarantee`.

    Attributes:
        identifies: whether messages are identified by IDs, which the journal keeps.
        acknowledges_first: whether an epoch is acknowledged when it is cut, before Spark runs it.
    """

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    NONE = "none"

    @property
    def identifies(self) -> bool:
        return self is Guarantee.EXACTLY_ONCE

    @property
    def acknowledges_first(self) -> bool:
        return self is Guarantee.NONE


class OnUnreadable(Enum):
    """Option `onUnreadableMessage`: what to do with a message that cannot be decoded."""

    FAIL = "fail"
    REJECT = "reject"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a query, beyond the endpoint. Times in seconds, sizes in bytes."""

    endpoint: Endpoint
    guarantee: Guarantee
    id_source: IdSource
    on_missing: OnMissing
    max_messages: int
    max_bytes: int
    min_messages: int
    max_delay_s: float
    prefetch: int
    consumers: int
    dedup_window: int
    settle_grace_s: float
    fail_on_data_loss: bool
    replay_timeout_s: float
    on_unreadable: OnUnreadable = OnUnreadable.FAIL
    #: Most remembered IDs of messages left open when connections ended.
    remember_left: int = 2_000_000
    #: Most bytes of rows in a task.
    max_partition_bytes: int = 120 << 20
    #: Names of several queues. The endpoint then has the option's text instead of a name.
    queues: tuple[str, ...] = ()
    #: Regular expression for queue names, which are looked up at the broker.
    pattern: str | None = None
    #: Interval at which queue names are looked up.
    pattern_interval_s: float = 60.0
    #: Interval of depth requests to the broker's management.
    management_interval_s: float = 5.0
    #: Whether disks are synced before anything that depends on them is emitted or acknowledged.
    syncs: bool = False
    #: Whether `prefetch` is the default, which several queues share.
    prefetch_is_shared: bool = False

    @property
    def destination(self) -> str:
        """The queues or the topic of the query, as named in errors."""
        if self.pattern is not None:
            return f"queues matching '{self.pattern}'"
        if self.queues:
            return f"queues {', '.join(map(repr, self.queues))}"
        return self.endpoint.destination

    @property
    def window(self) -> int:
        """The most unacknowledged messages that all connections to one queue together may hold."""
        return self.prefetch * self.consumers

    def by_queue(self) -> tuple[Settings, ...]:
        """Return the settings of each queue named in the options, or of the topic."""
        if self.queues:
            return tuple(self.of_queue(name, len(self.queues)) for name in self.queues)
        return (self,) if self.pattern is None else ()

    def of_queue(self, name: str, among: int) -> Settings:
        """Return the settings of the queue `name`, for a query that reads `among` queues."""
        shared = max(min(self.prefetch, PREFETCH_MIN), self.prefetch // among)
        return replace(
            self,
            endpoint=replace(self.endpoint, queue=name),
            queues=(),
            pattern=None,
            prefetch=shared if self.prefetch_is_shared else self.prefetch,
        )
