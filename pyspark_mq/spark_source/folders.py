"""Folders that contain files, on this machine or in a store that `pyarrow.fs` opens (S3, GCS, HDFS, Azure).

A *place* is the path or URI of a folder, as users write it in `checkpointLocation` or `idLog`. Spark parses such a
place as a Hadoop `Path`, in which names are literal: `%20` is three characters, and a space, `[1]` or `#` needs no
escape (Path(String), with or without a scheme). This module follows the same rules. It escapes names only when it
passes them to `pyarrow.fs`.
"""

from __future__ import annotations

import os
import posixpath
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from pyspark_mq.wire.url import redact

__all__ = ["ID_FOLDER", "PLACES", "Folder", "above", "below", "is_uri", "open_folder", "resolve", "shown_place"]

#: Folder in a checkpoint for the ID log of its sources. Spark does not use this name.
ID_FOLDER = "mq-ids"
#: Which places are accepted, as errors describe them.
PLACES = "an absolute path, or a URI that pyarrow.fs opens: s3://, s3a://, gs://, abfss://, hdfs://"

#: Names that `pyarrow.fs` gives to object stores. An object store writes a file completely or not at all, and renames a
#: file by copying it, so files are written there without a temporary name.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs", "azure"})
#: Scheme -> class of `pyarrow.fs` that opens it.
_SYSTEMS = {
    "s3": "S3FileSystem", "gs": "GcsFileSystem", "gcs": "GcsFileSystem", "abfs": "AzureFileSystem",
    "abfss": "AzureFileSystem", "hdfs": "HadoopFileSystem", "viewfs": "HadoopFileSystem",
}  # fmt: skip
#: Schemes that Hadoop uses for S3 -> the scheme that `pyarrow.fs` uses.
_SAME = {"s3a": "s3", "s3n": "s3"}
#: Schemes that Spark opens but `pyarrow.fs` does not -> what to use instead.
_INSTEAD = {
    "dbfs": "on Databricks use a volume, /Volumes/<catalog>/<schema>/<volume>/…, for the writer too",
    "wasb": "for the same account use abfss://<container>@<account>.dfs.core.windows.net/…",
}
_INSTEAD["wasbs"] = _INSTEAD["wasb"]
#: A URI's scheme, authority, path and parameters. A `?` belongs to the path, unless parameters of the form that
#: `pyarrow.fs` accepts follow it.
_URI = re.compile(
    r"(?P<scheme>[A-Za-z][\w+.-]+):(?://(?P<authority>[^/?]*))?(?P<path>(?:/.*?)?)"
    r"(?P<parameters>(?:\?\w+=[^&]*(?:&\w+=[^&]*)*)?)",
    re.DOTALL,
)


def open_folder(place: str, below: str = "") -> Folder:
    """Return a :class:`Folder` for a path or URI. The folder does not have to exist yet.

    Args:
        place: path or URI of a folder, as returned by :func:`resolve`.
        below: name of a subfolder to open instead; empty to open `place` itself.
    """
    return _Remote(place, below) if is_uri(place) else _Local(Path(place, below))


def is_uri(place: str) -> bool:
    return _URI.fullmatch(place) is not None


def resolve(place: str) -> str:
    """Return the normalized form of a place (path or URI) that a user has set as an option.

    Raises:
        ValueError: neither this machine nor `pyarrow.fs` can open the place. The text says what to use instead, and
            does not show credentials.
    """
    found = _URI.fullmatch(place)
    if found is None:
        return posixpath.normpath(place)
    scheme, authority, path = found["scheme"].lower(), found["authority"] or "", found["path"]
    scheme = _SAME.get(scheme, scheme)
    if scheme == "file":
        if authority:
            raise ValueError(f"{shown_place(place)!r} names a host; write a path on this machine as file:///path")
        return _normal(f"{path}{found['parameters']}")
    if scheme in _INSTEAD:
        raise ValueError(f"{shown_place(place)!r} is not a place that pyarrow.fs opens; {_INSTEAD[scheme]}")
    _check_installed(scheme, place)
    if not authority and _SYSTEMS[scheme] != "HadoopFileSystem":
        raise ValueError(f"{shown_place(place)!r} does not name a bucket or container")
    return f"{scheme}://{authority}{_normal(path).rstrip('/')}{found['parameters']}"


def _normal(path: str) -> str:
    """Return a path as Hadoop normalizes it: absolute, without `.`, `..` and redundant slashes."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _check_installed(scheme: str, place: str) -> None:
    name = _SYSTEMS.get(scheme)
    if name is None:
        raise ValueError(f"{shown_place(place)!r} is not accepted; use {PLACES}")
    with suppress(ImportError):
        from pyarrow import fs  # noqa: PLC0415 - some installations are built without it

        if name in vars(fs):
            return
    raise ValueError(
        f"{shown_place(place)!r} needs pyarrow.fs.{name}, which this build of pyarrow lacks: install a "
        "build that has it"
    )


def shown_place(place: str) -> str:
    """Return a place (path or URI) in the form for errors and logs: without user, password and parameters."""
    return redact(place) if "@" in place or (is_uri(place) and _split(place)[1]) else place


def below(place: str, name: str) -> str:
    """Return the place (path or URI) of the folder `name` within the folder `place`."""
    path, parameters = _split(place)
    return f"{path.rstrip('/')}/{name}{parameters}"


def above(place: str) -> str | None:
    """Return the place of the checkpoint to which an ID folder (:data:`ID_FOLDER`) belongs; None for other folders."""
    path, parameters = _split(place)
    root = path.removesuffix(f"/{ID_FOLDER}")
    return None if root == path else f"{root}{parameters}"


def _split(place: str) -> tuple[str, str]:
    """Split a place into the part before its parameters, and the parameters."""
    found = _URI.fullmatch(place)
    at = len(place) if found is None else found.start("parameters")
    return place[:at], place[at:]


class Folder(ABC):
    """A folder that contains files, on this machine or in a store.

    Methods do not translate errors: they raise the `OSError` or Arrow error of the underlying library.
    """

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all files; an empty list if the folder does not exist."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a new file. The file is complete or absent, even if the process or the machine stops meanwhile."""

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
        # Append `below` to the path rather than to the URI, because parameters may follow the path in a URI.
        self._path = f"{path.rstrip('/')}/{below}".rstrip("/")
        self._select = fs.FileSelector(self._path, allow_not_found=True)
        # Object stores need no folders, and the user may lack the permission to create one.
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
    """Escape the path of a URI, because `pyarrow.fs` decodes %20 to a space, and refuses an unescaped space."""
    found = _URI.fullmatch(uri)
    assert found is not None, "only URIs are remote"
    return f"{found['scheme']}://{found['authority'] or ''}{quote(found['path'])}{found['parameters']}"
