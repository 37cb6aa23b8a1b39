"""Blocks that a worker makes of what is in an inbox, as rows to compare."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from pyspark_mq.dedup import is_content
from pyspark_mq.sources.connections.block import make_block
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.spark_source.schema import ALL_COLUMNS, BatchBuilder
from tests.support.decoding import Asked

__all__ = ["block_rows", "same_rows"]

_SCHEMA = BatchBuilder(ALL_COLUMNS).block_schema


def block_rows(decoder: Asked, items: list[Any], ids: MessageIds, bytes_max: int) -> list[dict[str, Any]]:
    """The rows of the blocks that are made of an inbox, each with its metadata.

    Args:
        items: deliveries and batches.
        bytes_max: see :meth:`.DeliveryBatch.gather`.
    """
    rows: list[dict[str, Any]] = []
    for raws in decoder.gather(items, bytes_max):
        known, made = make_block(raws, ids, _SCHEMA)
        made.batch.validate(full=True)
        # Some times are beyond what Python has dates for.
        columns = {
            name: column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for name, column in zip(made.batch.schema.names, made.batch.columns, strict=True)
        }
        assert len(made) == len(raws) == len(known.tags)
        assert known.redelivered.tolist() == made.batch.column("redelivered").to_pylist()
        rows += [
            {
                **row, "size": made.sizes[place], "tag": known.tags[place], "key": known.keys[place],
                "not_redelivered": known.not_redelivered[place] if is_content(known.keys[place]) else None,
                "broken": str(known.unreadable.get(place)),
            }
            for place, row in enumerate(pa.table(columns).to_pylist())
        ]  # fmt: skip
    return rows


def same_rows(one: list[dict[str, Any]], other: list[dict[str, Any]], left_out: Collection[str], of: object) -> None:
    """Compare rows of blocks, but for some columns.

    Raises:
        AssertionError: they differ; it says in what, and of what they are.
    """
    for mine, theirs in zip(one, other, strict=True):
        pairs = [(name, str(value), str(theirs[name])) for name, value in mine.items() if name not in left_out]
        differs = [pair for pair in pairs if pair[1] != pair[2]]
        assert not differs, f"{differs}: {mine} of {of}"
