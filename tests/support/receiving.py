"""A session of a consumer that is run by the test's own thread, from its opening to its end."""

from __future__ import annotations

import time
from typing import Any

from pyspark_mq.sources.connections.consumer import Consumer, drained

__all__ = ["receive"]

_TIMEOUT_S = 5


def receive(consumer: Consumer, count: int, longer_s: float = 0.0) -> list[Any]:
    """Deliveries, as many as there are to be, and for a moment longer what should not come."""
    raws: list[Any] = []
    try:
        consumer.open(consumer.endpoint.urls[0], _TIMEOUT_S)
        consumer.consume(10)
        end_s = time.monotonic() + _TIMEOUT_S
        while len(raws) < count and time.monotonic() < end_s:
            consumer.run(0.05)
            raws += drained(consumer.inbox)
        if longer_s:
            consumer.run(longer_s)
        return raws + drained(consumer.inbox)
    finally:
        consumer.close()
