"""``pyspark-mq inspect``: shows a checkpoint, and what a query that restarts from this checkpoint would do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from pyspark_mq.cli.checkpoint import Checkpoint, PlannedEpoch
from pyspark_mq.dedup import key_text
from pyspark_mq.sources.journal import remembered_in

__all__ = ["report", "written"]


def report(checkpoint: Checkpoint, *, ids: bool) -> dict[str, Any]:
    """Describe a checkpoint as a mapping that can be printed as JSON. With `ids`, include all message IDs, in order."""
    now_s = time.time()
    sources = []
    for place, epochs in sorted(checkpoint.epochs.items()):
        newest, open_, committed = epochs[0], checkpoint.open(place), checkpoint.committed_of(place)
        sources.append(
            {
                "source": place,
                "reads": newest.offset["source"],
                "broker": newest.offset["broker"],
                "brokerIdentity": newest.position.broker_id,
                "messageIdFrom": newest.offset.get("ids", ""),
                "open": open_ and _epoch(open_, now_s, ids=ids),
                "committed": committed and _epoch(committed, now_s, ids=ids),
            }
        )
    return {"checkpoint": checkpoint.place, "committedBatch": checkpoint.committed, "sources": sources}


def _epoch(planned_epoch: PlannedEpoch, now_s: float, *, ids: bool) -> dict[str, Any]:
    at_s, planned = planned_epoch.planned_at_s, planned_epoch.planned
    queues = {
        name: {"planned": len(keys)} | ({"plannedIds": list(map(key_text, keys))} if ids else {})
        for name, keys in planned.items()
    }
    return {
        "batch": planned_epoch.batch,
        "epoch": planned_epoch.position.epoch,
        "ageSeconds": None if at_s is None else round(max(0.0, now_s - at_s), 1),
        "offsetCharacters": planned_epoch.size,
        "offsetVersion": planned_epoch.offset["v"],
        "released": planned_epoch.position.released,
        "idLogFile": planned_epoch.position.file or None,
        "planned": sum(map(len, planned.values())),
        "remembered": remembered_in(planned_epoch.files, planned_epoch.position.file),
        "queues": queues,
    }


def written(described: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that show a report to people. `described` is the result of :func:`report`."""
    yield f"checkpoint {described['checkpoint']}"
    batch = described["committedBatch"]
    yield f"newest committed batch: {'none' if batch is None else batch}"
    for source in described["sources"]:
        yield ""
        identity = f" ({source['brokerIdentity']})" if source["brokerIdentity"] else ""
        yield f"source {source['source']}: {source['reads']}, broker {source['broker']}{identity}"
        if source["messageIdFrom"]:
            yield f"  IDs from {source['messageIdFrom']}"
        for name in ("open", "committed"):
            if source[name] is not None:
                yield from _epoch_lines(name, source[name])
        yield f"  {_outlook(source)}"


def _epoch_lines(name: str, epoch: dict[str, Any]) -> Iterator[str]:
    age = "" if epoch["ageSeconds"] is None else f", planned {_duration(epoch['ageSeconds'])} ago"
    file = "" if epoch["idLogFile"] is None else f", IDs in {epoch['idLogFile']}"
    yield (
        f"  {name}: batch {epoch['batch']}, epoch {epoch['epoch']}{age}: {epoch['planned']:,} planned, "
        f"offset of {epoch['offsetCharacters']:,} characters{file}"
    )
    described = ", ".join(f"{count:,} {kind}" for kind, count in epoch["remembered"].items())
    yield f"    also remembered: {described}"
    if len(epoch["queues"]) > 1:
        for queue, counts in epoch["queues"].items():
            yield f"    {queue}: {counts['planned']:,} planned"
    for queue, counts in epoch["queues"].items():
        for key in counts.get("plannedIds", ()):
            yield f"    planned in {queue}: {key}"


def _outlook(source: dict[str, Any]) -> str:
    if source["open"] is None:
        return "a restart continues with new messages, and drops redeliveries of remembered messages"
    count = source["open"]["planned"]
    if not count:
        return "a restart runs the open epoch, which does not wait for messages"
    if source["open"]["released"]:
        waits = f"a restart waits up to replayTimeout for these {count:,} planned messages"
        return f"{waits}, and runs the open epoch with those that are redelivered, because the epoch was released"
    waits = f"a restart waits up to replayTimeout until these {count:,} planned messages are redelivered"
    return f"{waits}, and runs the open epoch with them"


def _duration(seconds: float) -> str:
    for name, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {name}"
    return f"{seconds:.0f} s"
