"""Folders of files, on this machine or in a store that `pyarrow.fs` opens (S3, GCS, HDFS, Azure).

Users write a place as they do for Spark, which parses it as a Hadoop `Path`. Names in a `Path` are literal: `%20` is
three characters, and a space, `[1]` or `#` needs no escape (Path(String), with or without a scheme). This module
follows the same rules, and escapes names only for `pyarrow.fs`.
"""

from __future__ import annotations

import os
import posixpath
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from pyspark_mq.sources.url import redact

__all__ = ["ID_FOLDER", "PLACES", "Folder", "above", "below", "is_uri", "open_folder", "resolve", "shown_place"]

#: Folder in a checkpoint for the ID log of its sources. Spark does not use this name.
ID_FOLDER = "mq-ids"
#: Accepted places, for errors.
PLACES = "an absolute path, or a URI that pyarrow.fs opens: s3://, s3a://, gs://, abfss://, hdfs://"

#: Names of object stores, which write a whole file or none, and rename by copying.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs", "azure"})
#: Scheme -> class of `pyarrow.fs` that opens it.
_SYSTEMS = {
    "s3": "S3FileSystem", "gs": "GcsFileSystem", "gcs": "GcsFileSystem", "abfs": "AzureFileSystem",
    "abfss": "AzureFileSystem", "hdfs": "HadoopFileSystem", "viewfs": "HadoopFileSystem",
}  # fmt: skip
#: Hadoop's other names for a scheme -> the scheme of the same store.
_SAME = {"s3a": "s3", "s3n": "s3"}
#: Schemes that Spark opens and `pyarrow.fs` does not, and what to use instead.
_INSTEAD = {
    "dbfs": "on Databricks use a volume, /Volumes/<catalog>/<schema>/<volume>/…, for the writer too",
    "wasb": "for the same account use abfss://<container>@<account>.dfs.core.windows.net/…",
}
_INSTEAD["wasbs"] = _INSTEAD["wasb"]
#: Scheme, authority, path and parameters. Anything that does not look like `pyarrow.fs` parameters is part of a name.
_URI = re.compile(
    r"(?P<scheme>[A-Za-z][\w+.-]+):(?://(?P<authority>[^/?]*))?(?P<path>(?:/.*?)?)"
    r"(?P<parameters>(?:\?\w+=[^&]*(?:&\w+=[^&]*)*)?)",
    re.DOTALL,
)


def open_folder(place: str, below: str = "") -> Folder:
    """Return a folder, which may not exist yet.

    Args:
        place: as returned by :func:`resolve`.
        below: the name of the folder to open in `place`; empty to open `place` itself.
    """
    return _Remote(place, below) if is_uri(place) else _Local(Path(place, below))


def is_uri(place: str) -> bool:
    return _URI.fullmatch(place) is not None


def resolve(place: str) -> str:
    """Normalize a place as users write it for Spark.

    Raises:
        ValueError: the place cannot be opened; the message says what to use instead and hides credentials.
    """
    found = _URI.fullmatch(place)
    if found is None:
        return posixpath.normpath(place)
    scheme, authority, path = found["scheme"].lower(), found["authority"] or "", found["path"]
    scheme = _SAME.get(scheme, scheme)
    if scheme == "file":
        if authority:
            raise ValueError(f"{shown_place(place)!r} names a host; write a path on this machine as file:///…")
        return _normal(f"{path}{found['parameters']}")
    if scheme in _INSTEAD:
        raise ValueError(f"{shown_place(place)!r} is not a place that pyarrow.fs opens; {_INSTEAD[scheme]}")
    _check_installed(scheme, place)
    if not authority and _SYSTEMS[scheme] != "HadoopFileSystem":
        raise ValueError(f"{shown_place(place)!r} does not name a bucket or container")
    return f"{scheme}://{authority}{_normal(path).rstrip('/')}{found['parameters']}"


def _normal(path: str) -> str:
    """Return an absolute path as Hadoop does: without `.`, `..` and redundant slashes."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _check_installed(scheme: str, place: str) -> None:
    name = _SYSTEMS.get(scheme)
    if name is None:
        raise ValueError(f"{shown_place(place)!r} is not accepted; accepted is {PLACES}")
    with suppress(ImportError):
        from pyarrow import fs  # noqa: PLC0415 - some installations are built without it

        if name in vars(fs):
            return
    raise ValueError(
        f"{shown_place(place)!r} needs pyarrow.fs.{name}, which this build of pyarrow lacks: install a "
        "build that has it"
    )


def shown_place(place: str) -> str:
    """Return a place for errors and logs, without anything that may be a user, a password or a parameter."""
    return redact(place) if "@" in place or (is_uri(place) and _split(place)[1]) else place


def below(place: str, name: str) -> str:
    """Return the place of the folder `name` within `place`."""
    path, parameters = _split(place)
    return f"{path.rstrip('/')}/{name}{parameters}"


def above(place: str) -> str | None:
    """Return the checkpoint that contains this ID folder (:data:`ID_FOLDER`); None for any other folder."""
    path, parameters = _split(place)
    root = path.removesuffix(f"/{ID_FOLDER}")
    return None if root == path else f"{root}{parameters}"


def _split(place: str) -> tuple[str, str]:
    """Split a place into the part before its parameters, and the parameters."""
    found = _URI.fullmatch(place)
    at = len(place) if found is None else found.start("parameters")
    return place[:at], place[at:]


class Folder(ABC):
    """A folder of files, local or remote. Methods raise the errors of their library."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all files; none if the folder does not exist."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a new file, completely or not at all, even if power is lost."""

    def replace(self, name: str, data: bytes) -> None:
        """Replace the contents of an existing file."""
        self.write(name, data)

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Read a whole file."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a file."""


class _Local(Folder):
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        return [file.name for file in self._path.iterdir()] if self._path.is_dir() else []

    def write(self, name: str, data: bytes) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        draft = self._path / f".{name}"
        try:
            with draft.open("wb") as file:
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


class _Remote(Folder):
    """A folder that `pyarrow.fs` opens: S3, GCS, HDFS, Azure."""

    def __init__(self, uri: str, below: str) -> None:
        from pyarrow import fs  # noqa: PLC0415 - some installations are built without it

        self._system, path = fs.FileSystem.from_uri(_escaped(uri))
        # In a URI, parameters may follow the path.
        self._path = f"{path.rstrip('/')}/{below}".rstrip("/")
        self._select = fs.FileSelector(self._path, allow_not_found=True)
        # Object stores have no folders, and the user may lack the right to create a folder there.
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
        draft = target if self._objects else f"{self._path}/.{name}"
        with self._system.open_output_stream(draft) as file:
            file.write(data)
        if draft != target:
            if there:
                self._system.delete_file(target)  # HDFS does not rename onto an existing file
            self._system.move(draft, target)

    def read(self, name: str) -> bytes:
        with self._system.open_input_stream(f"{self._path}/{name}") as file:
            data: bytes = file.read()
        return data

    def remove(self, name: str) -> None:
        self._system.delete_file(f"{self._path}/{name}")


def _escaped(uri: str) -> str:
    """Escape a URI for `pyarrow.fs`, which decodes %20 to a space, and refuses an unescaped space."""
    found = _URI.fullmatch(uri)
    assert found is not None, "only URIs are remote"
    return f"{found['scheme']}://{found['authority'] or ''}{quote(found['path'])}{found['parameters']}"
