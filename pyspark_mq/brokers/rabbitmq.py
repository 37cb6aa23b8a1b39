"""Describes RabbitMQ: gives each attribute of :class:`Broker` its value for this broker."""

from __future__ import annotations

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP, Amqp10Dialect, Broker, Listing, StompDialect, by_scheme

__all__ = ["RABBITMQ"]

RABBITMQ = Broker(
    name="rabbitmq",
    protocols=by_scheme(AMQP_0_9_1, AMQP_1_0),
    products=frozenset({"RabbitMQ"}),
    # The list is requested without statistics, because these take the broker much more time than the names.
    listing=Listing(
        url="http://host:15672",
        path="/api/queues/{host}?page={page}&page_size={size}&columns=name,type,exclusive&disable_stats=true",
    ),
    epoch_messages=50_000,
    # basic.qos has 16 bits for prefetch-count (AMQP 0-9-1, class basic, method qos). 0 would be
    # unlimited on classic queues, but 2000 on quorum queues.
    prefetch_max={AMQP_0_9_1: 65_535, AMQP_1_0: 65_535, STOMP: 65_535},
    selectors=False,
    virtual_hosts=True,
    durable_topics=frozenset({AMQP_0_9_1, STOMP}),
    shared_topics=frozenset({AMQP_0_9_1, STOMP}),
    counts_session_ends=True,
    # Tested on 3.10 and 4.3 over all three protocols, with connections cut and closed, the broker restarted and killed,
    # negative acknowledgements, and leaders of queues moved and killed: each redelivery had the flag. Only a dead
    # letter that is returned to the queue arrives without the flag.
    proves_new=True,
    # Over AMQP 1.0 the time is twice the broker's setting `heartbeat`, which is 60 s by default. Also, from 4.3 on, a
    # quorum queue keeps messages that were delivered through a lost node for `consumer-disconnected-timeout`, 60 s by
    # default.
    half_open_s={AMQP_0_9_1: 65.0, AMQP_1_0: 120.0, STOMP: 65.0},
    # From 4.3 on, if a quorum queue is told twice that a consumer on a lost node has ended, it forgets the timeout
    # `consumer-disconnected-timeout`, and keeps the consumer's messages for `consumer_timeout`, 30 min by default
    # (`rabbit_fifo:update_consumer_status/2`, 4.3.6).
    stranded_s=1_800.0 + 65.0,
    stranded_note=(
        "from RabbitMQ 4.3 on a quorum queue may keep messages delivered through a lost node until another member "
        "leads the queue (restart the node of its leader) or `consumer_timeout` is over"
    ),
    ids_by_protocol=False,
    delivery_limit_note=(
        "a quorum queue drops or dead-letters a message that was delivered more often than its "
        "delivery limit (20 by default from RabbitMQ 4)"
    ),
    # Erlang's `net_ticktime`, which is 60 s by default, plus a quarter of this time.
    node_lost_s=75.0,
    # The reasons if a queue has only one node, or while a node is stopping (`rabbit_amqqueue:absent`).
    unavailable_reasons=("is down or inaccessible", "is stopped by supervisor", "due to timeout"),
    delays_session_returns=True,
    flaws={AMQP_1_0: ((4, 0), "with version 3's plugin the client library leaks 2 kB for each settled epoch")},
    remedies={
        "consumer-timeout": "raise `consumer-timeout` in a policy for the queue, or `consumer_timeout` in "
        "rabbitmq.conf (milliseconds), above the longest batch and trigger interval",
        "delivery-limit": "set a policy with a high `delivery-limit` (-1 means no limit from RabbitMQ 4.0 on); a lower "
        "argument `x-delivery-limit` still applies, and only a new queue can be without it",
        "dead-letters": "set a policy with `dead-letter-exchange`, and bind a queue to that exchange",
        "redelivery-delay": "or remove `delayed-retry-type` from the queue's policy or arguments",
        "priorities": "read a queue without `x-max-priority`, or a quorum queue",
        "single-active-consumer": "declare the queue without `x-single-active-consumer`, or leave 'consumers' at 1",
        "other-consumers": "give each reader its own queue",
        "prefetch": "raise `consumer_max_per_channel` in rabbitmq.conf, or remove it: raising the prefetch takes "
        "one more consumer",
        "queue": "remove that setting from the policy, or declare the queue without it",
    },
    # "Sender-selected Distribution", and the plugins rabbitmq_delayed_message_exchange and
    # rabbitmq_message_deduplication.
    steering=frozenset({"CC", "BCC", "x-delay", "x-deduplication-header"}),
    stomp=StompDialect(
        queue="/amq/queue/{name}",
        topic="/exchange/{name}/#",
        # The headers `message-id` and `ack` identify a delivery in a session, so they differ at a redelivery.
        id_header="amqp-message-id",
        # 10,000 messages take 4 ms with one cumulative acknowledgement, and 160 ms with an acknowledgement for each. On
        # quorum queues only a cumulative acknowledgement is durable.
        cumulative=True,
        window_header="prefetch-count",
        durable_headers={
            "x-queue-name": "{subscription}",
            "durable": "true",
            "auto-delete": "false",
            "exclusive": "false",
        },
        shared=True,
        # Without this header the broker requeues the refused message (`stomp.default_nack_requeue`).
        reject_headers={"requeue": "false"},
        slash="%2F",
        timestamp_us=1_000_000,
        count_header="x-delivery-count",
        internal_headers=frozenset({"amqp-message-id", "expiration", "persistent"}),
        # In a MESSAGE frame a producer's headers come before the broker's properties (3.10), and a producer may set a
        # header with this name.
        last_header="amqp-message-id",
        user_id=("user-id",),
        app_id=("app-id",),
        content_encoding=("content-encoding",),
        group_id=("JMSXGroupID",),
        group_sequence=("JMSXGroupSeq",),
        routed=True,
        forms=(("queue", "/reply-queue/"), ("address", "/exchange/"), ("address", "/topic/")),
    ),
    amqp10=Amqp10Dialect(
        queue="/amq/queue/{name}",
        topic="/exchange/{name}/#",
        capabilities=None,
        confirms=True,
        counts_acquirers=True,
        slash="%2F",
        # Address format 2 (RabbitMQ's documentation, "AMQP 1.0", "Addresses"): format 1 is deprecated in 4.0 and
        # refused by default in 4.3. Format 2 has no address to read an exchange.
        queue_since=(4, "/queues/{name}"),
        virtual_host="vhost:{name}",
        management_since=4,
        # `/queue/` is of address format 1.
        forms=(("queue", "/queues/"), ("queue", "/queue/"), ("address", "/exchanges/"), ("address", "/exchange/")),
    ),
)
