"""RabbitMQ: what is particular to it."""

from __future__ import annotations

from types import MappingProxyType

from pyspark_mq.brokers.base import AMQP_0_9_1, Broker

__all__ = ["RABBITMQ"]

RABBITMQ = Broker(
    name="rabbitmq",
    protocols=MappingProxyType({"amqp": (AMQP_0_9_1,), "amqps": (AMQP_0_9_1,)}),
    epoch_messages=50_000,
    # basic.qos has 16 bits for prefetch-count (AMQP 0-9-1, class basic, method qos). 0 would be
    # unlimited on classic queues, but 2000 on quorum queues.
    prefetch_max=MappingProxyType({AMQP_0_9_1: 65_535}),
    selectors=False,
    delivery_limit_note=(
        "a quorum queue drops or dead-letters a message that was handed out more often than its "
        "delivery limit (20 by default from RabbitMQ 4)"
    ),
)
