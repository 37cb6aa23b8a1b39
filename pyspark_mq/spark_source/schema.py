"""The columns of the source, and the Arrow record batches with the columns that a query uses.

The source's connections decode deliveries into blocks of Arrow columns that already have the query's types. So the
record batches in this module are slices of these blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

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

from pyspark_mq.decode.columns import COLUMNS, QUEUES, STREAMS, TIMESTAMP
from pyspark_mq.errors import SchemaError
from pyspark_mq.sources.connections.block import BlockRows, block_schema

__all__ = ["ALL_COLUMNS", "SCHEMA", "BatchBuilder", "stream_schema"]

#: Arrow type of a column -> Spark type.
_SPARK: Mapping[pa.DataType, DataType] = {
    pa.string(): StringType(), pa.binary(): BinaryType(), pa.bool_(): BooleanType(), pa.int32(): IntegerType(),
    pa.int64(): LongType(), TIMESTAMP: TimestampType(),
    pa.map_(pa.string(), pa.string()): MapType(StringType(), StringType()),
}  # fmt: skip


def _columns(where: str, *, asked_for: bool) -> StructType:
    """Return the columns of queues or of streams, in the documented order.

    Args:
        where: `QUEUES` or `STREAMS`.
        asked_for: whether to include columns that are present only if a query asks for them.
    """
    return StructType(
        [
            StructField(name, _SPARK[column.kind])
            for name, column in COLUMNS.items()
            if where in column.where and (asked_for or not column.asked_for)
        ]
    )


#: All columns of queues.
ALL_COLUMNS = _columns(QUEUES, asked_for=True)
#: Columns of a query without a schema.
SCHEMA = _columns(QUEUES, asked_for=False)


def stream_schema(*, include_metadata: bool) -> StructType:
    """Return the columns of a query of streams without a schema."""
    return _columns(STREAMS, asked_for=include_metadata)


def _arrow_type(field: StructField) -> pa.DataType:
    kind = field.dataType
    if isinstance(kind, MapType):
        # Spark compares the types of record batches down to the nullability of map values.
        return pa.map_(pa.string(), pa.field("value", pa.string(), nullable=kind.valueContainsNull))
    return COLUMNS[field.name].kind


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
            raise SchemaError(f"the schema is empty; choose from {', '.join(ALL_COLUMNS.names)}")
        self._schema = pa.schema(
            [pa.field(field.name, _arrow_type(field), nullable=field.nullable) for field in schema.fields]
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
    if field.name not in ALL_COLUMNS.names:
        near = {name.lower(): name for name in ALL_COLUMNS.names}.get(field.name.lower())
        hint = f"; did you mean '{near}'?" if near else f"; the columns are {', '.join(ALL_COLUMNS.names)}"
        raise SchemaError(f"the schema names column '{field.name}', which the source does not have{hint}")
    expected = ALL_COLUMNS[field.name].dataType
    if type(field.dataType) is not type(expected) or (
        isinstance(field.dataType, MapType)
        and (field.dataType.keyType, field.dataType.valueType) != (StringType(), StringType())
    ):
        raise SchemaError(
            f"the schema gives column '{field.name}' type {field.dataType.simpleString()}, but its type is "
            f"{expected.simpleString()}; cast it after load()"
        )
