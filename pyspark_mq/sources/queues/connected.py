"""The word of a queue's broker at the opening of sessions, and for how long all of them were up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyspark_mq.brokers.facts import QueueFacts
from pyspark_mq.errors import START_ANEW, CheckpointError
from pyspark_mq.sources.connections.session import Greeting
from pyspark_mq.sources.position import shortened
from pyspark_mq.sources.settings import Settings

__all__ = ["CheckFacts", "Connected", "half_open_s"]

_LOG = logging.getLogger("pyspark_mq")

#: A half-open connection is given up by the broker after two heartbeats without a sign, and a bit.
_HALF_OPEN_HEARTBEATS = 3

#: Lines for the log of a query with these settings, by the facts that a connection brings.
CheckFacts: TypeAlias = Callable[[QueueFacts, Settings], Sequence[str]]


class Connected:
    """The broker of a queue, and connected time: it passes only while every connection is up, and is looked at.

    Args:
        settings: the query's, with this queue as its endpoint.

    Attributes:
        broker_id: the name the broker gives itself; empty while unknown.
        ever: whether there has been a session.
        ready_at_first: messages the broker had when it was first asked; None if it does not report it.
        delay_s: for how long the broker holds back what comes again, as it has said.
        seconds: connected so far.
    """

    def __init__(self, settings: Settings, check: CheckFacts) -> None:
        self._settings = settings
        self._check = check
        self._seen_s: float | None = None
        self.broker_id = ""
        self.ever = False
        self.ready_at_first: int | None = None
        self.delay_s = self.seconds = 0.0

    def opened(self, greeting: Greeting) -> None:
        """Take in what the broker says to a new session.

        Raises:
            CheckpointError: it is another broker.
        """
        self._agree(self.broker_id, shortened(greeting.broker_id), f"{greeting.url}")
        if self.ready_at_first is None and greeting.depth is not None:
            self.ready_at_first = greeting.depth.ready
        if self._settings.endpoint.broker.delays_drops:
            self._hold_back(greeting.facts.redelivery_delay_s or 0.0)
        if not self.ever:
            self.ever = True
            for text in self._check(greeting.facts, self._settings):
                _LOG.warning("%s: %s", self._settings.endpoint.destination, text)

    def _hold_back(self, delay_s: float) -> None:
        if delay_s <= self.delay_s:
            return
        self.delay_s = delay_s
        settings = self._settings
        late = delay_s >= settings.replay_timeout_s
        _LOG.log(
            logging.WARNING if late else logging.INFO,
            "%s: the queue holds back what comes again for up to %.0f s%s",
            settings.endpoint.destination, delay_s,
            f". That is not below replayTimeout={settings.replay_timeout_s:g}s: raise it, or a restart may fail with "
            "a DataLossError although nothing is lost" if late else "",
        )  # fmt: skip

    def expect_broker(self, broker_id: str) -> None:
        """Hold the checkpoint to be written with that broker, as far as its name is known.

        Raises:
            CheckpointError: there is a connection to another one. Before Spark 4.2 the first connection comes before
                what is committed.
        """
        self._agree(broker_id, self.broker_id, "the one at 'url'")

    def _agree(self, expected: str, found: str, where: str) -> None:
        if expected and found and expected != found:
            raise CheckpointError(
                f"{self._settings.endpoint.destination}: the checkpoint was written with broker '{expected}', but "
                f"{where} is broker '{found}'. Its messages would be mistaken for others. Correct 'url', or "
                f"{START_ANEW}. If both are nodes of one cluster, name several of them in 'url'"
            )
        self.broker_id = expected or found

    def poll(self, until_s: float, *, up: bool) -> None:
        """Take note of whether all connections are up.

        Args:
            until_s: up to when everything that had come was reported.
        """
        if up and self._seen_s is not None:
            self.seconds += max(0.0, until_s - self._seen_s)
        self._seen_s = until_s if up else None


def half_open_s(settings: Settings) -> float:
    """The longest that a broker takes a connection for alive that is not, seconds."""
    endpoint = settings.endpoint
    most_s = endpoint.broker.half_open_s.get(endpoint.protocol, 0.0)
    if endpoint.clustered:
        # A queue may be on another node than the one that hangs, which takes that for alive with its clients.
        most_s = max(most_s, endpoint.broker.node_lost_s)
    return max(settings.settle_grace_s, _HALF_OPEN_HEARTBEATS * endpoint.heartbeat_s, most_s)
