"""STOMP 1.2 frames from the bytes of a connection. Pure: no socket, no clock.

stomp.py has a reader of its own, which is not used, for what it did when measured (stomp.py 9.0):

* two heartbeats that are read at once, as after a pause, make it drop the message behind them;
* a body with NUL bytes takes it time quadratic in the size: each read copies all there is so far;
* headers that are not UTF-8 are changed, so that different IDs may become equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

__all__ = ["COMMANDS", "Frame", "FrameError", "FrameReader", "UnreadableHeaders", "escape"]

#: command, headers, body
Frame: TypeAlias = "tuple[str, dict[str, str], bytes]"

#: What a server may send (STOMP 1.2, section "Server Frames").
COMMANDS = frozenset({"CONNECTED", "MESSAGE", "RECEIPT", "ERROR"})

#: Headers of one message can be large, but what goes on for so long without an empty line is something else.
_HEADER_BYTES_MAX = 16 * 1024 * 1024
#: Their first lines, and what can be behind the end of a frame.
_FIRST_LINES = tuple(f"{command}\n".encode() for command in COMMANDS)
_STARTS = b"\r\nCMRE"
_SHOWN_BYTES = 40
_NUL = 0
_EOL = b"\r\n"
_ESCAPE = re.compile(r"\\[rnc\\]")
_MEANINGS = {"\\r": "\r", "\\n": "\n", "\\c": ":", "\\\\": "\\"}


class FrameError(Exception):
    """What was received is not a STOMP frame.

    Attributes:
        headers: of the frame, as far as they were read.
    """

    def __init__(self, text: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.headers = headers
        super().__init__(text)


class UnreadableHeaders(dict[str, str]):
    """Headers of a message whose end is not certain: it has NULs, and the frame no length."""

    error = "a text with a NUL in it, which STOMP cannot carry"


class FrameReader:
    """Cuts a stream of bytes into frames.

    Args:
        last: a header of which the last entry counts when it is repeated; of all others the first does.
    """

    def __init__(self, last: str = "") -> None:
        self._last = f"{last}:" if last else ""
        self._buffer = bytearray()
        self._headers: tuple[str, dict[str, str], int, int] | None = None
        self._scanned = 0
        #: Nothing but frames of STOMP were seen so far.
        self.spoken = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that are complete with these bytes. Has to be used up before the next call.

        Raises:
            FrameError: the bytes are something else.
        """
        self._buffer += data
        position = 0
        try:
            while (found := self._next(position)) is not None:
                frame, position = found
                yield frame
        finally:
            # Once for all of them: each deletion moves what is left.
            del self._buffer[:position]
            self._scanned = max(0, self._scanned - position)
            if self._headers is not None:
                command, headers, body, end = self._headers
                self._headers = command, headers, body - position, end - position

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
        return FrameError(f"{len(self._buffer) - body} bytes came of a body of {end - body}", headers)

    def _next(self, position: int) -> tuple[Frame, int] | None:
        """The next complete frame and where it ends, if it is there already."""
        if self._headers is None and not self._read_headers(position):
            return None
        assert self._headers is not None
        command, headers, body, end = self._headers
        buffer = self._buffer
        if end < body:  # without a length: up to the first NUL
            end = buffer.find(_NUL, max(body, self._scanned))
            if end < 0:
                self._scanned = len(buffer)
                return None
            following = buffer[end + 1 : end + 2]
            if following and following not in _STARTS and command == "MESSAGE":
                end = self._end_of_nuls(end)
                if end < 0:
                    return None
                headers = UnreadableHeaders(headers)
        elif len(buffer) <= end:
            return None
        elif buffer[end] != _NUL:
            raise FrameError(f"no end of frame behind a body of {end - body} bytes", headers)
        self._headers, self._scanned = None, 0
        with memoryview(buffer) as view:
            return (command, headers, bytes(view[body:end])), end + 1

    def _end_of_nuls(self, end: int) -> int:
        """Where a body ends that has NULs in it and no length: at the NUL before the next frame; -1 if not here yet.

        STOMP cannot carry such a text, unless the frame gives its length.
        """
        buffer = self._buffer
        while True:
            following = bytes(buffer[end + 1 : end + 12]).lstrip(_EOL)
            if not following or any(name.startswith(following[: len(name)]) for name in _FIRST_LINES):
                return end
            end = buffer.find(_NUL, end + 1)
            if end < 0:
                return -1

    def _read_headers(self, position: int) -> bool:
        buffer = self._buffer
        length = len(buffer)
        while position < length and buffer[position] in _EOL:  # heartbeats, and ends of lines behind a frame
            position += 1
        found = buffer.find(b"\n\n", position)
        body = found + 2
        # The same with carriage returns, which brokers may send and usually do not.
        returned = buffer.find(b"\n\r\n", position, found if found >= 0 else length)
        if returned >= 0:
            found, body = returned, returned + 3
        if found < 0:
            self._check_start(position)
            return False
        command, headers = _headers(bytes(buffer[position:found]), self._last)
        if command not in COMMANDS:
            raise FrameError(f"{command[:_SHOWN_BYTES]!r} is not a frame of a STOMP server")
        self.spoken = True
        size = headers.get("content-length")
        if size is None:
            end = -1
        elif size.isascii() and size.isdecimal() and len(size) < 16:
            end = body + int(size)
        else:
            raise FrameError(f"content-length is {size[:_SHOWN_BYTES]!r}")
        self._headers = command, headers, body, end
        return True

    def _check_start(self, position: int) -> None:
        """A port that speaks something else may never send an empty line."""
        start = bytes(self._buffer[position : position + 10])
        line = start.partition(b"\n")[0].rstrip(b"\r").decode("latin-1")
        complete = b"\n" in start
        known = line in COMMANDS if complete else any(command.startswith(line) for command in COMMANDS)
        if not known or len(self._buffer) - position > _HEADER_BYTES_MAX:
            raise FrameError(
                f"{bytes(self._buffer[position : position + _SHOWN_BYTES])!r} is not a frame of a STOMP server"
            )


def _headers(data: bytes, last: str) -> tuple[str, dict[str, str]]:
    # What is not text is kept, in the form that gives the bytes back.
    text = data.decode("utf-8", "surrogateescape")
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    command, *lines = text.split("\n")
    # Of a repeated header the first counts (section "Repeated Header Entries").
    lines.reverse()
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name] = value
    if last and len(headers) < len(lines):
        found = next((line for line in lines if line.startswith(last)), "")
        if found:
            headers[last[:-1]] = found[len(last) :]
    if "\\" in text and command != "CONNECTED":  # which is not escaped (section "Value Encoding")
        headers = {_unescape(name): _unescape(value) for name, value in headers.items()}
    return command, headers


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    if text.count("\\") == text.count("\\c"):  # by far the most common: IDs with colons
        return text.replace("\\c", ":")
    # Sequences that mean nothing are left alone: an error would make the message unreadable forever.
    return _ESCAPE.sub(lambda found: _MEANINGS[found[0]], text)


def escape(text: str) -> str:
    """A header value as it is written in all frames but CONNECT."""
    for meaning in ("\\", "\r", "\n", ":"):
        if meaning in text:
            sequence = next(sequence for sequence, plain in _MEANINGS.items() if plain == meaning)
            text = text.replace(meaning, sequence)
    return text
