"""Cuts deliveries out of the bytes of an AMQP 0-9-1 connection, before pika gets these. This saves time.

For each delivery pika creates three objects and decodes all properties, which takes nine tenths of its time for a
message. But at first only the places are needed where the parts of a delivery begin and end. So this module cuts the
deliveries out of the bytes, and passes all other frames to pika, in order. It uses no socket, no clock and no client
library. AMQP 0-9-1 describes frames in 2.3.5 and 4.2.3, and content in 4.2.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any

import numpy as np

from pyspark_mq.decode.amqp091 import Amqp091Batch
from pyspark_mq.decode.amqp091_properties import FLAGS_BYTES, Raw
from pyspark_mq.decode.batch import BATCH_MIN
from pyspark_mq.decode.spans import Views
from pyspark_mq.wire.amqp091.read_memory import ReadMemory

__all__ = ["Amqp091FrameError", "DeliveryReader"]

#: The maximum size of a frame is at least this (AMQP 0-9-1, constant frame-min-size).
_FRAME_BYTES_MIN = 4096

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
#: RabbitMQ sends the header of a message from an AMQP 1.0 producer in one frame, whatever size was negotiated (270 kB
#: with 10,000 properties, measured on 4.3). This value is RabbitMQ's largest `max_message_size`.
_HEADER_BYTES_MAX = 512 << 20
#: Class basic, method deliver.
_DELIVER = b"\x00\x3c\x00\x3c"
_BASIC = 0x3C
#: Number of bytes of a frame before its payload; and before and after its payload together.
_HEAD, _FRAMING = 7, 8
#: Number of bytes before the properties in a content-header frame.
_CONTENT_HEAD = 19

_frame_head = Struct(">BHI").unpack_from  # type, channel, size
_content_head = Struct(">BHIHHQ").unpack_from  # the same, then class, weight, body size
_tag_and_bits = Struct(">QB").unpack_from
_TAG_AND_BITS = 9
#: Maximum size of a method `basic.deliver`: three short strings and nine octets.
_METHOD_BYTES_MAX = 4 + 3 * 256 + _TAG_AND_BITS
#: Assumed smallest size of a delivery. If a read has fewer bytes than `batch_min` such deliveries, it is not processed
#: as a batch.
_DELIVERY_BYTES = 100
#: If an incomplete delivery is at most this large, it is kept until the next read, to be processed with others.
_LEFT_BYTES_MAX = 64 << 10


class Amqp091FrameError(Exception):
    """A frame is malformed or not allowed, so the connection cannot be used any more."""


@dataclass(slots=True)
class _Open:
    """A delivery that has arrived in part.

    Attributes:
        tag: the delivery tag.
        redelivered: whether the broker has flagged it as redelivered.
        where: encoded exchange and routing key.
        properties: encoded properties; None if they have not arrived.
        left: number of bytes of the body that have not arrived.
        parts: the parts of the body that have arrived.
    """

    tag: int
    redelivered: bool
    where: bytes
    properties: bytes | None = None
    left: int = 0
    parts: list[bytes] = field(default_factory=list)


class DeliveryReader:
    """Cuts the deliveries of one channel out of the bytes of a connection.

    The reader keeps at most one incomplete frame or small delivery, and the parts of one body. Batches of deliveries
    refer to the memory into which the bytes were read.

    Args:
        channel: number of the channel.
        frame_bytes_max: the negotiated maximum size of a frame.
        deliver: called with deliveries, in order: with a list, or with an :class:`.Amqp091Batch`.
        pass_on: called with each other frame, after `deliver` was called with the deliveries before this frame.
        batch_min: minimum number of deliveries in a batch.
    """

    def __init__(
        self,
        channel: int,
        frame_bytes_max: int,
        deliver: Callable[[list[Raw] | Amqp091Batch], None],
        pass_on: Callable[[bytes], None],
        batch_min: int = BATCH_MIN,
    ) -> None:
        self._batch_min = batch_min
        self._channel = channel
        self._payload_max = max(frame_bytes_max, _FRAME_BYTES_MIN) - _FRAMING
        self._deliver = deliver
        self._pass_on = pass_on
        self._open: _Open | None = None
        self._memory = ReadMemory()
        self._need = 0
        self._found: list[Raw] = []
        #: Whether the kept bytes begin with an incomplete delivery, which is examined again with the next bytes.
        self._again = False

    def feed(self, data: bytes) -> None:
        """Process bytes that were not read into :meth:`room`. Otherwise like :meth:`received`."""
        at = 0
        while at < len(data):
            room = self.room()
            count = min(len(room), len(data) - at)
            room[:count] = data[at : at + count]
            self.received(count)
            at += count

    def room(self) -> memoryview:
        """Return memory to read into."""
        return self._memory.room(self._need)

    def received(self, count: int) -> None:
        """Process this number of bytes, which were read into :meth:`room`.

        Raises:
            Amqp091FrameError: the bytes are not a valid frame.
        """
        memory = self._memory
        memory.end += count
        if memory.end - memory.begin < self._need:
            return
        try:
            memory.begin = self._cut(memory.view, memory.begin, memory.end)
        except (struct_error, IndexError) as short:
            raise Amqp091FrameError(f"a frame is shorter than its content: {short}") from None
        finally:
            self._hand_over()
        if memory.begin == memory.end:
            self._need = 0

    @property
    def partial_bytes(self) -> int:
        """Number of bytes of the incomplete frame or delivery that have arrived."""
        opened, memory = self._open, self._memory
        return memory.end - memory.begin + (0 if opened is None else sum(map(len, opened.parts)))

    def _hand_over(self) -> None:
        if self._found:
            found, self._found = self._found, []
            self._deliver(found)

    def _cut(self, data: memoryview, at: int, size: int) -> int:
        """Process all frames that have arrived completely. Return the position of the first byte that must be kept.

        Args:
            data: the memory with the bytes.
            at, size: where the frames begin, and where the received bytes end.
        """
        own, first = self._channel, at
        begun, together = -1, size - at >= self._batch_min * _DELIVERY_BYTES
        while True:
            if together and self._open is None and data[at + 7 : at + 11] == _DELIVER:
                found = _find_batch(data, at, size, own, self._batch_min, self._payload_max)
                if found is None:
                    together = False
                else:
                    self._hand_over()
                    self._deliver(found[0])
                    at = found[1]
            if size - at < _HEAD:
                self._need = _HEAD
                return self._left(first, begun, at)
            kind, channel, length = _frame_head(data, at)
            if length > self._payload_max and not (
                kind == _HEADER
                and channel == own
                and self._open is not None
                and self._open.properties is None
                and length <= _HEADER_BYTES_MAX
            ):
                raise Amqp091FrameError(f"a frame has {length} bytes, but at most {self._payload_max} were negotiated")
            end = at + _FRAMING + length
            if end > size:
                self._need = end - at
                return self._left(first, begun, at)
            if data[end - 1] != _END:
                raise Amqp091FrameError(f"{bytes(data[at : min(end, at + 2 * _FRAMING)])!r} does not begin a frame")
            if self._open is not None or kind != _METHOD or channel != own or data[at + 7 : at + 11] != _DELIVER:
                if self._take(kind, channel, bytes(data[at:end])):
                    begun = -1
                at = end
                continue
            begun, at = at, self._take_delivery(data, at, end, size)

    def _take_delivery(self, data: memoryview, at: int, end: int, size: int) -> int:
        """Process the method frame of a delivery, and its content if complete. Return where the next frame begins."""
        behind = at + 12 + data[at + 11]
        if behind + _TAG_AND_BITS >= end:
            raise Amqp091FrameError("the method frame of a delivery is too short for its tags")
        tag, bits = _tag_and_bits(data, behind)
        where = bytes(data[behind + _TAG_AND_BITS : end - 1])
        at = end
        if size - at >= _CONTENT_HEAD:
            kind, channel, length, class_id, _, body_size = _content_head(data, at)
            end = at + _FRAMING + length
            body_end = end + _FRAMING + body_size
            if (
                body_end <= size
                and _CONTENT_HEAD < end - at <= _FRAMING + self._payload_max
                and 0 < body_size <= self._payload_max
                and (kind, channel, class_id) == (_HEADER, self._channel, _BASIC)
                and data[end - 1] == data[body_end - 1] == _END
                and _frame_head(data, end) == (_BODY, self._channel, body_size)
            ):
                body = bytes(data[end + _HEAD : body_end - 1])
                self._found.append((tag, bits & 1 == 1, bytes(data[at + _CONTENT_HEAD : end - 1]), body, where))
                return int(body_end)
        self._open = _Open(tag, bits & 1 == 1, where)
        return at

    def _left(self, first: int, begun: int, at: int) -> int:
        """Return the position of the first byte that must be kept until the next read.

        Args:
            first: position of the first byte that was examined.
            begun: position of the delivery that has arrived in part; -1 if it must not be kept.
            at: position of the first incomplete frame.
        """
        again, self._again = self._again, False
        # Do not keep a delivery a second time (in that case the bytes begin with it), and do not keep a large one.
        if self._open is None or begun < first + again or at - begun + self._need > _LEFT_BYTES_MAX:
            return at
        self._open, self._need, self._again = None, at - begun + self._need, True
        return begun

    def _take(self, kind: int, channel: int, frame: bytes) -> bool:
        """Process a frame that does not begin a delivery. Return whether the frame was passed to pika."""
        opened = self._open
        if channel != self._channel or opened is None:
            self._hand_over()
            self._pass_on(frame)
            return True
        if kind == _HEADER and opened.properties is None:
            *_, class_id, _, opened.left = _content_head(frame)
            if class_id != _BASIC:
                raise Amqp091FrameError(f"a content header of class {class_id} follows a delivery")
            opened.properties = frame[_CONTENT_HEAD:-1]
        elif kind == _BODY and opened.properties is not None:
            opened.left -= len(frame) - _FRAMING
            if opened.left < 0:
                raise Amqp091FrameError("the body of a delivery is longer than announced")
            opened.parts.append(frame[_HEAD:-1])
        else:
            raise Amqp091FrameError(f"a frame of type {kind} interrupts a delivery")
        if not opened.left:
            self._open = None
            body = b"".join(opened.parts)
            self._found.append((opened.tag, opened.redelivered, opened.properties, body, opened.where))
        return False


# -- batches of deliveries ---------------------------------------------------------


def _find_batch(
    data: memoryview, at: int, size: int, channel: int, least: int, most: int
) -> tuple[Amqp091Batch, int] | None:
    """Find consecutive deliveries that have the common form: a method, a header and one body frame each.

    Stop at any other frame. :class:`DeliveryReader` processes it, and decides whether it is malformed.

    Args:
        data: the memory with the bytes.
        at, size: where the first frame begins, and where the received bytes end.
        channel: number of the channel of the deliveries.
        least: minimum number of deliveries to return; one or more.
        most: maximum size of the payload of a frame, in bytes.

    Returns:
        the deliveries, and where the next frame begins; None if there are fewer than `least` deliveries.
    """
    starts, end = _starts(data, at, size)
    if len(starts) < least:
        return None
    start, views = np.array(starts), Views(data)
    ends = np.append(start[1:], end)
    header = start + _FRAMING + views.at(start + 3, 4)
    body = header + _FRAMING + views.at(header + 3, 4)
    consumer = start + 11
    delivery = consumer + 1 + views.at(consumer, 1)
    delivers = views.at(start + _HEAD, 4) == int.from_bytes(_DELIVER, "big")
    good = _framed(views, start, header, _METHOD, channel) & delivers
    good &= _framed(views, header, body, _HEADER, channel) & (views.at(header + _HEAD, 2) == _BASIC)
    good &= _framed(views, body, ends, _BODY, channel) & (body + _FRAMING + views.at(body + 3, 4) == ends)
    good &= (delivery + _TAG_AND_BITS < header) & (body - header > _CONTENT_HEAD + FLAGS_BYTES)
    good &= (ends - body > _FRAMING) & (np.maximum(body - header, ends - body) <= _FRAMING + most)
    count = len(good) if good.all() else int(np.argmin(good))
    if count < least:
        return None
    bounds = (header + _CONTENT_HEAD, body - 1, body + _HEAD, ends - 1, delivery + _TAG_AND_BITS, header - 1)
    spans = np.stack(bounds)[:, :count]
    tags = views.at(delivery[:count], 8).astype(np.int64)
    redelivered = views.at(delivery[:count] + 8, 1) & 1 == 1
    found = Amqp091Batch(data, tags, redelivered, spans).sound()
    return (found, int(ends[len(found) - 1])) if len(found) >= least else None


def _framed(views: Views, begins: Any, ends: Any, kind: int, channel: int) -> Any:
    """Return for each pair of begin and end whether a frame of this kind begins and ends there."""
    return (views.at(begins, 1) == kind) & (views.at(begins + 1, 2) == channel) & (views.at(ends - 1, 1) == _END)


def _starts(data: memoryview, at: int, size: int) -> tuple[list[int], int]:
    """Return where each delivery begins, and where the last one ends, assuming that all have the common form."""
    starts: list[int] = []
    append = starts.append
    method, lengths = 0, _lengths(0)
    try:
        while True:
            found, properties, body = lengths(data, at + 3)
            if found != method:
                if found > _METHOD_BYTES_MAX:
                    break
                method, lengths = found, _lengths(found)
                continue
            end = at + method + properties + body + 3 * _FRAMING
            if end > size:
                break
            append(at)
            at = end
    except struct_error:
        pass
    return starts, at


@lru_cache(_METHOD_BYTES_MAX)
def _lengths(method: int) -> Callable[[memoryview, int], tuple[Any, ...]]:
    """Return a function that reads the sizes of the method, header and body frames of a delivery.

    Args:
        method: size of the delivery's method frame, on which the places of the other sizes depend.
    """
    return Struct(f">I{method + 4}xI4xQ").unpack_from
