"""What the options of a query say, in the terms of this package."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.sources.endpoint import Endpoint

__all__ = ["Guarantee", "Settings"]


class Guarantee(Enum):
    """Option `guarantee`."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    NONE = "none"


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
