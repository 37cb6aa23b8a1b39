"""Findings about a broker that a cloud provider hosts, such as Amazon MQ.

The findings follow from the broker's address and the settings alone, so this module does not connect to the broker.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_mq.admin.checks import Finding, Level
from pyspark_mq.brokers.hosted import BALANCER_IDLE_S, METRICS_S, hosted_by
from pyspark_mq.sources.settings import Settings
from pyspark_mq.wire.url import BrokerUrl

__all__ = ["check_host"]

_CHECK = "hosting"


def check_host(url: BrokerUrl, settings: Settings, *, asked: bool) -> Iterator[Finding]:
    """Yield findings about a broker that a cloud provider hosts; none for any other broker.

    Args:
        asked: whether option `managementUrl` is set.
    """
    host, endpoint = hosted_by(url.host), settings.endpoint
    if not host:
        return
    found = [*_of_connection(host, url, settings), *_of_queues(host, settings, asked=asked)]
    cluster = "; counts as a cluster behind one address" if endpoint.broker.node_lost_s else ""
    yield from found or [Finding(_CHECK, Level.OK, f"{host}, {endpoint.broker.name}{cluster}")]


def _of_connection(host: str, url: BrokerUrl, settings: Settings) -> Iterator[Finding]:
    heartbeat_s = settings.endpoint.heartbeat_s
    if not url.tls:
        yield Finding(_CHECK, Level.PROBLEM, f"{host} accepts only TLS", f"use {url.partner}:// in 'url'")
    if settings.endpoint.broker.node_lost_s and heartbeat_s >= BALANCER_IDLE_S:
        text = f"the load balancer of {host} silently drops a connection that is idle for {BALANCER_IDLE_S:.0f} s"
        yield Finding(_CHECK, Level.WARNING, text, f"set 'heartbeat' below that time; it is now {heartbeat_s:g}s")


def _of_queues(host: str, settings: Settings, *, asked: bool) -> Iterator[Finding]:
    stranded_s = settings.endpoint.broker.stranded_s
    if asked and settings.management_interval_s < METRICS_S:
        text = f"{host} asks clients to read metrics no more often than every {METRICS_S:.0f} s"
        advice = f"set 'managementInterval' to 1m or more; it is now {settings.management_interval_s:g}s"
        yield Finding(_CHECK, Level.WARNING, text, advice)
    if settings.replay_timeout_s < stranded_s:
        text = (
            f"a quorum queue of RabbitMQ 4.3 may keep messages delivered through a lost node for "
            f"{stranded_s / 60:.0f} min, and {host} cannot restart a single node"
        )
        advice = (
            "set 'replayTimeout' to 35m, or a restart within that time fails; the option is now "
            f"{settings.replay_timeout_s:g}s"
        )
        yield Finding(_CHECK, Level.WARNING, text, advice)
