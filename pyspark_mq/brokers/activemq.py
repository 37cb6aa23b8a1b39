"""ActiveMQ Classic: what is particular to it."""

from __future__ import annotations

import re

from pyspark_mq.brokers.base import AMQP_1_0, STOMP, Amqp10Dialect, Broker, Listing, StompDialect, by_scheme

__all__ = ["ACTIVEMQ"]

_HEADERS = ("CorrelationID", "DeliveryMode", "Expiration", "Priority", "Redelivered", "ReplyTo", "Timestamp", "Type")

ACTIVEMQ = Broker(
    name="activemq",
    protocols=by_scheme(AMQP_1_0),
    products=frozenset({"ActiveMQ"}),
    listing=Listing(
        url="http://host:8161/api/jolokia",
        mbeans="org.apache.activemq:type=Broker,brokerName=*,destinationType=Queue,destinationName=*",
    ),
    epoch_messages=10_000,
    prefetch_max={AMQP_1_0: 20_000, STOMP: 20_000},
    selectors=True,
    virtual_hosts=False,
    durable_topics=frozenset({AMQP_1_0, STOMP}),
    shared_topics=frozenset(),
    counts_session_ends=False,
    # The broker looks for silent connections, but passes over one whose reader waits for its writer; when
    # the writer waits for a peer that is gone, only TCP ends that: after 924 s with Linux' `tcp_retries2`.
    half_open_s={AMQP_1_0: 960.0, STOMP: 960.0},
    ids_by_protocol=True,
    delivery_limit_note=(
        "a message that was delivered more often than a redelivery policy allows goes to the dead-letter queue"
    ),
    remedies={
        "delivery-limit": "nothing to do",
        "redelivery-delay": "where a `redeliveryPlugin` is in activemq.xml, set 'replayTimeout' above its longest "
        "delay",
        "priorities": "take `prioritizedMessages` out of the policy of the queue",
        "single-active-consumer": "see in activemq.xml that the policy of the queue has no "
        "`allConsumersExclusiveByDefault`, and that no other reader is exclusive",
        "other-consumers": "give each reader a queue of its own",
        "prefetch": "set another 'prefetch', such as 999, or `queuePrefetch` to the same number",
        "page-size": "set `maxPageSize` in the policy of the queue to the prefetch or above",
        "write-timeout": "add `transport.soWriteTimeout=10000` to the URI of the connector in activemq.xml",
        "slow-consumers": "take the `slowConsumerStrategy` out of the policy of the queue",
        "queue": "resume it in the console, or by resume() of its MBean",
    },
    # The default of a queue's prefetch: `PolicyEntry.configurePrefetch` puts `queuePrefetch` in its place (5.18, 6.3).
    replaced_prefetch=1_000,
    browsable_over=frozenset({AMQP_1_0, STOMP}),
    special_characters=frozenset(",*>?"),
    # By them a message may end at once (`ActiveMQMessage.java`).
    header_properties=dict.fromkeys(
        [f"JMS{name}" for name in _HEADERS],
        "which ActiveMQ Classic takes for the header: the column of that meaning sets it",
    ),
    stomp=StompDialect(
        queue="/queue/{name}",
        topic="/topic/{name}",
        # 10,000 one by one take 0.8 s, at once 4.4 s.
        cumulative=False,
        window_header="activemq.prefetchSize",
        durable_headers={"activemq.subscriptionName": "{subscription}"},
        client_id="pyspark-mq.{subscription}",
        shared=False,
        # A page has 200 messages (`maxPageSize`).
        stalls=True,
        expires_header="expires",
        internal_headers=frozenset({"expires", "persistent"}),
        internal_prefixes=("JMS_AMQP_",),
        # ID:<host>-<port>-<time>-<n>:<connection>:<session>:<producer>:<message>, however the connection is called.
        # It is a property `message-id` that replaces it, set over AMQP 1.0 or OpenWire (5.18, 6.3).
        own_id=re.compile(r"(?::-?[0-9]+){3}$"),
        # It makes a number of each part of the ID, and closes the connection of who acknowledges another (6.1).
        foreign_prefix="JMS_AMQP_",
    ),
    amqp10=Amqp10Dialect(
        queue="queue://{name}",
        topic="topic://{name}",
        capabilities=("queue", "topic"),
        confirms=True,
        counts_acquirers=False,
        # A page has 200 messages (`maxPageSize`). With as many unacknowledged the queue hands out no
        # more until something wakes it, and each new credit does.
        credit_max=200,
    ),
)
