"""Encodes and decodes frames of the RabbitMQ stream protocol (``PROTOCOL.adoc`` of rabbitmq_stream).

A frame consists of its size in four bytes, the number of a command, the command's version, and the command's fields,
one after another without names. Sending and receiving is the work of :mod:`pyspark_mq.streams.connection`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = [
    "CLOSE", "CREDIT", "DELIVER", "HEARTBEAT", "METADATA", "METADATA_UPDATE", "OK", "OPEN", "PARTITIONS",
    "PEER_PROPERTIES", "REASONS", "RESPONSE", "SASL_AUTHENTICATE", "SASL_HANDSHAKE", "STREAM_STATS", "SUBSCRIBE",
    "TUNE", "UNSUBSCRIBE", "FieldReader", "StreamFrameError", "StreamLost", "array", "frame", "text", "u8", "u16",
    "u32", "u64",
]  # fmt: skip

T = TypeVar("T")

SUBSCRIBE, DELIVER, CREDIT, UNSUBSCRIBE = 0x07, 0x08, 0x09, 0x0C
METADATA, METADATA_UPDATE, PEER_PROPERTIES, SASL_HANDSHAKE, SASL_AUTHENTICATE = 0x0F, 0x10, 0x11, 0x12, 0x13
TUNE, OPEN, CLOSE, HEARTBEAT, PARTITIONS, STREAM_STATS = 0x14, 0x15, 0x16, 0x17, 0x19, 0x1C
#: Bit that is set in the command number of an answer.
RESPONSE = 0x8000

OK = 1
#: Response codes of answers, and their meanings.
REASONS = {
    2: "the stream does not exist", 3: "the subscription exists", 4: "the subscription does not exist",
    6: "the stream is not available on this node", 7: "the SASL mechanism is not supported",
    8: "user or password is wrong", 9: "SASL failed", 10: "SASL needs another step",
    11: "this user may connect only from localhost", 12: "no access to the virtual host", 13: "unknown command",
    14: "the frame is too large", 15: "internal error of the broker", 16: "access refused",
    17: "precondition failed", 19: "no offset",
}  # fmt: skip


class StreamLost(Exception):  # noqa: N818 - callers retry after it; it is not shown to the user
    """The connection has ended or cannot be used any more, so the caller has to try another connection."""


class StreamFrameError(StreamLost):
    """The peer sent something that is not a frame of this protocol."""


# -- writing


#: Functions that encode unsigned integers, named by the number of bits.
u8, u16, u32, u64 = (struct.Struct(f">{size}").pack for size in "BHIQ")


def text(value: str) -> bytes:
    """Write a string: its length in two bytes, then UTF-8."""
    encoded = value.encode()
    return u16(len(encoded)) + encoded


def array(items: Iterable[bytes]) -> bytes:
    """Write an array: the number of its items in four bytes, then the items."""
    written = [*items]
    return u32(len(written)) + b"".join(written)


def frame(command: int, content: bytes) -> bytes:
    return struct.pack(">IHH", len(content) + 4, command, 1) + content


# -- reading


class FieldReader:
    """Reads one field after another.

    Args:
        data: the content of a frame.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def raw(self, size: int) -> bytes:
        """Return the next `size` bytes. Raise a StreamFrameError if the frame has fewer remaining bytes."""
        end = self._at + size
        if end > len(self._data):
            raise StreamFrameError(
                f"a frame of {len(self._data)} bytes is cut off: it should have {size} bytes from byte {self._at} on"
            )
        found, self._at = self._data[self._at : end], end
        return found

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.raw(size), "big", signed=signed)

    def u16(self) -> int:
        return self._number(2)

    def u32(self) -> int:
        return self._number(4)

    def i64(self) -> int:
        return self._number(8, signed=True)

    def text(self) -> str:
        """Read a string. For a null string, return an empty string."""
        size = self._number(2, signed=True)
        return self.raw(size).decode("utf-8", "backslashreplace") if size > 0 else ""

    def array(self, item: Callable[[], T]) -> list[T]:
        """Read an array, and call `item` to read each of its items."""
        return [item() for _ in range(max(0, self._number(4, signed=True)))]

    def pairs(self) -> dict[str, str]:
        """Read an array of names with their values."""
        return dict(self.array(lambda: (self.text(), self.text())))
