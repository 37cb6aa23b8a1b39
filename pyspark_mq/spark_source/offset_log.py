"""Spark's log of offsets, as a checkpoint has it: a file for each batch, written before the batch runs.

Its form depends on the version of Spark and on its settings (``OffsetSeqLog.scala``). Here it is bytes, in which the
name of a file is there or not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from pyspark_mq.spark_source.folders import open_folder

__all__ = ["OffsetLog"]

_STATE_BYTES = 8


class OffsetLog:
    """The log of one checkpoint. Everything raises what the folder raises.

    Args:
        checkpoint: the folder, a path or URI, as :func:`.resolve` gives it.
    """

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint

    def entry(self, text: str) -> bytes | None:
        """Return the newest entry that has this text in it; None if there is none."""
        return next((entry for entry in self._newest_first() if text.encode() in entry), None)

    def state(self) -> str:
        """Return a text that every entry changes."""
        return hashlib.blake2b(next(self._newest_first(), b""), digest_size=_STATE_BYTES).hexdigest()

    def _newest_first(self) -> Iterator[bytes]:
        folder = open_folder(self._checkpoint, "offsets")
        for batch in sorted(
            (int(name) for name in folder.names() if name.isascii() and name.isdecimal()), reverse=True
        ):
            yield folder.read(str(batch))
