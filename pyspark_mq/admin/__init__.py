"""Queries to a broker's management (option `managementUrl`, and the command `doctor`).

One file for each broker queries the broker's name, a queue's settings and the queue's depth. A request raises a
`BrokerUnavailableError` if the broker does not answer, and a `RefusedError` if the broker refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark_mq.admin import activemq, artemis, rabbitmq
from pyspark_mq.admin.http import Management
from pyspark_mq.brokers.base import AMQP_1_0
from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts
from pyspark_mq.sources.endpoint import Endpoint

__all__ = ["Management", "ask_beside", "ask_depth", "ask_queue", "ask_server"]


class _Admin(Protocol):
    """The requests to the management of one broker."""

    def ask_server(self, management: Management) -> str: ...
    def ask_queue(self, management: Management, queue: str) -> QueueFacts: ...
    def ask_depth(self, management: Management, queue: str) -> int | None: ...


_ADMINS: Mapping[str, _Admin] = {"rabbitmq": rabbitmq, "activemq": activemq, "artemis": artemis}


def ask_server(management: Management) -> str:
    """Return the broker's name for itself, `product/version`."""
    return _ADMINS[management.endpoint.broker.name].ask_server(management)


def ask_queue(management: Management, queue: str) -> QueueFacts:
    """Return the facts of a queue."""
    return _ADMINS[management.endpoint.broker.name].ask_queue(management, queue)


def ask_depth(management: Management, queue: str) -> int | None:
    """Return how many messages wait in a queue, not counting delivered ones; None if the broker does not report it."""
    return _ADMINS[management.endpoint.broker.name].ask_depth(management, queue)


def ask_beside(endpoint: Endpoint) -> QueueFacts:
    """Return the facts of a queue, if the sessions do not query these facts themselves; otherwise no fact is known.

    The facts are queried over a second connection.
    """
    dialect = endpoint.broker.amqp10
    if endpoint.protocol != AMQP_1_0 or dialect is None or not dialect.management or endpoint.queue is None:
        return NOTHING_KNOWN
    from pyspark_mq.sources.amqp10.questions import ask_queue as ask  # noqa: PLC0415 - an extra

    return ask(endpoint, endpoint.urls[0])
