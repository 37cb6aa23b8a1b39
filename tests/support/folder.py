"""A folder in memory, for the files of the journal: what is written is there at once, and as a whole."""

from __future__ import annotations

from pyspark_mq.spark_source.folders import Folder

__all__ = ["MemoryFolder"]


class MemoryFolder(Folder):
    """Files by their names.

    Attributes:
        files: name -> content.
        written: bytes written so far.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.written = 0

    def names(self) -> list[str]:
        return list(self.files)

    def write(self, name: str, data: bytes) -> None:
        assert name not in self.files, f"{name} is written twice"
        self.replace(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self.files[name] = data
        self.written += len(data)

    def read(self, name: str) -> bytes:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def remove(self, name: str) -> None:
        del self.files[name]
