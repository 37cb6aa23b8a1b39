"""Columns of a write: what is taken and refused before anything is published, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pika
import pyarrow as pa
import pytest

from pyspark_mq.errors import RowError, SchemaError
from pyspark_mq.sink.amqp091_message import content, properties_of, publish_frame
from pyspark_mq.sink.amqp10_message import encoded
from pyspark_mq.sink.columns import COLUMNS, LEFT_OUT, ColumnPlan, RowReader, batches_of_rows
from pyspark_mq.sink.ids import Identity
from pyspark_mq.sink.settings import Destination, Message
from pyspark_mq.sink.stomp import StompPublisher, frame_headers
from pyspark_mq.spark_source.schema import ALL_COLUMNS
from tests.support.sink import fields_of, messages_of, settings_of

CLASSIC = {"broker": "activemq", "protocol": "stomp"}


def refused(*fields: tuple[str, str], **settings: Any) -> str:
    with pytest.raises(SchemaError) as caught:
        ColumnPlan(fields, settings_of(**settings))
    return caught.value.text


def bad_row(*rows: Mapping[str, Any], **how: Any) -> str:
    with pytest.raises(RowError) as caught:
        messages_of(rows, **how)
    return caught.value.text


# -- columns


def test_every_column_of_the_source_is_written_or_left_out() -> None:
    assert {field.name for field in ALL_COLUMNS} <= {*COLUMNS, *LEFT_OUT}
    for field in ALL_COLUMNS:
        if field.name in COLUMNS:
            assert field.dataType.simpleString() in COLUMNS[field.name].kinds


def test_codes_of_columns_are_those_of_ids() -> None:
    assert {name: column.code for name, column in COLUMNS.items() if column.code} == {
        "body": 1, "correlationId": 3, "replyTo": 4, "contentType": 5, "contentEncoding": 6, "type": 7, "priority": 8,
        "timestamp": 9, "appId": 10, "groupId": 11, "groupSequence": 12, "persistent": 13, "properties": 14,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mesageId", "messageId"),
        ("messageid", "messageId"),
        ("correlation_id", "correlationId"),
        ("Body", "body"),
        ("propertys", "properties"),
        ("routing_key", "routingKey"),
        ("ttl", ""),
    ],
)
def test_an_unknown_column_is_refused_with_the_nearest_name(name: str, near: str) -> None:
    text = refused(("body", "string"), (name, "string"))
    assert f"column '{name}', which is not a column of a write" in text
    assert (f"did you mean '{near}'?" in text) == bool(near)
    assert "Columns are messageId, body, " in text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("body", "struct<a:int>"), ("body", "int"), ("messageId", "bigint"), ("priority", "string"),
        ("timestamp", "timestamp_ntz"), ("timestamp", "bigint"), ("expiration", "bigint"), ("persistent", "string"),
        ("properties", "map<string,int>"), ("properties", "struct<a:string>"), ("queue", "int"),
    ],
)  # fmt: skip
def test_another_type_is_refused_with_those_that_are_taken(name: str, kind: str) -> None:
    given = [("body", "string")] if name != "body" else []
    text = refused(*given, (name, kind))
    assert f"column '{name}' has type {kind}, but must be {' or '.join(COLUMNS[name].kinds)}" in text


def test_a_body_is_required_and_named_once() -> None:
    assert "no column 'body'" in refused(("messageId", "string"))
    assert "column 'body' twice" in refused(("body", "string"), ("body", "binary"))


def test_what_sources_say_of_a_delivery_is_left_out() -> None:
    fields = [*fields_of(["body"]), *((name, "string") for name in sorted(LEFT_OUT))]
    assert ColumnPlan(fields, settings_of()).names == ("body",)


# -- destinations


@pytest.mark.parametrize(
    ("settings", "row", "destination"),
    [
        ({"queue": "q"}, {"queue": "other", "exchange": "ex", "routingKey": "k"}, Destination("queue", "q")),
        ({"queue": None}, {"queue": "mine", "exchange": "ex", "routingKey": "k"}, Destination("queue", "mine")),
        ({"queue": None}, {"exchange": "ex", "routingKey": "k"}, Destination("exchange", "ex", "k")),
        ({"queue": None}, {"exchange": "ex"}, Destination("exchange", "ex")),
        ({"queue": None, "exchange": "e"}, {"routingKey": "k"}, Destination("exchange", "e", "k")),
        ({"queue": None, "exchange": "e", "routing_key": "o"}, {"routingKey": "k"}, Destination("exchange", "e", "o")),
        (
            {"queue": None, "routing_key": "o"},
            {"exchange": "ex", "routingKey": "k"},
            Destination("exchange", "ex", "o"),
        ),
        ({"queue": None, "exchange": "e"}, {"routingKey": None}, Destination("exchange", "e")),
        ({"queue": None, "topic": "t", **CLASSIC}, {"queue": "other"}, Destination("topic", "t")),
        ({"queue": None, **CLASSIC}, {"queue": "q", "exchange": "of RabbitMQ"}, Destination("queue", "q")),
    ],
    ids=str,
)
def test_an_option_wins_over_columns(settings: dict[str, Any], row: dict[str, Any], destination: Destination) -> None:
    (message,) = messages_of([{"body": b"", **row}], settings_of(**settings))
    assert message.destination == destination


def test_rows_without_any_destination_are_refused_before_the_first() -> None:
    assert "set option 'queue' or 'exchange'" in refused(("body", "binary"), queue=None)
    text = refused(("body", "binary"), ("exchange", "string"), queue=None, **CLASSIC)
    assert "set option 'queue' or 'topic', or add column 'queue'" in text


@pytest.mark.parametrize("name", ["", None])
def test_a_row_without_its_own_destination_is_an_error(name: str | None) -> None:
    text = bad_row({"body": b"", "queue": "q"}, {"body": b"", "queue": name}, settings=settings_of(queue=None))
    assert f"column 'queue' is {'null' if name is None else 'empty'} in a row" in text


@pytest.mark.parametrize("name", ["a,b", "a.*", "a.>", "a?b=c"])
def test_a_row_names_one_queue_of_classic(name: str) -> None:
    text = bad_row({"body": b"", "queue": name}, settings=settings_of(queue=None, **CLASSIC))
    assert f"a row has '{name}' in column 'queue'" in text
    messages_of([{"body": b"", "queue": name}], settings_of(queue=None))


# -- rows


def test_a_null_body_is_an_error_and_an_empty_one_is_a_message() -> None:
    assert "column 'body' is null" in bad_row({"body": b""}, {"body": None})
    (message,) = messages_of([{"body": b""}])
    assert (message.body, message.is_text, message.persistent) == (b"", False, True)


def test_a_string_is_a_text_message_with_its_bytes_as_they_are() -> None:
    (message,) = messages_of([{"body": "tä"}], body="string")
    assert (message.body, message.is_text) == ("tä".encode(), True)
    plan = ColumnPlan([("body", "string")], settings_of())
    odd = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    batch = pa.RecordBatch.from_arrays([odd], names=["body"])
    (message,) = RowReader(plan, Identity(("w",), 0), {}).messages(batch)
    assert message.body == b"\xff"


def test_a_text_that_is_not_utf_8_is_an_error_that_names_its_column() -> None:
    plan = ColumnPlan([("body", "binary"), ("type", "string")], settings_of())
    odd = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    batch = pa.RecordBatch.from_arrays([pa.array([b""]), odd], names=["body", "type"])
    with pytest.raises(RowError, match="a row has text that is not UTF-8 in column 'type'"):
        RowReader(plan, Identity(("w",), 0), {}).messages(batch)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", -1),
        ("priority", 256),
        ("groupSequence", -1),
        ("timestamp", datetime(1969, 1, 1, tzinfo=timezone.utc)),
    ],
)
def test_a_number_that_no_message_has_is_an_error(name: str, value: Any) -> None:
    assert f" in column '{name}', but only 0 " in bad_row({"body": b"", name: value})


def test_two_contents_of_one_id_are_an_error_and_copies_are_not() -> None:
    row = {"body": b"a", "messageId": "m"}
    assert [message.id for message in messages_of([row, row])] == ["m", "m"]
    assert "messageId 'm' but different contents" in bad_row(row, {"body": b"b", "messageId": "m"})
    two = [{**row, "queue": queue} for queue in ("a", "b")]
    assert len(messages_of(two, settings_of(queue=None))) == 2, "one messageId to two destinations"


@pytest.mark.parametrize("given", [None, ""])
def test_a_row_without_an_id_gets_one(given: str | None) -> None:
    one, other = messages_of([{"body": b"a", "messageId": given}, {"body": b"a", "messageId": "m"}])
    assert (len(one.id), other.id) == (36, "m")


def test_properties_of_brokers_are_left_out_and_those_with_columns_fill_them() -> None:
    entries = [
        ("x-opt-a", "1"), ("_AMQ_GROUP_ID", "1"), ("JMS_AMQP_MA", "1"), ("x-death", "1"), ("x-first-death-queue", "q"),
        ("mq_id", "old"), ("JMSXGroupID", "g"), ("JMSXGroupSeq", "3"), ("JMSXAppID", "app"), ("JMSXDeliveryCount", "1"),
        ("own", "kept"), ("nothing", None),
    ]  # fmt: skip
    (message,) = messages_of([{"body": b"", "properties": entries}])
    assert message.properties == (("own", "kept"), ("nothing", None))
    assert (message.group_id, message.group_sequence, message.app_id) == ("g", 3, "app")
    (message,) = messages_of([{"body": b"", "properties": entries, "groupId": "column"}])
    assert message.group_id == "column"


def test_names_of_the_protocol_in_properties_are_errors() -> None:
    for name in ("destination", "receipt", "transaction", "content-length", "persistent", ""):
        text = bad_row({"body": b"", "properties": [(name, "x")]}, never=StompPublisher.reserved_properties)
        assert f"column 'properties' has the name '{name}'" in text
    assert "map_filter" in bad_row({"body": b"", "properties": [("DD", "x")]}, never={"DD": "which is taken"})


# -- what a protocol cannot carry


@pytest.mark.parametrize("name", ["messageId", "correlationId", "replyTo", "contentType", "type", "appId"])
def test_amqp_091_has_short_strings(name: str) -> None:
    (message,) = messages_of([{"body": b"", name: "ä" * 127}])
    properties_of(message)
    (message,) = messages_of([{"body": b"", name: "ä" * 128}])
    with pytest.raises(RowError, match=f"a row has 256 bytes in column '{name}'"):
        properties_of(message)


def test_amqp_091_is_written_as_its_client_library_writes_it() -> None:
    row = {
        "body": b"x" * 25, "messageId": "täxt", "correlationId": "c", "replyTo": "r", "contentType": "a/b",
        "contentEncoding": "gzip", "type": "t", "priority": 7, "timestamp": datetime(2024, 5, 6, tzinfo=timezone.utc),
        "appId": "app", "groupId": "g", "persistent": False, "properties": [("own", "ü"), ("none", None)],
    }  # fmt: skip
    for sequence, name in ((3, "queue"), (1 << 31, "queue"), (None, "exchange")):
        (message,) = messages_of([{**row, "groupSequence": sequence}])
        destination = Destination(name, "orders", "" if name == "queue" else "a.key")
        headers = {"own": "ü", "none": None, "JMSXGroupID": "g"} | ({"JMSXGroupSeq": sequence} if sequence else {})
        properties = pika.BasicProperties(
            content_type="a/b", content_encoding="gzip", headers=headers, delivery_mode=1, priority=7,
            correlation_id="c", reply_to="r", message_id="täxt", timestamp=1714953600, type="t", app_id="app",
        )  # fmt: skip
        exchange, key = ("", "orders") if name == "queue" else ("orders", "a.key")
        method = pika.spec.Basic.Publish(exchange=exchange, routing_key=key, mandatory=True)
        parts = [pika.frame.Method(3, method), pika.frame.Header(3, 25, properties)]
        parts += [pika.frame.Body(3, b"x" * size) for size in (10, 10, 5)]
        written = publish_frame(destination, 3) + content(message, 3, 10)
        assert written == b"".join(part.marshal() for part in parts)
    (empty,) = messages_of([{"body": b"", "messageId": "i"}])
    header = pika.frame.Header(3, 0, pika.BasicProperties(message_id="i", delivery_mode=2))
    assert content(empty, 3, 10) == header.marshal()


def test_amqp_091_has_one_frame_for_all_headers() -> None:
    (message,) = messages_of([{"body": b"", "properties": [("a", "x" * (121 << 10))]}])
    with pytest.raises(RowError, match=r"a row has 1239\d* bytes in column 'properties'"):
        properties_of(message)
    (message,) = messages_of([{"body": b"", "properties": [("ä" * 128, "x")]}])
    with pytest.raises(RowError, match="a row has 256 bytes in column 'properties'"):
        properties_of(message)


def test_rabbitmq_takes_no_life_of_two_months() -> None:
    (message,) = messages_of([{"body": b"", "expiration": datetime(2200, 1, 1, tzinfo=timezone.utc)}])
    with pytest.raises(RowError, match=r"a row has a time \d+ ms ahead in column 'expiration'"):
        properties_of(message)


def test_amqp_10_has_symbols_and_small_numbers() -> None:
    for row, words in (
        ({"contentType": "tä"}, "a row has 'tä' in column 'contentType'"),
        ({"groupSequence": 1 << 32}, "at most 42949"),
    ):
        (message,) = messages_of([{"body": b"", **row}])
        with pytest.raises(RowError, match=words):
            encoded(message, "artemis")


def test_texts_are_utf_8_where_a_protocol_has_texts() -> None:
    odd = Message(Destination("queue", "q"), "id", b"\xff", is_text=True)
    for encode in (lambda: encoded(odd, "artemis"), lambda: frame_headers(odd, "artemis")):
        with pytest.raises(RowError, match="a row has a string that is not UTF-8 in column 'body'"):
            encode()
    with pytest.raises(RowError, match="a NUL"):
        frame_headers(odd._replace(body=b"a\0b"), "activemq")
    assert frame_headers(odd._replace(is_text=False), "activemq")["content-length"] == "1"


# -- rows one by one, as Spark 4.0 hands them over


def test_rows_are_put_into_batches() -> None:
    fields = [("destination", "string"), ("body", "binary"), ("timestamp", "timestamp")]
    moment = datetime(2024, 1, 1, tzinfo=timezone.utc)
    rows = [("from here", b"%d" % number, moment) for number in range(5)]
    batches = list(batches_of_rows(iter(rows), fields, lambda _, value: value, 2))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert batches[0].schema.names == ["body", "timestamp"]
    assert [value for batch in batches for value in batch.column("body").to_pylist()] == [b"0", b"1", b"2", b"3", b"4"]
    assert list(batches_of_rows(iter(()), fields, lambda _, value: value, 2)) == []
