"""Every option of the source: its name, its default, and what it means.

This module is the only place that defines an option, with its kind, its bounds and the field that it sets.
:mod:`pyspark_mq.spark_source.options` parses the options, and has the rules that involve several options.
``make docs`` writes the tables of docs/options.md from this module. The texts are Markdown, with links relative to
that page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_mq.dedup import OnMissing
from pyspark_mq.sources.settings import Guarantee, OnUnreadable
from pyspark_mq.spark_source.option_kinds import FLAG, SIZE_BYTES, Kind, choice, count, duration_s, member

__all__ = ["OPTIONS", "Option"]

#: Longest heartbeat interval. AMQP 0-9-1 has 16 bits for the interval, which it counts in whole seconds (class
#: connection, method tune).
_HEARTBEAT_MAX_S = 65_535.0

_READ = "What is read"
_IDENTITY = "Guarantee and identity"
_SIZE = "Size of an epoch"
_CONNECTION = "Connection"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: in camelCase, as errors and documentation spell it.
        section: heading in docs/options.md under which the option has its row.
        text: meaning of the option, accepted values and limits.
        default: the value if the option is not set, as a user would write it; None if there is no such value.
        unset: describes what applies if the option is not set and has no `default`; empty if nothing applies.
        kind: how the option's text is parsed, and which values are accepted; None if the parser has special rules for
            this option, for example because they depend on other options.
        sets: the field of :class:`.Settings` or :class:`.Endpoint` that gets the value unchanged; empty if the field
            depends on other options.
    """

    name: str
    section: str
    text: str
    default: str | None = None
    unset: str = ""
    kind: Kind | None = None
    sets: str = ""


_TABLE = (
    Option("broker", _READ, "`rabbitmq`, `activemq` (Classic), `artemis`", unset="required"),
    Option(
        "url",
        _READ,
        "`amqp://user:password@host:port` or `stomp://…`; with TLS, `amqps://…` or `stomp+ssl://…`. Default ports are "
        "5672 (`amqp`), 61613 (`stomp`), 5671 (`amqps`) and 61612 (`stomp+ssl`). On RabbitMQ the path is the virtual "
        "host; an empty path means `/`. Several full URLs, separated by commas, are candidates for failover; each has "
        "its own login unless `username` is set. Within a name or password, write `/` as `%2F`, `@` as `%40`, `,` as "
        "`%2C`, `?` as `%3F`, `#` as `%23`",
        unset="required",
    ),
    Option("protocol", _READ, "the [protocol](#protocols) of the connection", unset="depends on broker and URL"),
    Option(
        "username",
        _READ,
        "overrides the user in the URL. If no user is named, the source logs in over AMQP 0-9-1 as `guest`, over AMQP "
        "1.0 anonymously, and over STOMP as the broker's default user. A [client certificate](operate.md#tls) may "
        "replace the user",
        unset="from the URL",
    ),
    Option(
        "password",
        _READ,
        "overrides the password in the URL; it is [never shown or stored](operate.md#secrets)",
        unset="from the URL",
    ),
    Option(
        "passwordFile",
        _READ,
        "a file with the password or an OAuth 2 token on one line, [read at each "
        "connection](operate.md#secrets-that-change); use it instead of `password`",
    ),
    Option(
        "queue",
        _READ,
        "the queue, or [several queues](#several-queues) separated by commas. Write a comma within a name as `\\,`. "
        "One of `queue`, `queuePattern` and `topic` is required. On RabbitMQ the queue must exist; ActiveMQ Classic "
        "and Artemis create it by default",
    ),
    Option(
        "queuePattern",
        _READ,
        "a regular expression in Python's syntax, which needs `managementUrl`. The query reads all queues whose whole "
        "name matches, except RabbitMQ's exclusive queues and streams",
    ),
    Option(
        "queuePatternInterval",
        _READ,
        "how often the queues that match `queuePattern` are looked up, at least `1s`; in a run of "
        "`Trigger.AvailableNow` only at its start",
        default="1m",
        kind=duration_s(1),
        sets="pattern_interval_s",
    ),
    Option(
        "managementUrl",
        _READ,
        "address of the broker's management interface: the HTTP API of RabbitMQ (`http://host:15672`, plugin "
        "`rabbitmq_management`), or Jolokia in the console of ActiveMQ Classic (`http://host:8161/api/jolokia`) or "
        "Artemis (`http://host:8161/console/jolokia`). It serves `queuePattern`, "
        "[`doctor`](command-line.md#doctor-what-is-wrong-before-a-query-meets-it), and the [backlog](#counters) if no "
        "session reports it. The login is that of the broker connection, unless the URL has its own. With `https`, "
        "the options `tls.*` apply. The environment's proxy (`http_proxy`) is not used. A response may take at most "
        "30 s, and may have at most 32 MiB and two million values",
    ),
    Option(
        "managementInterval",
        _READ,
        "how often `managementUrl` is queried for the backlog, at least `1s`; for "
        "[Amazon MQ](brokers.md#amazon-mq) `1m`",
        default="5s",
        kind=duration_s(1),
        sets="management_interval_s",
    ),
    Option("topic", _READ, "the [topic](#topics) to read; on RabbitMQ an existing exchange"),
    Option(
        "subscription",
        _READ,
        "name of the durable subscription to `topic`. Required unless `guarantee` is `none`: without a durable "
        "subscription, messages published while the query is not connected are not received",
    ),
    Option(
        "selector",
        _READ,
        "a JMS selector, for ActiveMQ Classic and Artemis. To change it, begin with [a new "
        "checkpoint](operate.md#upgrades). ActiveMQ Classic applies a selector only to the first `maxPageSize` "
        "messages of a queue (200 by default). If none of them match, a run of `Trigger.AvailableNow` ends without "
        "the matching messages behind them, and the log warns",
    ),
    Option(
        "includeMetadata",
        _READ,
        "`true` adds the [columns](#columns) from `routingKey` to `groupSequence`",
        default="false",
        kind=FLAG,
    ),
    Option(
        "guarantee",
        _IDENTITY,
        "`exactly-once`, `at-least-once`, `none`; see [guarantees](guarantees.md)",
        default="exactly-once",
        kind=member(Guarantee),
        sets="guarantee",
    ),
    Option(
        "messageIdFrom",
        _IDENTITY,
        "`message-id`, `correlation-id`, `property:<name>` (a header or application property), `json:$.order.id` (a "
        "text or whole number in a JSON body), or `content` (all messages are identified by their contents). It "
        "[cannot be changed](operate.md#upgrades) later. [Message IDs](message-ids.md) says which value to choose",
        default="message-id",
    ),
    Option(
        "onMissingMessageId",
        _IDENTITY,
        "what to do with a message without an ID, with `exactly-once`. `content`: the message is identified by its "
        "[contents](message-ids.md#contents). `fail`: the query fails, and the message stays in the queue. `row`: the "
        "message is emitted at each delivery, so at least once. `reject`: the message is rejected for good. RabbitMQ "
        "then dead-letters it if the queue has a dead-letter exchange, and **drops** it otherwise. Over STOMP, "
        "ActiveMQ Classic moves it to the dead-letter queue, and Artemis **drops** it. Over AMQP 1.0 both ActiveMQ "
        "brokers receive the outcome `rejected`",
        unset="`content` on RabbitMQ, else `fail`",
        kind=member(OnMissing),
        sets="on_missing",
    ),
    Option(
        "onUnreadableMessage",
        _IDENTITY,
        "what to do with a message that cannot be decoded. `fail`: the query fails with an error that names the "
        "message, and the message stays in the queue. `reject`: the message is rejected for good, as by "
        "`onMissingMessageId=reject`. `row`: the source emits a row with the undecodable bytes as its body, the "
        "reason in `properties` under `unreadable`, and null in columns whose value is unknown. If its ID cannot be "
        "read, the message is identified by its bytes",
        default="fail",
        kind=member(OnUnreadable),
        sets="on_unreadable",
    ),
    Option(
        "maxMessagesPerTrigger",
        _SIZE,
        "largest number of messages in an epoch. An epoch never has more messages than may be unacknowledged, which "
        "is `prefetch` times `consumers` (times the number of queues, if you set `prefetch`). The source divides this "
        "number into equal epochs, so by default an epoch on RabbitMQ with one consumer has at most 32,768 messages",
        unset="`50000`, or `10000` on ActiveMQ Classic",
        kind=count(1),
    ),
    Option(
        "maxBytesPerTrigger",
        _SIZE,
        "largest size of all messages in an epoch together, including headers. A single larger message becomes an "
        "epoch of its own. The option also [bounds](tuning.md#bounds) buffered messages, so [the driver needs a "
        "multiple of it](tuning.md#driver-memory)",
        default="64m",
        kind=SIZE_BYTES,
        sets="max_bytes",
    ),
    Option(
        "maxPartitionBytes",
        _SIZE,
        "largest size of all rows in one task together, if rows travel inside tasks, as they do on clusters. Keep it "
        "below `spark.rpc.message.maxSize` (128 MiB by default). Partitions are split at 32 MiB, or at this size if "
        "it is less. A single row over this size is an error",
        default="120m",
        kind=SIZE_BYTES,
        sets="max_partition_bytes",
    ),
    Option(
        "minMessagesPerTrigger",
        _SIZE,
        "an epoch waits until this many messages have arrived, or until `maxTriggerDelay` or `maxBytesPerTrigger` is "
        "reached. It has no effect with `Trigger.AvailableNow`",
        default="1",
        kind=count(1),
    ),
    Option(
        "maxTriggerDelay",
        _SIZE,
        "longest wait for `minMessagesPerTrigger`",
        default="15m",
        kind=duration_s(),
        sets="max_delay_s",
    ),
    Option(
        "prefetch",
        _SIZE,
        "how many unacknowledged messages the broker may have delivered to each connection: at most 65535 on "
        "RabbitMQ, 20000 on ActiveMQ Classic, and 100000 on Artemis. Over STOMP the limit on Artemis is approximate",
        unset="twice `maxMessagesPerTrigger`, but not above the broker's maximum",
    ),
    Option(
        "consumers",
        _SIZE,
        "number of connections to each queue, from 1 to 64. With more than one, the order of the queue is not kept. "
        "For a `topic` see [topics](#topics)",
        default="1",
        kind=count(1, 64),
    ),
    Option(
        "numPartitions",
        _SIZE,
        "number of input partitions of an epoch, from 1 to 10,000, but no more than it has messages. A partition over "
        "32 MiB is always split",
        unset="the number of cores of the driver's machine; fewer if a partition would have fewer than 2,000 messages",
        kind=count(1, 10_000),
    ),
    Option(
        "dedupWindow",
        _IDENTITY,
        "how many settled IDs are remembered, also across restarts, from 0 to 1,000,000,000. Meanwhile [a producer's "
        "duplicates](guarantees.md#duplicates-from-the-producer) are dropped. With [Redis](operate.md#redis), this is "
        "also the size of the shared set",
        default="100000",
        kind=count(0),
        sets="dedup_window",
    ),
    Option(
        "settleGrace",
        _IDENTITY,
        "how long the source waits after a confirmed acknowledgement before it "
        "[settles](how-it-works.md#settled-and-left) it. RabbitMQ's classic queues need more than 0.5 s, because they "
        "[forget](guarantees.md#a-broker-that-forgets) what they confirmed just before a crash",
        default="5s",
        kind=duration_s(),
        sets="settle_grace_s",
    ),
    Option(
        "settleAfter",
        _IDENTITY,
        "`committed`: an epoch is acknowledged once Spark has committed it. `synced`: an epoch is acknowledged once "
        "everything that this machine wrote to checkpoint and sink is also on disk. `synced` needs a "
        "`checkpointLocation` on a disk of the driver's machine; see [loss of power](operate.md#loss-of-power)",
        default="committed",
        kind=choice({"committed": False, "synced": True}),
        sets="syncs",
    ),
    Option(
        "dedupStore",
        _IDENTITY,
        "`checkpoint`: the IDs of committed messages are stored only in the checkpoint. `redis://…` or `rediss://…`: "
        "also in [Redis](operate.md#redis), which needs the extra `redis` and works only with `exactly-once`",
        default="checkpoint",
    ),
    Option(
        "dedupStorePasswordFile",
        _IDENTITY,
        "a file with the password for Redis on one line, read at each connection. Use it instead of a password in "
        "`dedupStore`, which Spark shows in plans",
    ),
    Option(
        "checkpointLocation",
        _IDENTITY,
        "the writer's `checkpointLocation`: the source stores message IDs in its folder `mq-ids`. Required with "
        "`exactly-once`, unless `idLog` is set. It is an absolute path, or a URI that `pyarrow.fs` opens (`s3://` and "
        "`s3a://`, `gs://`, `abfss://`, `hdfs://`); see [the checkpoint](operate.md#the-checkpoint)",
    ),
    Option("idLog", _IDENTITY, "another folder for the message IDs, in the same syntax as `checkpointLocation`"),
    Option(
        "failOnDataLoss",
        _IDENTITY,
        "`true`: a replay with missing messages fails the query. `false`: missing messages are logged and counted as "
        "`lost`, and the query continues",
        default="true",
        kind=FLAG,
        sets="fail_on_data_loss",
    ),
    Option(
        "replayTimeout",
        _IDENTITY,
        "how long a replay waits for its messages, at least `1s`. Only time during which every connection is up counts",
        default="5m",
        kind=duration_s(1),
        sets="replay_timeout_s",
    ),
    Option(
        "connectTimeout",
        _CONNECTION,
        "how long a run may take to get its first connection, over all attempts on all hosts of `url`; later, how "
        "long each single attempt may take. At least `0.1s`",
        default="30s",
        kind=duration_s(0.1),
        sets="connect_timeout_s",
    ),
    Option(
        "heartbeat",
        _CONNECTION,
        "heartbeat interval of the connections to the broker, from 1 s to 65535 s; see [below](#heartbeat)",
        default="60s",
        kind=duration_s(1, _HEARTBEAT_MAX_S),
        sets="heartbeat_s",
    ),
    Option(
        "reconnectTimeout",
        _CONNECTION,
        "how long the source tries to restore a lost connection before the query fails, at least `0.1s`",
        default="10m",
        kind=duration_s(0.1),
        sets="reconnect_timeout_s",
    ),
    Option("tls.caFile", _CONNECTION, "PEM file of trusted certificate authorities", unset="the system's authorities"),
    Option("tls.certFile", _CONNECTION, "the client's certificate as a PEM file, for brokers that require one"),
    Option(
        "tls.keyFile",
        _CONNECTION,
        "the private key of the client's certificate as a PEM file, not encrypted",
        unset="the key in `tls.certFile`",
    ),
    Option("tls.verify", _CONNECTION, "`false` accepts any certificate and host name", default="true", kind=FLAG),
)

#: Options of the source by name, in the order in which error texts list them.
OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}
