"""Reading STOMP the plain way: every header of every message is decoded into a dict.

The source did so up to version 0.1. What it does now is held to the same frames, columns, IDs and refusals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from pyspark_mq.brokers.base import StompDialect
from pyspark_mq.dedup import IdSource
from pyspark_mq.sources.connections.decoder import UNREADABLE_PROPERTY, Decoder, Unreadable

__all__ = ["ReferenceDecoder", "ReferenceUnreadable", "escape", "frames_of"]

#: (tag, headers, body, how the broker speaks)
Raw = tuple[int, Mapping[str, str], bytes, StompDialect]

#: command, headers, body
Frame: TypeAlias = "tuple[str, dict[str, str], bytes]"

#: What a server may send (STOMP 1.2, section "Server Frames").
COMMANDS = frozenset({"CONNECTED", "MESSAGE", "RECEIPT", "ERROR"})

#: What is behind the NUL at the end of a message: ends of lines, and the first line of another frame.
_ANOTHER = re.compile(rb"[\r\n]*(?:CONNECTED|MESSAGE|RECEIPT|ERROR)\r?\n")
_NUL = 0
_EOL = b"\r\n"
_ESCAPE = re.compile(r"\\[rnc\\]")
_MEANINGS = {"\\r": "\r", "\\n": "\n", "\\c": ":", "\\\\": "\\"}


class ReferenceUnreadable(dict[str, str]):
    """Headers of a message whose end is not where it should be, and why not."""

    error = ""


def frames_of(data: bytes, last: str = "") -> tuple[list[Frame], bool]:
    """The frames of a whole stream behind which nothing more comes, and is there something behind them that is none?

    Args:
        last: a header of which the last entry counts when it is repeated; of all others the first does.
    """
    frames: list[Frame] = []
    while True:
        data = data.lstrip(_EOL)
        head = _head(data)
        if head is None:
            return frames, not _may_begin(data)
        lines, body = head
        command, headers = _headers(lines, last)
        if command not in COMMANDS:
            return frames, True
        size = _announced(lines)
        end = body + int(size) if size is not None and re.fullmatch(rb"[0-9]{1,15}", size) else -1
        if end >= len(data):
            return frames, False
        odd = f"its content-length is {size[:40]!r}" if size is not None and end < 0 else ""
        if end >= 0 and data[end] != _NUL:
            odd, end = f"no end of frame behind a body of {end - body} bytes", -1
        if end < 0:
            end, cut = _end(data, body, command)
            odd = odd or ("a text with a NUL in it, which STOMP cannot carry" if cut else "")
            if end < 0:
                return frames, False
        if odd and command == "MESSAGE":
            headers = ReferenceUnreadable(headers)
            headers.error = odd
        frames.append((command, headers, data[body:end]))
        data = data[end + 1 :]


def _head(data: bytes) -> tuple[bytes, int] | None:
    """The lines before the empty one, and where the body begins; None if there is no empty line."""
    at = 0
    while (found := data.find(b"\n", at)) >= 0:
        if data[at:found] in (b"", b"\r"):
            return data[: max(0, at - 1)], found + 1
        at = found + 1
    return None


def _may_begin(data: bytes) -> bool:
    line, complete, _ = data.partition(b"\n")
    line = line.rstrip(b"\r")
    names = [name.encode() for name in COMMANDS]
    return line in names if complete else any(name.startswith(line) for name in names)


def _announced(lines: bytes) -> bytes | None:
    """The length in the headers, as it is written; None if there is none."""
    for line in lines.replace(b"\r\n", b"\n").removesuffix(b"\r").split(b"\n")[1:]:
        name, _, size = line.partition(b":")
        if name == b"content-length":
            return size
    return None


def _end(data: bytes, body: int, command: str) -> tuple[int, bool]:
    """The NUL that ends a body without a length, and are there others in it? Nothing may be behind it, or a frame."""
    nuls = [at for at in range(body, len(data)) if data[at] == _NUL]
    for number, at in enumerate(nuls):
        behind = data[at + 1 :].lstrip(_EOL)
        begun = any(f"{name}{end}".encode().startswith(behind) for name in COMMANDS for end in ("\n", "\r\n"))
        if command != "MESSAGE" or begun or _ANOTHER.match(data, at + 1):
            return at, number > 0
    return -1, False


def _headers(data: bytes, last: str) -> tuple[str, dict[str, str]]:
    last = f"{last}:" if last else ""
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
