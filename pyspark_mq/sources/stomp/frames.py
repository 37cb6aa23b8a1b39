"""STOMP 1.2 frames from the bytes of a connection. Pure: no socket, no clock.

stomp.py has a reader of its own, which is not used, for what it did when measured (stomp.py 9.0):

* two heartbeats that are read at once, as after a pause, make it drop the message behind them;
* a body with NUL bytes takes it time quadratic in the size: each read copies all there is so far;
* headers that are not UTF-8 are changed, so that different IDs may become equal.

Headers stay bytes here (:mod:`pyspark_mq.sources.stomp.headers`): to make a dict of those of every message costs more
than all the rest. Messages that are complete in what was read are cut by a short loop; what it does not know at
sight goes through :meth:`FrameReader._next`, which knows everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from pyspark_mq.sources.stomp.headers import parse, value

__all__ = ["COMMANDS", "MESSAGE", "Frame", "FrameError", "FrameReader", "UnreadableHeaders"]

#: command, block of headers, body
Frame: TypeAlias = "tuple[str, bytes, bytes]"

MESSAGE = "MESSAGE"
#: What a server may send (STOMP 1.2, section "Server Frames").
COMMANDS = frozenset({"CONNECTED", MESSAGE, "RECEIPT", "ERROR"})

#: Headers of one message can be large, but what goes on for so long without an empty line is something else.
_HEADER_BYTES_MAX = 16 * 1024 * 1024
#: Their first lines, and what can be behind the end of a frame.
_FIRST_LINES = tuple(f"{command}\n".encode() for command in COMMANDS)
_STARTS = b"\r\nCMRE"
_START_BYTES = 12
_SHOWN_BYTES = 40
_LENGTH_DIGITS_MAX = 15
_NUL = 0
_COLON = ord(":")
_EOL = b"\r\n"
_FIRST_LINE = b"MESSAGE\n"
_TO_HEADERS = len(_FIRST_LINE) - 1
_LENGTH = b"\ncontent-length"


class FrameError(Exception):
    """What was received is not a STOMP frame.

    Attributes:
        headers: the block of the frame, as far as it was read.
    """

    def __init__(self, text: str, headers: bytes = b"\n") -> None:
        self.headers = headers
        super().__init__(text)


class UnreadableHeaders(bytes):
    """The block of a message whose end is not certain: it has NULs, and the frame no length."""

    error = "a text with a NUL in it, which STOMP cannot carry"


class FrameReader:
    """Cuts a stream of bytes into frames.

    Guarantee: it holds the bytes of one incomplete frame, and no more than have come of it.
    """

    def __init__(self) -> None:
        #: The start of an incomplete frame.
        self._buffer = bytearray()
        #: Of that frame, once they are complete: command, headers, where the body is and where it ends, -1 at a NUL.
        self._headers: tuple[str, bytes, int, int] | None = None
        #: Up to here there is no end of the headers, or of a body without a length.
        self._scanned = 0
        #: There was a NUL in such a body.
        self._odd = False
        #: Nothing but frames of STOMP were seen so far.
        self.spoken = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that are complete with these bytes. Has to be used up before the next call.

        Raises:
            FrameError: the bytes are something else.
        """
        if self._buffer:
            self._buffer += data
            found = self._next(self._buffer, 0)
            if found is None:
                return
            frame, end = found
            with memoryview(self._buffer) as view:
                data = bytes(view[end:])
            self._buffer.clear()
            yield frame
        yield from self._cut(data)

    def _cut(self, data: bytes) -> Iterator[Frame]:
        """The frames in these bytes; what is left goes to the buffer."""
        find, starts, length = data.find, data.startswith, len(data)
        position = 0
        returned = find(b"\r")
        try:
            while position < length:
                if data[position] in _EOL:  # heartbeats, and ends of lines behind a frame
                    position += 1
                    continue
                if 0 <= returned < position:
                    returned = find(b"\r", position)
                found = find(b"\n\n", position) if starts(_FIRST_LINE, position) else -1
                end = -1
                if found >= 0 and not 0 <= returned < found:
                    headers = data[position + _TO_HEADERS : found + 1]
                    end = _end(data, headers, found + 2)
                if end < 0:
                    careful = self._next(data, position)
                    if careful is None:
                        return
                    frame, position = careful
                    yield frame
                    continue
                self.spoken = True
                position = end + 1
                yield MESSAGE, headers, data[found + 2 : end]
        finally:
            self._keep(data, position)

    def _keep(self, data: bytes, position: int) -> None:
        """What is left, with what is known of it counted from there."""
        with memoryview(data) as view:
            self._buffer += view[position:]
        self._scanned = max(0, self._scanned - position)
        if self._headers is not None:
            command, headers, body, end = self._headers
            self._headers = command, headers, body - position, end - position if end >= 0 else -1

    @property
    def rest(self) -> bytes:
        """The start of an incomplete frame, for errors."""
        return bytes(self._buffer[:_SHOWN_BYTES])

    def overlong(self) -> FrameError | None:
        """The error for a frame that has begun, if its broker says that it has nothing more to send.

        Heartbeats come between frames. Within a body they mean that it is shorter than its length.
        """
        if self._headers is None:
            return None
        _, headers, body, end = self._headers
        announced = f"of a body of {end - body}" if end >= 0 else "of a body, and no end of it"
        return FrameError(f"{len(self._buffer) - body} bytes came {announced}", headers)

    def _next(self, buffer: bytes | bytearray, position: int) -> tuple[Frame, int] | None:
        """The next complete frame and where it ends, if it is there already."""
        if self._headers is None and not self._read_headers(buffer, position):
            return None
        assert self._headers is not None
        command, headers, body, end = self._headers
        if end < 0:
            end = self._find_end(buffer, body, command)
            if end < 0:
                return None
            if self._odd:
                headers = UnreadableHeaders(headers)
        elif len(buffer) <= end:
            return None
        elif buffer[end] != _NUL:
            raise FrameError(f"no end of frame behind a body of {end - body} bytes", headers)
        self._headers, self._scanned, self._odd = None, 0, False
        with memoryview(buffer) as view:
            return (command, headers, bytes(view[body:end])), end + 1

    def _find_end(self, buffer: bytes | bytearray, body: int, command: str) -> int:
        """Where a body without a length ends: at the first NUL; -1 if that is not here yet.

        STOMP cannot carry a text with a NUL in it unless the frame gives its length. If one comes all the same, the
        end is the NUL before the next frame.
        """
        end = buffer.find(_NUL, max(body, self._scanned))
        if end >= 0 and not self._odd:
            following = bytes(buffer[end + 1 : end + 2])
            if not following or following in _STARTS or command != MESSAGE:
                return end
            self._odd = True
        while end >= 0:
            following = bytes(buffer[end + 1 : end + _START_BYTES]).lstrip(_EOL)
            if not following or any(name.startswith(following[: len(name)]) for name in _FIRST_LINES):
                return end
            end = buffer.find(_NUL, end + 1)
        self._scanned = len(buffer)
        return -1

    def _read_headers(self, buffer: bytes | bytearray, position: int) -> bool:
        length = len(buffer)
        while position < length and buffer[position] in _EOL:
            position += 1
        # The end may have begun with what came before.
        since = max(position, self._scanned - 2)
        found = buffer.find(b"\n\n", since)
        body = found + 2
        # The same with carriage returns, which brokers may send and usually do not.
        returned = buffer.find(b"\n\r\n", since, found if found >= 0 else length)
        if returned >= 0:
            found, body = returned, returned + 3
        if found < 0:
            self._scanned = length
            _check_start(buffer, position)
            return False
        command, headers = _block(bytes(buffer[position:found]))
        if command not in COMMANDS:
            raise FrameError(f"{command[:_SHOWN_BYTES]!r} is not a frame of a STOMP server")
        self.spoken = True
        self._headers = command, headers, body, _announced(headers, body, escaped=command != "CONNECTED")
        self._scanned = 0
        return True


def _end(data: bytes, headers: bytes, body: int) -> int:
    """Where the body of a message ends, if it is here as a whole and nothing is unusual; -1 otherwise."""
    at = headers.find(_LENGTH)
    if at < 0:
        end = data.find(_NUL, body)
        following = data[end + 1 : end + 2]
        return end if not following or following in _STARTS else -1
    at += len(_LENGTH)
    size = headers[at + 1 : headers.find(b"\n", at)]
    if headers[at] != _COLON or not size.isdigit() or len(size) > _LENGTH_DIGITS_MAX:
        return -1
    end = body + int(size)
    return end if end < len(data) and data[end] == _NUL else -1


def _announced(headers: bytes, body: int, *, escaped: bool) -> int:
    """Where the body ends by its length; -1 if it has none."""
    size = value(headers, "content-length")
    if size is None:
        return -1
    if not size.isdigit() or len(size) > _LENGTH_DIGITS_MAX:
        shown = parse(b"\ncontent-length:" + size + b"\n", escaped=escaped)["content-length"]
        raise FrameError(f"content-length is {shown[:_SHOWN_BYTES]!r}")
    return body + int(size)


def _block(data: bytes) -> tuple[str, bytes]:
    """Command and block of what is before the empty line."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    command, found, lines = data.partition(b"\n")
    return command.decode("utf-8", "surrogateescape"), b"\n" + lines + b"\n" if found else b"\n"


def _check_start(buffer: bytes | bytearray, position: int) -> None:
    """A port that speaks something else may never send an empty line.

    Raises:
        FrameError: this does.
    """
    start = bytes(buffer[position : position + 10])
    line = start.partition(b"\n")[0].rstrip(b"\r").decode("latin-1")
    complete = b"\n" in start
    known = line in COMMANDS if complete else any(command.startswith(line) for command in COMMANDS)
    if not known or len(buffer) - position > _HEADER_BYTES_MAX:
        raise FrameError(f"{bytes(buffer[position : position + _SHOWN_BYTES])!r} is not a frame of a STOMP server")
