"""``pyspark-mq repair``: a checkpoint on the disk of a machine that has lost power.

Spark makes its logs by create and rename and does not sync them (``CheckpointFileManager.scala``). So the newest files
may be there and empty, and Spark refuses them; and a commit may be there of a batch that the sink has not. With option
`settleAfter=synced` nothing of such a batch was acknowledged. Here it is taken back: its commit, and what a file sink
has in its own log, so that Spark runs it again from its offset.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_mq.cli.checkpoint import failure, read_batch
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.url import redact
from pyspark_mq.spark_source.folders import Folder, as_uri, open_folder
from pyspark_mq.spark_source.id_log import IdLog

__all__ = ["Damage", "find_damage", "remove"]

#: Where a file sink of Spark keeps its log (FileStreamSink.scala).
SINK_LOG = "_spark_metadata"
_LOGS = ("", "offsets", "commits")
#: In the checkpoint itself: the ID of the query. Without the file Spark refuses a checkpoint that has offsets.
_METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a log that has to go.

    Attributes:
        place: the folder that has the log.
        log: the log's folder; empty for a file of the folder itself.
        name: of the file.
        why: what is wrong with it, for people.
    """

    place: str
    log: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"{redact(self.place)}: {self.file}: {self.why}"

    @property
    def file(self) -> str:
        """Its path below the folder."""
        return f"{self.log}/{self.name}".lstrip("/")


def find_damage(checkpoint: str, sink: str | None, id_log: str) -> list[Damage]:
    """What a loss of power has left that Spark must not go on from.

    Args:
        checkpoint: the checkpointLocation.
        sink: the folder of a file sink; None for another sink.
        id_log: the folder of the ID log.

    Raises:
        CheckpointError: there is no checkpoint, or it cannot be read.
    """
    if not _opened(checkpoint, "offsets").names():
        raise CheckpointError(
            f"{redact(checkpoint)}: there is no checkpoint (no file in its folder 'offsets'). Give the "
            "'checkpointLocation' of the query"
        )
    if sink is not None and not _opened(sink, SINK_LOG).names():
        raise CheckpointError(
            f"{redact(sink)}: no file sink of Spark has written there (no file in its folder '{SINK_LOG}'). Give the "
            "folder with the files of the query, or leave --sink away for another sink"
        )
    found = [one for log in _LOGS for one in _empty(checkpoint, log)]
    offsets, commits = _whole_batches(checkpoint, "offsets"), _whole_batches(checkpoint, "commits")

    def take_back(log: str, batches: dict[int, str], behind: float, why: str) -> None:
        found.extend(Damage(checkpoint, log, batches.pop(number), why) for number in sorted(batches) if number > behind)

    # Spark wants the newest offset, the one before, and a commit of one of the two (MicroBatchExecution.scala,
    # validateOffsetLogAndGetPrevOffset).
    gap = min((number for name, number in _batches(checkpoint, "offsets") if number not in offsets), default=math.inf)
    take_back("offsets", offsets, gap, f"batch {gap} before it has no offset")
    take_back("commits", commits, max(offsets, default=-1), "there is no offset of this batch")
    if commits and _is_doubtful(checkpoint, max(commits), id_log):
        why = "the machine was started anew before it was known that the sink has this batch on its disks"
        take_back("commits", commits, max(commits) - 1, why)
    last = max(commits, default=-1)
    take_back("offsets", offsets, last + 1, f"the newest batch that is committed for certain is {last}")
    if sink is not None:
        found += _empty(sink, SINK_LOG)
        found += [
            Damage(sink, SINK_LOG, name, f"the newest batch that is committed for certain is {last}")
            for name, number in _batches(sink, SINK_LOG)
            if number > last and _whole(sink, SINK_LOG, name)
        ]
    return found


def remove(damage: Damage) -> None:
    """Remove a file and the checksum that Hadoop keeps beside it; a query whose ID is gone gets another.

    Raises:
        CheckpointError: it cannot be removed.
    """
    try:
        folder = _opened(damage.place, damage.log)
        for name in {damage.name, f".{damage.name}.crc"} & set(folder.names()):
            folder.remove(name)
        if damage.name == _METADATA:
            folder.write(_METADATA, json.dumps({"id": str(uuid.uuid4())}).encode())
    except CheckpointError:
        raise
    except Exception as failed:
        raise failure(damage.place, f"{damage.file} cannot be removed", failed) from failed


def _is_doubtful(checkpoint: str, batch: int, id_log: str) -> bool:
    """Is it not known of the newest committed batch that it is on the disks, since the machine was started anew?"""
    return any(
        IdLog(id_log, str(one.offset["source"]), str(one.offset.get("log", ""))).lost_power(one.position.epoch)
        for one in read_batch(checkpoint, batch, id_log).values()
    )


def _empty(place: str, log: str) -> Iterator[Damage]:
    """Files of which the name came to the disk, and not what is in them."""
    for name in _opened(place, log).names():
        is_checksum = name.startswith(".") and name.endswith(".crc")
        is_of_spark = name == _METADATA or (log and name.partition(".")[0].isdecimal())
        if (is_checksum or is_of_spark) and not _whole(place, log, name):
            yield Damage(place, log, name, "empty")


def _whole(place: str, log: str, name: str) -> bool:
    try:
        return bool(_opened(place, log).read(name).strip(b"\0"))
    except Exception as failed:
        raise failure(place, f"{log}/{name} cannot be read", failed) from failed


def _whole_batches(place: str, log: str) -> dict[int, str]:
    return {number: name for name, number in _batches(place, log) if _whole(place, log, name)}


def _batches(place: str, log: str) -> Iterator[tuple[str, int]]:
    """Files of batches and their numbers; a file sink puts some together, as ``19.compact``."""
    for name in _opened(place, log).names():
        number, _, kind = name.partition(".")
        if number.isascii() and number.isdecimal() and kind in {"", "compact"}:
            yield name, int(number)


def _opened(place: str, log: str) -> Folder:
    try:
        return open_folder(as_uri(place), log)
    except Exception as failed:
        raise failure(place, "the folder cannot be read", failed) from failed
