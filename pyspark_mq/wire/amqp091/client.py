"""pika's connection and event loop with two changes: reading can be paused, and pika does not decode deliveries."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any

from pika.adapters.select_connection import IOLoop, SelectConnection

from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import Raw
from pyspark_mq.wire.amqp091.frames import DeliveryReader
from pyspark_mq.wire.socket_loop import ReadPace

__all__ = ["Answer", "Loop", "PikaConnection"]

#: Number of bytes to read at a time: usually, and in a session that is paused. pika itself reads 4 KiB at a time.
#: Larger reads interrupt the query's thread less often, and their deliveries are decoded together.
_READ_BYTES, _LOOK_BYTES = 1 << 20, 256 << 10
#: Event by which `poll` reports that the other side has closed the connection, even if no bytes are read. Only Linux
#: has it.
_HANG_UP = getattr(select, "POLLRDHUP", 0)


class Loop(IOLoop):  # type: ignore[misc]
    """pika's event loop, which can also stop reading, so that bytes that arrive stay in the socket."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[int, int] = {}
        #: Called if the other side ends the connection while the loop does not read; None while it reads.
        self._hung_up: Callable[[], None] | None = None
        self._late: list[Callable[[], None]] = []

    def start(self) -> None:
        """Run the loop until it is stopped. pika creates a new poller for each run, so set the events again."""
        if self._hung_up is not None:
            super().add_callback_threadsafe(self._watch)
        super().start()

    def hold(self, hung_up: Callable[[], None]) -> None:
        """Do not read from the socket until :meth:`release` is called.

        Args:
            hung_up: called if the other side ends the connection meanwhile.
        """
        self._hung_up = hung_up
        self._watch()

    def release(self) -> None:
        self._hung_up = None
        self._watch()
        while self._late:
            self.add_callback_threadsafe(self._late.pop(0))

    def _watch(self) -> None:
        for fd, events in self._wanted.items():
            super().update_handler(fd, self._now(events))

    def _now(self, events: int) -> int:
        return events & ~IOLoop.READ | IOLoop.ERROR | _HANG_UP if self._hung_up is not None else events

    def add_handler(self, fd: int, handler: Callable[[int, int], None], events: int) -> None:
        def handle(fd: int, events: int) -> None:
            if self._hung_up is not None and events & ~IOLoop.WRITE:
                self._hung_up()
            else:
                handler(fd, events)

        self._wanted[fd] = events
        super().add_handler(fd, handle, self._now(events))

    def update_handler(self, fd: int, events: int) -> None:
        self._wanted[fd] = events
        super().update_handler(fd, self._now(events))

    def remove_handler(self, fd: int) -> None:
        self._wanted.pop(fd, None)
        super().remove_handler(fd)

    def add_callback_threadsafe(self, callback: Callable[[], None]) -> None:
        """Schedule a callback. While reading is paused, delay the callback by which pika reads further bytes of TLS."""
        if self._hung_up is not None and getattr(callback, "__name__", "") == "_on_socket_readable":
            self._late.append(callback)
        else:
            super().add_callback_threadsafe(callback)

    add_callback = add_callback_threadsafe


class Answer:
    """A callback that stores its argument and stops the loop."""

    came = False
    value: Any = None

    def __init__(self, loop: IOLoop) -> None:
        self._loop = loop

    def __call__(self, value: object) -> None:
        self.came, self.value = True, value
        self._loop.stop()


class PikaConnection(SelectConnection):  # type: ignore[misc]
    """pika's connection, but deliveries are cut out of the bytes before pika gets these.

    This class uses private names of pika, so `pyproject.toml` accepts only versions of pika with which
    `tests/integration/test_pika_versions.py` passes.

    Attributes:
        looks: whether to read only a few bytes at a time, because the session is paused.
        received_s: time when bytes were last received, on the clock `time.monotonic`.
    """

    looks = False
    received_s = 0.0
    _reader: DeliveryReader | None = None
    _pace: ReadPace
    _socket: socket.socket
    _frame_buffer: bytes
    bytes_received: int

    def read_deliveries(self, channel: int, deliver: Callable[[list[Raw] | Amqp091Batch], None]) -> None:
        """From now on, pass the deliveries of this channel to `deliver`, without decoding them."""
        begun = self._frame_buffer
        self._reader = DeliveryReader(channel, self.params.frame_max, deliver, super()._on_data_available)
        self._pace, self._socket = ReadPace(), self._transport._sock  # noqa: SLF001 - it has no other name
        self._transport._MAX_RECV_BYTES = _READ_BYTES  # noqa: SLF001
        self._transport._sigint_safe_recv = self._receive  # noqa: SLF001
        self._frame_buffer = b""
        if begun:
            self._on_data_available(begun)

    @property
    def partial_bytes(self) -> int:
        """Number of bytes of the incomplete frame or delivery that have arrived."""
        return 0 if self._reader is None else self._reader.partial_bytes

    def _receive(self, opened: socket.socket, maximum: int) -> memoryview:
        """Read from the socket, in place of pika. Batches of deliveries then refer to the memory that was read into."""
        assert self._reader is not None
        room = self._reader.room()
        return room[: opened.recv_into(room, min(len(room), _LOOK_BYTES if self.looks else maximum))]

    def _on_data_available(self, data_in: bytes | memoryview) -> None:
        reader, self.received_s = self._reader, time.monotonic()
        if reader is None:
            super()._on_data_available(data_in)
            return
        self._pace.read(len(data_in), self._socket)
        # pika counts the bytes that it processes, to notice that the broker is alive. Count all bytes that were read.
        before = self.bytes_received
        if isinstance(data_in, memoryview):
            reader.received(len(data_in))
        else:
            reader.feed(data_in)
        self.bytes_received = before + len(data_in)
        self._pace.delay()
