"""RabbitMQ: what is particular to it."""

from __future__ import annotations

from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP, Amqp10Dialect, Broker, Listing, StompDialect, by_scheme

__all__ = ["RABBITMQ"]

RABBITMQ = Broker(
    name="rabbitmq",
    protocols=by_scheme(AMQP_0_9_1, AMQP_1_0),
    products=frozenset({"RabbitMQ"}),
    # Without statistics, which cost the broker much more than the names.
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
    # Never otherwise on 3.10 and 4.3, over all three protocols: cut, close, restart and kill of the broker, negative
    # acknowledgement, leaders moved and killed. What was dead-lettered and returned has no flag.
    proves_new=True,
    # Over AMQP 1.0 twice its setting `heartbeat`, 60 s by default. And from 4.3 on a quorum queue keeps for
    # `consumer-disconnected-timeout`, 60 s by default, what it had handed out through a node that is gone.
    half_open_s={AMQP_0_9_1: 65.0, AMQP_1_0: 120.0, STOMP: 65.0},
    # From 4.3 on a quorum queue that hears of the end of such a consumer twice forgets to wait for that timeout, and
    # keeps its messages for `consumer_timeout`, 30 min by default (`rabbit_fifo:update_consumer_status/2`, 4.3.6).
    stranded_s=1_800.0 + 65.0,
    stranded_note=(
        "from RabbitMQ 4.3 on a quorum queue may keep what it had handed out through a node that was lost until "
        "another member leads it (restart the node of its leader) or `consumer_timeout` is over"
    ),
    ids_by_protocol=False,
    delivery_limit_note=(
        "a quorum queue drops or dead-letters a message that was handed out more often than its "
        "delivery limit (20 by default from RabbitMQ 4)"
    ),
    # Erlang's `net_ticktime`, 60 s by default, and a quarter of it.
    node_lost_s=75.0,
    # Of a queue that is on one node, or while a node stops (`rabbit_amqqueue:absent`).
    unavailable_reasons=("is down or inaccessible", "is stopped by supervisor", "due to timeout"),
    delays_session_returns=True,
    flaws={
        AMQP_1_0: ((4, 0), "with the plugin of version 3 the client library keeps 2 kB for each epoch that is settled")
    },
    remedies={
        "consumer-timeout": "raise `consumer-timeout` in a policy of the queue, or `consumer_timeout` in "
        "rabbitmq.conf (milliseconds), above the longest batch and trigger interval",
        "delivery-limit": "set a policy with an ample `delivery-limit` (-1 for none from RabbitMQ 4.0 on); a lower "
        "argument `x-delivery-limit` holds all the same, and takes a new queue",
        "dead-letters": "set a policy with `dead-letter-exchange`, and bind a queue to that exchange",
        "redelivery-delay": "or take `delayed-retry-type` out of the policy or the arguments of the queue",
        "priorities": "read a queue without `x-max-priority`, or a quorum queue",
        "single-active-consumer": "declare the queue without `x-single-active-consumer`, or leave 'consumers' at 1",
        "other-consumers": "give each reader a queue of its own",
        "prefetch": "raise `consumer_max_per_channel` in rabbitmq.conf, or take it out: a wider window is one more",
        "queue": "take it out of the policy, or declare the queue without it",
    },
    stomp=StompDialect(
        queue="/amq/queue/{name}",
        topic="/exchange/{name}/#",
        # `message-id` and `ack` name the delivery, and the session it is of.
        id_header="amqp-message-id",
        # 10,000 at once in 4 ms, one by one in 160 ms, and only the former is durable on quorum queues.
        cumulative=True,
        window_header="prefetch-count",
        durable_headers={
            "x-queue-name": "{subscription}",
            "durable": "true",
            "auto-delete": "false",
            "exclusive": "false",
        },
        shared=True,
        # Requeued otherwise (`stomp.default_nack_requeue`).
        reject_headers={"requeue": "false"},
        slash="%2F",
        timestamp_us=1_000_000,
        count_header="x-delivery-count",
        internal_headers=frozenset({"amqp-message-id", "expiration", "persistent"}),
        # Headers of the message come before its properties (3.10): a producer may set this one too.
        last_header="amqp-message-id",
        user_id=("user-id",),
        app_id=("app-id",),
        content_encoding=("content-encoding",),
        group_id=("JMSXGroupID",),
        group_sequence=("JMSXGroupSeq",),
        routed=True,
    ),
    amqp10=Amqp10Dialect(
        queue="/amq/queue/{name}",
        topic="/exchange/{name}/#",
        capabilities=None,
        # Settling after the acceptance ends the connection (3.10), and so does an acceptance without settlement (4).
        confirms=False,
        counts_acquirers=True,
        slash="%2F",
        # Address format 2 (RabbitMQ's documentation, "AMQP 1.0", "Addresses"): the other one is deprecated in 4.0
        # and refused by default in 4.3. It has none to read an exchange.
        queue_since=(4, "/queues/{name}"),
        virtual_host="vhost:{name}",
        management_since=4,
    ),
)
