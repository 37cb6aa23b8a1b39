"""The files of a node's streams: earlier copies of them, which are put back as a loss of power does.

A put-back takes chunks that the node had. They are read from its files before (``osiris_log.erl`` has the format), so
a checker can name them whatever becomes of the stream afterwards.
"""

from __future__ import annotations

import re
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from testbed.brokers.rabbitmq import RabbitNode
from testbed.chaos.streams.audit import Records, joined
from testbed.chaos.streams.messages import ENTRY_BYTES, numbers_of

__all__ = ["StreamFiles", "records_of"]

_FILE_HEAD_BYTES = 8
#: Kind, entries, records, time, epoch, offset, CRC, bytes of data and of the trailer, bytes of the filter.
_HEAD = struct.Struct(">xBHIqQQIIIBxxx")
_USER = 0
#: A folder is named by virtual host, stream, and the time when that was made.
_FOLDER = re.compile(r"__(?P<stream>.+)_\d+")


class StreamFiles:
    """The files of all streams of a node, and one earlier copy of them.

    Args:
        folder: for the copy.
    """

    def __init__(self, node: RabbitNode, folder: Path) -> None:
        self._node, self._copy = node, folder
        self._saved_s = float("-inf")

    @property
    def age_s(self) -> float:
        """The age of the copy."""
        return time.monotonic() - self._saved_s

    def save(self) -> None:
        """Copy them, also while they are written."""
        shutil.rmtree(self._copy, ignore_errors=True)
        for folder in self._folders():
            to = self._copy / folder.name
            to.mkdir(parents=True)
            # The index first: a segment may have chunks that it does not name, which the broker drops.
            for file in sorted(folder.glob("*.index")):
                shutil.copy(file, to)
                shutil.copy(file.with_suffix(".segment"), to)
        self._saved_s = time.monotonic()

    def put_back(self) -> dict[str, Records]:
        """Put the copy in their place, while the node does not run.

        Returns:
            what that takes from the node, by stream.
        """
        taken = {}
        for folder in self._folders():
            copy = self._copy / folder.name
            if copy.exists() and (match := _FOLDER.fullmatch(folder.name)):
                taken[match["stream"]] = records_of(folder, but=copy)
                shutil.rmtree(folder)
                shutil.copytree(copy, folder)
        return taken

    def _folders(self) -> list[Path]:
        return [folder for folder in (self._node.data / "mnesia").glob("*/stream/*") if folder.is_dir()]


def records_of(folder: Path, but: Path | None = None) -> Records:
    """The records in the segments of a stream; without those of chunks that are in another folder as well."""
    left_out = set() if but is None else {head for head, _ in _chunks(but)}
    return joined([_records(head, data) for head, data in _chunks(folder) if head not in left_out])


def _chunks(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """The heads of chunks with messages, and their data; a cut end is left out."""
    for file in sorted(folder.glob("*.segment")):
        content, at = file.read_bytes(), _FILE_HEAD_BYTES
        while at + _HEAD.size <= len(content):
            kind, *_, size, trailer, bloom = _HEAD.unpack_from(content, at)
            begin = at + _HEAD.size + bloom
            head, data = content[at : at + _HEAD.size], content[begin : begin + size]
            at = begin + size + trailer
            if at <= len(content) and kind == _USER:
                yield head, data


def _records(head: bytes, data: bytes) -> Records:
    _, _, count, time_ms, _, first, *_ = _HEAD.unpack(head)
    return Records(np.arange(first, first + count), numbers_of(data, ENTRY_BYTES), np.full(count, time_ms))
