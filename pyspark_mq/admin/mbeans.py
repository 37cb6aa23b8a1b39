"""Functions that both ActiveMQ brokers need to read MBeans through Jolokia."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_mq.admin.http import Management

__all__ = ["broker_mbean", "waiting"]


def broker_mbean(management: Management, pattern: str, *attributes: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the requested attributes of the MBean that represents the broker itself.

    Args:
        management: the management interface.
        pattern: pattern of the MBean's name.
        attributes: names of the attributes.
    """
    brokers = management.read(pattern, *attributes)
    if not brokers:
        raise management.refused("there is no broker MBean here")
    return next(iter(brokers.items()))


def waiting(queues: Mapping[str, Mapping[str, Any]], everything: str, handed_out: str) -> int | None:
    counts = [(one.get(everything), one.get(handed_out)) for one in queues.values()]
    known = [(all_, out) for all_, out in counts if isinstance(all_, int) and isinstance(out, int)]
    # The broker reads the two counts one after the other, so a difference may be negative.
    return sum(max(0, all_ - out) for all_, out in known) if known else None
