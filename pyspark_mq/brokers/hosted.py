"""Recognises brokers that a cloud provider hosts by their host names, and has facts about these providers."""

from __future__ import annotations

import re

__all__ = ["BALANCER_IDLE_S", "METRICS_S", "hosted_by"]

#: Amazon MQ's load balancer drops a connection that is idle for this long (AWS, "Network Load Balancers").
BALANCER_IDLE_S = 350.0
#: AWS asks clients not to read a queue's metrics more often than this (Amazon MQ, "RabbitMQ best practices").
METRICS_S = 60.0

#: Host names of Amazon MQ: `b-<id>.mq.<region>.on.aws`; for older brokers they end with `.amazonaws.com` (Amazon MQ,
#: "Brokers", endpoints).
_AMAZON = re.compile(r"\.mq\.[a-z0-9-]+\.(?:on\.aws|amazonaws\.com(?:\.cn)?)\.?", re.IGNORECASE)


def hosted_by(host: str) -> str:
    """Return the name of the cloud provider that hosts the broker with this host name; empty if there is none."""
    found = _AMAZON.search(host)
    return "Amazon MQ" if found is not None and found.end() == len(host) else ""
