"""Any position survives Spark's offset log; no edit of an offset does."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.position import Position, shortened
from pyspark_mq.spark_source.id_log import IdLog
from pyspark_mq.spark_source.offset import OffsetCodec

#: The same examples in every run, whatever the speed of the machine.
DETERMINISTIC = settings(derandomize=True, deadline=None)

#: Also lone surrogates: a name may hold anything that a string can.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)
FILES = st.just("") | st.builds(
    lambda token, epoch, digest: f"{token:08x}-{epoch:012d}-{digest:032x}.json",
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**53),
    st.integers(0, 2**128 - 1),
)
POSITIONS = st.builds(
    Position,
    epoch=st.integers(min_value=0, max_value=2**53),
    file=FILES,
    broker_id=ANY_TEXT.map(shortened),
    released=st.booleans(),
)
CODECS = st.builds(
    lambda broker, source, ids, queue: OffsetCodec(broker, source, ids, queue, IdLog("/ids", queue)),
    st.sampled_from(["rabbitmq", "activemq", "artemis"]),
    ANY_TEXT,
    ANY_TEXT,
    ANY_TEXT,
)
#: So few that two of them are often alike.
FEW_CODECS = st.builds(
    lambda broker, source, ids: OffsetCodec(broker, source, ids, "queue 'a'", IdLog("/ids", "queue 'a'")),
    st.sampled_from(["rabbitmq", "rabbitmq", "artemis"]),
    st.sampled_from(["queue 'a'", "queue 'a'", "queue 'b'", "queue 'a" + 200 * "x", "queue 'a" + 200 * "y"]),
    st.sampled_from(["message-id", "content", ""]),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(ANY_TEXT, some, max_size=3),
    max_leaves=5,
)
FIELDS = ["v", "broker", "source", "ids", "identity", "epoch", "file", "crc"]
#: Whatever is read, and whatever a name holds.
CHARACTERS_MAX = 400


def copies_of(position: Position) -> st.SearchStrategy[Position]:
    return st.builds(dataclasses.replace, st.just(position))


def spark(offset: dict[str, Any]) -> Any:
    return json.loads(json.dumps(offset))


@DETERMINISTIC
@given(CODECS, POSITIONS)
def test_any_position_comes_back_from_its_offset_which_is_short(codec: OffsetCodec, position: Position) -> None:
    offset = codec.encode(position)
    assert codec.decode(spark(offset)) == position
    assert len(json.dumps(offset)) < CHARACTERS_MAX


@DETERMINISTIC
@given(CODECS, POSITIONS)
def test_an_offset_is_the_same_text_after_any_number_of_rounds(codec: OffsetCodec, position: Position) -> None:
    offset = codec.encode(position)
    assert [name for name in offset if name != "released"] == FIELDS
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
    offset = spark(codec.encode(position))
    assume(offset.get(name) is not value)
    with pytest.raises(CheckpointError):
        codec.decode({**offset, name: value})


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
