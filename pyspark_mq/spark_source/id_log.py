"""The ID log: message IDs in files beside the checkpoint, so that an offset has a name instead of a megabyte.

Spark writes an offset into its log, into each progress report and into its event log, and prints it with an exception
of the user's own. With option `idLog` the IDs of an epoch go into a file, durable before the offset is returned, and
the offset has the file's name and digest. A file is written once and never changed; what a crash leaves between file
and offset is never asked for, and goes when it is old.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from urllib.parse import parse_qsl

from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.url import redact, redact_in
from pyspark_mq.spark_source.folders import Folder, open_folder

__all__ = ["IdLog"]

#: Spark keeps a hundred offsets unless told otherwise (`spark.sql.streaming.minBatchesToRetain`).
_FILES_KEPT = 120
_DIGEST_BYTES = 16
#: Parameters of a URI that an offset may show: some stores take a secret as one.
_PUBLIC = frozenset({"endpoint_override", "region", "scheme", "user"})


class IdLog:
    """Files of one source in a folder.

    Args:
        place: the folder: an absolute path, or a URI that `pyarrow.fs` opens. It is made for the first file.
        owner: what tells the files of this source from those of others there.
        destination: the queue or topic as errors call it.
    """

    def __init__(self, place: str, owner: str, destination: str) -> None:
        self._place = place
        self._owner = hashlib.sha256(owner.encode()).hexdigest()[:8]
        self._destination = destination
        self._folder: Folder | None = None
        #: Of the files there, the oldest first; None before the first is written.
        self._names: list[str] | None = None

    @property
    def public_place(self) -> str:
        """The folder as anybody may see it; empty if there are, or may be, credentials in it."""
        parameters = dict(parse_qsl(self._place.partition("?")[2], keep_blank_values=True))
        return "" if "@" in self._place or parameters.keys() - _PUBLIC else self._place

    def write(self, epoch: int, data: bytes) -> str:
        """Keep the IDs of an epoch; the file's name, which has their digest.

        Raises:
            CheckpointError: they cannot be kept.
        """
        name = f"{self._owner}-{epoch:012d}-{_digest(data)}.json"
        try:
            folder = self._opened()
            names = self._names = self._listed(folder) if self._names is None else self._names
            if name not in names:
                folder.write(name, data)
                names.append(name)
            _forget(folder, names)
        except Exception as failed:
            raise self._error(
                f"the IDs of epoch {epoch} cannot be written", failed,
                "Nothing was acknowledged for it. Correct the option, or make room and give the user of the driver the "
                "right to write there",
            ) from failed  # fmt: skip
        return name

    def read(self, name: str) -> bytes:
        """What a file holds.

        Raises:
            CheckpointError: it is not there, or not what was written.
        """
        advice = (
            "Set 'idLog' to the folder that the query had, restore the file, or start with a new checkpointLocation"
        )
        try:
            data = self._opened().read(name)
        except Exception as failed:
            raise self._error(f"the offset names the file '{name}', which cannot be read", failed, advice) from failed
        if not name.endswith(f"-{_digest(data)}.json"):
            raise self._error(f"the file '{name}' was changed after it was written", "another digest", advice)
        return data

    def _error(self, problem: str, why: object, advice: str) -> CheckpointError:
        reason = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        reason = redact_in(reason, self._place)
        return CheckpointError(f"{self._destination}: idLog='{redact(self._place)}': {problem} ({reason}). {advice}")

    def _opened(self) -> Folder:
        if self._folder is None:
            self._folder = open_folder(self._place)
        return self._folder

    def _listed(self, folder: Folder) -> list[str]:
        ours = re.compile(f"{self._owner}-[0-9]{{12,}}-[0-9a-f]{{{2 * _DIGEST_BYTES}}}\\.json")
        return sorted(filter(ours.fullmatch, folder.names()))


def _forget(folder: Folder, names: list[str]) -> None:
    """Remove what Spark has forgotten as well. A file that cannot be removed does no harm."""
    while len(names) > _FILES_KEPT:
        with contextlib.suppress(OSError):
            folder.remove(names.pop(0))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
