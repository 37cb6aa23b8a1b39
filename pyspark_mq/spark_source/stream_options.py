"""Options of a query of streams, by the names of Spark's Kafka source; the URL distinguishes them from a queue's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_mq.brokers import BROKERS
from pyspark_mq.errors import OptionError
from pyspark_mq.sources.url import parse_urls
from pyspark_mq.spark_source.option_kinds import FLAG, choice, count
from pyspark_mq.spark_source.option_parser import OptionParser, redacting
from pyspark_mq.spark_source.option_table import OPTIONS, Option
from pyspark_mq.streams.offsets import EARLIEST, LATEST, parse_places
from pyspark_mq.streams.settings import StreamSettings, Where

__all__ = ["STREAM_OPTIONS", "StreamOptions", "is_stream", "parse_stream_options"]

_SCHEMES = ("rabbitmq-stream://", "rabbitmq-stream+tls://")
_READ, _SIZE = "What is read", "Size of an epoch"
_TIME_MS = count(0, 1 << 62)
#: Of RabbitMQ's names.
_NAME_BYTES_MAX = 255
#: Of those of queues, with the same meaning and kinds.
_SHARED = (
    "broker", "username", "password", "passwordFile", "connectTimeout", "reconnectTimeout", "heartbeat",
    "maxTriggerDelay", "includeMetadata", "tls.caFile", "tls.certFile", "tls.keyFile", "tls.verify",
)  # fmt: skip
#: Of queues, and what to do here instead.
_INSTEAD = {
    "queue": "a URL of streams reads streams: name it with 'stream', or read a queue with amqp://",
    "topic": "a URL of streams reads streams: name them with 'stream'",
    "guarantee": "a stream is a log, and what is read is exactly once by its offsets: leave it out",
    "maxMessagesPerTrigger": "of streams it is 'maxOffsetsPerTrigger'",
    "minMessagesPerTrigger": "of streams it is 'minOffsetsPerTrigger'",
    "numPartitions": "of streams it is 'minPartitions'",
}
_SUBSCRIBE = "use 'stream': a stream or super stream, or several, comma-separated"
_NOTHING = "it is for queues: streams have offsets, and neither acknowledgements nor IDs to remember; leave it out"

_TABLE = (
    Option("url", _READ, "`rabbitmq-stream://user:password@host:5552/vhost`, with TLS `rabbitmq-stream+tls://…` (ports "
           "5552 and 5551 by default); several, comma-separated, are nodes of one cluster", unset="required"),
    Option("stream", _READ, "the stream or super stream, or several with commas between them", unset="required"),
    Option("startingOffsets", _READ, "`earliest`, `latest`, or JSON of offsets by partition, in which -2 is the "
           "earliest and -1 the latest; partitions that are not named begin at the earliest. A query that has a "
           "checkpoint goes on from that", unset="`latest`, of a batch `earliest`"),
    Option("endingOffsets", _READ, "the same, where a batch ends", default="latest"),
    Option("startingTimestamp", _READ, "milliseconds since 1970: the first chunk that is not older, or the end",
           kind=_TIME_MS),
    Option("startingOffsetsByTimestamp", _READ, "JSON of such times by partition"),
    Option("endingTimestamp", _READ, "milliseconds since 1970: a batch ends before the first chunk that is not older",
           kind=_TIME_MS),
    Option("maxOffsetsPerTrigger", _SIZE, "offsets in an epoch, over all partitions; rounded up to the end of a chunk "
           "in each", unset="no limit", kind=count(1), sets="max_offsets"),
    Option("minOffsetsPerTrigger", _SIZE, "wait for so many, unless `maxTriggerDelay` is over", unset="no minimum",
           kind=count(1), sets="min_offsets"),
    Option("minPartitions", _SIZE, "tasks of an epoch, at least", unset="one for each partition",
           kind=count(1, 10_000), sets="min_partitions"),
    Option("maxRecordsPerPartition", _SIZE, "offsets that one task reads, at most", unset="no limit", kind=count(1),
           sets="max_records"),
    Option("failOnDataLoss", _READ, "`true`: what is lost is an error. `false`: it is logged, and what the driver sees "
           "of it counted as `lost`", default="true", kind=FLAG, sets="fail_on_loss"),
    Option("onUnreadableMessage", _READ, "of a message or packed entry that cannot be read: `fail`; `row`: a row with "
           "the bytes as body, and the reason in `properties` under `unreadable`; `reject`: it is left out, and logged",
           default="fail", kind=choice({name: name for name in ("fail", "row", "reject")}), sets="unreadable"),
)  # fmt: skip

#: By name.
STREAM_OPTIONS: Mapping[str, Option] = {
    option.name: option for option in (*_TABLE, *(OPTIONS[name] for name in _SHARED))
}


class StreamOptions(NamedTuple):
    """All options of a query, typed.

    Attributes:
        streaming, batch: what to do in each kind of query.
        include_metadata: all columns, where the user gives no schema.
    """

    streaming: StreamSettings
    batch: StreamSettings
    include_metadata: bool


def is_stream(given: Mapping[str, str]) -> bool:
    """Whether the options name streams, by the scheme of their URL."""
    url = next((str(value) for name, value in given.items() if name.lower() == "url"), "")
    return url.strip(", \t\r\n").lower().startswith(_SCHEMES)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Check and type the options, see :func:`.parse_options`."""
    with redacting(given):
        return _StreamOptionParser(given).parse()


class _StreamOptionParser(OptionParser):
    TABLE, OF = STREAM_OPTIONS, " of streams"

    def hint_for_foreign_option(self, name: str, value: str) -> str:
        queues = {known.lower(): known for known in OPTIONS}
        if name in queues:
            return _INSTEAD.get(queues[name], _NOTHING)
        return (
            _SUBSCRIBE
            if name in {"subscribe", "subscribepattern", "assign"}
            else super().hint_for_foreign_option(name, value)
        )

    def parse(self) -> StreamOptions:
        self._required("broker", "accepted is rabbitmq, where streams are")
        self._value("broker", choice({"rabbitmq": True}))
        return StreamOptions(self._settings(LATEST), self._settings(EARLIEST), self._value("includeMetadata"))

    def _settings(self, default: int) -> StreamSettings:
        low, high = self._value("minOffsetsPerTrigger"), self._value("maxOffsetsPerTrigger")
        if low is not None and high is not None and low > high:
            raise OptionError("minOffsetsPerTrigger", f"{low} can never be reached: 'maxOffsetsPerTrigger' is {high}")
        urls = parse_urls(self._text("url") or "")
        return StreamSettings(
            endpoint=self._endpoint_at(urls, secured=urls[0].tls, broker=BROKERS["rabbitmq"], protocol="stream"),
            streams=self._streams(),
            starting=self._where("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", default),
            ending=self._where("endingOffsets", "endingTimestamp", None, LATEST),
            **self._fields(StreamSettings),
        )

    def _streams(self) -> tuple[str, ...]:
        text = self._required("stream", "the name of a stream or super stream, or several with commas between them")
        names = tuple(name.strip() for name in text.split(","))
        if "" in names or len(set(names)) < len(names):
            raise OptionError("stream", f"{text!r} has an empty name, or one twice; correct it")
        if longest := max((name for name in names if len(name.encode()) > _NAME_BYTES_MAX), key=len, default=""):
            raise OptionError("stream", f"'{longest[:40]}…' is longer than the {_NAME_BYTES_MAX} bytes of any stream")
        return names

    def _where(self, offsets: str, time: str, by_time: str | None, default: int) -> Where:
        given = [name for name in (offsets, time, by_time) if name is not None and name in self._values]
        if len(given) > 1:
            raise OptionError(given[1], f"is set, and '{given[0]}' too: give one of them")
        if time in self._values:
            return Where(EARLIEST, since_ms=self._value(time))
        if by_time is not None and by_time in self._values:
            return Where(EARLIEST, times_ms=parse_places(by_time, self._text(by_time) or ""))
        text = self._values.get(offsets, "")
        if offsets in self._values and text.lower() not in {"earliest", "latest"}:
            return Where(EARLIEST if offsets == "startingOffsets" else LATEST, parse_places(offsets, text))
        return Where({"earliest": EARLIEST, "latest": LATEST}.get(text.lower(), default))
