"""Every option of the source: its name, its default, and what it means.

The only place that defines an option, with its kind, its bounds and the field it sets. Rules that involve several
options are in :mod:`pyspark_mq.spark_source.options`, which parses the options named here. ``make docs`` writes the
tables of docs/options.md. The texts are Markdown, with links relative to that page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_mq.dedup import OnMissing
from pyspark_mq.sources.settings import Guarantee, OnUnreadable
from pyspark_mq.spark_source.option_kinds import FLAG, SIZE_BYTES, Kind, choice, count, duration_s, member

__all__ = ["OPTIONS", "Option"]

#: connection.tune has 16 bits for seconds (AMQP 0-9-1, class connection, method tune). AMQP counts heartbeats in whole
#: seconds; without heartbeats a silent peer is never noticed.
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
        section: heading of docs/options.md that its row is under.
        text: its meaning, accepted values and limits.
        default: as a user would write it; None if an option that is left out has no value.
        unset: what applies if the option is left out and has no `default`; empty if nothing does.
        kind: how its text becomes a value, and which values are accepted; None if that depends on other options or
            needs more than a kind.
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
        "`amqp://user:password@host:port` or `stomp://…`, with TLS `amqps://…` or `stomp+ssl://…`. Default ports are "
        "5672, 61613, 5671 and 61612. On RabbitMQ the path is the virtual host, and an empty one is `/`; the others "
        "have none, and a path is an error. Several, comma-separated, are failover candidates: whole URLs that share "
        "scheme and virtual host, each with its own login unless `username` is set. No parameters (`?…`). "
        "Escape characters that have a meaning in URLs: `/` `%2F`, `@` `%40`, `,` `%2C`, `?` `%3F`, `#` `%23`",
        unset="required",
    ),
    Option("protocol", _READ, "see [below](#protocols)", unset="by broker and URL"),
    Option(
        "username",
        _READ,
        "overrides the URL's. Without one: over AMQP 0-9-1 `guest`; over AMQP 1.0 an anonymous login; over STOMP no "
        "user is sent, and the broker's default user applies. A [client certificate](operate.md#tls) may replace the "
        "user",
        unset="from the URL",
    ),
    Option(
        "password",
        _READ,
        "overrides the URL's; an error if no user is named. Never shown, nor stored in a checkpoint",
        unset="from the URL",
    ),
    Option(
        "passwordFile",
        _READ,
        "instead of `password`: a file with the password or an OAuth 2 token on one line; read at each connection, "
        "see [secrets that change](operate.md#secrets-that-change)",
    ),
    Option(
        "queue",
        _READ,
        "the queue, or several, comma-separated, see [several queues](#several-queues); a comma in a name is "
        "written `\\,`. One of `queue`, `queuePattern` and `topic` is required. RabbitMQ needs an existing one; "
        "ActiveMQ Classic and Artemis create it, unless configured not to",
    ),
    Option(
        "queuePattern",
        _READ,
        "regular expression (Python's, for the whole name): all matching queues are read. They are looked up at "
        "`managementUrl`, when the query starts and at an interval. RabbitMQ's exclusive queues and streams are left "
        "out",
    ),
    Option(
        "queuePatternInterval",
        _READ,
        "how often queues are looked up, at least `1s`. A run of `Trigger.AvailableNow` reads only those found at its "
        "start",
        default="1m",
        kind=duration_s(1),
        sets="pattern_interval_s",
    ),
    Option(
        "managementUrl",
        _READ,
        "required with `queuePattern`; queried for the [backlog](#counters) if no session reports it, and by the "
        "command [`doctor`](command-line.md#doctor-what-is-wrong-before-a-query-meets-it): the HTTP API of RabbitMQ "
        "(`http://host:15672`, plugin `rabbitmq_management`), "
        "or Jolokia in the console of ActiveMQ Classic (`http://host:8161/api/jolokia`) or Artemis "
        "(`http://host:8161/console/jolokia`). User and password are those in this URL, or else the connection's; "
        "with `https` the options `tls.*` apply, whatever `url` is. Redirects are not followed, and the environment's "
        "proxy (`http_proxy`) is not used. An answer may take at most 30 s, from connecting to its last byte, and have "
        "at most 32 MiB and two million values",
    ),
    Option(
        "managementInterval",
        _READ,
        "how often `managementUrl` is queried for the backlog, at least `1s`. AWS wants `1m` or more for "
        "[Amazon MQ](deploy.md#amazon-mq)",
        default="5s",
        kind=duration_s(1),
        sets="management_interval_s",
    ),
    Option("topic", _READ, "the topic, on RabbitMQ an existing exchange; see [topics](#topics)"),
    Option(
        "subscription",
        _READ,
        "name of the durable subscription to `topic`. Required unless `guarantee` is `none`: without it, a topic is "
        "read only while the connection lasts",
    ),
    Option(
        "selector",
        _READ,
        "JMS selector on ActiveMQ Classic and Artemis. Refused on RabbitMQ, which has none. Part of the checkpoint: "
        "changing it needs a new checkpoint",
    ),
    Option(
        "includeMetadata",
        _READ,
        "`true`: adds the columns `routingKey` to `groupSequence`, otherwise present only if a schema names "
        "them; see [below](#columns)",
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
        "text or whole number in a JSON body), or `content` for all messages, as below. Part of the checkpoint: it "
        "cannot be changed later. [Message IDs](message-ids.md) says what `message-id` is on each broker, and which "
        "to choose",
        default="message-id",
    ),
    Option(
        "onMissingMessageId",
        _IDENTITY,
        "for messages without an ID, with `exactly-once` only. `content`: their contents identify them, and equal "
        "ones are counted, see [message IDs](message-ids.md#contents). `fail`: the query fails, the message stays in "
        "the queue, and a restart receives it again. `row`: emitted at each delivery, so at least once. `reject`: "
        "refused for good. "
        "RabbitMQ dead-letters it if the queue has a dead-letter exchange and **drops** it if not. Over STOMP "
        "ActiveMQ Classic moves it to the dead-letter queue and Artemis **drops** it; over AMQP 1.0 both get the "
        "outcome `rejected`",
        unset="`content` on RabbitMQ, else `fail`",
        kind=member(OnMissing),
        sets="on_missing",
    ),
    Option(
        "onUnreadableMessage",
        _IDENTITY,
        "for messages that cannot be decoded, such as a header nested a thousand deep. `fail`: the query "
        "fails with an error that names the message, which stays in the queue. `reject`: refused for good, as with "
        "`onMissingMessageId`; its neighbours are emitted. `row`: a row with the undecodable bytes as its body, the "
        "reason in `properties` under `unreadable`, and null for every unknown column; without a readable ID its "
        "bytes identify it",
        default="fail",
        kind=member(OnUnreadable),
        sets="on_unreadable",
    ),
    Option(
        "maxMessagesPerTrigger",
        _SIZE,
        "most messages in an epoch; also never more than `prefetch` times `consumers` (times the number of queues, if "
        "you set `prefetch`), which is cut into equal epochs",
        unset="`50000`, with one consumer on RabbitMQ in effect 32,768; ActiveMQ Classic `10000`",
        kind=count(1),
    ),
    Option(
        "maxBytesPerTrigger",
        _SIZE,
        "most bytes of messages in an epoch, [headers included](tuning.md#driver-memory); a single larger "
        "message is an epoch of its own. At most twice this is held in memory",
        default="64m",
        kind=SIZE_BYTES,
        sets="max_bytes",
    ),
    Option(
        "maxPartitionBytes",
        _SIZE,
        "most bytes of rows in one task, if rows travel inside tasks, as on clusters. Keep it below "
        "`spark.rpc.message.maxSize` (128 MiB by default). Partitions are split at 32 MiB, or at this if it is less; "
        "a single larger message is an error",
        default="120m",
        kind=SIZE_BYTES,
        sets="max_partition_bytes",
    ),
    Option(
        "minMessagesPerTrigger",
        _SIZE,
        "wait for this many messages, until `maxTriggerDelay` or `maxBytesPerTrigger` is reached. An error if an "
        "epoch cannot hold that many. Not applied by `Trigger.AvailableNow`",
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
        "unacknowledged messages per connection. At most 65535 on RabbitMQ, 20000 on ActiveMQ Classic, "
        "100000 on Artemis. Artemis counts bytes over STOMP, so there it is approximate",
        unset="twice `maxMessagesPerTrigger`, within the maximum",
    ),
    Option(
        "consumers",
        _SIZE,
        "connections, 1 to 64. More than one does not keep queue order. For a `topic` see [above](#topics)",
        default="1",
        kind=count(1, 64),
    ),
    Option(
        "numPartitions",
        _SIZE,
        "input partitions of an epoch, 1 to 10,000; never more than it has messages. A partition over 32 MiB is "
        "always split",
        unset="cores of the driver's machine; fewer if each would get under 2,000 messages",
        kind=count(1, 10_000),
    ),
    Option(
        "dedupWindow",
        _IDENTITY,
        "how many settled IDs are remembered, across restarts too: a message that a producer repeats within "
        "that many is dropped; 0 to 1,000,000,000. With Redis, also the size of the shared set",
        default="100000",
        kind=count(0),
        sets="dedup_window",
    ),
    Option(
        "settleGrace",
        _IDENTITY,
        "an acknowledgement counts as settled once the broker has answered another request this long after "
        "confirming it. RabbitMQ's classic queues need more than 0.5 s; see "
        "[confirmation](guarantees.md#a-broker-that-forgets)",
        default="5s",
        kind=duration_s(),
        sets="settle_grace_s",
    ),
    Option(
        "settleAfter",
        _IDENTITY,
        "`committed`: an epoch is acknowledged once Spark has committed it. `synced`: only after this machine's "
        "writes, checkpoint and sink, are also on disk, so that a power loss loses nothing. Needs a checkpoint on a "
        "disk of the driver's machine, set as `checkpointLocation`; see [loss of power](operate.md#loss-of-power)",
        default="committed",
        kind=choice({"committed": False, "synced": True}),
        sets="syncs",
    ),
    Option(
        "dedupStore",
        _IDENTITY,
        "`checkpoint`, or `redis://…` / `rediss://…` (extra `redis`; `exactly-once` only); see "
        "[Redis](operate.md#redis)",
        default="checkpoint",
    ),
    Option(
        "checkpointLocation",
        _IDENTITY,
        "the writer's: message IDs are kept in its folder `mq-ids`. Required with `exactly-once`, unless "
        "`idLog` is set; an absolute path, or a URI that `pyarrow.fs` opens (`s3://` and `s3a://`, `gs://`, "
        "`abfss://`, `hdfs://`). As in Spark, names are literal: `%20` is not a space; see "
        "[the checkpoint](operate.md#the-checkpoint)",
    ),
    Option("idLog", _IDENTITY, "another folder for these IDs, same syntax"),
    Option(
        "failOnDataLoss",
        _IDENTITY,
        "`true`: a replay with missing messages fails the query. `false`: they are logged and counted as `lost`, and "
        "the query continues",
        default="true",
        kind=FLAG,
        sets="fail_on_data_loss",
    ),
    Option(
        "replayTimeout",
        _IDENTITY,
        "how long a replay waits for its messages while every connection is up; from 1 s",
        default="5m",
        kind=duration_s(1),
        sets="replay_timeout_s",
    ),
    Option(
        "connectTimeout",
        _CONNECTION,
        "longest time for a run's first connection, over all attempts and all hosts of `url`; afterwards the longest "
        "time for each attempt; from 0.1 s",
        default="30s",
        kind=duration_s(0.1),
        sets="connect_timeout_s",
    ),
    Option(
        "heartbeat",
        _CONNECTION,
        "1 s to 65535 s; see [below](#heartbeat)",
        default="60s",
        kind=duration_s(1, _HEARTBEAT_MAX_S),
        sets="heartbeat_s",
    ),
    Option(
        "reconnectTimeout",
        _CONNECTION,
        "longest time to restore a lost connection before the query fails; from 0.1 s",
        default="10m",
        kind=duration_s(0.1),
        sets="reconnect_timeout_s",
    ),
    Option("tls.caFile", _CONNECTION, "PEM file of trusted authorities", unset="the system's"),
    Option("tls.certFile", _CONNECTION, "the client's certificate, PEM, for brokers that ask for one"),
    Option("tls.keyFile", _CONNECTION, "its key, PEM, not encrypted", unset="looked for in `tls.certFile`"),
    Option("tls.verify", _CONNECTION, "`false` accepts any certificate and host name", default="true", kind=FLAG),
)

#: By name, in the order that error texts list them.
OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}
