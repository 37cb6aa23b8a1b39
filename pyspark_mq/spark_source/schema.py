"""The columns of the source, and the Arrow record batches with the columns that a query uses.

The source's connections decode deliveries into blocks of Arrow columns that already have the query's types. So the
record batches in this module are slices of these blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_mq.errors import SchemaError
from pyspark_mq.sources.connections.block import BlockRows, block_schema

__all__ = ["ALL_COLUMNS", "COLUMNS", "SCHEMA", "BatchBuilder"]


class _Column(NamedTuple):
    """A column of the source.

    Attributes:
        kind: Spark type of the column.
        text: description of the column in Markdown, from which `make docs` writes the table in docs/options.md.
        asked_for: whether the column is present only if a schema names it or `includeMetadata` is set.
    """

    kind: DataType
    text: str
    asked_for: bool = False


COLUMNS: Mapping[str, _Column] = {
    "messageId": _Column(
        StringType(),
        "the ID that `messageIdFrom` chooses, in full. Null if the message has no ID: do not merge by this column "
        "unless all messages have an ID",
    ),
    "body": _Column(BinaryType(), "the payload"),
    "destination": _Column(
        StringType(),
        "the `queue` (or `topic`) that the message was read from. The producer may have published the message to "
        "another destination",
    ),
    "properties": _Column(
        MapType(StringType(), StringType()),
        "the message's headers or application properties as text; an empty map if there are none",
    ),
    "correlationId": _Column(StringType(), "an ID by which producers match replies with requests"),
    "replyTo": _Column(StringType(), "[where to send the reply](request-reply.md)"),
    "contentType": _Column(StringType(), "MIME type of the body, if the producer sets it"),
    "type": _Column(StringType(), "the producer's name for this kind of message"),
    "priority": _Column(IntegerType(), "the priority by which the broker sorts"),
    "timestamp": _Column(TimestampType(), "when the message was created; null if absent or out of range"),
    "expiration": _Column(
        TimestampType(),
        "when the message expires; null if the message has no expiration. A time to live that is set on the queue or "
        "by a policy does not appear here",
    ),
    "redelivered": _Column(
        BooleanType(),
        "the broker's flag that this delivery is a redelivery. Brokers sometimes omit the flag; the source does "
        "not need it to recognise messages that have an ID",
    ),
    "deliveryCount": _Column(
        IntegerType(),
        "1 at the first delivery; null if the broker does not count deliveries, or if the count exceeds 2147483647",
    ),
    "routingKey": _Column(StringType(), "the routing key that the message was published with", asked_for=True),
    "exchange": _Column(
        StringType(), "the exchange that the message was published to; empty for the default exchange", asked_for=True
    ),
    "userId": _Column(
        StringType(), "the user that published the message, if the broker checks or sets this property", asked_for=True
    ),
    "appId": _Column(StringType(), "the name that the publishing application gives itself", asked_for=True),
    "contentEncoding": _Column(
        StringType(), "how the body is encoded, for example `gzip`; it is not decoded", asked_for=True
    ),
    "persistent": _Column(BooleanType(), "whether the message should survive a broker restart", asked_for=True),
    "groupId": _Column(StringType(), "the group of messages that the message belongs to", asked_for=True),
    "groupSequence": _Column(LongType(), "the message's number within its group", asked_for=True),
}

#: All columns, in the documented order.
ALL_COLUMNS = StructType([StructField(name, column.kind) for name, column in COLUMNS.items()])

#: Columns of a query without a schema.
SCHEMA = StructType([field for field in ALL_COLUMNS if not COLUMNS[field.name].asked_for])

_ARROW: Mapping[type[DataType], pa.DataType] = {
    StringType: pa.string(), BinaryType: pa.binary(), BooleanType: pa.bool_(), IntegerType: pa.int32(),
    LongType: pa.int64(), TimestampType: pa.timestamp("us", tz="UTC"),
}  # fmt: skip


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, MapType):
        # Spark compares the types of record batches down to the nullability of map values.
        return pa.map_(pa.string(), pa.field("value", pa.string(), nullable=kind.valueContainsNull))
    return _ARROW[type(kind)]


class BatchBuilder:
    """Builds record batches with exactly the columns of a query.

    Args:
        schema: the query's schema: all columns or a subset, in any order.

    Raises:
        SchemaError: the schema names a column or a type that the source does not have.
    """

    def __init__(self, schema: StructType) -> None:
        for field in schema.fields:
            _check(field)
        if not schema.fields:
            raise SchemaError(f"the schema is empty; choose from {', '.join(COLUMNS)}")
        self._schema = pa.schema(
            [pa.field(f.name, _arrow_type(f.dataType), nullable=f.nullable) for f in schema.fields]
        )

    @property
    def block_schema(self) -> pa.Schema:
        """The Arrow columns that blocks must have, so that record batches can be built from them."""
        return block_schema(self._schema)

    def build(self, rows: BlockRows, destination: str) -> Iterator[pa.RecordBatch]:
        """Yield record batches with these deliveries, in order.

        Args:
            rows: rows of blocks that have at least the columns of :attr:`block_schema`.
            destination: value of the column `destination`.
        """
        for batch in rows.batches():
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(destination), batch.num_rows)
                    if field.name == "destination"
                    else batch.column(field.name)
                    for field in self._schema
                ],
                schema=self._schema,
            )

    def serialize(self, batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
        """Return the batches as an Arrow stream."""
        # Measure the size first. A stream of unknown size doubles its memory and copies its content whenever it is
        # full.
        counted = pa.MockOutputStream()
        self.write(batches, counted)
        stream = pa.allocate_buffer(counted.size())
        with pa.FixedSizeBufferWriter(stream) as sink:
            self.write(batches, sink)
        return stream

    def write(self, batches: Iterable[pa.RecordBatch], sink: pa.NativeFile) -> None:
        """Write the batches into `sink` as an Arrow stream."""
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for batch in batches:
                writer.write_batch(batch)


def _check(field: StructField) -> None:
    known = COLUMNS.get(field.name)
    if known is None:
        near = {name.lower(): name for name in COLUMNS}.get(field.name.lower())
        hint = f"; did you mean '{near}'?" if near else f"; the columns are {', '.join(COLUMNS)}"
        raise SchemaError(f"the schema names column '{field.name}', which the source does not have{hint}")
    expected = known.kind
    if type(field.dataType) is not type(expected) or (
        isinstance(field.dataType, MapType)
        and (field.dataType.keyType, field.dataType.valueType) != (StringType(), StringType())
    ):
        raise SchemaError(
            f"the schema gives column '{field.name}' type {field.dataType.simpleString()}, but its type is "
            f"{expected.simpleString()}; cast it after load()"
        )
