"""The differences between brokers, as data: an object of class :class:`Broker` describes each supported broker."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_mq.brokers.activemq import ACTIVEMQ
from pyspark_mq.brokers.artemis import ARTEMIS
from pyspark_mq.brokers.base import Broker
from pyspark_mq.brokers.rabbitmq import RABBITMQ

__all__ = ["BROKERS", "Broker", "broker_of"]

#: Value of option `broker` -> the broker. These are all brokers that are supported.
BROKERS: Mapping[str, Broker] = {broker.name: broker for broker in (RABBITMQ, ACTIVEMQ, ARTEMIS)}


def broker_of(product: str) -> Broker | None:
    """Return the broker that introduces itself with this product name; None if the name is unknown.

    Args:
        product: `name` or `name/version ...`, as the broker states it.
    """
    name = product.partition("/")[0]
    return next((broker for broker in BROKERS.values() if name in broker.products), None)
