"""Blocks: rows say the same as the deliveries they were made of, also when they have come from another process."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from pyspark_mq.decode.batch import ROW_BYTES
from pyspark_mq.dedup import IdSource, Key, OnMissing, id_keys
from pyspark_mq.sources.connections.block import (
    Block,
    BlockRows,
    Metadata,
    Row,
    block_schema,
    make_block,
)
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.spark_source.schema import ALL_COLUMNS, BatchBuilder
from tests.support.effort import part_of, with_all
from tests.unit.test_decoder_parity import SAMPLES, SOURCES, UNREADABLE, Sample, amqp091

BUILDER = BatchBuilder(ALL_COLUMNS)
CONTENT = IdSource("content")
MESSAGE_ID = IdSource("message-id")
EVERYTHING = {**SAMPLES, **{f"unreadable {name}": sample for name, sample in UNREADABLE.items()}}

every_sample = pytest.mark.parametrize("sample", EVERYTHING.values(), ids=list(EVERYTHING))


def ids_by(source: IdSource) -> MessageIds:
    return MessageIds(source, OnMissing.REJECT, exact=True, unreadable_rows=False)


def block_of(sample: Sample, source: IdSource = MESSAGE_ID, builder: BatchBuilder = BUILDER) -> tuple[Metadata, Block]:
    return make_block(sample.decoder.batches.of(sample.raws), ids_by(source), builder.block_schema)


def bytes_of(value: object) -> int:
    """Of a value of a column, as Arrow has it beside what all rows have."""
    if isinstance(value, str | bytes):
        return len(value.encode() if isinstance(value, str) else value)
    if isinstance(value, list):
        return sum(9 + bytes_of(name) + bytes_of(text) for name, text in value)
    return 0


def weighed(rows: Sequence[Row], keys: Sequence[Key | None]) -> list[int]:
    """What each row is to count for: its values, and its key, which is a copy of the ID where there is one."""
    columns = {name: BlockRows.of(rows).values(name) for name in rows[0][0].batch.schema.names}
    if any(columns["messageId"]):
        copies = [bytes_of(text) for text in columns["messageId"]]
    else:
        copies = list(map(bytes_of, keys))
    return [
        ROW_BYTES + copy + sum(map(bytes_of, values)) for copy, *values in zip(copies, *columns.values(), strict=True)
    ]


def assert_same(sample: Sample, places: Sequence[int], rows: Sequence[Row]) -> None:
    """Rows say what the deliveries at these places say, by the decoder's own columns."""
    raws = [sample.raws[place] for place in places]
    assert BlockRows.of(rows).values("body") == sample.decoder.bodies(raws)
    for name, make in sample.decoder.columns.items():
        assert BlockRows.of(rows).values(name) == list(make(raws)), name
    table = pa.Table.from_batches(BUILDER.build(BlockRows.of(rows), "orders"))
    table.validate(full=True)
    assert table.num_rows == len(rows)
    assert set(table.column("destination").to_pylist()) <= {"orders"}


@every_sample
@pytest.mark.parametrize("source", [*SOURCES, CONTENT], ids=str)
def test_a_block_says_what_the_deliveries_say(sample: Sample, source: IdSource) -> None:
    metadata, block = block_of(sample, source)
    decoder, raws = sample.decoder, sample.raws
    assert_same(sample, range(len(raws)), block.rows)
    assert list(metadata.tags) == decoder.tags(raws)
    keys = [*decoder.digests(raws)] if source == CONTENT else id_keys(decoder.ids(raws, source))
    assert [*metadata.keys] == [*keys]
    assert [*block.sizes] == weighed(block.rows, keys)
    assert [*metadata.redelivered] == list(decoder.columns["redelivered"](raws))
    assert list(metadata.unreadable.values()) == decoder.unreadable(raws)
    assert [metadata.tags[row] for row in metadata.unreadable] == [odd.tag for odd in decoder.unreadable(raws)]
    hidden = decoder.hidden(raws) if None in keys and source == MESSAGE_ID else []
    assert metadata.hidden == hidden


@every_sample
@settings(deadline=None, max_examples=part_of(100))
@given(data=st.data())
def test_any_rows_of_any_blocks_in_any_order_say_what_their_deliveries_say(sample: Sample, data: st.DataObject) -> None:
    rows = [*block_of(sample)[1].rows, *block_of(sample)[1].rows]
    count = len(sample.raws)
    places = data.draw(st.lists(st.integers(0, 2 * count - 1), min_size=1, max_size=12))
    some = [rows[place] for place in places]
    assert_same(sample, [place % count for place in places], some)
    block = BlockRows.of(some).joined()
    assert_same(sample, [place % count for place in places], block.rows)
    assert [*block.sizes] == BlockRows.of(some).sizes.tolist()
    low, high = sorted(data.draw(st.tuples(st.integers(-1, len(some)), st.integers(0, len(some) + 1))))
    between = BlockRows.of(some).between(low, high)
    assert between.values("body") == BlockRows.of(some[max(0, low) : high]).values("body")
    assert len(between) == len(some[max(0, low) : high])


def test_no_rows_make_no_batch() -> None:
    assert list(BlockRows.of([]).batches()) == []
    assert BlockRows.of([]).sizes.tolist() == BlockRows.of([]).values("body") == []


def test_a_column_that_nobody_asked_for_is_not_made() -> None:
    sample = SAMPLES["amqp-0-9-1"]
    query = pa.schema([("messageId", pa.string()), ("type", pa.string()), ("destination", pa.string())])
    _, block = make_block(sample.decoder.batches.of(sample.raws), ids_by(MESSAGE_ID), block_schema(query))
    # The timestamp is: a bounded run may end by it.
    assert block.batch.schema.names == ["messageId", "type", "timestamp"]
    assert max(block.sizes) < max(block_of(sample)[1].sizes)


@pytest.mark.parametrize("rows", [1, 3, with_all(400), 700])
def test_small_batches_are_put_together_and_nothing_is_changed(rows: int) -> None:
    raws = [amqp091(tag, str(tag).encode(), message_id=str(tag)) for tag in range(1, rows + 1)]
    decoder = SAMPLES["amqp-0-9-1"].decoder
    blocks = [make_block(decoder.batches.of([raw]), ids_by(MESSAGE_ID), BUILDER.block_schema)[1] for raw in raws]
    found = list(BlockRows.of([row for block in blocks for row in block.rows]).batches())
    assert len(found) <= 1 + rows // 500
    assert [body for batch in found for body in batch.column("body").to_pylist()] == decoder.bodies(raws)


@every_sample
@settings(deadline=None, max_examples=part_of(100))
@given(data=st.data())
def test_rows_that_are_moved_to_what_was_written_of_them_say_the_same(sample: Sample, data: st.DataObject) -> None:
    count = len(sample.raws)
    # Several blocks, whole or cut, and rows out of order.
    blocks = [block_of(sample)[1] for _ in range(data.draw(st.integers(1, 4)))]
    rows = [row for block in blocks for row in block.rows]
    low, high = sorted(data.draw(st.tuples(st.integers(0, len(rows)), st.integers(0, len(rows)))))
    some = [*rows[low:high], *(rows[place] for place in data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=4)))]
    moved = BlockRows.of(some)
    names = data.draw(st.sets(st.sampled_from(ALL_COLUMNS.fieldNames()), min_size=1))
    builder = BatchBuilder(StructType([field for field in ALL_COLUMNS if field.name in names]))
    stream = builder.serialize([*builder.build(moved, "orders")])
    moved.move_to(iter(pa.ipc.open_stream(stream)))
    for block in blocks:
        block.batch.validate(full=True)
    assert_same(sample, [number for block in blocks for number in range(count)], rows)


LARGE = Sample(
    SAMPLES["amqp-0-9-1"].decoder, [amqp091(tag, b"x" * 1_000, message_id=str(tag)) for tag in range(1, 2_000)]
)


@pytest.fixture
def held() -> Iterator[Callable[[], int]]:
    """How many bytes more than before are held, in memory of Arrow's and of Python's own."""
    tracemalloc.start()
    gc.collect()
    before = pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0]
    yield lambda: pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()


def test_a_block_goes_with_its_last_row(held: Callable[[], int]) -> None:
    rows = block_of(LARGE)[1].rows
    assert held() > 1_999_000
    last = rows[-1]
    del rows
    assert held() > 1_999_000
    assert BlockRows.of([last]).values("body") == [b"x" * 1_000]
    del last
    assert held() < 300_000


def test_what_is_made_of_a_block_does_not_keep_it(held: Callable[[], int]) -> None:
    rows = block_of(LARGE)[1].rows
    few = BlockRows.of(rows[5:7]).joined()
    size = len(BUILDER.serialize([*BUILDER.build(BlockRows.of(rows), "orders")]))
    del rows
    assert size > 1_999_000
    assert held() < 300_000
    assert BlockRows.of(few.rows).values("messageId") == ["6", "7"]
    assert BlockRows.of(few.rows).values("body") == [b"x" * 1_000] * 2


@pytest.mark.parametrize("columns", [ALL_COLUMNS.fieldNames(), ["messageId", "body"], ["destination"]])
def test_rows_that_are_moved_give_their_memory_back(columns: list[str]) -> None:
    heap = pa.total_allocated_bytes()
    builder = BatchBuilder(StructType([field for field in ALL_COLUMNS if field.name in columns]))
    here = [block_of(LARGE, builder=builder)[1] for _ in range(5)]
    rows = BlockRows.of([row for block in here for row in block.rows][1:])
    del here
    held = pa.total_allocated_bytes() - heap
    stream = builder.serialize([*builder.build(rows, "orders")])
    rows.move_to(iter(pa.ipc.open_stream(stream)))
    # The first is needed besides: a row of it is not here.
    assert pa.total_allocated_bytes() - heap < len(stream) + 0.3 * held + 10 * len(rows)
