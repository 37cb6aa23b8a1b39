"""A server that speaks S3, for the client that `pyarrow.fs` has; what it stores ends with it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from pyarrow import fs

from testbed.ports import LOOPBACK, listens
from testbed.process import Command, NodeError
from testbed.server import LocalServer

__all__ = ["ObjectStore"]

_BUCKET = "bucket"


class ObjectStore(LocalServer):
    """moto's server, with one empty bucket.

    Attributes:
        secret: of its only user, part of every URI.
    """

    title = "object-store"
    secret = "hushhush-secret"

    def __init__(self) -> None:
        """Nothing is started yet.

        Raises:
            NodeError: moto is not installed.
        """
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise NodeError("moto is not installed: make setup")
        super().__init__()
        self._port = self._reserve_port()

    def uri(self, path: str) -> str:
        """Of a folder in the bucket."""
        place = f"{LOOPBACK}:{self._port}"
        return f"s3://user:{self.secret}@{_BUCKET}/{path}?scheme=http&endpoint_override={place}&region=us-east-1"

    def names(self, path: str) -> list[str]:
        """Of the files in a folder of the bucket."""
        system, _ = fs.FileSystem.from_uri(self.uri(path))
        found = system.get_file_info(fs.FileSelector(f"{_BUCKET}/{path}", allow_not_found=True))
        return sorted(one.base_name for one in found)

    def copy(self, folder: Path, path: str) -> None:
        """A folder of this machine into the bucket."""
        system, _ = fs.FileSystem.from_uri(self.uri(path))
        fs.copy_files(str(folder), f"{_BUCKET}/{path}", destination_filesystem=system)

    def _command(self) -> Command:
        command = [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self._port)]
        return Command(command, dict(os.environ))

    def _ready(self) -> bool:
        return listens(self._port)

    def _started(self) -> None:
        fs.FileSystem.from_uri(f"{self.uri('')}&allow_bucket_creation=true")[0].create_dir(_BUCKET)
