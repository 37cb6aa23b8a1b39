"""The position at which an epoch ends (Spark's offset stores it), and the interface for the journal's files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from pyspark_mq.dedup import EpochFile

__all__ = ["JournalFiles", "Position", "shortened"]

#: If a text is longer than `_TEXT_MAX`, an offset has its first `_SHOWN` characters and a digest instead.
_TEXT_MAX, _SHOWN, _DIGEST_BYTES = 48, 12, 16
_PLAIN = re.compile(r"[^ !#-\[\]-~]")


@dataclass(frozen=True, slots=True)
class Position:
    """The position at which an epoch ends, over all queues of a query.

    Attributes:
        epoch: number of the epoch; 0 before the first epoch.
        file: name of the epoch's file in the journal; empty before the first epoch, and for the guarantees
            `at-least-once` and `none`.
        broker_id: the name by which the broker with the epoch's messages identifies itself, shortened; empty if
            unknown.
        released: whether the epoch may be replayed without messages that are not redelivered. Only the command
            `pyspark-mq release` sets this.
    """

    epoch: int
    file: str = ""
    broker_id: str = ""
    released: bool = False


class JournalFiles(Protocol):
    """Stores the files of the journal, usually in the checkpoint. :class:`.IdLog` implements this interface.

    If a method fails, it raises a CheckpointError.
    """

    def put(self, content: EpochFile, of: str = "", note: str = "") -> str:
        """Durably write the file of an epoch, or a note of an epoch. Return the name of the written file.

        A note is a small file next to the file of its epoch. The name of an epoch's file includes a digest of its
        content.

        Args:
            content: the content to write.
            of: for a note, the name of the epoch's file; otherwise empty.
            note: name of the note; empty to write the file of an epoch. If the note exists already, it stays unchanged.
        """

    def read(self, file: str, note: str = "") -> EpochFile:
        """Return the content of an epoch's file; if `note` is not empty, the content of this note of the epoch."""

    def notes(self, file: str) -> Sequence[str]:
        """Return the names of the notes that an epoch has. `file` is the name of the epoch's file."""

    def has_note(self, file: str, note: str) -> bool:
        """Whether an epoch has this note now, even if another process has just written it."""

    def remove(self, files: Collection[str], note: str = "") -> None:
        """Remove the files of epochs and all their notes; if `note` is not empty, remove only this note of each epoch.

        If a file cannot be removed, ignore the error, because the file does no harm.
        """

    def left_by_crashes(self) -> list[str]:
        """Return the names of files that crashed processes wrote, and that no offset names. Return each name once."""

    def note_synced(self, epoch: int) -> None:
        """Durably write a note that everything up to the commit of an epoch is on this machine's disks."""

    def forget_synced(self) -> None:
        """Remove the note of :meth:`note_synced`, because the query no longer syncs before it acknowledges epochs."""

    def lost_power(self, epoch: int) -> bool:
        """Whether the machine was restarted after :meth:`note_synced` wrote a note, and the note is not for `epoch`."""


def shortened(text: str, maximum: int = _TEXT_MAX) -> str:
    """Return a string that is short enough for an offset: the text, or else its beginning and a digest."""
    if len(json.dumps(text)) <= maximum + 2:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{_PLAIN.sub('?', text[:_SHOWN])}~{digest}"
