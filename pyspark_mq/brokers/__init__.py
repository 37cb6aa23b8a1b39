"""Differences between brokers, as data."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_mq.brokers.activemq import ACTIVEMQ
from pyspark_mq.brokers.artemis import ARTEMIS
from pyspark_mq.brokers.base import Broker
from pyspark_mq.brokers.rabbitmq import RABBITMQ

__all__ = ["BROKERS", "Broker", "broker_of"]

#: Every broker that this version reads from, by the value of option `broker`.
BROKERS: Mapping[str, Broker] = {broker.name: broker for broker in (RABBITMQ, ACTIVEMQ, ARTEMIS)}


def broker_of(product: str) -> Broker | None:
    """Return the broker with this product name, `name` or `name/version ...`, or None if the name is not known."""
    name = product.partition("/")[0]
    return next((broker for broker in BROKERS.values() if name in broker.products), None)
