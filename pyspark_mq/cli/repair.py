"""``pyspark-mq repair``: a checkpoint on the disk of a machine that has lost power.

Spark makes its logs by create and rename and does not sync them (``CheckpointFileManager.scala``). So the newest files
may be there and empty, and Spark refuses them; and a commit may be there of a batch that the sink has not. With option
`settleAfter=synced` that can be so of the last batch alone, and nothing of it was acknowledged: everything before was
on the disks before its rows left the source. Here that batch is taken back, and Spark runs it again from its offset.

Where more is missing the option was not set, or it is another folder, and nothing is removed.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_mq.cli.checkpoint import failure, read_batch
from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.url import redact
from pyspark_mq.spark_source.folders import Folder, as_uri, open_folder
from pyspark_mq.spark_source.id_log import IdLog

__all__ = ["Damage", "Repair", "find_damage"]

#: Where a file sink of Spark keeps its log (FileStreamSink.scala).
SINK_LOG = "_spark_metadata"
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
        return f"{redact(as_uri(self.place))}: {self.file}: {self.why}"

    @property
    def file(self) -> str:
        """Its path below the folder."""
        return f"{self.log}/{self.name}".lstrip("/")


@dataclass(frozen=True, slots=True)
class Repair:
    """What is to be done.

    Attributes:
        damages: files that have to go.
        log: the ID log of the source; None if nothing was committed.
        epoch: the newest that is committed for certain then.
    """

    damages: list[Damage]
    log: IdLog | None
    epoch: int

    def carry_out(self) -> None:
        """Remove the files and the checksums that Hadoop keeps beside them, and note that the rest is whole.

        Raises:
            CheckpointError: one cannot be removed.
        """
        for damage in self.damages:
            _remove(damage)
        os.sync()
        if self.log is not None:
            self.log.note_synced(self.epoch)


def find_damage(checkpoint: str, sink: str | None, id_log: str) -> Repair:
    """What a loss of power has left that Spark must not go on from.

    Args:
        checkpoint: the checkpointLocation.
        sink: the folder of a file sink; None for another sink.
        id_log: the folder of the ID log.

    Raises:
        CheckpointError: there is no checkpoint, it cannot be read, or more is missing than the option leaves open.
    """
    shown = redact(as_uri(checkpoint))
    offsets, commits = _Log(checkpoint, "offsets"), _Log(checkpoint, "commits")
    if not offsets.names:
        raise CheckpointError(
            f"{shown}: there is no checkpoint (no file in its folder 'offsets'). Give the 'checkpointLocation' of the "
            "query"
        )
    if _opened(checkpoint, "state").names():
        raise _beyond(shown, "the query has state, and batches of its own that nothing syncs")
    last, planned = max(commits.whole, default=-1), max(offsets.whole, default=-1)
    # Before Spark 4.2 an offset is written before the batch before it is settled, and not run before that.
    if not last <= planned <= last + 2 or (planned > 0 and not {planned - 1, last} - {-1} <= offsets.whole):
        raise _beyond(shown, f"of the offsets {planned} is the newest, of the commits {last}, and some are missing")
    damages = [*offsets.empty(above=planned), *commits.empty(above=last), *_Log(checkpoint, "").empty(above=-1)]
    log, epoch = None, 0
    if last >= 0:
        log, epoch = _source(checkpoint, last, id_log)
        noted = log.synced()
        if noted is None:
            why = f"nothing in '{redact(as_uri(id_log))}' notes that the query was run with 'settleAfter=synced'"
            raise _beyond(shown, f"{why} (give the folder of option 'idLog' with --id-log)")
        if log.lost_power(epoch):
            before = _source(checkpoint, last - 1, id_log)[1] if last else 0
            if before > noted:
                raise _beyond(shown, f"it is noted up to epoch {noted}, and epochs {before} and {epoch} are committed")
            why = "the machine was started anew before it was known that the sink has this batch on its disks"
            damages += [*commits.files(last, why)]
            last, epoch = last - 1, before
    for batch in range(last + 2, planned + 1):
        damages += offsets.files(batch, f"batch {last + 1} is not committed")
    if sink is not None:
        damages += _in_sink(sink, last)
    return Repair(damages, log, epoch)


def _in_sink(sink: str, last: int) -> Iterator[Damage]:
    log, shown = _Log(sink, SINK_LOG), redact(as_uri(sink))
    if not log.names and last >= 0:
        raise _beyond(shown, f"no file sink of Spark has written there (no file in its folder '{SINK_LOG}')")
    newest = max(log.numbers, default=-1)
    if newest > last + 1:
        raise _beyond(shown, f"it has batch {newest}, and the checkpoint's last is {last}: the sink of another query")
    if last >= 0 and last not in log.whole:
        raise _beyond(shown, f"its log has no batch {last}, which is committed and acknowledged")
    yield from log.files(last + 1, f"the newest batch that is committed for certain is {last}")


class _Log:
    """The files of one of Spark's logs. A file sink puts some batches together, as ``19.compact``."""

    def __init__(self, place: str, log: str) -> None:
        self._place, self._log = place, log
        self.names = _opened(place, log).names()
        self._whole = {name for name in self.names if _content(place, log, name)} if log else set()
        self.numbers = {number for name in self.names if (number := _number(name)) is not None}
        #: Batches that have a file with content.
        self.whole = {number for name in self._whole if (number := _number(name)) is not None}

    def files(self, batch: int, why: str) -> list[Damage]:
        """All of a batch."""
        return [Damage(self._place, self._log, name, why) for name in sorted(self.names) if _number(name) == batch]

    def empty(self, above: int) -> Iterator[Damage]:
        """Files of later batches of which the name came to the disk, and not what is in them; and such checksums."""
        for name in sorted(self.names):
            number = _number(name.removeprefix(".").removesuffix(".crc"))
            is_checksum = name.startswith(".") and name.endswith(".crc")
            if self._log:
                suspect = name not in self._whole and number is not None and (is_checksum or number > above)
            else:
                suspect = name in {_METADATA, f".{_METADATA}.crc"} and not _content(self._place, "", name)
            if suspect:
                yield Damage(self._place, self._log, name, "empty")


def _source(checkpoint: str, batch: int, id_log: str) -> tuple[IdLog, int]:
    """The only source of a query: its ID log, and its epoch in a batch."""
    epochs = read_batch(checkpoint, batch, id_log)
    others = _opened(checkpoint, "offsets").read(str(batch)).decode("utf-8").split("\n")[2:]
    if len(epochs) != 1 or len([line for line in others if line]) != 1:
        shown = redact(as_uri(checkpoint))
        raise _beyond(shown, "the query has other sources, and batches with nothing of this one that nothing syncs")
    (one,) = epochs.values()
    return IdLog(id_log, str(one.offset["source"]), str(one.offset.get("log", ""))), one.position.epoch


def _beyond(shown: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{shown}: nothing is removed: {why}. Restore the checkpoint and the sink; or set 'settleAfter' to 'committed' "
        "for one start, which takes what is committed for written; or start with a new checkpointLocation"
    )


def _remove(damage: Damage) -> None:
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


def _number(name: str) -> int | None:
    """Of the batch that a file has; None if it has none."""
    number, _, kind = name.partition(".")
    return int(number) if number.isascii() and number.isdecimal() and kind in {"", "compact"} else None


def _content(place: str, log: str, name: str) -> bool:
    try:
        return bool(_opened(place, log).read(name).strip(b"\0"))
    except IsADirectoryError:
        return True
    except Exception as failed:
        raise failure(place, f"{log}/{name} cannot be read", failed) from failed


def _opened(place: str, log: str) -> Folder:
    try:
        return open_folder(as_uri(place), log)
    except Exception as failed:
        raise failure(place, "the folder cannot be read", failed) from failed
