"""Chunks: what a receiver process hands over says the same as the deliveries it was made of."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_mq.dedup import IdSource
from pyspark_mq.errors import InternalError
from pyspark_mq.sources.connections.block import Chunk, ChunkDecoder, encode
from pyspark_mq.sources.connections.decoder import Decoder
from pyspark_mq.sources.connections.processes.memory import open_chunk, write_file
from pyspark_mq.spark_source.schema import SCHEMA, BatchBuilder
from tests.unit.test_decoder_parity import SAMPLES, SOURCES, UNREADABLE, Sample, amqp091

ALL = SCHEMA.fieldNames()
BODY_HASH = IdSource("body-hash")
MESSAGE_ID = IdSource("message-id")
DECODER = ChunkDecoder()
EVERYTHING = {**SAMPLES, **{f"unreadable {name}": sample for name, sample in UNREADABLE.items()}}

every_sample = pytest.mark.parametrize("sample", EVERYTHING.values(), ids=list(EVERYTHING))


def handed_over(
    sample: Sample, source: IdSource = MESSAGE_ID, names: Sequence[str] = ALL, *, in_file: bool = False
) -> list[Any]:
    """The same deliveries as the source process gets them."""
    message, books = encode(sample.decoder, sample.raws, source, names)
    if in_file:
        chunk = open_chunk(books, write_file([memoryview(message)]), names)
    else:
        inline = b"".join((memoryview(message), books, message.size.to_bytes(8, "little")))
        chunk = open_chunk(inline, None, names)
    return list(chunk.raws)


def built(decoder: Decoder, raws: Sequence[Any]) -> Any:
    return BatchBuilder(SCHEMA).build(raws, decoder, "orders", lambda raws: ["id"] * len(raws))


def assert_same(decoder: Decoder, raws: Sequence[Any], chunked: Sequence[Any], source: IdSource) -> None:
    assert DECODER.tags(chunked) == decoder.tags(raws)
    assert DECODER.bodies(chunked) == decoder.bodies(raws)
    assert DECODER.sizes(chunked) == decoder.sizes(raws) == list(map(len, decoder.bodies(raws)))
    if source != BODY_HASH:
        assert DECODER.ids(chunked, source) == decoder.ids(raws, source)
    if source == MESSAGE_ID:
        assert DECODER.hidden(chunked) == decoder.hidden(raws)
    assert DECODER.unreadable(chunked) == decoder.unreadable(raws)
    for name, make in decoder.columns.items():
        assert DECODER.columns[name](chunked) == make(raws)
    assert built(DECODER, chunked).equals(built(decoder, raws))


@every_sample
@pytest.mark.parametrize("source", [*SOURCES, BODY_HASH], ids=str)
@pytest.mark.parametrize("in_file", [False, True], ids=["inline", "file"])
def test_a_chunk_says_what_the_deliveries_say(sample: Sample, source: IdSource, in_file: bool) -> None:
    assert_same(sample.decoder, sample.raws, handed_over(sample, source, in_file=in_file), source)


@every_sample
@settings(deadline=None)
@given(data=st.data())
def test_any_rows_of_any_chunks_in_any_order_say_what_their_deliveries_say(sample: Sample, data: st.DataObject) -> None:
    chunked = [*handed_over(sample), *handed_over(sample)]
    raws = [*sample.raws, *sample.raws]
    places = data.draw(st.lists(st.integers(0, len(raws) - 1), max_size=12))
    some, same = [chunked[at] for at in places], [raws[at] for at in places]
    assert_same(sample.decoder, same, some, MESSAGE_ID)
    compact = DECODER.compact(some)
    assert_same(sample.decoder, same, compact, MESSAGE_ID)
    assert len({id(chunk) for chunk, _ in compact}) <= 1


@every_sample
def test_no_deliveries_have_all_columns_too(sample: Sample) -> None:
    assert built(DECODER, []).equals(built(sample.decoder, []))


def test_a_column_that_nobody_asked_for_is_not_made() -> None:
    chunked = handed_over(SAMPLES["amqp-0-9-1"], names=["messageId", "body", "type"])
    ((chunk, _), *_) = chunked
    # The timestamp is: a bounded run may end by it.
    assert chunk.batch.schema.names == ["body", "type", "timestamp"]
    with pytest.raises(InternalError, match="'properties'"):
        DECODER.columns["properties"](chunked)


def mappings() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text("utf-8").count("memfd:pyspark-mq")


LARGE = Sample(
    SAMPLES["amqp-0-9-1"].decoder, [amqp091(tag, b"x" * 1_000, message_id=str(tag)) for tag in range(1, 2_000)]
)


def test_a_chunk_is_read_where_it_is_and_goes_with_its_last_row() -> None:
    before = mappings()
    chunked = handed_over(LARGE, in_file=True)
    assert mappings() == before + 1
    last = chunked[-1]
    del chunked
    assert mappings() == before + 1
    assert DECODER.bodies([last]) == [b"x" * 1_000]
    del last
    assert mappings() == before


def test_what_is_made_of_a_chunk_does_not_keep_it() -> None:
    before = mappings()
    chunked = handed_over(LARGE, in_file=True)
    few = DECODER.compact(chunked[5:7])
    columns = built(DECODER, chunked)
    del chunked
    assert columns.num_rows == 1_999
    del columns
    assert mappings() == before
    assert DECODER.tags(few) == [6, 7]
    assert DECODER.bodies(few) == [b"x" * 1_000] * 2


def test_no_file_is_left_open() -> None:
    files = Path("/proc/self/fd")
    before = len(list(files.iterdir()))
    kept = [handed_over(LARGE, in_file=True) for _ in range(5)]
    assert len(list(files.iterdir())) == before
    assert len(kept) == mappings() == 5


def test_a_chunk_has_as_many_rows_as_deliveries() -> None:
    ((chunk, _), *_) = handed_over(LARGE)
    assert isinstance(chunk, Chunk)
    assert len(chunk) == 1_999
