"""Columns of raw deliveries, as Spark gets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pyspark_mq.dedup import IdSource, OnMissing
from pyspark_mq.sources.connections.block import BlockRows, make_block
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.spark_source.schema import BatchBuilder
from tests.support.decoding import Asked

__all__ = ["BY_MESSAGE_ID", "built"]

BY_MESSAGE_ID = MessageIds(IdSource("message-id"), OnMissing.FAIL, exact=False, unreadable_rows=False)


def built(builder: BatchBuilder, raws: Sequence[Any], decoder: Asked, ids: MessageIds = BY_MESSAGE_ID) -> pa.Table:
    """All of them, checked as far as Arrow can."""
    _, block = make_block(decoder.batches.of(raws), ids, builder.block_schema)
    batches = list(builder.build(BlockRows.of(block.rows), "orders"))
    with pa.ipc.open_stream(builder.serialize(batches)) as stream:
        table = stream.read_all()
    table.validate(full=True)
    return table
