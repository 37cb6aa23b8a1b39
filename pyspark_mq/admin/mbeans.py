"""MBeans over Jolokia, as both ActiveMQ brokers have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_mq.admin.http import Management

__all__ = ["broker_mbean", "waiting"]


def broker_mbean(management: Management, pattern: str, *attributes: str) -> tuple[str, dict[str, Any]]:
    """Name and attributes of the MBean of the broker itself."""
    brokers = management.read(pattern, *attributes)
    if not brokers:
        raise management.refused("there is no MBean of a broker")
    return next(iter(brokers.items()))


def waiting(queues: Mapping[str, Mapping[str, Any]], everything: str, handed_out: str) -> int | None:
    counts = [(one.get(everything), one.get(handed_out)) for one in queues.values()]
    known = [(all_, out) for all_, out in counts if isinstance(all_, int) and isinstance(out, int)]
    # The two are counted one after the other.
    return sum(max(0, all_ - out) for all_, out in known) if known else None
