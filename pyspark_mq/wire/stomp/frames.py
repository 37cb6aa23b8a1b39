"""Divides the bytes that a STOMP 1.2 connection receives into frames. The connection itself reads the socket.

stomp.py's own reader is not used, because it has three faults (stomp.py 9.0):

* if one read returns two heartbeats, as after a pause, it drops the next message;
* a body with NUL bytes takes quadratic time, because each read copies all earlier bytes of the body;
* it changes headers that are not UTF-8, so different IDs may become equal.

In this module headers are bytes (:mod:`pyspark_mq.decode.stomp_headers`). If one read returns many complete messages,
they are found together (:mod:`pyspark_mq.decode.stomp_frames`). All other frames are found one by one by
:meth:`FrameReader._next`, which handles every case. How the bytes were divided into reads does not affect the frames.

A frame without header content-length ends at its first NUL (STOMP 1.2, "Body"). ActiveMQ Classic sends text this way,
even text that contains a NUL. Such a message is unreadable: the part before the NUL must not be taken for the whole
text, and the part after it is not a frame. So the end of such a frame is certain only when another frame follows. Until
then the frame is held back (:attr:`FrameReader.held`).

A producer may also send text that contains whole frames. To recognize the broker's own frames, the session chooses
names for subscriptions and receipts that end in random bytes, which no producer can guess (`own`). The broker's MESSAGE
frames contain the name of a subscription, and its RECEIPT frames the name of a receipt, so a frame without these bytes
is part of a text. ERROR frames of the broker may lack these bytes, but they can be recognized by what follows. If the
ERROR answers a frame that did not request a receipt, the connection stays open, and the broker then sends the receipt
that a later frame requested (see :mod:`pyspark_mq.sources.stomp.settling`). After any other ERROR, ActiveMQ Classic
closes the connection. So if other frames follow an ERROR, it is part of a text, unless such a receipt is outstanding.
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

#: A frame: (command, header block, body).
Frame: TypeAlias = "tuple[str, bytes, bytes]"

MESSAGE = "MESSAGE"
#: Commands that a server may send (STOMP 1.2, section "Server Frames").
COMMANDS = frozenset({"CONNECTED", MESSAGE, "RECEIPT", "ERROR"})

#: Maximum number of bytes and of lines of a message's headers. If a message has more, only the headers that the session
#: needs are kept, and the message counts as unreadable.
_HEADER_BYTES_MAX, _HEADER_LINES_MAX = 16 * 1024 * 1024, 1_000_000
#: Maximum length of a line that is kept of such headers.
_LINE_BYTES_MAX = 1 << 16
#: Headers that the session needs: to settle and identify a message, and for columns. In addition, headers whose names
#: begin with JMS_AMQP_ are needed, as they show that the message was sent over AMQP 1.0.
_NEEDED_NAMES = (
    "ack", "amqp-message-id", "content-length", "content-type", "correlation-id", "destination", "expires", "message",
    "message-id", "persistent", "priority", "receipt-id", "redelivered", "reply-to", "subscription", "timestamp",
    "type", "x-stream-offset",
)  # fmt: skip
_NEEDED = (*(f"\n{name}:".encode() for name in _NEEDED_NAMES), b"\nJMS_AMQP_")
#: The first lines that a frame may have, and the length of the longest one.
_FIRST_LINES = tuple(f"{command}{end}".encode() for command in COMMANDS for end in ("\n", "\r\n"))
_FIRST_LINE_BYTES = max(map(len, _FIRST_LINES))
_FIRST_LINE_PATTERN = rb"(?:%b)\r?\n" % "|".join(COMMANDS).encode()
#: Matches up to the last position at which a text may have ended and a frame may begin.
_LAST_BEGINNING = re.compile(rb".*\0([\r\n]*%b)" % _FIRST_LINE_PATTERN, re.DOTALL)
_LAST_ERROR = re.compile(rb".*\0[\r\n]*(ERROR\r?\n)", re.DOTALL)
_ERROR = re.compile(rb"[\0\r\n]ERROR\r?\n")
_ENDS_OF_LINES = re.compile(rb"[\r\n]*")
_SHOWN_BYTES = 40
#: Matches the part of the first line that is shown in an error, once this part has arrived completely.
_SHOWN_LINE = re.compile(rb"[^\n\0]{%d}|[^\n\0]*[\n\0]" % _SHOWN_BYTES)
#: After a read of at least this size, the reader tries again to find messages together, starting with the bytes that
#: remain from earlier reads.
_JOINED_MIN = 16 << 10
#: Maximum number of messages that are found together at a time, and maximum number of messages that are found one by
#: one after an unsuccessful try.
_TRIED_MAX, _PAUSE_MAX = 1_000, 10_000
_LENGTH_DIGITS_MAX = 15
_NUL = 0
_FIRST_LINE = b"MESSAGE\n"
_SHOWN_ID_CHARACTERS = 200


class StompFrameError(Exception):
    """The received bytes are not a STOMP frame."""


class FrameReader:
    """Divides received bytes into frames. Between two reads it keeps at most the bytes of one incomplete frame.

    Args:
        batch_min: minimum number of messages in a read that are found together, as a batch; 0 for no batches.
        last: name of a header whose last entry is used if the header is repeated; empty if there is no such header. Of
            all other headers the first entry is used.
        own: the random bytes with which the names of the session's subscriptions and receipts end, see the module's
            docstring. If empty, everything that looks like a frame is a frame.
        in_doubt: returns whether the broker may send an ERROR without `own` and keep the connection open.
    """

    def __init__(
        self, batch_min: int = 0, last: str = "", own: bytes = b"", in_doubt: Callable[[], bool] = lambda: False
    ) -> None:
        self._batch_min, self._last, self._own, self._in_doubt = batch_min, last, own, in_doubt
        #: Matches the bytes by which a frame of the broker is recognized, and the maximum length of these bytes.
        self._mark = re.compile(re.escape(own) or _FIRST_LINE_PATTERN)
        self._mark_bytes = len(own) or _FIRST_LINE_BYTES
        #: How many further messages are found one by one before the next try to find messages together, and how many
        #: after the next unsuccessful try.
        self._alone, self._pause = 0, batch_min
        #: Received bytes that do not belong to a returned frame yet. Between reads this is the start of a frame.
        self._buffer = bytearray()
        #: Command, headers, start and end of the body of the incomplete frame; None until its headers are complete. The
        #: end is -1 if there is no valid content-length, so that the body ends at a NUL.
        self._headers: tuple[str, bytes, int, int] | None = None
        #: Position up to which the headers, or a body without content-length, have been searched for their end.
        self._scanned = 0
        #: Number of bytes that were removed from the headers of the incomplete frame.
        self._skipped = 0
        #: Position of the last NUL of a body without content-length, and position after the line ends that follow this
        #: NUL; -1 if there is none.
        self._nul = self._line = -1
        #: Why the message of the incomplete frame is unreadable; empty if it is readable.
        self._malformed = ""
        #: Whether a message is held back: it is complete, unless more bytes arrive that belong to its text.
        self.held = False
        #: Whether at least one STOMP frame has arrived.
        self.spoken = False

    def feed(self, data: bytes) -> Iterator[Frame | Frames]:
        """Add received bytes, and yield the frames that are complete now.

        The caller must exhaust the iterator before the next call.

        Raises:
            StompFrameError: the bytes are not STOMP.
        """
        if max(_JOINED_MIN, len(self._buffer)) <= len(data) and not self._malformed and not self._skipped:
            # Try again to find messages together. The search begins at the start of the incomplete frame again. This
            # takes little time compared with the processing of so many new bytes.
            self._begin()
        self._buffer += data
        return self._cut()

    def quiet(self) -> Iterator[Frame | Frames]:
        """Yield the message that is held back. Call this when it is certain that the message is complete.

        The caller must exhaust the iterator, as for :meth:`feed`.
        """
        return self._cut(quiet=True) if self.held else iter(())

    def idle(self) -> Iterator[Frame | Frames]:
        """Yield a message whose body is shorter than its content-length, because only heartbeats arrive now.

        The broker sends heartbeats only between frames, so the body has ended before the heartbeats. The caller must
        exhaust the iterator, as for :meth:`feed`.
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
        """Return the ERROR frame at the end of the bytes of a closed connection; None if there is no such frame.

        A text before the frame is discarded, because it may be incomplete.
        """
        if self._headers is None or (found := _LAST_ERROR.match(self._buffer, self._headers[2])) is None:
            return None
        frames = FrameReader().feed(bytes(self._buffer[found.start(1) :]))
        return next((frame for frame in frames if not isinstance(frame, Frames)), None)

    @property
    def partial_bytes(self) -> int:
        """Number of bytes of the incomplete frame that have arrived."""
        return len(self._buffer)

    @property
    def inside(self) -> bool:
        """Whether the headers of a frame have arrived, but not its whole body."""
        return self._headers is not None

    def _cut(self, *, quiet: bool = False) -> Iterator[Frame | Frames]:
        """Yield the complete frames in the buffer, and remove them.

        Args:
            quiet: whether it is certain that no more bytes of the first frame will arrive.
        """
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
        """Find several messages at once, and return them; None if the next message must be found alone.

        After each unsuccessful try, twice as many messages are found alone before the next try, so that unsuccessful
        tries take little time.
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
        if tried < least:  # this many messages remain of the last read
            self._alone = max(1, tried)
        else:
            self._alone, self._pause = self._pause, min(_PAUSE_MAX, 2 * self._pause)
        return None

    @property
    def rest(self) -> bytes:
        """The first bytes of an incomplete frame, for error texts."""
        return bytes(self._buffer[:_SHOWN_BYTES])

    def _next(self, *, quiet: bool) -> Frame | None:
        """Remove the next frame from the buffer and return it; None if it is not complete yet.

        Args:
            quiet: whether it is certain that no more bytes of this frame will arrive. Then a text that looks complete
                is complete, even if no frame has arrived after it.
        """
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
        """Reset the state that describes the incomplete frame, because another frame begins."""
        self._headers, self._scanned, self._malformed, self.held = None, 0, "", False
        self._nul = self._line = -1

    def _distrust(self, why: str) -> None:
        """Ignore the frame's content-length, which is wrong: the frame ends where it would end without this header.

        Args:
            why: the reason why the message counts as unreadable.
        """
        assert self._headers is not None
        self._malformed = self._malformed or why
        self._headers = *self._headers[:3], -1

    def _find_end(self, body: int, *, quiet: bool) -> int:
        """Return the position at which a text ends, which is the NUL before the next frame; -1 if not known yet.

        Args:
            body: position at which the text begins.
            quiet: whether it is certain that no more bytes of the text will arrive.
        """
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
        """Return the position of the NUL before the next frame of the broker; -1 if no such frame has arrived.

        The text itself may end with bytes that look like the beginning of a frame. So the broker's frame begins at the
        last possible position before the bytes `own`.
        """
        for mark in self._mark.finditer(self._buffer, max(body, self._scanned - self._mark_bytes + 1)):
            if found := _LAST_BEGINNING.match(self._buffer, body, mark.end()):
                return found.start(1) - 1
        return -1

    def _look_at_end(self, body: int) -> None:
        """Determine whether a text looks complete, and set :attr:`held`.

        Each byte of the text is examined only once.
        """
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
            f"an ERROR frame follows a NUL in message '{found}'. It is not certain whether the frame is part of the "
            "message's text or was sent by the broker. Read the queue with protocol 'amqp-1.0', or remove the message "
            "with the broker's tools"
        )

    def _read_headers(self) -> bool:
        """Read the headers of the next frame. Return whether they were complete."""
        buffer = self._buffer
        if not buffer.startswith(_FIRST_LINES):  # do not wait for an empty line, which other protocols may never send
            if wrong := _SHOWN_LINE.match(buffer):
                raise StompFrameError(f"{wrong[0].rstrip()!r} does not begin a frame of a STOMP server")
            return False
        # Two of the bytes that end the headers may have arrived with the previous read.
        since = max(0, self._scanned - 2)
        found = buffer.find(b"\n\n", since)
        body = found + 2
        # The headers may also end with a carriage return, which is allowed but rare.
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
        """Remove unneeded headers from the buffer, because the incomplete headers exceed the limit."""
        buffer = self._buffer
        size, begin, end = len(buffer), buffer.find(b"\n"), buffer.rfind(b"\n") + 1
        # Keep the start of the last, incomplete line. If it exceeds the limit of a line, it is removed later.
        begun = buffer[end : end + _LINE_BYTES_MAX + 1]
        buffer[begin:] = _needed(buffer[begin:end]) + begun
        self._skipped += size - len(buffer)

    def _limited(self, end: int) -> bytes:
        """Return the first line and the headers of a frame. If the headers exceed a limit, return only needed headers.

        Args:
            end: position at which the headers end.
        """
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
    """Return a message's ID for error texts, shortened if it is long.

    Args:
        block: the message's headers.
        last: name of a header whose last entry is used if the header is repeated; empty if there is no such header.
    """
    found = value(block, "message-id", last) or b""
    return shown(found.decode("utf-8", "backslashreplace").replace("\\c", ":"))[:_SHOWN_ID_CHARACTERS]


def _behind_ends_of_lines(buffer: bytearray, position: int) -> int:
    """Return the position after the line ends at `position`, which follow a frame or are heartbeats."""
    found = _ENDS_OF_LINES.match(buffer, position)
    return found.end() if found else position


def _needed(block: bytes | bytearray) -> bytes:
    """Return the first and the last entry of each needed header of a block, in order.

    An entry that is too long is cut one byte above the limit, so that :meth:`FrameReader._limited` recognizes and
    removes it. Another entry of the same header does not replace it.
    """
    places = {place for name in _NEEDED for place in (block.find(name), block.rfind(name))} - {-1}
    ends = ((place, block.find(b"\n", place + 1)) for place in sorted(places))
    return b"".join([*(block[place : min(end, place + _LINE_BYTES_MAX + 2)] for place, end in ends), b"\n"])


def _block(data: bytes) -> tuple[str, bytes]:
    """Split the lines before the empty line of a frame into the command and the header block."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    command, found, lines = data.partition(b"\n")
    return command.decode("utf-8", "surrogateescape"), b"\n" + lines + b"\n" if found else b"\n"
