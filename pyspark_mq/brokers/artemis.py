"""ActiveMQ Artemis: what is particular to it."""

from __future__ import annotations

from types import MappingProxyType

from pyspark_mq.brokers.base import AMQP_1_0, STOMP, Amqp10Dialect, Broker, Listing, StompDialect

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
    products=frozenset({"apache-activemq-artemis", "ActiveMQ-Artemis"}),
    listing=Listing(
        url="http://host:8161/console/jolokia",
        mbeans="org.apache.activemq.artemis:broker=*,component=addresses,address=*,subcomponent=queues,"
        'routing-type="anycast",queue=*',
    ),
    epoch_messages=50_000,
    prefetch_max=MappingProxyType({AMQP_1_0: 100_000, STOMP: 100_000}),
    selectors=True,
    virtual_hosts=False,
    durable_topics=frozenset({AMQP_1_0, STOMP}),
    shared_topics=frozenset({AMQP_1_0}),
    counts_drops=True,
    # The default of `amqpIdleTimeout`.
    half_open_s=MappingProxyType({AMQP_1_0: 60.0}),
    ids_by_protocol=True,
    delivery_limit_note=(
        "a message that was handed out more often than `max-delivery-attempts` (10 by default) goes "
        "to the dead-letter address"
    ),
    remedies=MappingProxyType(
        {
            "delivery-limit": "set `<max-delivery-attempts>` in the address-setting of the queue to -1, or ample",
            "dead-letters": "set `<dead-letter-address>` in the address-setting of the queue to one that has a queue",
            "redelivery-delay": "or set `<redelivery-delay>0</redelivery-delay>` in the address-setting of the queue",
            "priorities": "have producers send with one priority",
            "single-active-consumer": "make the queue without `exclusive`, or leave 'consumers' at 1",
            "other-consumers": "give each reader a queue of its own",
            "prefetch": "raise `max-consumers` of the queue: over STOMP a wider window is one more, over AMQP 1.0 "
            "a confirmation",
            "slow-consumers": "set `<slow-consumer-policy>` in the address-setting of the queue to NOTIFY",
            "queue": "change it in broker.xml, or by updateQueue() of the management",
        }
    ),
    by_priority=True,
    flaws=MappingProxyType(
        {
            STOMP: (
                (2, 56),
                "2.40 hands some messages to nobody after a session was cut, until it is restarted; 2.56 does not",
            )
        }
    ),
    copies=frozenset({AMQP_1_0}),
    stomp=StompDialect(
        queue="{name}",
        topic="{name}",
        id_header="message-id",
        # Before it is the number of the consumer, another one in each session.
        id_separator=",",
        # One by one, 5,000 take 280 ms and at once 40 ms. But there are messages that it cannot write as
        # STOMP (a JMS StreamMessage), does not send, and would have acknowledged with the others.
        cumulative=False,
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
        internal_prefixes=("__HDR_", "__AMQ_", "_AMQ_", "JMS_AMQP_", "NATIVE_MESSAGE_ID"),
        # Properties of the message come behind the other headers and before this one (2.40, 2.56).
        last_header="ack",
        management="activemq.management",
        # What comes over STOMP keeps the number as a property, what comes over AMQP 1.0 has a header (2.56).
        group_id=("_AMQ_GROUP_ID",),
        group_sequence=("_AMQ_GROUP_SEQUENCE", "JMSXGroupSeq"),
    ),
    amqp10=Amqp10Dialect(
        queue="{name}",
        topic="{name}",
        capabilities=("queue", "topic"),
        # An acceptance without settlement is taken and never answered (2.56).
        confirms=False,
        settles_apart=True,
        counts_acquirers=False,
        # The UUID of the node, kept in its journal.
        names_itself=True,
        management="activemq.management",
    ),
)
