"""``pyspark-mq release``: lets a query continue if planned messages are never redelivered.

If an epoch was planned but not committed, a restarted query reruns it. The rerun needs exactly the same messages, and
fails if the broker does not redeliver all of them. This command marks such an epoch as released, in its offset. The
next start still waits up to `replayTimeout` for the messages. Then, instead of failing, it runs the epoch with the
messages that were redelivered. Missing messages are not emitted. If the broker delivers one of them later, it counts as
a new message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from pyspark_mq.cli.checkpoint import Checkpoint, PlannedEpoch, failing_as, rewrite
from pyspark_mq.cli.peek import arrivals, consuming
from pyspark_mq.dedup import Key, OnMissing, filed, key_text
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.connections.message_id import MessageIds
from pyspark_mq.sources.settings import Settings
from pyspark_mq.spark_source.folders import open_folder
from pyspark_mq.spark_source.offset import OffsetCodec, released

__all__ = ["RECORDS", "QueueLook", "describe", "mark", "open_epochs", "seek"]

#: Folder in the checkpoint with a record of each release.
RECORDS = "mq-released"
#: Maximum number of missing IDs that are printed for a queue. The record of the release has all missing IDs.
_IDS_SHOWN = 10
#: Maximum number of messages that are examined in a queue. AMQP 0-9-1 has 16 bits for the number of unacknowledged
#: messages of a consumer (basic.qos).
_LOOKED_AT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The result of looking for an epoch's messages in one queue.

    Attributes:
        planned: number of messages that the epoch planned from this queue.
        missing: the IDs of the planned messages that were not found.
        seen: number of messages that were examined in the queue.
    """

    planned: int
    missing: Sequence[Key]
    seen: int


def open_epochs(checkpoint: Checkpoint) -> list[PlannedEpoch]:
    """Return the open epochs of a checkpoint, for whose messages a restart would wait: at most one for each source.

    Raises:
        CheckpointError: there is no such epoch.
    """
    newest = map(checkpoint.open, sorted(checkpoint.epochs))
    opened = [one for one in newest if one is not None and any(one.planned.values())]
    if not opened:
        raise CheckpointError(
            f"{checkpoint.place}: nothing to release: all epochs with messages are committed, so a restart does not "
            "wait for messages"
        )
    return opened


def seek(one: PlannedEpoch, settings: Settings, patience_s: float) -> dict[str, QueueLook]:
    """Look for the messages of an epoch in their queues. Received messages are returned to the queues.

    Args:
        settings: the query's settings.
        patience_s: longest wait for the next message.

    Returns:
        name of each queue -> the result for this queue.

    Raises:
        CheckpointError: the settings are for other queues than the epoch.
    """
    replace(OffsetCodec.of(settings), log=one.files).decode(dict(one.offset))
    found, planned = {}, {name: keys for name, keys in one.planned.items() if keys}
    for name, keys in planned.items():
        queue = settings if settings.endpoint.name == name else settings.of_queue(name, len(planned))
        found[name] = _seek(keys, queue, patience_s)
    return found


def _seek(keys: Sequence[Key], settings: Settings, patience_s: float) -> QueueLook:
    """Receive messages of one queue until all planned messages are found. Keep only their IDs in memory."""
    ids, seen = MessageIds.of(settings), 0
    missing_keys: dict[Key, list[Key]] = {}
    for key, in_files in zip(keys, filed(keys), strict=True):
        # Messages without an ID are identified by the digest of their contents. Messages with equal contents have the
        # same digest, so they are counted.
        missing_keys.setdefault(in_files, []).append(key)
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
    """Yield lines of text that describe an epoch and its missing messages.

    Args:
        found: the result of :func:`seek`; None if the queues were not examined.
    """
    count = sum(map(len, one.planned.values()))
    yield f"source {one.source}: {one.offset['source']}, broker {one.offset['broker']}"
    yield f"  batch {one.batch}, epoch {one.position.epoch}: {count:,} messages were planned but not committed"
    if one.position.released:
        yield "  it is already released"
    if found is None:
        yield "  whether messages are missing is unknown: add the source's options to have the queue examined"
        return
    for name, there in found.items():
        more = "; the queue has more" if there.missing and there.seen >= _LOOKED_AT_MAX else ""
        yield (
            f"  queue '{name}': {there.seen:,} messages examined, {len(there.missing):,} of the {there.planned:,} "
            f"planned messages are missing{more}"
        )
        for key in there.missing[:_IDS_SHOWN]:
            yield f"    {key_text(key)}"
        if len(there.missing) > _IDS_SHOWN:
            yield f"    and {len(there.missing) - _IDS_SHOWN:,} more"


def mark(place: str, one: PlannedEpoch, found: Mapping[str, QueueLook] | None) -> str:
    """Mark an epoch as released, after writing a record of its previous state into the checkpoint.

    No query may be running with the checkpoint, because a running query would not see the mark, or would overwrite it.

    Args:
        place: the `checkpointLocation`, as returned by :func:`.place_of`.
        found: the result of :func:`seek`; None if the queues were not examined.

    Returns:
        the path of the record, relative to the checkpoint.
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
