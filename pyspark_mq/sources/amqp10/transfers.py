"""Cuts the payloads of messages out of a connection's bytes, before proton gets these. This saves memory.

proton keeps the payload of a delivery until it is settled, which is only after the commit of its epoch, and rounds the
size of its buffer up to a power of two. So this module takes the payload of each message that fits into one frame, and
proton gets the frame without the payload. All other bytes go to proton unchanged: other frames, messages in several
frames, and encodings that brokers do not use. The module uses neither a socket nor proton. The specification of
AMQP 1.0 describes frames in section 2.3, the frame `transfer` in 2.7.5, and the frame `attach` in 2.7.3.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple

import numpy as np

from pyspark_mq.decode.amqp10_encoding import EncodingError, list_at, plain_at

__all__ = ["Transfers"]

_PROTOCOL, _HEAD_BYTES = b"AMQP", 8
_ATTACH, _TRANSFER = 0x12, 0x14
#: Type codes of a handle and of a delivery number: null and uint (1.6.1, 1.6.5).
_UINT = b"\x40\x43\x52\x70"
#: Fields of a transfer, by their numbers.
_NUMBER, _TAG, _MORE, _ABORTED = 1, 2, 5, 9
#: Minimum number of frames that are compared with a known frame at once. Each comparison takes twice as many frames as
#: matched in the last one. After a mismatch, `_ALIKE_MIN` frames are examined one by one.
_ALIKE_MIN = 8
#: An empty frame (2.4.5).
_EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"
_unpack, _pack = Struct(">I").unpack_from, Struct(">I").pack


class _Like(NamedTuple):
    """The head of a known transfer frame, with which other frames are compared.

    Attributes:
        head: the bytes between the frame's size and its delivery number, which are equal in similar frames.
        octets: array of the bytes between the frame's size and its payload.
        free: for each byte in `octets`, whether it may differ in similar frames.
        tag, tag_end: where the delivery tag begins and ends in the frame.
    """

    head: bytes
    octets: Any
    free: Any
    tag: int
    tag_end: int


class _Tags(NamedTuple):
    """Delivery tags of consecutive messages.

    Attributes:
        messages: number of messages.
        data: bytes that contain the tags; None if proton has the payloads.
        width: number of bytes that each message has in `data`.
        tag, tag_end: where the tag begins and ends within the bytes of a message.
    """

    messages: int
    data: bytes | None
    width: int = 0
    tag: int = 0
    tag_end: int = 0

    def at(self, row: int) -> bytes | None:
        """Return the tag of the message with this index; None if proton has its payload."""
        begin = row * self.width
        return None if self.data is None else self.data[begin + self.tag : begin + self.tag_end]


class Transfers:
    """Cuts the payloads of one link out of the bytes of a connection.

    Args:
        link: name of the link.
        frame_bytes_max: largest size of a frame that this side has offered to the broker.

    Attributes:
        taken: for each complete message of the link, in order, its payload; None if proton has the payload. The caller
            removes one entry for each message that it takes from proton. If there is no entry, proton has the payload.
    """

    def __init__(self, link: str, frame_bytes_max: int) -> None:
        self.taken: deque[bytes | None] = deque()
        #: Delivery tags of the entries of `taken`, in groups. `_entries` counts all entries so far, and `_before` those
        #: before the first group.
        self._tags: deque[_Tags] = deque()
        self._before = self._entries = 0
        self._link, self._frame_bytes_max = link, frame_bytes_max
        #: Channel and handle of the link.
        self._handle: tuple[bytes, int] | None = None
        #: The bytes of an incomplete frame; None before the first bytes have arrived.
        self._rest: bytes | None = None
        #: Whether a message of the link has arrived in part.
        self._partial = False
        #: Whether all bytes so far had the expected encoding. If not, all further bytes go to proton.
        self._knows = True
        self._like: _Like | None = None
        #: Number of frames to compare at once; below `_ALIKE_MIN` the number of frames that were examined one by one.
        self._alike = 0

    def cut(self, data: bytes, *, take: bool) -> bytes:
        """Process bytes that were read from the socket, and return the bytes that proton gets.

        As long as all frames have the expected encoding, the result consists of whole frames.

        Args:
            data: the bytes that were read.
            take: whether to cut payloads out. A payload that is not cut out counts in the incoming window of proton's
                session.
        """
        if self._rest is None:
            self._knows = _PROTOCOL.startswith(data[: len(_PROTOCOL)])
        data = (self._rest or b"") + data
        starts = self._starts(data) if self._knows else [0]
        found: list[bytes] = []
        number = begun = 0
        try:
            while number < len(starts) - 1:
                at = starts[number]
                like = self._like if take and not self._partial and self._alike >= _ALIKE_MIN else None
                if like is not None and data.startswith(like.head, at + 4):
                    heads, count = self._take_alike(data, starts[number : number + self._alike + 1], like)
                    if count:
                        found += (data[begun:at], heads)
                        number += count
                        begun = starts[number]
                        continue
                payload = self._look(data, at, starts[number + 1], take=take)
                number += 1
                if payload:
                    found += (data[begun:at], _pack(payload - at), data[at + 4 : payload])
                    begun = starts[number]
        except (ValueError, struct_error, IndexError):
            self._knows = False
        end = starts[-1] if self._knows else len(data)
        self._rest = data[end:]
        if not end and self._handle is not None:
            return _EMPTY  # only part of a frame has arrived, but proton has to know that the broker is alive
        return b"".join([*found, data[begun:end]])

    def _starts(self, data: bytes) -> list[int]:
        """Return where the complete frames begin, and, as the last entry, where the last of them ends."""
        starts, at, end = [0], 0, len(data)
        while end - at >= _HEAD_BYTES:
            (size,) = _unpack(data, at)
            if not _HEAD_BYTES <= size <= self._frame_bytes_max:
                if not data.startswith(_PROTOCOL, at):
                    self._knows = False
                    break
                size = _HEAD_BYTES
            at += size
            if at > end:
                break
            starts.append(at)
        return starts

    # -- many frames

    def _take_alike(self, data: bytes, starts: list[int], like: _Like) -> tuple[bytes, int]:
        """Take the payloads of these frames, up to the first frame that does not match a known frame.

        Returns:
            the frames without their payloads, and their number.
        """
        octets, begins = np.frombuffer(data, np.uint8), np.array(starts)
        size = len(like.octets)
        fits = begins[1:] - begins[:-1] >= 4 + size
        count = len(fits) if fits.all() else int(np.argmin(fits))
        heads = np.empty((count, 4 + size), np.uint8)
        heads[:, :4] = np.frombuffer(_pack(4 + size), np.uint8)
        heads[:, 4:] = octets[begins[:count, None] + np.arange(4, 4 + size)]
        same = ((heads[:, 4:] == like.octets) | like.free).all(axis=1)
        count = len(same) if same.all() else int(np.argmin(same))
        self._alike = max(_ALIKE_MIN, 2 * count) if count else 0
        self.taken += [data[starts[row] + 4 + size : starts[row + 1]] for row in range(count)]
        found = heads[:count].tobytes()
        if count:
            self._tag(_Tags(count, found, 4 + size, like.tag, like.tag_end))
        return found, count

    def _tag(self, tags: _Tags) -> None:
        self._tags.append(tags)
        self._entries += tags.messages

    def newest_tag(self) -> bytes | None:
        """Return the delivery tag (2.7.5) of the entry last removed from `taken`; None if proton has its payload."""
        last = self._entries - len(self.taken) - 1
        while self._tags and last >= self._before + self._tags[0].messages:
            self._before += self._tags.popleft().messages
        return self._tags[0].at(last - self._before) if self._tags and last >= self._before else None

    # -- one frame

    def _look(self, data: bytes, at: int, end: int, *, take: bool) -> int:
        """Process one frame. If its payload is taken, return where the payload begins; otherwise 0.

        Raises:
            EncodingError, UnicodeDecodeError, struct.error, IndexError: the frame has an unexpected encoding.
        """
        if data[at + 5]:  # a frame of SASL, or the header of a protocol
            return 0
        place = at + 4 * data[at + 4]
        if place == end:
            return 0  # a heartbeat
        if data[place] or data[place + 1] != 0x53:
            raise EncodingError(f"no performative begins at byte {place}")
        kind = data[place + 2]
        if kind not in {_ATTACH, _TRANSFER}:
            return 0
        place, count, behind = list_at(data, place + 3)
        if behind > end:
            raise EncodingError(f"a list is longer than its frame at byte {at}")
        if kind == _ATTACH:
            # Learn the handle of the link, and the channel of its session.
            name, place = plain_at(data, place)
            if name == self._link:
                self._handle = data[at + 6 : at + 8], _uint_at(data, place)[0]
            return 0
        handle, fields = _uint_at(data, place)
        if (data[at + 6 : at + 8], handle) != self._handle:
            return 0
        return self._transfer(data, at, fields, behind, end, count, take=take)

    def _transfer(self, data: bytes, at: int, place: int, behind: int, end: int, count: int, *, take: bool) -> int:
        """Process a transfer frame of the link. If its payload is taken, return where it begins; otherwise 0.

        Args:
            at, end: where the frame begins and ends.
            place: where the transfer's second field begins, the delivery number.
            behind: where the transfer's payload begins.
            count: number of the transfer's fields.
        """
        number, tag = place, b""
        if count > _NUMBER:
            place = _uint_at(data, place)[1]
        number_end = place
        if count > _TAG:
            tag, place = plain_at(data, place)
        if place > behind or not isinstance(tag, bytes | None):
            raise EncodingError(f"the transfer at byte {at} has unexpected fields")
        more, aborted = _flags(data[place:behind], count)
        begins, self._partial = not self._partial, more and not aborted
        if begins and count <= _TAG:
            raise EncodingError(f"the transfer at byte {at} has no delivery tag")
        if aborted or more:
            return 0
        if not begins or not take:
            self.taken.append(None)
            self._tag(_Tags(1, None))
            return 0
        tag = tag or b""
        self.taken.append(data[behind:end])
        self._tag(_Tags(1, tag, tag_end=len(tag)))
        self._alike += 1
        if self._alike >= _ALIKE_MIN:
            start = at + 4
            octets = np.frombuffer(data[start:behind], np.uint8)
            free = np.zeros(len(octets), bool)
            free[number + 1 - start : number_end - start] = True
            free[place - len(tag) - start : place - start] = True
            self._like = _Like(data[start : number + 1], octets, free, place - len(tag) - at, place - at)
        return behind


def _uint_at(data: bytes, place: int) -> tuple[Any, int]:
    if data[place] not in _UINT:
        raise EncodingError(f"the value at byte {place} is not a uint")
    return plain_at(data, place)


@lru_cache
def _flags(fields: bytes, count: int) -> tuple[bool, bool]:
    """Return the fields `more` and `aborted` of a transfer.

    Args:
        fields: the encoded fields after the delivery tag.
        count: number of all fields of the transfer.
    """
    place, found = 0, {}
    for number in range(_TAG + 1, count):
        found[number], place = plain_at(fields, place)
    more, aborted = found.get(_MORE), found.get(_ABORTED)
    if place != len(fields) or not isinstance(more, bool | None) or not isinstance(aborted, bool | None):
        raise EncodingError("the fields after the delivery tag have an unexpected encoding")
    return bool(more), bool(aborted)
