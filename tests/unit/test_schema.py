"""Columns: their types are Spark's to the letter, their values what AMQP 0-9-1 delivered.

Deliveries are what is cut out of the bytes that a broker sends; pika writes those.
"""

from __future__ import annotations

import inspect
import json
import random
import re
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pika
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from pyspark_mq.decode.amqp091 import Amqp091Batch, as_text
from pyspark_mq.decode.amqp091_properties import Raw, check
from pyspark_mq.decode.batch import Column
from pyspark_mq.dedup import IdSource, id_keys
from pyspark_mq.errors import SchemaError
from pyspark_mq.sources.connections.block import BlockRows, make_block
from pyspark_mq.spark_source.schema import ALL_COLUMNS, SCHEMA, BatchBuilder
from tests.support import columns
from tests.support.decoding import Asked
from tests.support.memory_broker import MemoryBatch

OPTIONS_PAGE = Path(__file__).parents[2] / "docs" / "options.md"
DECODER = Asked(Amqp091Batch)
NAMES = ["messageId", "body", "destination", "properties", "correlationId", "replyTo", "contentType", "type",
         "priority", "timestamp", "expiration", "redelivered", "deliveryCount"]  # fmt: skip
DDL = (
    "struct<messageId:string,body:binary,destination:string,properties:map<string,string>,"
    "correlationId:string,replyTo:string,contentType:string,type:string,priority:int,"
    "timestamp:timestamp,expiration:timestamp,redelivered:boolean,deliveryCount:int>"
)
METADATA = {
    "routingKey": "string", "exchange": "string", "userId": "string", "appId": "string", "contentEncoding": "string",
    "persistent": "boolean", "groupId": "string", "groupSequence": "bigint",
}  # fmt: skip
#: Encoded, exchange `ex` and routing key `key`.
WHERE = b"\x02ex\x03key"
SECOND = 1_000_000


# -- deliveries -------------------------------------------------------------------------------


def delivery(
    body: bytes = b"",
    *,
    properties: pika.BasicProperties | None = None,
    redelivered: bool = False,
    tag: int = 1,
) -> Raw:
    return tag, redelivered, b"".join((properties or pika.BasicProperties()).encode()), body, WHERE


def encoded(properties: bytes) -> Raw:
    """With properties that pika does not write."""
    raw = (1, False, properties, b"", WHERE)
    assert check([raw]) == []
    return raw


def short(text: bytes) -> bytes:
    return struct.pack(">B", len(text)) + text


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def with_header(kind: bytes, payload: bytes, name: bytes = b"h") -> Raw:
    """With one header of any type of the specification, also of those that pika does not write."""
    table = long(short(name) + kind + payload)
    return encoded(struct.pack(">H", pika.BasicProperties.FLAG_HEADERS) + table)


def column(name: str, *raws: Raw) -> list[Any]:
    return DECODER.columns[name](raws)


def built(schema: StructType, raws: Sequence[Raw], decoder: Asked = DECODER) -> pa.Table:
    return columns.built(BatchBuilder(schema), raws, decoder)


FULL = delivery(
    b"\x00body\xff",
    properties=pika.BasicProperties(
        message_id="id-1",
        headers={"a": "1", "b": None},
        correlation_id="c-1",
        reply_to="answers",
        content_type="text/plain",
        type="order",
        priority=7,
        timestamp=1_700_000_000,
        expiration="60000",
    ),
    redelivered=True,
)
EMPTY = delivery(properties=pika.BasicProperties(message_id="id-2"))


# -- the schema -------------------------------------------------------------------------------


def test_the_columns_are_those_of_the_documentation() -> None:
    assert SCHEMA.simpleString() == DDL
    assert [field.name for field in SCHEMA] == NAMES
    assert all(field.nullable for field in ALL_COLUMNS)
    assert list(ALL_COLUMNS) == [*SCHEMA, *ALL_COLUMNS.fields[len(NAMES) :]]
    assert {field.name: field.dataType.simpleString() for field in ALL_COLUMNS.fields[len(NAMES) :]} == METADATA


def test_the_documentation_has_every_column_with_its_type_and_its_origin() -> None:
    section = OPTIONS_PAGE.read_text("utf-8").partition("\n## Columns\n")[2].partition("\n## ")[0]
    types = re.findall(r"^\| `(\w+)` \| ([\w<>,]+) \|[^|]*\|$", section, re.MULTILINE)
    assert types == [(field.name, field.dataType.simpleString()) for field in ALL_COLUMNS]
    origins = section.partition("\n| column | AMQP 0-9-1 |")[2]
    known_without = ["destination"]  # from the options, not from the message
    assert re.findall(r"^\| `(\w+)` \|", origins, re.MULTILINE) == [
        name for name in ALL_COLUMNS.fieldNames() if name not in known_without
    ]


def arrow_schema_of_spark(schema: StructType) -> pa.Schema:
    """As Spark's worker derives it to compare it with that of the batches, in any version."""
    known = inspect.signature(to_arrow_schema).parameters
    wanted = {"timezone": "UTC", "timestamp_utc": True}
    return to_arrow_schema(schema, **{name: value for name, value in wanted.items() if name in known})


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        StructType(list(reversed(SCHEMA.fields))),
        ALL_COLUMNS,
        *(StructType([field]) for field in ALL_COLUMNS),
        StructType([StructField(field.name, field.dataType, nullable=False) for field in ALL_COLUMNS]),
        StructType([StructField("properties", MapType(StringType(), StringType(), valueContainsNull=False))]),
    ],
    ids=lambda schema: f"{schema.fields[0].name} of {len(schema)}",
)
def test_batches_have_the_schema_that_spark_expects(schema: StructType) -> None:
    raw = delivery(properties=pika.BasicProperties(message_id="i", headers={"a": "b"}))
    assert built(schema, [raw]).schema.equals(arrow_schema_of_spark(schema))


def test_a_batch_has_all_columns() -> None:
    assert built(SCHEMA, [FULL, EMPTY]).to_pylist() == [
        {
            "messageId": "id-1",
            "body": b"\x00body\xff",
            "destination": "orders",
            "properties": [("a", "1"), ("b", None)],
            "correlationId": "c-1",
            "replyTo": "answers",
            "contentType": "text/plain",
            "type": "order",
            "priority": 7,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc),
            "expiration": datetime(2023, 11, 14, 22, 14, 20, tzinfo=timezone.utc),
            "redelivered": True,
            "deliveryCount": None,
        },
        {
            **dict.fromkeys(NAMES),
            "messageId": "id-2",
            "body": b"",
            "destination": "orders",
            "properties": [],
            "redelivered": False,
            "deliveryCount": 1,
        },
    ]


def test_a_batch_of_nothing_has_no_rows() -> None:
    batch = built(SCHEMA, [])
    assert batch.num_rows == 0
    assert batch.schema.names == NAMES


def test_a_batch_has_only_the_columns_asked_for_in_their_order() -> None:
    whole = built(SCHEMA, [FULL, EMPTY])
    generator = random.Random(1)
    for size in range(1, len(NAMES) + 1):
        names = generator.sample(NAMES, size)
        batch = built(StructType([SCHEMA[name] for name in names]), [FULL, EMPTY])
        assert batch.schema.names == names
        assert batch.to_pydict() == {name: whole.column(name).to_pylist() for name in names}


def test_columns_that_nobody_asked_for_are_not_decoded() -> None:
    # The headers of this delivery are no table: looking at them would fail.
    no_table = struct.pack(">H", pika.BasicProperties.FLAG_HEADERS) + long(b"\x05h")
    raw = (1, False, no_table, b"x", b"\0\0")
    schema = StructType([SCHEMA["body"], SCHEMA["priority"]])
    assert built(schema, [raw]).to_pylist() == [{"body": b"x", "priority": None}]
    with pytest.raises(IndexError):
        built(StructType([SCHEMA["properties"]]), [raw])


def test_a_batch_is_the_same_after_its_way_to_the_executor() -> None:
    builder = BatchBuilder(SCHEMA)
    _, block = make_block(Amqp091Batch.of([FULL, EMPTY]), columns.BY_MESSAGE_ID, builder.block_schema)
    (batch,) = builder.build(BlockRows.of(block.rows), "orders")
    with pa.ipc.open_stream(builder.serialize([batch])) as stream:
        (arrived,) = list(stream)
    assert arrived.equals(batch, check_metadata=True)
    assert arrived.schema.equals(batch.schema, check_metadata=True)


def test_an_empty_schema_is_refused_with_the_columns() -> None:
    with pytest.raises(SchemaError, match="the schema is empty") as caught:
        BatchBuilder(StructType([]))
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize(("wrong", "meant"), [("MessageID", "messageId"), ("BODY", "body"), ("replyto", "replyTo")])
def test_a_column_in_other_letters_is_refused_with_the_right_ones(wrong: str, meant: str) -> None:
    with pytest.raises(SchemaError) as caught:
        BatchBuilder(StructType([SCHEMA["type"], StructField(wrong, StringType())]))
    assert f"column '{wrong}', which the source does not have; did you mean '{meant}'?" in str(caught.value)


@pytest.mark.parametrize("name", ["payload", "", "id"])
def test_an_unknown_column_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(SchemaError) as caught:
        BatchBuilder(StructType([StructField(name, StringType())]))
    assert f"column '{name}', which the source does not have; the columns are {', '.join(NAMES)}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "given", "expected"),
    [
        ("messageId", LongType(), "bigint", "string"),
        ("body", StringType(), "string", "binary"),
        ("priority", LongType(), "bigint", "int"),
        ("deliveryCount", DoubleType(), "double", "int"),
        ("timestamp", TimestampNTZType(), "timestamp_ntz", "timestamp"),
        ("timestamp", LongType(), "bigint", "timestamp"),
        ("redelivered", IntegerType(), "int", "boolean"),
        ("properties", StringType(), "string", "map<string,string>"),
        ("properties", MapType(StringType(), BinaryType()), "map<string,binary>", "map<string,string>"),
        ("properties", MapType(IntegerType(), StringType()), "map<int,string>", "map<string,string>"),
        ("properties", ArrayType(StringType()), "array<string>", "map<string,string>"),
        ("type", BooleanType(), "boolean", "string"),
        ("expiration", StructType([]), "struct<>", "timestamp"),
    ],
)
def test_a_column_of_another_type_is_refused_with_its_own(name: str, kind: DataType, given: str, expected: str) -> None:
    with pytest.raises(SchemaError) as caught:
        BatchBuilder(StructType([StructField(name, kind)]))
    assert f"column '{name}' type {given}, but its type is {expected}; cast it after load()" in str(caught.value)


# -- maps and timestamps ----------------------------------------------------------------------


def round_trip(name: str, values: list[Any]) -> list[Any]:
    class Ready(MemoryBatch):
        """Deliveries are values of the one column already."""

        def __init__(self, given: list[Any]) -> None:
            self.given, self.tags = given, np.arange(1, len(given) + 1)

        @classmethod
        def of(cls, items: Sequence[Any]) -> Ready:
            return cls(list(items))

        columns: ClassVar[Mapping[str, Column]] = {
            "timestamp": lambda batch: batch.nothing(),
            "redelivered": lambda batch: [False] * len(batch),
            name: lambda batch: batch.given,
        }

    return [row[name] for row in built(StructType([SCHEMA[name]]), values, Asked(Ready)).to_pylist()]


@pytest.mark.parametrize(
    "maps",
    [
        [],
        [None],
        [[]],
        [None, None, None],
        [[], None, []],
        [[("a", "1")]],
        [[("a", None)], [("b", "")]],
        [None, [("a", "1"), ("b", None), ("é🐇", "\0\n")], [], None, [("", "x")], None],
        [[(str(number), None if number % 3 else "x") for number in range(row)] for row in range(50)],
    ],
    ids=len,
)
def test_maps_keep_their_pairs_null_values_and_nulls(maps: list[Any]) -> None:
    assert round_trip("properties", maps) == maps


def test_timestamps_are_microseconds_since_1970_in_utc() -> None:
    moments = [0, 1, None, 1_700_000_000 * SECOND + 123_456, -1]
    assert round_trip("timestamp", moments) == [
        datetime(1970, 1, 1, tzinfo=timezone.utc),
        datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=timezone.utc),
        None,
        datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=timezone.utc),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc),
    ]


# -- AMQP 0-9-1: headers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        (b"t", b"\x01", "true"),
        (b"t", b"\x00", "false"),
        (b"b", struct.pack(">b", 5), "5"),
        (b"B", struct.pack(">B", 127), "127"),
        (b"s", struct.pack(">h", -300), "-300"),
        (b"u", struct.pack(">H", 60_000), "60000"),
        (b"I", struct.pack(">i", -(2**31)), "-2147483648"),
        (b"i", struct.pack(">I", 2**32 - 1), "4294967295"),
        (b"l", struct.pack(">q", 2**62), "4611686018427387904"),
        (b"L", struct.pack(">q", -(2**63)), "-9223372036854775808"),
        (b"D", struct.pack(">Bi", 2, 314), "3.14"),
        (b"D", struct.pack(">Bi", 0, -7), "-7"),
        (b"S", long("é🐇\n\0".encode()), "é🐇\n\0"),
        (b"S", long(b""), ""),
        (b"S", long(b"a\xff\xfe"), "a\\xff\\xfe"),
        (b"x", long(b"text"), "text"),
        (b"x", long(b"\x00\x80"), "\0\\x80"),
        (b"T", struct.pack(">Q", 1_700_000_000), "2023-11-14T22:13:20+00:00"),
        (b"V", b"", None),
        (b"A", long(b""), "[]"),
        (b"F", long(b""), "{}"),
        (b"A", long(b"t\x01" + b"S" + long(b"a") + b"V" + b"b\x01"), '[true, "a", null, 1]'),
        (b"F", long(short(b"n") + b"F" + long(short(b"m") + b"A" + long(b"V"))), '{"n": {"m": [null]}}'),
        (b"A", long(b"x" + long(b"\xff") + b"S" + long("é".encode())), '["\\\\xff", "é"]'),
        (b"A", long(b"D" + struct.pack(">Bi", 1, 5) + b"T" + struct.pack(">Q", 0)),
         '["0.5", "1970-01-01T00:00:00+00:00"]'),
    ],
)  # fmt: skip
def test_a_header_of_any_type_is_text(kind: bytes, payload: bytes, text: str | None) -> None:
    raw = with_header(kind, payload)
    assert column("properties", raw) == [[("h", text)]]
    assert built(StructType([SCHEMA["properties"]]), [raw]).to_pylist() == [{"properties": [("h", text)]}]


@pytest.mark.parametrize(("kind", "form"), [(b"f", ">f"), (b"d", ">d")])
def test_a_floating_point_header_is_the_text_of_a_number(kind: bytes, form: str) -> None:
    raw = with_header(kind, struct.pack(form, -2.5))
    assert column("properties", raw) == [[("h", "-2.5")]]
    assert DECODER.ids([raw], IdSource("property", "h")) == ["-2.5"]


def test_a_whole_number_in_floating_point_has_the_id_that_pika_gave_it() -> None:
    raw = with_header(b"d", struct.pack(">d", 7.0))
    assert column("properties", raw) == [[("h", "7.0")]]
    assert id_keys(DECODER.ids([raw], IdSource("property", "h"))) == ["7"]


@pytest.mark.parametrize("seconds", [253_402_300_800, 1_700_000_000_000, 2**63, 2**64 - 1])
def test_a_date_beyond_the_year_9999_is_its_number(seconds: int) -> None:
    # Milliseconds, or less, where seconds belong.
    assert column("properties", with_header(b"T", struct.pack(">Q", seconds))) == [[("h", str(seconds))]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (Decimal("1.50"), "1.50"),
        (datetime(2023, 1, 2, 3, 4, 5), "2023-01-02T03:04:05+00:00"),  # noqa: DTZ001 - as pika 1.3 decodes
        (datetime(2023, 1, 2, 3, 4, 5, tzinfo=timezone.utc), "2023-01-02T03:04:05+00:00"),
        (pika.compat.long(2**40), "1099511627776"),
        (
            {"f": 1.5, "l": pika.compat.long(1), "t": True, "n": None},
            '{"f": 1.5, "l": 1, "t": true, "n": null}',
        ),
        ({b"\xff": 1}, '{"\\\\xff": 1}'),
    ],
)
def test_a_value_is_text(value: object, text: str) -> None:
    assert as_text(value) == text


def test_nested_headers_are_json() -> None:
    value = {"a": [1, {"b": "c\n\"'"}, None, True], "d": {}}
    raw = delivery(properties=pika.BasicProperties(headers={"h": value}))
    ((pair,),) = column("properties", raw)
    assert json.loads(pair[1]) == value


def test_header_names_that_are_no_text_are_shown_with_escapes() -> None:
    assert column("properties", with_header(b"V", b"", name=b"\xff\xfe")) == [[("\\xff\\xfe", None)]]
    assert column("properties", with_header(b"V", b"", name=b"")) == [[("", None)]]


def test_headers_keep_their_order() -> None:
    names = [str(number) for number in random.Random(1).sample(range(100), 50)]
    raw = delivery(properties=pika.BasicProperties(headers=dict.fromkeys(names, "x")))
    assert [name for name, _ in column("properties", raw)[0]] == names


def test_no_headers_are_an_empty_map() -> None:
    no_table, empty_table = delivery(), delivery(properties=pika.BasicProperties(headers={}))
    assert column("properties", no_table, empty_table) == [[], []]


# -- AMQP 0-9-1: properties -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("correlationId", pika.BasicProperties.FLAG_CORRELATION_ID),
        ("replyTo", pika.BasicProperties.FLAG_REPLY_TO),
        ("contentType", pika.BasicProperties.FLAG_CONTENT_TYPE),
        ("type", pika.BasicProperties.FLAG_TYPE),
    ],
)
def test_a_property_that_is_no_text_is_shown_with_escapes(name: str, flag: int) -> None:
    assert column(name, encoded(struct.pack(">H", flag) + short(b"a\xff"))) == ["a\\xff"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (IdSource("message-id"), ["m", None, b"\xff"]),
        (IdSource("correlation-id"), ["c", None, None]),
        (IdSource("property", "key"), ["7", None, None]),
        (IdSource("property", "flag"), ["true", None, None]),
        (IdSource("property", "data"), [b"\xfe", None, None]),
        (IdSource("property", "null"), [None, None, None]),
        (IdSource("property", "absent"), [None, None, None]),
        (IdSource("property", "KEY"), [None, None, None]),
    ],
    ids=str,
)
def test_an_id_is_taken_from_where_the_option_says(source: IdSource, found: list[object]) -> None:
    headers = {"key": 7, "flag": True, "data": b"\xfe", "null": None}
    named = pika.BasicProperties(message_id="m", correlation_id="c", headers=headers)
    no_text = encoded(struct.pack(">H", pika.BasicProperties.FLAG_MESSAGE_ID) + short(b"\xff"))
    raws = [delivery(properties=named), delivery(), no_text]
    assert DECODER.ids(raws, source) == found


@pytest.mark.parametrize("priority", [0, 1, 9, 255])
def test_a_priority_is_any_octet(priority: int) -> None:
    raw = delivery(properties=pika.BasicProperties(priority=priority))
    assert built(StructType([SCHEMA["priority"]]), [raw]).to_pylist() == [{"priority": priority}]


def test_bodies_and_tags_are_those_of_the_deliveries() -> None:
    raws = [delivery(b"", tag=1), delivery(b"\0\xff", tag=2), delivery(b"x" * 100_000, tag=2**40)]
    assert DECODER.bodies(raws) == [b"", b"\0\xff", b"x" * 100_000]
    assert DECODER.tags(raws) == [1, 2, 2**40]
    rows = built(StructType([SCHEMA["body"]]), raws).to_pylist()
    assert [row["body"] for row in rows] == [b"", b"\0\xff", b"x" * 100_000]


# -- AMQP 0-9-1: times ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "microseconds"),
    [
        (0, 0),
        (1_700_000_000, 1_700_000_000 * SECOND),
        (1_700_000_000_000, 1_700_000_000_000 * SECOND),  # milliseconds by mistake: far in the future
        (9_223_372_036_854, 9_223_372_036_854 * SECOND),
        (9_223_372_036_855, None),
        (2**63, None),
        (2**64 - 1, None),
    ],
)
def test_a_timestamp_is_in_seconds_and_null_where_it_does_not_fit(seconds: int, microseconds: int | None) -> None:
    raw = delivery(properties=pika.BasicProperties(timestamp=seconds))
    assert column("timestamp", raw) == [microseconds]
    array = built(StructType([SCHEMA["timestamp"]]), [raw]).column(0)
    assert array.cast(pa.int64()).to_pylist() == [microseconds]


@pytest.mark.parametrize(
    ("timestamp", "expiration", "microseconds"),
    [
        (1_700_000_000, "0", 1_700_000_000 * SECOND),
        (1_700_000_000, "1", 1_700_000_000 * SECOND + 1000),
        (1_700_000_000, "60000", 1_700_000_060 * SECOND),
        (1_700_000_000, None, None),
        (1_700_000_000, "", None),
        (1_700_000_000, "soon", None),
        (1_700_000_000, "-1", None),
        (1_700_000_000, "1.5", None),
        (1_700_000_000, "²", None),
        (1_700_000_000, "٣", None),
        (1_700_000_000, "9" * 255, None),
        (None, "60000", None),
        (2**63, "60000", None),
        (9_223_372_036_854, "9999999", None),
        (None, None, None),
    ],
)
def test_an_expiration_is_a_moment_if_the_publisher_said_when_it_began(
    timestamp: int | None, expiration: str | None, microseconds: int | None
) -> None:
    raw = delivery(properties=pika.BasicProperties(timestamp=timestamp, expiration=expiration))
    assert column("expiration", raw) == [microseconds]
    array = built(StructType([SCHEMA["expiration"]]), [raw]).column(0)
    assert array.cast(pa.int64()).to_pylist() == [microseconds]


def test_an_expiration_that_is_no_text_is_null() -> None:
    flags = pika.BasicProperties.FLAG_EXPIRATION | pika.BasicProperties.FLAG_TIMESTAMP
    assert column("expiration", encoded(struct.pack(">H", flags) + short(b"\xff") + struct.pack(">Q", 0))) == [None]


# -- AMQP 0-9-1: redeliveries -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("redelivered", "header", "count"),
    [
        (False, None, 1),
        (True, None, None),  # a classic queue: more than once, nobody knows how often
        (False, 0, 1),
        (True, 1, 2),
        (True, 19, 20),
        (False, 3, 4),
        (False, "3", 1),
        (True, "many", None),
    ],
)
def test_deliveries_are_counted_where_the_queue_does(redelivered: bool, header: object, count: int | None) -> None:
    headers = None if header is None else {"x-delivery-count": header}
    raw = delivery(properties=pika.BasicProperties(headers=headers), redelivered=redelivered)
    schema = StructType([SCHEMA["redelivered"], SCHEMA["deliveryCount"]])
    assert built(schema, [raw]).to_pylist() == [{"redelivered": redelivered, "deliveryCount": count}]
