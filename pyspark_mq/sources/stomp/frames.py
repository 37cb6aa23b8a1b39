"""STOMP 1.2 frames from the bytes of a connection. Pure: no socket, no clock.

stomp.py's own reader is not used, because it has three faults (stomp.py 9.0):

* two heartbeats in one read, as after a pause, make it drop the next message;
* a body with NUL bytes takes quadratic time, because each read copies everything so far;
* it changes headers that are not UTF-8, so different IDs may become equal.

Headers stay bytes here (:mod:`pyspark_mq.decode.stomp_headers`). Many complete messages in one read are cut together
(:mod:`pyspark_mq.decode.stomp_frames`); all other frames go one by one through :meth:`FrameReader._next`, which handles
every case.

A frame without a content-length ends at its first NUL (STOMP 1.2, "Body"). ActiveMQ Classic sends text this way, even
text that contains a NUL. The bytes after such a NUL are not a frame, and the message is unreadable: the part before the
NUL must not be taken for the whole text. So the end of a frame is certain only when another frame follows; until then
the frame is held (:attr:`FrameReader.held`). The resulting frames never depend on how the bytes were split into reads.

A text may contain whole frames. A broker's MESSAGE names one of our subscriptions, and its RECEIPT one of our receipts.
These names end in random bytes that no producer can guess (`own`), so frames without these bytes are part of the text.
An ERROR may be the broker's without them. An ERROR that answers a frame without a receipt is followed by a later
receipt (see :mod:`pyspark_mq.sources.stomp.settling`), and after any other ERROR ActiveMQ Classic closes the
connection. So an ERROR that more frames follow is part of the text, unless such a receipt is outstanding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from pyspark_mq.decode.escapes import TOO_MANY_ESCAPES, escapes_too_much
from pyspark_mq.decode.stomp_frames import Frames, find_frames
from pyspark_mq.decode.stomp_headers import UnreadableHeaders, value
from pyspark_mq.errors import shown

__all__ = ["COMMANDS", "MESSAGE", "Frame", "FrameReader", "StompFrameError", "UnreadableHeaders", "id_for_errors"]

#: (command, header block, body)
Frame: TypeAlias = "tuple[str, bytes, bytes]"

MESSAGE = "MESSAGE"
#: Commands that a server may send (STOMP 1.2, section "Server Frames").
COMMANDS = frozenset({"CONNECTED", MESSAGE, "RECEIPT", "ERROR"})

#: Longest headers of a message, and most lines. If a message has more, only needed headers are kept, and the message is
#: unreadable.
_HEADER_BYTES_MAX, _HEADER_LINES_MAX = 16 * 1024 * 1024, 1_000_000
#: Longest line that is kept of such headers.
_LINE_BYTES_MAX = 1 << 16
#: Headers that settle and identify a message, and headers with a column. A name that begins with JMS_AMQP_ shows that
#: the message came over AMQP 1.0.
_NEEDED_NAMES = (
    "ack", "amqp-message-id", "content-length", "content-type", "correlation-id", "destination", "expires", "message",
    "message-id", "persistent", "priority", "receipt-id", "redelivered", "reply-to", "subscription", "timestamp",
    "type", "x-stream-offset",
)  # fmt: skip
_NEEDED = (*(f"\n{name}:".encode() for name in _NEEDED_NAMES), b"\nJMS_AMQP_")
#: Possible first lines, and the length of the longest.
_FIRST_LINES = tuple(f"{command}{end}".encode() for command in COMMANDS for end in ("\n", "\r\n"))
_FIRST_LINE_BYTES = max(map(len, _FIRST_LINES))
_FIRST_LINE_PATTERN = rb"(?:%b)\r?\n" % "|".join(COMMANDS).encode()
#: The last place before a position where a text may have ended and a frame begun.
_LAST_BEGINNING = re.compile(rb".*\0([\r\n]*%b)" % _FIRST_LINE_PATTERN, re.DOTALL)
_LAST_ERROR = re.compile(rb".*\0[\r\n]*(ERROR\r?\n)", re.DOTALL)
_ERROR = re.compile(rb"[\0\r\n]ERROR\r?\n")
_ENDS_OF_LINES = re.compile(rb"[\r\n]*")
_SHOWN_BYTES = 40
#: The part of the first line to show in an error, which must not depend on how many bytes have arrived.
_SHOWN_LINE = re.compile(rb"[^\n\0]{%d}|[^\n\0]*[\n\0]" % _SHOWN_BYTES)
#: Smallest read after which cutting messages together is tried again, starting with the rest of earlier reads.
_JOINED_MIN = 16 << 10
#: Most messages that are cut together at a time, and most messages that are taken one by one after failures.
_TRIED_MAX, _PAUSE_MAX = 1_000, 10_000
_LENGTH_DIGITS_MAX = 15
_NUL = 0
_FIRST_LINE = b"MESSAGE\n"
_SHOWN_ID_CHARACTERS = 200


class StompFrameError(Exception):
    """The received bytes are not a STOMP frame."""


class FrameReader:
    """Cuts a stream of bytes into frames.

    Between reads it holds at most the bytes of one incomplete frame.

    Args:
        batch_min: the fewest messages of a read to decode as a batch; 0 to decode none as a batch.
        last: name of the header whose last entry counts, if the header is repeated; empty if there is no such header.
        own: bytes that end the names of our subscriptions and receipts, and that no producer can know. If empty,
            whatever looks like a frame is a frame.
        in_doubt: whether the broker may send an ERROR without `own` and then continue.
    """

    def __init__(
        self, batch_min: int = 0, last: str = "", own: bytes = b"", in_doubt: Callable[[], bool] = lambda: False
    ) -> None:
        self._batch_min, self._last, self._own, self._in_doubt = batch_min, last, own, in_doubt
        #: What shows that a frame has begun, and the greatest length of that.
        self._mark = re.compile(re.escape(own) or _FIRST_LINE_PATTERN)
        self._mark_bytes = len(own) or _FIRST_LINE_BYTES
        #: Number of messages still to be taken one by one, and the number to take this way after the next failure.
        self._alone, self._pause = 0, batch_min
        #: Bytes not yet cut into frames; between reads, the start of an incomplete frame.
        self._buffer = bytearray()
        #: Command, headers, start and end of the body (-1: at a NUL) of the incomplete frame; None before its headers.
        self._headers: tuple[str, bytes, int, int] | None = None
        #: The headers, or a body without a content-length, do not end before this position.
        self._scanned = 0
        #: Number of bytes that were removed from the headers of the incomplete frame.
        self._skipped = 0
        #: The last NUL of a body without a content-length (-1: none), and the end of the line ends after that NUL.
        self._nul = self._line = -1
        #: Why the message of the incomplete frame is unreadable; empty if it is readable.
        self._malformed = ""
        #: Whether the buffer holds a message that is complete unless more of it arrives.
        self.held = False
        #: Whether a STOMP frame was seen.
        self.spoken = False

    def feed(self, data: bytes) -> Iterator[Frame | Frames]:
        """Yield frames completed by these bytes. Exhaust the iterator before the next call.

        Raises:
            StompFrameError: the bytes are not STOMP.
        """
        if max(_JOINED_MIN, len(self._buffer)) <= len(data) and not self._malformed and not self._skipped:
            # Try again to cut messages together. Repeating the work takes little compared with so many new bytes.
            self._begin()
        self._buffer += data
        return self._cut()

    def quiet(self) -> Iterator[Frame | Frames]:
        """Yield the held message, because no more of it will arrive. Use like :meth:`feed`."""
        return self._cut(quiet=True) if self.held else iter(())

    def idle(self) -> Iterator[Frame | Frames]:
        """End a body that is shorter than its content-length, once the broker sends no more. Use like :meth:`feed`.

        Heartbeats are sent between frames, so heartbeats in the body prove that the body ended before them.
        """
        if self._headers is None:
            return
        _, _, body, end = self._headers
        came = len(self._buffer) - body
        if end >= 0:
            self._distrust(f"only {came} of the body's {end - body} bytes arrived")
        frames = list(self._cut(quiet=True))
        yield from frames
        if not frames:
            raise StompFrameError(f"a body did not end after {came} bytes")

    def last_error(self) -> Frame | None:
        """Return the ERROR frame that ends the bytes of a closed connection, if they may be such a frame.

        The text before it may be incomplete, and is left out.
        """
        if self._headers is None or (found := _LAST_ERROR.match(self._buffer, self._headers[2])) is None:
            return None
        frames = FrameReader().feed(bytes(self._buffer[found.start(1) :]))
        return next((frame for frame in frames if not isinstance(frame, Frames)), None)

    @property
    def inside(self) -> bool:
        """Whether a body is incomplete."""
        return self._headers is not None

    def _cut(self, *, quiet: bool = False) -> Iterator[Frame | Frames]:
        """Take frames off the buffer; with `quiet`, no more of the first frame will arrive."""
        buffer = self._buffer
        while buffer:
            if self._headers is None and not self._scanned:  # nothing is known about the next frame
                del buffer[: _behind_ends_of_lines(buffer, 0)]
                if self._batch_min and buffer.startswith(_FIRST_LINE):
                    if not self._alone and (together := self._together()) is not None:
                        self.spoken = True
                        del buffer[: len(together.data)]
                        yield together
                        continue
                    self._alone -= 1
            frame = self._next(quiet=quiet)
            if frame is None:
                return
            yield frame
            quiet = False

    def _together(self) -> Frames | None:
        """Return messages cut together; None if the next message must be taken alone.

        Each consecutive failure doubles the number of messages until the next try, so failures cost little.
        """
        least = self._batch_min
        found, tried = find_frames(self._buffer, least, _TRIED_MAX, self._last, self._own)
        count = 0 if found is None else len(found.kinds)
        if count >= least:
            if count == tried:
                self._pause = least
            else:  # the next message differs
                self._alone = 1
            return found
        if tried < least:  # this many are left from the last read
            self._alone = max(1, tried)
        else:
            self._alone, self._pause = self._pause, min(_PAUSE_MAX, 2 * self._pause)
        return None

    @property
    def rest(self) -> bytes:
        """The start of an incomplete frame, for error texts."""
        return bytes(self._buffer[:_SHOWN_BYTES])

    def _next(self, *, quiet: bool) -> Frame | None:
        """Take the next frame off the buffer, if it is complete."""
        buffer = self._buffer
        if self._headers is None and not self._read_headers():
            return None
        assert self._headers is not None
        command, headers, body, end = self._headers
        if end >= len(buffer):
            return None
        if end >= 0 and buffer[end] != _NUL:
            self._distrust(f"no end of frame after a body of {end - body} bytes")
            end = -1
        if end < 0:
            end = self._find_end(body, quiet=quiet) if command == MESSAGE else buffer.find(_NUL, body)
            if end < 0:
                return None
        if self._malformed and command == MESSAGE:
            headers = UnreadableHeaders(headers)
            headers.error = self._malformed
        self._begin()
        with memoryview(buffer) as view:
            frame = command, headers, bytes(view[body:end])
        del buffer[: end + 1]
        return frame

    def _begin(self) -> None:
        """Forget what is known about the incomplete frame."""
        self._headers, self._scanned, self._malformed, self.held = None, 0, "", False
        self._nul = self._line = -1

    def _distrust(self, why: str) -> None:
        """Handle a wrong content-length: end the frame where it would end without a content-length."""
        assert self._headers is not None
        self._malformed = self._malformed or why
        self._headers = *self._headers[:3], -1

    def _find_end(self, body: int, *, quiet: bool) -> int:
        """Find the end of a text: the NUL before the next frame; -1 if not known yet."""
        buffer = self._buffer
        end = self._end_before_frame(body)
        if end < 0:
            self._look_at_end(body)
            if not (quiet and self.held):
                return -1
            end = self._nul
        if buffer.find(_NUL, body, end) >= 0:
            self._malformed = self._malformed or UnreadableHeaders.error
            if self._in_doubt() and _ERROR.search(buffer, body, end):
                raise StompFrameError(self._doubt())
        return end

    def _end_before_frame(self, body: int) -> int:
        """Return the place of the NUL before the next frame; -1 if no frame has come.

        The text may end with the beginning of a frame. So of all places before the mark the last one counts.
        """
        for mark in self._mark.finditer(self._buffer, max(body, self._scanned - self._mark_bytes + 1)):
            if found := _LAST_BEGINNING.match(self._buffer, body, mark.end()):
                return found.start(1) - 1
        return -1

    def _look_at_end(self, body: int) -> None:
        """Record whether a text is complete unless more of it arrives. Each byte is examined once."""
        buffer = self._buffer
        nul = buffer.rfind(_NUL, max(body, self._scanned))
        if nul >= 0:
            self._nul, self._line = nul, nul + 1
        self._scanned = len(buffer)
        if self._nul < 0:
            return
        self._line = _behind_ends_of_lines(buffer, self._line)
        begun = bytes(buffer[self._line : self._line + _FIRST_LINE_BYTES])
        self.held = any(line.startswith(begun) and line != begun for line in _FIRST_LINES)

    def _doubt(self) -> str:
        assert self._headers is not None
        found = id_for_errors(self._headers[1], self._last)
        return (
            f"the text of message '{found}' has a NUL and an ERROR frame in it, or the broker sent that ERROR. Read "
            "the queue with protocol 'amqp-1.0', or remove the message with the broker's tools"
        )

    def _read_headers(self) -> bool:
        """Read the headers of the next frame, if they are complete."""
        buffer = self._buffer
        if not buffer.startswith(_FIRST_LINES):  # another protocol may never send an empty line
            if wrong := _SHOWN_LINE.match(buffer):
                raise StompFrameError(f"{wrong[0].rstrip()!r} does not begin a frame of a STOMP server")
            return False
        # The end of the headers may have begun in earlier bytes.
        since = max(0, self._scanned - 2)
        found = buffer.find(b"\n\n", since)
        body = found + 2
        # Look for the end with carriage returns, which are allowed but rare.
        returned = buffer.find(b"\n\r\n", since, found + 1 if found >= 0 else len(buffer))
        if returned >= 0:
            found, body = returned, returned + 3
        if found < 0:
            if len(buffer) - 2 > _HEADER_BYTES_MAX:
                self._skip()
            self._scanned = len(buffer)
            return False
        command, headers = _block(self._limited(found))
        self.spoken = True
        self._headers = command, headers, body, -1
        self._scanned = self._skipped = 0
        size = value(headers, "content-length")
        if size is not None and size.isdigit() and len(size) <= _LENGTH_DIGITS_MAX:
            self._headers = command, headers, body, body + int(size)
        elif size is not None:
            self._malformed = self._malformed or f"its content-length is {size[:_SHOWN_BYTES]!r}"
        return True

    def _skip(self) -> None:
        """Remove headers that are not needed, to limit the memory of headers that have no end yet."""
        buffer = self._buffer
        size, begin, end = len(buffer), buffer.find(b"\n"), buffer.rfind(b"\n") + 1
        # A longer line will be removed, too.
        begun = buffer[end : end + _LINE_BYTES_MAX + 1]
        buffer[begin:] = _needed(buffer[begin:end]) + begun
        self._skipped += size - len(buffer)

    def _limited(self, end: int) -> bytes:
        """Return the first line and the headers, or only needed headers if there are too many."""
        with memoryview(self._buffer) as view:
            head = bytes(view[:end])
        size, count = self._skipped + end, head.count(b"\n")
        if size > _HEADER_BYTES_MAX:
            self._malformed = f"its headers have {size} bytes, and the limit is {_HEADER_BYTES_MAX}"
        elif count > _HEADER_LINES_MAX:
            self._malformed = f"it has {count} headers, and the limit is {_HEADER_LINES_MAX}"
        elif escapes_too_much(head):
            self._malformed = TOO_MANY_ESCAPES
        else:
            return head
        command = head[: head.find(b"\n")]
        lines = _needed(head[len(command) :] + b"\n").split(b"\n")
        return b"\n".join([command, *(line for line in lines[1:-1] if len(line) <= _LINE_BYTES_MAX)])


def id_for_errors(block: bytes, last: str) -> str:
    """Return the start of a message's ID.

    Args:
        block: the message's headers.
        last: name of the header whose last entry counts; empty if there is none.
    """
    found = value(block, "message-id", last) or b""
    return shown(found.decode("utf-8", "backslashreplace").replace("\\c", ":"))[:_SHOWN_ID_CHARACTERS]


def _behind_ends_of_lines(buffer: bytearray, position: int) -> int:
    """Return the start of the next frame, after heartbeats and line ends."""
    found = _ENDS_OF_LINES.match(buffer, position)
    return found.end() if found else position


def _needed(block: bytes | bytearray) -> bytes:
    """Return the first and the last entry of each needed header of a block, in order.

    An entry that is too long is cut one byte above the limit, and still counts as first or last.
    """
    places = {place for name in _NEEDED for place in (block.find(name), block.rfind(name))} - {-1}
    ends = ((place, block.find(b"\n", place + 1)) for place in sorted(places))
    return b"".join([*(block[place : min(end, place + _LINE_BYTES_MAX + 2)] for place, end in ends), b"\n"])


def _block(data: bytes) -> tuple[str, bytes]:
    """Split the lines before the empty line into command and headers."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    command, found, lines = data.partition(b"\n")
    return command.decode("utf-8", "surrogateescape"), b"\n" + lines + b"\n" if found else b"\n"
