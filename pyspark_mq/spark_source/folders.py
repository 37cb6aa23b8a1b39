"""Folders with files, wherever they are: on this machine, or where `pyarrow.fs` opens them (S3, GCS, HDFS)."""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["ID_FOLDER", "Folder", "as_uri", "below", "is_uri", "open_folder"]

#: Folder of a checkpoint that has the ID log of its sources. Spark has none of that name.
ID_FOLDER = "mq-ids"

#: Object stores put a whole file or none, and know no cheaper way to rename one than to copy it.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs", "azure"})


def open_folder(place: str, below: str = "") -> Folder:
    """A folder, which may not be there yet.

    Args:
        place: a path, or a URI that `pyarrow.fs` opens.
        below: the name of a folder in it, which is the one to open.

    Raises:
        Exception: whatever `pyarrow.fs` has against the URI.
    """
    return _Remote(place, below) if is_uri(place) else _Local(Path(place, below))


def is_uri(place: str) -> bool:
    """Is it a URI, and not a path?"""
    try:
        return len(urlsplit(place).scheme) > 1
    except ValueError:  # brackets that are no address
        return False


def as_uri(place: str) -> str:
    """A place as Spark's users write it, for :func:`open_folder`."""
    if place.startswith("file:/"):  # as Hadoop writes paths of this machine
        return place.removeprefix("file:")
    scheme, mark, rest = place.partition("://")
    return f"s3://{rest}" if mark and scheme in {"s3a", "s3n"} else place


def below(place: str, name: str) -> str:
    """The place of a folder in another."""
    path, mark, parameters = place.partition("?") if is_uri(place) else (place, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{parameters}"


class Folder(ABC):
    """A folder with files, wherever it is. Everything raises what its library raises."""

    @abstractmethod
    def names(self) -> list[str]:
        """Of all files; none if there is no such folder."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """A new file: afterwards it is there as a whole, also after a loss of power."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Another content for a file that is there."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A whole file."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """A file less."""


class _Local(Folder):
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

    def replace(self, name: str, data: bytes) -> None:
        self.write(name, data)

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class _Remote(Folder):
    """Folders that `pyarrow.fs` opens: S3, GCS, HDFS, and others."""

    def __init__(self, uri: str, below: str) -> None:
        from pyarrow import fs  # noqa: PLC0415 - some installations are built without it

        self._system, path = fs.FileSystem.from_uri(uri)
        # A URI may go on behind its path, with parameters.
        self._path = f"{path.rstrip('/')}/{below}".rstrip("/")
        self._select = fs.FileSelector(self._path, allow_not_found=True)
        # They have no folders, and need no right to make one.
        self._objects = self._system.type_name in _OBJECT_STORES
        self._made = self._objects

    def names(self) -> list[str]:
        return [found.base_name for found in self._system.get_file_info(self._select)]

    def write(self, name: str, data: bytes) -> None:
        self._put(name, data, there=False)

    def replace(self, name: str, data: bytes) -> None:
        self._put(name, data, there=True)

    def _put(self, name: str, data: bytes, *, there: bool) -> None:
        if not self._made:
            self._system.create_dir(self._path, recursive=True)
            self._made = True
        target = f"{self._path}/{name}"
        draft = target if self._objects else f"{self._path}/.{name}.{secrets.token_hex(4)}"
        with self._system.open_output_stream(draft) as file:
            file.write(data)
        if draft != target:
            if there:
                self._system.delete_file(target)  # HDFS renames onto nothing that is there
            self._system.move(draft, target)

    def read(self, name: str) -> bytes:
        with self._system.open_input_stream(f"{self._path}/{name}") as file:
            data: bytes = file.read()
        return data

    def remove(self, name: str) -> None:
        self._system.delete_file(f"{self._path}/{name}")
