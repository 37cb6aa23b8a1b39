"""ActiveMQ Artemis: what is particular to it."""

from __future__ import annotations

from pyspark_mq.brokers.base import AMQP_1_0, STOMP, Amqp10Dialect, Broker, Listing, StompDialect, by_scheme

__all__ = ["ARTEMIS"]

ARTEMIS = Broker(
    name="artemis",
    protocols=by_scheme(AMQP_1_0),
    products=frozenset({"apache-activemq-artemis", "ActiveMQ-Artemis"}),
    listing=Listing(
        url="http://host:8161/console/jolokia",
        mbeans="org.apache.activemq.artemis:broker=*,component=addresses,address=*,subcomponent=queues,"
        'routing-type="anycast",queue=*',
    ),
    epoch_messages=50_000,
    prefetch_max={AMQP_1_0: 100_000, STOMP: 100_000},
    selectors=True,
    virtual_hosts=False,
    durable_topics=frozenset({AMQP_1_0, STOMP}),
    shared_topics=frozenset({AMQP_1_0}),
    counts_session_ends=True,
    # The default of `amqpIdleTimeout`.
    half_open_s={AMQP_1_0: 60.0},
    ids_by_protocol=True,
    delivery_limit_note=(
        "a message that was delivered more often than `max-delivery-attempts` (10 by default) goes "
        "to the dead-letter address"
    ),
    remedies={
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
    },
    by_priority=True,
    flaws={
        STOMP: (
            (2, 56),
            "2.40 hands some messages to nobody after a session was cut, until it is restarted; 2.56 does not",
        )
    },
    browsable_over=frozenset({AMQP_1_0}),
    stomp=StompDialect(
        queue="{name}",
        topic="{name}",
        # Before it is the number of the consumer, another one in each session.
        id_separator=",",
        # One by one, 5,000 take 280 ms and at once 40 ms. But there are messages that it cannot write as
        # STOMP (a JMS StreamMessage), does not send, and would have acknowledged with the others.
        cumulative=False,
        window_header="consumer-window-size",
        window_bytes=256,
        queue_headers={"subscription-type": "ANYCAST"},
        topic_headers={"subscription-type": "MULTICAST"},
        durable_headers={"durable-subscription-name": "{subscription}"},
        client_id="pyspark-mq",
        shared=True,
        expires_header="expires",
        internal_headers=frozenset({"destination-type", "expires", "persistent"}),
        internal_prefixes=("__HDR_", "__AMQ_", "_AMQ_", "JMS_AMQP_", "NATIVE_MESSAGE_ID"),
        # The message's properties come after the other headers and before this one (2.40, 2.56).
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
