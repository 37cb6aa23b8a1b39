"""Writes without a broker: settings, rows as batches, and messages as a source would get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from stomp.protocol import Protocol12

from pyspark_mq.brokers import BROKERS
from pyspark_mq.brokers.base import AMQP_0_9_1, AMQP_1_0, STOMP
from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp10 import Amqp10Batch
from pyspark_mq.decode.amqp10_sections import SectionReader
from pyspark_mq.decode.batch import DeliveryBatch
from pyspark_mq.decode.stomp import StompBatch
from pyspark_mq.sink.amqp091_message import properties_of
from pyspark_mq.sink.amqp10_message import encoded
from pyspark_mq.sink.columns import COLUMNS, ColumnPlan, RowReader
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.settings import Message, SinkSettings
from pyspark_mq.sink.stomp import StompPublisher, frame_headers
from pyspark_mq.wire.endpoint import Endpoint
from pyspark_mq.wire.stomp.client import Transport
from pyspark_mq.wire.stomp.frames import FrameReader
from pyspark_mq.wire.url import parse_urls
from tests.support.decoding import Asked

__all__ = ["ARROW", "ENTRIES", "as_raw", "batch_of", "decoder_of", "fields_of", "messages_of", "settings_of"]

#: Broker and protocol of every kind of write.
ENTRIES = (
    ("rabbitmq", AMQP_0_9_1),
    ("rabbitmq", AMQP_1_0),
    ("activemq", AMQP_1_0),
    ("activemq", STOMP),
    ("artemis", AMQP_1_0),
    ("artemis", STOMP),
)
#: Spark's types of columns -> Arrow's.
ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"), "map<string,string>": pa.map_(pa.string(), pa.string()),
}  # fmt: skip
_BATCHES: Mapping[str, type[DeliveryBatch]] = {
    AMQP_0_9_1: Amqp091Batch, AMQP_1_0: Amqp10Batch, STOMP: StompBatch
}  # fmt: skip


def settings_of(broker: str = "rabbitmq", protocol: str = AMQP_0_9_1, **changes: Any) -> SinkSettings:
    """Settings that go nowhere."""
    endpoint = Endpoint(broker=BROKERS[broker], protocol=protocol, urls=parse_urls("amqp://localhost"))
    return SinkSettings(endpoint, **{"queue": "orders", **changes})


def fields_of(names: Sequence[str], body: str = "binary") -> list[tuple[str, str]]:
    """Columns with the first type each may have, and that of the body."""
    return [(name, body if name == "body" else COLUMNS[name].kinds[0]) for name in names]


def batch_of(rows: Sequence[Mapping[str, Any]], fields: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    """Rows as Spark hands them over; what a row does not have is null."""
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in rows], ARROW[kind]) for name, kind in fields],
        names=[name for name, _ in fields],
    )


def messages_of(
    rows: Sequence[Mapping[str, Any]],
    settings: SinkSettings | None = None,
    *,
    body: str = "binary",
    writer: Sequence[str] = ("query", "q-1", "7"),
    partition: int = 0,
    never: Mapping[str, str] | None = None,
) -> list[Message]:
    """The messages of the rows of a task."""
    names = [name for name in COLUMNS if any(name in row for row in rows)]
    fields = fields_of(names, body)
    plan = ColumnPlan(fields, settings or settings_of())
    return RowReader(plan, Identity(writer, partition), never or {}).messages(batch_of(rows, fields))


def decoder_of(protocol: str) -> Asked:
    """The source's decoder."""
    return Asked(_BATCHES[protocol])


def as_raw(message: Message, broker: str, protocol: str, tag: int = 1) -> Any:
    """A message as it was written, taken in by the source's side as if a broker had handed it on unchanged."""
    if protocol == AMQP_0_9_1:
        where = b"".join(bytes((len(name.encode()),)) + name.encode() for name in ("", message.destination.name))
        return tag, False, properties_of(message), message.body, where
    if protocol == AMQP_1_0:
        return SectionReader(counts_acquirers=False).read(tag, encoded(message, broker))
    return _stomp_raw(message, broker, tag)


def _stomp_raw(message: Message, broker: str, tag: int) -> Any:
    outgoing = bytearray()
    protocol = Protocol12(
        Transport("localhost", parse_urls("stomp://localhost")[0], outgoing), auto_content_length=False
    )
    never = set(dict(message.properties)) & set(StompPublisher.reserved_properties)
    assert not never, never
    protocol.send_frame("SEND", {**frame_headers(message, broker), "destination": "q"}, message.body)
    reader = FrameReader()
    data = bytes(outgoing).replace(b"SEND\n", b"MESSAGE\n", 1)
    ((command, block, body),) = chain(reader.feed(data), reader.quiet())
    assert command == "MESSAGE"
    return tag, block, body, BROKERS[broker].stomp
