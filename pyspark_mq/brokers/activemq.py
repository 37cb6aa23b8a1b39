"""Describes ActiveMQ Classic: gives each attribute of :class:`Broker` its value for this broker."""

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
    # The broker looks for silent connections, but skips a connection whose reading thread waits for its writing
    # thread. If the writing thread waits for a client that has vanished, only TCP ends the wait, after 924 s with
    # Linux's default for `tcp_retries2`.
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
    # For example, a property `JMSExpiration` can make the message expire at once (`ActiveMQMessage.java`).
    header_properties=dict.fromkeys(
        [f"JMS{name}" for name in _HEADERS],
        "which ActiveMQ Classic takes for the header: set the column with that meaning instead",
    ),
    # With these properties the broker delivers a message later, or many times (`ScheduledMessage.java`).
    steering=frozenset({f"AMQ_SCHEDULED_{name}" for name in ("DELAY", "PERIOD", "REPEAT", "CRON")}),
    stomp=StompDialect(
        queue="/queue/{name}",
        topic="/topic/{name}",
        # 10,000 messages take 0.8 s with an acknowledgement for each, and 4.4 s with one cumulative acknowledgement.
        cumulative=False,
        window_header="activemq.prefetchSize",
        durable_headers={"activemq.subscriptionName": "{subscription}"},
        client_id="pyspark-mq.{subscription}",
        shared=False,
        # By default a page has 200 messages (`maxPageSize`).
        stalls=True,
        expires_header="expires",
        internal_headers=frozenset({"expires", "persistent"}),
        internal_prefixes=("JMS_AMQP_",),
        # The broker's IDs are ID:<host>-<port>-<time>-<n>:<connection>:<session>:<producer>:<message>. The part before
        # the last three numbers may differ. A property `message-id`, set over AMQP 1.0 or OpenWire, replaces the
        # broker's ID in this header (5.18, 6.3).
        own_id=re.compile(r"(?::-?[0-9]+){3}$"),
        # The broker parses parts of an ID as numbers. If an acknowledgement has an ID without these numbers, the broker
        # closes the connection without an ERROR frame, and logs "java.lang.NumberFormatException: For input string:
        # "abc"" (6.3).
        foreign_prefix="JMS_AMQP_",
        # `StompWireFormat.marshalHeaders` escapes only the values of headers. The headers that follow are set for every
        # message by `FrameTranslator.Helper.copyStandardHeadersFromMessageToFrame` (6.3).
        always=("message-id", "destination", "expires", "priority", "timestamp"),
        # The prefix `/temp-queue/` is not listed: it means a queue of the connection itself, which no other client can
        # name.
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
        # By default a page has 200 messages (`maxPageSize`). If a page of messages is unacknowledged, the queue stops
        # delivering until something wakes it, for example a new grant of credit.
        credit_max=200,
        forms=tuple((kind, f"{kind}://") for kind in KINDS),
        states_kinds=True,
        # To find out whether the broker has this setting, the sink sends a message to itself. Without the setting the
        # message is delivered unchanged, and lacks the mark (6.1.7, 6.3.1).
        converted_by="transport.transformer=jms",
        converted_mark=b"x-opt-jms-dest",
    ),
)
