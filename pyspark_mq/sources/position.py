"""The end of an epoch, as the offset names it, and where the journal is kept. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from pyspark_mq.dedup import EpochFile

__all__ = ["JournalFiles", "Position", "shortened"]

#: Longer texts of an offset are by their digests, and of the texts themselves so much is shown.
_TEXT_MAX, _SHOWN, _DIGEST_BYTES = 48, 12, 16
_PLAIN = re.compile(r"[^ !#-\[\]-~]")


@dataclass(frozen=True, slots=True)
class Position:
    """The end of an epoch over all queues of a query.

    Attributes:
        epoch: 0 before the first.
        file: the name of its file in the journal; empty for a guarantee without IDs, and before the first epoch.
        broker_id: the name of the broker its messages are at, shortened; empty while unknown.
        released: may the epoch be replayed without those of its messages that do not come back? So marked by
            `pyspark-mq release`, never by the source.
    """

    epoch: int
    file: str = ""
    broker_id: str = ""
    released: bool = False


class JournalFiles(Protocol):
    """Storage of the journal's files, next to the checkpoint.

    Everything raises CheckpointError where it cannot be done, in words for the user.
    """

    def put(self, content: EpochFile, of: str = "", part: str = "") -> str:
        """Keep the file of an epoch, or a part of what is kept of one; durable when it returns. Its name.

        Args:
            of: the file of the epoch that a part is of. The name of such a file has the digest of what is in it.
            part: its name. One that is there stays as it is.
        """

    def read(self, file: str, part: str = "") -> EpochFile:
        """Look up the file of an epoch, or a part of what is kept of one."""

    def parts(self, file: str) -> Sequence[str]:
        """List the parts that are kept of an epoch besides its file, by their names."""

    def remove(self, files: Collection[str]) -> None:
        """Remove files of epochs, and what is kept of each. One that cannot be removed does no harm."""

    def left_by_crashes(self) -> list[str]:
        """Name, once each, files of epochs that no offset names and no process will name any more."""

    def note_synced(self, epoch: int) -> None:
        """Note, durably, that this machine has everything up to the commit of an epoch on its disks."""

    def forget_synced(self) -> None:
        """Remove the note, if there is one: from now on epochs are acknowledged that it knows nothing of."""

    def lost_power(self, epoch: int) -> bool:
        """Return whether the machine was restarted since the last note, and that was of another epoch."""


def shortened(text: str, maximum: int = _TEXT_MAX) -> str:
    """Return a text of an offset, or its beginning and its digest if it takes more characters than that there."""
    if len(json.dumps(text)) <= maximum + 2:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{_PLAIN.sub('?', text[:_SHOWN])}~{digest}"
