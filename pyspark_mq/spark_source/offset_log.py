"""Spark's offset log in a checkpoint: a file for each batch, written before the batch runs.

The log's format depends on Spark's version and settings (``OffsetSeqLog.scala``). So this module does not parse an
entry: it only searches the bytes for the names of files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from pyspark_mq.spark_source.folders import open_folder

__all__ = ["OffsetLog"]

_STATE_BYTES = 8


class OffsetLog:
    """The log of one checkpoint. All methods raise the folder's errors.

    Args:
        checkpoint: the folder, a path or URI, as returned by :func:`.resolve`.
    """

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint

    def names(self, file: str) -> bool:
        """Whether an entry names a file."""
        return any(file.encode() in entry for _, entry in self._newest_first())

    def first_naming(self, file: str) -> bytes:
        """Return the first entry that names a file; empty if unknown, because older entries are purged."""
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
        """Return a string that changes with every new entry."""
        newest = next((entry for _, entry in self._newest_first()), b"")
        return hashlib.blake2b(newest, digest_size=_STATE_BYTES).hexdigest()

    def _newest_first(self) -> Iterator[tuple[int, bytes]]:
        folder = open_folder(self._checkpoint, "offsets")
        for batch in sorted(
            (int(name) for name in folder.names() if name.isascii() and name.isdecimal()), reverse=True
        ):
            yield batch, folder.read(str(batch))
