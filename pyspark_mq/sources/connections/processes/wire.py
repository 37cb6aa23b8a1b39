"""The wire between a receiver process and the source process: a Unix socket.

A frame is a pickled object, bytes beside it, and maybe a file without a name: the events and requests of
:mod:`pyspark_mq.sources.connections`, where a block travels as the Arrow message of its record batch. Both sides are of
one version and one interpreter.

A file travels with the first byte of its frame (`SCM_RIGHTS`), so files and frames that have one keep the same order.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import socket
from array import array
from collections import deque
from dataclasses import dataclass
from struct import Struct
from typing import Any

import pyarrow as pa

from pyspark_mq.brokers import BROKERS, Broker
from pyspark_mq.sources.connections.block import Block, Metadata
from pyspark_mq.sources.connections.events import Delivered

__all__ = ["Channel", "Hello", "read_event", "send_event", "write_file"]

_head = Struct("=QQ?")
_READ_BYTES = 256 << 10
#: The kernel gives those of one frame with each read.
_BESIDE_BYTES = socket.CMSG_SPACE(16 * 4)
#: Below this a block goes through the socket: a mapping takes a page at least, and a process has 65,530 of them
#: (`max_map_count`).
_INLINE_BYTES = 128 << 10
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it came.

    Attributes:
        data: beside the message.
        file: a descriptor, now to be closed by who received it; None if there is none.
    """

    message: Any
    data: bytes
    file: int | None


class _Pickler(pickle.Pickler):
    """Pickle brokers by name: they are compared by identity."""

    def persistent_id(self, value: Any) -> str | None:
        return value.name if isinstance(value, Broker) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: str) -> Broker:
        return BROKERS[name]


class Channel:
    """One end of it. One thread sends and one receives, at the same time if they like.

    Args:
        connected: a stream socket of the family AF_UNIX that blocks.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._came = bytearray()
        self._files: deque[int] = deque()
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    def send(self, message: object, data: bytes | memoryview = b"", file: int | None = None) -> None:
        """Send a frame; waits while the other side does not read.

        Args:
            file: a descriptor; it stays the caller's.

        Raises:
            OSError: the other side is gone.
        """
        buffer = io.BytesIO()
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
        pickled = buffer.getvalue()
        whole = b"".join((_head.pack(len(pickled), len(data), file is not None), pickled, data))
        sent = 0 if file is None else socket.send_fds(self._socket, [whole], [file])
        if sent < len(whole):
            self._socket.sendall(memoryview(whole)[sent:])

    def receive(self, timeout_s: float | None = None) -> Frame | None:
        """The next frame, waited for; None when the other side is gone.

        Args:
            timeout_s: for how long nothing may come, in the middle of a frame either; None for ever.

        Raises:
            TimeoutError: nothing came for so long. What had come is kept.
        """
        if not self._fill(_head.size, timeout_s):
            return None
        pickled, beside, has_file = _head.unpack_from(self._came)
        if not self._fill(_head.size + pickled + beside, timeout_s):
            return None
        end = _head.size + pickled
        message = _Unpickler(io.BytesIO(self._came[_head.size : end])).load()
        # Bytes of their own: columns are read where they are and have to be aligned.
        data = bytes(memoryview(self._came)[end : end + beside])
        del self._came[: end + beside]
        return Frame(message, data, self._files.popleft() if has_file else None)

    def _fill(self, size: int, timeout_s: float | None) -> bool:
        while len(self._came) < size:
            # The socket itself has no time limit: that would be one for the thread that sends, too.
            if timeout_s is not None and not self._poll.poll(timeout_s * 1000):
                raise TimeoutError
            try:
                # socket.recv_fds forgets the flags (Python 3.11).
                data, beside, _, _ = self._socket.recvmsg(_READ_BYTES, _BESIDE_BYTES, _CLOSE_ON_EXEC)
            except OSError:
                return False
            for _, _, files in beside:  # of one kind only
                self._files.extend(memoryview(files).cast("i"))
            if not data:
                return False
            self._came += data
        return True

    def hang_up(self) -> None:
        """End it for both sides, whoever waits here."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended

    def close(self) -> None:
        """Let go of the socket, and of files that nobody has asked for."""
        self._socket.close()
        while self._files:
            os.close(self._files.popleft())


# -- files without a name -------------------------------------------------------------------------


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


def _read_file(file: int) -> pa.Buffer:
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
        raise OSError(f"cannot map {os.fstat(file).st_size} bytes of messages: {failed}") from None
    finally:
        os.close(file)


# -- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message to a process.

    Attributes:
        schema: of the blocks to make.
        first_session: the numbers of its sessions begin there.
    """

    schema: pa.Schema
    log_level: int
    first_session: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """The parts of a block beside its record batch."""

    key: int
    session: int
    metadata: Metadata
    sizes: array[int]


def send_event(channel: Channel, event: object) -> None:
    """Send an event; waits while the other side does not read.

    Raises:
        OSError: the other side is gone.
    """
    if not isinstance(event, Delivered):
        channel.send(event)
        return
    message = event.block.batch.serialize()
    rows = _Rows(event.key, event.session, event.metadata, event.block.sizes)
    if message.size < _INLINE_BYTES:
        channel.send(rows, memoryview(message))
        return
    file = write_file(memoryview(message))
    try:
        channel.send(rows, file=file)
    finally:
        os.close(file)


def read_event(frame: Frame, schema: pa.Schema) -> Any:
    """Read an event. A block of that schema is read where it is: in a mapped file, or in the bytes that came."""
    rows = frame.message
    if not isinstance(rows, _Rows):
        return rows
    message = pa.py_buffer(frame.data) if frame.file is None else _read_file(frame.file)
    block = Block(pa.ipc.read_record_batch(message, schema), rows.sizes)
    return Delivered(rows.key, rows.session, rows.metadata, block)
