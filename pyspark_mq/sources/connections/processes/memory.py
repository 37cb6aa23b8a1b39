"""Memory shared by two processes: files without a name, mapped where they are read."""

from __future__ import annotations

import os

import pyarrow as pa

__all__ = ["read_file", "write_file"]


def write_file(data: bytes | memoryview) -> int:
    """The descriptor of a file without a name that holds these bytes.

    Raises:
        OSError: there is no memory for it.
    """
    file = os.memfd_create("pyspark-mq", os.MFD_CLOEXEC)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
    except BaseException:
        os.close(file)
        raise
    return file


def read_file(file: int) -> pa.Buffer:
    """The bytes of such a file, where they are: the file stays for as long as the buffer, or what refers to it.

    Args:
        file: a descriptor, closed here.

    Raises:
        OSError: there is no room for it.
    """
    try:
        # Python's own mapping keeps a descriptor besides (until 3.13), of which a process has 1,024 by default.
        with pa.memory_map(f"/proc/self/fd/{file}") as mapped:
            return mapped.read_buffer()
    except OSError as failed:
        size, why = os.fstat(file).st_size, os.strerror(failed.errno or 0)
        raise OSError(failed.errno, f"cannot map {size} bytes of messages: {why}") from None
    finally:
        os.close(file)
