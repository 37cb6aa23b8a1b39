"""The options of a write to a queue. An option that means the same for reading has the same name there."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pyspark_mq.brokers import BROKERS, Broker
from pyspark_mq.brokers.base import AMQP_0_9_1, STOMP
from pyspark_mq.errors import OptionError
from pyspark_mq.sink.columns import WILDCARD, has_wildcard
from pyspark_mq.sink.settings import OnUnwritable, SinkSettings
from pyspark_mq.spark_source.option_kinds import choice, duration_s, member
from pyspark_mq.spark_source.option_parser import OptionParser, check_short, redacting
from pyspark_mq.spark_source.option_table import OPTIONS, Option
from pyspark_mq.spark_source.stream_options import is_stream

__all__ = ["SINK_OPTIONS", "parse_sink_options"]

_WRITTEN, _SENDING = "What is written", "Sending"
#: Options that the source also has, with the same meaning and the same accepted values.
_SHARED = (
    "broker", "url", "protocol", "username", "password", "passwordFile", "connectTimeout",
    "reconnectTimeout", "heartbeat", "tls.caFile", "tls.certFile", "tls.keyFile", "tls.verify",
)  # fmt: skip
_TABLE = (
    Option("queue", _WRITTEN, "the queue for all rows, which overrides the destination columns. On RabbitMQ the queue "
           "must exist; ActiveMQ Classic and Artemis create it", unset="a row's column `queue`"),
    Option("topic", _WRITTEN, "ActiveMQ Classic and Artemis only: a topic to publish to, instead of a queue"),
    Option("exchange", _WRITTEN, "RabbitMQ only: an existing exchange to publish to, instead of a queue",
           unset="a row's column `exchange`"),
    Option("routingKey", _WRITTEN, "RabbitMQ only, with `exchange`: the routing key of all rows",
           unset="a row's column `routingKey`, or empty"),
    Option("writeId", _WRITTEN, "for batch writes only: a name for this write. A rerun with the same name gives rows "
           "the same [IDs](#ids). Do not use a name for two different writes, because equal rows would count as "
           "copies", unset="random"),
    Option("onUnwritableRow", _WRITTEN, "what to do with a row that cannot be a message, or that names a destination "
           "that is missing or refuses the message. `fail`: the task fails. `drop`: the row is left out, and the log "
           "has one warning for each batch. A full queue, and a destination that an option names, are errors in any "
           "case", default="fail",
           kind=member(OnUnwritable)),
    Option("brokerProperties", _WRITTEN, "names of properties to send although they [steer the broker]"
           "(#copying-messages), separated by commas", unset="none"),
    Option("sendTimeout", _SENDING, "longest wait for a confirmation, at least `1s`. While the broker reports that it "
           "is blocked, the write waits longer", default="2m", kind=duration_s(1)),
    Option("checkpointLocation", _SENDING, "Spark's own option for a streaming write"),
)  # fmt: skip
#: Options of a write, by name.
SINK_OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE} | {
    name: OPTIONS[name] for name in _SHARED
}
_READING = "is for reading, not for a write; leave it out"
_STREAM = (
    "a write cannot use the stream protocol: set a URL amqp://…, and name the stream with 'queue'. A stream accepts "
    "messages like a queue"
)


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkSettings:
    """Check the options of a write, and parse them into typed values.

    Args:
        given: the user's options. Names may be in any case; values are text.
        streaming: whether a streaming query writes (`df.writeStream`), rather than a batch write (`df.write`).

    Raises:
        OptionError: an option cannot be used; the text has its name, its value, and what is accepted.
    """
    with redacting(given):
        if is_stream(given):
            raise OptionError("url", _STREAM)
        return _SinkOptionParser(given).parse(streaming=streaming)


class _SinkOptionParser(OptionParser):
    TABLE, OF = SINK_OPTIONS, " for a write"

    def hint_for_foreign_option(self, name: str, value: str) -> str:
        if name == "path":
            return f"{value!r}: a queue has no path; use .option('queue', {value!r}) and save() without an argument"
        near = difflib.get_close_matches(name, [known.lower() for known in SINK_OPTIONS], n=1, cutoff=0.85)
        known = {one.lower() for one in OPTIONS}
        if name in known and not near:
            return _READING
        return super().hint_for_foreign_option(name, value)

    def parse(self, *, streaming: bool) -> SinkSettings:
        self._required("broker", f"use one of: {', '.join(BROKERS)}")
        broker: Broker = self._value("broker", choice(BROKERS))
        urls = self._broker_urls(broker)
        protocol = self._protocol(broker, urls[0])
        if protocol == STOMP and broker.virtual_hosts:
            raise OptionError(
                "url",
                f"{urls[0]}: RabbitMQ does not report over STOMP whether a queue has accepted a message, so writes "
                f"cannot use STOMP; use {'amqps' if urls[0].tls else 'amqp'}://",
            )
        topic, exchange, key = (self._text(name) for name in ("topic", "exchange", "routingKey"))
        queue = self._queue(broker)
        self._check_destination(broker, queue, topic, exchange, key)
        if protocol == AMQP_0_9_1:
            check_short({"queue": queue, "exchange": exchange, "routingKey": key, "url": urls[0].virtual_host}.items())
        if streaming and self._text("writeId") is not None:
            raise OptionError("writeId", "is for batch writes: a query numbers its batches in its checkpoint")
        return SinkSettings(
            endpoint=self._endpoint_at(
                urls, secured=urls[0].tls, broker=broker, protocol=protocol, queue=queue, topic=topic or exchange
            ),
            queue=queue,
            topic=topic,
            exchange=exchange,
            routing_key=key,
            send_timeout_s=self._value("sendTimeout"),
            write_id=self._text("writeId"),
            on_unwritable=self._value("onUnwritableRow"),
            broker_properties=self._broker_properties(broker),
        )

    def _broker_properties(self, broker: Broker) -> frozenset[str]:
        text = self._text("brokerProperties")
        names = frozenset() if text is None else frozenset(name.strip() for name in text.split(","))
        unknown = sorted(names - broker.steering)
        if unknown:
            raise OptionError(
                "brokerProperties",
                f"'{unknown[0]}' does not steer broker '{broker.name}', so this option does not apply to it. Use "
                f"names among {', '.join(sorted(broker.steering))}",
            )
        return names

    def _queue(self, broker: Broker) -> str | None:
        names = self._queue_names(broker)
        if len(names) > 1:
            raise OptionError(
                "queue",
                f"{self._text('queue')!r} names {len(names)} queues, but a write has one: name the queue of each row "
                "in column 'queue' instead. Write a comma within a name as \\,",
            )
        return names[0] if names else None

    def _check_destination(
        self, broker: Broker, queue: str | None, topic: str | None, exchange: str | None, key: str | None
    ) -> None:
        of_rabbitmq = broker.virtual_hosts
        for name, value, known in (("topic", topic, not of_rabbitmq), ("exchange", exchange, of_rabbitmq)):
            if value is not None and not known:
                instead = "RabbitMQ has exchanges: use 'exchange'" if of_rabbitmq else "it has topics: use 'topic'"
                raise OptionError(name, f"'{value}' is not for broker '{broker.name}'; {instead}, or 'queue'")
        named = [
            name for name, value in (("queue", queue), ("topic", topic), ("exchange", exchange)) if value is not None
        ]
        if len(named) > 1:
            raise OptionError(
                named[1], f"is set as well as '{named[0]}': set only one of them, or name destinations in columns"
            )
        for name, value in (("queue", queue), ("topic", topic)):
            if not broker.special_characters.isdisjoint(value or ""):
                meant = " ".join(sorted(broker.special_characters))
                raise OptionError(name, f"'{value}': {meant} are wildcards or parameters in this broker's names")
            if broker.drops_copies and has_wildcard(value or ""):
                raise OptionError(name, f"'{value}', {WILDCARD}")
        if key is not None and not of_rabbitmq:
            raise OptionError("routingKey", f"'{key}': broker '{broker.name}' has no routing keys; leave it out")
        if key is not None and named and exchange is None:
            raise OptionError("routingKey", f"'{key}' goes with 'exchange', not with '{named[0]}'")
