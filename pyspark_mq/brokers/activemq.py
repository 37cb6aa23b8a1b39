"""Particulars of ActiveMQ Classic."""

from __future__ import annotations

import re

from pyspark_mq.brokers.base import AMQP_1_0, STOMP, Amqp10Dialect, Broker, Listing, StompDialect, by_scheme
from pyspark_mq.brokers.destinations import KINDS

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
    # The broker looks for silent connections, but skips a connection whose reader waits for its writer; if the
    # writer waits for a vanished peer, only TCP ends the wait: after 924 s with Linux's `tcp_retries2`.
    half_open_s={AMQP_1_0: 960.0, STOMP: 960.0},
    ids_by_protocol=True,
    delivery_limit_note=(
        "a message delivered more often than a redelivery policy allows goes to the dead-letter queue"
    ),
    remedies={
        "delivery-limit": "nothing to do",
        "redelivery-delay": "if activemq.xml has a `redeliveryPlugin`, set 'replayTimeout' above its longest delay",
        "priorities": "remove `prioritizedMessages` from the queue's policy",
        "single-active-consumer": "check in activemq.xml that the queue's policy has no "
        "`allConsumersExclusiveByDefault`, and that no other reader is exclusive",
        "other-consumers": "give each reader its own queue",
        "prefetch": "set another 'prefetch', such as 999, or set `queuePrefetch` to the same number as 'prefetch'",
        "page-size": "set `maxPageSize` in the queue's policy to the prefetch or above",
        "write-timeout": "add `transport.soWriteTimeout=10000` to the connector's URI in activemq.xml",
        "slow-consumers": "remove the `slowConsumerStrategy` from the queue's policy",
        "queue": "resume it in the console, or with its MBean's resume()",
    },
    # The default prefetch of a queue, which `PolicyEntry.configurePrefetch` replaces by `queuePrefetch` (5.18, 6.3).
    replaced_prefetch=1_000,
    browsable_over=frozenset({AMQP_1_0, STOMP}),
    special_characters=frozenset(",*>?"),
    # These properties can make a message expire at once (`ActiveMQMessage.java`).
    header_properties=dict.fromkeys(
        [f"JMS{name}" for name in _HEADERS],
        "which ActiveMQ Classic takes for the header: set the column with that meaning instead",
    ),
    # `ScheduledMessage.java`: one message can become any number.
    steering=frozenset({f"AMQ_SCHEDULED_{name}" for name in ("DELAY", "PERIOD", "REPEAT", "CRON")}),
    stomp=StompDialect(
        queue="/queue/{name}",
        topic="/topic/{name}",
        # 10,000 acknowledgements take 0.8 s one by one, and 4.4 s at once.
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
        # ID:<host>-<port>-<time>-<n>:<connection>:<session>:<producer>:<message>, whatever the connection's name.
        # A property `message-id`, set over AMQP 1.0 or OpenWire, replaces that ID (5.18, 6.3).
        own_id=re.compile(r"(?::-?[0-9]+){3}$"),
        # The broker parses each part of an ID as a number. An acknowledgement of another ID closes the connection
        # without an ERROR; the broker's log has "java.lang.NumberFormatException: For input string: "abc"" (6.3).
        foreign_prefix="JMS_AMQP_",
        # `StompWireFormat.marshalHeaders` escapes values only, and `copyStandardHeadersFromMessageToFrame` in
        # `FrameTranslator` sets these for every message (6.3).
        always=("message-id", "destination", "expires", "priority", "timestamp"),
        # `/temp-queue/` is a queue of the connection's own, which nobody else can name.
        forms=(
            ("queue", "/queue/"),
            ("topic", "/topic/"),
            ("temp-queue", "/remote-temp-queue/"),
            ("temp-topic", "/remote-temp-topic/"),
        ),
        kinds_in_names=True,
    ),
    amqp10=Amqp10Dialect(
        queue="queue://{name}",
        topic="topic://{name}",
        capabilities=("queue", "topic"),
        confirms=True,
        counts_acquirers=False,
        # A page has 200 messages (`maxPageSize`). With that many messages unacknowledged, the queue delivers no more
        # until something wakes it, as each new credit does.
        credit_max=200,
        forms=tuple((kind, f"{kind}://") for kind in KINDS),
        states_kinds=True,
        # Asked by sending a message to oneself: without the setting it comes back as sent (6.1.7, 6.3.1).
        converted_by="transport.transformer=jms",
        converted_mark=b"x-opt-jms-dest",
    ),
)
