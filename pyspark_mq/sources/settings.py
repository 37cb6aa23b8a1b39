"""What the options of a query say, in the terms of this package."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.sources.endpoint import Endpoint

__all__ = ["Guarantee", "OnUnreadable", "Settings"]


class Guarantee(Enum):
    """Option `guarantee`.

    Attributes:
        identifies: messages are told apart by their IDs, which are in the offset; without, a delivery is
            a delivery.
        acknowledges_first: as soon as an epoch is cut, before Spark runs it.
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
    """What the options of a query say, beyond the endpoint. Times in seconds, sizes in bytes."""

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
    redelivery_delay_s: float = 0.0
    #: Processes that hold the connections; with 1 the source's own does.
    receivers: int = 1
    #: Bytes of message IDs that an epoch may put into its offset; None for any number.
    max_offset_bytes: int | None = None
