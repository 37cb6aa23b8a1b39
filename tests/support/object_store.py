"""A server that speaks S3, for the client that `pyarrow.fs` has; what it stores ends with it."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from pyarrow import fs

from testbed.ports import listens
from testbed.process import LOOPBACK, Command, NodeError, Process, ReservedPort, Started, poll

__all__ = ["ObjectStore"]

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_BUCKET = "bucket"


class ObjectStore(Started):
    """moto's server, with one empty bucket.

    Attributes:
        secret: of its only user, part of every URI.
    """

    secret = "hushhush-secret"

    def __init__(self) -> None:
        """Nothing is started yet.

        Raises:
            NodeError: moto is not installed.
        """
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise NodeError("moto is not installed: make setup")
        self._folder = tempfile.TemporaryDirectory(prefix="pyspark-mq-s3-")
        self._port = ReservedPort()
        self._process: Process | None = None

    def uri(self, path: str) -> str:
        """Of a folder in the bucket."""
        place = f"{LOOPBACK}:{self._port.number}"
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

    def start(self) -> None:
        """Start it and make the bucket.

        Raises:
            NodeError: it did not come up; with its log.
        """
        log = Path(self._folder.name, "log")
        command = [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self._port.number)]
        self._process = Process(Command(command, dict(os.environ)), log=log, folder=Path(self._folder.name))
        if not poll(lambda: listens(self._port.number), _START_TIMEOUT_S):
            raise NodeError(f"the object store did not start: {log.read_text('utf-8', 'replace')[-2000:]}")
        fs.FileSystem.from_uri(f"{self.uri('')}&allow_bucket_creation=true")[0].create_dir(_BUCKET)

    def close(self) -> None:
        """End it; what it stored is gone."""
        if self._process is not None:
            self._process.terminate(_STOP_TIMEOUT_S)
            self._process.kill()
        self._port.close()
        self._folder.cleanup()
