"""Memory shared by two processes: files without a name, mapped where they are read."""

from __future__ import annotations

import ctypes
import mmap
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


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """A file in memory, to be read, for as long as this object lives.

    Python's own mapping keeps a descriptor besides (until 3.13), of which a process has 1,024 by default.

    Args:
        file: a descriptor, not needed any more afterwards.
        size: of the file, bytes.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, file: int, size: int) -> None:
        self.size = size
        self.address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        if self.address == _MAP_FAILED:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot map {size} bytes of messages: {os.strerror(error)}")

    def __del__(self) -> None:
        if self.address != _MAP_FAILED:
            _libc.munmap(self.address, self.size)


def read_file(file: int) -> pa.Buffer:
    """The bytes of such a file, where they are: the file stays for as long as the buffer, or what refers to it.

    Args:
        file: a descriptor, closed here.

    Raises:
        OSError: there is no room for it.
    """
    try:
        mapping = _Mapping(file, os.fstat(file).st_size)
    finally:
        os.close(file)
    return pa.foreign_buffer(mapping.address, mapping.size, mapping)
