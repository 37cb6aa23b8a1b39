"""Queries to a broker's management interface. The source (option `managementUrl`) and the command `doctor` use them.

This folder has a module for each broker, with functions that query the broker's version, a queue's settings, and the
number of messages that wait in a queue. These functions raise a `BrokerUnavailableError` if the broker does not answer,
and a `RefusedError` if the broker refuses the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark_mq.admin import activemq, artemis, rabbitmq
from pyspark_mq.admin.http import Management
from pyspark_mq.brokers.base import AMQP_1_0
from pyspark_mq.brokers.facts import NOTHING_KNOWN, QueueFacts
from pyspark_mq.wire.endpoint import Endpoint

__all__ = ["Management", "ask_beside", "ask_depth", "ask_queue", "ask_server"]


class _Admin(Protocol):
    """The functions that the module of each broker has."""

    def ask_server(self, management: Management) -> str: ...
    def ask_queue(self, management: Management, queue: str) -> QueueFacts: ...
    def ask_depth(self, management: Management, queue: str) -> int | None: ...


_ADMINS: Mapping[str, _Admin] = {"rabbitmq": rabbitmq, "activemq": activemq, "artemis": artemis}


def ask_server(management: Management) -> str:
    """Return the broker's product and version, as `product/version`."""
    return _ADMINS[management.endpoint.broker.name].ask_server(management)


def ask_queue(management: Management, queue: str) -> QueueFacts:
    """Return what the management interface reports about a queue; see :class:`.QueueFacts`."""
    return _ADMINS[management.endpoint.broker.name].ask_queue(management, queue)


def ask_depth(management: Management, queue: str) -> int | None:
    """Return the number of messages that wait in a queue and are not delivered yet; None if it is not reported."""
    return _ADMINS[management.endpoint.broker.name].ask_depth(management, queue)


def ask_beside(endpoint: Endpoint) -> QueueFacts:
    """Query the facts of a queue over a second connection, for the command `doctor` without `managementUrl`.

    Over AMQP 1.0, Artemis answers such queries at its own management address. Over other protocols and for other
    brokers the session already reports all facts that can be queried, so all facts in the result are None.
    """
    dialect = endpoint.broker.amqp10
    if endpoint.protocol != AMQP_1_0 or dialect is None or not dialect.management or endpoint.queue is None:
        return NOTHING_KNOWN
    from pyspark_mq.sources.amqp10.questions import ask_queue as ask  # noqa: PLC0415 - an extra

    return ask(endpoint, endpoint.urls[0])
