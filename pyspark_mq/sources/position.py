"""The end of an epoch, as in Spark's offset, and the interface of the journal's files. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from pyspark_mq.dedup import EpochFile

__all__ = ["JournalFiles", "Position", "shortened"]

#: In an offset, texts longer than `_TEXT_MAX` are shortened to `_SHOWN` characters and a digest.
_TEXT_MAX, _SHOWN, _DIGEST_BYTES = 48, 12, 16
_PLAIN = re.compile(r"[^ !#-\[\]-~]")


@dataclass(frozen=True, slots=True)
class Position:
    """The end of an epoch over all queues of a query.

    Attributes:
        epoch: number of the epoch; 0 before the first epoch.
        file: name of the epoch's file in the journal; empty for a guarantee without IDs, and before the first epoch.
        broker_id: a short form of the name of the broker that has the epoch's messages; empty while unknown.
        released: whether the epoch may be replayed without messages that are not redelivered. Set by
            `pyspark-mq release`, never by the source.
    """

    epoch: int
    file: str = ""
    broker_id: str = ""
    released: bool = False


class JournalFiles(Protocol):
    """Storage of the journal's files, next to the checkpoint.

    Every method raises CheckpointError on failure, with a message for the user.
    """

    def put(self, content: EpochFile, of: str = "", part: str = "") -> str:
        """Durably write the file of an epoch, or, with `part`, a part of an epoch. Return the name of the written file.

        Args:
            of: name of the file of the epoch to which the part belongs. File names include a digest of the content.
            part: name of the part. An existing part stays unchanged.
        """

    def read(self, file: str, part: str = "") -> EpochFile:
        """Read the file of an epoch, or, with `part`, only this part of the epoch."""

    def parts(self, file: str) -> Sequence[str]:
        """List the names of the parts of an epoch."""

    def has_part(self, file: str, part: str) -> bool:
        """Look again whether an epoch has this part, which another process may have written."""

    def remove(self, files: Collection[str], part: str = "") -> None:
        """Remove files of epochs with all their parts, or, with `part`, only this part of each.

        A file that cannot be removed does no harm.
        """

    def left_by_crashes(self) -> list[str]:
        """List the files that no offset names and no process will name again. Each file is listed only once."""

    def note_synced(self, epoch: int) -> None:
        """Record durably that this machine's disks have everything up to the commit of an epoch."""

    def forget_synced(self) -> None:
        """Remove the record of :meth:`note_synced`, because it will not cover the epochs acknowledged from now on."""

    def lost_power(self, epoch: int) -> bool:
        """Whether the machine was restarted since the last record, and that record was for another epoch."""


def shortened(text: str, maximum: int = _TEXT_MAX) -> str:
    """Shorten a string to its beginning and a digest if it is too long for an offset."""
    if len(json.dumps(text)) <= maximum + 2:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{_PLAIN.sub('?', text[:_SHOWN])}~{digest}"
