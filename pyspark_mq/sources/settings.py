"""The options of a query that reads queues, as typed settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.wire.endpoint import Endpoint

__all__ = ["CONNECTIONS_MAX", "PREFETCH_MIN", "Guarantee", "OnUnreadable", "Settings"]

#: Maximum number of connections of a query. It is limited because each connection has a thread and a socket.
CONNECTIONS_MAX = 256
#: Minimum prefetch of a queue if several queues share the default of option `prefetch`.
PREFETCH_MIN = 1_000


class Guarantee(Enum):
    """The values of option `guarantee`.

    Attributes:
        identifies: whether messages are identified by IDs, which the journal keeps (`exactly-once`).
        acknowledges_first: whether an epoch is acknowledged as soon as it is planned, before Spark runs it (`none`).
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
    """The values of option `onUnreadableMessage`: what happens to a message that cannot be decoded."""

    FAIL = "fail"
    REJECT = "reject"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a query that reads queues. Times are in seconds, sizes in bytes.

    Most fields have the value of the option with a similar name.
    """

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
    #: Maximum number of remembered IDs of messages that were left: their session or process ended before their
    #: acknowledgements were settled.
    remember_left: int = 2_000_000
    #: Maximum size of all rows in one task (option `maxPartitionBytes`).
    max_partition_bytes: int = 120 << 20
    #: Names of the queues if option `queue` names several; otherwise empty. If there are several, `endpoint.queue` is
    #: the whole text of the option.
    queues: tuple[str, ...] = ()
    #: Regular expression that the names of the queues match (option `queuePattern`); None if not set.
    pattern: str | None = None
    #: Interval at which queues that match the pattern are looked up.
    pattern_interval_s: float = 60.0
    #: Interval at which the management interface is asked how many messages wait in the queues.
    management_interval_s: float = 5.0
    #: Whether logs and output are synced to disk before messages are acknowledged (option `settleAfter=synced`).
    syncs: bool = False
    #: Whether several queues share the prefetch, because option `prefetch` is not set.
    prefetch_is_shared: bool = False

    @property
    def destination(self) -> str:
        """The queues or the topic of the query, in the words of error messages."""
        if self.pattern is not None:
            return f"queues matching '{self.pattern}'"
        if self.queues:
            return f"queues {', '.join(map(repr, self.queues))}"
        return self.endpoint.destination

    @property
    def window(self) -> int:
        """Maximum number of unacknowledged messages that all connections to one queue may hold together."""
        return self.prefetch * self.consumers

    def by_queue(self) -> tuple[Settings, ...]:
        """Return the settings for each queue that option `queue` names, or for the topic; empty for a pattern."""
        if self.queues:
            return tuple(self.of_queue(name, len(self.queues)) for name in self.queues)
        return (self,) if self.pattern is None else ()

    def of_queue(self, name: str, among: int) -> Settings:
        """Return the settings for one queue of the query.

        Args:
            name: name of the queue.
            among: number of queues that the query reads. They share the default of option `prefetch`.
        """
        shared = max(min(self.prefetch, PREFETCH_MIN), self.prefetch // among)
        return replace(
            self,
            endpoint=replace(self.endpoint, queue=name),
            queues=(),
            pattern=None,
            prefetch=shared if self.prefetch_is_shared else self.prefetch,
        )
