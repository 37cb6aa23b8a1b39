"""Any position survives Spark's offset log; no edit of an offset does."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyspark_mq.dedup import encode_ids
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import Part, Position
from pyspark_mq.spark_source.offset import OffsetCodec

#: The same examples in every run, whatever the speed of the machine.
DETERMINISTIC = settings(derandomize=True, deadline=None)

#: Also lone surrogates: a name may hold anything that a string can.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)
ID_LISTS = st.lists(st.uuids().map(str) | st.text(max_size=20) | st.binary(min_size=20, max_size=20), max_size=8)
ENCODED = ID_LISTS.map(encode_ids)

ENDS = st.lists(st.none() | st.integers(min_value=0, max_value=2**40), max_size=4).map(tuple)
PARTS = st.builds(
    # Ends are written where there is one.
    lambda planned, carried, until_s: Part(planned, carried, ends if any(ends := until_s[: len(carried)]) else ()),
    ENCODED,
    st.lists(ENCODED, max_size=4).map(tuple),
    ENDS,
)
#: Of the one queue of the codecs here, which has no name.
POSITIONS = st.builds(
    Position,
    epoch=st.integers(min_value=0, max_value=2**63),
    parts=PARTS.map(lambda part: {} if part == Part() else {"": part}),
    broker_id=ANY_TEXT,
    released=st.booleans(),
)
CODECS = st.builds(OffsetCodec, broker=ANY_TEXT, source=ANY_TEXT, ids=ANY_TEXT, destination=ANY_TEXT)
#: So few that two of them are often alike.
FEW_CODECS = st.builds(
    OffsetCodec,
    broker=st.sampled_from(["rabbitmq", "rabbitmq", "artemis"]),
    source=st.sampled_from(["queue 'a'", "queue 'a'", "queue 'b'"]),
    ids=st.sampled_from(["message-id", "body-hash", ""]),
    destination=st.just("queue 'a'"),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(ANY_TEXT, some, max_size=3),
    max_leaves=5,
)
FIELDS = ["v", "broker", "source", "ids", "identity", "epoch", "planned", "carried", "crc"]


def copies_of(position: Position) -> st.SearchStrategy[Position]:
    return st.builds(dataclasses.replace, st.just(position))


def spark(offset: dict[str, Any]) -> Any:
    return json.loads(json.dumps(offset))


@DETERMINISTIC
@given(CODECS, POSITIONS)
def test_any_position_comes_back_from_its_offset(codec: OffsetCodec, position: Position) -> None:
    assert codec.decode(spark(codec.encode(position))) == position


@DETERMINISTIC
@given(CODECS, POSITIONS)
def test_an_offset_is_the_same_text_after_any_number_of_rounds(codec: OffsetCodec, position: Position) -> None:
    offset = codec.encode(position)
    assert [name for name in offset if name not in {"until", "released"}] == FIELDS
    assert json.dumps(spark(offset)) == json.dumps(offset)
    assert json.dumps(codec.encode(codec.decode(spark(offset)))) == json.dumps(offset)


@DETERMINISTIC
@given(CODECS, POSITIONS.flatmap(lambda one: st.tuples(st.just(one), copies_of(one) | POSITIONS)))
def test_two_positions_are_equal_if_and_only_if_their_offsets_are(
    codec: OffsetCodec, positions: tuple[Position, Position]
) -> None:
    one, two = positions
    assert (json.dumps(codec.encode(one)) == json.dumps(codec.encode(two))) == (one == two)


@DETERMINISTIC
@given(CODECS, POSITIONS, st.sampled_from(FIELDS), JSON_VALUES)
def test_a_field_with_any_other_value_is_refused(
    codec: OffsetCodec, position: Position, name: str, value: object
) -> None:
    offset = spark(codec.encode(position))
    assume(json.dumps(value) != json.dumps(offset[name]))
    with pytest.raises(CheckpointError):
        codec.decode({**offset, name: value})


@DETERMINISTIC
@given(CODECS, POSITIONS, st.sampled_from(FIELDS))
def test_an_offset_without_one_of_its_fields_is_refused(codec: OffsetCodec, position: Position, name: str) -> None:
    offset = spark(codec.encode(position))
    del offset[name]
    with pytest.raises(CheckpointError):
        codec.decode(offset)


@DETERMINISTIC
@given(CODECS, POSITIONS, ANY_TEXT.filter(lambda name: name not in FIELDS), JSON_VALUES)
def test_an_offset_with_a_further_field_is_refused(
    codec: OffsetCodec, position: Position, name: str, value: object
) -> None:
    with pytest.raises(CheckpointError):
        codec.decode({**spark(codec.encode(position)), name: value})


@DETERMINISTIC
@given(FEW_CODECS, FEW_CODECS, POSITIONS)
def test_only_the_same_source_with_the_same_or_no_ids_reads_an_offset(
    writer: OffsetCodec, reader: OffsetCodec, position: Position
) -> None:
    offset = spark(writer.encode(position))
    same = (writer.broker, writer.source) == (reader.broker, reader.source)
    if same and ("" in {writer.ids, reader.ids} or writer.ids == reader.ids):
        assert reader.decode(offset) == position
    else:
        with pytest.raises(CheckpointError):
            reader.decode(offset)


@DETERMINISTIC
@given(JSON_VALUES)
def test_anything_else_is_refused(offset: object) -> None:
    codec = OffsetCodec("rabbitmq", "queue 'q'", "message-id", "queue 'q'")
    with pytest.raises(CheckpointError):
        codec.decode(offset)
