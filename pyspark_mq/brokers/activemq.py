"""ActiveMQ Classic: what is particular to it."""

from __future__ import annotations

from types import MappingProxyType

from pyspark_mq.brokers.base import AMQP_1_0, STOMP, Amqp10Dialect, Broker, StompDialect

__all__ = ["ACTIVEMQ"]

ACTIVEMQ = Broker(
    name="activemq",
    protocols=MappingProxyType(
        {
            "amqp": (AMQP_1_0,),
            "amqps": (AMQP_1_0,),
            "stomp": (STOMP,),
            "stomp+ssl": (STOMP,),
        }
    ),
    epoch_messages=10_000,
    prefetch_max=MappingProxyType({AMQP_1_0: 20_000, STOMP: 20_000}),
    selectors=True,
    virtual_hosts=False,
    durable_topics=frozenset({AMQP_1_0, STOMP}),
    shared_topics=frozenset(),
    ids_by_protocol=True,
    delivery_limit_note=(
        "a message that was handed out more often than a redelivery policy allows goes to the dead-letter queue"
    ),
    stomp=StompDialect(queue="/queue/{name}", topic="/topic/{name}", id_header="message-id"),
    amqp10=Amqp10Dialect(
        queue="queue://{name}",
        topic="topic://{name}",
        capabilities=("queue", "topic"),
        confirms=True,
        counts_acquirers=False,
    ),
)
