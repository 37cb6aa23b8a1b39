"""Reading STOMP the plain way: every header of every message is decoded into a dict.

The source did so up to version 0.1. What it does now is held to the same frames, columns, IDs and refusals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from pyspark_mq.brokers.base import StompDialect
from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.base import UNREADABLE_PROPERTY, Decoder, Unreadable

__all__ = ["ReferenceDecoder", "ReferenceReader", "ReferenceUnreadable", "RefusedFrameError", "escape"]

#: (tag, headers, body, how the broker speaks)
Raw = tuple[int, Mapping[str, str], bytes, StompDialect]

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


class RefusedFrameError(Exception):
    """What was received is not a STOMP frame.

    Attributes:
        headers: of the frame, as far as they were read.
    """

    def __init__(self, text: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.headers = headers
        super().__init__(text)


class ReferenceUnreadable(dict[str, str]):
    """Headers of a message whose end is not certain: it has NULs, and the frame no length."""

    error = "a text with a NUL in it, which STOMP cannot carry"


class ReferenceReader:
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
            RefusedFrameError: the bytes are something else.
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

    def overlong(self) -> RefusedFrameError | None:
        """The error for a frame that has begun, if its broker says that it has nothing more to send.

        Heartbeats come between frames. Within a body they mean that it is shorter than its length.
        """
        if self._headers is None:
            return None
        _, headers, body, end = self._headers
        return RefusedFrameError(f"{len(self._buffer) - body} bytes came of a body of {end - body}", headers)

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
                headers = ReferenceUnreadable(headers)
        elif len(buffer) <= end:
            return None
        elif buffer[end] != _NUL:
            raise RefusedFrameError(f"no end of frame behind a body of {end - body} bytes", headers)
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
            raise RefusedFrameError(f"{command[:_SHOWN_BYTES]!r} is not a frame of a STOMP server")
        self.spoken = True
        size = headers.get("content-length")
        if size is None:
            end = -1
        elif size.isascii() and size.isdecimal() and len(size) < 16:
            end = body + int(size)
        else:
            raise RefusedFrameError(f"content-length is {size[:_SHOWN_BYTES]!r}")
        self._headers = command, headers, body, end
        return True

    def _check_start(self, position: int) -> None:
        """A port that speaks something else may never send an empty line."""
        start = bytes(self._buffer[position : position + 10])
        line = start.partition(b"\n")[0].rstrip(b"\r").decode("latin-1")
        complete = b"\n" in start
        known = line in COMMANDS if complete else any(command.startswith(line) for command in COMMANDS)
        if not known or len(self._buffer) - position > _HEADER_BYTES_MAX:
            raise RefusedFrameError(
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


_MESSAGE_ID = IdSource("message-id")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

#: Headers of MESSAGE and SEND in the specification, and those with a column of their own.
_NAMED = frozenset(
    {
        "ack", "content-length", "content-type", "correlation-id", "destination", "message-id", "priority",
        "receipt", "redelivered", "reply-to", "subscription", "timestamp", "transaction", "type",
    }
)  # fmt: skip


def as_text(value: str | None) -> str | None:
    """A header for a string column; bytes that are not text are shown with escapes."""
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _texts(name: str) -> Callable[[Sequence[Raw]], list[Any]]:
    return lambda raws: [as_text(raw[1].get(name)) for raw in raws]


def whole_number(text: str | None, most: int) -> int | None:
    """The number in a header, from 0 to `most`, or None."""
    # Python refuses to convert thousands of digits.
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 19:
        return None
    value = int(text)
    return value if value <= most else None


def _properties(raws: Sequence[Raw]) -> list[list[tuple[str, str | None]] | None]:
    found: list[list[tuple[str, str | None]] | None] = []
    for _, headers, _, dialect in raws:
        hidden, prefixes = dialect.internal_headers, dialect.internal_prefixes
        own = [(UNREADABLE_PROPERTY, headers.error)] if isinstance(headers, ReferenceUnreadable) else []
        found.append(
            own
            + [
                (str(as_text(name)), as_text(value))
                for name, value in headers.items()
                if name not in _NAMED and name not in hidden and not (prefixes and name.startswith(prefixes))
            ]
        )
    return found


def _timestamp_us(raw: Raw) -> int | None:
    unit = raw[3].timestamp_us
    moment = whole_number(raw[1].get("timestamp"), _INT64_MAX // unit)
    return None if moment is None else moment * unit


def _expiration_us(raw: Raw) -> int | None:
    _, headers, _, dialect = raw
    if dialect.expires_header:
        moment = whole_number(headers.get(dialect.expires_header), _INT64_MAX // 1000)
        return moment * 1000 if moment else None
    # A time to live in milliseconds, counted from publishing, as in AMQP 0-9-1.
    published, lives = _timestamp_us(raw), whole_number(headers.get("expiration"), _INT64_MAX // 1000)
    if published is None or lives is None:
        return None
    moment = published + lives * 1000
    return moment if moment <= _INT64_MAX else None


def _delivery_count(raw: Raw) -> int | None:
    _, headers, _, dialect = raw
    if not dialect.count_header:
        return None
    counted = whole_number(headers.get(dialect.count_header), _INT32_MAX - 1)
    if counted is not None:
        return counted + 1
    return None if headers.get("redelivered") == "true" else 1


class ReferenceDecoder(Decoder):
    """Columns of (tag, headers, body, dialect)."""

    def tags(self, raws: Sequence[Raw]) -> list[int]:
        """Numbers of the consumer's own: 1, 2, 3… in each session."""
        return [raw[0] for raw in raws]

    def bodies(self, raws: Sequence[Raw]) -> list[bytes]:
        """Bodies as they came; texts in UTF-8.

        Of JMS messages, STOMP carries texts and bytes. ActiveMQ Classic sends the others with an empty
        body; Artemis sends a MapMessage in its own encoding, and a StreamMessage not at all.
        """
        return [raw[2] for raw in raws]

    def ids(self, raws: Sequence[Raw], source: IdSource) -> list[object]:
        """The broker's ID where it gives one, or the producer's; None where a property hides the broker's."""
        name = source.name
        if source.kind == "message-id":
            name = raws[0][3].id_header if raws else ""
        elif source.kind == "correlation-id":
            name = source.kind
        ids = [_id(raw[1].get(name)) for raw in raws]
        own_id = raws[0][3].own_id if raws and source.kind == "message-id" else None
        if own_id is not None:
            return [value if isinstance(value, str) and own_id.search(value) else None for value in ids]
        separator = raws[0][3].id_separator if raws and source.kind == "message-id" else ""
        if not separator:
            return ids
        return [value.rpartition(separator)[2] if isinstance(value, str) else value for value in ids]

    def hidden(self, raws: Sequence[Raw]) -> list[str]:
        if not raws or raws[0][3].own_id is None:
            return []
        name, keys = raws[0][3].id_header, self.ids(raws, _MESSAGE_ID)
        return [str(as_text(raw[1].get(name))) for raw, key in zip(raws, keys, strict=True) if key is None]

    def unreadable(self, raws: Sequence[Raw]) -> list[Unreadable]:
        return [_unreadable(raw, raw[1]) for raw in raws if isinstance(raw[1], ReferenceUnreadable)]

    columns: ClassVar[Mapping[str, Callable[[Sequence[Raw]], list[Any]]]] = MappingProxyType(
        {
            "properties": _properties,
            "correlationId": _texts("correlation-id"),
            "replyTo": _texts("reply-to"),
            "contentType": _texts("content-type"),
            "type": _texts("type"),
            "priority": lambda raws: [whole_number(raw[1].get("priority"), _INT32_MAX) for raw in raws],
            "timestamp": lambda raws: [_timestamp_us(raw) for raw in raws],
            "expiration": lambda raws: [_expiration_us(raw) for raw in raws],
            "redelivered": lambda raws: [raw[1].get("redelivered") == "true" for raw in raws],
            "deliveryCount": lambda raws: [_delivery_count(raw) for raw in raws],
        }
    )


def _unreadable(raw: Raw, headers: ReferenceUnreadable) -> Unreadable:
    wanted = dict.fromkeys((raw[3].id_header, "message-id", "correlation-id", "type"))
    known = {name: str(as_text(headers[name])) for name in wanted if name in headers}
    return Unreadable(raw[0], known, raw[2], headers.error)


def _id(value: str | None) -> object:
    if value is None or value.isascii():
        return value
    data = value.encode("utf-8", "surrogateescape")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data  # not text: told apart by its bytes
