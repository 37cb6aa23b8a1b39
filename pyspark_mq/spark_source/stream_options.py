"""The options of a query that reads streams. A URL `rabbitmq-stream://` selects streams instead of queues.

Options that Spark's Kafka source also has have the same names here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_mq.brokers import BROKERS
from pyspark_mq.errors import OptionError
from pyspark_mq.spark_source.option_kinds import FLAG, SIZE_BYTES, choice, count
from pyspark_mq.spark_source.option_parser import OptionParser, redacting
from pyspark_mq.spark_source.option_table import OPTIONS, Option
from pyspark_mq.streams.offsets import EARLIEST, LATEST, parse_places
from pyspark_mq.streams.settings import StreamSettings, Where
from pyspark_mq.wire.url import parse_urls

__all__ = ["STREAM_OPTIONS", "StreamOptions", "is_stream", "parse_stream_options"]

_SCHEMES = ("rabbitmq-stream://", "rabbitmq-stream+tls://")
_READ, _SIZE = "What is read", "Size of an epoch"
_TIME_MS = count(0, 1 << 62)
#: Longest name that RabbitMQ allows.
_NAME_BYTES_MAX = 255
#: Options that the source of queues also has, with the same meaning and the same accepted values.
_SHARED = (
    "broker", "username", "password", "passwordFile", "connectTimeout", "reconnectTimeout", "heartbeat",
    "maxTriggerDelay", "includeMetadata", "tls.caFile", "tls.certFile", "tls.keyFile", "tls.verify",
)  # fmt: skip
#: Options that only queues have -> what to do instead for a stream.
_INSTEAD = {
    "queue": "a stream URL reads streams: name the stream with 'stream', or read a queue with amqp://",
    "topic": "a stream URL reads streams: name them with 'stream'",
    "guarantee": "a stream is a log, read exactly once by its offsets: leave it out",
    "maxMessagesPerTrigger": "for streams use 'maxOffsetsPerTrigger'",
    "minMessagesPerTrigger": "for streams use 'minOffsetsPerTrigger'",
    "numPartitions": "for streams use 'minPartitions'",
}
_SUBSCRIBE = "use 'stream': a stream or super stream, or several, comma-separated"
_NOTHING = "it is for queues: streams have offsets, not acknowledgements or IDs to remember; leave it out"

_TABLE = (
    Option("url", _READ, "`rabbitmq-stream://user:password@host:5552/vhost`, or with TLS `rabbitmq-stream+tls://…`. "
           "Default ports are 5552, and 5551 with TLS. Several URLs, separated by commas, must be nodes of one cluster",
           unset="required"),
    Option("stream", _READ, "one or more streams or super streams, separated by commas", unset="required"),
    Option("startingOffsets", _READ, "`earliest`, `latest`, or JSON that maps partitions to offsets (-2: earliest, "
           "-1: latest). Other partitions begin at the earliest offset, which is that of the member that the driver "
           "asks; retention may have left more on another member. A query that has a checkpoint resumes from it "
           "instead",
           unset="`latest`; `earliest` for a batch query"),
    Option("endingOffsets", _READ, "where a batch query ends, in the same syntax as `startingOffsets`",
           default="latest"),
    Option("startingTimestamp", _READ, "a time in milliseconds since 1970. The query begins at the first chunk that "
           "is not older, or else at the end of the stream", kind=_TIME_MS),
    Option("startingOffsetsByTimestamp", _READ, "JSON that maps partitions to times like `startingTimestamp`"),
    Option("endingTimestamp", _READ, "a time in milliseconds since 1970. A batch query ends before the first chunk "
           "that is not older",
           kind=_TIME_MS),
    Option("maxOffsetsPerTrigger", _SIZE, "largest number of offsets in an epoch, over all partitions. In each "
           "partition the epoch is extended to the end of a chunk",
           unset="no limit", kind=count(1), sets="max_offsets"),
    Option("minOffsetsPerTrigger", _SIZE, "an epoch waits until this many new offsets exist, but no longer than "
           "`maxTriggerDelay`",
           unset="no minimum", kind=count(1), sets="min_offsets"),
    Option("minPartitions", _SIZE, "smallest number of tasks of an epoch", unset="one task for each partition",
           kind=count(1, 10_000), sets="min_partitions"),
    Option("maxRecordsPerPartition", _SIZE, "largest number of offsets that one task reads", unset="no limit",
           kind=count(1), sets="max_records"),
    Option("failOnDataLoss", _READ, "whether [lost messages](#loss) are an error (`true`), or are logged (`false`)",
           default="true", kind=FLAG, sets="fail_on_loss"),
    Option("onUnreadableMessage", _READ, "what to do with a message or packed entry that cannot be read. `fail`: the "
           "query fails. `row`: the query emits a row with the bytes as its body, and the reason in `properties` "
           "under `unreadable`. `reject`: it is left out of the output, and logged",
           default="fail", kind=choice({name: name for name in ("fail", "row", "reject")}), sets="unreadable"),
    Option("maxEntryBytes", _READ, "largest size of a packed entry after decompression; a larger entry cannot be "
           "read. A task holds a whole entry",
           default="16m", kind=SIZE_BYTES, sets="max_entry_bytes"),
)  # fmt: skip

#: Options of a query of streams, by name.
STREAM_OPTIONS: Mapping[str, Option] = {
    option.name: option for option in (*_TABLE, *(OPTIONS[name] for name in _SHARED))
}


class StreamOptions(NamedTuple):
    """All options of a query that reads streams, parsed into typed values.

    Attributes:
        streaming, batch: the settings for a streaming query and for a batch query. Both are set, because Spark does not
            say which kind of query it is about to create.
        include_metadata: whether a query that sets no schema gets all columns.
    """

    streaming: StreamSettings
    batch: StreamSettings
    include_metadata: bool


def is_stream(given: Mapping[str, str]) -> bool:
    """Whether the options are for streams rather than queues. The scheme of the option `url` decides."""
    url = next((str(value) for name, value in given.items() if name.lower() == "url"), "")
    return url.strip(", \t\r\n").lower().startswith(_SCHEMES)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Check the options of a query that reads streams, and parse them into typed values.

    Arguments and errors are those of :func:`.parse_options`.
    """
    with redacting(given):
        return _StreamOptionParser(given).parse()


class _StreamOptionParser(OptionParser):
    TABLE, OF = STREAM_OPTIONS, " for streams"

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
        self._required("broker", "use rabbitmq, the only broker with streams")
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
        text = self._required("stream", "name a stream or super stream, or several, comma-separated")
        names = tuple(name.strip() for name in text.split(","))
        if "" in names or len(set(names)) < len(names):
            raise OptionError("stream", f"{text!r} has an empty name, or the same name twice; correct it")
        if longest := max((name for name in names if len(name.encode()) > _NAME_BYTES_MAX), key=len, default=""):
            raise OptionError(
                "stream", f"'{longest[:40]}…' is longer than {_NAME_BYTES_MAX} bytes, the maximum for a name"
            )
        return names

    def _where(self, offsets: str, time: str, by_time: str | None, default: int) -> Where:
        given = [name for name in (offsets, time, by_time) if name is not None and name in self._values]
        if len(given) > 1:
            raise OptionError(given[1], f"is set as well as '{given[0]}': set only one of them")
        if time in self._values:
            return Where(EARLIEST, since_ms=self._value(time))
        if by_time is not None and by_time in self._values:
            return Where(EARLIEST, times_ms=parse_places(by_time, self._text(by_time) or ""))
        text = self._values.get(offsets, "")
        if offsets in self._values and text.lower() not in {"earliest", "latest"}:
            return Where(EARLIEST if offsets == "startingOffsets" else LATEST, parse_places(offsets, text))
        return Where({"earliest": EARLIEST, "latest": LATEST}.get(text.lower(), default))
