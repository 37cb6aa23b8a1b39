"""Offsets: what is in them, and which ones are refused."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from pyspark_mq.errors import START_ANEW, CheckpointError
from pyspark_mq.sources.position import Position
from pyspark_mq.spark_source.offset import VERSION, OffsetCodec
from pyspark_mq.spark_source.options import parse_options

FILE = "0123abcd-000000000042-0123456789abcdef0123456789abcdef.json"
POSITION = Position(42, FILE, "rabbit@node-1")
GIVEN = {"broker": "rabbitmq", "url": "amqp://joe:hushhush@broker.example:5673/sales"}


def codec(**options: str) -> OffsetCodec:
    given = dict(GIVEN)
    if "topic" not in options:
        given["queue"] = "orders"
    parsed = parse_options({"idLog": "/ids", **given, **options})
    return OffsetCodec.of(parsed.settings, parsed.id_log)


def spark(offset: dict[str, Any]) -> Any:
    """Through Spark's offset log and back."""
    return json.loads(json.dumps(offset))


def sealed(offset: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Changed by somebody who knows the checksum."""
    body = {name: value for name, value in {**offset, **changes}.items() if name != "crc"}
    return {**body, "crc": zlib.crc32(json.dumps(body, sort_keys=True).encode())}


def refusal(reader: OffsetCodec, offset: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        reader.decode(offset)
    return str(caught.value)


# -- what is in them --------------------------------------------------------------------------


def test_a_position_comes_back_from_its_offset() -> None:
    assert codec().decode(spark(codec().encode(POSITION))) == POSITION


def test_the_first_position_comes_back_from_its_offset() -> None:
    assert codec().decode(spark(codec().encode(Position(0)))) == Position(0)


def test_the_fields_are_in_a_fixed_order() -> None:
    # Spark compares offsets as text: another order would be another offset.
    fields = ["v", "broker", "source", "ids", "identity", "epoch", "file", "crc"]
    assert list(codec().encode(POSITION)) == fields
    assert list(codec().encode(Position(0))) == fields


def test_equal_positions_have_equal_texts() -> None:
    again = Position(42, FILE, POSITION.broker_id)
    assert json.dumps(codec().encode(POSITION)) == json.dumps(codec().encode(again))


def test_different_positions_have_different_texts() -> None:
    positions = [
        POSITION,
        Position(42),
        Position(43),
        Position(42, FILE),
        Position(42, broker_id="x"),
    ]
    assert len({json.dumps(codec().encode(position)) for position in positions}) == len(positions)


def test_the_offset_says_what_is_read() -> None:
    offset = codec(messageIdFrom="property:key").encode(POSITION)
    assert offset["v"] == VERSION
    assert offset["broker"] == "rabbitmq"
    assert offset["source"] == "queue 'orders' in virtual host 'sales'"
    assert offset["ids"] == "property:key"
    assert (offset["epoch"], offset["identity"]) == (42, "rabbit@node-1")


def test_the_offset_of_a_topic_names_the_subscription() -> None:
    offset = codec(topic="news", subscription="s1").encode(POSITION)
    assert offset["source"] == "topic 'news' (subscription 's1') in virtual host 'sales'"


@pytest.mark.parametrize("guarantee", ["at-least-once", "none"])
def test_an_offset_without_ids_has_no_source_of_ids(guarantee: str) -> None:
    assert codec(guarantee=guarantee).encode(Position(1))["ids"] == ""


def test_neither_user_nor_password_nor_host_is_in_the_offset() -> None:
    text = json.dumps(codec(username="jane", password="quietquiet").encode(POSITION))
    for secret in ["joe", "jane", "hushhush", "quietquiet", "example", "5673", "amqp"]:
        assert secret not in text


def test_a_broker_may_move() -> None:
    offset = spark(codec().encode(POSITION))
    assert codec(url="amqps://other:pw@elsewhere/sales").decode(offset) == POSITION


def test_the_order_of_the_fields_does_not_matter_when_read() -> None:
    offset = spark(codec().encode(POSITION))
    assert codec().decode(dict(reversed(offset.items()))) == POSITION


# -- another source ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "invoices"},
        {"queue": "Orders"},
        {"topic": "orders", "subscription": "s1"},
        {"url": "amqp://broker.example/test"},
        {"url": "amqp://broker.example/"},
        {"url": "amqp://broker.example/%2Fsales"},
    ],
)
def test_the_offset_of_another_queue_or_virtual_host_is_refused(options: dict[str, str]) -> None:
    other = codec(**options)
    text = refusal(other, spark(codec().encode(POSITION)))
    assert "queue 'orders' in virtual host 'sales' on broker 'rabbitmq'" in text
    assert f"now reads {other.source} on broker 'rabbitmq'" in text
    assert "checkpointLocation" in text


def test_the_offset_of_another_subscription_is_refused() -> None:
    offset = spark(codec(topic="news", subscription="s1").encode(POSITION))
    text = refusal(codec(topic="news", subscription="s2"), offset)
    assert "(subscription 's1')" in text
    assert "(subscription 's2')" in text


def test_the_offset_of_another_kind_of_broker_is_refused() -> None:
    here = codec()
    offset = OffsetCodec("artemis", here.source, here.ids, here.destination).encode(POSITION)
    text = refusal(here, spark(offset))
    assert "on broker 'artemis'" in text
    assert "on broker 'rabbitmq'" in text


@pytest.mark.parametrize("other", ["correlation-id", "property:key", "property:message-id", "content"])
def test_ids_from_elsewhere_are_refused(other: str) -> None:
    text = refusal(codec(messageIdFrom=other), spark(codec().encode(POSITION)))
    assert "queue 'orders'" in text
    assert "messageIdFrom='message-id'" in text
    assert f"now give '{other}'" in text
    refusal(codec(), spark(codec(messageIdFrom=other).encode(POSITION)))


@pytest.mark.parametrize("before", ["exactly-once", "at-least-once", "none"])
@pytest.mark.parametrize("after", ["exactly-once", "at-least-once", "none"])
def test_the_guarantee_may_change(before: str, after: str) -> None:
    offset = spark(codec(guarantee=before).encode(POSITION))
    assert codec(guarantee=after).decode(offset) == POSITION


def test_without_ids_their_source_may_change() -> None:
    offset = spark(codec(guarantee="at-least-once", messageIdFrom="property:a").encode(POSITION))
    assert codec(messageIdFrom="property:b").decode(offset) == POSITION
    offset = spark(codec(messageIdFrom="property:a").encode(POSITION))
    assert codec(guarantee="none", messageIdFrom="property:b").decode(offset) == POSITION


# -- broken -----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [None, "", "{}", 7, True, [], {}, [("v", 1)], {"offset": 3}, {"V": 1}])
def test_something_else_than_an_offset_is_refused(offset: object) -> None:
    text = refusal(codec(), offset)
    assert "queue 'orders'" in text
    assert "was written by a source of another format" in text


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_the_offset_of_another_version_is_for_the_pyspark_mq_that_wrote_it(version: int) -> None:
    text = refusal(codec(), {"v": version, "something": "else"})
    assert f"offsets in format version {version}" in text
    assert f"reads only format version {VERSION}" in text
    assert "Use the version of pyspark-mq that wrote the offsets, or start with a new checkpointLocation" in text


@pytest.mark.parametrize("version", [0, -1, 0.5, "1", "2", None, [], 1.5])
def test_a_version_that_never_was_is_refused(version: object) -> None:
    refusal(codec(), {**spark(codec().encode(POSITION)), "v": version})


@pytest.mark.parametrize("name", ["broker", "source", "ids", "identity", "epoch", "file", "crc"])
def test_a_missing_field_is_named(name: str) -> None:
    offset = spark(codec().encode(POSITION))
    del offset[name]
    assert f"field '{name}' has the invalid value None" in refusal(codec(), offset)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker", 1),
        ("source", None),
        ("ids", ["message-id"]),
        ("identity", None),
        ("epoch", "42"),
        ("epoch", 42.0),
        ("epoch", None),
        ("file", None),
        ("file", ["a"]),
    ],
)
def test_a_field_of_another_type_is_named_even_with_its_checksum(name: str, value: object) -> None:
    offset = sealed(spark(codec().encode(POSITION)), **{name: value})
    assert f"field '{name}' has the invalid value {value!r}" in refusal(codec(), offset)


@pytest.mark.parametrize(
    ("name", "value"),
    [("crc", "1"), ("crc", None), ("crc", 1.5)],
)
def test_a_checksum_of_another_type_is_named(name: str, value: object) -> None:
    offset = {**spark(codec().encode(POSITION)), name: value}
    assert f"field '{name}' has the invalid value {value!r}" in refusal(codec(), offset)


def test_a_long_field_of_another_type_is_shown_in_part() -> None:
    offset = {**spark(codec().encode(POSITION)), "file": ["x" * 10_000]}
    assert len(refusal(codec(), offset)) < 500


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker", "artemis"),
        ("source", "queue 'invoices' in virtual host 'sales'"),
        ("ids", ""),
        ("ids", "content"),
        ("identity", ""),
        ("identity", "rabbit@node-2"),
        ("epoch", 41),
        ("epoch", 43),
        ("epoch", -42),
        ("file", ""),
        ("file", FILE.replace("0", "1")),
        ("crc", 0),
        ("more", 1),
    ],
)
def test_an_edited_field_is_noticed(name: str, value: object) -> None:
    offset = {**spark(codec().encode(POSITION)), name: value}
    assert "was changed after it was written" in refusal(codec(), offset)


def test_without_the_place_of_its_files_an_offset_is_refused() -> None:
    offset = spark(codec().encode(POSITION))
    reader = OffsetCodec.of(parse_options({**GIVEN, "queue": "orders"}).settings)
    assert f"in the file '{FILE}', but no option names the folder" in refusal(reader, offset)
    assert codec(guarantee="at-least-once").decode(offset) == POSITION


def test_of_long_names_an_offset_has_the_digests_and_tells_them_apart() -> None:
    names = ["orders-of-a-department-" + 200 * "é" + end for end in "ab"]
    first, second = (codec(broker="artemis", url="amqp://h/", queue=name) for name in names)
    offset = spark(first.encode(POSITION))
    assert len(json.dumps(offset)) < 400
    assert first.decode(offset) == POSITION
    refusal(second, offset)
    # Also where it is one of several, from now on.
    several = codec(broker="artemis", url="amqp://h/", queue=",".join(names))
    assert several.decode(offset) == POSITION


def test_a_refusal_says_what_to_do() -> None:
    text = refusal(codec(), {**spark(codec().encode(POSITION)), "epoch": 1})
    assert text.endswith(f"Restore the checkpoint, or {START_ANEW}")
