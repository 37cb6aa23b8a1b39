"""``pyspark-mq release``: the way out of a replay that cannot complete.

An epoch that was planned but not committed is rerun with exactly the epoch's messages, and the query fails if not all
of these messages return. This command marks the epoch's offset. The next start still waits `replayTimeout` for the
messages. Then, instead of failing, it runs the epoch with the messages that returned. Messages that are missing then
are not emitted. If they turn up later, they count as new.
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

#: Folder in the checkpoint with a record of each release.
RECORDS = "mq-released"
#: Most missing IDs that are shown. The record has all missing IDs.
_IDS_SHOWN = 10
#: Most unacknowledged messages of one reader: AMQP 0-9-1 counts a prefetch in 16 bits (basic.qos).
_LOOKED_AT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The result of looking for an epoch's messages in one queue.

    Attributes:
        planned: how many of the queue's messages the epoch has.
        missing: the IDs of the planned messages that were not seen.
        seen: how many messages were examined.
    """

    planned: int
    missing: Sequence[Key]
    seen: int


def open_epochs(checkpoint: Checkpoint) -> list[PlannedEpoch]:
    """Return the epochs of a checkpoint that wait for messages. Raise a CheckpointError if no epoch waits."""
    newest = map(checkpoint.open, sorted(checkpoint.epochs))
    opened = [one for one in newest if one is not None and any(one.planned.values())]
    if not opened:
        raise CheckpointError(
            f"{checkpoint.place}: nothing to release: no epoch waits for messages that were planned but not committed"
        )
    return opened


def seek(one: PlannedEpoch, settings: Settings, patience_s: float) -> dict[str, QueueLook]:
    """Look for the messages of an epoch in their queues, and return them to the queues.

    Args:
        settings: the query's settings. Settings that name another source than the epoch raise a CheckpointError.
        patience_s: longest wait for the next message.
    """
    replace(OffsetCodec.of(settings), log=one.files).decode(dict(one.offset))
    found, planned = {}, {name: keys for name, keys in one.planned.items() if keys}
    for name, keys in planned.items():
        queue = settings if settings.endpoint.name == name else settings.of_queue(name, len(planned))
        found[name] = _seek(keys, queue, patience_s)
    return found


def _seek(keys: Sequence[Key], settings: Settings, patience_s: float) -> QueueLook:
    """Receive until all planned messages are found. Only the ID of each message is kept in memory."""
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
    """Yield lines for people about an epoch and its missing messages. `found` is None if no queue was examined."""
    count = sum(map(len, one.planned.values()))
    yield f"source {one.source}: {one.offset['source']}, broker {one.offset['broker']}"
    yield f"  batch {one.batch}, epoch {one.position.epoch}: {count:,} messages were planned but not committed"
    if one.position.released:
        yield "  it is already released"
    if found is None:
        yield "  not known which of these messages are missing: add the source's options to have the queue examined"
        return
    for name, there in found.items():
        more = "; the queue has more" if there.missing and there.seen >= _LOOKED_AT_MAX else ""
        yield (
            f"  queue '{name}': {len(there.missing):,} of {there.planned:,} are missing among the {there.seen:,} "
            f"messages examined{more}"
        )
        for key in there.missing[:_IDS_SHOWN]:
            yield f"    {key_text(key)}"
        if len(there.missing) > _IDS_SHOWN:
            yield f"    and {len(there.missing) - _IDS_SHOWN:,} more"


def mark(place: str, one: PlannedEpoch, found: Mapping[str, QueueLook] | None) -> str:
    """Release an epoch, and record its previous state.

    No query may be running with the checkpoint: the query would either miss the mark or overwrite it.

    Args:
        place: the `checkpointLocation`, as returned by :func:`.place_of`.
        found: the missing messages; None if no queue was examined.

    Returns:
        the path of the record within the checkpoint.
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
