"""Describes ActiveMQ Artemis: gives each attribute of :class:`Broker` its value for this broker."""

from __future__ import annotations

from pyspark_mq.brokers.base import AMQP_1_0, STOMP, Amqp10Dialect, Broker, Listing, StompDialect, by_scheme
from pyspark_mq.brokers.destinations import KINDS

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
        "a message delivered more often than `max-delivery-attempts` (10 by default) goes to the dead-letter address"
    ),
    remedies={
        "delivery-limit": "set `<max-delivery-attempts>` in the queue's address-setting to -1 or a high number",
        "dead-letters": "set `<dead-letter-address>` in the queue's address-setting to an address that has a queue",
        "redelivery-delay": "or set `<redelivery-delay>0</redelivery-delay>` in the queue's address-setting",
        "priorities": "have producers use one priority",
        "single-active-consumer": "create the queue without `exclusive`, or leave 'consumers' at 1",
        "other-consumers": "give each reader its own queue",
        "prefetch": "raise the queue's `max-consumers`: raising the prefetch over STOMP, and confirming "
        "acknowledgements over AMQP 1.0, takes one more consumer",
        "slow-consumers": "set `<slow-consumer-policy>` in the queue's address-setting to NOTIFY",
        "queue": "change it in broker.xml, or with the management's updateQueue()",
    },
    by_priority=True,
    flaws={
        STOMP: (
            (2, 56),
            "after a session is cut, 2.40 does not deliver some messages until the broker is restarted; 2.56 delivers "
            "them",
        )
    },
    browsable_over=frozenset({AMQP_1_0}),
    drops_copies=True,
    # `Message.java`. Over STOMP and OpenWire the properties of ActiveMQ Classic schedule messages, too. JMS readers get
    # the values of the three JMS properties instead of the headers with the same meaning (2.56). So if a job copies
    # messages, a producer could choose where the readers of a copy send their replies.
    steering=frozenset(
        {"_AMQ_LVQ_NAME", "_AMQ_DUPL_ID", "_AMQ_SCHED_DELIVERY", "_AMQ_GROUP_ID", "_AMQ_GROUP_SEQUENCE"}
        | {"_AMQ_ROUTING_TYPE", "AMQ_SCHEDULED_DELAY", "AMQ_SCHEDULED_TIME"}
        | {"JMSReplyTo", "JMSCorrelationID", "JMSType"}
    ),
    stomp=StompDialect(
        queue="{name}",
        topic="{name}",
        # The part before the separator is the number of the consumer, so it differs between sessions.
        id_separator=",",
        # 5,000 messages take 280 ms with an acknowledgement for each, and 40 ms with one cumulative acknowledgement.
        # But a cumulative acknowledgement would also cover messages that the broker could not encode as STOMP, such as
        # a JMS StreamMessage, and so did not deliver.
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
        # In a MESSAGE frame, properties come after the broker's other headers, but before this header (2.40, 2.56).
        last_header="ack",
        management="activemq.management",
        # The number within a group is in a property if the message was published over STOMP, and in a header of the
        # broker if it was published over AMQP 1.0 (2.56).
        group_id=("_AMQ_GROUP_ID",),
        group_sequence=("_AMQ_GROUP_SEQUENCE", "JMSXGroupSeq"),
        forms=tuple((kind, f"{kind}://") for kind in KINDS),
    ),
    amqp10=Amqp10Dialect(
        queue="{name}",
        topic="{name}",
        capabilities=("queue", "topic"),
        # If a client accepts a delivery without settling it, the broker processes the acceptance but never answers
        # (2.56).
        confirms=False,
        counts_acquirers=False,
        # The container ID is the node's UUID, which is stored in the node's journal.
        names_itself=True,
        management="activemq.management",
        states_kinds=True,
    ),
)
