"""Offsets: what is in them, and which ones are refused."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from pyspark_mq.dedup import encode_ids
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import Part, Position
from pyspark_mq.spark_source.offset import VERSION, OffsetCodec, _crc
from pyspark_mq.spark_source.options import parse_options

PART = Part(
    planned=encode_ids([f"ID:producer-1:1:1:{number}" for number in range(100)]),
    carried=(encode_ids(["a", "b"]), encode_ids(["c"])),
)
POSITION = Position(42, {"orders": PART}, "rabbit@node-1")


def codec(**options: str) -> OffsetCodec:
    given = {"broker": "rabbitmq", "url": "amqp://joe:hushhush@broker.example:5673/sales"}
    if "topic" not in options:
        given["queue"] = "orders"
    return OffsetCodec.of(parse_options({**given, **options}).settings)


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


def test_ends_of_carried_pieces_are_kept_where_there_are_any() -> None:
    position = replace(POSITION, parts={"orders": replace(PART, until_s=(None, 1_800_000_000))})
    offset = codec().encode(position)
    assert offset["until"] == [None, 1_800_000_000]
    assert list(offset)[-2:] == ["until", "crc"]
    assert codec().decode(offset) == position
    assert "until" not in codec().encode(replace(POSITION, parts={"orders": replace(PART, until_s=(None, None))}))


@pytest.mark.parametrize("until", [7, "x", ["x"], [1.5], [True], {}])
def test_an_end_that_is_none_is_refused(until: object) -> None:
    offset = {**codec().encode(POSITION), "until": until}
    del offset["crc"]
    with pytest.raises(CheckpointError, match="until"):
        codec().decode({**offset, "crc": _crc(offset)})


def test_the_fields_are_in_a_fixed_order() -> None:
    # Spark compares offsets as text: another order would be another offset.
    fields = ["v", "broker", "source", "ids", "identity", "epoch", "planned", "carried", "crc"]
    assert list(codec().encode(POSITION)) == fields
    assert list(codec().encode(Position(0))) == fields


def test_equal_positions_have_equal_texts() -> None:
    again = Position(42, {"orders": Part(PART.planned, PART.carried)}, POSITION.broker_id)
    assert json.dumps(codec().encode(POSITION)) == json.dumps(codec().encode(again))


def test_different_positions_have_different_texts() -> None:
    positions = [
        POSITION,
        Position(42),
        Position(43),
        Position(42, {"orders": Part(PART.planned)}),
        Position(42, broker_id="x"),
    ]
    assert len({json.dumps(codec().encode(position)) for position in positions}) == len(positions)


def test_the_offset_says_what_is_read() -> None:
    offset = codec(messageIdFrom="property:key").encode(POSITION)
    assert offset["v"] == 1
    assert offset["broker"] == "rabbitmq"
    assert offset["source"] == "queue 'orders' in virtual host 'sales'"
    assert offset["ids"] == "property:key"
    assert (offset["epoch"], offset["identity"]) == (42, "rabbit@node-1")


def test_the_offset_of_a_topic_names_the_subscription() -> None:
    offset = codec(topic="news", subscription="s1").encode(Position(42, {"news": PART}))
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
    assert "queue 'orders' in virtual host 'sales' of broker 'rabbitmq'" in text
    assert f"now reads {other.source} of broker 'rabbitmq'" in text
    assert "checkpointLocation" in text


def test_the_offset_of_another_subscription_is_refused() -> None:
    offset = spark(codec(topic="news", subscription="s1").encode(Position(42, {"news": PART})))
    text = refusal(codec(topic="news", subscription="s2"), offset)
    assert "(subscription 's1')" in text
    assert "(subscription 's2')" in text


def test_the_offset_of_another_kind_of_broker_is_refused() -> None:
    here = codec()
    offset = OffsetCodec("artemis", here.source, here.ids, here.destination).encode(POSITION)
    text = refusal(here, spark(offset))
    assert "of broker 'artemis'" in text
    assert "of broker 'rabbitmq'" in text


@pytest.mark.parametrize("other", ["correlation-id", "property:key", "property:message-id", "body-hash"])
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
    assert "is not one of this source" in text


def test_the_offset_of_a_newer_version_asks_for_an_upgrade() -> None:
    text = refusal(codec(), {"v": VERSION + 1, "something": "new"})
    assert f"offsets of version {VERSION + 1}" in text
    assert f"reads up to {VERSION}" in text
    assert "Upgrade pyspark-mq" in text


@pytest.mark.parametrize("version", [0, -1, 0.5, "1", "2", None, [], 1.5])
def test_a_version_that_never_was_is_refused(version: object) -> None:
    refusal(codec(), {**spark(codec().encode(POSITION)), "v": version})


@pytest.mark.parametrize("name", ["broker", "source", "ids", "identity", "epoch", "planned", "carried", "crc"])
def test_a_missing_field_is_named(name: str) -> None:
    offset = spark(codec().encode(POSITION))
    del offset[name]
    assert f"field '{name}' is None" in refusal(codec(), offset)


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
        ("planned", None),
        ("planned", ["a"]),
        ("carried", "a"),
        ("carried", {"a": 1}),
        ("carried", None),
    ],
)
def test_a_field_of_another_type_is_named_even_with_its_checksum(name: str, value: object) -> None:
    offset = sealed(spark(codec().encode(POSITION)), **{name: value})
    assert f"field '{name}' is {value!r}" in refusal(codec(), offset)


@pytest.mark.parametrize(
    ("name", "value"),
    [("crc", "1"), ("crc", None), ("crc", 1.5)],
)
def test_a_checksum_of_another_type_is_named(name: str, value: object) -> None:
    offset = {**spark(codec().encode(POSITION)), name: value}
    assert f"field '{name}' is {value!r}" in refusal(codec(), offset)


def test_a_long_field_of_another_type_is_shown_in_part() -> None:
    offset = {**spark(codec().encode(POSITION)), "planned": ["x" * 10_000]}
    assert len(refusal(codec(), offset)) < 500


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker", "artemis"),
        ("source", "queue 'invoices' in virtual host 'sales'"),
        ("ids", ""),
        ("ids", "body-hash"),
        ("identity", ""),
        ("identity", "rabbit@node-2"),
        ("epoch", 41),
        ("epoch", 43),
        ("epoch", -42),
        ("planned", ""),
        ("planned", PART.planned.swapcase()),
        ("carried", []),
        ("carried", list(PART.carried)[::-1]),
        ("carried", [*PART.carried, ""]),
        ("carried", [PART.carried[0]]),
        ("crc", 0),
        ("more", 1),
    ],
)
def test_an_edited_field_is_noticed(name: str, value: object) -> None:
    offset = {**spark(codec().encode(POSITION)), name: value}
    assert "was changed after it was written" in refusal(codec(), offset)


def test_a_truncated_plan_is_noticed_wherever_it_was_cut() -> None:
    offset = spark(codec().encode(POSITION))
    for length in range(len(PART.planned)):
        text = refusal(codec(), {**offset, "planned": PART.planned[:length]})
        assert "was changed after it was written" in text


def test_a_refusal_says_what_to_do() -> None:
    text = refusal(codec(), {**spark(codec().encode(POSITION)), "epoch": 1})
    assert text.endswith("Restore the checkpoint, or start with a new checkpointLocation")
