"""``pyspark-mq release``: the way out of a replay that cannot complete.

An epoch that was planned and not committed is run again with exactly its messages, and a query fails when they do not
all come back. Here its offset is marked: the next start still waits for them for `replayTimeout`, and then goes on with
what is there instead of failing. Of what is missing nothing was emitted: if it turns up later it counts as new.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from pyspark_mq.cli.checkpoint import Checkpoint, PlannedEpoch, failing_as, rewrite
from pyspark_mq.cli.peek import arrivals, consuming
from pyspark_mq.dedup import Key, OnMissing, is_content, key_text
from pyspark_mq.dedup.identity import CONTENT_DIGEST_BYTES
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.folders import open_folder
from pyspark_mq.spark_source.offset import OffsetCodec, released

__all__ = ["RECORDS", "QueueLook", "describe", "mark", "open_epochs", "seek"]

#: Folder of the checkpoint in which it is written down what was released.
RECORDS = "mq-released"
#: Missing IDs that are shown; all are in the record.
_IDS_SHOWN = 10
#: What a broker holds for one reader at most: AMQP 0-9-1 counts a prefetch in 16 bits (basic.qos).
_LOOKED_AT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The result of a look into one queue.

    Attributes:
        planned: how many messages of it the epoch has.
        missing: those that were not seen.
        seen: messages examined.
    """

    planned: int
    missing: Sequence[Key]
    seen: int


def open_epochs(checkpoint: Checkpoint) -> list[PlannedEpoch]:
    """The epochs of a checkpoint that wait for messages; a CheckpointError if there is none."""
    newest = map(checkpoint.open, sorted(checkpoint.epochs))
    opened = [one for one in newest if one is not None and any(one.planned.values())]
    if not opened:
        raise CheckpointError(
            f"{checkpoint.place}: nothing to release: no epoch waits for messages that were planned and not committed"
        )
    return opened


def seek(one: PlannedEpoch, settings: Settings, patience_s: float) -> dict[str, QueueLook]:
    """Look for the messages of an epoch in their queues, and give back what is there.

    Args:
        settings: of the query; a CheckpointError if it reads something else.
        patience_s: for how long none may come.
    """
    replace(OffsetCodec.of(settings), log=one.files).decode(dict(one.offset))
    found, planned = {}, {name: keys for name, keys in one.planned.items() if keys}
    for name, keys in planned.items():
        queue = settings if settings.endpoint.name == name else settings.of_queue(name, len(planned))
        found[name] = _seek(keys, queue, patience_s)
    return found


def _seek(keys: Sequence[Key], settings: Settings, patience_s: float) -> QueueLook:
    """Look until all are there. Of a message no more is kept than its ID."""
    ids, seen = MessageIds.of(settings), 0
    missing_keys: dict[Key, list[Key]] = {}
    for key in keys:
        # Equal contents are counted.
        missing_keys.setdefault(key[:CONTENT_DIGEST_BYTES] if is_content(key) else key, []).append(key)
    with consuming(settings, _LOOKED_AT_MAX) as consumer:
        for batch in arrivals(consumer, _LOOKED_AT_MAX, patience_s):
            there, _ = ids.keys(batch, ids.values(batch))
            if None in there and ids.on_missing is not OnMissing.ROW:
                first = int(batch.tags[there.index(None)])
                ids.check(settings.endpoint.destination, there.count(None), first, ids.hidden(batch))
            seen += len(batch)
            for found in there:
                some = [] if found is None else missing_keys.get(found, [])
                if some:
                    some.pop()
            if not any(missing_keys.values()):
                break
    missing = {key for some in missing_keys.values() for key in some}
    return QueueLook(len(keys), [key for key in keys if key in missing], seen)


def describe(one: PlannedEpoch, found: Mapping[str, QueueLook] | None) -> Iterator[str]:
    """An epoch and what is missing of it, as lines for people; `found` is None if nobody has looked."""
    count = sum(map(len, one.planned.values()))
    yield f"source {one.source}: {one.offset['source']}, broker {one.offset['broker']}"
    yield f"  batch {one.batch}, epoch {one.position.epoch}: {count:,} messages were planned and not committed"
    if one.position.released:
        yield "  it is released already"
    if found is None:
        yield "  which of them are missing is not known: give the options of the source to have the queue examined"
        return
    for name, there in found.items():
        more = "; it has more" if there.missing and there.seen >= _LOOKED_AT_MAX else ""
        yield (
            f"  queue '{name}': {len(there.missing):,} of {there.planned:,} are missing among the {there.seen:,} "
            f"messages examined{more}"
        )
        for key in there.missing[:_IDS_SHOWN]:
            yield f"    {key_text(key)}"
        if len(there.missing) > _IDS_SHOWN:
            yield f"    and {len(there.missing) - _IDS_SHOWN:,} more"


def mark(place: str, one: PlannedEpoch, found: Mapping[str, QueueLook] | None) -> str:
    """Release an epoch, and write down what was there before.

    No query may run with the checkpoint: it would not see the mark, or write over it.

    Args:
        place: the `checkpointLocation`, as :func:`.place_of` gives it.
        found: what is missing, None if nobody has looked.

    Returns:
        the record, a path within the checkpoint.
    """
    at = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    record = {
        "releasedAt": at,
        "batch": one.batch,
        "source": one.source,
        "epoch": one.position.epoch,
        "reads": one.offset["source"],
        "planned": {name: list(map(key_text, keys)) for name, keys in one.planned.items() if keys},
        "missing": None
        if found is None
        else {name: list(map(key_text, there.missing)) for name, there in found.items()},
        "offset": one.offset,
    }
    name = f"{one.batch}-{one.source}-{at}.json"
    with failing_as(place, f"the record {RECORDS}/{name} cannot be written, so nothing was changed"):
        open_folder(place, RECORDS).write(name, (json.dumps(record, indent=1) + "\n").encode())
    rewrite(place, one, released(one.offset))
    return f"{RECORDS}/{name}"
