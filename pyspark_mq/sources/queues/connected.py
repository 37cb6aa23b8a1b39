"""For how long the connections of a queue were up, and what its broker has said of redeliveries."""

from __future__ import annotations

import logging

from pyspark_mq.sources.connections.consumer import Greeting
from pyspark_mq.sources.settings import Settings

__all__ = ["Connected", "half_open_s"]

_LOG = logging.getLogger("pyspark_mq")

#: A half-open connection is given up by the broker after two heartbeats without a sign, and a bit.
_HALF_OPEN_HEARTBEATS = 3


class Connected:
    """Connected time of a queue: it passes only while every connection is up, and is looked at.

    Args:
        settings: the query's, with this queue as its endpoint.

    Attributes:
        seconds: so far.
        delay_s: for how long the broker holds back what comes again, as it has said.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen_s: float | None = None
        self.seconds = 0.0
        self.delay_s = 0.0

    def opened(self, greeting: Greeting) -> None:
        """A session has opened."""
        told_s = greeting.redelivery_delay_s
        if told_s <= self.delay_s:
            return
        self.delay_s = told_s
        settings = self._settings
        late = told_s >= settings.replay_timeout_s
        _LOG.log(
            logging.WARNING if late else logging.INFO,
            "%s: the queue holds back what comes again for up to %.0f s%s",
            settings.endpoint.destination, told_s,
            f". That is not below replayTimeout={settings.replay_timeout_s:g}s: raise it, or a restart may fail with "
            "a DataLossError although nothing is lost" if late else "",
        )  # fmt: skip

    def look(self, attended_s: float, *, up: bool) -> None:
        """Take note of whether all connections are up.

        Args:
            attended_s: up to when everything that had come was told.
        """
        if up and self._seen_s is not None:
            self.seconds += max(0.0, attended_s - self._seen_s)
        self._seen_s = attended_s if up else None


def half_open_s(settings: Settings) -> float:
    """The longest that a broker takes a connection for alive that is not, seconds."""
    endpoint = settings.endpoint
    most_s = endpoint.broker.half_open_s.get(endpoint.protocol, 0.0)
    if endpoint.clustered:
        # A queue may be on another node than the one that hangs, which takes that for alive with its clients.
        most_s = max(most_s, endpoint.broker.node_lost_s)
    return max(settings.settle_grace_s, _HALF_OPEN_HEARTBEATS * endpoint.heartbeat_s, most_s)
