"""Reads Spark's offset log in a checkpoint. Spark writes one file for each batch, before it runs the batch.

The log's format depends on Spark's version and settings (``OffsetSeqLog.scala``). So this module does not parse an
entry of the log. It only searches the entry's bytes for the names of the source's ID files, which offsets contain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from pyspark_mq.spark_source.folders import open_folder

__all__ = ["OffsetLog"]

_STATE_BYTES = 8


class OffsetLog:
    """The offset log of one checkpoint. Methods do not translate the errors of the file system.

    Args:
        checkpoint: the checkpoint's folder, a path or URI, as returned by :func:`.resolve`.
    """

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint

    def names(self, file: str) -> bool:
        """Whether an entry of the log contains the name of this ID file."""
        return any(file.encode() in entry for _, entry in self._newest_first())

    def first_naming(self, file: str) -> bytes:
        """Return the oldest entry that contains the name of this ID file.

        Return empty bytes if no entry has the name, or if Spark may have purged an older entry with the name.
        """
        first = b""
        for batch, entry in self._newest_first():
            if file.encode() not in entry:
                if first:
                    return first
            elif batch == 0:
                return entry
            else:
                first = entry
        return b""

    def state(self) -> str:
        """Return a digest of the newest entry. It changes with every new entry."""
        newest = next((entry for _, entry in self._newest_first()), b"")
        return hashlib.blake2b(newest, digest_size=_STATE_BYTES).hexdigest()

    def _newest_first(self) -> Iterator[tuple[int, bytes]]:
        folder = open_folder(self._checkpoint, "offsets")
        for batch in sorted(
            (int(name) for name in folder.names() if name.isascii() and name.isdecimal()), reverse=True
        ):
            yield batch, folder.read(str(batch))
