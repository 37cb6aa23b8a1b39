"""Transports a partition's rows to its task: inside the task, or in memory that both processes share.

Rows inside a task are copied about a dozen times on their way from this process through the JVM to the Python worker
that runs the task. If Spark runs in one JVM (local mode), this process instead writes the rows to an in-memory file
(``memfd_create(2)``) that the worker can open, and the task has only the path of this file.

To find out whether there is only one JVM, this module creates another in-memory file, the *mark*. The first rows
travel inside their tasks, together with the path of the mark. A worker that descends from the JVM of this process, and
can open the mark, writes one byte to it. On a cluster, or without memfd or ``/proc``, no worker writes to the mark, and
rows continue to travel inside tasks.

The memory of an epoch is kept until Spark asks for the partitions of the next epoch, because by then Spark has
committed the former epoch.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_mq.errors import MqError

if TYPE_CHECKING:
    from typing_extensions import Self

    from pyspark_mq.spark_source.schema import BatchBuilder

__all__ = ["Rows", "TaskTransport"]

_CONFIRMED = b"1"
#: Maximum number of in-memory files for one epoch. By default a process may have 1,024 open files of any kind.
_FILES_MAX = 64


class _Memory:
    """The address of an in-memory file, which other processes of the same user on the same machine can open.

    The path consists of two numbers: the ID of the process that created the file, and that process's file descriptor.
    Both numbers may be reused, so the file's random name tells whether the path still leads to this file.
    """

    def __init__(self, file: int, name: str) -> None:
        self.path = f"/proc/{os.getpid()}/fd/{file}"
        self.name = name

    @contextmanager
    def opened(self, flags: int) -> Iterator[int]:
        """Open the file and yield its descriptor; raise an OSError if the file does not exist any more."""
        # The path may lead to something else now, for example a pipe, and opening it must not block.
        file = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if Path(f"/proc/self/fd/{file}").readlink().name.partition(" ")[0] != f"memfd:{self.name}":
                raise FileNotFoundError(f"{self.path} is now another file")
            yield file
        finally:
            os.close(file)


class _OwnMemory:
    """An in-memory file that this process has created.

    Raises:
        OSError: this system does not support in-memory files, or the process has no descriptor left.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system does not support in-memory files (memfd_create)")
        name = f"pyspark-mq-{secrets.token_hex(16)}"
        self.file = os.memfd_create(name, os.MFD_CLOEXEC)
        self.shared = _Memory(self.file, name)

    def write(self, builder: BatchBuilder, batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
        """Write an Arrow stream to the file, and return the file's memory; raise an OSError if there is not enough.

        The stream is written to the file rather than to a memory mapping, because a mapping would first fill all pages
        with zeros, and cost a page fault for each page.
        """
        path = f"/proc/self/fd/{self.file}"
        with pa.OSFile(path, "wb") as sink:
            builder.write(batches, sink)
        with pa.memory_map(path) as mapped:
            return mapped.read_buffer()

    def close(self) -> None:
        os.close(self.file)


class Rows(InputPartition):
    """A partition whose rows travel inside the task, as an Arrow stream. It does not contain any password."""

    def __init__(self, stream: pa.Buffer, mark: _Memory | None, parent: int) -> None:
        super().__init__(None)
        self.stream = stream
        self._mark = mark
        self._parent = parent

    def __repr__(self) -> str:
        return f"Rows({self.stream.size} bytes)"

    @contextmanager
    def opened(self) -> Iterator[pa.ipc.RecordBatchStreamReader]:
        """Open the Arrow stream with the rows. The worker process that runs the task calls this method."""
        if self._mark is not None:
            with contextlib.suppress(Exception):  # without the byte in the mark, rows still travel inside tasks
                if self._parent in _ancestors():
                    with self._mark.opened(os.O_WRONLY) as file:
                        os.pwrite(file, _CONFIRMED, 0)
        with pa.ipc.open_stream(self.stream) as stream:
            yield stream


class _SharedRows(InputPartition):
    """A partition whose rows are in an in-memory file of the process that reads the queue."""

    def __init__(self, memory: _Memory) -> None:
        super().__init__(None)
        self._memory = memory

    def __repr__(self) -> str:
        return f"_SharedRows({self._memory.path})"

    @contextmanager
    def opened(self) -> Iterator[pa.ipc.RecordBatchStreamReader]:
        """Open the Arrow stream with the rows. Called by the worker that runs the task, on the same machine."""
        try:
            with self._memory.opened(os.O_RDONLY) as file:
                mapped = pa.memory_map(f"/proc/self/fd/{file}")
        except OSError as gone:
            raise MqError(
                f"the rows of this task no longer exist ({gone}): the task's epoch is already committed, or the "
                "process that reads the queue has ended. Use the rows of a batch before foreachBatch returns, or "
                "persist them"
            ) from None
        with mapped, pa.ipc.open_stream(mapped) as stream:
            yield stream


class TaskTransport:
    """Creates the partitions of one query's epochs, in the process that reads the queue."""

    def __init__(self) -> None:
        self._mark: _OwnMemory | None = None
        with contextlib.suppress(OSError):
            self._mark = _OwnMemory()
        self._kept: list[_OwnMemory] = []

    @property
    def same_jvm(self) -> bool:
        """Whether a task's worker has written to the mark file, so that it must descend from the same JVM."""
        return self._mark is not None and os.pread(self._mark.file, len(_CONFIRMED), 0) == _CONFIRMED

    def begin_epoch(self) -> Self:
        """Free the memory of the previous epoch, whose partitions are no longer needed, and return this object."""
        for memory in self._kept:
            memory.close()
        self._kept.clear()
        return self

    def partition(self, builder: BatchBuilder, batches: Sequence[pa.RecordBatch]) -> tuple[InputPartition, pa.Buffer]:
        """Return a partition with these rows, and the memory that has the rows as an Arrow stream."""
        if self.same_jvm and len(self._kept) < _FILES_MAX:
            with contextlib.suppress(OSError):
                return self._shared(builder, batches)
        mark = None if self._mark is None else self._mark.shared
        stream = builder.serialize(batches)
        return Rows(stream, mark, os.getppid()), stream

    def _shared(self, builder: BatchBuilder, batches: Sequence[pa.RecordBatch]) -> tuple[InputPartition, pa.Buffer]:
        memory = _OwnMemory()
        try:
            stream = memory.write(builder, batches)
        except BaseException:
            memory.close()
            raise
        self._kept.append(memory)
        return _SharedRows(memory.shared), stream


def _ancestors() -> list[int]:
    """Return the process IDs of this process's parent and grandparent.

    One of them is Spark's JVM: a worker is a child of the JVM, or of a daemon that is a child of the JVM
    (PythonWorkerFactory.scala).
    """
    parent = os.getppid()
    # pid (name) state ppid …: a name may have anything in it (proc(5)).
    fields = Path(f"/proc/{parent}/stat").read_text("utf-8", "replace").rpartition(")")[2]
    return [parent, int(fields.split()[1])]
