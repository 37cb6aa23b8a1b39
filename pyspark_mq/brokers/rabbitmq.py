"""RabbitMQ: what is particular to it."""

from __future__ import annotations

from types import MappingProxyType

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP, Amqp10Dialect, Broker, StompDialect

__all__ = ["RABBITMQ"]

RABBITMQ = Broker(
    name="rabbitmq",
    protocols=MappingProxyType(
        {
            "amqp": (AMQP_0_9_1, AMQP_1_0),
            "amqps": (AMQP_0_9_1, AMQP_1_0),
            "stomp": (STOMP,),
            "stomp+ssl": (STOMP,),
        }
    ),
    epoch_messages=50_000,
    # basic.qos has 16 bits for prefetch-count (AMQP 0-9-1, class basic, method qos). 0 would be
    # unlimited on classic queues, but 2000 on quorum queues.
    prefetch_max=MappingProxyType({AMQP_0_9_1: 65_535, AMQP_1_0: 65_535, STOMP: 65_535}),
    selectors=False,
    virtual_hosts=True,
    durable_topics=frozenset({AMQP_0_9_1, STOMP}),
    shared_topics=frozenset({AMQP_0_9_1, STOMP}),
    ids_by_protocol=False,
    delivery_limit_note=(
        "a quorum queue drops or dead-letters a message that was handed out more often than its "
        "delivery limit (20 by default from RabbitMQ 4)"
    ),
    stomp=StompDialect(queue="/amq/queue/{name}", topic="/exchange/{name}", id_header="amqp-message-id"),
    amqp10=Amqp10Dialect(
        queue="/amq/queue/{name}",
        topic="/exchange/{name}/#",
        capabilities=None,
        confirms=False,
        counts_acquirers=True,
        virtual_host="vhost:{name}",
    ),
)
