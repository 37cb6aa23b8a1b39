"""The ID log: message IDs in files beside the checkpoint, so that an offset has a name instead of a megabyte.

Spark writes an offset into its log, into each progress report and into its event log, and prints it with an exception
of the user's own. With option `idLog` the IDs of an epoch go into a file, durable before the offset is returned, and
the offset has the file's name and digest. A file is written once and never changed; what a crash leaves between file
and offset is never asked for, and goes when it is old.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_mq.errors import CheckpointError
from pyspark_mq.sources.url import redact

__all__ = ["IdLog"]

#: Spark keeps a hundred offsets unless told otherwise (`spark.sql.streaming.minBatchesToRetain`).
_FILES_KEPT = 120
#: Object stores put a whole file or none, and know no cheaper way to rename one than to copy it.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs", "azure"})
_DIGEST_BYTES = 16


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
        self._folder: _Folder | None = None
        #: Of the files there, the oldest first; None before the first is written.
        self._names: list[str] | None = None

    @property
    def public_place(self) -> str:
        """The folder as anybody may see it; empty if there are credentials in it."""
        return "" if "@" in self._place else self._place

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
        shown = redact(self._place)
        text = f"{self._destination}: idLog='{shown}': {problem} ({reason.replace(self._place, shown)}). {advice}"
        return CheckpointError(text)

    def _opened(self) -> _Folder:
        if self._folder is None:
            remote = len(urlsplit(self._place).scheme) > 1
            self._folder = _Remote(self._place) if remote else _Local(Path(self._place))
        return self._folder

    def _listed(self, folder: _Folder) -> list[str]:
        ours = re.compile(f"{self._owner}-[0-9]{{12,}}-[0-9a-f]{{{2 * _DIGEST_BYTES}}}\\.json")
        return sorted(filter(ours.fullmatch, folder.names()))


def _forget(folder: _Folder, names: list[str]) -> None:
    """Remove what Spark has forgotten as well. A file that cannot be removed does no harm."""
    while len(names) > _FILES_KEPT:
        with contextlib.suppress(OSError):
            folder.remove(names.pop(0))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


class _Folder(ABC):
    """A folder with files, wherever it is. Everything raises what its library raises."""

    @abstractmethod
    def names(self) -> list[str]:
        """Of all files; none if there is no such folder."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """A new file: afterwards it is there as a whole, also after a loss of power."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A whole file."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """A file less."""


class _Local(_Folder):
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        return [file.name for file in self._path.iterdir()] if self._path.is_dir() else []

    def write(self, name: str, data: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        draft = self._path / f".{name}.{secrets.token_hex(4)}"
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path / name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class _Remote(_Folder):
    """What `pyarrow.fs` opens: S3, GCS, HDFS, and others."""

    def __init__(self, uri: str) -> None:
        from pyarrow import fs  # noqa: PLC0415 - some installations are built without it

        self._system, path = fs.FileSystem.from_uri(uri)
        self._path = path.rstrip("/")
        self._select = fs.FileSelector(self._path, allow_not_found=True)
        self._made = False

    def names(self) -> list[str]:
        return [found.base_name for found in self._system.get_file_info(self._select)]

    def write(self, name: str, data: bytes) -> None:
        if not self._made:
            self._system.create_dir(self._path, recursive=True)
            self._made = True
        target = f"{self._path}/{name}"
        draft = target if self._system.type_name in _OBJECT_STORES else f"{self._path}/.{name}.{secrets.token_hex(4)}"
        with self._system.open_output_stream(draft) as file:
            file.write(data)
        if draft != target:
            self._system.move(draft, target)

    def read(self, name: str) -> bytes:
        with self._system.open_input_stream(f"{self._path}/{name}") as file:
            data: bytes = file.read()
        return data

    def remove(self, name: str) -> None:
        self._system.delete_file(f"{self._path}/{name}")
