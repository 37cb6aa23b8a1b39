"""ActiveMQ Artemis: what is particular to it."""

from __future__ import annotations

from types import MappingProxyType

from pyspark_mq.brokers.base import AMQP_1_0, STOMP, Amqp10Dialect, Broker, StompDialect

__all__ = ["ARTEMIS"]

ARTEMIS = Broker(
    name="artemis",
    protocols=MappingProxyType(
        {
            "amqp": (AMQP_1_0,),
            "amqps": (AMQP_1_0,),
            "stomp": (STOMP,),
            "stomp+ssl": (STOMP,),
        }
    ),
    epoch_messages=50_000,
    prefetch_max=MappingProxyType({AMQP_1_0: 100_000, STOMP: 100_000}),
    selectors=True,
    delivery_limit_note=(
        "a message that was handed out more often than `max-delivery-attempts` (10 by default) goes "
        "to the dead-letter address"
    ),
    stomp=StompDialect(
        queue="{name}",
        topic="{name}",
        id_header="message-id",
        separator=",",
        # 5,000 at once in 40 ms, one by one in 280 ms.
        cumulative=True,
        window_header="consumer-window-size",
        window_bytes=256,
        queue_headers=MappingProxyType({"subscription-type": "ANYCAST"}),
        topic_headers=MappingProxyType({"subscription-type": "MULTICAST"}),
        durable_headers=MappingProxyType({"durable-subscription-name": "{subscription}"}),
        client_id="pyspark-mq",
        shared=True,
        reject_headers=MappingProxyType({}),
        virtual_hosts=False,
        slash="",
        stalls=False,
        timestamp_us=1_000,
        expires_header="expires",
        count_header="",
        internal_headers=frozenset({"destination-type", "expires", "persistent"}),
    ),
    amqp10=Amqp10Dialect(queue="{name}", topic="{name}", confirms=True),
)
