"""Transport of a partition's rows to its task: inside the task, or in memory that both processes share.

Rows inside a task are copied a dozen times: pickled, sent to the JVM, put into the task, serialized, taken out of it,
sent to the worker, unpickled. If Spark runs in one JVM (local mode), this process writes the rows to memory that the
worker reads, too (``memfd_create(2)``), and the task has only the path of this memory.

This module does not guess whether there is one JVM: the first rows travel inside their tasks, with a *mark*. A worker
that descends from this process's JVM, and finds the mark under its name, writes to the mark. On a cluster, or without
memfd or ``/proc``, no worker writes to the mark, and rows stay inside tasks.

The memory of an epoch is kept until Spark asks for the partitions of the next epoch. Spark does so only after it has
committed the first epoch.
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
#: Most in-memory files for one epoch; by default a process may have 1,024 open files of any kind.
_FILES_MAX = 64


class _Memory:
    """An in-memory file, identified by the path under which processes of the same user on the same machine find it.

    The path names a process and an open file of this process. The file's name tells whether the path still leads to
    the same file.
    """

    def __init__(self, file: int, name: str) -> None:
        self.path = f"/proc/{os.getpid()}/fd/{file}"
        self.name = name

    @contextmanager
    def opened(self, flags: int) -> Iterator[int]:
        """Open the memory and yield its descriptor; raise an OSError if it is gone."""
        # Another file may have replaced it, and opening that must not block.
        file = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if Path(f"/proc/self/fd/{file}").readlink().name.partition(" ")[0] != f"memfd:{self.name}":
                raise FileNotFoundError(f"{self.path} is now another file")
            yield file
        finally:
            os.close(file)


class _OwnMemory:
    """Memory in the process that created it.

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
        """Write an Arrow stream and map it; raise an OSError if there is no room.

        Write through the file: writing to the mapping would zero-fill all pages, then cost a page fault for each.
        """
        path = f"/proc/self/fd/{self.file}"
        with pa.OSFile(path, "wb") as sink:
            builder.write(batches, sink)
        with pa.memory_map(path) as mapped:
            return mapped.read_buffer()

    def close(self) -> None:
        os.close(self.file)


class Rows(InputPartition):
    """Rows inside the task, as an Arrow stream. Holds no options, so no password reaches an executor."""

    def __init__(self, stream: pa.Buffer, mark: _Memory | None, parent: int) -> None:
        super().__init__(None)
        self.stream = stream
        self._mark = mark
        self._parent = parent

    def __repr__(self) -> str:
        return f"Rows({self.stream.size} bytes)"

    @contextmanager
    def opened(self) -> Iterator[pa.ipc.RecordBatchStreamReader]:
        """Open the stream, on the executor."""
        if self._mark is not None:
            with contextlib.suppress(Exception):  # if the mark fails, rows just stay inside tasks
                if self._parent in _ancestors():
                    with self._mark.opened(os.O_WRONLY) as file:
                        os.pwrite(file, _CONFIRMED, 0)
        with pa.ipc.open_stream(self.stream) as stream:
            yield stream


class _SharedRows(InputPartition):
    """Rows in the memory of the process that reads the queue."""

    def __init__(self, memory: _Memory) -> None:
        super().__init__(None)
        self._memory = memory

    def __repr__(self) -> str:
        return f"_SharedRows({self._memory.path})"

    @contextmanager
    def opened(self) -> Iterator[pa.ipc.RecordBatchStreamReader]:
        """Open the stream, on the same machine."""
        try:
            with self._memory.opened(os.O_RDONLY) as file:
                mapped = pa.memory_map(f"/proc/self/fd/{file}")
        except OSError as gone:
            raise MqError(
                f"the rows of this task are gone ({gone}): the task's epoch is already committed, or the process that "
                "reads the queue has ended. Use the rows of a batch before foreachBatch returns, or persist them"
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
        """Whether a worker has written to the mark, which proves that the worker descends from the same JVM."""
        return self._mark is not None and os.pread(self._mark.file, len(_CONFIRMED), 0) == _CONFIRMED

    def begin_epoch(self) -> Self:
        """Begin another epoch, and free the memory of the previous epoch, whose partitions are no longer needed."""
        for memory in self._kept:
            memory.close()
        self._kept.clear()
        return self

    def partition(self, builder: BatchBuilder, batches: Sequence[pa.RecordBatch]) -> tuple[InputPartition, pa.Buffer]:
        """Return a partition with these rows, and the memory that holds them."""
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
    """Return the parent and grandparent of this process, as far as they are known.

    A Spark worker is a child of the JVM, or of a daemon that is a child of the JVM (PythonWorkerFactory.scala).
    """
    parent = os.getppid()
    # pid (name) state ppid …: a name may have anything in it (proc(5)).
    fields = Path(f"/proc/{parent}/stat").read_text("utf-8", "replace").rpartition(")")[2]
    return [parent, int(fields.split()[1])]
