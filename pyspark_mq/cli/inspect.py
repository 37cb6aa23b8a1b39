"""``pyspark-mq inspect``: what a checkpoint says, and what a restart from it would do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from pyspark_mq.cli.checkpoint import Checkpoint, PlannedEpoch
from pyspark_mq.dedup import key_text
from pyspark_mq.sources.position import Part, decode, end_of

__all__ = ["report", "written"]


def report(checkpoint: Checkpoint, *, ids: bool, now_s: float | None = None) -> dict[str, Any]:
    """The same for machines.

    Args:
        ids: with all IDs, in their order.
        now_s: seconds since 1970, for ages.
    """
    now_s = time.time() if now_s is None else now_s
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
                "open": None if open_ is None else _epoch(open_, now_s, ids=ids),
                "committed": None if committed is None else _epoch(committed, now_s, ids=ids),
            }
        )
    return {"checkpoint": checkpoint.place, "committedBatch": checkpoint.committed, "sources": sources}


def _epoch(planned: PlannedEpoch, now_s: float, *, ids: bool) -> dict[str, Any]:
    queues = {name: _queue(part, now_s, ids=ids) for name, part in planned.position.parts.items()}
    return {
        "batch": planned.batch,
        "epoch": planned.position.epoch,
        "ageSeconds": None if planned.planned_at_s is None else round(max(0.0, now_s - planned.planned_at_s), 1),
        "offsetCharacters": planned.size,
        "offsetVersion": planned.offset["v"],
        "released": planned.position.released,
        "idLogFile": planned.offset.get("file"),
        "planned": sum(queue["planned"] for queue in queues.values()),
        "carried": sum(queue["carried"] for queue in queues.values()),
        "queues": queues,
    }


def _queue(part: Part, now_s: float, *, ids: bool) -> dict[str, Any]:
    planned = _texts(part.planned)
    carried = [key for text, _ in part.pieces() for key in _texts(text)]
    ends = [end_of(until_s) for _, until_s in part.pieces()]
    told: dict[str, Any] = {
        "planned": len(planned),
        "carried": len(carried),
        "carriedForSeconds": None if not ends or None in ends else max(0, round(max(filter(None, ends)) - now_s)),
        "idCharacters": len(part.planned) + sum(map(len, part.carried)),
    }
    return {**told, "plannedIds": planned, "carriedIds": carried} if ids else told


def _texts(encoded: str) -> list[str]:
    return [key_text(key) for key in decode(encoded, "the checkpoint")]


def written(told: dict[str, Any]) -> Iterator[str]:
    """The report as lines for people."""
    yield f"checkpoint {told['checkpoint']}"
    batch = told["committedBatch"]
    yield f"newest committed batch: {'none' if batch is None else batch}"
    for source in told["sources"]:
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
        f"{epoch['carried']:,} carried; offset of {epoch['offsetCharacters']:,} characters{file}"
    )
    if len(epoch["queues"]) > 1:
        for queue, counts in epoch["queues"].items():
            yield f"    {queue}: {counts['planned']:,} planned, {counts['carried']:,} carried"
    for queue, counts in epoch["queues"].items():
        for kind in ("planned", "carried"):
            for key in counts.get(f"{kind}Ids", ()):
                yield f"    {kind} in {queue}: {key}"


def _outlook(source: dict[str, Any]) -> str:
    if source["open"] is None:
        return "a restart goes on with new messages, and drops what comes again of those committed and carried"
    count = source["open"]["planned"]
    if not count:
        return "a restart runs the open epoch, which waits for no messages"
    if source["open"]["released"]:
        return (
            f"a restart waits for these {count:,} planned messages for replayTimeout, and runs the open epoch with "
            "those that are there: it was released"
        )
    return (
        f"a restart waits until these {count:,} planned messages have come again, for replayTimeout, and runs the open "
        "epoch with them"
    )


def _duration(seconds: float) -> str:
    for name, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {name}"
    return f"{seconds:.0f} s"
