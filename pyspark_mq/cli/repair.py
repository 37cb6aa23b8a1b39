"""``pyspark-mq repair``: repairs a checkpoint on the local disk of a machine that has lost power.

Spark writes a file of its logs under a temporary name and then renames it, but does not sync it
(``CheckpointFileManager.scala``). So after a loss of power the newest files may exist but be empty, and Spark refuses
empty files. The sink may also lack a committed batch. With option `settleAfter=synced` this can happen only to the last
batch, whose messages were not acknowledged: before the source emits a batch, everything about earlier batches is on
disk. So this command undoes the last batch, and Spark then runs it again from its offset.

If more than the last batch is missing, the query ran without that option, or the checkpoint or the sink is another
query's. Then the command removes nothing.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_mq.cli.checkpoint import METADATA, batch_of, batches_in, content_of, failing_as, names_in, read_batch
from pyspark_mq.cli.sink import SINK_LOG
from pyspark_mq.errors import START_ANEW, CheckpointError
from pyspark_mq.spark_source.folders import open_folder, shown_place
from pyspark_mq.spark_source.id_log import IdLog

__all__ = ["Damage", "Repair", "find_damage"]


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of one of Spark's logs that has to be removed.

    Attributes:
        place: the checkpoint or the sink to which the log belongs.
        log: name of the log's folder in `place`; empty for a file in `place` itself.
        name: the file's name.
        why: what is wrong with the file.
    """

    place: str
    log: str
    name: str
    why: str

    def __str__(self) -> str:
        return f"{shown_place(self.place)}: {self.file}: {self.why}"

    @property
    def file(self) -> str:
        return f"{self.log}/{self.name}".lstrip("/")


@dataclass(frozen=True, slots=True)
class Repair:
    """What has to be done to repair one checkpoint.

    Attributes:
        damages: files to remove.
        log: the ID log, which has a note of the last epoch that is on disk.
        epoch: the newest epoch that is certainly committed once the files are removed.
    """

    damages: list[Damage]
    log: IdLog
    epoch: int

    def carry_out(self) -> None:
        """Remove the damaged files with their Hadoop checksums. Then note in the ID log that `epoch` is on disk."""
        for damage in self.damages:
            _remove(damage)
        os.sync()
        self.log.note_synced(self.epoch)


def find_damage(checkpoint: str, sink: str | None, id_log: str) -> Repair:
    """Find the files that have to be removed after a loss of power, so that Spark does not resume from them.

    Args:
        checkpoint: the `checkpointLocation`.
        sink: the folder of a file sink; None for a sink of another kind.
        id_log: the folder of the ID log.

    Raises:
        CheckpointError: the checkpoint cannot be read, or more is missing than `settleAfter=synced` can explain.
    """
    shown, ids = shown_place(checkpoint), shown_place(id_log)
    offsets, commits = _Log(checkpoint, "offsets"), _Log(checkpoint, "commits")
    log, epoch = IdLog(id_log, shown), 0
    if not offsets.names:
        raise CheckpointError(
            f"{shown}: there is no checkpoint (its folder 'offsets' has no file). Use the query's 'checkpointLocation'"
        )
    if names_in(checkpoint, "state"):
        raise _beyond(shown, "the query has state, so Spark runs batches without new messages, which are not synced")
    last, planned = max(commits.whole, default=-1), max(offsets.whole, default=-1)
    # Before the source plans an epoch, the previous epoch's commit is on disk. So at most one batch is uncommitted.
    if not last <= planned <= last + 1 or (planned > 0 and not {planned - 1, last} - {-1} <= offsets.whole):
        raise _beyond(shown, f"the newest offset is {planned}, the newest commit {last}, and some offsets are missing")
    metadata = list(_metadata(checkpoint))
    lost = next((damage for damage in metadata if damage.name == METADATA), None)
    if lost is not None and commits.names:
        raise CheckpointError(
            f"{shown}: nothing is removed: its file '{METADATA}' is {lost.why}, but there are commits. The file has "
            "the query's ID, by which a sink may know its batches: with another ID the sink writes batches twice. "
            'Restore the file from a backup, or write {"id": "<uuid>"} into it, with the query.id that '
            f"earlier runs showed; or {START_ANEW}"
        )
    damages = [*offsets.empty(above=planned), *commits.empty(above=last), *metadata]
    if last >= 0:
        epoch, noted = _epoch(checkpoint, last, id_log), log.synced()
        if noted is None:
            raise _beyond(shown, f"folder '{ids}' has no note that the query ran with 'settleAfter=synced'")
        if noted != epoch:
            before = _epoch(checkpoint, last - 1, id_log) if last else 0
            if before != noted:
                raise _beyond(
                    shown,
                    f"folder '{ids}' notes epoch {noted} as synced, but the last committed epochs are {before} "
                    f"and {epoch}",
                )
            if log.lost_power(epoch):
                why = "the machine restarted before it was certain that this batch was on the sink's disk"
                damages += [*commits.files(last, why)]
                last, epoch = last - 1, before
    for batch in range(last + 2, planned + 1):
        damages += offsets.files(batch, f"batch {last + 1} is not committed")
    if sink is not None:
        damages += _in_sink(sink, last)
    return Repair(damages, log, epoch)


def _in_sink(sink: str, last: int) -> Iterator[Damage]:
    log, shown = _Log(sink, SINK_LOG), shown_place(sink)
    newest = max(batches_in(sink, SINK_LOG), default=-1)
    advice = "nothing is removed. Set --sink to the folder that the query writes to"
    if not log.names and last >= 0:
        raise CheckpointError(
            f"{shown}: no file sink has written there (its folder '{SINK_LOG}' has no file): {advice}"
        )
    if newest > last + 1:
        raise CheckpointError(
            f"{shown}: it has batch {newest}, but the checkpoint's last batch is {last}. Either this is another "
            f"query's sink, or the checkpoint was restored and the sink was not: {advice}"
        )
    if last >= 0 and last not in log.whole:
        raise _beyond(shown, f"batch {last} was committed and acknowledged, but the sink's log does not contain it")
    yield from log.files(last + 1, f"the newest batch that is certainly committed is {last}")


class _Log:
    """The files of one of Spark's logs, in a checkpoint or a sink."""

    def __init__(self, place: str, log: str) -> None:
        self._place, self._log = place, log
        self.names = names_in(place, log)
        self._whole = {name for name in self.names if _content(place, log, name)}
        #: Batches that have a file with content.
        self.whole = {number for name in self._whole if (number := batch_of(name)) is not None}

    def files(self, batch: int, why: str) -> list[Damage]:
        return [Damage(self._place, self._log, name, why) for name in sorted(self.names) if batch_of(name) == batch]

    def empty(self, above: int) -> Iterator[Damage]:
        """Yield the empty files that have to be removed: files of batches later than `above`, and any checksum files.

        The names of these files have reached the disk, but not their contents.
        """
        for name in sorted(self.names - self._whole):
            number = batch_of(name.removeprefix(".").removesuffix(".crc"))
            if number is not None and (number > above or name.startswith(".")):
                yield Damage(self._place, self._log, name, "empty")


def _epoch(checkpoint: str, batch: int, id_log: str) -> int:
    """Return the number of the epoch that belongs to a batch.

    Raises:
        CheckpointError: the query has several sources, or its only source is not of format `mq`.
    """
    first, *others = read_batch(checkpoint, batch, id_log).values() or (None,)
    if first is None or others:
        why = "the query has other sources, and batches without messages of this source are not synced"
        raise _beyond(shown_place(checkpoint), why)
    return first.position.epoch


def _metadata(checkpoint: str) -> Iterator[Damage]:
    """Yield the file with the query's ID if it is empty or missing, and its checksum file if that file is empty.

    With `settleAfter=synced` the file is on disk before the source emits a row, because Spark writes the file before
    the first offset. If no batch was committed, the repair gives the query a new ID.
    """
    names = names_in(checkpoint, "")
    for name in (METADATA, f".{METADATA}.crc"):
        if name in names and not _content(checkpoint, "", name):
            yield Damage(checkpoint, "", name, "empty")
        elif name == METADATA and name not in names:
            yield Damage(checkpoint, "", name, "missing")


def _beyond(shown: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{shown}: nothing is removed: {why}. Restore the checkpoint and the sink; or set 'settleAfter' to 'committed' "
        f"for one start, so that the query counts committed batches as written; or {START_ANEW}"
    )


def _remove(damage: Damage) -> None:
    with failing_as(damage.place, f"{damage.file} cannot be removed"):
        folder = open_folder(damage.place, damage.log)
        for name in {damage.name, f".{damage.name}.crc"} & set(folder.names()):
            folder.remove(name)
        if damage.name == METADATA:
            folder.write(METADATA, json.dumps({"id": str(uuid.uuid4())}).encode())


def _content(place: str, log: str, name: str) -> bool:
    try:
        return bool(content_of(place, log, name).strip(b"\0"))
    except CheckpointError as failed:
        if isinstance(failed.__cause__, IsADirectoryError):
            return True
        raise
