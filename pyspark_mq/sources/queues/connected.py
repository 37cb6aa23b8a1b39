"""The reports of a queue's sessions about the broker, and the time for which all of these sessions were open."""

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

#: A broker closes the connection of a client that has vanished a little after two missed heartbeats.
_HALF_OPEN_HEARTBEATS = 3

#: Returns warnings for the log, from the facts that a connection reports about a queue, and the query's settings.
CheckFacts: TypeAlias = Callable[[QueueFacts, Settings], Sequence[str]]


class Connected:
    """The known facts about the broker of a queue, and the queue's connected time.

    *Connected time* passes only while every connection of the queue is open and its events are processed.

    Args:
        settings: the query's settings, with this queue as the endpoint.
        check: returns warnings about the settings of the queue.

    Attributes:
        broker_id: the name by which the broker identifies itself; empty if unknown.
        ever: whether a session has ever been opened.
        ready_at_first: number of waiting messages in the broker's first report; None if there was no report.
        delay_s: number of seconds by which the broker delays redeliveries, as it reports.
        seconds: connected time so far.
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
        """Record the broker's report at the opening of a session.

        Raises:
            CheckpointError: the broker is not the one with which the checkpoint was written.
        """
        self._agree(self.broker_id, shortened(greeting.broker_id), f"{greeting.url}")
        if self.ready_at_first is None and greeting.depth is not None:
            self.ready_at_first = greeting.depth.ready
        if self._settings.endpoint.broker.delays_session_returns:
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
            "%s: the queue delays redeliveries by up to %.0f s%s",
            settings.endpoint.destination, delay_s,
            f". That is not below replayTimeout={settings.replay_timeout_s:g}s: raise the option, or a restart may "
            "fail with a DataLossError although nothing is lost" if late else "",
        )  # fmt: skip

    def expect_broker(self, broker_id: str) -> None:
        """Record the broker with which the checkpoint was written. Do nothing if its name is empty.

        Raises:
            CheckpointError: a connection to another broker is open already. (A bounded run connects before it knows the
                checkpoint's broker.)
        """
        self._agree(broker_id, self.broker_id, "the one at 'url'")

    def _agree(self, expected: str, found: str, where: str) -> None:
        if expected and found and expected != found:
            raise CheckpointError(
                f"{self._settings.endpoint.destination}: the checkpoint was written with broker '{expected}', but "
                f"{where} is broker '{found}': the messages of one broker would be mistaken for those of the other. "
                f"Correct 'url', or {START_ANEW}. If both are nodes of one cluster, list both in 'url', separated by "
                "commas"
            )
        self.broker_id = expected or found

    def poll(self, until_s: float, *, up: bool) -> None:
        """Record whether all connections of the queue are open.

        Args:
            until_s: time up to which the connections have reported everything that they received.
        """
        if up and self._seen_s is not None:
            self.seconds += max(0.0, until_s - self._seen_s)
        self._seen_s = until_s if up else None


def half_open_s(settings: Settings) -> float:
    """Return the longest time in seconds for which a broker may keep the connection of a client that has vanished."""
    endpoint = settings.endpoint
    most_s = endpoint.broker.half_open_s.get(endpoint.protocol, 0.0)
    if endpoint.clustered:
        # The client may be connected to a node that hangs. The queue's node may take this node for alive for a while.
        most_s = max(most_s, endpoint.broker.node_lost_s)
    return max(settings.settle_grace_s, _HALF_OPEN_HEARTBEATS * endpoint.heartbeat_s, most_s)
