"""Finds batches that a sink has but the checkpoint does not. New messages in batches with these numbers would be lost.

Spark's file sink and Delta remember the number of the newest batch that they have written. They skip every batch up to
this number, and Spark then commits the skipped batch (``FileStreamSink.scala``). If a user restores only the checkpoint
from a copy, Spark gives new messages batch numbers that the sink skips. These messages are acknowledged, but not
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark_mq.admin.checks import Finding, Level
from pyspark_mq.cli.checkpoint import METADATA, batches_in, content_of, failing_as, names_in
from pyspark_mq.cli.doctor.report import Section
from pyspark_mq.errors import START_ANEW, OptionError
from pyspark_mq.spark_source.folders import shown_place

__all__ = ["SINK_LOG", "check_sink"]

#: Folder of the log of Spark's file sink (FileStreamSink.scala).
SINK_LOG = "_spark_metadata"
_DELTA_LOG = "_delta_log"


def check_sink(checkpoint: str | None, sink: str | None) -> list[Section]:
    """Compare a file sink or a Delta table with the checkpoint of the query that writes to it.

    Returns:
        one section with the finding; an empty list if `sink` is None.
    """
    if sink is None:
        return []
    if checkpoint is None:
        raise OptionError("--sink", "needs option 'checkpointLocation', to compare the checkpoint with the sink")
    return [Section(shown_place(sink), [_compared(checkpoint, sink)])]


def _compared(checkpoint: str, sink: str) -> Finding:
    planned = max(batches_in(checkpoint, "offsets"), default=-1)
    newest = max([*batches_in(sink, SINK_LOG), _newest_in_delta(checkpoint, sink)])
    if newest < 0:
        text = "neither a file sink nor Delta has written a batch of this query there"
        return Finding("sink", Level.UNKNOWN, text, "set --sink to the folder that the query writes to")
    text = f"the sink's newest batch is {newest}, the checkpoint's {planned}"
    if newest <= planned:
        return Finding("sink", Level.OK, text)
    text += f": the sink skips new messages in batches {planned + 1} to {newest}, but the source acknowledges them, so "
    remedy = f"restore checkpoint and sink from copies made at the same time, or {START_ANEW}"
    return Finding("sink", Level.PROBLEM, f"{text}they are lost. Was the checkpoint restored alone?", remedy)


def _newest_in_delta(checkpoint: str, sink: str) -> int:
    """Return the number of the newest batch that this query has written to the Delta table; -1 if there is none."""
    names = sorted((name for name in names_in(sink, _DELTA_LOG) if name.endswith((".json", ".parquet"))), reverse=True)
    if not names:
        return -1
    content = content_of(checkpoint, "", METADATA)
    with failing_as(checkpoint, f"its file '{METADATA}' cannot be read"):
        query = json.loads(content)["id"]
    return next((txn["version"] for name in names for txn in _txns(sink, name) if txn and txn["appId"] == query), -1)


def _txns(sink: str, name: str) -> Iterator[dict[str, Any] | None]:
    """Yield the `txn` actions in a file of the table's log. Each has a query's ID and newest batch number."""
    content = content_of(sink, _DELTA_LOG, name)
    with failing_as(sink, f"{_DELTA_LOG}/{name} cannot be read"):
        if name.endswith(".json"):
            yield from (json.loads(line).get("txn") for line in content.splitlines() if b'"txn"' in line)
        else:
            from pyarrow import BufferReader, parquet  # noqa: PLC0415 - only Delta needs it

            yield from parquet.read_table(BufferReader(content), columns=["txn"])["txn"].to_pylist()
