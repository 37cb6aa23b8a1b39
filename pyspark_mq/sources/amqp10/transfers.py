"""Payloads of transfers, taken out of the bytes of a connection before proton sees them. No socket, no proton.

proton keeps what a delivery brought, in a buffer of the next power of two, until it is settled, and that is behind the
commit of its epoch. So a message that comes in one frame is taken here, and proton is handed the same transfer without
a payload. Everything else goes to it as it is: other frames, messages in several frames, and whatever is encoded
otherwise than brokers do. Frames: AMQP 1.0, 2.3; transfer: 2.7.5; attach: 2.7.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Transfers"]

_PROTOCOL, _HEAD_BYTES = b"AMQP", 8
_ATTACH, _TRANSFER = 0x12, 0x14
_LIST8, _LIST32 = 0xC0, 0xD0
_STRING8, _STRING32, _BINARY8, _BINARY32, _NULL = 0xA1, 0xB1, 0xA0, 0xB0, 0x40
#: Bytes of a value behind its code: of no value, of numbers, and of those and truth values (1.6).
_NOTHING = {_NULL: 0}
_NUMBERS = {0x43: 0, 0x52: 1, 0x70: 4}
_NUMBERS_OR_NOTHING = {**_NOTHING, **_NUMBERS}
_OTHERS = {**_NUMBERS_OR_NOTHING, 0x41: 0, 0x42: 0, 0x50: 1, 0x56: 1}
#: What a truth value is encoded as.
_FALSE, _TRUE = (b"\x40", b"\x42", b"\x56\x00"), (b"\x41", b"\x56\x01")
#: Fields of a transfer, by their numbers.
_NUMBER, _TAG, _MORE, _ABORTED = 1, 2, 5, 9
#: Frames that are compared with the one before: so many at first, and twice as many as were like it after that. As
#: many are looked at one by one behind one that was not.
_ALIKE_MIN = 8
#: A frame of nothing (2.4.5).
_EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"
_unpack, _pack = Struct(">I").unpack_from, Struct(">I").pack


class _UnknownError(Exception):
    """A frame is encoded otherwise than what is looked for here."""


class _Like(NamedTuple):
    """A transfer whose payload was taken, from behind its size up to its payload; others differ where `free` is."""

    head: bytes
    octets: Any
    free: Any


class Transfers:
    """Cuts the frames of a connection, and takes payloads of one link.

    Args:
        link: its name.
        frame_bytes_max: of a frame, as it was offered to the peer.

    Attributes:
        taken: for each message of the link that has come as a whole, in order: its payload, or None if proton has it.
            Whoever takes the message from proton takes this as well. Behind all of them everything is proton's.
    """

    def __init__(self, link: str, frame_bytes_max: int) -> None:
        self.taken: deque[bytes | None] = deque()
        self._link, self._frame_bytes_max = link.encode(), frame_bytes_max
        #: Channel and handle of the link.
        self._handle: tuple[bytes, int] | None = None
        #: What a frame begins with that has not come as a whole; None before anything came.
        self._rest: bytes | None = None
        #: A message of the link has begun and not ended.
        self._partial = False
        #: The encoding of everything so far is known.
        self._knows = True
        self._like: _Like | None = None
        #: Frames to compare at once, or that were looked at one by one.
        self._alike = 0

    def cut(self, data: bytes, *, take: bool) -> bytes:
        """Return what proton is to be handed next: whole frames, as long as the encoding of all is known.

        Args:
            data: what was read next.
            take: payloads may be taken. Those that are left count in the incoming window of proton's session.
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
        except (_UnknownError, struct_error, IndexError):
            self._knows = False
        end = starts[-1] if self._knows else len(data)
        self._rest = data[end:]
        if not end and self._handle is not None:
            return _EMPTY  # a part of a frame: to proton it is a sign of life all the same
        return b"".join([*found, data[begun:end]])

    def _starts(self, data: bytes) -> list[int]:
        """Return where frames begin that have come as a whole, and where the last of them ends."""
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
        """Take payloads of frames from the first on, as long as they are like another.

        Returns:
            the frames without payloads, and how many they are.
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
        return heads[:count].tobytes(), count

    # -- one frame

    def _look(self, data: bytes, at: int, end: int, *, take: bool) -> int:
        """Take note of a frame; return where its payload begins, if that was taken, or else 0.

        Raises:
            _UnknownError, struct.error, IndexError: it is encoded otherwise.
        """
        if data[at + 5]:  # a frame of SASL, or the header of a protocol
            return 0
        place = at + 4 * data[at + 4]
        if place == end:
            return 0  # it keeps the connection alive
        if data[place] or data[place + 1] != 0x53:
            raise _UnknownError
        kind, code = data[place + 2], data[place + 3]
        if kind not in {_ATTACH, _TRANSFER}:
            return 0
        if code == _LIST8:
            behind, count, place = place + 5 + data[place + 4], data[place + 5], place + 6
        elif code == _LIST32:
            behind, (count,), place = place + 8 + _unpack(data, place + 4)[0], _unpack(data, place + 8), place + 12
        else:
            raise _UnknownError
        if behind > end:
            raise _UnknownError
        if kind == _ATTACH:
            self._attach(data, at, place)
            return 0
        handle, fields = _number(data, place)
        if (data[at + 6 : at + 8], handle) != self._handle:
            return 0
        return self._transfer(data, at, fields, behind, end, count, take=take)

    def _attach(self, data: bytes, at: int, place: int) -> None:
        """Learn the handle of the link, and the channel of its session."""
        code = data[place]
        if code == _STRING8:
            begin, end = place + 2, place + 2 + data[place + 1]
        elif code == _STRING32:
            begin, end = place + 5, place + 5 + _unpack(data, place + 1)[0]
        else:
            raise _UnknownError
        if data[begin:end] == self._link:
            self._handle = data[at + 6 : at + 8], _number(data, end)[0]

    def _transfer(self, data: bytes, at: int, place: int, behind: int, end: int, count: int, *, take: bool) -> int:
        """Take note of a transfer of the link.

        Args:
            place: of its second field, which is the number of the delivery.
            behind: where its payload begins.
            count: of its fields.
        """
        number = tag = place
        if count > _NUMBER:
            tag = place = place + 1 + _width(data, place, _NUMBERS_OR_NOTHING)
        if count > _TAG:
            tag, place = _tag(data, place)
        if place > behind:
            raise _UnknownError
        more, aborted = _flags(data[place:behind], count)
        begins, self._partial = not self._partial, more and not aborted
        if begins and count <= _TAG:
            raise _UnknownError
        if aborted or more:
            return 0
        if not begins or not take:
            self.taken.append(None)
            return 0
        self.taken.append(data[behind:end])
        self._alike += 1
        if self._alike >= _ALIKE_MIN:
            start = at + 4
            octets = np.frombuffer(data[start:behind], np.uint8)
            free = np.zeros(len(octets), bool)
            free[number + 1 - start : number + 1 + _OTHERS[data[number]] - start] = True
            free[tag - start : place - start] = True
            self._like = _Like(data[start : number + 1], octets, free)
        return behind


def _width(data: bytes, place: int, types: Mapping[int, int]) -> int:
    """Return how many bytes a value of these types has behind its code."""
    width = types.get(data[place])
    if width is None:
        raise _UnknownError
    return width


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Read an unsigned number; return where the next value begins, too."""
    behind = place + 1 + _width(data, place, _NUMBERS)
    return int.from_bytes(data[place + 1 : behind], "big"), behind


def _tag(data: bytes, place: int) -> tuple[int, int]:
    """Return where the octets of a delivery tag begin, and where they end."""
    code = data[place]
    if code == _BINARY8:
        return place + 2, place + 2 + data[place + 1]
    if code == _BINARY32:
        return place + 5, place + 5 + _unpack(data, place + 1)[0]
    return place + 1, place + 1 + _width(data, place, _NOTHING)


@lru_cache
def _flags(fields: bytes, count: int) -> tuple[bool, bool]:
    """Read `more` and `aborted` of a transfer.

    Args:
        fields: those behind the delivery tag.
        count: of all fields.
    """
    place, found = 0, {}
    for number in range(_TAG + 1, count):
        behind = place + 1 + _width(fields, place, _OTHERS)
        found[number] = fields[place:behind]
        place = behind
    if place != len(fields):
        raise _UnknownError
    more, aborted = found.get(_MORE, b"\x40"), found.get(_ABORTED, b"\x40")
    if not {more, aborted} <= {*_FALSE, *_TRUE}:
        raise _UnknownError
    return more in _TRUE, aborted in _TRUE
